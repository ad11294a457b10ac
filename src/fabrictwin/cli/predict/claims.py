"""`fabrictwin claims`: common statements, tested."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.options import JSON, WORKERS, written


@click.command()
@click.argument("only", nargs=-1, metavar="NAME", help="Only these; otherwise all.")
@WORKERS
@JSON
@written("--write", help="Write all as a page, such as docs/claims.md.")
def claims(only: tuple[str, ...], workers: int, as_json: bool, write: Path | None) -> None:
    """Run the experiment behind each common statement and say whether it holds."""
    import json

    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.textfile import write_text
    from fabrictwin.study.claims.claim_book import as_data, as_markdown, as_text, judge_all

    if write is not None and only:
        raise ConfigError("got names together with --write, expected either: the page holds all", key="--write")
    with Progress() as progress:
        found = judge_all(tuple(only or ()), progress.stage, workers)
    if write is not None:
        write_text(write, as_markdown(found))
    click.echo(json.dumps(as_data(found), indent=2) + "\n" if as_json else as_text(found), nl=False)
