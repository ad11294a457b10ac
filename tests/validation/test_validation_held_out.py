"""Rows that are held out with all that is like them, on answers whose errors are known."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from click.testing import CliRunner

from fabrictwin.base.errors import ConfigError
from fabrictwin.catalog.error_ranges import STEP, Spread
from fabrictwin.cli.predict.validate import validate as app
from fabrictwin.validation.held_out import (
    DIMENSIONS,
    SINGLE_KIND,
    HeldOut,
    Spreads,
    family_of,
    freedom,
    held_out,
    in_sample,
    release_of,
    with_one_row,
)
from fabrictwin.validation.held_out_text import held_out_json, held_out_page, held_out_text
from fabrictwin.validation.published_data import find_data, read_data
from fabrictwin.validation.training_cases import Case, cases
from fabrictwin.validation.training_judge import Answers, Outcome
from fabrictwin.workload.job.workload_section import Training

DATA = read_data(find_data())
CASES = cases(DATA)
NEMO = "nemo-24.07"


class OnlyNemo(Answers):
    """Right at the share of 0.8, but for NeMo's rows, which one of 0.7 would meet."""

    def __init__(self, *, backwards: bool = False) -> None:
        super().__init__("analytic")
        self.backwards = backwards

    def of(self, found: Iterable[Case]) -> list[Outcome]:
        return [self._outcome(case) for case in found]

    def _outcome(self, case: Case) -> Outcome:
        if case.spec is None:
            return Outcome(case)
        share = Training.model_validate((case.spec.workload or {})["training"]).compute_share or 0.8
        times = share / (0.7 if case.row.set == NEMO else 0.8)
        value = case.row.value * (1 / times if case.row.quantity == "step_time_s" else times)
        return Outcome(case, 1 / value if self.backwards else value, 1 / times)


def held(by: str, answers: Answers) -> HeldOut:
    return held_out(by, DATA, CASES, answers, lambda _: None)


def test_a_series_that_is_left_out_gets_what_is_typical():
    found = held("series", OnlyNemo())
    error = {o.case.row.row: o.error for o in found.outcomes if o.case.hardware == NEMO}
    assert len(error) == sum(case.row.set == NEMO for case in CASES)
    assert all(0.08 < e < 0.2 for e in error.values())  # others say 0.8, and 0.7 is right
    assert found.quantile(0.5) < 0.03
    assert found.refitted == sum(bool(one.calibrated_from) for one in DATA.texts.sets.values())


@pytest.mark.second
def test_a_model_that_is_left_out_is_predicted_by_its_framework():
    assert {family_of(case) for case in CASES if case.row.set == NEMO} > {"llama"}
    found = held("hardware, release and model", OnlyNemo())
    own = [o.error for o in found.outcomes if o.case.row.set == NEMO]
    series = [o.error for o in held("series", OnlyNemo()).outcomes if o.case.row.set == NEMO]
    # the framework's other models tell its share, drawn somewhat towards what is typical
    assert max(map(abs, own)) < 0.7 * max(map(abs, series))


def spreads(group: float, job: float = 0.02) -> Spreads:
    one = Spread(group, job, 0.01)
    return lambda _: dict.fromkeys((STEP.known, STEP.without_hardware, STEP.without_software), one)


@pytest.mark.second
def test_one_row_of_a_group_calibrates_the_others():
    series = held("series", OnlyNemo())
    found = with_one_row(series, OnlyNemo(), spreads(0.1))
    before, after = ([o.error for o in one.outcomes if o.case.row.set == NEMO] for one in (series, found))
    assert len(after) == len(before) * (len(before) - 1)
    # 0.8 was usual, 0.7 is right, and one row beside the prior's width says nearly so
    assert min(map(abs, before)) > 0.1
    assert max(map(abs, after)) < 0.3 * max(map(abs, before))
    others = [(o.error for o in one.outcomes if o.case.row.set != NEMO) for one in (series, found)]
    assert {round(error, 9) for error in others[1]} == {round(error, 9) for error in others[0]}  # met: left alone
    # where groups are off by little and jobs by much, a row is mostly a job's own, and moves others little
    kept = with_one_row(series, OnlyNemo(), spreads(0.02, 0.06))
    assert min(abs(o.error) for o in kept.outcomes if o.case.row.set == NEMO) > 0.8 * min(map(abs, before))


