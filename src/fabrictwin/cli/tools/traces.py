"""`fabrictwin import-trace` and `export-trace`: captured jobs of traces, and traces of captured jobs."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.options import FILE, file, number


@click.command()
@click.argument(
    "traces", metavar="TRACE...", type=FILE, nargs=-1, required=True, help="Files, folders or archives."
)
@click.option(
    "--out", type=FILE, metavar="FILE.json", required=True, help="The captured job to write; .gz packs it."
)
@number("--world", least=1, most=1 << 17, help="Ranks of the job, where the traces do not say.")
@file("--groups", help="JSON with the ranks of groups that Chakra's nodes name.")
@number("--model-ranks", least=1, help="Ranks that hold a model, of ASTRA-sim's hybrid layer files.")
@number("--passes", least=1, most=1000, default=1, help="Passes of ASTRA-sim's layer files.")
def import_trace(
    traces: tuple[Path, ...],
    out: Path,
    world: int | None,
    groups: Path | None,
    model_ranks: int | None,
    passes: int,
) -> None:
    """Read traces of a job that ran elsewhere, to be played by a spec with `workload: {captured: FILE}`.

    Kineto, Chakra, PyTorch's execution traces, flight-recorder dumps, GOAL, ASTRA-sim's layer files.
    """
    from fabrictwin.api.traces import import_trace as read
    from fabrictwin.base.progress import Progress
    from fabrictwin.interchange.import_report import report
    from fabrictwin.interchange.read_traces import read_groups
    from fabrictwin.workload.captured.captured_file import write_captured

    with Progress() as progress:
        known = None if groups is None else read_groups(groups)
        job = read(
            list(traces), world=world, groups=known, model_ranks=model_ranks, passes=passes, stage=progress.stage
        )
        progress.stage("writing")
        write_captured(job, out)
    click.echo(report(job), nl=False)
    click.echo(f"  written     {out}")


@click.command()
@click.argument("job", metavar="JOB", type=FILE, help="A captured job's file.")
@click.option("--to", "target", type=click.Choice(["chakra", "goal"]), required=True, help="What to write.")
@click.option("--out", type=FILE, metavar="PATH", required=True, help="A folder for chakra, a file for goal.")
@click.option("--gpu", metavar="NAME", help="The GPU that times compute given as work, such as h100-sxm.")
def export_trace(job: Path, target: str, out: Path, gpu: str | None) -> None:
    """Write a captured job for other simulators."""
    from fabrictwin.api.traces import export_trace as write

    written = write(job, "chakra" if target == "chakra" else "goal", out, gpu=gpu)
    click.echo(f"{len(written)} file{'' if len(written) == 1 else 's'}, {written[0]} the first")
