"""What a jitter study found, as text and as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np

from fabrictwin.base.units import PS_PER_S, format_money, format_time
from fabrictwin.study.jitter.jitter_study import SECONDS_A_MONTH, AtSize, Steps, Uneven

MEANING = {
    "compute": "interruptions of compute",
    "clocks": "unequal GPUs",
    "network": "uneven communication",
    "second_job": "a second job's traffic",
    "bit_errors": "bit errors",
    "flap": "a flapping link",
    "drift": "drift of all GPUs alike",
    "late": "GPUs that begin late",
    "slow": "slow GPUs",
    "link": "a slow link",
}


def steps_end(steps: Steps) -> str:
    """Names of the percentiles that are the greatest step drawn; empty where none is."""
    ends = [name for name in ("p95", "p99") if getattr(steps, name) >= steps.greatest * (1 - 1e-5)]
    return " and ".join(ends)


def text(found: Uneven, *, gpu_hour: float | None = None, currency: str = "USD") -> str:
    """For a terminal. `gpu_hour` is what a GPU costs an hour."""
    here, clean = found.here, found.clean_ps
    share = here.mean / clean - 1
    lines = [
        *found.heading.lines(),
        f"  clean step   {format_time(clean)}, simulated at {found.heading.fidelity}; {found.sampling.units:,} "
        + (
            f"unit of {found.sampling.unit_gpus:,} GPUs"
            if found.sampling.units == 1
            else f"units of {found.sampling.unit_gpus:,} GPUs meet once a step"
        ),
        f"  jitter       {', '.join(MEANING[name] for name in found.jitter.names())}"
        + (": assumed figures, the spec has no section of its own" if found.assumed else ""),
        "",
        f"  step         mean {format_time(here.mean)} (+{share:.2%}), p5 {format_time(here.p5)}, "
        f"p50 {format_time(here.p50)}, p95 {format_time(here.p95)}, p99 {format_time(here.p99)}",
        f"  lost         {found.lost_gpu_s:,.4g} GPU-seconds a step, "
        f"{found.lost_gpu_hours_a_month:,.4g} GPU-hours a month"
        + (
            "; no price: the book has none of its hosts"
            if gpu_hour is None
            else f", {format_money(found.lost_gpu_hours_a_month * gpu_hour, currency)} a month"
            f" at {gpu_hour:.2f} {currency} a GPU-hour"
        ),
        "",
        "  which source costs most (mean step without it)",
    ]
    for lost in found.curves.sources:
        each = format_time(lost.mean_ps)
        lines.append(f"    {MEANING[lost.source]:24} {each:>9} a step, {lost.share:.1%} of what is lost")
    lines += ["", *_sizes(found.curves.by_size, clean), "", *_levels(found)]
    how = (
        f"{len(found.times):,} steps, every unit sampled"
        if found.sampling.exact
        else f"{len(found.times):,} steps from {found.sampling.samples:,} sampled units: "
        f"rarer than one in {found.sampling.samples:,} is not seen"
    )
    lines += ["", f"  {how}; seed {found.heading.seed}"]
    if ends := steps_end(here):
        lines.append(f"  {ends}: the greatest of the steps drawn; rarer ones may be longer")
    return "\n".join(lines) + "\n"


def _sizes(rows: tuple[AtSize, ...], clean: int) -> list[str]:
    lines = [f"  {'GPUs':>9}  {'mean':>9}  {'p50':>9}  {'p95':>9}  {'p99':>9}  {'lost':>7}  {'useful GPUs':>11}"]
    for row in rows:
        s = row.steps
        times = "".join(f"  {format_time(ps):>9}" for ps in (s.mean, s.p50, s.p95, s.p99))
        lines.append(f"  {row.gpus:>9,}{times}  {1 - clean / s.mean:>7.2%}  {row.useful(clean):>11,.0f}")
    return lines


def _levels(found: Uneven) -> list[str]:
    levels = sorted({row.level for row in found.curves.by_level})
    sizes = sorted({row.gpus for row in found.curves.by_level})
    cells = {(row.gpus, row.level): row.useful(found.clean_ps) for row in found.curves.by_level}
    lines = [
        "  useful GPUs by the level of jitter",
        f"  {'GPUs':>9}" + "".join(f"  {f'{level:g}x':>9}" for level in levels),
    ]
    lines += [f"  {gpus:>9,}" + "".join(f"  {cells[gpus, level]:>9,.0f}" for level in levels) for gpus in sizes]
    return lines


def _steps(s: Steps) -> dict[str, float]:
    names = ("mean", "p5", "p50", "p95", "p99", "greatest")
    return {f"{name}_s": float(f"{getattr(s, name) / PS_PER_S:.9g}") for name in names}


def data(found: Uneven, *, gpu_hour: float | None = None, currency: str = "USD") -> dict[str, Any]:
    """Plain data; units are in the keys."""
    counts, edges = np.histogram(found.times / PS_PER_S, bins=40)
    return {
        **found.heading.data(),
        "jitter": found.jitter.model_dump(mode="json", exclude_none=True),
        "assumed": found.assumed,
        "gpus": found.gpus,
        "units": found.sampling.units,
        "gpus_a_unit": found.sampling.unit_gpus,
        "sampled_units": found.sampling.samples,
        "every_unit_sampled": found.sampling.exact,
        "clean_step_s": found.clean_ps / PS_PER_S,
        "step": _steps(found.here),
        "histogram": {"edges_s": edges.tolist(), "steps": counts.tolist()},
        "lost_gpu_s_a_step": found.lost_gpu_s,
        "lost_gpu_hours_a_month": found.lost_gpu_hours_a_month,
        "gpu_hour": gpu_hour,
        "lost_a_month": None if gpu_hour is None else found.lost_gpu_hours_a_month * gpu_hour,
        "currency": currency,
        "month_s": SECONDS_A_MONTH,
        "sources": [
            {"source": lost.source, "mean_s": lost.mean_ps / PS_PER_S, "share_of_lost": lost.share}
            for lost in found.curves.sources
        ],
        "by_gpus": [_row(row, found.clean_ps) for row in found.curves.by_size],
        "by_level": [_row(row, found.clean_ps) for row in found.curves.by_level],
    }


def _row(row: AtSize, clean: int) -> dict[str, Any]:
    return {"gpus": row.gpus, "level": row.level, **_steps(row.steps), "useful_gpus": row.useful(clean)}
