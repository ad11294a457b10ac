"""Errors of training steps on rows that were held out, by what they have in common.

All rows of one hardware, series, framework, release or model family are left out in turn, or of one hardware,
release and model together; every constant that rests on one of them is fitted again to what is left
(`training_fit`), and predicts them. A constant that is left without rows has the value that leaves it without
effect. Beside the errors stands how many constants were fitted to how many rows, and how often the twin puts two
layouts of one model on the same GPUs in the wrong order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from statistics import median

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import Stage
from fabrictwin.base.records import record
from fabrictwin.calibration.calibrate import OWN_SHARE, SHARE, fit_shares
from fabrictwin.catalog.error_ranges import Spread, step_spread
from fabrictwin.catalog.step_shares import step_shares
from fabrictwin.cluster.spec.calibration_file import job_of
from fabrictwin.validation.published_data import Measurements
from fabrictwin.validation.step_shares_fit import with_share
from fabrictwin.validation.training_cases import Case
from fabrictwin.validation.training_fit import Fitter, by_single_rows, changed, values_of
from fabrictwin.validation.training_judge import Answers, Outcome, pairs

_RELEASE = re.compile(r"\d+\.\d+(?:\.\d+)?(?= )")
_FAMILY = re.compile(r"[a-z]+")
ALIKE = 0.01  # two measured throughputs that are nearer than this say nothing of an order


def release_of(case: Case) -> str:
    """Return the release that a row names, within its series, or the series."""
    found = _RELEASE.match(case.row.row)
    return f"{case.row.set} {found[0]}" if found else case.row.set


def family_of(case: Case) -> str:
    """Return the family of a row's model: `llama` of `llama-3-70b`."""
    found = _FAMILY.match(case.row.model.lower())
    return found[0] if found else case.row.model


def framework_of(case: Case) -> str:
    """Return the framework that a row's spec names, or its series."""
    named = ((case.spec.workload if case.spec else None) or {}).get("training", {}).get("software")
    return str(named or case.row.set)


SINGLE_KIND = "hardware, release and model"
DIMENSIONS: Mapping[str, Callable[[Case], str]] = {
    "hardware": lambda case: case.hardware,
    "series": lambda case: case.row.set,
    "release": release_of,
    "model family": family_of,
    "framework": framework_of,
    SINGLE_KIND: lambda case: f"{case.hardware}, {release_of(case)}, {case.row.model}",
}


@record
class HeldOut:
    """Errors of all rows, each predicted without its group; shares of 1.

    Attributes:
        by: What was left out.
        groups: How many were, in turn.
        refitted: Groups without which constants were fitted again.
        outcomes: One a row; its case's `hardware` is the group that it was left out with.
        scaling: Pairs that differ in GPUs alone, in all and in the wrong order.
        layouts: Pairs of layouts of one model on the same GPUs, likewise.
    """

    by: str
    groups: int
    refitted: int
    outcomes: tuple[Outcome, ...]
    scaling: tuple[int, int]
    layouts: tuple[int, int]

    @property
    def errors(self) -> tuple[float, ...]:
        """Return the error of throughput of each row."""
        return tuple(o.error for o in self.outcomes if o.error is not None)

    def quantile(self, share: float) -> float:
        """Return the absolute error that so many rows are within."""
        found = sorted(map(abs, self.errors))
        return found[max(0, math.ceil(share * len(found)) - 1)]

    @property
    def bias(self) -> float:
        """Return the median of signed errors."""
        return median(self.errors)


@record
class Freedom:
    """What was fitted to what: constants, rows that they were fitted to, rows that judge."""

    constants: int
    fitted_rows: int
    judging_rows: int
    shares: int = 0  # of GPUs and frameworks, with a prior
    shared_rows: int = 0  # that these were fitted to


def freedom(measurements: Measurements, outcomes: Iterable[Outcome]) -> Freedom:
    """Return the count of constants and rows."""
    declared = [one for found in measurements.texts.sets.values() for one in found.calibrated_from]
    counted = [o for o in outcomes if o.predicted is not None]
    return Freedom(
        sum(len(one.constants) for one in declared),
        sum(len(one.rows) for one in declared),
        sum(not o.case.calibrates for o in counted),
        1 + len(step_shares().gpus) + len(step_shares().software),
        sum(not by_single_rows(measurements, o.case) for o in counted),
    )


def in_sample(outcomes: Iterable[Outcome]) -> HeldOut:
    """Return errors with all constants as they are declared, of rows that none was fitted to."""
    found = [o for o in outcomes if o.counts]
    return _held_out("nothing", 0, 0, found)


def held_out(
    by: str, measurements: Measurements, cases: Iterable[Case], answers: Answers, stage: Stage
) -> HeldOut:
    """Return errors with each group of one dimension left out in turn."""
    group = DIMENSIONS[by]
    named = [replace(case, hardware=group(case)) for case in cases if case.spec is not None]
    fitter = Fitter(measurements, named, answers, stage)
    answers.of(fitter.shared_without_own())  # all at once, so that workers share them
    outcomes: list[Outcome] = []
    refitted = 0
    for name in fitter.families():
        again, constants = fitter.without(name)
        refitted += bool(constants)
        values = values_of(constants)
        own = [replace(case, calibrates=False) for case in again.cases if case.hardware == name]
        outcomes += answers.of(changed(case, values) for case in own)
    return _held_out(by, len(fitter.families()), refitted, [o for o in outcomes if o.error is not None])


