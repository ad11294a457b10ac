"""Forwarding tables as switches hold them, and paths looked up in them.

InfiniBand switches hold a linear forwarding table: LID to port. Ethernet switches hold groups of equal-cost
ports by destination and choose within a group by a hash of the packet's 5-tuple. The groups exist for both,
because adaptive routing and spraying choose among them too.

One InfiniBand subnet per plane of the fabric: each numbers its LIDs from 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fabrictwin.errors import ConfigError
from fabrictwin.fabric.fabric import I32, I64, NETWORK, NONE, Fabric, NodeKind

LAST_UNICAST_LID = 0xBFFF  # InfiniBand Architecture 4.1.1: unicast LIDs are 0x0001 to 0xBFFF
LONGEST_PATH = 64  # as the hop limit of a directed route
HASHES = {"crc32": 0, "murmur3": 1}  # as kernel.graph numbers them

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Switches:
    """The switch graph of all planes. S switches are rows, D edge switches (with endpoints) columns."""

    row_node: I32  # [S]
    node_row: I32  # [N] NONE elsewhere
    adjacent_start: I32  # [S + 1]
    adjacent_row: I32
    adjacent_port: I32
    edge_row: I32  # [D]
    edge_column: I32  # [S] NONE where the switch has no endpoint
    endpoint_node: I32  # NICs and aggregation nodes with a cable, in order of node
    endpoint_port: I32  # the endpoint's own port
    endpoint_row: I32  # the switch that it hangs on; NONE where it is cabled to another endpoint


def switch_graph(fabric: Fabric) -> Switches:
    """The network's switches as a CSR, ports in order."""
    row_node = fabric.switch_nodes
    node_row = np.full(fabric.nodes, NONE, np.int32)
    node_row[row_node] = np.arange(len(row_node), dtype=np.int32)
    plugged = np.flatnonzero((fabric.port_peer != NONE) & np.isin(fabric.port_kind, NETWORK))
    peer_node = fabric.port_node[fabric.port_peer[plugged]]
    row, peer_row = node_row[fabric.port_node[plugged]], node_row[peer_node]
    between = (row != NONE) & (peer_row != NONE) & (row != peer_row)
    start = np.concatenate([[0], np.cumsum(np.bincount(row[between], minlength=len(row_node)))])
    at_end = np.isin(fabric.node_kind[fabric.port_node[plugged]], (NodeKind.NIC, NodeKind.AGGREGATION))
    endpoint_port = plugged[at_end]
    endpoint_row = peer_row[at_end]
    edge_row = np.unique(endpoint_row[endpoint_row != NONE])
    edge_column = np.full(len(row_node), NONE, np.int32)
    edge_column[edge_row] = np.arange(len(edge_row), dtype=np.int32)
    return Switches(
        row_node=row_node,
        node_row=node_row,
        adjacent_start=start.astype(np.int32),
        adjacent_row=peer_row[between].astype(np.int32),
        adjacent_port=plugged[between].astype(np.int32),
        edge_row=edge_row.astype(np.int32),
        edge_column=edge_column,
        endpoint_node=fabric.port_node[endpoint_port],
        endpoint_port=endpoint_port.astype(np.int32),
        endpoint_row=endpoint_row.astype(np.int32),
    )


@dataclass(frozen=True)
class Groups:
    """Sets of ports on shortest paths, shared by all destinations that have the same set."""

    distance: U8  # [D, S] hops from each switch to each edge switch, 255 where there is no path
    group_of: I32  # [S, D] NONE at the edge switch itself and where there is no path
    group_start: I32  # [groups + 1]
    group_ports: I32

    def ports(self, row: int, column: int) -> I32:
        """The equal-cost ports of a switch toward an edge switch."""
        g = int(self.group_of[row, column])
        return (
            self.group_ports[0:0] if g == NONE else self.group_ports[self.group_start[g] : self.group_start[g + 1]]
        )


def equal_cost(switches: Switches) -> Groups:
    """Shortest-path groups of every switch toward every edge switch."""
    from fabrictwin.kernel import graph

    rows, columns = len(switches.row_node), len(switches.edge_row)
    distance = np.empty((columns, rows), np.uint8)
    graph.distances(switches.adjacent_start, switches.adjacent_row, switches.edge_row, distance)
    group_of = np.empty((rows, columns), np.int32)
    room = 4 * (rows + len(switches.adjacent_port)) + 16
    while True:
        start, ports = np.zeros(room + 1, np.int32), np.empty(2 * room, np.int32)
        groups, filled = graph.equal_cost_groups(
            switches.adjacent_start,
            switches.adjacent_row,
            switches.adjacent_port,
            distance,
            group_of,
            start,
            ports,
        )
        if groups >= 0:
            return Groups(distance, group_of, start[: groups + 1].copy(), ports[:filled].copy())
        room *= 2


