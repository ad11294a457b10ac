"""The calibration of training steps, made again from the rows that it declares, and without one hardware.

A set of `training.yaml` declares its constants (`calibrated_from`): keys of `workload.training` and the rows that
they were fitted to. Gauss-Newton steps in the logarithms of constants lower the root mean square of ln(predicted /
published), from a start that is the same for all. Constants that are named together are fitted together.

Leaving a hardware out fits again what has rows of it, to the rows that are declared of other hardware. Where those
are fewer than the constants, rows of the same set and models on other hardware, as far as the constants change
what is predicted of them; where there are none, a constant has the value that leaves it without effect. What that
says of the hardware that was left out is a prediction; its own declared rows count in it too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np
from pydantic import BaseModel

from fabrictwin.base.arrays import F64
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.nested import laid_over
from fabrictwin.base.progress import Stage
from fabrictwin.base.records import record
from fabrictwin.catalog.step_shares import StepShares
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.validation.published_data import Calibrated, Measurements, left_out
from fabrictwin.validation.step_shares_fit import Tilted, fit_shares, shared, tilted
from fabrictwin.validation.training_cases import Case
from fabrictwin.validation.training_judge import Answers, Outcome
from fabrictwin.workload.job.workload_section import Training

Values = Mapping[str, Mapping[str, float]]  # by set: what its constants are, where they are not as declared

START_SHARE, START_PS = 0.7, 5e8
TRIED = 0.05  # of a logarithm, to see how residuals change
LONGEST, SHORTEST = 1.0, 0.005  # steps of a logarithm
MOST_STEPS = 10
EVERY = "all"


@record
class Fitted:
    """Constants that are fitted together."""

    set: str
    names: tuple[str, ...]
    declared: tuple[float, ...]
    values: tuple[float, ...]
    rows: tuple[str, ...]  # that they were fitted to; none: they have no effect


@record
class LeftOut:
    """One hardware, predicted by what was calibrated on all others. Errors are medians of absolute ones."""

    hardware: str
    rows: int
    declared: float  # by the calibration as it is declared
    refitted: float  # with the constants fitted without it
    factor: float  # that all others' predictions need in the median
    scaled: float  # with that factor as well
    constants: tuple[Fitted, ...]  # those that have rows of it


def is_share(name: str) -> bool:
    return name.endswith("share")


def without_effect(name: str) -> float:
    return 1.0 if is_share(name) else 0.0


def nested(name: str, value: Any) -> dict[str, Any]:
    """`host.expert` as a section within a section."""
    first, _, rest = name.partition(".")
    return {first: nested(rest, value) if rest else value}


def rounded(value: float) -> float:
    """To three digits."""
    return float(f"{value:.3g}")


def written(name: str, value: float) -> Any:
    """A constant's value as a spec has it."""
    return value if is_share(name) else f"{round(value)} ps"


def declared_value(measurements: Measurements, of: str, name: str) -> float:
    """From the set's settings, or the default of the key."""
    at: Any = measurements.texts.sets[of].settings
    for part in name.split("."):
        at = at.get(part) if isinstance(at, dict) else None
    if at is not None:
        return float(at)
    section: Any = Training
    for part in name.split("."):
        default = section.model_fields[part].default
        section = type(default)
        if not isinstance(default, BaseModel):
            return float(default)
    raise ConfigError(f"got {name!r}, expected a key with a number", key="calibrated_from")


def changed(case: Case, values: Values) -> Case:
    """The row with other constants."""
    if case.spec is None or not values.get(case.row.set):
        return case
    training = (case.spec.workload or {})["training"]
    for name, value in values[case.row.set].items():
        if not acts_on(name, case):
            continue
        training = laid_over(training, nested(name, written(name, value)))
    spec: Spec = case.spec.model_copy(update={"workload": {"training": training}})
    return replace(case, spec=spec)


