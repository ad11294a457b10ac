"""`fabrictwin compare`: the same hosts and job on several fabrics."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path

import typer

app = typer.Typer()

FIVE = "infiniband-ndr,roce-400g,roce-400g-lossy,spectrum-x-400g,tcp-100g"


class Fidelity(StrEnum):
    flow = "flow"
    analytic = "analytic"


@app.command()
def compare(
    spec: str = typer.Argument(
        ..., metavar="SPEC", help="A spec file; - reads it from stdin. Its own fabric does not matter."
    ),
    fabrics: str = typer.Option(
        FIVE,
        metavar="NAME,NAME,...",
        show_default=FIVE.replace(",", ", "),
        help="Presets; `fabrictwin catalog list fabric`.",
    ),
    presets: Path | None = typer.Option(
        None, metavar="FILE", help="Presets of your own, or changes to the catalog's."
    ),
    vary: list[str] = typer.Option(
        [],
        metavar="KEY=V,V,...",
        help="Curves over a key of the spec; KEY+KEY=V:V,V:V changes two together. Repeat for more.",
    ),
    seeds: str = typer.Option(
        "1,2", metavar="N,N,...", help="Of the cuts that are played packet by packet; '' skips."
    ),
    fidelity: Fidelity | None = typer.Option(None, help="Of the step; otherwise the spec's."),
    prices: Path | None = typer.Option(None, metavar="FILE", help="A price book of your own, over the catalog's."),
    years: float = typer.Option(4.0, min=0.1, max=30.0, metavar="YEARS", help="How long the equipment is used."),
    out: Path | None = typer.Option(None, metavar="DIR", help="Write compare.json and compare.html here."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Which fabric for this job, by how much and why: steps, bandwidth, loss, cost, in one table and one page."""
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

    read = execute.with_overrides(
        load_spec(spec, sys.stdin), fidelity=None if fidelity is None else fidelity.value
    )
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
        typer.echo(json.dumps(whole, indent=2))
        return
    typer.echo("\n".join([text(found), *(curve_text(curve) for curve in curves)]), nl=False)
    if out is not None:
        typer.echo(f"\n{out / 'compare.html'}")
