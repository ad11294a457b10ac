"""Compiled: fat-tree tables as OpenSM's ftree fills them: up from each destination, and down from wherever it got.

For each LID, from the switch that it hangs on: first every switch below learns its way up to here; then one
*main* way goes on to the least loaded group of cables up, and from there the same again; then the other groups up
are tried, each from the top of the list, for switches that do not know the LID yet or know a longer way. Cables to
one neighbour are a *group*. Groups and cables count the LIDs that they carry down (main ways only) and up.
Switches of one tier that are joined pass a LID on like groups up and down do.

A destination without LID (a dummy) stands for an adapter that a leaf lacks: it is counted, and nothing is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.jit.decorators import entry, helper, outlined

NO_PORT = 255
FAR = 255
DEEP = 512  # longest way: every step is a hop, and hops end at 255

# parts of a switch's groups
DOWN = 0
SIDE = 1
UP = 2


class Groups(NamedTuple):
    """Groups of cables. `first` and `order` list them by switch and part; `order` changes with the load."""

    first: np.ndarray  # int32 [S, 4] where the parts of a switch begin in `order`, and the last ends
    order: np.ndarray  # int32 [G]
    peer: np.ndarray  # int32 [G] the neighbour
    cable_first: np.ndarray  # int32 [G + 1] into `cable`
    cable: np.ndarray  # int32 edges, by port number
    index: np.ndarray  # int64 [S] the place of a switch in the order of OpenSM's tuples
    leads_down: np.ndarray  # uint8 [S] whether anything, adapters too, hangs below a switch
    adapters: np.ndarray  # uint8 [S] whether adapters hang on it
    tier: np.ndarray  # int32 [S] 0 at the top


class Counts(NamedTuple):
    """LIDs carried, and which switches have to sort their groups down anew."""

    group_down: np.ndarray  # int64 [G]
    group_up: np.ndarray  # int64 [G]
    cable_down: np.ndarray  # int64 [E]
    cable_up: np.ndarray  # int64 [E]
    unsorted: np.ndarray  # uint8 [S]


class LidSearch(NamedTuple):
    """The search for one LID: each switch's port and hops, and stacks."""

    port: np.ndarray  # uint8 [S]
    hops: np.ndarray  # int32 [S]
    below: np.ndarray  # int32 [DEEP, 4] the search down: switch, next place, group, edge that led there
    above: np.ndarray  # int32 [DEEP, 5] the search up: switch, next place, part, main group, edge on to the next
    found: np.ndarray  # uint8 [2, DEEP] whether somebody was reached below, by either search


@helper
def _sort(groups, row, part, count):
    """Order a part of a switch's groups by load, then by the neighbour's index; stable."""
    begin, end = groups.first[row, part], groups.first[row, part + 1]
    for i in range(begin + 1, end):
        group = groups.order[i]
        load, index = count[group], groups.index[groups.peer[group]]
        j = i
        while j > begin:
            other = groups.order[j - 1]
            if count[other] < load or (count[other] == load and groups.index[groups.peer[other]] <= index):
                break
            groups.order[j] = other
            j -= 1
        groups.order[j] = group


@helper
def _least(groups, group, count):
    """The first cable of a group among those that carry the fewest."""
    best = groups.cable[groups.cable_first[group]]
    for i in range(groups.cable_first[group] + 1, groups.cable_first[group + 1]):
        if count[groups.cable[i]] < count[best]:
            best = groups.cable[i]
    return best


@helper
def _enter(groups, counts, row):
    """Sort what a switch leads down and sideways to."""
    if counts.unsorted[row]:
        _sort(groups, row, DOWN, counts.group_up)
        counts.unsorted[row] = 0
    if groups.first[row, SIDE + 1] > groups.first[row, SIDE]:
        _sort(groups, row, SIDE, counts.group_up)


@outlined
def _descend(groups, counts, way, back, number, origin, before, hops, real):
    """Tell all switches below `origin` the way up to it. Returns whether that reached anybody.

    `before` is the neighbour that the search up came from; `real` is 0 for a dummy, which goes down only.
    """
    if not groups.leads_down[origin]:
        return False
    _enter(groups, counts, origin)
    depth = 0
    way.below[0, 0], way.below[0, 1] = origin, groups.first[origin, DOWN]
    way.found[0, 0] = groups.adapters[origin]
    while True:
        row = way.below[depth, 0]
        last = groups.first[row, SIDE + 1 if real else DOWN + 1]
        went = False
        i = way.below[depth, 1]
        while i < last:
            group = groups.order[i]
            i += 1
            far = groups.peer[group]
            if (depth == 0 and far == before) or hops + depth + 1 >= way.hops[far]:
                continue
            edge = _least(groups, group, counts.cable_up)
            way.port[far] = number[back[edge]]
            way.hops[far] = hops + depth + 1
            if groups.first[far, DOWN] == groups.first[far, SIDE + 1] or not groups.leads_down[far]:
                if groups.leads_down[far]:  # nothing but adapters below
                    counts.cable_up[edge] += 1
                    counts.group_up[group] += 1
                    counts.unsorted[row] = 1
                    way.found[0, depth] = 1
                continue
            way.below[depth, 1], way.below[depth, 2], way.below[depth, 3] = i, group, edge
            _enter(groups, counts, far)
            depth += 1
            way.below[depth, 0], way.below[depth, 1] = far, groups.first[far, DOWN]
            way.found[0, depth] = groups.adapters[far]
            went = True
            break
        if went:
            continue
        reached = way.found[0, depth]
        if depth == 0:
            return reached != 0
        depth -= 1
        if reached:
            way.found[0, depth] = 1
            counts.cable_up[way.below[depth, 3]] += 1
            counts.group_up[way.below[depth, 2]] += 1
            counts.unsorted[way.below[depth, 0]] = 1


