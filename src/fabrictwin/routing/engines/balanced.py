"""DFSSSP: shortest paths balanced over the whole fabric, free of deadlock on any graph by virtual lanes.

Domke, Hoefler, Nagel, "Deadlock-Free Oblivious Routing for Arbitrary Topologies", 2011. First a tree of shortest
paths for each LID that avoids links which many paths use already (SSSP), then paths are moved to higher lanes
until no lane's channel dependency graph has a cycle. Left out: spreading paths over lanes that are not needed.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import U8
from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.filling import (
    Tables,
    blank_tables,
    destinations,
    has_cycle,
    own_lanes,
    refuse,
    tree_of,
)
from fabrictwin.routing.engines.routing_options import Options, edge_costs
from fabrictwin.routing.graph.switch_tiers import ASTRAY_AT_MOST, astray_share, graph_of, recognise
from fabrictwin.routing.graph.switches import Lids, Switches


def balanced(switches: Switches, lids: Lids, options: Options) -> Tables:
    """Tables and lanes. Raises ConfigError where `options.lanes` do not suffice."""
    from fabrictwin.kernel.routing import destination_trees as trees
    from fabrictwin.kernel.routing import table_filling as forwarding

    refuse(options, "balanced", "weights")
    cost = edge_costs(switches, options.weights)
    lft = blank_tables(switches, lids)
    to_these = destinations(switches, lids)
    load = np.zeros(len(cost), np.int64)
    trees.fill_shortest_trees(
        graph_of(switches, cost), forwarding.SHORTEST, to_these, switches.row_adapters, lft, load
    )
    return break_cycles(switches, lids, lft, options, engine="balanced")


def break_cycles(switches: Switches, lids: Lids, lft: U8, options: Options, *, engine: str) -> Tables:
    """Tables with lanes so that no paths can deadlock. Raises ConfigError where `options.lanes` do not suffice."""
    if not has_cycle(switches, lft, destinations(switches, lids).lid):
        return Tables(engine, lft)
    tiers = recognise(switches)
    up = tiers.up if astray_share(switches, tiers) <= ASTRAY_AT_MOST else None
    lid, stands = tree_of(switches, lids)
    lane, lanes = own_lanes(switches, lft, lid, stands=stands, up=up, most=options.lanes)
    if lanes == NONE:
        raise ConfigError(
            f"got {options.lanes} virtual lanes, which do not suffice to break all cycles of dependencies, "
            f"expected more or another engine than {engine}",
            key="lanes",
        )
    return Tables(engine, lft, lane, lanes)
