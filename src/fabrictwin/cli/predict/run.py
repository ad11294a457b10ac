"""`fabrictwin run`: from a spec file to a folder of results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fabrictwin.cli.options import capture_options, file, seeded
from fabrictwin.cli.options import fast_forward as fast_forward_option
from fabrictwin.cli.options import fidelity as fidelity_option

if TYPE_CHECKING:
    from fabrictwin.capture.recorder import CaptureRequest


@click.command()
@click.argument("spec", metavar="SPEC", help="A spec file; - reads it from stdin.")
@fidelity_option("packet", "flow", "analytic", help="How closely to simulate; otherwise the spec's.")
@file("--out", metavar="DIR", help="The folder to write; otherwise the spec's, or the next free runs/NAME.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json to stdout and nothing else.")
@click.option("--dry-run", is_flag=True, help="Say what would run, and simulate nothing.")
@seeded(help="The seed; otherwise the spec's.")
@fast_forward_option
@capture_options
@click.option("--open", "open_report", is_flag=True, help="Open the report in a browser afterwards.")
def run(
    spec: str,
    fidelity: str | None,
    out: Path | None,
    as_json: bool,
    dry_run: bool,
    seed: int | None,
    fast_forward: str | None,
    capture: CaptureRequest | None,
    open_report: bool,
) -> None:
    """Predict what a job gets on a cluster: step time, throughput, where the time goes, which links carry it."""
    from fabrictwin.api.run import run as predict
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.report.summary import summary_json
    from fabrictwin.report.terminal import block
    from fabrictwin.runs import execute
    from fabrictwin.runs.folder import check_target, run_folder

    read = execute.with_overrides(
        load_spec(spec, sys.stdin), fidelity=fidelity, seed=seed, fast_forward=fast_forward
    )
    wanted = out or (Path(read.run.out) if read.run.out else None)
    if dry_run:
        from fabrictwin.runs.dry_run import dry_run as try_out
        from fabrictwin.runs.dry_run import dry_run_json, dry_run_text

        if wanted is not None:
            check_target(wanted)
        with Progress() as progress:
            found = try_out(read, progress.stage, capture)
        click.echo(dry_run_json(found) if as_json else dry_run_text(found), nl=False)
        return

    with Progress() as progress, run_folder(read.name, wanted) as place:
        result = predict(read, what_if=True, capture=capture, stage=progress.stage)
        progress.stage("writing")
        folder = place.write(result.detail, result.clock)
    click.echo(summary_json(result.detail) if as_json else block(result.detail, folder), nl=False)
    if open_report:
        import webbrowser

        webbrowser.open((folder / "report.html").absolute().as_uri())
