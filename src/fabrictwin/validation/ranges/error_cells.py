"""Ranges of errors by features of cases, from rows that were held out, and how well they cover such rows.

A row is the logarithm of measured over predicted time, with the group that it was held out with and its features
in order of importance (`catalog.error_ranges`). A cell is all rows that share the first features, where they are
enough, of enough groups; a row weighs less the more there are of its group.

What a machine or release is off by is mostly the same in all of its rows, and which way the next one is off is not
known: constants and shares were fitted so that errors have no side, and the median of a handful of groups says
which ones were published, not what to expect. So a range lies around the prediction itself, as far to either side
as half and nine tenths of rows are off, whichever way. Its width rests on so many draws: quantiles lie as much
farther out as Student's do from the normal distribution's, of a new draw whose middle is known and whose spread
comes from so many. Sizes of one machine's run are one draw. Steps of a group are jobs of their own (`nested`),
which share a part of their error alone: the draws are the degrees of freedom of the sum of both variances
(Satterthwaite 1946). How well ranges cover is judged by ranges that were made without the row's group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from fabrictwin.base.arrays import F64, I64
from fabrictwin.base.records import record
from fabrictwin.catalog.error_ranges import QUANTILES

LEAST_ROWS, LEAST_GROUPS = 12, 5
REPEATED = 0.35  # a group of n rows weighs n to the power of 1 less this
Key = tuple[str, ...]


@record
class Held:
    """One row that was held out."""

    features: Key
    group: str
    log_error: float  # ln(measured / predicted time)


@record
class Cell:
    """Quantiles of measured over predicted time of rows that share features."""

    factors: tuple[float, ...]
    rows: int
    groups: int


@record
class Coverage:
    """Shares of held-out rows that lie in the ranges made without their groups."""

    rows: int
    half: float
    nine_tenths: float


def weighted_quantiles(values: F64, weights: F64, shares: Sequence[float]) -> F64:
    """Return quantiles of weighted values, each value at the middle of its weight."""
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    at = (np.cumsum(weights) - weights / 2) / weights.sum()
    found: F64 = np.interp(shares, at, values)
    return found


def _wider(draws: float, share: float) -> float:
    """Return how much farther a quantile lies where its spread comes from so many draws than from many."""
    z = NormalDist().inv_cdf(share)
    # Cornish and Fisher's expansion of Student's quantile (Abramowitz and Stegun 26.7.5)
    t = z + (z**3 + z) / (4 * draws) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * draws**2)
    return t / z


def _draws(errors: F64, index: I64) -> float:
    """Return the degrees of freedom of the variance between groups and within them, in sum (Satterthwaite)."""
    counts = np.bincount(index)
    groups, free = len(counts), len(errors) - len(counts)
    means = np.bincount(index, errors) / counts
    within = float(((errors - means[index]) ** 2).sum()) / free if free else 0.0
    between = max(0.0, float(np.mean(means**2 - within / counts)))  # about 0: errors have no side
    parts = between**2 / groups + (within**2 / free if free else 0.0)
    return (between + within) ** 2 / parts if parts else float(groups)


def _cell(rows: Sequence[Held], *, nested: bool) -> Cell | None:
    names, index = np.unique([row.group for row in rows], return_inverse=True)
    groups = len(names)
    if len(rows) < LEAST_ROWS or groups < LEAST_GROUPS:
        return None
    weights = (np.bincount(index).astype(float) ** -REPEATED)[index]
    errors = np.array([row.log_error for row in rows])
    distances = np.abs(errors)
    alike = np.bincount(index, weights)
    draws = float(alike.sum() ** 2 / (alike**2).sum())  # of groups, as if all were of one size
    draws = max(draws, _draws(errors, index)) if nested else draws
    upper = [share for share in QUANTILES if share > 0.5]
    found = weighted_quantiles(distances, weights, [2 * share - 1 for share in upper]).tolist()
    far = [value * _wider(draws, share) for share, value in zip(upper, found, strict=True)]
    factors = [-one for one in reversed(far)] + far
    return Cell(tuple(round(math.exp(one), 3) for one in factors), len(rows), groups)


def cells(rows: Iterable[Held], *, nested: bool = False) -> dict[Key, Cell]:
    """Return the cell of every beginning of features that has enough rows."""
    by_key: dict[Key, list[Held]] = {}  # never by less than what is known: groups of one kind are not another's
    for row in rows:
        for n in range(1, len(row.features) + 1):
            by_key.setdefault(row.features[:n], []).append(row)
    found = {key: cell for key, members in by_key.items() if (cell := _cell(members, nested=nested)) is not None}
    return dict(sorted(found.items()))


def cell_of(found: Mapping[Key, Cell], features: Key) -> Cell | None:
    """Return the cell that shares the most features."""
    return next((found[features[:n]] for n in range(len(features), 0, -1) if features[:n] in found), None)


def coverage(rows: Iterable[Held], *, nested: bool = False) -> Coverage:
    """Return how many rows lie in the ranges that are made without their groups."""
    rows = list(rows)
    inside = np.zeros((0, 2), bool)
    for group in dict.fromkeys(row.group for row in rows):
        found = cells((row for row in rows if row.group != group), nested=nested)
        for row in rows:
            cell = cell_of(found, row.features) if row.group == group else None
            if cell is not None:
                a, b, c, d = np.log(cell.factors)
                inside = np.vstack([inside, [b <= row.log_error <= c, a <= row.log_error <= d]])
    if not len(inside):
        return Coverage(0, float("nan"), float("nan"))
    half, nine_tenths = inside.mean(axis=0).tolist()
    return Coverage(len(inside), half, nine_tenths)
