"""Values on a grid, between whose points they are taken to be linear along each axis."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np


class Grid:
    """A function of several variables that is known on a grid.

    Beyond the last point of an axis the last two go on as a line; before the first the value is that of the first.
    """

    def __init__(self, axes: Sequence[Sequence[float]], values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]):
        if values.shape != tuple(len(axis) for axis in axes):
            raise ValueError(
                f"got values of shape {values.shape} on axes of {[len(axis) for axis in axes]} points"
            )
        self._axes = [list(axis) for axis in axes]
        self._values = values.ravel().tolist()
        self._strides = [int(np.prod(values.shape[place + 1 :])) for place in range(values.ndim)]

    def at(self, *point: float) -> float:
        """Return the value at a point."""
        corners = [(0, 1.0)]
        for axis, stride, value in zip(self._axes, self._strides, point, strict=True):
            if len(axis) == 1 or value <= axis[0]:
                continue
            low = min(bisect_right(axis, value) - 1, len(axis) - 2)
            share = (value - axis[low]) / (axis[low + 1] - axis[low])
            corners = [
                (offset + (low + step) * stride, weight * part)
                for offset, weight in corners
                for step, part in ((0, 1 - share), (1, share))
                if part
            ]
        values = self._values
        return sum(values[offset] * weight for offset, weight in corners)


def grid_of(axis: Sequence[float], values: Sequence[float]) -> Grid:
    """Return a function of one variable."""
    return Grid([axis], np.array(values, float))


def table(axis: Sequence[float], values: Sequence[float], last: int) -> list[float]:
    """Return a function of one variable at 0 to `last`, from the points of `axis`, to the bit as `Grid` has it."""
    if len(axis) == 1:
        return [float(values[0])] * (last + 1)
    points, known, place = np.array(axis, float), np.array(values, float), np.arange(last + 1)
    low = np.clip(np.searchsorted(points, place, "right") - 1, 0, len(points) - 2)
    share = np.maximum((place - points[low]) / (points[low + 1] - points[low]), 0.0)
    found: list[float] = (known[low] * (1 - share) + known[low + 1] * share).tolist()
    return found


def staircase(axis: Sequence[int], values: Sequence[float], last: int) -> list[float]:
    """Return a function at 0 to `last` that has the value of the next point; beyond the last as `Grid` has it."""
    steps = [values[bisect_left(axis, place)] for place in range(min(axis[-1], last) + 1)]
    return steps + table(axis, values, last)[len(steps) :]
