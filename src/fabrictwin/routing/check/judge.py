"""Judging forwarding tables: who is reached, over how many hops, whether they can deadlock, how load spreads.

Works on any tables over a known switch graph: the twin's own, or read from a real fabric (`routing.check.dump`).

- Deadlock: the channel dependency graph of each virtual lane must have no cycle (Dally and Seitz 1987). It is
  judged twice, for paths between adapters alone, and with aggregation nodes and switches' own ports (what a
  manager's and an aggregation tree's packets may take).
- All-to-all: paths through each link if every adapter sends to every other one (edge forwarding index).
- Permutations: every adapter sends to one other. A path's congestion is the most paths on any link it takes;
  `worst` is the most on any link, `mean` the average over paths. Shifts are what ring and pairwise collectives
  send; random ones stand for unplanned traffic (Hoefler, Schneider, Lumsdaine 2008).

Adapters are taken in the order of the tree (pods together, then switches, then ports), unless told otherwise.
Adaptive routing and what
queues do are not judged here; the engines of `simulate/` show those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fabrictwin.base.arrays import F64, I32, I64, U8, Bool
from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.filling import Tables, own_lanes
from fabrictwin.routing.engines.routing_options import MOST_LANES
from fabrictwin.routing.graph.switch_tiers import ASTRAY_AT_MOST, astray_share, graph_of, planes, recognise
from fabrictwin.routing.graph.switches import Lids, Switches

PATHS_A_SLICE = 500_000  # walked in a tenth of a second
FLOWS_AT_MOST = 20_000_000  # paths walked for shifts unless more are asked for: a few seconds


@record
class Deadlock:
    """`cycle` names the links that wait for each other in a circle, in virtual lane `lane`; empty where free."""

    free: bool
    lane: int = NONE
    cycle: tuple[str, ...] = ()


@record
class AllToAll:
    """Paths through links between switches if every adapter sends to every other one."""

    worst: int
    mean: float  # over links that carry any
    worst_link: str
    idle_links: int
    relative: float  # worst, over what an adapter's own link carries; above 1 the network is the bottleneck


@record
class Permutations:
    """Congestion of `looked_at` of `possible` permutations; 1 is none."""

    looked_at: int
    possible: int  # 0 where there are too many to count
    worst: float  # of all
    mean_worst: float  # each permutation's worst, averaged
    mean: float  # over paths and permutations
    free: int  # permutations in which no two paths share a link


@record
class Judgement:
    """What tables do. Pairs are ordered pairs of endpoints in the same subnet; hops are links between switches."""

    engine: str
    adapters: int
    endpoints: int
    switches: int
    lanes: int
    pairs: int
    unreached: int
    first_unreached: str
    hops: tuple[int, ...]  # pairs of adapters by hops
    mean_hops: float
    detours: int  # pairs of adapters whose path is longer than the shortest
    deadlock_adapters: Deadlock
    deadlock_all: Deadlock
    lanes_needed: int  # that would keep all these paths from deadlock; NONE where 15 do not
    all_to_all: AllToAll
    shifts: Permutations
    random: Permutations

    @property
    def sound(self) -> bool:
        """Everybody is reached and nothing can deadlock."""
        return not self.unreached and self.deadlock_all.free


@record
class Ends:
    """Adapters as permutations take them."""

    slowness: F64 | None = None  # [E] an adapter's rate over a link's; 1 where left out
    order: I32 | None = None  # endpoints (adapters); otherwise that of the tree


@record
class Owners:
    """LIDs that have an owner, switches' own first, then endpoints' in order of switch and port. K in all."""

    lid: I32  # [K]
    at: I32  # [K] the owner's switch
    number: I32  # [K] its port there, 0 for the switch itself
    adapter: Bool  # [K]
    base: Bool  # [K] whether the LID is its owner's base LID


def owners(switches: Switches, lids: Lids) -> Owners:
    """Return the owner of each LID."""
    own = np.flatnonzero(lids.row > 0)
    hung = np.flatnonzero((switches.endpoint_row != NONE) & (lids.endpoint > 0))
    hung = hung[np.lexsort((switches.endpoint_number[hung], switches.endpoint_row[hung]))]
    width = 1 << lids.lmc
    each = np.repeat(hung, width)
    path = np.tile(np.arange(width), len(hung))
    return Owners(
        np.concatenate([lids.row[own], lids.endpoint[each] + path]).astype(np.int32),
        np.concatenate([own, switches.endpoint_row[each]]).astype(np.int32),
        np.concatenate([np.zeros(len(own)), switches.endpoint_number[each]]).astype(np.int32),
        np.concatenate([np.zeros(len(own), bool), switches.endpoint_adapter[each]]),
        np.concatenate([np.ones(len(own), bool), path == 0]),
    )


def deadlock(
    switches: Switches, tables: Tables, lid: I32, sources: I32, watch: Callable[[float], None] = lambda _: None
) -> Deadlock:
    """Look for a deadlock among paths from switches `sources` to these LIDs. `watch` hears which share is done."""
    from fabrictwin.kernel.routing import lane_assignment as lanes

    widest = int(np.diff(switches.adjacent_start).max(initial=0))
    edges = len(switches.adjacent_row)
    bits = np.zeros((tables.lanes, edges, max(1, (widest + 63) // 64)), np.uint64)
    lane = tables.lane
    if lane.size:
        lane = np.ascontiguousarray(lane[:, switches.edge_column[sources]])
    table = np.ascontiguousarray(tables.lft.T)
    for now in _slices(len(lid), len(sources), watch):
        lanes.dependencies(
            table,
            lid[now],
            sources,
            switches.port_edge,
            switches.adjacent_start,
            switches.adjacent_row,
            lane,
            tables.lanes,
            bits,
        )
    cycle = np.empty(edges, np.int32)
    for v in range(tables.lanes):
        length = lanes.find_cycle(bits[v], switches.adjacent_start, switches.adjacent_row, cycle)
        if length:
            return Deadlock(False, v, tuple(switches.edge_name(int(e)) for e in cycle[:length]))
    return Deadlock(True)


def _slices(items: int, paths: int, watch: Callable[[float], None]) -> Iterator[slice]:
    """Slices of `items`, each with about PATHS_A_SLICE of their `paths`; `watch` hears the share before each."""
    width = max(PATHS_A_SLICE // max(paths, 1), 1)
    for first in range(0, items, width):
        watch(first / items)
        yield slice(first, first + width)


def shift_sample(adapters: int, most: int | None) -> I32:
    """Return the shifts to look at: all, or `most` of them evenly spread, the first and the last among them."""
    possible = max(adapters - 1, 0)
    if most is None:
        most = max(FLOWS_AT_MOST // max(adapters, 1), 16)
    if most >= possible:
        return np.arange(1, adapters, dtype=np.int32)
    return np.unique(np.linspace(1, possible, most).round()).astype(np.int32)


@record
class _Paths:
    """Paths of a table from every switch with endpoints to every LID."""

    pairs: int
    unreached: int
    first_unreached: str
    hops: I64  # [2, hops + 1] pairs of adapters by hops, and by hops above the shortest path's
    load: I64  # [E] paths between adapters through each link


def _survey(switches: Switches, table: U8, who: Owners, plane: I64, watch: Callable[[float], None]) -> _Paths:
    from fabrictwin.kernel.routing import path_loads as kernel
    from fabrictwin.kernel.routing import table_filling as forwarding

    columns, column = np.unique(who.at, return_inverse=True)
    shortest = np.empty((len(columns), switches.rows), np.int32)
    edges = len(switches.adjacent_row)
    forwarding.shortest_hops(graph_of(switches, np.ones(edges, np.int32)), columns.astype(np.int32), shortest)
    hung = switches.endpoint_row != NONE
    sources = np.stack(
        [np.bincount(switches.endpoint_row[hung], minlength=switches.rows), switches.row_adapters]
    ).astype(np.int32)
    hops = np.zeros((2, kernel.MOST_HOPS + 1), np.int64)
    load = np.zeros(edges, np.int64)
    pairs, lost, why = 0, 0, ""
    at = column.astype(np.int32)
    for now in _slices(len(who.lid), switches.rows, watch):
        found, missed, first, row, depth = kernel.survey(
            table,
            who.lid[now],
            who.at[now],
            who.number[now],
            who.adapter[now],
            who.base[now],
            at[now],
            switches.port_edge,
            switches.adjacent_row,
            plane,
            sources,
            shortest,
            hops,
            load,
        )
        if missed and not lost:
            why = _why(switches, who, now.start + first, row, depth)
        pairs, lost = pairs + int(found), lost + int(missed)
    return _Paths(pairs, lost, why, hops, load)


def _permuted(switches: Switches, who: Owners, order: I32 | None) -> I64:
    """Owners that permutations are of: adapters in the order of the tree, or those that `order` lists."""
    adapters = np.flatnonzero(who.adapter & who.base)
    if order is None:
        visited = np.argsort(recognise(switches).visit)
        return adapters[np.argsort(visited[who.at[adapters]], kind="stable")]
    place = {(int(r), int(n)): k for k, r, n in zip(adapters, who.at[adapters], who.number[adapters], strict=True)}
    wanted = [(int(switches.endpoint_row[x]), int(switches.endpoint_number[x])) for x in order]
    return np.array([place[key] for key in wanted if key in place], np.int64)


def judge(
    switches: Switches,
    lids: Lids,
    tables: Tables,
    *,
    ends: Ends | None = None,
    shifts: int | None = None,
    random: int = 32,
    seed: int = 0,
    stage: Stage = silent,
) -> Judgement:
    """Judge tables.

    `shifts` and `random` are how many of each to look at; `shifts=None` is all, as far as that
    takes seconds. `stage` hears how far the judgement is.
    """
    who = owners(switches, lids)
    plane = planes(switches)
    table = np.ascontiguousarray(tables.lft.T)
    watch = _watches(switches, who, shifts, random, stage)
    paths = _survey(switches, table, who, plane, watch["paths"])
    ends = ends or Ends()
    slow = np.ones(len(switches.adjacent_row)) if ends.slowness is None else ends.slowness
    adapters = _permuted(switches, who, ends.order)
    senders = _Senders(who.lid[adapters], who.at[adapters], who.number[adapters], plane[who.at[adapters]])
    by_hops = paths.hops[0][: int(np.flatnonzero(paths.hops[0]).max(initial=0)) + 1]
    flows = int(by_hops.sum())
    everything = deadlock(switches, tables, who.lid, switches.edge_row, watch["deadlock"])
    hung = switches.endpoint_row != NONE
    with_adapters = np.flatnonzero(switches.row_adapters).astype(np.int32)
    return Judgement(
        engine=tables.engine,
        adapters=int(switches.endpoint_adapter[hung].sum()),
        endpoints=int(hung.sum()),
        switches=switches.rows,
        lanes=tables.lanes,
        pairs=paths.pairs,
        unreached=paths.unreached,
        first_unreached=paths.first_unreached,
        hops=tuple(int(n) for n in by_hops),
        mean_hops=float((by_hops * np.arange(len(by_hops))).sum() / flows) if flows else 0.0,
        detours=int(paths.hops[1, 1:].sum()),
        deadlock_adapters=deadlock(switches, tables, who.lid[who.adapter], with_adapters),
        deadlock_all=everything,
        lanes_needed=tables.lanes if everything.free else _lanes_needed(switches, who, tables),
        all_to_all=_all_to_all(switches, paths.load, slow, int(switches.row_adapters.sum())),
        shifts=_shifts(table, senders, switches, slow, shifts, watch["shifts"]),
        random=_random(table, senders, switches, slow, (random, seed), watch["random"]),
    )


def _watches(
    switches: Switches, who: Owners, shifts: int | None, random: int, stage: Stage
) -> dict[str, Callable[[float], None]]:
    """Callbacks of the parts of a judgement, which hear the part's share and tell `stage` that of the whole.

    Parts count as long as the paths that they walk; a permutation's path is followed alone, which takes as long as
    three that join.
    """
    senders, joined = int((who.adapter & who.base).sum()), len(who.lid) * switches.rows
    paths = {
        "paths": joined,
        "deadlock": joined,
        "shifts": 3 * senders * len(shift_sample(senders, shifts)),
        "random": 3 * senders * random,
    }
    whole, begun = max(sum(paths.values()), 1), 0

    def within(first: int, walked: int) -> Callable[[float], None]:
        return lambda share: stage("judging tables", (first + share * walked) / whole)

    found = {}
    for name, walked in paths.items():
        found[name] = within(begun, walked)
        begun += walked
    return found


def _lanes_needed(switches: Switches, who: Owners, tables: Tables) -> int:
    tiers = recognise(switches)
    up = tiers.up if astray_share(switches, tiers) <= ASTRAY_AT_MOST else None
    _, lanes = own_lanes(switches, tables.lft, who.lid, up=up, most=MOST_LANES)
    return lanes


def _why(switches: Switches, who: Owners, k: int, row: int, depth: int) -> str:
    from fabrictwin.kernel.routing import path_loads as kernel

    at, number = switches.row_name[int(who.at[k])], int(who.number[k])
    what = f"port {number} of {at}" if number else at
    how = "the tables loop" if depth == kernel.LOOP else "the tables lead nowhere"
    return f"LID {who.lid[k]} ({what}) from {switches.row_name[row]}: {how}"


def _all_to_all(switches: Switches, load: I64, slow: F64, adapters: int) -> AllToAll:
    if not len(load) or not load.any():
        return AllToAll(0, 0.0, "", len(load), 0.0)
    scaled = load * slow
    e = int(scaled.argmax())
    return AllToAll(
        worst=int(load[e]),
        mean=float(load[load > 0].mean()),
        worst_link=switches.edge_name(e),
        idle_links=int((load == 0).sum()),
        relative=float(scaled[e] / (adapters - 1)),
    )


def _summary(worst: F64, total: F64, flows: int, possible: int) -> Permutations:
    if not len(worst) or not flows:
        return Permutations(0, possible, 1.0, 1.0, 1.0, 0)
    return Permutations(
        looked_at=len(worst),
        possible=possible,
        worst=float(worst.max()),
        mean_worst=float(worst.mean()),
        mean=float(total.sum() / flows),
        free=int((worst <= 1).sum()),
    )


@record
class _Senders:
    """Adapters that permutations are of: LID, switch (row) and port number there, subnet."""

    lid: I32
    at: I32
    number: I32
    subnet: I64

    def __len__(self) -> int:
        return len(self.lid)

    def sorted(self) -> _Senders:
        """The same, subnet after subnet."""
        order = np.argsort(self.subnet, kind="stable")
        return _Senders(self.lid[order], self.at[order], self.number[order], self.subnet[order])


def _shifts(
    table: U8,
    senders: _Senders,
    switches: Switches,
    slow: F64,
    most: int | None,
    watch: Callable[[float], None],
) -> Permutations:
    """Shifts within each subnet."""
    from fabrictwin.kernel.routing import path_loads as kernel

    of = senders.sorted()
    begin = np.searchsorted(of.subnet, of.subnet)
    size = np.searchsorted(of.subnet, of.subnet, side="right") - begin
    largest = int(size.max(initial=0))
    by = shift_sample(largest, most)
    worst, total = np.ones(len(by)), np.zeros(len(by))
    edges, missing = (switches.port_edge, switches.adjacent_row, slow), 0
    for now in _slices(len(by), len(of), watch):
        missing += kernel.shifts(
            table, of.lid, of.at, of.number, begin, size, by[now], *edges, worst[now], total[now]
        )
    return _summary(worst, total, len(by) * len(of) - missing, max(largest - 1, 0))


def _random(
    table: U8,
    senders: _Senders,
    switches: Switches,
    slow: F64,
    drawn: tuple[int, int],
    watch: Callable[[float], None],
) -> Permutations:
    """Random permutations within each subnet, `drawn`: how many, and by which seed."""
    from fabrictwin.kernel.routing import path_loads as kernel

    count, seed = drawn
    generator = np.random.Generator(np.random.PCG64(seed))
    to = np.tile(np.arange(len(senders), dtype=np.int32), (count, 1))
    for k in range(count):
        for label in np.unique(senders.subnet):
            members = np.flatnonzero(senders.subnet == label)
            to[k, members] = generator.permutation(members)
    worst, total = np.ones(count), np.zeros(count)
    edges = switches.port_edge, switches.adjacent_row, slow
    missing = 0
    for now in _slices(count, len(senders), watch):
        missing += kernel.permutations(
            table, senders.lid, senders.at, senders.number, to[now], *edges, worst[now], total[now]
        )
    return _summary(worst, total, count * len(senders) - missing, 0)
