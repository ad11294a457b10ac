"""How two ranks of a communicator reach each other: the first transport that can, in NCCL's order.

- **P2P**: over NVLink, or over PCIe where the GPUs are near enough (`NCCL_P2P_LEVEL`, `NCCL_P2P_DISABLE`): by
  default up to PXB, on AMD with two GPUs up to SYS. Access control on PCIe switches (ACS) takes PCIe out of it.
- **SHM**: through host memory next to the sender, written there and read from there.
- **NET/IB**: through adapters. With GPUDirect RDMA they reach GPU memory, if adapter and GPU are near enough
  (`NCCL_NET_GDR_LEVEL`: PXB, P2C from 2.27); without, bytes are staged in host memory on either side.
  **PXN**: a GPU far from the adapter hands its data to a neighbour next to it over NVLink.
- **NET/Socket**: TCP/IP over the same wires. Bytes pass host memory, are copied into the kernel and out of it, and
  cost a core per byte at either end (`tcp_send`, `tcp_receive` of the processor: system calls, protocol,
  interrupts, copies). One thread serves all of a rank's connections unless NCCL_SOCKET_NTHREADS starts more.

Source: NCCL 2.30.7, src/transport and src/graph/paths.cc.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from fabrictwin import catalog
from fabrictwin.errors import ConfigError
from fabrictwin.fabric.fabric import I32, NONE
from fabrictwin.nccl.communicator import Algorithm, Communicator, Graph, PathType, Protocol
from fabrictwin.nccl.conditions import Conditions, Network
from fabrictwin.nccl.costs import Costs, picoseconds
from fabrictwin.nccl.distance import Distances
from fabrictwin.program.patterns import Edges
from fabrictwin.program.program import HUBS, Connections, Seat

PS_PER_S = 10**12


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
        self.fabric = communicator.twin.fabric
        self.distance = Distances(self.fabric)
        self.conditions = conditions or Conditions.of(communicator)
        self._routes: dict[tuple[int, int, int, int], Route] = {}
        self._near: dict[int, list[int]] = {}

    # ------------------------------------------------------------------ choice

    def route(self, source: int, target: int, *, graph: Graph | None = None, channel: int = 0) -> Route:
        """The connection of two ranks on a channel; with a graph through the adapters that it found."""
        key = (source, target, NONE if graph is None else int(graph.algorithm), channel)
        if key not in self._routes:
            self._routes[key] = self._open(source, target, graph, channel)
        return self._routes[key]

    def _open(self, source: int, target: int, graph: Graph | None, channel: int) -> Route:
        a, b = (int(self.communicator.rank_node[r]) for r in (source, target))
        if a == b:
            return Route(Transport.SELF)
        if self.fabric.node_host[a] == self.fabric.node_host[b]:
            apart = self.distance(a, b)
            if apart <= self.p2p_level(a) and not (apart > PathType.NVL and self.conditions.acs(a)):
                return Route(Transport.P2P_NVLINK if apart <= PathType.NVB else Transport.P2P_PCIE)
            if not self.communicator.settings.shm_disable:
                return Route(Transport.SHM, out=self.distance.cpu_of(a))
        return self._network(source, target, graph, channel)

    def p2p_level(self, gpu: int) -> PathType:
        """How far apart GPUs of a host may be for direct access."""
        given: PathType | None = self.communicator.settings.p2p_limit
        if given is not None:
            return given
        host = self.fabric.node_host[gpu]
        few = len(self.fabric.templates[self.fabric.host_template[host]].gpus) <= 2
        return PathType.SYS if self.communicator.cpu == "amd" and few else PathType.PXB

    def gdr_level(self) -> PathType:
        """How far an adapter and a GPU may be apart for GPUDirect RDMA."""
        settings = self.communicator.settings
        given: PathType | None = settings.net_gdr_level
        if given is not None:
            return given
        return PathType.P2C if settings.net_gdr_c2c else PathType.PXB

    def adapters_near(self, gpu: int) -> list[int]:
        """The adapters that NCCL may use, of a GPU's host, nearest first. Raises ConfigError for none."""
        if gpu not in self._near:
            fabric, host = self.fabric, int(self.fabric.node_host[gpu])
            usable = self.conditions.adapters(host)
            if not len(usable):
                raise ConfigError(
                    f"host {fabric.host_names[host]} has no adapter that NCCL may use", key="NCCL_IB_HCA"
                )
            template = fabric.templates[int(fabric.host_template[host])]
            first = int(np.searchsorted(fabric.node_host[fabric.nic_node], host))
            rail = template.nic_rail[np.asarray(usable) - first]
            local = np.flatnonzero(template.gpus == gpu - int(fabric.host_node_start[host]))
            order = sorted(
                range(len(usable)),
                key=lambda k: (
                    self.distance(gpu, int(fabric.nic_node[usable[k]])),
                    not (len(local) and rail[k] == local[0]),
                    usable[k],
                ),
            )
            self._near[gpu] = [int(usable[k]) for k in order]
        return self._near[gpu]

    def _network(self, source: int, target: int, graph: Graph | None, channel: int) -> Route:
        a, b = (int(self.communicator.rank_node[r]) for r in (source, target))
        plane = self.fabric.node_plane[self.fabric.nic_node]
        nic_in = self.head_adapter(target, channel, graph)
        nic_out = self.head_adapter(source, channel, graph)
        if (
            graph is None
            and self.communicator.settings.p2p_pxn_level
            and not self.communicator.settings.pxn_disable
        ):
            nic_out = self._same_rail(a, b, nic_in, nic_out)
        if plane[nic_out] != plane[nic_in]:
            shared = [(x, y) for x in self.adapters_near(a) for y in self.adapters_near(b) if plane[x] == plane[y]]
            if not shared:
                names = self.fabric.node_name(b), self.fabric.node_name(a)
                raise ConfigError(f"{names[0]} cannot be reached from {names[1]}", key="cluster")
            nic_out, nic_in = shared[0]
        if self.conditions.network == Network.SOCKET:
            return Route(Transport.NET_SOCKET, self.distance.cpu_of(a), nic_out, nic_in, self.distance.cpu_of(b))
        helper = self._helper(a, nic_out)
        sender = a if helper is None else helper
        gdr = self._gdr(sender, nic_out, reads=True), self._gdr(b, nic_in, reads=False)
        out = NONE if helper is None else helper
        if not gdr[0]:
            helper, out = None, self.distance.cpu_of(a)
        into = NONE if gdr[1] else self.distance.cpu_of(b)
        return Route(Transport.NET_IB, out, nic_out, nic_in, into, gdr, helper is not None)

    def head_adapter(self, rank: int, channel: int, graph: Graph | None) -> int:
        """The adapter of a rank on a channel: where the channel enters its host, or leaves it; else its own."""
        gpu = int(self.communicator.rank_node[rank])
        if graph is not None and graph.channels and graph.inter.size:
            node, c = int(self.communicator.node_of_rank[rank]), channel % graph.channels
            side = 0 if graph.intra[node, c, 0] == rank else 1
            adapter = int(graph.inter[node, c, side])
            if adapter != NONE and adapter in self.conditions.adapters(int(self.fabric.node_host[gpu])):
                return adapter
        return self._own(gpu, channel)

    def _own(self, gpu: int, channel: int) -> int:
        """A GPU's adapter: of those equally near that serve it, channels take turns."""
        near = self.adapters_near(gpu)
        closest = self.distance(gpu, int(self.fabric.nic_node[near[0]]))
        rails = [
            n for n in near if self.distance(gpu, int(self.fabric.nic_node[n])) == closest and self._serves(n, gpu)
        ]
        return rails[channel % len(rails)] if rails else near[0]

    def _serves(self, nic: int, gpu: int) -> bool:
        fabric, host = self.fabric, int(self.fabric.node_host[gpu])
        template = fabric.templates[int(fabric.host_template[host])]
        first = int(np.searchsorted(fabric.node_host[fabric.nic_node], host))
        rail = int(template.nic_rail[nic - first])
        return rail != NONE and int(template.gpus[rail]) + int(fabric.host_node_start[host]) == gpu

    def _same_rail(self, a: int, b: int, nic_in: int, otherwise: int) -> int:
        """For sends: the sender's adapter on the rail of the receiver's, if a GPU next to it is on NVLink."""
        fabric = self.fabric
        hosts = [int(fabric.node_host[g]) for g in (a, b)]
        if fabric.host_template[hosts[0]] != fabric.host_template[hosts[1]]:
            return otherwise
        first = np.searchsorted(fabric.node_host[fabric.nic_node], hosts)
        rail = int(nic_in - first[1] + first[0])
        usable = rail in self.conditions.adapters(hosts[0]) and self._helper(a, rail) is not None
        return rail if usable or self._serves(rail, a) else otherwise

    def _helper(self, gpu: int, nic: int) -> int | None:
        """PXN: a GPU next to the adapter, reached over NVLink, where this one is farther from it."""
        settings = self.communicator.settings
        if settings.pxn_disable:
            return None
        node = int(self.fabric.nic_node[nic])
        near = PathType.P2C if settings.pxn_c2c else PathType.PXB
        if self.distance(gpu, node) <= near and (
            self._serves(nic, gpu) or self.distance(gpu, node) <= PathType.PIX
        ):
            return None
        members = self.communicator.rank_node
        host = self.fabric.node_host[gpu]
        peers = members[self.fabric.node_host[members] == host].tolist()
        found = [
            p
            for p in peers
            if p != gpu and self.distance(p, node) <= near and self.distance(gpu, p) <= PathType.NVL
        ]
        if not found or self.distance(min(found, key=lambda p: self.distance(p, node)), node) >= self.distance(
            gpu, node
        ):
            return None
        return int(min(found, key=lambda p: (not self._serves(nic, p), self.distance(p, node), p)))

    def _gdr(self, gpu: int, nic: int, *, reads: bool) -> bool:
        if (
            not self.conditions.gpudirect(gpu)
            or self.distance(gpu, int(self.fabric.nic_node[nic])) > self.gdr_level()
        ):
            return False
        if not reads:
            return True
        given = self.communicator.settings.net_gdr_read
        if given is not None:
            return bool(given)
        # by default adapters read GPU memory where GPUs have NVLink
        members = self.communicator.rank_node
        mates = members[self.fabric.node_host[members] == self.fabric.node_host[gpu]].tolist()
        linked = any(self.distance(gpu, m) == PathType.NVL for m in mates if m != gpu)
        return linked or self.communicator.compute_capability >= 80

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
        routes = [self._edge(tuple(int(v) for v in row), graph) for row in distinct]

        def column(values: list[float], kind: type) -> np.ndarray:
            return np.array(values, kind)[which] if values else np.zeros(0, kind)

        hop = hop_us or {way: costs.hop_us(algorithm, protocol, way) for way in ("nvlink", "pcie", "net")}
        settings = self.communicator.settings
        sockets = [r.transport == Transport.NET_SOCKET for r in routes]
        threads = self.conditions.socket_threads
        per_byte = [self._core_ps(r) if s else (0.0, 0.0) for r, s in zip(routes, sockets, strict=True)]
        slowest = [
            min(channel_rate, max(threads, 1) / max(pair)) if max(pair) else channel_rate for pair in per_byte
        ]
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
            paths=column([self.conditions.paths(settings) if r.nic_out != NONE else 1 for r in routes], np.int32),
            limit=column(slowest, np.float64),
            send_ps_per_byte=column([pair[0] for pair in per_byte], np.float64),
            receive_ps_per_byte=column([pair[1] for pair in per_byte], np.float64),
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
        return bool(np.isin(row[3:5], HUBS).any()) or route.transport == Transport.SELF

    def _core_ps(self, route: Route) -> tuple[float, float]:
        """Core time for a byte, sending and receiving, in ps. Raises ConfigError where the catalog has no
        figure.
        """
        found = []
        for node, figure in ((route.out, "tcp_send"), (route.into, "tcp_receive")):
            name = self.fabric.type_names[self.fabric.node_type[node]]
            rate = getattr(catalog.chip(name), figure) if name else None
            if rate is None:
                raise ConfigError(
                    f"{name or 'an unknown processor'} has no {figure} in the catalog", key="NCCL_NET"
                )
            found.append(8 * PS_PER_S / rate.value)
        return found[0], found[1]
