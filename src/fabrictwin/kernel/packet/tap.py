"""A tap on ports: what leaves and what comes in, as rows that software reads while the simulation runs."""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import outlined
from fabrictwin.kernel.packet.state.constants import ARRIVED, DATA, NONE, OVERFLOW, TAP_FULL, TRIM

TAP_MARGIN = 512
OUT = 0
IN = 1

# columns of a row
TIME = 0
PORT = 1
DIRECTION = 2
KIND = 3
QP = 4
PSN = 5
PAYLOAD = 6
WIRE = 7
MARKS = 8
SL = 9
VL = 10
EXTRA = 11
START = 12  # first packet of the message that it belongs to, NONE where that is over
SIZE = 13  # of that message
MESSAGE = 14  # its number, NONE where it has none
ENTROPY = 15


@outlined
def task_of(state, packet):
    """The task of the message that a data packet belongs to, NONE where that is over."""
    qp = state.qp[packet.qp]
    if qp.noted:
        for first in (qp.head, qp.receiving):
            t = int(first)
            while t != NONE and state.task[t].psn_start <= packet.psn:
                if packet.psn < state.task[t].psn_end:
                    return t
                t = int(state.task[t].next)
        return NONE
    t = int(packet.sent_ps if packet.marks & ARRIVED else packet.extra)
    task = state.task[t]
    # a packet that was sent again may come when its task is another's
    if task.qp != packet.qp or not task.psn_start <= packet.psn < task.psn_end:
        return NONE
    return t


@outlined
def record(state, at, p, direction, now):
    """One row."""
    clock = state.clock[0]
    n = clock.tapped
    if n >= len(state.tap):
        clock.grow = OVERFLOW
        return
    packet = state.packet[p]
    row = state.tap[n]
    row[TIME] = now
    row[PORT] = at
    row[DIRECTION] = direction
    row[KIND] = packet.kind
    row[QP] = packet.qp
    row[PSN] = packet.psn
    row[PAYLOAD] = packet.payload
    row[WIRE] = packet.wire
    row[MARKS] = packet.marks
    row[SL] = packet.sl
    row[VL] = packet.vl
    row[EXTRA] = packet.extra
    row[START] = NONE
    row[SIZE] = packet.payload
    row[MESSAGE] = NONE
    row[ENTROPY] = packet.entropy
    if packet.kind == DATA or packet.kind == TRIM:
        t = task_of(state, packet)
        if t != NONE:
            row[START] = state.task[t].psn_start
            row[SIZE] = state.task[t].size_bytes
            if state.qp[packet.qp].noted:
                row[MESSAGE] = state.note[t].message
    clock.tapped = n + 1
    if n + TAP_MARGIN >= len(state.tap) and clock.grow == 0:
        clock.grow = TAP_FULL
