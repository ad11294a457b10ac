"""Which hosts a job gets, what is broken, and who can reach whom."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.connectivity import islands, node_count
from fabrictwin.cluster.faults import CableFault, Jacks, SlowGpu, find_faults
from fabrictwin.cluster.host_placement import place
from fabrictwin.cluster.spec.spec import Spec, read_spec


def spec_of(cluster: dict[str, Any], **rest: Any) -> tuple[Blueprint, Spec]:
    spec = read_spec({"schema": 1, "cluster": cluster, **rest})
    return build(spec.cluster, spec=spec), spec


def generated(hosts: int = 12, kind: str = "pcie-box", **rest: Any) -> tuple[Blueprint, Spec]:
    shape = {"kind": "fat-tree", "tiers": 2, "leaf_down": 4} if kind == "pcie-box" else {"kind": "rail-optimised"}
    network = {"technology": "infiniband", "switch": "qm8700", "topology": shape}
    return spec_of({"hosts": {"type": kind, "count": hosts}, "network": network}, **rest)


def explicit(cables: list[str], **rest: Any) -> tuple[Blueprint, Spec]:
    """Hosts c, a2, a10 on two switches, cabled as told; x is bound to nothing."""
    hosts = [{"name": name, "type": "pcie-box"} for name in ("c", "a2", "a10")]
    cluster = {
        "technology": "infiniband",
        "link_rate": "200 Gb/s",
        "hosts": [*hosts, {"name": "x", "nics": ["eth0"]}],
        "switches": [{"name": "s", "type": "qm8700"}, {"name": "t", "type": "qm8700"}],
        "cables": cables,
    }
    return spec_of(cluster, **rest)


def names(blueprint: Blueprint, order: np.ndarray[Any, Any]) -> list[str]:
    return [blueprint.hosts[h].name for h in order]


JOINED = ["t/1 - c/mlx5_0", "s/2 - a10/mlx5_0", "s/1 - a2/mlx5_0", "s/9 - t/9", "s/3 - x/eth0"]


# --- placement


def test_contiguous_goes_leaf_by_leaf_then_by_name() -> None:
    built, spec = explicit(JOINED)
    assert names(built, place(built, spec)) == ["a2", "a10", "c"]


def test_contiguous_sorts_by_the_leaves_of_all_rails() -> None:
    built, spec = generated(45, "dgx-a100")
    order = place(built, spec)
    units = [h // 20 for h in order.tolist()]
    assert units == sorted(units)
    assert names(built, order)[:3] == ["host-0", "host-1", "host-2"]


def test_only_as_many_hosts_as_the_job_needs() -> None:
    built, spec = generated(12)
    assert place(built, spec, hosts=5).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigError, match="a job for 13 hosts, expected at most the 12 of a catalog type"):
        place(built, spec, hosts=13)


def test_scattered_is_a_permutation_that_the_seed_decides() -> None:
    orders = []
    for seed in (1, 1, 2):
        built, spec = generated(12, placement={"order": "scattered", "seed": seed})
        orders.append(place(built, spec).tolist())
    assert sorted(orders[0]) == list(range(12))
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != list(range(12))


def test_the_scattered_order_never_changes() -> None:
    """Written down: the same on every machine and with every version of numpy."""
    built, spec = generated(8, placement={"order": "scattered", "seed": 1})
    assert place(built, spec).tolist() == [4, 3, 7, 0, 1, 5, 6, 2]


def test_named_hosts_come_in_the_order_given_and_globs_in_natural_order() -> None:
    built, spec = explicit(JOINED, placement={"hosts": ["c", "a*"]})
    assert names(built, place(built, spec)) == ["c", "a2", "a10"]


@pytest.mark.parametrize(
    ("hosts", "says"),
    [
        (["a22"], r"placement.hosts\[0\]: got 'a22', .*did you mean 'a2'\?"),
        (["c", "z*"], r"placement.hosts\[1\]: got 'z\*'"),
        (["x"], "not bound to a catalog host"),
        (["c", "c"], r"placement.hosts\[1\]: got 'c' a second time"),
    ],
)
def test_hosts_that_are_not_there(hosts: list[str], says: str) -> None:
    built, spec = explicit(JOINED, placement={"hosts": hosts})
    with pytest.raises(ConfigError, match=says):
        place(built, spec)


# --- reachability


def test_a_host_without_a_cable_is_unreachable() -> None:
    built, spec = explicit(JOINED[1:])
    with pytest.raises(ConfigError, match=r"cluster: host 'c' is unreachable: it has no cable at all"):
        place(built, spec)
    assert names(built, place(built, spec, hosts=2)) == ["a2", "a10"]


def test_a_host_on_an_island_is_unreachable() -> None:
    built, spec = explicit([cable for cable in JOINED if cable != "s/9 - t/9"])
    with pytest.raises(ConfigError, match="host 'c' is unreachable: it has no cable path to the other hosts"):
        place(built, spec)


def test_a_dead_link_cuts_a_host_off() -> None:
    built, spec = explicit(JOINED, faults=[{"link": "c/mlx5_0", "rate": "0 Gb/s"}])
    with pytest.raises(ConfigError, match="host 'c' is unreachable"):
        place(built, spec)
    built, spec = explicit(JOINED, faults=[{"link": "c/mlx5_0", "rate": "1 Gb/s"}])
    assert len(place(built, spec)) == 3


def test_rails_that_are_islands_of_their_own_still_reach_their_like() -> None:
    """A rail-only fabric: host a's rail 0 never meets rail 1, and need not."""
    nics = [f"mlx5_{k}" for k in (0, 1, 2, 3, 6, 7, 8, 9)]
    cluster = {
        "technology": "infiniband",
        "link_rate": "200 Gb/s",
        "hosts": [{"name": name, "type": "dgx-a100"} for name in "ab"],
        "switches": [{"name": f"rail-{k}", "type": "qm8700"} for k in range(8)],
        "cables": [f"rail-{k}/{p} - {h}/{nic}" for k, nic in enumerate(nics) for p, h in ((1, "a"), (2, "b"))],
    }
    built, spec = spec_of(cluster)
    assert len(place(built, spec)) == 2
    cluster["cables"] = [cable for cable in cluster["cables"] if "rail-0/" in cable or "/1 -" in cable]
    built, spec = spec_of(cluster)
    assert len(place(built, spec)) == 2  # one common rail is enough
    cluster["cables"] = [cable for cable in cluster["cables"] if cable != "rail-0/2 - b/mlx5_0"]
    built, spec = spec_of(cluster)
    with pytest.raises(ConfigError, match="host 'b' is unreachable"):
        place(built, spec)


