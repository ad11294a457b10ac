"""Forwarding tables as switches hold them, and paths looked up in them.

InfiniBand switches hold a linear forwarding table: LID to port. Ethernet switches hold groups of equal-cost
ports by destination and choose within a group by a hash of the packet's 5-tuple. The groups exist for both,
because adaptive routing and spraying choose among them too.

One InfiniBand subnet per plane of the fabric: each numbers its LIDs from 1.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property

import numpy as np

from fabrictwin.base.arrays import I32, I64, U8, U32, starts_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.routing.congestion_tables import CongestionTables
from fabrictwin.routing.engines.filling import NO_LANES
from fabrictwin.routing.graph.equal_cost_groups import Groups, equal_cost
from fabrictwin.routing.graph.switches import (
    Switches,
)
from fabrictwin.routing.lane_tables import LaneTables

LONGEST_PATH = 64  # as the hop limit of a directed route
HASHES = {"crc32": 0, "murmur3": 1}  # as kernel.graph numbers them

# A CRC is linear: switches that differ in nothing but its seed choose alike but for a permutation, and paths
# polarise.
DEFAULT_HASH = "murmur3"


@record
class Routes:
    """What the switches hold, and for Ethernet how they hash."""

    fabric: Fabric
    engine: str
    switches: Switches
    lid: I32  # [N] base LID of every switch, NIC and aggregation node in its plane; 0 elsewhere (Ethernet: all 0)
    lft: U8  # [S, highest LID + 1] port number, 255 none, 0 the switch itself; empty for Ethernet
    hash_name: str  # Ethernet only
    hash_seeds: U32  # [S]
    lmc: int = 0  # NICs and aggregation nodes own `1 << lmc` LIDs from their base
    lane: U8 = field(default_factory=lambda: NO_LANES)  # [highest LID + 1, D] service level; empty: all 0
    lanes: int = 1  # virtual lanes that the service levels spread over
    remark: str = ""  # why this engine, what it could not do; for people
    lane_tables: LaneTables | None = None  # as a subnet manager programmed them; None: nobody did
    congestion: CongestionTables | None = None  # InfiniBand's congestion control; None: nobody set any

    @cached_property
    def groups(self) -> Groups:
        """Equal-cost ports of every switch toward every edge switch."""
        return equal_cost(self.switches)

    def service_level(self, source: I32, destination: I32, path: int = 0) -> U8:
        """[n] service levels of packets from adapters `source[i]` to LID `path` of adapters `destination[i]`.

        The virtual lane has the same number on every link: SL to VL maps are the identity.
        """
        if not self.lane.size:
            return np.zeros(len(source), np.uint8)
        fabric = self.fabric
        start = fabric.port_peer[fabric.nic_port[source]]
        column = self.switches.edge_column[self.switches.node_row[fabric.port_node[start]]]
        level: U8 = self.lane[self.lid[fabric.nic_node[destination]] + path, column]
        return level

    @cached_property
    def nic_endpoint(self) -> I32:
        """[adapters] the edge switch's port toward each adapter; NONE where it has no cable."""
        fabric = self.fabric
        peer = np.where(fabric.nic_port == NONE, NONE, fabric.port_peer[fabric.nic_port])
        return peer.astype(np.int32)

    def check_cables(self, *adapters: I32) -> None:
        """Raises ConfigError where one of the adapters has no cable."""
        fabric = self.fabric
        for some in adapters:
            loose = np.flatnonzero(fabric.nic_port[some] == NONE)
            if len(loose):
                name = fabric.node_name(int(fabric.nic_node[some[loose[0]]]))
                raise ConfigError(f"{name} cannot be reached: it has no cable", key="cluster")

    def walk(self, source: I32, destination: I32, entropy: U32 | None = None) -> tuple[I32, I64]:
        """Network paths from adapters `source[i]` to `destination[i]`.

        `entropy[i]` is the UDP source port that spreads flows over equal-cost paths (Ethernet only; default from
        queue pair 0). Returns (ports, start): path i transmits on `ports[start[i]:start[i + 1]]`, the adapter's
        own port first. Raises ConfigError where an adapter cannot be reached.
        """
        from fabrictwin.kernel.routing import switch_graph as graph

        fabric = self.fabric
        source, destination = np.asarray(source, np.int32), np.asarray(destination, np.int32)
        self.check_cables(source, destination)
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
        start = starts_of(hops)
        keep = np.arange(LONGEST_PATH) < hops[:, None]
        return path[keep], start

    def beyond_ps(self, source: I32, destination: I32) -> I64:
        """Nothing: tables give every hop."""
        return np.zeros(len(source), np.int64)


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
