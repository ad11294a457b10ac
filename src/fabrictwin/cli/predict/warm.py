"""`fabrictwin warm`: compile what a first run would compile."""

from __future__ import annotations

import click


@click.command()
def warm() -> None:
    """Compile the engines' kernels into the cache, so that no run has to wait for that."""
    from fabrictwin.base.progress import Progress
    from fabrictwin.runs.warm import warm as compile_all

    with Progress() as progress:
        folder = compile_all(progress.stage)
    click.echo(f"compiled, kept in {folder}")
