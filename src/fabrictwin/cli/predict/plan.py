"""`fabrictwin plan`: the fastest layouts of a job that fit, or a server's with fewest GPUs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from fabrictwin.cli.options import JSON, WORKERS, number, written
from fabrictwin.cli.options import fidelity as fidelity_option


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
    from fabrictwin.api.servers.server_plan import ServerPlan
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.spec.spec import load_spec

    given = load_spec(spec, sys.stdin)
    page: Path | None = asked.pop("page")
    if page is not None and "serving" not in given.workload:
        raise given.error("workload", "got no server, for which --page is")
    with Progress() as progress:
        found = search(
            given,
            top=top,
            fidelity=fidelity,
            headroom=headroom / 100,
            workers=workers,
            stage=progress.stage,
            **asked,
        )
    if page is not None and isinstance(found, ServerPlan):
        found.save(page)
    if write is not None and found.detail.ranked:
        found.write_best(write)
    click.echo(found.json() if as_json else str(found), nl=False)
    if not found.detail.ranked:  # of a server; a job without one is an error
        sys.exit(1)
