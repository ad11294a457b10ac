"""Compiled: forwarding tables filled a destination tree at a time, with the paths that each link really carries.

`fill_shortest_trees` is the routing of SSSP and DFSSSP; `fill_fat_trees` that of fat-trees. Both know, unlike
`forwarding.fill_least_loaded`, how many adapters send through a link to a destination: a table entry that no
packet ever meets counts nothing.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.jit.decorators import entry, helper
from fabrictwin.kernel.routing.table_filling import ASTRAY, DOWN, UPDOWN, scratch, toward


@helper
def _add_paths(graph, s, reached, to, chosen, sources, paths, load):
    """Add a tree's paths to the links' load: `sources` [S] adapters at each switch, `paths` [S] is scratch."""
    for i in range(reached):
        paths[s.order[i]] = sources[s.order[i]]
    for i in range(reached - 1, 0, -1):
        row = s.order[i]
        load[chosen[row]] += paths[row]
        paths[graph.peer[chosen[row]]] += paths[row]


@helper
def _write(graph, s, reached, chosen, lid, lft):
    for i in range(1, reached):
        row = s.order[i]
        lft[row, lid] = graph.number[chosen[row]]


@entry
def fill_shortest_trees(graph, mode, to_these, sources, lft, load):
    """SSSP: for each LID the tree of shortest paths that are least loaded so far.

    Hoefler, Schneider, Lumsdaine, "Optimized Routing for Large-Scale InfiniBand Networks", 2009: Dijkstra's
    algorithm per destination, after which the number of paths through a link is added to its weight; weights
    start so high that all paths stay shortest ones. That is the same as the order (hops, sum of loads), and
    since hops are known, Dijkstra's queue becomes one sweep over the switches, nearest first.
    `sources` int32 [S] counts the adapters at each switch. `load` int64 [E], in and out, counts paths.
    """
    rows = len(graph.start) - 1
    s = scratch(graph)
    chosen = np.empty(rows, np.int32)
    total = np.empty(rows, np.int64)
    paths = np.empty(rows, np.int64)
    for to in to_these.visit:
        reached = toward(graph, mode, to, s)
        for k in range(to_these.start[to], to_these.start[to + 1]):
            if k > to_these.start[to] and not to_these.counted[k]:
                _write(graph, s, reached, chosen, to_these.lid[k], lft)  # the same tree as the one before
                continue
            total[to] = 0
            for i in range(1, reached):
                row = s.order[i]
                begin, end = s.link_start[i], s.link_start[i + 1]
                best = s.link[begin]
                least = load[best] + total[graph.peer[best]]
                for j in range(begin + 1, end):
                    e = s.link[j]
                    sum_ = load[e] + total[graph.peer[e]]
                    if sum_ < least:
                        best, least = e, sum_
                chosen[row] = best
                total[row] = least
            if to_these.counted[k]:
                _add_paths(graph, s, reached, to, chosen, sources, paths, load)
            _write(graph, s, reached, chosen, to_these.lid[k], lft)


@helper
def _climb(graph, to, index, counted, avoid, slot, slots, rank, mains, main, place):
    """Choose the switches over which a destination is best reached: from its own switch up, level by level.

    At each the link *down* that the fewest destinations have been given (`mains` int32 [E], in and out), then the
    place that the destination's index asks for. Switches in `avoid` come last at the first step. `main` int32 [S]
    gets the link down of each switch of the chain, NONE elsewhere; `place` int32 [S] their slots by rank.
    Returns the switch of the first step, NONE where there is none.
    """
    main[:] = NONE
    row = to
    first = NONE
    while True:
        place[rank[row]] = slot[row]
        best = NONE
        best_avoided, best_given, best_turn = 0, 0, np.int64(0)
        for e in range(graph.start[row], graph.start[row + 1]):
            if not graph.up[e]:
                continue
            above = graph.peer[e]
            avoided = 0
            if row == to:
                for a in range(len(avoid)):
                    avoided += 1 if avoid[a] == above else 0
            given = mains[graph.back[e]] if counted else 0
            turn = (slot[above] - index) % slots[above]
            if (
                best == NONE
                or avoided < best_avoided
                or (avoided == best_avoided and given < best_given)
                or (avoided == best_avoided and given == best_given and turn < best_turn)
            ):
                best, best_avoided, best_given, best_turn = e, avoided, given, turn
        if best == NONE:
            return first
        if counted:
            mains[graph.back[best]] += 1
        row = graph.peer[best]
        main[row] = graph.back[best]
        index //= slots[row]
        if first == NONE:
            first = row


# How good it is to go on over a switch or link, as one number so that comparing is one step; less is better:
# 7 bits of switches beside the chain on the way down, one that says "not the chain's own place", 17 bits of
# destinations that a link was given past their chain, 38 bits of paths that it carries.
_DETOUR = 56
_BESIDE = np.int64(1) << 55
_GIVEN = 38
_WORST = np.iinfo(np.int64).max


@helper
def _toward_chain(graph, s, reached, to, counted, slot, rank, main, place, load, aside, rating, chosen):
    """Choose every switch's link for one destination, given its chain. See `fill_fat_trees`."""
    rating[to] = 0
    for i in range(1, reached):
        row = s.order[i]
        beside = _BESIDE if slot[row] != place[rank[row]] else np.int64(0)
        if main[row] != NONE:
            chosen[row] = main[row]
            rating[row] = beside
            continue
        down = s.kind[row] == DOWN
        keep = ~_BESIDE if down else np.int64(-1)
        best, least = NONE, _WORST
        for j in range(s.link_start[i], s.link_start[i + 1]):
            e = s.link[j]
            rated = rating[graph.peer[e]] & keep
            if counted:
                if down or rated >= _BESIDE << 1:
                    rated += np.int64(aside[e]) << _GIVEN
                rated += load[e]
            better = rated < least
            best = e if better else best
            least = rated if better else least
        chosen[row] = best
        detour = (rating[graph.peer[best]] >> _DETOUR) + (1 if down else 0)
        rating[row] = detour << _DETOUR if detour else beside
        if counted and detour:
            aside[best] += 1


