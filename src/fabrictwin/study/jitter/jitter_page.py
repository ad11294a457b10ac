"""What a jitter study found, as a page with plots."""

from __future__ import annotations

import numpy as np

from fabrictwin.base.units import PS_PER_S, format_money
from fabrictwin.report.page import (
    Axis,
    Cell,
    Series,
    bars,
    histogram,
    lines,
    page_time,
    table,
    tile,
)
from fabrictwin.study.jitter.jitter_study import AtSize, Uneven
from fabrictwin.study.jitter.jitter_text import MEANING, steps_end
from fabrictwin.study.study_page import study_page


def page(found: Uneven, *, gpu_hour: float | None = None, currency: str = "USD") -> str:
    """The page as text."""
    here, clean = found.here, found.clean_ps
    money = (
        "" if gpu_hour is None else f"{format_money(found.lost_gpu_hours_a_month * gpu_hour, currency)} a month"
    )
    counts, edges = np.histogram(found.times / PS_PER_S, bins=40)
    sizes = [
        Series(name, tuple((row.gpus, getattr(row.steps, key) / PS_PER_S) for row in found.curves.by_size))
        for name, key in (("p50", "p50"), ("p95", "p95"), ("p99", "p99"))
    ]
    even = Series("clean", tuple((row.gpus, clean / PS_PER_S) for row in found.curves.by_size), dashed=True)
    levels = sorted({row.level for row in found.curves.by_level})
    useful = [
        Series(
            f"{level:g}x",
            tuple(
                (row.gpus, 100 * row.useful(clean) / row.gpus)
                for row in found.curves.by_level
                if row.level == level
            ),
        )
        for level in levels
    ]
    sure = (
        f"{len(found.times):,} steps, every unit sampled."
        if found.sampling.exact
        else f"{len(found.times):,} steps from {found.sampling.samples:,} sampled units: "
        "what is rarer is not seen."
    )
    return study_page(
        "jitter.html.j2",
        name=found.heading.name,
        subject="jitter",
        finding="what jitter costs",
        seed=found.heading.seed,
        found=found,
        tiles=[
            tile("Step, median", page_time(here.p50), f"p95 {page_time(here.p95)}, p99 {page_time(here.p99)}"),
            tile("Clean step", page_time(clean), f"simulated at {found.heading.fidelity}"),
            tile("Lost a step", f"{found.lost_gpu_s:,.4g} GPU-s", f"{100 * (1 - clean / here.mean):.2f}% of it"),
            tile("Lost a month", f"{found.lost_gpu_hours_a_month:,.4g} GPU-h", money),
        ],
        sure=sure,
        ends=steps_end(here),
        times=histogram(
            edges.tolist(), counts.tolist(), Axis("step, s"), of="steps", label="histogram of step times"
        ),
        sources=bars(
            [
                (MEANING[s.source], s.mean_ps, f"{page_time(s.mean_ps)}, {s.share:.0%}")
                for s in found.curves.sources
            ],
            label="how much shorter the mean step is without each source",
        ),
        sizes=lines([*sizes, even], Axis("GPUs", logarithmic=True), Axis("step, s"), label="step time by GPUs"),
        useful=lines(useful, Axis("GPUs", logarithmic=True), Axis("useful GPUs, %"), label="useful GPUs by GPUs"),
        rows=table(
            ["GPUs", "mean", "p50", "p95", "p99", "lost", "useful GPUs"],
            [_row(row, clean) for row in found.curves.by_size],
        ),
    )


def _row(row: AtSize, clean_ps: int) -> list[Cell]:
    steps = row.steps
    times: list[Cell] = [(page_time(ps), ps) for ps in (steps.mean, steps.p50, steps.p95, steps.p99)]
    lost, useful = 1 - clean_ps / steps.mean, row.useful(clean_ps)
    return [(f"{row.gpus:,}", row.gpus), *times, (f"{lost:.2%}", lost), (f"{useful:,.0f}", useful)]
