"""Forwarding tables for what was discovered: through the routing engines, or with as few changes as possible.

After a failure whatever still leads along a shortest path stays as it is, and what does not moves to the least
loaded port that does. Tables whose every entry lies on a shortest path cannot loop, whoever chose among them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I32, U8, place_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.check.judge import deadlock
from fabrictwin.routing.engines.filling import Tables
from fabrictwin.routing.engines.registry import DEADLOCK_ALLOWED, OPENSM, compute
from fabrictwin.routing.graph.switches import (
    CableColumns,
    EndpointColumns,
    Lids,
    SwitchColumns,
    Switches,
    build_switches,
)
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.sweep.discovery import Node, Port, Subnet
from fabrictwin.subnet.wire.smp import NodeType

NO_PORT = 255
BLOCK = 64
_AGGREGATION = b"Aggregation Node"
_CHUNK = 1024  # LIDs looked at together, for the size of temporary arrays
_LONGEST_PATH = 64


@record
class Graph:
    """The switches of a subnet as arrays, and which of the subnet's things they are."""

    switches: Switches
    lids: Lids
    nodes: list[Node]  # [S]
    endpoints: list[Port]  # [X]

    @property
    def row(self) -> dict[int, int]:
        return {node.guid: row for row, node in enumerate(self.nodes)}


def graph_of(subnet: Subnet, lid: dict[int, int], lmc: int) -> Graph:
    """The switch graph of what was found. `lid` is by port GUID."""
    nodes = sorted(subnet.switches, key=lambda node: node.guid)
    row = {node.guid: r for r, node in enumerate(nodes)}
    cables: list[tuple[int, int, int, int]] = []
    hung: list[tuple[int, int, Port]] = []
    for r, node in enumerate(nodes):
        for number, port in node.ports.items():
            peer = port.peer
            if peer is None or number == 0:
                continue
            if peer.node.is_switch:
                far = row[peer.node.guid]
                if (r, number) < (far, peer.number):
                    cables.append((r, number, far, peer.number))
            else:
                hung.append((r, number, peer))
    columns = np.array(cables, np.int64).reshape(-1, 4).T
    switches = build_switches(
        SwitchColumns(
            [node.name for node in nodes],
            np.array([node.guid for node in nodes], np.uint64),
            np.array([node.info.system_image_guid for node in nodes], np.uint64),
        ),
        CableColumns(columns[0], columns[1], columns[2], columns[3]),
        EndpointColumns(
            np.array([r for r, _, _ in hung], np.int32),
            np.array([number for _, number, _ in hung], np.int32),
            np.array([_is_adapter(port.node) for _, _, port in hung], bool),
            np.array([port_guid(port) for _, _, port in hung], np.uint64),
            np.array([port.node.guid for _, _, port in hung], np.uint64),
            np.array([port.node.info.node_type == NodeType.ROUTER for _, _, port in hung], bool),
        ),
    )
    lids = Lids(
        np.array([lid[port_guid(node.ports[0])] for node in nodes], np.int32),
        np.array([lid[port_guid(port)] for _, _, port in hung], np.int32),
        lmc,
    )
    return Graph(switches, lids, nodes, [port for _, _, port in hung])


def _is_adapter(node: Node) -> bool:
    """Return whether a node is a host's, neither an aggregation node nor a router."""
    return _AGGREGATION not in node.description and node.info.node_type == NodeType.CA


def port_guid(port: Port) -> int:
    """The GUID that a port's LID is remembered by. NodeInfo tells that of the port it came in at."""
    node = port.node
    if node.is_switch or port.number == node.info.local_port_num:
        return node.info.port_guid
    return node.guid + port.number


def fill(graph: Graph, settings: Settings) -> Tables:
    """Tables by the engine that the settings name."""
    return compute(graph.switches, graph.lids, engine=settings.engine, options=settings.routing)


def fill_anew(graph: Graph, settings: Settings) -> Tables:
    """Tables for a subnet that is at work: where an engine of OpenSM's refuses, minhop's, as OpenSM falls back.

    Raises ConfigError where an engine of the twin's own refuses.
    """
    try:
        return fill(graph, settings)
    except ConfigError as refusal:
        if settings.engine not in OPENSM:
            raise
        options = replace(settings.routing, roots=(), compute=(), storage=())
        tables = compute(graph.switches, graph.lids, engine="minhop", options=options)
        return replace(tables, remark=f"minhop in place of {settings.engine}: {refusal.message}")


@record
class Destinations:
    """Switch and port of each LID. All [highest LID + 1]."""

    row: I32  # the switch that it is or hangs on, NONE where nobody has the LID
    number: I32  # the port there, 0 the switch itself