@helper
def _push(groups, counts, way, back, number, depth, row, before, main, hops, real):
    """Begin the search up from a switch: down from it first, then its groups up are sorted. Returns False at a
    root.
    """
    way.found[1, depth] = _descend(groups, counts, way, back, number, row, before, hops, real)
    if groups.tier[row] == 0:
        return False
    _sort(groups, row, UP, counts.group_down)
    first = groups.first[row, UP]
    way.above[depth, 0], way.above[depth, 1], way.above[depth, 2] = row, first + main, UP
    way.above[depth, 3] = groups.order[first]
    return True


@helper
def _pop(counts, way, depth):
    """End the search from the switch above `depth`, and note at `depth` what it found. Returns `depth`."""
    if way.found[1, depth + 1]:
        way.found[1, depth] = 1
        if way.above[depth, 2] == SIDE:  # OpenSM books a way sideways on the main group
            counts.group_down[way.above[depth, 3]] += 1
            counts.cable_down[way.above[depth, 4]] += 1
    return depth


@helper
def _climb(groups, counts, way, back, number, origin, main, hops, real):
    """The search up from `origin`, whose own entry is set. Fills `way`."""
    depth = 0
    if not _push(groups, counts, way, back, number, 0, origin, NONE, main, hops, real):
        return
    on_main = main == 1  # the main way goes on before anything else
    while depth >= 0:
        row, part = way.above[depth, 0], way.above[depth, 2]
        step = hops + depth + 1
        if on_main:
            group = way.above[depth, 3]
            far = groups.peer[group]
            edge = _least(groups, group, counts.cable_down)
            counts.group_down[group] += 1
            counts.cable_down[edge] += 1
            if way.port[far] == NO_PORT or step < way.hops[far]:
                way.port[far], way.hops[far] = number[back[edge]], step
        else:
            i, last = way.above[depth, 1], groups.first[row, part + 1]
            far, edge = NONE, NONE
            while i < last:
                group = groups.order[i]
                i += 1
                if way.port[groups.peer[group]] == NO_PORT or step < way.hops[groups.peer[group]]:
                    far, edge = groups.peer[group], _least(groups, group, counts.cable_down)
                    break
            if far == NONE:
                if part == UP and groups.first[row, SIDE] < groups.first[row, SIDE + 1]:
                    _sort(groups, row, SIDE, counts.group_down)
                    way.above[depth, 1], way.above[depth, 2] = groups.first[row, SIDE], SIDE
                else:
                    depth = _pop(counts, way, depth - 1) if depth else NONE
                continue
            way.above[depth, 1], way.above[depth, 4] = i, edge
            way.port[far], way.hops[far] = number[back[edge]], step
        if _push(groups, counts, way, back, number, depth + 1, far, row, 1 if on_main else 0, step, real):
            depth += 1
        else:
            on_main = False
            _pop(counts, way, depth)


@entry
def fill_fat_tree(groups, back, number, origin, port, lid, main, lft):
    """Fill forwarding tables `lft` uint8 [S, LIDs] for all destinations, in order.

    `origin` int32 [K] are the switches that they hang on, `port` uint8 [K] the port there, 0 for the switch
    itself; `lid` int32 [K] is 0 for a dummy; `main` uint8 [K] whether load is counted.
    """
    rows = len(groups.first)
    many, edges = len(groups.order), len(back)
    counts = Counts(
        np.zeros(many, np.int64),
        np.zeros(many, np.int64),
        np.zeros(edges, np.int64),
        np.zeros(edges, np.int64),
        np.zeros(rows, np.uint8),
    )
    way = LidSearch(
        np.empty(rows, np.uint8),
        np.empty(rows, np.int32),
        np.empty((DEEP, 4), np.int32),
        np.empty((DEEP, 5), np.int32),
        np.empty((2, DEEP), np.uint8),
    )
    for k in range(len(origin)):
        way.port[:] = NO_PORT
        way.hops[:] = FAR
        start = 1 if port[k] else 0
        way.hops[origin[k]] = start
        if lid[k]:
            way.port[origin[k]] = port[k]
        _climb(groups, counts, way, back, number, origin[k], main[k], start, 1 if lid[k] else 0)
        if lid[k]:
            for row in range(rows):
                lft[row, lid[k]] = way.port[row]
