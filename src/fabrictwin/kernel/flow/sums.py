"""Compiled: sums by row and column, uses of links put in the order of edges, their rates and what they carry."""

from __future__ import annotations

import numpy as np

from fabrictwin.kernel.jit.decorators import entry, inner


@inner
def _by_key(key, keys, order, into):
    """Put the places of `order` into `into` by their key, places of one key as they stood."""
    first = np.zeros(keys + 1, np.int64)
    for i in order:
        first[key[i] + 1] += 1
    for k in range(keys):
        first[k + 1] += first[k]
    for i in order:
        into[first[key[i]]] = i
        first[key[i]] += 1


@entry
def places_by(row, column, columns, start, order, first):
    """Put places of equal (row, column) together: `order` [n], of which group k begins at `first[k]` [n + 1].

    Rows ascend, columns in each of them, and places in each group. `start` [rows + 1] are the first groups of the
    rows. Returns the number of groups.
    """
    rows, n = len(start) - 1, len(row)
    by_column = np.empty(n, np.int32)
    for i in range(n):
        order[i] = i
    _by_key(column, columns, order, by_column)
    _by_key(row, rows, by_column, order)
    made, at = 0, 0
    for r in range(rows):
        start[r] = made
        while at < n and row[order[at]] == r:
            c = column[order[at]]
            first[made] = at
            made += 1
            while at < n and row[order[at]] == r and column[order[at]] == c:
                at += 1
    start[rows] = made
    first[made] = n
    return made


@entry
def add_up(order, first, value, total):
    """Set `total[k]` to the sum of `value` at the places of group k, added in their order."""
    for k in range(len(total)):
        own = value[order[first[k]]]
        for at in range(first[k] + 1, first[k + 1]):
            own += value[order[at]]
        total[k] = own


@entry
def count(row, counts):
    """Add 1 to `counts` at each row."""
    for r in row:
        counts[r] += 1


@entry
def place(row, column, share, before, following, rows, columns, shares, befores):
    """Put uses where the next one of their row goes, `following` [rows + 1], in the order that they are given."""
    for u in range(len(row)):
        at = following[row[u]]
        rows[at], columns[at], shares[at], befores[at] = row[u], column[u], share[u], before[u]
        following[row[u]] = at + 1


@entry
def take_rows(start, taken, column, value, columns, values):
    """Put the uses of the rows `taken` one row after the other; `start` [rows + 1] are the first uses of rows."""
    at = 0
    for r in taken:
        for u in range(start[r], start[r + 1]):
            columns[at], values[at] = column[u], value[u]
            at += 1


@entry
def edge_rates(edge, port, share, rate, unit, slowest):
    """Set `slowest[e]` to the least `rate` of edge e's links in `unit`s, divided by its share of each."""
    for u in range(len(edge)):
        if share[u] > 0.0:
            slowest[edge[u]] = min(slowest[edge[u]], rate[port[u]] / (unit * share[u]))


@entry
def carried(edge, before, share, size, carries):
    """Set `carries[u]` to the bytes of its edge's `size` on a link: whole ones, without remainder of an edge."""
    for u in range(len(edge)):
        whole = size[edge[u]]
        carries[u] = np.int64(np.rint((before[u] + share[u]) * whole)) - np.int64(np.rint(before[u] * whole))


@entry
def add_carried(flow, start, port, size, whole, part, carried):
    """Add what the ports of each channel c carried, `port[u]` with u from `start[c]` to `start[c + 1]`.

    That is `size[u]` bytes for each execution of the channel's flow: of `whole` ones, and of a `part` of one.
    """
    for c in range(len(flow)):
        times, rest = whole[flow[c]], part[flow[c]]
        for u in range(start[c], start[c + 1]):
            carried[port[u]] += times * size[u] + np.int64(np.rint(rest * size[u]))


@entry
def loaded_rates(edge, port, share, together, rate, unit, load, slowest):
    """Set `slowest[e]` to the least `rate` of edge e's links in `unit`s, divided among the edges at work together.

    These have its number in `together`, of which an even one and the next are a channel's; edges are in the order
    of channels. `load` [2, ports] is room for sums, all zeros, and left so.
    """
    begin, uses = 0, len(edge)
    while begin < uses:
        channel, end = together[edge[begin]] // 2, begin
        while end < uses and together[edge[end]] // 2 == channel:
            load[together[edge[end]] % 2, port[end]] += share[end]
            end += 1
        for u in range(begin, end):
            e, p = edge[u], port[u]
            slowest[e] = min(slowest[e], rate[p] / (unit * load[together[e] % 2, p]))
        for u in range(begin, end):
            load[together[edge[u]] % 2, port[u]] = 0.0
        begin = end
