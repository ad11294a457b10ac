"""Rules of the event queue one by one, on state of a few lines."""

from __future__ import annotations

import random

import pytest
from support.plain_kernel import NONE, Record, plain

from fabrictwin.kernel.packet import events
from fabrictwin.kernel.packet.events import KIND_SHIFT, QueueEvent


def schedule(lanes=1, room=64):
    heap = [Record(time=0, sequence=0, what=0) for _ in range(room)]
    lane = [Record(head=0, tail=0, mask=3, first=4 * at) for at in range(lanes)]
    event = [Record(time=0, what=0) for _ in range(4 * lanes)]
    clock = Record(heap=0, sequence=0, grow=0)
    return Record(heap=heap, clock=[clock], lane=lane, event=event, lane_time=[events.NEVER] * lanes)


@plain
@pytest.mark.parametrize("seed", range(4))
def test_the_heap_gives_what_is_earliest_and_of_equals_the_first(seed):
    drawn, state = random.Random(seed), schedule(room=400)
    waiting: list[tuple[int, int]] = []
    for what in range(300):
        time = drawn.randrange(40)
        events.push_heap(state, time, what)
        waiting.append((time, what))
        if drawn.random() < 0.4:
            root = state.heap[0]
            assert (root.time, root.what) == min(waiting)
            waiting.remove(min(waiting))
            events.pop_heap(state)
    assert state.clock[0].heap == len(waiting)
    while waiting:
        assert (state.heap[0].time, state.heap[0].what) == min(waiting)
        waiting.remove(min(waiting))
        events.pop_heap(state)
    assert (state.clock[0].sequence, state.clock[0].heap) == (300, 0)


@plain
def test_a_heap_asks_for_room_in_time(monkeypatch):
    monkeypatch.setattr(events, "HEAP_MARGIN", 2)
    state = schedule(room=4)
    for count, grow in ((1, 0), (2, 0), (3, events.GROW_HEAP), (4, events.GROW_HEAP), (5, events.OVERFLOW)):
        state.clock[0].grow = 0
        events.push_heap(state, count, count)
        assert state.clock[0].grow == grow
    assert state.clock[0].heap == 4


@plain
def test_a_lane_keeps_its_order_and_overflows_to_the_heap():
    state = schedule(lanes=2)
    for time in (10, 20, 30, 40):
        events.push(state, 1, time, time)
    assert state.lane_time == [events.NEVER, 10]
    assert (state.lane[1].tail, state.clock[0].heap, state.clock[0].grow) == (4, 0, 0)
    assert [(e.time, e.what) for e in state.event[4:]] == [(10, 10), (20, 20), (30, 30), (40, 40)]
    events.push(state, 1, 50, 50)
    assert (state.clock[0].heap, state.clock[0].grow, state.heap[0].what) == (1, events.GROW_LANES, 50)
    state.lane[1].head = 1
    events.push(state, 1, 60, 60)
    assert (state.event[4].time, state.lane_time[1]) == (60, 10)
    events.push(state, NONE, 5, 5)
    assert state.heap[0].what == 5


@plain
def test_events_are_a_kind_a_port_and_a_value():
    what = events.pack(11, 5, 9)
    assert what == 11 << 59 | 5 << 32 | 9
    assert (events.PORT_MASK, events.VALUE_MASK, events.VL_SHIFT) == (2**27 - 1, 2**32 - 1, 24)
    kinds = list(QueueEvent)
    assert [kind.value for kind in kinds] == list(range(15))
    assert max(kinds) << KIND_SHIFT < 2**63
    # what ports and packets do comes first, what only time brings last
    assert kinds[:4] == [
        QueueEvent.TX_DONE, QueueEvent.ARRIVE, QueueEvent.LATE_ARRIVE, QueueEvent.CREDITS,
    ]  # fmt: skip
    assert [kind for kind in kinds if kind >= QueueEvent.PAUSE_END] == [
        QueueEvent.PAUSE_END, QueueEvent.PAUSE_REFRESH, QueueEvent.RTO, QueueEvent.CONTROL, QueueEvent.HOQ,
        QueueEvent.WATCHDOG,
    ]  # fmt: skip
