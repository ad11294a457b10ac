"""What OpenSM's engines share: one subnet at a time, the order of its tables, destinations in their order.

OpenSM keeps switches and ports in trees by GUID in the byte order of the wire, read as a number of a little-endian
machine, so they come in the order of their GUIDs' bytes from the last to the first. That order gives LIDs, and
destinations their turn. (opensm 3.3.23: osm_ucast_mgr.c, osm_lid_mgr.c, cl_map.c.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.base.arrays import I32, I64, U8, U64, place_of, starts_of
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.filling import blank_tables
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switch_tiers import planes
from fabrictwin.routing.graph.switches import Lids, Switches

if TYPE_CHECKING:
    from fabrictwin.kernel.routing.port_counters import Wanted


@record
class Subnet:
    """What one OpenSM sees. Its switches are rows in the order of OpenSM's tables."""

    rows: I64  # [S] rows of the whole graph
    switches: Switches
    lids: Lids
    options: Options
    lft: U8  # [S, LIDs] blank but for what hangs on each switch; engines fill it


def wire_order(guid: U64) -> I64:
    """The order in which OpenSM's tables hold things of these GUIDs."""
    return np.argsort(np.asarray(guid, np.uint64).byteswap(), kind="stable")


def fill_subnets(switches: Switches, lids: Lids, options: Options, fill: Callable[[Subnet], None]) -> U8:
    """Tables [S, LIDs] by an engine that fills those of one subnet."""
    lft = blank_tables(switches, lids)
    for subnet in subnets(switches, lids, options, lft):
        fill(subnet)
        lft[subnet.rows] = subnet.lft
    return lft


def subnets(switches: Switches, lids: Lids, options: Options, lft: U8) -> Iterator[Subnet]:
    label = planes(switches)
    for plane in np.unique(label):
        rows = np.flatnonzero(label == plane)
        rows = rows[wire_order(switches.row_guid[rows])]
        graph, own = _part(switches, lids, rows)
        yield Subnet(rows, graph, own, options, lft[rows])


def _part(switches: Switches, lids: Lids, rows: I64) -> tuple[Switches, Lids]:
    """The graph and LIDs of some rows, which no link leaves, in that order."""
    place = place_of(rows, switches.rows)
    degree = np.diff(switches.adjacent_start)[rows]
    start = starts_of(degree).astype(np.int32)
    edge = np.arange(start[-1]) + np.repeat(switches.adjacent_start[rows] - start[:-1], degree)
    edge_place = place_of(edge, len(switches.adjacent_row))
    hung = switches.endpoint_row != NONE
    hung[hung] = place[switches.endpoint_row[hung]] != NONE
    graph = replace(
        switches,
        row_name=[str(row) for row in rows],
        row_guid=switches.row_guid[rows],
        system_guid=switches.system_guid[rows],
        adjacent_start=start,
        adjacent_row=place[switches.adjacent_row[edge]],
        adjacent_number=switches.adjacent_number[edge],
        adjacent_back=edge_place[switches.adjacent_back[edge]],
        adjacent_port=switches.adjacent_port[edge],
        endpoint_row=place[switches.endpoint_row[hung]],
        endpoint_number=switches.endpoint_number[hung],
        endpoint_adapter=switches.endpoint_adapter[hung],
        endpoint_guid=switches.endpoint_guid[hung],
        endpoint_node_guid=switches.endpoint_node_guid[hung],
        endpoint_node=switches.endpoint_node[hung],
        endpoint_port=switches.endpoint_port[hung],
        row_node=switches.row_node[rows],
        loops=_loops_of(switches, place),
        routers=None if switches.routers is None else switches.routers[hung],
    )
    return graph, Lids(lids.row[rows], lids.endpoint[hung], lids.lmc)


def _loops_of(switches: Switches, place: I32) -> I32:
    """Cables from a switch to itself, of the rows that have a place in a part."""
    loops: I32 = switches.loops[place[switches.loops[:, 0]] != NONE].copy()
    loops[:, 0] = place[loops[:, 0]]
    ordered: I32 = loops[np.lexsort((loops[:, 1], loops[:, 0]))]
    return ordered


def endpoints_by_port(switches: Switches) -> I64:
    """Endpoints [X] switch by switch, and on a switch by port."""
    return np.lexsort((switches.endpoint_number, switches.endpoint_row))


def endpoint_counts(switches: Switches) -> I64:
    """[S] ports that lead to no switch."""
    return np.bincount(switches.endpoint_row, minlength=switches.rows)


def wanted(subnet: Subnet) -> Wanted:
    """Destinations in the order in which minhop, updn and dnup give them ports.

    Those of a GUID routing order file, then adapters switch by switch, the switches with most of them first, then
    the switches themselves.
    """
    from fabrictwin.kernel.routing.port_counters import Wanted

    switches, lids, options = subnet.switches, subnet.lids, subnet.options
    rows, count = switches.rows, len(switches.endpoint_row)
    # things are rows, then endpoints
    by_port = endpoints_by_port(switches)
    row = switches.endpoint_row[by_port]
    load = endpoint_counts(switches)
    turn = np.empty(rows, np.int64)
    turn[np.argsort(-load, kind="stable")] = np.arange(rows)
    things = np.concatenate([rows + by_port[np.argsort(turn[row], kind="stable")], np.arange(rows)])
    if options.order:
        guid = np.concatenate([switches.row_guid, switches.endpoint_guid])
        place = {int(g): i for i, g in enumerate(guid)}
        first = np.array([place[g] for g in dict.fromkeys(options.order) if g in place], np.int64)
        things = np.concatenate([first, things[~np.isin(things, first)]])
    is_row = things < rows
    at = np.where(is_row, things, switches.endpoint_row[np.maximum(things - rows, 0)] if count else things)
    lid = np.concatenate([lids.row, lids.endpoint])[things]
    have = lid > 0
    return Wanted(
        at.astype(np.int32)[have],
        lid.astype(np.int32)[have],
        (~is_row)[have].astype(np.uint8),
        np.where(is_row, 1, 1 << lids.lmc).astype(np.int32)[have],
        np.full(len(things), options.scatter > 0)[have].astype(np.uint8),
    )


def systems(switches: Switches) -> I32:
    """[S] numbers of the systems that switches are part of."""
    return np.unique(switches.system_guid, return_inverse=True)[1].astype(np.int32)


def mask_words(switches: Switches) -> int:
    """64-bit words for one bit a link of any switch."""
    return max(1, -(-int(np.diff(switches.adjacent_start).max(initial=0)) // 64))
