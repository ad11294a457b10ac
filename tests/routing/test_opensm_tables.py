"""OpenSM's engines against tables that OpenSM 3.3.23 made, and minhop against plain loops.

`opensm_tables/` holds two fabrics of 27 hosts, whole and without a cable and two cores, and the tables that the
real OpenSM programmed into them over ibsim. Larger ones are compared live in `test_routing_opensm.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_fabrics import drawn
from support.routing_fabrics import graph, lids_of, number_lids, ring, torus, tree

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.routing.check.comparison import beside
from fabrictwin.routing.check.judge import judge
from fabrictwin.routing.engines.registry import OPENSM, compute
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import Lids, Switches, switch_graph
from fabrictwin.routing.opensm.subnets import wire_order

MADE = Path(__file__).parent / "opensm_tables"
CASES = ["minhop", "updn", "dnup", "ftree", "sssp", "dfsssp"]
CASES += ["minhop lmc 1", "updn lmc 2", "sssp lmc 1", "minhop scatter 17"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fabric", ["whole", "damaged"])
def test_tables_are_opensms_entry_for_entry(fabric, case):
    spec = read_spec({"schema": 1, "cluster": {"ibnetdiscover": str(MADE / f"{fabric}.net")}})
    switches = switch_graph(compile_fabric(build(spec.cluster, spec=spec)))
    made = json.loads((MADE / f"{fabric}.json").read_text())[case]
    engine = case.split()[0]
    if made is None:
        with pytest.raises(ConfigError, match=f"OpenSM's {engine} refuses: switch 0x"):
            compute(switches, number_lids(switches), engine=engine)
        return
    lids = Lids(made["rows"], made["endpoints"], made["lmc"])
    options = Options(lmc=made["lmc"], scatter=17 if "scatter" in case else 0)
    tables = compute(switches, lids, engine=engine, options=options)
    for row, guid in enumerate(switches.row_guid):
        theirs = bytes.fromhex(made["tables"][f"{int(guid):016x}"])
        assert tables.lft[row].tolist() == list(theirs), switches.row_name[row]


def test_the_order_is_that_of_bytes_from_the_last_to_the_first():
    guids = np.array([0x0000_0000_0000_0200, 0x0000_0000_0000_0001, 0x0100_0000_0000_0001], np.uint64)
    assert wire_order(guids).tolist() == [0, 1, 2]


# -- minhop by plain loops ----------------------------------------------------------------------------------------


def by_plain_loops(switches: Switches, lids: Lids) -> np.ndarray:
    """minhop's tables as its rules read: hops by relaxation, counters a port, unused systems and switches."""
    rows = sorted(range(switches.rows), key=lambda r: int(switches.row_guid[r]).to_bytes(8, "big")[::-1])
    ports = [
        {
            int(switches.adjacent_number[e]): int(switches.adjacent_row[e])
            for e in range(switches.adjacent_start[r], switches.adjacent_start[r + 1])
        }
        for r in range(switches.rows)
    ]
    far = [[0 if a == b else 255 for b in range(switches.rows)] for a in range(switches.rows)]
    for _ in range(switches.rows):
        for a in range(switches.rows):
            for peer in ports[a].values():
                for b in range(switches.rows):
                    far[a][b] = min(far[a][b], far[peer][b] + 1)
    hung: list[list[int]] = [[] for _ in range(switches.rows)]
    for x in np.argsort(switches.endpoint_number, kind="stable").tolist():
        hung[int(switches.endpoint_row[x])].append(x)
    ends = [x for row in sorted(rows, key=lambda r: -len(hung[r])) for x in hung[row]]
    lft = np.full((switches.rows, lids.top + 1), 255, np.uint8)
    for row in rows:
        load = dict.fromkeys(ports[row], 0)
        used: dict[int, list[int]] = {x: [] for x in ends}
        for path in range(1 << lids.lmc):
            for x in ends:
                to, lid = int(switches.endpoint_row[x]), int(lids.endpoint[x]) + path
                if to == row:
                    lft[row, lid] = switches.endpoint_number[x]
                    continue
                best = [p for p in sorted(ports[row]) if far[ports[row][p]][to] + 1 == far[row][to] < 255]
                if not best:
                    continue
                if path:
                    after = [p for p in best if p > lft[row, lid - 1]]
                    best = after + [p for p in best if p not in after]
                fresh = [p for p in best if ports[row][p] not in used[x]]
                if fresh:
                    port = min(fresh, key=lambda p: load[p])
                else:
                    port = min(best, key=lambda p: (load[p], used[x].count(ports[row][p])))
                lft[row, lid] = port
                load[port] += 1
                used[x].append(ports[row][port])
            if path:
                continue
            for to in range(switches.rows):
                best = [p for p in sorted(ports[row]) if far[ports[row][p]][to] + 1 == far[row][to] < 255]
                if to == row:
                    lft[row, lids.row[to]] = 0
                elif best:
                    lft[row, lids.row[to]] = min(best, key=lambda p: load[p])
    return lft


