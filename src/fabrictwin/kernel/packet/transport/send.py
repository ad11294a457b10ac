"""The sending side of a queue pair: which packet it sends next, and when it may.

A reliable connection as in the InfiniBand Architecture, chapter 9.7: packets carry a sequence number (PSN),
acknowledgements are cumulative. Go-back-N sends again from the first missing packet on; selective repeat sends
what was declared lost and nothing else. PSNs are counted without wrapping (24 bits on the wire).

What bounds a sender: pacing (a gap after every packet), a window of bytes, the adapter's and the queue pair's
message rate. Several queue pairs of a port take turns, a packet each.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.congestion import not_before, on_sent
from fabrictwin.kernel.packet.events import QueueEvent, pack, push_heap
from fabrictwin.kernel.packet.state.array_access import place
from fabrictwin.kernel.packet.state.constants import (
    CREDIT,
    DATA,
    FIRST,
    LAST,
    LOCAL,
    LOST,
    NONE,
    RATE_BITS,
    REQUEST,
    RETRY,
    SELECTIVE,
    UC,
    UD,
)
from fabrictwin.kernel.packet.state.packets import entropy_of, kick, take_packet
from fabrictwin.kernel.packet.switch.buffer import blocks

STARVED = -2


@helper
def may_send(state, qp):
    """Return True where the queue pair has something to send and its window is open."""
    if qp.failed:
        return False
    if qp.inflight > 0 and (qp.inflight + 1) * qp.mtu > qp.window:
        return False
    if qp.retransmit > 0:
        return True
    if qp.next_psn >= qp.posted_psn:
        return False
    return qp.mode != SELECTIVE or qp.next_psn - qp.una <= state.settings[0].bitmap_mask


@helper
def make_ready(state, q):
    """Put the queue pair into its port's ring if it may send."""
    qp = state.qp[place(q)]
    if qp.in_ring == 0 and qp.waking == 0:
        if may_send(state, qp):
            slot = (qp.port << state.settings[0].vl_bits) + qp.vl
            outlet = state.outlet[place(slot)]
            qp.in_ring = 1
            qp.ring_next = NONE
            if outlet.ready_head == NONE:
                outlet.ready_head = q
            else:
                state.qp[place(outlet.ready_tail)].ring_next = q
            outlet.ready_tail = q
            state.port[place(qp.port)].backlog |= 1 << int(qp.vl)
            kick(state, qp.port)


@helper
def wake_at(state, q, time):
    """Look at the queue pair again then."""
    state.qp[place(q)].waking = 1
    push_heap(state, time, pack(QueueEvent.WAKE, 0, q))


@helper
def pick_psn(state, q, qp):
    """The packet to send: the first that was declared lost, else the next new one."""
    psn = qp.next_psn
    if qp.retransmit > 0:
        mask = state.settings[0].bitmap_mask
        base = q * (mask + 1)
        lost = qp.una
        while lost < qp.next_psn:
            if state.sacked[place(base + (lost & mask))] == LOST:
                psn = lost
                break
            lost += 1
    return psn


@outlined
def extra_bytes(state, t, first, last):
    """Headers and padding that a single message has on this packet."""
    note = state.note[t]
    extra = 0
    if first:
        extra += note.first_extra
    if last:
        extra += note.last_extra
    return extra


@helper
def next_of_queue_pairs(state, at, port, outlet, now):
    """A packet from the ring of queue pairs; NONE where none may send now, STARVED where credits lack."""
    settings = state.settings[0]
    while outlet.ready_head != NONE:
        q = int(outlet.ready_head)
        qp = state.qp[place(q)]
        time = not_before(state, qp, qp.next_send)
        psn = NONE
        task_at = NONE
        if may_send(state, qp):
            psn = pick_psn(state, q, qp)
            task_at = int(qp.sending)
            if psn < qp.next_psn:
                task_at = int(qp.head)
            while psn >= state.task[place(task_at)].psn_end:
                task_at = int(state.task[place(task_at)].next)
            if psn == state.task[place(task_at)].psn_start:
                time = max(time, qp.next_message)
                if qp.src != NONE:
                    time = max(time, state.endpoint[place(qp.src)].next_message)
        if psn == NONE or time > now:
            outlet.ready_head = qp.ring_next
            qp.in_ring = 0
            if psn != NONE:
                wake_at(state, q, time)
            continue
        task = state.task[place(task_at)]
        left = task.size_bytes - (psn - task.psn_start) * qp.mtu
        payload = min(left, qp.mtu)
        first = psn == task.psn_start
        wire = payload + qp.header
        if first:
            wire += qp.first_header
        if qp.extras:
            wire += extra_bytes(state, task_at, first, psn == task.psn_end - 1)
        if port.traits & CREDIT:
            if outlet.credit < blocks(wire):
                return STARVED
        p = take_packet(state)
        if p == NONE:
            return NONE
        packet = state.packet[place(p)]
        packet.kind = DATA
        packet.qp = q
        packet.psn = psn
        packet.sent_ps = now
        packet.extra = task_at
        packet.dst = qp.dst
        packet.wire, packet.payload = wire, payload
        packet.sl, packet.vl = qp.sl, qp.vl
        packet.hop, packet.hop_end = qp.hop_start, qp.hop_middle
        packet.entropy = qp.entropy
        if qp.spray:
            packet.entropy = entropy_of(qp.entropy, psn + qp.retransmitted)
        flags = 0
        if first:
            flags = FIRST
            qp.next_message = now + qp.message_ps
            if qp.src != NONE:
                end = state.endpoint[place(qp.src)]
                end.next_message = now + end.message_ps
        if psn == task.psn_end - 1:
            flags |= LAST
        if psn < qp.highest_psn:
            flags |= RETRY
            qp.retransmitted += 1
        if psn == qp.next_psn:
            qp.next_psn = psn + 1
            qp.sending = task_at
            if qp.next_psn > qp.highest_psn:
                qp.highest_psn = qp.next_psn
        else:
            mask = settings.bitmap_mask
            state.sacked[place(q * (mask + 1) + (psn & mask))] = 0
            qp.retransmit -= 1
        qp.inflight += 1
        if (qp.inflight + 1) * qp.mtu > qp.window:
            flags |= REQUEST
        if qp.extras and (qp.service == UC or qp.service == UD):
            # nobody will acknowledge it
            qp.inflight = 0
            if flags & LAST:
                push_heap(state, now + ((wire * port.ps_q) >> RATE_BITS), pack(QueueEvent.SENT, 0, q))
        packet.marks = flags
        state.clock[0].created += 1
        if qp.gap_q > 0:
            # a turn that came late does not lower the rate: up to one gap is made good
            gap = (wire * qp.gap_q) >> RATE_BITS
            qp.next_send = max(qp.next_send, now - gap) + gap
        if qp.rto_ps > 0 and qp.mode != LOCAL:
            if qp.inflight == 1:
                qp.progress_ps = now
            if qp.rto_pending == 0:
                qp.rto_pending = 1
                push_heap(state, now + qp.rto_ps, pack(QueueEvent.RTO, 0, q))
        on_sent(state, q, qp, wire, now)
        # the next turn is another queue pair's
        if outlet.ready_tail != q:
            outlet.ready_head = qp.ring_next
            qp.in_ring = 0
            if may_send(state, qp):
                qp.in_ring = 1
                qp.ring_next = NONE
                state.qp[place(outlet.ready_tail)].ring_next = q
                outlet.ready_tail = q
        elif not may_send(state, qp):
            outlet.ready_head = NONE
            qp.in_ring = 0
        return p
    return NONE
