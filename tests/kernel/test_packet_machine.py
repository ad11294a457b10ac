"""The packet machine around its compiled loop: what it does with each status, and what changes from outside.

The loop is replaced by a list of statuses.
"""

from __future__ import annotations

from types import SimpleNamespace as Record

import numpy as np
import pytest
from support.packet_wiring import infiniband, roce, star

from fabrictwin.base.grouped import grouped
from fabrictwin.fabric.fabric import NONE
from fabrictwin.kernel.packet import machine as at_work
from fabrictwin.kernel.packet.congestion import Control, ibcc
from fabrictwin.kernel.packet.connection import Connection
from fabrictwin.kernel.packet.events import KIND_SHIFT, QueueEvent
from fabrictwin.kernel.packet.machine import Machine, MachineError, OutOfMemoryError
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state.config import Arbitration, VirtualLanes
from fabrictwin.kernel.packet.state.records import records
from fabrictwin.kernel.packet.state.state import nbytes


def connection(m: Machine, src: int, dst: int, **options) -> Connection:
    return grouped(Connection(int(m.wiring.endpoint_port[max(src, 0)]), src, dst), options)


@pytest.fixture
def scripted(monkeypatch):
    """A machine whose loop answers what it is told, and what the loop was asked."""
    m, asked = Machine(star(2), roce()), []

    def told(*statuses):
        left = list(statuses)

        def run(state, until, stop_when_done, budget):
            asked.append((until, stop_when_done, budget))
            status = left.pop(0)
            return status(state) if callable(status) else status

        monkeypatch.setattr(at_work, "run", run)
        return m

    return told, asked


def test_each_status_grows_what_is_short_and_the_loop_goes_on(scripted):
    told, asked = scripted
    m = told(s.SLICED, s.GROW_PACKETS, s.GROW_HEAP, s.GROW_LANES, s.TAP_FULL, s.FINISHED)
    before = m.state
    free, mask = int(before.clock[0].free), before.lane.mask.tolist()
    rows = []
    m.tap([0], lambda found: rows.extend(found.tolist()))
    m.state.clock[0].tapped = 2
    m.state.tap[:3] = [[7] * 16, [8] * 16, [9] * 16]
    assert m.run(500) == s.FINISHED
    assert len(asked) == 6
    assert set(asked) == {(500, True, s.SLICE_EVENTS)}
    assert len(m.state.packet) == 2 * len(before.packet)
    assert int(m.state.clock[0].free) == free + len(before.packet)
    assert len(m.state.heap) == 2 * len(before.heap)
    assert len(m.state.event) == 2 * len(before.event)
    assert m.state.lane.mask.tolist() == [2 * one + 1 for one in mask]
    assert rows == [[7] * 16, [8] * 16]
    assert int(m.state.clock[0].tapped) == 0
    m.drain_tap = None
    m.state.clock[0].tapped = 1
    m.read_tap()
    assert (len(rows), int(m.state.clock[0].tapped)) == (2, 0)


@pytest.mark.parametrize("status", [s.IDLE, s.REACHED, s.FINISHED, s.MESSAGE_EVENT])
def test_a_status_that_is_an_end_is_returned(scripted, status):
    told, asked = scripted
    m = told(status)
    assert m.run(drain=True) == status
    assert asked == [(s.NEVER - 1, False, s.SLICE_EVENTS)]


@pytest.mark.parametrize("status", [s.GROW_PACKETS, s.GROW_HEAP, s.GROW_LANES, s.TAP_FULL])
def test_what_software_is_told_of_comes_before_the_loop_goes_on(scripted, status):
    told, asked = scripted

    def grows(state):
        state.clock[0].message_events = 1
        return status

    m = told(grows, s.FINISHED)
    assert m.run() == s.MESSAGE_EVENT
    assert len(asked) == 1
    told(s.SLICED, s.FINISHED)
    m.state.clock[0].message_events = 1
    assert m.run() == s.FINISHED


@pytest.mark.parametrize("status", [s.CALLED, s.GROW_HEAP])
def test_a_call_is_answered_before_the_loop_goes_on(scripted, status):
    told, asked = scripted

    def calls(state):
        state.clock[0].called = 5
        return status

    answered = []
    m = told(calls, s.FINISHED)
    m.on_call = lambda task: answered.append((task, len(asked)))
    assert m.run() == s.FINISHED
    assert answered == [(5, 1)]
    assert int(m.state.clock[0].called) == s.NONE
    m = told(calls, s.FINISHED)  # nobody listens
    assert m.run() == s.FINISHED


def test_an_instant_that_software_is_told_of_is_finished_over_a_call(scripted):
    told, asked = scripted

    def calls(state):
        state.clock[0].called, state.clock[0].now, state.clock[0].message_events = 5, 700, 1
        return s.CALLED

    m = told(calls, s.REACHED)
    assert m.run() == s.REACHED
    assert [until for until, _, _ in asked] == [s.NEVER - 1, 700]


