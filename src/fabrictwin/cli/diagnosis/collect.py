"""`fabrictwin collect`: a script that gathers what the doctor reads."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.options import WRITTEN


@click.command()
@click.option("-o", "--out", type=WRITTEN, metavar="FILE", help="Write it there; otherwise it is printed.")
@click.option("--hosts", default="", metavar="NAME,NAME", help="Hosts to gather from by ssh; otherwise this one.")
@click.option("--launcher", type=click.Choice(["ssh", "srun"]), default="ssh", help="How to reach them.")
def collect(out: Path | None, hosts: str, launcher: str) -> None:
    """Write a shell script that gathers files on a cluster: read-only, no agent, one tar archive."""
    from fabrictwin.base.textfile import write_text
    from fabrictwin.diagnosis.collection import script

    names = tuple(part.strip() for part in hosts.split(",") if part.strip())
    text = script(names, launcher=launcher)
    if out is None:
        click.echo(text, nl=False)
        return
    write_text(out, text)
    out.chmod(0o755)
