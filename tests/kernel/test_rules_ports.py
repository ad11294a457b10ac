"""Rules of packets, pauses, ports and taps one by one, on state of a few lines."""

from __future__ import annotations

import pytest
from support.plain_kernel import NEVER, NONE, Record, plain

from fabrictwin.base.grouped import flat
from fabrictwin.kernel.packet import loop, machine, tap
from fabrictwin.kernel.packet.connection import Connection
from fabrictwin.kernel.packet.events import KIND_SHIFT, PORT_MASK, PORT_SHIFT, VALUE_MASK, QueueEvent
from fabrictwin.kernel.packet.state import constants, packets
from fabrictwin.kernel.packet.switch import pauses, transmit
from fabrictwin.kernel.packet.transport import replies


@plain
def test_numbers_are_drawn_by_xorshift():
    """Marsaglia 2003, section 4: from 2463534242 comes 723471715."""
    clock = Record(random=2463534242)
    assert packets.draw(clock) == clock.random == 723471715
    drawn = [packets.draw(clock) for _ in range(2000)]
    assert len(set(drawn)) == 2000
    assert all(0 < x < 2**32 for x in drawn)


@plain
@pytest.mark.parametrize("value", [0, 1, 0x12345678, 2**32 - 1, 2**40 + 5])
def test_hashes_are_two_rounds(value):
    mask = 2**32 - 1
    h = value & mask
    for _ in range(2):
        h = ((h >> 16) ^ h) * 0x45D9F3B & mask
    assert packets.mix(value) == (h >> 16) ^ h


@plain
def test_a_port_is_kicked_once():
    state = Record(port=[Record(kicked=0), Record(kicked=0)], clock=[Record(kicks=0)], kick=[9, 9])
    for at in (1, 1, 0):
        packets.kick(state, at)
    assert (state.kick, state.clock[0].kicks) == ([1, 0], 2)


@plain
def test_columns_of_a_tap():
    names = [
        "DIRECTION",
        "KIND",
        "QP",
        "PSN",
        "PAYLOAD",
        "WIRE",
        "MARKS",
        "SL",
        "VL",
        "EXTRA",
        "START",
        "SIZE",
        "MESSAGE",
        "ENTROPY",
    ]
    assert [getattr(tap, name) for name in names] == list(range(2, 16))


@plain
def test_a_reply_goes_the_receiver_s_way(monkeypatch):
    queued: list[tuple[int, int]] = []
    monkeypatch.setattr(replies, "take_packet", lambda state: 3)
    monkeypatch.setattr(replies, "enqueue", lambda state, at, p: queued.append((at, p)))
    packet = Record()
    settings = Record(cnp_wire=77, cnp_sl=NONE)
    state = Record(
        packet={3: packet}, settings=[settings], endpoint={8: Record(port=21)}, port={21: Record(sl2vl=4)},
        sl2vl={(4, 6): 5},
    )  # fmt: skip
    qp = Record(src=5, dst=8, ack_bytes=62, ack_sl=2, ack_vl=3, ack_entropy=99, ack_hop=11, ack_hop_end=13)
    replies.reply(state, 6, qp, 1, 40, 1000, 41, 1)
    assert vars(packet) == {
        "kind": 1, "qp": 6, "psn": 40, "sent_ps": 1000, "extra": 41, "marks": 1, "dst": 5, "wire": 62,
        "payload": 0,
        "sl": 2, "vl": 3, "entropy": 99, "hop": 11, "hop_end": 13,
    }  # fmt: skip
    assert queued == [(21, 3)]
    replies.reply(state, 6, qp, 4, 40, 1000, 41, 0)
    assert (packet.wire, packet.marks, packet.sl, packet.vl) == (77, 0, 2, 3)
    settings.cnp_sl = 6  # notifications have a level of their own, and the lane that the port gives it
    replies.reply(state, 6, qp, 4, 40, 1000, 41, 0)
    assert (packet.sl, packet.vl) == (6, 5)
    replies.reply(state, 6, qp, 1, 40, 1000, 41, 0)
    assert (packet.sl, packet.vl) == (2, 3)


def pausing(monkeypatch, scheduled):
    def push(state, time, what):
        scheduled.append((time, what >> KIND_SHIFT, (what >> PORT_SHIFT) & PORT_MASK, what & VALUE_MASK))

    monkeypatch.setattr(pauses, "push_heap", push)
    monkeypatch.setattr(pauses, "kick", lambda state, at: scheduled.append(("kick", at)))
    monkeypatch.setattr(pauses, "free_packet", lambda state, p: None)
    port = Record(paused=0, ps_q=80 << 20, traits=0, rx_traits=0, node=0)
    hold = Record(paused_since=NONE, paused_until=0, pause_ps=0)
    packet = Record(vl=1, psn=1, kind=6, slot=NONE, wire=84)
    state = Record(
        packet={0: packet}, port={3: port}, hold={7: hold}, settings=[Record(vl_bits=1)],
        inlet={7: Record(held=0)},
        count={3: Record(pause_rx=0, errors=0)},
    )  # fmt: skip
    return state, port, hold, packet


