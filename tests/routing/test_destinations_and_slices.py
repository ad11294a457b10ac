"""Destinations, blank tables, spread paths and slices of a judgement, by plain loops over drawn graphs."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace as Record

import numpy as np
import pytest
from support.clusters import blueprint
from support.routing_fabrics import graph, number_lids

from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import NONE
from fabrictwin.kernel.routing import path_loads
from fabrictwin.routing.check import judge as judging
from fabrictwin.routing.engines import filling
from fabrictwin.routing.engines.registry import route
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import Lids
from fabrictwin.routing.path_spread import spread


def drawn(seed: int, lmc: int = 0):
    """Five switches with adapters and aggregation nodes; one end has no switch, others and a switch no LID."""
    draw = random.Random(seed)
    switches = graph(
        [(0, 1), (1, 2), (2, 3), (3, 4)],
        [draw.randrange(1, 4) for _ in range(5)],
        [draw.randrange(3) for _ in range(5)],
    )
    lids = number_lids(switches, lmc)
    row, number, base = switches.endpoint_row.copy(), switches.endpoint_number.copy(), lids.endpoint.copy()
    order = draw.sample(range(len(row)), 3)
    row[order[0]], number[order[0]] = NONE, 0
    base[order[1]] = 0
    own = lids.row.copy()
    own[draw.randrange(5)] = 0
    return replace(switches, endpoint_row=row, endpoint_number=number), Lids(own, base, lmc)


def ends_at(switches, lids, row):
    """[(port, counted, base LID)] of what hangs on a switch and has a LID, by port."""
    hung = [
        (int(switches.endpoint_number[x]), bool(switches.endpoint_adapter[x]), int(lids.endpoint[x]))
        for x in range(len(lids.endpoint))
        if switches.endpoint_row[x] == row and lids.endpoint[x] > 0
    ]
    return sorted(hung)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("lmc", [0, 1, 2])
def test_destinations_are_listed_by_switch_uncounted_ones_first(seed, lmc):
    switches, lids = drawn(seed, lmc)
    visit = np.array(random.Random(seed).sample(range(5), 5), np.int32)
    place = {int(row): at for at, row in enumerate(visit)}
    numbers, count = {}, 0
    for row in visit.tolist():
        for _, counted, base in ends_at(switches, lids, row):
            if counted:
                numbers[base], count = count, count + 1
    expected, start = [], [0]
    for row in range(5):
        if lids.row[row]:
            expected.append((int(lids.row[row]), place[row], 0, 0))
        for wanted in (False, True):
            for _, counted, base in ends_at(switches, lids, row):
                if counted == wanted:
                    index = numbers[base] if counted else place[row]
                    expected += [(base + path, index, path, int(counted)) for path in range(1 << lmc)]
        start.append(len(expected))
    found = filling.destinations(switches, lids, visit)
    columns = (found.lid, found.index, found.path, found.counted)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert found.start.tolist() == start
    assert found.visit.tolist() == visit.tolist()
    plain = filling.destinations(switches, lids)
    assert plain.visit.tolist() == [0, 1, 2, 3, 4]
    # what is not counted has the tree of the first of its switch
    lid, stands = filling.tree_of(switches, lids)
    assert lid.tolist() == [one for one, *_ in expected]
    first = {at: expected[start[row]][0] for row in range(5) for at in range(start[row], start[row + 1])}
    assert stands.tolist() == [one if counted else first[at] for at, (one, _, _, counted) in enumerate(expected)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lmc", [0, 2])
def test_blank_tables_have_switches_and_their_ends(seed, lmc):
    switches, lids = drawn(seed, lmc)
    top = max(int(lids.row.max()), int(lids.endpoint.max()) + (1 << lmc) - 1)
    assert lids.top == top
    expected = np.full((5, top + 1), 255)
    for row in range(5):
        if lids.row[row]:
            expected[row, lids.row[row]] = 0
        for port, _, base in ends_at(switches, lids, row):
            expected[row, base : base + (1 << lmc)] = port
    assert filling.blank_tables(switches, lids).tolist() == expected.tolist()
    assert Lids([3, 9], [0, 0], 3).top == 9
    assert Lids([0, 0], [4, 8], 3).top == 15


@pytest.mark.parametrize("key", ["roots", "weights", "order", "scatter", "compute", "storage"])
def test_options_without_a_use_are_refused_by_name(key):
    options = Record(
        **{**dict.fromkeys(("roots", "weights", "order", "scatter", "compute", "storage"), ()), key: (1,)}
    )
    with pytest.raises(ConfigError, match=f"got {key}, which the engine x has no use for"):
        filling.refuse(options, "x", "lmc")
    filling.refuse(options, "x", "other", key)
    filling.refuse(Options(), "x")


@pytest.mark.parametrize(
    ("items", "paths", "width"),
    [(0, 5, 1), (1, 1, 500_000), (7, 200_000, 2), (8, 200_000, 2), (9, 250_000, 2), (5, 250_001, 1),
    (3, 0, 500_000),
     (3, 10**7, 1)],
)  # fmt: skip
def test_slices_have_so_many_paths_and_say_how_far_they_are(items, paths, width):
    heard = []
    found = list(judging._slices(items, paths, heard.append))
    firsts = list(range(0, items, width))
    assert [(one.start, one.stop) for one in found] == [(first, first + width) for first in firsts]
    assert heard == [first / items for first in firsts]


@pytest.mark.parametrize(
    ("adapters", "most", "expected"),
    [(0, None, []), (1, None, []), (2, None, [1]), (6, None, [1, 2, 3, 4, 5]), (6, 5, [1, 2, 3, 4, 5]),
    (6, 9, [1, 2, 3, 4, 5]),
     (11, 4, [1, 4, 7, 10]), (11, 1, [1]), (101, 5, [1, 26, 50, 75, 100]), (6, 0, [])],
)  # fmt: skip
def test_shifts_that_are_looked_at_are_evenly_spread(adapters, most, expected):
    assert judging.shift_sample(adapters, most).tolist() == expected


def test_as_many_shifts_are_walked_as_take_seconds():
    assert len(judging.shift_sample(4000, None)) == 3999
    assert len(judging.shift_sample(10_000, None)) == 20_000_000 // 10_000
    assert len(judging.shift_sample(10_000_000, None)) == 16


@pytest.mark.parametrize(("depth", "how"), [(path_loads.LOOP, "the tables loop"), (3, "the tables lead nowhere")])
@pytest.mark.parametrize(("number", "what"), [(0, "sw-4"), (7, "port 7 of sw-4")])
def test_why_somebody_is_not_reached(depth, how, number, what):
    switches = Record(row_name=[f"sw-{row}" for row in range(6)])
    who = Record(at=[0, 4], number=[0, number], lid=[5, 9])
    assert judging._why(switches, who, 1, 2, depth) == f"LID 9 ({what}) from sw-2: {how}"


# ---------------------------------------------------------------------- spread paths


@pytest.mark.parametrize(
    "topology",
    [{"kind": "fat-tree", "tiers": 2, "leaf_down": 8, "spines": 3},
     {"kind": "fat-tree", "tiers": 3, "leaf_down": 16, "leaves": 2, "pods": 2}],
)  # fmt: skip
@pytest.mark.parametrize("down", [False, True])
def test_parts_of_a_pair_lie_side_by_side_at_each_hop(topology, down):
    """Hop by hop: shares of a pair add up to one, and each begins where those listed before it end."""
    fabric = compile_fabric(
        blueprint(
            8, "dgx-h100", technology="ethernet", switch="spectrum-4", link_rate="400 Gb/s", topology=topology
        )
    )
    routes = route(fabric)
    source, destination = np.array([0, 9, 0, 63, 5], np.int32), np.array([63, 40, 1, 0, 5], np.int32)
    up = np.ones(fabric.ports, bool)
    if down:
        leaf = fabric.port_node[fabric.port_peer[fabric.nic_port[0]]]
        trunk = np.flatnonzero((fabric.port_node == leaf) & (fabric.port_peer != NONE))
        far = fabric.port_node[fabric.port_peer[trunk]]
        up[trunk[np.isin(far, routes.switches.row_node)][0]] = False
    found = spread(routes, source, destination, up if down else None)
    for i, (a, b) in enumerate(zip(source.tolist(), destination.tolist(), strict=True)):
        mine = found.pair == i
        ports, shares, before = (column[mine].tolist() for column in (found.port, found.share, found.before))
        start, goal = int(fabric.nic_node[a]), int(fabric.nic_node[b])
        groups, here, took, longest = [], {start: 1.0}, {start: 0}, 0
        at = 0
        while here:
            hop, there, arrives = [], defaultdict(float), defaultdict(int)
            total = 0.0
            while at < len(ports) and int(fabric.port_node[ports[at]]) in here and total < 1 - 1e-9:
                port, node = ports[at], int(fabric.port_node[ports[at]])
                assert before[at] == pytest.approx(total)
                total += shares[at]
                far = int(fabric.port_node[fabric.port_peer[port]])
                there[far] += shares[at]
                late = took[node] + int(fabric.node_latency_ps[node]) + int(fabric.port_latency_ps[port])
                arrives[far] = max(arrives[far], late)
                hop.append(port)
                at += 1
            groups.append(hop)
            done = there.pop(goal, 0.0)
            assert total == pytest.approx(sum(here.values()))
            if done:
                longest = max(longest, arrives[goal])
            here, took = dict(there), dict(arrives)
        assert at == len(ports)
        assert found.latency_ps[i] == longest
        assert not down or all(up[port] for port in ports)


def test_who_cannot_be_reached_is_named():
    fabric = compile_fabric(
        blueprint(2, "dgx-h100", technology="ethernet", switch="spectrum-4", link_rate="400 Gb/s",
                  topology={"kind": "fat-tree", "tiers": 2, "leaf_down": 8, "spines": 2})
    )  # fmt: skip
    routes = route(fabric)
    lost = replace(routes.groups, group_of=np.full_like(routes.groups.group_of, NONE))
    routes.__dict__["groups"] = lost
    leaves = fabric.port_node[fabric.port_peer[fabric.nic_port]]
    near = int(np.flatnonzero(leaves == leaves[0])[1])
    far = np.flatnonzero(leaves != leaves[0])
    assert spread(routes, np.array([0], np.int32), np.array([near], np.int32)).share.tolist() == [1.0, 1.0]
    if len(far):
        names = [fabric.node_name(int(fabric.nic_node[n])) for n in (0, int(far[0]))]
        with pytest.raises(ConfigError, match=f"{names[1]} cannot be reached from {names[0]}: no path"):
            spread(routes, np.array([0, 0], np.int32), np.array([near, far[0]], np.int32))


@pytest.mark.parametrize("path", [0, 1])
def test_a_service_level_is_that_of_the_senders_switch_and_the_lid(path):
    fabric = compile_fabric(blueprint(4, "dgx-h100", topology={"kind": "fat-tree", "tiers": 2, "leaf_down": 8}))
    routes = route(fabric)
    columns = len(routes.switches.edge_row)
    lane = np.arange((int(routes.lid.max()) + 2) * columns).reshape(-1, columns) % 251
    given = replace(routes, lane=lane.astype(np.uint8))
    source, destination = np.array([0, 9, 30], np.int32), np.array([31, 2, 30], np.int32)
    expected = []
    for a, b in zip(source, destination, strict=True):
        switch = int(fabric.port_node[fabric.port_peer[fabric.nic_port[a]]])
        row = int(routes.switches.node_row[switch])
        lid = int(routes.lid[fabric.nic_node[b]]) + path
        expected.append(int(lane[lid, routes.switches.edge_row.tolist().index(row)]))
    assert given.service_level(source, destination, path).tolist() == expected
    assert routes.service_level(source, destination, path).tolist() == [0, 0, 0]
