"""Memory of a GPU of the host, to register regions over: GPUDirect RDMA.

The bytes are a numpy array of this process; messages that read or write them are timed over the way between the
adapter and that GPU, as the host is wired. Where no PCIe way leads from the adapter to the GPU, registering fails
with EOPNOTSUPP, and a program copies through a buffer in host memory as it would on such a host.
"""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt

from fabrictwin.errors import ConfigError
from fabrictwin.fabric.fabric import NodeKind
from fabrictwin.verbs.base import failure
from fabrictwin.verbs.device import Context


class GpuBuffer:
    """`size` bytes on GPU number `gpu` of a context's host. `array` is what they hold.

    Raises ConfigError for a GPU that the host does not have, PyverbsRDMAError where the adapter cannot reach it.
    """

    def __init__(self, ctx: Context, size: int, *, gpu: int = 0) -> None:
        adapter, fabric = ctx.adapter, ctx.world.fabric
        first, end = (int(at) for at in fabric.host_node_start[adapter.host : adapter.host + 2])
        gpus = [node for node in range(first, end) if fabric.node_kind[node] == NodeKind.GPU]
        if not 0 <= gpu < len(gpus):
            raise ConfigError(f"got GPU {gpu}, expected one of the {len(gpus)} of {adapter.host_name}", key="gpu")
        self.node = gpus[gpu]
        paths = fabric.templates[fabric.host_template[adapter.host]].paths
        pair = (adapter.node - first) * (end - first) + (self.node - first)
        if paths.pair_start[pair] == paths.pair_start[pair + 1]:
            raise failure(f"{adapter.name} has no way over PCIe to GPU {gpu}", errno.EOPNOTSUPP)
        self.array: npt.NDArray[np.uint8] = np.zeros(size, np.uint8)

    @property
    def address(self) -> int:
        """Where the bytes lie in this process."""
        return int(self.array.ctypes.data)