def test_slices_end_with_the_budget(scripted):
    told, asked = scripted

    def moves(state):
        state.clock[0].events += 40
        return s.SLICED

    m = told(moves, moves, moves, moves)
    m.state.clock[0].events = 1000
    assert m.run(budget=100) == s.SLICED
    assert [left for _, _, left in asked] == [100, 60, 20]
    asked.clear()
    assert m.run(budget=0) == s.SLICED
    assert asked == []


def test_errors_and_ways_that_are_not_there(scripted):
    told, _ = scripted
    m = told(s.OVERFLOW)
    with pytest.raises(MachineError, match="more was scheduled in one event than any margin allows"):
        m.run()
    m = told(s.UNROUTABLE)
    m.state.clock[0].unroutable = 77
    with pytest.raises(MachineError, match="no way to endpoint 77"):
        m.run()
    m.drops_unroutable = True
    told(s.UNROUTABLE, s.IDLE)
    assert m.run() == s.IDLE


@pytest.mark.parametrize(
    ("status", "array"), [(s.GROW_PACKETS, "packet"), (s.GROW_HEAP, "heap"), (s.GROW_LANES, "event")]
)
def test_nothing_grows_beyond_the_limit(scripted, status, array):
    told, _ = scripted
    m = told(status, s.FINISHED)
    more = getattr(m.state, array).nbytes
    m.limit_bytes = nbytes(m.state) + more - 1
    with pytest.raises(OutOfMemoryError, match=f"needs {m.limit_bytes + 1} bytes"):
        m.run()
    told(status, s.FINISHED)
    m.limit_bytes += 1
    assert m.run() == s.FINISHED


CIRCLE = Record(name="circle")


@pytest.mark.parametrize(
    ("statuses", "blocked", "hoq_ps", "is_open", "expected"),
    [
        ((s.STALLED,), CIRCLE, 0, 0, s.STALLED), ((s.STALLED, s.FINISHED), CIRCLE, 5, 0, s.FINISHED),
        ((s.STALLED, s.FINISHED), None, 0, 0, s.FINISHED), ((s.IDLE,), None, 0, 0, s.IDLE),
        ((s.IDLE,), None, 0, 1, s.STALLED), ((s.IDLE,), CIRCLE, 5, 1, s.STALLED),
        ((s.STALLED,), CIRCLE, 0, 3, s.STALLED),
    ],
)  # fmt: skip
def test_what_will_never_move_again(scripted, monkeypatch, statuses, blocked, hoq_ps, is_open, expected):
    told, asked = scripted
    m = told(*statuses)
    m.config = grouped(m.config, {"hoq_ps": hoq_ps})
    m.state.clock[0].open = is_open
    monkeypatch.setattr(at_work, "find_deadlock", lambda state: blocked)
    assert m.run() == expected
    assert len(asked) == len(statuses)
    if statuses[0] == s.STALLED or is_open:
        assert m.deadlock is blocked
    else:
        assert m.deadlock is None


@pytest.mark.parametrize("kind", list(QueueEvent))
def test_a_pause_or_a_watchdog_will_yet_break_a_circle(scripted, monkeypatch, kind):
    told, asked = scripted
    m = told(s.STALLED, s.FINISHED)
    monkeypatch.setattr(at_work, "find_deadlock", lambda state: CIRCLE)
    monkeypatch.setattr(at_work, "pending", lambda state: np.array([int(kind) << KIND_SHIFT | 5]))
    assert m.run() == s.STALLED  # no port is configured
    told(s.STALLED, s.FINISHED)
    m.config = Record(**{**vars(m.config), "qos": object()})
    changes = kind in (QueueEvent.PAUSE_TAKES, QueueEvent.WATCHDOG)
    assert m.run() == (s.FINISHED if changes else s.STALLED)
    assert len(asked) == 1 + (2 if changes else 1)


# ---------------------------------------------------------------------- what changes from outside


def test_congestion_tables_put_all_between_adapters_under_them():
    m = Machine(star(3), roce(lanes=2))
    m.add_queue_pairs([connection(m, 0, 1), connection(m, 2, 2), connection(m, -1, 1), connection(m, 1, 2)])
    m.use_congestion_tables(5)
    found = m.state
    assert len(found.ibcc) == 4
    assert len(found.ibcc_settings) == 3 * ibcc.LEVELS
    assert len(found.fecn) == len(found.outlet) == 6 * 2
    assert found.congestion_log.shape == (5, ibcc.LOG_COLUMNS)
    assert found.qp.control.tolist() == [Control.IBCC, 0, 0, Control.IBCC]
    assert found.qp.counts.tolist() == [1, 0, 0, 1]
    m.use_congestion_tables(9)
    assert m.state is found  # once is enough
    empty = Machine(star(2), roce())
    empty.limit_bytes = nbytes(empty.state)
    with pytest.raises(OutOfMemoryError):
        empty.use_congestion_tables(5)
    assert len(empty.state.ibcc) == 1


