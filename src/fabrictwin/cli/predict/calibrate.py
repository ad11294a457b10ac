"""`fabrictwin calibrate`: constants of a spec from measurements of one's own."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fabrictwin.cli.options import JSON, written


@click.command()
@click.argument("spec", metavar="SPEC", help="The spec of what was measured; - reads it from stdin.")
@click.argument(
    "files", metavar="[FILE]...", nargs=-1, help="Output of nccl-tests or perftest, a torch profile, products."
)
@click.option(
    "--step-time",
    "times",
    multiple=True,
    metavar="TIME",
    help="A measured step, such as 11.4s; may be given often.",
)
@JSON
@written("--write", help="Write the calibration, for `calibration:` of specs.")
def calibrate(
    spec: str, files: tuple[str, ...], times: tuple[str, ...], as_json: bool, write: Path | None
) -> None:
    """Fit the twin's constants to measurements of one's own machine, and say what error is left."""
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.units import PS_PER_S, parse_time
    from fabrictwin.calibration.calibrate import calibrate as fit
    from fabrictwin.cluster.spec.spec import load_cluster

    try:
        steps = [parse_time(one) / PS_PER_S for one in times]
    except ConfigError as error:
        raise error.within(key="--step-time") from None
    if not (files or steps):
        raise ConfigError("got no measurement, expected files or --step-time", key="FILE")
    with Progress() as progress:
        found = fit(load_cluster(spec, sys.stdin), files, step_times=steps, stage=progress.stage)
    if write is not None and found.changes:
        found.save(write)
    click.echo(found.json() if as_json else str(found), nl=as_json)
    if write is not None and not found.changes and not as_json:
        click.echo(f"  nothing was changed: {write} is not written")
