"""What each pattern moves: bytes per edge, latency terms, single sends. Closed forms, in numpy.

Three views of the same channels, which tests hold together:

- `edges`: the bytes that each directed pair of ranks carries in one execution. The fluid engine's input.
- `fill`: what a pipelined channel takes beyond `edge bytes / rate`: a number of hops, each with its latency,
  and bytes that are serialised on the critical path before the pipeline is full.
- `sends`: every single step in dependency order. The packet engine and the functional executor play these;
  their bytes sum to `edges` exactly.

With n ranks, payload P, chunk c (at most P), latency a per hop and rate r on every edge, uncontended:

    message, shift        a + P/r
    ring all-reduce       2(n-1) (a + P/(n r))           each step carries one of n shards
    ring all-gather,
      reduce-scatter      (n-1) (a + P/(n r))
    chain broadcast       (n-1) a + P/r + (n-2) c/r      chunks are stored and forwarded
    tree all-reduce       2D a + P/r + (2D-1) c/r        D the depth: reduce to the root, broadcast back

The ring forms are those of Patarasuk and Yuan (2009); the pipelined chain and tree those of Sanders, Speck
and Träff (2009). A shard that does not divide differs by one element (`Channels.element_bytes`): the first
shards are the larger ones. All-gather and reduce-scatter number their shards by ascending rank, whatever the
order of the ring, so that several channels in different orders agree on who owns what.

Left out: slices within a step (NCCL forwards the first half of a ring step before the second has arrived).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fabrictwin.program.program import I32, I64, NONE, Channels, Pattern

Bool = npt.NDArray[np.bool_]

_RINGS = (Pattern.RING_ALL_REDUCE, Pattern.RING_ALL_GATHER, Pattern.RING_REDUCE_SCATTER)
_NONE_WAIT: tuple[I64, I64] = (np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class Edges:
    """E directed edges as columns, in order of their channel."""

    channel: I32  # [E]
    source: I32  # [E] rank
    target: I32  # [E] rank
    size_bytes: I64  # [E] what the edge carries in one execution

    def __len__(self) -> int:
        return len(self.channel)


@dataclass(frozen=True)
class Sends:
    """S single sends as columns, every one later than those it waits for. Sends of one edge leave in order."""

    step: I32  # [S] the earliest step of the pattern at which it can go
    source: I32  # [S] rank
    target: I32  # [S] rank
    offset_bytes: I64  # [S] where it is read in the sender's buffer
    target_offset_bytes: I64  # [S] where it is written in the receiver's buffer
    length_bytes: I64  # [S]
    reduce: Bool  # [S] added to what the receiver has there, rather than written over it
    after_start: I32  # [S + 1]
    after: I32  # [...] sends that must have arrived before this one is read

    def __len__(self) -> int:
        return len(self.step)


def share(total: I64 | int, index: npt.NDArray[np.integer] | int, n: npt.NDArray[np.integer] | int) -> I64:
    """How much of `total` falls to `index` of `n`: equal shares, the first larger by one; monotone in `total`."""
    return np.asarray(total // n + (index < total % n), dtype=np.int64)


def share_start(total: I64 | int, index: npt.NDArray[np.integer] | int, n: npt.NDArray[np.integer] | int) -> I64:
    """Where the share of `index` starts when shares lie one after the other."""
    return np.asarray(index * (total // n) + np.minimum(index, total % n), dtype=np.int64)


@dataclass(frozen=True)
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


def edges(channels: Channels) -> Edges:
    """Every directed edge of every channel and its bytes in one execution of the channel."""
    seats = _seats(channels)
    rows = np.arange(len(channels.ranks))
    pattern = channels.pattern[seats.channel]
    unit = channels.element_bytes
    payload = channels.payload_bytes[seats.channel]
    elements = payload // unit
    size = payload.copy()

    all_reduce = pattern == Pattern.RING_ALL_REDUCE
    shard = share(elements, seats.position, seats.n) * unit
    # of all shards twice over, an edge does not carry the one that ends at its far end and the one after it
    spared = shard[seats.row(seats.position + 1)] + shard[seats.row(seats.position + 2)]
    size[all_reduce] = (2 * payload - spared)[all_reduce]

    begin = channels.offset_bytes[seats.channel] // unit
    index = _shard_index(channels, seats)
    shard = (share(begin + elements, index, seats.n) - share(begin, index, seats.n)) * unit
    gather = pattern == Pattern.RING_ALL_GATHER
    size[gather] = (payload - shard[seats.row(seats.position + 1)])[gather]
    scatter = pattern == Pattern.RING_REDUCE_SCATTER
    size[scatter] = (payload - shard)[scatter]

    hop = np.where(pattern == Pattern.SHIFT, channels.shift[seats.channel], 1)
    target = seats.row(seats.position + hop)
    line = (pattern == Pattern.MESSAGE) | (pattern == Pattern.CHAIN_BROADCAST)
    tree = pattern == Pattern.TREE_ALL_REDUCE
    sends = (target != rows) & ~(line & (seats.position == seats.n - 1)) & ~tree

    up = np.flatnonzero(tree & (channels.parent != NONE))
    above = seats.first[up] + channels.parent[up]
    source = np.concatenate((rows[sends], up, above))
    target = np.concatenate((target[sends], above, up))
    size = np.concatenate((size[sends], payload[up], payload[up]))
    channel = seats.channel[source]
    order = np.argsort(channel, kind="stable")
    return Edges(
        channel=channel[order],
        source=channels.ranks[source[order]],
        target=channels.ranks[target[order]],
        size_bytes=size[order],
    )


def tree_depth(parent: I32, first: I64) -> I32:
    """[R] hops from each seat to its root. `parent` holds positions, `first` the row of each seat's channel."""
    depth = np.zeros(len(parent), np.int32)
    at = np.arange(len(parent))
    for _ in range(len(parent)):
        below = parent[at] != NONE
        if not below.any():
            return depth
        depth += below
        at = np.where(below, first[at] + parent[at], at)
    raise ValueError("the parents of a tree channel form a cycle")


