"""Held-out errors for people, as a page, and as plain data."""

from __future__ import annotations

import json
import shlex
from typing import Any

from fabrictwin.catalog.error_ranges import error_ranges
from fabrictwin.validation.held_out import DIMENSIONS, Freedom, HeldOut

RANGED = {"step": "steps", "collective": "collectives", "served": "served means"}
PAGE = """\
# Accuracy

What the twin's training steps are off by on what it was not shown: every row of the published set
([validation](validation.md) names the sources) is predicted with all rows like it left out, and every constant
that rests on one of them fitted to the rest. This page is made, in minutes, by
`fabrictwin validate accuracy{by} --write docs/accuracy.md`.

```text
{text}```

*Left out* names what is left out in turn; *refitted* how many of the groups hold a row that a constant rests on,
so that it was fitted again or lost its effect. *But for one row*: each row of a group calibrates the others in
turn, as `fabrictwin calibrate` would with its step time, which moves nothing where it is met within a tenth and
others by what a group has in common (from the errors of other groups: [calibrate](calibrate.md)); a row
counts once for each that calibrates it, a pair once for each calibration that both of its rows have. *Flipped* are
pairs in the wrong order: of rows that differ in GPUs alone, and of layouts of one model on the same GPUs in one
series and release. Errors are of throughput. What kernels are
off by on shapes that were held out stands in [kernels](kernels.md), collectives without a hardware in
[their validation](validation-collectives.md), servers in [theirs](serving-accuracy.md).

## Ranges

`run`, `plan`, `nccl-tests` and `serve` print the range that half and that nine in ten of like cases lie in,
from the errors of rows that were held out and never from the fit. Cases are alike by what is known of them
(steps on that GPU were compared; the software is one of those that were, or its `compute_share` was measured);
where both are, by whether they stay inside one host or rack; of collectives by size. Where the software is not
known they are steps of each framework with all others' shares; those with experts or state-space layers are no
part of them, because their constants rest on rows of Megatron-Bridge alone, and an answer says so. A range lies
around the prediction, as far to either side as half and nine tenths of rows are off, whichever way: the median
of a few machines says which ones were published, and a range that follows it misses the next one. It is wider
where few machines or releases are behind it, of steps as far as what is off is common to each of them; a case
outside of all that was compared says so. `--write-ranges src/fabrictwin/catalog/data/error_ranges.yaml` makes
the file that they stand in (most of an hour: collectives are fitted again without each machine's series and
each generation; `--only step` makes those of steps and keeps the others). The last table says how many held-out
rows lie in ranges that were made without them and all of their machine or release.
"""


def held_out_text(found: list[HeldOut], counted: Freedom) -> str:
    """Return a line for each way of leaving out."""
    width = max(len(one.by) for one in found)
    lines = [
        "training steps that were held out: error of throughput with everything fitted again",
        f"  {'left out':<{width}}  groups  refitted  rows  median  9 in 10  19 in 20    bias"
        "  GPUs flipped  layouts flipped",
    ]
    for one in found:
        flipped = [f"{wrong} of {count}" for count, wrong in (one.scaling, one.layouts)]
        lines.append(
            f"  {one.by:<{width}}  {one.groups or '-':>6}  {one.refitted if one.groups else '-':>8}"
            f"  {len(one.errors):4d}  "
            f"{one.quantile(0.5):6.1%}  {one.quantile(0.9):7.1%}  {one.quantile(0.95):8.1%}  {one.bias:+6.1%}  "
            f"{flipped[0]:>12}  {flipped[1]:>15}"
        )
    lines.append(
        f"  {counted.constants} constants were fitted to {counted.fitted_rows} rows;"
        f" {counted.judging_rows} others judge them;"
        f" {counted.shares} shares of GPUs and frameworks, with priors,"
        f" to the {counted.shared_rows} rows on which no constant acts, but those left out"
    )
    lines += ["", *_coverage_lines()]
    return "\n".join(lines) + "\n"


def _coverage_lines() -> list[str]:
    """Return how well the ranges that answers print cover rows that were held out of them."""
    lines = ["ranges that answers print, made without each row's group: held-out rows that lie in them"]
    for name, what in RANGED.items():
        for first, (rows, half, nine_tenths) in error_ranges(name).coverage.items():
            who = f"{what}, {first}"
            lines.append(
                f"  {who:<38}  {rows:4d} rows  {half:5.1%} in the half  {nine_tenths:5.1%} in nine in ten"
            )
    return lines


def held_out_page(found: list[HeldOut], counted: Freedom) -> str:
    """Return docs/accuracy.md."""
    dimensions = [one.by for one in found if one.by in DIMENSIONS]
    asked = dimensions if len(dimensions) < len(DIMENSIONS) else []
    by = "".join(f" --by {shlex.quote(one)}" for one in asked)
    return PAGE.format(text=held_out_text(found, counted), by=by)


def held_out_json(found: list[HeldOut], counted: Freedom) -> str:
    """Return errors in percent."""
    rows: list[dict[str, Any]] = [
        {
            "left_out": one.by,
            "groups": one.groups,
            "refitted": one.refitted,
            "rows": len(one.errors),
            "median_absolute_error_percent": round(100 * one.quantile(0.5), 2),
            "nine_in_ten_within_percent": round(100 * one.quantile(0.9), 2),
            "nineteen_in_twenty_within_percent": round(100 * one.quantile(0.95), 2),
            "median_error_percent": round(100 * one.bias, 2),
            "pairs_of_gpus": {"all": one.scaling[0], "flipped": one.scaling[1]},
            "pairs_of_layouts": {"all": one.layouts[0], "flipped": one.layouts[1]},
        }
        for one in found
    ]
    fitted = {
        "constants": counted.constants,
        "fitted_rows": counted.fitted_rows,
        "judging_rows": counted.judging_rows,
    }
    columns = ("rows", "half", "nine_tenths")
    ranges = {
        name: {first: dict(zip(columns, one, strict=True)) for first, one in error_ranges(name).coverage.items()}
        for name in RANGED
    }
    return json.dumps({"schema": 1, "held_out": rows, "fitted": fitted, "coverage": ranges}, indent=2) + "\n"
