"""Switch graphs that the tests of the routing room share, and plain loops that say what tables do."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
from support.clusters import blueprint

from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.routing.engines.filling import Tables
from fabrictwin.routing.engines.registry import compute
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import (
    CableColumns,
    EndpointColumns,
    Lids,
    SwitchColumns,
    Switches,
    assign_lids,
    build_switches,
)
from fabrictwin.subnet.manager.sweep.lids import read_guid2lid


def lids_of(fabric: Fabric, switches: Switches, lmc: int = 0) -> Lids:
    lid = assign_lids(fabric, lmc=lmc)
    return Lids(lid[switches.row_node], lid[switches.endpoint_node], lmc)


def number_lids(switches: Switches, lmc: int = 0) -> Lids:
    """LIDs for a graph that came from no fabric: switches first, then endpoints in ranges."""
    width = 1 << lmc
    first = -(-(switches.rows + 1) // width) * width
    return Lids(
        np.arange(1, switches.rows + 1, dtype=np.int32),
        (first + width * np.arange(len(switches.endpoint_row))).astype(np.int32),
        lmc,
    )


def lids_given(folder: Path, switches: Switches, lmc: int = 0) -> Lids:
    """The LIDs that OpenSM gave, by the guid2lid that it left in a folder; it gives them before it routes."""
    given = read_guid2lid(folder / "guid2lid")
    row, endpoint = (
        np.array([given[int(guid)] for guid in guids], np.int32)
        for guids in (switches.row_guid, switches.endpoint_guid)
    )
    return Lids(row, endpoint, lmc)


@cache
def tree(hosts: int, radix: int = 36, **shape: int) -> Fabric:
    """A fat-tree of hosts with one adapter each."""
    topology = {"kind": "fat-tree", "radix": radix, **shape}
    return compile_fabric(blueprint(hosts, "pcie-box", topology=topology))


def graph(cables: list[tuple[int, int]], adapters: list[int], aggregation: list[int] | None = None) -> Switches:
    """Switches joined by `cables` (pairs of rows), with so many adapters each; ports in the order of mention."""
    rows = len(adapters)
    taken = [0] * rows

    def port(row: int) -> int:
        taken[row] += 1
        return taken[row]

    hung = [(row, port(row), True) for row, count in enumerate(adapters) for _ in range(count)]
    hung += [(row, port(row), False) for row, count in enumerate(aggregation or []) for _ in range(count)]
    joined = [(a, port(a), b, port(b)) for a, b in cables]
    columns = np.array(joined, np.int64).reshape(-1, 4).T
    ends = np.array([(r, n) for r, n, _ in hung], np.int64).reshape(-1, 2).T
    return build_switches(
        SwitchColumns([f"sw-{row}" for row in range(rows)], np.arange(rows) + 0x1000),
        CableColumns(columns[0], columns[1], columns[2], columns[3]),
        EndpointColumns(ends[0], ends[1], [adapter for _, _, adapter in hung]),
    )


def torus(width: int, height: int, adapters: int = 2) -> Switches:
    """A ring of rings: the textbook case of shortest paths that deadlock."""
    cables = []
    for x in range(width):
        for y in range(height):
            if width > 2 or x == 0:
                cables.append((x * height + y, (x + 1) % width * height + y))
            if height > 2 or y == 0:
                cables.append((x * height + y, x * height + (y + 1) % height))
    return graph(cables, [adapters] * (width * height))


def ring(rows: int, adapters: int = 1) -> Switches:
    return graph([(row, (row + 1) % rows) for row in range(rows)], [adapters] * rows)


def without(switches: Switches, dead: set[int]) -> Switches:
    """The graph without some cables, by either edge."""
    keep = [
        e
        for e in range(len(switches.adjacent_row))
        if e < switches.adjacent_back[e] and not {e, int(switches.adjacent_back[e])} & dead
    ]
    back = switches.adjacent_back[keep]
    return build_switches(
        SwitchColumns(list(switches.row_name), switches.row_guid),
        CableColumns(
            switches.adjacent_from[keep],
            switches.adjacent_number[keep],
            switches.adjacent_row[keep],
            switches.adjacent_number[back],
        ),
        EndpointColumns(switches.endpoint_row, switches.endpoint_number, switches.endpoint_adapter),
    )


def follow(switches: Switches, lft: np.ndarray, row: int, lid: int, at: int, number: int) -> list[int] | None:
    """Edges from a switch to port `number` of switch `at`, hop by hop; None where the packet does not arrive."""
    edges: list[int] = []
    while not (row == at and lft[row, lid] == number):
        port = int(lft[row, lid])
        edge = int(switches.port_edge[row, port])
        if edge == NONE or len(edges) > switches.rows:
            return None
        edges.append(edge)
        row = int(switches.adjacent_row[edge])
    return edges


def try_compute(switches: Switches, lids: Lids, engine: str, options: Options | None = None) -> Tables | str:
    """Tables, or why there are none."""
    try:
        return compute(switches, lids, engine=engine, options=options)
    except ConfigError as error:
        return str(error)


def owners_of(switches: Switches, lids: Lids) -> list[tuple[int, int, int]]:
    """(LID, switch, port there) of everything that has a LID."""
    found = [(int(lid), row, 0) for row, lid in enumerate(lids.row)]
    for x, base in enumerate(lids.endpoint):
        at, number = int(switches.endpoint_row[x]), int(switches.endpoint_number[x])
        found += [(int(base) + k, at, number) for k in range(1 << lids.lmc)]
    return found


def hops_between(switches: Switches) -> dict[int, dict[int, int]]:
    joined = nx.Graph()
    joined.add_nodes_from(range(switches.rows))
    joined.add_edges_from(zip(switches.adjacent_from.tolist(), switches.adjacent_row.tolist(), strict=True))
    return dict(nx.all_pairs_shortest_path_length(joined))


def dependency_graphs(switches: Switches, lids: Lids, tables: Tables) -> list[nx.DiGraph]:
    """The channel dependency graph of each lane, from every path from a switch with endpoints to every LID."""
    graphs = [nx.DiGraph() for _ in range(tables.lanes)]
    for lid, at, number in owners_of(switches, lids):
        for column, row in enumerate(switches.edge_row.tolist()):
            path = follow(switches, tables.lft, row, lid, at, number)
            if path is None:
                continue
            lane = int(tables.lane[lid, column]) if tables.lane.size else 0
            graphs[lane].add_edges_from(pairwise(path))
    return graphs


def differing(ours: np.ndarray, theirs: np.ndarray) -> int:
    """Count the entries that differ; what one table has beyond the other's end must be 255."""
    width = max(ours.shape[1], theirs.shape[1])
    a, b = (np.pad(t, ((0, 0), (0, width - t.shape[1])), constant_values=255) for t in (ours, theirs))
    return int((a != b).sum())
