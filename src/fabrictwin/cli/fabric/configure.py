"""`fabrictwin configure`: configurations of a cluster's switches, hosts and managers."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.options import CLUSTER

TARGETS = ("sonic", "nvue", "opensm", "host", "slurm", "k8s")


@click.command()
@CLUSTER
@click.option(
    "--for",
    "targets",
    type=click.Choice(TARGETS),
    multiple=True,
    required=True,
    help="What to write for (repeatable).",
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The folder to write to."
)
@click.option(
    "--switches",
    type=click.Choice(("sonic", "nvue")),
    default="sonic",
    help="Whose names the switches' ports have in hosts' files.",
)
@click.option(
    "--opensm-folder", default="/etc/opensm", metavar="PATH", help="Where OpenSM's files will lie on its host."
)
def configure(cluster: str, targets: tuple[str, ...], out: Path, switches: str, opensm_folder: str) -> None:
    """Write what makes a cluster's network lossless, or as its spec asks: each line with its reason and source."""
    import sys

    from fabrictwin.api.configure import configure as made_for
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.spec.spec import load_cluster

    spec = load_cluster(cluster, sys.stdin)
    names = "nvue" if "nvue" in targets else switches
    each, written = tuple(dict.fromkeys(targets)), []
    with Progress() as progress:
        for done, target in enumerate(each):
            progress.stage(f"working out {target}", done / len(each))
            made = made_for(spec, target, switches=names, folder=opensm_folder)
            progress.stage(f"writing {target}", (done + 0.5) / len(each))
            written.append(f"{target}: {len(made.write(out)):,} files in {out}")
    click.echo("\n".join(written))
