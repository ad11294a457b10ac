"""sssp and dfsssp as OpenSM 3.3.23 computes them: trees of shortest paths that avoid links already in use.

Compute nodes come first where they are given, then I/O nodes, then all other adapters, each switch by switch,
those with most LIDs first; the switches' own LIDs last. Every LID has a tree of its own. dfsssp adds virtual lanes
so that no paths can wait for each other in a circle. Its tables are OpenSM's; its lanes are not: OpenSM draws them
at random where there are more than it needs, and searches cycles in the order of a tree in memory.

(osm_ucast_dfsssp.c; Domke, Hoefler, Nagel, "Deadlock-Free Oblivious Routing for Arbitrary Topologies", 2011.)
Left out: `avoid_throttled_links`.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.balanced import break_cycles
from fabrictwin.routing.engines.filling import Tables, refuse
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import Lids, Switches
from fabrictwin.routing.opensm.subnets import Subnet, endpoint_counts, endpoints_by_port, fill_subnets


def sssp(switches: Switches, lids: Lids, options: Options) -> Tables:
    """OpenSM's tables by sssp. Raises ConfigError where its weights overflow."""
    refuse(options, "sssp", "compute", "storage")
    return Tables("sssp", fill_subnets(switches, lids, options, _fill))


def dfsssp(switches: Switches, lids: Lids, options: Options) -> Tables:
    """OpenSM's tables by dfsssp, and lanes. Raises ConfigError where lanes do not suffice."""
    refuse(options, "dfsssp", "compute", "storage")
    lft = fill_subnets(switches, lids, options, _fill)
    return break_cycles(switches, lids, lft, options, engine="dfsssp")


def _fill(subnet: Subnet) -> None:
    from fabrictwin.kernel.routing import heaped_trees

    switches, lids = subnet.switches, subnet.lids
    width = 1 << lids.lmc
    sources = 1 + endpoint_counts(switches) * width
    total = switches.rows + len(switches.endpoint_row) * width
    turn = np.empty(switches.rows, np.int64)
    by_load = np.argsort(-sources, kind="stable")
    turn[by_load] = np.arange(switches.rows)
    ends = endpoints_by_port(switches)
    ends = ends[np.lexsort((turn[switches.endpoint_row[ends]], _class(subnet)[ends]))]
    ends = ends[lids.endpoint[ends] > 0]
    by_load = by_load[lids.row[by_load] > 0]
    root = np.concatenate([np.repeat(switches.rows + switches.endpoint_row[ends], width), by_load])
    lid = np.concatenate([(lids.endpoint[ends][:, None] + np.arange(width)).reshape(-1), lids.row[by_load]])
    failed = heaped_trees.fill_heaped_trees(
        switches.adjacent_start,
        switches.adjacent_row,
        switches.adjacent_back,
        switches.adjacent_number,
        switches.adjacent_from,
        sources.astype(np.int64),
        total * total,
        root.astype(np.int32),
        lid.astype(np.int32),
        subnet.lft,
    )
    if failed != NONE:
        raise ConfigError(
            f"got {total} LIDs, with whose weights OpenSM's 31-bit distances overflow before LID {lid[failed]} is "
            "reached from all switches; expected fewer, or the engine balanced",
            key="engine",
        )


def _class(subnet: Subnet) -> I64:
    """[X] 0 for compute nodes, 1 for I/O nodes, 2 for others."""
    guid, options = subnet.switches.endpoint_guid, subnet.options
    kind = np.full(len(guid), 2, np.int64)
    kind[np.isin(guid, np.array(options.storage, np.uint64))] = 1
    kind[np.isin(guid, np.array(options.compute, np.uint64))] = 0
    return kind