def fill(channels: Channels) -> tuple[I32, I64]:
    """(hops, fill_bytes), both [C]: a channel takes `hops * latency + (edge bytes + fill_bytes) / rate`."""
    seats = _seats(channels)
    n = np.diff(channels.rank_start).astype(np.int64)
    pattern = channels.pattern
    depth = np.zeros(len(channels), np.int64)
    is_tree = pattern == Pattern.TREE_ALL_REDUCE
    if is_tree.any():
        parent = np.where(is_tree[seats.channel], channels.parent, NONE).astype(np.int32)
        np.maximum.at(depth, seats.channel, tree_depth(parent, seats.first))
    hops = np.select(
        [
            (pattern == Pattern.RING_ALL_REDUCE),
            (pattern == Pattern.RING_ALL_GATHER) | (pattern == Pattern.RING_REDUCE_SCATTER),
            (pattern == Pattern.CHAIN_BROADCAST),
            is_tree,
        ],
        [2 * (n - 1), n - 1, n - 1, 2 * depth],
        default=1,
    )
    hops[n == 1] = 0
    pipelined = (pattern == Pattern.CHAIN_BROADCAST) | is_tree
    chunk = np.minimum(chunk_sizes(channels), channels.payload_bytes)
    fill_bytes = np.where(pipelined, np.maximum(hops - 1, 0) * chunk, 0)
    return hops.astype(np.int32), fill_bytes.astype(np.int64)


