"""Windows of time in which the parts of a fabric are played, by one thread or several.

Threads take one part after the other until the window is over; the last to come to its end looks at all parts and
sets the next window, while the others wait. They leave together: where all is done, at a time, after a number of
events, or where a part needs room that only Python can give it; called again they go on with the window.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.by_reference import table_at
from fabrictwin.kernel.jit.decorators import across, across_entry, hot_entry
from fabrictwin.kernel.jit.threads import SPINS, atomic_add, atomic_load, atomic_store, yield_core
from fabrictwin.kernel.packet.events import KIND_SHIFT, QueueEvent
from fabrictwin.kernel.packet.mailbox import take_mail
from fabrictwin.kernel.packet.state.array_access import place
from fabrictwin.kernel.packet.state.constants import FINISHED, IDLE, NEVER, REACHED, SLICED, STALLED
from fabrictwin.kernel.packet.stepping import call_loop

GO = -1  # a status: the next window is set

# What threads share: int64, what one of them writes on a cache line of its own.
LINE = 8
ARRIVED = 0 * LINE  # threads at the end of the window
TURN = 1 * LINE  # windows ended
NEXT = 2 * LINE  # of `order`: the part that is played next
END, HALF, STATUS, SHORT, HOPS = range(3 * LINE, 3 * LINE + 5)  # of the window; SHORT: the part that STATUS is of
UNTIL, WHEN_DONE, BUDGET, OPEN, LENGTH = range(4 * LINE, 4 * LINE + 5)  # what is asked
COLUMNS = 5 * LINE


@across
def _play(like, tables, windows, loop, at):
    """One part, to the end of the window."""
    state = table_at(like, tables, at)
    clock = state.clock[0]
    half = windows[HALF]
    if clock.half != half:
        if not take_mail(state, like, tables, 1 - half):
            clock.status = clock.grow
            clock.grow = IDLE
            return
        clock.half = half
        clock.mail_blocks = 0
        clock.mail_time = NEVER
    status = STALLED
    while status == STALLED:  # here nothing but timers are left, which says nothing of other parts
        status = call_loop(loop, state, windows[END], False, NEVER)
    clock.status = status


@across
def _next_time(state):
    """The time of a part's next event, and whether it is more than a timer."""
    clock = state.clock[0]
    time = clock.mail_time
    moves = time != NEVER
    for lane in range(clock.lanes):
        if state.lane_time[place(lane)] != NEVER:
            moves = True
            time = min(time, state.lane_time[place(lane)])
    if clock.heap > 0:
        time = min(time, state.heap[0].time)
        if state.heap[0].what >> KIND_SHIFT < QueueEvent.PAUSE_END:
            moves = True
    return time, moves


@across_entry
def plan(like, tables, windows):
    """Look at all parts after a window, and set the next one or the status with which the run ends."""
    time = NEVER
    moving = False
    left = windows[OPEN]
    events = 0
    hops = 0
    free = 0
    for at in range(len(tables)):
        state = table_at(like, tables, at)
        clock = state.clock[0]
        if clock.status != REACHED and clock.status != IDLE:
            windows[STATUS] = clock.status
            windows[SHORT] = at
            return
        first, moves = _next_time(state)
        time = min(time, first)
        moving = moving or moves
        left += clock.open
        events += clock.events
        hops += clock.hops
        free += clock.free
    if time == NEVER:
        windows[STATUS] = IDLE
    elif time > windows[UNTIL]:
        windows[STATUS] = REACHED
    elif windows[WHEN_DONE] and left == 0:
        windows[STATUS] = FINISHED
    elif not moving and hops != windows[HOPS] and free < len(table_at(like, tables, 0).packet):
        windows[HOPS] = hops
        windows[STATUS] = STALLED
    elif events >= windows[BUDGET]:
        windows[STATUS] = SLICED
    else:
        length = windows[LENGTH]
        windows[END] = min((time // length + 1) * length - 1, windows[UNTIL])
        windows[HALF] = 1 - windows[HALF]
        windows[STATUS] = GO


@across_entry
def work(like, tables, windows, loop, order, threads):
    """Play parts, window after window, with so many threads that all do this, until the status is not GO."""
    turn = windows[TURN]
    while windows[STATUS] == GO:
        n = atomic_add(windows, NEXT, 1)
        while n < len(tables):
            _play(like, tables, windows, loop, order[n])
            n = atomic_add(windows, NEXT, 1)
        turn += 1
        if atomic_add(windows, ARRIVED, 1) == threads - 1:
            plan(like, tables, windows)
            windows[NEXT] = 0
            windows[ARRIVED] = 0
            atomic_store(windows, TURN, turn)
        else:
            spins = 0
            while atomic_load(windows, TURN) < turn:
                spins += 1
                if spins > SPINS:
                    yield_core()


@hot_entry
def hand_over(giver, taker, count):
    """Move so many free packets from one part's list to another's."""
    for _ in range(count):
        p = giver.clock[0].free_head
        giver.clock[0].free_head = giver.packet[p].next
        giver.packet[p].next = taker.clock[0].free_head
        taker.clock[0].free_head = p
    giver.clock[0].free -= count
    taker.clock[0].free += count
