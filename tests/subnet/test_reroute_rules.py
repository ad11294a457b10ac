"""Tables that change as little as they can, on drawn fabrics, held against networkx; and lanes read back."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace as Record

import networkx as nx
import numpy as np
import pytest

from fabrictwin.routing.graph.switches import CableColumns, EndpointColumns, Lids, SwitchColumns, build_switches
from fabrictwin.subnet.manager.sweep import table_computation
from fabrictwin.subnet.manager.sweep.table_computation import carry_over, destinations, reroute

NOWHERE = 255


def drawn(seed, *, lmc=0):
    """(graph as the manager has it, the same as networkx with ports, LIDs' switches and ports)."""
    draw = random.Random(seed)
    rows = draw.randrange(3, 8)
    pairs = [
        (a, b) for a in range(rows) for b in range(a) if draw.random() < 0.5 for _ in range(draw.randrange(1, 3))
    ]
    used = [0] * rows

    def port(row):
        used[row] += 1
        return used[row]

    cables = [(a, port(a), b, port(b)) for a, b in pairs]
    hung = [(row, port(row)) for row in range(rows) for _ in range(draw.randrange(0, 3))]
    columns = list(zip(*cables, strict=True)) or [(), (), (), ()]
    switches = build_switches(
        SwitchColumns([f"s{n}" for n in range(rows)], np.arange(100, 100 + rows)), CableColumns(*columns),
        EndpointColumns([row for row, _ in hung], [number for _, number in hung]),
    )  # fmt: skip
    ends = np.arange(len(hung), dtype=np.int32) * (1 << lmc) + 16
    lids = Lids(np.arange(2, 2 + rows, dtype=np.int32), ends, lmc)
    known = nx.MultiGraph()
    known.add_nodes_from(range(rows))
    known.add_edges_from((a, b, {"ports": {a: p, b: q}}) for a, p, b, q in cables)
    to = {2 + row: (row, 0) for row in range(rows)}
    to |= {int(ends[x]) + k: at for x, at in enumerate(hung) for k in range(1 << lmc)}
    graph = Record(switches=switches, lids=lids, nodes=[Record(guid=100 + row) for row in range(rows)])
    return graph, known, to


def allowed(known, row, goal):
    """The ports of a switch that lead nearer to another."""
    if row == goal or not nx.has_path(known, row, goal):
        return set()
    far = nx.single_source_shortest_path_length(known, goal)
    return {data["ports"][row] for _, n, data in known.edges(row, data=True) if far[n] < far[row]}


@pytest.mark.parametrize("lmc", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_lids_lead_to_the_port_that_they_hang_on(seed, lmc):
    graph, _, to = drawn(seed, lmc=lmc)
    found = destinations(graph)
    top = len(found.row) - 1
    assert top == graph.lids.top
    for lid in range(top + 1):
        assert (int(found.row[lid]), int(found.number[lid])) == to.get(lid, (-1, 0))


@pytest.mark.parametrize("chunk", [3, 512])
@pytest.mark.parametrize("seed", range(10))
def test_what_leads_along_a_shortest_path_stays_and_the_rest_is_spread(monkeypatch, seed, chunk):
    monkeypatch.setattr(table_computation, "_CHUNK", chunk)
    graph, known, to = drawn(seed, lmc=1)
    draw = random.Random(seed + 100)
    rows, lids = graph.switches.rows, graph.lids.top + 1
    old = np.array(
        [[draw.choice([NOWHERE, *range(5)]) for _ in range(lids + draw.choice([-3, 0, 4]))] for _ in [0]] * rows
    )
    for row in range(rows):
        old[row] = [draw.choice([NOWHERE, *range(5)]) for _ in range(old.shape[1])]
    old = old.astype(np.uint8)
    new = reroute(graph, old)
    assert new.shape == (rows, lids)
    for row in range(rows):
        load: Counter[int] = Counter()
        moved: dict[frozenset[int], list[int]] = {}
        for lid in range(lids):
            before = int(old[row, lid]) if lid < old.shape[1] else NOWHERE
            if lid not in to:
                assert new[row, lid] == NOWHERE
                continue
            goal, number = to[lid]
            ways = allowed(known, row, goal)
            if goal == row:
                assert new[row, lid] == number
            elif not ways:
                assert new[row, lid] == NOWHERE  # whatever stood there
            elif before in ways:
                assert new[row, lid] == before
                load[before] += 1
            else:
                assert int(new[row, lid]) in ways
                moved.setdefault(frozenset(ways), []).append(lid)
        for ways, those in moved.items():
            given = Counter(int(new[row, lid]) for lid in those)
            assert max(given[p] for p in ways) - min(given[p] for p in ways) <= 1  # in turn


def test_moved_entries_begin_with_the_port_that_has_the_least():
    """One switch, two equal cables to another with five adapters; three of them stay on the first cable."""
    switches = build_switches(
        SwitchColumns(["a", "b"], [1, 2]), CableColumns([0, 0], [1, 2], [1, 1], [1, 2]),
        EndpointColumns([1] * 6, range(3, 9)),
    )  # fmt: skip
    graph = Record(switches=switches, lids=Lids(np.array([2, 3], np.int32), np.arange(10, 16, dtype=np.int32), 0))
    old = np.full((2, 16), NOWHERE, np.uint8)
    old[0, 10:13] = 1
    new = reroute(graph, old)
    assert new[0, 10:16].tolist() == [1, 1, 1, 1, 2, 1]  # after the other switch itself
    assert new[0, 2:4].tolist() == [0, 2]
    assert new[1, 10:16].tolist() == [3, 4, 5, 6, 7, 8]


def test_what_switches_hold_is_carried_over_by_their_guid():
    graph, _, _ = drawn(1)
    lids = graph.lids.top + 1
    held = {
        100: np.arange(lids + 5, dtype=np.uint8),
        102: np.array([7, 8], np.uint8),
        999: np.array([1], np.uint8),
    }
    found = carry_over(graph, held)
    assert found.shape == (graph.switches.rows, lids)
    assert found[0].tolist() == list(range(lids))
    assert set(found[1].tolist()) == {NOWHERE}
    assert found[2].tolist() == [7, 8] + [NOWHERE] * (lids - 2)
