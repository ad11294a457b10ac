"""Rules of what a port sends next one by one, on state of a few lines: rings of queue pairs, lanes, the wire."""

from __future__ import annotations

import pytest
from support.plain_kernel import NEVER, NONE, Record, plain

from fabrictwin.kernel.packet.events import KIND_SHIFT, PORT_SHIFT, VALUE_MASK, QueueEvent
from fabrictwin.kernel.packet.state import constants as c
from fabrictwin.kernel.packet.state import packets
from fabrictwin.kernel.packet.switch import transmit
from fabrictwin.kernel.packet.transport import send

HEADER, FULL = 82, 4096 + 82


def pair(**more):
    """A queue pair with ten packets posted, of tasks of 4 + 6 packets: the last of each is 100 bytes."""
    qp = Record(
        failed=0, inflight=0, mtu=4096, window=NEVER, retransmit=0, next_psn=0, posted_psn=10, mode=c.GO_BACK_N,
        una=0,
        in_ring=0, waking=0, port=2, vl=1, ring_next=NONE, next_send=0, next_message=0, message_ps=0, src=0, dst=7,
        sending=0, head=0, header=HEADER, first_header=0, extras=0, sl=5, hop_start=3, hop_middle=4, entropy=99,
        spray=0, retransmitted=0, highest_psn=0, service=c.RC, gap_q=0, rto_ps=0, rto_pending=0, progress_ps=0,
        counts=0,
    )  # fmt: skip
    for name, value in more.items():
        assert hasattr(qp, name)
        setattr(qp, name, value)
    return qp


class Port:
    """A port 2 with two lanes whose queue pairs send by lane 1."""

    def __init__(self, monkeypatch, *pairs, credit=1000, traits=0, message_ps=0):
        self.events: list[tuple[int, int, int]] = []
        self.told: list[tuple[int, int, int]] = []
        monkeypatch.setattr(
            send,
            "push_heap",
            lambda state, time, what: self.events.append((time, what >> KIND_SHIFT, what & VALUE_MASK)),
        )
        monkeypatch.setattr(send, "on_sent", lambda state, q, qp, wire, now: self.told.append((q, wire, now)))
        monkeypatch.setattr(send, "take_packet", self._take)
        self.outlet = Record(ready_head=NONE, ready_tail=NONE, credit=credit)
        self.port = Record(traits=traits, ps_q=20 << c.RATE_BITS, backlog=0, kicked=0)
        self.end = Record(next_message=0, message_ps=message_ps)
        tasks = [
            Record(psn_start=0, psn_end=4, next=1, size_bytes=3 * 4096 + 100),
            Record(psn_start=4, psn_end=10, next=NONE, size_bytes=5 * 4096 + 100),
        ]
        self.packets: list[Record] = []
        self.state = Record(
            settings=[Record(vl_bits=1, bitmap_mask=7)], qp=list(pairs), outlet={5: self.outlet},
            port={2: self.port},
            clock=[Record(kicks=0, created=0)], kick=[0] * 4, task=tasks, endpoint=[self.end], packet=self.packets,
            sacked=[0] * 8 * len(pairs), note=[Record(first_extra=0, last_extra=0)] * 2,
        )  # fmt: skip

    def _take(self, state):
        self.packets.append(Record(marks=0))
        return len(self.packets) - 1

    def ready(self):
        for q in range(len(self.state.qp)):
            send.make_ready(self.state, q)

    def next(self, now=0):
        return send.next_of_queue_pairs(self.state, 2, self.port, self.outlet, now)

    def sent(self, count, now=0):
        """(queue pair, number) of the next packets."""
        return [
            (self.packets[p].qp, self.packets[p].psn) for p in (self.next(now) for _ in range(count)) if p >= 0
        ]


