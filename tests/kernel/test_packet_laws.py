"""Laws of the packet machine, each broken by hand; circles of waiting lanes; what is asked of a machine."""

from __future__ import annotations

import numpy as np
import pytest
from support.packet_wiring import GBPS, US, infiniband, machine, ring, roce, star

from fabrictwin.base.grouped import grouped
from fabrictwin.kernel.packet import invariants
from fabrictwin.kernel.packet.connection import Connection
from fabrictwin.kernel.packet.events import KIND_SHIFT, PORT_SHIFT, VALUE_MASK, VL_SHIFT, QueueEvent
from fabrictwin.kernel.packet.invariants import Blocked
from fabrictwin.kernel.packet.machine import PAUSES_IN_VAIN, Machine, OutOfMemoryError
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.task_columns import make_tasks

NONE = -1


def under_way(kind="infiniband", **options):
    """Two hosts that send to a third, stopped while packets fly, wait and return credits."""
    made = infiniband(lanes=2) if kind == "infiniband" else roce(lanes=2)
    m = machine(star(3, kind=kind, **options), made, [(0, 2, 100_000), (1, 2, 100_000)])
    m.run(1_500_000 if kind == "infiniband" else 2_250_000)
    return m


# ---------------------------------------------------------------------- laws


def test_what_is_scheduled_is_the_heap_and_every_lane():
    m = under_way()
    state, clock = m.state, m.state.clock[0]
    expected = state.heap.what[: int(clock.heap)].tolist()
    for lane in state.lane[: int(clock.lanes)]:
        events = [int(lane.first) + (at & int(lane.mask)) for at in range(int(lane.head), int(lane.tail))]
        expected += state.event.what[events].tolist()
    assert invariants.pending(state).tolist() == expected
    assert len(expected) > 10


def test_all_laws_hold_at_first():
    for m in (under_way(), under_way("ethernet")):
        assert invariants.violations(m.state) == []
        waiting = invariants.queued_packets(m.state)
        assert waiting
        for slot, packets in waiting.items():
            assert sum(int(m.state.packet[p].wire) for p in packets) == int(m.state.outlet[slot].queued)


def first_waiting(m):
    return next(slot for slot, packets in invariants.queued_packets(m.state).items() if len(packets) > 1)


def flying(m):
    what = invariants.pending(m.state)
    return [int(w) & VALUE_MASK for w in what[(what >> KIND_SHIFT) == QueueEvent.ARRIVE]]


@pytest.mark.parametrize("column", ["created", "delivered", "dropped", "refused"])
@pytest.mark.parametrize("by", [-1, 1])
def test_every_packet_that_was_sent_ended_or_is_under_way(column, by):
    m = under_way()
    clock = m.state.clock[0]
    sent = int(clock.created)
    ended = int(clock.delivered + clock.dropped + clock.refused)
    clock[column] += by
    more = (by, 0) if column == "created" else (0, by)
    told = f"{sent + more[0]} data packets were sent, {ended + more[1]} ended and {sent - ended} are under way"
    assert invariants.violations(m.state) == [told]


def test_every_packet_is_in_one_place():
    m = under_way()
    clock = m.state.clock[0]
    used = len(m.state.packet) - int(clock.free)
    clock.free += 1
    assert invariants.violations(m.state) == [f"{used - 1} packets are taken, {used} can be found"]
    m = under_way()
    slot, p = first_waiting(m), flying(m)[0]
    last = invariants.queued_packets(m.state)[slot][-1]
    m.state.packet[last].next = p
    assert f"packet {p} is in two places" in invariants.violations(m.state)


def test_queues_count_their_bytes():
    m = under_way()
    slot = first_waiting(m)
    held = int(m.state.outlet[slot].queued)
    m.state.outlet[slot].queued += 1
    assert invariants.violations(m.state) == [f"slot {slot} counts {held + 1} bytes queued, its queues {held}"]


