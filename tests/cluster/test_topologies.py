"""Generated networks against networkx and closed forms."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.clusters import blueprint

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.generators.topologies import wire
from fabrictwin.cluster.spec.cluster_section import Topology


def boxes(hosts: int, **topology: Any) -> Blueprint:
    return blueprint(hosts, "pcie-box", topology={"kind": "fat-tree", **topology})


def graph(built: Blueprint) -> nx.MultiGraph:
    """The cables as networkx sees them; nodes by their blueprint number."""
    adapters = sum(len(host.nics) for host in built.hosts)
    found = nx.MultiGraph()
    found.add_nodes_from(range(len(built.switches) + adapters))
    cables = built.cables
    found.add_edges_from(zip(cables.a_node.tolist(), cables.b_node.tolist(), strict=True))
    return found


@pytest.mark.parametrize(("racks", "leaves"), [(1, 4), (2, 8), (16, 36)])
def test_a_racks_rails_are_its_trays(racks, leaves):
    """18 trays of 4 adapters: 4 rails, and as many trays to a leaf as it has ports down."""
    built = blueprint(racks, "gb200-nvl72", switch="qm9700", topology={"kind": "rail-optimised"})
    assert tiers(built)[1] == leaves
    check_jacks(built)
    adapters = racks * 72
    leaf = built.cables.a_node[:adapters].reshape(-1, 4)  # of the adapters of each tray
    assert (leaf % 4 == np.arange(4)).all()  # rail k is leaf k of the tray's unit
    assert (leaf // 4 == leaf[:, :1] // 4).all()


def tiers(built: Blueprint) -> dict[int, int]:
    return dict(sorted(Counter(switch.tier for switch in built.switches).items()))


def check_jacks(built: Blueprint) -> None:
    """Every port holds one cable at most, and no port number is beyond the switch."""
    cables = built.cables
    jacks = np.concatenate([np.stack([cables.a_node, cables.a_port]), np.stack([cables.b_node, cables.b_port])], 1)
    assert len(np.unique(jacks, axis=1).T) == jacks.shape[1]
    assert (jacks[1] >= 1).all()
    switches = jacks[:, jacks[0] < len(built.switches)]
    ports = np.array([switch.ports for switch in built.switches])
    assert (switches[1] <= ports[switches[0]]).all()
    adapters = jacks[:, jacks[0] >= len(built.switches)]
    assert (adapters[1] == 1).all()


# the fat-trees of 36-port switches that simulators and papers compare with
@pytest.mark.parametrize(
    ("hosts", "shape", "expected", "diameter"),
    [
        (648, {}, {1: 36, 2: 18}, 4),
        (1944, {"pods": 6, "tiers": 3}, {1: 108, 2: 108, 3: 54}, 6),
        (5832, {}, {1: 324, 2: 324, 3: 162}, 6),
        (11664, {}, {1: 648, 2: 648, 3: 324}, 6),
    ],
)
def test_full_bisection_fat_trees_of_radix_36(
    hosts: int, shape: dict[str, int], expected: dict[int, int], diameter: int
) -> None:
    built = boxes(hosts, radix=36, **shape)
    assert tiers(built) == expected
    check_jacks(built)
    network = graph(built)
    assert nx.is_connected(network)
    degree = [network.degree(s) for s in range(len(built.switches))]
    assert degree == [36] * len(built.switches)
    # from a host to the farthest host
    assert nx.eccentricity(network, v=len(built.switches)) == diameter


@pytest.mark.parametrize(("hosts", "pods", "parallel"), [(1944, 6, 6), (5832, 18, 2), (11664, 36, 1)])
def test_middle_switch_i_joins_core_group_i_alone(hosts: int, pods: int, parallel: int) -> None:
    built = boxes(hosts, radix=36, tiers=3, pods=pods)
    names = [switch.name for switch in built.switches]
    network = graph(built)
    cores = [s for s, switch in enumerate(built.switches) if switch.tier == 3]
    group = len(cores) // 18
    for s, switch in enumerate(built.switches):
        if switch.tier == 2:
            joined = Counter(built.switches[n].name for n in network.neighbors(s) if n in cores)
            i = int(switch.name.removeprefix("spine-")) % 18
            assert set(joined) == {f"core-{c}" for c in range(i * group, (i + 1) * group)}
            some = names.index(next(iter(joined)))
            assert network.number_of_edges(s, some) == parallel


def test_half_of_the_hosts_can_talk_to_the_other_half_at_full_rate() -> None:
    """Every cut into two halves of pods, by maximum flow: bisection is full in a tree of 4-port switches."""
    built = boxes(16, radix=4, tiers=3)
    assert tiers(built) == {1: 8, 2: 8, 3: 4}
    flow = nx.Graph()
    for a, b in graph(built).edges():
        more = flow.get_edge_data(a, b, {"capacity": 0})["capacity"] + 1
        flow.add_edge(a, b, capacity=more)
    first = len(built.switches)
    pods = [range(first + 4 * p, first + 4 * p + 4) for p in range(4)]
    for chosen in combinations(range(4), 2):
        for p, hosts in enumerate(pods):
            for host in hosts:
                flow.add_edge("source" if p in chosen else host, host if p in chosen else "sink", capacity=1)
        assert nx.maximum_flow_value(flow, "source", "sink") == 8
        flow.remove_nodes_from(["source", "sink"])


def test_oversubscription_is_ports_down_per_port_up_at_the_leaf() -> None:
    built = boxes(150, oversubscription="3:1", tiers=2)
    cables = built.cables
    first = len(built.switches)
    for leaf in (s for s, switch in enumerate(built.switches) if switch.tier == 1):
        down = int(((cables.a_node == leaf) & (cables.b_node >= first)).sum())
        up = int(((cables.a_node == leaf) & (cables.b_node < first)).sum())
        assert (down, up) == (30, 10)
    assert tiers(built) == {1: 5, 2: 2}


def test_rail_optimised_puts_each_rail_of_a_unit_on_a_leaf_of_its_own() -> None:
    built = blueprint(128, "dgx-h100", switch="qm9700", topology={"kind": "rail-optimised"})
    # a DGX H100 SuperPOD of four scalable units: 32 leaves, 16 spines, two cables between each pair
    assert tiers(built) == {1: 32, 2: 16}
    check_jacks(built)
    first, cables = len(built.switches), built.cables
    leaf_of = dict(zip(cables.b_node.tolist(), cables.a_node.tolist(), strict=True))
    for h in range(128):
        assert [leaf_of[first + 8 * h + k] for k in range(8)] == [h // 32 * 8 + k for k in range(8)]
    assert [switch.pod for switch in built.switches[:32]] == [unit for unit in range(4) for _ in range(8)]
    network = graph(built)
    assert {network.number_of_edges(leaf, spine) for leaf in range(32) for spine in range(32, 48)} == {2}


def test_rail_optimised_of_three_tiers_has_the_shape_of_a_real_superpod() -> None:
    """Four pods of seven units of 20 DGX A100, as Selene is built: 10 spines a rail and pod, 140 cores."""
    built = blueprint(560, "dgx-a100", topology={"kind": "rail-optimised", "tiers": 3, "pods": 4})
    assert tiers(built) == {1: 224, 2: 320, 3: 140}
    check_jacks(built)
    network = graph(built)
    assert nx.is_connected(network)
    leaf = next(s for s, switch in enumerate(built.switches) if switch.name == "leaf-9")
    spines = Counter(n for _, n in network.edges(leaf) if n < len(built.switches))
    # rail 1 of the first pod: its own ten spines, two cables each
    assert spines == {224 + 10 + i: 2 for i in range(10)}
    core = next(s for s, switch in enumerate(built.switches) if switch.name == "core-0")
    assert sorted(network.neighbors(core)) == [224 + 10 * group for group in range(32)]


def test_consecutive_up_ports_go_to_different_parents() -> None:
    """Parents first, parallel links second: what d-mod-k counts on."""
    built = blueprint(64, "dgx-h100", switch="qm9700", topology={"kind": "rail-optimised"})
    cables = built.cables
    mine = (cables.a_node == 0) & (cables.b_node < len(built.switches))
    parents = cables.b_node[mine][np.argsort(cables.a_port[mine])]
    count = len(set(parents.tolist()))
    assert count == 8
    assert (parents == parents[:count][np.arange(len(parents)) % count]).all()


def test_hosts_do_not_straddle_leaves() -> None:
    built = blueprint(10, "dgx-a100", topology={"kind": "fat-tree"})
    first, cables = len(built.switches), built.cables
    leaf_of = dict(zip(cables.b_node.tolist(), cables.a_node.tolist(), strict=True))
    assert [{leaf_of[first + 8 * h + k] for k in range(8)} for h in range(10)] == [{h // 2} for h in range(10)]


def test_single_switch() -> None:
    built = blueprint(5, "dgx-a100", topology={"kind": "single-switch"})
    assert tiers(built) == {1: 1}
    assert len(built.cables) == 40
    check_jacks(built)


def test_the_tightest_mode_of_a_switch_is_used() -> None:
    adapters = {"technology": "ethernet", "switch": "spectrum-4", "topology": {"kind": "single-switch"}}
    assert blueprint(4, "dgx-h100", **adapters).switches[0].ports == 128  # 400 Gb/s: 64 ports split in two
    assert blueprint(4, "dgx-a100", **adapters).switches[0].ports == 128  # split in four there would be too many
    built = blueprint(4, "dgx-h100", switch="qm9700", link_rate="200 Gb/s", topology={"kind": "single-switch"})
    assert built.switches[0].ports == 128
    assert set(built.cables.rate_bps.tolist()) == {200_000_000_000}


def test_trunks_may_run_faster_than_hosts() -> None:
    built = blueprint(
        80, "pcie-box", switch="qm9700", trunk_rate="400 Gb/s", topology={"kind": "fat-tree", "tiers": 2}
    )
    trunks = built.cables.b_node < len(built.switches)
    assert set(built.cables.rate_bps[trunks].tolist()) == {400_000_000_000}
    assert set(built.cables.rate_bps[~trunks].tolist()) == {200_000_000_000}
    assert built.switches[0].ports == 64


def test_mixed_groups_of_hosts_are_named_one_after_the_other() -> None:
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import read_spec

    spec = read_spec(
        {
            "schema": 1,
            "cluster": {
                "hosts": [{"type": "pcie-box", "count": 2}, {"type": "dgx-a100", "count": 1}],
                "network": {
                    "technology": "infiniband",
                    "switch": "qm8700",
                    "topology": {"kind": "rail-optimised"},
                },
            },
        }
    )
    built = build(spec.cluster, spec=spec)
    assert [(host.name, len(host.nics)) for host in built.hosts] == [("host-0", 1), ("host-1", 1), ("host-2", 8)]
    assert tiers(built)[1] == 8
    check_jacks(built)


def test_spines_asked_for_that_do_not_divide_the_uplinks_differ_by_one_at_most() -> None:
    built = boxes(100, leaf_down=10, leaves=10, spines=3, tiers=2)
    loads = Counter(built.cables.b_node[built.cables.b_node < len(built.switches)].tolist())
    assert sorted(loads.values()) == [33, 33, 34]
    check_jacks(built)


@pytest.mark.parametrize(
    ("topology", "key", "says"),
    [
        ({"kind": "single-switch"}, "kind", "at most the 8 ports"),
        ({"kind": "fat-tree", "tiers": 2}, "tiers", "at most 8"),
        ({"kind": "fat-tree", "tiers": 2, "leaves": 2}, "leaves", "at least 25"),
        ({"kind": "fat-tree", "leaf_down": 6}, "leaf_down", "6 ports up"),
        ({"kind": "fat-tree", "tiers": 3, "pods": 2}, "pods", "at least 7"),
        ({"kind": "fat-tree", "tiers": 3, "spines": 9}, "spines", "at most 4"),
        ({"kind": "fat-tree", "tiers": 3, "cores": 15}, "cores", "multiple of 4"),
        ({"kind": "fat-tree", "tiers": 3, "cores": 4}, "cores", "at least"),
        ({"kind": "rail-optimised", "radix": 6}, "tiers", "at most"),
        ({"kind": "rail-optimised", "radix": 4}, "tiers", "more than three tiers of 4-port switches"),
    ],
)
def test_impossible_shapes_say_which_key(topology: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        wire(Topology(**topology), nics=[1] * 100, radix=8)
    assert caught.value.key == key


@settings(max_examples=150, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    kind=st.sampled_from(["fat-tree", "rail-optimised"]),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=60),
    radix=st.integers(2, 24),
    tiers=st.sampled_from([None, 2, 3]),
    ratio=st.sampled_from([1, 1.5, 2, 3]),
)
def test_whatever_is_built_is_sound(
    kind: str, counts: list[int], radix: int, tiers: int | None, ratio: float
) -> None:
    """Connected, no port twice, no more ports than there are, uplinks of alike switches even to within one."""
    topology = Topology(kind=kind, tiers=tiers, oversubscription=ratio)
    try:
        wiring = wire(topology, nics=counts, radix=radix)
    except ConfigError:
        assume(False)
    switches, adapters = len(wiring.names), len(wiring.adapter_switch)
    assert adapters == sum(counts)
    jacks = np.concatenate(
        [
            np.stack([wiring.adapter_switch, wiring.adapter_port]),
            np.stack([wiring.lower, wiring.lower_port]),
            np.stack([wiring.upper, wiring.upper_port]),
        ],
        axis=1,
    )
    assert len(np.unique(jacks, axis=1).T) == jacks.shape[1]
    assert jacks[1].min() >= 1
    assert jacks[1].max() <= radix
    assert (wiring.tier[wiring.upper] == wiring.tier[wiring.lower] + 1).all()
    assert (wiring.tier[wiring.adapter_switch] == 1).all()
    network = nx.Graph(zip(wiring.lower.tolist(), wiring.upper.tolist(), strict=True))
    network.add_nodes_from(range(switches))
    assert nx.is_connected(network)
    for tier in (2, 3):
        loads = np.bincount(wiring.upper, minlength=switches)[wiring.tier == tier]
        if tier == 3 or wiring.tier.max() == 2:
            assert len(loads) == 0 or loads.max() - loads.min() <= 1
    ups = np.bincount(wiring.lower, minlength=switches)[wiring.tier == 1]
    assert ups.min() == ups.max()
    downs = np.bincount(wiring.adapter_switch, minlength=switches)
    assert downs.max() <= ratio * ups.max() + 1e-9


def test_a_count_that_no_tree_holds_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"80000000 adapters, more than three tiers of 40-port switches"):
        blueprint(10_000_000, "dgx-a100", topology={"kind": "fat-tree"})


def test_the_same_cluster_is_the_same_blueprint() -> None:
    assert boxes(100, tiers=2) == boxes(100, tiers=2)
    assert boxes(100, tiers=2) != boxes(101, tiers=2)
