"""Pages that need nothing else: templates, the look, and the geometry of charts as inline SVG.

All markup stands in `templates/`, where Jinja2 escapes what it is given; here is what goes into it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from jinja2 import ChoiceLoader, Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup

from fabrictwin.base.records import record
from fabrictwin.base.units import format_rate, format_size, format_time
from fabrictwin.kernel.jit.cache_folder import cache_folder

# nothing may be loaded, whatever the browser is asked for
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

COLOURS = ("--compute", "--dp", "--tp", "--better", "--optimizer", "--pp", "--ep", "--other")
BESIDE = "--ink"  # of a dashed line, which is about the others

_WIDE, _TALL = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 28, 12, 44

CLOSE = 1.25  # bars whose values differ by less are points on an axis of their own

Tile = tuple[str, str, str, str]  # name, value, unit, what stands below
Chart = dict[str, Any]


@record
class Series:
    """A line of a chart."""

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


def page_time(time_ps: float) -> str:
    """A time as pages have it: `1.3 µs`, `0`, `−2 ms`."""
    if time_ps < 0:
        return f"−{page_time(-time_ps)}"
    return format_time(round(time_ps)).replace(" us", " µs") if round(time_ps) else "0"


def page_percent(percent: float) -> str:
    """Percent with one digit after the point and a minus sign of its own."""
    return f"−{-percent:.1f}%" if round(percent, 1) < 0 else f"{abs(percent):.1f}%"


def _category(key: str) -> str:
    """The name of the colour of a part of the breakdown."""
    return key.removeprefix("exposed_")


class _TemplateCache(FileSystemBytecodeCache):
    """Compiled templates on disk; without room or a folder to keep them in pages come out all the same."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError):
            super().dump_bytecode(bucket)


