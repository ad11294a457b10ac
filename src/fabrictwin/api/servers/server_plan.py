"""Layouts of a server for an objective, from Python."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from fabrictwin.api.answers import PagedAnswer
from fabrictwin.api.tables import Table

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.cluster.spec.spec import Spec
    from fabrictwin.study.servers.server_plan import ServerPlan as FoundPlan
    from fabrictwin.study.servers.token_cost import Prices


class ServerObjective(TypedDict, total=False):
    """What is asked of a server, in the words of `fabrictwin plan`."""

    ttft: str | None  # most time to first token, such as "2s"
    tpot: str | None  # most time per output token, such as "50ms"
    rate: str | None  # requests a second, such as "20/s"; the benchmark's if left out
    within: float | None  # percent of the requests that are to meet both, 90 if left out


class ServerPlan(PagedAnswer):
    """Layouts of a server that meet an objective, fewest GPUs first; what comes nearest where none does."""

    def __init__(self, spec: Spec, detail: FoundPlan, prices: Prices, top: int) -> None:
        self.spec, self.detail, self._prices, self._top = spec, detail, prices, top

    @cached_property
    def data(self) -> dict[str, Any]:
        """Plain data, as `fabrictwin plan --json` prints it."""
        from fabrictwin.study.servers.plan_text import plan_data

        return plan_data(self.detail, self._prices)

    @cached_property
    def layouts(self) -> Table:
        """One row a layout that meets the objective: GPUs, latencies, tokens, money."""
        names = (
            "layout",
            "replicas",
            "gpus",
            "share_within",
            "ttft_ms",
            "tpot_ms",
            "tokens_per_s_per_gpu",
            "tokens_per_s_per_user",
            "per_million_tokens",
        )
        return Table.of_rows(names, [tuple(one[name] for name in names) for one in self.data["layouts"]])

    @property
    def best(self) -> Spec:
        """The spec with the layout of fewest GPUs. Raises ConfigError where none meets the objective."""
        from fabrictwin.study.servers.server_plan import best_spec

        return best_spec(self.spec, self.detail)

    def write_best(self, path: str | Path) -> Path:
        """Write the spec with the layout of fewest GPUs to a file and return it. Raises ConfigError."""
        from fabrictwin.study.servers.plan_text import write_best

        write_best(self.detail, self.spec, Path(path))
        return Path(path)

    def _page(self) -> str:
        from fabrictwin.serving.config.server import serving_section
        from fabrictwin.study.servers.plan_text import plan_page

        return plan_page(self.detail, self._prices, seed=serving_section(self.spec).benchmark.seed)

    def __repr__(self) -> str:
        best = self.detail.ranked[0].name if self.detail.ranked else "none meets it"
        return f"<ServerPlan {self.detail.name}: {len(self.detail.points)} runs, best {best}>"

    def __str__(self) -> str:
        from fabrictwin.study.servers.plan_text import plan_text

        return plan_text(self.detail, self._prices, top=self._top)

    def _repr_html_(self) -> str:
        return self.layouts._repr_html_()


def plan_server(
    spec: Spec, asked: ServerObjective, *, top: int, workers: int | str | None, stage: Stage
) -> ServerPlan:
    """Return the layouts of a server for an objective. Raises ConfigError."""
    from fabrictwin.catalog.price_book import price_book
    from fabrictwin.serving.config.server import serving_section
    from fabrictwin.study.servers.objective import Objective, parse_bound, parse_request_rate
    from fabrictwin.study.servers.server_plan import plan_server as search
    from fabrictwin.study.servers.token_cost import Prices

    given = asked.get("rate")
    rate = float(serving_section(spec).benchmark.request_rate) if given is None else parse_request_rate(given)
    if math.isinf(rate):
        raise spec.error("workload.serving.benchmark.request_rate", "got inf, expected --rate")
    bounds = (parse_bound(asked.get("ttft"), "--ttft"), parse_bound(asked.get("tpot"), "--tpot"))
    aim = Objective(rate, *bounds, (asked.get("within") or 90.0) / 100)
    found = search(spec, aim, workers=workers, stage=stage)
    return ServerPlan(spec, found, Prices.of(spec, price_book(None)), top)
