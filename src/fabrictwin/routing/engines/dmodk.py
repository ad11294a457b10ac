"""D-mod-K: in a regular fat-tree the destination alone picks the way up, so shift permutations never collide.

Zahavi, "D-Mod-K Routing Providing Non-Blocking Traffic for Shift Permutations on Real Life Fat Trees", 2010.
At the leaves the destination's index modulo the number of up-links, one tier higher the quotient modulo that
tier's, and so on. It needs a regular tree (`shape.irregularity`); elsewhere `ftree` and `auto` do the same thing
as far as the cables allow.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import place_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.routing.engines.filling import Tables, blank_tables, destinations, refuse
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.shape import irregularity
from fabrictwin.routing.graph.switch_tiers import Tiers, recognise
from fabrictwin.routing.graph.switches import Lids, Switches


def dmodk(switches: Switches, lids: Lids, options: Options) -> Tables:
    """Tables of a regular tree. Raises ConfigError that names what is irregular."""
    refuse(options, "dmodk")
    tiers = recognise(switches)
    odd = irregularity(switches, tiers)
    if odd:
        raise ConfigError(
            f"got a shape that is no regular tree: {odd}; expected one, or the engine auto", key="engine"
        )
    return fill(switches, lids, tiers)


def fill(switches: Switches, lids: Lids, tiers: Tiers) -> Tables:
    """Tables of a tree that is known to be regular."""
    from fabrictwin.kernel.routing import table_filling as forwarding

    a, b = switches.adjacent_from, switches.adjacent_row
    # links up count parents first and parallel cables second, as in the parallel-link fat-trees of the paper
    pair = a.astype(np.int64) * switches.rows + b
    by_pair = np.argsort(pair, kind="stable")
    parallel = np.empty(len(pair), np.int64)
    parallel[by_pair] = np.arange(len(pair)) - np.searchsorted(pair[by_pair], pair[by_pair])
    order = np.lexsort((tiers.slot[b], parallel, a))
    place = place_of(order, len(order))

    rank = tiers.rank.astype(np.int64)
    lowest = int(rank.max(initial=0))
    # the number of parents, by the rank of the children
    parents = np.ones(lowest + 1, np.int64)
    for tier in range(1, lowest + 1):
        above = tiers.slots[b[(tiers.up != 0) & (rank[a] == tier)]]
        parents[tier] = int(above.max(initial=1))
    lower = np.maximum(rank[a], rank[b])
    below = np.ones(lowest + 2, np.int64)
    for tier in range(lowest, 0, -1):
        below[tier - 1] = below[tier] * parents[tier]
    # a switch's choice among links up: quotient by the parents below it; parallel links down repeat that choice
    stride = np.where(tiers.up != 0, below[lower], below[lower - 1])[order]

    graph = forwarding.Graph(
        switches.adjacent_start,
        b[order],
        place[switches.adjacent_back[order]],
        switches.adjacent_number[order],
        np.ones(len(order), np.int32),
        tiers.up[order],
        tiers.top_down,
    )
    lft = blank_tables(switches, lids)
    to_these = destinations(switches, lids, tiers.visit)
    forwarding.fill_by_index(graph, forwarding.SHORTEST, to_these, stride, lft)
    return Tables("dmodk", lft)