@st.composite
def graphs(draw: st.DrawFn) -> Switches:
    rows = draw(st.integers(2, 7))
    cables = [(row, draw(st.integers(0, row - 1))) for row in range(1, rows)]
    pair = st.tuples(st.integers(0, rows - 1), st.integers(0, rows - 1)).filter(lambda ends: ends[0] != ends[1])
    cables += draw(st.lists(pair, max_size=14))
    return graph(cables, draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows)))


@settings(max_examples=80)
@given(switches=graphs(), lmc=st.integers(0, 1))
def test_minhop_is_what_plain_loops_make_of_its_rules(switches, lmc):
    lids = number_lids(switches, lmc)
    tables = compute(switches, lids, engine="minhop", options=Options(lmc=lmc))
    assert np.array_equal(tables.lft, by_plain_loops(switches, lids))


# -- options and refusals -----------------------------------------------------------------------------------------


def test_destinations_of_an_order_file_come_first():
    switches = graph([(0, 1), (0, 1), (0, 1)], [1, 4])
    lids = number_lids(switches)
    ends = [x for x in range(5) if switches.endpoint_row[x] == 1]
    plain = compute(switches, lids, engine="minhop").lft[0, lids.endpoint[ends]]
    first = sorted(set(plain.tolist()))
    assert plain.tolist() == [*first, first[0]]
    order = (int(switches.endpoint_guid[ends[3]]), int(switches.endpoint_guid[ends[2]]))
    turned = compute(switches, lids, engine="minhop", options=Options(order=order)).lft[0, lids.endpoint[ends]]
    assert turned.tolist() == [first[2], first[0], first[1], first[0]]


@pytest.mark.parametrize("engine", ["updn", "ftree"])
def test_a_ring_is_refused_in_one_line(engine):
    switches = ring(7)
    with pytest.raises(ConfigError) as error:
        compute(switches, number_lids(switches), engine=engine)
    assert f"OpenSM's {engine}" in str(error.value)
    assert "\n" not in str(error.value)


def test_ftree_refuses_an_lmc():
    switches = switch_graph(tree(16, 8, tiers=2))
    with pytest.raises(ConfigError, match="got an lmc, which OpenSM's ftree refuses"):
        compute(switches, number_lids(switches, 1), engine="ftree", options=Options(lmc=1))


def test_roots_that_are_not_there_are_passed_over_and_told():
    switches = switch_graph(tree(16, 8, tiers=2))
    lids = number_lids(switches)
    roots = [int(switches.row_guid[r]) for r in range(switches.rows) if switches.row_adapters[r] == 0]
    tables = compute(switches, lids, engine="updn", options=Options(roots=(*roots, 0xABCD)))
    assert tables.remark == f"1 of {len(roots) + 1} roots are not in the fabric"
    assert np.array_equal(tables.lft, compute(switches, lids, engine="updn").lft)


def test_dfsssp_gives_lanes_where_paths_could_deadlock():
    switches = torus(4, 4)
    lids = number_lids(switches)
    tables = compute(switches, lids, engine="dfsssp")
    assert 1 < tables.lanes <= 8
    assert np.array_equal(tables.lft, compute(switches, lids, engine="sssp").lft)
    assert judge(switches, lids, tables, shifts=2, random=1).sound


def _paths_by_lane(switches: Switches, lids: Lids) -> list[int]:
    """Paths between ports, the switches' own too, on each lane by dfsssp."""
    tables = compute(switches, lids, engine="dfsssp")
    adapters = np.bincount(switches.endpoint_row, minlength=switches.rows)
    paths = np.zeros(tables.lanes, int)
    for lid in (*lids.row, *lids.endpoint):
        for column, row in enumerate(switches.edge_row):
            paths[tables.lane[lid, column]] += adapters[row]
    paths[0] += switches.rows * (switches.rows - 1 + len(lids.endpoint))  # from switches: they wait for nobody
    paths[0] -= len(lids.endpoint)  # from an adapter to itself
    return [int(count) for count in paths]


