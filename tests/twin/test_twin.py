"""The twin: paths by name, saving and loading, links that change."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pytest
from support.clusters import blueprint, boxes, dgx
from support.programs import times

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.fabric.fabric import NONE
from fabrictwin.program import collectives
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.twin import Twin
from fabrictwin.twin.spec_twin import faulty_twin


def test_a_path_names_every_hop():
    hops, latency_ps = dgx().path("host-0/gpu0", "host-3/gpu5")
    assert [hop.kind for hop in hops] == ["pcie"] * 2 + ["infiniband"] * 4 + ["pcie"] * 2
    for before, after in pairwise(hops):
        assert before.link.split(" > ")[1].rsplit("/", 1)[0] == after.link.split(" > ")[0].rsplit("/", 1)[0]
    assert hops[0].link.startswith("host-0/gpu0/")
    assert " > host-3/gpu5/" in hops[-1].link
    assert latency_ps > 1_000_000


def test_a_name_that_is_not_there_is_one_clear_error():
    with pytest.raises(ConfigError, match="did you mean 'host-0/gpu1'"):
        dgx().path("host-0/gpu1x", "host-1/gpu0")
    with pytest.raises(ConfigError, match="which hold memory"):
        dgx().path("leaf-0", "host-1/gpu0")


def test_a_twin_saves_and_loads(tmp_path):
    twin = Twin(blueprint(4, "pcie-box", topology={"kind": "fat-tree", "tiers": 2, "leaf_down": 2}), seed=7)
    twin.degrade(0, 50_000_000_000)
    twin.save(tmp_path / "twin.npz")
    again = Twin.load(tmp_path / "twin.npz")
    assert again.link_rate_bps == twin.link_rate_bps
    assert (again.routes.lft == twin.routes.lft).all()
    assert again.path("host-0/gpu0", "host-3/gpu1") == twin.path("host-0/gpu0", "host-3/gpu1")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"\x93NUMPY"])
def test_a_file_that_is_no_twin_is_an_error(tmp_path, content):
    path = tmp_path / "twin.npz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="expected a twin that was saved"):
        Twin.load(path)


@pytest.mark.second
def test_a_twin_is_not_waited_for_and_its_parts_must_agree(tmp_path):
    pipe, path = tmp_path / "pipe", tmp_path / "twin.npz"
    os.mkfifo(pipe)
    for place, message in ((pipe, "a pipe that nobody writes to"), (tmp_path / "none", "no such file")):
        with pytest.raises(ConfigError, match=message):
            Twin.load(place)
    dgx().save(path)
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in ("state", "cables", "lft", "links")}
    for name, wrong in (("lft", arrays["lft"][:-1]), ("links", np.array([[10**6, 1]]))):
        np.savez(path, **arrays | {name: wrong})
        with pytest.raises(ConfigError, match="expected a twin that was saved: got"):
            Twin.load(path)
    np.savez(path, **arrays)
    Twin.load(path)


def test_a_dead_cable_is_routed_around_and_a_slow_one_is_not():
    shape = {"kind": "fat-tree", "tiers": 2, "leaf_down": 4, "spines": 4}
    built = blueprint(8, "pcie-box", topology=shape)
    whole = Twin(built)
    trunk = next(
        i
        for i in range(len(built.cables))
        if built.cables.a_node[i] < 2 and built.cables.b_node[i] < len(built.switches)
    )
    dead = Twin(built, dead=(trunk,))
    pairs = np.arange(8, dtype=np.int32)
    before, _ = whole.routes.walk(pairs, (pairs + 4) % 8)
    after, _ = dead.routes.walk(pairs, (pairs + 4) % 8)
    assert len(set(before)) > len(set(after))


def test_a_link_degraded_before_a_session_counts_in_it():
    send = collectives.send(np.array([[0, 8]]), 1 << 26)
    took = []
    for rate in (None, 20_000_000_000):
        twin = Twin(boxes(8).blueprint)
        if rate:
            port = int(twin.fabric.nic_port[4])
            node = len(twin.blueprint.switches) + 4
            cable = int(
                np.flatnonzero((twin.blueprint.cables.a_node == node) | (twin.blueprint.cables.b_node == node))[0]
            )
            twin.degrade(cable, rate)
            assert port in twin.link_rate_bps
        engine = twin.start_engine("flow")
        took += times(engine, [send], twin.fabric.gpu_node)
    assert took[1] == pytest.approx(10 * took[0], rel=0.01)


def test_a_cable_or_rate_that_cannot_be_is_refused():
    twin = Twin(boxes(8).blueprint)
    cables = len(twin.blueprint.cables)
    for cable, rate, message in (
        (-1, 0, "got cable -1"),
        (cables, 0, f"expected one of the {cables} from 0"),
        (0, -5, "got a rate of -5 b/s"),
        (0, 10**15, "expected 0 to 200000000000"),
    ):
        with pytest.raises(ConfigError, match=message):
            twin.degrade(cable, rate)
    assert twin.link_rate_bps == {}


def test_options_of_routing_are_saved_too(tmp_path):
    twin = Twin(blueprint(8, "pcie-box", topology={"kind": "fat-tree", "tiers": 2, "leaf_down": 4, "spines": 2}))
    twin.options = Options(roots=(int(twin.fabric.node_guid[twin.fabric.switch_nodes[-1]]),), lmc=1, lanes=2)
    twin.engine = "updn"
    twin.save(tmp_path / "twin.npz")
    again = Twin.load(tmp_path / "twin.npz")
    assert again.options == twin.options
    assert (again.routes.lft == twin.routes.lft).all()
    assert again.routes.lmc == 1


def test_faults_of_the_spec_kill_and_slow_links():
    network = {"technology": "infiniband", "switch": "qm9700", "topology": {"kind": "single-switch"}}
    faults = [{"link": "host-0/mlx5_0", "rate": "0 Gb/s"}, {"link": "host-1/mlx5_0", "rate": "200 Gb/s"}]
    cluster = {"hosts": {"type": "dgx-h100", "count": 2}, "network": network}
    spec = read_spec({"schema": 1, "cluster": cluster, "faults": faults})
    twin = faulty_twin(build(spec.cluster, spec=spec), spec)
    fabric = twin.fabric
    port = {fabric.node_name(int(node)): int(fabric.nic_port[i]) for i, node in enumerate(fabric.nic_node)}
    dead, slow, well = (port[name] for name in ("host-0/mlx5_0", "host-1/mlx5_0", "host-1/mlx5_3"))
    assert dead == NONE or fabric.port_peer[dead] == NONE
    assert twin.link_rate_bps[slow] == 200 * 10**9
    assert well not in twin.link_rate_bps
