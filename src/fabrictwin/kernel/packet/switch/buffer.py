"""Where packets wait: queues at a port, room in a node's buffer, and telling the peer about that room.

Credit links (InfiniBand Architecture 7.9): the receiver's buffer is divided by virtual lane and counted in
blocks of 64 bytes. Freed blocks are told in batches; differences travel instead of the absolute counts of a flow
control packet, which is the same on a link that loses none.

Shared buffers follow the memory management unit that the HPCC authors published with their ns-3 code: a reserve
a (port, priority), a shared pool of which each may use alpha times what is free, then headroom on lossless
priorities. XOFF at the threshold, XON a resume distance below it (IEEE 802.1Qbb).

Configured nodes (`CONFIGURED`) have all of this by port and priority, count buffer in cells, and may be configured
wrongly: a priority may have headroom and send no pause, or the other way round.

Left out: sharing of headroom between ports, egress pools.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper, outlined
from fabrictwin.kernel.packet.congestion import ibcc
from fabrictwin.kernel.packet.events import VL_SHIFT, QueueEvent, pack, push_heap
from fabrictwin.kernel.packet.mailbox import push_to_peer
from fabrictwin.kernel.packet.state.array_access import place
from fabrictwin.kernel.packet.state.constants import (
    ALPHA_BITS,
    BLOCK_BITS,
    BY_INPUT,
    CONFIGURED,
    CREDIT,
    DATA,
    LINE_QUANTUM_BITS,
    NONE,
    PAUSE,
    PAUSE_QUANTA,
    RATE_BITS,
    RULED,
    SHARED,
    STARVES,
    TRIM,
)
from fabrictwin.kernel.packet.state.packets import draw, free_packet, kick, take_packet
from fabrictwin.kernel.packet.transport.message_events import lose_message


@helper
def blocks(wire):
    """Credits that a packet takes."""
    return (wire + (1 << BLOCK_BITS) - 1) >> BLOCK_BITS


@helper
def pause_ps(port):
    """Return for how many ps a pause frame's highest quanta hold this port's peer (quanta count bit times)."""
    return (PAUSE_QUANTA * (LINE_QUANTUM_BITS // 8) * port.ps_q) >> RATE_BITS


@outlined
def send_pause(state, slot, xoff):
    """Queue a pause frame toward the peer of `slot`'s port, before everything else there."""
    at = slot >> state.settings[0].vl_bits
    port = state.port[at]
    p = take_packet(state)
    if p == NONE:
        return
    packet = state.packet[p]
    packet.kind = PAUSE
    packet.qp = NONE
    packet.dst = NONE
    packet.vl = slot - (at << state.settings[0].vl_bits)
    packet.psn = xoff
    packet.wire = state.settings[0].pause_wire
    packet.payload = 0
    if port.control_head == NONE:
        port.control_head = p
    else:
        state.packet[port.control_tail].next = p
    port.control_tail = p
    state.queued[at] += packet.wire
    state.count[at].pause_tx += xoff
    kick(state, at)


@helper
def set_xoff(state, slot, now):
    """Stop the peer on this priority, and see that the stop is renewed before it lapses."""
    inlet = state.inlet[place(slot)]
    inlet.xoff = 1
    send_pause(state, slot, 1)
    if inlet.refresh == 0:
        inlet.refresh = 1
        port = state.port[place(slot >> state.settings[0].vl_bits)]
        push_heap(state, now + (pause_ps(port) >> 1), pack(QueueEvent.PAUSE_REFRESH, 0, slot))


@helper
def refresh_pause(state, slot, now):
    """A pause lapses after its quanta: repeat it while the buffer is still too full."""
    inlet = state.inlet[place(slot)]
    if inlet.xoff:
        send_pause(state, slot, 1)
        port = state.port[place(slot >> state.settings[0].vl_bits)]
        push_heap(state, now + (pause_ps(port) >> 1), pack(QueueEvent.PAUSE_REFRESH, 0, slot))
    else:
        inlet.refresh = 0


@helper
def threshold(node):
    """Bytes that a (port, priority) may hold of the shared pool now."""
    return ((node.shared_limit - node.shared_used) * node.alpha_q) >> ALPHA_BITS


@helper
def cell_bytes(state, slot, wire):
    """Bytes of a configured port's buffer that a packet takes: whole cells, without preamble and gap."""
    size = wire - state.settings[0].gap
    cell = int(state.port_qos[place(slot >> state.settings[0].vl_bits)].cell)
    if cell > 1:
        size = (size + cell - 1) // cell * cell
    return size


@helper
def configured_threshold(node, rule):
    """Bytes that a configured (port, priority) may hold of the shared pool now."""
    if rule.threshold >= 0:
        return rule.threshold
    return ((node.shared_limit - node.shared_used) * rule.alpha_q) >> ALPHA_BITS


