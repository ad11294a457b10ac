"""Time of a channel beside draining the bytes of its busiest edge: its pieces' path along the critical path.

A piece is what a pattern sends at once: a whole message, a ring's shard, a chunk of a chain or tree. On edge i it
takes a latency a_i and a serialization s_i, which edges of the same channel lengthen where they share its links;
s is that of the slowest edge, and the drain is s for every piece.

*Packets of a piece* follow each other through the links of an edge. A switch, or an adapter that sends, passes a
packet on while it comes in, unless the next link is faster; the receiving adapter checks it whole, then writes it
to memory. Wherever a packet is taken in whole, a stage of a tandem queue begins, and the last packet's time
through the stages after the slowest (the first's through those before) is not covered by the drain.

*Rings.* A shard's next step starts when the one before it is through and the edge is free. The longest path
through these starts either stays at an edge, which costs s_i a step, or moves on, which costs a_i + s_i. Staying
at the slowest for all steps is the drain; what comes on top is the best run of moves, each of which gains
a_i + s_i - s. In a ring of equal edges every step gains its latency. Where one edge of many is slow (the
network's, beside NVLink), shards queue at it and the latency of the others is hidden. Where channels share
links, the pieces of one move while those of another are on their way, so a ring ends with its drain or with its
path, whichever is later, not after both.

*Chains and trees* pass chunks on: the first takes a_i + s_i an edge, those behind it follow at the drain's rate.
What reduces or multicasts inside a switch passes a chunk on while it comes in, and adds no s_i. *PAT* counts the
mean latency for each of its rounds.

Where pieces of several channels come to a link together they share it, and a channel ends when playing them says
(`channel_contention`). A ring's run may lie beside its slowest edge, which bounds its time from above.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from fabrictwin.base.arrays import F64, I64, Bool
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.channels.channel_contention import Loops, Meeting
from fabrictwin.fabric.compile import packet_overhead
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric, NodeKind
from fabrictwin.fabric.memory_paths import EndToEnd
from fabrictwin.program import patterns
from fabrictwin.program.program import Channels, Pattern

_SINGLE = (Pattern.MESSAGE, Pattern.SHIFT)  # every edge for itself: a ring of one step


def pieces(channels: Channels) -> I64:
    """[C] bytes of one piece: a ring's shard, a chain's or tree's chunk, else everything."""
    ranks = np.maximum(np.diff(channels.rank_start), 1)
    ring = patterns.among(channels.pattern, (*patterns.RINGS, *patterns.PATS))
    shard = -(-channels.payload_bytes // ranks)
    chunk = np.minimum(patterns.chunk_sizes(channels), channels.payload_bytes)
    whole = patterns.among(channels.pattern, _SINGLE)
    size: I64 = np.where(ring, shard, np.where(whole, channels.payload_bytes, chunk))
    return size


def edge_rates(found: EndToEnd, fabric: Fabric, edges: int) -> F64:
    """[E] bytes a picosecond that each edge alone gets over its slowest link; inf where it uses none."""
    from fabrictwin.kernel.flow import sums

    slowest = np.full(edges, np.inf)
    rate = fabric.port_payload_bps.astype(np.float64)
    sums.edge_rates(found.edge, found.port, found.share, rate, 8 * PS_PER_S, slowest)
    return slowest


def loaded_rates(found: EndToEnd, fabric: Fabric, together: I64) -> F64:
    """[E] the same while other edges of the same number in `together` that share a link with it are at work."""
    from fabrictwin.kernel.flow import sums

    slowest = np.full(len(together), np.inf)
    rate, load = fabric.port_payload_bps.astype(np.float64), np.zeros((2, fabric.ports))
    uses = found.edge, found.port, found.share
    sums.loaded_rates(*uses, together, rate, 8 * PS_PER_S, load, slowest)
    return slowest


def at_once(channels: Channels, edges: patterns.Edges) -> I64:
    """[E] equal numbers for edges of a channel that a piece's way meets at work together: a tree's up, or down."""
    number: I64 = 2 * edges.channel.astype(np.int64) + _rises(channels, edges)
    return number


def _rises(channels: Channels, edges: patterns.Edges) -> Bool:
    """[E] whether an edge goes up in a tree."""
    rises: Bool = patterns.parent_rows(channels)[edges.source_row] == edges.target_row
    return rises


def packet_tail_ps(found: EndToEnd, fabric: Fabric, piece: I64, rate: F64) -> I64:
    """[E] what a piece of so many bytes takes on each edge beyond its latency and `piece / rate`.

    Exact for packets of equal size and a shorter last one through a tandem of stages: the last leaves a stage once
    it has come and the one before it has left.
    """
    from fabrictwin.kernel.flow.packet_tails import packet_tails

    tail = np.zeros(len(piece))
    packet_tails(
        *(found.edge, found.port, found.before, found.share),
        (found.source_nic == NONE) & (found.destination_nic == NONE),
        *(piece, rate, _packet_links(fabric), fabric.mtu_bytes, tail),
    )
    result: I64 = np.rint(tail).astype(np.int64)
    return result


PacketLinks = tuple[Bool, F64, F64, Bool, I64]
_last: tuple[Callable[[], Fabric | None], PacketLinks] | None = None


def _packet_links(fabric: Fabric) -> PacketLinks:
    """[ports] on the network, bits a second, ps a byte, at an adapter, header bytes; of the last fabric, kept."""
    global _last
    known = _last
    if known is None or known[0]() is not fabric:
        network = np.isin(fabric.port_kind, NETWORK)
        wire_bps = np.where(network, fabric.port_rate_bps, fabric.port_payload_bps).astype(np.float64)
        with np.errstate(divide="ignore"):
            byte_ps = 8.0 * PS_PER_S / wire_bps
        of_adapter = fabric.node_kind[fabric.port_node] == NodeKind.NIC
        header = np.where(network, packet_overhead(fabric.technology), 0)
        _last = known = weakref.ref(fabric), (network, wire_bps, byte_ps, of_adapter, header)
    return known[1]


@record
class Beyond:
    """C channels. One ends `fill_ps + max(0, serial_ps - piece_bytes / rate)` after its drain at `rate`, and not
    before `path_ps` are over since its start."""

    fill_ps: I64
    serial_ps: I64
    piece_bytes: I64
    path_ps: I64

    def after(self, once: I64 | int) -> Beyond:
        """The same with so much before everything."""
        return Beyond(self.fill_ps + once, self.serial_ps, self.piece_bytes, self.path_ps + once)

    def ends_ps(self, drain_ps: float, edge_bytes: I64 | int) -> I64:
        """[C] when it ends whose `edge_bytes` all drain in so long."""
        covered = np.floor(self.piece_bytes * drain_ps / np.maximum(edge_bytes, 1))
        ends = np.ceil(drain_ps) + self.fill_ps + np.maximum(self.serial_ps - covered, 0)
        result: I64 = np.maximum(ends, self.path_ps).astype(np.int64)
        return result


@record
class CriticalPaths:
    """C channels with E edges: what of their critical path is the same for pieces of every size."""

    start: I64  # [C + 1] edges of each
    channel: I64  # [E]
    edge_ps: I64  # [E] what a piece takes on each edge beside `piece / edge_rate`
    edge_rate: F64  # [E]
    steps: I64  # [C] of rings and PAT
    passed_on: Bool  # [C] chains and trees, or PAT: a chunk's `latency_ps` and `byte_ps` are its whole path's
    latency_ps: F64  # [C]
    byte_ps: F64  # [C]
    ring: Bool  # [C]
    stored: Bool  # [C] chains and trees
    meeting: Meeting | None = None  # of chains and trees
    loops: Loops | None = None  # of rings

    @classmethod
    def of(
        cls,
        channels: Channels,
        edges: patterns.Edges,
        edge_ps: I64,
        edge_rate: F64,
        meeting: Meeting | None = None,
        loops: Loops | None = None,
    ) -> CriticalPaths:
        count = len(channels)
        start = np.searchsorted(edges.channel, np.arange(count + 1)).astype(np.int64)
        with np.errstate(divide="ignore"):
            own = 1.0 / edge_rate
        chain = channels.pattern == Pattern.CHAIN_BROADCAST
        tree = patterns.among(channels.pattern, patterns.TREES)
        pat = patterns.among(channels.pattern, patterns.PATS)
        steps = patterns.rounds(channels)
        latency: F64 = np.zeros(count)
        serial: F64 = np.zeros(count)
        if (chain | pat).any():
            mean = steps / np.maximum(np.diff(start), 1)  # of PAT, whose rounds are not told apart
            latency[:] = np.bincount(edges.channel, weights=edge_ps, minlength=count) * np.where(pat, mean, 1.0)
            serial[:] = np.where(chain, np.bincount(edges.channel, weights=own, minlength=count), 0.0)
        if tree.any():
            on_trees = _tree_ways(channels, edges, edge_ps, own)
            latency[tree], serial[tree] = on_trees[0][tree], on_trees[1][tree]
        ring = patterns.among(channels.pattern, patterns.RINGS)
        return cls(
            start,
            edges.channel.astype(np.int64),
            edge_ps,
            edge_rate,
            steps,
            chain | tree | pat,
            latency,
            serial,
            ring,
            chain | tree,
            meeting,
            loops,
        )

    def beyond(self, channels: Channels) -> Beyond:
        """Return what each channel takes beside draining. `channels` are alike but for their bytes and chunks."""
        piece = pieces(channels)
        found = self._apart(piece)
        if self.meeting is not None:
            found = self._together(channels, piece, found, self.meeting)
        if self.loops is not None:
            late, drain = (np.rint(each).astype(np.int64) for each in self.loops.late_ps(piece))
            known = np.maximum(found.path_ps, np.where(drain > 0, drain + found.fill_ps, 0))
            found = replace(found, path_ps=known + late)
        return found

    def _together(self, channels: Channels, piece: I64, apart: Beyond, meeting: Meeting) -> Beyond:
        """Ends of channels that meet, where nothing else is at work, as what their drain leaves of it."""
        ends = meeting.ends(piece, -(-channels.payload_bytes // np.maximum(piece, 1)))
        mine = ends.period_ps > 0
        drain = ends.period_ps * channels.payload_bytes / np.maximum(piece, 1)
        over = np.maximum(ends.end_ps - drain, 0)
        fill = np.minimum(self.latency_ps, over)
        found = Beyond(
            fill_ps=np.rint(fill).astype(np.int64),
            serial_ps=np.rint(over - fill + ends.period_ps).astype(np.int64),
            piece_bytes=piece,
            path_ps=np.rint(ends.end_ps).astype(np.int64),
        )
        names = (f.name for f in fields(Beyond))
        return Beyond(*(np.where(mine, getattr(found, name), getattr(apart, name)) for name in names))

    def _apart(self, piece: I64) -> Beyond:
        """Times of channels that have their links to themselves, in pieces of so many bytes [C]."""
        fill, path_ps = self.latency_ps, np.zeros(len(piece), np.float64)
        if not self.passed_on.all():
            from fabrictwin.kernel.flow.ring_latency import best_runs

            with np.errstate(divide="ignore", invalid="ignore"):
                own = piece[self.channel] / self.edge_rate
                own = np.where(np.isfinite(own), own, 0.0)
            slowest, last, runs = (np.zeros(len(piece)) for _ in range(3))
            np.maximum.at(slowest, self.channel, own)
            gain = self.edge_ps + own - slowest[self.channel]
            longest = np.where(self.ring, self.steps, 0)
            best_runs(self.start, gain, longest, runs)
            path_ps = np.where(self.ring, longest * slowest + runs, 0.0)
            # of a ring or of single messages, the last piece's on its way over the slowest edge
            np.maximum.at(last, self.channel, gain)
            fill = np.where(self.passed_on, fill, last)
        return Beyond(
            fill_ps=np.rint(fill).astype(np.int64),
            serial_ps=np.rint(piece * self.byte_ps).astype(np.int64),
            piece_bytes=np.where(self.stored, piece, 0),
            path_ps=np.rint(path_ps).astype(np.int64),
        )


def beyond_drain(channels: Channels, edges: patterns.Edges, edge_ps: I64, edge_rate: F64) -> Beyond:
    """Return what each channel takes; `edge_ps` is what a piece takes on each edge beside `piece / edge_rate`."""
    return CriticalPaths.of(channels, edges, edge_ps, edge_rate).beyond(channels)


def _tree_ways(channels: Channels, edges: patterns.Edges, edge_ps: I64, own: F64) -> tuple[F64, F64]:
    """([C] latency, [C] serialization) of each tree's longest path up to the root and down again."""
    rises = _rises(channels, edges)
    tree = patterns.among(channels.pattern, patterns.TREES)[edges.channel]
    stored = np.where(patterns.hubs(channels)[edges.source_row], 0.0, own)
    weights = np.zeros((2, 2, len(channels.ranks)))  # latency and serialization, up and down
    for direction, lower, mine in ((0, edges.source_row, tree & rises), (1, edges.target_row, tree & ~rises)):
        weights[0, direction, lower[mine]] = edge_ps[mine]
        weights[1, direction, lower[mine]] = stored[mine]
    latency, serial = (patterns.tree_path(channels, *part) for part in weights)
    return latency, serial