@plain
@pytest.mark.parametrize(
    ("changed", "may"),
    [
        ({}, True),
        ({"failed": 1}, False),
        ({"next_psn": 9}, True),
        ({"next_psn": 10}, False),
        ({"next_psn": 11}, False),
        ({"next_psn": 10, "retransmit": 1}, True),
        ({"inflight": 1, "window": 2 * 4096}, True),
        ({"inflight": 1, "window": 2 * 4096 - 1}, False),
        ({"inflight": 0, "window": 100}, True),  # one packet always
        ({"inflight": 1, "window": 8191, "retransmit": 1}, False),
        ({"mode": c.SELECTIVE, "next_psn": 7}, True),  # the bitmap has eight places
        ({"mode": c.SELECTIVE, "next_psn": 8}, False),
        ({"mode": c.SELECTIVE, "next_psn": 8, "una": 1}, True),
        ({"mode": c.GO_BACK_N, "next_psn": 8}, True),
    ],
)
def test_who_may_send(changed, may):
    state = Record(settings=[Record(bitmap_mask=7)])
    assert bool(send.may_send(state, pair(**changed))) == may


@plain
def test_queue_pairs_that_are_ready_form_a_ring_once_each(monkeypatch):
    made = Port(monkeypatch, pair(), pair(waking=1), pair(), pair(failed=1), pair())
    made.ready()
    made.ready()
    assert (made.outlet.ready_head, made.outlet.ready_tail) == (0, 4)
    assert [qp.ring_next for qp in made.state.qp] == [2, NONE, 4, NONE, NONE]
    assert [qp.in_ring for qp in made.state.qp] == [1, 0, 1, 0, 1]
    assert (made.port.backlog, made.state.clock[0].kicks, made.state.kick[0]) == (2, 1, 2)


@plain
def test_ready_queue_pairs_take_turns_a_packet_each(monkeypatch):
    made = Port(monkeypatch, pair(), pair(posted_psn=2), pair(window=4096))
    made.ready()
    assert made.sent(6) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2)]
    assert [qp.in_ring for qp in made.state.qp] == [1, 0, 0]
    assert made.sent(9) == [(0, n) for n in range(3, 10)]
    assert (made.outlet.ready_head, made.state.qp[0].in_ring, made.next()) == (NONE, 0, NONE)
    assert made.state.clock[0].created == 13
    assert [(q, now) for q, _, now in made.told[:3]] == [(0, 0), (1, 0), (2, 0)]


@plain
def test_a_packet_is_its_queue_pair_s(monkeypatch):
    made = Port(monkeypatch, pair(first_header=8))
    made.ready()
    rows = [made.packets[made.next(70)] for _ in range(10)]
    assert vars(rows[1]) == {
        "kind": c.DATA, "qp": 0, "psn": 1, "sent_ps": 70, "dst": 7, "wire": FULL, "payload": 4096, "sl": 5,
        "vl": 1,
        "hop": 3, "hop_end": 4, "entropy": 99, "marks": 0,
        "extra": 0,
    }  # fmt: skip
    assert [p.extra for p in rows] == [0] * 4 + [1] * 6  # tasks
    assert [p.payload for p in rows] == [4096, 4096, 4096, 100, *[4096] * 5, 100]
    assert [p.wire - p.payload for p in rows] == [90, 82, 82, 82, 90, *[82] * 5]
    assert [p.marks for p in rows] == [c.FIRST, 0, 0, c.LAST, c.FIRST, 0, 0, 0, 0, c.LAST]
    qp = made.state.qp[0]
    assert (qp.next_psn, qp.highest_psn, qp.inflight, qp.sending) == (10, 10, 10, 1)
    assert made.events == []


@plain
def test_messages_have_headers_of_their_own(monkeypatch):
    made = Port(monkeypatch, pair(extras=1))
    made.state.note = [Record(first_extra=16, last_extra=3), Record(first_extra=1, last_extra=0)]
    made.ready()
    rows = [made.packets[made.next()] for _ in range(10)]
    assert [p.wire - p.payload - HEADER for p in rows] == [16, 0, 0, 3, 1, 0, 0, 0, 0, 0]


