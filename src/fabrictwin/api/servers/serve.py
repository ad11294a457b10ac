"""A server under its benchmark, from Python."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fabrictwin.api.answers import PagedAnswer
from fabrictwin.api.specs import Source, load
from fabrictwin.api.tables import Table
from fabrictwin.base.progress import silent

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.cluster.spec.spec import Spec
    from fabrictwin.serving.predict import Prediction


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
        fields = {**without_details(self.detail.fields), "error_ranges": ranges}
        if self.detail.neighbours:
            fields["neighbours"] = [asdict(one) for one in self.detail.neighbours]
        return fields

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
