"""Ranges around a prediction, from errors of like cases that were held out: `error_ranges.yaml`.

`fabrictwin validate accuracy --write-ranges` makes the file: quantiles of measured over predicted time, by kind of
answer (`step`, `collective`, `served`) and by features of a case in order of importance: what of it is known, then
its size and span. A case that has no cell of its own takes the cell of the features before the last, so that a
range never rests on a handful of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from fabrictwin.base.records import record
from fabrictwin.base.yamlfile import read_bundled

FILE = "error_ranges.yaml"
QUANTILES = (0.05, 0.25, 0.75, 0.95)
ONE_DOMAIN, BETWEEN_HOSTS = "inside one host or rack", "between hosts"


@record
class Known:
    """The first feature of a case: what of it others have been compared with."""

    known: str
    without_hardware: str
    without_software: str = ""


STEP = Known("GPU and software known", "GPU not known", "software not calibrated")
COLLECTIVE = Known("generation known", "generation not known")
FIRST_TOKEN, NEXT_TOKEN = "time to first token", "time per output token"
REGIMES = (
    ("below 64 KiB", 1, 64 << 10),
    ("64 KiB to 64 MiB", 64 << 10, 64 << 20),
    ("from 64 MiB", 64 << 20, 1 << 62),
)  # of a collective's bytes


@record
class ErrorRange:
    """Measured over predicted time of like cases that were held out.

    Attributes:
        factors: The times that 5, 25, 75 and 95 % of them stay below.
        rows: How many cases there are.
        groups: How many machines, releases or series they are of.
        like: What they have in common with the case.
        outside: Where the case lies outside of all that was compared, one phrase each.
    """

    factors: tuple[float, float, float, float]
    rows: int
    groups: int
    like: str
    outside: tuple[str, ...] = ()

    def of_time(self, time: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the ranges that half and nine in ten lie in, of a predicted time, in its unit."""
        a, b, c, d = self.factors
        return (time * b, time * c), (time * a, time * d)

    def of_rate(self, rate: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the same of a throughput."""
        a, b, c, d = self.factors
        return (rate / c, rate / b), (rate / d, rate / a)

    @property
    def basis(self) -> str:
        """Return what the range rests on, as a phrase."""
        return f"{self.rows} held-out rows of {self.groups} groups: {self.like}"

    def data(self) -> dict[str, Any]:
        """Return the range as plain data: factors on time."""
        a, b, c, d = self.factors
        return {
            "time_factor_50_percent": [b, c],
            "time_factor_90_percent": [a, d],
            "rows": self.rows,
            "groups": self.groups,
            "like": self.like,
            "outside": list(self.outside),
        }


@record
class Spread:
    """Standard deviations of ln(measured / predicted time) of steps that were held out, one within the other.

    Attributes:
        group: What all jobs of one hardware, release and model are off by together.
        job: What each of a group's jobs (layout, sizes, precision) is off by itself, on any number of GPUs.
        row: What is left, between rows of one job.
    """

    group: float
    job: float
    row: float

    def and_beyond(self, *others: Spread) -> Spread:
        """Return it with what others' groups are off by beyond its own."""
        beyond = sum(max(0.0, one.group**2 - self.group**2) for one in others)
        return Spread(math.sqrt(self.group**2 + beyond), self.job, self.row)


@record
class Ranges:
    """All ranges of one kind of answer, and what was compared at all."""

    cells: Mapping[str, ErrorRange]
    compared: Mapping[str, Any]
    # by first feature: rows judged by ranges made without their groups, their shares in the half, in nine tenths
    coverage: Mapping[str, tuple[int, float, float]]
    spread: Mapping[str, Spread]  # by first feature; of steps alone

    def of(self, features: Sequence[str], outside: Iterable[str] = ()) -> ErrorRange:
        """Return the range of the cell that shares the most features, in their order."""
        for n in range(len(features), 0, -1):
            found = self.cells.get(", ".join(features[:n]))
            if found is not None:
                return ErrorRange(found.factors, found.rows, found.groups, found.like, tuple(outside))
        raise LookupError(features)


@cache
def error_ranges(answer: str) -> Ranges:
    """Return the ranges of `step`, `collective` or `served`."""
    data = read_bundled("fabrictwin.catalog", FILE)
    assert isinstance(data, dict)
    found = data[answer]
    cells = {}
    for like, row in found["cells"].items():
        *factors, rows, groups = row
        a, b, c, d = map(float, factors)
        cells[like] = ErrorRange((a, b, c, d), int(rows), int(groups), like)
    coverage = {
        first: (int(judged), float(half), float(nine_tenths))
        for first, (judged, half, nine_tenths) in found["coverage"].items()
    }
    spread = {first: Spread(*map(float, row)) for first, row in found.get("spread", {}).items()}
    return Ranges(cells, found["compared"], coverage, spread)


def step_spread(spread: Mapping[str, Spread], *, gpu: bool, software: bool) -> Spread:
    """Return how steps are spread, from what they are by first feature, the GPU or the software known or not."""
    unknown = (() if gpu else (STEP.without_hardware,)) + (() if software else (STEP.without_software,))
    return spread[STEP.known].and_beyond(*(spread[name] for name in unknown))


def regime_of(size_bytes: int) -> str:
    """Return the regime that a collective of so many bytes is in."""
    return next(name for name, low, high in REGIMES if low <= max(size_bytes, 1) < high)
