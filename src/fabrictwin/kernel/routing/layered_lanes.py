"""Compiled: virtual lanes as OpenSM's dfsssp gives them, path by path.

Every lane has a graph of channels (directed links between switches) in which a path that takes channel b after
channel a makes a link from a to b. A cycle in it is broken by moving all paths of its weakest link, that with the
fewest paths, to the next lane. Which cycle a search meets first depends on three orders, so they are kept: that of
a channel's links, by first use; that of the unbalanced binary tree of channels by (LID, port), in which a search
that ended looks for its next start; that in which paths came into a lane. A link without paths left stays in the
graph, and nodes that a search left behind keep where they were reached from.

A *bundle* is all paths from one switch to one LID, which never part. The `weight` of a switch is how many paths
of its adapters a bundle holds. Tables come transposed, `lft` uint8 [LIDs, S].

(opensm 3.3.23, osm_ucast_dfsssp.c; Domke, Hoefler, Nagel, "Deadlock-Free Oblivious Routing for Arbitrary
Topologies", 2011.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.jit.decorators import entry, helper, inner, outlined
from fabrictwin.kernel.routing.lane_assignment import LONGEST_PATH, _passes

UNKNOWN, ON_STACK, DONE = 0, 1, 2
COUNTS = 0xFFFFFFFF  # OpenSM's counts of paths have 32 bits, and wrap
SHIFT = 1 << 20  # more than there are switches


class Graph(NamedTuple):
    """The switch graph, and the order of channels by the LID and the port that they start at."""

    port_edge: np.ndarray  # [S, 256]
    start: np.ndarray  # [S + 1]
    peer: np.ndarray  # [E]
    owner: np.ndarray  # [E]
    rank: np.ndarray  # int32 [E]


class Layer(NamedTuple):
    """A lane's graph of channels."""

    left: np.ndarray  # int32 [E] children in the tree of channels
    right: np.ndarray
    root: np.ndarray  # int32 [1]
    present: np.ndarray  # uint8 [E]
    links: np.ndarray  # int32 [E] how many links a channel has
    order: np.ndarray  # uint8 [E, ports] the ports they lead to, by first use
    has: np.ndarray  # uint8 [E, ports]
    paths: np.ndarray  # int64 [E, ports]


class Users(NamedTuple):
    """Places of LIDs by the channels that their tables take."""

    start: np.ndarray  # int64 [E + 1]
    place: np.ndarray  # uint16 [start[E]]


@inner
def _users(graph, lft, lids):
    """Index who takes which channel."""
    channels, rows = len(graph.peer), len(graph.start) - 1
    start = np.zeros(channels + 1, np.int64)
    for k in range(len(lids)):
        table = lft[lids[k]]
        for row in range(rows):
            e = graph.port_edge[row, table[row]]
            if e != NONE:
                start[e + 1] += 1
    for e in range(channels):
        start[e + 1] += start[e]
    place = np.empty(start[channels], np.uint16)  # there are fewer LIDs
    free = start[:-1].copy()
    for k in range(len(lids)):
        table = lft[lids[k]]
        for row in range(rows):
            e = graph.port_edge[row, table[row]]
            if e != NONE:
                place[free[e]] = k
                free[e] += 1
    return Users(start, place)


@inner
def _blank(channels, widest):
    return Layer(
        np.full(channels, NONE, np.int32),
        np.full(channels, NONE, np.int32),
        np.full(1, NONE, np.int32),
        np.zeros(channels, np.uint8),
        np.zeros(channels, np.int32),
        np.empty((channels, widest), np.uint8),
        np.zeros((channels, widest), np.uint8),
        np.zeros((channels, widest), np.int64),
    )


@helper
def _plant(layer, rank, channel):
    """Put a channel into the tree."""
    layer.present[channel] = 1
    at = layer.root[0]
    if at == NONE:
        layer.root[0] = channel
        return
    while True:
        if rank[channel] < rank[at]:
            if layer.left[at] == NONE:
                layer.left[at] = channel
                return
            at = layer.left[at]
        else:
            if layer.right[at] == NONE:
                layer.right[at] = channel
                return
            at = layer.right[at]


