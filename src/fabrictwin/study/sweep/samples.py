"""Points of a sweep: every combination of values, or samples drawn at random or by a Latin hypercube.

A Latin hypercube (McKay, Beckman and Conover, Technometrics 21, 1979) cuts each axis into as many equal parts as
there are samples and draws one from each, so that few samples cover every axis evenly.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.study.sweep.axes import OPTION, Axis, Range

Sampling = Literal["random", "latin"]
Point = tuple[str, ...]  # a value of each axis, in the order of the axes

MOST = 1_000_000


def grid(axes: Sequence[Axis]) -> list[Point]:
    """Every combination, the last axis fastest. Raises ConfigError for a range, and beyond a million points."""
    values = []
    for axis in axes:
        if isinstance(axis.values, Range):
            raise ConfigError(
                f"{axis.key}: got a range, expected values (8,16,32), or --samples N to draw from it", key=OPTION
            )
        values.append(axis.values)
    count = int(np.prod([len(one) for one in values], dtype=object))
    if count > MOST:
        raise ConfigError(f"got {count:,} combinations, expected at most {MOST:,}, or --samples N", key=OPTION)
    return list(itertools.product(*values))


def samples(axes: Sequence[Axis], count: int, how: Sampling, seed: int) -> list[Point]:
    """Draw `count` points; the same for the same seed."""
    draw = np.random.Generator(np.random.PCG64(seed))
    columns = []
    for axis in axes:
        share = draw.random(count)
        if how == "latin":
            share = (draw.permutation(count) + share) / count
        columns.append([_value(axis, float(one)) for one in share])
    return list(zip(*columns, strict=True))


def _value(axis: Axis, share: float) -> str:
    if isinstance(axis.values, Range):
        return axis.values.at(share)
    return axis.values[min(int(share * len(axis.values)), len(axis.values) - 1)]
