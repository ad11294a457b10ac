"""Variances of nested random effects, found again from rows that were drawn with known ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fabrictwin.catalog.error_ranges import STEP, Spread, error_ranges, step_spread
from fabrictwin.validation.held_out import DIMENSIONS, SINGLE_KIND, HeldOut
from fabrictwin.validation.published_data import find_data, read_data
from fabrictwin.validation.ranges.error_rows import step_spreads
from fabrictwin.validation.ranges.error_spread import Grouped, spread_of
from fabrictwin.validation.training_cases import cases
from fabrictwin.validation.training_judge import Outcome


def drawn(of: Spread, groups: int, *, seed: int = 3) -> list[Grouped]:
    """Return rows of groups of 1 to 4 jobs, each of 1 to 3 rows."""
    rng = np.random.default_rng(seed)
    rows = []
    for g in range(groups):
        middle = rng.normal(0.0, of.group)
        for j in range(1 + g % 4):
            own = rng.normal(middle, of.job)
            errors = rng.normal(own, of.row, 1 + (g + j) % 3)
            rows += [Grouped(f"unit {g}", ("machine", "release", f"{g}"), f"{j}", float(e)) for e in errors]
    return rows


@pytest.mark.second
@pytest.mark.parametrize("of", [Spread(0.03, 0.06, 0.01), Spread(0.1, 0.02, 0.02), Spread(0.05, 0.05, 0.05)])
def test_what_rows_were_drawn_with_is_found_again(of: Spread) -> None:
    found = spread_of(drawn(of, 4000))
    for got, asked in zip((found.group, found.job, found.row), (of.group, of.job, of.row), strict=True):
        assert got == pytest.approx(asked, rel=0.06)


def test_what_all_jobs_are_off_by_is_the_groups_and_not_the_jobs() -> None:
    rows = [Grouped("u", ("m", "r", f"{i // 2}"), f"{i}", 0.1) for i in range(8)]
    assert spread_of(rows) == Spread(pytest.approx(0.1), pytest.approx(0.0), 0.0)
    opposite = [Grouped("u", ("m", "r", "x"), f"{i}", 0.1 * (-1) ** i) for i in range(8)]
    assert spread_of(opposite) == Spread(0.0, pytest.approx(0.1), 0.0)


def test_a_job_alone_says_nothing_of_what_jobs_share() -> None:
    rows = [Grouped("u", ("m", "r", f"{i // 2}"), f"{i}", 0.1) for i in range(8)]
    assert spread_of([*rows, Grouped("v", ("m", "r", "y"), "j", 0.9)]) == spread_of(rows)
    assert spread_of([]) == Spread(0.0, 0.0, 0.0)


def test_what_was_held_out_together_weighs_the_same() -> None:
    """One framework with many groups is no more than one of few."""
    many = [Grouped("met", ("m", "r", f"{i // 2}"), f"{i}", 0.0) for i in range(50)]
    two = [Grouped("off", ("m", "s", "x"), f"{i}", 0.2) for i in range(2)]
    assert spread_of([*many, *two]).group == pytest.approx(0.2 / 2**0.5)


def test_what_is_not_known_adds_to_what_a_group_is_off_by() -> None:
    spread = {
        STEP.known: Spread(0.03, 0.06, 0.01),
        STEP.without_hardware: Spread(0.05, 0.06, 0.01),
        STEP.without_software: Spread(0.02, 0.06, 0.01),  # by chance no more than where all is known
    }
    assert step_spread(spread, gpu=True, software=True) == spread[STEP.known]
    assert step_spread(spread, gpu=False, software=True).group == pytest.approx(0.05)
    assert step_spread(spread, gpu=True, software=False).group == pytest.approx(0.03)
    assert step_spread(spread, gpu=False, software=False).group == pytest.approx(0.05)


def test_a_group_that_is_judged_is_no_part_of_the_spread() -> None:
    data = read_data(find_data())
    some = [replace(c, hardware=DIMENSIONS[SINGLE_KIND](c)) for c in cases(data) if c.spec is not None]
    off = "H100 500 W, torchtitan, llama-3-8b"
    outcomes = tuple(Outcome(case, case.row.value * (1.3 if case.hardware == off else 1.0), 1.0) for case in some)
    found = [HeldOut(SINGLE_KIND, 1, 0, outcomes, (0, 0), (0, 0))]
    (judged,) = {o.case.hardware: o for o in outcomes if o.case.hardware == off}.values()
    assert step_spreads(data, found)[STEP.known].group > 0.03
    assert step_spreads(data, found, judged)[STEP.known] == Spread(0.0, 0.0, 0.0)


def test_stored_spreads_are_of_steps_and_a_jobs_own_is_most() -> None:
    stored = error_ranges("step").spread
    assert set(stored) == {STEP.known, STEP.without_hardware, STEP.without_software}
    assert all(0 <= one.row < one.job < 0.2 and one.group < 0.2 for one in stored.values())
    assert not error_ranges("collective").spread
