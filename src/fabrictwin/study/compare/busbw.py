"""All-reduce bandwidth by size, as nccl-tests would print it on a twin, with NCCL's own choice of algorithm.

Bus bandwidth is `bytes / time * 2 (n - 1) / n`. What control and loss cost beyond the flow engine divides it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fabrictwin.base.arrays import I32
from fabrictwin.base.capabilities import Fidelity
from fabrictwin.base.units import PS_PER_S
from fabrictwin.nccl.communicator.communicator import initialise
from fabrictwin.nccl.lowering.task_times import measure
from fabrictwin.nccl.lowering.tasks import Task
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.tuning.tuner import Call, tuner
from fabrictwin.twin.twin import Twin

SIZES = (64 << 10, 4 << 20, 256 << 20, 4 << 30)


def bus_bandwidths(
    twin: Twin,
    rank_node: I32,
    sizes: Sequence[int] = SIZES,
    *,
    factor: float = 1.0,
    fidelity: Fidelity = "flow",
    sockets: bool = False,
) -> dict[int, float]:
    """GB/s by bytes.

    `factor` is what packets take longer than flows; `sockets` leaves RDMA out. Raises ConfigError.
    """
    environment = {"NCCL_IB_DISABLE": "1"} if sockets else {}
    communicator = initialise(twin, rank_node, settings=read_settings(environment))
    chooser = tuner(communicator)
    asked = [(Task("all_reduce", size), chooser.choose(Call("AllReduce", size))) for size in sizes]
    times = measure(communicator, asked, fidelity=fidelity)
    ranks = len(rank_node)
    share = 2 * (ranks - 1) / ranks
    return {
        size: size * share / (int(took) / PS_PER_S * factor) / 1e9 for size, took in zip(sizes, times, strict=True)
    }
