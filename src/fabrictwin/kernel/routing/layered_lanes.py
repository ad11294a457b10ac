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
from fabrictwin.kernel.jit.decorators import entry, helper, inner
from fabrictwin.kernel.routing.table_paths import LONGEST_PATH, follow

UNKNOWN, ON_STACK, DONE = 0, 1, 2
COUNTS = 0xFFFFFFFF  # OpenSM's counts of paths have 32 bits, and wrap


class Graph(NamedTuple):
    """The switch graph, and the order of channels by the LID and the port that they start at."""

    port_edge: np.ndarray  # [S, 256]
    start: np.ndarray  # [S + 1]
    peer: np.ndarray  # [E]
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


class Members(NamedTuple):
    """Bundles that came into a lane, in the order in which they did, and by the links that they take."""

    bundle: np.ndarray  # int32 [members] place of a LID times the sources, plus that of a source
    start: np.ndarray  # int32 [E * ports + 1]
    member: np.ndarray  # int32 [start[-1]] places in `bundle`, each link's ascending


@helper
def _follow(graph, row, table, path):
    """Fill `path` with the channels that a bundle takes from switch `row` by `table` [S]. Returns how many."""
    return follow(row, table, graph.port_edge, graph.peer, path)


@helper
def _port(graph, path, i):
    """The port that leads from channel i - 1 of a path to channel i."""
    return path[i] - graph.start[graph.peer[path[i - 1]]]


@inner
def _enrol(bundle, graph, widest, lft, lids, sources, path):
    """Index the bundles of a lane by their links."""
    width = len(sources)
    start = np.zeros(len(graph.peer) * widest + 1, np.int32)
    for one in range(len(bundle)):
        k, c = bundle[one] // width, bundle[one] % width
        for i in range(1, _follow(graph, sources[c], lft[lids[k]], path)):
            start[path[i - 1] * widest + _port(graph, path, i) + 1] += 1
    for link in range(len(start) - 1):
        start[link + 1] += start[link]
    member = np.empty(start[-1], np.int32)
    free = start.copy()
    for one in range(len(bundle)):
        k, c = bundle[one] // width, bundle[one] % width
        for i in range(1, _follow(graph, sources[c], lft[lids[k]], path)):
            link = path[i - 1] * widest + _port(graph, path, i)
            member[free[link]] = one
            free[link] += 1
    return Members(bundle, start, member)


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
def _add_bundle(layer, graph, row, table, weight, path):
    """Add the paths from a switch by a table [S]. `path` is scratch."""
    length = _follow(graph, row, table, path)
    for i in range(length):
        if layer.present[path[i]] == 0:
            _plant(layer, graph.rank, path[i])
    for i in range(1, length):
        last, port = path[i - 1], _port(graph, path, i)
        if layer.has[last, port] == 0:
            layer.has[last, port] = 1
            layer.order[last, layer.links[last]] = port
            layer.links[last] += 1
        layer.paths[last, port] += weight


@helper
def _remove_bundle(layer, graph, row, table, weight, path):
    """Take the paths from a switch off the links that are still there. `path` is scratch."""
    for i in range(1, _follow(graph, row, table, path)):
        last, port = path[i - 1], _port(graph, path, i)
        if layer.has[last, port]:
            layer.paths[last, port] -= weight


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


@entry
def layer_lanes(lft, lids, port, sources, weight, graph, lane, paths):
    """Give paths lanes until no lane has a cycle. Returns how many lanes that takes, one more than there are where
    they do not suffice.

    `lids` [K] are the destinations in OpenSM's order, `port` int64 [K] their ports' places in it; `sources` [D]
    switches with adapters by their first adapter's turn.
    `lane` uint8 [K, D], all 0, is filled; `paths` int64 [lanes], how many there are on each lane, with all on lane
    0 before, is brought up to date.
    """
    most = len(paths)
    channels, rows = len(graph.peer), len(graph.start) - 1
    widest = 1
    for row in range(rows):
        widest = max(widest, graph.start[row + 1] - graph.start[row])
    path = np.empty(LONGEST_PATH, np.int32)
    layer = _blank(channels, widest)
    bundle = np.empty(lane.size, np.int32)
    count = 0
    first = 0
    while first < len(lids):
        last = first
        while last < len(lids) and port[last] == port[first]:
            last += 1
        for c in range(len(sources)):
            for k in range(first, last):
                _add_bundle(layer, graph, sources[c], lft[lids[k]], weight[c], path)
                bundle[count] = k * len(sources) + c
                count += 1
        first = last
    came = np.empty(channels, np.int32)
    status = np.empty(channels, np.uint8)
    left_behind = np.empty(channels, np.uint8)
    in_tree = np.empty(channels, np.int32)
    stack = np.empty(channels + 1, np.int32)
    needed = 1
    for at in range(most):
        if layer.root[0] == NONE:
            break
        following = _blank(channels, widest)
        members = _enrol(bundle, graph, widest, lft, lids, sources, path)
        bundle = np.empty(len(members.bundle), np.int32)
        count = 0
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
                a, number = _weakest(layer, graph, cycle, status)
                if left_behind[a] == 0:  # otherwise OpenSM has forgotten whose paths took the link
                    link = a * widest + number
                    for i in range(members.start[link], members.start[link + 1]):
                        one = members.bundle[members.member[i]]
                        k, c = one // len(sources), one % len(sources)
                        if lane[k, c] != at:
                            continue
                        table = lft[lids[k]]
                        _remove_bundle(layer, graph, sources[c], table, weight[c], path)
                        _add_bundle(following, graph, sources[c], table, weight[c], path)
                        lane[k, c] = at + 1
                        bundle[count] = one
                        count += 1
                        paths[at] -= weight[c]
                        paths[at + 1] += weight[c]
            start_here = cycle
        layer = following
        bundle = bundle[:count].copy()
    return needed
