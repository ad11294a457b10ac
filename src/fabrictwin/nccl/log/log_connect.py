"""NCCL's log of connections: `Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA` and the like.

A rank opens the connections of its rings, then of its trees that are not open yet. From 2.22 on rings and trees
are connected when a collective first uses them (where cuMem can be used, as here), before while initialising; the
connections of sends open with the first send. On the network both ends write a line, elsewhere the sender does.
Formats: src/transport/p2p.cc, shm.cc, net.cc and generic.cc of 2.18.3 to 2.30.7.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fabrictwin.fabric.fabric import NONE
from fabrictwin.nccl.constants import REDUCTIONS
from fabrictwin.nccl.log.log import Line
from fabrictwin.nccl.log.log_init import Scene
from fabrictwin.nccl.lowering.transport import Route, Transport
from fabrictwin.nccl.settings.algorithm_selection import PROTOCOLS
from fabrictwin.nccl.topology.graph_types import Algorithm, Graph, PathType
from fabrictwin.nccl.tuning.cost_model import GATHERS
from fabrictwin.nccl.tuning.tuner import Call, Choice

CONNECTED_LATER_SINCE = 22
AMPERE = 80
# numbers of NCCL's types and names that ncclAlgoToString gives
DATATYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "half": 6, "float": 7, "double": 8,
    "bfloat16": 9, "fp8_e4m3": 10, "fp8_e5m2": 11,
}  # fmt: skip
_SHOUTED = {
    Algorithm.TREE: "TREE",
    Algorithm.RING: "RING",
    Algorithm.COLLNET_DIRECT: "COLLNET_DIRECT",
    Algorithm.COLLNET_CHAIN: "COLLNET_CHAIN",
    Algorithm.NVLS: "NVLS",
    Algorithm.NVLS_TREE: "NVLS_TREE",
    Algorithm.PAT: "PAT",
}


class Connections:
    """Which connections of a communicator are open, and the lines that opening more writes."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._open: set[tuple[int, int, int, int]] = set()  # channel, connection, from, to
        self._done: set[str] = set()

    @property
    def at_once(self) -> bool:
        """Do rings and trees connect while the communicator is initialised?"""
        return self.scene.minor < CONNECTED_LATER_SINCE

    def everything(self) -> Iterator[Line]:
        """Rings, trees and NVLS, as releases before 2.22 connect them."""
        yield from self.for_algorithm(Algorithm.RING)
        yield from self.for_algorithm(Algorithm.TREE)
        if Algorithm.NVLS_TREE in self.scene.communicator.graphs:
            yield from self.for_algorithm(Algorithm.NVLS_TREE)

    def for_algorithm(self, algorithm: Algorithm) -> Iterator[Line]:
        """Lines of the connections that an algorithm needs, if they are not there yet."""
        name = algorithm.name
        if name in self._done or self.scene.communicator.ranks == 1:
            return
        self._done.add(name)
        c = self.scene.communicator
        if algorithm in (Algorithm.RING, Algorithm.PAT):
            yield from self._graph(self._ring_peers(), c.channels.collective, c.graphs[Algorithm.RING])
            yield from self._said(self._rings_said())
        elif algorithm == Algorithm.TREE:
            yield from self._graph(self._tree_peers(), c.channels.collective, c.graphs[Algorithm.TREE])
            yield from self._said("Connected all trees")
        elif algorithm == Algorithm.NVLS_TREE and c.channels.nvls_trees is not None:
            yield from self._graph(self._nvls_peers(), c.channels.nvls, c.graphs[Algorithm.NVLS])
            yield from self._said("Connected NVLS tree")
        elif algorithm in (Algorithm.COLLNET_DIRECT, Algorithm.COLLNET_CHAIN):
            yield from self._in_switches(c.graphs[algorithm])

    def for_sends(self, pairs: list[tuple[int, int]]) -> Iterator[Line]:
        """The connections of sends between pairs of ranks."""
        c = self.scene.communicator
        for source, target in pairs:
            for part in range(c.channels.p2p_per_peer):
                yield from self._connect(part % c.channels.p2p, 1, source, target, None)

    def _said(self, text: str) -> Iterator[Line]:
        for rank in range(self.scene.communicator.ranks):
            yield Line(rank, text, ("INIT",))

    def _rings_said(self) -> str:
        if self.scene.minor < 24:
            return "Connected all rings"
        c, transports = self.scene.communicator, self.scene.transports
        last = c.channels.rings.order[0]
        crossing = [
            transports.route(int(a), int(b), graph=c.graphs[Algorithm.RING])
            for a, b in zip(last, np.roll(last, -1), strict=True)
        ]
        over = [route for route in crossing if route.transport in (Transport.NET_IB, Transport.NET_SOCKET)]
        relayed = any(route.pxn for route in over)
        straight = not over or all(route.gdr == (True, True) for route in over)
        return f"Connected all rings, use ring PXN {int(relayed)} GDR {int(straight)}"

    # -- who connects to whom -------------------------------------------------------------------------------------

    def _ring_peers(self) -> Iterator[tuple[int, int, int]]:
        order = self.scene.communicator.channels.rings.order
        for channel, ring in enumerate(order):
            for a, b in zip(ring.tolist(), np.roll(ring, -1).tolist(), strict=True):
                yield channel, a, b

    def _tree_peers(self) -> Iterator[tuple[int, int, int]]:
        for channel, up in enumerate(self.scene.communicator.channels.trees.up):
            for rank in np.flatnonzero(up != NONE).tolist():
                yield channel, rank, int(up[rank])
                yield channel, int(up[rank]), rank

    def _nvls_peers(self) -> Iterator[tuple[int, int, int]]:
        c = self.scene.communicator
        assert c.channels.nvls_trees is not None
        for channel in range(c.channels.nvls):
            up = c.channels.nvls_trees.up[channel % 2]
            for rank in np.flatnonzero(up != NONE).tolist():
                yield channel, rank, int(up[rank])
                yield channel, int(up[rank]), rank

    def _graph(self, peers: Iterator[tuple[int, int, int]], channels: int, graph: Graph) -> Iterator[Line]:
        """Connections in the order in which ranks write."""
        n = self.scene.communicator.ranks
        by_rank: dict[int, list[tuple[int, int, int, int, int]]] = {}
        for channel, a, b in peers:
            if channel < channels:
                # peers by their distance in ranks, those it receives from before those it sends to
                apart = (b - a) % n
                by_rank.setdefault(b, []).append((apart, 0, channel, a, b))
                by_rank.setdefault(a, []).append((apart, 1, channel, a, b))
        for rank in sorted(by_rank):
            for _, out, channel, a, b in sorted(by_rank[rank]):
                yield from self._end(channel, 0, a, b, graph, sending=bool(out))
        self._open.update((channel, 0, a, b) for rows in by_rank.values() for _, _, channel, a, b in rows)

    def _in_switches(self, graph: Graph) -> Iterator[Line]:
        scene = self.scene
        for channel in range(graph.channels):
            for node in range(scene.communicator.nodes):
                rank = int(graph.intra[node, channel, 0])
                adapter = int(graph.inter[node, channel, 0])
                for end in ("send", "receive"):
                    via = f"COLLNET/SHARP/{scene.device(rank, adapter)}/GDRDMA"
                    yield Line(rank, f"CollNet {channel:02d}/0 : {rank} [{end}] via {via}", ("INIT", "NET"))

    # -- one connection -------------------------------------------------------------------------------------------

    def _connect(self, channel: int, index: int, a: int, b: int, graph: Graph | None) -> Iterator[Line]:
        if a == b or (channel, index, a, b) in self._open:
            return
        yield from self._end(channel, index, a, b, graph, sending=True)
        yield from self._end(channel, index, a, b, graph, sending=False)
        self._open.add((channel, index, a, b))

    def _end(
        self, channel: int, index: int, a: int, b: int, graph: Graph | None, *, sending: bool
    ) -> Iterator[Line]:
        """The line that one end of a connection writes."""
        if (channel, index, a, b) in self._open:
            return
        scene = self.scene
        route = scene.transports.route(a, b, graph=graph, channel=self._place(graph, channel, a))
        dev = scene.processes.device
        pair = f"{a}[{dev(a)}] -> {b}[{dev(b)}]"
        if route.transport in (Transport.NET_IB, Transport.NET_SOCKET):
            rank, side, adapter = (a, "send", route.nic_out) if sending else (b, "receive", route.nic_in)
            relay = self._relay(route, a) if sending else ""
            gdr = "/GDRDMA" if route.gdr[0 if sending else 1] else ""
            shared = "/Shared" if index else ""
            text = (
                f"Channel {channel:02d}/{index} : {pair} [{side}] via NET/{scene.network}/"
                f"{scene.device(rank, adapter)}{relay}{gdr}{shared}"
            )
            yield Line(rank, text, ("INIT", "NET"))
        elif not sending:
            return
        elif route.transport == Transport.SHM:
            how = "direct/direct" if scene.minor < 30 else "direct"
            yield Line(a, f"Channel {channel:02d} : {pair} via SHM/{how}", ("INIT", "SHM"))
        elif route.transport in (Transport.P2P_NVLINK, Transport.P2P_PCIE):
            yield Line(a, f"Channel {channel:02d}/{index} : {pair} via P2P/{self._p2p(a, b)}", ("INIT", "P2P"))

    def _place(self, graph: Graph | None, channel: int, rank: int) -> int:
        """The graph's channel that a connection goes by; a head of NVLS keeps to its own on all."""
        if graph is None or graph.algorithm != Algorithm.NVLS:
            return channel
        heads = graph.intra[self.scene.communicator.placement.node_of_rank[rank], :, 0]
        return int(np.flatnonzero(heads == rank)[0])

    def _relay(self, route: Route, rank: int) -> str:
        """The rank whose proxy sends for this one (PXN)."""
        if not route.pxn:
            return ""
        found = np.flatnonzero(self.scene.communicator.placement.rank_node == route.out)
        return f"({int(found[0])})" if len(found) else ""

    def _p2p(self, a: int, b: int) -> str:
        scene = self.scene
        c = scene.communicator
        near = c.path(a, b).type == PathType.NVL
        read = "/read" if near and c.compute_capability == AMPERE else ""
        if scene.host(a) != scene.host(b):
            return "MNNVL" + read
        if scene.processes.number(a) == scene.processes.number(b):
            return "direct pointer" + read
        return ("IPC" if scene.minor < 19 else "CUMEM") + read


