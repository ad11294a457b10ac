"""The life of single messages, as the verbs post them: from software's request to what it is told.

A message is a task with a note. Its task is used again once nobody needs it: not the sender (acknowledged, or of
an unreliable service, sent), not the receiver (in memory, or lost), not what is still to be told. Tasks of one
queue pair form one chain, in the order in which they began; `head` and `sending` are the sender's places in it,
`accepting` and `receiving` the receiver's: the first message that has not wholly come to the adapter, and the
first that has not come to memory.
"""

from __future__ import annotations

from fabrictwin.kernel.codes import EventKind
from fabrictwin.kernel.jit.decorators import outlined
from fabrictwin.kernel.packet.events import QueueEvent, pack, push_heap
from fabrictwin.kernel.packet.state.constants import (
    LATER_ARRIVED,
    LATER_ENDED,
    MESSAGE_EVENT,
    NONE,
    RC,
    REPORT_ARRIVED,
    REPORT_ENDED,
    UC,
    UD,
)
from fabrictwin.kernel.packet.state.packets import delivery_ps

MESSAGE_EVENT_MARGIN = 8
ALREADY = -1  # qp.refused: the message was taken before it was refused


@outlined
def release_task(state, t):
    """One who needed the task needs it no more."""
    note = state.note[t]
    note.holds -= 1
    if note.holds == 0:
        task = state.task[t]
        qp = state.qp[task.qp]
        qp.live -= 1
        if qp.tail == t:
            qp.tail = NONE
        clock = state.clock[0]
        clock.open -= 1
        task.next = clock.tasks_head
        clock.tasks_head = t
        clock.tasks_free += 1


@outlined
def report_now(state, t, kind):
    """Software reads of it after this event."""
    clock = state.clock[0]
    n = clock.message_events
    state.message_event[n, 0] = clock.now
    state.message_event[n, 1] = state.note[t].message
    state.message_event[n, 2] = kind
    clock.message_events = n + 1
    if n + MESSAGE_EVENT_MARGIN >= len(state.message_event):
        clock.grow = MESSAGE_EVENT


@outlined
def report(state, t, kind, time):
    """Software is to know at `time`."""
    state.note[t].holds += 1
    push_heap(state, time, pack(QueueEvent.REPORT, kind | 0, t))


@outlined
def on_report(state, t, kind):
    """Report what was put off until now; returns False where software need not know now, or not at all."""
    task = state.task[t]
    qp = state.qp[task.qp]
    urgent = not qp.closed
    if qp.refused and kind == EventKind.ARRIVED and task.psn_start >= qp.refused_psn:
        urgent = False
    if urgent:
        report_now(state, t, kind)
        if state.clock[0].patient:
            traits = state.note[t].traits
            if kind == EventKind.ARRIVED:
                urgent = not traits & LATER_ARRIVED
            elif kind == EventKind.ENDED:
                urgent = not traits & LATER_ENDED
    release_task(state, t)
    return urgent


@outlined
def pass_received(state, qp, now):
    """The receiver is done with the messages that are in memory, at the adapter for good, or lost."""
    late = delivery_ps(state, qp.dst)
    t = int(qp.receiving)
    while t != NONE:
        task = state.task[t]
        note = state.note[t]
        if task.psn_end > qp.in_memory and not note.lost and not note.accepted:
            break
        after = int(task.next)
        if not note.lost:
            task.received_ps = now + late
            if note.traits & REPORT_ARRIVED:
                report(state, t, EventKind.ARRIVED, now + late)
            if note.end_ps != NONE:
                report(state, t, EventKind.ENDED, max(note.end_ps, now + late))
        if qp.accepting == t:
            qp.accepting = after
        qp.receiving = after
        release_task(state, t)
        t = after


@outlined
def lose_message(state, p):
    """A data packet was dropped: of an unreliable service, its message is lost with it."""
    packet = state.packet[p]
    qp = state.qp[packet.qp]
    if qp.service != UC and qp.service != UD:
        return
    t = int(qp.receiving)
    while t != NONE:
        if state.task[t].psn_end > packet.psn:
            break
        t = int(state.task[t].next)
    if t != NONE:
        if packet.psn >= state.task[t].psn_start and not state.note[t].lost:
            mark_lost(state, qp, t)


@outlined
def mark_lost(state, qp, t):
    """A message of an unreliable service will not arrive."""
    state.note[t].lost = 1
    report(state, t, EventKind.LOST, state.clock[0].now)
    pass_received(state, qp, state.clock[0].now)


@outlined
def silence(state, qp):
    """The queue pair does nothing more; what it still has is forgotten."""
    qp.failed = 1
    t = int(qp.head)
    while t != NONE:
        after = int(state.task[t].next)
        release_task(state, t)
        t = after
    qp.head = NONE
    qp.sending = NONE
    qp.accepting = NONE
    qp.tail = NONE
    # what was taken still comes to memory
    t = int(qp.receiving)
    qp.receiving = NONE
    last = NONE
    while t != NONE:
        after = int(state.task[t].next)
        if state.task[t].psn_end > qp.expected or state.note[t].lost:
            release_task(state, t)
        else:
            state.task[t].next = NONE
            if last == NONE:
                qp.receiving = t
            else:
                state.task[last].next = t
            last = t
        t = after
    qp.retransmit = 0


@outlined
def complete_messages(state, qp, now):
    """The sender is done with messages whose every packet is acknowledged, or needs no acknowledgement."""
    late = qp.late_ps + delivery_ps(state, qp.src)
    limit = qp.una
    if qp.refused:
        limit = min(limit, qp.refused_psn)
    t = int(qp.head)
    while t != NONE and state.task[t].psn_end <= limit:
        after = int(state.task[t].next)
        qp.head = after
        if qp.sending == t:
            qp.sending = after
        state.task[t].done_ps = now + late
        note = state.note[t]
        if note.traits & REPORT_ENDED:
            if qp.service != RC or note.accepted:
                report(state, t, EventKind.ENDED, now + late)
            elif state.task[t].received_ps != NONE:
                report(state, t, EventKind.ENDED, max(now + late, state.task[t].received_ps))
            else:
                # adapters acknowledge what is not in memory yet; software is told in order
                note.end_ps = now + late
        release_task(state, t)
        t = after
    if qp.refused == ALREADY and qp.una >= qp.refused_psn:
        silence(state, qp)


@outlined
def fail_messages(state, qp, now, kind):
    """The oldest message is told of, the others end with it."""
    if qp.head != NONE:
        late = qp.late_ps + delivery_ps(state, qp.src)
        report(state, qp.head, kind, now + late)
    silence(state, qp)


@outlined
def on_sent(state, q, now):
    """The oldest message of an unreliable queue pair is on the wire."""
    qp = state.qp[q]
    if qp.head != NONE:
        qp.una = state.task[qp.head].psn_end
        complete_messages(state, qp, now)
