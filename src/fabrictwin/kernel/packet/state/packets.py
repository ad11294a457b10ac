"""The pool of packets, random numbers, hashing, and the list of ports to try."""

from __future__ import annotations

from fabrictwin.kernel.jit.decorators import helper
from fabrictwin.kernel.packet.state.array_access import place
from fabrictwin.kernel.packet.state.constants import GROW_PACKETS, M31, M32, NONE, OVERFLOW, PACKET_MARGIN


@helper
def mix(value):
    """32 bits scrambled into 32 others (two rounds of multiply and shift); never leaves int64."""
    h = value & M32
    h = (((h >> 16) ^ h) * 0x45D9F3B) & M32
    h = (((h >> 16) ^ h) * 0x45D9F3B) & M32
    return (h >> 16) ^ h


@helper
def draw(clock):
    """The next 32 random bits (Marsaglia's xorshift32, 2003)."""
    x = clock.random
    x ^= (x << 13) & M32
    x ^= x >> 17
    x ^= (x << 5) & M32
    clock.random = x
    return x


@helper
def kick(state, at):
    """Try to send on this port once the event is dealt with."""
    port = state.port[place(at)]
    if port.kicked == 0:
        port.kicked = 1
        clock = state.clock[0]
        n = clock.kicks
        state.kick[place(n)] = at
        clock.kicks = n + 1


@helper
def take_packet(state):
    """A free packet, linked to nothing, or NONE (the run then ends with OVERFLOW)."""
    clock = state.clock[0]
    p = clock.free_head
    if p == NONE:
        clock.grow = OVERFLOW
        return p
    packet = state.packet[place(p)]
    clock.free_head = packet.next
    clock.free -= 1
    if clock.free < PACKET_MARGIN:
        clock.grow = GROW_PACKETS
    packet.next = NONE
    packet.slot = NONE
    packet.marks = 0
    packet.extra = NONE
    packet.hop = 0
    packet.hop_end = 0
    return p


@helper
def free_packet(state, p):
    """Back into the pool."""
    clock = state.clock[0]
    state.packet[place(p)].next = clock.free_head
    clock.free_head = p
    clock.free += 1


@helper
def delivery_ps(state, endpoint):
    """Time between an adapter's wire and memory; nothing inside a host (NONE)."""
    if endpoint == NONE:
        return 0
    return state.endpoint[place(endpoint)].deliver_ps


@helper
def entropy_of(base, psn):
    """A packet's own entropy, for spraying."""
    return mix(base + psn * 0x9E37) & M31
