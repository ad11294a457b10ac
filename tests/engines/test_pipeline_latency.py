"""What a channel takes beside its drain, against brute force: runs by trying all, sends by playing them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import played

from fabrictwin.engines.channels.pipeline_latency import beyond_drain
from fabrictwin.kernel.flow.ring_latency import best_runs
from fabrictwin.program import collectives, patterns
from fabrictwin.program.program import Communication


@settings(max_examples=200)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=9), st.integers(0, 16))
def test_the_best_run_is_the_best_of_all(gains, longest):
    n = len(gains)
    every = [0] + [sum(gains[(i + k) % n] for k in range(m)) for i in range(n) for m in range(1, longest + 1)]
    best = np.zeros(1)
    best_runs(np.array([0, n]), np.array(gains, float), np.array([longest]), best)
    assert best[0] == max(every)


def first_channel(edges: patterns.Edges) -> patterns.Edges:
    mine = edges.channel == 0
    return patterns.Edges(*(column[mine] for column in vars(edges).values()))


def closed(communication: Communication, latency: dict, byte_ps: dict) -> int:
    """The same from the drain of the busiest edge and what is beyond it."""
    channels = communication.channels
    edges = first_channel(patterns.edges(channels))
    ends = list(zip(edges.source.tolist(), edges.target.tolist(), strict=True))
    rate = 1 / np.array([byte_ps[e] for e in ends], float)
    beyond = beyond_drain(channels, edges, np.array([latency[e] for e in ends]), rate)
    slowest = max(byte_ps.values())
    drain = int(edges.size_bytes.max()) * slowest
    late = max(0, int(beyond.serial_ps[0]) - int(beyond.piece_bytes[0]) * slowest)
    return max(drain + int(beyond.fill_ps[0]) + late, int(beyond.path_ps[0]))


def costs(communication: Communication, per_host: int, network: tuple[int, int]) -> tuple[dict, dict]:
    """Between hosts `network` (latency, ps a byte), inside 5 and 1."""
    edges = patterns.edges(communication.channels)
    latency, byte_ps = {}, {}
    for a, b in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
        latency[a, b], byte_ps[a, b] = network if a // per_host != b // per_host else (5, 1)
    return latency, byte_ps


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
@pytest.mark.parametrize(("hosts", "per_host"), [(1, 8), (2, 4), (4, 8), (8, 1)])
@pytest.mark.parametrize("network", [(5, 1), (40, 12), (400, 3), (7, 90)])
@pytest.mark.parametrize("shard", [1, 20, 600])
def test_a_channel_over_fast_and_slow_edges_takes_what_playing_it_takes(kind, hosts, per_host, network, shard):
    n = hosts * per_host
    options = {"step": collectives.Step(chunk_bytes=shard)} if kind == "broadcast" else {}
    communication = getattr(collectives, kind)(
        np.arange(n), n * shard, host_of_rank=np.arange(n) // per_host, **options
    )
    latency, byte_ps = costs(communication, per_host, network)
    assert closed(communication, latency, byte_ps) == played(communication, 0, latency, byte_ps)


@settings(max_examples=100)
@given(st.data())
def test_a_ring_of_any_edges_is_bounded_from_above(data):
    n = data.draw(st.integers(2, 9))
    communication = collectives.all_reduce(np.arange(n), n * data.draw(st.integers(1, 50)))
    edges = patterns.edges(communication.channels)
    ends = list(zip(edges.source.tolist(), edges.target.tolist(), strict=True))
    latency = {e: data.draw(st.integers(0, 100)) for e in ends}
    byte_ps = {e: data.draw(st.integers(1, 5)) for e in ends}
    exact = played(communication, 0, latency, byte_ps)
    drain = max(byte_ps.values()) * int(edges.size_bytes.max())
    assert max(drain, exact) <= closed(communication, latency, byte_ps)


def test_a_tree_over_hosts_takes_what_playing_one_chunk_takes():
    """Nothing shares a link: one chunk goes up the longest way and down the longest."""
    communication = collectives.all_reduce(
        np.arange(32), 1200, algorithm="tree", channels=2, host_of_rank=np.arange(32) // 8
    )
    latency, byte_ps = costs(communication, 8, (40, 12))
    assert closed(communication, latency, byte_ps) == played(communication, 0, latency, byte_ps)
