"""Communicators that tests share: as NCCL would find them, or cut to fewer GPUs with rings and trees by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from support.clusters import blueprint

from fabrictwin.nccl.communicator.communicator import Communicator, NvlsTrees, Rings, Trees, initialise
from fabrictwin.nccl.communicator.connect import nvls_trees
from fabrictwin.nccl.communicator.rank_placement import RankPlacement
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.nccl.topology.graph_types import Algorithm, Protocol
from fabrictwin.nccl.tuning.tuner import Call, Choice
from fabrictwin.program import collectives
from fabrictwin.program.program import NONE
from fabrictwin.twin import Twin


def chosen(algorithm: Algorithm, protocol: Protocol = Protocol.SIMPLE, channels: int = 4) -> Choice:
    """Return a task's run, chosen by a test and not by the tuner's tables."""
    return Choice(Call("AllReduce", 0), algorithm, protocol, channels, channels, 512, 0.0)


@cache
def twin_of(host: str = "dgx-h100", hosts: int = 1, technology: str = "infiniband") -> Twin:
    """Rail-optimised. Shared: do not change it."""
    switch = "qm9700" if technology == "infiniband" else "spectrum-4"
    switch = "qm8700" if (host, technology) == ("dgx-a100", "infiniband") else switch
    return Twin(blueprint(hosts, host, technology=technology, switch=switch))


@cache
def _whole(twin: Twin, version: str, environment: tuple[tuple[str, str], ...]) -> Communicator:
    return initialise(twin, settings=read_settings(dict(environment)), version=version)


def communicator(
    host: str = "dgx-h100",
    hosts: int = 1,
    *,
    gpus: int | None = None,
    twin: Twin | None = None,
    version: str = "2.27.7",
    **environment: str,
) -> Communicator:
    """All GPUs, or `gpus` of every host. Every algorithm has a graph: where NCCL finds none, the ring's."""
    found = _whole(twin or twin_of(host, hosts), version, tuple(sorted(environment.items())))
    if gpus is not None:
        found = _cut(found, gpus)
    ring = found.graphs[Algorithm.RING]
    graphs = {a: found.graphs.get(a, replace(ring, algorithm=a)) for a in Algorithm}
    channels = found.channels
    if gpus is not None or channels.nvls_trees is None:
        node_of_rank = found.placement.node_of_rank
        heads = np.array([np.flatnonzero(node_of_rank == node) for node in range(found.nodes)], np.int32)
        channels = replace(channels, nvls_trees=NvlsTrees(heads, *nvls_trees(heads, found.ranks)))
    return replace(found, graphs=graphs, channels=channels)


def _cut(whole: Communicator, gpus: int) -> Communicator:
    """The first GPUs of every host: rings host after host, trees over hosts with a chain inside."""
    placed = whole.placement
    keep = np.flatnonzero(placed.local_rank < gpus)
    node = placed.node_of_rank[keep].astype(np.int64)
    count = 2 * gpus
    order = np.array([collectives._ring(node, c)[0] for c in range(count)], np.int32)
    up = np.array([collectives._tree(node, c)[1] for c in range(count)], np.int32)
    members = [np.flatnonzero(node == n) for n in range(whole.nodes)]
    intra = np.array([[np.roll(m, -c) for c in range(gpus)] for m in members], np.int32)
    inter = np.full((whole.nodes, gpus, 2), NONE, np.int32)  # every rank uses the adapter that is its own
    graphs = {
        a: replace(graph, channels=gpus, intra=intra, inter=inter)
        for a, graph in whole.graphs.items()
        if a in (Algorithm.RING, Algorithm.TREE)
    }
    return replace(
        whole,
        placement=RankPlacement(
            *(of_rank[keep] for of_rank in (placed.rank_node, placed.node_of_rank, placed.local_rank)),
            placed.host_of_node,
        ),
        hosts=replace(whole.hosts, device_of_rank=whole.hosts.device_of_rank[keep]),
        graphs=graphs,
        channels=replace(
            whole.channels,
            collective=count,
            nvls=count,
            rings=Rings(order),
            trees=Trees(up, np.full((*up.shape, 3), NONE, np.int32)),
        ),
    )
