"""The switch graph that routing engines work on, and LIDs: arrays, whether compiled from a cluster or discovered.

S switches are *rows*. An *edge* is a directed link from one switch to another; edges are a CSR over rows, in
order of port. *Endpoints* (adapters and SHARP aggregation nodes) hang on ports of switches. A switch with
endpoints is an edge switch and has a *column*.

Several subnets may lie side by side in one graph: rows of different planes are never joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I32, I64, U64, Bool, place_of, starts_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric, NodeKind

LAST_UNICAST_LID = 0xBFFF  # InfiniBand Architecture 4.1.1: unicast LIDs are 0x0001 to 0xBFFF
MAX_LMC = 7  # three bits in PortInfo


@record
class Switches:
    """The switch graph of all planes. S switches are rows, E directed links edges, X endpoints."""

    row_name: Sequence[str]  # [S] for messages
    row_guid: U64  # [S]
    adjacent_start: I32  # [S + 1]
    adjacent_row: I32  # [E] the switch that the link leads to
    adjacent_number: I32  # [E] port number at this end
    adjacent_back: I32  # [E] the same cable's edge in the other direction
    endpoint_row: I32  # [X] the switch that it hangs on; NONE where it is cabled to another endpoint
    endpoint_number: I32  # [X] that switch's port number; 0 where there is none
    endpoint_adapter: Bool  # [X] False for aggregation nodes: reached like adapters, but no load is counted
    system_guid: U64  # [S] the system (chassis) that a switch is part of: its system image GUID
    endpoint_guid: U64  # [X] port GUIDs
    endpoint_node_guid: U64  # [X] of the nodes that the ports belong to

    # where these came from in a Fabric; of a discovered graph rows and edges count themselves
    row_node: I32  # [S]
    node_row: I32  # [N] NONE elsewhere
    adjacent_port: I32  # [E]
    endpoint_node: I32  # [X] in order of node
    endpoint_port: I32  # [X] the endpoint's own port

    # (row, port number, port number of the other end) of both ends of cables from a switch to itself, in order;
    # no path takes them, but OpenSM's searches see them
    loops: I32 = field(default_factory=lambda: np.zeros((0, 3), np.int32))
    routers: Bool | None = None  # [X] InfiniBand routers, which are no adapters; None: none is

    @property
    def endpoint_router(self) -> Bool:
        """[X] Return which endpoints are ports of InfiniBand routers."""
        return np.zeros(len(self.endpoint_row), bool) if self.routers is None else self.routers

    @property
    def rows(self) -> int:
        return len(self.row_guid)

    @cached_property
    def edge_row(self) -> I32:
        """[D] rows of the switches that have endpoints."""
        return np.unique(self.endpoint_row[self.endpoint_row != NONE]).astype(np.int32)

    @cached_property
    def edge_column(self) -> I32:
        """[S] place of a row in `edge_row`, NONE where the switch has no endpoint."""
        return place_of(self.edge_row, self.rows)

    @cached_property
    def adjacent_from(self) -> I32:
        """[E] the switch that the link starts at."""
        return np.repeat(np.arange(self.rows, dtype=np.int32), np.diff(self.adjacent_start))

    @cached_property
    def port_edge(self) -> I32:
        """[S, 256] the edge behind each port number, NONE where no switch is."""
        table = np.full((self.rows, 256), NONE, np.int32)
        table[self.adjacent_from, self.adjacent_number] = np.arange(len(self.adjacent_row), dtype=np.int32)
        return table

    @cached_property
    def row_adapters(self) -> I32:
        """[S] how many adapters hang on each switch."""
        hung = (self.endpoint_row != NONE) & self.endpoint_adapter
        return np.bincount(self.endpoint_row[hung], minlength=self.rows).astype(np.int32)

    def edge_name(self, edge: int) -> str:
        """`leaf-2/17 > spine-0/3`: the directed link."""
        back = int(self.adjacent_back[edge])
        here, there = int(self.adjacent_row[back]), int(self.adjacent_row[edge])
        return (
            f"{self.row_name[here]}/{self.adjacent_number[edge]} > "
            f"{self.row_name[there]}/{self.adjacent_number[back]}"
        )


@record
class SwitchColumns:
    """Switches by name and GUID; without `system_guid` every switch is a system."""

    name: Sequence[str]
    guid: npt.ArrayLike
    system_guid: npt.ArrayLike | None = None


@record
class CableColumns:
    """Cables between switches, each once, its ends (row and port number) in either order."""

    row: npt.ArrayLike
    number: npt.ArrayLike
    peer_row: npt.ArrayLike
    peer_number: npt.ArrayLike


@record
class EndpointColumns:
    """Endpoints in the order in which their LIDs are wanted: the switch's row and port number that each hangs on.

    Adapters unless `adapter` says otherwise; without their GUIDs they count through from 1, each a node.
    """

    row: npt.ArrayLike
    number: npt.ArrayLike
    adapter: npt.ArrayLike | None = None
    guid: npt.ArrayLike | None = None
    node_guid: npt.ArrayLike | None = None
    router: npt.ArrayLike | None = None


def build_switches(switches: SwitchColumns, cables: CableColumns, endpoints: EndpointColumns) -> Switches:
    """A switch graph from plain columns, as a subnet manager has them after discovery.

    A cable from a switch to itself is no edge. Rows, edges and endpoints count themselves in the columns that
    otherwise point into a Fabric.
    """
    a_row, b_row = np.asarray(cables.row, np.int64), np.asarray(cables.peer_row, np.int64)
    a_number, b_number = np.asarray(cables.number, np.int64), np.asarray(cables.peer_number, np.int64)
    other = a_row != b_row
    count = int(other.sum())
    edges = _ordered(
        rows=len(switches.name),
        row=np.concatenate([a_row[other], b_row[other]]),
        number=np.concatenate([a_number[other], b_number[other]]),
        peer=np.concatenate([b_row[other], a_row[other]]),
        back=np.concatenate([np.arange(count) + count, np.arange(count)]),
        port=np.arange(2 * count),
    )
    hung = np.asarray(endpoints.row, np.int32)
    adapter = np.ones(len(hung), bool) if endpoints.adapter is None else np.asarray(endpoints.adapter, bool)
    port_guid = np.arange(1, len(hung) + 1) if endpoints.guid is None else endpoints.guid
    node_guid = port_guid if endpoints.node_guid is None else endpoints.node_guid
    system_guid = switches.guid if switches.system_guid is None else switches.system_guid
    return Switches(
        row_name=switches.name,
        row_guid=np.asarray(switches.guid, np.uint64),
        adjacent_start=edges.start,
        adjacent_row=edges.row,
        adjacent_number=edges.number,
        adjacent_back=edges.back,
        endpoint_row=hung,
        endpoint_number=np.asarray(endpoints.number, np.int32),
        endpoint_adapter=adapter,
        system_guid=np.asarray(system_guid, np.uint64),
        endpoint_guid=np.asarray(port_guid, np.uint64),
        endpoint_node_guid=np.asarray(node_guid, np.uint64),
        row_node=np.arange(len(switches.name), dtype=np.int32),
        node_row=np.arange(len(switches.name), dtype=np.int32),
        adjacent_port=edges.port,
        endpoint_node=np.arange(len(hung), dtype=np.int32),
        endpoint_port=np.arange(len(hung), dtype=np.int32),
        loops=_loops(a_row[~other], a_number[~other], b_number[~other]),
        routers=None if endpoints.router is None else np.asarray(endpoints.router, bool),
    )


def _loops(row: npt.NDArray[np.int64], number: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> I32:
    """[2 * cables, 3] `Switches.loops` of cables from port `number` of a switch to port `other` of it."""
    ends = np.stack([np.tile(row, 2), np.concatenate([number, other]), np.concatenate([other, number])], axis=1)
    return np.unique(ends, axis=0).astype(np.int32)


@record
class _Edges:
    """Edges as a CSR over rows, in order of port: columns as in `Switches`."""

    start: I32
    row: I32
    number: I32
    back: I32
    port: I32


def _ordered(*, rows: int, row: I64, number: I64, peer: I64, back: I64, port: I64) -> _Edges:
    """Edges in order of `row` and port `number`; `back` is each one's other direction, in the order given."""
    order = np.lexsort((number, row))
    place = place_of(order, len(order))
    return _Edges(
        start=starts_of(np.bincount(row, minlength=rows)).astype(np.int32),
        row=peer[order].astype(np.int32),
        number=number[order].astype(np.int32),
        back=place[back[order]],
        port=port[order].astype(np.int32),
    )


