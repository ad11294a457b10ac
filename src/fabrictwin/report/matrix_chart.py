"""Geometry of a matrix as inline SVG: one square a cell, darker where a link is busier."""

from __future__ import annotations

from typing import Any

from fabrictwin.report.utilisation_matrix import Matrix

# figures fit into a cell while there are no more columns than this
FIGURES_UP_TO = 16
LONGEST = 30
SCALES = (0.1, 0.2, 0.5)  # upper ends of the scale below 1: a link at 1% must not look busy


def _ceiling(value: float) -> float:
    """The least upper end of the scale that is not below `value`."""
    return next((step for step in SCALES if value <= step), 1.0)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def matrix_chart(matrix: Matrix) -> dict[str, Any]:
    """Places of the matrix's names and cells, for the template."""
    rows, columns = len(matrix.rows), len(matrix.columns)
    figures = columns <= FIGURES_UP_TO
    wide = 58 if figures else 22
    tall = 24 if rows <= 16 else 17
    names = [_short(name) for name in matrix.rows]
    heads = [_short(name) for name in matrix.columns]
    left = 14 + 7 * max(len(name) for name in names)
    # heads stand upright where they are too long for a column
    upright = max(len(head) for head in heads) * 7 > wide - 4
    top = 10 + (7 * max(len(head) for head in heads) if upright else 18)
    scale = _ceiling(float(matrix.greatest.max()))
    return {
        "title": matrix.title,
        "scale": f"{100 * scale:g}%",
        "wide": left + columns * wide + 2,
        "tall": top + rows * tall + 2,
        "upright": upright,
        "heads": [(left + c * wide + wide // 2, top - 6, head) for c, head in enumerate(heads)],
        "names": [(left - 8, top + r * tall + tall // 2 + 4, name) for r, name in enumerate(names)],
        "cells": [
            _cell(matrix, r, c, scale, figures)
            | {"x": left + c * wide, "y": top + r * tall, "wide": wide, "tall": tall}
            for r in range(rows)
            for c in range(columns)
            if matrix.links[r, c]
        ],
    }


def _cell(matrix: Matrix, r: int, c: int, scale: float, figures: bool) -> dict[str, Any]:
    greatest, mean, links = float(matrix.greatest[r, c]), float(matrix.mean[r, c]), int(matrix.links[r, c])
    return {
        "shade": 0.06 + 0.94 * min(1.0, greatest / scale),
        "said": f"{matrix.rows[r]} – {matrix.columns[c]}: greatest {100 * greatest:.1f}%, mean {100 * mean:.1f}%, "
        f"{links} directed link{'s' if links > 1 else ''}",
        "figure": f"{100 * greatest:.1f}" if figures else "",
    }
