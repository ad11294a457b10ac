"""What software asks for between runs: to post a message, to refuse one, to close a queue pair."""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import outlined
from fabrictwin.kernel.packet.events import QueueEvent, pack, push_heap
from fabrictwin.kernel.packet.state.constants import MESSAGE, NONE, POST, QUIET, REFUSE, REFUSED, WAITING
from fabrictwin.kernel.packet.transport.message_events import ALREADY, silence
from fabrictwin.kernel.packet.transport.message_receive import progress
from fabrictwin.kernel.packet.transport.replies import on_nak, reply


@outlined
def _post(state, row, now):
    clock = state.clock[0]
    t = int(clock.tasks_head)
    task = state.task[t]
    clock.tasks_head = task.next
    clock.tasks_free -= 1
    note = state.note[t]
    q = state.inbox[row, 1]
    qp = state.qp[q]
    task.kind = MESSAGE
    task.status = WAITING
    task.qp = q
    task.next = NONE
    task.size_bytes = state.inbox[row, 2]
    task.delay_ps = state.inbox[row, 3]
    task.start_ps = now
    task.received_ps = NONE
    task.done_ps = NONE
    note.message = state.inbox[row, 4]
    note.first_extra = state.inbox[row, 5]
    note.last_extra = state.inbox[row, 6]
    note.traits = state.inbox[row, 7]
    note.partner = state.inbox[row, 8]
    note.answers = state.inbox[row, 9]
    note.holds = 1
    note.lost = 0
    note.accepted = 0
    note.end_ps = NONE
    qp.live += 1
    clock.open += 1
    qp.begin_ps = max(now + task.delay_ps, qp.begin_ps)
    push_heap(state, qp.begin_ps, pack(QueueEvent.TASK, 0, t))


@outlined
def _refuse(state, row):
    """A message is answered with a NAK instead of being taken; where its answer is under way, that becomes it."""
    q = state.inbox[row, 1]
    qp = state.qp[q]
    syndrome = state.inbox[row, 2]
    message = state.inbox[row, 4]
    if qp.refused or qp.failed:
        return
    t = int(qp.accepting)
    if t != NONE and state.note[t].message == message:
        qp.refused = syndrome
        qp.refused_psn = max(state.task[t].psn_start, qp.expected)
        return
    qp.refused = ALREADY
    qp.refused_psn = qp.una
    t = int(qp.head)
    while t != NONE:
        if state.note[t].message == message:
            break
        t = int(state.task[t].next)
    if t != NONE:
        if state.note[t].traits & QUIET:
            # a request: the NAK takes the place of its response
            psn = state.task[t].psn_start
            now = state.clock[0].now
            qp.refused = -syndrome
            qp.refused_psn = psn
            if qp.src == qp.dst:
                progress(state, q, qp, psn, now)
                on_nak(state, q, qp, REFUSED, psn, now)
            else:
                reply(state, q, qp, REFUSED, psn, now, psn, syndrome)
            return
        qp.refused_psn = state.task[t].psn_end
    if qp.una >= qp.refused_psn:
        silence(state, qp)


@outlined
def take_inbox(state):
    """Carry out what software asked for since the last run. Rows: what, queue pair, then what each needs."""
    clock = state.clock[0]
    for row in range(clock.inbox):
        what = state.inbox[row, 0]
        if what == POST:
            _post(state, row, clock.now)
        elif what == REFUSE:
            _refuse(state, row)
        else:
            qp = state.qp[state.inbox[row, 1]]
            qp.closed = 1
            silence(state, qp)
    clock.inbox = 0
