"""The event queue: a ring for each constant delay beside a small 4-ary heap.

Most events follow their cause by one of a few delays (a full packet's serialization, an acknowledgement's, a
cable's propagation). Time only advances, so a ring of events that all lie the same delay ahead stays sorted by
itself. The next event is the earliest among the rings' heads and the heap's root.

Ties: rings before the heap, rings in order of their number (shorter delays have lower numbers), within a ring
and within the heap in the order in which they were scheduled. This rule is part of the results: another one
moves the tail of what is chaotic.
"""

from __future__ import annotations

from numba import config, types
from numba.extending import intrinsic

from fabrictwin.kernel.jit import helper
from fabrictwin.kernel.packet.state import (
    CACHE_LINE,
    DATA,
    ENDPOINT,
    GROW_HEAP,
    GROW_LANES,
    HEAP_MARGIN,
    NEVER,
    NONE,
    OVERFLOW,
)

# An event in 63 bits: what, at which port, and a value (a packet, a queue pair, lane and credit blocks).
TX_DONE = 0
ARRIVE = 1
LATE_ARRIVE = 2  # cut-through into a faster link: the whole packet is in
CREDITS = 3
WAKE = 4  # value: queue pair
TASK = 5  # value: task
TELL = 6  # value: task; port field: what happened to it
SENT = 7  # value: queue pair of an unreliable service whose oldest message is on the wire
# From here on what only time brings; a fabric in which nothing else is left has stalled.
PAUSE_END = 8
PAUSE_REFRESH = 9
RTO = 10
CONTROL = 11  # a congestion control's timer; port field: which
HOQ = 12

KIND_SHIFT = 59
PORT_SHIFT = 32
VALUE_MASK = 0xFFFFFFFF
PORT_MASK = (1 << (KIND_SHIFT - PORT_SHIFT)) - 1
VL_SHIFT = 24

# Events between a prefetch and its use: what the event names, then what that names.
FAR = 24
MIDDLE = 14
NEAR = 6
QP_RECEIVER_LINES = 2
QP_LINES = 3

if config.DISABLE_JIT:

    def prefetch(array, index, line):
        """Nothing: the interpreter has no use for it."""

else:

    @intrinsic
    def prefetch(typingctx, array, index, line):
        """Ask for a cache line of `array[index]`, the first or a later one; changes no result."""
        from llvmlite import ir
        from numba.core import cgutils

        def codegen(context, builder, signature, args):
            array_type = signature.args[0]
            struct = context.make_array(array_type)(context, builder, args[0])
            size = context.get_constant(types.intp, array_type.dtype.size)
            byte = ir.IntType(8).as_pointer()
            start = builder.bitcast(struct.data, byte)
            index = context.cast(builder, args[1], signature.args[1], types.intp)
            line = context.cast(builder, args[2], signature.args[2], types.intp)
            offset = builder.add(builder.mul(index, size), builder.mul(line, ir.Constant(line.type, CACHE_LINE)))
            address = builder.gep(start, [offset])
            i32 = ir.IntType(32)
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32]), "llvm.prefetch.p0"
            )
            builder.call(function, [address, ir.Constant(i32, 1), ir.Constant(i32, 3), ir.Constant(i32, 1)])
            return context.get_dummy_value()

        return types.void(array, index, line), codegen


@helper
def pack(kind, port, value):
    """An event's what."""
    return (int(kind) << KIND_SHIFT) | (int(port) << PORT_SHIFT) | int(value)


@helper
def _before(a, time, sequence):
    return a.time < time or (a.time == time and a.sequence < sequence)


@helper
def push_heap(state, time, what):
    """Schedule what has no constant delay."""
    clock = state.clock[0]
    n = clock.heap
    if n >= len(state.heap):
        clock.grow = OVERFLOW
        return
    sequence = clock.sequence
    clock.sequence = sequence + 1
    clock.heap_events += 1
    at = n
    while at > 0:
        up = (at - 1) >> 2
        above = state.heap[up]
        if _before(above, time, sequence):
            break
        mine = state.heap[at]
        mine.time = above.time
        mine.sequence = above.sequence
        mine.what = above.what
        at = up
    mine = state.heap[at]
    mine.time = time
    mine.sequence = sequence
    mine.what = what
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
        last = state.heap[n]
        time, sequence, what = last.time, last.sequence, last.what
        at = 0
        while True:
            first = 4 * at + 1
            if first >= n:
                break
            best = first
            for child in range(first + 1, min(first + 4, n)):
                if _before(state.heap[child], state.heap[best].time, state.heap[best].sequence):
                    best = child
            least = state.heap[best]
            if not _before(least, time, sequence):
                break
            mine = state.heap[at]
            mine.time = least.time
            mine.sequence = least.sequence
            mine.what = least.what
            at = best
        mine = state.heap[at]
        mine.time = time
        mine.sequence = sequence
        mine.what = what