@plain
def test_a_window_that_closes_asks_for_its_acknowledgement(monkeypatch):
    made = Port(monkeypatch, pair(window=3 * 4096))
    made.ready()
    rows = [made.packets[made.next()].marks for _ in range(3)]
    assert [bool(marks & c.REQUEST) for marks in rows] == [False, False, True]
    assert made.next() == NONE


@plain
def test_what_is_sent_again_says_so(monkeypatch):
    made = Port(monkeypatch, pair(next_psn=2, highest_psn=4, inflight=2, sending=0))
    made.ready()
    marks = [made.packets[made.next()].marks & c.RETRY for _ in range(4)]
    assert marks == [c.RETRY, c.RETRY, 0, 0]
    qp = made.state.qp[0]
    assert (qp.retransmitted, qp.highest_psn, qp.next_psn) == (2, 6, 6)


@plain
def test_what_was_lost_goes_first_and_leaves_the_rest_as_it_was(monkeypatch):
    made = Port(
        monkeypatch, pair(mode=c.SELECTIVE, next_psn=6, highest_psn=6, una=1, inflight=3, retransmit=2, sending=1)
    )
    made.state.sacked[2] = made.state.sacked[5] = c.LOST
    made.ready()
    assert made.sent(3) == [(0, 2), (0, 5), (0, 6)]
    qp = made.state.qp[0]
    assert (qp.retransmit, qp.inflight, qp.next_psn, qp.sending) == (0, 6, 7, 1)
    assert not any(made.state.sacked)
    assert [p.marks & c.RETRY for p in made.packets] == [c.RETRY, c.RETRY, 0]
    assert [p.payload for p in made.packets] == [4096] * 3


@plain
def test_spraying_gives_every_packet_an_entropy(monkeypatch):
    made = Port(monkeypatch, pair(spray=1, retransmitted=3))
    made.ready()
    for n in range(3):
        assert made.packets[made.next()].entropy == packets.mix(99 + (n + 3) * 0x9E37) & 0x7FFFFFFF


@plain
@pytest.mark.parametrize("credit", [65, 66])
def test_credits_are_counted_before_a_packet_is_made(monkeypatch, credit):
    """A full packet is 4,178 bytes: 66 blocks."""
    made = Port(monkeypatch, pair(), credit=credit, traits=c.CREDIT)
    made.ready()
    found = made.next()
    assert found == (send.STARVED if credit == 65 else 0)
    assert len(made.packets) == (credit == 66)
    assert made.outlet.ready_head == 0
    made.port.traits = 0
    assert made.next() >= 0


@plain
def test_without_a_free_packet_nothing_is_sent(monkeypatch):
    made = Port(monkeypatch, pair())
    monkeypatch.setattr(send, "take_packet", lambda state: NONE)
    made.ready()
    assert made.next() == NONE
    assert (made.outlet.ready_head, made.state.qp[0].next_psn, made.state.clock[0].created) == (0, 0, 0)


@plain
def test_a_paced_queue_pair_waits_and_lets_others_pass(monkeypatch):
    """A gap after every packet, of its bytes; of a turn that came late, one gap is made good."""
    gap = FULL * 30
    made = Port(monkeypatch, pair(gap_q=30 << c.RATE_BITS), pair(posted_psn=2))
    made.ready()
    assert made.sent(3) == [(0, 0), (1, 0), (1, 1)]
    qp = made.state.qp[0]
    assert (qp.next_send, qp.waking, qp.in_ring, made.events) == (gap, 1, 0, [(gap, QueueEvent.WAKE, 0)])
    assert made.outlet.ready_head == NONE
    send.make_ready(made.state, 0)
    assert made.outlet.ready_head == NONE  # it is waited for
    qp.waking = 0
    send.make_ready(made.state, 0)
    assert made.sent(1, gap) == [(0, 1)]
    assert qp.next_send == 2 * gap
    assert made.sent(1, 2 * gap - 1) == []
    qp.waking = 0
    send.make_ready(made.state, 0)
    assert made.sent(1, 10 * gap) == [(0, 2)]
    assert qp.next_send == 10 * gap