def test_a_queue_pair_that_is_used_again_begins_with_its_algorithm_anew():
    m = Machine(star(2), roce())
    m.add_queue_pairs([connection(m, 0, 1, control=Control.DCQCN), connection(m, 1, 0)])
    assert len(m.state.dcqcn) == 2
    fresh = m.state.dcqcn[0].tolist()
    m.state.dcqcn[0] = np.ones(1, m.state.dcqcn.dtype)[0]
    m.state.dcqcn[1] = np.ones(1, m.state.dcqcn.dtype)[0]
    m.reuse_queue_pair(0, connection(m, 0, 1))
    assert m.state.dcqcn[0].tolist() != fresh  # of one without control nothing is touched
    m.reuse_queue_pair(0, connection(m, 0, 1, control=Control.DCQCN))
    assert m.state.dcqcn[0].tolist() == fresh
    assert m.state.dcqcn[1].tolist() != fresh
    assert m.state.qp.control.tolist() == [Control.DCQCN, 0]


def test_levels_arbitration_and_queue_pairs_follow_new_lanes(monkeypatch):
    m = Machine(star(2, kind="infiniband"), infiniband(lanes=2))
    m.add_queue_pairs([connection(m, 0, 1, sl=1, ack_sl=2), connection(m, 1, 0, sl=2), connection(m, 0, -1, sl=1)])
    touched = []
    monkeypatch.setattr(Machine, "touch", lambda self: touched.append(self))
    m.state.outlet.ready_head = m.state.outlet.ready_tail = 3
    m.state.qp.in_ring, m.state.qp.ring_next = 1, 2
    rows = ((0,) * 16, (1, 0) * 8)
    table = Arbitration(high=((1, 3),), low=((0, 1),), high_limit=2)
    ports = len(m.state.port)
    lanes = VirtualLanes(
        sl2vl=rows, port_sl2vl=(0, 1, 0, 0), sl2vl_by_input=(False, True, False, False), arbitrations=(table,)
    )
    m.set_virtual_lanes(lanes)
    assert touched == [m]
    assert m.state.sl2vl.tolist() == [list(row) for row in rows]
    assert m.state.port.sl2vl.tolist() == [0, 1, 0, 0]
    assert [bool(int(one.traits) & s.BY_INPUT) for one in m.state.port] == [False, True, False, False]
    assert [bool(int(one.traits) & s.ARBITRATED) for one in m.state.port] == [True] * ports
    assert m.state.arbiter.row.tolist() == [0] * ports
    assert m.state.arbitration[0].tolist() == [1, 3]
    assert m.state.high_limit.tolist() == [2 * 4096]
    # from the sender's own port, and from the port of the adapter that answers; none answers of what stays inside
    assert m.state.qp.vl.tolist() == [rows[0][1], rows[1][2], rows[0][1]]
    assert m.state.qp.ack_vl.tolist() == [rows[1][2], rows[0][0], rows[0][0]]
    assert set(m.state.outlet.ready_head.tolist() + m.state.outlet.ready_tail.tolist()) == {NONE}
    assert (m.state.qp.in_ring.tolist(), m.state.qp.ring_next.tolist()) == ([0] * 3, [NONE] * 3)
    for one in m.state.port:
        expected = int(m.state.port[int(one.peer)].traits) if one.peer >= 0 else 0
        assert int(one.rx_traits) == expected
    # back to what all have: lanes in turn, no tables, but a record at every port that had one
    m.set_virtual_lanes(VirtualLanes())
    assert m.state.sl2vl.tolist() == [[i % 2 for i in range(16)]]
    assert not m.state.port.sl2vl.any()
    assert not any(int(one.traits) & (s.ARBITRATED | s.BY_INPUT) for one in m.state.port)
    assert len(m.state.arbiter) == ports
    assert m.state.arbiter.tolist() == records(ports, m.state.arbiter.dtype).tolist()
    assert m.state.qp.vl.tolist() == [1, 0, 1]


def test_keys_keep_out_those_queue_pairs_alone():
    m = Machine(star(2), roce())
    m.add_queue_pairs([connection(m, 0, 1, ack_every=n) for n in (0, 1, 5, 7)])
    m.forbid(np.array([True, True, True, False]))
    assert m.state.qp.ack_every[:4].tolist() == [-1, -1, -5, 7]
    m.forbid(np.array([False, True, False, True]))
    assert m.state.qp.ack_every[:4].tolist() == [1, -1, 5, -7]
