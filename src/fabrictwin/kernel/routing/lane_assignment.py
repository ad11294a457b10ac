"""Compiled: virtual lanes that keep paths from waiting on each other in a circle, and the search for such circles.

A *channel* is a directed link between switches (an edge of the graph). A path that takes channel b after channel
a makes b a *dependency* of a; a network cannot deadlock if no lane's dependencies form a cycle (Dally and Seitz,
1987). Dependencies of channel a are counted per port out of the switch that a leads to: `count` int32
[E, widest switch].

Tables come transposed, `lft` uint8 [lids, S], because all walks here are toward one LID at a time.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.jit.decorators import entry, helper, outlined
from fabrictwin.kernel.routing.table_paths import LONGEST_PATH, follow, leads

WHITE, GREY, BLACK = 0, 1, 2


@helper
def _count_path(row, table, port_edge, start, peer, count, by, path):
    """Add `by` to every dependency of the path from switch `row` by `table` [S]. `path` is scratch."""
    for i in range(1, follow(row, table, port_edge, peer, path)):
        before = path[i - 1]
        count[before, path[i] - start[peer[before]]] += by


@outlined
def _move(a, port, lids, lft, port_edge, start, number, owner, peer, sources, lane, at, count, known, trail):
    """Give the next lane to every path of lane `at` that takes port `port` after channel `a`."""
    tail, head = owner[a], peer[a]
    for i in range(len(lids)):
        lid = lids[i]
        table = lft[lid]
        if table[tail] != number[a] or port_edge[head, table[head]] != start[head] + port:
            continue
        known[:] = 0
        for c in range(len(sources)):
            if lane[lid, c] == at and leads(sources[c], table, port_edge, peer, a, known, trail):
                _count_path(sources[c], table, port_edge, start, peer, count, -1, trail)
                lane[lid, c] = at + 1


@helper
def _weakest(stack, low, high, start, peer, count):
    """The place on the stack of the cycle's dependency with the fewest paths; the last one closes the cycle."""
    best = NONE
    fewest = 0
    for i in range(low, high + 1):
        on = stack[i + 1] if i < high else stack[low]
        paths = count[stack[i], on - start[peer[stack[i]]]]
        if best == NONE or paths < fewest:
            best, fewest = i, paths
    return best


@helper
def _enter(depth, channel, stack, place, colour):
    """Put a channel on the search's stack. Returns its depth."""
    stack[depth] = channel
    place[depth] = 0
    colour[channel] = GREY
    return depth


@helper
def _next_port(depth, stack, place, colour, start, peer):
    """The next port to look at from the channel on top; NONE, and the channel is done with, after the last."""
    channel = stack[depth]
    head = peer[channel]
    port = place[depth]
    if port >= start[head + 1] - start[head]:
        colour[channel] = BLACK
        return NONE
    place[depth] = port + 1
    return port


@entry
def break_cycles(lft, lids, sources, port_edge, start, peer, number, owner, lane, first, most):
    """Move paths to higher lanes until no lane's dependencies form a cycle.

    Domke, Hoefler, Nagel, "Deadlock-Free Oblivious Routing for Arbitrary Topologies", 2011: search a cycle, take
    the dependency on it that the fewest paths cause, move those paths to the next lane; go on until there is
    none, then look at the next lane. The search goes on where it was: what it found free of cycles stays so,
    because paths only leave. (Spreading paths over lanes that are left is not done.)

    `lids` are the destinations, `sources` [D] their switches; `lane` uint8 [lids, D], in and out, is the lane of
    the path from each source to each LID: those below `first` are not touched. `owner` [E] is the switch that a
    channel starts at. Returns the number of lanes in use, or NONE where `most` do not suffice.
    """
    channels = len(peer)
    widest = 0
    for row in range(len(start) - 1):
        widest = max(widest, start[row + 1] - start[row])
    count = np.zeros((channels, widest), np.int32)
    colour = np.empty(channels, np.uint8)
    stack = np.empty(channels + 1, np.int32)
    place = np.empty(channels + 1, np.int32)  # the next port to look at
    known = np.empty(len(start) - 1, np.uint8)
    trail = np.empty(LONGEST_PATH, np.int32)
    at = first
    while True:
        used = False
        count[:] = 0
        for i in range(len(lids)):
            for c in range(len(sources)):
                if lane[lids[i], c] == at:
                    used = True
                    _count_path(sources[c], lft[lids[i]], port_edge, start, peer, count, 1, trail)
        if not used:
            return max(at, 1)
        if at >= most:
            return NONE
        colour[:] = WHITE
        for root in range(channels):
            if colour[root] != WHITE:
                continue
            depth = _enter(0, root, stack, place, colour)
            while depth >= 0:
                channel = stack[depth]
                port = _next_port(depth, stack, place, colour, start, peer)
                if port == NONE:
                    depth -= 1
                    continue
                if count[channel, port] == 0:
                    continue
                on = start[peer[channel]] + port
                if colour[on] == WHITE:
                    depth = _enter(depth + 1, on, stack, place, colour)
                elif colour[on] == GREY:
                    low = depth
                    while stack[low] != on:
                        low -= 1
                    weak = _weakest(stack, low, depth, start, peer, count)
                    a = stack[weak]
                    b = stack[weak + 1] if weak < depth else stack[low]
                    port = b - start[peer[a]]
                    _move(
                        a,
                        port,
                        lids,
                        lft,
                        port_edge,
                        start,
                        number,
                        owner,
                        peer,
                        sources,
                        lane,
                        at,
                        count,
                        known,
                        trail,
                    )
                    # go back to where the stack is still joined by dependencies
                    keep = 0
                    while keep < depth:
                        if count[stack[keep], stack[keep + 1] - start[peer[stack[keep]]]] == 0:
                            break
                        keep += 1
                    while depth > keep:
                        colour[stack[depth]] = WHITE
                        depth -= 1
        at += 1


