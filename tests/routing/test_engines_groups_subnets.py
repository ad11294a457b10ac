"""Equal-cost groups, OpenSM's subnets, options of engines, and tables of lanes: small, against plain loops."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from support.clusters import blueprint
from support.routing_fabrics import graph, hops_between, number_lids, ring, tree

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.spec.congestion_section import CongestionControl
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing import congestion_tables as congestion
from fabrictwin.routing.engines.filling import blank_tables, destinations, refuse
from fabrictwin.routing.engines.registry import ENGINES, compute, engine_names, hash_seeds, route
from fabrictwin.routing.engines.routing_options import Options, edge_costs, rows_of_guids
from fabrictwin.routing.graph.equal_cost_groups import equal_cost
from fabrictwin.routing.graph.switches import (
    CableColumns,
    EndpointColumns,
    SwitchColumns,
    build_switches,
    switch_graph,
)
from fabrictwin.routing.lane_tables import LaneTables, PortArbitration
from fabrictwin.routing.opensm import subnets as subnets_
from fabrictwin.routing.partition_keys import may_talk
from fabrictwin.routing.path_spread import spread

# --- equal-cost groups ---------------------------------------------------------------------------------------


def drawn(seed, rows=8):
    draw = random.Random(seed)
    pairs = [(a, b) for a in range(rows) for b in range(a) if draw.random() < 0.35]
    cables = [pair for pair in pairs for _ in range(draw.choice([1, 1, 2]))]
    return graph(cables, [draw.choice([0, 1, 2]) for _ in range(rows)])


def check_groups(switches):
    groups = equal_cost(switches)
    far = hops_between(switches)
    sets = set()
    for row in range(switches.rows):
        for column, edge in enumerate(switches.edge_row.tolist()):
            hops = far[row].get(edge)
            assert groups.distance[column, row] == (255 if hops is None else hops)
            links = range(int(switches.adjacent_start[row]), int(switches.adjacent_start[row + 1]))
            ports = [
                int(switches.adjacent_port[e])
                for e in links
                if hops and far[int(switches.adjacent_row[e])].get(edge) == hops - 1
            ]
            assert groups.ports(row, column).tolist() == ports
            assert (groups.group_of[row, column] == NONE) == (not ports)
            if ports:
                sets.add(tuple(ports))
    assert len(groups.group_start) - 1 == len(sets)
    assert len(groups.group_ports) == sum(map(len, sets)) == groups.group_start[-1]
    assert groups.group_start[0] == 0
    return len(sets)


@pytest.mark.parametrize("seed", range(8))
def test_groups_are_ports_a_hop_nearer_and_each_set_is_kept_once(seed):
    check_groups(drawn(seed))


def test_more_groups_than_there_was_room_for_at_first():
    """Hubs over ten middles that each know another half of the leaves: nearly every leaf has a set of its own."""
    draw = random.Random(1)
    hubs, middles, leaves = 60, 10, 60
    cables = [(hub, hubs + middle) for hub in range(hubs) for middle in range(middles)]
    for leaf in range(leaves):
        cables += [(hubs + m, hubs + middles + leaf) for m in draw.sample(range(middles), 5)]
    switches = graph(cables, [0] * (hubs + middles) + [1] * leaves)
    groups = equal_cost(switches)
    first = 4 * (switches.rows + len(cables) * 2) + 16
    assert len(groups.group_ports) > 2 * first
    knows = {leaf: {a - hubs for a, b in cables if b == hubs + middles + leaf} for leaf in range(leaves)}
    for hub in range(0, hubs, 7):
        for column, leaf in enumerate(range(leaves)):
            own = switches.adjacent_start[hub]
            by_port = {int(switches.adjacent_port[own + m]): m for m in range(middles)}
            assert {by_port[int(p)] for p in groups.ports(hub, column)} == knows[leaf]


# --- OpenSM's subnets ----------------------------------------------------------------------------------------


def two_subnets():
    """Two parts of one graph, rows mixed, doubled cables, a cable from a switch to itself, one loose adapter."""
    switches = build_switches(
        SwitchColumns(["a", "b", "c", "d", "e"], [0x10, 0x0200, 0x01, 0x0300, 0x020001], [7, 8, 7, 9, 9]),
        # rows 0, 2 and 4 are joined, and 1 and 3; port 9 of row 3 leads to port 8 of it, 11 of row 0 to 12
        CableColumns([0, 2, 0, 1, 3, 0, 2], [1, 2, 3, 1, 9, 11, 5], [2, 4, 2, 3, 3, 0, 4], [1, 2, 3, 1, 8, 12, 6]),
        EndpointColumns(
            [0, 1, 4, 4, 3, NONE, 2], [20, 20, 21, 20, 22, 0, 30],
            adapter=[True, True, True, False, True, True, True],
            guid=[101, 102, 103, 104, 105, 106, 107], node_guid=[201, 202, 203, 204, 205, 206, 207],
        ),
    )  # fmt: skip
    return switches, number_lids(switches, 1)


def test_subnets_are_parts_of_the_graph_in_the_order_of_opensms_tables():
    switches, lids = two_subnets()
    lft = blank_tables(switches, lids)
    found = list(subnets_.subnets(switches, lids, Options(lanes=3), lft))
    # bytes of GUIDs from the last to the first: 0x0200 and 0x0300 end in 00; 0x01 and 0x020001 in 01, then 0x10
    assert [one.rows.tolist() for one in found] == [[2, 4, 0], [1, 3]]
    for one in found:
        part, rows = one.switches, one.rows.tolist()
        assert one.options == Options(lanes=3)
        assert (one.lft == lft[rows]).all()
        assert list(part.row_name) == [str(row) for row in rows]
        assert part.row_guid.tolist() == switches.row_guid[rows].tolist()
        assert part.system_guid.tolist() == switches.system_guid[rows].tolist()
        assert part.row_node.tolist() == rows
        assert one.lids.lmc == 1
        assert one.lids.row.tolist() == lids.row[rows].tolist()
        edges = range(len(part.adjacent_row))
        assert [part.edge_name(e) for e in edges] == [
            switches_name(switches, rows[r], int(n))
            for r, n in zip(part.adjacent_from, part.adjacent_number, strict=True)
        ]
        assert (part.adjacent_back[part.adjacent_back] == np.arange(len(edges))).all()
        assert part.port_edge[part.adjacent_from, part.adjacent_number].tolist() == list(edges)
        hung = [x for x in range(7) if switches.endpoint_row[x] in rows]
        assert [rows[row] for row in part.endpoint_row] == switches.endpoint_row[hung].tolist()
        for name in ("number", "adapter", "guid", "node_guid", "node", "port"):
            name = f"endpoint_{name}"
            assert getattr(part, name).tolist() == getattr(switches, name)[hung].tolist()
        assert one.lids.endpoint.tolist() == lids.endpoint[hung].tolist()
    assert found[0].switches.loops.tolist() == [[2, 11, 12], [2, 12, 11]]
    assert found[1].switches.loops.tolist() == [[1, 8, 9], [1, 9, 8]]
    assert subnets_.systems(switches).tolist() == [0, 1, 0, 2, 2]
    # of rows 2, 4, 0: port 30 of the first, ports 20 and 21 of the second
    assert subnets_.endpoints_by_port(found[0].switches).tolist() == [3, 2, 1, 0]


def switches_name(switches, row, number):
    """Name an edge of a part by rows of the whole, as its rows are named."""
    e = int(switches.port_edge[row, number])
    back = int(switches.adjacent_back[e])
    return f"{row}/{number} > {switches.adjacent_row[e]}/{switches.adjacent_number[back]}"


def test_tables_of_subnets_are_put_together_row_by_row():
    switches, lids = two_subnets()

    def fill(subnet):
        subnet.lft[:, 0] = subnet.rows + 40

    lft = subnets_.fill_subnets(switches, lids, Options(), fill)
    assert lft[:, 0].tolist() == [40, 41, 42, 43, 44]
    assert (lft[:, 1:] == blank_tables(switches, lids)[:, 1:]).all()


@pytest.mark.parametrize("order", [(), (104, 0x10, 104, 999, 101)])
@pytest.mark.parametrize("scatter", [0, 5])
def test_destinations_come_by_file_then_from_the_fullest_switches_then_switches(order, scatter):
    switches, lids = two_subnets()
    lids = replace(lids, row=[*lids.row[:2], 0, *lids.row[3:]])
    first, _ = subnets_.subnets(
        switches, lids, Options(order=order, scatter=scatter), blank_tables(switches, lids)
    )
    # rows 2, 4, 0 of the whole have 1, 2 and 1 endpoints: port 20 of row 4 is GUID 104's
    guids = [104, 103, 107, 101, 1 << 20 | 1, 0x020001, 0x10]
    at = [1, 1, 0, 2, 0, 1, 2]
    base = dict(zip(switches.endpoint_guid.tolist(), lids.endpoint.tolist(), strict=True))
    base |= {0x020001: int(lids.row[4]), 0x10: int(lids.row[0]), 1 << 20 | 1: 0}
    rows = list(zip(guids, at, strict=True))
    if order:
        wanted = [104, 0x10, 101]
        rows = [next(r for r in rows if r[0] == g) for g in wanted] + [r for r in rows if r[0] not in wanted]
    rows = [r for r in rows if base[r[0]]]
    found = subnets_.wanted(first)
    switch = {0x020001, 0x10}
    assert [column.tolist() for column in found] == [
        [place for _, place in rows],
        [base[g] for g, _ in rows],
        [int(g not in switch) for g, _ in rows],
        [1 if g in switch else 2 for g, _ in rows],
        [int(scatter > 0)] * len(rows),
    ]


@pytest.mark.parametrize(("leaves", "words"), [(0, 1), (1, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_a_bit_a_link_of_the_widest_switch(leaves, words):
    switches = graph([(0, 1 + leaf) for leaf in range(leaves)], [1] + [1] * leaves)
    assert subnets_.mask_words(switches) == words
    assert subnets_.endpoint_counts(switches).tolist() == [1] * (leaves + 1)


# --- options of engines --------------------------------------------------------------------------------------

TAKES = {
    "auto": {"roots"},
    "balanced": {"weights"},
    "dfsssp": {"compute", "storage"},
    "dmodk": set(),
    "dnup": {"order", "scatter"},
    "fattree": {"roots"},
    "ftree": {"roots", "compute", "storage"},
    "minhop": {"weights", "order", "scatter"},
    "shortest": {"weights"},
    "sssp": {"compute", "storage"},
    "updn": {"roots", "weights", "order", "scatter"},
    "updown": {"roots", "weights"},
}
ASKED = {
    "roots": (0x1002, 0x1003), "weights": {(0x1000, 3): 2}, "order": (1, 2), "scatter": 3,
    "compute": (1, 3), "storage": (2,),
}  # fmt: skip


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_each_engine_takes_its_options_and_names_those_that_it_refuses(engine):
    switches = graph([(0, 2), (1, 2), (0, 3), (1, 3)], [2, 2, 0, 0])
    lids = number_lids(switches)
    for key, value in ASKED.items():
        options = Options(**{key: value})
        if key in TAKES[engine]:
            assert compute(switches, lids, engine=engine, options=options).lft.shape == (4, 9)
            continue
        with pytest.raises(ConfigError, match=f"got {key}, which the engine {engine} has no use") as refused:
            compute(switches, lids, engine=engine, options=options)
        assert refused.value.key == key
    assert compute(switches, lids, engine=engine, options=Options(lanes=1)).lft.shape == (4, 9)


def test_options_of_no_value_are_none_and_some_may_be_taken():
    refuse(Options(), "any")
    refuse(Options(lmc=3, lanes=2, roots=(1,), scatter=1), "any", "roots", "scatter")
    with pytest.raises(ConfigError, match="got storage, which the engine any has no use for"):
        refuse(Options(storage=(5,), compute=(4,)), "any", "compute")


@pytest.mark.parametrize(
    ("key", "ends", "beyond"),
    [("lmc", (0, 7), (-1, 8)), ("lanes", (1, 15), (0, 16)), ("scatter", (0, 2**31 - 1), (-1, 2**31))],
)
def test_options_have_ends(key, ends, beyond):
    for value in ends:
        assert getattr(Options(**{key: value}), key) == value
    for value in beyond:
        with pytest.raises(ConfigError, match=f"got {value}, expected {ends[0]} to {ends[1]}"):
            Options(**{key: value})


def test_roots_and_weights_are_places_in_the_graph():
    switches = graph([(0, 1), (1, 2)], [1, 0, 1])
    assert rows_of_guids(switches, (0x1002, 0x1000), key="roots").tolist() == [0, 2]
    # row 1 has port 1 to row 0 and port 2 to row 2; port 1 of row 2 is its adapter's, 7 has no cable
    costs = edge_costs(switches, {(0x1001, 2): 5, (0x1002, 1): 9, (0x1002, 7): 9})
    assert costs.tolist() == [1, 1, 5, 1]
    for ask in (lambda: rows_of_guids(switches, (5,), key="roots"), lambda: edge_costs(switches, {(5, 1): 2})):
        with pytest.raises(ConfigError, match="got 0x0000000000000005, expected the GUID of a switch"):
            ask()


@pytest.mark.parametrize("lmc", [0, 2])
def test_destinations_count_adapters_through_in_the_order_of_the_visit(lmc):
    switches = graph([(0, 1), (1, 2)], [2, 0, 1], [0, 1, 1])
    lids = number_lids(switches, lmc)
    who = destinations(switches, lids, np.array([2, 0, 1], np.int32))
    lines = []
    # by row: the switch, its aggregation node, its adapters; adapters count from row 2, then row 0
    for row, nodes in enumerate(([(0, 1), (1, 2)], [], [(2, 0)])):
        place = [1, 2, 0][row]
        lines.append((row, int(lids.row[row]), place, 0, 0))
        for x in np.flatnonzero((switches.endpoint_row == row) & ~switches.endpoint_adapter):
            lines += [(row, int(lids.endpoint[x]) + k, place, k, 0) for k in range(2**lmc)]
        for x, index in nodes:
            lines += [(row, int(lids.endpoint[x]) + k, index, k, 1) for k in range(2**lmc)]
    assert who.start.tolist() == [sum(line[0] < row for line in lines) for row in range(4)]
    columns = (who.lid, who.index, who.path, who.counted)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == [line[1:] for line in lines]


def test_too_few_lanes_are_refused_and_enough_of_them_break_every_cycle():
    switches = ring(7)
    lids = number_lids(switches)
    for engine in ("balanced", "dfsssp"):
        with pytest.raises(ConfigError, match="got 1 virtual lane") as refused:
            compute(switches, lids, engine=engine, options=Options(lanes=1))
        assert refused.value.key == "lanes"
        assert compute(switches, lids, engine=engine, options=Options(lanes=2)).lanes == 2
    with_remark = compute(switches, lids, engine="auto", options=Options(lanes=1))
    assert with_remark.engine == "updown"
    assert "balanced needs more than 1 lanes" in with_remark.remark
    assert compute(switches, lids, engine="auto").engine == "balanced"


def test_engines_by_technology_and_seeds_of_hashes_by_switch():
    assert engine_names("infiniband") == tuple(ENGINES)
    assert engine_names("ethernet") == ("auto", "ecmp")
    fabric = tree(8, 4, tiers=2)
    seeds = hash_seeds(fabric, 3)
    expected = np.random.Generator(np.random.PCG64(3)).integers(
        0, 2**32, len(fabric.switch_nodes), dtype=np.uint32
    )
    assert seeds.dtype == np.uint32
    assert (seeds == expected).all()


def test_routes_of_a_fabric_hold_what_was_asked():
    fabric = tree(8, 4, tiers=2)
    found = route(fabric, engine="balanced", options=Options(lmc=1), seed=5, hash_name="crc32")
    assert (found.engine, found.lmc, found.hash_name) == ("balanced", 1, "crc32")
    assert (found.hash_seeds == hash_seeds(fabric, 5)).all()
    top = max(int(found.lid[fabric.switch_nodes].max()), int(found.lid[fabric.nic_node].max()) + 1)
    assert found.lft.shape == (len(fabric.switch_nodes), top + 1)
    assert len(found.switches.row_name) == len(list(found.switches.row_name)) == found.switches.rows
    plain = compile_fabric(
        blueprint(4, "dgx-h100", technology="ethernet", switch="spectrum-4", link_rate="400 Gb/s")
    )
    ecmp = route(plain)
    assert (ecmp.engine, ecmp.lft.shape, int(ecmp.lid.sum())) == ("ecmp", (len(plain.switch_nodes), 0), 0)
    with pytest.raises(ConfigError, match="got options of InfiniBand routing, expected none on ethernet"):
        route(plain, options=Options(lanes=2))
    for of, keys, key in (
        (plain, {"engine": "minhop"}, "engine"), (fabric, {"engine": "ecmp"}, "engine"),
        (fabric, {"hash_name": "md5"}, "hash"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="expected one of") as refused:
            route(of, **keys)
        assert refused.value.key == f"cluster.network.routing.{key}"


# --- paths that spread ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("down", [False, True])
def test_spread_parts_are_shares_of_all_shortest_paths(down):
    fabric = tree(16, 8, tiers=2)
    routes = route(fabric)
    switches = switch_graph(fabric)
    pairs = [(0, 15), (3, 9), (1, 0), (0, 7)]
    source, destination = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    up = np.ones(fabric.ports, bool)
    leaf = int(switches.node_row[fabric.port_node[fabric.port_peer[fabric.nic_port[0]]]])
    if down:
        up[switches.adjacent_port[switches.adjacent_start[leaf]]] = False
    found = spread(routes, source, destination, up if down else None)
    far = hops_between(switches)
    for i, (a, b) in enumerate(pairs):
        share: Counter[int] = Counter({int(fabric.nic_port[a]): 1.0})
        goal = int(switches.node_row[fabric.port_node[fabric.port_peer[fabric.nic_port[b]]]])
        level = Counter({int(switches.node_row[fabric.port_node[fabric.port_peer[fabric.nic_port[a]]]]): 1.0})
        while level:
            after: Counter[int] = Counter()
            for row, part in level.items():
                if row == goal:
                    share[int(fabric.port_peer[fabric.nic_port[b]])] += part
                    continue
                ports = [
                    e for e in range(switches.adjacent_start[row], switches.adjacent_start[row + 1])
                    if far[int(switches.adjacent_row[e])][goal] == far[row][goal] - 1
                ]  # fmt: skip
                ports = [e for e in ports if up[switches.adjacent_port[e]]] or ports
                for e in ports:
                    share[int(switches.adjacent_port[e])] += part / len(ports)
                    after[int(switches.adjacent_row[e])] += part / len(ports)
            level = after
        mine = found.pair == i
        assert dict(zip(found.port[mine].tolist(), found.share[mine].tolist(), strict=True)) == pytest.approx(
            dict(share)
        )


# --- lanes, congestion control, partitions -------------------------------------------------------------------


def test_every_table_of_lanes_is_kept_once():
    same, other = tuple(range(16)), (0,) * 16
    early, late = PortArbitration(((1, 4),), (), 3), PortArbitration((), ((0, 1),))
    found = LaneTables.of(
        5, {0: [same], 2: [other, other], 3: [same, other], 4: [other]}, {1: late, 3: early, 4: late}
    )
    assert found.sl_to_vl.tolist() == [list(same), list(other), list(same), list(other)]
    assert found.sl_to_vl_row.tolist() == [0, NONE, 1, 2, 1]
    assert found.by_input.tolist() == [False, False, False, True, False]
    assert found.arbitrations == (late, early)
    assert found.arbitration_row.tolist() == [NONE, 0, NONE, 1, 0]
    assert found.lanes_of([0]) == {0}
    assert found.lanes_of([3, 5]) == {0, 3, 5}
    assert (early.high_limit, late.high_limit) == (3, 0)
    assert found == LaneTables.of(
        5, {0: [same], 2: [other], 3: [same, other], 4: [other]}, {1: late, 3: early, 4: late}
    )
    for changed in (
        LaneTables.of(5, {0: [same], 2: [other], 3: [other, same], 4: [other]}, {1: late, 3: early, 4: late}),
        LaneTables.of(5, {0: [same], 2: [other], 3: [same, other]}, {1: late, 3: early, 4: late}),
        LaneTables.of(5, {0: [same], 2: [other], 3: [same, other], 4: [other]}, {1: early, 3: early, 4: late}),
        replace(found, by_input=~found.by_input), replace(found, arbitration_row=found.arbitration_row[::-1]),
        replace(found, sl_to_vl_row=found.sl_to_vl_row[::-1]), "tables",
    ):  # fmt: skip
        assert found != changed


SECTION = CongestionControl.model_construct(
    cc_sw_cong_setting_threshold=9, cc_sw_cong_setting_packet_size=2, cc_sw_cong_setting_marking_rate=6,
    cc_sw_cong_setting_victim_mask=0b0110, cc_sw_cong_setting_credit_mask=0b0011,
    cc_sw_cong_setting_credit_starvation_threshold=4, cc_sw_cong_setting_credit_starvation_return_delay=(1, 5),
)  # fmt: skip


@pytest.mark.parametrize("parts", range(32))
@pytest.mark.parametrize("port", [0, 1, 2, 3])
def test_a_port_marks_by_the_bits_of_the_control_map(parts, port):
    """Bits of the map: victim mask, credit mask, threshold and size, starvation threshold, marking rate (A10)."""
    section = SECTION.model_copy(update={"cc_sw_cong_setting_control_map": parts})
    starves = bool(parts & 8 and parts & 2 and port in (0, 1))
    assert congestion.marking_of(section, port) == congestion.PortMarking(
        threshold=9 if parts & 4 else 0,
        packet_size=2 if parts & 4 else 0,
        marking_rate=6 if parts & 16 else 0,
        victim=bool(parts & 1) and port in (1, 2),
        starvation=4 if starves else 0,
        return_delay=(1, 5) if starves else (0, 0),
    )


def test_an_adapter_slows_down_by_level_and_ports_name_settings_by_row():
    section = SECTION.model_copy(
        update={
            "cc_ca_cong_setting_control_map": 0b101, "cc_ca_cong_setting_ccti_timer": {0: 7, 1: 8},
            "cc_ca_cong_setting_ccti_increase": {0: 2}, "cc_ca_cong_setting_trigger_threshold": {2: 3},
            "cc_ca_cong_setting_ccti_min": {0: 1}, "cc_ca_cong_setting_port_control": 1,
            "cc_cct": ((0, 0), (0, 4), (1, 9)),
        }
    )  # fmt: skip
    control = congestion.control_of(section)
    levels = (congestion.LevelControl(7, 2, 0, 1), None, congestion.LevelControl(0, 0, 3, 0), *[None] * 13)
    assert control == congestion.AdapterControl(levels, ((0, 0), (0, 4), (1, 9)), 2, True)
    plain = congestion.control_of(SECTION.model_copy(update={"cc_cct": (), "cc_ca_cong_setting_port_control": 2}))
    assert (plain.table, plain.limit, plain.by_level) == (((0, 0),), 0, False)
    fabric = tree(8, 4, tiers=2)
    found = congestion.tables_of(fabric, section)
    assert (found.control_row == 0).all()
    switch = np.isin(fabric.port_node, fabric.switch_nodes)
    cabled = {p for p in np.flatnonzero(switch).tolist() if fabric.port_peer[p] != NONE}
    assert set(np.flatnonzero(found.marking_row != NONE).tolist()) == cabled
    for port in cabled:
        assert found.markings[found.marking_row[port]] == congestion.marking_of(
            section, int(fabric.port_number[port])
        )
    assert len(set(found.markings)) == len(found.markings)
    one, two = congestion.PortMarking(1), congestion.PortMarking(2)
    some = congestion.CongestionTables.of(fabric, {3: one, 1: two, 2: one}, {1: control, 0: plain})
    assert (some.markings, some.controls) == ((one, two), (control, plain))
    assert some.marking_row[:5].tolist() == [NONE, 1, 0, 0, NONE]
    assert some.control_row[:3].tolist() == [1, 0, NONE]
    assert some == congestion.CongestionTables.of(fabric, {3: one, 1: two, 2: one}, {1: control, 0: plain})
    for markings, controls in (
        ({3: one, 1: two}, {1: control, 0: plain}), ({3: one, 1: two, 2: one}, {1: control, 2: plain}),
        ({3: two, 1: one, 2: two}, {1: control, 0: plain}), ({3: one, 1: two, 2: one}, {1: plain, 0: control}),
    ):  # fmt: skip
        assert some != congestion.CongestionTables.of(fabric, markings, controls)
    assert some != 5


@pytest.mark.parametrize(
    ("a", "b", "talk"),
    [
        (0xFFFF, 0xFFFF, True), (0xFFFF, 0x7FFF, True), (0x7FFF, 0xFFFF, True), (0x7FFF, 0x7FFF, False),
        (0x8001, 0x8002, False), (0x8001, 0x0001, True), (0x0001, 0x0001, False), (0, 0, False),
        (0x8000, 0x8000, False), (0x8001, 0x8001, True), (0xC001, 0x8001, False),
    ],
)  # fmt: skip
def test_full_members_talk_to_all_of_their_partition(a, b, talk):
    """InfiniBand Architecture 10.9.3: limited members do not reach each other; key 0 is none."""
    keys = np.array([5, a, b], np.int64)
    assert may_talk(keys, np.array([1], np.int32), np.array([2], np.int32)).tolist() == [talk]
