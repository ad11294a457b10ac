"""What unevenness costs a job, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabrictwin.api.answers import PagedAnswer
from fabrictwin.api.specs import Source, load
from fabrictwin.api.tables import Table
from fabrictwin.base.progress import silent
from fabrictwin.base.units import PS_PER_S, format_time

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.study.jitter.jitter_study import Uneven


class JitterStudy(PagedAnswer):
    """The distribution of a job's step, against its size and by source of unevenness."""

    def __init__(self, detail: Uneven, gpu_hour: float | None, currency: str) -> None:
        self.detail, self.gpu_hour, self.currency = detail, gpu_hour, currency

    @cached_property
    def data(self) -> dict[str, Any]:
        """Plain data, as `fabrictwin jitter --json` prints it; units are in the keys."""
        from fabrictwin.study.jitter.jitter_text import data

        return data(self.detail, gpu_hour=self.gpu_hour, currency=self.currency)

    @cached_property
    def sizes(self) -> Table:
        """One row a size of the job: the step's distribution, and GPUs that an even cluster would need."""
        clean = self.detail.clean_ps
        rows = [
            (
                row.gpus,
                row.steps.mean / PS_PER_S,
                row.steps.p50 / PS_PER_S,
                row.steps.p95 / PS_PER_S,
                row.steps.p99 / PS_PER_S,
                row.useful(clean),
            )
            for row in self.detail.curves.by_size
        ]
        return Table.of_rows(("gpus", "mean_s", "p50_s", "p95_s", "p99_s", "useful_gpus"), rows)

    @cached_property
    def sources(self) -> Table:
        """One row a source: how much shorter the mean step is without it, and its part of all that is lost."""
        rows = [(lost.source, lost.mean_ps / PS_PER_S, lost.share * 100) for lost in self.detail.curves.sources]
        return Table.of_rows(("source", "mean_s", "percent_of_lost"), rows)

    def _page(self) -> str:
        from fabrictwin.study.jitter.jitter_page import page

        return page(self.detail, gpu_hour=self.gpu_hour, currency=self.currency)

    def __repr__(self) -> str:
        here = self.detail.here
        return (
            f"<JitterStudy {self.detail.heading.name}: clean {format_time(self.detail.clean_ps)}, "
            f"p50 {format_time(round(here.p50))}, p99 {format_time(round(here.p99))}>"
        )

    def __str__(self) -> str:
        from fabrictwin.study.jitter.jitter_text import text

        return text(self.detail, gpu_hour=self.gpu_hour, currency=self.currency)

    def _repr_html_(self) -> str:
        return self.sizes._repr_html_() + self.sources._repr_html_()


def jitter(
    spec: Source,
    *,
    steps: int = 1000,
    gpus: Sequence[int] = (),
    levels: Sequence[float] = (0.5, 1, 2, 4),
    prices: str | Path | None = None,
    years: float = 4.0,
    workers: int | str | None = 1,
    stage: Stage | None = None,
) -> JitterStudy:
    """Sample a job's step under the `jitter` section of its spec.

    `steps` is how many to draw, `gpus` the sizes to show (by default powers of two), `levels` multiples of the
    jitter; `prices` is a price book over the catalog's, `years` how long equipment is used, `workers` processes
    that walk steps at once. Raises ConfigError.
    """
    from fabrictwin.catalog.price_book import price_book
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.study.cost.bill_of_materials import bill_of_materials
    from fabrictwin.study.cost.cluster_cost import cost
    from fabrictwin.study.jitter.jitter_study import study

    read = load(spec)
    book = price_book(None if prices is None else Path(prices))
    bill = bill_of_materials(build(read.cluster, spec=read), book)
    found = study(read, steps=steps, sizes=list(gpus), levels=list(levels), stage=stage or silent, workers=workers)
    # hosts are nearly all of what a GPU costs: without their price there is no figure, rather than a tenth of one
    priced = not any(item.kind == "host" and item.price is None for item in bill.items)
    return JitterStudy(found, cost(bill, book, years=years).gpu_hour if priced else None, book.currency)
