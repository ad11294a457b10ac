"""`fabrictwin traffic`: a connection matrix played packet by packet over any cluster."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

app = typer.Typer()


class Balance(StrEnum):
    routed = "routed"
    adaptive = "adaptive"
    spray = "spray"


class Control(StrEnum):
    none = "none"
    dcqcn = "dcqcn"
    nscc = "nscc"


@app.command()
def traffic(
    file: str = typer.Argument(..., metavar="FILE", help="A connection matrix in htsim's format (.cm)."),
    cluster: str = typer.Option(
        ...,
        "--cluster",
        metavar="SPEC",
        help="A spec file; its cluster is used, and links that it makes slow or dead.",
    ),
    balance: Balance | None = typer.Option(None, help="How switches choose among equal-cost ports."),
    control: Control | None = typer.Option(None, help="Congestion control (Ethernet)."),
    dcqcn: str | None = typer.Option(None, metavar="NAME", help="DCQCN's parameter set."),
    lossy: bool = typer.Option(
        False, "--lossy", help="Ethernet without priority flow control: full buffers drop."
    ),
    selective: bool = typer.Option(False, "--selective", help="Selective repeat instead of go-back-N."),
    store_and_forward: bool = typer.Option(
        False, "--store-and-forward", help="Switches take packets in whole before they pass them on."
    ),
    ack_every: int | None = typer.Option(None, metavar="N", min=1, max=256, help="Packets an acknowledgement."),
    service_level: int | None = typer.Option(None, metavar="N", min=0, max=15, help="Service level of all flows."),
    pcap: Path | None = typer.Option(None, "--pcap", metavar="FILE", help="Capture packets to a pcapng file."),
    pcap_at: list[str] | None = typer.Option(
        None,
        "--pcap-at",
        metavar="NAME",
        help="Capture at this host or adapter (repeatable); otherwise at all.",
    ),
    snaplen: int = typer.Option(
        0, "--snaplen", metavar="BYTES", min=0, help="Keep so much of each packet; 0: all."
    ),
    seed: int | None = typer.Option(None, metavar="N", min=0, help="Seed of every random choice."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Play a traffic pattern over a cluster and print when its flows complete.

    How the network is modelled is what the spec's run.packet says; options here override it.
    """
    import json
    from dataclasses import replace

    from fabrictwin.base.progress import Progress
    from fabrictwin.capture.recorder import CaptureRequest
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.fault_section import LinkFault
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.engines.packet.packet_options import options_of
    from fabrictwin.runs.twins import make_twin
    from fabrictwin.tools.traffic import play_traffic, read_traffic, table

    capture = None if pcap is None else CaptureRequest(pcap, tuple(pcap_at or ()), snaplen)
    pattern = read_traffic(file)
    given: dict[str, Any] = {
        "balance": balance.value if balance else None,
        "control": control.value if control else None,
        "dcqcn": dcqcn,
        "lossless": False if lossy else None,
        "retransmission": "selective" if selective else None,
        "store_and_forward": store_and_forward or None,
        "ack_every": ack_every,
        "service_level": service_level,
        "seed": seed,
    }
    with Progress() as progress:
        progress.stage("compiling the fabric")
        spec = load_cluster(cluster, sys.stdin)
        for i, fault in enumerate(spec.faults):
            if not isinstance(fault, LinkFault) or fault.timed:
                message = "got a fault that only a run plays, expected a link at a rate of its own from the start"
                raise spec.error(f"faults[{i}]", message)
        twin = make_twin(spec, build(spec.cluster, spec=spec))
        base = options_of(spec.run.packet, twin.fabric.technology, spec.run.seed)
        options = replace(base, **{key: value for key, value in given.items() if value is not None})
        progress.stage("routing")
        routes = twin.routes
        progress.stage("simulating")
        result = play_traffic(pattern, twin.as_it_runs, routes, options, capture=capture)
    typer.echo(json.dumps(result.summary(), indent=2) if as_json else table(result), nl=as_json)
