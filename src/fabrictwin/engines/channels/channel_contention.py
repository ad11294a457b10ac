"""When channels end whose pieces meet on links and share them, burst by burst.

Where channels go side by side their pieces come to a link together. It serves them one burst each, so
on the first link all of them end late and almost together. From link to link those in front come further ahead,
the burst under way being finished first, until each has the links to itself. How long that lasts depends on how
many bursts a piece has; no closed form of rates and latencies says it. So the pieces are played
(`kernel.flow.contention`): chunks of chains and trees over all their edges, children's before their parent's; a
ring's shards over one edge that stands for all, where several channels take the same way around.

Every edge is one of the parallel paths that it has, over those of its links that others use too. Of many chunks
some are played, and the others follow at the busiest link's pace; where that is too many bursts, they are longer.
Of trees and chains of more than some thousand edges (16 channels over 256 ranks) each channel is taken by itself.

Left out: rings on whose steps software spends time (`engines.channels.channel_resources`): that is not the same
on all channels, so they come apart at once, and measured series say so too. Full buffers and what they hold up:
where two children send to a parent over InfiniBand, whose switches share an input's buffer, packets for others
wait behind theirs. That is congestion, which only packets show.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import F64, I64, Bool, digest_of, place_of, ranges, starts_of
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.fabric.memory_paths import EndToEnd
from fabrictwin.program import patterns
from fabrictwin.program.program import Channels, Pattern

if TYPE_CHECKING:
    from fabrictwin.kernel.flow.contention import SharedLinks

_PIECES = 64  # of a channel that are played, at most
_EVEN = 1e-9
_STEPS = 64  # of a ring: by then channels side by side have come apart
_BURSTS = 1 << 17  # on links that are played, about
_EDGES = 1 << 13  # of one communication that are played, at most
_PLAYED = 64  # plays that are kept: what is asked what would gain asks for most of them again

_played: dict[bytes, I64] = {}


@record
class Stretch:
    """E edges as their pieces see them, over U links that others use too, in the order of edges and their hops."""

    channel: I64  # [E]
    latency_ps: I64  # [E] beside `piece * byte_ps`
    byte_ps: F64  # [E] for a byte of the piece, with the links to itself
    wire: F64  # [E] bytes on one of its parallel paths for a byte of the piece
    edge: I64  # [U]
    link: I64  # [U] 0 .. L - 1
    need: F64  # [U] of the link's whole rate while the edge has it to itself


@record
class Ends:
    """When channels end that nothing else disturbs."""

    end_ps: F64  # [C]
    period_ps: F64  # [C] what their busiest link needs for a piece of each


@record
class Meeting:
    """C channels whose edges share links, and whose pieces each edge passes on."""

    channels: int
    on: Stretch
    before_start: I64  # [E + 1]
    before_edge: I64
    mtu_bytes: int

    def ends(self, piece: I64, count: I64) -> Ends:
        """For `count` pieces of so many bytes, both [C]. Channels without edges end at once."""
        own, on = self.on.channel, self.on
        took = piece[own] * on.byte_ps
        period = np.zeros(self.channels)
        np.maximum.at(period, own, took)
        load = np.bincount(on.link, weights=on.need * took[on.edge])
        np.maximum.at(period, own[on.edge], load[on.link])
        met = np.bincount(on.edge, minlength=len(own)) > 0
        size = np.where(met, piece[own] * on.wire, 0.0)
        used = np.ceil(size / self.mtu_bytes)[on.edge]
        most = int(np.clip(_BURSTS // (4 * max(len(used), 1)), 2, _PIECES))
        played = np.clip(count, 1, most)
        burst = self.mtu_bytes * max(1, round(float((used * played[own[on.edge]]).sum()) / _BURSTS))
        end = np.zeros(self.channels)
        np.maximum.at(end, own, self._play(took, played[own], np.maximum(size / burst, 1.0)))
        return Ends(end + (count - played) * period, period)

    def _play(self, took: F64, pieces: I64, bursts: F64) -> I64:
        """[E] when each edge has brought its last piece.

        A piece has so many bursts, the last of which is shorter where that is no whole number.
        """
        from fabrictwin.kernel.flow import contention

        on, edges = self.on, len(took)
        lonely = np.flatnonzero(np.bincount(on.edge, minlength=edges) == 0)  # each gets a link of its own
        edge = np.concatenate([on.edge, lonely])
        link = np.concatenate([on.link, int(on.link.max(initial=NONE)) + 1 + np.arange(len(lonely))])
        need = np.concatenate([on.need, np.ones(len(lonely))])
        order = np.argsort(edge, kind="stable")
        edge, link = edge[order].astype(np.int64), link[order].astype(np.int64)
        start = np.searchsorted(edge, np.arange(edges + 1)).astype(np.int64)
        whole = need[order] * took[edge]
        number = np.ceil(bursts).astype(np.int64)
        use_ps = np.maximum(np.rint(whole / bursts[edge]), 1).astype(np.int64)
        last_ps = np.maximum(np.rint(whole) - (number[edge] - 1) * use_ps, 1).astype(np.int64)
        # what no link that is shared takes: its slowest link is its own
        beside = np.rint(took - np.maximum.reduceat(whole, start[:-1])).astype(np.int64)
        waits = np.repeat(np.arange(edges), np.diff(self.before_start))
        by_edge = np.argsort(self.before_edge, kind="stable")
        after_start = np.searchsorted(self.before_edge[by_edge], np.arange(edges + 1)).astype(np.int64)
        shared = contention.SharedLinks(
            contention.Uses(start, edge, link, use_ps, last_ps),
            contention.Pieces(pieces, number, on.latency_ps + np.maximum(beside, 0)),
            next=contention.Neighbours(after_start, waits[by_edge]),
            before=contention.Neighbours(self.before_start, self.before_edge),
        )
        return _ends_of_edges(shared)


def _ends_of_edges(shared: SharedLinks) -> I64:
    """Return [E] when each edge has brought its last piece. The same edges and links are played once."""
    columns = [column for part in shared for column in part]
    known = digest_of(columns)
    if known not in _played:
        if len(_played) == _PLAYED:
            _played.pop(next(iter(_played)))
        _played[known] = _play(shared)
    return _played[known]


def _play(shared: SharedLinks) -> I64:
    from fabrictwin.kernel.flow import contention
    from fabrictwin.kernel.flow import heaps as queues

    uses, pieces = shared.uses, shared.pieces
    links = int(uses.link.max()) + 1
    progress = contention.at_rest(len(uses.edge), links, len(pieces.number))
    # at once: pieces on their way, and of every link one burst that leaves it and one that comes to the next
    room = int(pieces.number.sum()) + 2 * links + 1
    time, sequence, what = (np.zeros(room, np.int64) for _ in range(3))
    queue = queues.Queue(time, sequence, what, np.zeros(2, np.int64))
    contention.play(shared, progress, queue)
    end_ps: I64 = progress.edge.end_ps
    return end_ps


@record
class Loops:
    """Rings that take the same way around side by side: K of different kinds."""

    kind: I64  # [C] NONE for channels that are no rings or have their links to themselves
    steps: I64  # [K]
    meeting: Meeting  # of K channels: one edge for each that goes side by side, all on one link

    def late_ps(self, piece: I64) -> tuple[F64, F64]:
        """([C] how much later each ends than its busiest edge's bytes or its critical path say, each alone; [C]
        what those bytes take). Zeros for channels that have their links to themselves.
        """
        mine = np.flatnonzero(self.kind != NONE)
        size = np.zeros(self.meeting.channels, np.int64)
        size[self.kind[mine]] = piece[mine]
        steps = np.minimum(self.steps, _STEPS)
        found = self.meeting.ends(size, steps)
        on = self.meeting.on
        alone, gain = np.zeros(len(size)), np.zeros(len(size))
        np.maximum.at(alone, on.channel, size[on.channel] * on.byte_ps)
        np.maximum.at(gain, on.channel, on.latency_ps.astype(np.float64))
        known = np.maximum(steps * found.period_ps + gain, steps * (alone + gain))
        late, drain = np.zeros(len(self.kind)), np.zeros(len(self.kind))
        late[mine] = np.maximum(found.end_ps - known, 0.0)[self.kind[mine]]
        drain[mine] = (self.steps * found.period_ps)[self.kind[mine]]
        return late, drain


@record
class Alone:
    """[E] what a communication's edges are with their links to themselves."""

    latency_ps: I64
    byte_ps: F64  # for a byte of its data
    weight: F64  # bytes on the wire for a byte of its data
    found: EndToEnd
    rows: slice  # its edges of those found
    uses: slice  # and their uses of ports, U of them

    @classmethod
    def of(cls, found: EndToEnd, rows: slice, latency_ps: I64, rate: F64, weight: F64) -> Alone:
        """`rate` [E] is that of bytes on the wire; the edges are `rows` of those found."""
        low, high = np.searchsorted(found.edge, [rows.start, rows.stop]).tolist()
        with np.errstate(divide="ignore"):
            byte_ps = weight / rate
        return cls(latency_ps, byte_ps, weight, found, rows, slice(low, high))

    @cached_property
    def edge(self) -> I64:
        """[U] every use of a port."""
        edge: I64 = self.found.edge[self.uses] - self.rows.start
        return edge

    @cached_property
    def port(self) -> I64:
        return self.found.port[self.uses].astype(np.int64)

    @property
    def share(self) -> F64:
        """[U] of the edge's bytes."""
        return self.found.share[self.uses]

    def need(self, fabric: Fabric) -> F64:
        """[U] of a port's whole rate while the edge alone is at work."""
        rate = (self.weight / self.byte_ps)[self.edge]
        need: F64 = self.share * rate * 8 * PS_PER_S / fabric.port_payload_bps[self.port]
        return need

    def wire(self, need: F64) -> F64:
        """[E] bytes on one of the slowest links for a byte of data."""
        widest = np.zeros(len(self.byte_ps))
        np.maximum.at(widest, self.edge, np.where(need > 1 - _EVEN, self.share, 0.0))
        return self.weight * widest


