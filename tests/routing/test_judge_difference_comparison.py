"""Judgements, differences and comparisons of drawn fabrics, field by field against plain loops and networkx."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise, permutations

import networkx as nx
import numpy as np
import pytest
from support.routing_fabrics import dependency_graphs, follow, graph, hops_between, number_lids, ring

from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.check import judge as judging
from fabrictwin.routing.check.comparison import Beside, beside
from fabrictwin.routing.check.difference import difference
from fabrictwin.routing.check.judge import AllToAll, Ends, Permutations, deadlock, judge, owners
from fabrictwin.routing.engines.filling import Tables
from fabrictwin.routing.engines.registry import OPENSM, compute
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import Lids, Switches


def two_planes(seed: int, *, unhung: bool = True, lmc: int = 0) -> tuple[Switches, Lids]:
    """Two drawn subnets side by side, some switches with aggregation nodes alone; one adapter has no switch."""
    draw = random.Random(seed)
    cables, adapters, aggregation = [], [], []
    for first, rows in ((0, draw.randrange(3, 6)), (7, draw.randrange(2, 4))):
        while len(adapters) < first:
            adapters.append(0)
            aggregation.append(0)
        for row in range(first, first + rows):
            if row > first:
                cables.append((row, draw.randrange(first, row)))
            adapters.append(draw.choice([0, 1, 1, 2]))
            aggregation.append(draw.choice([0, 0, 1]))
        cables += [pair for pair in permutations(range(first, first + rows), 2) if draw.random() < 0.25]
    switches = graph(cables, adapters, aggregation)
    lids = number_lids(switches, lmc)
    if unhung and len(switches.endpoint_row) > 2:
        row, number, base = switches.endpoint_row.copy(), switches.endpoint_number.copy(), lids.endpoint.copy()
        row[0], number[0], base[1] = NONE, 0, 0
        switches, lids = replace(switches, endpoint_row=row, endpoint_number=number), Lids(lids.row, base, lmc)
    return switches, lids


def hung(switches: Switches, lids: Lids) -> list[int]:
    return [x for x in range(len(lids.endpoint)) if switches.endpoint_row[x] != NONE and lids.endpoint[x] > 0]


@pytest.mark.parametrize("seed", range(6))
def test_owners_are_listed_switches_first_and_then_port_by_port(seed):
    switches, lids = two_planes(seed, lmc=seed % 3)
    row = lids.row.copy()
    row[1] = 0
    lids = Lids(row, lids.endpoint, lids.lmc)
    expected = [(int(lid), at, 0, False, True) for at, lid in enumerate(lids.row) if lid]
    by_port = sorted(hung(switches, lids), key=lambda x: (switches.endpoint_row[x], switches.endpoint_number[x]))
    for x in by_port:
        at, number = int(switches.endpoint_row[x]), int(switches.endpoint_number[x])
        for path in range(2**lids.lmc):
            expected.append(
                (int(lids.endpoint[x]) + path, at, number, bool(switches.endpoint_adapter[x]), path == 0)
            )
    who = owners(switches, lids)
    columns = (who.lid, who.at, who.number, who.adapter, who.base)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected


def congestion_of(switches, lids, tables, to: dict[int, int], slow) -> tuple[float, list[float]]:
    """The worst of one permutation, and each path's congestion."""
    paths = []
    for x, y in to.items():
        at, number = int(switches.endpoint_row[y]), int(switches.endpoint_number[y])
        paths.append(
            follow(switches, tables.lft, int(switches.endpoint_row[x]), int(lids.endpoint[y]), at, number)
        )
    load = np.zeros(len(switches.adjacent_row))
    for path in paths:
        np.add.at(load, path or [], 1)
    each = [max([1.0, *(load * slow)[path].tolist()]) for path in paths if path is not None]
    return max(each, default=1.0), each


