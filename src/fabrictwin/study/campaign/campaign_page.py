"""What a campaign study found, as a page with plots."""

from __future__ import annotations

import numpy as np

from fabrictwin.base.units import format_money, format_size
from fabrictwin.report.page import Axis, Cell, Series, bars, histogram, lines, table, tile
from fabrictwin.study.campaign.campaign_study import CampaignResult, shares
from fabrictwin.study.campaign.campaign_text import MEANING, by_component, gpu_hours, long_time, thousands
from fabrictwin.study.campaign.failure_rates import SECONDS_A_DAY
from fabrictwin.study.study_page import study_page


def page(found: CampaignResult, *, gpu_hour: float | None = None, currency: str = "USD") -> str:
    """The page as text."""
    low, middle, high = found.percentiles(found.goodputs())
    lost_s = found.wall_s - found.work_s
    lost_hours = gpu_hours(found, lost_s)
    money = "" if gpu_hour is None else format_money(lost_hours * gpu_hour, currency)
    counts, edges = np.histogram([100 * goodput for goodput in found.goodputs()], bins=30)
    tried = Series("goodput", tuple((one.seconds / 60, 100 * one.goodput) for one in found.intervals))
    lost = [(name, seconds) for name, seconds in shares(found) if name != "training"]
    components, saving = by_component(found), found.policy.saving
    return study_page(
        "campaign.html.j2",
        name=found.heading.name,
        subject="campaign",
        finding="months of training",
        seed=found.heading.seed,
        found=found,
        tiles=[
            tile("Time to train", long_time(found.wall_s), f"{long_time(found.work_s)} of it training"),
            tile("Goodput", f"{middle:.1%}", f"p5 {low:.1%}, p95 {high:.1%}"),
            tile("One failure every", long_time(found.between_failures_s), found.campaign.failures),
            tile("Lost", f"{thousands(lost_hours)} GPU-h", money),
        ],
        checkpoint=(
            f"A checkpoint of {format_size(found.times.total_bytes)} every {long_time(found.interval_s)} "
            f"of training: steps wait {long_time(saving.stall_s)}, it is safe {long_time(saving.write_s)} later. "
            f"Young's interval is {long_time(found.young_s)}, Daly's {long_time(found.daly_s)}."
        ),
        lost=bars(
            [
                (MEANING[name], seconds, f"{long_time(seconds)}, {seconds / found.wall_s:.1%}")
                for name, seconds in lost
            ],
            label="time that is lost, by part",
        ),
        causes=bars(
            [
                (title, seconds, f"{times:,.1f} ×, {long_time(seconds)}")
                for title, times, seconds in components[:10]
            ],
            label="time that is lost, by what failed",
        ),
        goodputs=histogram(
            edges.tolist(), counts.tolist(), Axis("goodput, %"), of="campaigns", label="histogram of goodput"
        ),
        intervals=lines(
            [tried],
            Axis("minutes between checkpoints", logarithmic=True),
            Axis("goodput, %"),
            label="goodput by interval",
        ),
        rows=table(["what fails", "a day", "shows as", "times", "lost"], [_row(found, row) for row in components]),
        turned=table(
            ["goodput where an input is", "half", "twice"],
            [[one.name, (f"{one.half:.2%}", one.half), (f"{one.twice:.2%}", one.twice)] for one in found.turned],
        ),
        runs=f"{len(found.ledgers):,}",
    )


def _row(found: CampaignResult, row: tuple[str, float, float]) -> list[Cell]:
    title, times, seconds = row
    one = next(c for c in found.components if c.title == title)
    a_day = one.per_s * SECONDS_A_DAY
    return [
        title,
        (f"{a_day:.3g}", a_day),
        one.shows,
        (f"{times:,.1f}", times),
        (long_time(seconds), seconds),
    ]
