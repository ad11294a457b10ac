"""NVIDIA's Selene (4,341 endpoints, 666 switches), as ibnetdiscover printed it, under the real OpenSM and tools.

Judged beside each other: the tables that OpenSM programs into the twin, read back from its switches, and `auto`'s.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.real_tools import JUDGED_BY_REAL_TOOLS, Up, cables, dumped_tables

from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.importers.bindings import import_ibnetdiscover
from fabrictwin.cluster.spec.spec import load_cluster
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.routing.check.judge import Judgement, judge
from fabrictwin.routing.engines.filling import Tables
from fabrictwin.routing.engines.registry import compute
from fabrictwin.routing.graph.switches import Lids, assign_lids, switch_graph
from fabrictwin.subnet.operation.tables_in_force import routes_of
from fabrictwin.subnet.wire.smp import SmState

SELENE = Path(__file__).parents[3] / "shared" / "data" / "ibnetdiscover" / "selene.compute.txt"

# minutes of real tools on 4,341 endpoints: run by hand, `pytest -m slow`
pytestmark = [*JUDGED_BY_REAL_TOOLS, pytest.mark.slow]


@pytest.fixture(scope="module")
def selene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not SELENE.exists():
        pytest.skip(f"no {SELENE}: the discovered fabric is not ours to ship")
    path = tmp_path_factory.mktemp("selene") / "selene.yaml"
    path.write_text(f"ibnetdiscover: {SELENE}\n")
    return path


def adapter(up: Up, name: str) -> str:
    """The first adapter of a host, as `SIM_HOST` names it."""
    host = next(h for h in up.blueprint.hosts if h.name == name)
    return f"{host.name} {host.nics[0]}"


@pytest.fixture(scope="module")
def under_opensm(selene: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(selene, tmp_path_factory.mktemp("selene-opensm"), manage=False) as up:
        yield up.under_opensm(adapter(up, "luna-0190"), seconds=300)


@pytest.fixture(scope="module")
def under_twin(selene: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(selene, tmp_path_factory.mktemp("selene-twin"), manage=True) as up:
        yield up


@pytest.mark.parametrize("who", ["under_opensm", "under_twin"])
def test_the_tools_run_clean_on_selene(who, request):
    up: Up = request.getfixturevalue(who)
    name = adapter(up, "luna-0191")
    at = up.state.find(name)
    lid = str(up.state.lid(up.state.end_slot(at)))
    leaf = str(up.state.lid(up.state.base[up.state.node_of[up.state.link[up.state.end_slot(at)]]]))
    far = str(up.state.lid(up.state.end_slot(up.state.find("luna-0001 mlx5_0"))))
    for command in (
        *(("ibstat",), ("iblinkinfo",), ("sminfo",), ("smpquery", "nodeinfo", lid), ("smpquery", "portinfo", lid)),
        *(("smpquery", "switchinfo", leaf), ("smpquery", "pkeys", lid), ("smpquery", "sl2vl", leaf)),
        *(("smpquery", "vlarb", leaf, "1"), ("ibroute", leaf), ("ibtracert", lid, far)),
        *(("perfquery", "-x", lid, "1"), ("saquery",), ("saquery", "-s"), ("dump_lfts",)),
    ):
        assert up.tool(*command, host=name, timeout=300).strip()


def test_the_tools_show_the_lids_and_tables_of_the_twins_manager(under_twin):
    up = under_twin
    name = adapter(up, "luna-0191")
    manager = up.served.managers[0].manager
    assert f"lid {up.state.lid(up.served.managers[0].slot)} " in up.tool("sminfo", host=name)
    assert {up.state.port_guid[m]: up.state.lid(up.state.end_slot(m)) for m in range(len(up.state.guid))} == (
        manager.database.lid
    )
    tables = dumped_tables(up, name)
    assert len(tables) == 666
    for m, row in up.state.row.items():
        held = up.state.lft[row]
        assert tables[up.state.guid[m]] == {int(lid): int(held[lid]) for lid in np.flatnonzero(held != 255)}


def test_a_standby_opensm_stays_standby_on_selene(under_twin):
    up = under_twin
    log = up.opensm(adapter(up, "luna-0190"), wait_for="Entering STANDBY state", seconds=300)
    time.sleep(12)  # many polls of the master, and a sweep of the twin's
    assert "MASTER" not in log.read_text()
    assert up.served.managers[0].manager.state == SmState.MASTER
    assert "SMINFO_MASTER" in up.tool("sminfo", host=adapter(up, "luna-0191"))


def test_selene_as_ibnetdiscover_prints_it_imports_again(under_opensm):
    up = under_opensm
    printed = up.folder / "net.txt"
    printed.write_text(up.tool("ibnetdiscover", host=adapter(up, "luna-0191"), timeout=300))
    assert cables(printed) == cables(up.fabric)
    again = import_ibnetdiscover(printed)
    assert {h.name for h in again.hosts} == {h.name for h in up.blueprint.hosts}
    assert {(s.name, s.type) for s in again.switches} == {(s.name, s.type) for s in up.blueprint.switches}


# -- tables, judged ---------------------------------------------------------------------------------------------


def judged(up: Up) -> Judgement:
    """Judge the tables that the switches of a served twin hold now."""
    routes = routes_of(up.state)
    switches = routes.switches
    lids = Lids(routes.lid[switches.row_node], routes.lid[switches.endpoint_node], routes.lmc)
    return judge(switches, lids, Tables("read back", routes.lft, routes.lane, routes.lanes, ""), random=8)


def line(name: str, found: Judgement) -> str:
    return (
        f"{name}: {found.unreached} pairs not reached; all-to-all {found.all_to_all.worst}; "
        f"shifts worst {found.shifts.worst:g} mean {found.shifts.mean:.3f}; random mean {found.random.mean:.3f}; "
        f"deadlock between adapters {'none' if found.deadlock_adapters.free else 'possible'}"
    )


@pytest.fixture(scope="module")
def auto(selene: Path) -> Judgement:
    spec = load_cluster(selene)
    switches = switch_graph(fabric := compile_fabric(build(spec.cluster, spec=spec)))
    lid = assign_lids(fabric)
    lids = Lids(lid[switches.row_node], lid[switches.endpoint_node])
    return judge(switches, lids, compute(switches, lids, engine="auto"), random=8)


@pytest.mark.parametrize("engine", ["minhop", "dfsssp"])
def test_auto_is_no_worse_than_what_opensm_programs_into_the_twin(engine, selene, auto, tmp_path):
    with Up(selene, tmp_path, manage=False) as up:
        log = up.opensm(adapter(up, "luna-0190"), "-R", f"{engine},no_fallback", seconds=900)
        assert f"{engine} tables configured" in log.read_text()
        theirs = judged(up)
    print(line(f"OpenSM {engine}", theirs), line("auto", auto), sep="\n")
    assert theirs.unreached == auto.unreached == 0
    assert auto.deadlock_adapters.free
    assert auto.deadlock_all.free
    assert auto.all_to_all.worst <= theirs.all_to_all.worst
    assert auto.shifts.worst <= theirs.shifts.worst
    assert auto.shifts.mean <= theirs.shifts.mean
