"""Compiled: which links may lead to a switch, and forwarding tables filled from them.

All engines share one loop: take a destination switch, find for every other switch the links that may carry
packets on toward it (`toward`), then choose one of them for each LID that lives there. What may is a matter of
the *mode*: links on shortest paths, or links on legal paths of an up/down orientation. How one is chosen is
the engine's: least loaded or by the destination's index (here), whole trees at a time (`trees.py`).

Rows are switches, edges directed links of the CSR `start`, `peer` (as `routing.graph.switches` says). Arguments
named in `Graph` have shapes `[S + 1]`, `[E]`, ...; functions fill arrays of their caller.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.jit.decorators import entry, helper, inner

FAR = 1 << 30  # hops to what cannot be reached

SHORTEST = 0
UPDOWN = 1

# how a switch's packets go on in mode UPDOWN
DOWN = 0  # only down from here
UP = 1  # up first
ASTRAY = 2  # there is no legal path; down until there is one


class Graph(NamedTuple):
    """The switch graph as kernels take it."""

    start: np.ndarray  # int32 [S + 1]
    peer: np.ndarray  # int32 [E]
    back: np.ndarray  # int32 [E]
    number: np.ndarray  # int32 [E]
    cost: np.ndarray  # int32 [E]
    up: np.ndarray  # uint8 [E] whether the link leads up; used in mode UPDOWN
    top_down: np.ndarray  # int32 [S] rows so that all links up lead to earlier ones; used in mode UPDOWN


class Destinations(NamedTuple):
    """LIDs, K in all, grouped by the switch that they live at; those that are not counted come first."""

    visit: np.ndarray  # int32 [S] rows in the order in which their LIDs are given links
    start: np.ndarray  # int32 [S + 1] by row
    lid: np.ndarray  # int32 [K]
    index: np.ndarray  # int32 [K] running number of the adapter, or of the switch
    path: np.ndarray  # int32 [K] 0 at a base LID, then 1, 2, ... up to 1 << lmc
    counted: np.ndarray  # uint8 [K] whether load is counted: adapters yes, switches and aggregation nodes no


class Scratch(NamedTuple):
    """What is known of one destination switch."""

    hops: np.ndarray  # int32 [S]
    kind: np.ndarray  # uint8 [S]
    order: np.ndarray  # int32 [S] rows that reach it, nearest first, itself at 0
    bucket: np.ndarray
    queue: np.ndarray
    waiting: np.ndarray
    link_start: np.ndarray  # int32 [S + 1] by place in `order`
    link: np.ndarray  # int32 [E] edges that may carry packets on
    even: bool  # whether all links cost 1


@inner
def scratch(graph):
    """Room for `toward`."""
    rows = len(graph.start) - 1
    even = True
    for e in range(len(graph.cost)):
        even = even and graph.cost[e] == 1
    return Scratch(
        np.empty(rows, np.int32),
        np.empty(rows, np.uint8),
        np.empty(rows, np.int32),
        np.zeros(1024, np.int32),
        np.empty(rows + 1, np.int32),
        np.zeros(rows, np.uint8),
        np.zeros(rows + 2, np.int32),
        np.empty(len(graph.peer), np.int32),
        even,
    )


@inner
def _correct_labels(graph, up_only, fixed, s, head, tail):
    """Shorten `hops` along links backwards from what waits in the queue, until nothing changes.

    Breadth-first search where all links cost the same; a switch waits again when a costlier way was found first.
    `up_only` follows only links that lead up (their other direction is a way down). Rows of a kind below `fixed`
    keep theirs.
    """
    room = len(s.queue)
    while head != tail:
        row = s.queue[head]
        head = head + 1 if head + 1 < room else 0
        s.waiting[row] = 0
        here = s.hops[row]
        for e in range(graph.start[row], graph.start[row + 1]):
            if up_only and not graph.up[e]:
                continue
            before = graph.peer[e]
            if s.kind[before] < fixed:
                continue
            step = here + graph.cost[graph.back[e]]
            if step < s.hops[before]:
                s.hops[before] = step
                if not s.waiting[before]:
                    s.waiting[before] = 1
                    s.queue[tail] = before
                    tail = tail + 1 if tail + 1 < room else 0


@helper
def _breadth_first(graph, to, up_only, s):
    """Fill `hops` backwards from `to` over links that all cost 1, and `order`; returns how many rows were reached.

    `up_only` as in `_correct_labels`.
    """
    s.order[0] = to
    reached = 1
    i = 0
    while i < reached:
        row = s.order[i]
        i += 1
        step = s.hops[row] + 1
        for e in range(graph.start[row], graph.start[row + 1]):
            before = graph.peer[e]
            if s.hops[before] == FAR and (graph.up[e] or not up_only):
                s.hops[before] = step
                s.order[reached] = before
                reached += 1
    return reached


@inner
def _hops_updown(graph, to, s):
    """Hops and kinds in mode UPDOWN: down wherever only down is needed, otherwise up, otherwise astray.

    Choosing down whenever it suffices, though up might be shorter on an odd graph, keeps what other switches
    rely on: that a packet which was sent down goes on down. So tables by destination never turn down and up.
    """
    rows = len(graph.start) - 1
    s.kind[:] = ASTRAY
    if s.even:
        _breadth_first(graph, to, True, s)
    else:
        s.queue[0] = to
        _correct_labels(graph, True, DOWN, s, 0, 1)
    for row in range(rows):
        if s.hops[row] < FAR:
            s.kind[row] = DOWN
    lost = 0
    for i in range(rows):
        row = graph.top_down[i]
        if s.kind[row] == DOWN:
            continue
        best = FAR
        for e in range(graph.start[row], graph.start[row + 1]):
            if graph.up[e] and s.hops[graph.peer[e]] < FAR:
                best = min(best, s.hops[graph.peer[e]] + graph.cost[e])
        if best < FAR:
            s.hops[row] = best
            s.kind[row] = UP
        else:
            lost += 1
    if lost == 0:
        return
    tail = 0
    for row in range(rows):
        if s.kind[row] != ASTRAY:
            continue
        for e in range(graph.start[row], graph.start[row + 1]):
            peer = graph.peer[e]
            if s.kind[peer] != ASTRAY:
                s.hops[row] = min(s.hops[row], s.hops[peer] + graph.cost[e])
        if s.hops[row] < FAR:
            s.queue[tail] = row
            s.waiting[row] = 1
            tail += 1
    _correct_labels(graph, False, ASTRAY, s, 0, tail)


@inner
def _sort_by_hops(s):
    """Fill `order`; returns how many rows reach the destination. A counting sort: few distinct hops."""
    rows = len(s.hops)
    deepest = 0
    for row in range(rows):
        if s.hops[row] < FAR and s.hops[row] > deepest:
            deepest = s.hops[row]
    bucket = s.bucket if deepest + 2 <= len(s.bucket) else np.zeros(deepest + 2, np.int32)
    bucket[: deepest + 2] = 0
    for row in range(rows):
        if s.hops[row] < FAR:
            bucket[s.hops[row] + 1] += 1
    for i in range(1, deepest + 2):
        bucket[i] += bucket[i - 1]
    reached = bucket[deepest + 1]
    for row in range(rows):
        if s.hops[row] < FAR:
            s.order[bucket[s.hops[row]]] = row
            bucket[s.hops[row]] += 1
    return reached


@inner
def _hops_shortest(graph, to, s):
    """Hops in mode SHORTEST, and `order`. Returns how many rows reach the destination."""
    if s.even:
        return _breadth_first(graph, to, False, s)
    s.queue[0] = to
    _correct_labels(graph, False, DOWN, s, 0, 1)
    return _sort_by_hops(s)


@inner
def toward(graph, mode, to, s):
    """Hops to switch `to`, and the links that lead on from each switch. Returns how many rows reach it."""
    s.hops[:] = FAR
    s.hops[to] = 0
    if mode == UPDOWN:
        _hops_updown(graph, to, s)
        reached = _sort_by_hops(s)
    else:
        s.kind[:] = DOWN
        reached = _hops_shortest(graph, to, s)
    filled = 0
    s.link_start[0] = 0
    s.link_start[1] = 0
    for i in range(1, reached):
        row = s.order[i]
        for e in range(graph.start[row], graph.start[row + 1]):
            peer = graph.peer[e]
            if s.hops[peer] + graph.cost[e] != s.hops[row]:
                continue
            if mode == UPDOWN:
                if s.kind[row] == DOWN and (graph.up[e] or s.kind[peer] != DOWN):
                    continue
                if s.kind[row] == UP and (not graph.up[e] or s.kind[peer] == ASTRAY):
                    continue
            s.link[filled] = e
            filled += 1
        s.link_start[i + 1] = filled
    return reached


@helper
def _share_out(graph, s, i, to_these, k, last, table, load):
    """Give LIDs `k` up to `last` to the links of place `i`: each to the least loaded, the first of equal ones.

    In rounds, because a link that took one is not the least loaded again until all of its like have.
    """
    begin, end = s.link_start[i], s.link_start[i + 1]
    if end == begin + 1:
        e = s.link[begin]
        load[e] += last - k
        number = graph.number[e]
        for at in range(k, last):
            table[to_these.lid[at]] = number
        return
    while k < last:
        least = load[s.link[begin]]
        for j in range(begin + 1, end):
            least = min(least, load[s.link[j]])
        for j in range(begin, end):
            e = s.link[j]
            if load[e] == least:
                load[e] += 1
                table[to_these.lid[k]] = graph.number[e]
                k += 1
                if k == last:
                    return


@helper
def _share_out_apart(graph, s, i, to_these, k, last, table, load, taken):
    """The same where adapters have several LIDs (LMC), which leave by links to different switches if they can."""
    begin, end = s.link_start[i], s.link_start[i + 1]
    for at in range(k, last):
        path = to_these.path[at]
        best, best_used = s.link[begin], FAR
        for j in range(begin, end):
            e = s.link[j]
            used = 0
            for p in range(path):
                if graph.peer[taken[p]] == graph.peer[e]:
                    used += 2 if taken[p] == e else 1
            if used < best_used or (used == best_used and load[e] < load[best]):
                best, best_used = e, used
        taken[path] = best
        load[best] += 1
        table[to_these.lid[at]] = graph.number[best]


@entry
def fill_least_loaded(graph, mode, to_these, lft, load):
    """Linear forwarding tables [S, lids]: each adapter's LID through the port with the fewest LIDs so far.

    Further LIDs of an adapter (LMC) leave by a link to a switch that its earlier ones do not use, where there is
    one. `load` int32 [E] counts LIDs, in and out. Returns (switches astray, the first destination with one).
    """
    s = scratch(graph)
    taken = np.empty(128, np.int32)
    apart = to_these.path.max() > 0 if len(to_these.path) else False
    astray, first = 0, NONE
    for to in to_these.visit:
        reached = toward(graph, mode, to, s)
        k, last = to_these.start[to], to_these.start[to + 1]
        counted = k
        while counted < last and not to_these.counted[counted]:
            counted += 1
        for i in range(1, reached):
            row = s.order[i]
            if s.kind[row] == ASTRAY:
                astray += 1
                if first == NONE:
                    first = to
            begin, end = s.link_start[i], s.link_start[i + 1]
            for at in range(k, counted):
                # paths astray that turn in few places need few lanes
                turn = to_these.index[at] % (end - begin) if s.kind[row] != ASTRAY else 0
                lft[row, to_these.lid[at]] = graph.number[s.link[begin + turn]]
            if apart:
                _share_out_apart(graph, s, i, to_these, counted, last, lft[row], load, taken)
            else:
                _share_out(graph, s, i, to_these, counted, last, lft[row], load)
    return astray, first


@entry
def fill_by_index(graph, mode, to_these, stride, lft):
    """D-mod-K: the destination's index picks the link, so that all sources agree where paths meet again.

    Of k links a switch takes number `(index // stride) mod k`, with the `stride` int64 [E] of their tier. Further
    LIDs of an adapter (LMC) take the index's neighbours.
    """
    s = scratch(graph)
    for to in to_these.visit:
        reached = toward(graph, mode, to, s)
        first, last = to_these.start[to], to_these.start[to + 1]
        for i in range(1, reached):
            table = lft[s.order[i]]
            begin, end = s.link_start[i], s.link_start[i + 1]
            if end == begin + 1:
                number = graph.number[s.link[begin]]
                for k in range(first, last):
                    table[to_these.lid[k]] = number
                continue
            wide = stride[s.link[begin]]
            before = np.int64(-2)
            turn, within = np.int64(0), np.int64(0)  # of `before`: the link's number, and what // leaves over
            for k in range(first, last):
                index = np.int64(to_these.index[k] + to_these.path[k])
                if index == before + 1:  # mostly so, and a division costs more than all the rest
                    within += 1
                    if within == wide:
                        within = 0
                        turn = turn + 1 if turn + 1 < end - begin else 0
                else:
                    turn, within = (index // wide) % (end - begin), index % wide
                before = index
                table[to_these.lid[k]] = graph.number[s.link[begin + turn]]


@entry
def legal_hops(graph, columns, hops, kind):
    """Hops int32 [D, S] and kinds uint8 [D, S] in mode UPDOWN toward the switches `columns` [D]."""
    s = scratch(graph)
    for c in range(len(columns)):
        s.hops[:] = FAR
        s.hops[columns[c]] = 0
        _hops_updown(graph, columns[c], s)
        hops[c] = s.hops
        kind[c] = s.kind


@entry
def shortest_hops(graph, columns, hops):
    """Hops int32 [D, S] on shortest paths toward the switches `columns` [D]."""
    s = scratch(graph)
    s.kind[:] = DOWN
    for c in range(len(columns)):
        s.hops[:] = FAR
        s.hops[columns[c]] = 0
        _hops_shortest(graph, columns[c], s)
        hops[c] = s.hops


@entry
def on_shortest_paths(hops, columns, on):
    """Mark the switches that lie on a shortest path between two of `columns` [D]: `on` uint8 [S] is filled.

    `hops` int32 [S, D] from each switch to each column; links must cost the same in both directions.
    """
    for row in range(len(on)):
        here = hops[row]
        on[row] = 0
        for i in range(len(columns)):
            if here[i] == 0:
                on[row] = 1
            if here[i] == FAR:
                continue
            across = hops[columns[i]]
            for j in range(i + 1, len(columns)):
                if here[i] + here[j] == across[j]:
                    on[row] = 1
                    break
            if on[row]:
                break
