"""A matrix as inline SVG: one square a cell, darker where a link is busier."""

from __future__ import annotations

from html import escape

from fabrictwin.report.utilisation_matrix import Matrix

# figures fit into a cell while there are no more columns than this
FIGURES_UP_TO = 16
LONGEST = 30


def _ceiling(value: float) -> float:
    """The least of 1, 2, 5, 10, 20, 50, 100% that is not below `value`: the scale's upper end."""
    return next((step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if value <= step), 1.0)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def matrix_svg(matrix: Matrix) -> str:
    """The matrix with its heading and scale."""
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
    out = [
        f'<h3>{escape(matrix.title)} <span class="soft small" style="font-weight:400">&nbsp; 0'
        f'<span class="scale"></span>{100 * scale:g}%</span></h3>',
        f'<div class="matrix scroll"><svg width="{left + columns * wide + 2}" height="{top + rows * tall + 2}" '
        f'viewBox="0 0 {left + columns * wide + 2} {top + rows * tall + 2}" role="img" '
        f'aria-label="utilisation, {escape(matrix.title)}">',
    ]
    for c, head in enumerate(heads):
        x = left + c * wide + wide // 2
        if upright:
            out.append(f'<text transform="translate({x + 4} {top - 6}) rotate(-90)">{escape(head)}</text>')
        else:
            out.append(f'<text x="{x}" y="{top - 8}" text-anchor="middle">{escape(head)}</text>')
    for r, name in enumerate(names):
        y = top + r * tall
        out.append(f'<text x="{left - 8}" y="{y + tall // 2 + 4}" text-anchor="end">{escape(name)}</text>')
        for c in range(columns):
            if matrix.links[r, c]:
                out.append(_cell(matrix, r, c, (left + c * wide, y, wide, tall), scale, figures))
    out.append("</svg></div>")
    return "".join(out)


def _cell(matrix: Matrix, r: int, c: int, box: tuple[int, int, int, int], scale: float, figures: bool) -> str:
    x, y, wide, tall = box
    greatest, mean, links = float(matrix.greatest[r, c]), float(matrix.mean[r, c]), int(matrix.links[r, c])
    shade = 0.06 + 0.94 * min(1.0, greatest / scale)
    title = (
        f"{matrix.rows[r]} – {matrix.columns[c]}: greatest {100 * greatest:.1f}%, mean {100 * mean:.1f}%, "
        f"{links} directed link{'s' if links > 1 else ''}"
    )
    text = ""
    if figures:
        over = " over" if shade > 0.6 else ""
        text = (
            f'<text class="on{over}" x="{x + wide // 2}" y="{y + tall // 2 + 4}" text-anchor="middle">'
            f"{100 * greatest:.1f}</text>"
        )
    return (
        f'<g><title>{escape(title)}</title><rect x="{x}" y="{y}" width="{wide}" height="{tall}" rx="3" '
        f'style="fill:rgba(var(--heat),{shade:.3f})"/>{text}</g>'
    )