@outlined
def admit_configured(state, node, packet, at, vl, now):
    """Take a packet for the queue of port `at` and lane `vl` into a configured node's buffer. False: no room.

    A frame may be too large for either port; a queue whose watchdog fired takes nothing. The threshold is compared
    with what is there before the packet, as a switch does that learns a packet's size as it comes in.
    """
    slot = int(packet.slot)
    bits = state.settings[0].vl_bits
    wire = int(packet.wire)
    frame = wire - state.settings[0].gap
    into, out = state.port_qos[slot >> bits], state.port_qos[at]
    if (into.frame > 0 and frame > into.frame) or (out.frame > 0 and frame > out.frame):
        return False
    queue = state.slot_qos[(at << bits) + vl]
    if queue.storm and out.forwards == 0:
        queue.storm_drops += 1
        return False
    inlet, rule = state.inlet[slot], state.slot_qos[slot]
    size = cell_bytes(state, slot, wire)
    over, taken = inlet.held + size - rule.reserve, 0
    if over > 0:
        taken = min(over, size)
        limit = configured_threshold(node, rule)
        if over > limit and rule.sends and inlet.xoff == 0:
            set_xoff(state, slot, now)
        # the packet that crosses the threshold is still below it; headroom is for what comes after
        if over - size >= max(limit, 0) or node.shared_used + taken > node.shared_limit:
            if inlet.headroom + size > inlet.headroom_limit:
                return False
            inlet.headroom += size
            if inlet.headroom > rule.most_headroom:
                rule.most_headroom = inlet.headroom
            return True
    take_room(node, inlet, size, taken)
    return True


@helper
def take_room(node, inlet, size, shared):
    """Hold a packet's `size`, of which `shared` bytes come from the shared pool."""
    node.shared_used += shared
    if node.shared_used > node.shared_peak:
        node.shared_peak = node.shared_used
    inlet.held += size


@helper
def free_room(node, inlet, reserve, rest):
    """Free a shared buffer's room: headroom empties first, then the shared pool, then the reserve."""
    if inlet.headroom > 0:
        freed = min(inlet.headroom, rest)
        inlet.headroom -= freed
        rest -= freed
    if rest > 0:
        over = inlet.held - reserve
        if over > 0:
            node.shared_used -= min(over, rest)
        inlet.held -= rest


@outlined
def release_configured(state, node, slot, wire):
    """A packet left a configured node's buffer."""
    inlet, rule = state.inlet[slot], state.slot_qos[slot]
    free_room(node, inlet, rule.reserve, cell_bytes(state, slot, wire))
    if inlet.xoff == 1 and inlet.headroom == 0:
        over = inlet.held - rule.reserve
        if over <= 0 or over + rule.resume <= configured_threshold(node, rule):
            inlet.xoff = 0
            send_pause(state, slot, 0)


@outlined
def configured_lane(state, port, packet, at, vl):
    """The lane that a configured node sends a packet by: as the port that it came by maps its class."""
    if not port.traits & RULED:  # on its way into a host
        return vl
    row = state.port_qos[int(packet.slot) >> state.settings[0].vl_bits].queue_row
    if row < 0:  # from inside a host: the adapter's own map
        row = state.port_qos[at].queue_row
    if row < 0:
        return vl
    return int(state.sl2vl[row, packet.sl])


@helper
def admit_shared(state, node, slot, wire, now):
    """Take a packet into a shared buffer. False: no room."""
    inlet = state.inlet[place(slot)]
    limit = threshold(node)
    over = inlet.held + wire - node.reserve
    if over > 0:
        if over > limit:
            if inlet.lossless == 0 or inlet.headroom + wire > inlet.headroom_limit:
                return False
            inlet.headroom += wire
            if inlet.xoff == 0:
                set_xoff(state, slot, now)
            return True
    take_room(node, inlet, wire, min(max(over, 0), wire))
    return True


@helper
def release_shared(state, node, slot, wire):
    """A packet left a shared buffer."""
    inlet = state.inlet[place(slot)]
    free_room(node, inlet, node.reserve, wire)
    if inlet.xoff == 1 and inlet.headroom == 0:
        over = inlet.held - node.reserve
        if over <= 0 or over + node.resume <= threshold(node):
            inlet.xoff = 0
            send_pause(state, slot, 0)


@helper
def return_credits(state, slot, wire, now):
    """Freed blocks of a credit link: told to the peer once they make a batch."""
    inlet = state.inlet[place(slot)]
    freed = blocks(wire)
    inlet.held -= freed
    waiting = inlet.unreturned + freed
    if waiting >= inlet.batch:
        at = slot >> state.settings[0].vl_bits
        port = state.port[place(at)]
        vl = slot - (at << state.settings[0].vl_bits)
        lane = int(port.lane_credit)
        sent = now
        if port.traits & STARVES:
            sent = ibcc.return_time(state, slot, waiting, now)
            lane = NONE
        push_to_peer(
            state,
            port,
            lane,
            sent + port.credit_ps,
            pack(QueueEvent.CREDITS, port.peer, (vl << VL_SHIFT) | waiting),
        )
        waiting = 0
    inlet.unreturned = waiting


