"""The validation as text for people and as plain data."""

from __future__ import annotations

import json
from typing import Any

from fabrictwin.validation.published_data import Measurements
from fabrictwin.validation.training_judge import QUANTITIES, Group, Outcome, groups, pairs

WORST = 8


def as_data(data: Measurements, outcomes: list[Outcome], fidelity: str) -> dict[str, Any]:
    """Everything, with six significant digits."""
    return {
        "schema": 1,
        "fidelity": fidelity,
        "calibrated_from": [f"{o.case.row.set}: {o.case.row.row}" for o in outcomes if o.case.calibrates],
        "rows": [_row(data, o) for o in outcomes],
        "groups": [
            {
                "by": g.by,
                "name": g.name,
                "rows": g.rows,
                "median_absolute_error_percent": _percent(g.median_absolute),
                "nine_in_ten_within_percent": _percent(g.ninth_decile),
                "median_error_percent": _percent(g.median_signed),
                "worst_error_percent": _percent(g.worst),
            }
            for g in groups(outcomes)
        ],
        "scaling": [
            {
                "set": pair.fewer.case.row.set,
                "fewer": pair.fewer.case.row.row,
                "more": pair.more.case.row.row,
                "published_ratio": _round(pair.published),
                "predicted_ratio": _round(pair.predicted),
                "same_direction": pair.agrees,
            }
            for pair in pairs(outcomes)
        ],
    }


def as_json(data: Measurements, outcomes: list[Outcome], fidelity: str) -> str:
    return json.dumps(as_data(data, outcomes, fidelity), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def _percent(share: float) -> float:
    return round(100 * share, 2)


def _row(data: Measurements, outcome: Outcome) -> dict[str, Any]:
    row = outcome.case.row
    return {
        "set": row.set,
        "row": row.row,
        "source": data.texts.sets[row.set].source,
        "hardware": outcome.case.hardware,
        "framework": outcome.case.framework,
        "parallelism": outcome.case.parallelism,
        "gpus": row.gpus,
        "model": row.model,
        "quantity": row.quantity,
        "published": row.value,
        "predicted": None if outcome.predicted is None else _round(outcome.predicted),
        "error_percent": None if outcome.error is None else _percent(outcome.error),
        "status": outcome.status,
        "why": outcome.why,
        "assumptions": list(outcome.case.assumptions),
    }


def as_text(data: Measurements, outcomes: list[Outcome], fidelity: str, *, every: bool) -> str:
    """Errors by group, worst rows, what was left out and why; every row where asked."""
    done = sorted((o for o in outcomes if o.counts), key=lambda o: -abs(o.error or 0.0))
    fitted = [o for o in outcomes if o.case.calibrates and o.error is not None]
    lines = [
        f"training steps, published and predicted ({fidelity})",
        f"  {len(done)} of {len(outcomes)} rows predicted; {len(fitted)} were calibrated from and count in no "
        "error",
        "  error: predicted over published throughput, less one",
    ]
    if done:
        lines += ["", *_groups(groups(outcomes))]
        lines += ["", "  worst rows", *(f"    {outcome_line(o)}" for o in done[:WORST])]
    if fitted:
        lines += ["", "  calibrated from", *(f"    {outcome_line(o)}" for o in fitted)]
    scaled = pairs(outcomes)
    if scaled:
        right = sum(pair.agrees for pair in scaled)
        lines += ["", f"  scaling: {right} of {len(scaled)} pairs that differ in GPUs alone move the same way"]
        lines += [
            f"    {pair.fewer.case.row.set}: {pair.fewer.case.row.row} to {pair.more.case.row.row}: "
            f"published × {pair.published:.3f}, predicted × {pair.predicted:.3f}"
            for pair in scaled
            if every or not pair.agrees
        ]
    if every:
        lines += ["", "  every row", *(f"    {outcome_line(o)}" for o in outcomes if o.error is not None)]
    lines += _left_out(outcomes)
    lines += ["", "  assumptions, by publication"]
    shown = {o.case.row.set for o in outcomes}
    for name, found in data.texts.sets.items():
        if name not in shown:
            continue
        lines.append(f"    {name}: {found.source}")
        lines += [f"      - {assumption}" for assumption in found.assumptions]
    return "\n".join(lines) + "\n"


def _groups(found: list[Group]) -> list[str]:
    width = max(len(g.name) for g in found)
    lines, last = [f"    {'':<{width}}  rows  median |error|  9 in 10 within  median error"], ""
    for g in found:
        if g.by != last and g.by != "all":
            lines.append(f"  by {g.by}")
        last = g.by
        lines.append(
            f"    {g.name:<{width}}  {g.rows:4d}  {g.median_absolute:14.1%}  {g.ninth_decile:14.1%}  "
            f"{g.median_signed:+12.1%}"
        )
    return lines


def outcome_line(outcome: Outcome) -> str:
    """One row with its error."""
    row = outcome.case.row
    assert outcome.error is not None
    assert outcome.predicted is not None
    return (
        f"{outcome.error:+7.1%}  {row.set}: {row.row}: published {row.value:g}, "
        f"predicted {outcome.predicted:.4g} {QUANTITIES[row.quantity]}"
    )


def _left_out(outcomes: list[Outcome]) -> list[str]:
    """Rows without a prediction, those of one reason together."""
    lines: list[str] = []
    for status in ("not modelled yet", "settings not known", "refused"):
        reasons: dict[str, list[str]] = {}
        for o in outcomes:
            if o.status == status:
                reasons.setdefault(o.why, []).append(f"{o.case.row.set}: {o.case.row.row}")
        if reasons:
            lines += ["", f"  {status}: {sum(map(len, reasons.values()))} rows"]
        for why, rows in reasons.items():
            lines += [f"    {why}", *(f"      {row}" for row in rows)]
    return lines
