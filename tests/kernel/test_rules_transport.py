"""Rules of the reliable transport one by one, on state of a few lines."""

from __future__ import annotations

import pytest
from support.plain_kernel import NEVER, NONE, Record, plain

from fabrictwin.kernel.packet.events import QueueEvent
from fabrictwin.kernel.packet.transport import receive, replies


@plain
def test_a_rewind_begins_again_where_it_is_told():
    qp = Record(next_psn=9, una=4, sending=3, head=1, inflight=5)
    replies.rewind(qp, 9)
    assert (qp.next_psn, qp.sending, qp.inflight) == (9, 3, 5)
    replies.rewind(qp, 6)
    assert (qp.next_psn, qp.sending, qp.inflight) == (6, 1, 2)


@plain
@pytest.mark.parametrize(
    ("cumulative", "newly", "una", "following"),
    [(4, 0, 4, 9), (3, 0, 4, 9), (6, 2, 6, 9), (9, 5, 9, 9), (11, 7, 11, 11)],
)
def test_acknowledgements_are_cumulative(cumulative, newly, una, following):
    qp = Record(next_psn=9, una=4, inflight=5)
    assert replies.cumulative_ack(qp, cumulative) == newly
    assert (qp.una, qp.next_psn) == (una, following)
    assert qp.inflight == (following - una if newly else 5)


@plain
def test_a_selective_nak_marks_a_packet_lost_once(monkeypatch):
    losses: list[int] = []
    monkeypatch.setattr(replies, "on_loss", lambda state, q, qp, now: losses.append(now))
    state = Record(settings=[Record(bitmap_mask=7)], sacked=[0] * 32)
    qp = Record(mode=1, una=10, next_psn=14, inflight=4, retransmit=0)
    for psn, count in ((9, 0), (14, 0), (12, 1), (12, 1), (10, 2)):
        replies.on_nak(state, 2, qp, 2, psn, 100 + psn)
        assert (len(losses), qp.retransmit, qp.inflight) == (count, count, 4 - count)
    assert [at for at, held in enumerate(state.sacked) if held] == [2 * 8 + 2, 2 * 8 + 4]
    assert {held for held in state.sacked if held} == {2}


@plain
def test_a_receiver_that_is_not_ready_is_asked_again_so_often(monkeypatch):
    given_up: list[int] = []
    monkeypatch.setattr(replies, "give_up", lambda state, qp, now, kind: given_up.append(kind))
    qp = Record(mode=0, una=4, next_psn=9, inflight=5, sending=3, head=1, rnr_limit=2, rnr_retries=0, rnr_ps=70)
    qp.next_send = 0
    for attempt in (1, 2):
        replies.on_nak(None, 0, qp, 3, 6, 1000 * attempt)
        assert (qp.rnr_retries, qp.next_send, given_up) == (attempt, 1000 * attempt + 70, [])
    replies.on_nak(None, 0, qp, 3, 6, 3000)
    assert len(given_up) == 1
    qp.rnr_limit, qp.rnr_retries = 7, 0  # for ever
    replies.on_nak(None, 0, qp, 3, 6, 4000)
    assert (qp.rnr_retries, len(given_up)) == (0, 1)
    before = vars(qp).copy()
    replies.on_nak(None, 0, qp, 3, 3, 5000)  # of what was acknowledged
    assert vars(qp) == before


def arriving(monkeypatch, **more):
    sent: list[tuple] = []
    monkeypatch.setattr(
        receive, "reply", lambda state, q, qp, kind, psn, at, extra, flags: sent.append((kind, psn, extra, flags))
    )
    qp = Record(
        expected=10, nak_sent=0, naks=0, out_of_sequence=0, duplicates=0, receives=NONE, started=0, unacked=0,
        ack_every=3, echo=0, rnr_naks=0, last_end=NONE, reorder=NEVER, examined=0,
    )  # fmt: skip
    for name, value in more.items():
        setattr(qp, name, value)
    state = Record(packet={}, settings=[Record(bitmap_mask=15)], received=[0] * 32)

    def take(psn, marks=0, rule=receive._accept_in_order):
        state.packet[1] = Record(psn=psn, marks=marks, sent_ps=5, extra=NONE)
        return rule(state, 0, qp, 1, 100)

    return state, qp, take, sent


