"""`fabrictwin compare`: the same hosts and job on several fabrics."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fabrictwin.cli.completion import fabric_names
from fabrictwin.cli.options import JSON, PRICES, YEARS
from fabrictwin.cli.options import fidelity as fidelity_option

FIVE = "infiniband-ndr,roce-400g,roce-400g-lossy,spectrum-x-400g,tcp-100g"


@click.command()
@click.argument("spec", metavar="SPEC", help="A spec file; - reads it from stdin. Its own fabric does not matter.")
@click.option(
    "--fabrics",
    default=FIVE,
    metavar="NAME,NAME,...",
    shell_complete=fabric_names,
    show_default=FIVE.replace(",", ", "),
    help="Presets; `fabrictwin catalog list fabric`.",
)
@click.option(
    "--presets",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Presets of your own, or changes to the catalog's.",
)
@click.option(
    "--vary",
    multiple=True,
    metavar="KEY=V,V,...",
    help="Curves over a key of the spec; KEY+KEY=V:V,V:V changes two together. Repeat for more.",
)
@click.option(
    "--seeds", default="1,2", metavar="N,N,...", help="Of the cuts that are played packet by packet; '' skips."
)
@fidelity_option("flow", "analytic", help="Of the step; otherwise the spec's.")
@PRICES
@YEARS
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Write compare.json and compare.html here."
)
@JSON
def compare(
    spec: str,
    fabrics: str,
    presets: Path | None,
    vary: tuple[str, ...],
    seeds: str,
    fidelity: str | None,
    prices: Path | None,
    years: float,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare fabrics for this job, by how much and why: steps, bandwidth, loss, cost, in one table and page."""
    import json

    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.textfile import make_folder, write_text
    from fabrictwin.catalog.price_book import price_book
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.runs import execute
    from fabrictwin.study.compare import comparison as comparing
    from fabrictwin.study.compare.compare_page import page
    from fabrictwin.study.compare.compare_text import data, text
    from fabrictwin.study.compare.fabrics import own_presets
    from fabrictwin.study.compare.vary import curve_data, curve_text
    from fabrictwin.study.compare.vary import parse as parse_vary
    from fabrictwin.study.compare.vary import vary as draw

    read = execute.with_overrides(load_spec(spec, sys.stdin), fidelity=fidelity)
    names = [name.strip() for name in fabrics.split(",") if name.strip()]
    try:
        numbers = tuple(int(seed) for seed in seeds.split(",") if seed.strip())
    except ValueError:
        raise ConfigError(f"got {seeds!r}, expected whole numbers with commas between", key="--seeds") from None
    own = {} if presets is None else own_presets(presets)
    for one in vary:
        parse_vary(one)
    if out is not None:
        make_folder(out)  # before minutes of work, not after
    with Progress() as progress:
        found = comparing.compare(
            read, names, book=price_book(prices), own=own, seeds=numbers, years=years, stage=progress.stage
        )
        curves = tuple(draw(read, one, names, own, progress.stage) for one in vary)
    whole = {**data(found), "curves": [curve_data(curve) for curve in curves]}
    if out is not None:
        write_text(out / "compare.json", json.dumps(whole, indent=2) + "\n")
        write_text(out / "compare.html", page(found, curves))
    if as_json:
        click.echo(json.dumps(whole, indent=2))
        return
    click.echo("\n".join([text(found), *(curve_text(curve) for curve in curves)]), nl=False)
    if out is not None:
        click.echo(f"\n{out / 'compare.html'}")
