"""`fabrictwin sweep`: a spec over many values of its keys, in a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from fabrictwin.cli.options import WRITTEN, repeated
from fabrictwin.cli.options import fidelity as fidelity_option


@click.command()
@click.argument("spec", metavar="SPEC", help="A spec file; - reads it from stdin.")
@repeated(
    "--vary",
    required=True,
    metavar="KEY=VALUES",
    help="8,16,32, or 8,16,...,128, or a range 100 Gb/s..800 Gb/s to draw from. Repeat for more keys.",
)
@click.option(
    "--out", type=WRITTEN, required=True, metavar="TABLE", help="A .csv or .parquet file; its page is beside it."
)
@click.option(
    "--samples", type=click.IntRange(1, 1_000_000), metavar="N", help="Draw N points; otherwise every combination."
)
@click.option("--sampling", type=click.Choice(["latin", "random"]), help="How they are drawn; otherwise latin.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Of the samples; otherwise 1.")
@click.option("--seeds", metavar="N,N,...", help="Run every point with each of these seeds (run.seed).")
@fidelity_option("flow", "analytic", "packet", help="Of every run; otherwise the spec's.")
@click.option("--workers", type=click.IntRange(1, 1024), metavar="N", help="Processes; otherwise one a processor.")
@click.option("--on", metavar="ADDRESS", help="A Ray cluster instead: auto, or ray://HOST:10001.")
def sweep(
    spec: str,
    vary: tuple[str, ...],
    out: Path,
    samples: int | None,
    seeds: str | None,
    fidelity: str | None,
    workers: int | None,
    on: str | None,
    **drawing: int | str | None,
) -> None:
    """Run a spec over many values of its keys: a table, and a page of the response over any two.

    A sweep that was ended goes on where it was when it is asked again: TABLE.journal keeps what is done until the
    table is written. Points that cannot be are rows with their reason.
    """
    from fabrictwin.runs import workers as processes

    if workers != 1 and on is None:
        processes.get_ready()  # beside the imports that follow
    from fabrictwin.api.sweep import sweep as over
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.runs.execute import with_overrides
    from fabrictwin.study.sweep.table_files import check_ending

    drawn: dict[str, Any] = {name: value for name, value in drawing.items() if value is not None}
    if drawn and samples is None:
        raise ConfigError("means nothing without --samples N: every combination is run", key=f"--{min(drawn)}")
    if on is not None and workers is not None:
        raise ConfigError("means nothing with --on: the Ray cluster has its own workers", key="--workers")
    check_ending(out)  # before minutes of work, not after
    read = with_overrides(load_spec(spec, sys.stdin), fidelity=fidelity)
    axes = [*vary, *([f"run.seed={seeds}"] if seeds else [])]
    journal = out.with_name(out.name + ".journal")
    with Progress() as progress:
        found = over(
            read, axes, samples=samples, workers=on or workers, journal=journal, stage=progress.stage, **drawn
        )
    page = found.save(out)
    journal.unlink(missing_ok=True)
    click.echo(str(found))
    if found.failures:
        click.echo(f"{found.failures:,} points have no answer; their rows say why")
    click.echo(f"\n{out}\n{page}")