def meeting(channels: Channels, edges: patterns.Edges, alone: Alone, fabric: Fabric) -> Meeting | None:
    """Chains and trees of one communication; None where none meet, or too many.

    What reduces or multicasts inside a switch passes a chunk on while it comes in, and is not played.
    """
    stored = _stored(channels)
    if not stored.any():
        return None
    rows = np.flatnonzero(stored[edges.channel] & (edges.size_bytes > 0))
    if not 0 < len(rows) <= _EDGES or not _moves(alone.byte_ps[rows]):
        return None
    number = place_of(rows, len(edges)).astype(np.int64)
    need, edge = alone.need(fabric), number[alone.edge]
    mine = np.flatnonzero(edge != NONE)
    kept = mine[_tightest(edge[mine], alone.port[mine], need[mine])]
    if not len(kept):
        return None
    on = Stretch(
        channel=edges.channel[rows].astype(np.int64),
        latency_ps=alone.latency_ps[rows],
        byte_ps=alone.byte_ps[rows],
        wire=alone.wire(need)[rows],
        edge=edge[kept],
        link=np.unique(alone.port[kept], return_inverse=True)[1].reshape(-1).astype(np.int64),
        need=need[kept],
    )
    return Meeting(len(channels), on, *_before(channels, edges, rows), fabric.mtu_bytes)


