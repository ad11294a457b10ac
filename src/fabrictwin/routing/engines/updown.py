"""Up/down: paths go up toward a root, then down, never up again; that order of links cannot deadlock.

Schroeder et al., "Autonet: a high-speed, self-configuring local area network using point-to-point links", 1991;
what OpenSM calls updn. Roots come from a root GUID file or are found (`tiers.find_roots`); OpenSM's search loops
on some real fabrics, this one never does. Among legal shortest paths the least loaded port, as in min-hop.

Two switches may have no legal path: two roots, or switches that are below different roots, which matters where
they carry aggregation nodes, or hosts at the fabric's edge. Their packets go down until there is a legal path, in
virtual lanes of their own; OpenSM leaves such pairs unreachable unless it is told to connect roots.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import U8
from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.filling import Tables, blank_tables, destinations, own_lanes, refuse, tree_of
from fabrictwin.routing.engines.routing_options import Options, edge_costs, rows_of_guids
from fabrictwin.routing.graph.switch_tiers import Tiers, graph_of, orient, recognise
from fabrictwin.routing.graph.switches import Lids, Switches


def oriented(switches: Switches, options: Options) -> Tiers:
    """Tiers below the roots that were asked for, or found."""
    if not options.roots:
        return recognise(switches)
    return orient(switches, rows_of_guids(switches, options.roots, key="roots"))


def with_lanes(switches: Switches, tiers: Tiers, lids: Lids, lft: U8, options: Options, *, engine: str) -> Tables:
    """Tables in which paths that no legal path replaces have lanes of their own."""
    lid, stands = tree_of(switches, lids)
    lane, lanes = own_lanes(switches, lft, lid, stands=stands, up=tiers.up, most=options.lanes)
    if lanes == NONE:
        raise ConfigError(
            f"got {options.lanes} virtual lanes, which do not suffice to keep paths between switches that no "
            f"path up and then down joins from deadlock, expected more or another engine than {engine}",
            key="lanes",
        )
    if lanes == 1:
        return Tables(engine, lft)
    # a switch's own LID tells for all that hangs on it: legal or not is a matter of the two switches
    astray = lane[lids.row] > 0
    adapters = switches.row_adapters.astype(np.int64)
    pairs = int(adapters @ astray @ adapters[switches.edge_row])
    remark = (
        f"{int(astray.sum())} pairs of switches, {pairs} of adapters, have no path up and then down; "
        f"they have {'lane 1' if lanes == 2 else f'lanes 1 to {lanes - 1}'} to themselves"
    )
    return Tables(engine, lft, lane, lanes, remark)


def updown(switches: Switches, lids: Lids, options: Options) -> Tables:
    """Tables by legal shortest paths. Raises ConfigError where lanes do not suffice for pairs without one."""
    from fabrictwin.kernel.routing import table_filling as forwarding

    refuse(options, "updown", "roots", "weights")
    tiers = oriented(switches, options)
    cost = edge_costs(switches, options.weights)
    lft = blank_tables(switches, lids)
    load = np.zeros(len(cost), np.int32)
    astray, _ = forwarding.fill_least_loaded(
        graph_of(switches, cost, tiers), forwarding.UPDOWN, destinations(switches, lids), lft, load
    )
    if not astray:
        return Tables("updown", lft)
    return with_lanes(switches, tiers, lids, lft, options, engine="updown")
