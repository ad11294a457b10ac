"""`fabrictwin cost`: the bill of materials of a cluster, and what it and its job cost."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fabrictwin.cli.options import JSON, PRICES, YEARS


@click.command()
@click.argument(
    "spec",
    required=False,
    default="",
    metavar="SPEC",
    help="A spec file; - reads it from stdin. Without a job, only the cluster.",
)
@PRICES
@YEARS
@click.option("--sources", is_flag=True, help="Print the price book with its sources instead.")
@JSON
def cost(spec: str, prices: Path | None, years: float, sources: bool, as_json: bool) -> None:
    """Count hosts, switches and cables; what they cost to buy and run, and a token that is trained or served."""
    import json

    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.catalog.price_book import price_book
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.study.cost.cluster_cost import cost_data, cost_text, sources_text
    from fabrictwin.study.cost.priced import priced

    book = price_book(prices)
    if sources:
        click.echo(sources_text(book), nl=False)
        return
    if not spec:
        raise ConfigError("expected a spec file, or --sources", key="SPEC")
    with Progress() as progress:
        found = priced(load_spec(spec, sys.stdin), book, years=years, stage=progress.stage)
    click.echo(json.dumps(cost_data(found), indent=2) + "\n" if as_json else cost_text(found), nl=False)
