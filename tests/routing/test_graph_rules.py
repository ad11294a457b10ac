"""Rules of the switch graph one by one: hops, tiers, places and shapes of drawn graphs, held against networkx."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import networkx as nx
import numpy as np
import pytest

from fabrictwin.routing.graph import shape
from fabrictwin.routing.graph import switch_tiers as tiers_
from fabrictwin.routing.graph.switch_tiers import astray_share, find_roots, orient, planes, recognise, sweep
from fabrictwin.routing.graph.switches import CableColumns, EndpointColumns, SwitchColumns, build_switches
from fabrictwin.routing.opensm import counted

FAR = 1 << 30


def graph(rows, cables, adapters, *, aggregation=()):
    """Switches `s0`, `s1`, ... with cables between rows, and adapters on rows; ports count up from 1."""
    used = [0] * rows

    def port(row):
        used[row] += 1
        return used[row]

    ends = [(a, port(a), b, port(b)) for a, b in cables]
    hung = [(row, port(row)) for row in adapters]
    columns = list(zip(*ends, strict=True)) or [(), (), (), ()]
    return build_switches(
        SwitchColumns([f"s{n}" for n in range(rows)], np.arange(100, 100 + rows)),
        CableColumns(*columns),
        EndpointColumns(
            [row for row, _ in hung], [number for _, number in hung],
            adapter=[n not in aggregation for n in range(len(hung))],
        ),
    )  # fmt: skip


def tree(leaves=4, spines=2, down=2, *, cables=1, without=(), more=(), **rest):
    """Two tiers; leaves are rows 0 and on, spines follow."""
    links = [(leaf, leaves + spine) for leaf in range(leaves) for spine in range(spines) for _ in range(cables)]
    for one in without:
        links.remove(one)
    return graph(
        leaves + spines, links + list(more), [leaf for leaf in range(leaves) for _ in range(down)], **rest
    )


def drawn(seed):
    """(switches, the same as networkx, adapters a row): some rows, some cables, some of them doubled."""
    draw = random.Random(seed)
    rows = draw.randrange(2, 9)
    cables = [
        (a, b) for a in range(rows) for b in range(a) if draw.random() < 0.4 for _ in range(draw.randrange(1, 3))
    ]
    adapters = [row for row in range(rows) for _ in range(draw.choice([0, 0, 1, 3]))]
    known = nx.MultiGraph()
    known.add_nodes_from(range(rows))
    known.add_edges_from(cables)
    return graph(rows, cables, adapters), known, [adapters.count(row) for row in range(rows)]


@pytest.mark.parametrize("seed", range(12))
def test_edges_and_endpoints_are_the_cables(seed):
    switches, known, adapters = drawn(seed)
    assert switches.rows == len(known)
    pairs = sorted(zip(switches.adjacent_from.tolist(), switches.adjacent_row.tolist(), strict=True))
    assert pairs == sorted([(a, b) for a, b, _ in known.edges] + [(b, a) for a, b, _ in known.edges])
    back = switches.adjacent_back
    assert (back[back] == np.arange(len(back))).all()
    assert (switches.adjacent_from[back] == switches.adjacent_row).all()
    assert switches.row_adapters.tolist() == adapters
    edge_rows = [row for row, count in enumerate(adapters) if count]
    assert switches.edge_row.tolist() == edge_rows
    assert switches.edge_column.tolist() == [
        edge_rows.index(r) if r in edge_rows else -1 for r in range(len(known))
    ]
    for edge in range(len(back)):
        here, number = int(switches.adjacent_from[edge]), int(switches.adjacent_number[edge])
        assert switches.port_edge[here, number] == edge
        there, far = int(switches.adjacent_row[edge]), int(switches.adjacent_number[back[edge]])
        assert switches.edge_name(edge) == f"s{here}/{number} > s{there}/{far}"
    assert (switches.port_edge >= 0).sum() == len(back)


@pytest.mark.parametrize("seed", range(12))
def test_hops_and_planes_are_networkx_s(seed):
    switches, known, _ = drawn(seed)
    for sources in ([0], list(range(0, switches.rows, 2))):
        hops = [
            min(
                (nx.shortest_path_length(known, s, row) for s in sources if nx.has_path(known, s, row)),
                default=FAR,
            )
            for row in range(switches.rows)
        ]
        assert sweep(switches, np.array(sources, np.int32)).tolist() == hops
    least = {row: min(part) for part in nx.connected_components(known) for row in part}
    assert planes(switches).tolist() == [least[row] for row in range(switches.rows)]


@pytest.mark.parametrize("seed", range(12))
def test_roots_are_switches_without_a_higher_neighbour(seed):
    switches, known, adapters = drawn(seed)
    part = {row: comp for comp in map(frozenset, nx.connected_components(known)) for row in comp}
    weight = {row: adapters[row] if any(adapters[r] for r in part[row]) else 1 for row in known}
    ends = [row for row in known if weight[row]]
    hops = {(a, b): nx.shortest_path_length(known, a, b) for a in known for b in part[a]}
    height = {row: min(hops[row, e] for e in ends if e in part[row]) for row in known}
    on = {
        row for row in known for a, b in product(ends, ends)
        if a in part[row] and b in part[row] and hops[a, row] + hops[row, b] == hops[a, b]
    }  # fmt: skip
    expected = [r for r in known if r in on and not any(n in on and height[n] > height[r] for n in known[r])]
    roots, total = find_roots(switches)
    assert roots.tolist() == expected
    assert total.tolist() == [sum(hops[r, e] * weight[e] for e in ends if e in part[r]) for r in expected]


@pytest.mark.parametrize("seed", range(16))
def test_an_orientation_ranks_by_hops_from_its_roots(seed):
    switches, known, _ = drawn(seed)
    roots = np.array([0] if seed % 2 else [0, switches.rows - 1], np.int32)
    found = orient(switches, roots, treelike=False)
    hops = sweep(switches, roots).tolist()
    least = max((h for h in hops if h < FAR), default=-1) + 1
    rank = [least if h == FAR else h for h in hops]
    assert found.rank.tolist() == rank
    up = [
        rank[b] < rank[a] or (rank[b] == rank[a] and b < a)
        for a, b in zip(switches.adjacent_from, switches.adjacent_row, strict=True)
    ]
    assert found.up.tolist() == up
    assert found.top_down.tolist() == sorted(range(switches.rows), key=lambda r: (rank[r], r))
    # who shares children, directly or by way of others
    shared = nx.Graph()
    shared.add_nodes_from(known)
    for child in known:
        above = sorted({
            int(b) for a, b, u in zip(switches.adjacent_from, switches.adjacent_row, up,
            strict=True) if a == child and u
        })  # fmt: skip
        nx.add_path(shared, above)
    for part in nx.connected_components(shared):
        for place, row in enumerate(sorted(part)):
            assert (found.slot[row], found.slots[row]) == (place, len(part))
    # in the order of a visit, what hangs together below a tier stands together
    assert sorted(found.visit.tolist()) == list(range(switches.rows))
    for tier in range(max(rank) + 1):
        below = known.subgraph([row for row in known if rank[row] >= tier])
        for part in nx.connected_components(below):
            at = sorted(found.visit.tolist().index(row) for row in part)
            assert at == list(range(at[0], at[0] + len(at)))
    # pairs without a way up and then down
    legal = nx.DiGraph()
    for a, b, u in zip(switches.adjacent_from.tolist(), switches.adjacent_row.tolist(), up, strict=True):
        if u:
            legal.add_edge((a, 0), (b, 0))
        legal.add_edges_from([((a, 1), (b, 1)), ((a, 0), (b, 1))] if not u else [])
    weight = tiers_._adapters(switches).tolist()
    near = astray = 0
    for a, b in product(known, known):
        if nx.has_path(known, a, b) and weight[a] and weight[b]:
            near += weight[a] * weight[b]
            ways = [end for end in ((b, 0), (b, 1)) if a == b or ((a, 0) in legal and end in legal and nx.has_path(
                legal, (a, 0), end))]  # fmt: skip
            astray += 0 if ways else weight[a] * weight[b]
    assert astray_share(switches, found) == pytest.approx(astray / max(near, 1))


def test_a_tree_is_recognised_and_few_links_within_a_tier_are_borne(monkeypatch):
    found = recognise(tree(4, 2))
    assert (found.roots.tolist(), found.rank.tolist(), found.treelike) == ([4, 5], [1] * 4 + [0] * 2, True)
    with_level = tree(4, 2, more=[(0, 1)])  # one cable of nine, both ways: 2 of 18 edges
    assert recognise(with_level).treelike is False
    for share, borne in ((2 / 18, True), (2 / 18 - 1e-9, False)):
        monkeypatch.setattr(tiers_, "LEVEL_AT_MOST", share)
        assert recognise(with_level).treelike == borne
    monkeypatch.setattr(tiers_, "LEVEL_AT_MOST", 1.0)
    monkeypatch.setattr(tiers_, "astray_share", lambda *given: 0.25)
    for share, borne in ((0.25, True), (0.24, False)):
        monkeypatch.setattr(tiers_, "ASTRAY_AT_MOST", share)
        assert recognise(with_level).treelike == borne


def test_what_is_no_tree_is_rooted_at_the_nearest_to_all_adapters():
    """A ring of five with two adapters on one switch: that one is the nearest to all."""
    ring = [(n, (n + 1) % 5) for n in range(5)]
    found = recognise(graph(5, ring, [0, 1, 2, 2, 3, 4]))
    assert (found.roots.tolist(), found.treelike) == ([2], False)
    assert found.rank.tolist() == [2, 1, 0, 1, 2]
    two = recognise(graph(8, [*ring, (5, 6), (6, 7)], [0, 1, 2, 2, 3, 4, 5, 7]))
    assert two.roots.tolist() == [2, 6]


# ---------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (tree(), ""),
        (tree(3, 3, 1, cables=2), ""),
        (tree(more=[(1, 2)]), "s1/3 > s2/3 joins two switches of the same tier"),
        (
            graph(6, [(a, b) for a in range(4) for b in (4, 5)], [0, 1, 2, 3, 5]),
            "s5 carries an adapter above the lowest tier",
        ),
        (
            graph(6, [(a, b) for a in range(4) for b in (4, 5)], [0, 1, 2, 3, 5], aggregation=(4,)),
            "s5 carries an aggregation node above the lowest tier",
        ),
        (tree(without=[(2, 5)]), "s2 has 1 neighbours up, where most of tier 1 have 2"),
        (tree(more=[(2, 5)]), "s2 has 2 cables up to s5, where most of tier 1 have 1"),
    ],
)
def test_why_a_fabric_is_no_regular_tree(made, why):
    spines = np.arange(4, 6) if made.row_adapters[3] else np.arange(3, 6)
    oriented = orient(made, spines.astype(np.int32))
    assert shape.irregularity(made, oriented) == why


def test_a_pod_s_switches_reach_all_that_it_shares():
    """Leaves 0 to 2 and spines 3 to 5 in a ring of pairs: each leaf has two of the three that the pod shares."""
    made = graph(6, [(0, 3), (0, 4), (1, 4), (1, 5), (2, 5), (2, 3)], [0, 1, 2])
    oriented = orient(made, np.array([3, 4, 5], np.int32))
    assert shape.uneven(made, oriented) == ""
    assert shape.irregularity(made, oriented) == "s0 has 2 neighbours up of the 3 that its pod shares"
    assert shape.irregularity(made, oriented, even=True) == "s0 has 2 neighbours up of the 3 that its pod shares"


def test_why_opensm_s_ftree_refuses_a_shape():
    made = tree(without=[(2, 5)])
    oriented = orient(made, np.array([4, 5], np.int32))
    assert shape.misfit(made, oriented, proper=False) == ""
    assert shape.misfit(made, oriented, proper=True) == "s2 has 1 neighbours up, where most of tier 1 have 2"
    flat = graph(1, [], [0, 0])
    assert (
        shape.misfit(flat, orient(flat, np.array([0], np.int32)), proper=False)
        == "it has 1 tiers, expected 2 to 8"
    )
    for switches, why in ((8, ""), (9, "it has 9 tiers, expected 2 to 8")):
        line = graph(switches, [(n, n + 1) for n in range(switches - 1)], [switches - 1])
        assert shape.misfit(line, orient(line, np.array([0], np.int32)), proper=False) == why
    level = tree(more=[(1, 2)])
    found = shape.misfit(level, orient(level, np.array([4, 5], np.int32)), proper=False)
    assert found == "s1/3 > s2/3 joins two switches of tier 1"
    high = graph(6, [(a, b) for a in range(4) for b in (4, 5)], [0, 1, 2, 3, 5])
    found = shape.misfit(high, orient(high, np.array([4, 5], np.int32)), proper=False)
    assert found == "s5 carries adapters at tier 2, expected them all at tier 1"


def test_downward_too_all_of_a_tier_are_alike():
    made = graph(6, [(0, 3), (1, 3), (2, 3), (0, 4), (1, 4), (2, 4), (0, 5), (1, 5), (2, 5)], [0, 1, 2])
    oriented = orient(made, np.array([3, 4, 5], np.int32))
    assert shape.uneven(made, oriented) == ""
    # two apart: three spines above two leaves, one above one
    made = graph(7, [(0, 3), (1, 3), (0, 4), (1, 4), (0, 5), (1, 5), (2, 6), (2, 6), (2, 6)], [0, 1, 2])
    oriented = orient(made, np.array([3, 4, 5, 6], np.int32))
    assert shape.uneven(made, oriented) == "s2 has 1 neighbours up, where most of tier 1 have 3"
    assert shape._usual(np.array([3, 1, 1, 3, 3])) == 3
    assert shape._usual(np.array([2, 2])) == 2
    assert shape._usual(np.array([4, 5])) == 4


# ---------------------------------------------------------------------- weights of OpenSM's engines


@pytest.mark.parametrize("strange", [False, True])
def test_hops_are_sums_of_weights_of_the_ports_that_are_known(strange):
    """s0 - s1 - s2 - s0, and a weight of 5 on one port of s0."""
    made = graph(3, [(0, 1), (1, 2), (2, 0)], [0, 1, 2])
    weights = {(100, 1): 5} | ({(999, 1): 7} if strange else {})
    options = replace(_options(), weights=weights)
    found = counted._hops(type("Subnet", (), {"switches": made, "options": options}))
    known = nx.DiGraph()
    for a, b, number in zip(made.adjacent_from, made.adjacent_row, made.adjacent_number, strict=True):
        known.add_edge(int(a), int(b), weight=weights.get((100 + int(a), int(number)), 1))
    for to, at in product(range(3), range(3)):
        assert found[to, at] == nx.shortest_path_length(known, at, to, weight="weight")


def _options():
    from fabrictwin.routing.engines.routing_options import Options

    return Options()