def destinations(graph: Graph) -> Destinations:
    switches, lids = graph.switches, graph.lids
    row = place_of(lids.row, lids.top + 1)
    number = np.zeros(lids.top + 1, np.int32)
    for k in range(1 << lids.lmc):
        at = lids.endpoint + k
        row[at], number[at] = switches.endpoint_row, switches.endpoint_number
    return Destinations(row, number)


def reroute(graph: Graph, old: U8) -> U8:
    """Tables that keep of `old` [S, LIDs] (255 for what is unknown) what still leads along a shortest path."""
    from fabrictwin.kernel.routing import switch_graph as kernel

    switches = graph.switches
    rows = switches.rows
    every = np.arange(rows, dtype=np.int32)
    edge = np.arange(len(switches.adjacent_row), dtype=np.int32)
    distance = np.empty((rows, rows), np.uint8)
    kernel.distances(switches.adjacent_start, switches.adjacent_row, every, distance)
    group_of = np.empty((rows, rows), np.int32)
    room = 4 * (rows + len(edge)) + 16
    while True:
        start, member = np.zeros(room + 1, np.int32), np.empty(2 * room, np.int32)
        groups, filled = kernel.equal_cost_groups(
            switches.adjacent_start, switches.adjacent_row, edge, distance, group_of, start, member
        )
        if groups >= 0:
            break
        room *= 2
    allowed = np.zeros((groups + 1, 256), bool)  # the last row: no group
    of_member = np.repeat(np.arange(groups), np.diff(start[: groups + 1]))
    numbers = switches.adjacent_number[member[:filled]]
    allowed[of_member, numbers] = True

    to = destinations(graph)
    lft = np.full((rows, len(to.row)), NO_PORT, np.uint8)
    known = min(old.shape[1], lft.shape[1])
    lft[:, :known] = old[:, :known]
    lft[:, to.row == NONE] = NO_PORT
    load = np.zeros((rows, 256), np.int64)
    moved: list[npt.NDArray[np.int64]] = []
    here = np.flatnonzero(to.row != NONE)
    for first in range(0, len(here), _CHUNK):
        lids = here[first : first + _CHUNK]
        group = group_of[:, to.row[lids]]
        entry = lft[:, lids]
        keeps = allowed[group, entry]
        entry[~keeps] = NO_PORT
        entry[to.row[lids], np.arange(len(lids))] = to.number[lids]
        lft[:, lids] = entry
        row, at = np.nonzero(~keeps & (group != NONE))
        moved.append(np.stack([row, lids[at], group[row, at]], axis=1))
        row, at = np.nonzero(keeps)
        np.add.at(load, (row, entry[row, at]), 1)
    _spread(lft, load, np.concatenate(moved) if moved else np.zeros((0, 3), np.int64), start, member, numbers)
    return lft


def _spread(
    lft: U8, load: npt.NDArray[np.int64], moved: npt.NDArray[np.int64], start: I32, member: I32, numbers: I32
) -> None:
    """Give each (row, LID, group) of `moved` a port of its group, least loaded first and in turn."""
    if not len(moved):
        return
    order = np.lexsort((moved[:, 1], moved[:, 2], moved[:, 0]))
    moved = moved[order]
    change = np.flatnonzero(np.diff(moved[:, 0]) | np.diff(moved[:, 2])) + 1
    for part in np.split(moved, change):
        row, group = int(part[0, 0]), int(part[0, 2])
        ports = numbers[start[group] : start[group + 1]]
        ports = ports[np.argsort(load[row, ports], kind="stable")]
        chosen = ports[np.arange(len(part)) % len(ports)]
        lft[row, part[:, 1]] = chosen
        np.add.at(load[row], chosen, 1)


def carry_over(graph: Graph, programmed: dict[int, U8]) -> U8:
    """[S, LIDs] what the switches of a graph hold, as far as it is known."""
    old = np.full((graph.switches.rows, graph.lids.top + 1), NO_PORT, np.uint8)
    for row, node in enumerate(graph.nodes):
        held = programmed.get(node.guid)
        if held is not None:
            width = min(len(held), old.shape[1])
            old[row, :width] = held[:width]
    return old


@record
class Broken:
    """Paths that led over something that is gone: counts of (source switch with adapters, LID)."""

    paths: int
    lids: npt.NDArray[np.int64]  # the destinations concerned
    needed: npt.NDArray[np.bool_]  # [S, LIDs] entries that their new ways lead over


