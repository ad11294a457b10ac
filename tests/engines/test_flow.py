"""The fluid engine against closed forms and a brute-force max-min solver; the analytic engine beside it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import boxes, dgx
from support.programs import operations, times

from fabrictwin.base.errors import ConfigError, InvariantError, SimulatedError
from fabrictwin.engines.analytic.analytic_engine import AnalyticEngine
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.play import play
from fabrictwin.engines.base.queue_pairs import QueuePairNumbers
from fabrictwin.engines.channels.channel_resources import bind
from fabrictwin.engines.flow.flow_engine import FlowEngine
from fabrictwin.fabric.fabric import LinkKind
from fabrictwin.kernel import slices
from fabrictwin.program import collectives, patterns
from fabrictwin.program.program import NONE, Actor, Label, Program

MIB = 1 << 20


def flow(twin) -> FlowEngine:
    return FlowEngine(twin.fabric, twin.routes)


def test_a_message_takes_its_latency_and_its_bytes_over_the_slowest_link():
    twin = dgx()
    engine = flow(twin)
    send = collectives.send(np.array([[0, 8]]), 256 * MIB)
    (took,) = times(engine, [send], twin.fabric.gpu_node)
    found = engine.flows.connections.finder.find(twin.fabric.gpu_node[:1], twin.fabric.gpu_node[8:9])
    fabric = twin.fabric
    slowest = min(int(fabric.port_payload_bps[p]) for p in found.port)
    # the adapter writes the last packet to memory once it is there whole
    written = fabric.mtu_bytes * 8e12 / int(fabric.port_payload_bps[fabric.port_kind == LinkKind.PCIE].min())
    assert took == pytest.approx(int(found.latency_ps[0]) + 256 * MIB * 8e12 / slowest + written, rel=1e-9)


def test_two_messages_share_a_link_in_half_each():
    twin = boxes()
    size = 64 * MIB
    one = times(flow(twin), [collectives.send(np.array([[0, 4]]), size)], twin.fabric.gpu_node)
    both = times(
        flow(twin),
        [collectives.send(np.array([[0, 4]]), size), collectives.send(np.array([[1, 4]]), size)],
        twin.fabric.gpu_node,
    )
    assert both[0] == pytest.approx(2 * one[0], rel=1e-3)
    assert both[0] == pytest.approx(both[1], rel=1e-3)


def test_what_one_flow_leaves_another_takes():
    """Three flows, one leaving early: the second half of the others runs faster (fluid, by hand)."""
    twin = boxes()
    gpus = twin.fabric.gpu_node
    big, small = 60 * MIB, 20 * MIB
    port = int(twin.fabric.nic_port[0])
    rate = twin.fabric.port_payload_bps[port] / 8e12
    sends = [collectives.send(np.array([[0, to]]), size) for to, size in ((4, big), (6, big), (8, small))]
    took = times(flow(twin), sends, gpus)
    beyond = [times(flow(twin), [s], gpus)[0] - n / rate for s, n in zip(sends, (big, big, small), strict=True)]
    shared = 3 * small / rate
    assert took[2] == pytest.approx(shared + beyond[2], rel=1e-6)
    assert took[0] == pytest.approx(shared + 2 * (big - small) / rate + beyond[0], rel=1e-6)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ring_all_reduce_inside_a_host_is_its_closed_form(ranks):
    twin = dgx()
    size = 840 * MIB
    engine = flow(twin)
    ring = collectives.all_reduce(np.arange(ranks)[None], size)
    (took,) = times(engine, [ring], twin.fabric.gpu_node)
    bound = bind([ring], twin.fabric.gpu_node, engine.flows.connections)
    gpu = int(twin.fabric.gpu_node[0])
    mine = range(twin.fabric.node_port_start[gpu], twin.fabric.node_port_start[gpu + 1])
    nvlink = sum(int(twin.fabric.port_payload_bps[p]) for p in mine if twin.fabric.port_kind[p] == LinkKind.NVLINK)
    per_edge = patterns.edges(ring.channels).size_bytes.max()
    steps = 2 * (ranks - 1)
    assert took == pytest.approx(steps * int(bound.step_ps[0]) + per_edge * 8e12 / nvlink, rel=1e-6)
    assert per_edge == pytest.approx(2 * (ranks - 1) / ranks * size, rel=1e-6)


def test_ring_all_reduce_bytes_per_link_are_exactly_the_closed_form():
    """Over four hosts with one channel a GPU: every adapter carries one edge each way, every edge 2(n-1)/n."""
    twin = dgx()
    n, channels = 32, 8
    size = n * channels * 6 * 7 * 1024  # divides by ranks, channels and NVSwitches
    ring = collectives.all_reduce(np.arange(n)[None], size, channels=channels, host_of_rank=np.arange(n) // 8)
    engine = flow(twin)
    times(engine, [ring], twin.fabric.gpu_node)
    sent = engine.counters().tx_bytes
    edge = 2 * (n - 1) * size // (n * channels)
    fabric = twin.fabric
    assert (sent[fabric.nic_port] == edge).all()
    nvlink = fabric.port_kind == LinkKind.NVLINK
    # 8 channels x 7 edges in each of 4 hosts, each over a link up and a link down
    assert sent[nvlink].sum() == 2 * 4 * channels * 7 * edge


def test_flow_and_analytic_agree_where_nothing_contends():
    twin = dgx()
    hosts = np.arange(32) // 8
    everyone, rails = np.arange(32)[None], np.arange(32).reshape(4, 8).T
    for size in (64 * 1024, 4 * MIB, 1024 * MIB):
        for communication in (
            collectives.all_reduce(np.arange(8)[None], size, channels=8),
            collectives.all_reduce(everyone, size, channels=8, host_of_rank=hosts),
            collectives.all_reduce(everyone, size, algorithm="tree", channels=16, host_of_rank=hosts),
            collectives.all_reduce(rails, size),
            collectives.all_gather(everyone, size, channels=8, host_of_rank=hosts),
            collectives.reduce_scatter(rails, size),
            collectives.broadcast(everyone, size, channels=8, host_of_rank=hosts),
            collectives.send(np.array([[0, 1]]), size),
            collectives.send(np.array([[3, 27]]), size),
        ):
            (a,) = times(flow(twin), [communication], twin.fabric.gpu_node)
            (b,) = times(AnalyticEngine(twin.fabric), [communication], twin.fabric.gpu_node)
            assert a == pytest.approx(b, rel=0.05), (communication.name, communication.algorithm, size)


def test_analytic_counts_oversubscription():
    """Four hosts a leaf, all sending out of it, one up-link of four: four times as long."""
    size = 64 * MIB
    pairs = [np.array([[2 * i, 8 + 2 * i]]) for i in range(4)]
    together = collectives.send(np.concatenate(pairs), size)
    took = {}
    for ratio in (1, 4):
        twin = boxes(8, "infiniband", ratio)
        (took[ratio],) = times(AnalyticEngine(twin.fabric), [together], twin.fabric.gpu_node)
        (slow,) = times(flow(twin), [together], twin.fabric.gpu_node)
        assert slow == pytest.approx(took[ratio], rel=0.05)
    assert took[4] == pytest.approx(4 * took[1], rel=0.02)


def test_small_messages_cost_what_the_adapter_says():
    """Many tiny messages of one queue pair: their rate is the adapter's limit, not the wire's."""
    twin = boxes(2)
    message, count = 64, 100_000
    send = collectives.send(np.array([[0, 2]]), message * count)
    channels = send.channels
    tiny = type(send)(
        **{
            **vars(send),
            "channels": type(channels)(**{**vars(channels), "chunk_bytes": np.array([message], np.int64)}),
        }
    )
    (took,) = times(flow(twin), [tiny], twin.fabric.gpu_node)
    per_message = int(twin.fabric.nic_qp_message_ps[0])
    assert took == pytest.approx(count * per_message, rel=0.01)
    (whole,) = times(flow(twin), [send], twin.fabric.gpu_node)
    assert whole < took / 10


def test_a_link_changes_while_bytes_move():
    twin = boxes(2)
    fabric = twin.fabric
    engine = FlowEngine(fabric, twin.routes)
    size = 250 * MIB
    send = collectives.send(np.array([[0, 2]]), size)
    engine.post(operations([0], [[]]), [send], fabric.gpu_node)
    half = round(size / 2 / (fabric.port_payload_bps[fabric.nic_port[0]] / 8e12))
    engine.advance(half)
    assert engine.counters().tx_bytes[fabric.nic_port[0]] == pytest.approx(size / 2, rel=1e-3)
    engine.change(TimedChange(engine.now_ps, int(fabric.nic_port[0]), 50_000_000_000))
    engine.advance()
    assert engine.now_ps == pytest.approx(half + 4 * half, rel=1e-3)
    engine.change(TimedChange(engine.now_ps, int(fabric.nic_port[0]), 0))
    engine.post(operations([0], [[]]), [send], fabric.gpu_node)
    with pytest.raises(SimulatedError, match=r"host-0/mlx5_0/2 > leaf-0/1: link down: it carries nothing"):
        engine.advance()


def test_operations_start_when_what_they_wait_for_has_ended():
    twin = dgx()
    engine = flow(twin)
    send = collectives.send(np.array([[0, 1]]), MIB)
    engine.post(
        operations([NONE, 0, NONE, 0], [[], [0], [1], [1, 2]], [1000, 0, 500, 0]), [send], twin.fabric.gpu_node
    )
    engine.advance()
    start, end = engine.started_ps(), engine.ended_ps()
    assert list(start) == [0, 1000, end[1], end[1] + 500]
    assert end[3] - start[3] == end[1] - start[1]


def test_a_circle_of_operations_is_found_not_waited_for():
    twin = dgx()
    engine = flow(twin)
    engine.post(operations([NONE, NONE], [[1], [0]], [1, 1]), [], twin.fabric.gpu_node)
    with pytest.raises(InvariantError, match="wait for it"):
        engine.advance()


def test_posting_in_pieces_is_posting_at_once():
    twin = boxes()
    gpus = twin.fabric.gpu_node
    sends = [collectives.send(np.array([[i, (i + 5) % 16]]), (i + 1) * MIB) for i in range(8)]
    whole = times(flow(twin), sends, gpus)
    pieces = flow(twin)
    for send in sends:
        pieces.post(operations([0], [[]]), [send], gpus)
    pieces.advance(1000)
    pieces.advance()
    assert list(pieces.ended_ps()) == whole


def test_folded_members_move_together_and_unfolded_agree():
    twin = dgx()
    rails = np.arange(32).reshape(4, 8).T
    folded = times(flow(twin), [collectives.all_reduce(rails, 64 * MIB)], twin.fabric.gpu_node)
    apart = times(
        flow(twin), [collectives.all_reduce(rail[None], 64 * MIB) for rail in rails], twin.fabric.gpu_node
    )
    assert max(apart) == pytest.approx(folded[0], rel=1e-6)


def max_min(paths: list[dict[int, Fraction]], capacity: dict[int, Fraction]) -> list[Fraction]:
    """Progressive filling by the book, in rationals: raise all rates together, freeze who meets a full link."""
    rate: dict[int, Fraction] = {}
    while len(rate) < len(paths):
        free = [f for f in range(len(paths)) if f not in rate]
        level = None
        for link, full in capacity.items():
            demand = sum((paths[f].get(link, Fraction(0)) for f in free), Fraction(0))
            if demand:
                taken = sum((paths[f].get(link, Fraction(0)) * rate[f] for f in rate), Fraction(0))
                share = (full - taken) / demand
                level = share if level is None else min(level, share)
        assert level is not None
        for f in free:
            for link, weight in paths[f].items():
                demand = sum((paths[g].get(link, Fraction(0)) for g in free), Fraction(0))
                taken = sum(
                    (paths[g].get(link, Fraction(0)) * rate[g] for g in rate if g not in free), Fraction(0)
                )
                if weight and (capacity[link] - taken) / demand == level:
                    rate[f] = level
                    break
    return [rate[f] for f in range(len(paths))]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=12),
    st.sampled_from([1, 4]),
    st.integers(0, 99),
)
def test_rates_are_max_min_fair(pairs, oversubscription, slowed):
    """Against the rational solver, on random messages over a small fabric, one link of which gets slower."""
    pairs = [(a, b) for a, b in pairs if a != b]
    if not pairs:
        return
    twin = boxes(8, "infiniband", oversubscription)
    engine = flow(twin)
    # sizes so large that none ends before the instant that is looked at
    sends = [collectives.send(np.array([[a, b]]), 1 << 40) for a, b in pairs]
    engine.post(operations(list(range(len(sends))), [[] for _ in sends]), sends, twin.fabric.gpu_node)
    moment = 10**9
    engine.advance(moment)
    bound = bind(sends, twin.fabric.gpu_node, engine.flows.connections)
    ports = twin.fabric.ports
    paths = []
    for c in range(len(sends)):
        uses = slice(bound.use_start[c], bound.use_start[c + 1])
        paths.append({int(r): Fraction(1) for r in bound.use_resource[uses] if r < ports})
    capacity = {r: Fraction(int(twin.fabric.port_payload_bps[r]), 8 * 10**12) for path in paths for r in path}
    expected = max_min(paths, capacity)
    moved = engine.graph.flow_progress() * float(1 << 40)
    for rate, got in zip(expected, moved, strict=True):
        assert got == pytest.approx(float(rate) * moment, rel=1e-9)
    port = sorted(capacity)[slowed % len(capacity)]
    full = int(twin.fabric.port_rate_bps[port])
    engine.change(TimedChange(engine.now_ps, port, full // 3))
    capacity[port] *= Fraction(full // 3, full)
    engine.advance(2 * moment)
    later = engine.graph.flow_progress() * float(1 << 40) - moved
    for rate, got in zip(max_min(paths, capacity), later, strict=True):
        assert got == pytest.approx(float(rate) * moment, rel=1e-6)


def test_flows_that_nothing_active_connects_are_solved_apart():
    """Two sends that share nothing, each again while the other moves; a third, which meets both, comes after."""
    twin = boxes()
    engine = flow(twin)
    pairs = [(0, 4, 3 * MIB), (2, 6, 2 * MIB), (0, 6, MIB)]
    sends = [collectives.send(np.array([[a, b]]), size) for a, b, size in pairs]
    engine.post(operations([0, 1, 0, 1, 2], [[], [], [0], [1], [2, 3]]), sends, twin.fabric.gpu_node)
    engine.advance()
    assert engine.graph.solves == 3


def test_the_same_program_gives_the_same_times_twice():
    twin = boxes()
    sends = [
        collectives.send(np.array([[i, (i * 7 + 3) % 16]]), 3 * MIB + i)
        for i in range(16)
        if i != (i * 7 + 3) % 16
    ]
    assert times(flow(twin), sends, twin.fabric.gpu_node) == times(flow(twin), sends, twin.fabric.gpu_node)


def test_a_second_run_in_the_same_session_counts_its_own_bytes():
    twin = boxes(2)
    engine = flow(twin)
    program = Program(
        name="twice",
        ranks=4,
        actors=(Actor("all", np.arange(4, dtype=np.int32)),),
        labels=(Label("send", "other"),),
        communications=(collectives.send(np.array([[0, 2]]), MIB),),
        operations=operations([0], [[]]),
        participants_start=np.array([0, 1], np.int32),
        participants=np.array([0], np.int32),
    )
    first, second = (play(program, twin.fabric.gpu_node, engine) for _ in range(2))
    assert first.counters.tx_bytes.sum() > 0
    assert (first.counters.tx_bytes == second.counters.tx_bytes).all()
    assert first.end_ps == second.end_ps


def test_one_small_message_waits_for_no_queue_pair():
    """The limit lies between messages: a single one costs its latency and its wire time."""
    twin = boxes(2)
    send = collectives.send(np.array([[0, 2]]), 64)
    (took,) = times(flow(twin), [send], twin.fabric.gpu_node)
    found = flow(twin).flows.connections.finder.find(twin.fabric.gpu_node[:1], twin.fabric.gpu_node[2:3])
    assert took - int(found.latency_ps[0]) < int(twin.fabric.nic_qp_message_ps[0]) / 10


def test_both_trees_load_every_adapter_alike():
    """With two channels an adapter, each serves one inner and one leaf position: a quarter of the buffer."""
    twin = dgx(8)
    size = 1 << 28
    tree = collectives.all_reduce(
        np.arange(64)[None], size, algorithm="tree", channels=16, host_of_rank=np.arange(64) // 8
    )
    engine = flow(twin)
    times(engine, [tree], twin.fabric.gpu_node)
    sent = engine.counters().tx_bytes[twin.fabric.nic_port]
    assert sent.max() <= size / 4 * 1.001


@pytest.mark.parametrize("size", [1, 7, 8])
def test_a_gather_of_less_than_a_byte_a_rank_still_takes_its_latency(size):
    twin = dgx()
    gather = collectives.all_gather(np.arange(8)[None], size)
    (a,) = times(flow(twin), [gather], twin.fabric.gpu_node)
    (b,) = times(AnalyticEngine(twin.fabric), [gather], twin.fabric.gpu_node)
    assert a == pytest.approx(b, rel=0.01)
    assert a > 0


def test_connections_of_gpus_that_share_an_adapter_are_told_apart():
    """Queue pairs are the adapter's: its connections differ in source port, in whatever posts they come."""
    twin = boxes(8, "ethernet")
    pairs = QueuePairNumbers(len(twin.fabric.nic_node))
    departing = np.repeat(np.arange(4, dtype=np.int32), 2)
    first = pairs.ports_by_side(departing, departing + 4)
    again = pairs.ports_by_side(departing, departing + 4)
    tuples = [*zip(departing, first, strict=True), *zip(departing, again, strict=True)]
    assert len({(int(a), int(port)) for a, port in tuples}) == 16


