"""Closed forms of latency and bandwidth for communications, each with the fabric to itself.

A communication takes its latency terms plus the time its busiest resource needs for its bytes. Resources are
what a closed form can know: links inside hosts, adapters and their cables, and the sum of each leaf switch's
up-links (so oversubscription counts, collisions of routes do not). The network between leaves is ideal; its
hops are counted from tiers and pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.base.changes import TimedChange, payload_bps
from fabrictwin.engines.channels.channel_resources import Bound, bind_in_parts, capacities, message_bytes
from fabrictwin.engines.channels.edge_paths import OpenConnections
from fabrictwin.engines.channels.pipeline_latency import Beyond, CriticalPaths
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric, NodeKind
from fabrictwin.fabric.memory_paths import EndToEnd, PathFinder
from fabrictwin.program import patterns
from fabrictwin.program.patterns import Edges
from fabrictwin.program.program import Communication

# edges whose paths are kept, of communications that are bound again and again: a search asks for many sizes
_EDGES_KEPT, _SETS_KEPT = 1 << 17, 16


class IdealNetwork:
    """The network as a closed form sees it: adapters' cables, and a distance between leaves."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        peer = np.where(fabric.nic_port == NONE, NONE, fabric.port_peer[fabric.nic_port])
        self.leaf = np.where(peer == NONE, NONE, fabric.port_node[peer])  # [adapters] switch node
        self._last_port = peer
        network = np.isin(fabric.port_kind, NETWORK) & (fabric.port_peer != NONE)
        is_switch = fabric.node_kind == NodeKind.SWITCH
        far = fabric.port_node[fabric.port_peer]
        trunk = np.flatnonzero(network & is_switch[fabric.port_node] & is_switch[far])
        self.is_trunk = np.zeros(fabric.ports, bool)
        self.is_trunk[trunk] = True
        self.uplink_bps = np.bincount(
            fabric.port_node[trunk], weights=fabric.port_payload_bps[trunk], minlength=fabric.nodes
        )
        tier = fabric.node_tier.astype(np.int64)
        self._tiers = int(tier[is_switch].max(initial=1))
        latency = fabric.port_latency_ps[trunk] + fabric.node_latency_ps[fabric.port_node[trunk]]
        self._hop_ps = int(np.median(latency)) if len(trunk) else 0

    def walk(self, source: I32, destination: I32, entropy: np.ndarray | None = None) -> tuple[I32, I64]:
        """The adapter's own port, then the last switch's port to the destination. Raises ConfigError."""
        fabric = self.fabric
        for nics in (source, destination):
            loose = np.flatnonzero(self._last_port[nics] == NONE)
            if len(loose):
                name = fabric.node_name(int(fabric.nic_node[nics[loose[0]]]))
                raise ConfigError(f"{name} cannot be reached: it has no cable", key="cluster")
        ports = np.stack([fabric.nic_port[source], self._last_port[destination]], axis=1).reshape(-1)
        return ports.astype(np.int32), np.arange(0, 2 * len(source) + 1, 2, dtype=np.int64)

    def beyond_ps(self, source: I32, destination: I32) -> I64:
        """Latency between the leaves: two hops a tier to climb, from the pods that both are in."""
        fabric = self.fabric
        a, b = self.leaf[source], self.leaf[destination]
        same_pod = (fabric.node_pod[a] == fabric.node_pod[b]) & (fabric.node_pod[a] != NONE)
        climb = np.where(a == b, 0, np.where(same_pod, 1, max(1, self._tiers - 1)))
        hops: I64 = 2 * climb.astype(np.int64) * self._hop_ps
        return hops


def _leaf_time(network: IdealNetwork, found: EndToEnd, rows: slice, size: I64) -> float:
    """Time in ps that the busiest leaf's up-links need for what leaves or enters it."""
    source, destination = found.source_nic[rows], found.destination_nic[rows]
    far = np.flatnonzero((source != NONE) & (destination != NONE))  # what switches reduce knows its own links
    if not len(far):
        return 0.0
    out, into = network.leaf[source[far]], network.leaf[destination[far]]
    crossing = np.flatnonzero(out != into)
    worst = 0.0
    for leaf in (out, into):
        carried = np.bincount(leaf[crossing], weights=size[far[crossing]])
        at = np.flatnonzero(carried)
        if len(at):
            worst = max(worst, float((carried[at] * 8 * PS_PER_S / network.uplink_bps[at]).max()))
    return worst


