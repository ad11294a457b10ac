"""Rules of packets that arrive one by one, on state of a few lines: at a port, at an adapter, in memory; and lifetimes."""

from __future__ import annotations

import pytest
from support.plain_kernel import NEVER, NONE, Record, plain

from fabrictwin.kernel.packet import loop
from fabrictwin.kernel.packet.events import QueueEvent, pack
from fabrictwin.kernel.packet.state import constants as c
from fabrictwin.kernel.packet.switch import buffer, pauses, transmit
from fabrictwin.kernel.packet.transport import receive

PORT, NODE, FEEDER, OUT = 6, 2, 40, 7


class Arriving:
    """Packet 9 comes in at a port of two lanes; what becomes of it is noted by name."""

    def __init__(self, monkeypatch, *, wire=128, **more):
        self.seen: list[tuple] = []
        for name in ("on_memory", "on_data", "on_reply", "lose", "forward", "drop", "wait_for_rest", "return_credits",
                     "record", "on_pause"):  # fmt: skip
            monkeypatch.setattr(loop, name, self._note(name))
        monkeypatch.setattr(loop, "fetch_output", lambda *given: None)
        monkeypatch.setattr(loop, "route", self._route)
        monkeypatch.setattr(loop, "classified", lambda state, at, packet: 99)
        self.draws = iter([])
        monkeypatch.setattr(loop, "draw", lambda clock: next(self.draws))
        self.way = OUT
        self.port = Record(node=NODE, traits=0, rx_traits=0, peer=FEEDER, ps_q=20)
        self.feeder = Record(ps_q=20, error_q=0)
        self.out = Record(ps_q=20)
        self.node = Record(traits=0)
        self.packet = Record(vl=1, wire=wire, kind=c.DATA, hop=0, hop_end=0, marks=0, qp=0, dst=5, slot=NONE)
        self.count, self.clock, self.inlet = Record(errors=0), Record(unroutable=NONE, grow=0), Record(held=10)
        self.qp = Record(mode=c.GO_BACK_N)
        for name, value in more.items():
            of, field = name.split("_", 1)
            assert hasattr(getattr(self, of), field)
            setattr(getattr(self, of), field, value)
        self.state = Record(
            port={PORT: self.port, FEEDER: self.feeder, OUT: self.out}, packet={9: self.packet}, node={NODE: self.node},
            settings=[Record(vl_bits=1)], inlet={13: self.inlet, 99: self.inlet}, count={PORT: self.count},
            clock=[self.clock], qp=[self.qp],
        )  # fmt: skip

    def _note(self, name):
        return lambda state, *given: self.seen.append((name, *given))

    def _route(self, state, node, packet):
        packet.hop += 1
        return self.way

    def arrive(self, whole=False):
        self.seen.clear()
        loop.arrive(self.state, PORT, 9, 1000, whole)
        return [(one[0], *one[1:]) for one in self.seen]

    @property
    def names(self):
        return [name for name, *_ in self.arrive()]


@plain
def test_a_packet_that_goes_on_is_routed_and_forwarded(monkeypatch):
    made = Arriving(monkeypatch)
    assert made.arrive() == [("forward", 9, OUT, made.node, 1000)]
    assert (made.packet.slot, made.packet.hop, made.inlet.held) == (13, 1, 10)
    made.packet.slot = 55
    made.arrive(whole=True)
    assert made.packet.slot == 55  # set when it came
    assert Arriving(monkeypatch, port_traits=c.RULED).arrive()
    ruled = Arriving(monkeypatch, port_traits=c.RULED)
    ruled.arrive()
    assert ruled.packet.slot == 99


@plain
def test_a_credit_link_s_packet_occupies_its_blocks(monkeypatch):
    made = Arriving(monkeypatch, wire=129, port_traits=c.CREDIT)
    made.arrive()
    assert made.inlet.held == 13
    made.arrive(whole=True)
    assert made.inlet.held == 13


@plain
@pytest.mark.parametrize("traits", [0, c.CREDIT])
def test_a_packet_without_a_way_ends_the_run(monkeypatch, traits):
    made = Arriving(monkeypatch, port_traits=traits)
    made.way = NONE
    assert made.arrive() == [("drop", 9, PORT, 1000, bool(traits))]
    assert (made.clock.unroutable, made.clock.grow) == (5, c.UNROUTABLE)


@plain
@pytest.mark.parametrize(
    ("traits", "error_q", "drawn", "lost"),
    [
        (c.DOWN, 0, None, True),
        (c.DOWN | c.REPLAY, 0, None, True),
        (c.FAULTY | c.REPLAY, 2**47, 0, False),  # the link repairs it
        (c.FAULTY, 2**40, 2**31 - 1, True),  # 128 bytes of chance 2**-8 each: one in two
        (c.FAULTY, 2**40, 2**31, False),
        (0, 2**40, 0, False),
    ],
)
@pytest.mark.parametrize("credit", [0, c.CREDIT])
def test_what_the_wire_spoils_ends_there(monkeypatch, traits, error_q, drawn, lost, credit):
    made = Arriving(monkeypatch, port_rx_traits=traits, port_traits=credit | c.TAPPED, feeder_error_q=error_q)
    made.draws = iter([drawn])
    found = [name for name, *_ in made.arrive()]
    assert made.count.errors == lost
    if lost:
        assert found == (["return_credits"] if credit else []) + ["lose"]
    else:
        assert found == ["record", "forward"]


@plain
def test_a_pause_frame_is_for_the_port(monkeypatch):
    assert Arriving(monkeypatch, packet_kind=c.PAUSE).arrive() == [("on_pause", PORT, 9, 1000)]


@plain
@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"packet_kind": c.DATA}, "on_data"),
        ({"packet_kind": c.TRIM}, "on_data"),
        ({"packet_kind": c.ACK}, "on_reply"),
        ({"packet_kind": c.CNP}, "on_reply"),
        ({"packet_marks": c.ARRIVED}, "on_memory"),
        ({"packet_marks": c.ECN}, "on_data"),
        ({"qp_mode": c.LOCAL}, "on_memory"),
        ({"packet_hop": 1, "packet_hop_end": 2}, "forward"),  # it goes on by named ports
        ({"packet_hop": 2, "packet_hop_end": 2}, "on_data"),
        ({"node_traits": c.SHARED}, "forward"),
    ],
)
def test_an_endpoint_takes_what_ends_there(monkeypatch, more, name):
    made = Arriving(monkeypatch, **{"node_traits": c.ENDPOINT, "port_rx_traits": c.STORE, **more})
    assert made.names == [name]