def test_incast_of_small_messages_is_bound_by_the_receiving_adapter():
    twin = boxes(8)
    senders, message = [2, 4, 6, 8, 10, 12, 14], 256
    sends = [collectives.send(np.array([[s, 0]]), message * 100_000) for s in senders]
    small = [
        replace(send, channels=replace(send.channels, chunk_bytes=np.array([message], np.int64))) for send in sends
    ]
    took = max(times(flow(twin), small, twin.fabric.gpu_node))
    rate = len(senders) * 100_000 / took  # messages a picosecond
    assert rate <= 1 / twin.fabric.nic_message_ps[0] * 1.001
    queue_pairs = len(senders) / twin.fabric.nic_qp_message_ps[0]
    wire = twin.fabric.port_payload_bps[twin.fabric.nic_port[0]] / 8e12 / message
    assert rate == pytest.approx(min(1 / twin.fabric.nic_message_ps[0], queue_pairs, wire), rel=0.02)


def test_the_clock_of_an_idle_session_keeps_its_time():
    twin = boxes(2)
    engine = flow(twin)
    engine.advance(10**9)
    engine.post(operations([NONE], [[]], [500]), [], twin.fabric.gpu_node)
    assert engine.now_ps == 10**9
    engine.advance()
    assert engine.now_ps == 10**9 + 500


