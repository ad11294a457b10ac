"""`fabrictwin sm`: bring a subnet up with the twin's own manager, break it, see what that does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fabrictwin.cli.fabric.engine_options import EngineOptions, engine_options
from fabrictwin.cli.options import ENGINE, FILE, GUID2LID, JSON, PARTITIONS, QOS_OPTIONS, number, repeated

if TYPE_CHECKING:
    from fabrictwin.subnet.manager.settings.manager_settings import Settings


@click.command()
@click.argument(
    "cluster",
    required=False,
    type=FILE,
    metavar="SPEC",
    help="A spec file, or a file that holds only a cluster.",
)
@click.option("--host", default="", metavar="NODE", help="Where the manager runs; otherwise the first adapter.")
@ENGINE
@engine_options
@number("--priority", least=0, most=15, default=0, help="Rank among managers.")
@click.option("--qos/--no-qos", default=True, help="Program SL to VL maps and VL arbitration.")
@QOS_OPTIONS
@GUID2LID
@PARTITIONS
@repeated(
    "--do",
    metavar="EVENT",
    help="Then let this happen: 'cut leaf-0/5', 'off spine-1', 'on spine-1', 'partitions FILE', 'qos FILE', "
    "'join NODE MGID', 'leave NODE MGID'. Repeat for more.",
)
@click.option("--mad-time", default="20 us", metavar="TIME", help="What an agent needs for a datagram.")
@click.option("--hop-time", default="300 ns", metavar="TIME", help="What a datagram needs for a hop.")
@number("--window", least=1, most=4096, default=4, help="Datagrams in flight.")
@click.option(
    "--connect",
    metavar="NAME",
    help="Manage the fabric of another simulator (IBSIM_SOCKNAME) instead of a cluster.",
)
@JSON
def sm(
    cluster: Path | None,
    host: str,
    engine: str,
    given: EngineOptions,
    guid2lid: Path | None,
    partitions: Path | None,
    do: tuple[str, ...],
    mad_time: str,
    hop_time: str,
    window: int,
    connect: str | None,
    as_json: bool,
    **manager: Any,
) -> None:
    """Bring a subnet up over management datagrams and report what was found; exit code 1 where nothing came up."""
    import json
    from dataclasses import replace

    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.progress import Progress
    from fabrictwin.cli.fabric.manager_options import routing_over_spec, settings_of
    from fabrictwin.subnet.manager.mad_transport import MadTiming
    from fabrictwin.subnet.operation.cluster_endpoint import open_endpoint, partitioned
    from fabrictwin.subnet.operation.scenario import Scenario
    from fabrictwin.subnet.operation.sweep_text import as_json as to_json
    from fabrictwin.subnet.operation.sweep_text import event_lines, sweep_lines

    settings = settings_of(engine, given.read(), **manager)
    if connect is not None:
        if cluster is not None or do or guid2lid is not None or partitions is not None:
            raise ConfigError(
                "got a cluster, events, guid2lid or partitions with --connect, expected it alone", key="--connect"
            )
        if settings.congestion is not None:
            raise ConfigError(
                "got congestion_control TRUE with --connect, expected it FALSE, or a cluster: ibsim has no agents "
                "that take it",
                key="--qos-options",
            )
        _manage_elsewhere(connect, host, settings)
        return
    if cluster is None:
        raise ConfigError("got no cluster, expected a file or --connect", key="SPEC")
    timing = MadTiming(agent_ps=_time(mad_time, "--mad-time"), hop_ps=_time(hop_time, "--hop-time"), window=window)
    with Progress() as progress:
        progress.stage("building the cluster")
        endpoint = open_endpoint(cluster)
        engine, options = routing_over_spec(cluster, endpoint.state.fabric, engine, given)
        settings = replace(settings, engine=engine, routing=options)
        settings = partitioned(settings, partitions, endpoint, host)
        scenario = Scenario(endpoint, host=host, settings=settings, guid2lid=guid2lid, timing=timing)
        for line in do:
            scenario.target(line)  # what is mistyped is said before minutes of sweeps
        progress.stage("bringing the subnet up", lambda: scenario.progress)
        first = scenario.start()
    if not as_json:
        for one, report in zip(scenario.managers, first, strict=True):
            click.echo("\n".join(sweep_lines(report, len(one.manager.database.lid), one.transport.statistics)))
    events = []
    for i, line in enumerate(do):
        with Progress() as progress:
            progress.stage(f"{line}: event {i + 1} of {len(do)}", i / len(do))
            events.append(scenario.do(line))
        if not as_json:
            click.echo("\n".join(event_lines(events[-1])))
    if as_json:
        click.echo(json.dumps(to_json(scenario, first, events), indent=2))
    if any(report.state.name == "NOT_ACTIVE" for report in first):
        raise click.exceptions.Exit(1)


def _time(text: str, key: str) -> int:
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.base.units import parse_time

    try:
        return parse_time(text)
    except ValueError as error:
        raise ConfigError(str(error), key=key) from None


def _manage_elsewhere(name: str, host: str, settings: Settings) -> None:
    """One sweep of another simulator's fabric."""
    from fabrictwin.subnet.manager.manager import SubnetManager
    from fabrictwin.subnet.operation.sweep_text import sweep_lines
    from fabrictwin.subnet.serve.umad_client import UmadTransport

    transport = UmadTransport(name, host=host)
    try:
        transport.become_manager()
        manager = SubnetManager(transport, settings)
        transport.on_frame = manager.receive
        report = manager.sweep()
        click.echo("\n".join(sweep_lines(report, len(manager.database.lid), transport.statistics)))
    finally:
        transport.close()
    if report.state.name != "MASTER":
        raise click.exceptions.Exit(1)
