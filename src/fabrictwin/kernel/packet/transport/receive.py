"""Both sides of a reliable connection as packets arrive (InfiniBand Architecture 9.7; RoCEv2 annex).

The responder accepts the packet it expects, asks once for what is missing after a gap (NAK), acknowledges every
so many packets and at the end of a message. With selective repeat it keeps what comes out of order and says so;
a gap counts as loss once `reorder` later packets have come (0 where routes are fixed, NEVER where only a timeout
can tell). The requester completes messages in order. Timeout, retry count and RNR follow the standard.
"""

from __future__ import annotations

from fabrictwin.kernel.codes import EventKind
from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.congestion import on_ack, on_cnp, on_marked, on_silence, wants_cnps
from fabrictwin.kernel.packet.events import QueueEvent, pack, push_heap
from fabrictwin.kernel.packet.state.array_access import place
from fabrictwin.kernel.packet.state.constants import (
    ACK,
    ACKED,
    ARRIVED,
    CNP,
    ECN,
    FIRST,
    GO_BACK_N,
    LAST,
    LOCAL,
    LOST,
    NAK,
    NEVER,
    NONE,
    REQUEST,
    RESPONSES,
    RNR,
    SELECTIVE,
    TRIM,
)
from fabrictwin.kernel.packet.state.packets import delivery_ps, free_packet
from fabrictwin.kernel.packet.switch.buffer import consume, forward
from fabrictwin.kernel.packet.transport.dependencies import receive_task
from fabrictwin.kernel.packet.transport.message_events import lose_message, pass_received
from fabrictwin.kernel.packet.transport.message_receive import HELD, TAKEN, TO_MEMORY, accept_message
from fabrictwin.kernel.packet.transport.replies import complete, cumulative_ack, give_up, on_nak, reply, rewind
from fabrictwin.kernel.packet.transport.send import make_ready


@helper
def acknowledge(state, q, qp, sent_ps, extra):
    """Everything below `expected` has come."""
    flags = qp.echo
    qp.echo = 0
    qp.unacked = 0
    reply(state, q, qp, ACK, qp.expected, sent_ps, extra, flags)


@helper
def deliver(state, p, qp, now):
    """A packet's payload is in memory; messages that it completes are received."""
    packet = state.packet[place(p)]
    clock = state.clock[0]
    clock.delivered += 1
    clock.payload_delivered += packet.payload
    whole = packet.extra
    if whole > qp.in_memory and qp.noted:
        qp.in_memory = whole
        pass_received(state, qp, now)
    elif whole > qp.in_memory:
        qp.in_memory = whole
        t = int(packet.sent_ps)
        late = delivery_ps(state, qp.dst)
        while state.task[place(t)].psn_end <= whole:
            receive_task(state, t, now + late)
            # packets of the next have come, or this was the last: a sender may be posting another meanwhile
            if state.task[place(t)].psn_end == whole:
                break
            t = int(state.task[place(t)].next)
    free_packet(state, p)


@helper
def take(qp, packet):
    """Note on a packet that is accepted what is whole with it, and its message's task."""
    packet.sent_ps = packet.extra
    packet.extra = qp.expected


@helper
def _refuse(state, p):
    state.clock[0].refused += 1
    free_packet(state, p)


@helper
def _accept_in_order(state, q, qp, p, now):
    """Go-back-N: whether the packet is taken."""
    packet = state.packet[place(p)]
    if packet.psn != qp.expected:
        if packet.psn > qp.expected:
            qp.out_of_sequence += 1
            if qp.nak_sent == 0:
                qp.nak_sent = 1
                qp.naks += 1
                reply(state, q, qp, NAK, qp.expected, packet.sent_ps, qp.expected, 0)
        else:
            qp.duplicates += 1
            acknowledge(state, q, qp, packet.sent_ps, NONE)
        return False
    if qp.receives != NONE and packet.marks & FIRST:
        if qp.started >= qp.receives:
            qp.rnr_naks += 1
            qp.nak_sent = 1
            reply(state, q, qp, RNR, qp.expected, packet.sent_ps, qp.expected, 0)
            return False
        qp.started += 1
    qp.expected += 1
    qp.nak_sent = 0
    qp.unacked += 1
    if packet.marks & (LAST | REQUEST) or qp.unacked >= qp.ack_every:
        acknowledge(state, q, qp, packet.sent_ps, NONE)
    take(qp, packet)
    return True


