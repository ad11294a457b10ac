"""Chunks that NCCL passes on at a time on a channel, by algorithm, protocol and size.

A connection's buffer has 8 steps. Rings with Simple take 4 steps for a chunk of all-reduce, all-gather and
reduce-scatter and 1 of the others; NVLS and in-network reduction start from chunks of their own, and shrink
them for small operations. Source: NCCL 2.30.7, src/enqueue.cc, `calcCollChunking` and `addP2pToPlan`; before 2.20
trees with Simple shrank theirs, too (2.19.4, the same file, `computeColl`).
"""

from __future__ import annotations

import math

from fabrictwin.base.records import record
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.constants import BUFFER_BYTES, BUFFER_STEPS, NVLS_TREE_CHUNK_BYTES, WARP_THREADS
from fabrictwin.nccl.lowering.tasks import Task
from fabrictwin.nccl.settings.version import version_of
from fabrictwin.nccl.topology.graph_types import Algorithm, Protocol

KIB = 1024
LEAST_THREADS = 3 * WARP_THREADS  # of a block, which few bytes get
LONG_CHUNKS = ("all_reduce", "all_gather", "reduce_scatter")


def buffer_bytes(communicator: Communicator, protocol: Protocol) -> int:
    """A connection's buffer."""
    settings = communicator.settings
    given = {
        Protocol.LL: settings.ll_buffsize,
        Protocol.LL128: settings.ll128_buffsize,
        Protocol.SIMPLE: settings.buffsize,
    }[protocol]
    return int(given) if given else BUFFER_BYTES[protocol]


def chunk_bytes(
    communicator: Communicator, task: Task, algorithm: Algorithm, protocol: Protocol, channels: int, heads: int = 1
) -> int:
    """Data of a chunk. `heads` are the GPUs of a host that reduce for it."""
    chunk = buffer_bytes(communicator, protocol) // BUFFER_STEPS
    size, settings = task.size_bytes, communicator.settings
    if protocol == Protocol.LL:
        return chunk // 2
    if protocol == Protocol.LL128:
        chunk = chunk // 128 * 120
        if algorithm == Algorithm.TREE:
            return _tree_ll128(communicator, size, channels, chunk)
        return chunk
    if algorithm == Algorithm.TREE and task.kind == "all_reduce" and settings.release < version_of("2.20"):
        depth = communicator.ranks_per_node - 1 + int(math.log2(communicator.nodes))
        return _halved(size, channels, chunk, ((depth * 8, 128), (depth * 4, 64), (depth, 32)))
    at_once = channels * heads
    if algorithm == Algorithm.RING and task.kind in LONG_CHUNKS:
        return 4 * chunk
    if algorithm == Algorithm.NVLS:
        chunk = min(chunk, int(settings.nvls_chunksize))
        return _shrunk(size, at_once, chunk, ((64, 64), (8, 32), (2, 16)))
    if algorithm == Algorithm.NVLS_TREE:
        most = settings.nvlstree_max_chunksize
        if most is None:
            most = NVLS_TREE_CHUNK_BYTES if communicator.nodes >= 4 else chunk
        chunk = min(int(settings.nvls_chunksize), int(most))
        return _shrunk(size, at_once, chunk, ((32, 256), (16, 128), (4, 64), (1, 32)))
    if algorithm == Algorithm.COLLNET_DIRECT:
        return _halved(size, at_once, chunk, ((2 * 64, 128), (2 * 8, 64), (2 * 8, 32)))
    if algorithm == Algorithm.COLLNET_CHAIN:
        depth = communicator.ranks_per_node
        return _halved(size, channels, min(256 * KIB, chunk), ((depth * 64, 128), (depth * 8, 64), (depth, 32)))
    if algorithm == Algorithm.PAT:
        least = 32 if task.kind == "all_gather" else 16
        while chunk * channels * least > size and chunk > 64 * KIB:
            chunk //= 2
    return chunk