@plain
def test_an_endpoint_waits_for_the_last_bit(monkeypatch):
    """Where the link hands over the first bits, the rest is waited for once."""
    made = Arriving(monkeypatch, node_traits=c.ENDPOINT)
    assert made.arrive() == [("wait_for_rest", PORT, 9, 1000)]
    assert [name for name, *_ in made.arrive(whole=True)] == ["on_data"]


@plain
@pytest.mark.parametrize(
    ("traits", "rx", "out", "waits"),
    [
        (c.CUT_THROUGH, 0, 19, True),  # a faster link would run dry
        (c.CUT_THROUGH, 0, 20, False),
        (c.CUT_THROUGH, 0, 21, False),
        (c.CUT_THROUGH, c.STORE, 19, False),  # all of it is here
        (0, 0, 19, False),
    ],
)
def test_a_cut_through_switch_waits_before_a_faster_link(monkeypatch, traits, rx, out, waits):
    made = Arriving(monkeypatch, node_traits=traits, port_rx_traits=rx, out_ps_q=out)
    assert made.names == (["wait_for_rest"] if waits else ["forward"])
    assert made.packet.hop == (0 if waits else 1)
    assert [name for name, *_ in made.arrive(whole=True)] == ["forward"]


# ---------------------------------------------------------------------- head-of-queue lifetime


def starved_lane(monkeypatch, **more):
    seen = []
    monkeypatch.setattr(loop, "push_heap", lambda state, time, what: seen.append((time, what)))
    monkeypatch.setattr(loop, "drop", lambda state, p, at, now, held: seen.append(("drop", p, at, now, held)))
    monkeypatch.setattr(loop, "kick", lambda state, at: seen.append(("kick", at)))
    port = Record(starved=0b110, queue_width=1)
    outlet = Record(head=3, tail=4, last_tx=1000, queued=700)
    hold = Record(hoq_pending=1)
    for name, value in more.items():
        setattr(port if hasattr(port, name) else outlet, name, value)
    state = Record(
        settings=[Record(vl_bits=2, hoq_ps=500)], port={6: port}, outlet={25: outlet}, hold={25: hold},
        packet={3: Record(next=4, wire=300), 4: Record(next=NONE, wire=400)}, queued={6: 900},
        count={6: Record(hoq_drops=0)},
    )  # fmt: skip
    return state, port, outlet, hold, seen


@plain
def test_the_head_of_a_lane_that_sent_nothing_for_its_lifetime_is_dropped(monkeypatch):
    state, port, outlet, hold, seen = starved_lane(monkeypatch)
    loop.on_head_of_queue(state, 25, 1499)
    assert (seen, hold.hoq_pending) == ([(1500, pack(QueueEvent.HOQ, 0, 25))], 1)
    seen.clear()
    loop.on_head_of_queue(state, 25, 1500)
    assert seen == [("drop", 3, 6, 1500, True), ("kick", 6)]
    assert (outlet.head, outlet.queued, state.queued[6], hold.hoq_pending) == (4, 400, 600, 0)
    assert (port.starved, state.count[6].hoq_drops) == (0b100, 1)


@plain
@pytest.mark.parametrize("more", [{"starved": 0b101}, {"head": NONE}])
def test_a_lane_that_sends_again_or_is_empty_keeps_what_it_has(monkeypatch, more):
    state, _, outlet, hold, seen = starved_lane(monkeypatch, **more)
    loop.on_head_of_queue(state, 25, 9000)
    assert (seen, outlet.queued, hold.hoq_pending) == ([], 700, 0)


# ---------------------------------------------------------------------- the loop


def looping(monkeypatch, *rows, **more):
    """A loop over a heap of (time, kind, port, value); the names of what it calls."""
    from fabrictwin.kernel.packet import events

    called: list[tuple] = []
    for name in ("arrive", "make_ready", "begin_task", "on_sent", "on_timeout", "resume", "refresh_pause", "transmit",
                 "on_head_of_queue", "take_pause", "on_watchdog", "release", "take_inbox"):  # fmt: skip
        monkeypatch.setattr(loop, name, lambda state, *given, name=name: called.append((name, *given)))
    monkeypatch.setattr(loop, "on_timer", lambda state, q, qp, at, now: called.append(("on_timer", q, at, now)))
    heap = [Record(time=0, sequence=0, what=0) for _ in range(40)]
    clock = Record(
        heap=0, sequence=0, grow=0, lanes=0, inbox=0, message_events=0, open=1, stall_seen=0, free=1, now=0, kicks=0,
        events=0,
    )  # fmt: skip
    port = Record(busy=1, tx_wire=200, tx_slot=NONE, node=0, kicked=0, starved=6, backlog=2, paused=6)
    state = Record(
        heap=heap, clock=[clock], settings=[Record(vl_bits=1)], lane_time=[], port={3: port}, queued={3: 1000},
        qp=[Record(waking=1)] * 3, outlet={6: Record(credit=1), 7: Record(credit=5)}, node=[Record()], kick=[0] * 4,
        packet=[1], hold={7: Record(paused_until=100)},
    )  # fmt: skip
    for name, value in more.items():
        home = next(one for one in (clock, port) if hasattr(one, name))
        setattr(home, name, value)
    monkeypatch.setattr(events, "HEAP_MARGIN", 0)
    for time, kind, at, value in rows:
        events.push_heap(state, time, pack(kind, at, value))
    return state, clock, port, called