@record
class Terms:
    """One communication bound to a fabric, for other sizes of the same pattern."""

    whole: Communication
    drain_ps: float  # without what messages are apart, which depends on their size
    edge_bytes: int  # of the busiest edge
    critical: CriticalPaths
    message_ps: int = 0  # between messages of a connection
    far_bytes: int = 0  # of the busiest edge whose messages are apart

    def duration(self, part: float, chunk_bytes: int) -> int:
        """Return the time in ps of `part` of the bytes in chunks of so many."""
        whole = self.whole
        payload = np.maximum(np.ceil(whole.channels.payload_bytes * part), 1).astype(np.int64)
        chunks = np.full(len(payload), chunk_bytes, np.int64)
        smaller = replace(whole.channels, payload_bytes=payload, chunk_bytes=chunks, offset_bytes=payload)
        moved = max(int(self.edge_bytes * part), 1)
        costs = whole.costs
        once = costs.base_ps + -(-moved // chunk_bytes) * costs.chunk_ps
        once += round(min(moved, chunk_bytes) * costs.copy_ps_per_byte)
        drain = self.drain_ps * part
        if self.message_ps:
            messages = -(-int(self.far_bytes * part) // int(message_bytes(smaller).min()))
            drain = max(drain, (messages - 1) * self.message_ps)
        beyond = self.critical.beyond(smaller).after(once)
        return int(beyond.ends_ps(drain, moved).max(initial=0))


class ClosedForms:
    """Times of communications over one fabric, whose links may change."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.network = IdealNetwork(fabric)
        self._finder = PathFinder(fabric, self.network)
        self._capacity = capacities(fabric)
        self._kept = self._keeping()

    def _keeping(self) -> OpenConnections:
        return OpenConnections(self.fabric, self._finder, keep=True, sets=_SETS_KEPT)

    def _connections(self, edges: Sequence[Edges]) -> OpenConnections:
        """Connections for these edges: with few, those whose paths are kept."""
        if sum(len(each) for each in edges) > _EDGES_KEPT // _SETS_KEPT:
            return OpenConnections(self.fabric, self._finder)
        if self._kept.edges > _EDGES_KEPT:
            self._kept = self._keeping()
        return self._kept

    def change(self, change: TimedChange) -> None:
        """Let a link run at another rate. A trunk is a share of its leaf's up-links."""
        payload = payload_bps(self.fabric, change)
        before, self._capacity[change.port] = self._capacity[change.port], payload / (8 * PS_PER_S)
        if self.network.is_trunk[change.port]:
            node = int(self.fabric.port_node[change.port])
            self.network.uplink_bps[node] += (self._capacity[change.port] - before) * 8 * PS_PER_S

    def bind(self, communications: Sequence[Communication], rank_node: I32) -> tuple[I64, Bound]:
        """Return ([communications] what each takes by itself, in ps; all bound to the fabric, with counts)."""
        durations, parts = self._parts(communications, rank_node, counted=True)
        return durations, Bound.joined(parts)

    def durations(self, communications: Sequence[Communication], rank_node: I32) -> I64:
        """Return [communications] what each takes by itself, in ps."""
        return self._parts(communications, rank_node, counted=False)[0]

    def _parts(
        self, communications: Sequence[Communication], rank_node: I32, *, counted: bool
    ) -> tuple[I64, list[Bound]]:
        """Return ([communications] what each takes by itself, in ps; all bound, in parts)."""
        edges = [patterns.edges(c.channels) for c in communications]
        durations, parts = np.zeros(len(communications), np.int64), []
        for which, bound, found in bind_in_parts(
            communications, rank_node, self._connections(edges), edges=edges, counted=counted
        ):
            durations[which] = self._durations(bound, found, communications[which], edges[which])
            parts.append(bound)
        return durations, parts

    def terms(self, communication: Communication, rank_node: I32) -> Terms:
        """Return the closed form of any part of a communication's bytes."""
        edges = patterns.edges(communication.channels)
        how = communication.transport.connections
        apart = np.zeros(0, np.int64) if how is None else how.message_ps
        bare = communication
        if how is not None and apart.any():
            transport = replace(communication.transport, connections=replace(how, message_ps=np.zeros_like(apart)))
            bare = replace(communication, transport=transport)
        ((_, bound, found),) = bind_in_parts(
            [bare], rank_node, self._connections([edges]), edges=[edges], counted=False
        )
        drain = self._drain(bound, found, bare, edges, np.arange(len(bound.size_bytes)), slice(None))
        return Terms(
            communication,
            drain,
            int(bound.size_bytes.max(initial=1)),
            bound.critical[0],
            int(apart.max(initial=0)),
            int(edges.size_bytes[apart > 0].max(initial=0)) if apart.any() else 0,
        )

    def _drain(
        self,
        bound: Bound,
        found: EndToEnd,
        communication: Communication,
        edges: Edges,
        mine: I64,
        rows: slice,
    ) -> float:
        """Time in ps that the busiest resource needs for the bytes of channels `mine`, of `edges` `rows`."""
        uses = np.arange(bound.use_start[mine[0]], bound.use_start[mine[-1] + 1])
        of_channel = np.repeat(mine, np.diff(bound.use_start)[mine])
        demand = bound.use_coefficient[uses] * bound.size_bytes[of_channel]
        resource: I64 = bound.use_resource[uses].astype(np.int64)
        capacity = self._capacity
        if 8 * len(uses) < len(capacity):
            used, resource = np.unique(resource, return_inverse=True)
            capacity = capacity[used]
        total = np.bincount(resource, weights=demand, minlength=len(capacity))
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.where(total > 0, total / capacity, 0.0)
            alone = bound.size_bytes[mine] / bound.limit[mine]
        drain = float(max(needed.max(initial=0.0), alone.max(initial=0.0)))
        drain = max(drain, _leaf_time(self.network, found, rows, edges.size_bytes))
        if not np.isfinite(drain):
            raise ConfigError(f"{communication.name}: a link on its way carries nothing", key="faults")
        return drain

    def _durations(
        self, bound: Bound, found: EndToEnd, communications: Sequence[Communication], edges: Sequence[Edges]
    ) -> I64:
        """[communications] closed-form durations in ps."""
        result = np.zeros(len(communications), np.int64)
        edge_at = 0
        of = np.searchsorted(bound.communication, np.arange(len(communications) + 1))
        for i, communication in enumerate(communications):
            mine = np.arange(of[i], of[i + 1])
            rows = slice(edge_at, edge_at + len(edges[i]))
            edge_at = rows.stop
            if not len(mine):
                continue
            drain = self._drain(bound, found, communication, edges[i], mine, rows)
            beyond = Beyond(*(getattr(bound, f.name)[mine] for f in fields(Beyond)))
            result[i] = int(beyond.ends_ps(drain, bound.size_bytes[mine]).max(initial=0))
        return result
