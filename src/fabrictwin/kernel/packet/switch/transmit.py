"""A port puts the next packet on its wire.

Pause frames first; then one of the lanes that have something to send, are not paused and have credits (see
`arbitration`). Within a lane what waits in queues goes before what queue pairs still hold back; input queues and
queue pairs are each served in a ring, a packet a turn.

Left out: a crossbar's limits on how many outputs one input feeds at a time.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.congestion import ibcc
from fabrictwin.kernel.packet.events import QueueEvent, pack, push, push_heap
from fabrictwin.kernel.packet.mailbox import push_to_peer
from fabrictwin.kernel.packet.state.array_access import place
from fabrictwin.kernel.packet.state.constants import (
    ARBITRATED,
    CREDIT,
    DATA,
    DOWN,
    ECN,
    INTERNAL,
    NONE,
    RATE_BITS,
    RATE_HALF,
    REPLAY,
    RULED,
    STORE,
    TAPPED,
)
from fabrictwin.kernel.packet.state.packets import draw
from fabrictwin.kernel.packet.switch.arbitration import arbitrate, charge
from fabrictwin.kernel.packet.switch.buffer import blocks, drop, join_ring, mark
from fabrictwin.kernel.packet.tap import OUT, record
from fabrictwin.kernel.packet.transport.send import STARVED, next_of_queue_pairs


@helper
def first_packet(state, port, outlet):
    """The packet whose turn it is among those that wait, or NONE."""
    head = int(outlet.head)
    if port.queue_width > 1 and head != NONE:
        head = int(state.queue[place(head)].head)
    return head


@helper
def dequeue(state, port, outlet, packet):
    """Take that packet away; an input queue with more goes to the end of the ring."""
    if port.queue_width == 1:
        outlet.head = packet.next
    else:
        index = int(outlet.head)
        queue = state.queue[place(index)]
        queue.head = packet.next
        outlet.head = queue.next
        if queue.head != NONE:
            join_ring(state, outlet, queue, index)


@helper
def watch_head(state, slot, now):
    """Start the head-of-queue lifetime of a lane that cannot send."""
    settings = state.settings[0]
    if settings.hoq_ps > 0 and state.hold[place(slot)].hoq_pending == 0:
        state.hold[place(slot)].hoq_pending = 1
        push_heap(state, now + settings.hoq_ps, pack(QueueEvent.HOQ, 0, slot))


@helper
def choose(state, at, port, now):
    """The next packet for an idle port, removed from where it waited, or NONE."""
    settings = state.settings[0]
    while True:
        eligible = port.backlog & ~(port.paused | port.starved)
        if eligible == 0:
            return NONE
        vl = arbitrate(state, at, port, eligible)
        slot = (at << settings.vl_bits) + vl
        outlet = state.outlet[place(slot)]
        head = first_packet(state, port, outlet)
        if head != NONE:
            packet = state.packet[place(head)]
            if port.traits & DOWN:
                dequeue(state, port, outlet, packet)
                outlet.queued -= packet.wire
                state.queued[place(at)] -= packet.wire
                drop(state, head, at, now, True)
                continue
            if port.traits & CREDIT:
                need = blocks(packet.wire)
                if outlet.credit < need:
                    port.starved |= 1 << vl
                    if outlet.kmax > 0:
                        ibcc.ran_dry(state, slot)
                    watch_head(state, slot, now)
                    continue
                outlet.credit -= need
            dequeue(state, port, outlet, packet)
            if outlet.kmax > 0 and packet.kind == DATA:
                pmax_q = settings.pmax_q
                if port.traits & RULED:
                    pmax_q = state.slot_qos[place(slot)].pmax_q
                if port.traits & CREDIT:
                    marked = ibcc.marks(state, at, slot, outlet, packet, now)
                else:
                    marked = mark(state, state.clock[0], outlet, pmax_q)
                if marked:
                    packet.marks |= ECN
                    state.count[place(at)].ecn_marks += 1
            outlet.queued -= packet.wire
            # a lane that sends alone owes the others its last packet, not all that it has sent
            outlet.deficit = max(outlet.deficit, 0) - packet.wire
            outlet.last_tx = now
            if port.traits & ARBITRATED:
                charge(state, at, packet.wire)
            return head
        if outlet.ready_head != NONE and not port.traits & DOWN:
            p = next_of_queue_pairs(state, at, port, outlet, now)
            if p == STARVED:
                port.starved |= 1 << vl
                continue
            if p >= 0:
                if port.traits & CREDIT:
                    outlet.credit -= blocks(state.packet[place(p)].wire)
                state.queued[place(at)] += state.packet[place(p)].wire
                outlet.deficit = max(outlet.deficit, 0) - state.packet[place(p)].wire
                outlet.last_tx = now
                if port.traits & ARBITRATED:
                    charge(state, at, state.packet[place(p)].wire)
                return p
        port.backlog &= ~(1 << vl)


@helper
def transmit(state, at, now):
    """Put on the wire what may leave by the port, if it is idle."""
    port = state.port[place(at)]
    if port.busy:
        return
    p = int(port.control_head)
    if p != NONE:
        port.control_head = state.packet[place(p)].next
    else:
        p = choose(state, at, port, now)
        if p == NONE:
            if port.backlog != 0 and port.wait_since == NONE:
                port.wait_since = now
            return
    packet = state.packet[place(p)]
    if port.wait_since != NONE:
        port.wait_ps += now - port.wait_since
        port.wait_since = NONE
    size = int(packet.wire)
    if port.traits & INTERNAL:
        size = int(packet.payload)
    serialize = (size * port.ps_q + RATE_HALF) >> RATE_BITS
    tx_lane = NONE
    arrive_lane = NONE
    if size == port.full_bytes:
        tx_lane = int(port.lane_tx_full)
        arrive_lane = int(port.lane_arrive_full)
    elif size == port.ack_bytes:
        tx_lane = int(port.lane_tx_ack)
        arrive_lane = int(port.lane_arrive_ack)
    if port.traits & REPLAY:
        if port.error_q > 0:
            chance = port.error_q * size
            while (draw(state.clock[0]) << 16) < chance:
                # the receiver asks for it again: a round trip, and the packet once more
                serialize += 2 * port.arrive_ps + ((size * port.ps_q + RATE_HALF) >> RATE_BITS)
                state.count[place(at)].replays += 1
                tx_lane = NONE
                arrive_lane = NONE
    port.busy = 1
    port.tx_slot = packet.slot
    port.tx_wire = packet.wire
    port.tx_bytes += packet.wire
    port.tx_payload += packet.payload
    port.tx_packets += 1
    state.clock[0].hops += 1
    if port.traits & TAPPED:
        record(state, at, p, OUT, now)
    push(state, tx_lane, now + serialize, pack(QueueEvent.TX_DONE, at, 0))
    delay = port.arrive_ps
    if port.traits & STORE:
        delay += serialize
    push_to_peer(state, port, arrive_lane, now + delay, pack(QueueEvent.ARRIVE, port.peer, p))


@outlined
def transmit_kicked(state, now):
    """Try every port that something changed for."""
    clock = state.clock[0]
    n = 0
    while n < clock.kicks:
        tried = state.kick[n]
        state.port[tried].kicked = 0
        transmit(state, tried, now)
        n += 1
    clock.kicks = 0
