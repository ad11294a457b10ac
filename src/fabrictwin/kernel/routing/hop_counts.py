"""Compiled: hops through every port of every switch, as OpenSM's engines count them, and the ports that are best.

OpenSM keeps for each switch, destination switch and port the hops by way of that port, and uses the ports with the
fewest. minhop fills these counts by relaxation, updn and dnup by a queue from each destination; the queue's order
decides, where tiers are uneven, which ports count, so it is kept to the letter.

The outcome is one bit an edge: `best` uint64 [S, S, words], by destination row, then row, holds a 1 for each edge
of the row's range (in the order of port numbers) that is among the best.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.jit.decorators import entry, helper

NO_PATH = 255  # hops of what cannot be reached: OpenSM counts them in a byte
FAR_RANK = 1 << 30

# the directions of a queue from a destination, as updn and dnup name them
UP = 0
DOWN = 1
LEVEL = 2

RULE_UPDN = 0
RULE_DNUP = 1


class Loops(NamedTuple):
    """Ports that a cable joins to another port of the same switch, L in all, in order of row and port number."""

    start: np.ndarray  # int32 [S + 1] by row
    edge: np.ndarray  # int32 [L] the first edge behind a port with a higher number, or the row's end
    back: np.ndarray  # int32 [L] the cable's other end


@entry
def ranks_below(start, peer, top, rank):
    """Hops int32 [S] from the nearest row of `top`; FAR_RANK where there is no way."""
    rank[:] = FAR_RANK
    queue = np.empty(len(rank), np.int32)
    tail = 0
    for row in top:
        rank[row] = 0
        queue[tail] = row
        tail += 1
    head = 0
    while head < tail:
        row = queue[head]
        head += 1
        for e in range(start[row], start[row + 1]):
            if rank[peer[e]] > rank[row] + 1:
                if rank[peer[e]] == FAR_RANK:
                    queue[tail] = peer[e]
                    tail += 1
                rank[peer[e]] = rank[row] + 1


@helper
def _direction(rule, here, there, own, other):
    """The direction of a step from rank `here` to rank `there`; `own` and `other` decide between equals."""
    if rule == RULE_DNUP:
        if here == there:
            return LEVEL
        return DOWN if here < there else UP
    if here == 0 and there == 0:
        return UP
    if here != there:
        return DOWN if here < there else UP
    return UP if own > other else DOWN


@helper
def _forbidden(rule, before, after):
    """Return True where a path may not turn so."""
    if rule == RULE_DNUP:
        return before == UP and after == DOWN
    return before == DOWN and after == UP


@entry
def best_ports_by_queue(start, peer, back, rank, ident, rule, loops, best):
    """Fill `best` for paths that keep the rule of updn or dnup, from every destination.

    `ident` int64 [S] decides which of two switches of one rank is above. A cable from a switch to itself puts that
    switch into the queue again, with a direction of its own.
    """
    rows = len(start) - 1
    hops = np.empty(len(peer), np.uint8)
    least = np.empty(rows, np.uint8)
    waiting = np.zeros(rows, np.uint8)
    direction = np.empty(rows, np.uint8)
    queue = np.empty(rows + 1, np.int32)
    room = rows + 1
    step = np.empty(len(peer), np.uint8)
    loop_hops = np.empty(len(loops.edge), np.uint8)
    for row in range(rows):
        for e in range(start[row], start[row + 1]):
            step[e] = _direction(rule, rank[row], rank[peer[e]], ident[row], ident[peer[e]])
    for to in range(rows):
        hops[:] = NO_PATH
        loop_hops[:] = NO_PATH
        least[:] = NO_PATH
        least[to] = 0
        direction[to] = UP if rule == RULE_UPDN else DOWN
        queue[0] = to
        head, tail = 0, 1
        while head != tail:
            row = queue[head]
            head = head + 1 if head + 1 < room else 0
            waiting[row] = 0
            here = direction[row]
            loop = loops.start[row]
            for e in range(start[row], start[row + 1] + 1):
                while loop < loops.start[row + 1] and loops.edge[loop] <= e:
                    other = loops.back[loop]
                    loop += 1
                    again = _direction(rule, rank[row], rank[row], 0, 0)
                    if _forbidden(rule, here, again) or least[row] + 1 >= loop_hops[other]:
                        continue
                    loop_hops[other] = least[row] + 1
                    if not waiting[row]:
                        waiting[row] = 1
                        direction[row] = again
                        queue[tail] = row
                        tail = tail + 1 if tail + 1 < room else 0
                if e == start[row + 1]:
                    break
                if _forbidden(rule, here, step[e]):
                    continue
                count = least[row] + 1
                if count >= hops[back[e]]:
                    continue
                far = peer[e]
                hops[back[e]] = count
                if count < least[far]:
                    least[far] = count
                if not waiting[far]:
                    waiting[far] = 1
                    direction[far] = step[e]
                    queue[tail] = far
                    tail = tail + 1 if tail + 1 < room else 0
        for row in range(rows):
            best[to, row, :] = 0
            if row == to or least[row] == NO_PATH:
                continue
            first = start[row]
            for e in range(first, start[row + 1]):
                if hops[e] == least[row]:
                    best[to, row, (e - first) >> 6] |= np.uint64(1) << np.uint64((e - first) & 63)


@entry
def best_ports_by_hops(start, peer, cost, hops, best):
    """Fill `best` for shortest paths. `hops` int32 [S, S] by destination, then row; `cost` int32 [E]."""
    rows = len(start) - 1
    for to in range(rows):
        for row in range(rows):
            best[to, row, :] = 0
            if row == to or hops[to, row] >= NO_PATH:
                continue
            first = start[row]
            for e in range(first, start[row + 1]):
                if hops[to, peer[e]] + cost[e] == hops[to, row]:
                    best[to, row, (e - first) >> 6] |= np.uint64(1) << np.uint64((e - first) & 63)


@entry
def bars(hops, adapters, tall, high, found):
    """Rows from which nearly all adapters are equally far: OpenSM's roots of updn. `found` uint8 [S] is filled.

    `hops` int32 [S, S]. One number of hops must hold more than `tall` adapters, and no other more than `high`.
    """
    rows = len(adapters)
    histogram = np.empty(64, np.int64)
    for row in range(rows):
        histogram[:] = 0
        for to in range(rows):
            if adapters[to] and hops[to, row] < 64:
                histogram[hops[to, row]] += adapters[to]
        above, wide = 0, 0
        for i in range(64):
            above += histogram[i] > tall
            wide += histogram[i] > high
        found[row] = above == 1 and wide == 1
