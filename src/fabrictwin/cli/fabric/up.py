"""`fabrictwin up`: serve a fabric's management to OpenSM, infiniband-diags and other programs of libumad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fabrictwin.cli.fabric.engine_options import EngineOptions, engine_options
from fabrictwin.cli.options import CLUSTER_FILE, ENGINE, GUID2LID, PARTITIONS, QOS_OPTIONS, number


@click.command()
@CLUSTER_FILE
@click.option(
    "--sm",
    default="auto",
    type=click.Choice(["auto", "none"]),
    help="Whether the twin's own manager runs; none leaves it to OpenSM.",
)
@click.option(
    "--socket",
    default="",
    metavar="NAME",
    help="Name of the unix sockets (IBSIM_SOCKNAME of clients); otherwise one that nobody can guess.",
)
@click.option(
    "--udp",
    type=click.IntRange(min=1024, max=65525),
    metavar="PORT",
    help="Serve UDP on loopback instead (IBSIM_SERVER_PORT of clients).",
)
@click.option(
    "--host", default="", metavar="NODE", help="Where the twin's manager runs; otherwise the first adapter."
)
@ENGINE
@engine_options
@number("--priority", least=0, most=15, default=15, help="The twin's manager's rank among managers.")
@QOS_OPTIONS
@GUID2LID
@PARTITIONS
@click.option("--console", is_flag=True, help="Read commands from stdin: cut, mend, off, on, links, run, help.")
@click.option(
    "--run", is_flag=True, help="Run the spec's job inside the fabric once it is up: perfquery shows its traffic."
)
@click.option(
    "--data", is_flag=True, help="Serve the adapters' data too: fabrictwin exec runs programs on the hosts."
)
def up(
    cluster: Path,
    sm: str,
    socket: str,
    udp: int | None,
    host: str,
    engine: str,
    given: EngineOptions,
    guid2lid: Path | None,
    partitions: Path | None,
    console: bool,
    run: bool,
    data: bool,
    **manager: Any,
) -> None:
    """Serve until interrupted. Clients preload libumad2sim.so and name their node in SIM_HOST."""
    from dataclasses import replace

    from fabrictwin.base.errors import ConfigError
    from fabrictwin.cli.fabric.manager_options import routing_over_spec, settings_of
    from fabrictwin.subnet.operation.cluster_endpoint import has_job, open_endpoint, partitioned
    from fabrictwin.subnet.serve.served_fabric import ManagerOptions, ServedFabric

    def say(line: str) -> None:
        print(line, flush=True)  # whoever waits for a line reads a pipe

    settings = settings_of(engine, given.read(), **manager)
    if run and sm == "none":
        message = "got --run with --sm none, expected the tables of a manager first: type 'run' at the --console"
        raise ConfigError(message, key="--run")
    job = None
    if run or (console and has_job(cluster)):
        from fabrictwin.runs.served_run import ServedRun

        job = ServedRun(cluster)
    endpoint = open_endpoint(cluster) if job is None else job.endpoint
    engine, options = routing_over_spec(cluster, endpoint.state.fabric, engine, given)
    settings = partitioned(replace(settings, engine=engine, routing=options), partitions, endpoint, host)
    served = ServedFabric(
        endpoint,
        name=socket,
        udp_port=udp,
        manager=ManagerOptions(host, settings, guid2lid) if sm == "auto" else None,
        say=say,
    )
    served.console = console
    if job is not None:
        served.commands["run"] = lambda: job.say([one.manager for one in served.managers])
        served.first = served.commands["run"] if run else None
    if not data:
        served.run()
        return
    from fabrictwin.live.served_twin import serve_data

    with serve_data(cluster, served.endpoint.state, say):
        served.run()
