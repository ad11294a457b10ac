"""OpenSM's tables on fabrics of odd shapes, entry for entry: directors, dragonflies, loops, cards of two ports."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support import real_opensm
from support.odd_fabrics import SHAPES, draw
from support.real_tools import JUDGED_BY_REAL_TOOLS, Up
from support.routing_fabrics import lids_given, try_compute

from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.routing.check.dump import bind, read_dump
from fabrictwin.routing.engines.registry import OPENSM, compute
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.routing.graph.switches import switch_graph
from fabrictwin.subnet.manager.settings.manager_settings import Settings

pytestmark = JUDGED_BY_REAL_TOOLS


@pytest.mark.parametrize("lmc", [0, 1])
@pytest.mark.parametrize("engine", OPENSM)
@pytest.mark.parametrize("shape", SHAPES)
def test_tables_are_opensms(shape, engine, lmc, tmp_path, monkeypatch):
    monkeypatch.setattr(real_opensm, "PATIENCE_S", 8)
    path, options = tmp_path / "net", Options(lmc=lmc)
    path.write_text(draw(shape, 5, lid_gap=3))
    spec = read_spec({"schema": 1, "cluster": {"ibnetdiscover": str(path)}})
    fabric = compile_fabric(build(spec.cluster, spec=spec))
    switches = switch_graph(fabric)
    try:
        made = real_opensm.route(path, engine, tmp_path, "-l", str(lmc))
    except subprocess.TimeoutExpired:  # without fallback OpenSM tries again for ever
        made = None
    if made is None:
        refused = try_compute(switches, lids_given(tmp_path, switches, lmc), engine, options)
        assert isinstance(refused, str)
        assert f"OpenSM's {engine}" in refused
        return
    lids, theirs = bind(read_dump(made.dump), fabric, switches)
    ours = try_compute(switches, lids, engine, options)
    assert not isinstance(ours, str), ours
    width = max(ours.lft.shape[1], theirs.lft.shape[1])
    a, b = (np.pad(t.lft, ((0, 0), (0, width - t.lft.shape[1])), constant_values=255) for t in (ours, theirs))
    assert int((a != b).sum()) == 0


@pytest.mark.parametrize(
    ("shape", "lmc"),
    [("dragonfly", 0), ("dragonfly", 1), ("torus", 0), ("torus", 1), ("hosts_on_spines", 1), ("directors", 0)],
)
def test_every_path_has_the_lane_that_dfsssp_gives_it(shape, lmc, tmp_path):
    """Each path has the first of the lanes that OpenSM then draws from for each path record."""
    path = tmp_path / "net"
    path.write_text(draw(shape, 5, lid_gap=3))
    spec = read_spec({"schema": 1, "cluster": {"ibnetdiscover": str(path)}})
    fabric = compile_fabric(build(spec.cluster, spec=spec))
    switches = switch_graph(fabric)
    made = real_opensm.route(path, "dfsssp", tmp_path, "-l", str(lmc), "-D", "0xF")
    assert made is not None
    lids, _ = bind(read_dump(made.dump), fabric, switches)
    ours = compute(switches, lids, engine="dfsssp", options=Options(lmc=lmc))
    columns = switches.edge_column[switches.endpoint_row]
    column = {int(lid) + k: int(c) for lid, c in zip(lids.endpoint, columns, strict=True) for k in range(1 << lmc)}
    theirs = real_opensm.lanes_of(made.log)
    sent = {(a, b): lane for (a, b), lane in theirs.items() if a in column}
    assert len(sent) > 1000
    assert {(a, b): int(ours.lane[b, column[a]]) if ours.lane.size else 0 for a, b in sent} == sent
    assert all(lane == 0 for (a, _), lane in theirs.items() if a not in column)  # switches wait for nobody


@pytest.mark.parametrize("engine", ["minhop", "updn", "ftree"])
def test_the_twins_manager_programs_what_opensm_programs(engine, tmp_path):
    """The same served fabric under OpenSM and under the twin's manager, told the engine of the same name."""
    (tmp_path / "net").write_text(text := draw("small_tree", 9, lid_gap=2))
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"ibnetdiscover: {tmp_path / 'net'}\n")
    host = re.search(r'"(H-[0-9a-f]+)"', text)
    assert host is not None
    with Up(cluster, tmp_path, manage=False) as up:
        up.opensm(host[1], "-R", f"{engine},no_fallback")
        theirs = up.state.lft.copy()
    with Up(cluster, tmp_path, manage=True, settings=Settings(engine=engine)) as up:
        ours = up.state.lft
    assert np.array_equal(ours, theirs)
    assert (ours != 255).any()


def test_every_shape_is_served_back_as_it_was_drawn(tmp_path: Path):
    """Two discoveries of one served fabric print the same, and the second file is served as the first was."""
    for shape in SHAPES:
        folder = tmp_path / shape
        folder.mkdir()
        drawn = folder / "net"
        drawn.write_text(draw(shape, 3))
        printed = _discovered(drawn, folder)
        again = folder / "again"
        again.write_text(printed)
        assert _discovered(again, folder).splitlines()[2:] == printed.splitlines()[2:], shape
        assert sorted(_lines(printed)) == sorted(_lines(drawn.read_text())), shape


def _lines(text: str) -> list[str]:
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if line and not line.startswith("#")]


def _discovered(file: Path, folder: Path) -> str:
    cluster = folder / "cluster.yaml"
    cluster.write_text(f"ibnetdiscover: {file}\n")
    host = re.search(r"Initiated from node (\w+)", file.read_text()) or re.search(
        r'^Ca.*"H-(\w+)"', file.read_text(), re.M
    )
    assert host is not None
    with Up(cluster, folder, manage=False) as up:
        return up.tool("ibnetdiscover", host=f"H-{host[1]}")
