"""Collectives lowered to communications: which channels, in which order of ranks, with which slice each.

Modelled: ring all-reduce, all-gather and reduce-scatter (Patarasuk and Yuan 2009), the double binary tree
all-reduce (Sanders, Speck, Träff 2009, in the form that NCCL builds: binary over hosts, a chain inside each),
chain broadcast, pairwise all-to-all, the hierarchical all-reduce over NVLink and rails, point-to-point sends.
Which algorithm and how many channels a library would choose is not decided here (see the `nccl` room).

`groups` is a 2-D array of ranks, [groups, n]: groups that act alike and together. A group's own order is that
of its ranks; shards and blocks belong to ranks in ascending order.

A ring over several hosts visits them one after the other and leaves each by a different GPU on every channel,
so that `n` channels use `n` adapters. Every second host is walked backwards: a channel then enters a host by
the local rank (the rail) that it left the previous one by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.program.binary_trees import double_binary_tree
from fabrictwin.program.patterns import share, share_start
from fabrictwin.program.program import NONE, Channels, Communication, Pattern, SoftwareCosts

CHUNK_BYTES = 512 * 1024  # one step of NCCL's Simple protocol: 4 MiB of buffer in 8 steps

Ranks = npt.ArrayLike
HostOfRank = npt.NDArray[np.integer] | Sequence[int] | None
Orders = Callable[[I64, int], tuple[I64, I64]]


@record
class Step:
    """A step of a pattern: what trees and chains move in one, and what it costs a rank beside the wire."""

    chunk_bytes: int = CHUNK_BYTES
    cost_ps: int = 0


STEP = Step()


class Plain(TypedDict, total=False):
    """Channels that share the bytes (1), the size of an element that is never cut (1 B), a pattern's step."""

    channels: int
    element_bytes: int
    step: Step


class Options(Plain, total=False):
    """The same with the hosts that ranks lie on, and a name; without one a communication is called by its kind."""

    host_of_rank: HostOfRank
    name: str


def all_reduce(
    groups: Ranks,
    size_bytes: int,
    *,
    algorithm: Literal["ring", "tree"] = "ring",
    **options: Unpack[Options],
) -> Communication:
    """Every rank ends with the sum. `tree` takes an even number of channels, half of them on each tree.

    Without `host_of_rank`, a ring takes the ranks as they come and a tree treats each as a host.
    """
    if algorithm == "tree" and options.get("channels", 1) % 2:
        raise ConfigError(f"got {options['channels']} channels, expected an even number for a double binary tree")
    if algorithm not in ("ring", "tree"):
        raise ConfigError(f"got algorithm {algorithm!r}, expected 'ring' or 'tree'")
    form = _RING_ALL_REDUCE if algorithm == "ring" else _TREE_ALL_REDUCE
    return _communication(form, groups, _Slice(size_bytes), **options)


def all_gather(groups: Ranks, size_bytes: int, **options: Unpack[Options]) -> Communication:
    """Every rank ends with the full vector of `size_bytes`, of which it had its own shard."""
    return _communication(_RING_ALL_GATHER, groups, _Slice(size_bytes), **options)


def reduce_scatter(groups: Ranks, size_bytes: int, **options: Unpack[Options]) -> Communication:
    """Every rank ends with the sum of its own shard of the full vector of `size_bytes`."""
    return _communication(_RING_REDUCE_SCATTER, groups, _Slice(size_bytes), **options)


def broadcast(groups: Ranks, size_bytes: int, *, root: int = 0, **options: Unpack[Options]) -> Communication:
    """Every rank ends with what the root has; `root` is a position in each group."""
    if not 0 <= root < np.asarray(groups).shape[-1]:
        raise ConfigError(f"got root {root}, expected a position in a group of {np.asarray(groups).shape[-1]}")
    form = _Form(Pattern.CHAIN_BROADCAST, "broadcast", "chain", partial(_chain, root=root))
    return _communication(form, groups, _Slice(size_bytes), **options)


def all_to_all(
    groups: Ranks, block_bytes: int, *, name: str = "all-to-all", **options: Unpack[Plain]
) -> tuple[Communication, ...]:
    """Every rank sends a block to every other: n - 1 communications, to be chained. A rank keeps its own block."""
    groups = _as_groups(groups)
    n = groups.shape[1]
    return tuple(
        _communication(
            _Form(Pattern.SHIFT, "all_to_all", "pairwise", _as_given, shift=shift),
            groups,
            _Slice(block_bytes, buffer_bytes=n * block_bytes),
            name=f"{name}, shift {shift}",
            **options,
        )
        for shift in range(1, n)
    )


