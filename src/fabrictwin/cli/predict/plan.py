"""`fabrictwin plan`: the fastest layouts of a job that fit."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path

import typer

app = typer.Typer()


class Fidelity(StrEnum):
    flow = "flow"
    analytic = "analytic"


@app.command()
def plan(
    spec: str = typer.Argument(
        ..., metavar="SPEC", help="A spec file; - reads it from stdin. Its own layout is only a start."
    ),
    top: int = typer.Option(10, min=1, max=100, metavar="N", help="Layouts to simulate and print."),
    fidelity: Fidelity = typer.Option(Fidelity.flow, help="How closely to simulate the best."),
    headroom: float = typer.Option(
        5.0, min=0.0, max=90.0, metavar="PERCENT", help="Percent of a GPU's memory to keep free."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    write: Path | None = typer.Option(None, metavar="FILE", help="Write the spec with the best layout."),
) -> None:
    """Search parallel sizes, micro-batches and recomputation for the fastest step that fits in memory."""
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.runs import layout_plan as planning

    given = load_spec(spec, sys.stdin)
    with Progress() as progress:
        found = planning.plan(
            given, top=top, fidelity=fidelity.value, stage=progress.stage, headroom=headroom / 100
        )
    if write is not None and found.ranked:
        planning.write_best(found, given, write)
    typer.echo(planning.plan_json(found) if as_json else planning.plan_text(found), nl=False)