Spreads = Callable[[Outcome], Mapping[str, Spread]]  # by what is known of a case, without the group of a row


def with_one_row(found: HeldOut, answers: Answers, spreads: Spreads) -> HeldOut:
    """Return errors of rows of a group with each other row of it as calibration, in turn.

    As `fabrictwin calibrate` does with a step's time: shares move from that without the group, by how steps of
    other groups are spread, and only where the row is off by more than a tenth. A row counts once for each row
    that calibrates it. Pairs are of rows with the same calibration, the row that it is from among them, as
    somebody compares layouts.
    """
    groups: dict[str, list[Outcome]] = {}
    for outcome in found.outcomes:
        groups.setdefault(outcome.case.hardware, []).append(outcome)
    groups = {name: members for name, members in groups.items() if len(members) > 1}
    outcomes: list[Outcome] = []
    scaling, layouts = (0, 0), (0, 0)
    for members in groups.values():
        others_of = [one for one in found.outcomes if one.case.hardware != members[0].case.hardware]
        spread = _known_spread(members[0], others_of, spreads(members[0]))
        for given in members:
            shares = _calibrated_shares(given, answers, spread)
            cases = [_calibrated(one.case, given.case, shares) for one in members]
            alike = [o for o in answers.of(cases) if o.error is not None]
            outcomes += [o for o in alike if o.case.row is not given.case.row]
            scaling, layouts = _added(scaling, _scaling(alike)), _added(layouts, _layouts(alike))
    by = f"{found.by}, but for one row"
    return HeldOut(by, len(groups), 0, tuple(outcomes), scaling, layouts)


def _added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def _known_spread(given: Outcome, others: Iterable[Outcome], spread: Mapping[str, Spread]) -> Spread:
    """Return how steps are spread where other rows are of a row's GPU and of its software, or not."""
    known = [_machine(one) for one in others]
    gpu, software = (any(mine == theirs[i] for theirs in known) for i, mine in enumerate(_machine(given)))
    return step_spread(spread, gpu=gpu, software=software)


def _calibrated(case: Case, given: Case, shares: Mapping[str, float]) -> Case:
    """Return a row with what another one of its group says of it."""
    share = shares.get(OWN_SHARE if _job(case) == _job(given) else SHARE)
    return case if share is None else with_share(case, share)


def _job(case: Case) -> str:
    assert case.spec is not None
    return job_of((case.spec.workload or {})["training"])


def _machine(outcome: Outcome) -> tuple[str, str]:
    assert outcome.case.spec is not None
    return outcome.case.row.hardware, (outcome.case.spec.workload or {})["training"].get("software", "")


def _calibrated_shares(given: Outcome, answers: Answers, spread: Spread) -> dict[str, float]:
    """Return the shares that a row's own time asks for; none where the row is met."""
    assert given.step_time_s is not None
    assert given.error is not None
    assert given.case.spec is not None

    def step_s(share: float) -> float:
        (one,) = answers.of([with_share(given.case, share)])
        if one.step_time_s is None:
            raise ConfigError(one.refused, key="compute_share")
        return one.step_time_s

    usual = (given.case.spec.workload or {})["training"]["compute_share"]
    fitted = fit_shares(step_s, usual, given.step_time_s * (1 + given.error), given.case.row.row, spread)
    return {one.name: one.after for one in fitted if one.applied}


def _held_out(by: str, groups: int, refitted: int, outcomes: list[Outcome]) -> HeldOut:
    return HeldOut(by, groups, refitted, tuple(outcomes), _scaling(outcomes), _layouts(outcomes))


def _scaling(outcomes: list[Outcome]) -> tuple[int, int]:
    """Return pairs that differ in GPUs alone, and those in the wrong order."""
    scaled = pairs(outcomes)
    return len(scaled), sum(not pair.agrees for pair in scaled)


def _layouts(outcomes: list[Outcome]) -> tuple[int, int]:
    """Return pairs of one release, machine, model, precision and number of GPUs, and those in the wrong order."""
    alike: dict[tuple[object, ...], list[Outcome]] = {}
    for outcome in outcomes:
        row = outcome.case.row
        machine = (release_of(outcome.case), row.hardware, row.gpus)
        key = (*machine, row.model, row.precision, row.sequence, row.quantity)
        alike.setdefault(key, []).append(outcome)
    count = wrong = 0
    for members in alike.values():
        for one, other in combinations(members, 2):
            if one.case.row.quantity == "step_time_s" and one.case.row.global_batch != other.case.row.global_batch:
                continue
            measured = math.log(one.case.row.value / other.case.row.value)
            if abs(measured) < ALIKE or one.predicted is None or other.predicted is None:
                continue
            count += 1
            wrong += (measured > 0) != (one.predicted > other.predicted)
    return count, wrong
