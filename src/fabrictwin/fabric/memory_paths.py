"""Paths from memory to memory: inside a host over NVLink or PCIe, between hosts through adapters and the network.

Between hosts a GPU sends through the adapter that serves it and arrives through the adapter that serves the
other. Where those two are in different subnets, the nearest pair that shares one is taken. An adapter without a
cable serves nobody: the next best in the host does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from fabrictwin.base.arrays import I32, I64, ranges, starts_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE, Fabric, NodeKind
from fabrictwin.fabric.host_template import Paths

# From departing and arriving adapters to what tells their connections apart, such as UDP source ports.
Entropy = Callable[[I32, I32], np.ndarray]


class Walker(Protocol):
    """Forwarding tables as paths need them; `routing.tables.Routes` is one.

    `walk` returns network paths as (ports, start); `beyond_ps` the latency of what `walk` leaves out of them.
    """

    def walk(self, source: I32, destination: I32, entropy: np.ndarray | None = None) -> tuple[I32, I64]: ...

    def beyond_ps(self, source: I32, destination: I32) -> I64: ...


@record
class EndToEnd:
    """Paths of E pairs, as uses of ports: pair `edge[u]` sends the part `share[u]` of its bytes through `port[u]`.

    Uses are grouped by pair, in the order of hops, one alternative after the other.
    """

    edge: I64
    port: I32
    share: np.ndarray
    before: np.ndarray  # what alternatives listed earlier take, so that bytes can be split without a remainder
    latency_ps: I64  # [E] wires and nodes on the way, the longest alternative, adapters' own costs included
    source_nic: I32  # [E] NONE inside a host
    destination_nic: I32  # [E]


@record
class Between:
    """Network paths of E pairs of adapters, as uses of ports by pair and hop."""

    pair: I64
    port: I32
    share: np.ndarray
    before: np.ndarray  # what ports listed earlier at the same hop take
    latency_ps: I64  # [E] of wires and of the nodes that transmit, the longest alternative


# From departing and arriving adapters to paths over which switches spread packets.
SpreadOver = Callable[[I32, I32], Between]


def _share_before(paths: Paths) -> np.ndarray:
    """[alternatives] the sum of the shares of a pair's earlier alternatives."""
    total = np.cumsum(paths.share) - paths.share
    of_pair = np.repeat(np.arange(len(paths.pair_start) - 1), np.diff(paths.pair_start))
    before: np.ndarray = total - total[paths.pair_start[:-1][of_pair]]
    return before


def nearest_processor(fabric: Fabric, node: int) -> int | None:
    """Return the processor whose memory is nearest to a node of its host: the path to it crosses the fewest links.

    Ties go to the lower number; None where no processor is within reach.
    """
    host = int(fabric.node_host[node])
    first = int(fabric.host_node_start[host])
    template = fabric.templates[int(fabric.host_template[host])]
    paths, n = template.paths, len(template.node_kind)
    found: list[tuple[int, int]] = []
    for cpu in np.flatnonzero(template.node_kind == NodeKind.CPU).tolist():
        if first + cpu == node:
            return node
        path, end = paths.pair_start[(node - first) * n + cpu : (node - first) * n + cpu + 2].tolist()
        if end > path:
            found.append((int(paths.hop_start[path + 1] - paths.hop_start[path]), first + cpu))
    return min(found)[1] if found else None


