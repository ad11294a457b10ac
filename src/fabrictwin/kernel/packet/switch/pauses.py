"""Pauses: what a port does when it is paused, when it takes effect, and the watchdog that ends a storm.

IEEE 802.1Qbb. A configured port (`RULED`) obeys only the priorities that it is set to, and takes `response_ps` to
do so. The watchdog is SONiC's: a queue that is paused and sends nothing for the detection time is in a storm; what
waits in it and what comes for it is dropped (or sent on, whatever the pauses say) until no pause has come for the
restoration time.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import hot_entry, outlined
from fabrictwin.kernel.packet.events import QueueEvent, pack, push_heap
from fabrictwin.kernel.packet.state.constants import (
    LINE_QUANTUM_BITS,
    NONE,
    PAUSE_QUANTA,
    RATE_BITS,
    RULED,
    STUCK,
)
from fabrictwin.kernel.packet.state.packets import free_packet, kick
from fabrictwin.kernel.packet.switch.buffer import drop, send_pause, set_xoff
from fabrictwin.kernel.packet.switch.transmit import dequeue, first_packet, transmit_kicked


@outlined
def classified(state, at, packet):
    """The inlet slot of what comes in at a configured port: by the port's own map of classes, not its sender's."""
    lane = int(packet.vl)
    row = state.port_qos[at].group_row
    if row >= 0:
        lane = int(state.sl2vl[row, packet.sl])
    return (at << state.settings[0].vl_bits) + lane


@outlined
def resume(state, at, slot, vl, now):
    """A pause ends: by XON, or because nobody renewed it."""
    state.port[at].paused &= ~(1 << vl)
    state.hold[slot].pause_ps += now - state.hold[slot].paused_since
    kick(state, at)


@outlined
def watch(state, at, slot, now):
    """Let the watchdog look at a lane that was paused, where the port has one."""
    rule, queue = state.port_qos[at], state.slot_qos[slot]
    if rule.detection_ps > 0 and not queue.watching:
        queue.watching = 1
        push_heap(state, now + rule.detection_ps, pack(QueueEvent.WATCHDOG, at, slot))


@outlined
def take_pause(state, at, slot, xoff, now):
    """A pause takes effect: the lane is held until its quanta are over, or let go."""
    port, hold = state.port[at], state.hold[slot]
    vl = slot - (at << state.settings[0].vl_bits)
    bit = 1 << vl
    if port.traits & RULED and state.slot_qos[slot].storm:
        return  # it came before the watchdog fired, and would hold what the watchdog has let go
    if xoff:
        if not port.paused & bit:
            port.paused |= bit
            hold.paused_since = now
            if port.traits & RULED:
                watch(state, at, slot, now)
        quanta_ps = (PAUSE_QUANTA * (LINE_QUANTUM_BITS // 8) * port.ps_q) >> RATE_BITS
        hold.paused_until = now + quanta_ps
        push_heap(state, now + quanta_ps, pack(QueueEvent.PAUSE_END, at, slot))
    elif port.paused & bit:
        resume(state, at, slot, vl, now)


@outlined
def on_pause(state, at, p, now):
    """A pause frame: hold or release one priority of the port that it came in by."""
    packet = state.packet[p]
    vl = int(packet.vl)
    slot = (at << state.settings[0].vl_bits) + vl
    xoff = int(packet.psn)
    free_packet(state, p)
    if xoff:
        state.count[at].pause_rx += 1
    if state.port[at].traits & RULED:
        rule, queue = state.port_qos[at], state.slot_qos[slot]
        if xoff:
            queue.last_pause = now
        if not (rule.obeys >> vl) & 1 or queue.storm:
            return
        if rule.response_ps > 0:
            push_heap(state, now + rule.response_ps, pack(QueueEvent.PAUSE_TAKES, at, (slot << 1) | xoff))
            return
    take_pause(state, at, slot, xoff, now)


@outlined
def empty_lane(state, at, slot, now):
    """Drop what waits in a lane."""
    port, outlet = state.port[at], state.outlet[slot]
    head = first_packet(state, port, outlet)
    while head != NONE:
        packet = state.packet[head]
        dequeue(state, port, outlet, packet)
        outlet.queued -= packet.wire
        state.queued[at] -= packet.wire
        state.slot_qos[slot].storm_drops += 1
        drop(state, head, at, now, True)
        head = first_packet(state, port, outlet)


@outlined
def on_watchdog(state, at, slot, now):
    """A lane that was paused and sent nothing for as long as its watchdog allows is a storm, until pauses end."""
    rule, queue = state.port_qos[at], state.slot_qos[slot]
    port, outlet = state.port[at], state.outlet[slot]
    bits = state.settings[0].vl_bits
    bit = 1 << (slot - (at << bits))
    due = now
    if queue.storm:
        due = queue.last_pause + rule.restoration_ps
        if now >= due:
            queue.storm = 0
            queue.watching = 0
            kick(state, at)
            return
    elif not port.paused & bit:
        queue.watching = 0
        return
    else:
        due = max(state.hold[slot].paused_since, outlet.last_tx) + rule.detection_ps
        if outlet.queued == 0:
            due = max(due, now + rule.detection_ps)
        if now >= due:
            queue.storm = 1
            queue.storms += 1
            port.paused &= ~bit
            state.hold[slot].pause_ps += now - state.hold[slot].paused_since
            if rule.forwards == 0:
                empty_lane(state, at, slot, now)
            kick(state, at)
            due = now + rule.restoration_ps
    push_heap(state, due, pack(QueueEvent.WATCHDOG, at, slot))


@hot_entry
def force_pause(state, slot, on, now):
    """Let the port of a slot pause its peer for ever, or end that: an adapter whose receiver is stuck."""
    inlet = state.inlet[slot]
    if on:
        set_xoff(state, slot, now)
        inlet.xoff = STUCK
    else:
        inlet.xoff = 0
        send_pause(state, slot, 0)
    at = slot >> state.settings[0].vl_bits
    kick(state, at)
    transmit_kicked(state, now)
