"""Every engine on every kind of graph: who is reached, how far, what can deadlock. networkx is the oracle."""

from __future__ import annotations

import re
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.routing_fabrics import (
    dependency_graphs,
    follow,
    graph,
    hops_between,
    lids_of,
    number_lids,
    owners_of,
    ring,
    torus,
    tree,
    try_compute,
    without,
)

from fabrictwin.base.errors import ConfigError
from fabrictwin.routing.engines.registry import OWN, compute, route
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import Switches, switch_graph

ANY_GRAPH = ("auto", "balanced", "shortest", "updown")  # take what they are given
SHORTEST = ("balanced", "dmodk", "shortest")
NEVER_DEADLOCK = ("auto", "balanced", "dmodk", "fattree", "updown")


def two_tier() -> Switches:
    return switch_graph(tree(16, 8, tiers=2))


def three_tier() -> Switches:
    return switch_graph(tree(16, 4, tiers=3))


def with_aggregation() -> Switches:
    """Two pods of two leaves and two spines, two cores, a SHARP aggregation node at every switch."""
    cables = [(leaf, 4 + 2 * (leaf // 2) + s) for leaf in range(4) for s in range(2)]
    cables += [(4 + s, 8 + c) for s in range(4) for c in range(2)]
    return graph(cables, [2, 2, 2, 1, 0, 0, 0, 0, 0, 0], [1] * 10)


def apart() -> Switches:
    """Two subnets side by side."""
    return graph([(0, 1), (1, 2), (3, 4)], [2, 0, 2, 1, 1])


FABRICS = {
    "one switch": lambda: graph([], [4]),
    "two switches": lambda: graph([(0, 1), (0, 1)], [2, 2]),
    "two tiers": two_tier,
    "three tiers": three_tier,
    "a cable less": lambda: without(three_tier(), {5}),
    "aggregation": with_aggregation,
    "ring": lambda: ring(7),
    "torus": lambda: torus(4, 4),
    "apart": apart,
}


def check_reach(switches: Switches, lids, tables, *, shortest: bool) -> None:
    far = hops_between(switches)
    for lid, at, number in owners_of(switches, lids):
        for row in range(switches.rows):
            if at not in far[row]:
                assert follow(switches, tables.lft, row, lid, at, number) is None
                continue
            path = follow(switches, tables.lft, row, lid, at, number)
            assert path is not None, f"LID {lid} is not reached from {row}"
            if shortest:
                assert len(path) == far[row][at]


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("engine", OWN)
def test_all_are_reached_and_nothing_can_deadlock(engine, fabric):
    switches = FABRICS[fabric]()
    lids = number_lids(switches)
    tables = try_compute(switches, lids, engine)
    if isinstance(tables, str):
        assert engine in ("dmodk", "fattree"), tables  # the others route anything
        assert "expected" in tables
        return
    check_reach(switches, lids, tables, shortest=engine in SHORTEST)
    assert tables.lane.size == 0 or tables.lane.max() == tables.lanes - 1
    if engine in NEVER_DEADLOCK:
        for lane in dependency_graphs(switches, lids, tables):
            assert nx.is_directed_acyclic_graph(lane)


def test_shortest_on_a_ring_can_deadlock_and_balanced_cannot():
    switches = ring(7)
    lids = number_lids(switches)
    (only,) = dependency_graphs(switches, lids, compute(switches, lids, engine="shortest"))
    assert not nx.is_directed_acyclic_graph(only)
    tables = compute(switches, lids, engine="balanced")
    assert tables.lanes == 2
    with pytest.raises(ConfigError, match="got 1 virtual lanes"):
        compute(switches, lids, engine="balanced", options=Options(lanes=1))


@st.composite
def graphs(draw: st.DrawFn) -> Switches:
    """Connected graphs of up to nine switches, parallel cables and aggregation nodes included."""
    rows = draw(st.integers(1, 9))
    cables = [(row, draw(st.integers(0, row - 1))) for row in range(1, rows)]
    more = st.tuples(st.integers(0, rows - 1), st.integers(0, rows - 1)).filter(lambda pair: pair[0] != pair[1])
    if rows > 1:
        cables += draw(st.lists(more, max_size=12))
    adapters = draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    aggregation = draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows))
    return graph(cables, adapters, aggregation)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(switches=graphs(), engine=st.sampled_from(ANY_GRAPH), lmc=st.integers(0, 2))
def test_any_graph_is_routed(switches, engine, lmc):
    lids = number_lids(switches, lmc)
    tables = try_compute(switches, lids, engine, Options(lmc=lmc, lanes=15))
    if isinstance(tables, str):
        assert "virtual lanes" in tables
        return
    check_reach(switches, lids, tables, shortest=engine in SHORTEST)
    if engine in NEVER_DEADLOCK:
        assert all(nx.is_directed_acyclic_graph(lane) for lane in dependency_graphs(switches, lids, tables))


@settings(max_examples=40)
@given(switches=graphs(), root=st.integers(0, 8))
def test_updown_paths_go_up_and_then_down_below_the_root_given(switches, root):
    root %= switches.rows
    lids = number_lids(switches)
    tables = compute(
        switches, lids, engine="updown", options=Options(roots=(int(switches.row_guid[root]),), lanes=15)
    )
    assert tables.lanes == 1  # a single root joins everybody
    rank = hops_between(switches)[root]
    for lid, at, number in owners_of(switches, lids):
        for row in range(switches.rows):
            path = follow(switches, tables.lft, row, lid, at, number)
            ends = [
                (int(switches.adjacent_row[switches.adjacent_back[e]]), int(switches.adjacent_row[e]))
                for e in path
            ]
            up = [(rank[b], b) < (rank[a], a) for a, b in ends]
            assert up == sorted(up, reverse=True)


@pytest.mark.parametrize("engine", ["shortest", "updown", "fattree", "balanced", "dmodk", "auto"])
def test_lids_of_an_adapter_take_different_switches(engine):
    fabric = tree(32, 8, tiers=2)
    switches = switch_graph(fabric)
    lids = lids_of(fabric, switches, lmc=2)
    tables = compute(switches, lids, engine=engine, options=Options(lmc=2))
    check_reach(switches, lids, tables, shortest=True)
    if engine == "balanced":
        return  # every LID is its own destination there
    for x in range(len(switches.endpoint_row)):
        at, number = int(switches.endpoint_row[x]), int(switches.endpoint_number[x])
        for row in switches.edge_row.tolist():
            if row == at:
                continue
            over = {
                int(
                    switches.adjacent_row[
                        follow(switches, tables.lft, row, int(lids.endpoint[x]) + k, at, number)[0]
                    ]
                )
                for k in range(4)
            }
            assert len(over) == 4


def test_least_loaded_ports_differ_by_one_destination_at_most():
    fabric = tree(32, 8, tiers=2)
    switches = switch_graph(fabric)
    lids = lids_of(fabric, switches)
    tables = compute(switches, lids, engine="shortest")
    for row in switches.edge_row.tolist():
        elsewhere = lids.endpoint[switches.endpoint_row != row]
        counts = np.bincount(tables.lft[row, elsewhere])
        counts = counts[counts > 0]
        assert counts.max() - counts.min() <= 1
        assert len(counts) == 4


def test_weights_make_paths_go_round():
    # a triangle: the direct cable from 0 to 1 counts three, the way over 2 counts two
    switches = graph([(0, 1), (0, 2), (2, 1)], [1, 1, 1])
    lids = number_lids(switches)
    port = int(switches.adjacent_number[0])
    weights = {(0x1000, port): 3}
    for engine in ("shortest", "balanced"):
        tables = compute(switches, lids, engine=engine, options=Options(weights=weights))
        to_one, at, number = int(lids.endpoint[1]), 1, int(switches.endpoint_number[1])
        assert len(follow(switches, tables.lft, 0, to_one, at, number)) == 2
        back = int(lids.endpoint[0])
        assert len(follow(switches, tables.lft, 1, back, 0, int(switches.endpoint_number[0]))) == 1


@pytest.mark.parametrize("engine", ["fattree", "auto", "dmodk"])
def test_engines_refuse_options_they_have_no_use_for(engine):
    switches = two_tier()
    with pytest.raises(ConfigError, match=f"weights, which the engine {engine} has no use for"):
        compute(switches, number_lids(switches), engine=engine, options=Options(weights={(1, 1): 2}))


def test_an_unknown_engine_gets_a_suggestion():
    switches = two_tier()
    with pytest.raises(ConfigError, match="did you mean 'fattree'"):
        compute(switches, number_lids(switches), engine="fatree")
    with pytest.raises(ConfigError, match="did you mean 'minhop'"):
        route(tree(16, 8, tiers=2), engine="min-hop")


def test_a_root_that_is_no_switch_is_an_error():
    switches = two_tier()
    with pytest.raises(ConfigError, match="roots: got 0x0000000000abcdef, expected the GUID of a switch"):
        compute(switches, number_lids(switches), engine="updown", options=Options(roots=(0xABCDEF,)))


def test_same_input_same_tables():
    switches = without(three_tier(), {3, 20})
    lids = number_lids(switches)
    for engine in ANY_GRAPH:
        a, b = (compute(switches, lids, engine=engine) for _ in range(2))
        assert np.array_equal(a.lft, b.lft)
        assert np.array_equal(a.lane, b.lane)


def test_the_program_on_the_page_runs():
    page = Path(__file__).resolve().parents[2] / "docs" / "routing.md"
    program = re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1]
    names: dict = {}
    exec(program, names)
    assert names["tables"].lft[0].tolist() == [255, 0, 2, 2, 1, 2]
