"""A sweep as one page: the response of any figure over any two keys, what failed and why, and the whole table."""

from __future__ import annotations

import json
from typing import Any

from fabrictwin.report.page import Cell, page_environment, render, table, tile
from fabrictwin.study.sweep.sweep import Swept
from fabrictwin.study.sweep.table_files import unit_of

ROWS = 2_000  # of the table; a browser labours with more, and the file has them all
REASONS = 12
FEWER_IS_BETTER = ("step_time_s", "mean_ttft_ms", "mean_tpot_ms", "memory_bytes")


def page(found: Swept) -> str:
    """The page as text."""
    columns = {found.names.get(name, name): values for name, values in found.columns().items()}
    keys, shown = [*found.names.values()], found.shown()
    figures = [name for name in columns if name not in keys and _is_figure(columns[name])]
    failures, total = found.failures, len(found.rows)
    best = _best(found, columns, figures, keys)
    return render(
        page_environment("fabrictwin.report", "fabrictwin.study"),
        "sweep.html.j2",
        title=f"{found.plan.name}: a sweep",
        footer=f"{total:,} points",
        styles=["report.css", "study.css"],
        scripts=["study.js", "sweep.js"],
        heading=f"{found.plan.name} over {listed(keys)}",
        tiles=[
            tile("Points", f"{total:,}", "every combination" if found.plan.complete else "drawn"),
            tile("Without an answer", f"{len(failures):,}", "" if failures else "all have one"),
            *best,
        ],
        data=json.dumps(
            {
                "keys": keys,
                "figures": [{"name": name, "unit": unit_of(name)} for name in figures],
                "columns": {name: columns[name] for name in (*keys, *figures)},
                "fewer": [name for name in FEWER_IS_BETTER if name in figures],
            },
            separators=(",", ":"),
        ).replace("<", "\\u003c"),
        failures=_failures(found),
        rows=table([*shown], _rows(shown)),
        more=total - ROWS,
    )


def listed(names: list[str]) -> str:
    """Names as a sentence has them: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _is_figure(values: list[Any]) -> bool:
    numbers = [value for value in values if value is not None]
    return bool(numbers) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in numbers)


def _best(found: Swept, columns: dict[str, list[Any]], figures: list[str], keys: list[str]) -> list[Any]:
    """Tiles of the least and the greatest of the first figure, with the values that gave them."""
    name = next((one for one in (*FEWER_IS_BETTER, *figures) if one in figures), None)
    if name is None:
        return []
    ranked = sorted((value, place) for place, value in enumerate(columns[name]) if value is not None)
    made = []
    for word, (value, place) in (("Least", ranked[0]), ("Greatest", ranked[-1])):
        at = ", ".join(f"{key} {columns[key][place]}" for key in keys)
        made.append(tile(f"{word} {name}", f"{value:.5g} {unit_of(name)}", at))
    return made


def _failures(found: Swept) -> list[str]:
    """Lines that say which points failed, those of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for point, why in found.failures:
        by_reason.setdefault(why, []).append(" ".join(point))
    lines = [
        f"{len(points):,} point{'s' if len(points) > 1 else ''} "
        f"({', '.join(points[:4])}{', ...' if len(points) > 4 else ''}): {why}"
        for why, points in sorted(by_reason.items(), key=lambda item: -len(item[1]))
    ]
    return lines[:REASONS] + ([f"{len(lines) - REASONS:,} more reasons"] if len(lines) > REASONS else [])


def _rows(columns: dict[str, list[Any]]) -> list[list[Cell]]:
    return [
        [_cell(value) for value in row]
        for row in zip(*(values[:ROWS] for values in columns.values()), strict=True)
    ]


def _cell(value: Any) -> Cell:
    if value is None:
        return "–", None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:.5g}", float(value)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