@pytest.mark.second
def test_pairs_with_one_row_have_the_same_calibration():
    """A layout that one row calibrates is never put beside a layout that another does."""
    series = held("series", OnlyNemo())
    members: dict[str, int] = {}
    for outcome in series.outcomes:
        members[outcome.case.hardware] = members.get(outcome.case.hardware, 0) + 1
    found, turned = (
        with_one_row(series, OnlyNemo(backwards=backwards), spreads(0.1)) for backwards in (False, True)
    )
    assert found.layouts[1] == found.scaling[1] == 0
    assert turned.layouts == (found.layouts[0], found.layouts[0])
    for (count, _), (once, _) in ((found.layouts, series.layouts), (found.scaling, series.scaling)):
        assert once < count <= once * max(members.values())  # once for each row of its group


def test_groups_are_named_by_what_rows_have_in_common():
    releases = {release_of(case) for case in CASES if case.row.set == "mbridge"}
    assert {"mbridge 26.02", "mbridge 26.02.01", "mbridge 26.04"} <= releases
    assert {release_of(case) for case in CASES if case.row.set == NEMO} == {NEMO}
    everyone = [case for case in CASES if case.spec is not None]
    assert held("hardware", OnlyNemo()).groups == len({case.hardware for case in everyone})


def test_rows_in_the_wrong_order_are_counted():
    right, wrong = (in_sample(OnlyNemo(backwards=backwards).of(CASES)) for backwards in (False, True))
    assert right.scaling[0] == wrong.scaling[0] > 0
    assert right.layouts[0] == wrong.layouts[0] > 0
    assert right.layouts[1] == right.scaling[1] == 0
    assert wrong.layouts[1] == wrong.layouts[0]


@pytest.mark.second
def test_the_page_and_the_data_say_the_same():
    outcomes = OnlyNemo().of(CASES)
    found = [held("series", OnlyNemo()), in_sample(outcomes)]
    counted = freedom(DATA, outcomes)
    assert counted.constants == sum(
        len(one.constants) for s in DATA.texts.sets.values() for one in s.calibrated_from
    )
    assert counted.fitted_rows == sum(case.calibrates for case in CASES)
    text, data = held_out_text(found, counted), json.loads(held_out_json(found, counted))
    page = held_out_page(found, counted)
    assert text in page
    assert "fabrictwin validate accuracy --by series --write docs/accuracy.md" in page
    two = [held(SINGLE_KIND, OnlyNemo()), *found]
    command = "validate accuracy --by 'hardware, release and model' --by series --write docs/accuracy.md"
    assert command in held_out_page(two, counted)
    every = [held(by, OnlyNemo()) for by in DIMENSIONS]
    assert "fabrictwin validate accuracy --write" in held_out_page(every, counted)
    assert [row["left_out"] for row in data["held_out"]] == ["series", "nothing"]
    for row in data["held_out"]:
        assert f"{row['nineteen_in_twenty_within_percent']:.1f}%" in text
    assert "constants were fitted to" in text


def test_quantiles_are_of_absolute_errors():
    def of(*errors: float) -> HeldOut:
        case = next(case for case in CASES if case.row.quantity == "tokens_per_s_per_gpu")
        outcomes = [Outcome(case, case.row.value * (1 + error), 1.0) for error in errors]
        return HeldOut("x", 1, 0, tuple(outcomes), (0, 0), (0, 0))

    some = of(-0.4, 0.1, 0.2, -0.3)
    assert some.quantile(0.5) == pytest.approx(0.2)
    assert some.quantile(0.95) == pytest.approx(0.4)
    assert of(-0.1, 0.3, 0.2).bias == pytest.approx(0.2)
    assert len(DIMENSIONS) == 6


def test_what_is_left_out_has_a_name():
    result = CliRunner().invoke(app, ["accuracy", "--by", "hardwar"])
    assert isinstance(result.exception, ConfigError)
    assert "got 'hardwar', expected one of hardware; series; release" in str(result.exception)
