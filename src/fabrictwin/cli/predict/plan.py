"""`fabrictwin plan`: the fastest layouts of a job that fit, or a server's with fewest GPUs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fabrictwin.cli.options import JSON, WORKERS, number, written
from fabrictwin.cli.options import fidelity as fidelity_option

if TYPE_CHECKING:
    from fabrictwin.cluster.spec.spec import Spec


@click.command()
@click.argument("spec", metavar="SPEC", help="A spec file; - reads it from stdin. Its own layout is only a start.")
@number("--top", least=1, most=100, default=10, help="Layouts to simulate and print.")
@fidelity_option("flow", "analytic", default="flow", help="How closely to simulate the best.")
@click.option(
    "--headroom",
    default=5.0,
    type=click.FloatRange(min=0.0, max=90.0),
    metavar="PERCENT",
    help="Percent of a GPU's memory to keep free.",
)
@click.option("--ttft", metavar="TIME", help="Of a server: most time to first token, such as 2s.")
@click.option("--tpot", metavar="TIME", help="Of a server: most time per output token, such as 50ms.")
@click.option("--rate", metavar="N/s", help="Of a server: requests a second; otherwise the benchmark's.")
@click.option(
    "--within",
    type=click.FloatRange(min=1.0, max=100.0),
    metavar="PERCENT",
    help="Of a server: requests that are to meet both.  [default: 90]",
)
@written("--page", help="Of a server: write a page, tokens a GPU over tokens a user.")
@WORKERS
@JSON
@written("--write", help="Write the spec with the best layout.")
def plan(
    spec: str,
    top: int,
    fidelity: str,
    headroom: float,
    workers: int,
    as_json: bool,
    write: Path | None,
    **asked: Any,
) -> None:
    """Search layouts: of training, sizes, micro-batches and recomputation for the fastest step that fits; of a
    server, the fewest GPUs that meet --ttft and --tpot at --rate.
    """
    from fabrictwin.api.plan import plan as search
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.spec.spec import load_spec

    given = load_spec(spec, sys.stdin)
    if "serving" in given.workload:
        _server(given, top, workers, as_json=as_json, write=write, **asked)
        return
    for name, value in asked.items():
        if value is not None:
            raise given.error("workload", f"got no server, for which --{name} is")
    with Progress() as progress:
        found = search(
            given, top=top, fidelity=fidelity, headroom=headroom / 100, workers=workers, stage=progress.stage
        )
    if write is not None and found.detail.ranked:
        found.write_best(write)
    click.echo(found.json() if as_json else str(found), nl=False)


def _server(
    spec: Spec,
    top: int,
    workers: int,
    *,
    as_json: bool,
    write: Path | None,
    ttft: str | None,
    tpot: str | None,
    rate: str | None,
    within: float | None,
    page: Path | None,
) -> None:
    """Print the layouts of a server that meet an objective; exit with 1 where none does."""
    import json
    import math

    from fabrictwin.base.progress import Progress
    from fabrictwin.base.textfile import write_text
    from fabrictwin.catalog.price_book import price_book
    from fabrictwin.serving.config.server import serving_section
    from fabrictwin.study.servers.objective import Objective, parse_bound, parse_request_rate
    from fabrictwin.study.servers.plan_text import plan_data, plan_page, plan_text, write_best
    from fabrictwin.study.servers.server_plan import plan_server
    from fabrictwin.study.servers.token_cost import Prices

    benchmark = serving_section(spec).benchmark
    asked = float(benchmark.request_rate) if rate is None else parse_request_rate(rate)
    if math.isinf(asked):
        raise spec.error("workload.serving.benchmark.request_rate", "got inf, expected --rate")
    aim = Objective(asked, parse_bound(ttft, "--ttft"), parse_bound(tpot, "--tpot"), (within or 90.0) / 100)
    with Progress() as progress:
        found = plan_server(spec, aim, workers=workers, stage=progress.stage)
    prices = Prices.of(spec, price_book(None))
    if page is not None:
        write_text(page, plan_page(found, prices, seed=benchmark.seed))
    if write is not None and found.ranked:
        write_best(found, spec, write)
    click.echo(
        json.dumps(plan_data(found, prices), indent=2) if as_json else plan_text(found, prices, top=top),
        nl=as_json,
    )
    if not found.ranked:
        sys.exit(1)
