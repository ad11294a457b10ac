"""What judging says of tables, held against plain loops and networkx; tables that are wrong in every way."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import routing_fabrics as made

from fabrictwin.base.progress import Measure
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.check import judge as judging
from fabrictwin.routing.check.comparison import beside, judgements
from fabrictwin.routing.check.difference import difference
from fabrictwin.routing.check.judge import Ends, Judgement, judge, owners, shift_sample
from fabrictwin.routing.engines.filling import Tables, has_cycle
from fabrictwin.routing.engines.registry import compute
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switch_tiers import recognise
from fabrictwin.routing.graph.switches import Lids, Switches, switch_graph


def path_of(switches: Switches, lids: Lids, tables: Tables, x: int, to: int) -> list[int] | None:
    at, number = int(switches.endpoint_row[to]), int(switches.endpoint_number[to])
    return made.follow(switches, tables.lft, int(switches.endpoint_row[x]), int(lids.endpoint[to]), at, number)


def shortest(switches: Switches) -> tuple[Lids, Tables, np.ndarray]:
    """Return LIDs, the tables of shortest paths, and a copy of them to be changed."""
    lids = made.number_lids(switches)
    tables = compute(switches, lids, engine="shortest")
    return lids, tables, tables.lft.copy()


def check_by_loops(switches: Switches, lids: Lids, tables: Tables, verdict: Judgement) -> None:
    """Everything but random permutations, once more and slowly."""
    far = made.hops_between(switches)
    endpoints = range(len(switches.endpoint_row))
    pairs = unreached = detours = 0
    hops: dict[int, int] = {}
    load = np.zeros(len(switches.adjacent_row), int)
    everything = [(int(lid), row, 0, None) for row, lid in enumerate(lids.row)]
    everything += [
        (int(lids.endpoint[x]), int(switches.endpoint_row[x]), int(switches.endpoint_number[x]), x)
        for x in endpoints
    ]
    for x in endpoints:
        start = int(switches.endpoint_row[x])
        for lid, at, number, to in everything:
            if to == x or at not in far[start]:
                continue
            pairs += 1
            path = made.follow(switches, tables.lft, start, lid, at, number)
            if path is None:
                unreached += 1
            elif to is not None and switches.endpoint_adapter[x] and switches.endpoint_adapter[to]:
                hops[len(path)] = hops.get(len(path), 0) + 1
                detours += len(path) > far[start][at]
                np.add.at(load, path, 1)
    assert (verdict.pairs, verdict.unreached) == (pairs, unreached)
    assert {n: count for n, count in enumerate(verdict.hops) if count} == hops
    assert verdict.detours == detours
    assert verdict.all_to_all.worst == load.max(initial=0)
    assert verdict.all_to_all.idle_links == (load == 0).sum()
    if load.any():
        assert verdict.all_to_all.mean == pytest.approx(load[load > 0].mean())
        assert load[_edge(switches, verdict.all_to_all.worst_link)] == load.max()

    visited = np.argsort(recognise(switches).visit)
    order = sorted(
        np.flatnonzero(switches.endpoint_adapter).tolist(),
        key=lambda x: (visited[switches.endpoint_row[x]], switches.endpoint_number[x]),
    )
    worst, total, flows = [], 0.0, 0
    for by in range(1, len(order)):
        paths = [path_of(switches, lids, tables, x, order[(i + by) % len(order)]) for i, x in enumerate(order)]
        load[:] = 0
        for path in paths:
            np.add.at(load, path or [], 1)
        congestion = [max([1, *load[path].tolist()]) for path in paths if path is not None]
        worst.append(max(congestion, default=1))
        total += sum(congestion)
        flows += len(congestion)
    if flows:
        assert verdict.shifts.worst == max(worst)
        assert verdict.shifts.mean_worst == pytest.approx(np.mean(worst))
        assert verdict.shifts.mean == pytest.approx(total / flows)
        assert verdict.shifts.free == sum(w == 1 for w in worst)


def _edge(switches: Switches, name: str) -> int:
    return next(e for e in range(len(switches.adjacent_row)) if switches.edge_name(e) == name)


def check_cycle(switches: Switches, lids: Lids, tables: Tables, verdict: Judgement) -> None:
    lanes = made.dependency_graphs(switches, lids, tables)
    assert verdict.deadlock_all.free == all(nx.is_directed_acyclic_graph(lane) for lane in lanes)
    if not verdict.deadlock_all.free:
        cycle = [_edge(switches, name) for name in verdict.deadlock_all.cycle]
        assert len(set(cycle)) == len(cycle)
        for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            assert lanes[verdict.deadlock_all.lane].has_edge(a, b)


@pytest.mark.parametrize("engine", ["auto", "balanced", "shortest", "updown"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: switch_graph(made.tree(16, 8, tiers=2)),
        lambda: made.without(switch_graph(made.tree(16, 4, tiers=3)), {9}),
        lambda: made.torus(3, 4),
        lambda: made.graph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 1)], [3, 0, 2, 1], [1, 1, 0, 2]),
    ],
)
def test_the_verdict_is_that_of_plain_loops(make, engine):
    switches = make()
    lids = made.number_lids(switches)
    tables = compute(switches, lids, engine=engine)
    verdict = judge(switches, lids, tables)
    check_by_loops(switches, lids, tables, verdict)
    check_cycle(switches, lids, tables, verdict)


@settings(max_examples=60)
@given(data=st.data())
def test_any_tables_at_all_are_judged(data):
    switches = data.draw(
        st.sampled_from([made.torus(3, 3, 1), made.ring(5), made.graph([(0, 1), (1, 2), (0, 2)], [1, 2, 1], [1])])
    )
    lids, _, lft = shortest(switches)
    spots = st.tuples(
        st.integers(0, lft.shape[0] - 1),
        st.integers(0, lft.shape[1] - 1),
        st.sampled_from([0, 1, 2, 3, 4, 5, 9, 255]),
    )
    for row, lid, port in data.draw(st.lists(spots, max_size=30)):
        lft[row, lid] = port
    broken = Tables("broken", lft)
    verdict = judge(switches, lids, broken, random=2)
    check_by_loops(switches, lids, broken, verdict)
    assert verdict.sound == (not verdict.unreached and verdict.deadlock_all.free)


def test_what_is_wrong_is_named():
    switches = made.ring(4)
    lids, _, lft = shortest(switches)
    to = int(lids.endpoint[2])
    toward_1 = int(switches.adjacent_number[_edge_between(switches, 0, 1)])
    toward_0 = int(switches.adjacent_number[_edge_between(switches, 1, 0)])
    lft[0, to], lft[1, to] = toward_1, toward_0
    verdict = judge(switches, lids, Tables("loop", lft))
    assert verdict.unreached == 2
    assert verdict.first_unreached == f"LID {to} (port 1 of sw-2) from sw-0: the tables loop"
    lft[1, to] = 9
    verdict = judge(switches, lids, Tables("hole", lft))
    assert verdict.first_unreached == f"LID {to} (port 1 of sw-2) from sw-0: the tables lead nowhere"
    assert not verdict.sound


def _edge_between(switches: Switches, a: int, b: int) -> int:
    return int(np.flatnonzero((switches.adjacent_from == a) & (switches.adjacent_row == b))[0])


def test_a_cycle_between_aggregation_nodes_alone_is_told_apart():
    # a ring of switches with aggregation nodes; two adapters at one of them
    switches = made.graph([(i, (i + 1) % 5) for i in range(5)], [2, 0, 0, 0, 0], [1] * 5)
    lids = made.number_lids(switches)
    verdict = judge(switches, lids, compute(switches, lids, engine="shortest"))
    assert verdict.deadlock_adapters.free
    assert not verdict.deadlock_all.free
    assert verdict.lanes_needed == 2
    assert not verdict.sound


def test_faster_trunks_are_less_congested():
    fabric = made.tree(24, 6, tiers=2, oversubscription=2)
    switches = switch_graph(fabric)
    lids = made.lids_of(fabric, switches)
    tables = compute(switches, lids, engine="auto")
    plain = judge(switches, lids, tables)
    fast = judge(switches, lids, tables, ends=Ends(np.full(len(switches.adjacent_row), 0.5)))
    assert plain.shifts.worst == 2
    assert fast.shifts.worst == 1
    assert fast.all_to_all.relative == plain.all_to_all.relative / 2


def test_shift_samples_are_spread_and_keep_the_ends():
    assert shift_sample(5, None).tolist() == [1, 2, 3, 4]
    some = shift_sample(1000, 10)
    assert len(some) == 10
    assert (some[0], some[-1]) == (1, 999)
    assert len(shift_sample(0, None)) == len(shift_sample(1, None)) == 0


def test_owners_count_every_lid_once():
    switches = made.ring(3)
    who = owners(switches, made.number_lids(switches, lmc=2))
    assert len(np.unique(who.lid)) == len(who.lid) == 3 + 3 * 4
    assert who.base.sum() == 6


def test_a_difference_is_that_of_plain_loops():
    switches = made.without(switch_graph(made.tree(16, 4, tiers=3)), {9})
    lids = made.number_lids(switches)
    moved = Lids(lids.row, lids.endpoint[::-1].copy())
    a, b = compute(switches, lids, engine="shortest"), compute(switches, moved, engine="auto")
    found = difference(switches, (lids, a), (moved, b))
    entries = changed = 0
    for x in range(len(switches.endpoint_row)):
        for row in range(switches.rows):
            entries += a.lft[row, lids.endpoint[x]] != b.lft[row, moved.endpoint[x]]
        for row in switches.edge_row.tolist():
            at, number = int(switches.endpoint_row[x]), int(switches.endpoint_number[x])
            one = made.follow(switches, a.lft, row, int(lids.endpoint[x]), at, number)
            other = made.follow(switches, b.lft, row, int(moved.endpoint[x]), at, number)
            changed += one != other
    assert (found.entries_changed, found.paths_changed) == (entries, changed)
    assert changed
    assert found.lids_moved == len(lids.endpoint) - len(lids.endpoint) % 2
    assert found.paths_lost == found.paths_gained == found.paths_broken == 0
    same = difference(switches, (lids, a), (lids, a))
    assert (same.entries_changed, same.paths_changed, same.examples) == (0, 0, ())


def test_a_difference_tells_lost_from_gained():
    switches = made.ring(4)
    lids, whole, lft = shortest(switches)
    lft[0, lids.endpoint[2]] = 255
    holed = Tables("holed", lft)
    assert difference(switches, (lids, whole), (lids, holed)).paths_lost == 1
    back = difference(switches, (lids, holed), (lids, whole))
    assert back.paths_gained == 1
    assert back.examples[0].startswith(f"sw-0: LID {lids.endpoint[2]} by port 255, then")
    assert difference(switches, (lids, holed), (lids, holed)).paths_broken == 1
    assert switches.endpoint_row.min() != NONE


def test_a_difference_counts_ways_that_are_longer_and_shorter():
    """On a ring of five, one destination's way from its neighbour is turned round: four hops and not one."""
    switches = made.ring(5)
    lids, plain, lft = shortest(switches)
    lid = int(lids.endpoint[1])
    for row in (0, 4, 3):
        back = np.flatnonzero((switches.adjacent_from == row) & (switches.adjacent_row == (row - 1) % 5))
        lft[row, lid] = switches.adjacent_number[back[0]]
    turned = Tables("turned", lft)
    found = difference(switches, (lids, plain), (lids, turned))
    assert (found.paths_changed, found.longer, found.shorter) == (2, 2, 0)
    back = difference(switches, (lids, turned), (lids, plain))
    assert (back.paths_changed, back.longer, back.shorter) == (2, 0, 2)


