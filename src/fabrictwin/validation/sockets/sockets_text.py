"""Published sockets beside what the stack's costs make of them, as text and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fabrictwin.engines.sockets.stack import Costs
from fabrictwin.validation.sockets.socket_rows import SocketPoint, SocketTexts
from fabrictwin.validation.sockets.sockets_fit import LeftOut, median_absolute


def sockets_data(
    points: Sequence[SocketPoint], texts: SocketTexts, costs: Costs, left_out: Sequence[LeftOut]
) -> dict[str, Any]:
    """Return every row, the medians, and the costs in picoseconds."""
    rows = [
        {
            **one.row.model_dump(),
            "source": texts.sets[one.row.set].source,
            "twin": float(f"{one.predicted(costs):.6g}"),
            "error_percent": round(100 * one.error(costs), 2),
            "limited_by": one.by(costs) or None,
        }
        for one in points
    ]
    kinds = {
        "all": list(points),
        "not set by the wire": [one for one in points if one.by(costs) != "wire"],
        **{test: [one for one in points if one.row.test == test] for test in ("stream", "request", "one-way")},
    }
    return {
        "schema": 1,
        "costs": {key: round(value, 4) for key, value in asdict(costs).items()},
        "medians": {name: _of(found, costs) for name, found in kinds.items() if found},
        "left_out": {
            "rows": sum(len(one.errors) for one in left_out),
            "median_absolute_error_percent": _percent([x for one in left_out for x in one.errors]),
            "sets": {one.name: _percent(one.errors) for one in left_out},
        }
        if left_out
        else None,
        "rows": rows,
    }


def _percent(errors: Sequence[float]) -> float:
    return round(100 * median_absolute(errors), 1)


def _of(points: Sequence[SocketPoint], costs: Costs) -> dict[str, Any]:
    return {
        "rows": len(points),
        "median_absolute_error_percent": _percent([one.error(costs) for one in points]),
    }


def sockets_text(data: dict[str, Any], *, every: bool) -> str:
    """Return medians, the rows that are furthest off, or every row."""
    lines = []
    for name, found in data["medians"].items():
        lines.append(
            f"{name:22} {found['rows']:3} rows, median error {found['median_absolute_error_percent']:5.1f} %"
        )
    left = data["left_out"]
    if left:
        error = left["median_absolute_error_percent"]
        lines += ["", f"{'publications left out':22} {left['rows']:3} rows, median error {error:5.1f} %"]
        lines += [f"  {name:20} {error:5.1f} %" for name, error in left["sets"].items()]
    rows = data["rows"]
    if not every:
        rows = sorted(rows, key=lambda row: -abs(row["error_percent"]))[:8]
    lines += ["", f"{'set':20} {'row':34} {'published':>10} {'twin':>10}   error  set by"]
    for row in rows:
        lines.append(
            f"{row['set']:20} {row['row']:34} {row['value']:10.6g} {row['twin']:10.6g} "
            f"{row['error_percent']:+6.0f} %  {row['limited_by'] or ''}".rstrip()
        )
    return "\n".join(lines) + "\n"


def costs_text(costs: Costs) -> str:
    """Return fitted costs with units, as the catalog's `host_stack` has them."""
    times = {key: value for key, value in asdict(costs).items() if key != "far_copy"}
    lines = [f"{key:10} {value / 1e3:.4g} ns" for key, value in times.items()]
    return "\n".join([*lines, f"{'far_copy':10} {100 * costs.far_copy:.4g} %"]) + "\n"