@helper
def _accept_any_order(state, q, qp, p, now):
    """Selective repeat: whether the packet is taken."""
    packet = state.packet[place(p)]
    mask = state.settings[0].bitmap_mask
    base = q * (mask + 1)
    psn = packet.psn
    if psn < qp.expected or state.received[place(base + (psn & mask))]:
        qp.duplicates += 1
        acknowledge(state, q, qp, packet.sent_ps, NONE)
        return False
    at_once = packet.marks & REQUEST
    if psn == qp.expected:
        before = psn
        psn += 1
        while state.received[place(base + (psn & mask))]:
            state.received[place(base + (psn & mask))] = 0
            psn += 1
        qp.expected = psn
        qp.unacked += psn - before
        ends = packet.marks & LAST or (qp.last_end >= before and qp.last_end < psn)
        if at_once or ends or qp.unacked >= qp.ack_every:
            acknowledge(state, q, qp, packet.sent_ps, NONE)
    else:
        qp.out_of_sequence += 1
        state.received[place(base + (psn & mask))] = 1
        if packet.marks & LAST and psn > qp.last_end:
            qp.last_end = psn
        # where routes vary this is no sign of loss, and what fills the gap will acknowledge it
        qp.unacked += 1
        if at_once or qp.reorder != NEVER or qp.unacked >= qp.ack_every:
            acknowledge(state, q, qp, packet.sent_ps, psn)
        if qp.reorder != NEVER:
            qp.examined = max(qp.examined, qp.expected)
            while qp.examined + qp.reorder < psn:
                if state.received[place(base + (qp.examined & mask))] == 0:
                    qp.naks += 1
                    reply(state, q, qp, NAK, qp.examined, packet.sent_ps, qp.expected, 0)
                qp.examined += 1
    take(qp, packet)
    return True


@outlined
def refuse_key(state, p, qp, now):
    """A packet whose partition key does not match: dropped without an answer (InfiniBand 9.6.1.4, 10.9)."""
    packet = state.packet[p]
    if qp.key_violation_ps < 0:
        qp.key_violation_ps = now
    qp.key_violations += 1
    if qp.noted:
        lose_message(state, p)
    consume(state, packet.slot, packet.wire, now)
    _refuse(state, p)


@helper
def on_data(state, p, node, now):
    """A data packet (whole or trimmed) at the receiving adapter."""
    packet = state.packet[place(p)]
    q = int(packet.qp)
    qp = state.qp[place(q)]
    if qp.ack_every < 0:
        refuse_key(state, p, qp, now)
        return
    if packet.kind == TRIM:
        qp.naks += 1
        reply(state, q, qp, NAK, packet.psn, packet.sent_ps, qp.expected, ECN)
        consume(state, packet.slot, packet.wire, now)
        _refuse(state, p)
        return
    if packet.marks & ECN:
        qp.echo = ECN
        on_marked(state, qp)
        if wants_cnps(qp) and now >= qp.next_cnp:
            qp.next_cnp = now + state.settings[0].cnp_ps
            qp.cnps_sent += 1
            reply(state, q, qp, CNP, qp.expected, now, NONE, 0)
    if qp.mode == GO_BACK_N:
        taken = _accept_in_order(state, q, qp, p, now)
    elif qp.mode == SELECTIVE:
        taken = _accept_any_order(state, q, qp, p, now)
    else:
        fate = accept_message(state, q, qp, p, now)
        if fate == HELD:
            return
        if fate == TAKEN:
            consume(state, packet.slot, packet.wire, now)
            clock = state.clock[0]
            clock.delivered += 1
            free_packet(state, p)
            return
        taken = fate == TO_MEMORY
    if taken and qp.hop_middle < qp.hop_end:
        # on to memory; it keeps the adapter's buffer until it leaves by the host's link
        packet.marks |= ARRIVED
        packet.marks &= ~ECN
        packet.hop = qp.hop_middle + 1
        packet.hop_end = qp.hop_end
        forward(state, p, state.hop[place(qp.hop_middle)], node, now)
        return
    consume(state, packet.slot, packet.wire, now)
    if taken:
        deliver(state, p, qp, now)
    else:
        _refuse(state, p)