@pytest.mark.parametrize("seed", range(10))
def test_permutations_within_subnets_are_counted_path_by_path(seed):
    switches, lids = two_planes(seed, unhung=False)
    tables = compute(switches, lids, engine="shortest")
    lft = tables.lft.copy()
    draw = random.Random(seed)
    if seed % 2 and len(lids.endpoint):
        lft[draw.randrange(3), lids.endpoint[draw.randrange(len(lids.endpoint))]] = 255
    tables = Tables("drawn", lft)
    senders = [x for x in hung(switches, lids) if switches.endpoint_adapter[x]]
    draw.shuffle(senders)
    slow = np.array([draw.choice([0.5, 1.0, 2.0]) for _ in switches.adjacent_row])
    order = np.array(senders, np.int32)
    verdict = judge(switches, lids, tables, ends=Ends(slow, order), random=3, seed=seed)

    far = hops_between(switches)
    by_plane: dict[int, list[int]] = {}
    for x in senders:
        by_plane.setdefault(min(far[int(switches.endpoint_row[x])]), []).append(x)
    largest = max((len(some) for some in by_plane.values()), default=0)
    shifts = []
    for by in range(1, largest):
        to = {x: some[(i + by) % len(some)] for some in by_plane.values() for i, x in enumerate(some)}
        shifts.append(congestion_of(switches, lids, tables, to, slow))
    generator = np.random.Generator(np.random.PCG64(seed))
    drawn = []
    for _ in range(3):
        to = {}
        for plane in sorted(by_plane):
            # a draw permutes the places that the subnet's senders have in the order
            places = np.array([senders.index(x) for x in by_plane[plane]])
            to |= {senders[a]: senders[b] for a, b in zip(places, generator.permutation(places), strict=True)}
        drawn.append(congestion_of(switches, lids, tables, to, slow))
    for found, made, possible in ((verdict.shifts, shifts, max(largest - 1, 0)), (verdict.random, drawn, 0)):
        every = [one for _, each in made for one in each]
        if not every:
            assert found == Permutations(0, possible, 1.0, 1.0, 1.0, 0)
            continue
        worst = [one for one, _ in made]
        assert (found.looked_at, found.possible) == (len(made), possible)
        assert found.worst == max(worst)
        assert found.mean_worst == pytest.approx(np.mean(worst))
        assert found.mean == pytest.approx(np.mean(every))
        assert found.free == sum(one <= 1 for one in worst)


@pytest.mark.parametrize("seed", range(10))
def test_a_judgement_counts_hops_links_and_what_is_there(seed):
    switches, lids = two_planes(seed)
    tables = compute(switches, lids, engine="shortest")
    slow = np.linspace(0.25, 1.75, len(switches.adjacent_row))[:: 1 if seed % 2 else -1].copy()
    verdict = judge(switches, lids, tables, ends=Ends(slow), random=0)
    on = [x for x in range(len(lids.endpoint)) if switches.endpoint_row[x] != NONE]
    adapters = [x for x in on if switches.endpoint_adapter[x]]
    far = hops_between(switches)
    hops, load = [], np.zeros(len(switches.adjacent_row), int)
    for x in adapters:
        for y in adapters:
            a, b = int(switches.endpoint_row[x]), int(switches.endpoint_row[y])
            if x != y and lids.endpoint[y] and b in far[a]:
                path = follow(switches, tables.lft, a, int(lids.endpoint[y]), b, int(switches.endpoint_number[y]))
                hops.append(len(path))
                np.add.at(load, path, 1)
    assert (verdict.engine, verdict.lanes) == ("shortest", 1)
    assert (verdict.endpoints, verdict.adapters, verdict.switches) == (len(on), len(adapters), switches.rows)
    assert verdict.hops == tuple(np.bincount(hops, minlength=1).tolist())
    assert verdict.mean_hops == pytest.approx(np.mean(hops) if hops else 0.0)
    assert (verdict.unreached, verdict.first_unreached, verdict.detours) == (0, "", 0)
    assert verdict.random == Permutations(0, 0, 1.0, 1.0, 1.0, 0)
    total = verdict.all_to_all
    if not load.any():
        assert total == AllToAll(0, 0.0, "", len(load), 0.0)
        return
    e = int((load * slow).argmax())
    back = int(switches.adjacent_back[e])
    here, there = switches.adjacent_row[back], switches.adjacent_row[e]
    assert total.worst_link == (
        f"sw-{here}/{switches.adjacent_number[e]} > sw-{there}/{switches.adjacent_number[back]}"
    )
    assert (total.worst, total.idle_links) == (load[e], (load == 0).sum())
    assert total.mean == pytest.approx(load[load > 0].mean())
    assert total.relative == pytest.approx(load[e] * slow[e] / (len(adapters) - 1))


@pytest.mark.parametrize("adapters", [0, 1, 2])
def test_a_switch_alone_has_nothing_to_judge(adapters):
    switches = graph([], [adapters])
    lids = number_lids(switches)
    verdict = judge(switches, lids, compute(switches, lids, engine="shortest"), random=1)
    assert verdict.all_to_all == AllToAll(0, 0.0, "", 0, 0.0)
    assert verdict.hops == (adapters * (adapters - 1),)
    assert verdict.mean_hops == 0
    assert verdict.pairs == adapters * adapters  # to the switch and to each other
    assert verdict.sound
    assert verdict.shifts.possible == max(adapters - 1, 0)


