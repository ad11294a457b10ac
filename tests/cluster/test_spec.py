"""The spec file: what it says, where its errors point, and that nothing but ConfigError escapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field
from support.edits import each, edited

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.yamlfile import MAX_DEPTH, dotted, read_yaml, undotted
from fabrictwin.cli import main
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec, json_schema, load_cluster, load_spec, read_spec

SPEC = """\
schema: 1
name: small
cluster:
  hosts:
    type: pcie-box
    count: 8
  network:
    technology: infiniband
    switch: qm8700
    topology: {kind: fat-tree, tiers: 2, leaf_down: 4}
    link_rate: 100 Gb/s
    host_cable: 2 m
    routing: {engine: dmodk, seed: 7}
workload:
  training:
    tp: 2
    layers: [a, b]
placement:
  order: scattered
  seed: 3
faults:
  - {link: leaf-0/3, rate: 50 Gb/s}
  - {gpu: host-3/gpu1, slowdown: 1.2}
run: {fidelity: analytic, fold: false}
"""

EXPLICIT = """\
technology: infiniband
hosts:
  - {name: a, type: pcie-box, guids: [0xa1], lids: [4]}
  - {name: b, nics: [eth0, eth1]}
switches:
  - {name: s, type: qm8700, tier: 1}
  - {name: t, ports: 4}
cables:
  - s/1 - a/mlx5_0 ; 200 Gb/s ; 5 m
  - s/2 - b/eth1 ; 100 Gb/s
  - t/4 - s/40 ; 200 Gb/s