@pytest.mark.parametrize("lost", [False, True])
def test_a_judgement_in_slices_is_the_same_and_says_how_far_it_is(lost, monkeypatch):
    switches = switch_graph(made.tree(16, 8, tiers=2))
    lids = made.number_lids(switches)
    tables = compute(switches, lids, engine="shortest")
    if lost:
        lft = tables.lft.copy()
        lft[0, 5:20:3] = 255
        tables = Tables("broken", lft)
    whole = judge(switches, lids, tables)
    monkeypatch.setattr(judging, "PATHS_A_SLICE", 1)
    heard: list[float] = []

    def stage(_: str, done: Measure | None = None) -> None:
        assert isinstance(done, float)
        heard.append(done)

    assert judge(switches, lids, tables, stage=stage) == whole
    assert bool(whole.unreached) == lost
    assert heard == sorted(heard)
    assert heard[0] == 0
    assert 0.9 < heard[-1] < 1
    assert len(heard) > 50


@pytest.mark.parametrize("leaves", [62, 63, 64, 65, 66, 129])
def test_a_circle_through_any_link_of_a_wide_switch_is_seen(leaves):
    """A hub with so many links; the last two leaves are joined, and all that they send goes one way around."""
    cables = [(0, leaf) for leaf in range(1, leaves + 1)] + [(leaves - 1, leaves)]
    switches = made.graph(cables, [0] + [1] * leaves)
    lids = made.number_lids(switches)
    tables = compute(switches, lids, engine="shortest")
    before_last, last = leaves - 1, leaves
    lft = tables.lft.copy()

    def towards(row: int, peer: int) -> int:
        places = range(int(switches.adjacent_start[row]), int(switches.adjacent_start[row + 1]))
        return next(int(switches.adjacent_number[at]) for at in places if switches.adjacent_row[at] == peer)

    at = {int(row): int(lids.endpoint[x]) for x, row in enumerate(switches.endpoint_row)}
    lft[0, at[last]] = towards(0, before_last)  # hub, last but one, last
    lft[before_last, at[1]] = towards(before_last, last)  # last but one, last, hub
    lft[last, at[before_last]] = towards(last, 0)  # last, hub, last but one
    around = Tables("around", lft)
    assert judge(switches, lids, tables, shifts=1, random=0).deadlock_all.free
    verdict = judge(switches, lids, around, shifts=1, random=0)
    assert not verdict.unreached
    assert not verdict.deadlock_adapters.free
    assert len(verdict.deadlock_all.cycle) == 3
    every = np.asarray(sorted(at.values()), np.int32)
    assert has_cycle(switches, lft, every)
    assert not has_cycle(switches, tables.lft, every)


@pytest.mark.parametrize("engine", ["minhop", "updn", "dnup", "sssp", "shortest", "updown", "auto"])
def test_as_many_tables_are_judged_as_progress_counts_on(engine):
    switches = switch_graph(made.tree(8, 4, tiers=2))
    lids = made.number_lids(switches)
    tables = compute(switches, lids, engine=engine)
    judged = []

    def one(made: Tables) -> Judgement:
        judged.append(made.engine)
        return judge(switches, lids, made, shifts=1, random=1)

    others = beside(one(tables), switches, lids, Options(), one)
    assert len(judged) == judgements(tables.engine)
    assert len(others) == len(judged) - 1