@helper
def _add_bundle(layer, graph, row, table, weight):
    """Add the paths from a switch by a table [S]."""
    last = NONE
    for _ in range(LONGEST_PATH):
        e = graph.port_edge[row, table[row]]
        if e == NONE:
            return
        if layer.present[e] == 0:
            _plant(layer, graph.rank, e)
        if last != NONE:
            port = e - graph.start[row]
            if layer.has[last, port] == 0:
                layer.has[last, port] = 1
                layer.order[last, layer.links[last]] = port
                layer.links[last] += 1
            layer.paths[last, port] += weight
        last = e
        row = graph.peer[e]


@helper
def _remove_bundle(layer, graph, row, table, weight):
    """Take the paths from a switch off the links that are still there."""
    last = NONE
    for _ in range(LONGEST_PATH):
        e = graph.port_edge[row, table[row]]
        if e == NONE:
            return
        if last != NONE and layer.has[last, e - graph.start[row]]:
            layer.paths[last, e - graph.start[row]] -= weight
        last = e
        row = graph.peer[e]


@helper
def _unlink(layer, channel, port):
    """Take a link out of a channel's list."""
    layer.has[channel, port] = 0
    shift = 0
    for i in range(layer.links[channel]):
        if layer.order[channel, i] == port:
            shift = 1
        elif shift:
            layer.order[channel, i - 1] = layer.order[channel, i]
    layer.links[channel] -= 1


@inner
def _in_tree_order(layer, found, stack):
    """Fill `found` with the channels of the tree, each before its children. Returns how many."""
    count = 0
    depth = 0
    if layer.root[0] != NONE:
        stack[0] = layer.root[0]
        depth = 1
    while depth:
        depth -= 1
        at = stack[depth]
        found[count] = at
        count += 1
        if layer.right[at] != NONE:
            stack[depth] = layer.right[at]
            depth += 1
        if layer.left[at] != NONE:
            stack[depth] = layer.left[at]
            depth += 1
    return count


@inner
def _search(layer, graph, first, came, status, left_behind, in_tree, planted):
    """Search a cycle from a channel on. Returns the channel that closes one, or NONE after all have been seen."""
    current = first
    place = 0
    while True:
        status[current] = ON_STACK
        head = graph.start[graph.peer[current]]
        following = NONE
        for i in range(layer.links[current]):
            on = head + layer.order[current, i]
            if status[on] == UNKNOWN:
                following = on
                break
            if status[on] == ON_STACK:
                return on
        if following != NONE:
            came[following] = current
            current = following
            continue
        status[current] = DONE
        left_behind[current] = 1
        layer.paths[current, :] = 0
        if came[current] != NONE:
            before = came[current]
            came[current] = NONE
            current = before
            continue
        while place < planted and status[in_tree[place]] != UNKNOWN:
            place += 1
        if place == planted:
            return NONE
        current = in_tree[place]


@inner
def _weakest(layer, graph, cycle, status):
    """Return (channel, port) of the link of a cycle with the fewest paths, the first of equals; it is unlinked."""
    current = cycle
    weak, weak_port = NONE, 0
    fewest = 0
    while True:
        if weak != NONE:
            status[current] = UNKNOWN
        head = graph.start[graph.peer[current]]
        for i in range(layer.links[current]):
            port = layer.order[current, i]
            if status[head + port] == ON_STACK:
                paths = layer.paths[current, port] & COUNTS
                if weak == NONE or paths < fewest:
                    weak, weak_port, fewest = current, port, paths
                current = head + port
                break
        if current == cycle:
            status[current] = UNKNOWN
            break
    _unlink(layer, weak, weak_port)
    return weak, weak_port


