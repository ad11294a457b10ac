"""Data that each pattern moves: bytes per edge, latency terms, single sends. Closed forms, in numpy.

Three views of the same channels, which tests hold together:

- `edges`: the bytes that each directed pair of ranks carries in one execution. The fluid engine's input.
- `fill`: what a pipelined channel takes beyond `edge bytes / rate`: a number of hops, each with its latency,
  and bytes that are serialised on the critical path before the pipeline is full.
- `program.sends`: every single step in dependency order. The packet engine and the functional executor play
  these; their bytes sum to `edges` exactly.

With n ranks, payload P, chunk c (at most P), latency a per hop and rate r on every edge, uncontended:

    message, shift        a + P/r
    ring all-reduce       2(n-1) (a + P/(n r))           each step carries one of n shards
    ring all-gather,
      reduce-scatter      (n-1) (a + P/(n r))
    chain broadcast       (n-1) a + P/r + (n-2) c/r      chunks are stored and forwarded
    tree all-reduce       2D a + P/r + (2D-1) c/r        D the depth: reduce to the root, broadcast back
    tree reduce, broadcast D a + P/r + (D-1) c/r
    PAT all-gather,
      reduce-scatter      L a + (n-1) P/(n r)            L the binary logarithm of n, rounded up

A tree may have seats that are no ranks: reduction and multicast in NVSwitches and switches, which pass a chunk on
while it comes in and so count as hops, not as stores. PAT's trees are binomial, one a rank, with its far hops
first (`PatAGAlgorithm` in NCCL's collectives.h); each rank sends n - 1 blocks in L hops of different lengths.

The ring forms are those of Patarasuk and Yuan (2009); the pipelined chain and tree those of Sanders, Speck
and Träff (2009). A shard that does not divide differs by one element (`Channels.element_bytes`): the first
shards are the larger ones. All-gather and reduce-scatter number their shards by ascending rank, whatever the
order of the ring, so that several channels in different orders agree on who owns what.

Left out: slices within a step (NCCL forwards the first half of a ring step before the second has arrived).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I8, I32, I64, Bool
from fabrictwin.base.records import record
from fabrictwin.program.program import HUBS, NONE, Channels, Pattern

RINGS = (Pattern.RING_ALL_REDUCE, Pattern.RING_ALL_GATHER, Pattern.RING_REDUCE_SCATTER)
TREES = (Pattern.TREE_ALL_REDUCE, Pattern.TREE_REDUCE, Pattern.TREE_BROADCAST)
PATS = (Pattern.PAT_ALL_GATHER, Pattern.PAT_REDUCE_SCATTER)
_AROUND = (*RINGS, Pattern.CHAIN_BROADCAST)
UPWARDS = (Pattern.TREE_ALL_REDUCE, Pattern.TREE_REDUCE)
DOWNWARDS = (Pattern.TREE_ALL_REDUCE, Pattern.TREE_BROADCAST)


@cache
def _table(kinds: tuple[int, ...]) -> Bool:
    found = np.zeros(1 << 7, bool)
    found[list(kinds)] = True
    return found


def among(column: I8, kinds: tuple[int, ...]) -> Bool:
    """Mask of the patterns, or seats, that are of some kinds."""
    found: Bool = _table(kinds)[column]
    return found


@record
class Edges:
    """E directed edges as columns, in order of their channel."""

    channel: I32  # [E]
    source: I32  # [E] rank, or what `Channels.ranks` holds of a seat that is none
    target: I32  # [E]
    size_bytes: I64  # [E] what the edge carries in one execution
    source_seat: I8  # [E] Seat
    target_seat: I8  # [E]
    source_row: I32  # [E] places in `Channels.ranks`
    target_row: I32  # [E]

    def __len__(self) -> int:
        return len(self.channel)


def share(total: I64 | int, index: npt.NDArray[np.integer] | int, n: npt.NDArray[np.integer] | int) -> I64:
    """Return the share of `index` in `n` of `total`: equal ones, the first larger by one; monotone in `total`."""
    return np.asarray(total // n + (index < total % n), dtype=np.int64)


def share_start(total: I64 | int, index: npt.NDArray[np.integer] | int, n: npt.NDArray[np.integer] | int) -> I64:
    """Return where the share of `index` starts when shares lie one after the other."""
    return np.asarray(index * (total // n) + np.minimum(index, total % n), dtype=np.int64)


@record
class _Seats:
    """One row per (channel, position): R of them."""

    channel: I32
    position: I64
    n: I64  # ranks of its channel
    first: I64  # row of the channel's position 0

    def row(self, position: I64) -> I64:
        """The row of that position (modulo n) in the same channel."""
        return self.first + position % self.n


def _seats(channels: Channels) -> _Seats:
    start = channels.rank_start.astype(np.int64)
    n = np.diff(start)
    channel = np.repeat(np.arange(len(channels), dtype=np.int32), n)
    first = start[:-1][channel]
    return _Seats(channel, np.arange(len(channels.ranks)) - first, n[channel], first)


def _shard_index(channels: Channels, seats: _Seats) -> I64:
    """[R] which shard each seat owns: its place among the channel's ranks in ascending order."""
    order = np.lexsort((channels.ranks, seats.channel))
    index = np.empty(len(order), np.int64)
    index[order] = seats.position  # rows of a channel stay together and in order
    return index


