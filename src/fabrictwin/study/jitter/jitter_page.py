"""What a jitter study found, as a page with plots."""

from __future__ import annotations

from html import escape

import numpy as np

from fabrictwin.base.units import PS_PER_S, format_money, format_time
from fabrictwin.report.page import Axis, Series, bars, document, histogram, lines, table, tiles
from fabrictwin.study.jitter.jitter_study import Uneven
from fabrictwin.study.jitter.jitter_text import MEANING


def _time(ps: float) -> str:
    return format_time(round(ps)).replace(" us", " µs")


def page(found: Uneven, *, gpu_hour: float | None = None, currency: str = "USD") -> str:
    """The page as text."""
    here, clean = found.here, found.clean_ps
    money = (
        "" if gpu_hour is None else f"{format_money(found.lost_gpu_hours_a_month * gpu_hour, currency)} a month"
    )
    counts, edges = np.histogram(found.times / PS_PER_S, bins=40)
    sizes = [
        Series(name, tuple((row.gpus, getattr(row.steps, key) / PS_PER_S) for row in found.by_size))
        for name, key in (("p50", "p50"), ("p95", "p95"), ("p99", "p99"))
    ]
    even = Series("clean", tuple((row.gpus, clean / PS_PER_S) for row in found.by_size), dashed=True)
    levels = sorted({row.level for row in found.by_level})
    useful = [
        Series(
            f"{level:g}x",
            tuple((row.gpus, 100 * row.useful(clean) / row.gpus) for row in found.by_level if row.level == level),
        )
        for level in levels
    ]
    sure = (
        f"{len(found.times):,} steps, every unit sampled."
        if found.exact
        else f"{len(found.times):,} steps from {found.sampled_units:,} sampled units: what is rarer is not seen."
    )
    assumed = "<p>The figures are assumed: the spec has no section of its own.</p>" if found.assumed else ""
    body = "\n".join(
        [
            "<header>",
            f"<h1>{escape(found.name)}: what jitter costs</h1>",
            f'<p class="what">{escape(found.cluster_line)}</p><p class="what">{escape(found.layout_line)}</p>',
            tiles(
                [
                    ("Step, median", _time(here.p50), f"p95 {_time(here.p95)}, p99 {_time(here.p99)}"),
                    ("Clean step", _time(clean), f"simulated at {found.fidelity}"),
                    (
                        "Lost a step",
                        f"{found.lost_gpu_s:,.4g} GPU-s",
                        f"{100 * (1 - clean / here.mean):.2f}% of it",
                    ),
                    ("Lost a month", f"{found.lost_gpu_hours_a_month:,.4g} GPU-h", money),
                ]
            ),
            f"{assumed}<p class='soft small'>{sure}</p></header>",
            '<div class="two"><section><h2>How long steps take</h2>',
            histogram(edges.tolist(), counts.tolist(), Axis("step, s"), label="histogram of step times"),
            "</section><section><h2>Which source costs most</h2>",
            bars(
                [(MEANING[s.source], s.mean_ps, f"{_time(s.mean_ps)}, {s.share:.0%}") for s in found.sources],
                label="how much shorter the mean step is without each source",
            ),
            '<p class="soft small">How much shorter the mean step is without it. Sources hide behind each other: '
            "shares need not add up.</p>",
            "</section><section><h2>Step time by size</h2>",
            lines([*sizes, even], Axis("GPUs", logarithmic=True), Axis("step, s"), label="step time by GPUs"),
            "</section><section><h2>Useful GPUs by level of jitter</h2>",
            lines(useful, Axis("GPUs", logarithmic=True), Axis("useful GPUs, %"), label="useful GPUs by GPUs"),
            "</section></div>",
            "<h2>By size</h2>",
            table(
                ["GPUs", "mean", "p50", "p95", "p99", "lost", "useful GPUs"],
                [
                    [
                        (f"{row.gpus:,}", row.gpus),
                        (_time(row.steps.mean), row.steps.mean),
                        (_time(row.steps.p50), row.steps.p50),
                        (_time(row.steps.p95), row.steps.p95),
                        (_time(row.steps.p99), row.steps.p99),
                        (f"{1 - clean / row.steps.mean:.2%}", 1 - clean / row.steps.mean),
                        (f"{row.useful(clean):,.0f}", row.useful(clean)),
                    ]
                    for row in found.by_size
                ],
            ),
        ]
    )
    return document(f"{found.name}: jitter", body, f"seed {found.seed}")