@cache
def page_environment(*packages: str) -> Environment:
    """Templates of these packages, each with `templates` and `assets` beside its modules."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Compiling takes as long as a small page; entries are named by template and hold a digest of its source.
        bytecode_cache=_TemplateCache(str(cache_folder(f"templates/jinja-{jinja2.__version__}"))),
    )
    environment.filters |= {
        "time": page_time,
        "size": format_size,
        "rate": format_rate,
        "percent": page_percent,
        "category": _category,
    }

    def asset(name: str) -> Markup:
        places = (resources.files(package).joinpath("assets", name) for package in packages)
        text = next(place for place in places if place.is_file()).read_text(encoding="utf-8")
        return Markup(text)

    environment.globals["asset"] = asset
    return environment


def render(environment: Environment, template: str, **given: Any) -> str:
    """A page from its template."""
    return environment.get_template(template).render(policy=POLICY, **given)


def tile(name: str, value: str, under: str = "") -> Tile:
    """A figure of the row at the top: its name, its value with a unit, what stands below."""
    number, _, unit = value.partition(" ")
    return name, number, unit, under


Cell = str | tuple[str, float | None]


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> dict[str, Any]:
    """A table that sorts. A cell is text, or text with the number it is sorted by, which stands to the right."""

    def cell(given: Cell) -> tuple[str, str | None]:
        if isinstance(given, str):
            return given, None
        return given[0], "" if given[1] is None else f"{given[1]:.9g}"

    right = [any(isinstance(row[i], tuple) for row in rows) for i in range(len(heads))]
    return {"heads": list(zip(heads, right, strict=True)), "rows": [[cell(one) for one in row] for row in rows]}


def _ticks(low: float, high: float, *, logarithmic: bool) -> list[float]:
    if logarithmic:
        first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
        step = max(1, -(-(last - first) // 8))
        return [2.0**k for k in range(first, last + 1, step) if low <= 2.0**k <= high * 1.001]
    if high <= low:
        return [low]
    raw = (high - low) / 5
    power = 10 ** math.floor(math.log10(raw))
    step_size = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    start = math.ceil(low / step_size - 1e-9)
    return [k * step_size for k in range(start, math.floor(high / step_size + 1e-9) + 1)]


def _number(value: float) -> str:
    if value and abs(value) >= 10000:
        for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= factor:
                return f"{value / factor:.4g}{letter}"
    return f"{value:.4g}"


@record
class Axis:
    """What an axis shows."""

    label: str
    logarithmic: bool = False
    zero: bool = False  # starts at 0


def lines(series: Sequence[Series], x: Axis, y: Axis, *, label: str) -> Chart | None:
    """Geometry of a line chart; None without a point."""
    points = [point for one in series for point in one.points]
    if not points:
        return None
    across = _Scale.over([p[0] for p in points], x, _LEFT, _WIDE - _RIGHT)
    up = _Scale.over([p[1] for p in points], y, _TALL - _BOTTOM, _TOP, margin=True)
    solid = itertools.cycle(COLOURS)
    return _frame(label, x, y, across, up) | {
        "series": [
            {
                "name": one.name,
                "colour": BESIDE if one.dashed else next(solid),
                "dashed": one.dashed,
                "points": [
                    (across.at(px), up.at(py), f"{one.name}: {_number(px)}, {py:.6g}") for px, py in one.points
                ],
            }
            for one in series
        ]
    }


def histogram(edges: Sequence[float], counts: Sequence[int], x: Axis, *, of: str, label: str) -> Chart | None:
    """Geometry of bars of how often `of` was there; None where all values are one."""
    if edges[-1] <= edges[0]:
        return None
    across = _Scale(edges[0], edges[-1], _LEFT, _WIDE - _RIGHT)
    up = _Scale(0.0, float(max(1, *counts)), _TALL - _BOTTOM, _TOP)
    return _frame(label, x, Axis(of), across, up) | {
        "bars": [
            {
                "x": across.at(left),
                "y": up.at(count),
                "wide": max(across.at(right) - across.at(left) - 1, 0.5),
                "tall": up.at(0) - up.at(count),
                "said": f"{left:.6g} to {right:.6g}: {count}",
            }
            for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True)
        ]
    }


def bars(rows: Sequence[tuple[str, float, str]], *, label: str) -> Chart:
    """Bars from 0: name, value, what to print. Values that are close become points on an axis of their own."""
    values = [abs(value) for _, value, _ in rows]
    least, most = min(values, default=0.0), max(values, default=0.0)
    close = len(rows) > 1 and 0 < least < most < CLOSE * least
    low = least if close else 0.0
    wide = most - low or 1.0

    def said(value: float) -> str:
        return next(text for _, one, text in rows if abs(one) == value)

    return {
        "label": label,
        "close": close,
        "low": said(least) if rows else "",
        "high": said(most) if rows else "",
        "spread": f"{100 * (most / least - 1):.2g}%" if close else "",
        "rows": [
            {"name": name, "percent": 100 * (abs(value) - low) / wide, "said": text} for name, value, text in rows
        ],
    }


@record
class _Scale:
    """From values to places on an axis."""

    low: float
    high: float
    first: float
    last: float
    logarithmic: bool = False

    @staticmethod
    def over(values: Sequence[float], axis: Axis, first: float, last: float, *, margin: bool = False) -> _Scale:
        """Return a scale on which all values have a place."""
        low, high = (0.0 if axis.zero else min(values)), max(values)
        if margin and high == low:
            low, high = low - abs(low) * 0.05 - 1e-9, high + abs(high) * 0.05 + 1e-9
        if margin and not axis.zero and not axis.logarithmic:
            beside = (high - low) * 0.06
            low, high = low - beside, high + beside
        return _Scale(low, high, first, last, axis.logarithmic)

    def at(self, value: float) -> float:
        """Return the place of a value; the middle where all values are one."""
        low, high = self.low, self.high
        if self.logarithmic:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.first + share * (self.last - self.first)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and names of marks."""
        return [(self.at(t), _number(t)) for t in _ticks(self.low, self.high, logarithmic=self.logarithmic)]


def _frame(label: str, x: Axis, y: Axis, across: _Scale, up: _Scale) -> Chart:
    return {
        "label": label,
        "wide": _WIDE,
        "tall": _TALL,
        "left": _LEFT,
        "right": _WIDE - _RIGHT,
        "top": _TOP,
        "bottom": _TALL - _BOTTOM,
        "x_label": x.label,
        "y_label": y.label,
        "x_ticks": across.ticks(),
        "y_ticks": up.ticks(),
    }