_last: tuple[Callable[[], Channels | None], Edges] | None = None
_small: dict[tuple[object, ...], Edges] = {}  # of the last small channels, by what they are
_SMALL, _SMALL_KEPT = 1 << 12, 32  # ranks of all channels together; how many


def edges(channels: Channels) -> Edges:
    """Every directed edge of every channel and its bytes in one execution of the channel.

    Those of the channels asked about last are kept: who lowers a communication and who binds it ask both. So are
    those of a few small ones: communicators of rails alike have the same channels.
    """
    global _last
    known = _last
    if known is None or known[0]() is not channels:
        found = _edges(channels) if len(channels.ranks) > _SMALL else _edges_of_small(channels)
        _last = known = weakref.ref(channels), found
    return known[1]


def _edges_of_small(channels: Channels) -> Edges:
    columns = (
        *(channels.pattern, channels.rank_start, channels.ranks, channels.parent, channels.shift),
        *(channels.payload_bytes, channels.offset_bytes, channels.seats),
    )
    sizes = channels.element_bytes, len(channels), len(channels.ranks)
    key = (*sizes, *(column.tobytes() for column in columns))
    if key not in _small:
        while len(_small) >= _SMALL_KEPT:
            del _small[next(iter(_small))]
        _small[key] = _edges(channels)
    return _small[key]


def _edges(channels: Channels) -> Edges:
    seats = _seats(channels)
    rows = np.arange(len(channels.ranks))
    pattern = channels.pattern[seats.channel]
    payload = channels.payload_bytes[seats.channel]
    size = _ring_bytes(channels, seats, pattern, payload)

    hop = np.where(pattern == Pattern.SHIFT, channels.shift[seats.channel], 1)
    target = seats.row(seats.position + hop)
    line = (pattern == Pattern.MESSAGE) | (pattern == Pattern.CHAIN_BROADCAST)
    other = among(pattern, (*TREES, *PATS))
    sends = (target != rows) & ~(line & (seats.position == seats.n - 1)) & ~other

    below = channels.parent != NONE
    up = np.flatnonzero(below & among(pattern, UPWARDS))
    down = np.flatnonzero(below & among(pattern, DOWNWARDS))
    over, under = seats.first[up] + channels.parent[up], seats.first[down] + channels.parent[down]
    sources, targets = [rows[sends], up, under], [target[sends], over, down]
    sizes = [size[sends], payload[up], payload[down]]
    for c in np.flatnonzero(among(channels.pattern, PATS)):
        for part, found in zip((sources, targets, sizes), _pat_edges(channels, int(c)), strict=True):
            part.append(found)
    source, target, size = np.concatenate(sources), np.concatenate(targets), np.concatenate(sizes)
    channel = seats.channel[source]
    order = np.argsort(channel, kind="stable")
    source_row: I32 = source[order].astype(np.int32)
    target_row: I32 = target[order].astype(np.int32)
    return Edges(
        channel=channel[order],
        source=channels.ranks[source_row],
        target=channels.ranks[target_row],
        size_bytes=size[order],
        source_seat=channels.seats[source_row],
        target_seat=channels.seats[target_row],
        source_row=source_row,
        target_row=target_row,
    )


