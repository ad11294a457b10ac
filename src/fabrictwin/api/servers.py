"""Inference servers from Python: what a benchmark would print, layouts for an objective, fabrics side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from fabrictwin.api.answers import Answer, PagedAnswer
from fabrictwin.api.specs import Source, load
from fabrictwin.api.tables import Table
from fabrictwin.base.progress import silent

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.catalog import FabricPreset
    from fabrictwin.catalog.price_book import PriceBook
    from fabrictwin.cluster.spec.spec import Spec
    from fabrictwin.serving.predict import Prediction
    from fabrictwin.study.servers.fabrics import ServerComparison as FoundFabrics
    from fabrictwin.study.servers.server_plan import ServerPlan as FoundPlan
    from fabrictwin.study.servers.token_cost import Prices


def is_server(spec: Spec) -> bool:
    """Return if a spec's workload is an inference server."""
    return "serving" in spec.workload


class ServerRun(PagedAnswer):
    """A server under its benchmark."""

    def __init__(self, spec: Spec, detail: Prediction, stage: Stage = silent) -> None:
        self.spec, self.detail, self._stage = spec, detail, stage

    @cached_property
    def data(self) -> dict[str, Any]:
        """Plain data, as `fabrictwin serve --json` prints it: the fields of `vllm bench serve`, and ranges."""
        from fabrictwin.serving.report.server import served_ranges, without_details

        ranges = {key: one.data() for key, one in served_ranges(self.detail).items()}
        return {**without_details(self.detail.fields), "error_ranges": ranges}

    @cached_property
    def requests(self) -> Table:
        """One row a request: tokens, where it went, what was cached, its latencies in seconds."""
        from fabrictwin.serving.report.bench import requests_columns

        return Table(requests_columns(self.detail.served))

    @cached_property
    def steps(self) -> Table:
        """One row a step of every engine: when it ran, what was in it, what it left; times in picoseconds."""
        from fabrictwin.serving.engine.replica import STEP_FIELDS

        rows = [(engine, *row) for engine, one in enumerate(self.detail.replicas) for row in one.steps.tolist()]
        return Table.of_rows(("engine", *STEP_FIELDS), rows)

    def _page(self) -> str:
        from fabrictwin.catalog.price_book import price_book
        from fabrictwin.study.servers.gains import as_it_is, gains
        from fabrictwin.study.servers.server_page import server_page
        from fabrictwin.study.servers.token_cost import Prices

        found = self.detail
        cost = Prices.of(self.spec, price_book(None)).token(
            gpus=found.gpus, tokens_per_s=float(found.fields["output_throughput"])
        )
        changes = gains(self.spec, found, self._stage)
        before = as_it_is(found)
        return server_page(found, name=self.spec.name, seed=found.seed, cost=cost, before=before, gains=changes)

    def __repr__(self) -> str:
        fields = self.detail.fields
        means = f"TTFT {fields['mean_ttft_ms']:.4g} ms, TPOT {fields['mean_tpot_ms']:.4g} ms"
        return f"<ServerRun {self.spec.name}: {means}, {fields['output_throughput']:,.0f} tokens/s>"

    def __str__(self) -> str:
        from fabrictwin.serving.report.bench import table
        from fabrictwin.serving.report.server import headline, range_lines

        found = self.detail
        return "\n".join([*headline(found), table(found.fields, found.settings), *range_lines(found), ""])

    def _repr_html_(self) -> str:
        return self.requests._repr_html_()


def serve(spec: Source, *, seed: int | None = None, stage: Stage | None = None) -> ServerRun:
    """Run a spec's server under its benchmark, of another seed if one is given.

    `stage` is told how a page proceeds. Raises ConfigError for what is wrong or refused, SimulatedError where a
    request can never be scheduled.
    """
    from fabrictwin.serving.predict import predict

    given = load(spec)
    return ServerRun(given, predict(given, seed=seed), stage or silent)


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


class ServerComparison(Answer):
    """A server on several fabrics, and a verdict in words."""

    def __init__(self, detail: FoundFabrics) -> None:
        self.detail = detail

    @cached_property
    def data(self) -> dict[str, Any]:
        """Plain data, as in compare.json; units are in the keys."""
        from fabrictwin.study.servers.fabrics import comparison_data

        return comparison_data(self.detail)

    @cached_property
    def fabrics(self) -> Table:
        """One row a fabric: latencies, tokens a second, the share between GPUs, money and energy of tokens."""
        names = {
            "name": "fabric",
            "mean_ttft_ms": "mean_ttft_ms",
            "mean_tpot_ms": "mean_tpot_ms",
            "p99_itl_ms": "p99_itl_ms",
            "output_throughput": "output_tokens_per_s",
            "share_between_gpus": "share_between_gpus",
            "per_million_tokens": "cost_per_million_tokens",
            "joules_per_token": "joules_per_token",
        }
        rows = [tuple(one.get(name) for name in names) for one in self.data["fabrics"]]
        return Table.of_rows(tuple(names.values()), rows)

    @property
    def best(self) -> str:
        """The fabric with the shortest time per output token."""
        return min(self.detail.fabrics, key=lambda one: float(one.fields["mean_tpot_ms"])).name

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        return str(self.data["verdict"])

    def save(self, folder: str | Path) -> Path:
        """Write compare.json and compare.html to a folder and return it. Raises ConfigError."""
        from fabrictwin.base.textfile import make_folder, write_text
        from fabrictwin.study.servers.fabrics import comparison_page

        path = Path(folder)
        make_folder(path)
        write_text(path / "compare.json", self.json())
        write_text(path / "compare.html", comparison_page(self.detail))
        return path

    def __repr__(self) -> str:
        each = ", ".join(f"{one.name} {one.fields['mean_tpot_ms']:.4g} ms" for one in self.detail.fabrics)
        return f"<ServerComparison {self.detail.name}: TPOT {each}>"

    def __str__(self) -> str:
        from fabrictwin.study.servers.fabrics import comparison_text

        return comparison_text(self.detail)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self.verdict)}</p>{self.fabrics._repr_html_()}"


def compare_server(
    spec: Spec,
    names: Sequence[str],
    *,
    book: PriceBook,
    own: Mapping[str, FabricPreset],
    years: float,
    stage: Stage,
) -> ServerComparison:
    """Return a server on each fabric. Raises ConfigError."""
    from fabrictwin.study.servers.fabrics import compare_server as play

    return ServerComparison(play(spec, names, book=book, own=own, years=years, stage=stage))
