"""Large and real fabrics, and the kernels without their compiler. Second tier; what it takes is in benchmarks/."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from support.routing_digest import digest_of_everything
from support.routing_fabrics import lids_of, tree

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.routing.check.judge import judge
from fabrictwin.routing.engines.registry import compute
from fabrictwin.routing.graph.switch_tiers import recognise
from fabrictwin.routing.graph.switches import switch_graph

pytestmark = pytest.mark.second


@pytest.mark.parametrize("engine", ["auto", "shortest", "updown", "fattree", "balanced"])
def test_11664_hosts_are_routed_and_sound(engine):
    fabric = tree(11_664, 36, tiers=3, pods=36)
    switches = switch_graph(fabric)
    assert (switches.rows, len(switches.endpoint_row)) == (1_620, 11_664)
    lids = lids_of(fabric, switches)
    verdict = judge(switches, lids, compute(switches, lids, engine=engine), shifts=16, random=1)
    assert verdict.sound
    assert verdict.detours == 0
    assert verdict.lanes == 1
    if engine in ("auto", "fattree"):
        assert verdict.shifts.worst == 1
        assert verdict.all_to_all.relative <= 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 1024 * 1024  # KiB


@pytest.fixture(scope="module")
def selene(shared):
    path = shared / "data" / "ibnetdiscover" / "selene.compute.txt"
    spec = read_spec({"schema": 1, "cluster": {"ibnetdiscover": str(path)}})
    return compile_fabric(build(spec.cluster, spec=spec))


def test_selene_is_a_tree_with_its_cores_at_the_top(selene):
    switches = switch_graph(selene)
    tiers = recognise(switches)
    assert tiers.treelike
    assert {switches.row_name[row][:5] for row in tiers.roots} == {"CCORE"}
    assert len(tiers.roots) == 140
    leaves = [row for row in range(switches.rows) if switches.row_name[row].startswith("LG")]
    assert set(tiers.rank[leaves].tolist()) == {2}


def test_auto_on_selene_is_sound_and_beats_shortest_and_balanced(selene):
    switches = switch_graph(selene)
    lids = lids_of(selene, switches)
    verdict = {
        engine: judge(switches, lids, compute(switches, lids, engine=engine))
        for engine in ("auto", "shortest", "balanced")
    }
    auto = verdict["auto"]
    assert auto.sound
    assert auto.engine == "fattree"
    assert auto.adapters == 3_675
    assert auto.detours == 0
    # a management leaf has five adapters behind two cables: three of them share one, whoever routes
    assert auto.all_to_all.worst == 3 * (auto.adapters - 5)
    for other in ("shortest", "balanced"):
        assert auto.all_to_all.worst <= verdict[other].all_to_all.worst
        assert auto.shifts.worst <= verdict[other].shifts.worst
        assert auto.shifts.mean < verdict[other].shifts.mean
        assert auto.random.mean <= verdict[other].random.mean
    assert not verdict["shortest"].deadlock_adapters.free
    assert verdict["balanced"].sound


def test_updown_finds_selenes_roots_and_fattree_says_what_is_odd(selene):
    switches = switch_graph(selene)
    lids = lids_of(selene, switches)
    assert judge(switches, lids, compute(switches, lids, engine="updown"), shifts=8, random=1).sound
    with pytest.raises(ConfigError, match="neighbours up, where most of tier"):
        compute(switches, lids, engine="fattree")


@pytest.mark.parametrize("mode", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_tables_and_verdicts_are_the_same_without_the_compiler_and_with_bounds_checked(mode, tmp_path):
    script = Path(__file__).parents[1] / "support" / "routing_digest.py"
    expected = digest_of_everything()
    environment = {**os.environ, mode: "1", "FABRICTWIN_CACHE": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False, timeout=600
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == expected
