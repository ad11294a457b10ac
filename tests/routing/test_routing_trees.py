"""Fat-trees: which tiers are recognised, that balanced tables do not collide, and what fattree refuses."""

from __future__ import annotations

import numpy as np
import pytest
from support.routing_fabrics import follow, graph, lids_of, number_lids, ring, torus, tree, without

from fabrictwin.base.errors import ConfigError
from fabrictwin.routing.check.judge import judge
from fabrictwin.routing.engines.registry import compute
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.shape import irregularity
from fabrictwin.routing.graph.switch_tiers import orient, recognise
from fabrictwin.routing.graph.switches import Switches, switch_graph

TREES = {
    "two tiers": (32, 8, {"tiers": 2}),
    "two tiers, parallel": (18, 6, {"tiers": 2, "spines": 3}),
    "two tiers, two cables a spine": (16, 8, {"tiers": 2, "spines": 2}),
    "three tiers": (54, 6, {"tiers": 3}),
    "three tiers, parallel cores": (32, 8, {"tiers": 3, "pods": 2}),
    "three tiers, parallel spines": (32, 8, {"tiers": 3, "pods": 4, "spines": 2, "leaves": 2}),
    "not full": (29, 8, {"tiers": 2}),
    "two to one": (24, 6, {"tiers": 2, "oversubscription": 2}),
}


def links_of_shift(switches: Switches, lids, tables, order, by: int) -> np.ndarray:
    """Paths through each link when every adapter sends to the one `by` places further, by a plain loop."""
    load = np.zeros(len(switches.adjacent_row), int)
    n = len(order)
    for i, x in enumerate(order):
        to = order[(i + by) % n]
        at, number = int(switches.endpoint_row[to]), int(switches.endpoint_number[to])
        for e in follow(switches, tables.lft, int(switches.endpoint_row[x]), int(lids.endpoint[to]), at, number):
            load[e] += 1
    return load


@pytest.mark.parametrize("engine", ["dmodk", "fattree", "auto"])
@pytest.mark.parametrize("name", TREES)
def test_no_shift_permutation_collides_on_a_regular_tree(engine, name):
    hosts, radix, shape = TREES[name]
    fabric = tree(hosts, radix, **shape)
    switches = switch_graph(fabric)
    lids = lids_of(fabric, switches)
    tables = compute(switches, lids, engine=engine)
    # where shifts wrap around in the middle of a leaf, or two hosts share a link up, two paths meet
    most = 2 if name in ("two to one", "not full") else 1
    for by in range(1, hosts):
        assert links_of_shift(switches, lids, tables, range(hosts), by).max(initial=0) <= most, by


def test_no_shift_permutation_collides_on_1944_hosts_with_six_parallel_cables():
    fabric = tree(1944, 36, tiers=3, pods=6)
    switches = switch_graph(fabric)
    assert switches.rows == 270  # 108 leaves, 108 spines, 54 cores
    core = np.flatnonzero(recognise(switches).rank == 0)
    assert len(core) == 54
    pairs = np.bincount(
        switches.adjacent_row[switches.adjacent_start[core[0]] : switches.adjacent_start[core[0] + 1]]
    )
    assert set(pairs[pairs > 0].tolist()) == {6}
    lids = lids_of(fabric, switches)
    for engine in ("dmodk", "fattree"):
        verdict = judge(switches, lids, compute(switches, lids, engine=engine), random=1)
        assert verdict.shifts.looked_at == 1943
        assert verdict.shifts.worst == 1
        assert verdict.sound


@pytest.mark.parametrize(("hosts", "spines", "radix"), [(54, 5, 12), (100, 7, 16)])
def test_uneven_cables_are_no_regular_tree_and_are_routed_better_for_it(hosts, spines, radix):
    fabric = tree(hosts, radix, tiers=2, spines=spines)
    switches = switch_graph(fabric)
    lids = lids_of(fabric, switches)
    assert "leaf-0 has 2 cables up to spine-0" in irregularity(switches, recognise(switches))
    with pytest.raises(ConfigError, match="no regular tree"):
        compute(switches, lids, engine="dmodk")
    auto = judge(switches, lids, compute(switches, lids, engine="auto"))
    assert auto.sound
    assert auto.shifts.worst == 2
    for other in ("shortest", "balanced"):
        assert auto.shifts.mean < judge(switches, lids, compute(switches, lids, engine=other)).shifts.mean


def test_min_hop_collides_where_d_mod_k_does_not():
    fabric = tree(54, 6, tiers=3)
    switches = switch_graph(fabric)
    lids = lids_of(fabric, switches)
    tables = compute(switches, lids, engine="shortest")
    assert max(links_of_shift(switches, lids, tables, range(54), by).max() for by in range(1, 54)) > 1


@pytest.mark.parametrize("name", TREES)
def test_tiers_are_recognised_as_they_were_built(name):
    hosts, radix, shape = TREES[name]
    fabric = tree(hosts, radix, **shape)
    switches = switch_graph(fabric)
    tier = fabric.node_tier[switches.row_node]
    tiers = recognise(switches)
    assert np.array_equal(tier.max() - tiers.rank, tier)
    assert irregularity(switches, tiers) == ""


