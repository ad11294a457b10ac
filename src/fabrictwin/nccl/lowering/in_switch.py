"""Reduction in switches: NVLS and NVLS tree in NVSwitches, CollNet (SHARP) in those of the network.

Every *head*, a rank of each host, sees to a shard. Its channel is a tree (`program.patterns`) whose seats are
not all ranks; with ranks r, the head's scratch h, the NVSwitches v of each host and network switches s:

    NVLS, one host        r -> v -> h                      multimem.ld_reduce, then multimem.st down again
    NVLS, several hosts   r -> v -> h -> s                 in-network reduction joins the hosts
    NVLS tree             r -> v -> h -> h of another host a binary tree over hosts
    CollNet direct        r -> head -> s                   each rank sends every head its shard
    CollNet chain         r -> r -> .. -> head -> s        a chain inside each host

An NVSwitch takes a shard from every GPU and hands one reduced to the head; what the head stores it hands to
all. So of S bytes a GPU of n sends and receives S (1 + 1/n). In the network, a leaf switch adds up what its
adapters send, passes one stream to the root, and spreads what comes back: each adapter sends and receives a
shard once.

NCCL's channels that are alike, with the same head and tree, are one channel here that carries what they would.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I8, I32, I64, starts_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE, Fabric, NodeKind
from fabrictwin.nccl.communicator.communicator import Communicator
from fabrictwin.nccl.lowering.tasks import Task
from fabrictwin.nccl.lowering.transport import Transports
from fabrictwin.nccl.topology.graph_types import Algorithm
from fabrictwin.program.patterns import share, share_start
from fabrictwin.program.program import Channels, Pattern, Seat

_PATTERN = {
    "all_reduce": Pattern.TREE_ALL_REDUCE,
    "all_gather": Pattern.TREE_BROADCAST,
    "reduce_scatter": Pattern.TREE_REDUCE,
}


@record
class Made:
    """Channels, without their chunks yet."""

    channels: Channels
    graph_channel: I32  # [C] the graph's channel that each goes by
    lanes: I64  # [C] how many of NCCL's channels each stands for
    heads: int = 1


def made(task: Task, pattern: Pattern, ranks: I32, parent: I32, *, graph_channel: npt.NDArray[np.integer]) -> Made:
    """Channels of equal slices; `ranks` and `parent` are [channels, n]. Those without a byte are left out."""
    count, n = ranks.shape
    elements = task.size_bytes // task.element_bytes
    payload = share(elements, np.arange(count), count) * task.element_bytes
    offset = share_start(elements, np.arange(count), count) * task.element_bytes
    used = payload > 0
    some = int(used.sum())
    return Made(
        Channels(
            pattern=np.full(some, pattern, np.int8),
            rank_start=(np.arange(some + 1) * n).astype(np.int32),
            ranks=ranks[used].reshape(-1).astype(np.int32),
            parent=parent[used].reshape(-1).astype(np.int32),
            shift=np.zeros(some, np.int32),
            payload_bytes=payload[used],
            offset_bytes=offset[used],
            chunk_bytes=np.ones(some, np.int64),
            element_bytes=task.element_bytes,
        ),
        np.asarray(graph_channel)[used].astype(np.int32),
        np.ones(some, np.int64),
    )


class _Tree:
    """Seats of one channel as they are added."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.seat: list[int] = []
        self.parent: list[int] = []

    def add(self, rank: int, seat: Seat, parent: int) -> int:
        self.ranks.append(rank)
        self.seat.append(seat)
        self.parent.append(parent)
        return len(self.ranks) - 1

    def columns(self) -> tuple[I32, I8, I32]:
        """(ranks, seats, parents)."""
        return np.array(self.ranks, np.int32), np.array(self.seat, np.int8), np.array(self.parent, np.int32)


Columns = tuple[I32, I8, I32]  # ranks, seats, parents of one tree
_NO_SEATS = _Tree().columns()


