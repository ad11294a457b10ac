"""Compiled: sums by row and column, and rates of links that edges share."""

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
def sum_by(row, column, value, columns, start, to_column, to_value):
    """Write sums of `value` by (row, column) as a CSR into `start` [rows + 1], `to_column` and `to_value`.

    Columns ascend in each row; values are added in the order in which they stand.
    """
    rows, n = len(start) - 1, len(row)
    by_column, order = np.empty(n, np.int64), np.arange(n)
    _by_key(column, columns, order, by_column)
    _by_key(row, rows, by_column, order)
    made, at = 0, 0
    for r in range(rows):
        start[r] = made
        while at < n and row[order[at]] == r:
            c, total = column[order[at]], value[order[at]]
            at += 1
            while at < n and row[order[at]] == r and column[order[at]] == c:
                total += value[order[at]]
                at += 1
            to_column[made] = c
            to_value[made] = total
            made += 1
    start[rows] = made


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