FIRST, LAST, REQUEST = 2, 4, 32


@plain
def test_packets_in_order_are_acknowledged_every_so_many(monkeypatch):
    state, qp, take, sent = arriving(monkeypatch)
    assert [take(psn) for psn in (10, 11, 12)] == [True] * 3
    assert sent == [(1, 13, NONE, 0)]
    assert (qp.unacked, state.packet[1].extra) == (0, 13)
    assert take(13, LAST)
    assert take(14, REQUEST)
    assert sent[1:] == [(1, 14, NONE, 0), (1, 15, NONE, 0)]
    qp.echo = 1
    assert not take(12)  # a duplicate is acknowledged, with the mark that waits
    assert (sent[-1], qp.duplicates, qp.echo) == ((1, 15, NONE, 1), 1, 0)
    assert not take(17)
    assert not take(18)
    assert (qp.out_of_sequence, qp.naks) == (2, 1)  # one NAK until what is missing comes
    assert sent[-1] == (2, 15, 15, 0)
    assert take(15)
    assert not take(17)
    assert qp.naks == 2


@plain
def test_a_message_needs_a_receive(monkeypatch):
    _, qp, take, sent = arriving(monkeypatch, receives=1)
    assert take(10, FIRST | LAST)
    assert not take(11, FIRST | LAST)
    assert (qp.rnr_naks, qp.started, sent[-1]) == (1, 1, (3, 11, 11, 0))
    qp.receives = 2
    assert take(11, FIRST)
    assert take(12, LAST)
    assert (qp.started, qp.expected) == (2, 13)


@plain
def test_packets_in_any_order_fill_their_gaps(monkeypatch):
    state, qp, take, sent = arriving(monkeypatch, ack_every=100)
    any_order = receive._accept_any_order
    assert take(12, 0, any_order)
    assert take(13, LAST, any_order)
    assert (qp.expected, qp.out_of_sequence, qp.last_end, qp.unacked, sent) == (10, 2, 13, 2, [])
    assert not take(12, 0, any_order)
    assert (qp.duplicates, sent) == (1, [(1, 10, NONE, 0)])
    assert take(10, 0, any_order)
    assert (qp.expected, state.packet[1].extra, len(sent)) == (11, 11, 1)
    assert take(11, 0, any_order)
    assert qp.expected == 14
    assert sent[1:] == [(1, 14, NONE, 0)]  # the last of a message is behind it
    assert not any(state.received)
    assert not take(13, 0, any_order)


@plain
def test_a_gap_is_a_loss_where_routes_keep_their_order(monkeypatch):
    _, qp, take, sent = arriving(monkeypatch, ack_every=100, reorder=2)
    any_order = receive._accept_any_order
    assert take(11, 0, any_order)
    assert sent == [(1, 10, 11, 0)]
    assert take(13, 0, any_order)
    assert sent[1:] == [(1, 10, 13, 0), (2, 10, 10, 0)]
    assert (qp.naks, qp.examined) == (1, 11)
    assert take(15, REQUEST, any_order)
    assert sent[3:] == [(1, 10, 15, 0), (2, 12, 10, 0)]
    assert (qp.examined, qp.unacked) == (13, 0)


