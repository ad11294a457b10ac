"""Compiled: trees of shortest paths by Dijkstra's algorithm, one a LID, each aware of those before: OpenSM's sssp.

All links start with the same weight, the square of all LIDs, so that no detour pays, and gain the sources behind
them with every tree. Which of equally long paths is found first depends on the order in which a heap with four
children a node gives up equal keys, so the heap moves its elements just as OpenSM's does (complib's cl_heap).

The heap holds vertices 0..S - 1 (switches), and S for an adapter whose LID is the root of a tree. A search ends as
soon as no link can shorten anything: every vertex has been met, and none is farther than the nearest one that
waits and one more link.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.jit.decorators import entry, helper, inner

INFINITE = 0x7FFFFFFF
CHILDREN = 4


class Heap(NamedTuple):
    """Keys and vertices by place, and places by vertex. `size` int64 [1]."""

    key: np.ndarray  # int64 [S + 1]
    vertex: np.ndarray  # int32 [S + 1]
    place: np.ndarray  # int32 [S + 1]
    size: np.ndarray


@helper
def _rise(heap, at, key, vertex):
    """Put an element at the place that is free, or above it."""
    while at > 0:
        parent = (at - 1) // CHILDREN
        if key >= heap.key[parent]:
            break
        heap.key[at], heap.vertex[at] = heap.key[parent], heap.vertex[parent]
        heap.place[heap.vertex[at]] = at
        at = parent
    heap.key[at], heap.vertex[at], heap.place[vertex] = key, vertex, at


@helper
def _take_nearest(heap):
    """Remove and return the vertex at the top; the last element sinks from there, past equal children."""
    nearest = heap.vertex[0]
    size = heap.size[0] - 1
    heap.size[0] = size
    key, vertex = heap.key[size], heap.vertex[size]
    at = 0
    while True:
        first = at * CHILDREN + 1
        if first >= size:
            break
        best, least = first, heap.key[first]
        for child in range(first + 1, min(first + CHILDREN, size)):
            if heap.key[child] <= least:
                best, least = child, heap.key[child]
        if key <= least:
            break
        heap.key[at], heap.vertex[at] = least, heap.vertex[best]
        heap.place[heap.vertex[at]] = at
        at = best
    heap.key[at], heap.vertex[at], heap.place[vertex] = key, vertex, at
    return nearest


@inner
def _fresh(heap, rows, adapter):
    """Fill a heap that waits for its root: all infinitely far, an adapter's own vertex on top and taken again."""
    heap.size[0] = rows
    for row in range(rows):
        heap.key[row], heap.vertex[row], heap.place[row] = INFINITE, row, row
    if adapter:
        heap.size[0] = rows + 1
        heap.key[rows], heap.vertex[rows] = INFINITE, rows
        _rise(heap, rows, 0, rows)
        _take_nearest(heap)


@inner
def _grow(start, peer, weight, least_weight, root, distance, heap, used, taken):
    """Fill `used` [S], the edge toward each vertex, from a root whose distance is set. Returns vertices taken."""
    rows = len(distance)
    unmet = rows - 1
    farthest = distance[root]
    count = 0
    while heap.size[0] > 0:
        row = _take_nearest(heap)
        here = distance[row]
        if here >= INFINITE or (unmet == 0 and farthest <= here + least_weight):
            break
        taken[count] = row
        count += 1
        for e in range(start[row], start[row + 1]):
            far = peer[e]
            step = here + weight[e]
            if step < distance[far]:
                if distance[far] == INFINITE:
                    unmet -= 1
                    farthest = max(farthest, step)
                used[far] = e
                distance[far] = step
                _rise(heap, heap.place[far], step, far)
    return count


@helper
def _weigh(owner, sources, used, taken, count, behind, weight):
    """Add to every link of the tree the sources behind it."""
    rows = len(used)
    for row in range(rows):
        behind[row] = sources[row]
    # what was never taken has nothing behind it
    for i in range(count):
        behind[taken[i]] += 1 << 40
    for row in range(rows):
        if behind[row] < 1 << 40 and used[row] != NONE:
            weight[used[row]] += behind[row]
            behind[owner[used[row]]] += behind[row]
    for i in range(count - 1, -1, -1):
        row = taken[i]
        total = behind[row] - (1 << 40)
        if used[row] != NONE:
            weight[used[row]] += total
            behind[owner[used[row]]] += total


@entry
def fill_heaped_trees(start, peer, back, number, owner, sources, base_weight, roots, lids, lft):
    """Fill forwarding tables `lft` uint8 [S, LIDs] with a tree for each LID, in order.

    `roots` int32 [K] are the switches that the LIDs are at, plus S where it is an adapter's; `owner` [E] the
    switch that a link starts at; `sources` int64 [S] what each switch counts. Returns the place of the first LID
    that some switch does not reach, or NONE.
    """
    rows = len(start) - 1
    weight = np.full(len(peer), base_weight, np.int64)
    distance = np.empty(rows, np.int64)
    used = np.empty(rows, np.int32)
    taken = np.empty(rows, np.int32)
    behind = np.empty(rows, np.int64)
    size = np.empty(1, np.int64)
    room = rows + 1
    heap = Heap(np.empty(room, np.int64), np.empty(room, np.int32), np.empty(room, np.int32), size)
    of_adapter = Heap(
        np.empty(room, np.int64), np.empty(room, np.int32), np.empty(room, np.int32), np.empty(1, np.int64)
    )
    of_switch = Heap(
        np.empty(room, np.int64), np.empty(room, np.int32), np.empty(room, np.int32), np.empty(1, np.int64)
    )
    _fresh(of_adapter, rows, True)
    _fresh(of_switch, rows, False)
    for k in range(len(roots)):
        adapter = roots[k] >= rows
        root = roots[k] - rows if adapter else roots[k]
        blank = of_adapter if adapter else of_switch
        heap.key[:] = blank.key
        heap.vertex[:] = blank.vertex
        heap.place[:] = blank.place
        heap.size[0] = rows
        distance[:] = INFINITE
        used[:] = NONE
        distance[root] = 1 if adapter else 0
        _rise(heap, heap.place[root], distance[root], root)
        count = _grow(start, peer, weight, base_weight, root, distance, heap, used, taken)
        lid = lids[k]
        for row in range(rows):
            if row != root:
                if used[row] == NONE:
                    return k
                lft[row, lid] = number[back[used[row]]]
        _weigh(owner, sources, used, taken, count, behind, weight)
    return NONE
