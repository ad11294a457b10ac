"""`fabrictwin ui`: the page to play with, and its HTTP interface."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.options import FILE, number, repeated


@click.command()
@click.argument(
    "spec", type=FILE, required=False, metavar="[SPEC|FOLDER]", help="What it opens with; otherwise an example."
)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Where it listens; others need the token.")
@number("--port", least=0, most=65535, default=8765, help="Its port; 0: any that is free.")
@repeated("--name", metavar="NAME", help="A name of this machine that it answers to, where others reach it.")
@click.option("--token", metavar="TEXT", help="What others have to know; otherwise one that nobody can guess.")
@number("--workers", least=1, most=64, help="Processes for runs; otherwise one fewer than processors.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
@click.option("--openapi", is_flag=True, help="Print the OpenAPI document of the interface and serve nothing.")
def ui(
    spec: Path | None,
    host: str,
    port: int,
    name: tuple[str, ...],
    token: str | None,
    workers: int | None,
    open_page: bool,
    openapi: bool,
) -> None:
    """Serve a page to play with a cluster and its job, and the interface behind it, until interrupted."""
    from fabrictwin.api.ui import openapi_json
    from fabrictwin.api.ui import ui as serve

    if openapi:
        click.echo(openapi_json(), nl=False)
        return

    def ready(url: str) -> None:
        print(url, flush=True)
        if open_page:
            import webbrowser

            webbrowser.open(url)

    serve(spec, host=host, port=port, names=name, token=token, workers=workers, ready=ready)
