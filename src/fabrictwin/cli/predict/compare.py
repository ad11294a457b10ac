"""`fabrictwin compare`: the same hosts and job on several fabrics."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from fabrictwin.cli.completion import fabric_names
from fabrictwin.cli.options import JSON, file, repeated, show, study_terms
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
@file("--presets", help="Presets of your own, or changes to the catalog's.")
@repeated(
    "--vary",
    metavar="KEY=V,V,...",
    help="Curves over a key of the spec; KEY+KEY=V:V,V:V changes two together. Repeat for more.",
)
@click.option(
    "--seeds", default="1,2", metavar="N,N,...", help="Of the cuts that are played packet by packet; '' skips."
)
@fidelity_option("flow", "analytic", help="Of the step; otherwise the spec's.")
@study_terms
@file("--out", metavar="DIR", help="Write compare.json and compare.html here.")
@JSON
def compare(
    spec: str,
    fabrics: str,
    presets: Path | None,
    vary: tuple[str, ...],
    seeds: str,
    fidelity: str | None,
    terms: dict[str, Any],
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare fabrics for this job, by how much and why: steps, bandwidth, loss, cost, in one table and page;
    for a server its latencies, tokens a second and cost.
    """
    from fabrictwin.api.compare import compare as side_by_side
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.textfile import make_folder
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.runs import execute

    read = execute.with_overrides(load_spec(spec, sys.stdin), fidelity=fidelity)
    names = [name.strip() for name in fabrics.split(",") if name.strip()]
    try:
        numbers = tuple(int(seed) for seed in seeds.split(",") if seed.strip())
    except ValueError:
        raise ConfigError(f"got {seeds!r}, expected whole numbers with commas between", key="--seeds") from None
    if out is not None:
        make_folder(out)  # before minutes of work, not after
    with Progress() as progress:
        found = side_by_side(
            read,
            names,
            presets=presets,
            vary=vary,
            seeds=numbers,
            stage=progress.stage,
            **terms,
        )
    show(found, out, as_json=as_json)
    if out is not None and not as_json:
        click.echo(f"\n{out / 'compare.html'}")