@plain
def test_messages_of_a_queue_pair_and_of_an_adapter_are_some_time_apart(monkeypatch):
    made = Port(monkeypatch, pair(message_ps=500), pair(message_ps=100), message_ps=40)
    made.ready()
    assert made.sent(2, 1000) == [(0, 0), (0, 1)]  # the other's first message would be too early
    assert (made.state.qp[0].next_message, made.end.next_message) == (1500, 1040)
    assert made.events == [(1040, QueueEvent.WAKE, 1)]
    made.state.qp[1].waking = 0
    made.ready()
    assert made.sent(2, 1040) == [(0, 2), (1, 0)]
    assert (made.state.qp[1].next_message, made.end.next_message) == (1140, 1080)
    made.state.qp[0].src = NONE  # inside a host there is no adapter
    made.sent(3, 1090)
    assert made.events[-1] == (1500, QueueEvent.WAKE, 0)


@plain
@pytest.mark.parametrize("service", [c.UC, c.UD, c.RC])
def test_what_nobody_acknowledges_is_done_once_it_is_on_the_wire(monkeypatch, service):
    made = Port(monkeypatch, pair(extras=1, service=service, window=2 * 4096))
    made.ready()
    found = made.sent(5, 1000)
    took = (100 + HEADER) * 20
    if service == c.RC:
        assert (found, made.events) == ([(0, 0), (0, 1)], [])
    else:
        assert (len(found), made.events) == (5, [(1000 + took, QueueEvent.SENT, 0)])
        assert made.state.qp[0].inflight == 0


@plain
def test_the_retransmission_timer_is_set_once(monkeypatch):
    made = Port(monkeypatch, pair(rto_ps=700, progress_ps=5), pair(rto_ps=700, mode=c.LOCAL))
    made.ready()
    made.sent(2, 100)
    assert made.events == [(800, QueueEvent.RTO, 0)]
    assert (made.state.qp[0].rto_pending, made.state.qp[0].progress_ps) == (1, 100)
    made.sent(2, 150)
    assert len(made.events) == 1
    assert made.state.qp[0].progress_ps == 100  # only the first in flight starts the clock


# ---------------------------------------------------------------------- lanes


def lanes(monkeypatch, **more):
    """Port 2 of two lanes; lane 1 is chosen."""
    monkeypatch.setattr(transmit, "arbitrate", lambda state, at, port, eligible: eligible.bit_length() - 1)
    charged: list[int] = []
    monkeypatch.setattr(transmit, "charge", lambda state, at, wire: charged.append(wire))
    outlet = Record(head=NONE, tail=NONE, ready_head=4, credit=100, kmax=0, queued=0, deficit=50, last_tx=0)
    other = Record(head=NONE, tail=NONE, ready_head=NONE, credit=100, kmax=0, queued=0, deficit=0, last_tx=0)
    port = Record(backlog=2, paused=0, starved=0, traits=0, queue_width=1)
    for name, value in more.items():
        setattr(port if hasattr(port, name) else outlet, name, value)
    state = Record(
        settings=[Record(vl_bits=1, hoq_ps=0)], outlet={4: other, 5: outlet}, packet={9: Record(wire=FULL)},
        queued={2: 11}, hold={5: Record(hoq_pending=0)},
    )  # fmt: skip
    return state, port, outlet, charged


@plain
@pytest.mark.parametrize("traits", [0, c.CREDIT, c.ARBITRATED, c.CREDIT | c.ARBITRATED])
def test_what_queue_pairs_hold_back_goes_when_queues_are_empty(monkeypatch, traits):
    state, port, outlet, charged = lanes(monkeypatch, traits=traits)
    monkeypatch.setattr(transmit, "next_of_queue_pairs", lambda *given: 9)
    assert transmit.choose(state, 2, port, 70) == 9
    assert (outlet.deficit, outlet.last_tx, state.queued[2]) == (50 - FULL, 70, 11 + FULL)
    assert outlet.credit == 100 - (66 if traits & c.CREDIT else 0)
    assert charged == ([FULL] if traits & c.ARBITRATED else [])
    assert port.backlog == 2


