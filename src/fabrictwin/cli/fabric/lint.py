"""`fabrictwin lint`: what in configurations breaks losslessness, or costs bandwidth."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.options import JSON, WRITTEN


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@JSON
@click.option(
    "--onto",
    type=click.Path(path_type=Path),
    metavar="SPEC",
    help="Put the configuration onto this spec as network.qos, for the packet engine.",
)
@click.option("--write", type=WRITTEN, metavar="NEW", help="The file for that spec.")
@click.pass_context
def lint(
    context: click.Context, files: tuple[Path, ...], as_json: bool, onto: Path | None, write: Path | None
) -> None:
    """Read configurations of switches, hosts and managers, files or folders, and say what is wrong with them.

    Exits with 1 where there is an error, with 0 where there are warnings alone.
    """
    import yaml

    from fabrictwin.api.configure import lint as judged
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.base.textfile import write_text

    if (onto is None) != (write is None):
        raise ConfigError("got one of --onto and --write, expected both", key="--onto" if write else "--write")
    with Progress() as progress:
        report = judged(*files, stage=progress.stage)
    if onto is not None and write is not None:
        spec = report.onto(onto)
        write_text(write, yaml.safe_dump(spec.to_dict(), sort_keys=False, width=110))
    click.echo(report.json() if as_json else str(report), nl=False)
    context.exit(1 if report.errors else 0)