@record
class Filled:
    """How far an operation fills its channels."""

    channels: int  # with bytes
    heads: int  # of NVLS, with bytes in a round
    own: float = 1.0  # share of a step's own cost that its path meets


_BY_PARTS = version_of("2.20")  # from here on every channel gets a part of its own, and every rank or head of that
_LINE_BYTES = 16  # least of a shard then
_THREAD_BYTES = 8  # of a thread, least of a shard with LL before


def filling(
    communicator: Communicator,
    task: Task,
    algorithm: Algorithm,
    protocol: Protocol,
    *,
    channels: int,
    heads: int,
    chunk: int,
) -> Filled:
    """Channels and heads that get bytes, and how much of a ring's steps comes before its data.

    Until 2.20 NVLS gave a channel a whole chunk of each head before the next got any. A ring's shard is no
    less than 16 bytes (8 for each thread before 2.20), so that few bytes make fewer shards than ranks. With LL
    and LL128, whose data carry their flags, a rank waits for no empty shard: of n - 1 steps before a shard only
    the k - 1 of others with bytes keep it. Source: NCCL's src/device/all_reduce.h and prims_ll.h.
    """
    by_parts = communicator.settings.release >= _BY_PARTS
    if algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE) and not by_parts and task.kind == "all_reduce":
        chunks = -(-task.size_bytes // chunk)
        return Filled(max(1, min(channels, -(-chunks // heads))), max(1, min(heads, chunks)))
    if algorithm != Algorithm.RING or protocol == Protocol.SIMPLE or task.kind != "all_reduce":
        return Filled(channels, heads)
    n = communicator.ranks
    least = _LINE_BYTES if by_parts else _THREAD_BYTES * LEAST_THREADS
    part = -(-task.size_bytes // channels)
    shards = min(n, -(-part // max(least, -(-part // n))))
    return Filled(channels, heads, (shards - 1) / (n - 1) if n > 1 else 1.0)


def _shrunk(size: int, at_once: int, chunk: int, rules: tuple[tuple[int, int], ...]) -> int:
    """Below so many rounds a chunk is at most so many KiB."""
    for rounds, most in rules:
        if size < rounds * at_once * chunk and chunk > most * KIB:
            chunk = most * KIB
    return chunk


def _halved(size: int, at_once: int, chunk: int, rules: tuple[tuple[int, int], ...]) -> int:
    """Halved while there are fewer rounds than so many, down to so many KiB."""
    for rounds, least in rules:
        while size // (at_once * chunk) < rounds and chunk > least * KIB:
            chunk //= 2
    return chunk


def _tree_ll128(communicator: Communicator, size: int, channels: int, chunk: int) -> int:
    nodes, local = communicator.nodes, communicator.ranks / communicator.nodes
    steps = 1 + (nodes.bit_length() - 1) + 0.1 * local
    for weight, least in ((64, 131072), (16, 32768)):
        while size // (channels * chunk) < steps * weight / local and chunk > least:
            chunk //= 2
    return chunk


def send_parts(communicator: Communicator, size: int) -> tuple[int, Protocol, int]:
    """(channels, protocol, chunk) of one send of `size` bytes to a peer."""
    settings = communicator.settings
    several = communicator.nodes > 1
    step = int(settings.p2p_net_chunksize if several else settings.p2p_nvl_chunksize)
    most = max(1, communicator.channels.p2p_per_peer)
    least = most
    while least * communicator.ranks > communicator.channels.p2p and least > 1:
        least //= 2
    small, large = (step // 2, step) if several else (step // 8, 32 * step)
    channels = max(1, min(least, -(-size // small)))
    part = max(small, -(-size // channels))
    while part > large and channels <= most // 2:
        channels *= 2
        part = -(-size // channels)
    protocol = Protocol.LL if size <= channels * int(settings.p2p_ll_threshold) else Protocol.SIMPLE
    chunk = step
    if several:
        chunk = step // 4 if size < step else step // 2 if size < 8 * step else step
    return channels, protocol, chunk
