"""What the packet machine keeps between events: port totals, event lanes, buffers; and small rules of transport.

The rules are called as plain Python on records of a few fields, where kernels are not compiled, as those of
`test_packet_rules.py` are. The machine's own arrays are looked at in either mode.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace as Record

import numpy as np
import pytest
from numba import config
from support.packet_wiring import US, machine, roce, star
from support.plain_python import passes_as_plain_python

from fabrictwin.kernel.packet import loop
from fabrictwin.kernel.packet.state import build
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.switch import arbitration, buffer, transmit
from fabrictwin.kernel.packet.transport import message_receive, send

plain = pytest.mark.skipif(not config.DISABLE_JIT, reason="runs as plain Python, in a process of its own")


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="runs them already")
def test_as_plain_python():
    passes_as_plain_python(Path(__file__))


# ---------------------------------------------------------------------- links that go down and come back


def test_a_port_that_is_down_is_out_of_reach_once_and_comes_back_as_it_was():
    m = machine(star(3), roce(), [])
    before = m.state.queued.copy()
    for bps in (0, 0, -1):
        m.set_rate(1, bps)
        assert int(m.state.queued[1]) == int(before[1]) + s.OUT_OF_REACH
        assert int(m.state.port[1].traits) & s.DOWN
    assert int(m.state.port.rx_traits[int(m.state.port.peer[1])]) & s.DOWN
    for _ in range(2):
        m.set_rate(1, 200 * 10**9)
        assert m.state.queued.tolist() == before.tolist()
        assert not int(m.state.port[1].traits) & s.DOWN
    assert int(m.state.port[1].ps_q) == int(build.rate_to_q(200 * 10**9))


# ---------------------------------------------------------------------- event lanes


def test_lanes_are_twice_as_long_with_the_same_events_in_their_order():
    m = machine(star(3), roce(), [])
    lane, event = m.state.lane, m.state.event
    size = int(lane[0].mask) + 1
    expected = []
    for i in range(int(m.state.clock[0].lanes)):
        lane[i].head, lane[i].tail = size - 3 + i, size + 4 + i  # around the end of the ring
        for n in range(int(lane[i].head), int(lane[i].tail)):
            event[int(lane[i].first) + (n & int(lane[i].mask))].what = 100 * i + n
        expected.append([100 * i + n for n in range(int(lane[i].head), int(lane[i].tail))])
    grown = build.grow_lanes(m.state)
    assert len(grown.event) == 2 * len(event)
    found = []
    for i in range(int(m.state.clock[0].lanes)):
        assert int(grown.lane[i].mask) == 2 * size - 1
        assert int(grown.lane[i].first) == 2 * size * i
        places = np.arange(int(grown.lane[i].head), int(grown.lane[i].tail)) & int(grown.lane[i].mask)
        found.append(grown.event.what[int(grown.lane[i].first) + places].tolist())
    assert found == expected
    assert len(build.grow_heap(m.state).heap) == 2 * len(m.state.heap)


def test_memory_inside_a_host_has_no_headers_and_no_acknowledgements():
    configured = roce()
    m = machine(star(3), configured, [])
    m.state.port.traits[1] |= s.INTERNAL
    state = build.set_lanes(m.state, configured)
    frames = configured.frames
    frame = frames.mtu_bytes + frames.header_bytes
    full, ack = state.port.full_bytes.tolist(), state.port.ack_bytes.tolist()
    assert full[1] == frames.mtu_bytes
    assert ack[1] == -1
    assert {full[i] for i in range(len(full)) if i != 1} == {frame}
    assert {ack[i] for i in range(len(ack)) if i != 1} == {frames.ack_bytes}


# ---------------------------------------------------------------------- what a port takes


@plain
@pytest.mark.parametrize(
    ("into", "out", "taken"), [(0, 0, 1), (1000, 0, 1), (999, 0, 0), (0, 1000, 1), (0, 999, 0)]
)
def test_a_frame_as_long_as_a_port_takes_is_taken_and_a_longer_one_is_not(into, out, taken, monkeypatch):
    monkeypatch.setattr(buffer, "cell_bytes", lambda *_: 1000)
    rule = Record(reserve=5000, sends=0)
    inlet = Record(held=0)
    state = Record(
        settings=[Record(vl_bits=0, gap=20)],
        port_qos=[Record(frame=into, forwards=0), Record(frame=out, forwards=0)],
        slot_qos=[rule, Record(storm=0, storm_drops=0)],
        inlet=[inlet],
    )
    packet = Record(slot=0, wire=1020)  # a frame and the gap behind it
    node = Record(shared_used=0, shared_peak=0)
    assert bool(buffer.admit_configured(state, node, packet, 1, 0, 0)) == bool(taken)
    assert inlet.held == 1000 * taken
    assert node.shared_used == 0  # its reserve is enough


@plain
@pytest.mark.parametrize("bits", [1, 2, 3])
def test_lanes_take_turns_in_a_circle_and_stay_as_long_as_their_quantum_lasts(bits):
    lanes = 1 << bits
    for eligible in range(3, 1 << lanes):
        if eligible & (eligible - 1) == 0:
            continue  # one lane alone needs no turn
        for at in range(lanes):
            outlets = [Record(deficit=-5) for _ in range(lanes)]
            state = Record(
                settings=[Record(vl_bits=bits)],
                outlet=outlets,
                hold=[Record(quantum=100 + v) for v in range(lanes)],
            )
            port = Record(traits=0, strict=0, wrr=at)
            expected = next(v % lanes for v in range(at + 1, at + lanes + 1) if eligible >> v % lanes & 1)
            assert arbitration.arbitrate(state, 0, port, eligible) == port.wrr == expected
            assert [one.deficit for one in outlets] == [95 + v if v == expected else -5 for v in range(lanes)]
            assert arbitration.arbitrate(state, 0, port, eligible) == expected, "its quantum lasts"
            assert outlets[expected].deficit == 95 + expected


# ---------------------------------------------------------------------- what is spoiled, and what is tried again


@plain
def test_what_the_wire_spoils_is_counted_by_kind_and_given_back(monkeypatch):
    freed, told = [], []
    monkeypatch.setattr(loop, "free_packet", lambda _, p: freed.append(p))
    monkeypatch.setattr(loop, "lose_message", lambda _, p: told.append(p))
    clock = Record(dropped=0, lost_control=0)
    kinds = [s.DATA, s.TRIM, s.ACK, s.DATA]
    state = Record(
        clock=[clock],
        packet=[Record(kind=kind, qp=int(i == 3)) for i, kind in enumerate(kinds)],
        qp=[Record(noted=0), Record(noted=1)],
    )
    for p in range(4):
        loop.lose(state, p)
    assert (clock.dropped, clock.lost_control) == (3, 1)
    assert freed == [0, 1, 2, 3]
    assert told == [3]


@plain
def test_every_port_is_tried_once_and_no_more(monkeypatch):
    tried = []

    def kick(state, at):
        if at != 1:  # it has nothing to send
            state.port[at].kicked = 1
            state.kick[state.clock[0].kicks] = at
            state.clock[0].kicks += 1

    monkeypatch.setattr(loop, "kick", kick)
    monkeypatch.setattr(transmit, "transmit", lambda _, at, now: tried.append((at, now)))
    state = Record(
        port=[Record(starved=1, kicked=0) for _ in range(3)], kick=[0, 0, 0, 0], clock=[Record(kicks=0)]
    )
    loop.kick_all(state, 7)
    assert tried == [(0, 7), (2, 7)]
    assert state.clock[0].kicks == 0
    assert [(port.starved, port.kicked) for port in state.port] == [(0, 0)] * 3


# ---------------------------------------------------------------------- transport


@plain
@pytest.mark.parametrize(("first", "last", "extra"), [(0, 0, 0), (1, 0, 16), (0, 1, 7), (1, 1, 23)])
def test_a_message_has_its_headers_on_its_first_packet_and_its_padding_on_its_last(first, last, extra):
    state = Record(note=[Record(first_extra=1, last_extra=1), Record(first_extra=16, last_extra=7)])
    assert send.extra_bytes(state, 1, first, last) == extra


@plain
@pytest.mark.parametrize("came", [0, 3])
def test_what_arrives_in_order_starts_the_retry_counters_anew(came, monkeypatch):
    completed = []
    monkeypatch.setattr(message_receive, "cumulative_ack", lambda *_: came)
    monkeypatch.setattr(message_receive, "complete", lambda _, qp, now: completed.append(now))
    qp = Record(progress_ps=5, retries=2, rnr_retries=3)
    message_receive.progress(None, 0, qp, 9, 100)
    assert (qp.progress_ps, qp.retries, qp.rnr_retries) == ((100, 0, 0) if came else (5, 2, 3))
    assert completed == ([100] if came else [])


@plain
def test_the_first_lost_packet_goes_before_new_ones():
    state = Record(settings=[Record(bitmap_mask=7)], sacked=[0] * 24)
    qp = Record(next_psn=21, una=17, retransmit=0)
    assert send.pick_psn(state, 2, qp) == 21
    qp.retransmit = 2
    state.sacked[16 + (19 & 7)] = state.sacked[16 + (20 & 7)] = s.LOST
    assert send.pick_psn(state, 2, qp) == 19
    state.sacked[16 + (19 & 7)] = 0
    assert send.pick_psn(state, 2, qp) == 20


def test_flows_of_one_pair_keep_the_way_that_their_hash_gives():
    """Without spraying every packet of a queue pair carries its entropy, so that it comes in order."""
    m = machine(star(3), roce(), [(0, 1, 60_000), (0, 2, 60_000)])
    m.state.qp.entropy[:] = [0x1234, 0xBEEF]
    m.run(4 * US)
    packet = m.state.packet
    carried = {(int(p.qp), int(p.entropy)) for p in packet if p.kind == s.DATA and p.sent_ps > 0}
    assert carried == {(0, 0x1234), (1, 0xBEEF)}
