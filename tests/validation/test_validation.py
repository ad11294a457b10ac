"""The published rows, how they become specs, and how errors are counted."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import silent
from fabrictwin.cli.predict.validate import validate as app
from fabrictwin.validation.published_data import TABLE, TEXTS, Row, find_data, read_data
from fabrictwin.validation.training_cases import Case, cases, not_modelled, training_section
from fabrictwin.validation.training_judge import Answers, Outcome, groups, judge, pairs
from fabrictwin.validation.training_text import as_data, as_text

DATA = read_data(find_data())


def row(**changes) -> Row:
    base = next(r for r in DATA.rows if r.row == "megatron-22B full")
    return base.model_copy(update={"quantity": "tokens_per_s_per_gpu", **changes})


def outcome(hardware: str, published: float, predicted: float, **changes) -> Outcome:
    of = row(value=published, **changes)
    return Outcome(Case(of, None, (), hardware=hardware, framework="f"), predicted, 1.0)


def published(shared: Path, name: str) -> list[dict[str, str]]:
    with open(shared / "validation" / name, encoding="utf-8") as stream:
        return list(csv.DictReader(line for line in stream if not line.startswith("#")))


def test_few_specs_are_predicted_without_other_processes(monkeypatch):
    asked = []

    def in_order(work, items, workers, stage, names):
        asked.append((len(items), workers))
        return ["refused"] * len(items)

    monkeypatch.setattr("fabrictwin.validation.training_judge.in_order", in_order)
    answers, some = Answers("analytic", workers=2), [case for case in cases(DATA) if case.spec is not None]
    assert all(one.refused for one in answers.of(some[:2]))
    answers.of(some)
    answers.of(some)  # each once
    (few, here), (many, both), (none, _) = asked
    assert (here, both) == (1, 2)
    assert 0 < few < many < len(some)
    assert none == 0


@pytest.mark.parametrize(
    ("of", "files", "column"),
    [
        ("megatron-2021", ["megatron_narayanan2021_table1.csv"], "tflops_per_gpu"),
        ("nemo-24.07", ["nemo_nemo24_07_0.csv"], "Tokens / sec / GPU"),
        ("mbridge", ["mbridge_archive_1.csv"], "Tokens / sec / GPU"),
        ("torchtitan", [f"torchtitan_llama31_h100_t{i}.csv" for i in (1, 3, 2)], "TPS/GPU"),
        ("torchtitan memory", [f"torchtitan_llama31_h100_t{i}.csv" for i in (1, 3, 2)], "Memory(GiB)"),
        ("llama3-405b", ["llama3_405b_table4_mfu.csv"], "tflops_per_gpu"),
        ("mlperf-5.0-405b", ["mlperf_train_v5.0_llama31_405b.csv"], "step_s_p50"),
        (
            "llm-foundry",
            ["mpt_llmfoundry_a100_80gb_with_1600_gbps_node_node_interconnect_roce.csv"],
            "Throughput (T/s/GPU)",
        ),
    ],
)
def test_every_published_row_is_here_with_its_value(shared, of, files, column):
    theirs = [float(r[column].replace(",", "")) for file in files for r in published(shared, file)]
    name, _, memory = of.partition(" ")
    assert [r.memory_gib if memory else r.value for r in DATA.rows if r.set == name] == theirs


def test_every_row_is_a_spec_or_says_why_not():
    found = cases(DATA)
    assert [case.row for case in found] == list(DATA.rows)
    for case in found:
        assert (case.spec is None) == bool(case.missing or case.unknown)
    assert sum(case.spec is not None for case in found) >= 6


def test_assumptions_stand_beside_every_row():
    for case in cases(DATA):
        assert case.assumptions or case.unknown, case.row


def test_every_texts_entry_is_used():
    for key, known in (("set", DATA.texts.sets), ("hardware", DATA.texts.hardware), ("model", DATA.texts.models)):
        assert {getattr(r, key) for r in DATA.rows} >= set(known) - {"dgx-b200"}


@pytest.mark.parametrize("name", DATA.texts.hardware)
def test_hardware_is_in_the_catalog(name):
    found = DATA.texts.hardware[name]
    assert catalog.host(found.host).nodes.gpu in (8, 64)
    assert catalog.switch(found.switch).technology == found.technology


def test_ranks_of_every_row_are_its_gpus():
    for r in DATA.rows:
        found = DATA.texts.sets[r.set]
        parallel = training_section(r, found, DATA.texts.models[r.model])["parallel"]
        ranks = parallel["tp"] * parallel["pp"] * parallel["dp"] * parallel.get("cp", 1)
        assert ranks == r.gpus or found.unknown, r.row


def test_what_the_spec_does_not_know_is_named():
    section = training_section(DATA.rows[0], DATA.texts.sets["megatron-2021"], DATA.texts.models["megatron-1.7b"])
    assert not_modelled(section) == ()
    wrong = {**section, "precision": "fp2", "hovercraft": True, "parallel": {**section["parallel"], "eels": 3}}
    assert set(not_modelled(wrong)) == {"precision: fp2", "hovercraft", "parallel.eels"}
    unknown = {**section, "model": {"_name": "x", "model_type": "nemotron_h", "vocab_size": 3}}
    assert not_modelled(unknown)[0].startswith("model x (")


def test_an_error_is_of_throughput_whatever_was_published():
    assert outcome("h", 100.0, 110.0).error == pytest.approx(0.10)
    slow = outcome("h", 2.0, 2.5, quantity="step_time_s")
    assert slow.error == pytest.approx(-0.20)


def test_groups_have_medians_and_deciles():
    made = [outcome("a", 100.0, 100.0 + e) for e in range(1, 11)] + [outcome("b", 100.0, 70.0)]
    found = {(g.by, g.name): g for g in groups(made)}
    assert found["hardware", "a"].median_absolute == pytest.approx(0.055)
    assert found["hardware", "a"].ninth_decile == pytest.approx(0.09)
    assert found["hardware", "b"].median_signed == pytest.approx(-0.3)
    assert found["all", "all rows"].worst == pytest.approx(-0.3)
    assert found["all", "all rows"].rows == 11


def test_pairs_differ_in_gpus_alone():
    few = outcome("a", 100.0, 100.0, row="x", gpus=8, global_batch=8)
    more = outcome("a", 90.0, 95.0, row="y", gpus=64, global_batch=64)
    other = outcome("a", 90.0, 95.0, row="z", gpus=64, global_batch=64, tp=4)
    (pair,) = pairs([more, few, other])
    assert (pair.fewer, pair.more, pair.agrees) == (few, more, True)
    assert pair.published == pytest.approx(0.9)
    steps = [
        outcome("a", 2.0, 2.0, row="x", gpus=8, global_batch=8, quantity="step_time_s"),
        outcome("a", 2.5, 1.9, row="y", gpus=16, global_batch=16, quantity="step_time_s"),
    ]
    (pair,) = pairs(steps)
    assert (pair.published, pair.agrees) == (pytest.approx(0.8), False)


@pytest.mark.second
def test_published_steps_of_megatron_are_met_within_a_fifth():
    found = [c for c in cases(DATA) if c.row.set == "megatron-2021"]
    outcomes = judge(found, fidelity="analytic", stage=silent)
    assert [o.status for o in outcomes] == ["predicted"] * 5
    assert all(abs(o.error) < 0.2 for o in outcomes)


def test_a_layout_that_the_twin_refuses_is_listed_with_the_reason():
    case = next(c for c in cases(DATA) if c.row.row == "megatron-22B full")
    spec = case.spec
    wrong = spec.model_copy(
        update={"workload": {"training": {**spec.workload["training"], "parallel": {"tp": 5}}}}
    )
    (refused,) = judge([replace(case, spec=wrong)], fidelity="analytic", stage=silent)
    assert refused.status == "refused"
    assert "got 5" in refused.why
    assert "got 5" in as_text(DATA, [refused], "analytic", every=False)


def test_nothing_is_dropped_from_the_output():
    found = cases(DATA)
    outcomes = [Outcome(case) for case in found]
    text = as_text(DATA, outcomes, "analytic", every=False)
    data = as_data(DATA, outcomes, "analytic")
    assert len(data["rows"]) == len(DATA.rows)
    for r in DATA.rows:
        if next(c for c in found if c.row is r).spec is None:
            assert f"{r.set}: {r.row}" in text


def test_the_command_prints_json_and_writes_it(tmp_path):
    out = tmp_path / "v.json"
    result = CliRunner().invoke(app, ["training", "--match", "megatron-22b full", "--json", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == json.loads(out.read_text())
    (only,) = json.loads(result.output)["rows"]
    assert only["status"] == "predicted"
    assert only["published"] == 1.42
    assert only["error_percent"] == pytest.approx(100 * (1.42 / only["predicted"] - 1), abs=0.01)
    assert only["assumptions"]


def copied(tmp_path: Path) -> Path:
    for name in (TABLE, TEXTS):
        shutil.copy(DATA.folder / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (TABLE, ",137,", ",-137,", r"training.csv:4 value: .*expected a number above 0"),
        (TABLE, "megatron-1.7b", "megatron-1.8b", r"training.csv:4 model: got 'megatron-1.8b'.*did you mean"),
        (TABLE, "megatron-2021,7.5B", "megatron-2021,1.7B", r"training.csv:5 row: got '1.7B' twice"),
        (TEXTS, "framework: Megatron-LM", "frame: Megatron-LM", r"training.yaml:\d+ sets.megatron-2021.frame"),
    ],
)
def test_a_wrong_entry_is_one_line_with_its_place(tmp_path, file, old, new, message):
    path = copied(tmp_path) / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=message) as caught:
        read_data(tmp_path)
    assert "\n" not in str(caught.value)


def test_absent_data_is_said_clearly(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"without training.csv"):
        find_data(tmp_path)
    monkeypatch.setattr(
        "fabrictwin.validation.published_data.__file__", str(tmp_path / "a" / "b" / "c" / "data.py")
    )
    with pytest.raises(ConfigError, match=r"not part of this installation; give their folder with --data"):
        find_data()


def rows_of_the_page() -> list[list[str]]:
    """Cells of the table of published steps in docs/training.md."""
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    lines = page[page.index("| job | row | GPUs |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("cells", rows_of_the_page(), ids=lambda cells: cells[1])
def test_the_page_on_training_says_what_validation_says(cells):
    _, where, gpus, was, says, off = cells
    of, name = where.split(": ")
    if int(gpus.split()[0].replace(",", "")) > 4096:
        pytest.skip("takes a quarter of a minute; `fabrictwin validate training --match llama3-405b` shows it")
    (case,) = [c for c in cases(DATA) if (c.row.set, c.row.row) == (of.strip("`"), name)]
    (found,) = judge([case], fidelity="analytic", stage=silent)
    assert float(was.split()[0].replace(",", "")) == pytest.approx(case.row.value, rel=1e-3)
    assert float(says.split()[0].replace(",", "")) == pytest.approx(found.predicted, rel=1e-3)
    assert float(off.strip("%")) == pytest.approx(100 * found.error, abs=0.06)
    assert int(gpus.split()[0].replace(",", "")) == case.row.gpus
