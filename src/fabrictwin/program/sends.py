"""Every single send of a channel, in the order of its pattern: what the packet engine and the executor play.

Their bytes sum to `patterns.edges` exactly; `program.patterns` says what each pattern is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I32, I64, Bool
from fabrictwin.base.records import record
from fabrictwin.program.patterns import (
    DOWNWARDS,
    PATS,
    RINGS,
    TREES,
    UPWARDS,
    among,
    chunk_sizes,
    group_total_bytes,
    pat_shards,
    path_sum,
    share,
    share_start,
)
from fabrictwin.program.program import HUBS, NONE, Channels, Pattern, Seat

_NONE_WAIT: tuple[I64, I64] = (np.empty(0, np.int64), np.empty(0, np.int64))


@record
class Sends:
    """S single sends as columns, every one later than those it waits for. Sends of one edge leave in order."""

    step: I32  # [S] the earliest step of the pattern at which it can go
    source: I32  # [S] rank; `scratch(row)` of a seat that is no rank's buffer
    target: I32  # [S]
    offset_bytes: I64  # [S] where it is read in the sender's buffer
    target_offset_bytes: I64  # [S] where it is written in the receiver's buffer
    length_bytes: I64  # [S]
    reduce: Bool  # [S] reduced into what the receiver has there, rather than written over it; scratch starts empty
    after_start: I32  # [S + 1]
    after: I32  # [...] sends that must have arrived before this one is read

    def __len__(self) -> int:
        return len(self.step)


def scratch(row: npt.ArrayLike) -> I32:
    """Stands for the scratch memory of a seat, by its row of `Channels.ranks`, among sources and targets."""
    return np.asarray(-1 - np.asarray(row), np.int32)


def sends_of(channels: Channels, c: int) -> Sends:
    """The single sends of channel `c`, in an order that respects their dependencies. None has length 0."""
    low, high = int(channels.rank_start[c]), int(channels.rank_start[c + 1])
    ranks = channels.ranks[low:high]
    n = high - low
    pattern = Pattern(int(channels.pattern[c]))
    offset, payload = int(channels.offset_bytes[c]), int(channels.payload_bytes[c])
    if n == 1 or payload == 0:
        none = np.empty(0, np.int64)
        return _assemble(ranks, _Moves(*(none,) * 6), after=_NONE_WAIT)
    if pattern in RINGS:
        return _ring_sends(channels, c, pattern, ranks)
    if pattern in TREES:
        return _tree_sends(channels, c, pattern)
    if pattern in PATS:
        return _pat_sends(channels, c, ranks)
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
    moves = _Moves(k + hop, hop, hop + 1, start, start, length)
    return _assemble(ranks, moves, after=(index[later], index[later] - 1))


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
        _Moves(step, position, (position + 1) % n, start, start, length),
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
        _Moves(
            np.zeros(len(position), np.int64),
            position,
            target,
            peer[target] * block + offset,
            peer[position] * block + offset,
            length,
        ),
        after=_NONE_WAIT,
    )


def _pat_sends(channels: Channels, c: int, ranks: I32) -> Sends:
    """Each block to each other rank (or from it) over its owner's binomial tree: n (n - 1) sends."""
    n = len(ranks)
    start, length = pat_shards(channels, c)
    levels = (n - 1).bit_length()
    gather = channels.pattern[c] == Pattern.PAT_ALL_GATHER
    owner, offset = (part.reshape(-1) for part in np.meshgrid(np.arange(n), np.arange(1, n), indexing="ij"))
    above = offset & (offset - 1)  # the tree: the lowest bit set is the last hop
    height = np.rint(np.log2(offset - above)).astype(np.int64)
    step = levels - 1 - height if gather else height
    order = np.lexsort((owner, step))
    owner, offset, above, step = owner[order], offset[order], above[order], step[order]
    near, far = (owner + above) % n, (owner + offset) % n
    number = np.full((n, n), NONE)
    number[owner, offset] = np.arange(len(owner))
    before = number[owner, above]  # the hop between the owner and this one
    later = np.flatnonzero(above > 0)
    waits, waits_for = (later, before[later]) if gather else (before[later], later)
    source, target = (near, far) if gather else (far, near)
    return _assemble(
        ranks,
        _Moves(step, source, target, start[owner], start[owner], length[owner]),
        reduce=np.full(len(owner), not gather),
        after=(waits, waits_for),
    )