@plain
@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (QueueEvent.ARRIVE, 8, ("arrive", 3, 8, 100, False)),
        (QueueEvent.LATE_ARRIVE, 8, ("arrive", 3, 8, 100, True)),
        (QueueEvent.WAKE, 2, ("make_ready", 2)),
        (QueueEvent.TASK, 8, ("begin_task", 8, 100)),
        (QueueEvent.SENT, 2, ("on_sent", 2, 100)),
        (QueueEvent.RTO, 2, ("on_timeout", 2, 100)),
        (QueueEvent.CONTROL, 2, ("on_timer", 2, 3, 100)),
        (QueueEvent.PAUSE_END, 7, ("resume", 3, 7, 1, 100)),
        (QueueEvent.PAUSE_REFRESH, 7, ("refresh_pause", 7, 100)),
        (QueueEvent.HOQ, 7, ("on_head_of_queue", 7, 100)),
        (QueueEvent.PAUSE_TAKES, 15, ("take_pause", 3, 7, 1, 100)),
        (QueueEvent.PAUSE_TAKES, 14, ("take_pause", 3, 7, 0, 100)),
        (QueueEvent.WATCHDOG, 7, ("on_watchdog", 3, 7, 100)),
    ],
)
def test_each_event_has_its_rule(monkeypatch, kind, value, expected):
    state, clock, _, called = looping(monkeypatch, (100, kind, 3, value), stall_seen=1)
    assert loop.run(state, NEVER - 1, True, 10) == c.IDLE
    assert called == [expected]
    assert (clock.now, clock.events, clock.heap) == (100, 1, 0)
    moves = {QueueEvent.ARRIVE, QueueEvent.LATE_ARRIVE, QueueEvent.TASK, QueueEvent.PAUSE_TAKES, QueueEvent.WATCHDOG}
    assert clock.stall_seen == (kind not in moves)
    assert (state.qp[2].waking == 0) == (kind == QueueEvent.WAKE)


@plain
@pytest.mark.parametrize("slot", [NONE, 7])
def test_a_port_that_is_done_releases_its_buffer_and_tries_again(monkeypatch, slot):
    state, clock, port, called = looping(monkeypatch, (100, QueueEvent.TX_DONE, 3, 0), tx_slot=slot)
    assert loop.run(state, NEVER - 1, True, 10) == c.IDLE
    assert (port.busy, state.queued[3], port.kicked, clock.kicks) == (0, 800, 0, 0)
    assert called == ([("release", state.node[0], 7, 200, 100)] if slot != NONE else []) + [("transmit", 3, 100)]


@plain
@pytest.mark.parametrize(("busy", "backlog", "tries"), [(0, 2, True), (1, 2, False), (0, 0, False)])
def test_credits_that_come_back_are_those_of_a_lane(monkeypatch, busy, backlog, tries):
    from fabrictwin.kernel.packet.events import VL_SHIFT

    state, _, port, called = looping(
        monkeypatch, (100, QueueEvent.CREDITS, 3, 1 << VL_SHIFT | 66), busy=busy, backlog=backlog
    )
    loop.run(state, NEVER - 1, True, 10)
    assert (state.outlet[6].credit, state.outlet[7].credit, port.starved) == (1, 71, 4)
    assert called == ([("transmit", 3, 100)] if tries else [])


@plain
@pytest.mark.parametrize(("until", "paused", "resumes"), [(100, 2, True), (101, 2, False), (100, 4, False), (100, 1, False)])
def test_a_pause_ends_where_nobody_renewed_it(monkeypatch, until, paused, resumes):
    state, _, _, called = looping(monkeypatch, (100, QueueEvent.PAUSE_END, 3, 7), paused=paused)
    state.hold[7].paused_until = until
    loop.run(state, NEVER - 1, True, 10)
    assert bool(called) == resumes


@plain
def test_a_report_that_software_wants_ends_its_instant(monkeypatch):
    rows = [(100, QueueEvent.REPORT, 2, 8), (100, QueueEvent.REPORT, 2, 9), (101, QueueEvent.SENT, 0, 1)]
    for wanted, at in ((True, c.REACHED), (False, c.IDLE)):
        state, _, _, called = looping(monkeypatch, *rows, stall_seen=1)
        monkeypatch.setattr(loop, "on_report", lambda state, t, kind, w=wanted: called.append((t, kind)) or w)
        assert loop.run(state, NEVER - 1, True, 10) == at
        assert called[:2] == [(8, 2), (9, 2)]
        assert len(called) == (2 if wanted else 3)
        assert state.clock[0].stall_seen == 0


@plain
def test_a_run_ends_at_its_time_its_budget_or_its_last_task(monkeypatch):
    rows = [(10 * n, QueueEvent.SENT, 0, n) for n in range(1, 9)]
    state, clock, _, called = looping(monkeypatch, *rows)
    assert loop.run(state, 30, True, 99) == c.REACHED
    assert (len(called), clock.now, clock.events) == (3, 30, 3)
    assert loop.run(state, 99, True, 2) == c.SLICED
    assert (len(called), clock.now, clock.events) == (5, 50, 5)
    clock.open = 0
    assert loop.run(state, 99, True, 99) == c.FINISHED
    assert len(called) == 5
    assert loop.run(state, 60, False, 99) == c.REACHED
    clock.grow = c.GROW_HEAP
    assert loop.run(state, 99, False, 99) == c.GROW_HEAP
    assert (len(called), clock.grow) == (6, 0)
    clock.message_events = 1  # an instant that software is told of is finished first
    assert loop.run(state, 99, False, 1) == c.IDLE
    assert len(called) == 8
    state, clock, _, called = looping(monkeypatch, inbox=2)
    assert loop.run(state, 99, True, 99) == c.IDLE
    assert called == [("take_inbox",)]


@plain
@pytest.mark.parametrize(
    ("kind", "free", "seen", "lane", "stalls"),
    [
        (QueueEvent.PAUSE_END, 0, 0, NEVER, True),
        (QueueEvent.HOQ, 0, 0, NEVER, True),
        (QueueEvent.PAUSE_END, 1, 0, NEVER, False),  # no packet is anywhere
        (QueueEvent.PAUSE_END, 0, 1, NEVER, False),  # it was said before
        (QueueEvent.PAUSE_END, 0, 0, 900, False),  # a lane still has something
        (QueueEvent.SENT, 0, 0, NEVER, False),
    ],
)
def test_timers_alone_are_a_stall(monkeypatch, kind, free, seen, lane, stalls):
    state, clock, _, called = looping(monkeypatch, (100, kind, 3, 7), free=free, stall_seen=seen, lanes=2)
    state.lane_time = [NEVER, lane]
    assert (loop.run(state, 500, True, 10) == c.STALLED) == stalls
    assert (clock.heap, bool(called)) == ((1, False) if stalls else (0, True))
    assert clock.stall_seen == int(stalls or bool(seen))