def _moves(byte_ps: F64) -> bool:
    """Tell whether every edge has links, none of which is down."""
    return bool(np.isfinite(byte_ps).all() and (byte_ps > 0).all())


def _stored(channels: Channels) -> Bool:
    """[C] chains, and trees that have no seats in switches."""
    found: Bool = (channels.pattern == Pattern.CHAIN_BROADCAST) | patterns.among(channels.pattern, patterns.TREES)
    if not found.any():
        return found
    hub = np.add.reduceat(patterns.hubs(channels).astype(np.int64), channels.rank_start[:-1]) > 0
    stored: Bool = found & ~hub
    return stored


def _before(channels: Channels, edges: patterns.Edges, rows: I64) -> tuple[I64, I64]:
    """(start, edge) of the edges before each of `rows`: to the root what children brought, from it what came down.

    Chains go down.
    """
    source, target = edges.source_row[rows].astype(np.int64), edges.target_row[rows].astype(np.int64)
    parent = patterns.parent_rows(channels)
    tree = patterns.among(channels.pattern, patterns.TREES)[edges.channel[rows]]
    rises = tree & (parent[source] == target)
    gathers = rises | (tree & (parent[source] == NONE))
    brings, wants = 2 * target + rises, 2 * source + gathers
    order = np.argsort(brings, kind="stable")
    low = np.searchsorted(brings[order], wants)
    count = np.searchsorted(brings[order], wants, side="right") - low
    start = starts_of(count)
    return start, order[ranges(low, count)].astype(np.int64)


