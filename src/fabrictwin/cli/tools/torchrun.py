"""`fabrictwin torchrun`: a program of PyTorch on this machine, with the cluster's time."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.options import file


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--cluster", required=True, metavar="SPEC", help="A spec file; its cluster is used.")
@file("--out", metavar="DIR", help="The run folder; otherwise the next free runs/NAME.")
@file("--save", metavar="FILE.json", help="Keep the captured job as well.")
@click.option(
    "--compute",
    type=click.Choice(["modelled", "measured"]),
    default="modelled",
    help="Compute takes what the cluster's GPU would, or what it took on this machine's processor.",
)
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, required=True, metavar="[OPTIONS OF TORCHRUN] SCRIPT ..."
)
def torchrun(cluster: str, out: Path | None, save: Path | None, compute: str, arguments: tuple[str, ...]) -> None:
    """Run a program unchanged: bytes move between real processes, time is that of the cluster."""
    import sys

    from fabrictwin.api.traces import torchrun as run
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.report.terminal import block

    spec = load_cluster(cluster, sys.stdin)
    with Progress() as progress:
        found = run(spec, list(arguments), save=save, measured=compute == "measured", stage=progress.stage)
        folder = found.save(out)
    click.echo(str(found.communications))
    click.echo(block(found.detail, folder), nl=False)