@plain
def test_tasks_that_wait_for_nothing_begin_and_queue_pairs_are_looked_at_again(monkeypatch):
    started, ready = [], []
    monkeypatch.setattr(loop, "start", lambda state, t, now: started.append((t, now)))
    monkeypatch.setattr(loop, "make_ready", lambda state, q: ready.append(q))
    tasks = [Record(waits=w, status=s) for w, s in ((0, c.WAITING), (1, c.WAITING), (0, c.DONE), (0, c.WAITING))]
    loop.begin(Record(task=tasks), 1, 4, 70)
    assert started == [(3, 70)]
    loop.begin(Record(task=tasks), 0, 3, 70)
    assert started == [(3, 70), (0, 70)]
    loop.ready_all(Record(qp=[Record(posted_psn=n) for n in (0, 1, 5)]))
    assert [q for q in ready if q] == [1, 2]


# ---------------------------------------------------------------------- at the adapter


class Adapter:
    """Packet 9 at the receiving adapter of queue pair 3."""

    def __init__(self, monkeypatch, **more):
        self.seen: list[tuple] = []
        for name in ("forward", "consume", "deliver", "_refuse", "free_packet", "complete", "make_ready", "on_ack",
                     "on_nak", "on_cnp"):  # fmt: skip
            monkeypatch.setattr(receive, name, lambda state, *given, name=name: self.seen.append((name, *given)))
        monkeypatch.setattr(
            receive, "reply",
            lambda state, q, qp, kind, psn, sent, extra, flags: self.seen.append(("reply", kind, psn, sent, extra, flags)),
        )  # fmt: skip
        self.taken = True
        monkeypatch.setattr(receive, "_accept_in_order", lambda *given: self.taken)
        monkeypatch.setattr(receive, "_accept_any_order", lambda *given: self.taken)
        monkeypatch.setattr(receive, "accept_message", lambda *given: self.taken)
        monkeypatch.setattr(receive, "wants_cnps", lambda qp: qp.control == 1)
        self.packet = Record(qp=3, kind=c.DATA, marks=0, psn=8, sent_ps=60, slot=13, wire=4178, extra=NONE, hop=1, hop_end=1)
        self.qp = Record(
            mode=c.GO_BACK_N, hop_middle=4, hop_end=4, expected=8, naks=0, echo=0, control=1, next_cnp=0, cnps_sent=0,
            una=5, next_psn=9, inflight=4, failed=0, cnps_handled=0, progress_ps=0, retries=2, rnr_retries=2, rtt_ps=0,
        )  # fmt: skip
        for name, value in more.items():
            setattr(self.packet if hasattr(self.packet, name) else self.qp, name, value)
        self.clock = Record(delivered=0)
        self.state = Record(
            packet={9: self.packet}, qp={3: self.qp}, settings=[Record(cnp_ps=50)], clock=[self.clock], hop={4: 77}
        )

    def data(self, now=100):
        self.seen.clear()
        receive.on_data(self.state, 9, None, now)
        return [(name, *given) for name, *given in self.seen]


@plain
@pytest.mark.parametrize("mode", [c.GO_BACK_N, c.SELECTIVE])
@pytest.mark.parametrize("taken", [True, False])
def test_what_is_taken_is_delivered_and_frees_its_buffer(monkeypatch, mode, taken):
    made = Adapter(monkeypatch, mode=mode)
    made.taken = taken
    last = ("deliver", 9, made.qp, 100) if taken else ("_refuse", 9)
    assert made.data() == [("consume", 13, 4178, 100), last]


@plain
def test_what_goes_on_to_memory_keeps_the_adapter_s_buffer(monkeypatch):
    made = Adapter(monkeypatch, marks=c.ECN | c.LAST, control=0)
    made.qp.hop_end = 6
    assert made.data() == [("forward", 9, 77, None, 100)]
    assert (made.packet.marks, made.packet.hop, made.packet.hop_end) == (c.ARRIVED | c.LAST, 5, 6)
    made.taken = False
    assert [name for name, *_ in made.data()] == ["consume", "_refuse"]


@plain
@pytest.mark.parametrize(
    ("fate", "names"),
    [
        (receive.HELD, []),
        (receive.TAKEN, ["consume", "free_packet"]),
        (receive.TO_MEMORY, ["consume", "deliver"]),
        (0, ["consume", "_refuse"]),
    ],
)
def test_fates_of_a_message_s_packet(monkeypatch, fate, names):
    made = Adapter(monkeypatch, mode=c.CHANNEL)
    made.taken = fate
    assert [name for name, *_ in made.data()] == names
    assert made.clock.delivered == (fate == receive.TAKEN)


@plain
def test_a_trimmed_packet_is_asked_for_again(monkeypatch):
    made = Adapter(monkeypatch, kind=c.TRIM)
    assert made.data() == [("reply", c.NAK, 8, 60, 8, c.ECN), ("consume", 13, 4178, 100), ("_refuse", 9)]
    assert made.qp.naks == 1


@plain
def test_marks_are_echoed_and_notified_some_time_apart(monkeypatch):
    made = Adapter(monkeypatch, marks=c.ECN)
    assert made.data(100)[0] == ("reply", c.CNP, 8, 100, NONE, 0)
    assert (made.qp.echo, made.qp.next_cnp, made.qp.cnps_sent) == (c.ECN, 150, 1)
    assert made.data(149)[0][0] == "consume"
    assert made.data(150)[0][0] == "reply"
    made = Adapter(monkeypatch, marks=c.ECN, control=2)  # its sender wants none
    assert (made.data()[0][0], made.qp.echo) == ("consume", c.ECN)
    assert Adapter(monkeypatch).qp.echo == 0


@plain
def test_inside_a_host_memory_completes_both_sides(monkeypatch):
    made = Adapter(monkeypatch, mode=c.LOCAL)
    receive.on_memory(made.state, 9, 100)
    assert made.seen == [
        ("consume", 13, 4178, 100), ("deliver", 9, made.qp, 100), ("complete", made.qp, 100), ("make_ready", 3),
    ]  # fmt: skip
    assert (made.qp.expected, made.packet.extra, made.qp.una, made.qp.inflight) == (9, 9, 6, 3)
    made = Adapter(monkeypatch)
    receive.on_memory(made.state, 9, 100)
    assert [name for name, *_ in made.seen] == ["consume", "deliver"]
    assert (made.qp.expected, made.qp.una) == (8, 5)


