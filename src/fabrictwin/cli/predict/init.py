"""`fabrictwin init`: the bundled examples as files to begin with."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.completion import example_name
from fabrictwin.cli.options import FILE


@click.command()
@click.argument(
    "names", nargs=-1, metavar="[NAME]...", shell_complete=example_name, help="Only these; otherwise all."
)
@click.option("--into", type=FILE, default="examples", metavar="DIR", help="The folder to write them to.")
@click.option("--list", "listed", is_flag=True, help="Only name them.")
def init(names: tuple[str, ...], into: Path, listed: bool) -> None:
    """Write the examples: specs, the models that they refer to, programs of verbs."""
    from fabrictwin.runs import examples

    if listed:
        formatter = click.HelpFormatter()
        formatter.write_dl([(name, examples.what_it_shows(name)) for name in examples.example_names()])
        click.echo(formatter.getvalue(), nl=False)
        return
    for path in examples.write_examples(names, into):
        click.echo(path)
