"""Compiled: forwarding tables after links or switches are gone, with as few paths changed as there are broken.

Paths go up, then down, along an orientation that stays the same, as `table_filling` fills them: a switch goes down
where it can reach a destination so, otherwise up, otherwise astray (down until there is a way). What of the old
tables still arrives keeps its entries, and so its direction; only switches whose path is broken choose anew, among
the fewest hops that the kept ones leave, the old entry if it is among them, else the way whose fullest link has
the fewest paths between adapters.

`mend_paths` marks in `blank` old entries that lead down to a switch which will go up or astray: they lead
nowhere any more, and are to be removed first, so that no packet turns from down to up on the way between old and
new entries. `order_entries` tells in which order entries may be set so that nothing circles at any step.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.jit.decorators import entry, helper, inner
from fabrictwin.kernel.routing.table_filling import ASTRAY, DOWN, FAR, UP
from fabrictwin.kernel.routing.table_paths import BROKEN, LONGEST_PATH, UNKNOWN, WHOLE, leads

LATEST = 200  # more rounds than any path has switches


@helper
def _add_load(row, table, home, port_edge, peer, by, load):
    for _ in range(LONGEST_PATH):
        if row == home:
            return
        e = port_edge[row, table[row]]
        if e == NONE:
            return
        load[e] += by
        row = peer[e]


@helper
def _fullest(e, table, home, port_edge, peer, load):
    """Most paths through a link of the way that begins with edge `e`."""
    most = load[e]
    row = peer[e]
    for _ in range(LONGEST_PATH):
        if row == home:
            break
        on = port_edge[row, table[row]]
        if on == NONE:
            break
        most = max(most, load[on])
        row = peer[on]
    return most


@helper
def _note_kept(rows, table, home, port_edge, peer, up, state, hops, kind):
    """Hops and directions of whole paths, from the destination outward."""
    for row in range(rows):
        hops[row] = FAR
        kind[row] = ASTRAY
    hops[home] = 0
    kind[home] = DOWN
    found = True
    while found:
        found = False
        for row in range(rows):
            if state[row] != WHOLE or hops[row] < FAR:
                continue
            e = port_edge[row, table[row]]
            on = peer[e]
            if hops[on] == FAR:
                continue
            hops[row] = hops[on] + 1
            if up[e]:
                kind[row] = UP if kind[on] != ASTRAY else ASTRAY
            else:
                kind[row] = DOWN if kind[on] == DOWN else ASTRAY
            found = True


@inner
def _reach(graph, state, hops, kind):
    """Hops and directions of switches whose path is broken. Returns how many go astray."""
    rows = len(graph.start) - 1
    for depth in range(LONGEST_PATH):
        last = True
        for row in range(rows):
            if kind[row] != DOWN or hops[row] >= FAR:
                continue
            if hops[row] > depth:
                last = False
            if hops[row] != depth:
                continue
            for e in range(graph.start[row], graph.start[row + 1]):
                before = graph.peer[e]
                if graph.up[e] and state[before] == BROKEN and hops[before] == FAR:
                    hops[before] = depth + 1
                    kind[before] = DOWN
                    last = False
        if last:
            break
    lost = 0
    for i in range(rows):
        row = graph.top_down[i]
        if state[row] != BROKEN or kind[row] == DOWN:
            continue
        best = FAR
        for e in range(graph.start[row], graph.start[row + 1]):
            on = graph.peer[e]
            if graph.up[e] and kind[on] != ASTRAY and hops[on] < FAR:
                best = min(best, hops[on] + 1)
        if best < FAR:
            hops[row] = best
            kind[row] = UP
        else:
            lost += 1
    if lost == 0:
        return 0
    changed = True
    while changed:
        changed = False
        for row in range(rows):
            if state[row] != BROKEN or kind[row] != ASTRAY:
                continue
            for e in range(graph.start[row], graph.start[row + 1]):
                if hops[graph.peer[e]] + 1 < hops[row]:
                    hops[row] = hops[graph.peer[e]] + 1
                    changed = True
    return lost


@helper
def _may_lead(graph, row, e, hops, kind):
    """Tell whether edge `e` of `row` is on one of its best ways."""
    on = graph.peer[e]
    if hops[on] + 1 != hops[row]:
        return False
    if kind[row] == DOWN:
        return not graph.up[e] and kind[on] == DOWN
    if kind[row] == UP:
        return graph.up[e] and kind[on] != ASTRAY
    return True


@entry
def mend_paths(graph, port_edge, lids, home, counted, adapters, lft, blank):
    """Mend the tables `lft` uint8 [LIDs, S], in place, for `lids` int32 [K] that live at switches `home` [K].

    `adapters` int32 [S] weighs paths, `counted` uint8 [K] says whose. `blank` uint8 [LIDs, S] is marked with 1.
    Returns (switches that go astray, paths of switches with adapters that were broken).
    """
    rows = len(graph.start) - 1
    load = np.zeros(len(graph.peer), np.int64)
    state = np.empty(rows, np.uint8)
    trail = np.empty(LONGEST_PATH, np.int32)
    hops = np.empty(rows, np.int32)
    kind = np.empty(rows, np.uint8)
    old = np.empty(rows, np.uint8)
    through = np.empty(rows, np.int64)
    hurt = np.zeros(len(lids), np.uint8)
    for k in range(len(lids)):
        table = lft[lids[k]]
        state[:] = UNKNOWN
        state[home[k]] = WHOLE
        for row in range(rows):
            if state[row] == UNKNOWN:
                leads(row, table, port_edge, graph.peer, NONE, state, trail)
            if state[row] == BROKEN:
                hurt[k] = 1
            elif counted[k] and adapters[row]:
                _add_load(row, table, home[k], port_edge, graph.peer, adapters[row], load)
    astray, broken = 0, 0
    for k in range(len(lids)):
        if not hurt[k]:
            continue
        table = lft[lids[k]]
        old[:] = table
        state[:] = UNKNOWN
        state[home[k]] = WHOLE
        for row in range(rows):
            if state[row] == UNKNOWN:
                leads(row, table, port_edge, graph.peer, NONE, state, trail)
            broken += state[row] == BROKEN and adapters[row] > 0
        _note_kept(rows, table, home[k], port_edge, graph.peer, graph.up, state, hops, kind)
        astray += _reach(graph, state, hops, kind)
        through[:] = adapters
        for row in range(rows):
            if state[row] != BROKEN or adapters[row] == 0:
                continue
            at = row
            for _ in range(LONGEST_PATH):
                e = port_edge[at, old[at]]
                if e == NONE or state[graph.peer[e]] != BROKEN:
                    break
                at = graph.peer[e]
                through[at] += adapters[row]
        deepest = 0
        for row in range(rows):
            if state[row] == BROKEN and hops[row] < FAR:
                deepest = max(deepest, hops[row])
        for depth in range(1, deepest + 1):  # from the destination outward: what an entry leads to is chosen
            for row in range(rows):
                if state[row] != BROKEN or hops[row] != depth:
                    continue
                best = NONE
                held = port_edge[row, old[row]]
                if held != NONE and _may_lead(graph, row, held, hops, kind):
                    best = held
                else:
                    least = np.int64(0)
                    for e in range(graph.start[row], graph.start[row + 1]):
                        if not _may_lead(graph, row, e, hops, kind):
                            continue
                        most = _fullest(e, table, home[k], port_edge, graph.peer, load)
                        if best == NONE or most < least or (most == least and load[e] < load[best]):
                            best, least = e, most
                if best == NONE:
                    continue
                table[row] = graph.number[best]
                if counted[k] and table[row] != old[row]:  # until the paths of those behind it are counted
                    load[best] += through[row]
        for row in range(rows):
            if state[row] != BROKEN:
                continue
            if hops[row] == FAR:
                table[row] = 255
                continue
            if counted[k] and table[row] != old[row]:
                load[port_edge[row, table[row]]] -= through[row]
            e = port_edge[row, old[row]]
            if table[row] == old[row] or e == NONE or graph.up[e]:
                continue
            if state[graph.peer[e]] == BROKEN and kind[graph.peer[e]] != DOWN:
                blank[lids[k], row] = 1
        if counted[k]:
            for row in range(rows):
                if state[row] == BROKEN and adapters[row] and hops[row] < FAR:
                    _add_load(row, table, home[k], port_edge, graph.peer, adapters[row], load)
    return astray, broken


@entry
def whole_paths(graph, port_edge, lids, home, lft, whole):
    """Mark with 1 in `whole` uint8 [LIDs, S] the switches whose path to a LID arrives."""
    rows = len(graph.start) - 1
    state = np.empty(rows, np.uint8)
    trail = np.empty(LONGEST_PATH, np.int32)
    for k in range(len(lids)):
        state[:] = UNKNOWN
        state[home[k]] = WHOLE
        for row in range(rows):
            if state[row] == UNKNOWN:
                leads(row, lft[lids[k]], port_edge, graph.peer, NONE, state, trail)
            whole[lids[k], row] = state[row] == WHOLE


@entry
def order_entries(graph, port_edge, lids, home, held, final, level):
    """Fill `level` uint8 [LIDs, S]: the round in which each entry may change from `held` to `final` [LIDs, S].

    An entry comes after all changed ones that its final path leads over, so that a packet that meets a final entry
    meets none but final ones from there on. Returns the highest level of an entry that changes.
    """
    rows = len(graph.start) - 1
    trail = np.empty(LONGEST_PATH, np.int32)
    done = np.empty(rows, np.uint8)
    top = 0
    for k in range(len(lids)):
        lid = lids[k]
        before, after = held[lid], final[lid]
        same = True
        for row in range(rows):
            level[lid, row] = 0
            same = same and before[row] == after[row]
        if same:
            continue
        done[:] = 0
        done[home[k]] = 1
        for first in range(rows):
            row = first
            length = 0
            while length < LONGEST_PATH and not done[row]:
                trail[length] = row
                length += 1
                done[row] = 1
                e = port_edge[row, after[row]]
                if e == NONE:
                    break
                row = graph.peer[e]
            for i in range(length - 1, -1, -1):
                here = trail[i]
                e = port_edge[here, after[here]]
                if e == NONE:
                    continue
                on = graph.peer[e]
                level[lid, here] = min(level[lid, on] + (before[on] != after[on]), LATEST)
                if before[here] != after[here]:
                    top = max(top, level[lid, here])
    return top
