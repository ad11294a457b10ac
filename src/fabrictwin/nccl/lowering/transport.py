"""Transports between two ranks of a communicator: the first that can, in NCCL's order.

- **P2P**: over NVLink, or over PCIe where the GPUs are near enough (`NCCL_P2P_LEVEL`, `NCCL_P2P_DISABLE`): by
  default up to PXB, on AMD with two GPUs up to SYS. Access control on PCIe switches (ACS) leads it, and
  GPUDirect RDMA, over the root complex: the fabric's ways are longer, NCCL does not look.
- **SHM**: through host memory next to the sender, written there and read from there.
- **NET/IB**: through adapters. With GPUDirect RDMA they reach GPU memory, if adapter and GPU are near enough
  (`NCCL_NET_GDR_LEVEL`: PXB, P2C from 2.27); without, bytes are staged in host memory on either side.
  **PXN**: a GPU far from the adapter hands its data to a neighbour next to it over NVLink.
- **NET/Socket**: TCP/IP over the same wires. Bytes pass host memory, are copied into the kernel and out of it,
  and cost cores at either end for every byte and every segment (`engines.sockets`). The sending thread does all
  of that; of receiving a thread does the copy, the rest runs on the core that the adapter interrupts. A step
  takes what the stacks take beside RDMA's own. On InfiniBand it is IPoIB in datagram mode, with segments that
  adapters cut. One thread, the proxy's, serves all of a rank's connections unless NCCL_SOCKET_NTHREADS starts
  more for each; only on Amazon's adapters are there two, of eight sockets, unasked.

How far devices are apart and what follows for P2P, GPUDirect RDMA and PXN is `nccl.topology.topology_paths`;
which network and adapters a host has, and what its faults take away, is `nccl.topology.net_devices`. Source:
NCCL 2.30.7, src/transport and src/graph/paths.cc.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from fabrictwin.base.arrays import I8, I32
from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE, Fabric, NodeKind
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.communicator.host_conditions import Conditions, Network
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.topology.graph_types import Graph, PathType
from fabrictwin.nccl.tuning.step_costs import sprays

MOST_THREADS, MOST_SOCKETS = 16, 64  # of a socket connection
AMAZON_THREADS, AMAZON_SOCKETS = 2, 8
SRD_PATHS = 16  # over which a connection's packets are spread here; the protocol has up to 64


class Transport(IntEnum):
    """In the order in which they are tried."""

    SELF = 0
    P2P_NVLINK = 1
    P2P_PCIE = 2
    SHM = 3
    NET_IB = 4
    NET_SOCKET = 5
    IN_SWITCH = 6


@record
class Route:
    """One connection: fabric nodes and adapters, NONE where a stage is left out."""

    transport: Transport
    out: int = NONE
    nic_out: int = NONE
    nic_in: int = NONE
    into: int = NONE
    gdr: tuple[bool, bool] = (False, False)  # at the sender, at the receiver
    pxn: bool = False

    @property
    def way(self) -> str:
        """The name that step costs give it."""
        if self.transport in (Transport.NET_IB, Transport.NET_SOCKET):
            return "net"
        return "nvlink" if self.transport in (Transport.P2P_NVLINK, Transport.IN_SWITCH) else "pcie"


class Transports:
    """Connections of one communicator, remembered."""

    def __init__(self, communicator: Communicator, conditions: Conditions | None = None) -> None:
        self.communicator = communicator
        self.fabric: Fabric = communicator.twin.fabric
        self.conditions = conditions or Conditions.of(communicator)
        self.sockets = self.conditions.network == Network.SOCKET
        settings = communicator.settings
        # of a socket connection; no threads: the rank's proxy thread alone, over one socket
        self.threads, self.sockets_per_thread = socket_threads(settings, self.fabric)
        if self.sockets:
            self.paths = max(1, self.threads * self.sockets_per_thread)
        else:
            self.paths = SRD_PATHS if sprays(self.fabric) else max(int(settings.ib_qps_per_connection), 1)
        # messages of NET/IB are split over queue pairs, or go over one after the other (NCCL_IB_SPLIT_DATA_ON_QPS)
        whole = not settings.ib_split_data_on_qps and not self.sockets and not sprays(self.fabric)
        self.in_turns = whole and self.paths > 1
        self._routes: dict[tuple[int, int, int, int], Route] = {}
        self._memory: dict[tuple[int, int], int] = {}
        self.trees: dict[tuple[object, ...], tuple[I32, I8, I32]] = {}  # of what switches reduce: see `in_switch`
        self._sides: dict[tuple[int, int, int, bool], tuple[bool, bool]] = {}  # by view, device, adapter, sends
        self._blocked: dict[int, bool] = {}  # hosts whose adapters cannot reach GPU memory
        self._usable: dict[int, tuple[int, ...]] = {}
        self.plane = self.fabric.node_plane[self.fabric.nic_node]

    # ------------------------------------------------------------------ choice

    def route(self, source: int, target: int, *, graph: Graph | None = None, channel: int = 0) -> Route:
        """The connection of two ranks on a channel; with a graph through the adapters that it found."""
        key = (source, target, NONE if graph is None else int(graph.algorithm), channel)
        if key not in self._routes:
            self._routes[key] = self._open(source, target, graph, channel)
        return self._routes[key]

    def _open(self, source: int, target: int, graph: Graph | None, channel: int) -> Route:
        communicator = self.communicator
        if source == target:
            return Route(Transport.SELF)
        if communicator.placement.node_of_rank[source] == communicator.placement.node_of_rank[target]:
            if communicator.direct(source, target):
                near = communicator.path(source, target).type <= PathType.NVB
                return Route(Transport.P2P_NVLINK if near else Transport.P2P_PCIE)
            if not communicator.settings.shm_disable:
                return Route(Transport.SHM, out=self.memory(source))
            if communicator.settings.net_disable_intra == 1:
                raise SimulatedError(
                    "ncclSystemError",
                    self.fabric.node_name(int(communicator.placement.rank_node[source])),
                    f"No transport found for rank {source} -> rank {target} (no direct access, and "
                    "NCCL_SHM_DISABLE and NCCL_NET_DISABLE_INTRA leave no other)",
                )
        return self._network(source, target, graph, channel)

    def memory(self, rank: int) -> int:
        """The processor whose memory is nearest to a rank's GPU: it crosses the fewest links to it."""
        fabric, gpu = self.fabric, int(self.communicator.placement.rank_node[rank])
        host = int(fabric.node_host[gpu])
        first, which = int(fabric.host_node_start[host]), int(fabric.host_template[host])
        if (which, gpu - first) not in self._memory:
            template = fabric.templates[which]
            paths, n = template.paths, len(template.node_kind)
            cpus = np.flatnonzero(template.node_kind == NodeKind.CPU).tolist()

            def links(cpu: int) -> int:
                way, last = paths.pair_start[(gpu - first) * n + cpu : (gpu - first) * n + cpu + 2].tolist()
                # a rack's processors are not all within reach
                return int(paths.hop_start[way + 1] - paths.hop_start[way]) if last > way else len(paths.ports)

            self._memory[which, gpu - first] = min(cpus, key=lambda cpu: (links(cpu), cpu))
        return first + self._memory[which, gpu - first]

    def _network(self, source: int, target: int, graph: Graph | None, channel: int) -> Route:
        nic_in = self.head_adapter(target, channel, graph)
        nic_out = self.head_adapter(source, channel, graph)
        if graph is None:
            nic_out = self._same_rail(source, target, nic_in, nic_out)
        return self.between(source, target, *self._same_subnet(source, target, nic_out, nic_in))

    def between(self, source: int, target: int, nic_out: int, nic_in: int) -> Route:
        """By these adapters."""
        communicator = self.communicator
        if self.sockets:
            return Route(Transport.NET_SOCKET, self.memory(source), nic_out, nic_in, self.memory(target))
        relayed, straight = self._side(source, nic_out, sends=True)
        proxy = communicator.proxy(source, nic_out) if relayed else source
        gdr = straight, self._side(target, nic_in, sends=False)[1]
        out = NONE if proxy == source else int(communicator.placement.rank_node[proxy])
        return Route(
            Transport.NET_IB,
            out if gdr[0] else self.memory(source),
            nic_out,
            nic_in,
            NONE if gdr[1] else self.memory(target),
            gdr,
            proxy != source,
        )

    def _side(self, rank: int, adapter: int, *, sends: bool) -> tuple[bool, bool]:
        """(whether another GPU hands its data on, whether the adapter reaches GPU memory) at one end.

        Alike on all hosts of one view: looked up once for each.
        """
        communicator = self.communicator
        node = int(communicator.placement.node_of_rank[rank])
        relative = adapter - int(communicator.hosts.first_adapter[node])
        key = (
            int(communicator.hosts.kind_of_node[node]),
            int(communicator.hosts.device_of_rank[rank]),
            relative,
            sends,
        )
        if key not in self._sides:
            proxy = communicator.proxy(rank, adapter) if sends else rank
            self._sides[key] = proxy != rank, communicator.gpudirect(proxy, adapter, send=sends)
        if node not in self._blocked:
            self._blocked[node] = not self.conditions.gpudirect(rank)
        relayed, straight = self._sides[key]
        return relayed, straight and not self._blocked[node]

    def _same_subnet(self, source: int, target: int, nic_out: int, nic_in: int) -> tuple[int, int]:
        """The adapters themselves where those are in one subnet; else the best that are. Raises ConfigError."""
        plane = self.plane
        if plane[nic_out] == plane[nic_in]:
            return nic_out, nic_in
        for out in self.adapters(source):
            for into in self.adapters(target):
                if plane[out] == plane[into]:
                    return out, into
        a, b = (self.fabric.node_name(int(self.communicator.placement.rank_node[r])) for r in (source, target))
        raise ConfigError(f"{b} cannot be reached from {a}: they are in different subnets", key="cluster")

    def usable(self, rank: int) -> tuple[int, ...]:
        """The adapters of a rank's host that NCCL takes."""
        node = int(self.communicator.placement.node_of_rank[rank])
        if node not in self._usable:
            self._usable[node] = self.conditions.adapters(int(self.communicator.placement.host_of_node[node]))
        return self._usable[node]

    def adapters(self, rank: int) -> list[int]:
        """The adapters that a rank may use, its own first. Raises ConfigError for none."""
        usable = self.usable(rank)
        if not usable:
            name = self.fabric.node_name(int(self.communicator.placement.rank_node[rank]))
            raise ConfigError(f"{name} has no adapter that NCCL takes to reach other hosts by", key="cluster")
        own = [n for n in self.communicator.adapters(rank) if n in usable]
        return list(dict.fromkeys(own)) + [n for n in usable if n not in own]

    def head_adapter(self, rank: int, channel: int, graph: Graph | None) -> int:
        """The adapter of a rank on a channel: where the channel enters its host, or leaves it; else its own."""
        usable = self.usable(rank)
        if graph is not None and graph.channels and graph.inter.size:
            node, c = int(self.communicator.placement.node_of_rank[rank]), channel % graph.channels
            side = 0 if graph.intra[node, c, 0] == rank else 1
            adapter = int(graph.inter[node, c, side])
            if adapter in usable:
                return adapter
        own = [n for n in self.communicator.adapters(rank) if n in usable]
        return own[channel % len(own)] if own else self.adapters(rank)[0]

    def _same_rail(self, source: int, target: int, nic_in: int, otherwise: int) -> int:
        """For sends: the adapter on the rail of the receiver's, where PXN (`NCCL_P2P_PXN_LEVEL`) leads to it."""
        settings, fabric = self.communicator.settings, self.fabric
        if settings.pxn_disable or not settings.p2p_pxn_level:
            return otherwise
        hosts = fabric.node_host[self.communicator.placement.rank_node[[source, target]]]
        here, there = (fabric.templates[t] for t in fabric.host_template[hosts])
        if (here.type, here.nic_types) != (there.type, there.nic_types):
            return otherwise
        first = np.searchsorted(fabric.nic_node, fabric.host_node_start[hosts])
        rail = int(nic_in - first[1] + first[0])
        if rail not in self.usable(source):
            return otherwise
        return rail if rail == otherwise or self.communicator.proxy(source, rail) != source else otherwise


def socket_threads(settings: Settings, fabric: Fabric) -> tuple[int, int]:
    """(threads of a socket connection beside the proxy's, sockets of each) as NCCL takes them."""
    threads, sockets = (AMAZON_THREADS, AMAZON_SOCKETS) if sprays(fabric) else (0, 1)
    if settings.socket_nthreads is not None:
        threads = min(max(int(settings.socket_nthreads), 0), MOST_THREADS)
    if settings.nsocks_perthread is not None:
        sockets = max(int(settings.nsocks_perthread), 1)
    if threads * sockets > MOST_SOCKETS:
        sockets = MOST_SOCKETS // threads
    return threads, sockets