def test_credits_add_up_to_the_buffer():
    capacity = (128 << 10) // 64
    m = under_way()
    m.state.outlet[0].credit += 3
    assert invariants.violations(m.state) == [
        f"port 0 lane 0: {capacity + 3} credits in all, the buffer has {capacity}"
    ]
    for column, by in (("held", 2), ("unreturned", 1)):
        m = under_way()
        peer = int(m.state.port[1].peer)
        m.state.inlet[2 * peer + 1][column] += by
        assert invariants.violations(m.state) == [
            f"port 1 lane 1: {capacity + by} credits in all, the buffer has {capacity}"
        ]
    m = under_way()
    m.state.outlet[1].credit = -1
    told = invariants.violations(m.state)
    assert told == ["port 0 lane 1 has -1 credits", f"port 0 lane 1: -1 credits in all, the buffer has {capacity}"]
    # what returns counts for its port and lane
    m = under_way()
    build_heap = m.state.clock[0]
    m.state.heap[int(build_heap.heap)].what = (
        int(QueueEvent.CREDITS) << KIND_SHIFT | 2 << PORT_SHIFT | 1 << VL_SHIFT | 7
    )
    build_heap.heap += 1
    assert invariants.violations(m.state) == [
        f"port 2 lane 1: {capacity + 7} credits in all, the buffer has {capacity}"
    ]


def test_shared_buffers_have_bounds():
    m = under_way("ethernet")
    limit = int(m.state.node[3].shared_limit)
    for used, holds in ((-1, False), (0, True), (limit, True), (limit + 1, False)):
        m.state.node[3].shared_used = used
        assert invariants.violations(m.state) == ([] if holds else [f"node 3 uses {used} of {limit} shared bytes"])
    m.state.node[3].shared_used = 0
    for column in ("held", "headroom"):
        m = under_way("ethernet")
        m.state.inlet[3][column] = -1
        assert invariants.violations(m.state) == ["a buffer holds less than nothing"]


# ---------------------------------------------------------------------- circles


def waiting_ring(switches, *, lanes=2, lane=1, kind="ethernet", without=()):
    """A ring whose every link between switches waits for the next, laid by hand, but for some of them.

    Returns the machine and the slots of the ring's outlets in their order.
    """
    made = infiniband(lanes=lanes) if kind == "infiniband" else roce(lanes=lanes)
    m = Machine(ring(switches, kind=kind), made)
    state, wiring = m.state, m.wiring
    outs = []
    for n in range(switches):
        here, there = switches + n, switches + (n + 1) % switches
        outs.append(
            next(
                p
                for p in range(int(wiring.node_port_start[here]), int(wiring.node_port_start[here + 1]))
                if wiring.port_node[wiring.port_peer[p]] == there
            )
        )
    bits = lanes.bit_length() - 1
    for n, out in enumerate(outs):
        came_by = int(wiring.port_peer[outs[n - 1]])  # from the switch before
        slot = (out << bits) + lane
        state.packet[n].slot = (came_by << bits) + lane
        state.packet[n].next = NONE
        if int(state.port[out].queue_width) > 1:
            offset = came_by - int(state.node[int(wiring.port_node[out])].port_start)
            index = int(state.port[out].queue_start) + lane * int(state.port[out].queue_width) + offset
            state.queue[index].head = n
            state.outlet[slot].head = index
        else:
            state.outlet[slot].head = n
        if n not in without:
            state.port[out]["paused" if kind == "ethernet" else "starved"] = 1 << lane
    return m, [(out, lane) for out in outs]


@pytest.mark.parametrize("kind", ["ethernet", "infiniband"])
@pytest.mark.parametrize(("switches", "lanes", "lane"), [(3, 2, 1), (4, 4, 2), (3, 1, 0)])
def test_a_ring_that_waits_for_itself_is_named_in_order(kind, switches, lanes, lane):
    m, outs = waiting_ring(switches, lanes=lanes, lane=lane, kind=kind)
    found = invariants.find_deadlock(m.state)
    first = outs.index(min(outs))
    assert found == Blocked(tuple(outs[first:] + outs[:first]), tuple(sorted(outs)))