@plain
@pytest.mark.parametrize(
    ("more", "una", "names"),
    [
        ({"kind": c.ACK, "psn": 7, "marks": c.ECN}, 7, ["complete", "on_ack"]),
        ({"kind": c.ACK, "psn": 5}, 5, []),
        ({"kind": c.NAK, "psn": 8, "extra": 7}, 7, ["complete", "on_nak"]),
        ({"kind": c.NAK, "psn": 5, "extra": 5}, 5, ["on_nak"]),
        ({"kind": c.RNR, "psn": 6, "extra": 6}, 6, ["complete", "on_nak"]),
        ({"kind": c.CNP}, 5, ["on_cnp"]),
        ({"kind": c.ACK, "psn": 7, "failed": 1}, 5, None),
    ],
)
def test_answers_at_the_sender(monkeypatch, more, una, names):
    made = Adapter(monkeypatch, **more)
    receive.on_reply(made.state, 9, 100)
    found = [name for name, *_ in made.seen]
    assert found[0] == "consume"
    assert found[-1] == "free_packet"
    assert found[1:-1] == ([*names, "make_ready"] if names is not None else [])
    assert made.qp.una == una
    moved = una > 5
    assert (made.qp.progress_ps, made.qp.retries, made.qp.rnr_retries) == ((100, 0, 0) if moved else (0, 2, 2))
    assert made.qp.rtt_ps == (40 if more["kind"] == c.ACK and names is not None else 0)
    assert made.qp.cnps_handled == (more["kind"] == c.CNP)
    by_name = {name: given for name, *given in made.seen}
    if "on_ack" in by_name:
        assert by_name["on_ack"][2:] == [2, c.ECN, 100]
    if "on_nak" in by_name:
        assert by_name["on_nak"][2:] == [more["kind"], more["psn"], 100]


@plain
def test_bytes_in_memory_complete_messages_in_order(monkeypatch):
    received, freed = [], []
    monkeypatch.setattr(receive, "receive_task", lambda state, t, time: received.append((t, time)))
    monkeypatch.setattr(receive, "free_packet", lambda state, p: freed.append(p))
    monkeypatch.setattr(receive, "pass_received", lambda state, qp, now: received.append(("passed", now)))
    tasks = [Record(psn_end=2, next=1), Record(psn_end=4, next=2), Record(psn_end=9, next=NONE)]
    qp = Record(in_memory=1, noted=0, receiving=0, dst=6)
    packet = Record(payload=700, extra=4)
    clock = Record(delivered=10, payload_delivered=100)
    state = Record(packet={9: packet}, clock=[clock], task=tasks, endpoint={6: Record(deliver_ps=30)})
    receive.deliver(state, 9, qp, 100)
    assert (received, qp.receiving, qp.in_memory) == ([(0, 130), (1, 130)], 2, 4)
    receive.deliver(state, 9, qp, 200)  # nothing new
    assert (len(received), freed, clock.delivered, clock.payload_delivered) == (2, [9, 9], 12, 1500)
    qp.noted, packet.extra = 1, 5
    receive.deliver(state, 9, qp, 300)
    receive.deliver(state, 9, qp, 400)
    assert (received[2:], qp.in_memory) == ([("passed", 300)], 5)


# ---------------------------------------------------------------------- buffers of a node


@plain
@pytest.mark.parametrize(
    ("limit", "kind", "trim", "room", "forwarded"),
    [
        (0, c.DATA, 150, True, (c.DATA, 4178, 1, 3)),
        (5000, c.DATA, 150, True, (c.DATA, 4178, 1, 3)),
        (4999, c.DATA, 150, True, (c.TRIM, 150, 2, 2)),
        (4999, c.ACK, 150, True, (c.ACK, 4178, 1, 3)),
        (4999, c.DATA, 0, True, None),
        (5000, c.DATA, 150, False, None),
    ],
)
def test_a_full_queue_trims_or_drops(monkeypatch, limit, kind, trim, room, forwarded):
    """822 bytes wait already."""
    seen = []
    for name in ("enqueue", "drop"):
        monkeypatch.setattr(buffer, name, lambda state, *given, name=name: seen.append((name, *given)))
    asked = []
    monkeypatch.setattr(
        buffer, "admit_shared", lambda state, node, slot, wire, now: asked.append((slot, wire, now)) or room
    )
    node = Record(traits=c.SHARED, port_start=4)
    packet = Record(kind=kind, wire=4178, payload=4096, sl=3, vl=0, slot=21)
    state = Record(
        packet={9: packet}, port={7: Record(sl2vl=0, traits=0), 5: Record(traits=0)}, sl2vl={(0, 3): 1},
        settings=[Record(vl_bits=2, trim_wire=trim, trim_vl=2)], count={7: Record(trims=0)},
        outlet={29: Record(limit=limit, queued=822)},
    )  # fmt: skip
    buffer.forward(state, 9, 7, node, 100)
    if forwarded is None:
        assert seen == [("drop", 9, 7, 100, False)]
        assert asked == ([] if not trim else [(21, 4178, 100)])
    else:
        assert seen == [("enqueue", 7, 9)]
        assert (packet.kind, packet.wire, packet.vl, packet.sl) == forwarded
        assert (state.count[7].trims, packet.payload) == ((1, 0) if forwarded[0] == c.TRIM else (0, 4096))
        assert asked == [(21, packet.wire, 100)]


@plain
def test_a_lane_is_chosen_by_level_and_where_told_by_input(monkeypatch):
    monkeypatch.setattr(buffer, "enqueue", lambda *given: None)
    for traits, slot, lane in ((0, 21, 1), (c.BY_INPUT, 16, 1), (c.BY_INPUT, 21, 2), (c.BY_INPUT, 27, 3)):
        packet = Record(kind=c.DATA, wire=10, sl=3, vl=0, slot=slot)
        state = Record(
            packet={9: packet}, port={7: Record(sl2vl=10, traits=traits)}, settings=[Record(vl_bits=2)],
            sl2vl={(10, 3): 1, (11, 3): 2, (12, 3): 3},
        )  # fmt: skip
        buffer.forward(state, 9, 7, Record(traits=0, port_start=4), 100)
        assert packet.vl == lane


