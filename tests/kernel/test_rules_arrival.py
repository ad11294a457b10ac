"""Rules of packets that arrive, on state of a few lines: at a port, an adapter, in memory; lifetimes, the loop."""

from __future__ import annotations

import pytest
from support.plain_kernel import NEVER, NONE, Record, plain

from fabrictwin.kernel.packet import loop
from fabrictwin.kernel.packet.events import QueueEvent, pack
from fabrictwin.kernel.packet.state import constants as c
from fabrictwin.kernel.packet.transport import receive

PORT, NODE, FEEDER, OUT = 6, 2, 40, 7


class Arriving:
    """Packet 9 comes in at a port of two lanes; what becomes of it is noted by name."""

    def __init__(self, monkeypatch, *, wire=128, **more):
        self.seen: list[tuple] = []
        for name in ("on_memory", "on_data", "on_reply", "lose", "forward", "drop", "wait_for_rest",
                     "return_credits",
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
            port={PORT: self.port, FEEDER: self.feeder, OUT: self.out}, packet={9: self.packet},
            node={NODE: self.node},
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
    """A link that hands over the first bits: the rest is waited for once."""
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
    for name in ("arrive", "make_ready", "begin_task", "on_sent", "on_timeout", "resume", "refresh_pause",
                 "transmit",
                 "on_head_of_queue", "take_pause", "on_watchdog", "release", "take_inbox"):  # fmt: skip
        monkeypatch.setattr(loop, name, lambda state, *given, name=name: called.append((name, *given)))
    monkeypatch.setattr(loop, "on_timer", lambda state, q, qp, at, now: called.append(("on_timer", q, at, now)))
    heap = [Record(time=0, sequence=0, what=0) for _ in range(40)]
    clock = Record(
        heap=0, sequence=0, grow=0, lanes=0, inbox=0, message_events=0, open=1, stall_seen=0, free=1, now=0,
        kicks=0,
        events=0,
    )  # fmt: skip
    port = Record(busy=1, tx_wire=200, tx_slot=NONE, node=0, kicked=0, starved=6, backlog=2, paused=6)
    state = Record(
        heap=heap, clock=[clock], settings=[Record(vl_bits=1)], lane_time=[], port={3: port}, queued={3: 1000},
        qp=[Record(waking=1)] * 3, outlet={6: Record(credit=1), 7: Record(credit=5)}, node=[Record()],
        kick=[0] * 4,
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
    moves = {
        QueueEvent.ARRIVE,
        QueueEvent.LATE_ARRIVE,
        QueueEvent.TASK,
        QueueEvent.PAUSE_TAKES,
        QueueEvent.WATCHDOG,
    }
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
@pytest.mark.parametrize(
    ("until", "paused", "resumes"), [(100, 2, True), (101, 2, False), (100, 4, False), (100, 1, False)]
)
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
        monkeypatch.setattr(
            loop, "on_report", lambda state, t, kind, w=wanted, said=called: said.append((t, kind)) or w
        )
        assert loop.run(state, NEVER - 1, True, 10) == at
        assert called[:2] == [(8, 2), (9, 2)]
        assert len(called) == (2 if wanted else 3)
        assert state.clock[0].stall_seen == 0


@plain
def test_a_run_is_cut_off_behind_what_software_reads_later_but_not_within_an_instant_that_stops_it(monkeypatch):
    rows = [(100, QueueEvent.REPORT, 1, 8), (100, QueueEvent.SENT, 0, 1), (100, QueueEvent.SENT, 0, 2)]
    for stops, status, happened in ((False, c.SLICED, 1), (True, c.REACHED, 3)):
        state, clock, _, _ = looping(monkeypatch, *rows, (120, QueueEvent.SENT, 0, 3))

        def report(state, t, kind, stops=stops, clock=clock):
            clock.message_events += 1
            return stops

        monkeypatch.setattr(loop, "on_report", report)
        assert loop.run(state, NEVER - 1, True, 1) == status
        assert clock.events == happened


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
            lambda state, q, qp, kind, psn, sent, extra, flags: self.seen.append(("reply", kind, psn, sent,
            extra, flags)),
        )  # fmt: skip
        self.taken = True
        monkeypatch.setattr(receive, "_accept_in_order", lambda *given: self.taken)
        monkeypatch.setattr(receive, "_accept_any_order", lambda *given: self.taken)
        monkeypatch.setattr(receive, "accept_message", lambda *given: self.taken)
        monkeypatch.setattr(receive, "wants_cnps", lambda qp: qp.control == 1)
        self.packet = Record(
            qp=3, kind=c.DATA, marks=0, psn=8, sent_ps=60, slot=13, wire=4178, extra=NONE, hop=1, hop_end=1
        )
        self.qp = Record(
            mode=c.GO_BACK_N, ack_every=1, hop_middle=4, hop_end=4, expected=8, naks=0, echo=0, control=1,
            next_cnp=0, cnps_sent=0,
            una=5, next_psn=9, inflight=4, failed=0, cnps_handled=0, progress_ps=0, retries=2, rnr_retries=2,
            rtt_ps=0,
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
    qp = Record(in_memory=1, noted=0, dst=6)
    packet = Record(payload=700, extra=4, sent_ps=0)  # of the first message, and fills the gap before the second
    clock = Record(delivered=10, payload_delivered=100)
    state = Record(packet={9: packet}, clock=[clock], task=tasks, endpoint={6: Record(deliver_ps=30)})
    receive.deliver(state, 9, qp, 100)
    assert (received, qp.in_memory) == ([(0, 130), (1, 130)], 4)
    receive.deliver(state, 9, qp, 200)  # nothing new
    assert (len(received), freed, clock.delivered, clock.payload_delivered) == (2, [9, 9], 12, 1500)
    qp.noted, packet.extra = 1, 5
    receive.deliver(state, 9, qp, 300)
    receive.deliver(state, 9, qp, 400)
    assert (received[2:], qp.in_memory) == ([("passed", 300)], 5)