@outlined
def _bundles_of(a, b, graph, users, lft, lids, key_of, sources, lane, at, turn, known, trail, found, key):
    """Fill `found` int32 [N, 2] (places of LIDs and of sources) with the bundles of lane `at` that take channel b
    after channel a, and `key` [N] with their turns in that lane. Returns how many there are, which may be more.
    """
    count = 0
    head = graph.peer[a]
    for i in range(users.start[a], users.start[a + 1]):
        k = users.place[i]
        table = lft[lids[k]]
        if graph.port_edge[head, table[head]] != b:
            continue
        known[:] = 0
        for c in range(len(sources)):
            if lane[k, c] == at and _passes(sources[c], table, graph.port_edge, graph.peer, a, known, trail):
                if count < len(key):
                    found[count, 0], found[count, 1] = k, c
                    first = (key_of[k] // SHIFT * SHIFT + c) * SHIFT + key_of[k] % SHIFT
                    key[count] = turn[k, c] if at else first
                count += 1
    return count


@entry
def layer_lanes(lft, lids, key_of, sources, weight, graph, lane, paths):
    """Give paths lanes until no lane has a cycle. Returns how many lanes that takes, one more than there are where
    they do not suffice.

    `lids` [K] are the destinations in OpenSM's order, `key_of` int64 [K] their port's place in it times 2^20 and
    the path's number among those of the port; `sources` [D] switches with adapters by their first adapter's turn.
    `lane` uint8 [K, D], all 0, is filled; `paths` int64 [lanes], how many there are on each lane, with all on lane
    0 before, is brought up to date.
    """
    most = len(paths)
    channels, rows = len(graph.peer), len(graph.start) - 1
    widest = 1
    for row in range(rows):
        widest = max(widest, graph.start[row + 1] - graph.start[row])
    layer = _blank(channels, widest)
    first = 0
    while first < len(lids):
        last = first
        while last < len(lids) and key_of[last] // SHIFT == key_of[first] // SHIFT:
            last += 1
        for c in range(len(sources)):
            for k in range(first, last):
                _add_bundle(layer, graph, sources[c], lft[lids[k]], weight[c])
        first = last
    turn = np.zeros(lane.shape, np.int32)
    moved = 0
    came = np.empty(channels, np.int32)
    status = np.empty(channels, np.uint8)
    left_behind = np.empty(channels, np.uint8)
    in_tree = np.empty(channels, np.int32)
    stack = np.empty(channels + 1, np.int32)
    known = np.empty(rows, np.uint8)
    trail = np.empty(LONGEST_PATH, np.int32)
    found, key = np.empty((64, 2), np.int32), np.empty(64, np.int64)
    users = _users(graph, lft, lids)
    needed = 1
    for at in range(most):
        if layer.root[0] == NONE:
            break
        following = _blank(channels, widest)
        came[:] = NONE
        status[:] = UNKNOWN
        left_behind[:] = 0
        planted = _in_tree_order(layer, in_tree, stack)
        start_here = layer.root[0]
        while start_here != NONE:
            cycle = _search(layer, graph, start_here, came, status, left_behind, in_tree, planted)
            if cycle != NONE:
                needed = at + 2
                if at == most - 1:
                    return needed
                a, port = _weakest(layer, graph, cycle, status)
                if left_behind[a] == 0:  # otherwise OpenSM has forgotten whose paths took the link
                    b = graph.start[graph.peer[a]] + port
                    while True:
                        count = _bundles_of(
                            a,
                            b,
                            graph,
                            users,
                            lft,
                            lids,
                            key_of,
                            sources,
                            lane,
                            at,
                            turn,
                            known,
                            trail,
                            found,
                            key,
                        )
                        if count <= len(key):
                            break
                        found, key = np.empty((2 * count, 2), np.int32), np.empty(2 * count, np.int64)
                    for i in np.argsort(key[:count]):
                        k, c = found[i, 0], found[i, 1]
                        table = lft[lids[k]]
                        _remove_bundle(layer, graph, sources[c], table, weight[c])
                        _add_bundle(following, graph, sources[c], table, weight[c])
                        lane[k, c] = at + 1
                        turn[k, c] = moved
                        moved += 1
                        paths[at] -= weight[c]
                        paths[at + 1] += weight[c]
            start_here = cycle
        layer = following
    return needed