@plain
def test_a_credit_link_s_packets_have_room_already(monkeypatch):
    seen = []
    monkeypatch.setattr(buffer, "enqueue", lambda state, at, p: seen.append(p))
    monkeypatch.setattr(buffer, "admit_shared", lambda *given: False)
    monkeypatch.setattr(buffer, "drop", lambda *given: seen.append("drop"))
    for traits in (c.CREDIT, 0):
        state = Record(
            packet={9: Record(kind=c.DATA, wire=10, sl=3, slot=21)}, sl2vl={(0, 3): 1}, settings=[Record(vl_bits=2)],
            port={7: Record(sl2vl=0, traits=0), 5: Record(traits=traits)}, outlet={29: Record(limit=0)},
        )  # fmt: skip
        buffer.forward(state, 9, 7, Record(traits=c.SHARED, port_start=4), 100)
    assert seen == [9, "drop"]


@plain
@pytest.mark.parametrize(
    ("capacity", "traits", "name"),
    [(9, 0, "return_credits"), (9, c.SHARED, "return_credits"), (0, c.SHARED, "release_shared"),
     (0, c.SHARED | c.CONFIGURED, "release_configured"), (0, 0, None), (0, c.CONFIGURED, None)],
)  # fmt: skip
def test_a_buffer_is_released_as_it_was_taken(monkeypatch, capacity, traits, name):
    seen = []
    for one in ("return_credits", "release_shared", "release_configured"):
        monkeypatch.setattr(buffer, one, lambda *given, one=one: seen.append(one))
    buffer.release(Record(inlet={21: Record(capacity=capacity)}), Record(traits=traits), 21, 10, 100)
    assert seen == ([name] if name else [])
    seen.clear()
    for traits_ in (c.CREDIT, 0):
        buffer.consume(Record(port={5: Record(traits=traits_)}, settings=[Record(vl_bits=2)]), 21, 10, 100)
    assert seen == ["return_credits"]


@plain
@pytest.mark.parametrize("kind", [c.DATA, c.TRIM, c.ACK])
@pytest.mark.parametrize(("held", "slot"), [(True, 21), (True, NONE), (False, 21)])
def test_a_dropped_packet_is_counted_and_gives_back_what_it_held(monkeypatch, kind, held, slot):
    seen = []
    for name in ("release", "free_packet", "lose_message"):
        monkeypatch.setattr(buffer, name, lambda state, *given, name=name: seen.append((name, *given)))
    clock, count, node = Record(dropped=0, lost_control=0), Record(discards=0), Record()
    state = Record(
        packet={9: Record(kind=kind, qp=0, slot=slot, wire=10)}, clock=[clock], qp=[Record(noted=1)], count={7: count},
        node=[node], port={7: Record(node=0)},
    )  # fmt: skip
    buffer.drop(state, 9, 7, 100, held)
    data = kind != c.ACK
    assert (clock.dropped, clock.lost_control, count.discards) == (int(data), int(not data), 1)
    released = [("release", node, 21, 10, 100)] if held and slot != NONE else []
    assert seen == ([("lose_message", 9)] if data else []) + released + [("free_packet", 9)]


@plain
def test_queues_keep_their_order_and_their_peak(monkeypatch):
    kicked = []
    monkeypatch.setattr(buffer, "kick", lambda state, at: kicked.append(at))
    port = Record(queue_width=1, busy=0, backlog=0, node=0)
    outlet = Record(head=NONE, tail=NONE, queued=0, peak=250)
    rows = {p: Record(vl=1, wire=100 * p, next=5, slot=NONE) for p in (1, 2)}
    state = Record(port={7: port}, packet=rows, settings=[Record(vl_bits=1)], outlet={15: outlet}, queued={7: 1000})
    buffer.enqueue(state, 7, 1)
    port.busy = 1
    buffer.enqueue(state, 7, 2)
    assert (outlet.head, outlet.tail, rows[1].next, rows[2].next) == (1, 2, 2, NONE)
    assert (outlet.queued, outlet.peak, state.queued[7], port.backlog, kicked) == (300, 300, 1300, 2, [7])


@plain
def test_inputs_of_a_node_have_queues_of_their_own(monkeypatch):
    monkeypatch.setattr(buffer, "kick", lambda state, at: None)
    port = Record(queue_width=3, queue_start=40, busy=0, backlog=0, node=0)
    outlet = Record(head=NONE, tail=NONE, queued=0, peak=0)
    slots = {1: 2 * 12 + 1, 2: 2 * 11, 3: 2 * 12, 4: NONE}  # by input: third, second, third port; from here
    rows = {p: Record(vl=1, wire=1, next=9, slot=slot) for p, slot in slots.items()}
    queue = {at: Record(head=NONE, tail=NONE, next=NONE) for at in range(40, 49)}
    state = Record(
        port={7: port}, packet=rows, settings=[Record(vl_bits=1)], outlet={15: outlet}, queued={7: 0}, queue=queue,
        node=[Record(port_start=10)],
    )  # fmt: skip
    for p in rows:
        buffer.enqueue(state, 7, p)
    held = {at: (one.head, one.tail) for at, one in queue.items() if one.head != NONE}
    assert held == {45: (1, 3), 44: (2, 2), 43: (4, 4)}
    assert (outlet.head, queue[45].next, queue[44].next, queue[43].next, outlet.tail) == (45, 44, 43, NONE, 43)


@plain
def test_a_pause_frame_stands_behind_other_pause_frames(monkeypatch):
    made = iter([4, 5, NONE])
    monkeypatch.setattr(buffer, "take_packet", lambda state: next(made))
    monkeypatch.setattr(buffer, "kick", lambda state, at: None)
    port, count = Record(control_head=NONE, control_tail=NONE), Record(pause_tx=0)
    rows = {4: Record(next=NONE), 5: Record(next=NONE)}
    state = Record(
        settings=[Record(vl_bits=2, pause_wire=84)], port={5: port}, packet=rows, queued={5: 1000}, count={5: count}
    )
    for xoff in (1, 0, 1):
        buffer.send_pause(state, 22, xoff)
    assert (port.control_head, port.control_tail, rows[4].next) == (4, 5, 5)
    assert [(one.kind, one.qp, one.dst, one.vl, one.psn, one.wire, one.payload) for one in rows.values()] == [
        (c.PAUSE, NONE, NONE, 2, 1, 84, 0), (c.PAUSE, NONE, NONE, 2, 0, 84, 0),
    ]  # fmt: skip
    assert (state.queued[5], count.pause_tx) == (1168, 1)