@helper
def release(state, node, slot, wire, now):
    """The buffer that a packet held at this node is free."""
    if state.inlet[place(slot)].capacity > 0:
        return_credits(state, slot, wire, now)
    elif node.traits & SHARED:
        if node.traits & CONFIGURED:
            release_configured(state, node, slot, wire)
        else:
            release_shared(state, node, slot, wire)


@helper
def consume(state, slot, wire, now):
    """A packet ended at this node without being passed on: only a credit link kept room for it."""
    at = slot >> state.settings[0].vl_bits
    if state.port[place(at)].traits & CREDIT:
        return_credits(state, slot, wire, now)


@outlined
def drop(state, p, at, now, held):
    """A packet ends here. `at`: the port that counts it; `held`: it holds buffer at this node."""
    packet = state.packet[p]
    clock = state.clock[0]
    if packet.kind == DATA or packet.kind == TRIM:
        clock.dropped += 1
        if state.qp[packet.qp].noted:
            lose_message(state, p)
    else:
        clock.lost_control += 1
    state.count[at].discards += 1
    if held and packet.slot != NONE:
        release(state, state.node[state.port[at].node], packet.slot, packet.wire, now)
    free_packet(state, p)


@helper
def join_ring(state, outlet, queue, index):
    """An input queue with packets goes to the end of its lane's ring."""
    queue.next = NONE
    if outlet.head == NONE:
        outlet.head = index
    else:
        state.queue[place(outlet.tail)].next = index
    outlet.tail = index


@helper
def append_by_input(state, port, outlet, packet, p, vl):
    """Wait in the queue of the lane and input; a queue that had nothing joins the end of the ring."""
    index = port.queue_start + vl * port.queue_width
    if packet.slot != NONE:
        index += (packet.slot >> state.settings[0].vl_bits) - state.node[place(port.node)].port_start
    queue = state.queue[place(index)]
    if queue.head == NONE:
        queue.head = p
        join_ring(state, outlet, queue, index)
    else:
        state.packet[place(queue.tail)].next = p
    queue.tail = p


@helper
def enqueue(state, at, p):
    """Wait at an output port, in the queue of its lane (and of the input it came by)."""
    port = state.port[place(at)]
    packet = state.packet[place(p)]
    vl = int(packet.vl)
    settings = state.settings[0]
    slot = (at << settings.vl_bits) + vl
    outlet = state.outlet[place(slot)]
    packet.next = NONE
    if port.queue_width == 1:
        if outlet.head == NONE:
            outlet.head = p
        else:
            state.packet[place(outlet.tail)].next = p
        outlet.tail = p
    else:
        append_by_input(state, port, outlet, packet, p, vl)
    outlet.queued += packet.wire
    if outlet.queued > outlet.peak:
        outlet.peak = outlet.queued
    state.queued[place(at)] += packet.wire
    port.backlog |= 1 << vl
    if port.busy == 0:
        kick(state, at)


@helper
def mark(state, clock, outlet, pmax_q):
    """Draw the mark of a packet that leaves a queue this long (RED with a probability that rises linearly)."""
    length = outlet.queued
    if length <= outlet.kmin:
        return False
    if length >= outlet.kmax:
        return True
    chance = pmax_q * (length - outlet.kmin) // (outlet.kmax - outlet.kmin)
    return draw(clock) < chance


@helper
def forward(state, p, at, node, now):
    """A node passes a packet on by port `at`: finds room for it, trims or drops it where there is none.

    `packet.slot` is the inlet slot it came by; its lane becomes that of the outgoing link.
    """
    packet = state.packet[place(p)]
    port = state.port[place(at)]
    settings = state.settings[0]
    row = int(port.sl2vl)
    if port.traits & BY_INPUT:
        row += (packet.slot >> settings.vl_bits) - node.port_start
    vl = int(state.sl2vl[place(row), place(packet.sl)])
    room = True
    if node.traits & SHARED:
        limit = state.outlet[place((at << settings.vl_bits) + vl)].limit
        if limit > 0 and packet.kind == DATA:
            if state.outlet[place((at << settings.vl_bits) + vl)].queued + packet.wire > limit:
                room = False
                if settings.trim_wire > 0:
                    packet.kind = TRIM
                    packet.payload = 0
                    packet.wire = settings.trim_wire
                    vl = settings.trim_vl
                    packet.sl = settings.trim_vl
                    state.count[place(at)].trims += 1
                    room = True
        # a credit link's packets have their room already
        if room and not state.port[place(packet.slot >> settings.vl_bits)].traits & CREDIT:
            if node.traits & CONFIGURED:
                vl = configured_lane(state, port, packet, at, vl)
                room = admit_configured(state, node, packet, at, vl, now)
            else:
                room = admit_shared(state, node, packet.slot, packet.wire, now)
    if room:
        packet.vl = vl
        enqueue(state, at, p)
    else:
        drop(state, p, at, now, False)