def _ring_bytes(channels: Channels, seats: _Seats, pattern: I8, payload: I64) -> I64:
    """[R] what each seat of a ring sends to the next; the payload of other patterns."""
    size, unit = payload.copy(), channels.element_bytes
    if not among(channels.pattern, RINGS).any():
        return size
    elements = payload // unit
    all_reduce = pattern == Pattern.RING_ALL_REDUCE
    if all_reduce.any():
        shard = share(elements, seats.position, seats.n) * unit
        # of all shards twice over, an edge does not carry the one that ends at its far end and the one after it
        spared = shard[seats.row(seats.position + 1)] + shard[seats.row(seats.position + 2)]
        size[all_reduce] = (2 * payload - spared)[all_reduce]
    if all_reduce.all():
        return size
    begin = channels.offset_bytes[seats.channel] // unit
    index = _shard_index(channels, seats)
    shard = (share(begin + elements, index, seats.n) - share(begin, index, seats.n)) * unit
    gather = pattern == Pattern.RING_ALL_GATHER
    size[gather] = (payload - shard[seats.row(seats.position + 1)])[gather]
    scatter = pattern == Pattern.RING_REDUCE_SCATTER
    size[scatter] = (payload - shard)[scatter]
    return size


def pat_shards(channels: Channels, c: int) -> tuple[I64, I64]:
    """(start, length) in bytes, both [n], of the part of each position's shard that channel `c` carries."""
    low, high = int(channels.rank_start[c]), int(channels.rank_start[c + 1])
    n, unit = high - low, channels.element_bytes
    shard = np.argsort(np.argsort(channels.ranks[low:high]))
    total = group_total_bytes(channels, c) // unit
    begin, elements = int(channels.offset_bytes[c]) // unit, int(channels.payload_bytes[c]) // unit
    within = share(begin, shard, n)
    return (share_start(total, shard, n) + within) * unit, (share(begin + elements, shard, n) - within) * unit


def _pat_edges(channels: Channels, c: int) -> tuple[I64, I64, I64]:
    """(source row, target row, bytes): at each distance a rank sends the blocks that are so far on their way."""
    low, high = int(channels.rank_start[c]), int(channels.rank_start[c + 1])
    n = high - low
    length = pat_shards(channels, c)[1]
    gather = channels.pattern[c] == Pattern.PAT_ALL_GATHER
    position = np.arange(n)
    source, target, size = [], [], []
    for k in range((n - 1).bit_length()):
        distance = 1 << k
        carried = np.zeros(n, np.int64)
        offsets = np.arange(0, n - distance, 2 * distance)
        if (length == length[0]).all():
            carried += len(offsets) * length[0]
        else:
            for d in offsets.tolist():
                carried += np.roll(length, d)
        near, far = position, (position + distance) % n
        source.append(low + (near if gather else far))
        target.append(low + (far if gather else near))
        size.append(carried)
    if not source:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(source), np.concatenate(target), np.concatenate(size)


