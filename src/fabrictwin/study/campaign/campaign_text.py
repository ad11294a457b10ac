"""What a campaign study found, as text and as plain data."""

from __future__ import annotations

from typing import Any

from fabrictwin.base.units import format_money, format_size
from fabrictwin.study.campaign.campaign_run import PARTS
from fabrictwin.study.campaign.campaign_study import CampaignResult, shares
from fabrictwin.study.campaign.failure_rates import SECONDS_A_DAY

MEANING = {
    "training": "training",
    "replayed": "work done again",
    "checkpoints": "checkpoints",
    "detection": "until it is noticed",
    "waiting": "waiting for a host",
    "restarts": "restarts",
    "planned": "planned interruptions",
}
SHOWN = 12  # components in the table


def long_time(seconds: float) -> str:
    """Seconds as people write what lasts long: `3.09 h`, `54.2 d`."""
    for factor, unit in ((SECONDS_A_DAY, "d"), (3600.0, "h"), (60.0, "min")):
        if abs(seconds) >= 1.5 * factor:
            value = seconds / factor
            return f"{value:.3g} {unit}" if value < 100 else f"{value:,.1f} {unit}"
    return f"{seconds:.3g} s"


def gpu_hours(found: CampaignResult, seconds: float) -> float:
    """Return GPU-hours of the job in so many seconds."""
    return seconds / 3600 * found.gpus


def thousands(count: float) -> str:
    """`1416000` to `1.416 M`, `9120` to `9,120`."""
    return f"{count / 1e6:,.4g} M" if count >= 1e6 else f"{count:,.0f}"


def by_component(found: CampaignResult) -> list[tuple[str, float, float]]:
    """(title, mean failures, mean seconds lost) of each component, the costliest first."""
    rows = [(c.title, found.mean_failures(c.name), found.mean_of_component(c.name)) for c in found.components]
    return sorted(rows, key=lambda row: -row[2])


def text(found: CampaignResult, *, gpu_hour: float | None = None, currency: str = "USD") -> str:
    """For a terminal. `gpu_hour` is what a GPU costs an hour."""
    low, middle, high = found.percentiles(found.goodputs())
    walls = found.percentiles([ledger.wall_s for ledger in found.ledgers])
    failures = sum(found.mean_failures(c.name) for c in found.components if c.shows != "planned")
    saving = found.policy.saving
    named = found.campaign.failures + (" and rates of the spec" if found.campaign.rates else "")
    lines = [
        *found.heading.lines(),
        f"  step         {found.step_s:.4g} s, simulated at {found.heading.fidelity}",
        f"  trained      {found.tokens:.4g} tokens in {found.work_s / found.step_s:,.0f} steps",
        "",
        f"  time         {long_time(walls[1])} (p5 {long_time(walls[0])}, p95 {long_time(walls[2])}); "
        f"{long_time(found.work_s)} of it training",
        f"  goodput      {middle:.2%} (p5 {low:.2%}, p95 {high:.2%})",
        f"  failures     {failures:,.1f}, one every {long_time(found.between_failures_s)} ({named})",
        f"  checkpoint   {format_size(found.times.total_bytes)}, every {long_time(found.interval_s)} of training; "
        f"steps wait {long_time(saving.stall_s)}, it is safe {long_time(saving.write_s)} later",
        f"  intervals    best of those tried {long_time(_best(found))}, Young {long_time(found.young_s)}, "
        f"Daly {long_time(found.daly_s)}",
        "",
        _row("where the time goes", "time", "share", "GPU-hours", "cost" if gpu_hour is not None else ""),
    ]
    for name, seconds in shares(found):
        lines.append(_line(found, MEANING[name], seconds, gpu_hour, currency))
    lines += ["", _row("what fails", "times", "lost", "share", "")]
    rows = by_component(found)
    for title, times, seconds in rows[:SHOWN]:
        lines.append(_row(title, f"{times:,.1f}", long_time(seconds), f"{seconds / found.wall_s:.2%}", ""))
    if len(rows) > SHOWN:
        rest = rows[SHOWN:]
        seconds = sum(row[2] for row in rest)
        times = sum(row[1] for row in rest)
        lines.append(
            _row(f"{len(rest)} others", f"{times:,.1f}", long_time(seconds), f"{seconds / found.wall_s:.2%}", "")
        )
    lines += ["", _row("goodput where an input is", "half", "twice", "", "")]
    lines += [_row(one.name, f"{one.half:.2%}", f"{one.twice:.2%}", "", "") for one in found.turned]
    runs = len(found.ledgers)
    lines += ["", f"  {runs:,} campaign{'s' if runs != 1 else ''}, seed {found.heading.seed}"]
    if gpu_hour is None:
        lines.append("  no cost: hosts of this cluster have no price in the book (--prices)")
    if found.assumed:
        lines.append(f"  assumed, since the spec does not say: {', '.join(found.assumed)}")
    return "\n".join(lines) + "\n"