@plain
def test_a_pause_frame_holds_its_priority_until_it_lapses(monkeypatch):
    seen: list = []
    state, port, hold, packet = pausing(monkeypatch, seen)
    quanta = 65535 * 64 * 80
    pauses.on_pause(state, 3, 0, 100)
    assert (port.paused, hold.paused_since, hold.paused_until) == (2, 100, 100 + quanta)
    assert seen == [(100 + quanta, QueueEvent.PAUSE_END, 3, 7)]
    pauses.on_pause(state, 3, 0, 500)
    assert (hold.paused_since, hold.paused_until, state.count[3].pause_rx) == (100, 500 + quanta, 2)
    packet.psn = 0
    pauses.on_pause(state, 3, 0, 900)
    assert (port.paused, hold.pause_ps, seen[-1]) == (0, 800, ("kick", 3))
    pauses.on_pause(state, 3, 0, 950)
    assert (hold.pause_ps, len(seen)) == (800, 3)


@plain
@pytest.mark.parametrize("storm", [0, 1])
def test_a_pause_that_was_under_way_does_not_hold_what_the_watchdog_let_go(monkeypatch, storm):
    seen: list = []
    state, port, _, _ = pausing(monkeypatch, seen)
    port.traits = constants.RULED
    state.slot_qos = {7: Record(storm=storm)}
    monkeypatch.setattr(pauses, "watch", lambda state, at, slot, now: None)
    pauses.take_pause(state, 3, 7, 1, 100)
    assert (port.paused, len(seen)) == ((0, 0) if storm else (2, 1))


@plain
def test_a_pause_frame_goes_no_further(monkeypatch):
    seen: list = []
    state, port, _, packet = pausing(monkeypatch, seen)
    loop.arrive(state, 3, 0, 100, False)
    assert (port.paused, packet.slot) == (2, 7)


@plain
@pytest.mark.parametrize(("traits", "size"), [(0, 4158), (8, 4096)])
def test_the_rest_of_a_packet_takes_its_bytes_at_the_feeder_s_rate(monkeypatch, traits, size):
    seen: list = []
    monkeypatch.setattr(loop, "push_heap", lambda state, time, what: seen.append((time, what >> KIND_SHIFT)))
    ports = {3: Record(peer=4), 4: Record(traits=traits, ps_q=20 << 20)}
    state = Record(port=ports, packet={9: Record(wire=4158, payload=4096)})
    loop.wait_for_rest(state, 3, 9, 1000)
    assert seen == [(1000 + 20 * size, QueueEvent.LATE_ARRIVE)]


def sending(monkeypatch, **more):
    outlet = Record(head=5, tail=5, ready_head=NONE, credit=100, kmax=0, kmin=0, queued=4158, deficit=0, last_tx=0)
    port = Record(backlog=1, paused=0, starved=0, traits=0, queue_width=1, strict=0, wrr=0)
    packet = Record(next=NONE, wire=4158, kind=0, marks=0)
    hold = Record(hoq_pending=0, quantum=0)
    state = Record(
        settings=[Record(vl_bits=0, hoq_ps=0, pmax_q=11)], slot_qos=[Record(pmax_q=22)], outlet=[outlet],
        packet={5: packet}, clock=[Record()], hold=[hold], count=[Record(ecn_marks=0)], queued=[4158],
    )  # fmt: skip
    for name, value in more.items():
        home = next(one for one in (outlet, port, packet, state.settings[0]) if hasattr(one, name))
        setattr(home, name, value)
    return state, port, outlet, packet


@plain
@pytest.mark.parametrize(("traits", "chance"), [(0, 11), (constants.RULED, 22)])  # all ports', or its own
@pytest.mark.parametrize(("marked", "kind"), [(True, 0), (False, 0), (True, 1)])
def test_data_is_marked_as_it_leaves(monkeypatch, marked, kind, traits, chance):
    chances: list[int] = []
    monkeypatch.setattr(transmit, "mark", lambda state, clock, outlet, pmax_q: chances.append(pmax_q) or marked)
    state, port, outlet, packet = sending(monkeypatch, kmax=10, kind=kind, marks=4, traits=traits)
    assert transmit.choose(state, 0, port, 70) == 5
    assert chances == ([chance] if kind == 0 else [])
    told = marked and kind == 0
    assert (packet.marks, state.count[0].ecn_marks) == (5 if told else 4, int(told))
    assert (outlet.head, outlet.queued, outlet.deficit, outlet.last_tx) == (NONE, 0, -4158, 70)
    assert transmit.choose(state, 0, port, 80) == NONE
    assert port.backlog == 0