def _tree_sends(channels: Channels, c: int, pattern: Pattern) -> Sends:
    low, high = int(channels.rank_start[c]), int(channels.rank_start[c + 1])
    n = high - low
    ranks, parent, seat = channels.ranks[low:high], channels.parent[low:high], channels.seats[low:high]
    place = np.where(seat == Seat.RANK, ranks, scratch(np.arange(low, high)))
    depth = path_sum(parent.astype(np.int64), np.ones(n, np.int64))
    deepest = int(depth.max())
    offset, payload = int(channels.offset_bytes[c]), int(channels.payload_bytes[c])
    chunk = min(int(chunk_sizes(channels)[c]), payload)
    chunks = -(-payload // chunk)
    rises, falls = pattern in UPWARDS, pattern in DOWNWARDS

    # one chunk: up from the deepest, then down from the root; `up_place` says where a seat's send stands
    below = np.flatnonzero(parent != NONE)
    up = below[np.argsort(-depth[below], kind="stable")] if rises else below[:0]
    down = below[np.argsort(depth[below], kind="stable")] if falls else below[:0]
    up_place, down_place = np.full(n, NONE), np.full(n, NONE)
    up_place[up] = np.arange(len(up))
    down_place[down] = np.arange(len(up), len(up) + len(down))
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
    # what a hub hands to a rank's buffer is the whole sum, that rank's own part in it
    whole = among(seat[up], HUBS) & (seat[parent[up]] == Seat.RANK)

    each = len(up) + len(down)
    k = np.repeat(np.arange(chunks), each)
    start = offset + k * chunk
    shift = np.repeat(np.arange(chunks) * each, len(waits))
    top = deepest if rises else 0
    return _assemble(
        place,
        _Moves(
            np.tile(np.concatenate((deepest - depth[up], top + depth[down] - 1)), chunks) + k,
            np.tile(np.concatenate((up, parent[down])), chunks),
            np.tile(np.concatenate((parent[up], down)), chunks),
            start,
            start,
            np.minimum(chunk, offset + payload - start),
        ),
        reduce=np.tile(np.concatenate((~whole, np.zeros(len(down), bool))), chunks),
        after=(np.tile(waits, chunks) + shift, np.tile(waits_for, chunks) + shift),
    )


@record
class _Moves:
    """Sends before they are put together: their steps, positions on the channel that they lead from and to, and
    the slices that they carry: where each is read, where it is written, its length in bytes.
    """

    step: I64
    source: I64
    target: I64
    offset: I64
    target_offset: I64
    length: I64


def _assemble(
    ranks: I32,
    moves: _Moves,
    *,
    after: tuple[I64, I64],
    reduce: Bool | None = None,
) -> Sends:
    """Columns from positions; sends of no bytes are left out. What a send waits for carries the same bytes."""
    keep = moves.length > 0
    number = np.cumsum(keep) - 1
    waits, waits_for = after
    kept = keep[waits] if len(waits) else np.empty(0, bool)
    waits, waits_for = number[waits[kept]], number[waits_for[kept]]
    order = np.argsort(waits, kind="stable")
    count = int(keep.sum())
    start = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(waits, minlength=count), out=start[1:])
    if reduce is None:
        reduce = np.zeros(len(keep), bool)
    return Sends(
        step=moves.step[keep].astype(np.int32),
        source=ranks[moves.source[keep]],
        target=ranks[moves.target[keep]],
        offset_bytes=moves.offset[keep],
        target_offset_bytes=moves.target_offset[keep],
        length_bytes=moves.length[keep],
        reduce=reduce[keep],
        after_start=start,
        after=waits_for[order].astype(np.int32),
    )
