"""`fabrictwin doctor`: what is wrong with a cluster, by what it printed."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.completion import host_type
from fabrictwin.cli.options import FILE, JSON, WRITTEN


@click.command()
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    type=FILE,
    metavar="FILE|DIR...",
    help="Logs, dumps, counters; - is the standard input.",
)
@click.option(
    "--hardware",
    default="",
    metavar="HOST",
    shell_complete=host_type,
    help="The catalog's host; otherwise files tell.",
)
@click.option("--hosts", default=1, type=click.IntRange(min=1, max=4096), metavar="N", help="How many, with it.")
@click.option(
    "--fabric", type=click.Choice(["infiniband", "ethernet"]), default="infiniband", help="Their network."
)
@click.option("--nccl-version", default="", metavar="X.Y.Z", help="NCCL's release, with --hardware.")
@click.option("--no-twin", is_flag=True, help="Hold nothing against a simulation.")
@click.option("--notes", is_flag=True, help="Print what was seen and is no fault, too.")
@click.option("--html", type=WRITTEN, metavar="FILE", help="Write a page as well.")
@JSON
@click.pass_context
def doctor(
    context: click.Context,
    paths: tuple[Path, ...],
    hardware: str,
    hosts: int,
    fabric: str,
    nccl_version: str,
    no_twin: bool,
    notes: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Read what a cluster printed and say what is wrong, why, and what makes it right.

    Exit codes: 0 nothing wrong, or not enough evidence; 1 findings; 2 a file that is not there.
    """
    import json

    from fabrictwin.api.doctor import hardware_of
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.textfile import write_text
    from fabrictwin.diagnosis.diagnose import diagnose
    from fabrictwin.diagnosis.diagnosis_page import page
    from fabrictwin.diagnosis.diagnosis_text import text

    given = hardware_of(hardware, hosts=hosts, fabric=fabric, release=nccl_version)
    with Progress() as progress:
        found = diagnose(paths, hardware=given, twin=not no_twin, stage=progress.stage)
    if html is not None:
        write_text(html, page(found))
    click.echo(json.dumps(found.as_data(), indent=2) + "\n" if as_json else text(found, notes=notes), nl=False)
    context.exit(found.exit_code)
