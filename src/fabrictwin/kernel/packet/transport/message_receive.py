"""The receiver's side of single messages: RC, UC and UD of the InfiniBand Architecture, chapter 9.

RC takes packets in order and asks again from the first that is missing. UC and UD acknowledge nothing: a gap
loses the messages that it touches, and what comes later is taken. A message that takes a receive finds one in its
pool, or is answered with an RNR NAK (RC), or is lost. The responses of READs and atomics are a stream of their
own: nobody acknowledges them, the first packet of each acknowledges the request; where one is missing the
requester asks again, which is a NAK here.

On one adapter (loopback) packets and answers never see the wire: the answer is there at once.
"""

from __future__ import annotations

from fabrictwin.kernel.codes import EventKind
from fabrictwin.kernel.jit.decorators import outlined
from fabrictwin.kernel.packet.events import QueueEvent, pack, push_heap
from fabrictwin.kernel.packet.state.constants import (
    ACK,
    AT_ADAPTER,
    FIRST,
    LAST,
    MESSAGE_EVENT,
    NAK,
    NONE,
    QUIET,
    RC,
    REFUSED,
    REPORT_BEGIN,
    REQUEST,
    RESPONSES,
    RNR,
    TAKES_FIRST,
    TAKES_LAST,
    UC,
    UD,
)
from fabrictwin.kernel.packet.transport.message_events import ALREADY, mark_lost, pass_received, report_now
from fabrictwin.kernel.packet.transport.replies import complete, cumulative_ack, on_nak, reply
from fabrictwin.kernel.packet.transport.send import make_ready

# What becomes of a packet.
NOT_TAKEN = 0
TO_MEMORY = 1
TAKEN = 2  # and ends at the adapter
HELD = 3  # until software has seen it


@outlined
def progress(state, q, qp, cumulative, now):
    """Everything below `cumulative` is known to have come."""
    if cumulative_ack(qp, cumulative) > 0:
        qp.progress_ps = now
        qp.retries = 0
        qp.rnr_retries = 0
        complete(state, qp, now)


@outlined
def answer(state, q, qp, kind, psn, sent_ps, flags, now):
    """Acknowledge what came before `expected`, or say what is wrong with `psn`."""
    if qp.src != qp.dst:
        before = qp.expected
        if kind == REFUSED:
            before = psn
        if kind == ACK:
            reply(state, q, qp, kind, psn, sent_ps, NONE, flags)
        else:
            reply(state, q, qp, kind, psn, sent_ps, before, flags)
        return
    progress(state, q, qp, min(qp.expected, psn), now)
    if kind != ACK and not qp.failed:
        on_nak(state, q, qp, kind, psn, now)
    make_ready(state, q)


@outlined
def acknowledge_request(state, note, now):
    """A response's first packet acknowledges the request that it answers."""
    q = int(note.partner)
    if q == NONE:
        return
    qp = state.qp[q]
    t = int(qp.head)
    while t != NONE:
        if state.note[t].message == note.answers:
            progress(state, q, qp, state.task[t].psn_end, now)
            make_ready(state, q)
            return
        t = int(state.task[t].next)


@outlined
def _out_of_order(state, q, qp, psn, sent_ps, now):
    if psn > qp.expected:
        qp.out_of_sequence += 1
        if qp.nak_sent == 0:
            qp.nak_sent = 1
            qp.naks += 1
            answer(state, q, qp, NAK, qp.expected, sent_ps, 0, now)
    else:
        qp.duplicates += 1
        if qp.service == RC:
            answer(state, q, qp, ACK, qp.expected, sent_ps, 0, now)


@outlined
def accept_message(state, q, qp, p, now):
    """Accept or refuse a data packet at the receiving adapter."""
    packet = state.packet[p]
    psn = packet.psn
    if qp.closed:
        return NOT_TAKEN
    if qp.refused < 0 or (qp.refused > 0 and psn != qp.refused_psn):
        if psn == qp.refused_psn and qp.refused < ALREADY:
            answer(state, q, qp, REFUSED, psn, packet.sent_ps, -qp.refused, now)
        elif psn < qp.expected and qp.service == RC:
            answer(state, q, qp, ACK, qp.expected, packet.sent_ps, 0, now)
        return NOT_TAKEN
    unreliable = qp.service == UC or qp.service == UD
    if unreliable:
        t = int(qp.accepting)
        while t != NONE and state.task[t].psn_end <= psn:
            t = int(state.task[t].next)
        qp.accepting = t
        if t == NONE:
            return NOT_TAKEN
        if psn < state.task[t].psn_start or state.note[t].lost:
            return NOT_TAKEN
    else:
        if psn != qp.expected:
            _out_of_order(state, q, qp, psn, packet.sent_ps, now)
            return NOT_TAKEN
        t = int(qp.accepting)
        if t == NONE:
            return NOT_TAKEN  # the sender has given it up
    note = state.note[t]
    if packet.marks & FIRST and note.traits & REPORT_BEGIN:
        note.traits &= ~REPORT_BEGIN
        report_now(state, t, EventKind.BEGUN)
        state.clock[0].grow = MESSAGE_EVENT
        push_heap(state, now, pack(QueueEvent.LATE_ARRIVE, packet.slot >> state.settings[0].vl_bits, p))
        return HELD
    if qp.refused:
        qp.naks += 1
        answer(state, q, qp, REFUSED, psn, packet.sent_ps, qp.refused, now)
        return NOT_TAKEN
    takes = (packet.marks & FIRST and note.traits & TAKES_FIRST) or (
        packet.marks & LAST and note.traits & TAKES_LAST
    )
    if takes and qp.pool != NONE:
        if state.pool[qp.pool] <= 0:
            if unreliable:
                mark_lost(state, qp, t)
            else:
                qp.rnr_naks += 1
                qp.nak_sent = 1
                answer(state, q, qp, RNR, qp.expected, packet.sent_ps, 0, now)
            return NOT_TAKEN
        state.pool[qp.pool] -= 1
    qp.expected = psn + 1
    qp.nak_sent = 0
    packet.extra = qp.expected
    if packet.marks & LAST:
        qp.accepting = state.task[t].next
    if qp.service == RC:
        if not note.traits & QUIET:
            qp.unacked += 1
            if packet.marks & (LAST | REQUEST) or qp.unacked >= qp.ack_every:
                flags = qp.echo
                qp.echo = 0
                qp.unacked = 0
                answer(state, q, qp, ACK, qp.expected, packet.sent_ps, flags, now)
    elif qp.service == RESPONSES:
        if packet.marks & FIRST:
            acknowledge_request(state, note, now)
        progress(state, q, qp, qp.expected, now)
    if note.traits & AT_ADAPTER:
        # what was written before is in memory before it is read
        note.accepted = 1
        pass_received(state, qp, now)
        return TAKEN
    return TO_MEMORY