@plain
def test_a_lane_without_credits_starves(monkeypatch, scheduled):
    state, port, outlet, _ = sending(monkeypatch, traits=1, credit=64, hoq_ps=500)
    assert transmit.choose(state, 0, port, 70) == NONE
    assert (port.starved, port.backlog, outlet.credit, state.hold[0].hoq_pending) == (1, 1, 64, 1)
    assert scheduled == [(570, QueueEvent.HOQ, 0, 0)]
    outlet.credit, port.starved = 65, 0
    assert transmit.choose(state, 0, port, 80) == 5
    assert outlet.credit == 0
    state, port, _, _ = sending(monkeypatch, paused=1)
    assert transmit.choose(state, 0, port, 70) == NONE
    assert port.backlog == 1


@plain
@pytest.mark.parametrize("replays", [0, 1, 2])
def test_a_link_repairs_its_errors_for_a_round_trip_each(monkeypatch, replays):
    """One error in two of so many bytes: numbers below half of 2**32 ask for the packet again."""
    drawn = iter([2**31 - 1] * replays + [2**31])
    pushed: list[tuple[int, int]] = []
    monkeypatch.setattr(transmit, "draw", lambda clock: next(drawn))
    monkeypatch.setattr(transmit, "push", lambda state, lane, time, what: pushed.append((lane, time)))
    monkeypatch.setattr(
        transmit, "push_to_peer", lambda state, port, lane, time, what: pushed.append((lane, time))
    )
    monkeypatch.setattr(transmit, "choose", lambda state, at, port, now: 5)
    packet = Record(wire=1024, payload=1000, slot=8)
    port = Record(
        busy=0, control_head=NONE, wait_since=40, wait_ps=0, traits=32, ps_q=20 << 20, full_bytes=1024,
        ack_bytes=62,
        lane_tx_full=1, lane_arrive_full=2, lane_tx_ack=3, lane_arrive_ack=4, error_q=2**47 // 1024, arrive_ps=300,
        tx_bytes=0, tx_payload=0, tx_packets=0, peer=9, tx_slot=0, tx_wire=0,
    )  # fmt: skip
    state = Record(port={0: port}, packet={5: packet}, clock=[Record(hops=0)], count=[Record(replays=0)])
    transmit.transmit(state, 0, 100)
    took = 20 * 1024 + replays * (600 + 20 * 1024)
    assert state.count[0].replays == replays
    lanes = (1, 2) if not replays else (NONE, NONE)
    assert pushed == [(lanes[0], 100 + took), (lanes[1], 400)]
    assert (port.busy, port.tx_bytes, port.tx_payload, port.tx_packets, port.tx_slot) == (1, 1024, 1000, 1, 8)
    assert (port.wait_ps, port.wait_since, state.clock[0].hops) == (60, NONE, 1)


@plain
@pytest.mark.parametrize("drains", [True, False])
def test_a_tap_is_emptied(drains):
    rows: list[int] = []
    drain = (lambda table: rows.extend(table)) if drains else None
    made = Record(state=Record(clock=[Record(tapped=2)], tap=[7, 8, 9]), drain_tap=drain)
    machine.Machine.read_tap(made)
    machine.Machine.read_tap(made)
    assert (rows, made.state.clock[0].tapped) == ([7, 8] if drains else [], 0)


def test_a_queue_pair_has_nothing_limited_unless_it_is_said():
    made = flat(Connection(port=1, src=2, dst=3))
    zero = (
        "mode sl ack_sl first_header_bytes rto_ps rnr_ps reorder entropy ack_entropy control message_ps base_ps "
        "mtu_bytes service late_ps"
    )
    assert {name: int(made[name]) for name in zero.split()} == dict.fromkeys(zero.split(), 0)
    # RoCE: Ethernet 14 and 4, IP 20, UDP 8, BTH 12, ICRC 4, and 20 of preamble and gap; an AETH more
    assert (made["header_bytes"], made["ack_bytes"]) == (14 + 4 + 20 + 8 + 12 + 4 + 20, 86)
    assert tuple(made[name] for name in ("retry_limit", "rnr_limit", "ack_every", "receives")) == (7, 7, 1, NONE)
    assert (made["before"], made["after"], made["back"]) == ((), (), ())
    assert (made["window_bytes"], made["spray"], made["noted"]) == (NEVER, False, False)