def channels(
    communicator: Communicator, transports: Transports, task: Task, algorithm: Algorithm, count: int
) -> Made:
    """The channels of a task that switches reduce. Raises ConfigError where they cannot."""
    if task.kind not in _PATTERN or (task.kind != "all_reduce" and algorithm in _ALL_REDUCE_ONLY):
        raise ConfigError(f"got {algorithm.name} for {task.kind}, expected an all-reduce", key="NCCL_ALGO")
    heads = heads_of(communicator, algorithm)
    several = communicator.nodes > 1
    if algorithm == Algorithm.NVLS_TREE and not several:
        raise ConfigError("got NVLS tree on one host, expected several", key="NCCL_ALGO")
    if task.kind != "all_reduce" and (several or algorithm != Algorithm.NVLS):
        raise ConfigError(
            f"got {algorithm.name} for {task.kind} over {communicator.nodes} hosts: not modelled", key="NCCL_ALGO"
        )
    graph = communicator.graphs.get(algorithm)
    roots = Aggregation(communicator.twin.fabric) if algorithm != Algorithm.NVLS_TREE and several else None
    halves = _halves(algorithm, count)
    trees, payloads, offsets, of_graph, of_lanes = [], [], [], [], []
    elements, unit = task.size_bytes // task.element_bytes, task.element_bytes
    per_head = heads.shape[1]
    gathers = task.kind != "all_reduce"
    for h in range(per_head):
        # shards belong to ranks in ascending order, as everywhere
        h_first, h_share = int(share_start(elements, h, per_head)), int(share(elements, h, per_head))
        if gathers:
            owner = int(np.argsort(np.argsort(heads[0]))[h])
            h_first, h_share = int(share_start(elements, owner, per_head)), int(share(elements, owner, per_head))
        for half in range(halves):
            payload = int(share(h_share, half, halves))
            if not payload:
                continue
            channel = h % graph.channels if graph is not None and graph.channels else h
            key = (algorithm, h, half, channel, gathers)
            if key not in transports.trees:
                transports.trees[key] = _tree(transports, algorithm, heads[:, h], half, roots, channel, gathers)
            trees.append(transports.trees[key])
            payloads.append(payload * unit)
            offsets.append((h_first + int(share_start(h_share, half, halves))) * unit)
            of_graph.append(channel)
            of_lanes.append(lanes(algorithm, count))
    ranks, seat, parent = (np.concatenate(column) for column in zip(*trees, strict=True)) if trees else _NO_SEATS
    made_channels = Channels(
        pattern=np.full(len(trees), _PATTERN[task.kind], np.int8),
        rank_start=starts_of([len(tree[0]) for tree in trees]).astype(np.int32),
        ranks=ranks,
        parent=parent,
        shift=np.zeros(len(trees), np.int32),
        payload_bytes=np.array(payloads, np.int64),
        offset_bytes=np.array(offsets, np.int64),
        chunk_bytes=np.ones(len(trees), np.int64),
        element_bytes=unit,
        seat=seat,
    )
    return Made(made_channels, np.array(of_graph, np.int32), np.array(of_lanes, np.int64), per_head)


_ALL_REDUCE_ONLY = (Algorithm.NVLS_TREE, Algorithm.COLLNET_CHAIN)


def _halves(algorithm: Algorithm, count: int) -> int:
    """The two trees over hosts each carry half."""
    return 2 if algorithm == Algorithm.NVLS_TREE and count > 1 else 1


def lanes(algorithm: Algorithm, count: int) -> int:
    """Number of NCCL's channels that one channel here stands for."""
    return max(count // _halves(algorithm, count), 1)


def heads_of(communicator: Communicator, algorithm: Algorithm) -> I32:
    """[nodes, heads] the ranks of each host that see to shards. Raises ConfigError for hosts that differ."""
    members = communicator.members
    graph = communicator.graphs.get(algorithm)
    if len({len(m) for m in members}) > 1:
        raise ConfigError(
            f"got hosts with {min(map(len, members))} to {max(map(len, members))} ranks, expected the same number "
            f"for {algorithm.name}",
            key="NCCL_ALGO",
        )
    if algorithm == Algorithm.NVLS_TREE and communicator.channels.nvls_trees is not None:
        return communicator.channels.nvls_trees.heads
    if graph is not None and graph.intra.size:
        # the first of each of the graph's channels: all GPUs of a host of eight, up to 32 of a rack's
        first = graph.intra[:, :, 0]
        _, keep = np.unique(first[0], return_index=True)
        return first[:, np.sort(keep)].astype(np.int32)
    return np.array(members, np.int32)


def _tree(
    transports: Transports,
    algorithm: Algorithm,
    heads: I32,
    half: int,
    network: Aggregation | None,
    channel: int,
    gathers: bool,
) -> Columns:
    """One shard's tree: `heads` [nodes] are the ranks that see to it."""
    communicator = transports.communicator
    members = communicator.members
    tree = _Tree()
    above: list[int] = [NONE] * len(heads)
    if network is not None:
        graph = communicator.graphs.get(algorithm)
        leaves = [network.leaf(transports.head_adapter(int(rank), channel, graph)) for rank in heads]
        above = network.grow(tree, leaves, turn=channel)
    order = np.arange(len(heads))
    parent = np.full(len(heads), NONE, np.int64)
    if algorithm == Algorithm.NVLS_TREE:
        between = communicator.channels.nvls_trees
        if between is None:
            raise ConfigError("got NVLS tree, expected NVLS on several hosts", key="NCCL_ALGO")
        up = between.up[half][heads]
        upper = communicator.placement.node_of_rank[np.maximum(up, 0)]
        parent = np.where(up == NONE, NONE, upper).astype(np.int64)
        order = np.argsort(_depths(parent), kind="stable")
    if algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE):
        return _in_nvswitches(tree, heads, np.array(members, np.int32), above, parent, order, gathers)
    place = np.full(len(heads), NONE, np.int64)
    for node in order.tolist():
        over = above[node] if parent[node] == NONE else int(place[parent[node]])
        place[node] = _host(tree, members[node], algorithm, int(heads[node]), over)
    return tree.columns()


