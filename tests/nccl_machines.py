"""Communicators made by hand: rings host after host, trees over hosts, every GPU with the adapter of its rail."""

from __future__ import annotations

from functools import cache

import numpy as np
from clusters import blueprint

from fabrictwin.nccl.communicator import (
    Algorithm,
    Communicator,
    Graph,
    PathType,
    Rings,
    Trees,
)
from fabrictwin.nccl.settings import Settings, read_settings
from fabrictwin.program import collectives
from fabrictwin.program.program import NONE
from fabrictwin.twin.twin import Twin

CAPABILITY = {"dgx-a100": 80, "dgx-h100": 90, "dgx-h200": 90, "dgx-b200": 100, "gb200-nvl72": 100}


@cache
def twin_of(host: str = "dgx-h100", hosts: int = 1, technology: str = "infiniband") -> Twin:
    """Rail-optimised. Shared: do not change it."""
    switch = "qm9700" if technology == "infiniband" else "spectrum-4"
    switch = "qm8700" if (host, technology) == ("dgx-a100", "infiniband") else switch
    return Twin(blueprint(hosts, host, technology=technology, switch=switch))


def communicator(
    host: str = "dgx-h100",
    hosts: int = 1,
    *,
    gpus: int | None = None,
    channels: int = 16,
    twin: Twin | None = None,
    settings: Settings | None = None,
    **environment: str,
) -> Communicator:
    """`gpus` of every host, all by default."""
    twin = twin or twin_of(host, hosts)
    fabric = twin.fabric
    nodes: np.ndarray = np.concatenate(
        [fabric.gpu_node[fabric.node_host[fabric.gpu_node] == h][:gpus] for h in range(hosts)]
    ).astype(np.int32)
    node_of_rank = fabric.node_host[nodes].astype(np.int32)
    local = np.concatenate([np.arange((node_of_rank == h).sum()) for h in range(hosts)]).astype(np.int32)
    per = len(nodes) // hosts
    rings = np.array([collectives._ring(node_of_rank.astype(np.int64), c)[0] for c in range(channels)], np.int32)
    up = np.array([collectives._tree(node_of_rank.astype(np.int64), c)[1] for c in range(channels)], np.int32)
    down = np.full((channels, len(nodes), 3), NONE, np.int32)
    intra = np.stack(
        [[np.roll(np.flatnonzero(node_of_rank == h), -c) for c in range(per)] for h in range(hosts)]
    ).astype(np.int32)
    inter = np.full((hosts, per, 2), NONE, np.int32)  # none: every rank uses the adapter that is its own
    capability = CAPABILITY.get(host, 90)
    graphs = {
        algorithm: Graph(
            algorithm=algorithm,
            channels=per,
            bw_intra=20.0,
            bw_inter=40.0,
            type_intra=PathType.NVL,
            type_inter=PathType.PIX,
            same_channels=True,
            cross_nic=0,
            intra=intra,
            inter=inter,
            **({"pattern": _pattern(), "latency_inter": 0.0} if "pattern" in Graph.__annotations__ else {}),
        )
        for algorithm in Algorithm
    }
    return Communicator(
        twin=twin,
        version="2.27.7",
        settings=settings or read_settings(environment),
        rank_node=nodes,
        node_of_rank=node_of_rank,
        local_rank=local,
        nodes=hosts,
        compute_capability=capability,
        cpu="intel",
        graphs=graphs,
        rings=Rings(rings),
        trees=Trees(up, down),
        channels=channels,
        nvls_channels=channels,
        p2p_channels=32,
        p2p_channels_per_peer=8,
    )


def _pattern() -> object:
    from fabrictwin.nccl.graph import Pattern

    return Pattern.RING
