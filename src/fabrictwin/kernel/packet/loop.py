"""The loop: take the next event, deal with it, then let the ports that it concerned send."""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper, hot_entry, outlined
from fabrictwin.kernel.packet.congestion import on_timer
from fabrictwin.kernel.packet.events import (
    KIND_SHIFT,
    PORT_MASK,
    PORT_SHIFT,
    VALUE_MASK,
    VL_SHIFT,
    QueueEvent,
    fetch_output,
    pack,
    pop_heap,
    pop_lane,
    push_heap,
)
from fabrictwin.kernel.packet.state.array_access import place
from fabrictwin.kernel.packet.state.constants import (
    ARRIVED,
    CREDIT,
    CUT_THROUGH,
    DATA,
    DOWN,
    ENDPOINT,
    FAULTY,
    FINISHED,
    IDLE,
    INTERNAL,
    LOCAL,
    NEVER,
    NONE,
    PAUSE,
    RATE_BITS,
    RATE_HALF,
    REACHED,
    REPLAY,
    RULED,
    SLICED,
    STALLED,
    STORE,
    TAPPED,
    TRIM,
    UNROUTABLE,
    WAITING,
)
from fabrictwin.kernel.packet.state.packets import draw, free_packet, kick
from fabrictwin.kernel.packet.switch.buffer import blocks, drop, forward, refresh_pause, release, return_credits
from fabrictwin.kernel.packet.switch.pauses import classified, on_pause, on_watchdog, resume, take_pause
from fabrictwin.kernel.packet.switch.route import route
from fabrictwin.kernel.packet.switch.transmit import dequeue, first_packet, transmit, transmit_kicked
from fabrictwin.kernel.packet.tap import IN, record
from fabrictwin.kernel.packet.transport.dependencies import begin_task, start
from fabrictwin.kernel.packet.transport.message_commands import take_inbox
from fabrictwin.kernel.packet.transport.message_events import lose_message, on_report, on_sent
from fabrictwin.kernel.packet.transport.receive import on_data, on_memory, on_reply, on_timeout
from fabrictwin.kernel.packet.transport.send import make_ready


@outlined
def on_head_of_queue(state, slot, now):
    """A lane that sent nothing for the head-of-queue lifetime drops what stands first."""
    bits = state.settings[0].vl_bits
    at = slot >> bits
    vl = slot - (at << bits)
    port = state.port[at]
    outlet = state.outlet[slot]
    state.hold[slot].hoq_pending = 0
    if not (port.starved >> vl) & 1:
        return
    due = outlet.last_tx + state.settings[0].hoq_ps
    if now < due:
        state.hold[slot].hoq_pending = 1
        push_heap(state, due, pack(QueueEvent.HOQ, 0, slot))
        return
    head = first_packet(state, port, outlet)
    if head == NONE:
        return
    dequeue(state, port, outlet, state.packet[head])
    wire = state.packet[head].wire
    outlet.queued -= wire
    state.queued[at] -= wire
    state.count[at].hoq_drops += 1
    drop(state, head, at, now, True)
    port.starved &= ~(1 << vl)
    kick(state, at)


@helper
def spoiled(state, port, wire):
    """Return True where a packet of so many bytes did not come over the link whole."""
    if port.rx_traits & DOWN:
        return True
    if port.rx_traits & REPLAY:
        return False
    return (draw(state.clock[0]) << 16) < state.port[place(port.peer)].error_q * wire


@helper
def arrive(state, at, p, now, whole):
    """A packet at a node: lost on the way, a pause, passed on, or at its end."""
    port = state.port[place(at)]
    packet = state.packet[place(p)]
    settings = state.settings[0]
    if not whole:
        slot = (at << settings.vl_bits) + int(packet.vl)
        if port.traits & RULED:
            slot = classified(state, at, packet)
        packet.slot = slot
        if port.traits & CREDIT:
            state.inlet[place(slot)].held += blocks(packet.wire)
        if port.rx_traits & (DOWN | FAULTY) and spoiled(state, port, packet.wire):
            state.count[place(at)].errors += 1
            if port.traits & CREDIT:
                return_credits(state, slot, packet.wire, now)
            lose(state, p)
            return
        if port.traits & TAPPED:
            record(state, at, p, IN, now)
        if packet.kind == PAUSE:
            on_pause(state, at, p, now)
            return
    node = state.node[place(port.node)]
    ends = packet.hop >= packet.hop_end and node.traits & ENDPOINT
    if ends:
        if not whole and not port.rx_traits & STORE:
            wait_for_rest(state, at, p, now)
            return
        if packet.marks & ARRIVED or state.qp[place(packet.qp)].mode == LOCAL:
            on_memory(state, p, now)
        elif packet.kind == DATA or packet.kind == TRIM:
            on_data(state, p, node, now)
        else:
            on_reply(state, p, now)
        return
    hop = packet.hop
    out = route(state, node, packet)
    if out == NONE:
        state.clock[0].unroutable = packet.dst
        state.clock[0].grow = UNROUTABLE
        drop(state, p, at, now, (port.traits & CREDIT) != 0)
        return
    fetch_output(state, node, at, out, packet.vl)
    if node.traits & CUT_THROUGH and not whole:
        if not port.rx_traits & STORE and state.port[place(out)].ps_q < state.port[place(port.peer)].ps_q:
            packet.hop = hop
            wait_for_rest(state, at, p, now)
            return
    forward(state, p, out, node, now)


@helper
def wait_for_rest(state, at, p, now):
    """The first bits are here; come back when the last one is."""
    feeder = state.port[place(state.port[place(at)].peer)]
    packet = state.packet[place(p)]
    size = int(packet.wire)
    if feeder.traits & INTERNAL:
        size = int(packet.payload)
    rest = (size * feeder.ps_q + RATE_HALF) >> RATE_BITS
    push_heap(state, now + rest, pack(QueueEvent.LATE_ARRIVE, at, p))