@pytest.mark.parametrize("kind", ["ethernet", "infiniband"])
def test_one_that_may_still_move_breaks_the_circle(kind):
    m, _ = waiting_ring(4, kind=kind, without=(2,))
    assert invariants.find_deadlock(m.state) is None
    for column, value in (("busy", 1), ("peer", NONE), ("paused", 1), ("starved", 1)):
        m, outs = waiting_ring(3, kind=kind)
        port = m.state.port[outs[1][0]]
        port.paused = port.starved = 0 if column in ("paused", "starved") else 2
        port[column] = value  # of the other lane
        assert invariants.find_deadlock(m.state) is None
    m, outs = waiting_ring(3, kind=kind)
    m.state.packet[1].slot = NONE  # its first packet starts here: nobody waits for it
    assert invariants.find_deadlock(m.state) is None


def test_who_waits_for_a_circle_is_stuck_too():
    m, outs = waiting_ring(3)
    host = int(m.wiring.endpoint_port[0])
    behind = int(m.wiring.port_peer[host])
    state = m.state
    state.packet[7].slot, state.packet[7].next = NONE, NONE
    state.outlet[2 * host + 1].head, state.port[host].paused = 7, 2
    # a packet of the host's stands behind the circle's at the first switch
    state.packet[8].slot, state.packet[8].next = 2 * behind + 1, NONE
    state.packet[0].next = 8
    found = invariants.find_deadlock(state)
    assert (host, 1) in found.all
    assert sorted(found.cycle) == sorted(outs)
    assert len(found.all) == len(found.cycle) + 1
    state.port[outs[0][0]].control_head = 9  # pause frames wait for nothing
    state.packet[9].slot, state.packet[9].next = NONE, NONE
    assert invariants.queued_packets(state)[-1 - outs[0][0]] == [9]
    assert invariants.find_deadlock(state) == found


# ---------------------------------------------------------------------- what is asked of a machine


def test_successors_of_a_task_stand_together_first_those_of_its_receiver():
    m = machine(star(2), roce(), [(0, 1, 1000)])
    kept = len(m.state.successor) - 1
    after = (np.array([1, 2, 3]), np.array([0, 0, 1]))
    done = (np.array([4, 3]), np.array([0, 0]))
    first = m.add_tasks(
        np.full(5, s.DELAY), np.zeros(5), np.zeros(5), np.full(5, 10), after=after, after_done=done, start=False
    )
    assert first == 1
    rows = m.state.task[first : first + 5]
    assert rows.waits.tolist() == [0, 1, 1, 2, 1]
    listed = m.state.successor.tolist()
    spans = [(int(t.next_start), int(t.next_middle), int(t.next_end)) for t in rows]
    assert spans == [
        (kept + a, kept + b, kept + c) for a, b, c in ((0, 2, 4), (4, 5, 5), (5, 5, 5), (5, 5, 5), (5, 5, 5))
    ]
    assert listed[kept : kept + 2] == [2, 3]
    assert sorted(listed[kept + 2 : kept + 4]) == [4, 5]
    assert listed[kept + 4] == 4
    assert (
        rows.next.tolist()
        == rows.start_ps.tolist()
        == rows.received_ps.tolist()
        == rows.done_ps.tolist()
        == [NONE] * 5
    )
    assert int(m.state.clock[0].open) == 1 + 5
    again = m.add_tasks(np.full(1, s.DELAY), np.zeros(1), np.zeros(1), np.full(1, 10), start=False)
    assert int(m.state.task[again].next_start) == kept + 5
    assert len(m.state.log) >= 7
    assert len(m.state.heap) >= int(m.state.clock[0].heap) + 7 + 2 * s.HEAP_MARGIN


