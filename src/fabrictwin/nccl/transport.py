"""How two ranks of a communicator reach each other: the first transport that can, in NCCL's order.

- **P2P**: over NVLink, or over PCIe where the GPUs are near enough (`NCCL_P2P_LEVEL`, `NCCL_P2P_DISABLE`): by
  default up to PXB, on AMD with two GPUs up to SYS. Access control on PCIe switches (ACS) takes PCIe out of it.
- **SHM**: through host memory next to the sender, written there and read from there.
- **NET/IB**: through adapters. With GPUDirect RDMA they reach GPU memory, if adapter and GPU are near enough
  (`NCCL_NET_GDR_LEVEL`: PXB, P2C from 2.27); without, bytes are staged in host memory on either side.
  **PXN**: a GPU far from the adapter hands its data to a neighbour next to it over NVLink.
- **NET/Socket**: TCP/IP over the same wires. Bytes pass host memory, are copied into the kernel and out of it, and
  cost cores at either end for every byte (`tcp_send`, `tcp_receive` of the processor: system calls, protocol,
  interrupts, copies). The sending thread does all of that; of receiving a thread does the copy (`tcp_read`), the
  rest runs on the core that the adapter interrupts. One thread, the proxy's, serves all of a rank's connections
  unless NCCL_SOCKET_NTHREADS starts more for each; only on Amazon's adapters are there two, of eight sockets,
  unasked.

How far devices are apart and what follows for P2P, GPUDirect RDMA and PXN is `nccl.paths`; which network and
adapters a host has, and what its faults take away, is `nccl.network`. Source: NCCL 2.30.7, src/transport and
src/graph/paths.cc.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from fabrictwin import catalog
from fabrictwin.errors import ConfigError
from fabrictwin.fabric.fabric import I32, NONE, Fabric, NodeKind
from fabrictwin.nccl.communicator import Communicator
from fabrictwin.nccl.conditions import Conditions, Network
from fabrictwin.nccl.costs import Costs, picoseconds, sprays
from fabrictwin.nccl.graph import Algorithm, Graph, PathType, Protocol
from fabrictwin.nccl.settings import Settings
from fabrictwin.program.patterns import Edges
from fabrictwin.program.program import HUBS, Connections, Seat

PS_PER_S = 10**12
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


@dataclass(frozen=True)
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
        """As costs name it."""
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
        self._routes: dict[tuple[int, int, int, int], Route] = {}
        self._memory: dict[tuple[int, int], int] = {}

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
        if communicator.node_of_rank[source] == communicator.node_of_rank[target]:
            if communicator.direct(source, target):
                near = communicator.path(source, target).type <= PathType.NVB
                return Route(Transport.P2P_NVLINK if near else Transport.P2P_PCIE)
            if not communicator.settings.shm_disable:
                return Route(Transport.SHM, out=self.memory(source))
        return self._network(source, target, graph, channel)

    def memory(self, rank: int) -> int:
        """The processor whose memory is nearest to a rank's GPU: it crosses the fewest links to it."""
        fabric, gpu = self.fabric, int(self.communicator.rank_node[rank])
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
        communicator = self.communicator
        nic_in = self.head_adapter(target, channel, graph)
        nic_out = self.head_adapter(source, channel, graph)
        if graph is None:
            nic_out = self._same_rail(source, target, nic_in, nic_out)
        nic_out, nic_in = self._same_subnet(source, target, nic_out, nic_in)
        if self.sockets:
            return Route(Transport.NET_SOCKET, self.memory(source), nic_out, nic_in, self.memory(target))
        proxy = communicator.proxy(source, nic_out)
        gdr = (
            self.conditions.gpudirect(proxy) and communicator.gpudirect(proxy, nic_out, send=True),
            self.conditions.gpudirect(target) and communicator.gpudirect(target, nic_in, send=False),
        )
        out = NONE if proxy == source else int(communicator.rank_node[proxy])
        return Route(
            Transport.NET_IB,
            out if gdr[0] else self.memory(source),
            nic_out,
            nic_in,
            NONE if gdr[1] else self.memory(target),
            gdr,
            proxy != source,
        )

    def _same_subnet(self, source: int, target: int, nic_out: int, nic_in: int) -> tuple[int, int]:
        """The adapters themselves where those are in one subnet; else the best that are. Raises ConfigError."""
        plane = self.fabric.node_plane[self.fabric.nic_node]
        if plane[nic_out] == plane[nic_in]:
            return nic_out, nic_in
        for out in self.adapters(source):
            for into in self.adapters(target):
                if plane[out] == plane[into]:
                    return out, into
        a, b = (self.fabric.node_name(int(self.communicator.rank_node[r])) for r in (source, target))
        raise ConfigError(f"{b} cannot be reached from {a}: they are in different subnets", key="cluster")

    def usable(self, rank: int) -> tuple[int, ...]:
        """The adapters of a rank's host that NCCL takes."""
        return self.conditions.adapters(int(self.fabric.node_host[self.communicator.rank_node[rank]]))

    def adapters(self, rank: int) -> list[int]:
        """The adapters that a rank may use, its own first. Raises ConfigError for none."""
        usable = self.usable(rank)
        if not usable:
            name = self.fabric.node_name(int(self.communicator.rank_node[rank]))
            raise ConfigError(f"{name} has no adapter that NCCL takes to reach other hosts by", key="cluster")
        own = [n for n in self.communicator.adapters(rank) if n in usable]
        return list(dict.fromkeys(own)) + [n for n in usable if n not in own]

    def head_adapter(self, rank: int, channel: int, graph: Graph | None) -> int:
        """The adapter of a rank on a channel: where the channel enters its host, or leaves it; else its own."""
        usable = self.usable(rank)
        if graph is not None and graph.channels and graph.inter.size:
            node, c = int(self.communicator.node_of_rank[rank]), channel % graph.channels
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
        hosts = fabric.node_host[self.communicator.rank_node[[source, target]]]
        if fabric.host_template[hosts[0]] != fabric.host_template[hosts[1]]:
            return otherwise
        first = np.searchsorted(fabric.nic_node, fabric.host_node_start[hosts])
        rail = int(nic_in - first[1] + first[0])
        if rail not in self.usable(source):
            return otherwise
        return rail if rail == otherwise or self.communicator.proxy(source, rail) != source else otherwise

    # ------------------------------------------------------------------ as columns

    def connect(
        self,
        edges: Edges,
        costs: Costs,
        algorithm: Algorithm,
        protocol: Protocol,
        *,
        graph: Graph | None = None,
        graph_channel: I32 | None = None,
        channel_rate: float = np.inf,
        hop_us: dict[str, float] | None = None,
    ) -> Connections:
        """How each edge travels. `graph_channel` [channels] is the channel of the graph that each goes by."""
        channel = edges.channel if graph_channel is None else graph_channel[edges.channel]
        # inside a host a connection is the same on every channel
        ranks = (edges.source_seat <= Seat.RELAY) & (edges.target_seat <= Seat.RELAY)
        node = self.communicator.node_of_rank
        near = ranks & (node[np.where(ranks, edges.source, 0)] == node[np.where(ranks, edges.target, 0)])
        channel = np.where(near, 0, channel)
        keys = np.stack(
            [edges.source, edges.target, channel, edges.source_seat, edges.target_seat], axis=1
        ).astype(np.int64)
        distinct, which = np.unique(keys, axis=0, return_inverse=True)
        which = which.reshape(-1)
        routes = [self._edge(tuple(row), graph) for row in distinct.tolist()]

        def column(values: list[float], kind: type) -> np.ndarray:
            return np.array(values, kind)[which] if values else np.zeros(0, kind)

        hop = hop_us or {way: costs.hop_us(algorithm, protocol, way) for way in ("nvlink", "pcie", "net")}
        sockets = [r.transport == Transport.NET_SOCKET for r in routes]
        threads = self.threads
        per_byte = [self._core_ps(r) if s else (0.0, 0.0, 0.0) for r, s in zip(routes, sockets, strict=True)]
        slowest = [min(channel_rate, self._socket_rate(*work)) if max(work) else channel_rate for work in per_byte]
        return Connections(
            cost_ps=column(
                [
                    0 if self._free(r, row) else picoseconds(hop[r.way])
                    for r, row in zip(routes, distinct, strict=True)
                ],
                np.int64,
            ),
            out=column([r.out for r in routes], np.int32),
            nic_out=column([r.nic_out for r in routes], np.int32),
            nic_in=column([r.nic_in for r in routes], np.int32),
            into=column([r.into for r in routes], np.int32),
            paths=column([self.paths if r.nic_out != NONE else 1 for r in routes], np.int32),
            limit=column(slowest, np.float64),
            send_ps_per_byte=column([work[0] for work in per_byte], np.float64),
            receive_ps_per_byte=column([work[1] for work in per_byte], np.float64),
            read_ps_per_byte=column([work[2] for work in per_byte], np.float64),
            threads=column([threads] * len(routes), np.int32),
        )

    def _edge(self, row: tuple[int, ...], graph: Graph | None) -> Route:
        source, target, channel, source_seat, target_seat = row
        if Seat.NVSWITCH in (source_seat, target_seat):
            return Route(Transport.IN_SWITCH)
        if Seat.SWITCH in (source_seat, target_seat):
            out = self.head_adapter(source, channel, graph) if source_seat != Seat.SWITCH else NONE
            into = self.head_adapter(target, channel, graph) if target_seat != Seat.SWITCH else NONE
            return Route(Transport.NET_IB, nic_out=out, nic_in=into, gdr=(True, True))
        return self.route(source, target, graph=graph, channel=channel)

    @staticmethod
    def _free(route: Route, row: np.ndarray) -> bool:
        """What a switch hands on costs no software, nor does what it takes in: the base holds it."""
        return int(row[3]) in HUBS or int(row[4]) in HUBS or route.transport == Transport.SELF

    def _socket_rate(self, send_ps: float, receive_ps: float, read_ps: float) -> float:
        """Bytes a picosecond that a connection's threads manage, and the cores that its sockets interrupt."""
        threads, sockets = max(self.threads, 1), self.paths
        return min(threads / max(send_ps, read_ps), sockets / max(receive_ps - read_ps, 1.0))

    def _core_ps(self, route: Route) -> tuple[float, float, float]:
        """Core time for a byte, sending, receiving, and the reading thread's part of that, in ps.

        Raises ConfigError where the catalog has no figure.
        """
        found = []
        for node, figure in ((route.out, "tcp_send"), (route.into, "tcp_receive"), (route.into, "tcp_read")):
            name = self.fabric.type_names[self.fabric.node_type[node]]
            rate = getattr(catalog.chip(name), figure) if name else None
            if rate is None:
                raise ConfigError(
                    f"{name or 'an unknown processor'} has no {figure} in the catalog", key="NCCL_NET"
                )
            found.append(8 * PS_PER_S / rate.value)
        return found[0], found[1], found[2]


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