class _Names(Sequence[str]):
    """Names of nodes, made up when they are asked for: a fabric of thousands of switches is seldom named whole."""

    def __init__(self, fabric: Fabric, nodes: I32) -> None:
        self._fabric, self._nodes = fabric, nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._fabric.node_name(int(self._nodes[index]))


def _systems(fabric: Fabric, nodes: I32) -> U64:
    """System image GUIDs of switches: as discovered, else their own."""
    known = fabric.identities
    guids = [int(guid) for guid in fabric.node_guid[nodes]]
    return np.array([known[g].system_guid if g in known else g for g in guids], np.uint64)


def switch_graph(fabric: Fabric) -> Switches:
    """The network's switches of a fabric."""
    row_node = fabric.switch_nodes
    node_row = place_of(row_node, fabric.nodes)
    plugged = np.flatnonzero((fabric.port_peer != NONE) & np.isin(fabric.port_kind, NETWORK))
    peer_port = fabric.port_peer[plugged]
    row, peer_row = node_row[fabric.port_node[plugged]], node_row[fabric.port_node[peer_port]]
    between = (row != NONE) & (peer_row != NONE) & (row != peer_row)
    trunk = plugged[between]
    loop = plugged[(row != NONE) & (row == peer_row)]
    loop_ends = fabric.port_number[loop], fabric.port_number[fabric.port_peer[loop]]
    at_end = np.isin(fabric.node_kind[fabric.port_node[plugged]], (NodeKind.NIC, NodeKind.AGGREGATION))
    endpoint_port = plugged[at_end]
    endpoint_node, endpoint_row = fabric.port_node[endpoint_port], peer_row[at_end]
    number = fabric.port_number[peer_port[at_end]]
    edges = _ordered(
        rows=len(row_node),
        row=row[between].astype(np.int64),
        number=fabric.port_number[trunk].astype(np.int64),
        peer=peer_row[between].astype(np.int64),
        back=np.searchsorted(trunk, fabric.port_peer[trunk]),
        port=trunk,
    )
    return Switches(
        row_name=_Names(fabric, row_node),
        row_guid=fabric.node_guid[row_node],
        adjacent_start=edges.start,
        adjacent_row=edges.row,
        adjacent_number=edges.number,
        adjacent_back=edges.back,
        endpoint_row=endpoint_row.astype(np.int32),
        endpoint_number=np.where(endpoint_row == NONE, 0, number).astype(np.int32),
        endpoint_adapter=fabric.node_kind[endpoint_node] == NodeKind.NIC,
        system_guid=_systems(fabric, row_node),
        endpoint_guid=fabric.port_guid[endpoint_node],
        endpoint_node_guid=fabric.node_guid[endpoint_node],
        row_node=row_node,
        node_row=node_row,
        adjacent_port=edges.port,
        endpoint_node=endpoint_node,
        endpoint_port=endpoint_port.astype(np.int32),
        loops=_loops(node_row[fabric.port_node[loop]], *loop_ends),
        routers=_routers(fabric, endpoint_node),
    )


