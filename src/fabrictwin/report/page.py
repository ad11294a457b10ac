"""Pages that need nothing else: the report's look, sortable tables, charts as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

from fabrictwin.report.report import POLICY

COLOURS = ("--compute", "--dp", "--tp", "--better", "--optimizer", "--pp", "--ep", "--other")

_WIDE, _TALL = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 12, 44


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


def _asset(room: str, name: str) -> str:
    return resources.files(f"fabrictwin.{room}").joinpath("assets", name).read_text(encoding="utf-8")


def document(title: str, body: str, footer: str) -> str:
    """A whole page around its body."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} · fabrictwin</title>\n"
        f"<style>\n{_asset('report', 'report.css')}{_asset('study', 'study.css')}</style>\n"
        f"</head>\n<body>\n<main>\n{body}\n<footer>fabrictwin · {escape(footer)}</footer>\n</main>\n"
        f"<script>\n{_asset('study', 'study.js')}</script>\n</body>\n</html>\n"
    )


def tiles(items: Sequence[tuple[str, str, str]]) -> str:
    """Figures in a row: name, value with its unit, what stands below."""
    cells = []
    for name, value, under in items:
        number, _, unit = value.partition(" ")
        below = f'<div class="under">{escape(under)}</div>' if under else ""
        cells.append(
            f"<div><dt>{escape(name)}</dt><dd>{escape(number)} <span>{escape(unit)}</span>{below}</dd></div>"
        )
    return f'<dl class="answer">{"".join(cells)}</dl>'


