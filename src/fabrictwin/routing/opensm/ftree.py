"""ftree as OpenSM 3.3.23 computes it: ranks, tuples, checks of the shape, then LIDs one by one.

Without a root GUID file ranks count from the switches with adapters, and the fabric must be a pure fat-tree: all
adapters at the lowest rank, equally many neighbours and cables on a rank. With one, ranks count from the roots,
and only all compute nodes must be at one rank. Each switch has a tuple of its rank and its places on the way from
the first leaf; their order decides between equals. Compute nodes come first, leaf by leaf, with dummies in place
of those that a leaf lacks; then other adapters, then the switches. (osm_ucast_ftree.c.)

Left out: `max_reverse_hops` (OpenSM's default is 0), `connect_roots`, `quasi_ftree_indexing`. Where OpenSM
compares adapters by what lies in memory (on a switch above the leaves, or on a leaf with ways to others of its
rank), its tables differ from run to run; their order here is by port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.base.arrays import I32, I64, Bool, starts_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.routing.engines.filling import Tables, refuse
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import Lids, Switches
from fabrictwin.routing.opensm.subnets import Subnet, endpoint_counts, endpoints_by_port, fill_subnets, wire_order

if TYPE_CHECKING:
    from fabrictwin.kernel.routing.fat_tree_climb import Groups

LEAST_RANK, MOST_RANK = 2, 8
MOST_PLACES = 255  # a tuple's places are bytes, and 255 is none
UNINDEXED = (MOST_PLACES,) * MOST_RANK
DOWN, SIDE, UP = 0, 1, 2

Tuple = tuple[int, ...]


@record
class _Group:
    """Cables of a switch to one neighbour: edges by port number."""

    peer: int
    edges: list[int]


@record
class _Ranked:
    """A subnet with ranks, and each switch's groups by part (down, side, up), in the order of port numbers."""

    subnet: Subnet
    rank: I32  # [S] 0 at the roots
    leaf_rank: int
    compute: Bool  # [X] compute nodes
    leaf: Bool  # [S] switches with compute nodes
    groups: list[tuple[list[_Group], list[_Group], list[_Group]]]


def ftree(switches: Switches, lids: Lids, options: Options) -> Tables:
    """OpenSM's tables by ftree. Raises ConfigError where OpenSM refuses, and says why."""
    refuse(options, "ftree", "roots", "compute", "storage")
    return Tables("ftree", fill_subnets(switches, lids, options, _fill))


def _refused(why: str, hint: str = "the engine auto or fattree") -> ConfigError:
    return ConfigError(
        f"got a fabric that OpenSM's ftree refuses: {why}; expected a fat-tree, or {hint}", key="engine"
    )


def _fill(subnet: Subnet) -> None:
    from fabrictwin.kernel.routing import fat_tree_climb

    if subnet.lids.lmc:
        raise ConfigError("got an lmc, which OpenSM's ftree refuses; expected 0, or the engine fattree", key="lmc")
    if subnet.switches.rows < 2 or len(subnet.switches.endpoint_row) < 2:
        raise _refused("fewer than two switches or adapters")
    ranked = _rank(subnet)
    index = _index(ranked)
    leaves = _leaves(ranked, index)
    if not subnet.options.roots:
        _check_shape(ranked)
    origin, port, lid, main = _targets(ranked, leaves)
    fat_tree_climb.fill_fat_tree(
        _groups(ranked, index),
        subnet.switches.adjacent_back,
        subnet.switches.adjacent_number,
        origin,
        port,
        lid,
        main,
        subnet.lft,
    )


# -- ranks ------------------------------------------------------------------------------------------------------


def _ranks(subnet: Subnet) -> I32:
    """[S] ranks from the roots that are given, otherwise from the adapters, and again from those on top."""
    from fabrictwin.kernel.routing import hop_counts

    switches = subnet.switches
    rank = np.empty(switches.rows, np.int32)
    start, peer = switches.adjacent_start, switches.adjacent_row
    roots = np.flatnonzero(np.isin(switches.row_guid, np.array(subnet.options.roots, np.uint64)))
    if not len(roots):
        leaves = np.flatnonzero(endpoint_counts(switches)).astype(np.int32)
        hop_counts.ranks_below(start, peer, leaves, rank)
        roots = np.flatnonzero(rank == rank.max())
    hop_counts.ranks_below(start, peer, roots.astype(np.int32), rank)
    if rank.max() == 0 and switches.rows > 1:
        raise _refused(f"all of {switches.rows} switches carry adapters, so it finds more than one root of rank 0")
    return rank