def test_tasks_are_placed_again_where_others_are_done():
    m = Machine(star(2), roce())
    last = m.add_tasks(np.full(1, s.DELAY), np.zeros(1), np.zeros(1), np.zeros(1), start=False)
    pair = make_tasks(
        np.full(2, s.DELAY), np.zeros(2), np.zeros(2), np.array([5, 7]), after=(np.array([1, 2]), np.array([0, 1]))
    )
    assert pair.successor.tolist() == [1, 2]
    places = m.reserve(2, 2), m.reserve(2, 2)
    assert places == ((1, 0), (3, 2))
    assert not m.is_done(places[1], 2)
    for place, rest in ((places[1], 5), (places[1], 2), (places[0], 1)):
        m.state.task[last].waits = rest
        m.place(pair, place, then=last)
        began = m.now
        m.run(began + 12)
        first = place.task
        assert m.state.task.done_ps[first : first + 2].tolist() == [began + 5, began + 12]
        assert m.is_done(place, 2)
        assert int(m.state.task[last].waits) == rest - 1
        m.state.clock[0].logged = 0
    assert m.state.successor[:4].tolist() == [2, last, 4, last]
    assert m.run() == s.IDLE
    assert (int(m.state.task[last].status), int(m.state.clock[0].open), m.tasks) == (s.DONE, 0, 5)


def test_delays_wait_for_what_they_follow():
    m = Machine(star(2), roce())
    ids = m.add_tasks(
        np.full(4, s.DELAY), np.zeros(4), np.zeros(4), np.array([5, 7, 11, 0]),
        after=(np.array([1, 3, 3]), np.array([0, 1, 2])),
    )  # fmt: skip
    assert m.run() in (s.IDLE, s.FINISHED)
    assert m.state.task.done_ps[ids : ids + 4].tolist() == [5, 12, 11, 12]
    assert m.state.task.start_ps[ids : ids + 4].tolist() == [0, 5, 0, 12]
    assert sorted(m.state.log[:4].tolist()) == [0, 1, 2, 3]
    assert (int(m.state.clock[0].logged), int(m.state.clock[0].open), m.now) == (4, 0, 12)


def test_a_turnstile_lets_one_in_for_each_that_ends():
    m = Machine(star(2), roce())
    kinds = np.array([s.DELAY, s.DELAY, s.TURNSTILE, s.DELAY, s.DELAY])
    m.add_tasks(
        kinds, np.zeros(5), np.zeros(5), np.array([5, 9, 0, 100, 200]),
        after=(np.array([2, 2, 3, 4]), np.array([0, 1, 2, 2])),
    )  # fmt: skip
    m.run()
    assert m.state.task.done_ps[:5].tolist() == [5, 9, 9, 105, 209]
    assert m.state.task.status[:5].tolist() == [s.DONE] * 5
    assert int(m.state.clock[0].open) == 0


def test_free_messages_form_a_chain():
    m = Machine(star(2), roce())
    chain = []
    m.add_messages(3)
    m.add_messages(2)
    at = int(m.state.clock[0].tasks_head)
    while at != NONE:
        chain.append(at)
        at = int(m.state.task[at].next)
    assert chain == [3, 4, 0, 1, 2]
    assert (int(m.state.clock[0].tasks_free), m.tasks) == (5, 5)
    assert len(m.state.note) >= 5
    assert len(m.state.task) >= 5


def connection(m, src, dst, **options):
    return grouped(Connection(int(m.wiring.endpoint_port[src]), src, dst), options)


