"""Memory of a GPU of the host, to register regions over.

The bytes are a numpy array of this process. Where the adapter reaches the GPU (GPUDirect RDMA), messages that read
or write them are timed over the way between the two, as the host is wired. Where it does not, they are staged in
host memory (`adapter.payload_placement`): no way over PCIe leads there, `run.packet` has `gpudirect: false`, or
the host lacks the module (`no-gpudirect-module`).
"""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt

from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NodeKind
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.payload_placement import staging
from fabrictwin.verbs.adapter.staging import Staging
from fabrictwin.verbs.pyverbs.base import failure
from fabrictwin.verbs.pyverbs.device import Context

NO_PEER_MEMORY = "no-gpudirect-module"


class GpuBuffer:
    """`size` bytes on GPU number `gpu` of a context's host. `array` is what they hold.

    `gpudirect`: True refuses to stage, False always stages, None does what the host allows; which it was says the
    attribute of that name. Raises ConfigError for a GPU that the host does not have, PyverbsRDMAError where
    GPUDirect was asked for and cannot be.
    """

    def __init__(self, ctx: Context, size: int, *, gpu: int = 0, gpudirect: bool | None = None) -> None:
        adapter, fabric = ctx.adapter, ctx.world.fabric
        first, end = (int(at) for at in fabric.host_node_start[adapter.host : adapter.host + 2])
        gpus = [node for node in range(first, end) if fabric.node_kind[node] == NodeKind.GPU]
        if not 0 <= gpu < len(gpus):
            raise ConfigError(f"got GPU {gpu}, expected one of the {len(gpus)} of {adapter.host_name}", key="gpu")
        self.node = gpus[gpu]
        lacking = _lacking(adapter, self.node)
        if gpudirect and lacking:
            raise failure(f"{adapter.name} does not reach GPU {gpu}: {lacking}", errno.EOPNOTSUPP)
        self.gpudirect = not lacking and gpudirect is not False
        self.staging: Staging | None = None if self.gpudirect else staging(ctx.world, self.node)
        self.array: npt.NDArray[np.uint8] = np.zeros(size, np.uint8)

    @property
    def address(self) -> int:
        """Address of the bytes in this process."""
        return int(self.array.ctypes.data)


def _lacking(adapter: Adapter, gpu: int) -> str:
    """Return why an adapter does not reach a GPU; empty where it does."""
    world, fabric = adapter.world, adapter.world.fabric
    first, end = (int(at) for at in fabric.host_node_start[adapter.host : adapter.host + 2])
    paths = fabric.templates[fabric.host_template[adapter.host]].paths
    pair = (adapter.node - first) * (end - first) + (gpu - first)
    if paths.pair_start[pair] == paths.pair_start[pair + 1]:
        return "no way over PCIe leads there"
    if any(cause.kind == NO_PEER_MEMORY for cause in world.twin.host_causes.get(adapter.host, ())):
        return f"the host has {NO_PEER_MEMORY}"
    packets = world.engine.packets
    return "" if packets is None or packets.gpudirect else "run.packet has gpudirect: false"
