"""The one interface: slices of any size, programs and messages on one clock, changes, capabilities."""

from __future__ import annotations

from operator import attrgetter
from weakref import ref

import numpy as np
import pytest
from support.clusters import boxes
from support.programs import operations

from fabrictwin.base.capabilities import capabilities_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base.changes import FOREVER, TableEntries, TimedChange
from fabrictwin.engines.base.engine import Engine, Stop
from fabrictwin.engines.base.messages import Awaited, Event, EventKind, Message, Opcode, Posting
from fabrictwin.engines.base.transfers import Gate, Transfers
from fabrictwin.fabric.fabric import NodeKind
from fabrictwin.program import collectives
from fabrictwin.twin import Twin

FIDELITIES = ("packet", "flow", "analytic")
MIB = 1 << 20


def processors(engine: Engine) -> np.ndarray:
    return np.flatnonzero(engine.fabric.node_kind == NodeKind.CPU).astype(np.int32)


def two_sends(engine: Engine, size: int = MIB) -> int:
    """One send, and one the other way after it."""
    sends = [collectives.send(np.array([pair]), size) for pair in ([0, 1], [1, 0])]
    return engine.post(operations([0, 1], [[], [0]]), sends, processors(engine)[[0, 7]])


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("budget", [1, 37])
def test_slices_of_any_size_give_the_same_times(fidelity, budget):
    whole, cut = (boxes(8).start_engine(fidelity) for _ in range(2))
    two_sends(whole, 100_000)
    assert whole.advance().stop == Stop.FINISHED
    two_sends(cut, 100_000)
    stops, completed, shares = [], 0, []
    while not stops or stops[-1] == Stop.BUDGET:
        stop, events, completions = cut.advance(budget=budget)
        stops.append(stop)
        completed += len(completions)
        shares.append(cut.progress)
        assert not events
    assert stops[-1] == Stop.FINISHED
    assert completed == 2
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    if fidelity == "packet":
        assert Stop.BUDGET in stops
    assert cut.ended_ps().tolist() == whole.ended_ps().tolist()
    assert cut.now_ps == whole.now_ps


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_messages_in_slices_have_the_same_events(fidelity):
    seen = []
    for budget in (None, 5):
        engine = boxes(8).start_engine(fidelity)
        flow = engine.open(0, 7)
        for size in (0, 5000, 100_000):
            engine.send(flow, Message(size, Opcode.WRITE))
        events, stop = [], None
        while stop != Stop.FINISHED:
            stop, more, _ = engine.advance(budget=budget)
            events += more
        seen.append(events)
        assert engine.idle
    assert seen[0] == seen[1]
    assert [e.kind for e in seen[0]].count(EventKind.ENDED) == 3


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("asked", [False, True])
def test_an_engine_has_the_tables_of_a_twin_that_is_gone(fidelity, asked):
    seen = []
    for kept in (True, False):
        twin = Twin(boxes(8).blueprint)
        if asked:
            twin.take_tables(Twin(boxes(8).blueprint, engine="updn").routes)
        engine, left = twin.start_engine(fidelity), ref(twin)
        if not kept:
            del twin
            assert left() is None
        engine.send(engine.open(0, 7), Message(MIB, Opcode.WRITE))
        seen.append(engine.advance().events)
    assert seen[0] == seen[1]
    assert seen[0]


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_patient_caller_hears_the_same_and_no_later_than_what_it_awaits(fidelity):
    seen = []
    for patient in (False, True):
        engine = boxes(8).start_engine(fidelity)
        flows = [engine.open(0, 7), engine.open(2, 5)]
        awaited: dict[int, Awaited] = {}
        events: list[Event] = []
        for n in range(30):
            posting = Posting(inline=n % 7 == 0, chained=n % 5 == 0, awaited=Awaited(n * 7 % 11 % 3))
            message = Message(n * n * 40, Opcode.WRITE, posting=posting)
            awaited[engine.send(flows[n % 2], message)] = posting.awaited
            until = n // 4 * 2_000_000 if n < 29 else FOREVER
            while told := engine.advance(until, patient=patient).events:
                # what is awaited comes at its instant
                at_once = {e.time_ps for e in told if not patient or awaited[e.message] < e.kind}
                assert at_once <= {engine.now_ps}
                events += told
        assert len(events) == 60
        seen.append(events)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_program_and_messages_are_played_on_one_clock(fidelity):
    engine = boxes(8).start_engine(fidelity)
    two_sends(engine, 4 * MIB)
    alone = boxes(8).start_engine(fidelity)
    two_sends(alone, 4 * MIB)
    alone.advance()
    flow = engine.open(1, 6)
    message = engine.send(flow, Message(MIB, Opcode.WRITE))
    events, ended = [], []
    while (advanced := engine.advance()).stop == Stop.EVENTS:
        assert all(event.time_ps == engine.now_ps for event in advanced.events)
        events += advanced.events
        ended += advanced.completions.operation.tolist()
    ended += advanced.completions.operation.tolist()
    assert [(e.message, e.kind) for e in events] == [(message, EventKind.ARRIVED), (message, EventKind.ENDED)]
    assert ended == [0, 1]
    assert engine.idle
    # other adapters, another path: the program hardly notices (adapters count memory once a flow is open)
    assert engine.ended_ps() == pytest.approx(alone.ended_ps(), rel=0.01)