def test_columns_of_a_queue_pair_and_its_ways():
    rows = tuple(tuple((i + row) % 4 for i in range(16)) for row in range(4))
    m = Machine(star(2), roce(lanes=4, mtu_bytes=2048, sl2vl=rows, port_sl2vl=(0, 1, 2, 3)))
    first = m.add_queue_pairs(
        [
            connection(
                m, 0, 1, before=(7, 8), after=(9,), back=(1, 2, 3), sl=2, ack_sl=3, entropy=5, mtu_bytes=512
            ),
            connection(m, 1, 0, after=(4,), ack_every=6, window_bytes=7000, late_ps=9, spray=True, noted=True),
        ]
    )
    assert first == 0
    one, two = m.state.qp[0], m.state.qp[1]
    names = ["hop_start", "hop_middle", "hop_end", "ack_hop", "ack_hop_end"]
    assert [int(one[name]) for name in names] == [0, 2, 3, 3, 6]
    assert [int(two[name]) for name in names] == [6, 6, 7, 7, 7]
    assert m.state.hop[:7].tolist() == [7, 8, 9, 1, 2, 3, 4]
    # the sender's lane is its port's, the answer's lane that of the other adapter's port
    assert (int(one.vl), int(one.ack_vl)) == (rows[0][2], rows[1][3])
    assert (int(one.mtu), int(two.mtu), int(one.entropy)) == (512, 2048, 5)
    assert (int(one.extras), int(two.extras), int(two.noted), int(two.spray)) == (0, 1, 1, 1)
    assert (int(two.ack_every), int(two.window), int(two.late_ps), int(two.src), int(two.dst)) == (
        6,
        7000,
        9,
        1,
        0,
    )
    for name in ["last_end", "ring_next", "head", "sending", "tail", "receiving", "accepting", "pool"]:
        assert int(one[name]) == int(two[name]) == NONE
    assert m.add_queue_pairs([connection(m, 0, 1, before=(5,) * 40)]) == 2
    assert m.state.hop[:47].tolist() == [7, 8, 9, 1, 2, 3, 4] + [5] * 40
    assert (int(m.state.qp[2].hop_start), int(m.state.qp[2].hop_end)) == (7, 47)
    one = m.state.qp[0]
    one.naks, one.closed = 8, 1
    m.reuse_queue_pair(0, connection(m, 1, 0, before=(6,), sl=1))
    assert (int(one.naks), int(one.closed), int(one.hop_start), int(one.src)) == (0, 0, 47, 1)
    assert int(m.state.hop[47]) == 6
    assert int(m.state.qp[1].hop_start) == 6
    assert int(one.vl) == rows[1][1]


def test_selective_queue_pairs_have_bitmaps():
    m = Machine(star(2), roce(window_packets=64))
    m.add_queue_pairs([connection(m, 0, 1)])
    assert len(m.state.received) == len(m.state.sacked) == 1
    m.add_queue_pairs([connection(m, 0, 1, mode=s.SELECTIVE), connection(m, 1, 0)])
    assert len(m.state.received) == len(m.state.sacked) == 3 * 64
    m.state.received[5] = 1
    m.add_queue_pairs([connection(m, 1, 0)])
    assert len(m.state.received) == 4 * 64
    assert np.flatnonzero(m.state.received).tolist() == [5]


def test_records_grow_by_half_and_keep_what_they_had():
    from fabrictwin.kernel.packet.machine import _longer, _longer_records, _room
    from fabrictwin.kernel.packet.state.network_records import queue_dtype
    from fabrictwin.kernel.packet.state.records import records

    held = records(10, queue_dtype)
    held.head = range(10)
    for used, more, size in ((4, 6, 10), (4, 7, 11), (10, 1, 15), (10, 9, 19), (0, 3, 3)):
        room = _room(held, used, more)
        assert len(room) == size
        assert room.head[:used].tolist() == list(range(used))
        if size > 10:
            assert not room.head[used:].any()
    assert [len(_longer(np.ones(3), n)) for n in (2, 3, 4)] == [3, 3, 4]
    assert _longer(np.ones(2), 4).tolist() == [1, 1, 0, 0]
    assert _longer_records(held, 10) is held
    assert _longer_records(held, 12).head.tolist() == [*range(10), 0, 0]


def test_memory_has_a_limit():
    m = Machine(star(2), roce())
    needed = sum(array.nbytes for array in m.state)
    m.limit_bytes = needed + 100
    m.check_memory(100)
    with pytest.raises(OutOfMemoryError, match=f"needs {needed + 101} bytes, the limit is {needed + 100}"):
        m.check_memory(101)


