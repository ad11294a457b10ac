"""Periods of long transfers that are skipped: the same times, counters and bytes as playing them all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import boxes
from support.packet_runs import US, begins_after, played, results, two_hosts
from support.programs import operations

from fabrictwin.base.congestion_controls import CONTROLS
from fabrictwin.base.errors import SimulatedError
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.transfers import Gate, Transfers
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.engines.packet.repetition import steady_state
from fabrictwin.engines.packet.repetition.fast_forward import FastForward
from fabrictwin.engines.packet.repetition.steady_state import look, period
from fabrictwin.fabric.fabric import NONE
from fabrictwin.program import collectives

MIB = 1 << 20
COMMUNICATIONS = [
    begins_after(collectives.send(np.array([[0, 8]]), 24 * MIB)),
    begins_after(collectives.send(np.array([[1, 9], [9, 1], [2, 10]]), 20 * MIB)),
    begins_after(collectives.all_reduce(np.arange(16)[None], 12 * MIB)),
    begins_after(collectives.all_reduce(np.array([[4, 5, 12, 13]]), 32 * MIB)),
    begins_after(collectives.send(np.array([[0, 8], [1, 8]]), 16 * MIB)),  # two into one GPU
    begins_after(collectives.all_reduce(np.arange(8)[None], 8 * MIB)),
]


@pytest.fixture(autouse=True, scope="module")
def looks_often():
    """Let skips be worth it in what takes no time to play."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FastForward, "least_events", 1 << 10)
        patch.setattr(FastForward, "bytes_an_event", 1 << 30)
        patch.setattr(FastForward, "least_packets", 8)
        yield


@st.composite
def programs(draw):
    """Operations of several streams, each behind the one before in its stream."""
    which, after, durations = [], [], []
    last: dict[int, int] = {}
    for i in range(draw(st.integers(2, 6))):
        stream = draw(st.integers(0, 2))
        which.append(draw(st.sampled_from([NONE, *range(len(COMMUNICATIONS))])))
        durations.append(draw(st.sampled_from([1, 20 * US, 150 * US])) if which[-1] == NONE else 0)
        after.append([last[stream]] if stream in last else [])
        last[stream] = i
    return which, after, durations


options = st.fixed_dictionaries(
    {},
    optional={
        "ack_every": st.sampled_from([1, 3, 16]),
        "timeout": st.sampled_from([5, 8]),
        "retransmission": st.just("selective"),
        "window_bytes": st.sampled_from([64 << 10, 1 << 20]),
    },
)


def differs_in_nothing(program, technology, **given) -> float:
    """Hold a run to one that plays everything; return the share of packet-hops that was skipped.

    Where queue pairs give up, as they may with timeouts of 131 us, both runs do so alike.
    """
    twin = two_hosts(technology)
    engines, ends = [], []
    for repeats in ({}, {"repeats": False}):
        try:
            engines.append(played(twin, program, COMMUNICATIONS, **repeats, **given))
            ends.append(results(engines[-1]))
        except SimulatedError as error:
            ends.append(str(error))
    assert ends[0] == ends[1]
    return engines[0].packets.fast_forwarded() if engines else 0.0


@settings(max_examples=6)
@given(programs(), st.sampled_from(["infiniband", "ethernet"]), options)
@pytest.mark.second
def test_whatever_the_program_nothing_differs_from_playing_all_of_it(program, technology, given):
    differs_in_nothing(program, technology, **given)


@pytest.mark.second
@settings(max_examples=100)
@given(programs(), st.sampled_from(["infiniband", "ethernet"]), options)
def test_nothing_differs_over_many_programs(program, technology, given):
    differs_in_nothing(program, technology, **given)


@pytest.mark.parametrize(
    ("technology", "which", "least"), [("infiniband", 0, 0.7), ("ethernet", 0, 0.9), ("infiniband", 3, 0.5)]
)
def test_most_of_a_long_transfer_is_skipped(technology, which, least):
    assert differs_in_nothing(([which], [[]], [0]), technology) > least


@pytest.mark.second
def test_queue_pairs_that_give_up_do_so_alike():
    program = [0, 0, 2, 2], [[], [0], [], [2]], [0, 0, 0, 0]
    with pytest.raises(SimulatedError, match="gave up after 7 retries"):
        played(two_hosts("ethernet"), program, COMMUNICATIONS, timeout=5)
    assert differs_in_nothing(program, "ethernet", timeout=5) == 0


def test_a_queue_that_grows_is_played():
    """Two rails meet at a switch over Ethernet: its buffer fills all the while."""
    assert differs_in_nothing(([4], [[]], [0]), "ethernet") == 0


def test_what_is_computed_beside_a_transfer_ends_when_it_would():
    """Its end is an event that no period may pass."""
    program = [0, NONE, NONE, NONE], [[], [], [1], [2]], [0, 60 * US, 1, 45 * US + 7]
    assert differs_in_nothing(program, "ethernet") > 0.5


