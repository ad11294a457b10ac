"""The event queue: a ring for each constant delay beside a small 4-ary heap.

Most events follow their cause by one of a few delays (a full packet's serialization, an acknowledgement's, a
cable's propagation). Time only advances, so a ring of events that all lie the same delay ahead stays sorted by
itself. The next event is the earliest among the rings' heads and the heap's root.

Ties: rings before the heap, rings in order of their number (shorter delays have lower numbers), within a ring
and within the heap in the order in which they were scheduled. This rule is part of the results: another one
moves the tail of what is chaotic.
"""

from __future__ import annotations

from enum import IntEnum

from fabrictwin.kernel.jit.decorators import helper
from fabrictwin.kernel.packet.state.array_access import place, prefetch
from fabrictwin.kernel.packet.state.constants import (
    DATA,
    ENDPOINT,
    GROW_HEAP,
    GROW_LANES,
    HEAP_MARGIN,
    INPUT_QUEUED,
    NEVER,
    NONE,
    OVERFLOW,
)
from fabrictwin.kernel.packet.switch.route import look_up


class QueueEvent(IntEnum):
    """Kinds of events in the queue. An event is 63 bits: its kind, a port, and a value."""

    TX_DONE = 0
    ARRIVE = 1  # value: packet, as of LATE_ARRIVE
    LATE_ARRIVE = 2  # cut-through into a faster link: the whole packet is in
    CREDITS = 3  # value: lane and blocks
    WAKE = 4  # value: queue pair
    TASK = 5  # value: task
    REPORT = 6  # value: task; port field: what happened to it
    SENT = 7  # value: queue pair of an unreliable service whose oldest message is on the wire
    PAUSE_TAKES = 8  # value: slot, and whether it is XOFF: a pause that a port was told of takes effect
    # From here on what only time brings; a fabric in which nothing else is left has stalled.
    PAUSE_END = 9
    PAUSE_REFRESH = 10
    RTO = 11
    CONTROL = 12  # a congestion control's timer; port field: which
    HOQ = 13
    WATCHDOG = 14  # value: slot


KIND_SHIFT = 59
PORT_SHIFT = 32
VALUE_MASK = 0xFFFFFFFF
PORT_MASK = (1 << (KIND_SHIFT - PORT_SHIFT)) - 1
VL_SHIFT = 24

# Events between a prefetch and its use: what the event names, then what that names.
FAR = 24
MIDDLE = 14
NEAR = 6
NEXT = 3
QP_RECEIVER_LINES = 2
QP_LINES = 3


@helper
def pack(kind, port, value):
    """An event's what."""
    # a member of an enum has no int() in compiled code
    return ((kind | 0) << KIND_SHIFT) | (int(port) << PORT_SHIFT) | int(value)


@helper
def _before(a, time, sequence):
    return a.time < time or (a.time == time and a.sequence < sequence)


@helper
def _put(state, at, time, sequence, what):
    mine = state.heap[place(at)]
    mine.time = time
    mine.sequence = sequence
    mine.what = what


@helper
def push_heap(state, time, what):
    """Schedule what has no constant delay."""
    clock = state.clock[0]
    sequence = clock.sequence
    clock.sequence = sequence + 1
    insert(state, time, sequence, what)


@helper
def insert(state, time, sequence, what):
    """Put an event into the heap; at one time the lower sequence comes first."""
    clock = state.clock[0]
    n = clock.heap
    if n >= len(state.heap):
        clock.grow = OVERFLOW
        return
    at = n
    while at > 0:
        up = (at - 1) >> 2
        above = state.heap[place(up)]
        if _before(above, time, sequence):
            break
        _put(state, at, above.time, above.sequence, above.what)
        at = up
    _put(state, at, time, sequence, what)
    clock.heap = n + 1
    if n + 1 > len(state.heap) - HEAP_MARGIN:
        clock.grow = GROW_HEAP


@helper
def pop_heap(state):
    """Remove the root; its content was read before."""
    clock = state.clock[0]
    n = clock.heap - 1
    clock.heap = n
    if n > 0:
        last = state.heap[place(n)]
        time, sequence, what = last.time, last.sequence, last.what
        at = 0
        while True:
            best = 4 * at + 1
            if best >= n:
                break
            for child in range(best + 1, min(best + 4, n)):
                if _before(
                    state.heap[place(child)], state.heap[place(best)].time, state.heap[place(best)].sequence
                ):
                    best = child
            least = state.heap[place(best)]
            if not _before(least, time, sequence):
                break
            _put(state, at, least.time, least.sequence, least.what)
            at = best
        _put(state, at, time, sequence, what)


@helper
def push(state, lane, time, what):
    """Schedule on a lane (whose delay `time` lies ahead by), or on the heap where `lane` is NONE."""
    if lane < 0:
        push_heap(state, time, what)
    else:
        ring = state.lane[place(lane)]
        head = ring.head
        tail = ring.tail
        if tail - head > ring.mask:
            push_heap(state, time, what)
            state.clock[0].grow = GROW_LANES
        else:
            event = state.event[place(ring.first + (tail & ring.mask))]
            event.time = time
            event.what = what
            if head == tail:
                state.lane_time[place(lane)] = time
            ring.tail = tail + 1