"""


def write(folder: Path, text: str, name: str = "spec.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def load_and_build(path: Path) -> Blueprint:
    spec = load_spec(path)
    return build(spec.cluster, spec=spec)


def problem(folder: Path, text: str) -> str:
    """Return the error of loading and building, without the folder."""
    with pytest.raises(ConfigError) as caught:
        load_and_build(write(folder, text))
    said = str(caught.value)
    assert "\n" not in said
    return said.replace(f"{folder}/", "")


# --- YAML


def test_only_true_and_false_are_booleans() -> None:
    data, _ = read_yaml("a: on\nb: no\nc: yes\nd: true\ne: False\nf: off\n", "f")
    assert data == {"a": "on", "b": "no", "c": "yes", "d": True, "e": False, "f": "off"}


def test_numbers_are_numbers_and_clock_times_are_text() -> None:
    data, _ = read_yaml("a: 1:30\nb: 400e9\nc: 0x1F\nd: 010\ne: 1_000\nf: 2021-02-23\ng: .5\nh: 3:1\ni: -7\n", "f")
    assert data == {
        "a": "1:30",
        "b": 400e9,
        "c": 31,
        "d": "010",
        "e": 1000,
        "f": "2021-02-23",
        "g": 0.5,
        "h": "3:1",
        "i": -7,
    }


def test_every_key_has_its_line() -> None:
    _, lines = read_yaml(SPEC, "f")
    assert lines[("workload", "training", "layers", 1)] == 17
    assert lines[("faults", 1, "gpu")] == 23
    assert lines[("cluster", "network", "topology", "kind")] == 10
    text = SPEC.splitlines()
    for path, line in lines.items():
        if path and isinstance(path[-1], str):
            assert f"{path[-1]}:" in text[line - 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: {c: 1, c: 2}\n", "f:2 b.c: key given twice, first on line 2"),
        ("a: [1\n", "f:2: not YAML"),
        ("a: b: c\n", "f:1: not YAML"),
        ("a: 1\n---\nb: 1\n", "f:2: not YAML"),
        ("a: !!python/name:os.system x\n", "f:1 a: got 'x'"),
        ("a: !!int x\n", "f:1 a: got 'x'"),
        ("a:\n  <<: {b: 1}\n", "f:2 a: expected a plain key"),
        ("? [1]\n: 2\n", "f:1: expected a plain key"),
        ("a: \x00\n", "f: not YAML"),
        ("a: &x [*x]\n", "deeper than"),
        ("[" * 100_000, "deeper than"),
        ("- " * 100_000, "deeper than"),
        ("a: " + "9" * 5000, "f:1 a: got"),
    ],
)
def test_what_is_not_plain_data_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_yaml(text, "f")
    assert says in str(caught.value)


def test_aliases_work_but_cannot_blow_up() -> None:
    assert read_yaml("a: &x {b: 1}\nc: *x\n", "f")[0] == {"a": {"b": 1}, "c": {"b": 1}}
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    with pytest.raises(ConfigError, match="too many values by alias"):
        read_yaml(bomb, "f")


plain_text = st.text(st.characters(categories=["L", "N", "P", "S"], include_characters=" "), max_size=8)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | plain_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_text, inner, max_size=4),
    max_leaves=12,
)


@given(data=st.dictionaries(plain_text.filter(lambda key: key != "<<"), plain, max_size=5))
def test_json_is_read_as_it_stands(data: dict[str, Any]) -> None:
    """JSON is YAML: what any other tool writes with every string quoted comes back the same."""
    if "<<" not in str(data):
        assert read_yaml(json.dumps(data, ensure_ascii=False), "f")[0] == data


@settings(max_examples=300)
@given(text=st.text(st.characters(), max_size=60) | st.text("[]{}&*!?:-, \n\tab01'\"|>#%@`", max_size=60))
def test_only_config_errors_escape_from_yaml(text: str) -> None:
    try:
        _, lines = read_yaml(text, "f")
    except ConfigError:
        return
    assert all(len(path) <= MAX_DEPTH for path in lines)


@settings(max_examples=300)
@given(data=st.data())
def test_only_config_errors_escape_from_mutated_specs(data: st.DataObject, tmp_path_factory: Any) -> None:
    text = SPEC
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        upto = data.draw(st.integers(at, min(len(text), at + 30)))
        piece = data.draw(st.sampled_from(["", "-", ": ", "[", "}", "1", "x", "\n", "  ", "1e99", "null", "é"]))
        text = text[:at] + piece + text[upto:]
    path = write(tmp_path_factory.getbasetemp(), text, "fuzz.yaml")
    try:
        load_and_build(path)
    except ConfigError as error:
        said = str(error)
    else:
        return
    assert said.startswith(str(path))


@given(
    path=st.lists(st.text("abc_1", min_size=1, max_size=4) | st.integers(0, 99), min_size=1, max_size=5).map(tuple)
)
def test_keys_are_written_and_read_alike(path: tuple[str | int, ...]) -> None:
    assert undotted(dotted(path)) == path


# --- the spec


def test_a_spec_from_a_file_equals_the_same_from_python(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, SPEC))
    assert spec == Spec.model_validate(yaml.safe_load(SPEC))
    assert spec.path == tmp_path / "spec.yaml"
    assert spec.cluster.routing.engine == "dmodk"
    assert spec.run.fidelity == "analytic"
    assert not spec.run.fold


def test_a_spec_written_out_reads_back_equal(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, SPEC))
    data = spec.to_dict()
    assert data["cluster"]["network"]["link_rate"] == "100 Gb/s"
    assert Spec.model_validate(data) == spec
    assert load_spec(write(tmp_path, yaml.safe_dump(data), "again.yaml")) == spec


@each("old new says", "cluster/wrong_specs")
def test_mistakes_are_one_line_with_file_line_and_key(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert says in problem(tmp_path, edited(SPEC, old, new))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "spec.yaml:1: expected the keys of a spec"),
        ("- a\n", "spec.yaml:1: expected the keys of a spec"),
        ("schema: 1\n", "spec.yaml:1 cluster: missing"),
        ("schema: 1\ncluster: 3\n", "spec.yaml:2 cluster: got 3, expected keys with values"),
        ("schema: 1\ncluster: other.yaml\n", "other.yaml: no such file"),
        ("schema: 1\ncluster: {ibnetdiscover: no.txt}\n", "no.txt: no such file"),
        ("schema: 1\ncluster: {ibnetdiscovr: no.txt}\n", "did you mean 'ibnetdiscover'?"),
        ("schema: 1\ncluster: {hosts: [], network: {}}\n", "cluster.hosts: got an empty list"),
    ],
)
def test_whole_files_that_make_no_sense(text: str, says: str, tmp_path: Path) -> None:
    assert says in problem(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_spec(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_spec(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"schema: 1\nname: \xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml:2: got bytes that are not UTF-8"):
        load_spec(tmp_path / "latin.yaml")


class Training(BaseModel):
    model_config = ConfigDict(extra="forbid")
    tp: Annotated[int, Field(ge=1)]
    layers: list[str] = []


def test_another_rooms_section_gets_the_same_errors(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, SPEC))
    assert spec.validate_section("workload.training", Training).tp == 2
    wrong = load_spec(write(tmp_path, SPEC.replace("tp: 2", "tpp: 2")))
    with pytest.raises(ConfigError, match=r"spec.yaml:16 workload.training.tpp: .*did you mean 'tp'\?"):
        wrong.validate_section("workload.training", Training)
    with pytest.raises(ConfigError, match=r"spec.yaml:14 workload.inference.tp: missing"):
        spec.validate_section("workload.inference", Training)
    assert str(spec.error("workload.training.layers[1]", "odd")).endswith(
        "spec.yaml:17 workload.training.layers[1]: odd"
    )


def test_locate_falls_back_to_what_holds_the_key(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, SPEC))
    assert spec.locate("workload.training.tp") == (str(tmp_path / "spec.yaml"), 16)
    assert spec.locate("workload.training.pp") == (str(tmp_path / "spec.yaml"), 15)
    assert read_spec(yaml.safe_load(SPEC)).locate("workload.training.tp") == (None, None)


# --- a cluster in a file of its own


def test_a_cluster_may_live_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", EXPLICIT, "cluster.yaml")
    spec = load_spec(write(tmp_path, "schema: 1\ncluster: sub/cluster.yaml\n"))
    inline = read_spec({"schema": 1, "cluster": yaml.safe_load(EXPLICIT)})
    assert spec == inline
    assert build(spec.cluster, spec=spec) == build(inline.cluster, spec=inline)
    assert spec.locate("cluster.switches[1].ports") == (str(tmp_path / "sub" / "cluster.yaml"), 7)
    assert load_cluster(tmp_path / "sub" / "cluster.yaml").cluster == spec.cluster


def test_errors_in_another_file_point_there(tmp_path: Path) -> None:
    write(tmp_path, EXPLICIT.replace("ports: 4", "prots: 4"), "cluster.yaml")
    path = write(tmp_path, "schema: 1\ncluster: cluster.yaml\n")
    with pytest.raises(ConfigError, match=r"cluster.yaml:7 cluster.switches\[1\].prots: .*did you mean 'ports'\?"):
        load_spec(path)


def test_paths_in_another_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", "ibnetdiscover: found.txt\n", "cluster.yaml")
    write(tmp_path / "sub", "nonsense\n", "found.txt")
    spec = load_spec(write(tmp_path, "schema: 1\ncluster: sub/cluster.yaml\n"))
    with pytest.raises(ConfigError, match=r"sub/found.txt:1: got 'nonsense'"):
        build(spec.cluster, spec=spec)


# --- explicit clusters


def test_an_explicit_cluster_is_built_as_written(tmp_path: Path) -> None:
    spec = load_cluster(write(tmp_path, EXPLICIT))
    built = build(spec.cluster, spec=spec)
    assert [(h.name, h.type, h.nics, h.guids, h.lids) for h in built.hosts] == [
        ("a", "pcie-box", ("mlx5_0",), (0xA1,), (4,)),
        ("b", "", ("eth0", "eth1"), (), ()),
    ]
    assert [(s.name, s.ports, s.tier) for s in built.switches] == [("s", 40, 1), ("t", 4, -1)]
    c = built.cables
    assert c.a_node.tolist() == [0, 0, 1]
    assert c.a_port.tolist() == [1, 2, 4]
    assert c.b_node.tolist() == [2, 4, 0]
    assert c.b_port.tolist() == [1, 1, 40]
    assert c.rate_bps.tolist() == [200 * 10**9, 100 * 10**9, 200 * 10**9]
    assert c.length_mm.tolist() == [5000, 3000, 20000]


@each("old new says", "cluster/wrong_cablings")
def test_impossible_cablings_say_which_cable(old: str, new: str, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, edited(EXPLICIT, old, new))
    with pytest.raises(ConfigError) as caught:
        load_and_build(write(tmp_path, f"schema: 1\ncluster: {path.name}\n", "whole.yaml"))
    said = str(caught.value)
    assert f"cluster.{says}" in said
    line = next(
        n
        for n, (a, b) in enumerate(zip(EXPLICIT.splitlines(), path.read_text().splitlines(), strict=True), 1)
        if a != b
    )
    assert said.startswith(f"{path}:{line} ")


def test_one_rate_may_hold_for_all_cables(tmp_path: Path) -> None:
    text = EXPLICIT.replace(
        "technology: infiniband", "technology: infiniband\nlink_rate: 100 Gb/s\ntrunk_cable: 7 m"
    )
    spec = load_cluster(write(tmp_path, text.replace(" ; 200 Gb/s", "").replace(" ; 100 Gb/s", "")))
    built = build(spec.cluster, spec=spec)
    assert set(built.cables.rate_bps.tolist()) == {100 * 10**9}
    assert built.cables.length_mm.tolist() == [5000, 3000, 7000]


# --- the published schema

PUBLISHED = Path(__file__).parents[2] / "docs" / "schema" / "fabrictwin.schema.json"


def test_the_published_schema_is_what_the_program_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """After a change: `fabrictwin schema > docs/schema/fabrictwin.schema.json`."""
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == PUBLISHED.read_text(encoding="utf-8")


def test_a_section_passed_in_takes_the_place_of_the_opaque_one() -> None:
    section = {
        "type": "object",
        "properties": {"tp": {"$ref": "#/$defs/Tp"}},
        "$defs": {"Tp": {"type": "integer"}},
    }
    schema = json_schema({"workload": section})
    assert schema["properties"]["workload"]["properties"] == {"tp": {"$ref": "#/$defs/Tp"}}
    assert schema["$defs"]["Tp"] == {"type": "integer"}
    assert "$defs" not in schema["properties"]["workload"]
    assert "Tp" not in json_schema()["$defs"]
