"""Which adapters Mooncake's engine moves KV through.

For a GPU it takes one of the adapters that are nearest to it by PCIe (`topology.cpp`, `discoverCudaTopology`), and
where several are equally near one at random: the side that sends anew for each request (`rdma_transport.cpp`,
`submitTransferTask`), of the side that receives anew for each slice of it (`worker_pool.cpp`, `submitPostSend`).
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I32, I64
from fabrictwin.fabric.memory_paths import PathFinder


def adapter_pairs(finder: PathFinder, source: int, target: int) -> tuple[I32, I32]:
    """Return the adapters (departing, arriving) that a slice between two GPUs may take, those of one subnet."""
    fabric = finder.fabric
    near, there = finder.nearest_adapters(source), finder.nearest_adapters(target)
    departing, arriving = np.repeat(near, len(there)), np.tile(there, len(near))
    plane = fabric.node_plane[fabric.nic_node]
    meet = plane[departing] == plane[arriving]
    if not meet.any():
        return finder.adapters_between(np.array([source], np.int32), np.array([target], np.int32))
    return departing[meet], arriving[meet]


def drawn_slices(pairs: tuple[I32, I32], requests: int, slices: int, seed: tuple[int, ...]) -> I64:
    """Return how many slices take each pair of adapters, of requests of `slices` each, of shape [pairs]."""
    departing, _ = pairs
    if len(departing) == 1:
        return np.array([requests * slices], np.int64)
    rng = np.random.default_rng(seed)
    taken = np.zeros(len(departing), np.int64)
    senders = np.unique(departing)
    for sender, count in zip(
        senders, rng.multinomial(requests, np.full(len(senders), 1 / len(senders))), strict=True
    ):
        mine = np.flatnonzero(departing == sender)
        taken[mine] = rng.multinomial(count * slices, np.full(len(mine), 1 / len(mine)))
    return taken