def chunk_sizes(channels: Channels) -> I64:
    """[C] chunk sizes in whole elements."""
    unit = channels.element_bytes
    return np.maximum(channels.chunk_bytes // unit, 1) * unit


def sends(channels: Channels, c: int) -> Sends:
    """The single sends of channel `c`, in an order that respects their dependencies. None has length 0."""
    low, high = int(channels.rank_start[c]), int(channels.rank_start[c + 1])
    ranks = channels.ranks[low:high]
    n = high - low
    pattern = Pattern(int(channels.pattern[c]))
    offset, payload = int(channels.offset_bytes[c]), int(channels.payload_bytes[c])
    if n == 1 or payload == 0:
        return _assemble(ranks, *(np.empty(0, np.int64) for _ in range(6)), after=_NONE_WAIT)
    if pattern in _RINGS:
        return _ring_sends(channels, c, pattern, ranks)
    if pattern == Pattern.TREE_ALL_REDUCE:
        return _tree_sends(channels, c, ranks)
    if pattern == Pattern.SHIFT:
        return _shift_sends(channels, c, ranks)
    # a message is a chain of two that goes in one piece
    chunk = payload if pattern == Pattern.MESSAGE else min(int(chunk_sizes(channels)[c]), payload)
    chunks = -(-payload // chunk)
    k, hop = np.divmod(np.arange(chunks * (n - 1)), n - 1)
    index = np.arange(len(k))
    later = hop > 0
    start = offset + k * chunk
    length = np.minimum(chunk, offset + payload - start)
    return _assemble(ranks, k + hop, hop, hop + 1, start, start, length, after=(index[later], index[later] - 1))


def group_total_bytes(channels: Channels, c: int) -> int:
    """Size of the buffer that channel `c` carries a part of: its group's channels, ranked alike, make it up."""
    start = channels.rank_start[:-1]
    lowest = np.minimum.reduceat(channels.ranks, start)
    mates = lowest == lowest[c]
    return int((channels.offset_bytes + channels.payload_bytes)[mates].max())


def _ring_sends(channels: Channels, c: int, pattern: Pattern, ranks: I32) -> Sends:
    n = len(ranks)
    unit = channels.element_bytes
    offset, elements = int(channels.offset_bytes[c]), int(channels.payload_bytes[c]) // unit
    steps = 2 * (n - 1) if pattern == Pattern.RING_ALL_REDUCE else n - 1
    step, position = np.divmod(np.arange(steps * n), n)
    if pattern == Pattern.RING_ALL_REDUCE:
        gathering = step >= n - 1
        seat = np.where(gathering, position + 1 - (step - (n - 1)), position - step) % n
        reduce = ~gathering
        start = offset + share_start(elements, seat, n) * unit
        length = share(elements, seat, n) * unit
    else:
        scatter = pattern == Pattern.RING_REDUCE_SCATTER
        seat = (position - step - scatter) % n
        reduce = np.full(len(step), scatter)
        shard = np.argsort(np.argsort(ranks))[seat]
        total, begin = group_total_bytes(channels, c) // unit, offset // unit
        within = share(begin, shard, n)
        start = (share_start(total, shard, n) + within) * unit
        length = (share(begin + elements, shard, n) - within) * unit
    index = np.arange(len(step))
    later = step > 0
    before = (step - 1) * n + (position - 1) % n
    return _assemble(
        ranks,
        step,
        position,
        (position + 1) % n,
        start,
        start,
        length,
        reduce=reduce,
        after=(index[later], before[later]),
    )


def _shift_sends(channels: Channels, c: int, ranks: I32) -> Sends:
    """Each rank reads the block meant for its target, and the target writes it where the sender's belongs."""
    n = len(ranks)
    shift = int(channels.shift[c]) % n
    position = np.arange(n if shift else 0)
    target = (position + shift) % n
    peer = np.argsort(np.argsort(ranks))
    block = group_total_bytes(channels, c)
    offset = int(channels.offset_bytes[c])
    length = np.full(len(position), int(channels.payload_bytes[c]))
    return _assemble(
        ranks,
        np.zeros(len(position), np.int64),
        position,
        target,
        peer[target] * block + offset,
        peer[position] * block + offset,
        length,
        after=_NONE_WAIT,
    )


def _tree_sends(channels: Channels, c: int, ranks: I32) -> Sends:
    n = len(ranks)
    low = int(channels.rank_start[c])
    parent = channels.parent[low : low + n]
    depth = tree_depth(parent, np.zeros(n, np.int64))
    deepest = int(depth.max())
    offset, payload = int(channels.offset_bytes[c]), int(channels.payload_bytes[c])
    chunk = min(int(chunk_sizes(channels)[c]), payload)
    chunks = -(-payload // chunk)

    # one chunk: up from the deepest, then down from the root; `place` says where a seat's send stands
    below = np.flatnonzero(parent != NONE)
    up = below[np.argsort(-depth[below], kind="stable")]
    down = below[np.argsort(depth[below], kind="stable")]
    up_place, down_place = np.full(n, NONE), np.full(n, NONE)
    up_place[up] = np.arange(n - 1)
    down_place[down] = np.arange(n - 1, 2 * (n - 1))
    inner = up[parent[parent[up]] != NONE]
    first = down[parent[parent[down]] == NONE]
    later = down[parent[parent[down]] != NONE]
    root_children = up[parent[parent[up]] == NONE]
    waits = np.concatenate(
        (up_place[parent[inner]], np.repeat(down_place[first], len(root_children)), down_place[later])
    )
    waits_for = np.concatenate(
        (up_place[inner], np.tile(up_place[root_children], len(first)), down_place[parent[later]])
    )

    each = 2 * (n - 1)
    k = np.repeat(np.arange(chunks), each)
    start = offset + k * chunk
    shift = np.repeat(np.arange(chunks) * each, len(waits))
    return _assemble(
        ranks,
        np.tile(np.concatenate((deepest - depth[up], deepest + depth[down] - 1)), chunks) + k,
        np.tile(np.concatenate((up, parent[down])), chunks),
        np.tile(np.concatenate((parent[up], down)), chunks),
        start,
        start,
        np.minimum(chunk, offset + payload - start),
        reduce=np.tile(np.arange(each) < n - 1, chunks),
        after=(np.tile(waits, chunks) + shift, np.tile(waits_for, chunks) + shift),
    )


def _assemble(
    ranks: I32,
    step: I64,
    source: I64,
    target: I64,
    offset: I64,
    target_offset: I64,
    length: I64,
    *,
    after: tuple[I64, I64],
    reduce: Bool | None = None,
) -> Sends:
    """Columns from positions; sends of no bytes are left out. What a send waits for carries the same bytes."""
    keep = length > 0
    number = np.cumsum(keep) - 1
    waits, waits_for = after
    kept = keep[waits] if len(waits) else np.empty(0, bool)
    waits, waits_for = number[waits[kept]], number[waits_for[kept]]
    order = np.argsort(waits, kind="stable")
    count = int(keep.sum())
    start = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(waits, minlength=count), out=start[1:])
    if reduce is None:
        reduce = np.zeros(len(length), bool)
    return Sends(
        step=step[keep].astype(np.int32),
        source=ranks[source[keep]],
        target=ranks[target[keep]],
        offset_bytes=offset[keep],
        target_offset_bytes=target_offset[keep],
        length_bytes=length[keep],
        reduce=reduce[keep],
        after_start=start,
        after=waits_for[order].astype(np.int32),
    )
