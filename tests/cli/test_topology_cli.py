"""`fabrictwin topology`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.ibnetdiscover_text import TEXT

from fabrictwin.cli import main
from fabrictwin.cluster.blueprint import Blueprint, Cables, SwitchSite
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.export import to_ibnetdiscover
from fabrictwin.cluster.guids import APART, INVENTED, node_guids
from fabrictwin.cluster.importers.bindings import import_ibnetdiscover
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.fabric.compile import compile_fabric

SPEC = """\
schema: 1
cluster:
  hosts: {type: dgx-a100, count: 40}
  network:
    technology: infiniband
    switch: qm8700
    topology: {kind: rail-optimised, tiers: 2, oversubscription: 1}
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "spec.yaml").write_text(SPEC)
    return str(tmp_path / "spec.yaml")


@pytest.fixture
def found(tmp_path: Path) -> str:
    (tmp_path / "fabric.txt").write_text(TEXT)
    return str(tmp_path / "fabric.txt")


def test_show_counts_hosts_switches_links_and_oversubscription(
    spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topology", "show", spec]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "infiniband, MTU 4 KiB, 320 GPUs",
        "hosts",
        "       40  dgx-a100, 8 adapters each",
        "      320  adapters",
        "switches, in 2 pods",
        "       16  tier 1, qm8700: 640 of 640 ports used, 320 down and 320 up, oversubscription 1:1",
        "       10  tier 2, qm8700: 320 of 400 ports used, 320 down and 0 up",
        "links",
        "      320  hosts - tier 1, 200 Gb/s, 3 m",
        "      320  tier 1 - tier 2, 200 Gb/s, 20 m",
    ]


def test_show_as_json_has_units_in_its_keys(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "show", spec, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["gpus"] == 320
    assert facts["hosts"] == [{"type": "dgx-a100", "adapters": 8, "count": 40}]
    assert [tier["oversubscription"] for tier in facts["tiers"]] == [1.0, None]
    assert facts["links"][0] == {
        "between": ["hosts", "tier 1"],
        "rate_bps": 200_000_000_000,
        "length_mm": 3000,
        "count": 320,
    }


def test_import_writes_a_cluster_that_a_spec_can_name(
    found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cluster.yaml"
    assert main(["topology", "import", found, "--bind", "box-*=pcie-box", "--out", str(out)]) == 0
    report = capsys.readouterr().out
    assert "        2  pcie-box, 1 adapter each" in report
    assert "bound to no catalog host, so without GPUs: 2 hosts (manager, store-1)" in report
    (tmp_path / "job.yaml").write_text("schema: 1\ncluster: cluster.yaml\n")
    assert main(["topology", "show", str(tmp_path / "job.yaml")]) == 0
    assert capsys.readouterr().out == report


def test_import_to_stdout_reports_on_stderr(found: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "topology",
        "import",
        found,
        "--bind",
        "store-1=pcie-box,HCA-1=mlx5_0",
        "--switch",
        "spine-*=qm8700",
    ]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert said.out.startswith("technology: infiniband\n")
    assert "{name: store-1, type: pcie-box, guids: [0x00000000000000c1], lids: [13]}" in said.out
    assert "{name: spine-1-L01-U1, type: qm8700," in said.out
    assert "notes" in said.err


@pytest.mark.parametrize("form", ["yaml", "ibnetdiscover"])
def test_what_is_exported_can_be_read_again(
    form: str, spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.txt"
    assert main(["topology", "export", spec, "--format", form, "--out", str(out)]) == 0
    assert main(["topology", "show", spec]) == 0
    before = capsys.readouterr().out
    if form == "yaml":
        assert main(["topology", "show", str(out)]) == 0
    else:
        again = str(tmp_path / "again.yaml")
        assert main(["topology", "import", str(out), "--bind", "*=dgx-a100", "--out", again]) == 0
    assert capsys.readouterr().out == before


def test_export_as_a_drawing(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "export", spec, "--format", "dot"]) == 0
    assert capsys.readouterr().out.count('[label="2 x 200 Gb/s"]') == 160


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "none.yaml"], "none.yaml: no such file"),
        (["import", "none.txt"], "none.txt: no such file"),
        (["import", "FOUND", "--bind", "box-*"], "--bind: got 'box-*', expected a glob and a catalog name"),
        (["import", "FOUND", "--bind", "bx=pcie-box"], "--bind: got 'bx', which matches none of the hosts"),
        (["import", "FOUND", "--bind", "box-*=pcie-bx"], "--bind: got 'pcie-bx'"),
        (["import", "FOUND", "--bind", "box-*=pcie-box,HCA=3"], "--bind: got 3, expected an adapter of pcie-box"),
        (["import", "FOUND", "--switch", "leaf-*=x"], "--switch: got 'x'"),
        (["import", "FOUND", "--host-cable", "3"], "--host-cable: got '3' without a unit"),
        (["import", "CUT"], "cut.txt:11: got a link to"),
        (["import", "FOUND", "--out", "no/such/folder.yaml"], "cannot be written"),
        (["export", "SPEC", "--format", "svg"], "svg"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], says: str, found: str, spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.txt"
    cut.write_text(TEXT[: TEXT.index("vendid", 200)])
    paths = {"FOUND": found, "SPEC": spec, "CUT": str(cut)}
    assert main(["topology", *(paths.get(a, a) for a in arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1


def test_a_cluster_of_ethernet_has_no_ibnetdiscover_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SPEC.replace("infiniband", "ethernet").replace("qm8700", "spectrum-4")
    (tmp_path / "roce.yaml").write_text(text)
    assert main(["topology", "export", str(tmp_path / "roce.yaml"), "--format", "ibnetdiscover"]) == 2
    assert "expected one of infiniband" in capsys.readouterr().err


def test_an_exported_fabric_has_the_guids_that_the_twin_gives_it(tmp_path: Path) -> None:
    """The file says to a person what management and tables of the twin say."""
    spec = read_spec(yaml.safe_load(SPEC))
    blueprint = build(spec.cluster, spec=spec)
    (tmp_path / "net").write_text(to_ibnetdiscover(blueprint))
    fabric, again = compile_fabric(blueprint), compile_fabric(import_ibnetdiscover(tmp_path / "net"))
    # the import names adapters as the file does, and knows nothing of what is inside hosts
    assert {int(g) for g in fabric.node_guid if g} == {int(g) for g in again.node_guid if g}
    switches = {fabric.node_name(int(n)): int(fabric.node_guid[n]) for n in fabric.switch_nodes}
    assert switches == {again.node_name(int(n)): int(again.node_guid[n]) for n in again.switch_nodes}
    assert len(set(switches.values())) == len(switches)


def test_invented_guids_keep_away_from_given_ones() -> None:
    sites = (SwitchSite("a", "qm8700", 40, guid=INVENTED + 3), SwitchSite("b", "qm8700", 40))
    cables = Cables(*(np.zeros(0, np.int64) for _ in range(6)))
    found = node_guids(Blueprint(technology="infiniband", hosts=(), switches=sites, cables=cables))
    assert found == [INVENTED + 3, INVENTED + APART]