@plain
def test_a_lane_with_nothing_left_is_no_longer_asked(monkeypatch):
    asked = []
    state, port, _, _ = lanes(monkeypatch, backlog=3)
    monkeypatch.setattr(transmit, "next_of_queue_pairs", lambda *given: asked.append(given[3]) or NONE)
    assert transmit.choose(state, 2, port, 70) == NONE
    assert (port.backlog, port.starved, len(asked)) == (0, 0, 1)
    state, port, _, _ = lanes(monkeypatch, backlog=3)
    monkeypatch.setattr(transmit, "next_of_queue_pairs", lambda *given: send.STARVED)
    assert transmit.choose(state, 2, port, 70) == NONE
    assert (port.backlog, port.starved) == (2, 2)
    for stopped in ({"paused": 2}, {"starved": 2}):
        state, port, _, _ = lanes(monkeypatch, **stopped)
        assert transmit.choose(state, 2, port, 70) == NONE
        assert port.backlog == 2


@plain
def test_a_link_that_is_down_drops_what_waits_and_keeps_what_queue_pairs_hold(monkeypatch):
    dropped = []
    monkeypatch.setattr(transmit, "drop", lambda state, p, at, now, held: dropped.append((p, at, now, held)))
    state, port, outlet, _ = lanes(monkeypatch, traits=c.DOWN, head=3, queued=900)
    state.packet = {3: Record(next=5, wire=600), 5: Record(next=NONE, wire=300)}
    state.queued[2] = 1000
    assert transmit.choose(state, 2, port, 70) == NONE
    assert dropped == [(3, 2, 70, True), (5, 2, 70, True)]
    assert (outlet.head, outlet.queued, state.queued[2], outlet.ready_head) == (NONE, 0, 100, 4)


@plain
def test_input_queues_of_a_lane_take_turns():
    packets_ = {p: Record(next=n) for p, n in ((1, 2), (2, NONE), (3, NONE))}
    queue = {7: Record(head=1, tail=2, next=8), 8: Record(head=3, tail=3, next=NONE)}
    state = Record(packet=packets_, queue=queue)
    port, outlet = Record(queue_width=3), Record(head=7, tail=8)
    order = []
    while outlet.head != NONE:
        head = transmit.first_packet(state, port, outlet)
        order.append(head)
        transmit.dequeue(state, port, outlet, packets_[head])
    assert order == [1, 3, 2]
    port, outlet = Record(queue_width=1), Record(head=1, tail=2)
    assert transmit.first_packet(state, port, outlet) == 1
    transmit.dequeue(state, port, outlet, packets_[1])
    assert outlet.head == 2
    assert transmit.first_packet(state, Record(queue_width=3), Record(head=NONE)) == NONE


@plain
def test_the_lifetime_of_a_head_is_watched_once(monkeypatch, scheduled):
    state = Record(settings=[Record(hoq_ps=500)], hold={5: Record(hoq_pending=0)})
    transmit.watch_head(state, 5, 100)
    transmit.watch_head(state, 5, 200)
    assert scheduled == [(600, QueueEvent.HOQ, 0, 5)]
    state = Record(settings=[Record(hoq_ps=0)], hold={5: Record(hoq_pending=0)})
    transmit.watch_head(state, 5, 100)
    assert (len(scheduled), state.hold[5].hoq_pending) == (1, 0)


# ---------------------------------------------------------------------- the wire