@entry
def fill_fat_trees(graph, to_these, sources, slot, slots, rank, lft, load):
    """Fat-tree routing: a chain of main switches for each destination, and everybody toward that chain.

    The destination's chain goes from its leaf up to a root, at each level over the link down that the fewest
    destinations have been given; among equal ones over the place that d-mod-k would take (Zahavi 2010), so that
    on a regular tree shift permutations do not collide. All other switches send toward that chain as far as
    their cables allow: so that the way down leaves the chain least, then by the chain's own place, then over the
    link that carries the fewest paths. So a path leaves the chain only where a cable is missing; destinations
    that a switch cannot reach over their chain take turns on its links. Paths only ever go up, then down (mode
    UPDOWN). Further LIDs of an adapter (LMC) come after the base LIDs of their switch and start from another
    switch above it.

    `slot`, `slots` int32 [S]: the place of a switch among those that share children with it, and how many those
    are. `rank` int32 [S]: distance from the roots. `sources`, `load` as in `fill_shortest_trees`.
    Returns (switches astray, the first destination with one).
    """
    rows = len(graph.start) - 1
    s = scratch(graph)
    chosen = np.empty(rows, np.int32)
    mains = np.zeros(len(graph.peer), np.int32)
    aside = np.zeros(len(graph.peer), np.int32)  # destinations sent this way past their chain
    main = np.empty(rows, np.int32)
    place = np.zeros(rows, np.int32)
    rating = np.empty(rows, np.int64)
    paths = np.empty(rows, np.int64)
    first = np.empty(len(to_these.lid), np.int32)  # the chain's first step
    astray, first_astray = 0, NONE
    for to in to_these.visit:
        reached = toward(graph, UPDOWN, to, s)
        for i in range(1, reached):
            if s.kind[s.order[i]] == ASTRAY:
                astray += 1
                if first_astray == NONE:
                    first_astray = to
        begin, end = to_these.start[to], to_these.start[to + 1]
        widest = 0
        for k in range(begin, end):
            widest = max(widest, to_these.path[k])
        for path in range(widest + 1):
            for k in range(begin, end):
                if to_these.path[k] != path:
                    continue
                if k > begin and not to_these.counted[k]:
                    _write(graph, s, reached, chosen, to_these.lid[k], lft)  # the same tree as the one before
                    continue
                counted = to_these.counted[k] != 0
                index = np.int64(to_these.index[k] + path)
                earlier = first[k - path : k]
                first[k] = _climb(graph, to, index, counted, earlier, slot, slots, rank, mains, main, place)
                _toward_chain(graph, s, reached, to, counted, slot, rank, main, place, load, aside, rating, chosen)
                if counted:
                    _add_paths(graph, s, reached, to, chosen, sources, paths, load)
                _write(graph, s, reached, chosen, to_these.lid[k], lft)
    return astray, first_astray
