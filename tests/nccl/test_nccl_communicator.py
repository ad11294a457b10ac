"""Communicators on the twin: channels, rings and trees as NCCL is known to make them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from support.clusters import blueprint

from fabrictwin.base.errors import ConfigError
from fabrictwin.nccl.communicator.communicator import Algorithm, Communicator, PathType, Pattern, initialise
from fabrictwin.twin import Twin


@cache
def h100(hosts: int = 4) -> Twin:
    return Twin(blueprint(hosts, "dgx-h100", switch="qm9700"))


@cache
def communicator(ranks: int, version: str = "2.21.5") -> Communicator:
    return initialise(h100(), ranks, version=version)


def test_eight_h100_have_what_nccl_prints():
    # "24 coll channels, 0 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer" and
    # "Pattern 4, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX, sameChannels 1"
    comm = communicator(8)
    number = comm.channels
    assert (number.collective, number.nvls, number.p2p, number.p2p_per_peer) == (24, 16, 32, 32)
    ring = comm.graphs[Algorithm.RING]
    assert (ring.pattern, ring.channels, ring.bw_intra, ring.bw_inter) == (Pattern.RING, 12, 30.0, 30.0)
    assert (ring.type_intra, ring.same_channels, ring.cross_nic) == (PathType.NVL, True, 0)
    assert comm.graphs[Algorithm.NVLS].channels == 8
    assert Algorithm.NVLS_TREE not in comm.graphs
    assert (comm.channels.rings.order == np.arange(8)).all()


def test_two_hosts_have_what_nccl_prints():
    # "16 coll channels, 0 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer"
    comm = communicator(16)
    number = comm.channels
    assert (number.collective, number.nvls, number.p2p, number.p2p_per_peer) == (16, 16, 16, 2)
    assert comm.graphs[Algorithm.RING].bw_inter == 48.0
    assert Algorithm.NVLS_TREE in comm.graphs


@pytest.mark.parametrize("ranks", [8, 16, 32])
def test_every_ring_visits_every_rank_once(ranks):
    comm = communicator(ranks)
    assert comm.channels.rings.order.shape == (comm.channels.collective, ranks)
    assert (np.sort(comm.channels.rings.order, axis=1) == np.arange(ranks)).all()
    assert (comm.channels.rings.order[:, 0] == 0).all()


@pytest.mark.parametrize("ranks", [8, 16, 32])
def test_every_tree_spans_the_ranks(ranks):
    comm = communicator(ranks)
    for up, down in zip(comm.channels.trees.up, comm.channels.trees.down, strict=True):
        assert (up == -1).sum() == 1
        for rank in range(ranks):
            at, steps = rank, 0
            while up[at] != -1:
                assert at in down[up[at]]
                at, steps = up[at], steps + 1
                assert steps <= ranks
        assert (down != -1).sum() == ranks - 1


def test_rails_are_kept_where_hosts_alternate():
    comm = communicator(32)
    ring = comm.graphs[Algorithm.RING]
    assert ring.cross_nic
    fabric = comm.twin.fabric
    switch = fabric.node_host[fabric.nic_node]  # adapters by host; the index in the host is the rail
    rail = np.arange(len(switch)) - np.searchsorted(switch, switch)
    for channel in range(ring.channels):
        for node in range(comm.nodes - 1):
            leaves = ring.inter[node, channel ^ (node % 2), 1]
            enters = ring.inter[node + 1, channel ^ ((node + 1) % 2), 0]
            assert rail[leaves] == rail[enters]


def test_ranks_that_cannot_be():
    twin = h100()
    for ranks, words in ((0, "1 to 32"), (33, "1 to 32"), ([], "no ranks"), ([0], "expected a GPU")):
        with pytest.raises(ConfigError, match=words):
            initialise(twin, ranks)
    gpu = int(twin.fabric.gpu_node[3])
    with pytest.raises(ConfigError, match="two ranks"):
        initialise(twin, [gpu, gpu])