@plain
@pytest.mark.parametrize(
    ("wire", "payload", "traits", "size", "lanes_"),
    [
        (4178, 4096, 0, 4178, (1, 2)),
        (86, 0, 0, 86, (3, 4)),
        (300, 218, 0, 300, (NONE, NONE)),
        (4178, 4178, c.INTERNAL, 4178, (1, 2)),
        (4260, 4178, c.INTERNAL, 4178, (1, 2)),
        (4178, 4096, c.STORE, 4178, (1, 2)),
        (4178, 4096, c.REPLAY, 4178, (1, 2)),  # no errors: nothing is drawn
    ],
)
def test_a_packet_is_on_the_wire_for_its_bytes(monkeypatch, wire, payload, traits, size, lanes_):
    pushed = []
    monkeypatch.setattr(transmit, "push", lambda state, lane, time, what: pushed.append((lane, time, what)))
    monkeypatch.setattr(
        transmit, "push_to_peer", lambda state, port, lane, time, what: pushed.append((lane, time, what))
    )
    monkeypatch.setattr(transmit, "choose", lambda state, at, port, now: 5)
    port = Record(
        busy=0, control_head=NONE, wait_since=NONE, wait_ps=7, traits=traits, ps_q=20 << 20, full_bytes=4178,
        ack_bytes=86,
        lane_tx_full=1, lane_arrive_full=2, lane_tx_ack=3, lane_arrive_ack=4, error_q=0, arrive_ps=300,
        tx_bytes=10,
        tx_payload=20, tx_packets=30, peer=9, tx_slot=0, tx_wire=0,
    )  # fmt: skip
    state = Record(port={6: port}, packet={5: Record(wire=wire, payload=payload, slot=8)}, clock=[Record(hops=40)])
    transmit.transmit(state, 6, 1000)
    took, late = 20 * size, (20 * size if traits & c.STORE else 0)
    assert [(lane, time) for lane, time, _ in pushed] == [(lanes_[0], 1000 + took), (lanes_[1], 1300 + late)]
    assert [(what >> KIND_SHIFT, what >> PORT_SHIFT & 0xFFFF, what & VALUE_MASK) for *_, what in pushed] == [
        (QueueEvent.TX_DONE, 6, 0), (QueueEvent.ARRIVE, 9, 5),
    ]  # fmt: skip
    assert (port.tx_bytes, port.tx_payload, port.tx_packets) == (10 + wire, 20 + payload, 31)
    assert (port.tx_wire, port.tx_slot, port.busy, port.wait_ps, state.clock[0].hops) == (wire, 8, 1, 7, 41)
    transmit.transmit(state, 6, 1001)
    assert len(pushed) == 2  # busy


@plain
def test_pause_frames_go_first(monkeypatch):
    pushed = []
    for name in ("push", "push_to_peer"):
        monkeypatch.setattr(transmit, name, lambda *given: pushed.append(given[-1] & VALUE_MASK))
    monkeypatch.setattr(transmit, "choose", lambda *given: pytest.fail("a queue was asked"))
    port = Record(
        busy=0, control_head=3, wait_since=NONE, wait_ps=0, traits=0, ps_q=1 << 20, full_bytes=1, ack_bytes=2,
        error_q=0, arrive_ps=3, tx_bytes=0, tx_payload=0, tx_packets=0, peer=9, tx_slot=0, tx_wire=0,
    )  # fmt: skip
    rows = {3: Record(next=4, wire=84, payload=0, slot=NONE), 4: Record(next=NONE, wire=84, payload=0, slot=NONE)}
    state = Record(port={6: port}, packet=rows, clock=[Record(hops=0)])
    for waiting in (4, NONE):
        transmit.transmit(state, 6, 1000)
        assert port.control_head == waiting
        port.busy = 0
    assert pushed == [0, 3, 0, 4]


@plain
@pytest.mark.parametrize(("backlog", "since", "waits"), [(2, NONE, 100), (0, NONE, NONE), (2, 60, 60)])
def test_a_port_waits_from_when_it_has_something_and_may_not(monkeypatch, backlog, since, waits):
    monkeypatch.setattr(transmit, "choose", lambda *given: NONE)
    port = Record(busy=0, control_head=NONE, backlog=backlog, wait_since=since)
    transmit.transmit(Record(port={6: port}), 6, 100)
    assert (port.wait_since, port.busy) == (waits, 0)
