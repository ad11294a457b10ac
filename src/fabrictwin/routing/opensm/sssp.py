"""sssp and dfsssp as OpenSM 3.3.23 computes them: trees of shortest paths that avoid links already in use.

Compute nodes come first where they are given, then I/O nodes, then all other adapters, each switch by switch,
those with most LIDs first; the switches' own LIDs last. Every LID has a tree of its own. dfsssp adds virtual lanes
so that no paths can wait for each other in a circle. Where there are more than that takes, OpenSM gives the
fullest several, and draws one of them for each path record that it answers, by a seed from its clock. Here a path
has the first of them.

(osm_ucast_dfsssp.c; Domke, Hoefler, Nagel, "Deadlock-Free Oblivious Routing for Arbitrary Topologies", 2011.)
Left out: `avoid_throttled_links`.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I32, I64, U8, place_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.filling import NO_PORT, Tables, blank_tables, destinations, has_cycle, refuse
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import Lids, Switches
from fabrictwin.routing.opensm.subnets import Subnet, endpoint_counts, endpoints_by_port, fill_subnets, subnets


def sssp(switches: Switches, lids: Lids, options: Options) -> Tables:
    """OpenSM's tables by sssp. Raises ConfigError where its weights overflow."""
    refuse(options, "sssp", "compute", "storage")
    lft = fill_subnets(switches, lids, options, _fill)
    _forget_routers(switches, lids, lft)
    return Tables("sssp", lft)


def dfsssp(switches: Switches, lids: Lids, options: Options) -> Tables:
    """OpenSM's tables by dfsssp, and its lanes. Raises ConfigError where lanes do not suffice."""
    refuse(options, "dfsssp", "compute", "storage")
    lft = blank_tables(switches, lids)
    lane, lanes = np.zeros((0, 0), np.uint8), 1
    parts = list(subnets(switches, lids, options, lft))
    for subnet in parts:
        _fill(subnet)
        lft[subnet.rows] = subnet.lft
        if has_cycle(subnet.switches, subnet.lft, destinations(subnet.switches, subnet.lids).lid):
            if not lane.size:
                lane = np.zeros((lft.shape[1], len(switches.edge_row)), np.uint8)
            lanes = max(lanes, _layer(subnet, switches.edge_column[subnet.rows], lane))
    _forget_routers(switches, lids, lft)
    return Tables("dfsssp", lft, lane, lanes)


def _forget_routers(switches: Switches, lids: Lids, lft: U8) -> None:
    """Take away the ways to LIDs of routers, which OpenSM gives none."""
    router = switches.endpoint_router & (switches.endpoint_row != NONE) & (lids.endpoint > 0)
    for row, lid in zip(switches.endpoint_row[router].tolist(), lids.endpoint[router].tolist(), strict=True):
        lft[row, lid : lid + (1 << lids.lmc)] = NO_PORT


def _turns(subnet: Subnet) -> tuple[I64, I64]:
    """Endpoints, then rows, in the order in which LIDs get trees."""
    switches, lids = subnet.switches, subnet.lids
    sources = 1 + endpoint_counts(switches) * (1 << lids.lmc)
    turn = np.empty(switches.rows, np.int64)
    by_load = np.argsort(-sources, kind="stable")
    turn[by_load] = np.arange(switches.rows)
    ends = endpoints_by_port(switches)
    ends = ends[np.lexsort((turn[switches.endpoint_row[ends]], _class(subnet)[ends]))]
    # routers count as sources, and get no trees
    wanted = (lids.endpoint[ends] > 0) & ~switches.endpoint_router[ends]
    return ends[wanted], by_load[lids.row[by_load] > 0]


def _fill(subnet: Subnet) -> None:
    from fabrictwin.kernel.routing import heaped_trees

    switches, lids = subnet.switches, subnet.lids
    width = 1 << lids.lmc
    sources = 1 + endpoint_counts(switches) * width
    total = switches.rows + int((~switches.endpoint_router).sum()) * width
    ends, by_load = _turns(subnet)
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


def _layer(subnet: Subnet, column: I32, lane: U8) -> int:
    """Fill `lane` [LIDs, columns of the whole graph], the columns of this subnet's rows. Returns lanes in use."""
    from fabrictwin.kernel.routing import layered_lanes

    switches, lids = subnet.switches, subnet.lids
    width = 1 << lids.lmc
    ends, rows = _turns(subnet)
    source = switches.endpoint_row[ends]
    first = np.sort(np.unique(source, return_index=True)[1])
    sources = source[first]
    weight = np.bincount(source, minlength=switches.rows)[sources] * width
    lid = np.concatenate([(lids.endpoint[ends][:, None] + np.arange(width)).reshape(-1), lids.row[rows]])
    port = np.concatenate([np.repeat(np.arange(len(ends)), width), len(ends) + np.arange(len(rows))])
    each = np.bincount(port)
    paths = np.zeros(subnet.options.lanes, np.int64)
    paths[0] = each.sum() ** 2 - (each**2).sum()
    order = np.lexsort((switches.adjacent_number, lids.row[switches.adjacent_from]))
    found = np.zeros((len(lid), len(sources)), np.uint8)
    needed = layered_lanes.layer_lanes(
        np.ascontiguousarray(subnet.lft.T),
        lid.astype(np.int32),
        port.astype(np.int64),
        sources.astype(np.int32),
        weight.astype(np.int64),
        layered_lanes.Graph(
            switches.port_edge,
            switches.adjacent_start,
            switches.adjacent_row,
            place_of(order, len(order)),
        ),
        found,
        paths,
    )
    if needed > len(paths):
        raise ConfigError(
            f"got {len(paths)} virtual lanes, where OpenSM's dfsssp refuses: it needs more to break all cycles of "
            "dependencies; expected more, or another engine",
            key="lanes",
        )
    base = _spread(paths, needed)
    lane[np.ix_(lid, column[sources])] = base[found]
    return int(base[needed - 1]) + 1


def _spread(paths: I64, needed: int) -> U8:
    """[needed] the lane that each becomes when those that are left are given to the fullest.

    From a lane of the result to the one before the next, OpenSM draws one for each path record that it answers.
    """
    split = np.ones(needed, np.int64)
    for _ in range(needed, len(paths)):
        share = paths[:needed] / split
        split[int(np.argmax(share))] += 1
    return np.cumsum(np.concatenate([[0], split[:-1]])).astype(np.uint8)


def _class(subnet: Subnet) -> I64:
    """[X] 0 for compute nodes, 1 for I/O nodes, 2 for others."""
    guid, options = subnet.switches.endpoint_guid, subnet.options
    kind = np.full(len(guid), 2, np.int64)
    kind[np.isin(guid, np.array(options.storage, np.uint64))] = 1
    kind[np.isin(guid, np.array(options.compute, np.uint64))] = 0
    return kind
