"""Constants of least squares with a prior each, and what error they leave.

Residuals are ln(predicted / measured) over the noise of a row, and the distance of each constant from its prior
over that prior's width: with few rows a constant stays near what it was. Never more constants than points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from fabrictwin.base.arrays import F64
from fabrictwin.base.records import record

NOISE = 0.06  # of ln(time) between like runs
SINGLE = 0.10  # a single row is applied only where the model is off by more than this
LEAST = 0.002  # by which a fit must lower the median error
MOST_STEPS, LONGEST, SHORTEST = 20, 1.0, 0.001
TRIED = -0.02  # widths, to see how residuals change: down, since a share of 1 cannot become larger


@record
class Prior:
    """A constant's value where nothing is measured, and its standard deviation, of its logarithm for a factor."""

    name: str
    value: float
    width: float
    factor: bool = True

    def at(self, distance: float) -> float:
        """Return the value so many widths from the prior."""
        return self.value * math.exp(distance * self.width) if self.factor else self.value + distance * self.width

    @property
    def text(self) -> str:
        spread = f"a factor of {math.exp(self.width):.2f}" if self.factor else f"{self.width:g}"
        return f"prior {self.value:g}, {spread} either way"


@record
class Fitted:
    """A constant, fitted or left: what it rests on, and median errors before, after, and of points left out."""

    name: str
    before: float
    after: float
    prior: str
    points: int
    source: str
    errors: tuple[float, float, float | None]
    applied: bool = True


def least_squares(logs: Callable[[F64], F64], priors: Sequence[Prior], kept: F64, noise: float = NOISE) -> F64:
    """Return the distances from priors, in widths, that fit the kept rows best (Gauss-Newton, steps halved)."""

    def residuals(at: F64) -> F64:
        found: F64 = np.concatenate([logs(at)[kept.astype(bool)] / noise, at])
        return found

    at = np.zeros(len(priors))
    now = residuals(at)
    for _ in range(MOST_STEPS):
        tilt = np.stack([residuals(at + row) - now for row in np.eye(len(at)) * TRIED]) / TRIED
        step = np.clip(np.linalg.lstsq(tilt.T, -now, rcond=None)[0], -LONGEST, LONGEST)
        found = residuals(at + step)
        while found @ found > now @ now and np.abs(step).max() > SHORTEST:
            step = step / 2
            found = residuals(at + step)
        if found @ found >= now @ now:
            break
        at, now = at + step, found
        if np.abs(step).max() <= SHORTEST:
            break
    return at


def fit(
    logs: Callable[[F64], F64], priors: Sequence[Prior], points: int, source: str, *, noise: float = NOISE
) -> list[Fitted]:
    """Return constants from so many points; a single one only where it is off by more than 10 %.

    `logs` gives ln(predicted / measured) of all points for distances from the priors, which differ by `noise`.
    """
    assert points >= len(priors), "never from fewer points than constants"
    whole = np.ones(points)
    start = logs(np.zeros(len(priors)))
    before = float(median(np.abs(np.expm1(start))))
    left = [
        Fitted(one.name, one.value, one.value, one.text, points, source, (before, before, None), applied=False)
        for one in priors
    ]
    if points == 1 and before <= SINGLE:
        return left
    at = least_squares(logs, priors, whole, noise)
    after = float(median(np.abs(np.expm1(logs(at)))))
    if after > before - LEAST:  # what leaves no less error is no better known than before
        return left
    alone = None
    if points > len(priors):
        errors = []
        for i in range(points):
            kept = whole.copy()
            kept[i] = 0
            errors.append(abs(math.expm1(logs(least_squares(logs, priors, kept, noise))[i])))
        alone = float(median(errors))
    return [
        Fitted(one.name, one.value, one.at(where), one.text, points, source, (before, after, alone))
        for one, where in zip(priors, at.tolist(), strict=True)
    ]