def path_sum(parent_row: I64, weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[R] the sum of `weight` over the seats from each one to its root, the root itself left out.

    `parent_row` holds rows, NONE at roots. Raises ValueError where the parents form a cycle.
    """
    above = parent_row.astype(np.int64)
    total = np.where(above != NONE, weight, 0)
    for _ in range(len(above).bit_length() + 1):  # each round doubles how far is looked
        inner = np.flatnonzero(above != NONE)
        if not len(inner):
            return total
        total[inner] += total[above[inner]]
        above[inner] = above[above[inner]]
    raise ValueError("the parents of a tree channel form a cycle")


def parent_rows(channels: Channels) -> I64:
    """[R] the row of each seat's parent in its tree, NONE for roots and for what is in no tree."""
    trees = among(channels.pattern, TREES)
    if not trees.any():
        return np.full(len(channels.ranks), NONE, np.int64)
    seats = _seats(channels)
    in_tree = trees[seats.channel]
    return np.where(in_tree & (channels.parent != NONE), seats.first + channels.parent, NONE)


def hubs(channels: Channels) -> Bool:
    """[R] seats that pass a chunk on while it comes in."""
    found: Bool = among(channels.seats, HUBS)
    return found


def tree_path(channels: Channels, up: npt.NDArray[Any], down: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[C] of each tree the largest sum along a way up and down: `up` and `down` [R] are those of a seat and its
    parent. 0 for channels that are no trees."""
    channel = _seats(channels).channel
    above = parent_rows(channels)
    kind = channels.pattern[channel]
    weight = np.where(among(kind, UPWARDS), up, 0) + np.where(among(kind, DOWNWARDS), down, 0)
    result = np.zeros(len(channels), weight.dtype)
    np.maximum.at(result, channel, path_sum(above, weight))
    return result


def rounds(channels: Channels) -> I64:
    """[C] steps of a ring or PAT, edges of a chain; 1 where everything is sent at once, or in a tree."""
    n = np.diff(channels.rank_start).astype(np.int64)
    pattern = channels.pattern
    around = np.where(among(pattern, _AROUND), n - 1, 1)
    found: I64 = np.where(pattern == Pattern.RING_ALL_REDUCE, 2 * around, around)
    pat = among(pattern, PATS)
    if pat.any():
        found[pat] = np.ceil(np.log2(np.maximum(n[pat], 1))).astype(np.int64)
    found[n == 1] = 0
    return found


def fill(channels: Channels) -> tuple[I32, I64]:
    """(hops, fill_bytes), both [C]: a channel takes `hops * latency + (edge bytes + fill_bytes) / rate`."""
    pattern = channels.pattern
    hops_of_tree, stores = np.zeros(len(channels), np.int64), np.zeros(len(channels), np.int64)
    is_tree = among(pattern, TREES)
    if is_tree.any():
        one = np.ones(len(channels.ranks), np.int64)
        hops_of_tree = tree_path(channels, one, one)
        stored = (~hubs(channels)).astype(np.int64)
        above = parent_rows(channels)
        stores = tree_path(channels, stored, np.where(above != NONE, stored[above], 0))
    hops = np.where(is_tree & (np.diff(channels.rank_start) > 1), hops_of_tree, rounds(channels))
    stores = np.where(pattern == Pattern.CHAIN_BROADCAST, hops, stores)
    chunk = np.minimum(chunk_sizes(channels), channels.payload_bytes)
    fill_bytes = np.maximum(stores - 1, 0) * chunk
    return hops.astype(np.int32), fill_bytes.astype(np.int64)


def chunk_sizes(channels: Channels) -> I64:
    """[C] chunk sizes in whole elements."""
    unit = channels.element_bytes
    return np.maximum(channels.chunk_bytes // unit, 1) * unit


def group_total_bytes(channels: Channels, c: int) -> int:
    """Size of the buffer that channel `c` carries a part of: its group's channels, ranked alike, make it up."""
    start = channels.rank_start[:-1]
    lowest = np.minimum.reduceat(channels.ranks, start)
    mates = lowest == lowest[c]
    return int((channels.offset_bytes + channels.payload_bytes)[mates].max())