def _routers(fabric: Fabric, node: I32) -> Bool | None:
    """Return which endpoints are ports of routers; None where the fabric has none."""
    guids = [guid for guid, who in fabric.identities.items() if who.router]
    return np.isin(fabric.node_guid[node], np.array(guids, np.uint64)) if guids else None


@record
class Lids:
    """Base LIDs. An endpoint owns `1 << lmc` LIDs from its base upwards, a switch one. 0 where there is none."""

    row: I32  # [S]
    endpoint: I32  # [X]
    lmc: int = 0

    def __post_init__(self) -> None:
        # subnet managers keep LIDs in lists
        object.__setattr__(self, "row", np.asarray(self.row, np.int32))
        object.__setattr__(self, "endpoint", np.asarray(self.endpoint, np.int32))

    @property
    def top(self) -> int:
        """The highest LID in use."""
        last = int(self.endpoint.max(initial=0))
        return max(int(self.row.max(initial=0)), last + (1 << self.lmc) - 1 if last else 0)


def assign_lids(fabric: Fabric, *, lmc: int = 0) -> I32:
    """[N] base LIDs plane by plane: those that came with the fabric are kept, the rest take the lowest free ones.

    With an LMC a NIC or aggregation node takes `1 << lmc` LIDs from a multiple of that, and one that came with
    another base is moved. Raises ConfigError above 49,151 LIDs in a subnet, and where two nodes came with the
    same one.
    """
    if not 0 <= lmc <= MAX_LMC:
        raise ConfigError(f"got {lmc}, expected 0 to {MAX_LMC}", key="lmc")
    lid = np.zeros(fabric.nodes, np.int32)
    network = fabric.node_plane != NONE
    for plane in np.unique(fabric.node_plane[network]):
        members = np.flatnonzero(fabric.node_plane == plane)
        span = np.where(fabric.node_kind[members] == NodeKind.SWITCH, 1, 1 << lmc)
        total = int(span.sum())
        if total > LAST_UNICAST_LID:
            each = f" with {1 << lmc} LIDs an adapter" if lmc else ""
            raise ConfigError(
                f"got {len(members)} switches and adapters in one InfiniBand subnet{each}, "
                f"expected at most {LAST_UNICAST_LID} (its unicast LIDs)",
                key="cluster",
            )
        high = members[fabric.node_lid[members] > LAST_UNICAST_LID]
        if len(high):
            raise ConfigError(
                f"got LID {fabric.node_lid[high[0]]} for {fabric.node_name(int(high[0]))}, "
                f"expected a unicast LID, at most {LAST_UNICAST_LID}",
                key="cluster",
            )
        known = np.where(fabric.node_lid[members] % span == 0, fabric.node_lid[members], 0)
        given = np.sort(known[known > 0])
        again = given[1:][given[1:] == given[:-1]]
        if len(again):
            a, b = (fabric.node_name(int(node)) for node in members[known == again[0]][:2])
            raise ConfigError(f"got LID {again[0]} for both {a} and {b}, expected one each", key="cluster")
        lid[members] = _fill_lids(known.astype(np.int64), span)
    return lid


