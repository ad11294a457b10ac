"""The connections of a communication as columns: every edge's transport, adapters, memories and costs.

Most edges are alike: inside a host they are the same on every channel and every host of its kind, between hosts
they differ by their kinds and by the adapters that the graph found. `nccl.lowering.transport` is asked once for
each sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import I32, I64, Bool
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.engines.sockets.request import polled_step_ps
from fabrictwin.engines.sockets.stack import Costs, Network, Processor, Stack, ends, wire
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.nccl.lowering.transport import Route, Transport, Transports
from fabrictwin.nccl.topology.graph_types import Graph
from fabrictwin.nccl.tuning.step_costs import picoseconds
from fabrictwin.program.patterns import Edges
from fabrictwin.program.program import HUBS, Connections, Seat

_EDGES_KEPT = 1 << 16  # of one communicator's connections


@record
class _Ends:
    """E edges: ranks, and where `known` the adapters that the graph found between their hosts."""

    source: I64
    target: I64
    channel: I32
    ranks: Bool  # between ranks, not from or to a switch
    known: Bool
    nic_out: I64
    nic_in: I64


class Connector:
    """Connections over one communicator's transports."""

    def __init__(self, transports: Transports) -> None:
        self.transports = transports
        self.communicator = transports.communicator
        self.fabric: Fabric = transports.fabric
        self._known: dict[tuple[object, ...], Connections] = {}

    def connect(
        self,
        edges: Edges,
        hop_us: dict[str, float],
        *,
        graph: Graph | None = None,
        graph_channel: I32 | None = None,
        channel_rate: float = np.inf,
        message_us: float = 0.0,
        messages: I64 | None = None,
    ) -> Connections:
        """Connections of each edge; a step over "nvlink", "pcie" or "net" takes `hop_us`.

        Over adapters messages of a connection are `message_us` apart at least. `graph_channel` [channels] is the
        channel of the graph that each goes by, `messages` [channels] the bytes of one message. Edges alike have
        the very same connections: sizes of one collective, and its opposite.
        """
        channel = edges.channel if graph_channel is None else graph_channel[edges.channel]
        most = None  # queue pairs of each edge: no more than messages
        if self.transports.in_turns and messages is not None:
            most = np.maximum(-(-edges.size_bytes // messages[edges.channel]), 1)
        columns = channel, edges.source, edges.target, edges.source_seat, edges.target_seat
        key = (
            *(column.tobytes() for column in columns),
            None if most is None else np.minimum(most, self.transports.paths).tobytes(),
            *(id(graph), channel_rate, message_us, *hop_us.items()),
        )
        if key not in self._known:
            if sum(len(each) for each in self._known.values()) > _EDGES_KEPT:
                self._known.clear()
            pace = channel_rate, message_us
            self._known[key] = self._connect(edges, channel, hop_us, graph, pace, most)
        return self._known[key]

    def _connect(
        self,
        edges: Edges,
        channel: I32,
        hop_us: dict[str, float],
        graph: Graph | None,
        pace: tuple[float, float],
        most: I64 | None,
    ) -> Connections:
        channel_rate, message_us = pace
        ends = self._ends(edges, channel, graph)
        distinct, which, one = _distinct(self._alike(edges, channel, ends))
        routes = [
            self._edge(ends, int(e), tuple(row), graph) for e, row in zip(one, distinct.tolist(), strict=True)
        ]

        def moved(values: list[int], rank: I64) -> I32:
            """Fabric nodes as they are on each edge's own host."""
            here = column(values, np.int32)
            if not len(here) or here.max() == NONE:
                return here
            start = self._host_start[rank]
            return np.where(here == NONE, NONE, here + start - start[one[which]]).astype(np.int32)

        def column(values: Sequence[float], kind: type) -> np.ndarray:
            if len(set(values)) == 1:  # one value for all, not to be written to: most columns of large clusters
                return np.broadcast_to(np.array(values[0], kind), len(which))
            return np.array(values, kind)[which] if values else np.zeros(0, kind)

        sockets = [r.transport == Transport.NET_SOCKET for r in routes]
        threads = self.transports.threads
        per_byte = [self._core_ps(r) if s else (0.0, 0.0, 0.0) for r, s in zip(routes, sockets, strict=True)]
        slowest = [min(channel_rate, self._socket_rate(*work)) if max(work) else channel_rate for work in per_byte]
        spread = column([self.transports.paths if r.nic_out != NONE else 1 for r in routes], np.int32)
        if most is not None:
            spread = np.minimum(spread, most).astype(np.int32)
        return Connections(
            cost_ps=column(
                [
                    0 if self._free(r, row) else picoseconds(hop_us[r.way]) + (self._socket_step_ps(r) if s else 0)
                    for r, row, s in zip(routes, distinct, sockets, strict=True)
                ],
                np.int64,
            ),
            out=moved([r.out for r in routes], ends.source),
            nic_out=np.where(ends.known, ends.nic_out, column([r.nic_out for r in routes], np.int32)).astype(
                np.int32
            ),
            nic_in=np.where(ends.known, ends.nic_in, column([r.nic_in for r in routes], np.int32)).astype(
                np.int32
            ),
            into=moved([r.into for r in routes], ends.target),
            paths=spread,
            round_robin=np.broadcast_to(self.transports.in_turns, len(spread)),
            limit=column(slowest, np.float64),
            message_ps=column([picoseconds(message_us) if r.nic_out != NONE else 0 for r in routes], np.int64),
            send_ps_per_byte=column([work[0] for work in per_byte], np.float64),
            receive_ps_per_byte=column([work[1] for work in per_byte], np.float64),
            read_ps_per_byte=column([work[2] for work in per_byte], np.float64),
            threads=column([threads] * len(routes), np.int32),
        )

    def _ends(self, edges: Edges, channel: I32, graph: Graph | None) -> _Ends:
        """Nodes at which edges start and end, and the adapters between hosts where the graph has them."""
        communicator = self.communicator
        ranks = (edges.source_seat <= Seat.RELAY) & (edges.target_seat <= Seat.RELAY)
        source, target = (np.where(ranks, end, 0).astype(np.int64) for end in (edges.source, edges.target))
        node = communicator.placement.node_of_rank
        known = ranks & (node[source] != node[target])
        nic_out = nic_in = np.full(len(edges), NONE, np.int64)
        if graph is None or not graph.channels or not graph.inter.size:
            return _Ends(source, target, channel, ranks, np.zeros(len(edges), bool), nic_out, nic_in)
        of_graph = channel.astype(np.int64) % graph.channels
        found = []
        for rank in (source, target):
            first = graph.intra[node[rank], of_graph, 0] == rank
            found.append(np.where(known, graph.inter[node[rank], of_graph, np.where(first, 0, 1)], 0))
        nic_out, nic_in = found
        known &= (nic_out != NONE) & (nic_in != NONE) & self._taken[nic_out] & self._taken[nic_in]
        known &= self.transports.plane[nic_out] == self.transports.plane[nic_in]
        return _Ends(source, target, channel, ranks, known, nic_out, nic_in)

    def _alike(self, edges: Edges, channel: I32, ends: _Ends) -> list[I64]:
        """[6][E] what an edge's route depends on.

        Inside a host a connection is the same on every channel, and on every host that is seen alike; through
        NVSwitches it is the same everywhere. Between hosts it depends on their kinds and the adapters' places.
        """
        communicator, first = self.communicator, self._first_alike
        node = communicator.placement.node_of_rank
        near = ends.ranks & (node[ends.source] == node[ends.target])
        if communicator.settings.shm_disable:
            near &= False  # it may go by the host's own adapters
        inside = (edges.source_seat == Seat.NVSWITCH) | (edges.target_seat == Seat.NVSWITCH)
        place = np.zeros(len(edges), np.int64)
        for rank, nic in ((ends.source, ends.nic_out), (ends.target, ends.nic_in)):
            of_host = np.where(ends.known, nic - communicator.hosts.first_adapter[node[rank]], 0)
            place = (place * (int(of_host.max(initial=0)) + 1) + of_host) * 2 + self._staged[node[rank]]
        alike = near | ends.known
        row = [
            np.where(alike, first[ends.source], np.where(inside, 0, edges.source)),
            np.where(alike, first[ends.target], np.where(inside, 0, edges.target)),
            np.where(alike | inside, 0, channel),
            np.where(ends.known, 1 + place, 0),
            edges.source_seat,
            edges.target_seat,
        ]
        return [part.astype(np.int64) for part in row]

    @cached_property
    def _host_start(self) -> I64:
        """[ranks] the first node of each rank's host."""
        host = self.fabric.node_host[self.communicator.placement.rank_node]
        start: I64 = self.fabric.host_node_start[host].astype(np.int64)
        return start

    @cached_property
    def _taken(self) -> Bool:
        """[adapters] whether NCCL takes it."""
        taken = np.zeros(len(self.fabric.nic_node), bool)
        for host in self.communicator.placement.host_of_node.tolist():
            taken[list(self.transports.conditions.adapters(host))] = True
        return taken

    @cached_property
    def _staged(self) -> Bool:
        """[nodes] whether adapters of the host cannot reach GPU memory at all."""
        first = np.unique(self.communicator.placement.node_of_rank, return_index=True)[1]
        return np.array([not self.transports.conditions.gpudirect(int(rank)) for rank in first])

    @cached_property
    def _first_alike(self) -> I64:
        """[ranks] the first rank that sits on a host seen alike as the same device."""
        communicator = self.communicator
        hosts = communicator.placement.host_of_node[communicator.placement.node_of_rank]
        view = communicator.hosts.kind_of_node[communicator.placement.node_of_rank].astype(np.int64)
        template = self.fabric.host_template[hosts].astype(np.int64)
        place = communicator.placement.rank_node - self._host_start
        _, which, _ = _distinct([view, template, communicator.hosts.device_of_rank.astype(np.int64), place])
        first = np.full(int(which.max()) + 1, len(which), np.int64)
        np.minimum.at(first, which, np.arange(len(which)))
        found: I64 = first[which]
        return found

    def _edge(self, ends: _Ends, e: int, row: tuple[int, ...], graph: Graph | None) -> Route:
        *_, source_seat, target_seat = row
        channel = int(ends.channel[e])
        if Seat.NVSWITCH in (source_seat, target_seat):
            return Route(Transport.IN_SWITCH)
        if Seat.SWITCH in (source_seat, target_seat):
            out = self.transports.head_adapter(row[0], channel, graph) if source_seat != Seat.SWITCH else NONE
            into = self.transports.head_adapter(row[1], channel, graph) if target_seat != Seat.SWITCH else NONE
            return Route(Transport.NET_IB, nic_out=out, nic_in=into, gdr=(True, True))
        source, target = int(ends.source[e]), int(ends.target[e])
        if ends.known[e]:
            return self.transports.between(source, target, int(ends.nic_out[e]), int(ends.nic_in[e]))
        return self.transports.route(source, target, graph=graph, channel=channel)

    @staticmethod
    def _free(route: Route, row: np.ndarray) -> bool:
        """Take software costs from what a switch hands on or takes in: the base holds them."""
        return int(row[-2]) in HUBS or int(row[-1]) in HUBS or route.transport == Transport.SELF

    def _socket_rate(self, send_ps: float, receive_ps: float, read_ps: float) -> float:
        """Bytes a picosecond that a connection's threads manage, and the cores that its sockets interrupt."""
        threads, sockets = max(self.transports.threads, 1), self.transports.paths
        return min(threads / max(send_ps, read_ps), sockets / max(receive_ps - read_ps, 1.0))

    def _socket_step_ps(self, route: Route) -> int:
        """Time that a step takes in both hosts' stacks beside what RDMA's takes, in ps. Raises ConfigError."""
        return round(max(polled_step_ps(self._stack(node, route)) for node in (route.out, route.into)))

    def _core_ps(self, route: Route) -> tuple[float, float, float]:
        """Core time for a byte, sending, receiving, and the reading thread's part of that, in ps.

        Threads are not next to the cores that adapters interrupt. Raises ConfigError where the catalog has no
        figure.
        """
        sender, receiver = self._stack(route.out, route), self._stack(route.into, route)
        segment = sender.segment_bytes()
        read = receiver.copy_ps(segment, near=False)
        return (
            sender.send_ps(segment) / segment,
            (read + receiver.receive_ps(segment)) / segment,
            read / segment,
        )

    def _stack(self, node: int, route: Route) -> Stack:
        """The stack of a processor over a route's adapters; on InfiniBand IPoIB in datagram mode.

        Adapters cut its segments and hosts merge them, as on Ethernet. Raises ConfigError.
        """
        network: Network = "ethernet" if self.fabric.technology == "ethernet" else "ipoib-datagram"
        rate = float(self.fabric.port_rate_bps[self.fabric.node_port_start[route.nic_out]])
        name = self.fabric.type_names[self.fabric.node_type[node]]
        if not name:
            raise ConfigError("an unknown processor has no tcp_send in the catalog", key="NCCL_NET")
        try:
            processor = Processor.of(catalog.chip(name))
        except ValueError as error:
            raise ConfigError(str(error), key="NCCL_NET") from None
        return Stack(wire(network, rate), ends("host"), processor, Costs.of(catalog.host_stack("linux")))


def _distinct(columns: list[I64]) -> tuple[I64, I64, I64]:
    """(distinct rows, which of them each row is, the first of each), the columns not negative."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        key = key * (int(column.max(initial=0)) + 1) + column
    _, one, which = np.unique(key, return_index=True, return_inverse=True)
    return np.stack([column[one] for column in columns], axis=1), which.reshape(-1), one
