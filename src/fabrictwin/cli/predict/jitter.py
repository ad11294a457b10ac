"""`fabrictwin jitter`: what unevenness costs a job."""

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
def jitter(
    spec: str = typer.Argument(
        ..., metavar="SPEC", help="A spec file; - reads it from stdin. Its jitter section says what is uneven."
    ),
    steps: int = typer.Option(1000, min=10, max=1_000_000, metavar="N", help="Steps to draw."),
    gpus: str = typer.Option("", metavar="N,N,...", help="Sizes of the job to show; otherwise powers of two."),
    levels: str = typer.Option("0.5,1,2,4", metavar="X,X,...", help="Multiples of the jitter to show."),
    fidelity: Fidelity | None = typer.Option(None, help="Of the clean step; otherwise the spec's."),
    seed: int | None = typer.Option(None, metavar="N", help="The seed; otherwise the spec's."),
    prices: Path | None = typer.Option(None, metavar="FILE", help="A price book of your own, over the catalog's."),
    years: float = typer.Option(4.0, min=0.1, max=30.0, metavar="YEARS", help="How long the equipment is used."),
    out: Path | None = typer.Option(None, metavar="FILE", help="Write a page with plots."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """The distribution of a job's step, against its size and by source; what it costs."""
    import json

    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.textfile import write_text
    from fabrictwin.catalog.price_book import price_book
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.runs import execute
    from fabrictwin.study.cost.bill_of_materials import bill_of_materials
    from fabrictwin.study.cost.cluster_cost import cost
    from fabrictwin.study.jitter.jitter_page import page
    from fabrictwin.study.jitter.jitter_study import study
    from fabrictwin.study.jitter.jitter_text import data, text

    def numbers(given: str, key: str, example: str, least: float) -> list[float]:
        try:
            found = [float(part) for part in given.split(",") if part.strip()]
        except ValueError:
            found = [-1.0]
        if any(not least <= value <= 1e9 for value in found):
            raise ConfigError(f"got {given!r}, expected numbers with commas between, such as {example}", key=key)
        return found

    read = execute.with_overrides(
        load_spec(spec, sys.stdin), fidelity=None if fidelity is None else fidelity.value, seed=seed
    )
    book = price_book(prices)
    sizes = [int(value) for value in numbers(gpus, "--gpus", "256,1024", 1)]
    wanted = numbers(levels, "--levels", "0.5,1,2", 0)
    with Progress() as progress:
        bill = bill_of_materials(build(read.cluster, spec=read), book)
        gpu_hour = cost(bill, book, years=years).gpu_hour
        found = study(read, steps=steps, sizes=sizes, levels=wanted, stage=progress.stage)
    if out is not None:
        write_text(out, page(found, gpu_hour=gpu_hour, currency=book.currency))
    if as_json:
        typer.echo(json.dumps(data(found, gpu_hour=gpu_hour, currency=book.currency), indent=2))
    else:
        typer.echo(text(found, gpu_hour=gpu_hour, currency=book.currency), nl=False)
