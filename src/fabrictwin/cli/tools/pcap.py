"""`fabrictwin pcap`: what a packet capture says, the twin's or a real one."""

from __future__ import annotations

from pathlib import Path

import typer

from fabrictwin.cli.arguments import Group

app = typer.Typer(cls=Group, no_args_is_help=True)


@app.callback()
def pcap() -> None:
    """Read captures of RDMA traffic."""


@app.command()
def read(
    file: Path = typer.Argument(..., metavar="FILE", help="A pcap, pcapng or ERF file."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Flows, messages, missing and repeated packets, NAKs, congestion marks and bad checksums of a capture."""
    import json

    from fabrictwin.capture.flow_summary import summarise, text
    from fabrictwin.capture.reader import CaptureFile

    found = summarise(CaptureFile(file))
    typer.echo(json.dumps(found.as_json(), indent=2) if as_json else text(found), nl=as_json)