@pytest.mark.parametrize("seed", range(12))
def test_a_deadlock_is_a_cycle_that_networkx_finds_in_a_lane(seed):
    """Lanes are drawn by LID and source; adapters alone have fewer sources and columns than all."""
    draw = np.random.Generator(np.random.PCG64(seed))
    cables = [(i, (i + 1) % 6) for i in range(6)]
    adapters, aggregation = draw.integers(0, 2, 6).tolist(), draw.integers(0, 2, 6).tolist()
    switches = graph(cables, adapters, aggregation)
    lids = number_lids(switches)
    plain = compute(switches, lids, engine="shortest")
    lanes = 1 + seed % 3
    lane = draw.integers(0, lanes, (plain.lft.shape[1], len(switches.edge_row))).astype(np.uint8)
    tables = Tables("drawn", plain.lft, lane, lanes)
    every = dependency_graphs(switches, lids, tables)
    some = [nx.DiGraph() for _ in range(lanes)]
    for x in np.flatnonzero(switches.endpoint_adapter):
        at, number, lid = switches.endpoint_row[x], switches.endpoint_number[x], int(lids.endpoint[x])
        for row in np.flatnonzero(switches.row_adapters):
            path = follow(switches, plain.lft, int(row), lid, int(at), int(number))
            some[lane[lid, switches.edge_column[row]]].add_edges_from(pairwise(path))
    verdict = judge(switches, lids, tables, random=0)
    for found, graphs in ((verdict.deadlock_all, every), (verdict.deadlock_adapters, some)):
        odd = [v for v, one in enumerate(graphs) if not nx.is_directed_acyclic_graph(one)]
        assert found.free == (not odd)
        assert found.lane == (odd[0] if odd else NONE)
        if odd:
            names = {switches.edge_name(e): e for e in range(len(switches.adjacent_row))}
            cycle = [names[name] for name in found.cycle]
            assert all(graphs[found.lane].has_edge(a, b) for a, b in pairwise([*cycle, cycle[0]]))
    assert verdict.lanes == lanes
    if verdict.deadlock_all.free:
        assert verdict.lanes_needed == lanes


def test_a_deadlock_is_looked_for_among_the_lids_and_sources_that_are_given():
    switches = ring(5)
    lids = number_lids(switches)
    tables = compute(switches, lids, engine="shortest")
    everything, rows = np.concatenate([lids.row, lids.endpoint]), np.arange(5, dtype=np.int32)
    heard: list[float] = []
    assert not deadlock(switches, tables, everything, rows, heard.append).free
    assert heard == [0.0]
    assert deadlock(switches, tables, everything, rows[:1]).free
    assert deadlock(switches, tables, lids.endpoint[:1], rows).free


def test_parts_of_a_judgement_are_told_by_the_paths_that_they_walk(monkeypatch):
    """A slice an item: 8 LIDs of 4 switches by each of 4, twice; 3 shifts and 2 permutations of 4, three times."""
    monkeypatch.setattr(judging, "PATHS_A_SLICE", 1)
    switches = ring(4)
    lids = number_lids(switches)
    heard = []
    judge(
        switches,
        lids,
        compute(switches, lids, engine="shortest"),
        random=2,
        stage=lambda name, share: heard.append((name, round(share * 124))),
    )
    paths = [4 * k for k in range(8)]
    loops = [32 + 4 * k for k in range(8)]
    assert [done for _, done in heard] == [*paths, *loops, 64, 76, 88, 100, 112]
    assert {name for name, _ in heard} == {"judging tables"}


