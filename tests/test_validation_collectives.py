"""The published series of collectives: all there, read with file and line, judged by regime."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fabrictwin.cli.validate import app
from fabrictwin.errors import ConfigError
from fabrictwin.nccl.costs import calibration
from fabrictwin.validation.collectives import (
    FITTED,
    TABLE,
    Answer,
    Outcome,
    Point,
    fitted_without,
    judge,
    read_published,
    summary,
    worst,
)
from fabrictwin.validation.data import find_data

DATA = read_published(find_data(None, TABLE))


@pytest.mark.parametrize(
    ("name", "file", "column"),
    [
        ("a100-8-stas", "nccl_allreduce_a100_8gpu_stas.csv", "time_us"),
        ("a100-16-aws", "nccl_allreduce_a100_16gpu_efa_aws.csv", "oop_time_us"),
        ("h100-8-aws", "nccl_allreduce_h100_8gpu_awsbatch.csv", "oop_time_us"),
        ("h100-16-aws", "nccl_allreduce_h100_16gpu_efa_aws.csv", "oop_time_us"),
        ("gb200-1440-coreweave", "nccl_allreduce_gb200_1440gpu_coreweave.csv", "oop_time_us"),
    ],
)
def test_series_hold_what_was_published(shared: Path, name: str, file: str, column: str) -> None:
    with (shared / "validation" / file).open() as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    mine = [p.time_us for p in DATA.points if p.series == name]
    assert mine == [pytest.approx(float(r[column]), rel=1e-5) for r in rows]


def test_every_series_has_rows_and_hardware_that_can_be_left_out() -> None:
    assert {p.series for p in DATA.points} == set(DATA.series)
    assert {s.hardware for s in DATA.series.values()} == set(FITTED)


def test_medians_are_over_series_not_rows() -> None:
    series = DATA.series["a100-8-stas"]

    def outcome(name: str, *errors: float) -> Outcome:
        points = [Point(series=name, gpus=8, size_bytes=1 << 30, time_us=100.0, settings="") for _ in errors]
        return Outcome(
            name, series, tuple(Answer(p, 100 * (1 + e), "") for p, e in zip(points, errors, strict=True))
        )

    found = [outcome("many", *[0.5] * 9), outcome("one", -0.1), outcome("other", 0.02)]
    assert summary(found) == {"from 64 MiB": (3, pytest.approx(0.1))}
    assert [o.name for o in worst(found, "from 64 MiB")] == ["many", "one", "other"]


def test_leaving_out_a_hardware_takes_its_figures_away() -> None:
    whole, without = calibration(), fitted_without("H100")
    assert without.inside["hopper"] != whole.inside["hopper"]
    assert without.inside["ampere"] == whole.inside["ampere"]
    others = sorted(whole.inside[name].launch for name in ("ampere", "blackwell", "rack"))
    assert without.inside["hopper"].launch == others[1]
    with pytest.raises(ConfigError, match="did you mean 'H100'"):
        fitted_without("H10O")


def test_the_targets_on_one_host() -> None:
    """Not the whole table, which takes longer: hosts of eight are within the declared errors from 64 MiB up."""
    found = judge(DATA, names=["a100-8-stas", "h100-8-aws", "h200-nvls-stas", "b200-8-stas"])
    for outcome in found:
        error = outcome.median_absolute("from 64 MiB")
        assert error is not None
        assert error < 0.07, outcome.name


def test_the_command(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["collectives", "--match", "a100-8-stas", "--json"])
    assert ran.exit_code == 0, ran.output
    data = json.loads(ran.stdout)
    assert [s["series"] for s in data["series"]] == ["a100-8-stas"]
    assert len(data["series"][0]["rows"]) == 20
    for file in (TABLE, "collectives.yaml"):
        shutil.copy(DATA.folder / file, tmp_path / file)
    (tmp_path / TABLE).write_text((tmp_path / TABLE).read_text() + "a100-8-sats,8,8,1.0,\n")
    with pytest.raises(ConfigError, match="did you mean 'a100-8-stas'"):
        read_published(tmp_path)
