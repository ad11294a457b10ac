"""A server's plan as text, as plain data, as a page and as a spec."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from fabrictwin.base.textfile import write_text
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.report.page import Axis, Cell, Series, lines, table, tile
from fabrictwin.report.resolved_config import moved, spec_yaml
from fabrictwin.study.servers.server_plan import Point, ServerPlan, best_spec
from fabrictwin.study.servers.token_cost import Prices
from fabrictwin.study.study_page import study_page

HEADS = ("layout", "GPUs", "within", "TTFT", "TPOT", "tokens/s/GPU", "tokens/s/user", "a million tokens")


def _million(point: Point, prices: Prices) -> float:
    return prices.token(gpus=point.gpus, tokens_per_s=point.tokens_per_s).per_million


def _cells(point: Point, prices: Prices) -> list[tuple[str, float]]:
    """Return a point's figures but for its name, as text and number."""
    each, million = point.tokens_per_s / point.gpus, _million(point, prices)
    return [
        (str(point.gpus), point.gpus),
        (f"{point.met:.1%}", point.met),
        (f"{1000 * point.ttft_s:,.0f} ms", point.ttft_s),
        (f"{1000 * point.tpot_s:.1f} ms", point.tpot_s),
        (f"{each:,.1f}", each),
        (f"{point.user_tokens_per_s:.1f}", point.user_tokens_per_s),
        (f"{million:.3g} {prices.bill.currency}", million),
    ]


def _shown(found: ServerPlan, top: int) -> list[Point]:
    """Return the points to print: those that meet the objective, or else those that come nearest."""
    if found.ranked:
        return list(found.ranked[:top])
    aim = found.objective
    return sorted(found.points, key=lambda one: aim.excess(one.ttft_s, one.tpot_s))[: min(3, top)]


def plan_text(found: ServerPlan, prices: Prices, *, top: int = 10) -> str:
    """Return the plan for a terminal."""
    share = f"{found.objective.share:.0%}"
    head = f"{found.name}: {found.objective.text}"
    if found.ranked:
        best = found.ranked[0]
        said = f"fewest GPUs: {best.gpus} of {found.gpus}, {best.name}"
    else:
        said = f"no layout of {found.gpus} GPUs meets it; nearest:"
    rows = [list(HEADS), *([one.name, *(text for text, _ in _cells(one, prices))] for one in _shown(found, top))]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEADS))]
    body = [
        "  ".join(
            [
                f"  {row[0]:<{widths[0]}}",
                *(f"{cell:>{wide}}" for cell, wide in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
    foot = f"  TTFT and TPOT: what {share} of requests stay below; {len(found.points)} runs"
    return "\n".join([head, f"  {said}", "", *body, "", foot, ""])


def plan_data(found: ServerPlan, prices: Prices) -> dict[str, Any]:
    """Return the plan as plain data."""
    aim = found.objective

    def of(point: Point) -> dict[str, Any]:
        return {
            "layout": point.layout.name,
            "replicas": point.replicas,
            "gpus": point.gpus,
            "serving": point.layout.keys,
            "share_within": point.met,
            "ttft_ms": 1000 * point.ttft_s,
            "tpot_ms": 1000 * point.tpot_s,
            "tokens_per_s_per_gpu": point.tokens_per_s / point.gpus,
            "tokens_per_s_per_user": point.user_tokens_per_s,
            "per_million_tokens": _million(point, prices),
            "all_replicas_ran": point.whole,
        }

    bounds = {"ttft_ms": aim.ttft_s, "tpot_ms": aim.tpot_s}
    return {
        "schema": 1,
        "name": found.name,
        "gpus": found.gpus,
        "objective": {
            "request_rate": aim.rate,
            "share": aim.share,
            **{name: 1000 * bound for name, bound in bounds.items() if bound < float("inf")},
        },
        "currency": prices.bill.currency,
        "layouts": [of(point) for point in found.ranked],
        "frontier": [of(point) for point in found.frontier],
        "runs": [of(point) for point in found.points],
    }


def plan_page(found: ServerPlan, prices: Prices, *, seed: int) -> str:
    """Return the plan as a page: tokens a second and GPU over tokens a second and user."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for point in found.points:
        groups[_family(point)].append((point.user_tokens_per_s, point.tokens_per_s / point.gpus))
    series = [Series(name, tuple(sorted(points))) for name, points in sorted(groups.items())]
    frontier = tuple((one.user_tokens_per_s, one.tokens_per_s / one.gpus) for one in found.frontier)
    shown = _shown(found, len(found.points))
    best = shown[0]
    return study_page(
        "server_plan.html.j2",
        name=found.name,
        subject="layouts",
        finding="layouts of a server",
        seed=seed,
        objective=found.objective.text,
        met=bool(found.ranked),
        tiles=[
            tile("Fewest GPUs" if found.ranked else "Nearest", f"{best.gpus} GPUs", best.name),
            tile("Within the bounds", f"{best.met:.1%}", "of requests"),
            tile("TTFT", f"{1000 * best.ttft_s:,.0f} ms", f"{found.objective.share:.0%} stay below"),
            tile("TPOT", f"{1000 * best.tpot_s:.1f} ms", f"{found.objective.share:.0%} stay below"),
        ],
        chart=lines(
            [Series("frontier", frontier, dashed=True), *series],
            Axis("tokens a second and user"),
            Axis("tokens a second and GPU", zero=True),
            label="tokens a second and GPU over tokens a second and user",
        ),
        layouts=table(list(HEADS), [_row(one, prices) for one in shown]),
        runs=len(found.points),
    )


def _row(point: Point, prices: Prices) -> list[Cell]:
    return [point.name, *_cells(point, prices)]


def _family(point: Point) -> str:
    if "disaggregated" in point.layout.keys:
        return "prefill apart"
    return point.layout.name.partition(",")[0]


def write_best(found: ServerPlan, spec: Spec, path: Path) -> None:
    """Write the spec with the layout of fewest GPUs. Raises ConfigError."""
    write_text(path, spec_yaml(moved(best_spec(spec, found), path.parent)))