def _best(found: CampaignResult) -> float:
    return max(found.intervals, key=lambda one: one.goodput).seconds


def _row(*cells: str) -> str:
    return f"  {cells[0]:32}" + "".join(f"  {cell:>11}" for cell in cells[1:]).rstrip()


def _line(found: CampaignResult, name: str, seconds: float, gpu_hour: float | None, currency: str) -> str:
    hours = gpu_hours(found, seconds)
    money = "" if gpu_hour is None else format_money(hours * gpu_hour, currency)
    return _row(name, long_time(seconds), f"{seconds / found.wall_s:.2%}", f"{hours:,.0f}", money)


def data(found: CampaignResult, *, gpu_hour: float | None = None, currency: str = "USD") -> dict[str, Any]:
    """Plain data; units are in the keys, times are seconds, figures of many campaigns are means."""
    low, middle, high = found.percentiles(found.goodputs())
    walls = found.percentiles([ledger.wall_s for ledger in found.ledgers])
    saving = found.policy.saving
    return {
        **found.heading.data(),
        "runs": len(found.ledgers),
        "assumed": list(found.assumed),
        "gpus": found.gpus,
        "step_s": found.step_s,
        "tokens": found.tokens,
        "training_s": found.work_s,
        "time_s": {"mean": found.wall_s, "p5": walls[0], "p50": walls[1], "p95": walls[2]},
        "goodput": {"mean": found.mean_goodput, "p5": low, "p50": middle, "p95": high},
        "between_failures_s": found.between_failures_s,
        "checkpoint": {
            "kind": found.campaign.checkpoint.kind,
            "bytes": found.times.total_bytes,
            "bytes_a_gpu": found.times.gpu_bytes,
            "copy_s": found.times.copy_s,
            "network_s": found.times.network_s,
            "storage_write_s": found.times.storage_write_s,
            "drag_s": found.times.drag_s,
            "wait_s": saving.stall_s,
            "safe_after_s": saving.write_s,
            "read_s": saving.read_s,
            "interval_s": found.interval_s,
            "young_s": found.young_s,
            "daly_s": found.daly_s,
            "tried": [{"interval_s": one.seconds, "goodput": one.goodput} for one in found.intervals],
        },
        "parts": [
            {
                "part": name,
                "time_s": seconds,
                "share": seconds / found.wall_s,
                "gpu_hours": gpu_hours(found, seconds),
                "cost": None if gpu_hour is None else gpu_hours(found, seconds) * gpu_hour,
            }
            for name, seconds in shares(found)
        ],
        "components": [
            {
                "component": c.name,
                "title": c.title,
                "shows": c.shows,
                "replaces": c.replaces,
                "a_day": c.per_s * SECONDS_A_DAY,
                "failures": found.mean_failures(c.name),
                "lost_s": {part: _mean(found, part, c.name) for part in PARTS},
                "source": c.source,
            }
            for c in found.components
        ],
        "turned": [{"input": one.name, "half": one.half, "twice": one.twice} for one in found.turned],
        "campaigns": [
            {"time_s": one.wall_s, "training_s": one.work_s, "failures": sum(one.failures.values())}
            for one in found.ledgers
        ],
        "gpu_hour": gpu_hour,
        "currency": currency,
    }


def _mean(found: CampaignResult, part: str, name: str) -> float:
    return sum(ledger.spent[part].get(name, 0.0) for ledger in found.ledgers) / len(found.ledgers)
