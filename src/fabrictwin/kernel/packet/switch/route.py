"""Where a switch sends a packet next.

Source-routed hops come first (inside hosts, and cached look-ups of fixed routes); then, at the edge switch of
the destination, its own port; else the switch's tables: a linear forwarding table by LID (InfiniBand
Architecture 14.2.5.6), or a group of equal-cost ports, chosen by a hash of the packet's entropy and the switch's
seed or by the fewest bytes queued.
"""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper
from fabrictwin.kernel.packet.state.array_access import place
from fabrictwin.kernel.packet.state.constants import ADAPTIVE, LFT, NONE
from fabrictwin.kernel.packet.state.packets import mix


@helper
def choose_shortest(state, start, count, at):
    """The port of a group with the fewest bytes queued; among equals the first from `at` on."""
    best = state.group_ports[place(start + at)]
    least = state.queued[place(best)]
    for _ in range(count - 1):
        if least == 0:
            break
        at += 1
        if at == count:
            at = 0
        candidate = state.group_ports[place(start + at)]
        queued = state.queued[place(candidate)]
        if queued < least:
            best = candidate
            least = queued
    return best


@helper
def look_up(state, node, packet):
    """The port that the switch's tables name now, or NONE where there is no way. Changes nothing."""
    if packet.dst < 0 or node.row < 0:
        return NONE
    end = state.endpoint[place(packet.dst)]
    if end.edge_row == node.row:
        return end.edge_port
    balance = state.settings[0].balance
    if balance == LFT:
        number = int(state.lft[place(node.row), place(end.lid)])
        if number == 255 or number == 0:
            return NONE
        return node.port_start + number - 1
    group = state.group_of[place(node.row), place(end.edge)]
    if group < 0:
        return NONE
    start = state.group_start[place(group)]
    count = state.group_start[place(group + 1)] - start
    if balance == ADAPTIVE:
        # equals are told apart by what no other packet and no other switch has
        own = mix(packet.entropy + packet.psn * 0x9E37 ^ node.seed)
        return choose_shortest(state, start, count, (own * count) >> 32)
    h = mix(packet.entropy ^ node.seed)
    return state.group_ports[place(start + ((h * count) >> 32))]


@helper
def route(state, node, packet):
    """The port to send on, or NONE where there is no way."""
    hop = packet.hop
    if hop < packet.hop_end:
        packet.hop = hop + 1
        return state.hop[place(hop)]
    return look_up(state, node, packet)
