"""Months of a training run, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabrictwin.api.answers import PagedAnswer
from fabrictwin.api.specs import Source, load
from fabrictwin.api.tables import Table
from fabrictwin.base.progress import silent

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.catalog.price_book import PriceBook
    from fabrictwin.cluster.spec.spec import Spec
    from fabrictwin.study.campaign.campaign_study import CampaignResult


class CampaignStudy(PagedAnswer):
    """Time to train and goodput of a run over its failures, and what is lost to what."""

    def __init__(
        self,
        detail: CampaignResult,
        gpu_hour: float | None,
        currency: str,
        on: dict[str, CampaignStudy] | None = None,
    ) -> None:
        self.detail, self.gpu_hour, self.currency = detail, gpu_hour, currency
        self.on = on or {}  # the same hosts and job on other fabrics, by the preset's name

    @property
    def goodput(self) -> float:
        """Mean share of the time that trains."""
        return self.detail.mean_goodput

    @cached_property
    def data(self) -> dict[str, Any]:
        """Plain data, as `fabrictwin campaign --json` prints it; units are in the keys."""
        from fabrictwin.study.campaign.campaign_text import data

        own = data(self.detail, gpu_hour=self.gpu_hour, currency=self.currency)
        return own | ({"fabrics": {name: study.data for name, study in self.on.items()}} if self.on else {})

    @cached_property
    def parts(self) -> Table:
        """One row a part of the time, training first: seconds, share, GPU-hours and what they cost."""
        rows = [
            (one["part"], one["time_s"], one["share"], one["gpu_hours"], one["cost"]) for one in self.data["parts"]
        ]
        return Table.of_rows(("part", "time_s", "share", "gpu_hours", "cost"), rows)

    @cached_property
    def components(self) -> Table:
        """One row a component: failures a day, failures in a campaign, seconds lost."""
        rows = [
            (one["component"], one["a_day"], one["failures"], sum(one["lost_s"].values()))
            for one in self.data["components"]
        ]
        return Table.of_rows(("component", "a_day", "failures", "lost_s"), rows)

    @cached_property
    def fabrics(self) -> Table:
        """One row a fabric that was asked for: step, time, goodput, tokens, and what a million tokens cost."""
        rows = []
        for name, study in self.on.items():
            found = study.detail
            hours = found.wall_s / 3600 * found.gpus
            cost = None if study.gpu_hour is None else hours * study.gpu_hour / found.tokens * 1e6
            rows.append((name, found.step_s, found.wall_s, found.mean_goodput, found.tokens, cost))
        heads = ("fabric", "step_s", "time_s", "goodput", "tokens", "cost_a_million_tokens")
        return Table.of_rows(heads, rows)

    def _page(self) -> str:
        from fabrictwin.study.campaign.campaign_page import page

        return page(self.detail, gpu_hour=self.gpu_hour, currency=self.currency)

    def __repr__(self) -> str:
        from fabrictwin.study.campaign.campaign_text import long_time

        found = self.detail
        return f"<CampaignStudy {found.heading.name}: {long_time(found.wall_s)}, goodput {found.mean_goodput:.1%}>"

    def __str__(self) -> str:
        from fabrictwin.study.campaign.campaign_text import text

        own = text(self.detail, gpu_hour=self.gpu_hour, currency=self.currency)
        return own + (f"\non other fabrics (money in {self.currency})\n{self.fabrics}\n" if self.on else "")

    def _repr_html_(self) -> str:
        tables = [self.parts, self.components, *([self.fabrics] if self.on else [])]
        return "".join(table._repr_html_() for table in tables)


def campaign(
    spec: Source,
    *,
    fabrics: Sequence[str] = (),
    prices: str | Path | None = None,
    years: float = 4.0,
    workers: int | str | None = 1,
    stage: Stage | None = None,
) -> CampaignStudy:
    """Play the months that the `campaign` section of a spec describes, through drawn failures.

    `fabrics` are presets of the catalog to put the same hosts and job on; `prices` is a price book over the
    catalog's, `years` how long equipment is used, `workers` processes, or the address of a Ray cluster. Raises
    ConfigError.
    """
    from fabrictwin.base.progress import part
    from fabrictwin.catalog.price_book import price_book
    from fabrictwin.study.compare.fabrics import preset, with_fabric

    read = load(spec)
    book = price_book(None if prices is None else Path(prices))
    presets = {name: preset(name, {}) for name in fabrics}  # wrong names before minutes of work
    share = 1 / (1 + len(presets))
    tell = stage or silent
    own = _study(read, book, years, workers, part(tell, 0.0, share))
    on = {
        name: _study(with_fabric(read, fabric), book, years, workers, part(tell, (i + 1) * share, (i + 2) * share))
        for i, (name, fabric) in enumerate(presets.items())
    }
    return CampaignStudy(own.detail, own.gpu_hour, own.currency, on)


def _study(spec: Spec, book: PriceBook, years: float, workers: int | str | None, stage: Stage) -> CampaignStudy:
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.study.campaign.campaign_study import study
    from fabrictwin.study.cost.bill_of_materials import bill_of_materials
    from fabrictwin.study.cost.cluster_cost import cost

    bill = bill_of_materials(build(spec.cluster, spec=spec), book)
    # hosts without a price are most of the cost: then there is none to tell
    priced = all(item.price is not None for item in bill.items if item.kind == "host")
    gpu_hour = cost(bill, book, years=years).gpu_hour if priced else None
    return CampaignStudy(study(spec, workers=workers, stage=stage), gpu_hour, book.currency)