class PathFinder:
    """Looks up paths over one fabric and its tables."""

    def __init__(self, fabric: Fabric, routes: Walker, spread: SpreadOver | None = None) -> None:
        self.fabric = fabric
        self.routes = routes
        self.spread = spread
        nics = np.array([len(t.nics) for t in fabric.templates], np.int64)[fabric.host_template]
        self._host_nic_start = starts_of(nics)

    def adapter_of(self, node: I32) -> I32:
        """The adapter that serves each GPU or CPU: the best one that has a cable.

        Raises ConfigError where a host has none.
        """
        fabric = self.fabric
        host = fabric.node_host[node]
        local = node - fabric.host_node_start[host]
        result = np.full(len(node), NONE, np.int32)
        for t, template in enumerate(fabric.templates):
            mine = np.flatnonzero(fabric.host_template[host] == t)
            for choice in template.adapters.T:
                open_ = mine[result[mine] == NONE]
                if not len(open_):
                    break
                adapter = np.where(
                    choice[local[open_]] == NONE, NONE, choice[local[open_]] + self._host_nic_start[host[open_]]
                )
                live = (adapter != NONE) & (fabric.nic_port[adapter] != NONE)
                result[open_[live]] = adapter[live]
        lost = np.flatnonzero(result == NONE)
        if len(lost):
            raise ConfigError(
                f"{fabric.node_name(int(node[lost[0]]))} has no cabled adapter to reach other hosts by"
            )
        return result

    def inside(self, source: I32, destination: I32) -> tuple[I64, I32, np.ndarray, np.ndarray, I64]:
        """Uses (pair, port, share, share before) and latency of pairs of nodes of the same host."""
        fabric = self.fabric
        host = fabric.node_host[source]
        parts: list[tuple[I64, I32, np.ndarray, np.ndarray]] = []
        latency = np.zeros(len(source), np.int64)
        for t, template in enumerate(fabric.templates):
            mine = np.flatnonzero(fabric.host_template[host] == t)
            if not len(mine):
                continue
            paths, n = template.paths, len(template.node_kind)
            base = fabric.host_node_start[host[mine]]
            pair = (source[mine] - base).astype(np.int64) * n + (destination[mine] - base)
            first, count = (
                paths.pair_start[pair].astype(np.int64),
                np.diff(paths.pair_start)[pair].astype(np.int64),
            )
            missing = np.flatnonzero((count == 0) & (source[mine] != destination[mine]))
            if len(missing):
                a, b = (fabric.node_name(int(nodes[mine[missing[0]]])) for nodes in (source, destination))
                raise ConfigError(f"{b} cannot be reached from {a} inside the host")
            alternative = ranges(first, count)
            of_pair = np.repeat(mine, count)
            hops = np.diff(paths.hop_start)[alternative].astype(np.int64)
            use = ranges(paths.hop_start[alternative].astype(np.int64), hops)
            port_base = fabric.node_port_start[fabric.host_node_start[host[of_pair]]]
            ports = paths.ports[use] + np.repeat(port_base, hops)
            shares = np.repeat(paths.share[alternative], hops)
            before = np.repeat(_share_before(paths)[alternative], hops)
            parts.append((np.repeat(of_pair, hops), ports.astype(np.int32), shares, before))
            # every alternative's wires, and every node that passes on (not the last)
            wire = template.port_latency_ps[paths.ports]
            node = template.node_latency_ps[template.port_node[paths.ports]].copy()
            starts = paths.hop_start[:-1]
            node[starts[np.diff(paths.hop_start) > 0]] = 0
            total = np.add.reduceat(np.concatenate([wire + node, [0]]), starts) if len(starts) else np.zeros(0)
            np.maximum.at(latency, of_pair, total[alternative].astype(np.int64))
        if not parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0), np.zeros(0), latency
        edge, port, share, before = (np.concatenate([part[i] for part in parts]) for i in range(4))
        return edge, port, share, before, latency

    def _choices(self, node: int) -> I32:
        """The cabled adapters that a GPU or CPU can use, best first."""
        fabric = self.fabric
        host = int(fabric.node_host[node])
        ranked = fabric.templates[fabric.host_template[host]].adapters[node - fabric.host_node_start[host]]
        adapters = ranked[ranked != NONE] + self._host_nic_start[host]
        cabled: I32 = adapters[fabric.nic_port[adapters] != NONE].astype(np.int32)
        return cabled

    def nearest_adapters(self, node: int) -> I32:
        """Return the cabled adapters that the fewest links inside the host lead to from a GPU or CPU, by index."""
        fabric, found = self.fabric, np.sort(self._choices(node))
        first = int(fabric.host_node_start[fabric.node_host[node]])
        template = fabric.templates[fabric.host_template[fabric.node_host[node]]]
        paths, n = template.paths, len(template.node_kind)
        path = paths.pair_start[(node - first) * n + fabric.nic_node[found] - first]
        links = paths.hop_start[path + 1] - paths.hop_start[path]
        nearest: I32 = found[links == links.min(initial=np.iinfo(np.int32).max)]
        return nearest

    def adapters_between(self, source: I32, destination: I32) -> tuple[I32, I32]:
        """The adapters that each pair of nodes on different hosts uses: (departing, arriving).

        Each end's best where those share a subnet; else the best for the sender that any of the receiver's shares.
        Raises ConfigError where none does.
        """
        fabric = self.fabric
        departing, arriving = self.adapter_of(source), self.adapter_of(destination)
        plane = fabric.node_plane[fabric.nic_node]
        apart = np.flatnonzero(plane[departing] != plane[arriving])
        if not len(apart):
            return departing, arriving
        pairs, which = np.unique(np.stack([source[apart], destination[apart]]), axis=1, return_inverse=True)
        chosen = np.empty_like(pairs)
        for k, (a, b) in enumerate(pairs.T):
            into = self._choices(int(b))
            for out in self._choices(int(a)):
                shared = into[plane[into] == plane[out]]
                if len(shared):
                    chosen[:, k] = out, shared[0]
                    break
            else:
                names = fabric.node_name(int(b)), fabric.node_name(int(a))
                raise ConfigError(
                    f"{names[0]} cannot be reached from {names[1]}: they are in different subnets", key="cluster"
                )
        departing[apart], arriving[apart] = chosen[:, which.reshape(-1)]
        return departing, arriving

    def between(self, departing: I32, arriving: I32, entropy: Entropy | None) -> Between:
        """Over the network, one path a pair as the tables have it, or spread over all equal ones."""
        if self.spread is not None:
            return self.spread(departing, arriving)
        fabric = self.fabric
        ports, start = self.routes.walk(
            departing, arriving, None if entropy is None else entropy(departing, arriving)
        )
        one, pair = np.ones(len(ports)), np.repeat(np.arange(len(departing)), np.diff(start))
        passing = fabric.node_latency_ps[fabric.port_node[ports]] + fabric.port_latency_ps[ports]
        latency = np.add.reduceat(passing, start[:-1]) if len(departing) else np.zeros(0, np.int64)
        latency = latency + self.routes.beyond_ps(departing, arriving)
        return Between(pair, ports, one, 0 * one, latency)

    def find(
        self,
        source: I32,
        destination: I32,
        entropy: Entropy | None = None,
        *,
        stays_inside: bool = True,
        through: tuple[I32, I32] | None = None,
    ) -> EndToEnd:
        """Paths from memory node `source[i]` to `destination[i]` (GPUs or CPUs).

        `entropy`, asked with the adapters of the pairs, spreads flows where switches hash. Pairs of one host go
        through adapters too where what moves their bytes does not `stay inside`. `through`: adapters of each pair,
        else its best. Raises ConfigError where there is no path.
        """
        fabric = self.fabric
        source, destination = np.asarray(source, np.int32), np.asarray(destination, np.int32)
        same = stays_inside & (fabric.node_host[source] == fabric.node_host[destination])
        near, far = np.flatnonzero(same), np.flatnonzero(~same)
        latency = np.zeros(len(source), np.int64)
        source_nic = np.full(len(source), NONE, np.int32)
        destination_nic = np.full(len(source), NONE, np.int32)
        edge, port, share, before, latency[near] = self.inside(source[near], destination[near])
        parts = [(near[edge], port, share, before, np.zeros(len(edge), np.int64))]
        if len(far):
            if through is None:
                departing, arriving = self.adapters_between(source[far], destination[far])
            else:
                departing, arriving = through[0][far], through[1][far]
            source_nic[far], destination_nic[far] = departing, arriving
            edge, port, share, before, out = self.inside(source[far], fabric.nic_node[departing])
            parts.append((far[edge], port, share, before, np.zeros(len(edge), np.int64)))
            there = self.between(departing, arriving, entropy)
            hop = np.ones(len(there.port), np.int64)
            parts.append((far[there.pair], there.port, there.share, there.before, hop))
            network = there.latency_ps
            edge, port, share, before, into = self.inside(fabric.nic_node[arriving], destination[far])
            parts.append((far[edge], port, share, before, np.full(len(edge), 2)))
            # the adapter reads memory before it sends: a request there, then the data back
            latency[far] = 2 * out + network + into
            latency[far] += fabric.nic_post_ps[departing] + fabric.nic_deliver_ps[arriving]
        edge, port, share, before, leg = (np.concatenate([part[i] for part in parts]) for i in range(5))
        order = np.lexsort((leg, edge))
        return EndToEnd(
            edge[order], port[order], share[order], before[order], latency, source_nic, destination_nic
        )