def _compute_nodes(subnet: Subnet) -> Bool:
    """[X] who counts as a compute node."""
    options, guid = subnet.options, subnet.switches.endpoint_guid
    named = np.isin(guid, np.array(options.compute, np.uint64))
    compute = named if options.compute else np.ones(len(guid), bool)
    return compute & (named | ~np.isin(guid, np.array(options.storage, np.uint64)))


def _by_node(switches: Switches) -> I64:
    """Endpoints [X] in the order of OpenSM's table of channel adapters, ports of one by GUID."""
    order = wire_order(switches.endpoint_node_guid)
    guid = switches.endpoint_node_guid.byteswap()
    return order[np.lexsort((switches.endpoint_guid[order], guid[order]))]


def _rank(subnet: Subnet) -> _Ranked:
    """Ranks, leaves and groups. Raises ConfigError where compute nodes are at several ranks, and others."""
    switches = subnet.switches
    rank = _ranks(subnet)
    compute = _compute_nodes(subnet)
    if not compute.any():
        raise _refused("no compute nodes")
    leaf_rank = int(rank.max())
    nodes = [x for x in _by_node(switches).tolist() if compute[x]]
    if subnet.options.roots:
        leaf_rank = int(rank[switches.endpoint_row[nodes[0]]])
    if not LEAST_RANK <= leaf_rank + 1 <= MOST_RANK:
        raise _refused(f"{leaf_rank + 1} tiers from roots to leaves, where it takes {LEAST_RANK} to {MOST_RANK}")
    for x in nodes:
        row = int(switches.endpoint_row[x])
        if rank[row] != leaf_rank:
            raise _refused(
                f"switch {int(switches.row_guid[row]):#018x} carries compute nodes at rank {rank[row]}, "
                f"where leaves have rank {leaf_rank}"
            )
    leaf = np.zeros(switches.rows, bool)
    leaf[switches.endpoint_row[compute]] = True
    groups = [_groups_of(switches, rank, row) for row in range(switches.rows)]
    return _Ranked(subnet, rank, leaf_rank, compute, leaf, groups)


def _groups_of(switches: Switches, rank: I32, row: int) -> tuple[list[_Group], list[_Group], list[_Group]]:
    parts: tuple[dict[int, _Group], ...] = ({}, {}, {})
    first, last = int(switches.adjacent_start[row]), int(switches.adjacent_start[row + 1])
    for edge, peer in zip(range(first, last), switches.adjacent_row[first:last].tolist(), strict=True):
        part = UP if rank[row] > rank[peer] else SIDE if rank[row] == rank[peer] else DOWN
        parts[part].setdefault(peer, _Group(peer, [])).edges.append(edge)
    down, side, up = (list(part.values()) for part in parts)
    return down, side, up


# -- tuples -----------------------------------------------------------------------------------------------------