def test_posting_while_bytes_move_changes_nothing_for_them():
    twin = boxes()
    gpus = twin.fabric.gpu_node
    first, second = collectives.send(np.array([[0, 8]]), 64 * MIB), collectives.send(np.array([[4, 12]]), MIB)
    alone = times(flow(twin), [first], gpus)
    engine = flow(twin)
    engine.post(operations([0], [[]]), [first], gpus)
    engine.advance(alone[0] // 2)
    engine.post(operations([0], [[]]), [second], gpus)
    engine.advance()
    assert int(engine.ended_ps()[0]) == pytest.approx(alone[0], abs=2)


def test_analytic_sees_a_slow_trunk():
    send = collectives.send(np.array([[2 * i, 8 + 2 * i] for i in range(4)]), 64 * MIB)
    twin = boxes(8)
    whole = times(AnalyticEngine(twin.fabric), [send], twin.fabric.gpu_node)
    slow = AnalyticEngine(twin.fabric)
    for port in np.flatnonzero(slow.closed.forms.network.is_trunk):
        slow.change(TimedChange(slow.now_ps, int(port), 20_000_000_000))
    assert times(slow, [send], twin.fabric.gpu_node)[0] == pytest.approx(10 * whole[0], rel=0.02)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"duration_ps": np.array([-5], np.int64)}, "negative duration"),
        ({"communication": np.array([3], np.int32)}, "communication outside"),
        ({"after_start": np.array([0, 1], np.int32), "after": np.array([7], np.int32)}, "predecessor outside"),
    ],
)
def test_operations_that_cannot_be_are_refused(wrong, message):
    twin = boxes(2)
    with pytest.raises(ConfigError, match=message):
        flow(twin).post(replace(operations([NONE], [[]]), **wrong), [], twin.fabric.gpu_node)
    with pytest.raises(ConfigError, match="rank outside"):
        flow(twin).post(operations([0], [[]]), [collectives.send(np.array([[0, 99]]), 8)], twin.fabric.gpu_node)
    for change in (TimedChange(0, -1, 5), TimedChange(0, 10**6, 5), TimedChange(0, 0, -5)):
        with pytest.raises(ConfigError):
            flow(twin).change(change)


@pytest.mark.parametrize("budget", [1, 2, 7])
def test_a_run_in_slices_ends_as_one_that_is_not_cut(monkeypatch, budget):
    def ends(first_budget: int, largest: int) -> list[int]:
        monkeypatch.setattr(slices, "FIRST_BUDGET", first_budget)
        monkeypatch.setattr(slices, "LARGEST_BUDGET", largest)
        twin = boxes(8, "infiniband", 4)
        engine = flow(twin)
        sends = [collectives.send(np.array([[a, (a + 3) % 16]]), (a + 1) << 24) for a in range(16)]
        engine.post(operations(list(range(16)), [[a - 5] if a > 4 else [] for a in range(16)]), sends,
                     twin.fabric.gpu_node)  # fmt: skip
        engine.advance()
        return engine.ended_ps().tolist()

    assert ends(budget, budget) == ends(1 << 40, 1 << 40)