@helper
def push(state, lane, time, what):
    """Schedule on a lane (whose delay `time` lies ahead by), or on the heap where `lane` is NONE."""
    if lane < 0:
        push_heap(state, time, what)
    else:
        ring = state.lane[lane]
        head = ring.head
        tail = ring.tail
        if tail - head > ring.mask:
            push_heap(state, time, what)
            state.clock[0].grow = GROW_LANES
        else:
            event = state.event[ring.first + (tail & ring.mask)]
            event.time = time
            event.what = what
            if head == tail:
                state.lane_time[lane] = time
            ring.tail = tail + 1


@helper
def pop_lane(state, lane):
    """Remove a lane's first event and return its what; prefetches what the lane needs soon."""
    ring = state.lane[lane]
    head = ring.head
    what = state.event[ring.first + (head & ring.mask)].what
    head += 1
    ring.head = head
    if head == ring.tail:
        state.lane_time[lane] = NEVER
    else:
        state.lane_time[lane] = state.event[ring.first + (head & ring.mask)].time
    # entries past the tail are stale but valid: fetching for them is harmless
    soon = state.event[ring.first + ((head + FAR) & ring.mask)].what
    kind = soon >> KIND_SHIFT
    at = (soon >> PORT_SHIFT) & PORT_MASK
    bits = state.settings[0].vl_bits
    if kind <= CREDITS:
        prefetch(state.port, at, 0)
        prefetch(state.port, at, 1)
        prefetch(state.outlet, at << bits, 0)
        if kind == ARRIVE:
            prefetch(state.packet, soon & VALUE_MASK, 0)
    soon = state.event[ring.first + ((head + MIDDLE) & ring.mask)].what
    kind = soon >> KIND_SHIFT
    at = (soon >> PORT_SHIFT) & PORT_MASK
    if kind == TX_DONE:
        port = state.port[at]
        slot = port.tx_slot
        if slot != NONE:
            prefetch(state.inlet, slot, 0)
            prefetch(state.port, slot >> bits, 0)
        if port.backlog:
            index = port.queue_start
            if port.queue_width > 1:
                index = state.outlet[at << bits].active_head
            if index >= 0:
                prefetch(state.queue, index, 0)
            q = state.outlet[at << bits].ready_head
            if q >= 0:
                for line in range(QP_RECEIVER_LINES, QP_RECEIVER_LINES + QP_LINES):
                    prefetch(state.qp, q, line)
    elif kind == ARRIVE:
        prefetch(state.node, state.port[at].node, 0)
        prefetch(state.inlet, at << bits, 0)
        dst = state.packet[soon & VALUE_MASK].dst
        if dst >= 0:
            prefetch(state.endpoint, dst, 0)
    soon = state.event[ring.first + ((head + NEAR) & ring.mask)].what
    kind = soon >> KIND_SHIFT
    at = (soon >> PORT_SHIFT) & PORT_MASK
    if kind == TX_DONE:
        port = state.port[at]
        if port.backlog:
            index = port.queue_start
            if port.queue_width > 1:
                index = state.outlet[at << bits].active_head
            if index >= 0:
                head_packet = state.queue[index].head
                if head_packet >= 0:
                    prefetch(state.packet, head_packet, 0)
    elif kind == ARRIVE:
        if state.node[state.port[at].node].traits & ENDPOINT:
            packet = state.packet[soon & VALUE_MASK]
            if packet.qp >= 0:
                first = 0
                if packet.kind != DATA:
                    first = QP_RECEIVER_LINES
                for line in range(QP_LINES):
                    prefetch(state.qp, packet.qp, first + line)
    return what