@helper
def on_memory(state, p, now):
    """A packet at the memory it was sent to."""
    packet = state.packet[place(p)]
    q = int(packet.qp)
    qp = state.qp[place(q)]
    consume(state, packet.slot, packet.wire, now)
    if qp.mode == LOCAL:
        qp.expected += 1
        take(qp, packet)
        qp.una += 1
        qp.inflight -= 1
        deliver(state, p, qp, now)
        complete(state, qp, now)
        make_ready(state, q)
    else:
        deliver(state, p, qp, now)


@helper
def _selective_ack(state, q, qp, cumulative, single):
    """Note what has come; returns how many packets are newly known to have."""
    mask = state.settings[0].bitmap_mask
    base = q * (mask + 1)
    newly = 0
    while qp.una < cumulative:
        at = base + (qp.una & mask)
        known = state.sacked[place(at)]
        if known == LOST:
            qp.retransmit -= 1
            newly += 1
        elif known == 0:
            qp.inflight -= 1
            newly += 1
        state.sacked[place(at)] = 0
        qp.una += 1
    if qp.next_psn < qp.una:
        qp.next_psn = qp.una
    if single >= qp.una:
        at = base + (single & mask)
        known = state.sacked[place(at)]
        if known != ACKED:
            if known == LOST:
                qp.retransmit -= 1
            else:
                qp.inflight -= 1
            state.sacked[place(at)] = ACKED
            newly += 1
    return newly


@helper
def on_reply(state, p, now):
    """An acknowledgement, NAK or CNP at the sending adapter."""
    packet = state.packet[place(p)]
    q = int(packet.qp)
    qp = state.qp[place(q)]
    kind = int(packet.kind)
    consume(state, packet.slot, packet.wire, now)
    if qp.failed == 0:
        if kind == CNP:
            qp.cnps_handled += 1
            on_cnp(state, q, qp, now)
        else:
            cumulative = packet.psn
            single = NONE
            if kind == ACK:
                single = packet.extra
            else:
                cumulative = packet.extra
            before = qp.una
            if qp.mode != SELECTIVE:
                newly = cumulative_ack(qp, cumulative)
            else:
                newly = _selective_ack(state, q, qp, cumulative, single)
            if qp.una > before:
                qp.progress_ps = now
                qp.retries = 0
                qp.rnr_retries = 0
                complete(state, qp, now)
            if kind == ACK:
                qp.rtt_ps = now - packet.sent_ps
                if newly > 0:
                    on_ack(state, q, qp, newly, packet.marks & ECN, now)
            else:
                on_nak(state, q, qp, kind, packet.psn, now)
        make_ready(state, q)
    free_packet(state, p)


@outlined
def on_timeout(state, q, now):
    """The retransmission timer: due only if nothing came since it was set."""
    qp = state.qp[q]
    qp.rto_pending = 0
    if qp.failed or qp.head == NONE or (qp.inflight == 0 and qp.retransmit == 0 and qp.una == qp.next_psn):
        return
    if now - qp.progress_ps < qp.rto_ps:
        qp.rto_pending = 1
        push_heap(state, qp.progress_ps + qp.rto_ps, pack(QueueEvent.RTO, 0, q))
        return
    qp.timeouts += 1
    qp.retries += 1
    if qp.retries > qp.retry_limit:
        give_up(state, qp, now, EventKind.FAILED)
        return
    if qp.noted and qp.service == RESPONSES:
        # the requester's timer: it asks again
        reply(state, q, qp, NAK, qp.expected, now, qp.expected, 0)
        qp.progress_ps = now
        qp.rto_pending = 1
        push_heap(state, now + qp.rto_ps, pack(QueueEvent.RTO, 0, q))
        return
    if qp.mode != SELECTIVE:
        rewind(qp, qp.una)
    else:
        mask = state.settings[0].bitmap_mask
        base = q * (mask + 1)
        # everything before the last that came is lost; where nothing came beyond `una`, all is
        last = qp.next_psn - 1
        while last >= qp.una and state.sacked[base + (last & mask)] != ACKED:
            last -= 1
        if last < qp.una:
            last = qp.next_psn
        for psn in range(qp.una, last):
            if state.sacked[base + (psn & mask)] == 0:
                state.sacked[base + (psn & mask)] = LOST
                qp.retransmit += 1
                qp.inflight -= 1
    on_silence(state, q, qp, now)
    qp.progress_ps = now
    make_ready(state, q)
