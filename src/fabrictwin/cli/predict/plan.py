"""`fabrictwin plan`: the fastest layouts of a job that fit."""

from __future__ import annotations

import sys
from pathlib import Path

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
@WORKERS
@JSON
@written("--write", help="Write the spec with the best layout.")
def plan(
    spec: str, top: int, fidelity: str, headroom: float, workers: int, as_json: bool, write: Path | None
) -> None:
    """Search parallel sizes, micro-batches and recomputation for the fastest step that fits in memory."""
    from fabrictwin.api.plan import plan as search
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.spec.spec import load_spec

    given = load_spec(spec, sys.stdin)
    with Progress() as progress:
        found = search(
            given, top=top, fidelity=fidelity, headroom=headroom / 100, workers=workers, stage=progress.stage
        )
    if write is not None and found.detail.ranked:
        found.write_best(write)
    click.echo(found.json() if as_json else str(found), nl=False)
