"""Held-out errors of steps, collectives and servers as rows for ranges, with the features they are alike by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from fabrictwin import catalog
from fabrictwin.base.progress import Stage
from fabrictwin.catalog.error_ranges import (
    BETWEEN_HOSTS,
    COLLECTIVE,
    FIRST_TOKEN,
    NEXT_TOKEN,
    ONE_DOMAIN,
    STEP,
    Spread,
    regime_of,
)
from fabrictwin.cluster.spec.calibration_file import job_of
from fabrictwin.validation.collective_series import Outcome, Published, judge, together
from fabrictwin.validation.collectives_fit import fit_without_series, generations
from fabrictwin.validation.held_out import SINGLE_KIND, HeldOut, release_of
from fabrictwin.validation.published_data import Measurements
from fabrictwin.validation.ranges.error_cells import Held, Key
from fabrictwin.validation.ranges.error_spread import Group, Grouped, spread_of
from fabrictwin.validation.served_models import Answer
from fabrictwin.validation.training_fit import by_single_rows
from fabrictwin.validation.training_judge import Outcome as Step

# which way of leaving out says what is known of a case
KNOWN = {
    SINGLE_KIND: STEP.known,
    "hardware": STEP.without_hardware,
    "framework": STEP.without_software,
}


def step_rows(measurements: Measurements, found: Iterable[HeldOut]) -> list[Held]:
    """Return rows of training steps, by span too where GPU and software are known.

    The other two rest on a handful of GPUs and of frameworks, too few to be divided. Constants that were fitted to
    single rows are of one framework: without it they have no effect, while in answers about other frameworks they
    have. Rows on which one acts say nothing of those.
    """
    rows = []
    for known, outcome in _judged(measurements, found):
        assert outcome.error is not None
        span = (_span(measurements, outcome),) if known == STEP.known else ()
        rows.append(Held((known, *span), outcome.case.hardware, math.log1p(outcome.error)))
    return rows


def _judged(measurements: Measurements, found: Iterable[HeldOut]) -> Iterator[tuple[str, Step]]:
    """Yield what is known of each row, and the row."""
    for one in found:
        known = KNOWN.get(one.by, "")
        for outcome in one.outcomes if known else ():
            if known != STEP.without_software or not by_single_rows(measurements, outcome.case):
                yield known, outcome


def step_spreads(
    measurements: Measurements, found: Iterable[HeldOut], without: Step | None = None
) -> dict[str, Spread]:
    """Return how steps are spread by what is known of them, without all rows of one row's group."""
    out = None if without is None else _group(measurements, without)
    rows: dict[str, list[Grouped]] = {}
    for known, outcome in _judged(measurements, found):
        group = _group(measurements, outcome)
        if group == out:
            continue
        assert outcome.error is not None
        assert outcome.case.spec is not None
        job = job_of((outcome.case.spec.workload or {})["training"])
        one = Grouped(outcome.case.hardware, group, job, math.log1p(outcome.error))
        rows.setdefault(known, []).append(one)
    return {known: spread_of(own) for known, own in rows.items()}


def _group(measurements: Measurements, outcome: Step) -> Group:
    row = outcome.case.row
    return measurements.texts.hardware[row.hardware].family, release_of(outcome.case), row.model


def _span(measurements: Measurements, outcome: Step) -> str:
    row = outcome.case.row
    host = measurements.texts.hardware[row.hardware].host
    return ONE_DOMAIN if row.gpus <= catalog.host(host).nodes.gpu else BETWEEN_HOSTS


def collective_rows(published: Published, stage: Stage) -> list[Held]:
    """Return rows of collectives: what was published of each machine left out, then each generation."""
    rows: list[Held] = []
    for names in together(published):
        fitted = fit_without_series(published, names, stage=stage)
        rows += _rows(judge(published, names=names, fitted=fitted), COLLECTIVE.known, names[0])
    for hardware in generations(published).values():
        own = tuple(name for name, series in published.series.items() if series.hardware in hardware)
        fitted = fit_without_series(published, own, stage=stage)
        for outcome in judge(published, names=own, fitted=fitted):
            rows += _rows([outcome], COLLECTIVE.without_hardware, outcome.series.hardware)
    return rows


def _rows(outcomes: Iterable[Outcome], known: str, group: str) -> list[Held]:
    rows = []
    for outcome in outcomes:
        for answer in outcome.answers:
            features: Key = (known, regime_of(answer.point.size_bytes))
            rows.append(Held(features, group, -math.log1p(answer.error)))
    return rows


def served_rows(answers: Iterable[Answer]) -> list[Held]:
    """Return two rows a served model: nothing is fitted to any, and a group is a model on a GPU."""
    rows = []
    for one in answers:
        for what, error in ((FIRST_TOKEN, one.ttft_error), (NEXT_TOKEN, one.tpot_error)):
            rows.append(Held((what,), one.row.machine, -math.log1p(error)))
    return rows