def _depths(parent: I64) -> I64:
    """[nodes] steps up to the root."""
    depth, at = np.zeros(len(parent), np.int64), parent
    while (at != NONE).any():
        depth += at != NONE
        at = np.where(at == NONE, NONE, parent[at])
    return depth


def _in_nvswitches(
    tree: _Tree, heads: I32, members: I32, above: list[int], parent: I64, order: I64, gathers: bool
) -> Columns:
    """The seats of hosts behind those of `tree`: a head, the NVSwitch below it, the [nodes, ranks] members there.

    A head's parent is that of its host's `parent`, or a seat of `above`; hosts stand in `order`.
    """
    ranks, seat, over = tree.columns()
    size = members.shape[1] + 2
    top = np.empty(len(heads), np.int64)
    top[order] = len(ranks) + size * np.arange(len(heads))
    upper = np.where(parent == NONE, np.array(above, np.int64), top[parent])
    seats = np.array([Seat.RANK if gathers else Seat.RELAY, Seat.NVSWITCH] + [Seat.RANK] * (size - 2), np.int8)
    of_hosts = np.concatenate([heads[:, None], heads[:, None], members], axis=1)
    parents = np.concatenate([upper[:, None], top[:, None], np.repeat(top[:, None] + 1, size - 2, axis=1)], axis=1)
    return (
        np.concatenate([ranks, of_hosts[order].reshape(-1)]).astype(np.int32),
        np.concatenate([seat, np.tile(seats, len(heads))]),
        np.concatenate([over, parents[order].reshape(-1)]).astype(np.int32),
    )


def _host(
    tree: _Tree,
    members: list[int],
    algorithm: Algorithm,
    head: int,
    above: int,
) -> int:
    """The seats of one host below `above`; returns the head's."""
    top = tree.add(head, Seat.RANK, above)
    others = [rank for rank in members if rank != head]
    below = top
    for rank in others:
        seat = tree.add(rank, Seat.RANK, below)
        if algorithm == Algorithm.COLLNET_CHAIN:
            below = seat
    return top


class Aggregation:
    """In-network reduction: trees of switches over the leaves that adapters hang on.

    The root is a switch that all those leaves have a cable to; shards take turns among several. One leaf alone is
    its own root. Trees of more than two tiers are left out.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._tops: dict[tuple[int, ...], list[int]] = {}

    def leaf(self, adapter: int) -> int:
        """The switch that an adapter hangs on. Raises ConfigError for none."""
        port = int(self.fabric.nic_port[adapter])
        if port == NONE:
            raise ConfigError(f"{self.fabric.node_name(int(self.fabric.nic_node[adapter]))} has no cable")
        node = int(self.fabric.port_node[self.fabric.port_peer[port]])
        if self.fabric.node_kind[node] != NodeKind.SWITCH:
            raise ConfigError(
                "adapters without a switch between them have nothing to reduce in", key="NCCL_COLLNET_ENABLE"
            )
        return node

    def grow(self, tree: _Tree, leaves: list[int], *, turn: int) -> list[int]:
        """Add switches; returns the seat above each of `leaves`."""
        distinct = sorted(set(leaves))
        if len(distinct) == 1:
            top = tree.add(distinct[0], Seat.SWITCH, NONE)
            return [top] * len(leaves)
        tops = self._tops.setdefault(tuple(distinct), self._common(distinct))
        if not tops:
            raise ConfigError(
                f"no switch has cables to all of {len(distinct)} leaf switches: in-network reduction over more "
                "than two tiers is not modelled",
                key="NCCL_COLLNET_ENABLE",
            )
        root = tree.add(tops[turn % len(tops)], Seat.SWITCH, NONE)
        seat = {leaf: tree.add(leaf, Seat.SWITCH, root) for leaf in distinct}
        return [seat[leaf] for leaf in leaves]

    def _common(self, leaves: list[int]) -> list[int]:
        """Switches that every one of these has a cable to."""
        fabric = self.fabric
        found: set[int] | None = None
        for leaf in leaves:
            ports = np.arange(fabric.node_port_start[leaf], fabric.node_port_start[leaf + 1])
            peers = fabric.port_peer[ports]
            near = fabric.port_node[peers[peers != NONE]]
            mine = set(near[fabric.node_kind[near] == NodeKind.SWITCH].tolist())
            found = mine if found is None else found & mine
        return sorted(found or ())
