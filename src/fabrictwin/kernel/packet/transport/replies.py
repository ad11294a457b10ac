"""Acknowledgements and the like: how a receiver sends them, and what a sender does about them."""

from __future__ import annotations

from fabrictwin.kernel.codes import EventKind
from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.congestion import on_loss
from fabrictwin.kernel.packet.state.array_access import place
from fabrictwin.kernel.packet.state.constants import CNP, LOST, NONE, REFUSED, RNR, SELECTIVE
from fabrictwin.kernel.packet.state.packets import delivery_ps, take_packet
from fabrictwin.kernel.packet.switch.buffer import enqueue
from fabrictwin.kernel.packet.transport.dependencies import fail_queue_pair, finish_task
from fabrictwin.kernel.packet.transport.message_events import complete_messages, fail_messages


@helper
def reply(state, q, qp, kind, psn, sent_ps, extra, flags):
    """Send an acknowledgement or the like from the receiving adapter."""
    p = take_packet(state)
    if p == NONE:
        return
    packet = state.packet[place(p)]
    packet.kind = kind
    packet.qp = q
    packet.psn = psn
    packet.sent_ps = sent_ps
    packet.extra = extra
    packet.wire, packet.payload = qp.ack_bytes, 0
    if kind == CNP:
        packet.wire = state.settings[0].cnp_wire
    packet.marks = flags
    packet.dst = qp.src
    packet.sl, packet.vl = qp.ack_sl, qp.ack_vl
    if kind == CNP and state.settings[0].cnp_sl >= 0:
        packet.sl = state.settings[0].cnp_sl
        row = state.port[place(state.endpoint[place(qp.dst)].port)].sl2vl
        packet.vl = state.sl2vl[place(row), place(packet.sl)]
    packet.entropy = qp.ack_entropy
    packet.hop, packet.hop_end = qp.ack_hop, qp.ack_hop_end
    enqueue(state, state.endpoint[place(qp.dst)].port, p)


@helper
def complete(state, qp, now):
    """Messages whose every packet is acknowledged are done, in order."""
    if qp.noted:
        complete_messages(state, qp, now)
        return
    t = int(qp.head)
    late = delivery_ps(state, qp.src)
    while t != NONE and state.task[place(t)].psn_end <= qp.una:
        qp.head = state.task[place(t)].next
        finish_task(state, t, now + late)
        t = int(qp.head)


@helper
def rewind(qp, psn):
    """Go-back-N: send again from here."""
    if psn < qp.next_psn:
        qp.next_psn = psn
        qp.sending = qp.head
    qp.inflight = qp.next_psn - qp.una


@helper
def cumulative_ack(qp, cumulative):
    """Everything below has come; returns how many packets that newly is."""
    newly = cumulative - qp.una
    if newly > 0:
        qp.una = cumulative
        if qp.next_psn < cumulative:
            qp.next_psn = cumulative
        qp.inflight = qp.next_psn - cumulative
    else:
        newly = 0
    return newly


@outlined
def give_up(state, qp, now, kind):
    """Retries are used up."""
    if qp.noted:
        fail_messages(state, qp, now, kind)
    else:
        fail_queue_pair(state, qp, now)


@outlined
def on_nak(state, q, qp, kind, psn, now):
    """The receiver misses `psn`, is not ready for it, or refuses it."""
    if qp.mode == SELECTIVE:
        mask = state.settings[0].bitmap_mask
        at = q * (mask + 1) + (psn & mask)
        if psn >= qp.una and psn < qp.next_psn and state.sacked[at] == 0:
            state.sacked[at] = LOST
            qp.inflight -= 1
            qp.retransmit += 1
            on_loss(state, q, qp, now)
        return
    if psn < qp.una:
        return
    if kind == REFUSED:
        fail_messages(state, qp, now, EventKind.ENDED)
        return
    rewind(qp, psn)
    if kind == RNR:
        if qp.rnr_limit < 7:
            qp.rnr_retries += 1
            if qp.rnr_retries > qp.rnr_limit:
                give_up(state, qp, now, EventKind.NOT_READY_FAILED)
        qp.next_send = now + qp.rnr_ps
    else:
        on_loss(state, q, qp, now)
