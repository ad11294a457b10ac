"""Constants fitted again, and hardware left out, as text for people and as plain data."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from fabrictwin.base.units import format_time
from fabrictwin.catalog.step_shares import StepShares
from fabrictwin.validation.training_fit import Fitted, LeftOut, is_share
from fabrictwin.validation.training_judge import Outcome
from fabrictwin.validation.training_text import outcome_line


def _value(name: str, value: float) -> str:
    return f"{value:.3g}" if is_share(name) else format_time(round(value))


def fitted_lines(found: Fitted) -> list[str]:
    """A line for each constant, and the rows below."""
    lines = [
        f"{found.set}: {name} {_value(name, new)} (declared {_value(name, old)})"
        + ("" if found.rows else ", without effect: no row of other hardware says what it is")
        for name, old, new in zip(found.names, found.declared, found.values, strict=True)
    ]
    return lines + [f"  {row}" for row in found.rows]


def shares_lines(shares: StepShares) -> list[str]:
    """Lines of the catalog's file of shares."""
    lines = [f"typical: {shares.typical:g}"]
    for name, factors in (("gpus", shares.gpus), ("software", shares.software)):
        lines.append(f"{name}: {{{', '.join(f'{key}: {value:g}' for key, value in factors.items())}}}")
    return lines


def fit_text(found: list[Fitted], shares: StepShares) -> str:
    """All constants, fitted again to the rows that they declare, and shares to all rows."""
    lines = ["constants of training steps, fitted again to the rows that are declared"]
    for each in found:
        lines += [f"  {line}" for line in fitted_lines(each)]
    lines += ["shares of GPUs and frameworks, fitted to all rows", *(f"  {x}" for x in shares_lines(shares))]
    return "\n".join(lines) + "\n"


def left_out_text(found: list[LeftOut], outcomes: list[Outcome]) -> str:
    """A line for each hardware, with `outcomes` every row of the only one, and what was fitted without it."""
    width = max(12, *(len(left.hardware) for left in found))
    lines = [
        "each hardware predicted by what was calibrated on all others: medians of absolute errors",
        f"  {'left out':<{width}}  rows  as declared  constants fitted again  and a factor from the others",
    ]
    for left in found:
        declared = "-" if math.isnan(left.declared) else f"{left.declared:.1%}"
        again = f"{left.refitted:.1%}"
        lines.append(
            f"  {left.hardware:<{width}}  {left.rows:4d}  {declared:>11}  {again:>22}  "
            f"{left.scaled:>14.1%} (x {left.factor:.3f})"
        )
    if any(left.constants for left in found):
        lines += ["", "  fitted again, and to which rows"]
    for left in found:
        if left.constants:
            lines.append(f"    without {left.hardware}")
        for each in left.constants:
            lines += [f"      {line}" for line in fitted_lines(each)]
    if outcomes:
        lines += ["", "  every row, by the constants fitted again"]
        lines += [f"    {outcome_line(o)}" for o in outcomes if o.error is not None]
    return "\n".join(lines) + "\n"


def _constants(found: Fitted) -> dict[str, Any]:
    return {
        "set": found.set,
        "constants": list(found.names),
        "declared": list(found.declared),
        "fitted": list(found.values),
        "rows": list(found.rows),
    }


def fit_json(found: list[Fitted], shares: StepShares) -> str:
    """Constants and shares as JSON; times of constants are picoseconds."""
    whole = {"schema": 1, "calibration": [_constants(each) for each in found], "shares": asdict(shares)}
    return json.dumps(whole, indent=2) + "\n"


def left_out_json(found: list[LeftOut], fidelity: str) -> str:
    """Shares become percent; times of constants are picoseconds."""
    whole = {
        "schema": 1,
        "fidelity": fidelity,
        "left_out": [
            {
                "hardware": left.hardware,
                "rows": left.rows,
                "median_absolute_error_percent": None if math.isnan(left.declared) else _percent(left.declared),
                "median_absolute_error_refitted_percent": _percent(left.refitted),
                "factor": float(f"{left.factor:.6g}"),
                "median_absolute_error_refitted_scaled_percent": _percent(left.scaled),
                "calibration": [_constants(each) for each in left.constants],
            }
            for left in found
        ],
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _percent(share: float) -> float:
    return round(100 * share, 2)
