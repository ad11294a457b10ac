"""A comparison as one page: the verdict, tables that sort, plots of steps, exposure, bandwidth and cost."""

from __future__ import annotations

from typing import Any

from fabrictwin.base.units import format_size
from fabrictwin.report.page import (
    Axis,
    Cell,
    Series,
    bars,
    lines,
    page_time,
    table,
    tile,
)
from fabrictwin.study.compare.compare_text import steps_ends
from fabrictwin.study.compare.comparison import Comparison, OnFabric
from fabrictwin.study.compare.curves import Curve, refusals
from fabrictwin.study.compare.measured_rows import measured_rows
from fabrictwin.study.compare.verdict import verdict
from fabrictwin.study.study_page import study_page


def page(found: Comparison, curves: tuple[Curve, ...] = ()) -> str:
    """The page as text."""
    said, best, cheap = verdict(found), found.best, found.cheapest
    currency = best.cost.bill.currency
    dearest = f"{cheap.per_million_tokens:.3g} {currency}" if cheap.per_million_tokens else "not known"
    exposed = {f.name: sum(f.exposed.values()) for f in found.fabrics}
    tokens = {f.name: f.per_million_tokens or 0.0 for f in found.fabrics}
    return study_page(
        "compare.html.j2",
        name=found.name,
        subject="fabrics",
        finding=f"{len(found.fabrics)} fabrics",
        seed=found.seed,
        layout=found.layout_line,
        tiles=[
            tile("Shortest step", page_time(best.steps.p50), best.name),
            tile("p95 of it", page_time(best.steps.p95), f"clean {page_time(best.clean_ps)}"),
            tile("Cheapest tokens", dearest, f"a million, {cheap.name}"),
            tile("GPUs", f"{found.gpus:,}", f"at {found.fidelity}"),
        ],
        said=said,
        steps=_steps(found),
        notes=steps_ends(found),
        costs=_costs(found),
        inputs=_inputs(found),
        medians=bars(
            [(f.name, f.steps.p50, page_time(f.steps.p50)) for f in found.fabrics], label="median step by fabric"
        ),
        exposures=bars(
            [(name, share, f"{share:.1%}") for name, share in exposed.items()],
            label="exposed communication by fabric",
        ),
        bandwidths=_bandwidths(found),
        tokens=bars(
            [(name, price, f"{price:.4g} {currency}") for name, price in tokens.items()],
            label="cost of a million tokens by fabric",
        ),
        cut=next((f.factors.cut for f in found.fabrics if f.factors is not None), ""),
        played=_played(found),
        curves=[_curve(curve) for curve in curves],
    )


def _bandwidths(found: Comparison) -> dict[str, Any] | None:
    return lines(
        [Series(f.name, tuple((k / 2**20, v) for k, v in sorted(f.busbw_gbps.items()))) for f in found.fabrics],
        Axis("MiB", logarithmic=True),
        Axis("bus bandwidth, GB/s", zero=True),
        label="all-reduce bus bandwidth by size",
    )


def _steps(found: Comparison) -> dict[str, Any]:
    def row(f: OnFabric) -> list[Cell]:
        exposed = sum(f.exposed.values())
        return [
            f.name,
            (page_time(f.steps.p50), f.steps.p50),
            (page_time(f.steps.p95), f.steps.p95),
            (page_time(f.steps.p99), f.steps.p99),
            ("" if f.mfu is None else f"{f.mfu:.1%}", f.mfu),
            ("" if f.tokens_per_s is None else f"{f.tokens_per_s:,.0f}", f.tokens_per_s),
            (f"{exposed:.1%}", exposed),
            (f"{f.busiest_use:.1%}", f.busiest_use),
        ]

    heads = ["fabric", "p50", "p95", "p99", "MFU", "tokens/s", "exposed", "busiest link"]
    return table(heads, [row(f) for f in found.fabrics])


def _costs(found: Comparison) -> dict[str, Any]:
    currency = found.best.cost.bill.currency
    sizes = sorted(found.fabrics[0].busbw_gbps)

    def row(f: OnFabric) -> list[Cell]:
        return [
            f.name,
            (f"{f.cost.network_purchase / 1e6:.4g} M", f.cost.network_purchase),
            (f"{f.per_million_tokens or 0:.4g}", f.per_million_tokens),
            (f"{f.cost.joules_per_token or 0:.4g}", f.cost.joules_per_token),
            *((f"{f.busbw_gbps[size]:.4g}", f.busbw_gbps[size]) for size in sizes),
            (page_time(f.latency_ps), f.latency_ps),
        ]

    heads = ["fabric", "network", f"{currency}/M tokens", "J/token"]
    heads += [*(f"busbw {format_size(size)}" for size in sizes), "empty message"]
    return table(heads, [row(f) for f in found.fabrics])


def _inputs(found: Comparison) -> dict[str, Any] | None:
    if len(found.fabrics) < 2:
        return None
    rows: list[list[Cell]] = [
        [
            name,
            ("half" if factor < 1 else "twice", factor),
            answer.fastest,
            answer.cheapest or "not known",
            ("" if answer.ahead is None else f"{answer.ahead:+.2%}", answer.ahead),
        ]
        for name, at in found.answers_at.items()
        for factor, answer in at.items()
    ]
    return table(["input", "at", "shortest step", "cheapest tokens", "next dearer by"], rows)


def _played(found: Comparison) -> dict[str, Any]:
    heads = ["fabric", "phase", "seed", "packet", "flow", "factor", "drops", "pauses", "ECN marks", "sent again"]
    rows: list[list[Cell]] = []
    for f in found.fabrics:
        if f.factors is None:
            rows.append([f.name, "not modelled", *[("", None)] * 8])
            continue
        for p, seeds in measured_rows(f.factors.played):
            rows.append(
                [
                    f.name,
                    p.phase,
                    (", ".join(map(str, seeds)), seeds[0]),
                    (page_time(p.packet_ps), p.packet_ps),
                    (page_time(p.flow_ps), p.flow_ps),
                    (f"{p.factor:.3f}", p.factor),
                    (f"{p.drops:,}", p.drops),
                    (f"{p.pauses:,}", p.pauses),
                    (f"{p.marks:,}", p.marks),
                    (f"{p.retransmitted:,}", p.retransmitted),
                ]
            )
    return table(heads, rows)


def _curve(curve: Curve) -> dict[str, Any]:
    rows: list[list[Cell]] = []
    for i, value in enumerate(curve.values):
        cells: list[Cell] = [(curve.labels[i], value)]
        for _, points in curve.series:
            found = dict(points).get(value)
            cells.append((f"{found:.4g} s", found) if found is not None else ("–", None))
        rows.append(cells)
    return {
        "key": curve.key,
        "chart": lines(
            [Series(name, points) for name, points in curve.series if points],
            Axis(curve.key, logarithmic=curve.logarithmic),
            Axis("step, s"),
            label=f"step by {curve.key}",
        ),
        "table": table([curve.key, *(name for name, _ in curve.series)], rows),
        "refused": refusals(curve),
    }