def acts_on(name: str, case: Case) -> bool:
    """Return true if a constant has to do with what a row's model is made of."""
    assert case.spec is not None
    training = Training.model_validate((case.spec.workload or {})["training"])
    model = training.read_model(case.spec.folder)
    if name.startswith("host."):
        return model.experts is not None
    if name == "scan_share":
        return model.mamba is not None
    if name == "eager_share":
        return model.experts is not None and (model.biases or model.clamped)
    return True


def by_single_rows(measurements: Measurements, case: Case) -> bool:
    """Return true if a constant that was fitted to single rows acts on a row."""
    declared = measurements.texts.sets[case.row.set].calibrated_from
    return any(acts_on(name, case) for one in declared for name in one.constants)


def least_squares(residuals: Callable[[F64], F64], start: F64, most: F64) -> F64:
    """The point of least sum of squared residuals, by Gauss-Newton from `start`, at most `most`."""
    at, now = start, residuals(start)
    for _ in range(MOST_STEPS):
        tilt = np.stack([residuals(at - row) - now for row in np.eye(len(at)) * TRIED]) / -TRIED
        step, *_ = np.linalg.lstsq(tilt.T, -now, rcond=None)
        step = np.minimum(at + np.clip(step, -LONGEST, LONGEST), most) - at
        found = residuals(at + step)
        while (found @ found) > (now @ now) and np.abs(step).max() > SHORTEST:
            step = step / 2
            found = residuals(at + step)
        if (found @ found) > (now @ now):
            break
        at, now = at + step, found
        if np.abs(step).max() <= SHORTEST:
            break
    return at