@helper
def fetch_named(state, soon):
    """Prefetch what an event names: its port, its packet."""
    kind = soon >> KIND_SHIFT
    at = (soon >> PORT_SHIFT) & PORT_MASK
    bits = state.settings[0].vl_bits
    if kind == QueueEvent.ARRIVE:
        prefetch(state.port, at, 0)
        prefetch(state.packet, soon & VALUE_MASK, 0)
        prefetch(state.inlet, at << bits, 0)
    elif kind <= QueueEvent.CREDITS:
        prefetch(state.port, at, 0)
        prefetch(state.port, at, 1)
        prefetch(state.outlet, at << bits, 0)


@helper
def first_queue(state, at, port):
    """The input queue that a port's first lane serves next, NONE where it has none."""
    if port.queue_width > 1:
        return int(state.outlet[place(at << state.settings[0].vl_bits)].head)
    return NONE


@helper
def fetch_behind(state, soon):
    """Prefetch what that names: the inlet to be freed, the queue pair that is next, the node, the destination."""
    kind = soon >> KIND_SHIFT
    at = (soon >> PORT_SHIFT) & PORT_MASK
    bits = state.settings[0].vl_bits
    port = state.port[place(at)]
    if kind == QueueEvent.TX_DONE:
        slot = port.tx_slot
        if slot != NONE:
            prefetch(state.inlet, slot, 0)
        if port.backlog:
            queue = first_queue(state, at, port)
            if queue >= 0:
                prefetch(state.queue, queue, 0)
            q = state.outlet[place(at << bits)].ready_head
            if q >= 0:
                for line in range(QP_RECEIVER_LINES, QP_RECEIVER_LINES + QP_LINES):
                    prefetch(state.qp, q, line)
    elif kind == QueueEvent.ARRIVE:
        prefetch(state.node, port.node, 0)
        dst = state.packet[place(soon & VALUE_MASK)].dst
        if dst >= 0:
            prefetch(state.endpoint, dst, 0)


@helper
def fetch_message(state, at):
    """The message that the next queue pair sends."""
    q = state.outlet[place(at << state.settings[0].vl_bits)].ready_head
    if q >= 0:
        task = state.qp[place(q)].sending
        if task >= 0:
            prefetch(state.task, task, 0)


@helper
def fetch_last(state, soon):
    """Prefetch what that names: the packet to be sent, the group of routes, the queue pair and its bitmap."""
    kind = soon >> KIND_SHIFT
    at = (soon >> PORT_SHIFT) & PORT_MASK
    port = state.port[place(at)]
    if kind == QueueEvent.TX_DONE:
        if port.backlog:
            head = int(state.outlet[place(at << state.settings[0].vl_bits)].head)
            if port.queue_width > 1 and head >= 0:
                head = int(state.queue[place(head)].head)
            if head >= 0:
                prefetch(state.packet, head, 0)
            else:
                fetch_message(state, at)
    elif kind == QueueEvent.ARRIVE:
        node = state.node[place(port.node)]
        packet = state.packet[place(soon & VALUE_MASK)]
        if not node.traits & ENDPOINT:
            if packet.dst >= 0 and node.row >= 0:
                edge = state.endpoint[place(packet.dst)].edge
                prefetch(state.group_of, node.row * state.group_of.shape[1] + edge, 0)
        elif packet.qp >= 0:
            window = state.settings[0].bitmap_mask
            bits = packet.qp * (window + 1)
            first = 0
            if packet.kind == DATA:
                prefetch(state.received, bits + (packet.psn & window), 0)
            else:
                first = QP_RECEIVER_LINES
                prefetch(state.sacked, bits + ((packet.psn - 1) & window), 0)
            for line in range(QP_LINES):
                prefetch(state.qp, packet.qp, first + line)


@helper
def fetch_output(state, node, at, out, vl):
    """Prefetch the queue in which a packet that came in by port `at` will wait to leave by port `out`."""
    bits = state.settings[0].vl_bits
    prefetch(state.port, out, 0)
    prefetch(state.outlet, out << bits, 0)
    if node.traits & INPUT_QUEUED:
        before = ((out - node.port_start) << bits) + int(vl)
        prefetch(state.queue, node.queue_start + before * node.ports + at - node.port_start, 0)


@helper
def fetch_way_out(state, soon):
    """The port that an arriving packet will be sent on, as queues stand now: rarely another by then."""
    if soon >> KIND_SHIFT == QueueEvent.ARRIVE:
        at = (soon >> PORT_SHIFT) & PORT_MASK
        node = state.node[place(state.port[place(at)].node)]
        packet = state.packet[place(soon & VALUE_MASK)]
        if not node.traits & ENDPOINT and packet.hop >= packet.hop_end:
            out = look_up(state, node, packet)
            if out >= 0:
                fetch_output(state, node, at, out, packet.vl)


@helper
def pop_lane(state, lane):
    """Remove a lane's first event and return its what; prefetches what the lane needs soon."""
    ring = state.lane[place(lane)]
    head = ring.head
    what = state.event[place(ring.first + (head & ring.mask))].what
    head += 1
    ring.head = head
    if head == ring.tail:
        state.lane_time[place(lane)] = NEVER
    else:
        state.lane_time[place(lane)] = state.event[place(ring.first + (head & ring.mask))].time
    # entries past the tail are stale but valid: fetching for them is harmless
    fetch_named(state, state.event[place(ring.first + ((head + FAR) & ring.mask))].what)
    fetch_behind(state, state.event[place(ring.first + ((head + MIDDLE) & ring.mask))].what)
    fetch_last(state, state.event[place(ring.first + ((head + NEAR) & ring.mask))].what)
    if state.settings[0].look_ahead:
        fetch_way_out(state, state.event[place(ring.first + ((head + NEXT) & ring.mask))].what)
    return what
