"""Rules of the pool of packets, of taps, of what is acknowledged, and of the codes that all share."""

from __future__ import annotations

import pytest
from support.plain_kernel import NONE, Record, plain

from fabrictwin.kernel.packet import tap
from fabrictwin.kernel.packet.state import constants as c
from fabrictwin.kernel.packet.state import packets
from fabrictwin.kernel.packet.transport import replies


@plain
def test_packets_are_taken_from_the_pool_as_new_and_come_back(monkeypatch):
    monkeypatch.setattr(packets, "PACKET_MARGIN", 1)
    rows = [Record(next=n) for n in (1, 2, NONE)]
    clock = Record(free_head=0, free=3, grow=0)
    state = Record(packet=rows, clock=[clock])
    taken = [packets.take_packet(state), packets.take_packet(state)]
    assert (taken, clock.free_head, clock.free, clock.grow) == ([0, 1], 2, 1, 0)
    assert vars(rows[0]) == {"next": NONE, "slot": NONE, "marks": 0, "extra": NONE, "hop": 0, "hop_end": 0}
    assert packets.take_packet(state) == 2
    assert (clock.free, clock.grow) == (0, c.GROW_PACKETS)  # fewer than the margin
    assert packets.take_packet(state) == NONE
    assert clock.grow == c.OVERFLOW
    packets.free_packet(state, 2)
    packets.free_packet(state, 0)
    assert (clock.free_head, rows[0].next, rows[2].next, clock.free) == (0, 2, NONE, 2)


@plain
def test_delivery_takes_time_at_an_adapter_and_none_inside_a_host():
    state = Record(endpoint=[Record(deliver_ps=700)])
    assert packets.delivery_ps(state, 0) == 700
    assert packets.delivery_ps(state, NONE) == 0
    drawn = {packets.entropy_of(5, psn) for psn in range(500)}
    assert len(drawn) == 500
    assert all(0 <= value < 2**31 for value in drawn)


# ---------------------------------------------------------------------- taps


def tapped(rows=12, *, kind=c.DATA, psn=5, noted=1, task=1):
    table = [[77] * 16 for _ in range(rows)]
    tasks = [
        Record(psn_start=0, psn_end=4, next=1, size_bytes=16_000, qp=2),
        Record(psn_start=4, psn_end=9, next=NONE, size_bytes=20_000, qp=2),
        Record(psn_start=9, psn_end=12, next=NONE, size_bytes=9_000, qp=2),
    ]
    packet = Record(
        kind=kind, qp=2, psn=psn, payload=4096, wire=4178, marks=6, sl=3, vl=1, extra=99, entropy=4321, sent_ps=50,
    )  # fmt: skip
    if not noted:  # a packet names its task
        packet.extra = task
    state = Record(
        clock=[Record(tapped=0, grow=0)], packet={8: packet}, tap=table, task=tasks,
        qp={2: Record(head=0, receiving=2, noted=noted)}, note=[Record(message=500 + t) for t in range(3)],
    )  # fmt: skip
    return state, table


@plain
@pytest.mark.parametrize(
    ("psn", "of"),
    [(0, (0, 16_000, 500)), (3, (0, 16_000, 500)), (4, (4, 20_000, 501)), (8, (4, 20_000, 501)),
     (9, (9, 9_000, 502)), (11, (9, 9_000, 502)), (12, (NONE, 4096, NONE))],
)  # fmt: skip
@pytest.mark.parametrize("noted", [0, 1])
def test_a_row_of_a_tap_is_a_packet_and_its_message(psn, of, noted):
    """At the sender its chain knows the message, at the receiver that of what is not in memory; or the packet."""
    task = min(sum(psn >= end for end in (4, 9, 12)), 2)
    state, table = tapped(psn=psn, noted=noted, task=task)
    tap.record(state, 6, 8, 1, 1000)
    start, size, message = of
    extra = 99 if noted else task
    of = [start, size, message if noted else NONE]
    assert table[0] == [1000, 6, 1, c.DATA, 2, psn, 4096, 4178, 6, 3, 1, extra, *of, 4321]
    assert state.clock[0].tapped == 1


@plain
def test_past_the_adapter_a_packet_names_its_task_elsewhere_and_a_late_one_none():
    state, table = tapped(noted=0)
    packet = state.packet[8]
    packet.marks, packet.extra, packet.sent_ps = c.ARRIVED, 9, 1
    tap.record(state, 6, 8, 1, 1000)
    assert table[0][12:15] == [4, 20_000, NONE]
    state.task[1].qp = 3  # another's by now
    tap.record(state, 6, 8, 1, 1000)
    assert table[1][12:15] == [NONE, 4096, NONE]


