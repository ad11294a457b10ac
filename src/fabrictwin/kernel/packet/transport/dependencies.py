"""Tasks: messages and delays, each started when what it waits for has ended.

A message has two ends: its last byte is in the receiver's memory (successors of the first kind start), and the
sender learns so (the second kind). Between an end on the wire and software there lies the adapter's delivery time.

A task's record may become another's once it is done at both ends. Queue pairs then look at it no more.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.events import QueueEvent, pack, push_heap
from fabrictwin.kernel.packet.state.constants import (
    CALL,
    CALLED,
    DELAY,
    DONE,
    FAILED,
    NONE,
    POSTED,
    TURNSTILE,
    WAITING,
)
from fabrictwin.kernel.packet.transport.message_events import release_task
from fabrictwin.kernel.packet.transport.send import make_ready


@helper
def start(state, t, time):
    """Nothing is left to wait for: begin after the task's own delay."""
    task = state.task[t]
    task.start_ps = time
    push_heap(state, time + task.delay_ps, pack(QueueEvent.TASK, 0, t))


@helper
def _satisfy(state, first, last, time):
    for i in range(first, last):
        t = state.successor[i]
        task = state.task[t]
        if task.kind == TURNSTILE:
            # each that ends lets the next one in
            turn = task.next_start + task.place
            task.place += 1
            if turn >= task.next_middle:
                continue
            if turn == task.next_middle - 1:
                task.status = DONE
                task.done_ps = time
                state.clock[0].open -= 1
            t = state.successor[turn]
            task = state.task[t]
        task.waits -= 1
        if task.waits == 0:
            start(state, t, time)


@helper
def _log(state, t):
    clock = state.clock[0]
    state.log[clock.logged] = t
    clock.logged += 1
    clock.open -= 1


@outlined
def receive_task(state, t, time):
    """The last byte is in memory, as software sees it at `time`."""
    task = state.task[t]
    task.received_ps = time
    _satisfy(state, task.next_start, task.next_middle, time)


@outlined
def finish_task(state, t, time):
    """The sender's side is done."""
    task = state.task[t]
    task.done_ps = time
    task.status = DONE
    _log(state, t)
    _satisfy(state, task.next_middle, task.next_end, time)


@outlined
def begin_task(state, t, now):
    """A task's event: a delay is over, a message is handed to its queue pair."""
    task = state.task[t]
    if task.status != WAITING:
        return
    if task.kind == DELAY or task.kind == CALL:
        task.status = POSTED
        receive_task(state, t, now)
        finish_task(state, t, now)
        if task.kind == CALL:
            state.clock[0].called = t
            state.clock[0].grow = CALLED
        return
    q = int(task.qp)
    qp = state.qp[q]
    task.status = POSTED
    if qp.failed:
        task.status = FAILED
        if qp.noted:
            release_task(state, t)
        else:
            _log(state, t)
        return
    task.psn_start = qp.posted_psn
    task.psn_end = qp.posted_psn + max((task.size_bytes + qp.mtu - 1) // qp.mtu, 1)
    task.next = NONE
    qp.posted_psn = task.psn_end
    if qp.head == NONE and not qp.noted:
        # what was posted before is acknowledged, and its tasks may be others by now
        qp.sending = t
    elif qp.tail != NONE:
        state.task[qp.tail].next = t
    qp.tail = t
    if qp.head == NONE:
        qp.head = t
    if qp.sending == NONE:
        qp.sending = t
    if qp.noted:
        state.note[t].holds = 2
        if qp.receiving == NONE:
            qp.receiving = t
        if qp.accepting == NONE:
            qp.accepting = t
    make_ready(state, q)


@outlined
def fail_queue_pair(state, qp, now):
    """Retries are used up: what is posted ends in error, here and for ever."""
    qp.failed = 1
    t = int(qp.head)
    while t != NONE:
        task = state.task[t]
        task.status = FAILED
        task.done_ps = now
        _log(state, t)
        t = int(task.next)
    qp.head = NONE