# ---------------------------------------------------------------------- configured ports


class Configured:
    """A configured inlet of 1,000 bytes of its own, a pool of 10,000 at alpha 1/2, cells of 256, 512 of headroom."""

    def __init__(self, monkeypatch, **more):
        self.pauses: list[tuple[int, int]] = []
        monkeypatch.setattr(buffer, "send_pause", lambda state, slot, xoff: self.pauses.append((slot, xoff)))
        monkeypatch.setattr(buffer, "push_heap", lambda *given: None)
        self.inlet = Record(held=0, headroom=0, headroom_limit=512, xoff=0, refresh=0)
        self.rule = Record(reserve=1024, sends=1, threshold=NONE, alpha_q=128, most_headroom=0, resume=256)
        self.node = Record(shared_limit=10_240, shared_used=0, shared_peak=0)
        for name, value in more.items():
            setattr(next(one for one in (self.rule, self.inlet) if hasattr(one, name)), name, value)
        ports = {5: Record(cell=256, frame=0, forwards=0), 7: Record(cell=1, frame=0, forwards=0)}
        self.queue = Record(storm=0, storm_drops=0)
        self.state = Record(
            settings=[Record(vl_bits=2, gap=20)], port_qos=ports, slot_qos={29: self.queue, 21: self.rule},
            inlet={21: self.inlet}, port={5: Record(ps_q=80 << 20)},
        )  # fmt: skip

    def admit(self, wire):
        return buffer.admit_configured(self.state, self.node, Record(slot=21, wire=wire), 7, 1, 50)

    @property
    def sums(self):
        return self.inlet.held, self.node.shared_used, self.inlet.headroom


@plain
@pytest.mark.parametrize(("cell", "wire", "size"), [(256, 276, 256), (256, 277, 512), (1, 277, 257), (0, 277, 257), (2, 277, 258)])
def test_a_configured_buffer_counts_whole_cells_without_the_gap(cell, wire, size):
    state = Record(settings=[Record(gap=20, vl_bits=2)], port_qos={5: Record(cell=cell)})
    assert buffer.cell_bytes(state, 21, wire) == size


@plain
def test_a_configured_buffer_fills_from_its_reserve_to_its_headroom(monkeypatch):
    made = Configured(monkeypatch)
    assert made.admit(1024 + 20)
    assert made.sums == (1024, 0, 0)
    assert made.admit(3000)  # 3,072 in cells
    assert made.sums == (4096, 3072, 0)
    assert (made.pauses, made.node.shared_peak) == ([], 3072)
    assert made.admit(276)  # below (10,240 - 3,072) / 2 = 3,584 before, and after
    assert made.admit(300)  # crosses 3,456: the peer is told, the packet still goes there
    assert (made.sums, made.pauses) == ((4864, 3840, 0), [(21, 1)])
    assert made.admit(256)  # and then the headroom
    assert made.admit(276)
    assert not made.admit(30)
    assert (made.sums, made.rule.most_headroom, len(made.pauses)) == ((4864, 3840, 512), 512, 1)
    buffer.release_configured(made.state, made.node, 21, 276)
    assert made.sums == (4864, 3840, 256)
    buffer.release_configured(made.state, made.node, 21, 276)
    assert (made.sums, made.inlet.xoff) == ((4864, 3840, 0), 1)
    # over + 256 to resume at most (10,240 - used) / 2: 3,328 leaves 3,456, so that 3,072 fits
    buffer.release_configured(made.state, made.node, 21, 276 + 256)
    assert (made.sums, made.inlet.xoff) == ((4352, 3328, 0), 1)
    buffer.release_configured(made.state, made.node, 21, 276)
    assert (made.sums, made.inlet.xoff, made.pauses[-1]) == ((4096, 3072, 0), 0, (21, 0))


@plain
def test_a_static_threshold_and_a_priority_that_sends_no_pause(monkeypatch):
    made = Configured(monkeypatch, threshold=512, sends=0)
    assert buffer.configured_threshold(made.node, made.rule) == 512
    assert made.admit(1024 + 512 + 20)
    assert made.admit(276)
    assert (made.pauses, made.sums) == ([], (1536, 512, 256))
    made = Configured(monkeypatch, threshold=0)
    assert buffer.configured_threshold(made.node, made.rule) == 0
    assert made.admit(1024 + 20)
    assert made.admit(276)
    assert (made.sums, made.pauses) == ((1024, 0, 256), [(21, 1)])
    made = Configured(monkeypatch, threshold=NONE)
    made.node.shared_used = 10_240  # the pool is empty
    assert not made.admit(1024 + 256 + 20)  # more than the headroom
    assert made.admit(1024 + 20)
    assert made.admit(276)
    assert made.sums == (1024, 10_240, 256)


@plain
@pytest.mark.parametrize(("storm", "forwards", "taken"), [(0, 0, True), (1, 0, False), (1, 1, True)])
def test_a_queue_in_a_storm_takes_nothing_unless_its_watchdog_sends_on(monkeypatch, storm, forwards, taken):
    made = Configured(monkeypatch)
    made.queue.storm, made.state.port_qos[7].forwards = storm, forwards
    assert bool(made.admit(100)) == taken
    assert made.queue.storm_drops == (not taken)


@plain
@pytest.mark.parametrize(
    ("traits", "came", "own", "lane"),
    [(c.RULED, 2, 3, 6), (c.RULED, NONE, 3, 7), (c.RULED, NONE, NONE, 1), (0, 2, 3, 1)],
)
def test_a_configured_node_sends_by_the_map_of_the_port_that_a_packet_came_by(traits, came, own, lane):
    state = Record(
        settings=[Record(vl_bits=2)], port_qos={5: Record(queue_row=came), 7: Record(queue_row=own)},
        sl2vl={(2, 4): 6, (3, 4): 7},
    )  # fmt: skip
    found = buffer.configured_lane(state, Record(traits=traits), Record(slot=21, sl=4), 7, 1)
    assert found == lane


