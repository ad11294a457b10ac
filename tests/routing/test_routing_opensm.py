"""Our tables beside the real OpenSM's for the same fabric. Skips, saying so, where that is not installed."""

from __future__ import annotations

import pytest
from support import real_opensm
from support.clusters import blueprint
from support.routing_fabrics import lids_of

from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.export import to_ibnetdiscover
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.routing.check.dump import bind, read_dump
from fabrictwin.routing.check.judge import judge
from fabrictwin.routing.engines.registry import compute
from fabrictwin.routing.graph.switches import switch_graph

pytestmark = [
    pytest.mark.second,
    pytest.mark.skipif(bool(real_opensm.missing()), reason=f"not installed: {real_opensm.missing()}"),
]


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """128 hosts on three tiers, as ibnetdiscover would print them, and the fabric read back from that."""
    topology = {"kind": "fat-tree", "tiers": 3, "radix": 8, "pods": 8}
    path = tmp_path_factory.mktemp("net") / "net"
    path.write_text(to_ibnetdiscover(blueprint(128, "pcie-box", topology=topology)))
    spec = read_spec({"schema": 1, "cluster": {"ibnetdiscover": str(path)}})
    return path, compile_fabric(build(spec.cluster, spec=spec))


@pytest.mark.parametrize("engine", ["minhop", "updn", "ftree", "dfsssp"])
def test_our_tables_are_no_worse_than_opensms(net, tmp_path, engine):
    path, fabric = net
    switches = switch_graph(fabric)
    made = real_opensm.route(path, engine, tmp_path)
    assert made is not None
    theirs_lids, theirs = bind(read_dump(made.dump), fabric, switches)
    lids = lids_of(fabric, switches)
    opensm = judge(switches, theirs_lids, theirs)
    ours = judge(switches, lids, compute(switches, lids, engine=engine))
    auto = judge(switches, lids, compute(switches, lids, engine="auto"))
    assert opensm.pairs == ours.pairs
    assert not opensm.unreached
    assert ours.sound
    assert ours.hops == opensm.hops
    assert ours.all_to_all.worst <= opensm.all_to_all.worst
    assert ours.shifts.mean <= opensm.shifts.mean
    assert auto.shifts.worst == 1 <= opensm.shifts.worst


def test_an_lmc_reads_back(net, tmp_path):
    path, fabric = net
    made = real_opensm.route(path, "minhop", tmp_path, "-l", "1")
    assert made is not None
    switches = switch_graph(fabric)
    lids, tables = bind(read_dump(made.dump), fabric, switches)
    assert lids.lmc == 1
    assert not judge(switches, lids, tables, shifts=4, random=1).unreached
