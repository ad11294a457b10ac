"""`fabrictwin capture`: what a program of PyTorch would compute and call on a whole cluster, as a workload."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.base.errors import ConfigError
from fabrictwin.cli.options import file, number


def _ranks(text: str | None, most: int) -> tuple[int, ...]:
    from fabrictwin.workload.captured.captured_file import read_ranks

    return () if text is None else read_ranks(text, most, lambda message: ConfigError(message, key="--ranks"))


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--cluster", required=True, metavar="SPEC", help="A spec file; its cluster is used.")
@number("--world", least=1, most=1 << 17, help="Ranks; otherwise all GPUs of the cluster.")
@number("--step", least=1, help="Only the N-th step of the first optimizer.")
@click.option(
    "--ranks", metavar="0,256", help="Ranks to run; otherwise 0 and those that exchange messages with it."
)
@file("--out", metavar="FILE.json", help="The captured job; otherwise SCRIPT.json. Packed where it ends in .gz.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, required=True, metavar="SCRIPT ...")
def capture(
    cluster: str,
    world: int | None,
    step: int | None,
    ranks: str | None,
    out: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Capture a program without computing anything: what each rank computes, calls and waits for."""
    import sys

    from fabrictwin.api.traces import capture_program as run
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.interchange.import_report import report
    from fabrictwin.workload.captured.captured_file import MOST_RANKS, write_captured

    spec, chosen = load_cluster(cluster, sys.stdin), _ranks(ranks, MOST_RANKS)
    script, *rest = arguments
    with Progress() as progress:
        job = run(script, spec, world=world, arguments=rest, ranks=chosen, step=step, stage=progress.stage)
        target = out or Path(Path(script).stem + ".json")
        write_captured(job, target)
    click.echo(report(job), nl=False)
    click.echo(f"  written     {target}")