@plain
@pytest.mark.parametrize(("row", "slot"), [(2, 26), (0, 25), (NONE, 27)])
def test_a_configured_port_classifies_what_comes_in(row, slot):
    state = Record(settings=[Record(vl_bits=2)], port_qos={6: Record(group_row=row)}, sl2vl={(2, 4): 2, (0, 4): 1})
    assert pauses.classified(state, 6, Record(vl=3, sl=4)) == slot


@plain
@pytest.mark.parametrize(
    ("xoff", "obeys", "storm", "response", "effect"),
    [(1, 0b100, 0, 0, "now"), (1, 0b100, 0, 70, "later"), (1, 0b011, 0, 0, None), (1, 0b100, 1, 0, None),
     (0, 0b100, 0, 0, "now"), (0, 0b100, 0, 70, "later")],
)  # fmt: skip
def test_a_configured_port_obeys_its_priorities_after_its_response_time(monkeypatch, xoff, obeys, storm, response, effect):
    seen = []
    monkeypatch.setattr(pauses, "push_heap", lambda state, time, what: seen.append((time, what)))
    monkeypatch.setattr(pauses, "take_pause", lambda state, *given: seen.append(given))
    monkeypatch.setattr(pauses, "free_packet", lambda state, p: None)
    queue = Record(storm=storm, last_pause=5)
    state = Record(
        packet={9: Record(vl=2, psn=xoff)}, settings=[Record(vl_bits=2)], count={6: Record(pause_rx=0)},
        port={6: Record(traits=c.RULED)}, port_qos={6: Record(obeys=obeys, response_ps=response)}, slot_qos={26: queue},
    )  # fmt: skip
    pauses.on_pause(state, 6, 9, 100)
    expected = {"now": [(6, 26, xoff, 100)], "later": [(170, pack(QueueEvent.PAUSE_TAKES, 6, 52 | xoff))], None: []}
    assert seen == expected[effect]
    assert (queue.last_pause, state.count[6].pause_rx) == ((100, 1) if xoff else (5, 0))


class Watched:
    """Lane 2 of port 6: paused since 100, a watchdog of 1,000 that restores after 300."""

    def __init__(self, monkeypatch, **more):
        self.events: list[int] = []
        self.kicked: list[int] = []
        self.dropped: list[int] = []
        monkeypatch.setattr(pauses, "push_heap", lambda state, time, what: self.events.append(time))
        monkeypatch.setattr(pauses, "kick", lambda state, at: self.kicked.append(at))
        monkeypatch.setattr(pauses, "drop", lambda state, p, at, now, held: self.dropped.append((p, held)))
        self.rule = Record(detection_ps=1000, restoration_ps=300, forwards=0)
        self.queue = Record(storm=0, watching=1, last_pause=100, storms=0, storm_drops=0)
        self.port = Record(paused=0b110, queue_width=1)
        self.outlet = Record(last_tx=0, queued=300, head=3, tail=4)
        self.hold = Record(paused_since=100, pause_ps=7)
        for name, value in more.items():
            homes = (self.rule, self.queue, self.port, self.outlet, self.hold)
            setattr(next(one for one in homes if hasattr(one, name)), name, value)
        self.state = Record(
            port_qos={6: self.rule}, slot_qos={26: self.queue}, port={6: self.port}, outlet={26: self.outlet},
            settings=[Record(vl_bits=2)], hold={26: self.hold}, queued={6: 900},
            packet={3: Record(next=4, wire=100), 4: Record(next=NONE, wire=200)},
        )  # fmt: skip

    def look(self, now):
        self.events.clear()
        pauses.on_watchdog(self.state, 6, 26, now)
        return self.events


@plain
@pytest.mark.parametrize("forwards", [0, 1])
def test_a_lane_paused_for_too_long_is_a_storm_until_no_pause_comes(monkeypatch, forwards):
    made = Watched(monkeypatch, forwards=forwards)
    assert made.look(1099) == [1100]
    assert made.queue.storm == 0
    assert made.look(1100) == [1400]
    assert (made.queue.storm, made.queue.storms, made.port.paused, made.hold.pause_ps) == (1, 1, 0b010, 1007)
    assert (made.dropped, made.queue.storm_drops) == (([], 0) if forwards else ([(3, True), (4, True)], 2))
    assert (made.outlet.queued, made.state.queued[6]) == ((300, 900) if forwards else (0, 600))
    assert made.kicked == [6]
    made.queue.last_pause = 1350
    assert made.look(1400) == [1650]
    assert made.look(1650) == []
    assert (made.queue.storm, made.queue.watching, made.kicked) == (0, 0, [6, 6])


@plain
def test_a_watchdog_counts_from_the_last_packet_and_needs_one_that_waits(monkeypatch):
    assert Watched(monkeypatch, last_tx=600).look(1100) == [1600]
    assert Watched(monkeypatch, queued=0).look(1100) == [2100]
    made = Watched(monkeypatch, paused=0b010)
    assert made.look(1100) == []
    assert (made.queue.watching, made.queue.storm) == (0, 0)


@plain
@pytest.mark.parametrize(("detection", "watching", "watches"), [(1000, 0, True), (0, 0, False), (1000, 1, False)])
def test_a_watchdog_starts_with_a_pause(monkeypatch, detection, watching, watches):
    made = Watched(monkeypatch, detection_ps=detection, watching=watching)
    pauses.watch(made.state, 6, 26, 500)
    assert made.events == ([1500] if watches else [])
    assert made.queue.watching == (watching or watches)


@plain
def test_an_adapter_that_is_stuck_pauses_without_end(monkeypatch):
    seen = []
    for name in ("set_xoff", "send_pause", "kick", "transmit_kicked"):
        monkeypatch.setattr(pauses, name, lambda state, *given, name=name: seen.append((name, *given)))
    inlet = Record(xoff=0)
    state = Record(inlet={26: inlet}, settings=[Record(vl_bits=2)])
    pauses.force_pause(state, 26, True, 100)
    assert (inlet.xoff, seen) == (c.STUCK, [("set_xoff", 26, 100), ("kick", 6), ("transmit_kicked", 100)])
    seen.clear()
    pauses.force_pause(state, 26, False, 200)
    assert (inlet.xoff, seen) == (0, [("send_pause", 26, 0), ("kick", 6), ("transmit_kicked", 200)])
    assert transmit.STARVED == -2