@plain
def test_answers_belong_to_no_message():
    state, table = tapped(kind=c.ACK)
    tap.record(state, 6, 8, 0, 1000)
    assert table[0][12:15] == [NONE, 4096, NONE]
    state, table = tapped(kind=c.TRIM)
    tap.record(state, 6, 8, 0, 1000)
    assert table[0][12] == 4


@plain
def test_a_tap_is_read_before_it_is_full():
    rows = tap.TAP_MARGIN + 3
    state, _ = tapped(rows)
    clock = state.clock[0]
    for filled in range(rows):
        clock.grow = 0
        tap.record(state, 6, 8, 0, 1000)
        assert (clock.tapped, clock.grow) == (filled + 1, c.TAP_FULL if filled >= 3 else 0)
    tap.record(state, 6, 8, 0, 1000)
    assert (clock.tapped, clock.grow) == (rows, c.OVERFLOW)
    clock.tapped, clock.grow = rows - 2, c.GROW_HEAP  # what was asked for first stays
    tap.record(state, 6, 8, 0, 1000)
    assert clock.grow == c.GROW_HEAP


@plain
def test_what_is_acknowledged_is_done_in_order_and_told_later(monkeypatch):
    done = []
    monkeypatch.setattr(replies, "finish_task", lambda state, t, time: done.append((t, time)))
    monkeypatch.setattr(replies, "complete_messages", lambda state, qp, now: done.append(("messages", now)))
    tasks = [Record(psn_end=2, next=1), Record(psn_end=5, next=2), Record(psn_end=6, next=NONE)]
    state = Record(task=tasks, endpoint=[Record(deliver_ps=30)])
    qp = Record(noted=0, head=0, src=0, una=5)
    replies.complete(state, qp, 100)
    assert (done, qp.head) == ([(0, 130), (1, 130)], 2)
    qp.una = 6
    replies.complete(state, qp, 200)
    assert (done[2:], qp.head) == ([(2, 230)], NONE)
    qp.noted = 1
    replies.complete(state, qp, 300)
    assert done[3:] == [("messages", 300)]


@plain
@pytest.mark.parametrize("noted", [0, 1])
def test_giving_up_ends_messages_or_tasks(monkeypatch, noted):
    seen = []
    for name in ("fail_messages", "fail_queue_pair"):
        monkeypatch.setattr(replies, name, lambda state, qp, *given, name=name: seen.append((name, *given)))
    replies.give_up(None, Record(noted=noted), 70, 5)
    assert seen == ([("fail_messages", 70, 5)] if noted else [("fail_queue_pair", 70)])


# ---------------------------------------------------------------------- codes


@pytest.mark.parametrize(
    "names",
    [
        "DATA ACK NAK RNR CNP TRIM PAUSE REFUSED",
        "LFT ECMP ADAPTIVE",
        "GO_BACK_N SELECTIVE LOCAL CHANNEL",
        "RC UC UD RESPONSES",
        "POST REFUSE CLOSE",
        "DELAY MESSAGE TURNSTILE",
        "WAITING POSTED DONE FAILED",
        "IDLE REACHED FINISHED STALLED GROW_LANES GROW_HEAP GROW_PACKETS OVERFLOW UNROUTABLE MESSAGE_EVENT"
        " TAP_FULL SLICED CALLED GROW_MAIL",
    ],
)
def test_codes_count_from_zero(names):
    assert sorted(getattr(c, name) for name in names.split()) == list(range(len(names.split())))


@pytest.mark.parametrize(
    "names",
    [
        "ECN FIRST LAST ARRIVED RETRY REQUEST",
        "ENDPOINT INPUT_QUEUED SHARED CUT_THROUGH CONFIGURED",
        "CREDIT PFC STORE INTERNAL DOWN REPLAY TAPPED FAULTY BY_INPUT ARBITRATED RULED STARVES CROSSES",
        "REPORT_BEGIN REPORT_ARRIVED REPORT_ENDED AT_ADAPTER QUIET TAKES_FIRST TAKES_LAST",
    ],
)
def test_traits_are_a_bit_each(names):
    assert sorted(getattr(c, name) for name in names.split()) == [1 << at for at in range(len(names.split()))]


def test_units_are_those_of_the_standards():
    """Credits count 64 bytes (InfiniBand), a pause 65,535 times 512 bits (802.1Qbb)."""
    assert (1 << c.BLOCK_BITS, c.LINE_QUANTUM_BITS, c.PAUSE_QUANTA) == (64, 512, 2**16 - 1)
    assert (c.M31, c.M32, c.RATE_HALF * 2, 1 << c.ALPHA_BITS) == (2**31 - 1, 2**32 - 1, 1 << c.RATE_BITS, 256)
    assert {c.ACKED, c.LOST, 0} == {0, 1, 2}
    assert c.STUCK not in (0, 1)
