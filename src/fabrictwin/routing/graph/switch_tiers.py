"""Tiers recognised in a graph: which switches are at the top, which links lead up, who stands beside whom.

Only the graph is read, no labels, because a discovered fabric has none. Real fabrics are trees with missing
cables, uneven leaves, islands of management switches and SHARP aggregation nodes at every tier, so roots are
found by where adapters are rather than by counting ports:

1. Switches that lie on no shortest path between switches with adapters are left out: spares and islands of
   switches without hosts at the fabric's edge, which would pass for tops because they are far from hosts.
2. A switch's height is its distance to the nearest switch with adapters. Roots are switches without a higher
   neighbour.
3. Ranks are distances from the roots; a link leads up to the lower rank, between equal ranks to the earlier row.

Where more than one in a hundred pairs of adapters has no way up and then down below those roots (an island with
roots of its own, joined at the bottom), or as many links join switches of a tier, only the roots that are within
half a hop of the nearest to all adapters stay. Where that is not enough the graph is no tree, and the nearest
alone is the root: then there is always a way, over that root.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I32, I64, U8, Bool
from fabrictwin.base.records import record
from fabrictwin.routing.graph.switches import Switches

FAR = 1 << 30
ASTRAY_AT_MOST = 0.01  # of pairs of adapters
LEVEL_AT_MOST = 0.01  # of links


@record
class Tiers:
    """An up/down orientation of the switch graph."""

    roots: I32  # rows
    rank: I32  # [S] hops from the nearest root, 0 at the roots
    up: U8  # [E] 1 where the link leads up
    top_down: I32  # [S] rows, roots first: links up lead to earlier ones
    slot: I32  # [S] a switch's place among those that share children with it, in order of rows
    slots: I32  # [S] how many those are; 1 where a switch has no children
    visit: I32  # [S] rows so that pods stand together: what is joined without higher tiers
    treelike: bool  # hardly any pair of adapters without a way up and then down, or link within a tier


def sweep(switches: Switches, sources: I32) -> I32:
    """[S] hops from the nearest of `sources`; FAR where there is no way. Breadth first, a vector a level."""
    hops = np.full(switches.rows, FAR, np.int32)
    hops[sources] = 0
    start, peer = switches.adjacent_from, switches.adjacent_row
    frontier = np.zeros(switches.rows, bool)
    frontier[sources] = True
    level = 0
    while frontier.any():
        level += 1
        reached = peer[frontier[start]]
        new = np.unique(reached[hops[reached] == FAR])
        frontier[:] = False
        frontier[new] = True
        hops[new] = level
    return hops


def planes(switches: Switches) -> I64:
    """[S] the smallest row that each row is joined to."""
    return _components(switches.rows, switches.adjacent_from, switches.adjacent_row)


def _components(rows: int, a: I32, b: I32) -> I64:
    label = np.arange(rows)
    while True:
        after = label.copy()
        np.minimum.at(after, a, label[b])
        after = after[after]
        if np.array_equal(after, label):
            return label
        label = after


def _adapters(switches: Switches) -> I64:
    """[S] adapters at each switch; one each where a plane has none at all, so that bare switches count alike."""
    adapters = switches.row_adapters.astype(np.int64)
    label = planes(switches)
    bare = np.bincount(label, weights=adapters, minlength=switches.rows)[label] == 0
    adapters[bare] = 1
    return adapters


def _hops_to_adapters(switches: Switches, adapters: I64) -> tuple[I32, I32]:
    """Rows with adapters [D], and hops [S, D] from every switch to them."""
    from fabrictwin.kernel.routing import table_filling as forwarding

    columns = np.flatnonzero(adapters).astype(np.int32)
    hops = np.empty((len(columns), switches.rows), np.int32)
    forwarding.shortest_hops(graph_of(switches, np.ones(len(switches.adjacent_row), np.int32)), columns, hops)
    return columns, np.ascontiguousarray(hops.T)


def find_roots(switches: Switches) -> tuple[I32, I64]:
    """Rows at the top of the tree that the graph is nearest to, and their sum of hops to all adapters."""
    from fabrictwin.kernel.routing import table_filling as forwarding

    adapters = _adapters(switches)
    columns, hops = _hops_to_adapters(switches, adapters)
    on = np.empty(switches.rows, np.uint8)
    forwarding.on_shortest_paths(hops, columns, on)
    height = hops.min(axis=1, initial=FAR)
    a, b = switches.adjacent_from, switches.adjacent_row
    above = np.zeros(switches.rows, bool)
    above[a[(height[b] > height[a]) & (on[b] != 0)]] = True
    roots = np.flatnonzero(~above & (on != 0)).astype(np.int32)
    total = (np.where(hops[roots] == FAR, 0, hops[roots]).astype(np.int64) * adapters[columns]).sum(axis=1)
    return roots, total


def orient(switches: Switches, roots: I32, *, treelike: bool = True) -> Tiers:
    """Ranks, links up and places of the tree below `roots`. What no root reaches shares a rank below all."""
    rank = sweep(switches, roots)
    rank[rank == FAR] = int(rank[rank < FAR].max(initial=-1)) + 1
    a, b = switches.adjacent_from, switches.adjacent_row
    up = (rank[b] < rank[a]) | ((rank[b] == rank[a]) & (b < a))
    slot, slots = _places(switches, up)
    return Tiers(
        roots=roots,
        rank=rank,
        up=up.astype(np.uint8),
        top_down=np.lexsort((np.arange(switches.rows), rank)).astype(np.int32),
        slot=slot,
        slots=slots,
        visit=_together(switches, rank),
        treelike=treelike,
    )


def _together(switches: Switches, rank: I32) -> I32:
    """Rows in an order that keeps together what hangs together below the roots, below the next tier, and so on."""
    a, b = switches.adjacent_from, switches.adjacent_row
    keys = [np.arange(switches.rows)]
    for tier in range(int(rank.max(initial=0)), -1, -1):
        below = (rank[a] >= tier) & (rank[b] >= tier)
        keys.append(_components(switches.rows, a[below], b[below]))
    return np.lexsort(keys).astype(np.int32)


def _places(switches: Switches, up: Bool) -> tuple[I32, I32]:
    """The place of each switch among those joined to it through common children, and their number."""
    child, parent = switches.adjacent_from[up], switches.adjacent_row[up]
    label = np.arange(switches.rows)
    least = np.empty(switches.rows, np.int64)
    while True:  # children pass the smallest label around among their parents
        least[:] = switches.rows
        np.minimum.at(least, child, label[parent])
        after = label.copy()
        np.minimum.at(after, parent, least[child])
        after = np.minimum(after, after[after])
        if np.array_equal(after, label):
            break
        label = after
    order = np.lexsort((np.arange(switches.rows), label))
    ordered = label[order]
    slot = np.empty(switches.rows, np.int32)
    slot[order] = np.arange(switches.rows) - np.searchsorted(ordered, ordered)
    count = np.bincount(label, minlength=switches.rows)
    return slot, count[label].astype(np.int32)


def graph_of(switches: Switches, cost: I32, tiers: Tiers | None = None):  # type: ignore[no-untyped-def]
    """The graph as kernels take it. Without tiers it serves shortest paths only."""
    from fabrictwin.kernel.routing.table_filling import Graph

    return Graph(
        switches.adjacent_start,
        switches.adjacent_row,
        switches.adjacent_back,
        switches.adjacent_number,
        cost,
        tiers.up if tiers is not None else np.zeros(len(cost), np.uint8),
        tiers.top_down if tiers is not None else np.arange(switches.rows, dtype=np.int32),
    )


def astray_share(switches: Switches, tiers: Tiers) -> float:
    """The share of pairs of adapters in one plane that no path up and then down joins."""
    from fabrictwin.kernel.routing import table_filling as forwarding

    adapters = _adapters(switches)
    edge = np.flatnonzero(adapters).astype(np.int32)
    hops = np.empty((len(edge), switches.rows), np.int32)
    kind = np.empty((len(edge), switches.rows), np.uint8)
    graph = graph_of(switches, np.ones(len(switches.adjacent_row), np.int32), tiers)
    forwarding.legal_hops(graph, edge, hops, kind)
    near = hops[:, edge] < FAR
    pairs = adapters[edge][:, None] * adapters[edge]
    astray = near & (kind[:, edge] == forwarding.ASTRAY)
    return float(pairs[astray].sum() / max(int(pairs[near].sum()), 1))


def _accepted(switches: Switches, tiers: Tiers) -> bool:
    a, b = switches.adjacent_from, switches.adjacent_row
    level = int((tiers.rank[a] == tiers.rank[b]).sum())
    return level <= LEVEL_AT_MOST * len(a) and astray_share(switches, tiers) <= ASTRAY_AT_MOST


def recognise(switches: Switches) -> Tiers:
    """Tiers of any graph. See the module's docstring."""
    roots, total = find_roots(switches)
    tiers = orient(switches, roots)
    if _accepted(switches, tiers):
        return tiers
    label = planes(switches)[roots]
    weight = np.bincount(planes(switches), weights=_adapters(switches), minlength=switches.rows)[label]
    least = np.full(switches.rows, np.iinfo(np.int64).max)
    np.minimum.at(least, label, total)
    near = 2 * (total - least[label]) <= weight
    tiers = orient(switches, roots[near])
    if _accepted(switches, tiers):
        return tiers
    order = np.lexsort((roots, total, label))
    _, first = np.unique(label[order], return_index=True)
    return orient(switches, np.sort(roots[order[first]]), treelike=False)