@settings(max_examples=60)
@given(data=st.data())
def test_islands_are_the_connected_components(data: st.DataObject) -> None:
    built, _ = generated(10)
    dead = data.draw(st.sets(st.integers(0, len(built.cables) - 1)))
    graph = nx.Graph()
    graph.add_nodes_from(range(node_count(built)))
    cables = built.cables
    graph.add_edges_from(
        (int(cables.a_node[c]), int(cables.b_node[c])) for c in range(len(cables)) if c not in dead
    )
    label = islands(built, dead=dead)
    for part in nx.connected_components(graph):
        assert {int(label[node]) for node in part} == {min(part)}


# --- faults


def test_faults_are_found_by_either_end() -> None:
    faults = [
        {"link": "leaf-1/2", "rate": "50 Gb/s"},
        {"link": "host-0/mlx5_0", "rate": "0 Gb/s"},
        {"gpu": "host-3/gpu1", "slowdown": 1.2},
    ]
    built, spec = generated(12, faults=faults)
    cables, gpus = find_faults(built, spec)
    assert cables == (CableFault(cable=5, rate_bps=50 * 10**9), CableFault(cable=0, rate_bps=0))
    assert (built.cables.a_node[5], built.cables.a_port[5]) == (1, 2)
    assert gpus == (SlowGpu(host=3, gpu=1, slowdown=1.2),)


def test_every_jack_of_every_cable_is_found_by_name() -> None:
    built, _ = generated(9)
    jacks = Jacks(built)
    first = len(built.switches)
    for c in range(len(built.cables)):
        a, b = int(built.cables.a_node[c]), int(built.cables.b_node[c])
        assert jacks.cable(f"{built.switches[a].name}/{built.cables.a_port[c]}") == c
        far = f"host-{b - first}/mlx5_0" if b >= first else f"{built.switches[b].name}/{built.cables.b_port[c]}"
        assert jacks.cable(far) == c


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            {"link": "leaf-9/3", "rate": "0 b/s"},
            r"faults\[0\].link: got 'leaf-9/3', which is neither .*did you mean",
        ),
        ({"link": "leaf-0/41", "rate": "0 b/s"}, "expected a port of leaf-0 from 1 to 40"),
        ({"link": "leaf-0/40", "rate": "0 b/s"}, "a port that no cable is plugged into"),
        ({"link": "leaf-0", "rate": "0 b/s"}, "expected a node and its port"),
        ({"link": "host-0/mlx5_1", "rate": "0 b/s"}, "expected an adapter of host-0"),
        ({"link": "leaf-0/1", "rate": "400 Gb/s"}, r"faults\[0\].rate: got a rate above the 200 Gb/s"),
        ({"gpu": "host-0/gpu2", "slowdown": 2}, r"faults\[0\].gpu: got 'host-0/gpu2', .*gpu0, gpu1"),
        ({"gpu": "hots-0/gpu1", "slowdown": 2}, r"did you mean 'host-0'\?"),
    ],
)
def test_faults_of_what_is_not_there(fault: dict[str, Any], says: str) -> None:
    built, spec = generated(12, faults=[fault])
    with pytest.raises(ConfigError, match=says):
        find_faults(built, spec)


def test_a_link_cannot_be_broken_twice() -> None:
    faults = [{"link": "leaf-0/1", "rate": "1 Gb/s"}, {"link": "host-0/mlx5_0", "rate": "2 Gb/s"}]
    built, spec = generated(12, faults=faults)
    with pytest.raises(ConfigError, match=r"faults\[1\].link: .*an earlier fault names"):
        find_faults(built, spec)