def send(pairs: Ranks, size_bytes: int, *, name: str = "send", **options: Unpack[Plain]) -> Communication:
    """Messages, one a pair: `pairs` is [groups, 2], sender and receiver."""
    pairs = _as_groups(pairs)
    if pairs.shape[1] != 2:
        raise ConfigError(f"got groups of {pairs.shape[1]}, expected pairs of sender and receiver")
    form = _Form(Pattern.MESSAGE, "send", "message", _as_given, disjoint=False)
    return _communication(form, pairs, _Slice(size_bytes), name=name, **options)


def hierarchical_all_reduce(
    groups: Ranks,
    size_bytes: int,
    *,
    host_of_rank: npt.NDArray[np.integer] | Sequence[int],
    name: str = "all-reduce",
    **options: Unpack[Plain],
) -> tuple[Communication, ...]:
    """Reduce-scatter inside hosts, an all-reduce of each shard along its rail, all-gather inside: to be chained.

    Every host of a group holds the same number of its ranks. Phases that would have one rank are left out.
    """
    groups = _as_groups(groups)
    hosts = np.asarray(host_of_rank)[groups]
    grid = []
    for ranks, at in zip(groups, hosts, strict=True):
        order = np.lexsort((ranks, _appearance(at)))
        _, counts = np.unique(at, return_counts=True)
        if len(set(counts.tolist())) > 1:
            raise ConfigError(
                f"got hosts with {counts.min()} to {counts.max()} ranks of a group, "
                "expected the same number on every host for a hierarchical all-reduce"
            )
        grid.append(ranks[order].reshape(len(counts), -1))
    shapes = {rows.shape for rows in grid}
    if len(shapes) > 1:
        raise ConfigError("got groups over different numbers of hosts, expected groups that are alike")
    cube = np.stack(grid)  # [groups, hosts, local]
    n_groups, n_hosts, n_local = cube.shape
    inside = cube.reshape(-1, n_local)
    rails = cube.transpose(0, 2, 1).reshape(-1, n_hosts)
    shard = np.tile(np.arange(n_local), n_groups)
    unit = options.get("element_bytes", 1)
    elements = _elements(size_bytes, unit)
    phases = []
    if n_local > 1:
        phases.append(reduce_scatter(inside, size_bytes, name=f"{name}, reduce-scatter in hosts", **options))
    if n_hosts > 1:
        slices = _Slice(
            share(elements, shard, n_local) * unit,
            offset_bytes=share_start(elements, shard, n_local) * unit,
            buffer_bytes=-(-elements // n_local) * unit,
        )
        phases.append(_communication(_RING_ALL_REDUCE, rails, slices, name=f"{name}, along rails", **options))
    if n_local > 1:
        phases.append(all_gather(inside, size_bytes, name=f"{name}, all-gather in hosts", **options))
    return tuple(phases)


# --- the order of ranks ------------------------------------------------------------------------------------


def _appearance(hosts: I64) -> I64:
    """[n] hosts renamed 0, 1, ... in order of first appearance."""
    _, first, inverse = np.unique(hosts, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def _blocks(hosts: I64) -> list[I64]:
    """Positions on each host, hosts in order of first appearance."""
    label = _appearance(hosts)
    order = np.argsort(label, kind="stable")
    return np.split(order, np.cumsum(np.bincount(label))[:-1])


def _as_given(hosts: I64, channel: int) -> tuple[I64, I64]:
    return np.arange(len(hosts)), np.full(len(hosts), NONE)


def _ring(hosts: I64, channel: int) -> tuple[I64, I64]:
    blocks = _blocks(hosts)
    if len(blocks) > 1:
        turned = [np.roll(block, -(channel % len(block))) for block in blocks]
        blocks = [block if i % 2 == 0 else block[::-1] for i, block in enumerate(turned)]
    return np.concatenate(blocks), np.full(len(hosts), NONE)


def _chain(hosts: I64, channel: int, *, root: int) -> tuple[I64, I64]:
    order, parent = _ring(hosts, channel)
    return np.roll(order, -int(np.flatnonzero(order == root)[0])), parent


def _tree(hosts: I64, channel: int) -> tuple[I64, I64]:
    # both trees of a pair leave a host by the same rank, so every adapter serves one inner and one leaf position
    blocks = [np.roll(block, -(channel // 2 % len(block))) for block in _blocks(hosts)]
    over_hosts = double_binary_tree(len(blocks))[channel % 2].up
    parent = np.full(len(hosts), NONE, np.int64)
    for block, above in zip(blocks, over_hosts, strict=True):
        parent[block[1:]] = block[:-1]
        if above != NONE:
            parent[block[0]] = blocks[above][0]
    return np.arange(len(hosts)), parent


@record
class _Form:
    """A collective's pattern, its names, and the order of ranks on its channels."""

    pattern: Pattern
    kind: str
    algorithm: str
    orders: Orders
    shift: int = 0
    disjoint: bool = True  # no rank is in two groups


@record
class _Slice:
    """A slice of each group's buffer, in whole elements; sizes and offsets may differ by group."""

    size_bytes: int | I64
    offset_bytes: int | I64 = 0
    buffer_bytes: int | None = None  # None: the largest slice


_RING_ALL_REDUCE = _Form(Pattern.RING_ALL_REDUCE, "all_reduce", "ring", _ring)
_TREE_ALL_REDUCE = _Form(Pattern.TREE_ALL_REDUCE, "all_reduce", "tree", _tree)
_RING_ALL_GATHER = _Form(Pattern.RING_ALL_GATHER, "all_gather", "ring", _ring)
_RING_REDUCE_SCATTER = _Form(Pattern.RING_REDUCE_SCATTER, "reduce_scatter", "ring", _ring)


# --- columns -----------------------------------------------------------------------------------------------


def _as_groups(groups: Ranks) -> I32:
    array = np.asarray(groups, dtype=np.int32)
    array = array[None] if array.ndim == 1 else array
    if array.ndim != 2 or array.size == 0:
        raise ConfigError(f"got groups of shape {array.shape}, expected [groups, ranks]")
    return array


def _elements(size_bytes: int | I64, element_bytes: int) -> int:
    largest = int(np.max(size_bytes))
    if largest <= 0:
        raise ConfigError(f"got a collective of {largest} bytes, expected one that moves something")
    if element_bytes < 1 or np.any(np.asarray(size_bytes) % element_bytes):
        raise ConfigError(f"got a size that is no multiple of its elements of {element_bytes} bytes")
    return largest // element_bytes


def _communication(
    form: _Form,
    groups: Ranks,
    data: _Slice,
    *,
    channels: int = 1,
    host_of_rank: HostOfRank = None,
    element_bytes: int = 1,
    step: Step = STEP,
    name: str = "",
) -> Communication:
    """Channels of all groups, group after group."""
    groups = _as_groups(groups)
    g, n = groups.shape
    _elements(data.size_bytes, element_bytes)
    if channels < 1 or step.chunk_bytes < 1:
        raise ConfigError(f"got {channels} channels and chunks of {step.chunk_bytes} bytes, expected at least 1")
    if form.disjoint and len(np.unique(groups)) != groups.size:
        raise ConfigError("got a rank twice in one communication, expected groups that share none")

    if host_of_rank is not None:
        hosts = np.asarray(host_of_rank, dtype=np.int64)[groups]
    else:
        each_alone = form.pattern == Pattern.TREE_ALL_REDUCE
        hosts = np.broadcast_to(np.arange(n) * each_alone, (g, n))
    # groups that lie alike on their hosts share their orders
    shapes, which = np.unique(hosts - hosts[:, :1], axis=0, return_inverse=True)
    table = [[form.orders(shape, c) for c in range(channels)] for shape in shapes]
    order = np.array([[row[0] for row in rows] for rows in table])[which.reshape(-1)]  # [g, channels, n]
    parent = np.array([[row[1] for row in rows] for rows in table])[which.reshape(-1)]

    c = np.arange(channels)
    elements = np.broadcast_to(np.asarray(data.size_bytes, dtype=np.int64) // element_bytes, (g,))[:, None]
    payload = share(elements, c, channels) * element_bytes
    offset = share_start(elements, c, channels) * element_bytes
    offset = offset + np.broadcast_to(np.asarray(data.offset_bytes, dtype=np.int64), (g,))[:, None]
    used = payload > 0
    count = int(used.sum())
    ranks = np.take_along_axis(np.broadcast_to(groups[:, None, :], order.shape), order, axis=2)
    return Communication(
        name=name or form.kind.replace("_", "-"),
        kind=form.kind,
        algorithm=form.algorithm,
        size_bytes=int(np.max(data.size_bytes)) if data.buffer_bytes is None else data.buffer_bytes,
        groups=g,
        costs=SoftwareCosts(step_ps=step.cost_ps),
        channels=Channels(
            pattern=np.full(count, form.pattern, np.int8),
            rank_start=(np.arange(count + 1) * n).astype(np.int32),
            ranks=ranks[used].reshape(-1).astype(np.int32),
            parent=parent[used].reshape(-1).astype(np.int32),
            shift=np.full(count, form.shift, np.int32),
            payload_bytes=payload[used],
            offset_bytes=offset[used],
            chunk_bytes=np.full(count, step.chunk_bytes, np.int64),
            element_bytes=element_bytes,
        ),
    )