def test_a_program_and_a_message_share_the_wire_where_the_engine_says_so():
    took = {}
    for beside in (False, True):
        engine = boxes(8).start_engine("packet")
        assert engine.capabilities.one_network
        two_sends(engine, 8 * MIB)
        if beside:
            engine.send(engine.open(0, 3), Message(8 * MIB, Opcode.WRITE))
        while engine.advance().stop == Stop.EVENTS:
            pass
        took[beside] = int(engine.ended_ps()[0])
    assert took[True] > 1.5 * took[False]


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_a_link_that_changes_later_changes_operations_and_messages_under_way(fidelity):
    engine = boxes(8).start_engine(fidelity)
    port = int(engine.fabric.nic_port[0])
    slow = int(engine.fabric.port_rate_bps[port]) // 10
    flow = engine.open(0, 7)

    def takes() -> int:
        began, message = engine.now_ps, engine.send(flow, Message(8 * MIB, Opcode.WRITE))
        while (advanced := engine.advance()).stop == Stop.EVENTS:
            arrived = [e.time_ps for e in advanced.events if e == (e.time_ps, message, EventKind.ARRIVED)]
            if arrived:
                return arrived[0] - began
        raise AssertionError("it never arrived")

    whole = takes()
    engine.change(TimedChange(engine.now_ps + whole // 2, port, slow))
    assert 4 * whole < takes() < 8 * whole
    engine.change(TimedChange(engine.now_ps, port))
    assert takes() == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_what_an_engine_cannot_do_is_declared_and_refused(fidelity):
    engine = boxes(8).start_engine(fidelity)
    can = engine.capabilities
    assert can == capabilities_of(fidelity)
    assert (engine.packets is not None) == can.packets
    transfers = Transfers(np.array([0], np.int32), np.array([7], np.int32), np.array([4096]))
    asked = {
        "changes.bit_errors": lambda: engine.change(TimedChange(0, 0, error_rate=1e-9)),
        "routes": lambda: engine.change(
            TimedChange(0, tables=TableEntries(np.array([0]), np.array([1]), np.array([1], np.uint8)))
        ),
        "transfers": lambda: engine.transfer(transfers),
    }
    for capability, ask in asked.items():
        if attrgetter(capability)(can):
            ask()
        else:
            with pytest.raises(ConfigError, match=fidelity if capability != "transfers" else "expected packet"):
                ask()
    with pytest.raises(ConfigError, match="expected packet, flow or analytic"):
        capabilities_of("guess")


def test_gates_open_after_all_their_causes_and_let_one_in_each_time_where_asked():
    engine = boxes(8).start_engine("packet")
    ends = np.array([0, 1, 2, 3, 4], np.int32)
    gates = (
        Gate((1,), acknowledged=(0,)),
        Gate((2, 3), received=(0, 1), one_each=True),
        Gate((4,), delay_ps=10**6),
    )
    engine.transfer(Transfers(ends, (ends + 1).astype(np.int32), np.full(5, 50_000), gates))
    assert engine.advance().stop == Stop.FINISHED
    start, received, done = engine.transfer_times()
    post = engine.fabric.nic_post_ps[0]
    assert start[1] == done[0]
    assert start[2:4].tolist() == [received[0], received[1]]
    assert start[4] == 10**6
    assert (start[0], post > 0) == (0, True)
    with pytest.raises(ConfigError, match="once an engine"):
        engine.transfer(Transfers(ends, ends, np.full(5, 1)))
