"""`fabrictwin diff`: two runs side by side."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.options import JSON, WRITTEN


class Percent(click.ParamType[float]):
    """A share, written as percent: `2%` or `2`."""

    name = "percent"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share of what is written."""
        if isinstance(value, float):
            return value
        try:
            found = float(value.strip().removesuffix("%"))
        except ValueError:
            found = -1.0
        if not 0 <= found <= 1e6:
            self.fail(f"got {value!r}, expected a percentage from 0 upwards, such as 2%", param, ctx)
        return found / 100


@click.command()
@click.argument("before", metavar="A", help="A run folder, or a spec file, which is run.")
@click.argument("after", metavar="B", help="The same.")
@click.option("--links", default=10, type=click.IntRange(min=0), metavar="N", help="Links to print.")
@click.option("--out", type=WRITTEN, metavar="FILE.html", help="Write a page.")
@click.option(
    "--fail-over",
    type=Percent(),
    metavar="PERCENT",
    help="Exit with 1 where B's step is longer by more, such as 2%.",
)
@JSON
def diff(before: str, after: str, links: int, out: Path | None, fail_over: float | None, as_json: bool) -> None:
    """Say what differs between two runs: in what was asked, the answer, each part of the step, each link."""
    from fabrictwin.api.diff import diff as differ
    from fabrictwin.base.progress import Progress
    from fabrictwin.study.difference.difference_text import text

    with Progress() as progress:
        found = differ(before, after, stage=progress.stage)
    if out is not None:
        found.save(out)
    click.echo(found.json() if as_json else text(found.detail, links), nl=False)
    if out is not None and not as_json:
        click.echo(f"\n{out}")
    if fail_over is not None and found.slower > fail_over:
        click.echo(f"B takes {found.slower:.2%} longer, more than {100 * fail_over:g}%", err=True)
        raise click.exceptions.Exit(1)