def loops(channels: Channels, edges: patterns.Edges, alone: Alone, fabric: Fabric) -> Loops | None:
    """Rings of one communication that share what is slowest on their way around; None where none do."""
    count = len(channels)
    ring = np.flatnonzero(patterns.among(channels.pattern, patterns.RINGS) & (patterns.rounds(channels) > 0))
    if len(ring) < 2:
        return None
    if not _moves(alone.byte_ps):
        return None
    need = alone.need(fabric)
    wire = alone.wire(need)
    slowest, width, gain = (np.zeros(count) for _ in range(3))
    np.maximum.at(slowest, edges.channel, alone.byte_ps)
    busiest = alone.byte_ps >= slowest[edges.channel]
    np.maximum.at(width, edges.channel, np.where(busiest, wire, 0.0))
    # channels whose slowest edges have the same slowest links have the same sum of those links' marks
    use = np.flatnonzero(busiest[alone.edge] & (need > 1 - _EVEN))
    mark = np.zeros(count, np.uint64)
    np.add.at(mark, edges.channel[alone.edge[use]], _mixed(alone.port[use].astype(np.uint64)))
    _, same, side = np.unique(mark[ring], return_inverse=True, return_counts=True)
    together = side[same.reshape(-1)]
    ring, together = ring[together > 1], together[together > 1]
    if not len(ring):
        return None
    # what a step gains beside the slowest edge: nothing where a shard waits for that anyway
    piece = channels.payload_bytes / np.maximum(np.diff(channels.rank_start), 1)
    hidden = piece[edges.channel] * (slowest[edges.channel] - alone.byte_ps)
    np.add.at(gain, edges.channel, np.maximum(alone.latency_ps - hidden, 0.0))
    gain /= np.maximum(np.bincount(edges.channel, minlength=count), 1)
    columns = [patterns.rounds(channels), np.rint(gain), channels.payload_bytes, slowest, width]
    table = np.stack([together, *(column[ring] for column in columns)], axis=1)
    kinds, which = np.unique(table, axis=0, return_inverse=True)
    kind = np.full(count, NONE, np.int64)
    kind[ring] = which.reshape(-1)
    of = np.repeat(np.arange(len(kinds)), kinds[:, 0].astype(np.int64))
    number = np.arange(len(of))
    on = Stretch(
        channel=of,
        latency_ps=kinds[of, 2].astype(np.int64),
        byte_ps=kinds[of, 4],
        wire=kinds[of, 5],
        edge=number,
        link=of,
        need=np.ones(len(of)),
    )
    around = Meeting(len(kinds), on, np.arange(len(of) + 1), number, fabric.mtu_bytes)
    return Loops(kind, kinds[:, 1].astype(np.int64), around)


def _mixed(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A mark for each number, so that sums of marks tell sets of numbers apart (SplitMix64's finalizer)."""
    mixed = value + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _tightest(edge: I64, port: I64, need: F64) -> I64:
    """Uses of links where edges meet; of links that the same edges use only the one they need most of."""
    if not len(edge):
        return edge
    by_port = np.argsort(port, kind="stable")
    link = np.flatnonzero(np.diff(port[by_port], prepend=NONE))
    size = np.diff(np.append(link, len(by_port)))
    marks = _mixed(edge[by_port].astype(np.uint64))
    users, total = np.add.reduceat(marks, link), np.add.reduceat(need[by_port], link)
    order = np.lexsort((link, -total, users))
    first = order[np.concatenate([[True], users[order][1:] != users[order][:-1]])]
    stays = np.zeros(len(link), bool)
    stays[first[size[first] > 1]] = True
    found: I64 = np.sort(by_port[np.repeat(stays, size)])
    return found
