"""Ranges around predictions: cells of held-out rows, their coverage, and what answers say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fabrictwin as ft
from fabrictwin.catalog.error_ranges import COLLECTIVE, FIRST_TOKEN, NEXT_TOKEN, STEP, error_ranges, regime_of
from fabrictwin.cli.predict.validate import validate as app
from fabrictwin.report.error_range import StepCase, range_lines, step_range
from fabrictwin.validation.ranges.error_cells import Held, cells, coverage, weighted_quantiles
from fabrictwin.validation.ranges.error_file import ranges_file, sections_of

TRAINING = {"sequence": 4096, "compute_share": 0.8}


def drawn(groups: int, each: int, between: float, within: float, seed: int = 5) -> list[Held]:
    rng = np.random.default_rng(seed)
    middles = rng.normal(0.0, between, groups)
    return [
        Held(("known",), f"group {g}", float(middles[g] + rng.normal(0.0, within)))
        for g in range(groups)
        for _ in range(each)
    ]


@pytest.mark.parametrize(("groups", "each"), [(60, 3), (12, 20)])
def test_ranges_cover_rows_of_groups_that_they_have_not_seen(groups: int, each: int) -> None:
    found = coverage(drawn(groups, each, 0.1, 0.05))
    assert found.rows == groups * each
    assert 0.4 < found.half < 0.65
    assert 0.83 < found.nine_tenths < 0.97


def test_few_groups_make_a_range_wide() -> None:
    few, many = (cells(drawn(groups, 240 // groups, 0.1, 0.05))["known",] for groups in (6, 120))
    assert few.factors[3] / few.factors[0] > many.factors[3] / many.factors[0]
    assert not cells(drawn(4, 60, 0.1, 0.05))


@pytest.mark.parametrize(("between", "within"), [(0.03, 0.06), (0.06, 0.06)])
def test_jobs_of_few_groups_are_more_draws_than_groups(between: float, within: float) -> None:
    """Rows that share a part of their error alone make a range that is less wide, and covers as it should."""
    rows = drawn(7, 20, between, within)
    one, many = (cells(rows, nested=nested)["known",] for nested in (False, True))
    assert one.factors[3] / one.factors[0] > many.factors[3] / many.factors[0]
    inside = [coverage(drawn(7, 20, between, within, seed=seed), nested=True) for seed in range(40)]
    assert np.mean([of.half for of in inside]) == pytest.approx(0.5, abs=0.04)
    assert np.mean([of.nine_tenths for of in inside]) == pytest.approx(0.9, abs=0.03)


def test_rows_that_share_all_of_their_error_are_one_draw() -> None:
    rows = drawn(7, 20, 0.1, 1e-6)
    assert cells(rows, nested=True) == cells(rows)


def test_a_range_lies_around_the_prediction_whatever_side_its_rows_are_on() -> None:
    rows = [Held(("known",), f"group {i % 12}", 0.02 + 0.01 * (i % 5)) for i in range(60)]
    a, b, c, d = np.log(cells(rows)["known",].factors)
    assert (a, b) == pytest.approx((-d, -c), abs=2e-3)
    assert 0.04 <= c < d < 0.1  # half are off by 4 % at most, nine tenths by 6


def test_a_cell_without_rows_of_its_own_takes_the_one_before() -> None:
    ranges = error_ranges("step")
    known = ranges.of((STEP.known, "somewhere else"))
    assert known == ranges.of((STEP.known,))
    with pytest.raises(LookupError):
        ranges.of(("nobody knows",))


def test_quantiles_are_weighted() -> None:
    values, weights = np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.0, 8.0])
    assert weighted_quantiles(values, weights, [0.5])[0] > 1.5


@pytest.mark.parametrize(
    ("answer", "first"),
    [
        ("step", STEP.known),
        ("step", STEP.without_hardware),
        ("step", STEP.without_software),
        ("collective", COLLECTIVE.known),
        ("collective", COLLECTIVE.without_hardware),
        ("served", FIRST_TOKEN),
        ("served", NEXT_TOKEN),
    ],
)
def test_stored_ranges_cover_as_they_should(answer: str, first: str) -> None:
    """The goals are 45 to 60 % in the half and 85 to 95 % in nine tenths."""
    rows, half, nine_tenths = error_ranges(answer).coverage[first]
    # of one framework each: rows on which a constant of single rows acts are none of unknown software
    assert rows >= (100 if first == STEP.without_software else 150)
    assert 0.45 <= half <= 0.6
    assert 0.85 <= nine_tenths <= 0.95


def test_ranges_of_one_kind_are_made_anew_beside_the_others() -> None:
    compared = {"gpus": ["h100-sxm"]}
    whole = ranges_file({name: (drawn(12, 5, 0.1, 0.05), compared) for name in ("step", "collective", "served")})
    again = ranges_file({"collective": (drawn(20, 5, 0.2, 0.05), compared)}, sections_of(whole))
    before, after = sections_of(whole), sections_of(again)
    assert list(before) == list(after) == ["step", "collective", "served"]
    assert [name for name in before if before[name] != after[name]] == ["collective"]
    assert again.splitlines()[:5] == whole.splitlines()[:5]


def test_ranges_of_steps_rest_on_what_says_how_much_is_known(tmp_path: Path) -> None:
    written = ["--write-ranges", str(tmp_path / "ranges.yaml")]
    for given in (["--by", "hardware"], ["--by", "series", "--only", "step"]):
        result = CliRunner().invoke(app, ["accuracy", *written, *given])
        assert "expected those or no --by" in str(result.exception)
    result = CliRunner().invoke(app, ["accuracy", "--only", "step"])
    assert "expected --write-ranges beside it" in str(result.exception)


@pytest.mark.parametrize("answer", ["step", "collective", "served"])
def test_quantiles_of_stored_ranges_ascend(answer: str) -> None:
    for name, one in error_ranges(answer).cells.items():
        a, b, c, d = one.factors
        assert 0 < a < b < c < d, name


def test_what_lies_outside_is_said() -> None:
    inside = step_range(StepCase("h100-sxm", 64, 8, TRAINING))
    assert not inside.outside
    assert inside.like.startswith(STEP.known)
    strange = step_range(StepCase("v100", 100_000, 12_500, {"sequence": 1 << 20, "compute_share": 0.8}))
    assert strange.like.startswith(STEP.without_hardware)
    assert len(strange.outside) == 3
    assert any("100,000 GPUs" in line for line in range_lines(strange, 10**12, None, ""))
    unknown = step_range(StepCase("h100-sxm", 64, 8, {"sequence": 4096}))
    assert unknown.like == STEP.without_software
    assert not unknown.outside
    experts = step_range(StepCase("h100-sxm", 64, 8, {"sequence": 4096}, one_framework=True))
    assert ["experts" in one for one in experts.outside] == [True]
    assert not step_range(StepCase("h100-sxm", 64, 8, TRAINING, one_framework=True)).outside
    (_, wide), (_, narrow) = unknown.of_time(1.0)[1], inside.of_time(1.0)[1]
    assert wide > narrow


def test_rates_are_the_inverse_of_times() -> None:
    one = step_range(StepCase("h100-sxm", 64, 8, TRAINING))
    (low, high), _ = one.of_time(2.0)
    (slow, fast), _ = one.of_rate(0.5)
    assert (1 / high, 1 / low) == pytest.approx((slow, fast))


def test_nccl_tests_prints_a_range_for_each_regime() -> None:
    assert [regime_of(size) for size in (0, 8, 65536, 1 << 30)] == [
        "below 64 KiB",
        "below 64 KiB",
        "64 KiB to 64 MiB",
        "from 64 MiB",
    ]
    sizes = {"minbytes": "8", "maxbytes": "8G", "stepfactor": 1024, "check": 0}
    found = ft.nccl_tests("all_reduce_perf", "examples/llama-3-70b.yaml", fidelity="analytic", hosts=2, **sizes)
    assert "Measured over predicted time" in str(found)
    assert list(found.ranges) == ["below 64 KiB", "64 KiB to 64 MiB", "from 64 MiB"]
    assert '"ranges"' in found.json()