def test_a_management_island_and_a_spare_are_no_roots():
    # leaves 0-3, spines 4-5; 6 is a leaf without hosts below 7, which hangs on spine 5
    switches = graph([*((leaf, s) for leaf in range(4) for s in (4, 5)), (5, 7), (7, 6)], [2, 2, 2, 2, 0, 0, 0, 0])
    assert recognise(switches).roots.tolist() == [4, 5]


def test_an_island_joined_at_the_bottom_is_below_the_larger_parts_roots():
    # two trees of leaves under a spine, joined by a cable between two leaves
    cables = [(leaf, 4) for leaf in range(4)] + [(5, 7), (6, 7), (3, 5)]
    switches = graph(cables, [4, 4, 4, 4, 0, 1, 1, 0])
    tiers = recognise(switches)
    assert tiers.roots.tolist() == [4]
    assert tiers.rank.tolist() == [1, 1, 1, 1, 0, 2, 4, 3]
    lids = number_lids(switches)
    assert judge(switches, lids, compute(switches, lids, engine="updown")).sound


def test_missing_cables_cost_little_and_auto_says_what_is_odd():
    fabric = tree(54, 6, tiers=3)
    whole = switch_graph(fabric)
    switches = without(whole, {int(whole.port_edge[0, 4]), int(whole.port_edge[20, 5])})
    lids = number_lids(switches)
    tables = compute(switches, lids, engine="auto")
    assert tables.engine == "fattree"
    assert "spine-2 has 2 neighbours up, where most of tier 2 have 3" in tables.remark
    verdict = judge(switches, lids, tables)
    assert verdict.sound
    assert verdict.detours == 0
    plain = judge(switches, lids, compute(switches, lids, engine="shortest"))
    assert verdict.shifts.mean < plain.shifts.mean
    assert verdict.shifts.mean < 1.25


def test_auto_takes_balanced_for_what_is_no_tree():
    switches = torus(4, 4)
    tables = compute(switches, number_lids(switches), engine="auto")
    assert tables.engine == "balanced"
    assert "not a tree" in tables.remark
    few = compute(switches, number_lids(switches), engine="auto", options=Options(lanes=1))
    assert few.engine == "updown"
    assert "needs more than 1 lanes" in few.remark


def odd_trees() -> dict[str, tuple[Switches, str]]:
    whole = switch_graph(tree(54, 6, tiers=3))
    two = switch_graph(tree(32, 8, tiers=2))
    cables = [(leaf, s) for leaf in range(4) for s in (4, 5)]
    return {
        "one tier": (graph([], [4]), "it has 1 tiers, expected 2 to 8"),
        "a missing cable": (
            without(whole, {int(whole.port_edge[0, 4])}),
            "leaf-0 has 2 neighbours up, where most of tier 1 have 3",
        ),
        "a second cable": (
            graph([*cables, (0, 4)], [2] * 4 + [0, 0]),
            "sw-0 has 2 cables up to sw-4, where most of tier 1 have 1",
        ),
        "adapters above": (graph(cables, [2] * 4 + [1, 0]), "sw-4 carries adapters at tier 2"),
        "within a tier": (ring(5), "joins two switches of tier"),
        "fewer leaves": (
            without(
                two,
                {e for e in range(len(two.adjacent_row)) if two.adjacent_row[e] == two.rows - 1 and e % 3 == 0},
            ),
            "neighbours",
        ),
    }


@pytest.mark.parametrize("name", odd_trees())
def test_fattree_says_why_it_refuses(name):
    switches, why = odd_trees()[name]
    with pytest.raises(ConfigError, match="got a fabric that is no fat-tree") as error:
        compute(switches, number_lids(switches), engine="fattree")
    assert why in str(error.value)


def test_with_roots_fattree_takes_an_uneven_tree():
    whole = switch_graph(tree(54, 6, tiers=3))
    switches = without(whole, {int(whole.port_edge[0, 4])})
    roots = tuple(int(guid) for guid in switches.row_guid[recognise(switches).rank == 0])
    lids = number_lids(switches)
    tables = compute(switches, lids, engine="fattree", options=Options(roots=roots))
    assert judge(switches, lids, tables).sound


def test_links_up_lead_to_earlier_rows_of_the_top_down_order():
    for switches in (switch_graph(tree(54, 6, tiers=3)), torus(4, 5), ring(6)):
        tiers = recognise(switches)
        place = np.argsort(tiers.top_down)
        up = tiers.up != 0
        assert (place[switches.adjacent_row[up]] < place[switches.adjacent_from[up]]).all()
        assert (up ^ up[switches.adjacent_back]).all()  # one way up, the other down
        for row in range(switches.rows):
            others = {r for r in range(switches.rows) if r != row and tiers.slot[r] == tiers.slot[row]}
            children = set(switches.adjacent_row[~up & (switches.adjacent_from == row)].tolist())
            for other in others:
                theirs = set(switches.adjacent_row[~up & (switches.adjacent_from == other)].tolist())
                assert not children & theirs  # who shares a child stands in another place


def test_given_roots_are_the_top():
    switches = torus(3, 3)
    tiers = orient(switches, np.array([4], np.int32))
    assert tiers.rank[4] == 0
    assert tiers.rank.max() == 2
