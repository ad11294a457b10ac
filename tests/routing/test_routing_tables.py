"""LIDs, equal-cost groups, hashes, walks: what tables are made of. Oracles: networkx, zlib, published vectors."""

from __future__ import annotations

import zlib
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import blueprint, boxes, dgx
from support.routing_fabrics import tree

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint, Cables, HostSite, SwitchSite
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import NONE, NodeKind
from fabrictwin.kernel.jit.decorators import entry
from fabrictwin.kernel.routing import switch_graph as kernel
from fabrictwin.routing.engines.registry import route
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph import switches as switches_module
from fabrictwin.routing.graph.equal_cost_groups import equal_cost
from fabrictwin.routing.graph.switches import LAST_UNICAST_LID, assign_lids, switch_graph
from fabrictwin.routing.tables import adapter_ipv4, udp_source_port

U32S = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6)


@entry
def crc32_of(words, seed):
    return kernel.crc32(words, seed)


@entry
def murmur3_of(words, seed):
    return kernel.murmur3(words, seed)


@given(words=U32S, seed=st.integers(0, 2**32 - 1))
def test_crc32_is_zlibs(words, seed):
    array = np.array(words, np.uint32)
    assert int(crc32_of(array, np.uint32(seed))) == zlib.crc32(array.astype("<u4").tobytes(), seed)


@pytest.mark.parametrize(
    ("words", "seed", "expected"),
    [  # of MurmurHash3_x86_32: the empty input and whole words, as in the verification tables of its ports
        ([], 0, 0x00000000),
        ([], 1, 0x514E28B7),
        ([], 0xFFFFFFFF, 0x81F16F39),
        ([0xFFFFFFFF], 0, 0x76293B50),
        ([0x87654321], 0, 0xF55B516B),
        ([0x87654321], 0x5082EDEE, 0x2362F9DE),
        ([0x00000000], 0, 0x2362F9DE),
        ([0x61616161], 0x9747B28C, 0x5A97808A),  # "aaaa"
        ([0x74736574], 0, 0xBA6BD213),  # "test"
    ],
)
def test_murmur3_gives_the_published_values(words, seed, expected):
    assert int(murmur3_of(np.array(words, np.uint32), np.uint32(seed))) == expected


def test_lids_that_came_with_the_fabric_are_kept_and_the_rest_are_the_lowest_free():
    plan = _line(lids=(7, 0, 2))
    fabric = compile_fabric(plan)
    lid = assign_lids(fabric)
    assert lid[fabric.nic_node].tolist() == [7, 1, 2]
    assert lid[fabric.switch_nodes].tolist() == [3]
    assert np.array_equal(lid, assign_lids(fabric))


def test_two_nodes_with_one_lid_are_an_error():
    with pytest.raises(ConfigError, match=r"got LID 7 for both host-0/mlx5_0 and host-2/mlx5_0"):
        assign_lids(compile_fabric(_line(lids=(7, 0, 7))))


def test_a_multicast_lid_is_an_error():
    with pytest.raises(ConfigError, match="got LID 49152 for host-1/mlx5_0, expected a unicast LID"):
        assign_lids(compile_fabric(_line(lids=(0, 0xC000, 0))))


def test_each_plane_numbers_its_own_lids():
    # rails without spines are subnets of their own
    fabric = compile_fabric(
        blueprint(2, topology={"kind": "rail-optimised", "tiers": 2, "leaves": 1, "leaf_down": 2, "spines": 1})
    )
    lid = assign_lids(fabric)
    for plane in np.unique(fabric.node_plane[fabric.node_plane != NONE]):
        mine = lid[fabric.node_plane == plane]
        assert sorted(mine) == list(range(1, len(mine) + 1))
    assert not lid[fabric.node_plane == NONE].any()


@pytest.mark.parametrize("lmc", [1, 3, 7])
def test_with_an_lmc_adapters_own_aligned_ranges(lmc):
    fabric = compile_fabric(_line(lids=(16, 9, 0), switch=17))
    lid = assign_lids(fabric, lmc=lmc)
    width = 1 << lmc
    taken: Counter[int] = Counter()
    for node in np.flatnonzero(lid):
        nic = fabric.node_kind[node] == NodeKind.NIC
        assert not nic or lid[node] % width == 0
        taken.update(range(lid[node], lid[node] + (width if nic else 1)))
    assert max(taken.values()) == 1
    assert 0 not in taken
    assert lid[fabric.switch_nodes[0]] == 17
    assert lid[fabric.nic_node[0]] != 16  # the range holds the switch's LID, or 16 is no multiple


