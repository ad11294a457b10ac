"""Min-hop: shortest paths, and among equal ones the port that carries the fewest destinations so far.

What OpenSM calls minhop. Works on any graph; promises no freedom from deadlock where the shortest paths of a
graph turn down and up again.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.fabric.fabric import I32, NONE, Fabric
from fabrictwin.routing.tables import U8, Groups, Switches

NO_PORT = 255


def blank_tables(fabric: Fabric, switches: Switches, lid: I32) -> U8:
    """[S, highest LID + 1] with what every engine shares: the switches themselves and what hangs on them."""
    lft = np.full((len(switches.row_node), int(lid.max(initial=0)) + 1), NO_PORT, np.uint8)
    lft[np.arange(len(switches.row_node)), lid[switches.row_node]] = 0
    hung = switches.endpoint_row != NONE
    port = fabric.port_peer[switches.endpoint_port[hung]]
    lft[switches.endpoint_row[hung], lid[switches.endpoint_node[hung]]] = fabric.port_number[port]
    return lft


def destinations(switches: Switches, lid: I32) -> tuple[I32, I32, I32]:
    """Endpoints' LIDs in the order of their leaves and ports, each LID's column, and each LID's place.

    A place is `leaf's column * widest leaf + place on the leaf`. Both look-ups are by LID.
    """
    hung = np.flatnonzero(switches.endpoint_row != NONE)
    column = switches.edge_column[switches.endpoint_row[hung]]
    order = np.lexsort((switches.endpoint_node[hung], column))
    hung, column = hung[order], column[order]
    lids = lid[switches.endpoint_node[hung]]
    first = np.searchsorted(column, column)
    local = np.arange(len(column)) - first
    widest = int(local.max(initial=0)) + 1
    lid_column = np.full(int(lid.max(initial=0)) + 1, NONE, np.int32)
    lid_place = np.zeros_like(lid_column)
    lid_column[lids] = column
    lid_place[lids] = column * widest + local
    return lids.astype(np.int32), lid_column, lid_place


def minhop(fabric: Fabric, switches: Switches, groups: Groups, lid: I32) -> U8:
    """Linear forwarding tables [S, highest LID + 1]."""
    from fabrictwin.kernel import graph

    lft = blank_tables(fabric, switches, lid)
    order, column, _ = destinations(switches, lid)
    load = np.zeros(fabric.ports, np.int32)
    graph.fill_minhop(
        groups.group_of, groups.group_start, groups.group_ports, fabric.port_number, order, column, lft, load
    )
    reach_switches(fabric, switches, groups, lid, lft)
    return lft


def reach_switches(fabric: Fabric, switches: Switches, groups: Groups, lid: I32, lft: U8) -> None:
    """Entries for the switches' own LIDs, for management traffic: the first port of a shortest path."""
    from fabrictwin.kernel import graph

    rows = np.arange(len(switches.row_node), dtype=np.int32)
    distance = np.empty((len(rows), len(rows)), np.uint8)
    graph.distances(switches.adjacent_start, switches.adjacent_row, rows, distance)
    graph.fill_toward_switches(
        switches.adjacent_start,
        switches.adjacent_row,
        switches.adjacent_port,
        distance,
        fabric.port_number,
        lid[switches.row_node],
        lft,
    )
