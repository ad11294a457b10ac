"""How held-out errors of steps are spread: between groups, between jobs of a group, between rows of a job.

A group is all rows of one hardware, release and model, a job in it those that differ in GPUs and global batch
alone. The three variances are those of nested random effects, by the method of moments on unweighted means
(Searle, Casella and McCulloch 1992, "Variance Components"): rows about their job's mean, jobs' means about their
group's, and groups' means about 0, since errors have no side. What was held out together weighs the same, however
many groups it has. `calibrate` weighs a step that was measured by them: what is a job's own is no other's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

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


@record
class _Moments:
    """What a group says: of rows about jobs, of jobs about the group, of the group."""

    squares: tuple[float, float]
    free: tuple[int, int]
    mean: float
    jobs: int
    inverse: float  # sum of 1 / rows of its jobs

    @property
    def rows_in_jobs(self) -> float:
        """How much of a row's variance is in the squares of its jobs' means."""
        return self.free[1] * self.inverse / self.jobs


def spread_of(rows: Iterable[Grouped]) -> Spread:
    """Return the standard deviations of the three, none below 0."""
    groups: dict[tuple[str, Group], list[Grouped]] = {}
    for one in rows:
        groups.setdefault((one.unit, one.group), []).append(one)
    units = [unit for unit, _ in groups]
    found = [_moments(members) for members in groups.values()]
    row = _over(sum(of.squares[0] for of in found), sum(of.free[0] for of in found))
    among = sum(of.squares[1] - row * of.rows_in_jobs for of in found)
    job = max(0.0, _over(among, sum(of.free[1] for of in found)))
    squares: dict[str, list[float]] = {}
    for unit, of in zip(units, found, strict=True):
        within = job / of.jobs + row * of.inverse / of.jobs**2
        squares.setdefault(unit, []).append(of.mean**2 - within)
    between = max(0.0, float(np.mean([np.mean(own) for own in squares.values()]))) if squares else 0.0
    return Spread(math.sqrt(between), math.sqrt(job), math.sqrt(row))


def _over(squares: float, free: int) -> float:
    return squares / free if free else 0.0


def _moments(members: list[Grouped]) -> _Moments:
    jobs: dict[str, list[float]] = {}
    for one in members:
        jobs.setdefault(one.job, []).append(one.log_error)
    means = np.array([np.mean(own) for own in jobs.values()])
    within = sum(float(np.var(own)) * len(own) for own in jobs.values())
    about = float(np.var(means)) * len(means)
    free = (len(members) - len(jobs), len(jobs) - 1)
    inverse = sum(1 / len(own) for own in jobs.values())
    return _Moments((within, about), free, float(means.mean()), len(jobs), inverse)