def transferred(twin, transfers, **given) -> PacketEngine:
    engine = PacketEngine(twin.fabric, twin.routes, options_with(**given))
    engine.transfer(transfers)
    engine.advance()
    return engine


def times(engine: PacketEngine) -> list[list[int]]:
    found = engine.transfer_times()
    return [column.tolist() for column in (found.start_ps, found.received_ps, found.done_ps)]


def incast(size: int, starts_ps: list[int]) -> Transfers:
    """Return transfers of adapters 1, 2, ... into adapter 0."""
    n = len(starts_ps)
    return Transfers(
        source=np.arange(1, n + 1, dtype=np.int32),
        target=np.zeros(n, np.int32),
        size_bytes=np.full(n, size, np.int64),
        gates=tuple(Gate(waiting=(i,), delay_ps=at) for i, at in enumerate(starts_ps)),
    )


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("starts_ps", [[0], [0, 0, 0], [0, 0, 11 * US, 0, 50 * US]])
def test_an_incast_ends_when_it_would(control, starts_ps):
    twin = boxes(8, "ethernet")
    transfers = incast(8 * MIB // len(starts_ps), starts_ps)
    engine = transferred(twin, transfers, control=control)
    whole = transferred(twin, transfers, control=control, repeats=False)
    assert times(engine) == times(whole)
    assert results(engine) == results(whole)
    if starts_ps == [0] and control in ("none", "dcqcn"):
        assert engine.packets.fast_forwarded() > 0.5


def test_a_controlled_incast_is_not_skipped():
    """Marks are drawn, and rates move with every notification."""
    engine = transferred(boxes(8, "ethernet"), incast(4 * MIB, [0] * 7), control="dcqcn")
    assert engine.network.machine.state.count.ecn_marks.sum() > 100
    assert engine.packets.fast_forwarded() == 0


@pytest.mark.parametrize("given", [{"balance": "adaptive"}, {"balance": "spray"}, {"repeats": False}])
def test_packets_that_find_their_own_ways_are_all_played(given):
    engine = transferred(boxes(8, "ethernet"), incast(4 * MIB, [0]), **given)
    assert engine.packets.fast_forwarded() == 0


def test_all_is_played_where_something_could_happen_from_outside():
    twin, program = two_hosts("ethernet"), operations([0], [[]])
    whole = played(twin, ([0], [[]]), COMMUNICATIONS)
    assert whole.packets.fast_forwarded() > 0.5
    steps, changed, watched = (PacketEngine(twin.fabric, twin.routes, options_with()) for _ in range(3))
    for engine in (steps, changed, watched):
        engine.post(program, COMMUNICATIONS, twin.fabric.gpu_node)
    while not steps.idle:
        steps.advance(steps.now_ps + 100 * US)
    changed.change(TimedChange(10**12, int(twin.fabric.nic_port[0]), 0))
    changed.advance()
    watched.network.machine.tap([0], lambda rows: None)
    watched.advance()
    for engine in (steps, changed, watched):
        assert engine.packets.fast_forwarded() == 0
        assert engine.ended_ps().tolist() == whole.ended_ps().tolist()


def period_of(engine: PacketEngine):
    """Return a period of what an engine is at, found by trying."""
    machine = engine.network.machine
    engine.network.run(budget=4_000)
    forward = engine.fast_forward
    port = forward._watched()
    assert port is not None
    for _ in range(8):
        assert forward._step(port)
        before = look(machine.state, machine.queue_pairs)
        for _ in range(32):
            assert forward._step(port)
            after = look(machine.state, machine.queue_pairs)
            if period(before, after, machine.state) is not None:
                return before, after
    raise AssertionError("there is no period")


def test_a_field_that_changed_ends_the_period_unless_it_only_adds_up():
    """Each field of every record is changed in turn."""
    twin = two_hosts("ethernet")
    engine = PacketEngine(twin.fabric, twin.routes, options_with())
    engine.post(operations([0], [[]]), COMMUNICATIONS, twin.fabric.gpu_node)
    before, after = period_of(engine)
    state = engine.network.machine.state
    free = {
        (name, field)
        for name, fields in [*steady_state._COUNTS.items(), *steady_state._NAMES.items()]
        for field in fields
    } | {("outlet", "head"), ("outlet", "tail")}
    length = after.time_ps - before.time_ps
    tried = 0
    for name, records in after.arrays.items():
        for field in records.dtype.names:
            if (name, field) in free or records.dtype[field].shape:
                continue
            for at in range(min(len(records), 3)):
                was = records[field][at]
                up = int(was) + 1 != int(before.arrays[name][field][at]) + length
                records[field][at] = was + (1 if up else -1)
                assert period(before, after, state) is None, (name, field)
                records[field][at] = was
                tried += 1
    assert tried > 300
    assert period(before, after, state) is not None
    for field in ("wire", "hop", "marks", "psn", "sent_ps", "extra"):
        was = after.packets.record[field][0]
        after.packets.record[field][0] = was + 1
        assert period(before, after, state) is None, field
        after.packets.record[field][0] = was