def test_lids_run_out(monkeypatch):
    fabric = compile_fabric(_line(lids=(0, 0, 0)))
    monkeypatch.setattr(switches_module, "LAST_UNICAST_LID", 3)
    with pytest.raises(
        ConfigError, match=r"got 4 switches and adapters in one InfiniBand subnet, expected at most 3"
    ):
        assign_lids(fabric)
    monkeypatch.setattr(switches_module, "LAST_UNICAST_LID", 4)
    assert sorted(assign_lids(fabric)[assign_lids(fabric) > 0]) == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match=r"with 2 LIDs an adapter"):
        assign_lids(fabric, lmc=1)


def test_49151_lids_are_the_most_of_a_subnet():
    assert LAST_UNICAST_LID == 49_151
    switches = -(-48_000 // 200)
    host = np.arange(48_000)
    for extra, fits in ((49_151 - 48_000 - switches, True), (49_152 - 48_000 - switches, False)):
        fabric = compile_fabric(_chain(switches + extra, host))
        if fits:
            assert np.array_equal(np.sort(assign_lids(fabric)), np.arange(1, 49_152))
        else:
            with pytest.raises(ConfigError, match="got 49152 switches and adapters"):
                assign_lids(fabric)


def test_groups_are_all_shortest_ports():
    for fabric in (tree(16, 8, tiers=2), tree(16, 4, tiers=3), dgx(4).fabric):
        switches = switch_graph(fabric)
        groups = equal_cost(switches)
        joined = nx.Graph()
        joined.add_nodes_from(range(switches.rows))
        joined.add_edges_from(zip(switches.adjacent_from.tolist(), switches.adjacent_row.tolist(), strict=True))
        far = dict(nx.all_pairs_shortest_path_length(joined))
        for column, to in enumerate(switches.edge_row.tolist()):
            for row in range(switches.rows):
                assert groups.distance[column, row] == far[row].get(to, 255)
                expected = [
                    int(switches.adjacent_port[e])
                    for e in range(switches.adjacent_start[row], switches.adjacent_start[row + 1])
                    if to in far[row] and far[int(switches.adjacent_row[e])][to] + 1 == far[row][to]
                ]
                assert groups.ports(row, column).tolist() == expected


@pytest.mark.parametrize("technology", ["infiniband", "ethernet"])
def test_walks_reach_every_adapter_over_shortest_paths_that_hang_together(technology):
    twin = boxes(16, technology)
    fabric, routes = twin.fabric, twin.routes
    n = len(fabric.nic_node)
    a, b = (x.ravel().astype(np.int32) for x in np.meshgrid(np.arange(n), np.arange(n)))
    a, b = a[a != b], b[a != b]
    ports, start = routes.walk(a, b)
    leaf = fabric.port_node[fabric.port_peer[fabric.nic_port]]
    for i in range(len(a)):
        path = ports[start[i] : start[i + 1]]
        assert path[0] == fabric.nic_port[a[i]]
        assert fabric.port_node[fabric.port_peer[path[-1]]] == fabric.nic_node[b[i]]
        assert (fabric.port_node[fabric.port_peer[path[:-1]]] == fabric.port_node[path[1:]]).all()
        assert len(path) == (2 if leaf[a[i]] == leaf[b[i]] else 4)


def test_ecmp_spreads_source_ports_over_all_spines_and_agrees_with_zlib():
    twin = boxes(8, "ethernet")
    fabric, routes = twin.fabric, route(twin.fabric, hash_name="crc32")
    a, b = np.zeros(64, np.int32), np.full(64, 7, np.int32)
    entropy = np.arange(0xC000, 0xC040, dtype=np.uint32)
    ports, start = routes.walk(a, b, entropy)
    seen = set()
    for i in range(64):
        up = int(ports[start[i] + 1])
        seen.add(up)
        row = int(routes.switches.node_row[fabric.port_node[up]])
        column = int(
            routes.switches.edge_column[routes.switches.node_row[fabric.port_node[routes.nic_endpoint[7]]]]
        )
        group = routes.groups.ports(row, column)
        words = np.array([adapter_ipv4(0), adapter_ipv4(7), 17, entropy[i], 4791], "<u4")
        assert up == group[zlib.crc32(words.tobytes(), int(routes.hash_seeds[row])) % len(group)]
    assert len(seen) == 4
    again, _ = routes.walk(a, b, entropy)
    assert np.array_equal(ports, again)


def test_hash_functions_and_seeds_make_a_difference():
    fabric = boxes(16, "ethernet").fabric
    a, b = np.arange(4, dtype=np.int32), np.arange(12, 16, dtype=np.int32)
    walks = [
        route(fabric, hash_name=name, seed=seed).walk(a, b, np.full(4, 0xC123, np.uint32))[0].tolist()
        for name, seed in (("crc32", 0), ("crc32", 1), ("crc32", 2), ("murmur3", 0), ("murmur3", 1))
    ]
    assert len({tuple(walk) for walk in walks}) > 1
    with pytest.raises(
        ConfigError, match=r"hash: got 'crc', expected one of crc32, murmur3.*did you mean 'crc32'"
    ):
        route(fabric, hash_name="crc")
    with pytest.raises(ConfigError, match="expected none on ethernet"):
        route(fabric, options=Options(lmc=1))


def test_addresses_and_source_ports():
    assert [int(x) for x in adapter_ipv4(np.array([0, 255]))] == [0x0A000001, 0x0A000100]
    # rdma_flow_label_to_udp_sport: always in the upper quarter, and symmetric in the two queue pairs
    pairs = np.random.default_rng(1).integers(1, 2**24, (2, 1000)).astype(np.uint32)
    there, back = udp_source_port(pairs[0], pairs[1]), udp_source_port(pairs[1], pairs[0])
    assert np.array_equal(there, back)
    assert there.min() >= 0xC000
    assert there.max() <= 0xFFFF
    assert len(np.unique(there)) > 800


def test_islands_are_unreachable():
    plan = _line(lids=(0, 0, 0))
    cut = Cables(*(column[:-1] for column in vars(plan.cables).values()))
    fabric = compile_fabric(Blueprint(plan.technology, plan.hosts, plan.switches, cut))
    routes = route(fabric)
    with pytest.raises(ConfigError, match="host-2/mlx5_0 cannot be reached: it has no cable"):
        routes.walk(np.array([0], np.int32), np.array([2], np.int32))


def test_service_levels_are_those_of_the_tables():
    fabric = dgx(4).fabric
    routes = route(fabric)
    a, b = np.array([0, 1], np.int32), np.array([8, 9], np.int32)
    assert routes.lanes == 1
    assert routes.service_level(a, b).tolist() == [0, 0]


def _line(lids: tuple[int, ...], switch: int = 0) -> Blueprint:
    """Hosts of one adapter each on one switch."""
    n = len(lids)
    return Blueprint(
        technology="infiniband",
        hosts=tuple(HostSite(f"host-{i}", "", ("mlx5_0",), lids=(lid,)) for i, lid in enumerate(lids)),
        switches=(SwitchSite("switch", "qm8700", 40, lid=switch),),
        cables=Cables(
            np.zeros(n, np.int64),
            np.arange(1, n + 1),
            1 + np.arange(n),
            np.ones(n, np.int64),
            np.full(n, 200 * 10**9),
            np.full(n, 3000),
        ),
    )


def _chain(switches: int, host: np.ndarray) -> Blueprint:
    """So many switches in a chain, 200 adapters each as long as they last."""
    n = len(host)
    trunk = np.arange(switches - 1)
    return Blueprint(
        technology="infiniband",
        hosts=tuple(HostSite(f"h{i}", "", ("a",)) for i in host.tolist()),
        switches=tuple(SwitchSite(f"s{i}", "", 254) for i in range(switches)),
        cables=Cables(
            np.concatenate([host // 200, trunk]),
            np.concatenate([host % 200 + 1, np.full(len(trunk), 253)]),
            np.concatenate([switches + host, trunk + 1]),
            np.concatenate([np.ones(n, np.int64), np.full(len(trunk), 254)]),
            np.full(n + len(trunk), 200 * 10**9),
            np.full(n + len(trunk), 3000),
        ),
    )
