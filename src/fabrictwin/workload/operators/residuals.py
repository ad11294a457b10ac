"""What measured times are over those of a form, on a thin grid of logarithms, linear between its points.

A grid holds ln(measured / form) in steps of 1.5 % as bytes. It is fitted to scattered measurements: the values at
the grid's points that come closest to the residuals, absolutely, each drawn to its neighbours and to 0 where
little was measured. Outside it the value at its edge holds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fabrictwin.base.arrays import F64
from fabrictwin.base.records import record

STEP = 0.015
MOST = 127
ROUNDS = 4
TO_ZERO, TO_NEIGHBOURS = 0.05, 0.1
MOST_TURNS, CLOSE = 60, 1e-6
LEAST = 0.01  # of a residual, below which absolute and squared errors are alike


@record
class ResidualGrid:
    """Residuals over log2 of variables: axes (each ascending) and the values in steps, of the axes' shape."""

    axes: tuple[F64, ...]
    steps: NDArray[np.int8]

    def at(self, points: F64) -> F64:
        """Return factors on the form's time at `points` (rows of log2 of the variables)."""
        places, weights = corners(self.axes, points)
        found: F64 = np.exp((self.steps.ravel()[places] * STEP * weights).sum(axis=1))
        return found

    @cached_property
    def _flat(self) -> tuple[list[list[float]], list[int], list[int]]:
        strides = [int(np.prod(self.steps.shape[place + 1 :])) for place in range(self.steps.ndim)]
        return [axis.tolist() for axis in self.axes], strides, self.steps.ravel().tolist()

    def at_one(self, *point: float) -> float:
        """Return the factor at one point, as `at` has it."""
        axes, strides, steps = self._flat
        found = [(0, 1.0)]
        for axis, stride, value in zip(axes, strides, point, strict=True):
            low = min(max(bisect_right(axis, value) - 1, 0), len(axis) - 2)
            share = min(max((value - axis[low]) / (axis[low + 1] - axis[low]), 0.0), 1.0)
            found = [
                (place + (low + side) * stride, weight * part)
                for place, weight in found
                for side, part in ((0, 1 - share), (1, share))
                if part
            ]
        return math.exp(STEP * sum(steps[place] * weight for place, weight in found))

    def along_first(self, *rest: float) -> Callable[[float], float]:
        """Return `at_one` of the first variable, the others fixed."""
        axis = self._flat[0][0]
        logs = [math.log(self.at_one(value, *rest)) for value in axis]
        widths, rises = np.diff(axis).tolist(), np.diff(logs).tolist()
        first, last = axis[0], axis[-1]
        before, beyond = math.exp(logs[0]), math.exp(logs[-2] + rises[-1])

        def factor(value: float) -> float:
            if value <= first:
                return before
            if value >= last:
                return beyond
            low = bisect_right(axis, value) - 1
            return math.exp(logs[low] + (value - axis[low]) / widths[low] * rises[low])

        return factor


def corners(axes: Sequence[F64], points: F64) -> tuple[NDArray[np.int64], F64]:
    """Return flat places and weights of the grid's points around each point: (points, 2 ** axes) arrays."""
    shape = [len(axis) for axis in axes]
    low, share = [], []
    for axis, values in zip(axes, points.T, strict=True):
        inside = np.clip(values, axis[0], axis[-1])
        at = np.clip(np.searchsorted(axis, inside, side="right") - 1, 0, max(0, len(axis) - 2))
        low.append(at)
        share.append((inside - axis[at]) / (axis[at + 1] - axis[at]) if len(axis) > 1 else np.zeros(len(values)))
    places, weights = [], []
    for sides in product((0, 1), repeat=len(axes)):
        index = [np.minimum(at + side, size - 1) for at, side, size in zip(low, sides, shape, strict=True)]
        places.append(np.ravel_multi_index(index, shape))
        weights.append(
            np.prod([part if side else 1 - part for part, side in zip(share, sides, strict=True)], axis=0)
        )
    return np.stack(places, axis=1), np.stack(weights, axis=1)


def _neighbours(shape: Sequence[int]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    index = np.arange(int(np.prod(shape))).reshape(shape)
    pairs = []
    for axis in range(len(shape)):
        first = np.take(index, range(shape[axis] - 1), axis=axis).ravel()
        pairs.append((first, np.take(index, range(1, shape[axis]), axis=axis).ravel()))
    return pairs


def fit_residuals(axes: Sequence[F64], points: F64, residuals: F64) -> ResidualGrid:
    """Return the grid of least absolute error to `residuals` (logarithms) at `points`."""
    shape = tuple(len(axis) for axis in axes)
    places, weights = corners(axes, points)
    pairs = _neighbours(shape)
    values = np.zeros(int(np.prod(shape)))

    def spread(off: F64) -> F64:
        found = np.bincount(places.ravel(), (weights * off[:, None]).ravel(), minlength=len(values))
        return found.astype(float)

    trust = np.ones(len(residuals))
    for _ in range(ROUNDS):

        def normal(at: F64, trust: F64 = trust) -> F64:
            pulled = TO_ZERO * at + spread(trust * (at[places] * weights).sum(axis=1))
            for first, second in pairs:
                apart = TO_NEIGHBOURS * (at[first] - at[second])
                pulled += np.bincount(first, apart, len(at)) - np.bincount(second, apart, len(at))
            return pulled

        values = _solve(normal, spread(trust * residuals), values)
        off = np.abs((values[places] * weights).sum(axis=1) - residuals)
        trust = LEAST / np.maximum(off, LEAST)
    steps = np.clip(np.round(values / STEP), -MOST, MOST).astype(np.int8).reshape(shape)
    return ResidualGrid(tuple(np.asarray(axis, float) for axis in axes), steps)


def _solve(normal: Callable[[F64], F64], right: F64, start: F64) -> F64:
    """Return the solution of a symmetric positive system by conjugate gradients."""
    at = start.copy()
    rest = right - normal(at)
    way, size = rest.copy(), float(rest @ rest)
    for _ in range(MOST_TURNS):
        if size <= CLOSE * float(right @ right):
            break
        tried = normal(way)
        length = size / float(way @ tried)
        at += length * way
        rest -= length * tried
        size, before = float(rest @ rest), size
        way = rest + size / before * way
    return at
