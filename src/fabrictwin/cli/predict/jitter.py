"""`fabrictwin jitter`: what unevenness costs a job."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from fabrictwin.cli.options import JSON, number, seeded, show, study_terms, written
from fabrictwin.cli.options import fidelity as fidelity_option


@click.command()
@click.argument(
    "spec", metavar="SPEC", help="A spec file; - reads it from stdin. Its jitter section says what is uneven."
)
@number("--steps", least=10, most=1000000, default=1000, help="Steps to draw.")
@click.option("--gpus", default="", metavar="N,N,...", help="Sizes of the job to show; otherwise powers of two.")
@click.option("--levels", default="0.5,1,2,4", metavar="X,X,...", help="Multiples of the jitter to show.")
@fidelity_option("flow", "analytic", help="Of the clean step; otherwise the spec's.")
@seeded(help="The seed; otherwise the spec's.")
@click.option(
    "--fabrics", metavar="NAME,NAME,...", help="Measure each fabric's own delays packet by packet instead."
)
@number("--seeds", least=1, most=1000, help="With --fabrics: placements to play, 10 unless said.")
@study_terms
@written("--out", help="Write a page with plots.")
@JSON
def jitter(
    spec: str,
    steps: int,
    gpus: str,
    levels: str,
    fidelity: str | None,
    seed: int | None,
    fabrics: str | None,
    seeds: int | None,
    terms: dict[str, Any],
    out: Path | None,
    as_json: bool,
) -> None:
    """The distribution of a job's step, against its size and by source; what it costs.

    With --fabrics: the delays of collectives on each fabric beside another job, and what they make of a step.
    """
    from fabrictwin.api.jitter import jitter as study
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.runs import execute

    def numbers(given: str, key: str, example: str, least: float) -> list[float]:
        try:
            found = [float(part) for part in given.split(",") if part.strip()]
        except ValueError:
            found = [-1.0]
        if any(not least <= value <= 1e9 for value in found):
            raise ConfigError(f"got {given!r}, expected numbers with commas between, such as {example}", key=key)
        return found

    read = execute.with_overrides(load_spec(spec, sys.stdin), fidelity=fidelity, seed=seed)
    sizes = [int(value) for value in numbers(gpus, "--gpus", "256,1024", 1)]
    wanted = numbers(levels, "--levels", "0.5,1,2", 0)
    if seeds is not None and fabrics is None:
        raise ConfigError("means nothing without --fabrics", key="--seeds")
    if fabrics is not None:
        from fabrictwin.study.jitter import network_delays

        if out is not None:
            raise ConfigError("means nothing with --fabrics: print it as JSON", key="--out")
        asked = [name.strip() for name in fabrics.split(",") if name.strip()]
        with Progress() as progress:
            delays = network_delays.measure(read, asked, range(1, (seeds or 10) + 1), progress.stage, sizes=sizes)
        shown = (
            json.dumps(network_delays.data(delays), indent=2) + "\n" if as_json else network_delays.text(delays)
        )
        click.echo(shown, nl=False)
        return
    with Progress() as progress:
        found = study(
            read,
            steps=steps,
            gpus=sizes,
            levels=wanted,
            stage=progress.stage,
            **terms,
        )
    show(found, out, as_json=as_json)