def broken_paths(graph: Graph, old: U8, new: U8) -> Broken:
    """Return what of the old tables no longer arrives over the links that are. LIDs new to them are not broken."""
    switches, to = graph.switches, destinations(graph)
    port_edge = switches.port_edge
    changed = np.flatnonzero((old != new).any(axis=0) & (old != NO_PORT).any(axis=0) & (to.row != NONE))
    sources = switches.edge_row.astype(np.int64)
    count, concerned = 0, []
    needed = np.zeros(new.shape, bool)
    for first in range(0, len(changed), _CHUNK):
        lids = changed[first : first + _CHUNK]
        at = np.repeat(sources[:, None], len(lids), axis=1)
        alive = np.ones(at.shape, bool)
        home = to.row[lids][None, :]
        for _ in range(_LONGEST_PATH):
            walking = alive & (at != home)
            if not walking.any():
                break
            out = old[at, lids[None, :]]
            edge = port_edge[at, out]
            alive &= ~walking | (edge != NONE)
            at = np.where(walking & alive, switches.adjacent_row[np.maximum(edge, 0)], at)
        lost = ~alive | (at != home)
        count += int(lost.sum())
        concerned.append(lids[lost.any(axis=0)])
        source, column = np.nonzero(lost)
        _mark_ways(graph, new, sources[source], lids[column], to, needed)
    return Broken(count, np.concatenate(concerned) if concerned else np.zeros(0, np.int64), needed)


def _mark_ways(
    graph: Graph,
    lft: U8,
    at: npt.NDArray[np.int64],
    lid: npt.NDArray[np.int64],
    to: Destinations,
    marked: npt.NDArray[np.bool_],
) -> None:
    """Mark [S, LIDs] the entries that paths from switches `at` to LIDs lead over, the last one at home too."""
    switches = graph.switches
    for _ in range(_LONGEST_PATH):
        if not len(at):
            return
        marked[at, lid] = True
        edge = switches.port_edge[at, lft[at, lid]]
        on = (at != to.row[lid]) & (edge != NONE)
        at, lid = switches.adjacent_row[edge[on]].astype(np.int64), lid[on]


def changed_blocks(old: U8 | None, new: U8, *, top: int) -> list[int]:
    """The blocks of a table's row that differ; of a switch about which nothing is known, all with entries."""
    size = -(-(top + 1) // BLOCK) * BLOCK
    wanted = padded(new, size)
    if old is None:
        return np.flatnonzero((wanted.reshape(-1, BLOCK) != NO_PORT).any(axis=1)).tolist()
    size = max(size, -(-len(old) // BLOCK) * BLOCK)
    differs = padded(new, size) != padded(old, size)
    blocks: list[int] = np.flatnonzero(differs.reshape(-1, BLOCK).any(axis=1)).tolist()
    return blocks


def padded(row: U8, size: int) -> U8:
    """A table's row with exactly `size` entries."""
    wide = np.full(size, NO_PORT, np.uint8)
    wide[: len(row)] = row[:size]
    return wide


def keep_shortest(graph: Graph, old: U8, last: Tables, before: Graph | None) -> Tables | None:
    """After a failure: the tables there were with as few entries changed as possible.

    None where they could deadlock, or where the lanes that were given out mean something else now; an engine then
    routes anew as a whole. What promises no freedom from deadlock keeps none.
    """
    if not _lanes_hold(last, before, graph):
        return None
    remark = "after a failure, as few entries as possible"
    tables = Tables(last.engine, reroute(graph, old), last.lane, last.lanes, remark)
    return tables if last.engine in DEADLOCK_ALLOWED or _is_deadlock_free(graph, tables) else None


def _lanes_hold(tables: Tables, before: Graph | None, now: Graph) -> bool:
    """Return whether lanes given to (LID, source switch) still mean the same."""
    if not tables.lane.size:
        return True
    if before is None or len(tables.lane) != now.lids.top + 1:
        return False
    old, new = (graph.switches.row_guid[graph.switches.edge_row] for graph in (before, now))
    return np.array_equal(old, new)


def _is_deadlock_free(graph: Graph, tables: Tables) -> bool:
    """Return whether paths between adapters can wait for each other in a circle."""
    switches, lids = graph.switches, graph.lids
    adapters = switches.endpoint_adapter
    bases = lids.endpoint[adapters]
    every = (bases[:, None] + np.arange(1 << lids.lmc, dtype=np.int32)).reshape(-1).astype(np.int32)
    sources = np.flatnonzero(switches.row_adapters).astype(np.int32)
    return deadlock(switches, tables, every, sources).free