def _index(ranked: _Ranked) -> I64:
    """[S] places of the switches in the order of their tuples; groups of those that were met are put in that
    order.
    """
    rows = len(ranked.rank)
    tuples: list[Tuple] = [UNINDEXED] * rows
    taken: set[Tuple] = set()
    next_place: dict[tuple[Tuple, int], int] = {}

    def give(row: int, like: Tuple, rank: int, at: int) -> None:
        stem = (rank, *like[1:at], 0, *like[at + 1 :])
        place = next_place.get((stem, at), 0)
        while place < MOST_PLACES and (rank, *like[1:at], place, *like[at + 1 :]) in taken:
            place += 1
        if place == MOST_PLACES:
            raise _refused(f"more than {MOST_PLACES} switches in one place of its tuples")
        next_place[stem, at] = place
        tuples[row] = (rank, *like[1:at], place, *like[at + 1 :])
        taken.add(tuples[row])

    start = int(np.flatnonzero(ranked.leaf)[0])
    tuples[start] = (int(ranked.rank[start]), *(0,) * ranked.leaf_rank, *UNINDEXED[ranked.leaf_rank + 1 :])
    taken.add(tuples[start])
    queue = [start]
    for row in queue:
        mine, rank = tuples[row], int(ranked.rank[row])
        if rank < ranked.leaf_rank:
            _meet(ranked, row, DOWN, tuples, queue, lambda far: give(far, mine, rank + 1, rank + 1))  # noqa: B023
        if rank:
            _meet(ranked, row, UP, tuples, queue, lambda far: give(far, mine, rank - 1, rank))  # noqa: B023
    return np.unique(np.array(tuples, np.uint8), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _meet(ranked, row, part, tuples, queue, give) -> None:  # type: ignore[no-untyped-def]
    """Give tuples to a switch's neighbours that have none, and put its groups in the order of tuples."""
    groups = ranked.groups[row][part]
    for group in groups:
        if tuples[group.peer] == UNINDEXED:
            give(group.peer)
            queue.append(group.peer)
    groups.sort(key=lambda group: tuples[group.peer])


def _leaves(ranked: _Ranked, index: I64) -> I64:
    """Switches at the leaves' rank in the order of tuples, from the first with compute nodes to the last."""
    level = np.flatnonzero(ranked.rank == ranked.leaf_rank)
    level = level[np.argsort(index[level], kind="stable")]
    real = np.flatnonzero(ranked.leaf[level])
    if len(real) < 2:
        raise _refused("one leaf switch with compute nodes, where it takes two")
    return level[real[0] : real[-1] + 1]


# -- the shape --------------------------------------------------------------------------------------------------


def _check_shape(ranked: _Ranked) -> None:
    """Raises ConfigError unless all switches of a rank are like the first of them. OpenSM compares just these."""
    first: dict[int, int] = {}
    hung = endpoint_counts(ranked.subnet.switches)
    for row, rank in enumerate(ranked.rank.tolist()):
        if rank not in first:
            first[rank] = row
            continue
        ours, theirs = ranked.groups[row], ranked.groups[first[rank]]
        if len(ours[UP]) != len(theirs[UP]):
            raise _differ(ranked, row, first[rank], len(ours[UP]), len(theirs[UP]), "neighbours up")
        down = [len(groups[DOWN]) + int(hung[at]) for groups, at in ((ours, row), (theirs, first[rank]))]
        inner = rank != ranked.leaf_rank
        if inner and down[0] != down[1]:
            raise _differ(ranked, row, first[rank], down[0], down[1], "neighbours down")
        for group in ours[UP]:
            if len(group.edges) != len(theirs[UP][0].edges):
                raise _differ(ranked, row, first[rank], len(group.edges), len(theirs[UP][0].edges), "cables up")
        if inner and ours[DOWN] and theirs[DOWN] and len(ours[DOWN][0].edges) != len(theirs[DOWN][0].edges):
            a, b = len(ours[DOWN][0].edges), len(theirs[DOWN][0].edges)
            raise _differ(ranked, row, first[rank], a, b, "cables down")


def _differ(ranked: _Ranked, row: int, like: int, ours: int, theirs: int, what: str) -> ConfigError:
    guid = ranked.subnet.switches.row_guid
    return _refused(
        f"switch {int(guid[row]):#018x} has {ours} {what}, {int(guid[like]):#018x} of the same rank {theirs}",
        "a root GUID file, or the engine auto or fattree",
    )


# -- what the compiled part takes ---------------------------------------------------------------------------------


def _targets(ranked: _Ranked, leaves: I64):  # type: ignore[no-untyped-def]
    """(switch, port there, LID, whether counted) of all destinations in order; LID 0 is a dummy."""
    switches, lids = ranked.subnet.switches, ranked.subnet.lids
    on_leaf: dict[int, list[int]] = {int(row): [] for row in leaves}
    for x in endpoints_by_port(switches).tolist():
        if ranked.compute[x] and int(switches.endpoint_row[x]) in on_leaf:
            on_leaf[int(switches.endpoint_row[x])].append(x)
    most = max(map(len, on_leaf.values()))
    rows: list[tuple[int, int, int, int]] = []
    for row, ends in on_leaf.items():
        rows += [(row, int(switches.endpoint_number[x]), int(lids.endpoint[x]), 1) for x in ends]
        rows += [(row, 1, 0, 1)] * (most - len(ends))
    for x in _by_node(switches).tolist():
        if not ranked.compute[x]:
            rows.append(
                (int(switches.endpoint_row[x]), int(switches.endpoint_number[x]), int(lids.endpoint[x]), 1)
            )
    rows += [(row, 0, int(lid), 0) for row, lid in enumerate(lids.row)]
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return (
        columns[0].astype(np.int32),
        columns[1].astype(np.uint8),
        columns[2].astype(np.int32),
        columns[3].astype(np.int64),
    )


def _groups(ranked: _Ranked, index: I64) -> Groups:
    from fabrictwin.kernel.routing.fat_tree_climb import Groups

    first = np.zeros((len(ranked.rank), 4), np.int32)
    peer: list[int] = []
    cables: list[int] = []
    size: list[int] = []
    for row, parts in enumerate(ranked.groups):
        for part, groups in enumerate(parts):
            first[row, part] = len(peer)
            for group in groups:
                peer.append(group.peer)
                cables += group.edges
                size.append(len(group.edges))
        first[row, 3] = len(peer)
    hung = endpoint_counts(ranked.subnet.switches) > 0
    return Groups(
        first,
        np.arange(len(peer), dtype=np.int32),
        np.array(peer, np.int32),
        starts_of(size).astype(np.int32),
        np.array(cables, np.int32),
        index,
        (hung | (first[:, SIDE] > first[:, DOWN])).astype(np.uint8),
        hung.astype(np.uint8),
        ranked.rank,
    )