def _fill_lids(known: I64, span: I64) -> I64:
    """Base LIDs for those that have none, lowest first. `known` and `span` [members]."""
    lid = known.copy()
    if (span == 1).all():
        free = np.ones(LAST_UNICAST_LID + 1, bool)
        free[0] = False
        free[known] = False
        missing = np.flatnonzero(known == 0)
        lid[missing] = np.flatnonzero(free)[: len(missing)]
        return lid
    taken = np.zeros(LAST_UNICAST_LID + 1, bool)
    taken[0] = True
    # switches first: one that has a LID in the middle of a range keeps it, and the range moves
    kept = np.flatnonzero(known > 0)
    for i in kept[np.argsort(span[kept], kind="stable")]:
        if taken[known[i] : known[i] + span[i]].any():
            lid[i] = 0
        else:
            taken[known[i] : known[i] + span[i]] = True
    wide = int(span.max())
    for size, at in ((wide, 0), (1, 0)):
        for i in np.flatnonzero((lid == 0) & (span == size)):
            while at + size <= len(taken) and taken[at : at + size].any():
                at += size
            if at + size > len(taken):
                raise ConfigError(
                    f"got LIDs scattered so that no range of {size} is left, expected LIDs assigned anew",
                    key="lmc",
                )
            lid[i] = at
            taken[at : at + size] = True
    return lid