def _drawn(seed: int, tmp_path: Path) -> tuple[Switches, Lids]:
    path = tmp_path / "net"
    path.write_text(drawn(seed)[1])
    spec = read_spec({"schema": 1, "cluster": {"ibnetdiscover": str(path)}})
    fabric = compile_fabric(build(spec.cluster, spec=spec))
    switches = switch_graph(fabric)
    return switches, lids_of(fabric, switches)


def test_paths_are_on_dfsssps_lanes_as_opensm_counted_them(tmp_path):
    switches, lids = _drawn(7194, tmp_path)
    assert _paths_by_lane(switches, lids) == [12484, 0, 0, 2157, 1056, 527, 250, 38]


def test_dfsssp_refuses_by_the_lids_of_switches_where_opensm_does(tmp_path):
    """One torus, whose cycles OpenSM searches in the order of LIDs: with the file's it needs a ninth lane."""
    switches, lids = _drawn(7007, tmp_path)
    with pytest.raises(ConfigError, match="got 8 virtual lanes, where OpenSM's dfsssp refuses"):
        compute(switches, lids, engine="dfsssp")
    counted = [34379, 12532, 6901, 2671, 1429, 801, 467, 112]
    assert _paths_by_lane(switches, number_lids(switches)) == counted


@pytest.mark.parametrize("engine", OPENSM)
def test_several_subnets_are_routed_as_if_each_were_alone(engine):
    if engine in ("updn", "ftree"):
        cables = [(0, 2), (0, 3), (1, 2), (1, 3)]
        adapters = [3, 3, 0, 0]
    else:
        cables, adapters = [(0, 1), (1, 2), (2, 0), (0, 3)], [2, 1, 3, 1]
    rows = len(adapters)
    both = graph([*cables, *((a + rows, b + rows) for a, b in cables)], adapters + adapters)
    one = graph(cables, adapters)
    alone = compute(one, number_lids(one), engine=engine).lft
    lids = number_lids(one)
    doubled = Lids(np.tile(lids.row, 2), np.tile(lids.endpoint, 2))
    tables = compute(both, doubled, engine=engine).lft
    assert np.array_equal(tables[:rows], alone)
    assert np.array_equal(tables[rows:], alone)


def test_the_twins_engines_beside_opensms_name_the_gain():
    switches = switch_graph(tree(54, 6, tiers=3))
    lids = number_lids(switches)

    def judged(tables):
        return judge(switches, lids, tables)

    verdict = judged(compute(switches, lids, engine="minhop"))
    own, auto = beside(verdict, switches, lids, Options(), judged)
    assert (own.engine, auto.engine) == ("shortest", "auto")
    assert auto.shifts == 1
    assert auto.gain_shifts == pytest.approx(1 - 1 / verdict.shifts.mean)
    assert beside(judged(compute(switches, lids, engine="auto")), switches, lids, Options(), judged) == ()


@pytest.mark.parametrize("engine", ["sssp", "dfsssp"])
@pytest.mark.parametrize("key", ["roots", "order"])
def test_weighed_paths_have_no_use_for_roots_or_an_order(engine, key):
    switches = ring(4)
    lids = number_lids(switches)
    with pytest.raises(ConfigError, match=f"got {key}, which the engine {engine} has no use for"):
        compute(switches, lids, engine=engine, options=Options(**{key: (1,)}))
    for useful in ("compute", "storage"):
        compute(switches, lids, engine=engine, options=Options(**{useful: (1,)}))


def test_nodes_are_of_three_classes():
    """Weights of OpenSM's sssp count compute nodes first, then I/O nodes; a node of both lists computes."""
    from types import SimpleNamespace

    from fabrictwin.routing.opensm.sssp import _class

    ends = SimpleNamespace(endpoint_guid=np.array([1, 2, 3, 4], np.uint64))
    kinds = _class(SimpleNamespace(switches=ends, options=Options(compute=(2, 3), storage=(3, 4))))
    assert kinds.tolist() == [2, 0, 0, 1]