@plain
def test_a_single_acknowledgement_beyond_the_cumulative_one():
    state = Record(settings=[Record(bitmap_mask=7)], sacked=[0] * 16)
    qp = Record(una=10, next_psn=15, inflight=5, retransmit=0)
    assert receive._selective_ack(state, 1, qp, 10, 13) == 1
    assert (qp.una, qp.inflight, state.sacked[8 + 5]) == (10, 4, 1)
    assert receive._selective_ack(state, 1, qp, 10, 13) == 0
    state.sacked[8 + 3] = 2  # 11 was declared lost
    qp.inflight, qp.retransmit = 3, 1
    assert receive._selective_ack(state, 1, qp, 14, NONE) == 3  # 10, 11, 12: 13 was known
    assert (qp.una, qp.inflight, qp.retransmit) == (14, 1, 0)
    assert not any(state.sacked)
    assert receive._selective_ack(state, 1, qp, 17, NONE) == 3
    assert (qp.una, qp.next_psn) == (17, 17)
    state.sacked[8 + 2] = 2
    qp.retransmit = 1
    assert receive._selective_ack(state, 1, qp, 17, 18) == 1
    assert (qp.retransmit, state.sacked[8 + 2]) == (0, 1)


def timer(monkeypatch, **more):
    seen: list[str] = []
    for name in ("give_up", "reply", "on_silence", "make_ready"):
        monkeypatch.setattr(receive, name, lambda *rest, name=name: seen.append(name))
    qp = Record(
        rto_pending=1, failed=0, head=0, inflight=3, retransmit=0, una=10, next_psn=13, progress_ps=100, rto_ps=50,
        timeouts=0, retries=0, retry_limit=2, noted=0, service=0, mode=0, sending=5, expected=9,
    )  # fmt: skip
    for name, value in more.items():
        setattr(qp, name, value)
    return Record(qp=[qp], settings=[Record(bitmap_mask=7)], sacked=[0] * 8), qp, seen


@plain
def test_a_timeout_sends_everything_again(monkeypatch, scheduled):
    state, qp, seen = timer(monkeypatch)
    receive.on_timeout(state, 0, 149)
    assert (scheduled, qp.timeouts, qp.rto_pending) == ([(150, QueueEvent.RTO, 0, 0)], 0, 1)
    receive.on_timeout(state, 0, 150)
    assert (qp.timeouts, qp.retries, qp.progress_ps, qp.rto_pending) == (1, 1, 150, 0)
    assert (qp.next_psn, qp.sending, qp.inflight, seen) == (10, 0, 0, ["on_silence", "make_ready"])
    for more in ({"failed": 1}, {"head": NONE}, {"inflight": 0, "next_psn": 10}):
        state, qp, seen = timer(monkeypatch, **more)
        receive.on_timeout(state, 0, 1000)
        assert (qp.timeouts, qp.rto_pending, seen) == (0, 0, [])
    state, qp, seen = timer(monkeypatch, retries=1)
    receive.on_timeout(state, 0, 1000)
    assert seen == ["on_silence", "make_ready"]
    state, qp, seen = timer(monkeypatch, retries=2)
    receive.on_timeout(state, 0, 1000)
    assert seen == ["give_up"]
    state, qp, seen = timer(monkeypatch, noted=1, service=receive.RESPONSES)
    receive.on_timeout(state, 0, 1000)
    assert (seen, qp.progress_ps, qp.rto_pending) == (["reply"], 1000, 1)
    assert scheduled[-1] == (1050, QueueEvent.RTO, 0, 0)


@plain
def test_a_timeout_in_any_order_loses_what_is_before_the_last_that_came(monkeypatch):
    state, qp, _ = timer(monkeypatch, mode=1, next_psn=15, inflight=4)
    state.sacked[12 & 7] = 1
    receive.on_timeout(state, 0, 1000)
    assert (qp.retransmit, qp.inflight) == (2, 2)
    assert [at for at, held in enumerate(state.sacked) if held == 2] == [10 & 7, 11 & 7]
    state, qp, _ = timer(monkeypatch, mode=1)
    receive.on_timeout(state, 0, 1000)
    assert (qp.retransmit, qp.inflight) == (3, 0)


@plain
def test_gaps_that_are_filled_count_all_that_came(monkeypatch):
    _, qp, take, sent = arriving(monkeypatch, ack_every=100)
    for psn in (12, 11, 10):
        assert take(psn, 0, receive._accept_any_order)
    assert (qp.unacked, qp.expected, sent) == (5, 13, [])  # two held, and three in order