@pytest.mark.parametrize("gbps", [100, 200, 400])
def test_a_link_of_another_rate_takes_the_lanes_that_fit(gbps):
    m = machine(star(3, link_bps={(0, 3): 200 * GBPS, (3, 0): 200 * GBPS}), roce(), [(1, 2, 50_000)])
    m.set_rate(1, gbps * GBPS)
    one, delays = m.state.port[1], m.state.lane.delay.tolist()
    for size, tx, arrive in (
        (4096 + 82, "lane_tx_full", "lane_arrive_full"),
        (86, "lane_tx_ack", "lane_arrive_ack"),
    ):
        took = size * 8000 // gbps
        expected = {tx: took, arrive: US + took}
        for name, delay in expected.items():
            assert int(one[name]) == (delays.index(delay) if delay in delays else NONE)
    assert int(one.lane_tx_full) != NONE or gbps == 100


def test_errors_of_a_link_are_seen_by_who_receives():
    m = Machine(star(2), roce())
    peer = int(m.state.port[0].peer)
    m.set_errors(0, 1234)
    assert int(m.state.port[0].error_q) == 1234
    assert int(m.state.port[peer].rx_traits) & s.FAULTY
    assert not int(m.state.port[0].rx_traits) & s.FAULTY
    m.set_errors(0, 0)
    assert not (int(m.state.port[0].traits) | int(m.state.port[peer].rx_traits)) & s.FAULTY


def test_tables_that_change_leave_what_it_was_built_from():
    wiring = star(2)
    m = Machine(wiring, roce(balance=s.LFT))
    before = m.state.lft
    m.set_tables([0, 0], [0, 5], [7, 9])  # nobody has the second LID
    assert (m.state.lft.tolist(), before.tolist()) == ([[7]], [[0]])
    held = m.state.lft
    m.set_tables([0], [0], [3])
    assert m.state.lft is held
    assert held.tolist() == [[3]]


@pytest.mark.parametrize("on", [True, False])
def test_a_storm_is_forced_on_a_lane_of_a_port(on):
    m = Machine(star(2), roce(lanes=4))
    m.storm(1, 3, True)
    assert m.state.inlet.xoff.tolist() == [0] * 7 + [s.STUCK] + [0] * 8
    if not on:
        m.storm(1, 3, False)
        assert not m.state.inlet.xoff.any()


def test_pauses_alone_are_given_a_few_rounds():
    m = Machine(star(2), roce())
    assert not m._paused_for_ever()
    m.storm(0, 0, True)
    assert [m._paused_for_ever() for _ in range(12)] == [False] * 12  # the pause is on its way
    m.run(US * 3, drain=True)
    found = [m._paused_for_ever() for _ in range(PAUSES_IN_VAIN + 2)]
    assert found == [False] * (PAUSES_IN_VAIN - 1) + [True] * 3
    m.state.clock[0].created += 1
    assert not m._paused_for_ever()


def test_a_tap_has_room_for_two_rows_a_port_and_its_margin():
    from fabrictwin.kernel.packet.tap import TAP_MARGIN

    m = Machine(star(3), roce())
    m.tap([1, 4], print)
    assert m.state.tap.shape == (2 * 6 + 8 * TAP_MARGIN, 16)
    assert [bool(int(one.traits) & s.TAPPED) for one in m.state.port] == [False, True, False, False, True, False]


def test_a_budget_is_events_from_here_on():
    m = machine(star(2), roce(), [(0, 1, 400_000)])
    for wanted in (1, 10, 25):
        before = int(m.state.clock[0].events)
        assert m.run(budget=wanted) == s.SLICED
        assert int(m.state.clock[0].events) == before + wanted
    assert m.run(m.now) == s.REACHED
    m.run()
    assert int(m.state.clock[0].open) == 0
    assert m.run(drain=True) == s.IDLE
