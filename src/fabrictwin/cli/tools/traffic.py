"""`fabrictwin traffic`: a connection matrix played packet by packet over any cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fabrictwin.base.congestion_controls import CONTROLS
from fabrictwin.base.records import record
from fabrictwin.cli.options import FILE, capture_options, number, seeded

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.capture.recorder import CaptureRequest
    from fabrictwin.cluster.spec.spec import Spec
    from fabrictwin.engines.base.changes import TimedChange
    from fabrictwin.engines.packet.packet_options import PacketOptions
    from fabrictwin.routing.tables import Routes
    from fabrictwin.tools.traffic.connection_matrix import Traffic
    from fabrictwin.tools.traffic.play_traffic import TrafficResult
    from fabrictwin.twin import Twin


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
@number("--threads", least=1, most=1024, help="Threads that play a large fabric; otherwise as many as cores.")
@number("--service-level", least=0, most=15, help="Service level of all flows.")
@number("--tune", least=0, most=10_000, help="Look for DCQCN's parameters: named sets, and so many drawn ones.")
@click.option("--kept", type=FILE, metavar="FILE", help="With --tune: keep what is done, to go on from.")
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
    threads: int | None,
    service_level: int | None,
    tune: int | None,
    kept: Path | None,
    capture: CaptureRequest | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Play a traffic pattern over a cluster and print when its flows complete.

    How the network is modelled is what the spec's run.packet says; options here override it. With --tune the
    traffic is played under many sets of DCQCN's parameters, and a good one is printed as lines of a spec.
    """
    import json

    from fabrictwin.base.progress import Progress
    from fabrictwin.tools.traffic.connection_matrix import read_traffic
    from fabrictwin.tools.traffic.play_traffic import play_traffic, table

    _check_tuning(tune, kept, capture, control=control, dcqcn=dcqcn, lossy=lossy or None)
    pattern = read_traffic(file)
    given: dict[str, Any] = {
        "balance": balance,
        "control": control,
        "dcqcn": dcqcn,
        "lossless": False if lossy else None,
        "retransmission": "selective" if selective else None,
        "store_and_forward": store_and_forward or None,
        "ack_every": ack_every,
        "threads": threads,
        "service_level": service_level,
        "seed": seed,
    }
    with Progress() as progress:
        network = _network(cluster, given, progress.stage)
        play = partial(play_traffic, pattern, network.twin.as_it_runs, network.routes, changes=network.changes)
        if tune is not None:
            said = _tuned(play, network, pattern, count=tune, kept=kept, as_json=as_json, stage=progress.stage)
        else:
            result = play(network.options, capture=capture, stage=progress.stage)
            said = json.dumps(result.summary(), indent=2) + "\n" if as_json else table(result)
    click.echo(said, nl=False)


@record
class _Network:
    """A cluster ready to carry traffic."""

    spec: Spec
    twin: Twin
    routes: Routes
    options: PacketOptions
    changes: tuple[TimedChange, ...]


def _network(cluster: str, given: Mapping[str, Any], stage: Stage) -> _Network:
    """A spec's cluster with the options given laid over its own. Raises ConfigError."""
    from fabrictwin.base.grouped import grouped
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.disturbances import find_disturbances
    from fabrictwin.cluster.spec.fault_section import LinkFault, StormFault, SwitchFault
    from fabrictwin.cluster.spec.spec import load_cluster
    from fabrictwin.engines.packet.packet_options import options_of
    from fabrictwin.twin.routed_twin import make_twin

    stage("compiling the fabric")
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
    stage("routing")
    return _Network(spec, twin, twin.routes, options, tuple(changes))


def _check_tuning(tune: int | None, kept: Path | None, capture: CaptureRequest | None, **given: Any) -> None:
    """Raise ConfigError for options that mean nothing beside each other."""
    from fabrictwin.base.errors import ConfigError

    if tune is None:
        if kept is not None:
            raise ConfigError("means nothing without --tune N", key="--kept")
        return
    for name, value in {**given, "capture": capture}.items():
        if value is not None:
            raise ConfigError("means nothing with --tune, which tries sets of parameters itself", key=f"--{name}")


def _tuned(
    play: Callable[..., TrafficResult],
    network: _Network,
    pattern: Traffic,
    *,
    count: int,
    kept: Path | None,
    as_json: bool,
    stage: Stage,
) -> str:
    """The sets that were tried, as text or data. Raises ConfigError."""
    import hashlib
    import json

    from fabrictwin.base.errors import ConfigError
    from fabrictwin.study.sweep.journal import journal
    from fabrictwin.study.sweep.point import Question
    from fabrictwin.study.tune.dcqcn_tuning import InMemory, points, tune
    from fabrictwin.study.tune.tuning_text import data, text

    fabric, options = network.twin.fabric, network.options
    if fabric.technology != "ethernet":
        raise ConfigError("got InfiniBand, expected Ethernet: DCQCN is a control of RoCE", key="--tune")
    asked = points(count, options.seed)
    nic_bps = int(fabric.port_rate_bps[fabric.nic_port].max())

    def quietly(sets: PacketOptions, within: Stage) -> TrafficResult:
        return play(sets, slowdown=False, stage=within)

    if kept is None:
        found = tune(quietly, options, asked, nic_bps=nic_bps, stage=stage, book=InMemory())
    else:
        what = hashlib.sha256(repr(options).encode())
        for column in (getattr(pattern, one.name) for one in fields(pattern)):
            what.update(column.tobytes() if hasattr(column, "tobytes") else repr(column).encode())
        question = Question(
            {**network.spec.to_dict(), "traffic": what.hexdigest()}, str(network.spec.folder), ("set",)
        )
        with journal(kept, question, asked) as book:
            found = tune(quietly, options, asked, nic_bps=nic_bps, stage=stage, book=book)
    return json.dumps(data(found, options.seed), indent=2) + "\n" if as_json else text(found)
