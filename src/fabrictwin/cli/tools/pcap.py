"""`fabrictwin pcap`: what a packet capture says, the twin's or a real one."""

from __future__ import annotations

from pathlib import Path

import click

from fabrictwin.cli.options import FILE, Group


@click.group(cls=Group, no_args_is_help=True)
def pcap() -> None:
    """Read captures of RDMA traffic."""


@pcap.command()
@click.argument("file", type=FILE, metavar="FILE", help="A pcap, pcapng or ERF file.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def read(file: Path, as_json: bool) -> None:
    """Flows, messages, missing and repeated packets, NAKs, congestion marks and bad checksums of a capture."""
    import json

    from fabrictwin.base.progress import Progress
    from fabrictwin.capture.flow_summary import summarise, text
    from fabrictwin.capture.reader import CaptureFile

    capture = CaptureFile(file)
    with Progress() as progress:
        progress.stage(f"reading {file.name}", capture.share_read)
        found = summarise(capture)
    click.echo(json.dumps(found.as_json(), indent=2) if as_json else text(found), nl=as_json)
