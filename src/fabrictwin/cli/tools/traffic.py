"""`fabrictwin traffic`: a connection matrix played packet by packet over any cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from fabrictwin.base.congestion_controls import CONTROLS
from fabrictwin.cli.options import capture_options, number, seeded

if TYPE_CHECKING:
    from fabrictwin.capture.recorder import CaptureRequest


@click.command()
@click.argument("file", metavar="FILE", help="A connection matrix in htsim's format (.cm).")
@click.option(
    "--cluster",
    required=True,
    metavar="SPEC",
    help="A spec file; its cluster is used, and the faults of its links, switches and adapters.",
)
@click.option(
    "--balance",
    type=click.Choice(["routed", "adaptive", "spray"]),
    help="How switches choose among equal-cost ports.",
)
@click.option("--control", type=click.Choice(list(CONTROLS)), help="Congestion control (Ethernet).")
@click.option("--dcqcn", metavar="NAME", help="DCQCN's parameter set.")
@click.option("--lossy", is_flag=True, help="Ethernet without priority flow control: full buffers drop.")
@click.option("--selective", is_flag=True, help="Selective repeat instead of go-back-N.")
@click.option("--store-and-forward", is_flag=True, help="Switches take packets in whole before they pass them on.")
@number("--ack-every", least=1, most=256, help="Packets an acknowledgement.")
@number("--service-level", least=0, most=15, help="Service level of all flows.")
@capture_options
@seeded(help="Seed of every random choice.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def traffic(
    file: str,
    cluster: str,
    balance: str | None,
    control: str | None,
    dcqcn: str | None,
    lossy: bool,
    selective: bool,
    store_and_forward: bool,
    ack_every: int | None,
    service_level: int | None,
    capture: CaptureRequest | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Play a traffic pattern over a cluster and print when its flows complete.

    How the network is modelled is what the spec's run.packet says; options here override it.
    """
    import json

    from fabrictwin.base.grouped import grouped
    from fabrictwin.base.progress import Progress
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.disturbances import find_disturbances
    from fabrictwin.cluster.spec.fault_section import LinkFault, StormFault, SwitchFault
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.engines.packet.packet_options import options_of
    from fabrictwin.runs.twins import make_twin
    from fabrictwin.tools.traffic.connection_matrix import read_traffic
    from fabrictwin.tools.traffic.play_traffic import play_traffic, table

    pattern = read_traffic(file)
    given: dict[str, Any] = {
        "balance": balance,
        "control": control,
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
            if not isinstance(fault, LinkFault | SwitchFault | StormFault):
                message = "got a fault that only a run plays, expected a link's, a switch's, or a pause storm"
                raise spec.error(f"faults[{i}]", message)
        blueprint = build(spec.cluster, spec=spec)
        by_packets = spec.model_copy(update={"run": spec.run.model_copy(update={"fidelity": "packet"})})
        disturbed = find_disturbances(blueprint, by_packets)
        twin = make_twin(spec, blueprint)
        changes = twin.timed_changes(disturbed.all_changes) + twin.pause_changes(disturbed.storms)
        base = options_of(spec.run.packet, twin.fabric.technology, spec.run.seed, spec.qos)
        options = grouped(base, {key: value for key, value in given.items() if value is not None})
        progress.stage("routing")
        routes = twin.routes
        result = play_traffic(
            pattern, twin.as_it_runs, routes, options, capture=capture, changes=changes, stage=progress.stage
        )
    click.echo(json.dumps(result.summary(), indent=2) if as_json else table(result), nl=as_json)
