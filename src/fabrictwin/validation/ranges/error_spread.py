"""Spread of held-out errors of steps: between groups, between jobs of a group, between rows of a job.

A group is all rows of one hardware, release and model, a job in it those that differ in GPUs and global batch
alone. What a group's jobs share is the mean product of the errors of two of them, about 0 since errors have no
side: what one says of another, whatever the spread of either (the covariance of nested random effects by the
method of moments; Searle, Casella and McCulloch 1992, "Variance Components"). So groups of one job say nothing of
it. Groups weigh the same, however many jobs they have, and so does what was held out together, however many groups
it has. `calibrate` weighs a step that was measured by these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.catalog.error_ranges import Spread

Group = tuple[str, str, str]  # hardware, release and model


@record
class Grouped:
    """One row that was held out: with what, of which group and job, and ln(measured / predicted time)."""

    unit: str
    group: Group
    job: str
    log_error: float


def spread_of(rows: Iterable[Grouped]) -> Spread:
    """Return the standard deviations of the three, none below 0."""
    groups: dict[tuple[str, Group], dict[str, list[float]]] = {}
    for one in rows:
        groups.setdefault((one.unit, one.group), {}).setdefault(one.job, []).append(one.log_error)
    row = _within([errors for jobs in groups.values() for errors in jobs.values()])
    products: dict[str, list[float]] = {}
    squares: dict[str, list[float]] = {}
    for (unit, _), jobs in groups.items():
        if len(jobs) > 1:
            means = np.array([np.mean(errors) for errors in jobs.values()])
            pairs = len(means) * (len(means) - 1)
            products.setdefault(unit, []).append(float((means.sum() ** 2 - (means**2).sum()) / pairs))
            squares.setdefault(unit, []).append(float(np.mean([np.mean(np.square(own)) for own in jobs.values()])))
    group = max(0.0, _mean(products.values()))
    job = max(0.0, _mean(squares.values()) - group - row)
    return Spread(math.sqrt(group), math.sqrt(job), math.sqrt(row))


def _within(jobs: Sequence[Sequence[float]]) -> float:
    free = sum(len(errors) - 1 for errors in jobs)
    return sum(float(np.var(errors)) * len(errors) for errors in jobs) / free if free else 0.0


def _mean(units: Iterable[Sequence[float]]) -> float:
    means = [float(np.mean(own)) for own in units]
    return float(np.mean(means)) if means else 0.0
