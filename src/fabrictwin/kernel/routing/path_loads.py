"""Compiled: what forwarding tables do, whoever made them: who is reached, over how many links, loaded how.

Tables come transposed, `lft` uint8 [lids, S]. Nothing is assumed of them: they may loop, lead nowhere, or deliver
to the wrong port. A link is an edge of the switch graph; links to endpoints are not counted, each carries its
endpoint's traffic and no more.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.jit.decorators import entry, inner

LOST = -1  # depth of a switch whose packets end at a port that leads nowhere, or at the wrong endpoint
LOOP = -2
UNKNOWN = -3
MOST_HOPS = 64  # histogram; longer paths count as these


@inner
def depths(table, at, number, port_edge, peer, depth, trail):
    """Links from each switch to the destination, port `number` of switch `at`; LOST or LOOP elsewhere.

    `depth` int32 [S] is filled, `trail` int32 [S] is scratch.
    """
    rows = len(table)
    depth[:] = UNKNOWN
    for source in range(rows):
        row = source
        length = 0
        while True:
            if depth[row] != UNKNOWN:
                end = depth[row]
                break
            if row == at and table[row] == number:
                depth[row] = 0
                end = 0
                break
            e = port_edge[row, table[row]]
            if e == NONE:
                depth[row] = LOST
                end = LOST
                break
            trail[length] = row
            length += 1
            depth[row] = LOOP  # met again on this walk it is one
            row = peer[e]
        for i in range(length - 1, -1, -1):
            end = end + 1 if end >= 0 else end
            depth[trail[i]] = end


@entry
def survey(lft, lids, at, number, adapter, base, column, port_edge, peer, plane, sources, shortest, hops, load):
    """Follow the tables to each of K destinations from every switch.

    `at`, `number`, `adapter`, `base` [K]: the destination's switch and port (0: the switch itself), whether it is
    an adapter, whether the LID is its base LID. `column` int32 [K] is the switch's row of `shortest` int32
    [columns, S], hops by breadth-first search. `sources` int32 [2, S]: endpoints and adapters at each switch.
    Filled: `hops` int64 [2, 65], pairs of adapters by links taken and by links beyond the shortest path; `load`
    int64 [E], paths of an all-to-all between adapters through each link.
    Returns (pairs of endpoints, those not reached, their first destination, its source's row, its depth).
    """
    rows = len(plane)
    depth = np.empty(rows, np.int32)
    trail = np.empty(rows, np.int32)
    paths = np.empty(rows, np.int64)
    order = np.empty(rows, np.int32)
    bucket = np.empty(rows + 2, np.int32)
    pairs, lost, first, first_row, first_depth = 0, 0, NONE, NONE, 0
    for k in range(len(lids)):
        table = lft[lids[k]]
        depths(table, at[k], number[k], port_edge, peer, depth, trail)
        for row in range(rows):
            count = sources[0, row]
            if plane[row] != plane[at[k]] or count == 0:
                continue
            if row == at[k] and number[k] != 0:
                count -= 1  # itself
            pairs += count
            if depth[row] < 0:
                lost += count
                if first == NONE and count > 0:
                    first, first_row, first_depth = k, row, depth[row]
                continue
            if adapter[k] and base[k]:
                senders = sources[1, row] - (1 if row == at[k] else 0)
                hops[0, min(depth[row], MOST_HOPS)] += senders
                hops[1, min(depth[row] - shortest[column[k], row], MOST_HOPS)] += senders
        if not (adapter[k] and base[k]):
            continue
        deepest = 0
        for row in range(rows):
            deepest = max(deepest, depth[row])
        bucket[: deepest + 2] = 0
        for row in range(rows):
            if depth[row] >= 0:
                bucket[depth[row] + 1] += 1
        for i in range(1, deepest + 2):
            bucket[i] += bucket[i - 1]
        reached = 0
        for row in range(rows):
            if depth[row] >= 0:
                order[bucket[depth[row]]] = row
                bucket[depth[row]] += 1
                paths[row] = sources[1, row]
                reached += 1
        for i in range(reached - 1, 0, -1):
            row = order[i]
            if row == at[k]:
                break
            e = port_edge[row, table[row]]
            load[e] += paths[row]
            paths[peer[e]] += paths[row]
    return pairs, lost, first, first_row, first_depth


@inner
def _one(lft, row, lid, at, number, port_edge, peer, path):
    """Edges of a path into `path`; returns how many, LOST where it does not arrive."""
    table = lft[lid]
    length = 0
    while row != at or table[row] != number:
        e = port_edge[row, table[row]]
        if e == NONE or length == len(path):
            return LOST
        path[length] = e
        length += 1
        row = peer[e]
    return length


@inner
def _permutation(lft, lid, at, number, to, port_edge, peer, slowness, load, paths, length):
    """Worst and mean congestion of one permutation: adapter i sends to adapter `to[i]`.

    A path's congestion is the most flows on any of its links, times the link's `slowness`, at least 1 (its own
    adapter's link). Returns (worst, sum over paths, paths that do not arrive).
    """
    n = len(lid)
    missing = 0
    for i in range(n):
        j = to[i]
        length[i] = _one(lft, at[i], lid[j], at[j], number[j], port_edge, peer, paths[i])
        if length[i] == LOST:
            missing += 1
        for h in range(length[i]):
            load[paths[i, h]] += 1
    worst, total = 1.0, 0.0
    for i in range(n):
        if length[i] == LOST:
            continue
        most = 1.0
        for h in range(length[i]):
            e = paths[i, h]
            most = max(most, load[e] * slowness[e])
        total += most
        worst = max(worst, most)
    for i in range(n):
        for h in range(length[i]):
            load[paths[i, h]] = 0
    return worst, total, missing


@entry
def shifts(lft, lid, at, number, begin, size, by, port_edge, peer, slowness, worst, total):
    """Congestion of shift permutations: adapter i sends to adapter i + `by[k]`, counted around in its subnet.

    `lid`, `at`, `number` [n] say where each adapter is, `begin`, `size` [n] which adapters are in its subnet.
    `worst`, `total` float64 [len(by)] are filled. Returns the number of paths that do not arrive.
    """
    n = len(lid)
    to = np.empty(n, np.int32)
    load = np.zeros(len(peer), np.int32)
    paths = np.empty((n, MOST_HOPS), np.int32)
    length = np.empty(n, np.int32)
    missing = 0
    for k in range(len(by)):
        for i in range(n):
            to[i] = begin[i] + (i - begin[i] + by[k]) % size[i]
        worst[k], total[k], lost = _permutation(
            lft, lid, at, number, to, port_edge, peer, slowness, load, paths, length
        )
        missing += lost
    return missing


@entry
def permutations(lft, lid, at, number, to, port_edge, peer, slowness, worst, total):
    """Congestion of the permutations `to` int32 [m, n]; otherwise as `shifts`."""
    n = len(lid)
    load = np.zeros(len(peer), np.int32)
    paths = np.empty((n, MOST_HOPS), np.int32)
    length = np.empty(n, np.int32)
    missing = 0
    for k in range(len(to)):
        worst[k], total[k], lost = _permutation(
            lft, lid, at, number, to[k], port_edge, peer, slowness, load, paths, length
        )
        missing += lost
    return missing


@entry
def same_paths(left, right, left_lid, right_lid, at, number, sources, port_edge, peer, changed, longer):
    """Compare two tables path by path, from each switch `sources` [D] to each of K destinations.

    `left_lid`, `right_lid` [K] are the destination's LID in either table. `changed` uint8 [K, D] is filled: 0 the
    same path, 1 another, 2 arrives in the left one only, 3 in the right one only, 4 in neither. `longer` int64 [3]
    counts changed paths that became shorter, as long, longer.
    """
    a, b = np.empty(MOST_HOPS, np.int32), np.empty(MOST_HOPS, np.int32)
    for k in range(len(at)):
        for c in range(len(sources)):
            m = _one(left, sources[c], left_lid[k], at[k], number[k], port_edge, peer, a)
            n = _one(right, sources[c], right_lid[k], at[k], number[k], port_edge, peer, b)
            if m == LOST or n == LOST:
                changed[k, c] = 4 if m == n else (3 if m == LOST else 2)
                continue
            same = m == n
            if same:
                for h in range(m):
                    if a[h] != b[h]:
                        same = False
                        break
            changed[k, c] = 0 if same else 1
            if not same:
                longer[0 if n < m else (1 if n == m else 2)] += 1
