"""`fabrictwin run`: from a spec file to a folder of results."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path

import typer

app = typer.Typer()


class Fidelity(StrEnum):
    packet = "packet"
    flow = "flow"
    analytic = "analytic"


@app.command()
def run(
    spec: str = typer.Argument(..., metavar="SPEC", help="A spec file; - reads it from stdin."),
    fidelity: Fidelity | None = typer.Option(None, help="How closely to simulate; otherwise the spec's."),
    out: Path | None = typer.Option(
        None, metavar="DIR", help="The folder to write; otherwise the spec's, or the next free runs/NAME."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print summary.json to stdout and nothing else."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would run, and simulate nothing."),
    seed: int | None = typer.Option(None, metavar="N", help="The seed; otherwise the spec's."),
    pcap: Path | None = typer.Option(
        None, "--pcap", metavar="FILE", help="Capture packets to a pcapng file (fidelity packet)."
    ),
    pcap_at: list[str] | None = typer.Option(
        None,
        "--pcap-at",
        metavar="NAME",
        help="Capture at this host or adapter (repeatable); otherwise at all.",
    ),
    snaplen: int = typer.Option(
        0, "--snaplen", metavar="BYTES", min=0, help="Keep so much of each packet; 0: all."
    ),
    open_report: bool = typer.Option(False, "--open", help="Open the report in a browser afterwards."),
) -> None:
    """Predict what a job gets on a cluster: step time, throughput, where the time goes, which links carry it."""
    from datetime import UTC, datetime
    from time import monotonic

    from fabrictwin.base.progress import Progress
    from fabrictwin.capture.recorder import CaptureRequest
    from fabrictwin.cluster.spec.spec import load_spec
    from fabrictwin.report.summary import summary_json
    from fabrictwin.report.terminal import block
    from fabrictwin.runs import execute
    from fabrictwin.runs.folder import Clock, run_folder

    capture = None if pcap is None else CaptureRequest(pcap, tuple(pcap_at or ()), snaplen)
    started, clock = datetime.now(UTC), monotonic()
    read = execute.with_overrides(
        load_spec(spec, sys.stdin), fidelity=None if fidelity is None else fidelity.value, seed=seed
    )
    if dry_run:
        with Progress() as progress:
            prepared = execute.prepare(read, progress.stage)
        if as_json:
            typer.echo(execute.plan_json(prepared), nl=False)
        else:
            typer.echo(execute.plan(prepared), nl=False)
        return

    wanted = out or (Path(read.run.out) if read.run.out else None)
    with Progress() as progress, run_folder(read.name, wanted) as place:
        result = execute.predict(read, progress.stage, capture, what_if=True)
        progress.stage("writing")
        folder = place.write(result, Clock(started, monotonic() - clock))
    typer.echo(summary_json(result) if as_json else block(result, folder), nl=False)
    if open_report:
        import webbrowser

        webbrowser.open((folder / "report.html").absolute().as_uri())
