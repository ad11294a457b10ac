"""Events that one part of the fabric schedules in another: arrivals of packets, and credits.

A part keeps what it sends in chains of blocks, one for each part and event lane, in the order of time. Once the
window is over the other part puts them onto its own lanes: what comes by one lane lies the same delay after its
cause, so it comes after everything that came by it before. Ties go to the part with the lower number. What has no
lane goes to the heap, before what is scheduled there itself, by part and order of sending. So nothing depends on
how long windows are, nor on who runs first.

A part fills one half of its mail while the other half, of the window before, is taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fabrictwin.kernel.jit.by_reference import table_at
from fabrictwin.kernel.jit.decorators import across, across_helper, helper, outlined
from fabrictwin.kernel.packet.events import insert, push
from fabrictwin.kernel.packet.state.array_access import place, prefetch
from fabrictwin.kernel.packet.state.constants import (
    CROSSES,
    GROW_HEAP,
    GROW_LANES,
    GROW_MAIL,
    HEAP_MARGIN,
    NEVER,
    NONE,
    OVERFLOW,
)
from fabrictwin.kernel.packet.state.state import State

BLOCK_BITS = 4  # events of a chain that stand next to each other
LAST_OF_BLOCK = (1 << BLOCK_BITS) - 1
PART_BITS = 10
PART_SHIFT = 42  # of the sequence in a heap: so many events may a part ever send
BEFORE_ALL = -(1 << 62)
FETCHED = 4  # events ahead of the one that is merged


@across_helper
def _chain(state, half, part, lane):
    """The chain of a half for a part and lane."""
    lanes = state.clock[0].lanes + 1
    return state.chain[place(((part << 1) + half) * lanes + lane + 1)]


@across_helper
def _after(state, at):
    """The place of the event that follows in a chain."""
    if at & LAST_OF_BLOCK == LAST_OF_BLOCK:
        return state.mail[place(at)].next
    return at + 1


@outlined
def _new_block(state, chain):
    """The first place of a block at the end of a chain, NONE where there is no room."""
    clock = state.clock[0]
    block = 2 * clock.mail_blocks + clock.half
    room = len(state.mail) >> BLOCK_BITS
    if block >= room:
        clock.grow = OVERFLOW
        return NONE
    clock.mail_blocks += 1
    at = block << BLOCK_BITS
    if chain.count == 0:
        chain.head = at
    else:
        state.mail[place(chain.tail)].next = at
    if block + len(state.chain) + 2 * (HEAP_MARGIN >> BLOCK_BITS) > room:
        clock.grow = GROW_MAIL
    return at


@outlined
def _post(state, part, lane, time, what):
    """Put an event at the end of a chain."""
    clock = state.clock[0]
    chain = _chain(state, clock.half, part, lane)
    at = chain.tail + 1
    if chain.count & LAST_OF_BLOCK == 0:
        at = _new_block(state, chain)
        if at == NONE:
            return
    chain.tail = at
    chain.count += 1
    event = state.mail[place(at)]
    event.time = time
    event.what = what
    event.sequence = BEFORE_ALL + (clock.part << PART_SHIFT) + clock.posted
    clock.posted += 1
    clock.mail_time = min(clock.mail_time, time)


@helper
def push_to_peer(state, port, lane, time, what):
    """Schedule what happens at the other end of a port's link."""
    if port.traits & CROSSES:
        _post(state, int(port.peer_part), lane, time, what)
    else:
        push(state, lane, time, what)


@across
def has_room(state, like, tables, half):
    """Return True where the lanes and the heap have room for what others sent; else notes what is to grow."""
    clock = state.clock[0]
    for lane in range(NONE, clock.lanes):
        if lane == NONE or lane >= state.settings[0].inbound:
            count = 0
            for other in range(len(tables)):
                count += _chain(table_at(like, tables, other), half, clock.part, lane).count
            if lane == NONE:
                if clock.heap + count + HEAP_MARGIN > len(state.heap):
                    clock.grow = GROW_HEAP
                    return False
            else:
                ring = state.lane[place(lane)]
                if ring.tail - ring.head + count > ring.mask:
                    clock.grow = GROW_LANES
                    return False
    return True


@across
def _take_lane(state, like, tables, half, lane):
    """Merge what others sent by one lane, by time and sender.

    In a tree whose leaves are the senders' next events each node has the lesser of the two below it, so that one
    event's turn costs a way from its leaf to the root, and not a look at all senders. Behind the tree stand where
    each sender's next event is and how many there are.
    """
    part = state.clock[0].part
    merge = state.merge
    leaves = len(merge) >> 2
    places = 2 * leaves
    counts = 3 * leaves
    start = NEVER
    left = 0
    for other in range(len(tables)):
        sender = table_at(like, tables, other)
        chain = _chain(sender, half, part, lane)
        merge[place(places + other)] = chain.head
        merge[place(counts + other)] = chain.count
        if chain.count > 0:
            left += chain.count
            start = min(start, sender.mail[place(chain.head)].time)
            chain.count = 0
    if left == 0:
        return
    for other in range(leaves):
        key = NEVER
        if other < len(tables) and merge[place(counts + other)] > 0:
            first = table_at(like, tables, other).mail[place(merge[place(places + other)])]
            key = ((first.time - start) << PART_BITS) | other
        merge[place(leaves + other)] = key
    for node in range(leaves - 1, 0, -1):
        merge[place(node)] = min(merge[place(2 * node)], merge[place(2 * node + 1)])
    least = merge[1]
    for _ in range(left):
        other = least & ((1 << PART_BITS) - 1)
        sender = table_at(like, tables, other)
        at = merge[place(places + other)]
        push(state, lane, start + (least >> PART_BITS), sender.mail[place(at)].what)
        prefetch(sender.mail, at + FETCHED, 0)
        more = merge[place(counts + other)] - 1
        merge[place(counts + other)] = more
        least = NEVER
        if more > 0:
            at = _after(sender, at)
            merge[place(places + other)] = at
            least = ((sender.mail[place(at)].time - start) << PART_BITS) | other
        node = leaves + other
        while node > 1:
            merge[place(node)] = least
            least = min(least, merge[place(node ^ 1)])
            node >>= 1


@across
def take_mail(state, like, tables, half):
    """Put what others sent in a window, in that half of their mail, where it belongs. False: no room yet."""
    if not has_room(state, like, tables, half):
        return False
    clock = state.clock[0]
    for other in range(len(tables)):
        sender = table_at(like, tables, other)
        chain = _chain(sender, half, clock.part, NONE)
        at = chain.head
        for _ in range(chain.count):
            event = sender.mail[place(at)]
            insert(state, event.time, event.sequence, event.what)
            at = _after(sender, at)
        chain.count = 0
    for lane in range(state.settings[0].inbound, clock.lanes):
        _take_lane(state, like, tables, half, lane)
    return True


def mail_entries(chains: int, ports: int) -> int:
    """Return the entries of mail that so many chains, and ports into other parts, need at first."""
    return chains + 4 * (HEAP_MARGIN >> BLOCK_BITS) + 8 * ports << BLOCK_BITS


def mail_of(state: State) -> Any:
    """Return the places of all mail that the other parts did not take yet."""
    found = []
    for chain in state.chain[state.chain.count > 0]:
        at = int(chain.head)
        for _ in range(int(chain.count)):
            found.append(at)
            at = int(state.mail[at].next) if at & LAST_OF_BLOCK == LAST_OF_BLOCK else at + 1
    return np.array(found, np.int64)