def operation(scene: Scene, call: Call, choice: Choice | None, *, count: int, number: int = 0) -> Iterator[Line]:
    """Lines of the operation of this number: each rank's call (COLL), and how it runs (TUNING, since 2.19)."""
    c = scene.communicator
    for rank in range(c.ranks):
        yield Line(
            rank,
            f"{call.collective}: opCount {number:x} "
            f"sendbuff 0x{_buffer(rank):x} recvbuff 0x{_buffer(rank) + 2**36:x} "
            f"count {count} datatype {DATATYPES[call.datatype]} op {REDUCTIONS.index(call.operation)} root 0 "
            f"comm {scene.pointer(rank)} [nranks={c.ranks}] stream 0x{0x55D0B0000000 + rank:x}",
            ("COLL",),
        )
    if choice is None or scene.minor < 19:
        return
    size = call.nbytes
    if scene.minor >= 24:
        # since 2.24 what stands there is what a rank sends or receives
        size = call.nbytes // c.ranks if call.collective in GATHERS else call.nbytes
        way = (
            f"{_SHOUTED[choice.algorithm]} proto {PROTOCOLS[choice.protocol].upper()} "
            f"channel{{Lo..Hi}}={{0..{choice.channels - 1}}}"
        )
        yield Line(0, f"{call.collective}: {size} Bytes -> Algo {way}", ("TUNING",))
        return
    named = f"{call.collective}: " if scene.minor >= 23 else ""
    way = f"Algo {int(choice.algorithm)} proto {int(choice.protocol)} time {choice.time_us:f}"
    yield Line(0, f"{named}{size} Bytes -> {way}", ("TUNING",))


def _buffer(rank: int) -> int:
    return 0x7F0000000000 + rank * 2**37