@dataclass(frozen=True)
class Routes:
    """What the switches hold, and for Ethernet how they hash."""

    fabric: Fabric
    engine: str
    switches: Switches
    groups: Groups
    lid: I32  # [N] LID of every switch, NIC and aggregation node in its plane; 0 elsewhere (Ethernet: all 0)
    lft: U8  # [S, highest LID + 1] port number, 255 none, 0 the switch itself; empty for Ethernet
    hash_name: str  # Ethernet only
    hash_seeds: U32  # [S]

    @cached_property
    def nic_endpoint(self) -> I32:
        """[adapters] the edge switch's port toward each adapter; NONE where it has no cable."""
        fabric = self.fabric
        peer = np.where(fabric.nic_port == NONE, NONE, fabric.port_peer[fabric.nic_port])
        return peer.astype(np.int32)

    def walk(self, source: I32, destination: I32, entropy: U32 | None = None) -> tuple[I32, I64]:
        """Network paths from adapters `source[i]` to `destination[i]`.

        `entropy[i]` is the UDP source port that spreads flows over equal-cost paths (Ethernet only; default from
        queue pair 0). Returns (ports, start): path i transmits on `ports[start[i]:start[i + 1]]`, the adapter's
        own port first. Raises ConfigError where an adapter cannot be reached.
        """
        from fabrictwin.kernel import graph

        fabric = self.fabric
        source, destination = np.asarray(source, np.int32), np.asarray(destination, np.int32)
        for adapters in (source, destination):
            loose = np.flatnonzero(fabric.nic_port[adapters] == NONE)
            if len(loose):
                name = fabric.node_name(int(fabric.nic_node[adapters[loose[0]]]))
                raise ConfigError(f"{name} cannot be reached: it has no cable", key="cluster")
        n = len(source)
        hops = np.zeros(n, np.int32)
        path = np.empty((n, LONGEST_PATH), np.int32)
        from_port, to_node = fabric.nic_port[source], fabric.nic_node[destination]
        if fabric.technology == "infiniband":
            status, at = graph.walk_tables(
                self.lft,
                self.switches.node_row,
                fabric.node_port_start,
                fabric.port_peer,
                fabric.port_node,
                from_port,
                to_node,
                self.lid[to_node],
                hops,
                path,
            )
        else:
            ports = np.full(n, 0xC000, np.uint32) if entropy is None else entropy
            tuples = np.empty((n, 5), np.uint32)
            tuples[:, 0], tuples[:, 1] = adapter_ipv4(source), adapter_ipv4(destination)
            tuples[:, 2], tuples[:, 3], tuples[:, 4] = 17, ports, 4791
            status, at = graph.walk_groups(
                self.groups.group_of,
                self.groups.group_start,
                self.groups.group_ports,
                self.hash_seeds,
                HASHES[self.hash_name],
                self.switches.edge_column,
                self.switches.node_row,
                fabric.port_peer,
                fabric.port_node,
                from_port,
                to_node,
                self.nic_endpoint[destination],
                tuples,
                hops,
                path,
            )
        if status != graph.OK:
            a, b = (fabric.node_name(int(fabric.nic_node[nic[at]])) for nic in (source, destination))
            reason = "the tables loop" if status == graph.TOO_LONG else "no path"
            raise ConfigError(f"{b} cannot be reached from {a}: {reason}", key="cluster")
        start = np.concatenate([[0], np.cumsum(hops, dtype=np.int64)])
        keep = np.arange(LONGEST_PATH) < hops[:, None]
        return path[keep], start

    def beyond_ps(self, source: I32, destination: I32) -> I64:
        """Nothing: tables give every hop."""
        return np.zeros(len(source), np.int64)

    def path_names(self, source: int, destination: int, entropy: int = 0xC000) -> list[str]:
        """Every hop between two adapters as `node/port > node/port`."""
        ports, _ = self.walk(
            np.array([source], np.int32), np.array([destination], np.int32), np.array([entropy], np.uint32)
        )
        return [self.fabric.link_name(int(port)) for port in ports]


def adapter_ipv4(adapter: I32) -> U32:
    """The address of an adapter's port: 10.0.0.0/8, counted from 10.0.0.1 (facts of the twin, not of a site)."""
    return (np.uint32(10 << 24) + np.asarray(adapter, np.uint32) + np.uint32(1)).astype(np.uint32)


def udp_source_port(source_qpn: U32, destination_qpn: U32) -> U32:
    """RoCE v2's source port for a connection, as Linux derives it when no flow label is set.

    `rdma_calc_flow_label` and `rdma_flow_label_to_udp_sport` (include/rdma/ib_verbs.h): the product of both queue
    pair numbers, folded to 20 bits, folded again into the range 0xC000 to 0xFFFF.
    """
    v = np.asarray(source_qpn, np.uint64) * np.asarray(destination_qpn, np.uint64)
    v ^= v >> np.uint64(20)
    v ^= v >> np.uint64(40)
    label = v & np.uint64(0xFFFFF)
    folded = (label & np.uint64(0x3FFF)) ^ ((label & np.uint64(0xFC000)) >> np.uint64(14))
    return (folded | np.uint64(0xC000)).astype(np.uint32)


def assign_lids(fabric: Fabric) -> I32:
    """LIDs plane by plane: those that came with the fabric are kept, the rest take the lowest free ones.

    Raises ConfigError above 49,151 LIDs in a subnet, and where two nodes came with the same one.
    """
    lid = np.zeros(fabric.nodes, np.int32)
    network = fabric.node_plane != NONE
    for plane in np.unique(fabric.node_plane[network]):
        members = np.flatnonzero(fabric.node_plane == plane)
        if len(members) > LAST_UNICAST_LID:
            raise ConfigError(
                f"got {len(members)} switches and adapters in one InfiniBand subnet, "
                f"expected at most {LAST_UNICAST_LID} (its unicast LIDs)",
                key="cluster",
            )
        known = fabric.node_lid[members]
        given, count = np.unique(known[known > 0], return_counts=True)
        if (count > 1).any():
            twice = members[known == given[count > 1][0]][:2]
            a, b = (fabric.node_name(int(node)) for node in twice)
            raise ConfigError(
                f"got LID {given[count > 1][0]} for both {a} and {b}, expected one each", key="cluster"
            )
        free = np.setdiff1d(np.arange(1, LAST_UNICAST_LID + 1), given)
        lid[members] = known
        missing = members[known == 0]
        lid[missing] = free[: len(missing)]
    return lid
