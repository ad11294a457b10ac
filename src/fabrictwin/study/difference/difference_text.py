"""A difference in words: for a terminal, and as a page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fabrictwin.base.units import PS_PER_S, format_size, format_time
from fabrictwin.report.page import Cell, bars, page_environment, render, table, tile
from fabrictwin.study.difference.difference import Change, Difference, Figure, LinkChange

LINKS = 10  # of a terminal; the page has
LINKS_OF_PAGE = 200
LEAST_SHOWN = 5e-5  # of a link's time: less is 0.00 points


def value(name: str, figure: float | None) -> str:
    """A figure with its unit, by its name."""
    if figure is None:
        return "-"
    if name.endswith("_bytes"):
        return format_size(round(figure))
    if name in ("mfu", "hfu"):
        return f"{figure:.2%}"
    return seconds(figure) if name.endswith("_time_s") else f"{figure:,.6g}"


def seconds(figure: float | None) -> str:
    """A time in the unit that suits it."""
    return "-" if figure is None else format_time(round(figure * PS_PER_S))


def change(one: Figure) -> str:
    """The change in percent, with its sign."""
    if one.change is None:
        return "new" if one.before is None else "gone" if one.after is None else "-"
    return "same" if one.added == 0 else f"{one.change:+.2%}"


def verdict(found: Difference) -> str:
    """The difference in a sentence."""
    if found.same:
        return "both answer the same"
    step = next((one for one in found.waits if one.name == "step_time_s"), None)
    if step is None and found.waits:
        return ", ".join(f"{one.name} {change(one)}" for one in found.waits)
    if step is None or step.added == 0:
        return "the step takes the same time, and what happens in it differs"
    word = "longer" if step.added > 0 else "shorter"
    most = found.parts[0] if found.parts else None
    why = f", most of it {most.name} ({_signed(most.added)})" if most is not None and most.added else ""
    return f"the step is {abs(found.slower):.2%} {word} ({_signed(step.added)}){why}"


def _signed(figure: float) -> str:
    return ("+" if figure > 0 else "-") + seconds(abs(figure))


def _side(given: object) -> str:
    return "-" if given is None else str(given)


def text(found: Difference, links: int = LINKS) -> str:
    """The difference for a terminal."""
    lines = [f"A  {found.before.label}", f"B  {found.after.label}", "", verdict(found), ""]
    lines += _block("asked", [(one.name, _side(one.before), _side(one.after), "") for one in found.asked])
    lines += _block(
        "answer",
        [(o.name, value(o.name, o.before), value(o.name, o.after), change(o)) for o in found.answer if o.added],
    )
    lines += _block(
        "parts of the step",
        [
            (one.name, seconds(one.before), seconds(one.after), _signed(one.added))
            for one in found.parts
            if one.added
        ],
    )
    shown = seen_links(found)
    lines += _block(f"links, {len(shown):,} differ", [_link(one) for one in shown[:links]])
    if len(found.links) > len(shown):
        lines.append(_unseen(len(found.links) - len(shown)))
    return "\n".join(lines).rstrip() + "\n"


def seen_links(found: Difference) -> tuple[LinkChange, ...]:
    """Links whose difference is more than the figures shown would say as nothing."""
    return tuple(one for one in found.links if abs(one.added) >= LEAST_SHOWN)


def _unseen(count: int) -> str:
    links = "1 link differs" if count == 1 else f"{count:,} links differ"
    return f"{links} by less than {LEAST_SHOWN * 100:g} points"


def _link(one: LinkChange) -> tuple[str, str, str, str]:
    return (
        one.name,
        f"{one.before.utilisation:.2%}",
        f"{one.after.utilisation:.2%}",
        f"{one.added * 100:+.2f} points",
    )


def _block(head: str, rows: list[tuple[str, str, str, str]]) -> list[str]:
    if not rows:
        return []
    wide = [max(len(row[i]) for row in [*rows, (head, "A", "B", "")]) for i in range(4)]
    lines = [f"{head:<{wide[0]}}  {'A':>{wide[1]}}  {'B':>{wide[2]}}"]
    lines += [f"{a:<{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}  {d:>{wide[3]}}".rstrip() for a, b, c, d in rows]
    return [*lines, ""]


def page(found: Difference) -> str:
    """The difference as a page."""
    step = next(iter(found.waits), Figure("step_time_s", None, None))
    what = {"step_time_s": "Step", "mean_ttft_ms": "First token, ms,"}.get(step.name, step.name)
    grown = [one for one in found.parts if one.added]
    links = seen_links(found)
    unseen, more = len(found.links) - len(links), len(links) - LINKS_OF_PAGE
    return render(
        page_environment("fabrictwin.report", "fabrictwin.study"),
        "difference.html.j2",
        title=f"{found.before.label} and {found.after.label}",
        footer="two runs",
        styles=["report.css", "study.css"],
        scripts=["study.js"],
        found=found,
        tiles=[
            tile(f"{what} of A", value(step.name, step.before)),
            tile(f"{what} of B", value(step.name, step.after), change(step)),
            tile("Keys that differ", f"{len(found.asked):,}"),
            tile("Links that differ", f"{len(links):,}"),
        ],
        verdict=verdict(found),
        asked=table(["key", "A", "B"], [_asked(one) for one in found.asked]),
        answer=table(
            ["figure", "A", "B", "change"], [_figure(one, partial(value, one.name)) for one in found.answer]
        ),
        parts_of_step=table(["part", "A", "B", "change"], [_figure(one, seconds) for one in found.parts]),
        grown=bars([(p.name, abs(p.added), _signed(p.added)) for p in grown], label="change of each part"),
        links=table(["link", "A", "B", "change"], [_link_cells(one) for one in links[:LINKS_OF_PAGE]]),
        left_out=[f"{more:,} more differ"] * (more > 0) + [_unseen(unseen)] * (unseen > 0),
    )


def _asked(one: Change[Any]) -> list[Cell]:
    return [one.name, _side(one.before), _side(one.after)]


def _figure(one: Figure, said: Callable[[float | None], str]) -> list[Cell]:
    return [one.name, (said(one.before), one.before), (said(one.after), one.after), (change(one), one.change)]


def _link_cells(one: LinkChange) -> list[Cell]:
    name, before, after, grown = _link(one)
    return [name, (before, one.before.utilisation), (after, one.after.utilisation), (grown, one.added)]