@entry
def mark_turns(lft, lids, sources, port_edge, peer, up, lane):
    """Lane 1 for every path that goes down and later up, 0 for the others: `lane` uint8 [lids, D] is filled."""
    rows = lft.shape[1]
    known = np.empty(rows, np.uint8)  # 1 it turns, 2 it does not
    trail = np.empty(LONGEST_PATH, np.int32)
    for i in range(len(lids)):
        table = lft[lids[i]]
        known[:] = 0
        for c in range(len(sources)):
            row = sources[c]
            length = 0
            while length < LONGEST_PATH and not known[row]:
                e = port_edge[row, table[row]]
                if e == NONE:
                    known[row] = 2
                    break
                trail[length] = row
                length += 1
                row = peer[e]
            for j in range(length - 1, -1, -1):
                here = trail[j]
                e = port_edge[here, table[here]]
                on = port_edge[peer[e], table[peer[e]]]
                turns = known[peer[e]] == 1 or (on != NONE and not up[e] and up[on])
                known[here] = 1 if turns else 2
            lane[lids[i], c] = 1 if known[sources[c]] == 1 else 0


@entry
def dependencies(lft, lids, sources, port_edge, start, peer, lane, lanes, bits):
    """Mark dependencies that paths cause: `bits` uint64 [lanes, E, words], cleared by the caller, one bit a port.

    `lane` uint8 [lids, D], or of no size where all paths share lane 0. A table's paths from different switches
    join, so a walk ends where an earlier one of its lane has been.
    """
    rows = len(start) - 1
    seen = np.zeros((lanes, rows), np.int32)
    for i in range(len(lids)):
        lid = lids[i]
        table = lft[lid]
        stamp = i + 1
        for c in range(len(sources)):
            v = lane[lid, c] if lane.size else 0
            row = sources[c]
            before = NONE
            for _ in range(LONGEST_PATH):
                e = port_edge[row, table[row]]
                if e == NONE:
                    break
                if before != NONE:
                    port = e - start[row]
                    bits[v, before, port >> 6] |= np.uint64(1) << np.uint64(port & 63)
                if seen[v, row] == stamp:
                    break
                seen[v, row] = stamp
                before = e
                row = peer[e]


@helper
def _depends(bits, channel, port):
    return (bits[channel, port >> 6] >> np.uint64(port & 63)) & np.uint64(1)


@entry
def find_cycle(bits, start, peer, cycle):
    """A cycle among one lane's dependencies `bits` uint64 [E, words]: its channels into `cycle` int32 [E].

    Returns their number, 0 where there is none. The cycle is the shortest through one of its channels.
    """
    channels = len(peer)
    colour = np.zeros(channels, np.uint8)
    stack = np.empty(channels + 1, np.int32)
    place = np.empty(channels + 1, np.int32)
    hit = NONE
    for root in range(channels):
        if colour[root] != WHITE or hit != NONE:
            continue
        depth = _enter(0, root, stack, place, colour)
        while depth >= 0 and hit == NONE:
            channel = stack[depth]
            port = _next_port(depth, stack, place, colour, start, peer)
            if port == NONE:
                depth -= 1
                continue
            if not _depends(bits, channel, port):
                continue
            on = start[peer[channel]] + port
            if colour[on] == WHITE:
                depth = _enter(depth + 1, on, stack, place, colour)
            elif colour[on] == GREY:
                hit = on
    if hit == NONE:
        return 0
    # breadth first from that channel back to itself
    came = np.full(channels, NONE, np.int32)
    stack[0] = hit
    head_, tail = 0, 1
    last = NONE
    while last == NONE:
        channel = stack[head_]
        head_ += 1
        row = peer[channel]
        for port in range(start[row + 1] - start[row]):
            if not _depends(bits, channel, port):
                continue
            on = start[row] + port
            if on == hit:
                last = channel
                break
            if came[on] == NONE:
                came[on] = channel
                stack[tail] = on
                tail += 1
    length = 1
    channel = last
    while channel != hit:
        length += 1
        channel = came[channel]
    channel = last
    for i in range(length - 1, -1, -1):
        cycle[i] = channel
        channel = came[channel]
    return length
