"""What is written is read back to the same model, and every value has its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.configured import planned, spec_of, write, written

from fabrictwin.base.errors import ConfigError
from fabrictwin.configuration.policy.cluster_policy import configuration, plan
from fabrictwin.configuration.policy.reasons import REASONS
from fabrictwin.configuration.readers.k8s import read_manifests
from fabrictwin.configuration.readers.recognise import kind_of

WHITE_BOX = "tomahawk-5-white-box"  # whose box SONiC's name does not follow from


def _without_files(thing: Any) -> Any:
    return replace(thing, file="")


@pytest.mark.parametrize("os", ["sonic", "nvue"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"topology": {"kind": "fat-tree", "tiers": 2}},
        {"link_rate": "200 Gb/s", "host_cable": "30 m", "trunk_cable": "300 m"},
        {"qos": {"lossless": False}},
        {"qos": {"dscp": 24, "priority": 4, "cnp_dscp": 40, "cnp_priority": 7}},
    ],
)
def test_switches(os: str, more: dict[str, Any], tmp_path: Path) -> None:
    of = plan(spec_of(**more))
    read = written(of, tmp_path, (os,), os=os)
    made = configuration(of, os, os=os).switches  # type: ignore[arg-type]
    assert not read.problems
    assert {name: _without_files(one) for name, one in read.configuration.switches.items()} == made


@pytest.mark.parametrize("chip", ["spectrum-1", "spectrum-3", "spectrum-6", "tomahawk", "tomahawk-5"])
def test_switches_of_other_chips(chip: str, tmp_path: Path) -> None:
    of = plan(spec_of(switch=WHITE_BOX, link_rate="100 Gb/s", trunk_rate="100 Gb/s", qos={"chip": chip}))
    read = written(of, tmp_path, ("sonic",))
    made = configuration(of, "sonic").switches
    assert {name: _without_files(one) for name, one in read.configuration.switches.items()} == made


def test_a_switch_that_the_catalog_calls_by_its_chip_needs_no_other_name(tmp_path: Path) -> None:
    of = plan(spec_of(switch="tomahawk-5"))
    assert not written(of, tmp_path, ("sonic",)).problems
    with pytest.raises(ConfigError, match="expected sonic: Cumulus Linux 5 runs on Spectrum alone"):
        configuration(of, "nvue")


def test_a_chip_that_is_not_the_one_of_the_switch_is_refused() -> None:
    assert configuration(plan(spec_of(qos={"chip": "spectrum-4"})), "sonic").switches
    with pytest.raises(ConfigError, match=r"got tomahawk for switch .* of type 'spectrum-4', expected spectrum-4"):
        configuration(plan(spec_of(qos={"chip": "tomahawk"})), "sonic")


@pytest.mark.parametrize("technology", ["ethernet", "infiniband"])
def test_the_unit_of_the_adapters_runs_at_boot_on_any_fabric(technology: str, tmp_path: Path) -> None:
    write(planned(technology), tmp_path, ("host",))
    folder = tmp_path / "hosts/host-0"
    assert "fabric-adapters.sh" in (folder / "fabric-adapters.service").read_text()
    script = (folder / "fabric-adapters.sh").read_text()
    assert "\nsystemctl enable fabric-adapters\n" in script
    assert "--now fabric-adapters" not in script, "the unit would wait for itself"


@pytest.mark.parametrize("technology", ["ethernet", "infiniband"])
def test_hosts(technology: str, tmp_path: Path) -> None:
    of = planned(technology)
    read = written(of, tmp_path, ("host",))
    made = configuration(of, "host").hosts
    assert not read.problems
    assert not read.unread
    assert {name: _without_files(one) for name, one in read.configuration.hosts.items()} == made


def test_subnet(tmp_path: Path) -> None:
    of = planned("infiniband")
    read = written(of, tmp_path, ("opensm",))
    made, found = configuration(of, "opensm").subnet, read.configuration.subnet
    assert made is not None
    assert found is not None
    assert not read.problems
    assert found.options == {
        name: str(tmp_path / "opensm" / value) if name.endswith("_file") else value
        for name, value in made.options.items()
    }
    assert [replace(one, line=0) for one in found.partitions] == list(made.partitions)
    for name in ("roots", "compute_nodes", "io_nodes", "qos"):
        assert getattr(found, name) == getattr(made, name), name


def test_slurm_and_manifests(tmp_path: Path) -> None:
    of = plan(spec_of("infiniband", hosts=40, topology={"kind": "fat-tree", "tiers": 2}))
    read = written(of, tmp_path, ("slurm", "k8s"))
    assert not read.problems
    assert read.configuration.slurm is not None
    made = configuration(of, "slurm").slurm
    assert _without_files(read.configuration.slurm) == made
    manifests = configuration(of, "k8s").manifests
    assert sorted(map(json.dumps, read.configuration.manifests)) == sorted(map(json.dumps, manifests))


def test_every_value_of_config_db_has_a_reason_with_a_source(tmp_path: Path) -> None:
    write(planned(), tmp_path, ("sonic",))
    for path in tmp_path.rglob("config_db.json"):
        reasons = json.loads(path.with_name("config_db.reasons.json").read_text())
        for table, rows in json.loads(path.read_text()).items():
            for key, row in rows.items():
                wanted = [f"{table}|{key}|{name}" for name in row] or [f"{table}|{key}"]
                assert all(reasons[name].endswith("]") for name in wanted)


@pytest.mark.parametrize("technology", ["ethernet", "infiniband"])
def test_every_line_of_a_hosts_script_has_a_reason(technology: str, tmp_path: Path) -> None:
    write(planned(technology), tmp_path, ("host",))
    script = (tmp_path / "hosts/host-0/fabric-adapters.sh").read_text().splitlines()
    texts = {str(one) for one in REASONS.values()}
    reason = ""
    for line in script:
        if line.startswith("# ") and line[2:] in texts:
            reason = line
        elif not line:
            reason = ""
        elif not line.startswith(("#", "set -e", "  setpci", "done")):
            assert reason, line


def test_reasons_name_a_source() -> None:
    assert all(one.text and one.source for one in REASONS.values())


@pytest.mark.parametrize("blank", ["\n", " \n", "\t\r\n", "# a comment\n"])
@pytest.mark.parametrize(
    ("after", "kind"),
    [("?", ""), ("0x0002c90300000001\n", "guids"), ("mlx5_core\n", "modules"), ("", ""), ("[]\n", "")],
)
def test_blank_lines_and_comments_tell_no_format_however_many(blank, after, kind):
    """Lines that could be read in several ways would take longer than anybody waits."""
    assert kind_of(blank * 20_000 + after) == kind


@pytest.mark.parametrize(
    "value",
    ["!!int", "!!int x", "!!bool x", "!!float", "!!timestamp x", "!!binary é", "!!int '9" + "9" * 5000 + "'"],
)
def test_a_manifest_with_a_tag_that_does_not_fit_is_named(value):
    with pytest.raises(ConfigError, match=r"^pods\.yaml(:\d+)?: is not YAML"):
        read_manifests(f"kind: MacvlanNetwork\nspec:\n  mtu: {value}\n", "pods.yaml")
