"""The published series of collectives: all there, read with file and line, judged by regime."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fabrictwin.base.errors import ConfigError
from fabrictwin.cli.predict.validate import validate as app
from fabrictwin.nccl.topology.graph_types import Protocol
from fabrictwin.nccl.tuning.step_costs import calibration
from fabrictwin.validation.collective_series import (
    TABLE,
    Answer,
    Outcome,
    Point,
    asks_of,
    hardware_of,
    judge,
    read_published,
    summary,
    together,
    worst,
)
from fabrictwin.validation.collectives_fit import FITS, Bench, Figure, descend, fit, fit_without, fitted_to, get
from fabrictwin.validation.collectives_text import pairs
from fabrictwin.validation.published_data import find_data

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
    assert {s.hardware for s in DATA.series.values()} == set(hardware_of(DATA)) > fitted_to(DATA)


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


def test_descent_finds_figures_that_made_the_rows() -> None:
    """Rows from known figures: the fit comes back to them from the default."""
    figures: tuple[Figure, ...] = (("launch", None), ("ring_hop", 2), ("nvls_share", None))
    start = calibration().inside["default"]
    wanted = replace(start, launch=11.0, ring_hop=(0.0, 1.3, 4.2), nvls_share=0.7)

    def rows(entry: object) -> np.ndarray:
        launch, hop, rate = (get(entry, figure) for figure in figures)
        ways = ((1, 1.0), (14, 1.0), (30, 10.0), (2, 100.0), (14, 1000.0), (30, 10.0))
        return np.log([launch + hops * hop + size / rate for hops, size in ways])

    wrong = np.array([0, 0, 0, 0, 0, 0.5])  # absolute errors: one row that is far off moves nothing

    def errors(entry: object) -> np.ndarray:
        return rows(entry) - rows(wanted) + wrong

    found, left = descend(figures, start, errors, np.full(6, 1 / 6))
    assert left == pytest.approx(0.5 / 6, abs=0.01)
    for figure in figures:
        assert get(found, figure) == pytest.approx(get(wanted, figure), rel=0.05)
    assert descend(figures, start, errors, np.full(6, 1 / 6)) == (found, left)


@pytest.mark.second
def test_the_declared_costs_are_what_the_fit_gives() -> None:
    """Two sections from their series; `validate collectives --fit` prints all."""
    found, declared = fit(DATA, sections=["ampere", "srd-ampere"]), calibration()
    assert found.inside["ampere"] == declared.inside["ampere"]
    assert found.between["srd-ampere"] == declared.between["srd-ampere"]


def test_every_fitted_section_is_declared_with_its_series() -> None:
    whole = calibration()
    for one in FITS:
        assert one.section in getattr(whole, one.part)
        assert set(one.series) <= set(DATA.series)
    assert len({(one.part, one.section) for one in FITS}) == len(FITS)


def test_series_of_one_machine_are_left_out_together() -> None:
    groups = together(DATA)
    assert sorted(name for names in groups for name in names) == sorted(DATA.series)
    assert (
        tuple(f"h100-aic-{kind}" for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"))
        in groups
    )
    assert ("b200-8-stas", "b200-32-stas") in groups


def test_a_loop_waits_for_the_host_and_nccl_tests_does_not() -> None:
    """b200-8-stas measured one call of PyTorch at a time, b200-32-stas with ranks that hosts start apart."""
    whole = calibration()
    for name, several in (("b200-8-stas", False), ("b200-32-stas", True)):
        asks = asks_of(DATA, name)[0]
        loop, device = whole.of(asks.communicator, asks.caller), whole.of(asks.communicator)
        assert loop.inside.launch - device.inside.launch == pytest.approx(whole.callers["loop"][several])
        assert loop.between == device.between


def test_an_exchange_ends_when_the_last_of_its_ranks_has_started() -> None:
    costs = calibration().of(asks_of(DATA, "h100-aic-all-to-all")[0].communicator)
    two, four, eight, send = (
        costs.sends(Protocol.LL, exchange=exchange, nodes=1, ranks=ranks)[0]
        for exchange, ranks in ((True, 2), (True, 4), (True, 8), (False, 8))
    )
    assert eight - four == pytest.approx(four - two) == pytest.approx(costs.inside.exchange_start)
    assert two == pytest.approx(costs.inside.launch + costs.inside.exchange[Protocol.LL])
    assert send == pytest.approx(costs.inside.launch + costs.inside.send[Protocol.LL])


def test_ways_are_asked_again_only_where_their_costs_changed() -> None:
    bench = Bench.of(DATA, "h100-aic-all-reduce")
    costs = calibration().of(bench.ways[0].asks.communicator)
    first = bench.errors(lambda _: costs)
    sends = replace(costs, inside=replace(costs.inside, send_hop=99.0, exchange_gbps=(1.0, 1.0, 1.0)))
    assert bench.errors(lambda _: sends) == first
    assert all(len(way.known) == 1 for way in bench.ways)
    slower = replace(costs, inside=replace(costs.inside, launch=costs.inside.launch + 5))
    assert min(np.array(bench.errors(lambda _: slower)) - first) > 0


@pytest.mark.parametrize("name", ["h100-aic-all-to-all", "h100-8-azure", "h100-send-vidur", "h100-16-aws"])
def test_what_is_taken_once_is_a_sum(name: str) -> None:
    """A bench asked before with other bases and starts says what a new one says."""
    whole = calibration()
    asked, new = Bench.of(DATA, name), Bench.of(DATA, name)
    costs = whole.of(asked.ways[0].asks.communicator)
    asked.errors(lambda _: costs)
    inside = replace(
        costs.inside, launch=7.0, ring=(3.0, 4.0, 5.0), send=(3.0, 3.0, 9.0), exchange=(5.0, 5.0, 6.0), nvls=11.0
    )
    other = replace(costs, inside=replace(inside, exchange_start=2.0))
    assert asked.errors(lambda _: other) == pytest.approx(new.errors(lambda _: other), abs=1e-7)
    assert all(len(way.known) == 1 for way in asked.ways)


def test_hardware_to_leave_out_is_known() -> None:
    with pytest.raises(ConfigError, match="did you mean 'H100'"):
        fit_without(DATA, "H10O")
    with pytest.raises(ConfigError, match=r"got 'a10', .*did you mean 'A100'"):
        fit_without(DATA, "a10")


def test_nvls_pays_from_five_gpus_on_as_published() -> None:
    """NVIDIA/nccl issue 1455: rings and NVLS side by side on four to eight H100."""
    (outcome,) = judge(DATA, names=["h100-nvls-1455"])
    for pair in pairs(outcome):
        assert pair.twin == pytest.approx(pair.published, rel=0.1)
        halfway = 1.07  # between what four GPUs gain as published, nothing, and five, 14 %
        assert (pair.twin > halfway) == (pair.published > halfway) == (pair.gpus >= 5)


def test_the_targets_on_one_host() -> None:
    """Not the whole table, which takes longer: hosts of eight are within the declared errors from 64 MiB up.

    Of A100, what was measured up to 512 MiB and beyond is a tenth apart (docs/validation-collectives.md).
    """
    limits = {"a100-8-stas": 0.11, "h100-8-aws": 0.07, "h200-nvls-stas": 0.07, "b200-8-stas": 0.07}
    for outcome in judge(DATA, names=[*limits]):
        error = outcome.median_absolute("from 64 MiB")
        assert error is not None
        assert error < limits[outcome.name], outcome.name


@pytest.mark.parametrize("machine", sorted({name.split("-aic-")[0] for name in DATA.series if "-aic-" in name}))
@pytest.mark.second
def test_small_collectives_of_one_domain(machine: str) -> None:
    """Each kind of collective, below 64 KiB and up to 64 MiB, on two to eight GPUs."""
    found = judge(DATA, names=[name for name in DATA.series if name.startswith(f"{machine}-aic-")])
    assert len(found) == 4
    for outcome in found:
        small, middle = (outcome.median_absolute(regime) for regime in ("below 64 KiB", "64 KiB to 64 MiB"))
        assert small is not None
        assert small < 0.12, outcome.name
        assert middle is not None
        assert middle < 0.14, outcome.name


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