Cell = str | tuple[str, float | None]


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table that sorts. A cell is text, or text with the number it is sorted by, which stands to the right."""
    right = [any(isinstance(row[i], tuple) for row in rows) for i in range(len(heads))]
    head = "".join(
        f"<th{' class=n' if numeric else ''}>{escape(name)}</th>"
        for name, numeric in zip(heads, right, strict=True)
    )
    body = []
    for row in rows:
        cells = []
        for cell in row:
            if isinstance(cell, tuple):
                value = "" if cell[1] is None else f"{cell[1]:.9g}"
                cells.append(f'<td class="n" data-v="{value}">{escape(cell[0])}</td>')
            else:
                cells.append(f"<td>{escape(cell)}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll"><table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


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


@dataclass(frozen=True)
class Axis:
    """What an axis shows."""

    label: str
    logarithmic: bool = False
    zero: bool = False  # starts at 0


def lines(series: Sequence[Series], x: Axis, y: Axis, *, label: str) -> str:
    """A line chart with a legend."""
    points = [point for one in series for point in one.points]
    if not points:
        return ""
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    low_x, high_x = min(xs), max(xs)
    low_y, high_y = (0.0 if y.zero else min(ys)), max(ys)
    if high_y == low_y:
        low_y, high_y = low_y - abs(low_y) * 0.05 - 1e-9, high_y + abs(high_y) * 0.05 + 1e-9
    if not y.zero and not y.logarithmic:
        margin = (high_y - low_y) * 0.06
        low_y, high_y = low_y - margin, high_y + margin

    def place(value: float, low: float, high: float, axis: Axis) -> float:
        if axis.logarithmic:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return (value - low) / (high - low) if high > low else 0.5

    def at_x(value: float) -> float:
        return _LEFT + place(value, low_x, high_x, x) * (_WIDE - _LEFT - _RIGHT)

    def at_y(value: float) -> float:
        return _TALL - _BOTTOM - place(value, low_y, high_y, y) * (_TALL - _TOP - _BOTTOM)

    out = _frame(label)
    for tick in _ticks(low_y, high_y, logarithmic=y.logarithmic):
        out.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{at_y(tick):.1f}" y2="{at_y(tick):.1f}"/>'
            f'<text x="{_LEFT - 7}" y="{at_y(tick) + 4:.1f}" text-anchor="end">{_number(tick)}</text>'
        )
    for tick in _ticks(low_x, high_x, logarithmic=x.logarithmic):
        out.append(
            f'<text x="{at_x(tick):.1f}" y="{_TALL - _BOTTOM + 17}" text-anchor="middle">{_number(tick)}</text>'
        )
    for i, one in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{at_x(px):.1f},{at_y(py):.1f}" for px, py in one.points)
        dash = ' stroke-dasharray="5 4"' if one.dashed else ""
        out.append(f'<polyline class="mark" style="stroke:var({colour})"{dash} points="{path}"/>')
        for px, py in one.points:
            out.append(
                f'<circle cx="{at_x(px):.1f}" cy="{at_y(py):.1f}" r="3" style="fill:var({colour})">'
                f"<title>{escape(one.name)}: {_number(px)}, {py:.6g}</title></circle>"
            )
    return "".join([*out, _labels(x, y), "</svg>", _legend(series), "</div>"])


def histogram(edges: Sequence[float], counts: Sequence[int], x: Axis, *, label: str) -> str:
    """Bars of how often."""
    low, high, most = edges[0], edges[-1], max(1, *counts)
    if high <= low:
        return ""
    wide = (_WIDE - _LEFT - _RIGHT) / (high - low)
    out = _frame(label)
    for tick in _ticks(0, most, logarithmic=False):
        y = _TALL - _BOTTOM - tick / most * (_TALL - _TOP - _BOTTOM)
        out.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>'
        )
    for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
        tall = count / most * (_TALL - _TOP - _BOTTOM)
        out.append(
            f'<rect x="{_LEFT + (left - low) * wide:.1f}" y="{_TALL - _BOTTOM - tall:.1f}" '
            f'width="{max((right - left) * wide - 1, 0.5):.1f}" height="{tall:.1f}" style="fill:var(--compute)">'
            f"<title>{left:.6g} to {right:.6g}: {count}</title></rect>"
        )
    for tick in _ticks(low, high, logarithmic=False):
        at = _LEFT + (tick - low) * wide
        out.append(f'<text x="{at:.1f}" y="{_TALL - _BOTTOM + 17}" text-anchor="middle">{_number(tick)}</text>')
    return "".join([*out, _labels(x, Axis("steps")), "</svg></div>"])


def bars(rows: Sequence[tuple[str, float, str]], *, label: str) -> str:
    """Bars beside each other's names: name, value, what to print."""
    most = max((abs(value) for _, value, _ in rows), default=0.0) or 1.0
    tall = 26 * len(rows) + 8
    out = [f'<div class="chart bars"><svg viewBox="0 0 {_WIDE} {tall}" role="img" aria-label="{escape(label)}">']
    for i, (name, value, said) in enumerate(rows):
        y = 4 + 26 * i
        wide = max(abs(value) / most * (_WIDE - 290), 1)
        out.append(
            f'<text x="180" y="{y + 16}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="188" y="{y + 3}" width="{wide:.1f}" height="17" rx="3" style="fill:var(--compute)"/>'
            f'<text x="{196 + wide:.1f}" y="{y + 16}">{escape(said)}</text>'
        )
    return "".join([*out, "</svg></div>"])


def _frame(label: str) -> list[str]:
    return [f'<div class="chart"><svg viewBox="0 0 {_WIDE} {_TALL}" role="img" aria-label="{escape(label)}">']


def _labels(x: Axis, y: Axis) -> str:
    bottom = _TALL - _BOTTOM
    return (
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{bottom}" y2="{bottom}"/>'
        f'<text x="{(_LEFT + _WIDE - _RIGHT) / 2}" y="{_TALL - 6}" text-anchor="middle">{escape(x.label)}</text>'
        f'<text transform="translate(13 {(_TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    keys = "".join(
        f'<span><i class="key" style="background:var({COLOURS[i % len(COLOURS)]})"></i>{escape(one.name)}</span>'
        for i, one in enumerate(series)
    )
    return f'<div class="legend">{keys}</div>'
