"""Constants fitted again, and hardware left out, with a twin whose right constants are known."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

import pytest
from click.testing import CliRunner

from fabrictwin.base.errors import ConfigError
from fabrictwin.catalog.step_shares import step_shares
from fabrictwin.cli.predict.validate import validate as app
from fabrictwin.validation.published_data import find_data, read_data
from fabrictwin.validation.training_cases import Case, cases
from fabrictwin.validation.training_fit import Fitter, acts_on, changed, declared_value
from fabrictwin.validation.training_fit_text import fit_json, fit_text, left_out_json, left_out_text
from fabrictwin.validation.training_judge import Answers, Outcome
from fabrictwin.workload.job.workload_section import Training

DATA = read_data(find_data())
CASES = cases(DATA)
RIGHT = {"host.routing": 2e9, "host.expert": 3e8, "eager_share": 0.6, "scan_share": 0.25, "host.interleaved": 5e8}
TOO_FAST = 1.1  # what nothing that is fitted explains


class Known(Answers):
    """Predicts what was published, but for constants that are not the right ones."""

    def __init__(self) -> None:
        super().__init__("analytic")
        self.asked: list[Case] = []

    def of(self, found: Iterable[Case]) -> list[Outcome]:
        outcomes = []
        for case in found:
            if case.spec is None:
                outcomes.append(Outcome(case))
                continue
            self.asked.append(case)
            training = Training.model_validate((case.spec.workload or {})["training"])
            log = 0.0 if case.row.set != "mbridge" else self._log(case, training)
            slower = case.row.quantity == "step_time_s"
            value = case.row.value / TOO_FAST if slower else case.row.value * TOO_FAST * math.exp(log)
            outcomes.append(Outcome(case, value if case.hardware != "H200" else case.row.value, 1.0))
        return outcomes

    @staticmethod
    def _log(case: Case, training: Training) -> float:
        """Logarithm of a row's error, from the constants that its model knows."""
        model, host = case.row.model, training.host
        if "qwen" in model:
            few = 0.5 if "235b" in model else 2.0
            wrong = (host.routing / RIGHT["host.routing"] - 1) + few * (host.expert / RIGHT["host.expert"] - 1)
            if training.overlap.experts:
                wrong += host.interleaved / RIGHT["host.interleaved"] - 1
            return -0.1 * wrong - math.log(TOO_FAST)
        if "gpt-oss" in model:
            return training.eager_share / RIGHT["eager_share"] - 1 - math.log(TOO_FAST)
        if "nano" in model:
            return training.scan_share / RIGHT["scan_share"] - 1 - math.log(TOO_FAST)
        return 0.0


@pytest.fixture(scope="module")
def fitter() -> Fitter:
    return Fitter(DATA, CASES, Known(), lambda _: None)


def test_the_fit_finds_what_made_the_rows(fitter):
    found = {
        name: value
        for each in fitter.fit_all()
        if each.set == "mbridge"
        for name, value in zip(each.names, each.values, strict=True)
    }
    for name in ("eager_share", "scan_share"):
        assert found[name] == pytest.approx(RIGHT[name], rel=0.03)
    # two that are fitted together make up for each other along a valley: their rows are met
    assert found["host.routing"] == pytest.approx(RIGHT["host.routing"], rel=0.1)
    both = {name: found[name] for name in ("host.routing", "host.expert")}
    rows = next(each.rows for each in fitter.fit_all() if "host.expert" in each.names)
    met = [changed(case, {"mbridge": both}) for case in CASES if case.row.row in rows]
    assert all(abs(o.error) < 0.01 for o in fitter.answers.of(met))


def test_left_out_rows_are_fitted_to_nowhere(fitter):
    (left,) = fitter.leave_out("GB300")
    assert {each.names for each in left.constants} == {("eager_share",), ("scan_share",)}
    hardware = {(case.row.set, case.row.row): case.hardware for case in CASES}
    for each in left.constants:
        assert each.rows
        assert all(hardware[each.set, row] != "GB300" for row in each.rows)
        # found again from other hardware alone
        assert each.values[0] == pytest.approx(RIGHT[each.names[0]], rel=0.03)
    assert left.rows == sum(case.hardware == "GB300" and case.spec is not None for case in CASES)
    assert left.factor == pytest.approx(1 / TOO_FAST, rel=0.01)
    assert left.scaled < left.refitted


def test_two_constants_need_two_rows(fitter):
    """Without the B200's row one is left for two constants: rows of the same models stand in."""
    (left,) = fitter.leave_out("B200")
    (both,) = left.constants
    assert both.names == ("host.routing", "host.expert")
    assert len(both.rows) > 2
    assert all("B200" not in row or "GB200" in row for row in both.rows)


def test_shares_rest_on_no_row_of_what_is_left_out(fitter):
    own, _ = fitter.without("H100")
    used = step_shares()
    (case, *_) = (c for c in own.cases if c.row.set == "nemo-24.07")
    # all of NeMo's rows are on an H100: neither is known, and what is typical is left
    shares = fitter.shares("H100")
    assert "h100-sxm" not in shares.gpus
    assert "nemo" not in shares.software
    assert case.spec.workload["training"]["compute_share"] == shares.of("h100-sxm", "nemo") == shares.typical
    assert set(fitter.shares().gpus) == set(used.gpus)
    # a constant that is fitted to a row is not fitted to what a share of the same row has taken away
    assert not any(r.case.row.set == "mbridge" and acts_on("host.expert", r.case) for r in fitter.tilted)
    assert set(fitter.shares().software) == set(used.software)


def test_hardware_that_calibrates_nothing_keeps_the_constants(fitter):
    (left,) = fitter.leave_out("a100")
    assert left.constants == ()


def test_each_hardware_in_turn(fitter):
    found = fitter.leave_out("all")
    assert [left.hardware for left in found] == fitter.families()
    text = left_out_text(found, [])
    data = json.loads(left_out_json(found, "analytic"))["left_out"]
    assert [each["hardware"] for each in data] == fitter.families()
    assert all(f"  {left.hardware}" in text for left in found)


def test_unknown_hardware_is_named(fitter):
    with pytest.raises(ConfigError, match=r"got .GB20., expected one of A100, .*, all, did you mean .GB200."):
        fitter.leave_out("GB20")


def test_constants_are_put_into_the_spec():
    case = next(c for c in CASES if c.row.model == "qwen3-30b-a3b" and c.spec is not None)
    other = changed(
        case, {"mbridge": {"host.expert": 4e8, "scan_share": 0.5}, "torchtitan": {"compute_share": 0.1}}
    )
    training = Training.model_validate(other.spec.workload["training"])
    assert (training.host.expert, training.scan_share, training.compute_share) == (
        400_000_000,
        0.362,
        None,
    )  # no states, and another set
    before = Training.model_validate(case.spec.workload["training"])
    assert training.host.captured == before.host.captured
    assert declared_value(DATA, "mbridge", "host.expert") == before.host.expert


def test_what_was_fitted_is_printed(fitter):
    found = fitter.fit_all()
    text = fit_text(found, fitter.shares())
    assert "mbridge: eager_share 0.6 (declared 0.401)" in text
    assert "(declared 235 us)" in text
    data = json.loads(fit_json(found, fitter.shares()))
    assert len(data["calibration"]) == len(found)
    assert f"typical: {data['shares']['typical']:g}" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--leave-out", "H100", "--match", "x"], "no --match beside it"),
        (["--leave-out", "H100", "--fit"], "expected one of --fit and --leave-out"),
        (["--leave-out", "V100"], "got 'V100'"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    result = CliRunner().invoke(app, ["training", *options])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