@pytest.mark.parametrize("seed", range(8))
def test_every_count_of_a_difference_is_that_of_plain_loops(seed):
    switches, a_lids = two_planes(seed, lmc=seed % 2)
    draw = random.Random(seed)
    base = a_lids.endpoint.copy()
    base[-1] = 0 if seed % 2 else base[-1]
    b_lids = Lids(a_lids.row[::-1].copy(), base, a_lids.lmc)
    a = compute(switches, a_lids, engine="shortest")
    made = compute(switches, Lids(a_lids.row, base, a_lids.lmc), engine="shortest").lft
    lft = np.full((made.shape[0], a.lft.shape[1]), 255, np.uint8)
    lft[:, : made.shape[1]] = made
    holed = a.lft.copy()
    for table in (lft, holed):
        for _ in range(5):
            spot = draw.randrange(len(table)), int(draw.choice(a_lids.endpoint))
            table[spot] = draw.choice([1, 2, 3, 255])
    a, b = Tables("a", holed), Tables("b", lft)
    found = difference(switches, (a_lids, a), (b_lids, b))
    far = hops_between(switches)
    count = dict.fromkeys(("changed", "lost", "gained", "broken", "shorter", "longer", "paths"), 0)
    changed, examples = set(), []
    both = [x for x in hung(switches, a_lids) if base[x] > 0]
    for row in range(switches.rows):
        for x in both:
            lid = int(base[x])
            if holed[row, lid] != lft[row, lid]:
                changed.add((row, lid))
                by = f"by port {holed[row, lid]}, then {lft[row, lid]}"
                examples.append(f"sw-{row}: LID {lid} {by}")
            at, number = int(switches.endpoint_row[x]), int(switches.endpoint_number[x])
            if row not in switches.edge_row or at not in far[row]:
                continue
            count["paths"] += 1
            one, other = (follow(switches, t, row, lid, at, number) for t in (holed, lft))
            if one is None or other is None:
                count["broken" if one is other else "gained" if one is None else "lost"] += 1
                continue
            count["changed"] += one != other
            count["shorter"] += len(other) < len(one)
            count["longer"] += len(other) > len(one)
    assert {name: getattr(found, name if name in ("shorter", "longer", "paths") else f"paths_{name}")
            for name in count} == count  # fmt: skip
    assert (found.entries, found.entries_changed) == (switches.rows * len(both), len(changed))
    assert found.switches_changed == len({row for row, _ in changed})
    assert found.examples == tuple(examples[:10])
    moved = sum(one != other for one, other in zip(a_lids.row, b_lids.row, strict=True))
    assert found.lids_moved == moved + (a_lids.endpoint[-1] != base[-1])


# the twin's engine of the same idea, and which options it and `auto` have a use for
NEIGHBOURS = {
    "dfsssp": ("balanced", {"weights"}),
    "dnup": ("updown", {"roots", "weights"}),
    "ftree": ("fattree", {"roots"}),
    "minhop": ("shortest", {"weights"}),
    "sssp": ("balanced", {"weights"}),
    "updn": ("updown", {"roots", "weights"}),
}


@pytest.mark.parametrize("engine", sorted(OPENSM))
def test_what_stands_beside_opensms_tables_and_what_it_saves(engine):
    switches = graph([(0, 2), (1, 2), (0, 3), (1, 3)], [2, 2, 0, 0])
    lids = number_lids(switches, 1)
    roots = (0x1002, 0x1003) if engine == "ftree" else (0x1003,)
    options = Options(
        roots=roots, weights={(0x1000, 1): 9}, lmc=1, order=(1, 2), scatter=7, compute=(1,), storage=(2,)
    )
    plain = judge(switches, lids, compute(switches, lids, engine="shortest"), random=1)
    verdict = replace(
        plain,
        engine=engine,
        all_to_all=replace(plain.all_to_all, worst=8),
        shifts=replace(plain.shifts, mean=4.0),
        random=replace(plain.random, mean=5.0),
    )
    asked: list[Tables] = []

    def one(tables: Tables):
        asked.append(tables)
        return replace(
            verdict,
            all_to_all=replace(plain.all_to_all, worst=6),
            shifts=replace(plain.shifts, mean=3.0),
            random=replace(plain.random, mean=6.0),
        )

    found = beside(verdict, switches, lids, options, one)
    near, takes = NEIGHBOURS[engine]
    assert found == tuple(
        Beside(name, "", 6, 3.0, 6.0, 0.25, 0.25, pytest.approx(-0.2), plain.sound) for name in (near, "auto")
    )
    for name, kept, tables in zip((near, "auto"), (takes, {"roots"}), asked, strict=True):
        own = Options(lmc=1, **{key: getattr(options, key) for key in kept})
        assert (tables.lft == compute(switches, lids, engine=name, options=own).lft).all()
    assert beside(replace(verdict, engine="auto"), switches, lids, options, one) == ()


def test_an_engine_that_refuses_stands_beside_with_its_reason():
    switches = ring(5)
    lids = number_lids(switches)
    plain = judge(switches, lids, compute(switches, lids, engine="shortest"), random=1)
    idle = replace(
        plain,
        engine="ftree",
        all_to_all=replace(plain.all_to_all, worst=0),
        shifts=replace(plain.shifts, mean=0.0),
        random=replace(plain.random, mean=0.0),
    )
    with pytest.raises(ConfigError) as refused:
        compute(switches, lids, engine="fattree")
    first, second = beside(idle, switches, lids, Options(), lambda _: plain)
    assert first == Beside("fattree", str(refused.value), 0, 0.0, 0.0, 0.0, 0.0, 0.0, False)
    assert (second.engine, second.refused) == ("auto", "")
    assert (second.gain_all_to_all, second.gain_shifts, second.gain_random) == (0.0, 0.0, 0.0)
    assert second.sound == (not plain.unreached and plain.deadlock_all.free)
