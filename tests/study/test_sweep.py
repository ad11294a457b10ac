"""Sweeps: axes as people write them, samples, the journal, failures, files and the page."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fabrictwin as ft
from fabrictwin.base.errors import ConfigError, UnwrittenError
from fabrictwin.base.progress import silent
from fabrictwin.cli import main
from fabrictwin.study.sweep import sweep as study
from fabrictwin.study.sweep.axes import Axis, Range, parse_axis, schema_keys
from fabrictwin.study.sweep.journal import journal
from fabrictwin.study.sweep.samples import grid, samples
from fabrictwin.study.sweep.table_files import write_table

LAPTOP = Path(__file__).parents[2] / "examples" / "laptop.yaml"
KEYS = ("cluster.hosts.count", "parallel.tp", "parallel.pp", "a.rate", "b.rate")


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ("hosts=8,16,32", ("8", "16", "32")),
        ("hosts=8,16,8", ("8", "16")),
        ("hosts=8,16,...,128", ("8", "16", "32", "64", "128")),
        ("hosts=8,16,…,128", ("8", "16", "32", "64", "128")),
        ("hosts=1,4,...,13", ("1", "4", "7", "10", "13")),  # 4 does not lead to 13 by a factor
        ("hosts=2,4,6,...,10", ("2", "4", "6", "8", "10")),
        ("hosts=10,8,...,4", ("10", "8", "6", "4")),
        ("a.rate=100,200,...,400 Gb/s", ("100 Gb/s", "200 Gb/s", "400 Gb/s")),
        ("tp+pp=1:4,2:2", ("1:4", "2:2")),
    ],
)
def test_values_as_they_are_written(given, values):
    assert parse_axis(given, KEYS).values == values


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("hosts", "expected a key of the spec and its values"),
        ("hosts=", "expected a key of the spec and its values"),
        ("hosts= , ,", "expected a key of the spec and its values"),
        ("hosts=8,...,128", "two values or more before the dots"),
        ("hosts=8,16,...,100", "progression that ends at the last value"),
        ("hosts=a,b,...,c", "numbers around the dots"),
        ("hosts=5..2", "a smaller and a greater value"),
        ("a.rate=1 Gb/s..5 MB", "of one unit"),
        ("hosts=log:0..5", "above zero"),
        ("hosts=log:5", "a range after log:"),
        ("rate=1", "may be any of a.rate, b.rate"),
        ("tpp=1", "did you mean 'tp'"),
        ("paralel.tp=1", "a key that begins with a, b, cluster, parallel, did you mean 'parallel.tp'"),
        ("job[0].tp=1", "a key that begins with a, b, cluster, parallel"),
    ],
)
def test_what_is_written_wrong_is_named(given, said):
    with pytest.raises(ConfigError, match=said.replace("|", r"\|")):
        parse_axis(given, KEYS)


@given(st.integers(-50, 50), st.integers(1, 20), st.integers(2, 30))
def test_equal_steps_reach_their_end(first, step, count):
    values = [first + step * i for i in range(count + 1)]
    found = parse_axis(f"a.rate={values[0]},{values[1]},{values[2]},...,{values[-1]}", KEYS).values
    assert [float(value) for value in found] == values


@given(st.integers(2, 60), st.integers(0, 2**32))
def test_a_latin_hypercube_draws_once_from_each_part(count, seed):
    axes = (Axis("x", Range(0.0, 1.0, "", False, False)), Axis("y", Range(1.0, 100.0, "", False, True)))
    found = np.array(samples(axes, count, "latin", seed), float)
    # values are written with six digits: those on a border between parts are left out
    places = found[:, 0] * count
    inside = np.abs(places - np.rint(places)) > 1e-3
    assert len(set(np.floor(places[inside]))) == inside.sum()
    shares = np.log(found[:, 1]) / math.log(100) * count
    inside = np.abs(shares - np.rint(shares)) > 1e-3
    assert len(set(np.floor(shares[inside]))) == inside.sum()


def test_samples_repeat_with_their_seed_and_cover_whole_numbers_evenly():
    axes = (Axis("x", Range(1, 4, "", True, False)), Axis("y", ("a", "b")))
    found = samples(axes, 4000, "random", 7)
    assert found == samples(axes, 4000, "random", 7) != samples(axes, 4000, "random", 8)
    counts = [sum(x == str(value) for x, _ in found) for value in (1, 2, 3, 4)]
    assert sum(counts) == 4000
    assert all(abs(count - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75) for count in counts)


def test_a_grid_is_every_combination_the_last_axis_fastest():
    assert grid((Axis("x", ("1", "2")), Axis("y", ("a", "b")))) == [("1", "a"), ("1", "b"), ("2", "a"), ("2", "b")]
    with pytest.raises(ConfigError, match="--samples"):
        grid((Axis("x", Range(0, 1, "", False, False)),))


def test_keys_of_a_schema_are_found_through_references():
    schema = {
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/B"}]}},
        "$defs": {
            "A": {"properties": {"x": {"type": "integer"}, "a": {"$ref": "#/$defs/A"}}},
            "B": {"type": "string"},
        },
    }
    found = schema_keys(schema)
    assert {"a.x", "a.a.x", "b"} <= found


def test_a_row_is_the_run_of_its_point():
    found = ft.sweep(LAPTOP, ["hosts=2,4", "tp=2,3"], workers=1)
    rows = list(found.table)
    assert [row["cluster.hosts.count"] for row in rows] == [2, 2, 4, 4]
    assert found.failures == 2
    assert "tp" in rows[1]["reason"]
    assert rows[1]["step_time_s"] is None
    alone = ft.run(ft.load(LAPTOP).with_(cluster__hosts__count=2, workload={"training": {"parallel": {"tp": 2}}}))
    assert rows[0]["step_time_s"] == alone.summary["step_time_s"]
    assert rows[0]["reason"] is None


@pytest.mark.second
def test_a_sweep_goes_on_where_it_was_and_ends_in_the_same_bytes(tmp_path, monkeypatch):
    asked = study.plan(ft.load(LAPTOP), ["hosts=2,4,8", "tp=1,2"])
    whole = study.sweep(asked, silent, workers=1)
    book = tmp_path / "t.csv.journal"
    calls = []
    answer = study.answer

    def counted(question, point):
        calls.append(point)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return answer(question, point)

    monkeypatch.setattr(study, "answer", counted)
    with pytest.raises(KeyboardInterrupt):
        study.sweep(asked, silent, workers=1, kept=book)
    with book.open("ab") as file:
        file.write(b'[4, {"step_time_s": 1.')  # a line that was being written
    again = study.sweep(asked, silent, workers=1, kept=book)
    assert again.columns() == whole.columns()
    assert [call for call in calls if calls.count(call) > 1] == [asked.points[2]] * 2  # what had no answer yet


def test_a_journal_of_another_sweep_is_not_taken(tmp_path):
    book = tmp_path / "t.csv.journal"
    spec = ft.load(LAPTOP)
    study.sweep(study.plan(spec, ["hosts=2,4"]), silent, workers=1, kept=book)
    with pytest.raises(ConfigError, match="another sweep"):
        study.sweep(study.plan(spec, ["hosts=2,8"]), silent, workers=1, kept=book)
    book.write_text("no JSON\n")
    with pytest.raises(ConfigError, match="expected a sweep's journal"):
        study.sweep(study.plan(spec, ["hosts=2,4"]), silent, workers=1, kept=book)


def test_a_value_that_no_spec_can_hold_leaves_no_journal(tmp_path):
    book = tmp_path / "t.csv.journal"
    with pytest.raises(ConfigError, match="expected plain text or a number"):
        study.sweep(study.plan(ft.load(LAPTOP), [f"hosts=2,{'9' * 5000}"]), silent, workers=1, kept=book)
    assert not book.exists()


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        f"[{'9' * 5000}, {{}}]",
        "[0, []]",
        '[0, {"step_time_s": [1]}]',
        "[2, {}]",
        "[-1, {}]",
        "\ud800",
    ],
)
def test_a_broken_line_of_a_journal_is_named(line, tmp_path):
    book = tmp_path / "t.csv.journal"
    asked = study.plan(ft.load(LAPTOP), ["hosts=2,4"])
    with journal(book, asked.question, asked.points):
        pass  # its first line
    with book.open("ab") as file:
        file.write(line.encode("utf-8", "surrogatepass") + b"\n")
    with pytest.raises(ConfigError, match="expected a sweep's journal"):
        study.sweep(asked, silent, workers=1, kept=book)


def test_a_pipe_for_a_journal_is_refused(tmp_path):
    book = tmp_path / "t.csv.journal"
    os.mkfifo(book)
    with pytest.raises(ConfigError, match="expected a plain file"):
        study.sweep(study.plan(ft.load(LAPTOP), ["hosts=2,4"]), silent, workers=1, kept=book)


def test_a_full_disk_under_a_table_is_no_mistake_of_who_asked(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UnwrittenError, match=r"t\.csv"):
        write_table(tmp_path / "t.csv", {"a": [1]})
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UnwrittenError, match="journal"):
        study.sweep(study.plan(ft.load(LAPTOP), ["hosts=2,4"]), silent, workers=1, kept=tmp_path / "journal")


def test_the_command_writes_a_table_and_a_page(tmp_path, capsys):
    table = tmp_path / "t.csv"
    assert (
        main(
            ["sweep", str(LAPTOP), "--vary", "hosts=2,4", "--seeds", "1,2", "--out", str(table), "--workers", "1"]
        )
        == 0
    )
    rows = list(csv.DictReader(table.open()))
    assert [row["run.seed"] for row in rows] == ["1", "2", "1", "2"]
    assert float(rows[0]["step_time_s"]) > float(rows[2]["step_time_s"])
    page = (tmp_path / "t.html").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert data["keys"] == ["host count", "seed"]
    assert data["columns"]["step_time_s"] == [float(row["step_time_s"]) for row in rows]
    assert not os.path.exists(f"{table}.journal")
    assert "page" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seed", "3"], "--seed: means nothing without --samples"),
        (["--sampling", "random"], "--sampling: means nothing without --samples"),
        (["--on", "auto", "--workers", "2"], "--workers: means nothing with --on"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(options, said, tmp_path, capsys):
    table = tmp_path / "t.csv"
    assert main(["sweep", str(LAPTOP), "--vary", "hosts=2", "--out", str(table), *options]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["t.txt", "t"])
def test_a_table_has_an_ending_that_says_its_kind(name, tmp_path, capsys):
    assert main(["sweep", str(LAPTOP), "--vary", "hosts=2", "--out", str(tmp_path / name)]) == 2
    assert ".csv or .parquet" in capsys.readouterr().err


def test_parquet_has_units_and_the_same_figures(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    found = ft.sweep(LAPTOP, ["hosts=2,4", "tp=2,3"], workers=1)
    found.save(tmp_path / "t.parquet")
    read = parquet.read_table(tmp_path / "t.parquet")
    assert read.schema.field("step_time_s").metadata == {b"unit": b"s"}
    assert read.column("step_time_s").to_pylist() == found.table["step_time_s"]
    assert read.column("memory_fits").to_pylist() == found.table["memory_fits"]


def test_a_server_is_swept_like_a_job():
    found = ft.sweep(LAPTOP.with_name("serve-llama-3-70b.yaml"), ["num_prompts=4,8"], workers=1)
    assert found.table["reason"] == [None, None]
    assert found.table["completed"] == [4, 8]