@outlined
def lose(state, p):
    """A packet that the wire spoiled."""
    clock = state.clock[0]
    if state.packet[p].kind == DATA or state.packet[p].kind == TRIM:
        clock.dropped += 1
        if state.qp[state.packet[p].qp].noted:
            lose_message(state, p)
    else:
        clock.lost_control += 1
    free_packet(state, p)


@hot_entry
def begin(state, first, last, now):
    """Start the tasks `first` to `last` that wait for nothing."""
    for t in range(first, last):
        task = state.task[t]
        if task.waits == 0 and task.status == WAITING:
            start(state, t, now)


@hot_entry
def begin_at(state, first, times):
    """Start each task from `first` on at a time of its own, if it waits for nothing."""
    for i in range(len(times)):
        task = state.task[first + i]
        if task.waits == 0 and task.status == WAITING:
            start(state, first + i, times[i])


@hot_entry
def kick_all(state, now):
    """Try every port: links or limits were changed from outside."""
    for at in range(len(state.port)):
        state.port[at].starved = 0
        kick(state, at)
    transmit_kicked(state, now)


@hot_entry
def ready_all(state):
    """Look at every queue pair again: windows or receives were changed from outside."""
    for q in range(len(state.qp)):
        if state.qp[q].posted_psn > 0:
            make_ready(state, q)


@hot_entry
def run(state, until, stop_when_done, budget):
    """Run to `until` (inclusive), until nothing is left, or for `budget` events.

    Returns one of the statuses of `state`; after SLICED the next call goes on as if there had been none.
    """
    clock = state.clock[0]
    lanes = clock.lanes
    bits = state.settings[0].vl_bits
    events = 0
    told = clock.message_events > 0
    status = IDLE
    if clock.inbox > 0:
        take_inbox(state)
    while True:
        if clock.grow != 0:
            status = clock.grow
            clock.grow = 0
            break
        if events >= budget and not told:  # an instant that software is told of is finished first
            status = SLICED
            break
        time = NEVER
        lane = NONE
        for i in range(lanes):
            head = state.lane_time[place(i)]
            if head < time:
                time = head
                lane = i
        if clock.heap > 0:
            head = state.heap[0].time
            if head < time:
                time = head
                lane = lanes
        if lane == NONE:
            status = IDLE
            break
        if time > until:
            status = REACHED
            break
        if stop_when_done and clock.open == 0:
            status = FINISHED
            break
        if lane == lanes:
            what = state.heap[0].what
            kind = what >> KIND_SHIFT
            if kind >= QueueEvent.PAUSE_END and clock.stall_seen == 0:
                # nothing moves and only timers are left; a lane has nothing, or it would have come first
                empty = True
                for i in range(lanes):
                    if state.lane_time[place(i)] != NEVER:
                        empty = False
                if empty and clock.free < len(state.packet):
                    clock.stall_seen = 1
                    status = STALLED
                    break
            pop_heap(state)
        else:
            what = pop_lane(state, lane)
            kind = what >> KIND_SHIFT
        now = time
        clock.now = now
        events += 1
        at = (what >> PORT_SHIFT) & PORT_MASK
        value = what & VALUE_MASK
        if kind == QueueEvent.TX_DONE:
            port = state.port[place(at)]
            port.busy = 0
            state.queued[place(at)] -= port.tx_wire
            if port.tx_slot != NONE:
                release(state, state.node[place(port.node)], port.tx_slot, port.tx_wire, now)
            kick(state, at)
        elif kind <= QueueEvent.LATE_ARRIVE:
            clock.stall_seen = 0
            arrive(state, at, value, now, kind == QueueEvent.LATE_ARRIVE)
        elif kind == QueueEvent.CREDITS:
            vl = value >> VL_SHIFT
            state.outlet[place((at << bits) + vl)].credit += value & ((1 << VL_SHIFT) - 1)
            port = state.port[place(at)]
            port.starved &= ~(1 << vl)
            if not port.busy and port.backlog:
                kick(state, at)
        elif kind == QueueEvent.WAKE:
            state.qp[place(value)].waking = 0
            make_ready(state, value)
        elif kind == QueueEvent.TASK:
            clock.stall_seen = 0
            begin_task(state, value, now)
        elif kind == QueueEvent.REPORT:
            clock.stall_seen = 0
            if on_report(state, value, at):
                told = True
                until = min(until, now)
        elif kind == QueueEvent.SENT:
            on_sent(state, value, now)
        elif kind == QueueEvent.RTO:
            on_timeout(state, value, now)
        elif kind == QueueEvent.CONTROL:
            on_timer(state, value, state.qp[place(value)], at, now)
        elif kind == QueueEvent.PAUSE_END:
            vl = value - (at << bits)
            if (state.port[place(at)].paused >> vl) & 1 and now >= state.hold[place(value)].paused_until:
                resume(state, at, value, vl, now)
        elif kind == QueueEvent.PAUSE_REFRESH:
            refresh_pause(state, value, now)
        elif kind == QueueEvent.HOQ:
            on_head_of_queue(state, value, now)
        elif kind == QueueEvent.PAUSE_TAKES:
            clock.stall_seen = 0
            take_pause(state, at, value >> 1, value & 1, now)
        elif kind == QueueEvent.WATCHDOG:
            clock.stall_seen = 0
            on_watchdog(state, at, value, now)
        n = 0
        while n < clock.kicks:
            tried = state.kick[place(n)]
            state.port[place(tried)].kicked = 0
            transmit(state, tried, now)
            n += 1
        clock.kicks = 0
    clock.events += events
    return status
