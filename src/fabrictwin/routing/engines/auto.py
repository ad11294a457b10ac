"""Auto: recognises what the fabric is and takes the best balanced tables without deadlock for it.

1. A regular tree: d-mod-k.
2. A tree with flaws (missing cables, uneven leaves, islands, aggregation nodes at every tier), which is to say:
   between switches with adapters some shortest path goes up, then down, but for few pairs. Fat-tree routing as
   far as the cables allow; the rare paths between switches without a way up and down get lanes of their own.
3. Anything else: DFSSSP, and up/down where that needs more lanes than there are.

Roots that are given are taken as the top, and the fabric is not taken for anything but a tree.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.routing.engines import dmodk, fattree
from fabrictwin.routing.engines.balanced import balanced
from fabrictwin.routing.engines.filling import Tables, refuse
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.engines.updown import oriented, updown
from fabrictwin.routing.graph.shape import irregularity
from fabrictwin.routing.graph.switch_tiers import Tiers, graph_of
from fabrictwin.routing.graph.switches import Lids, Switches


def is_tree(switches: Switches, tiers: Tiers) -> bool:
    """Return True where going up and then down, if it leads from adapters to adapters, is never the longer way."""
    from fabrictwin.kernel.routing import table_filling as forwarding

    if not tiers.treelike:
        return False
    edge = np.flatnonzero(switches.row_adapters).astype(np.int32)
    shape = (len(edge), switches.rows)
    legal, shortest, kind = np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.uint8)
    graph = graph_of(switches, np.ones(len(switches.adjacent_row), np.int32), tiers)
    forwarding.legal_hops(graph, edge, legal, kind)
    forwarding.shortest_hops(graph, edge, shortest)
    joined = kind[:, edge] != forwarding.ASTRAY
    return bool((legal[:, edge] == shortest[:, edge])[joined].all())


def auto(switches: Switches, lids: Lids, options: Options) -> Tables:
    """The best tables for the shape; `remark` says why these."""
    refuse(options, "auto", "roots")
    tiers = oriented(switches, options)
    odd = irregularity(switches, tiers)
    if not odd:
        return dmodk.fill(switches, lids, tiers)
    if options.roots or is_tree(switches, tiers):
        tables = fattree.fill(switches, lids, tiers, options, engine="fattree")
        remark = f"a tree, but not a regular one: {odd}"
    else:
        remark = "not a tree: some shortest paths go down and up again"
        try:
            tables = balanced(switches, lids, options)
        except ConfigError:
            tables = updown(switches, lids, options)
            remark += f"; balanced needs more than {options.lanes} lanes"
    remark += f"; {tables.remark}" if tables.remark else ""
    return Tables(tables.engine, tables.lft, tables.lane, tables.lanes, remark)
