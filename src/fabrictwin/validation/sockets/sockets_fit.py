"""The costs of a stack that no source states, fitted to all rows together, or to all but a publication's.

What is made small is the mean of errors' logarithms, each counted up to `MOST`: a row that is further off is one
that these forms do not describe, however far. The search moves one cost at a time by a share that shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from statistics import median

from fabrictwin.base.progress import Stage, silent
from fabrictwin.base.records import record
from fabrictwin.engines.sockets.stack import Costs
from fabrictwin.validation.sockets.socket_rows import SocketPoint

MOST = 0.3
FIRST_STEP, LAST_STEP = 0.4, 1e-3
# picoseconds; a search from elsewhere ends near by
BEGIN = Costs(call=400e3, segment=1.2e6, packet=200e3, far_copy=1.3, wake=5e6, virtual=10e6, namespace=5e6)


@record
class LeftOut:
    """One publication's rows, predicted with costs fitted to all others."""

    name: str
    errors: tuple[float, ...]


def _loss(points: Sequence[SocketPoint], costs: Costs) -> float:
    return sum(min(abs(math.log1p(one.error(costs))), MOST) for one in points) / len(points)


def fit(points: Sequence[SocketPoint]) -> Costs:
    """Return the costs with which these rows are off least."""
    best, step = BEGIN, FIRST_STEP
    least = _loss(points, best)
    while step > LAST_STEP:
        moved = False
        for field in fields(Costs):
            for factor in (math.exp(step), math.exp(-step)):
                tried = replace(best, **{field.name: getattr(best, field.name) * factor})
                loss = _loss(points, tried)
                if loss < least - 1e-12:
                    best, least, moved = tried, loss, True
        if not moved:
            step /= 2
    return best


def leave_out(points: Sequence[SocketPoint], stage: Stage = silent) -> list[LeftOut]:
    """Return each publication's errors where it was left out."""
    names = list(dict.fromkeys(one.row.set for one in points))
    found = []
    for i, name in enumerate(names):
        stage(f"without {name}", i / len(names))
        costs = fit([one for one in points if one.row.set != name])
        found.append(LeftOut(name, tuple(one.error(costs) for one in points if one.row.set == name)))
    return found


def median_absolute(errors: Iterable[float]) -> float:
    """Return the median of their absolute values."""
    return median(abs(one) for one in errors)
