"""D-mod-K: in a regular fat-tree the destination alone picks the way up, so shift permutations never collide.

Zahavi, "D-Mod-K Routing Providing Non-Blocking Traffic for Shift Permutations on Real Life Fat Trees", 2010.
At the leaves the destination's index modulo the number of up-links, one tier higher the quotient modulo that
tier's, and so on. It needs switches that know their tier and equally many up-links on all switches of a tier.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.fabric.fabric import I32, Fabric
from fabrictwin.routing.minhop import blank_tables, destinations, reach_switches
from fabrictwin.routing.tables import U8, Groups, Switches


def _up_links(fabric: Fabric, switches: Switches) -> I32 | None:
    """[tiers] up-links of the switches of each tier, from tier 1; None where the shape is not regular."""
    tier = fabric.node_tier[switches.row_node].astype(np.int64)
    if not len(tier) or (tier < 1).any():
        return None
    row = np.repeat(np.arange(len(tier)), np.diff(switches.adjacent_start))
    step = tier[switches.adjacent_row] - tier[row]
    if (np.abs(step) != 1).any() or (tier[switches.edge_row] != 1).any():
        return None
    up = np.bincount(row[step == 1], minlength=len(tier))
    links = []
    for level in range(1, int(tier.max()) + 1):
        counts = np.unique(up[tier == level])
        if len(counts) != 1:
            return None
        links.append(int(counts[0]))
    return np.array(links, np.int32)


def dmodk_fits(fabric: Fabric, switches: Switches, groups: Groups) -> bool:
    """Whether the fabric is a regular tree of tiers."""
    return _up_links(fabric, switches) is not None


def dmodk(fabric: Fabric, switches: Switches, groups: Groups, lid: I32) -> U8:
    """Linear forwarding tables [S, highest LID + 1]. On an irregular shape all strides are 1."""
    from fabrictwin.kernel import graph

    links = _up_links(fabric, switches)
    stride = np.ones(fabric.ports, np.int64)
    if links is not None:
        # parallel links down repeat the choice that was made going up, so the lower end's stride counts
        below = np.concatenate([[1], np.cumprod(np.maximum(links, 1).astype(np.int64))])
        tier = fabric.node_tier.astype(np.int64)
        port = switches.adjacent_port
        lower = np.minimum(tier[fabric.port_node[port]], tier[fabric.port_node[fabric.port_peer[port]]])
        stride[port] = below[lower - 1]
    lft = blank_tables(fabric, switches, lid)
    order, column, place = destinations(switches, lid)
    graph.fill_dmodk(
        groups.group_of,
        groups.group_start,
        groups.group_ports,
        fabric.port_number,
        order,
        column,
        place,
        stride,
        lft,
    )
    reach_switches(fabric, switches, groups, lid, lft)
    return lft