class Fitter:
    """Fits constants to rows, and remembers what was predicted with which."""

    def __init__(self, measurements: Measurements, cases: Iterable[Case], answers: Answers, stage: Stage) -> None:
        self.measurements, self.answers, self.stage = measurements, answers, stage
        self.cases = [case for case in cases if case.spec is not None]

    @cached_property
    def tilted(self) -> list[Tilted]:
        """Rows that shares are fitted to, around the catalog's: those on which no constant of single rows acts."""
        self.stage("rows at two shares")
        rows = [case for case in self.cases if not by_single_rows(self.measurements, case)]
        return tilted(self.measurements, rows, self.answers)

    def shares(self, out: str = "") -> StepShares:
        """Shares fitted to rows of all hardware but `out`."""
        return fit_shares(row for row in self.tilted if row.case.hardware != out)

    def shared_without_own(self) -> list[Case]:
        """Rows with the shares that are fitted without each one's hardware."""
        shares = {name: self.shares(name) for name in self.families()}
        return [shared(self.measurements, case, shares[case.hardware]) for case in self.cases]

    def without(self, out: str) -> tuple[Fitter, list[Fitted]]:
        """(rows with the shares, and constants, that are fitted without a hardware)."""
        shares = self.shares(out)
        cases = [shared(self.measurements, case, shares) for case in self.cases]
        found = Fitter(self.measurements, cases, self.answers, self.stage)
        own = {(case.row.set, case.row.row) for case in self.cases if case.hardware == out}
        touched = [(of, one) for of, one in self.declared() if any((of, row) in own for row in one.rows)]
        return found, [found.fit(of, one, out) for of, one in touched]

    def families(self) -> list[str]:
        """All hardware that rows are grouped by, in order."""
        return list(dict.fromkeys(case.hardware for case in self.cases))

    def declared(self) -> list[tuple[str, Calibrated]]:
        texts = self.measurements.texts.sets
        return [(name, one) for name, found in texts.items() for one in found.calibrated_from]

    def _errors(self, cases: Iterable[Case]) -> list[float]:
        return [o.error for o in self.answers.of(cases) if o.error is not None]

    def _logs(self, cases: list[Case], values: Values) -> list[float]:
        return [math.log1p(e) for e in self._errors(changed(case, values) for case in cases)]

    def _rows(self, of: str, one: Calibrated, out: str) -> list[Case]:
        """Rows that are left to fit to."""
        own = [case for case in self.cases if case.row.set == of]
        declared = [case for case in own if case.row.row in one.rows]
        left = [case for case in declared if case.hardware != out]
        if len(left) >= len(one.constants):
            return left
        models = {case.row.model for case in declared}
        others = [case for case in own if case.row.model in models and case.hardware != out]
        return [case for case in others if self._matters(of, one, case)]

    def _matters(self, of: str, one: Calibrated, case: Case) -> bool:
        if not any(acts_on(name, case) for name in one.constants):
            return False
        found = []
        for times in (1.0, 0.8):
            values = {name: times * declared_value(self.measurements, of, name) for name in one.constants}
            found += self._errors([changed(case, {of: values})])
        return len(set(found)) > 1

    def fit(self, of: str, one: Calibrated, out: str = "") -> Fitted:
        """Constants of a set from rows of all hardware but `out`."""
        names = one.constants
        declared = tuple(declared_value(self.measurements, of, name) for name in names)
        rows = self._rows(of, one, out)
        if not rows:
            return Fitted(of, names, declared, tuple(map(without_effect, names)), ())
        self.stage(f"{', '.join(names)}" + (f", without {out}" if out else ""))

        start = np.log([START_SHARE if is_share(name) else START_PS for name in names])
        most = np.array([0.0 if is_share(name) else math.inf for name in names])

        def logs(at: F64) -> F64:
            return np.array(self._logs(rows, {of: dict(zip(names, np.exp(at).tolist(), strict=True))}))

        values = tuple(rounded(value) for value in np.exp(least_squares(logs, start, most)).tolist())
        return Fitted(of, names, declared, values, tuple(case.row.row for case in rows))

    def fit_all(self) -> list[Fitted]:
        """Every constant again, from the rows that are declared."""
        return [self.fit(of, one) for of, one in self.declared()]

    def leave_out(self, hardware: str) -> list[LeftOut]:
        """A hardware's rows by what was calibrated on all others; with `all` each hardware in turn."""
        families = self.families()
        asked = left_out(hardware, (*families, EVERY))
        return [self._leave_out(each) for each in (families if asked == EVERY else [asked])]

    def _leave_out(self, hardware: str) -> LeftOut:
        again, constants = self.without(hardware)
        values = values_of(constants)
        calibrating = {(each.set, row) for each in constants for row in each.rows}
        calibrating |= {(of, row) for of, one in self.declared() for row in one.rows}
        own = [case for case in self.cases if case.hardware == hardware]
        others = [
            case
            for case in again.cases
            if case.hardware != hardware and (case.row.set, case.row.row) not in calibrating
        ]
        self.stage(f"rows of {hardware} and of all others")
        before = self._errors(case for case in own if not case.calibrates)
        after = self._errors(changed(case, values) for case in again.cases if case.hardware == hardware)
        factor = median(1 / (1 + e) for e in self._errors(changed(case, values) for case in others))
        return LeftOut(
            hardware,
            len(after),
            median(map(abs, before)) if before else math.nan,
            median(map(abs, after)),
            factor,
            median(abs((1 + e) * factor - 1) for e in after),
            tuple(constants),
        )

    def rows_of(self, found: Iterable[LeftOut]) -> list[Outcome]:
        """The rows of what was left out, one by one, by what was fitted without it."""
        outcomes = []
        for left in found:
            again, constants = self.without(left.hardware)
            values = values_of(constants)
            own = [replace(case, calibrates=False) for case in again.cases if case.hardware == left.hardware]
            outcomes += self.answers.of(changed(case, values) for case in own)
        return outcomes


def values_of(constants: Iterable[Fitted]) -> Values:
    """Return fitted constants by set and name."""
    values: dict[str, dict[str, float]] = {}
    for each in constants:
        values.setdefault(each.set, {}).update(zip(each.names, each.values, strict=True))
    return values
