"""The validation of collectives as text for people and as plain data."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fabrictwin.base.records import record
from fabrictwin.base.units import format_size
from fabrictwin.catalog.error_ranges import REGIMES
from fabrictwin.validation.collective_series import Answer, Outcome, summary, worst
from fabrictwin.validation.collectives_fit import FITS


def as_data(outcomes: list[Outcome], fidelity: str, left_out: str) -> dict[str, Any]:
    """Everything, with six significant digits."""
    return {
        "schema": 1,
        "fidelity": fidelity,
        "left_out": left_out or None,
        "regimes": [
            {"regime": regime, "series": count, "median_absolute_error_percent": _percent(error)}
            for regime, (count, error) in summary(outcomes).items()
        ],
        "series": [
            {
                "series": o.name,
                "hardware": o.series.hardware,
                "source": o.series.source,
                "assumptions": list(o.series.assumptions),
                "median_absolute_error_percent": {
                    regime: None if (m := o.median_absolute(regime)) is None else _percent(m)
                    for regime, _, _ in REGIMES
                },
                "rows": [_row(a) for a in o.answers],
                "settings_beside_each_other": [asdict(pair) for pair in pairs(o)],
            }
            for o in outcomes
        ],
    }


def as_json(outcomes: list[Outcome], fidelity: str, left_out: str) -> str:
    return json.dumps(as_data(outcomes, fidelity, left_out), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _percent(share: float) -> float:
    return round(100 * share, 2)


def _row(answer: Answer) -> dict[str, Any]:
    point = answer.point
    return {
        "gpus": point.gpus,
        "size_bytes": point.size_bytes,
        "settings": point.settings,
        "published_us": point.time_us,
        "twin_us": float(f"{answer.time_us:.6g}"),
        "error_percent": _percent(answer.error),
        "choice": answer.choice,
    }


def as_text(outcomes: list[Outcome], fidelity: str, left_out: str, *, every: bool) -> str:
    """Errors by regime and series, the worst series, where algorithms change; every size where asked."""
    lines = [f"collectives, published and on the twin ({fidelity})"]
    if left_out:
        own = {o.name for o in outcomes if o.series.hardware == left_out}
        fitted = any(not own.isdisjoint(one.series) for one in FITS)
        how = "figures were fitted to all other hardware" if fitted else "it never was"
        lines.append(f"  nothing fitted to {left_out}: {how}")
    lines += ["  error: the twin's time over the published one, less one", "", "  median over series"]
    for regime, (count, error) in summary(outcomes).items():
        named = ", ".join(f"{o.name} {o.median_absolute(regime):.0%}" for o in worst(outcomes, regime)[:3])
        lines.append(f"    {regime:<17} {error:6.1%} of {count:2d} series; worst: {named}")
    width = max(len(o.name) for o in outcomes)
    heads = "  ".join(f"{regime:>17}" for regime, _, _ in REGIMES)
    lines += ["", f"  {'median |error| of a series':<{width + 10}}{heads}"]
    for o in outcomes:
        cells = [
            f"{m:17.1%}" if (m := o.median_absolute(regime)) is not None else f"{'':17}"
            for regime, _, _ in REGIMES
        ]
        lines.append(f"    {o.name:<{width}}  {o.series.hardware:<6}{'  '.join(cells)}".rstrip())
    lines += ["", "  where the twin's NCCL changes its choice"]
    for o in outcomes:
        changes = crossovers(o)
        if changes:
            lines.append(f"    {o.name:<{width}}  {changes}")
    beside = [line for o in outcomes for line in _beside(o)]
    if beside:
        lines += ["", "  settings beside each other: ratio of times, published and on the twin", *beside]
    if every:
        for o in outcomes:
            lines += ["", f"  {o.name}: {o.series.source}", *(f"    - {a}" for a in o.series.assumptions)]
            lines += [f"    {_line(a)}" for a in o.answers]
    return "\n".join(lines) + "\n"


def crossovers(outcome: Outcome) -> str:
    """`RING LL, TREE LL128 from 256 KiB, ...`: choices by size, of the series' first settings."""
    first = outcome.answers[0].point
    found: list[str] = []
    last = ""
    for answer in outcome.answers:
        way = answer.choice.rsplit(" ", 1)[0]
        if (answer.point.settings, answer.point.gpus) != (first.settings, first.gpus) or way == last:
            continue
        found.append(way if not last else f"{way} from {format_size(answer.point.size_bytes)}")
        last = way
    return ", ".join(found)


@record
class Pair:
    """Two settings of one size on as many GPUs; ratios of their times, the first over the second."""

    gpus: int
    size_bytes: int
    first: str
    second: str
    published: float
    twin: float


def pairs(outcome: Outcome) -> list[Pair]:
    """Pairs of rows of a series that was measured with a setting and without."""
    first: dict[tuple[int, int], Answer] = {}
    found = []
    for answer in outcome.answers:
        point = answer.point
        one = first.setdefault((point.gpus, point.size_bytes), answer)
        if one is not answer:
            published, twin = one.point.time_us / point.time_us, one.time_us / answer.time_us
            settings = one.point.settings or "NCCL's choice", point.settings or "NCCL's choice"
            found.append(Pair(point.gpus, point.size_bytes, *settings, published, twin))
    return found


def _beside(outcome: Outcome) -> list[str]:
    """`h200-nvls-stas: NCCL_NVLS_ENABLE=0 against NCCL's choice, 8 GiB: 5 GPUs 0.88 and 0.90, ...`"""
    lines: dict[str, list[str]] = {}
    for pair in pairs(outcome):
        head = f"    {outcome.name}: {pair.first} over {pair.second}, {format_size(pair.size_bytes)}:"
        lines.setdefault(head, []).append(f"{pair.gpus} GPUs {pair.published:.2f} and {pair.twin:.2f}")
    return [f"{head} {', '.join(cells)}" for head, cells in lines.items()]


def _line(answer: Answer) -> str:
    point = answer.point
    return (
        f"{point.gpus:5d} GPUs {point.size_bytes:12d} B  published {point.time_us:10.1f} us  "
        f"twin {answer.time_us:10.1f} us  {answer.error:+7.1%}  {answer.choice}"
        + (f"  {point.settings}" if point.settings else "")
    )
