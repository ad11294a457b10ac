"""`fabrictwin up`: serve a fabric's management to OpenSM, infiniband-diags and other programs of libumad."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

from fabrictwin.cli.arguments import CLUSTER_FILE

app = typer.Typer(help="Serve a fabric's management to the real InfiniBand tools.")


class Manager(StrEnum):
    auto = "auto"
    none = "none"


@app.command()
def up(
    cluster: Path = CLUSTER_FILE,
    sm: Manager = typer.Option(
        Manager.auto, help="Whether the twin's own manager runs; none leaves it to OpenSM."
    ),
    socket: str = typer.Option(
        "",
        metavar="NAME",
        help="Name of the unix sockets (IBSIM_SOCKNAME of clients); otherwise one that nobody can guess.",
    ),
    udp: int | None = typer.Option(
        None,
        min=1024,
        max=65525,
        metavar="PORT",
        help="Serve UDP on loopback instead (IBSIM_SERVER_PORT of clients).",
    ),
    host: str = typer.Option(
        "", metavar="NODE", help="Where the twin's manager runs; otherwise the first adapter."
    ),
    engine: str = typer.Option("auto", metavar="NAME", help="The routing engine of the twin's manager."),
    roots: Path | None = typer.Option(None, metavar="FILE", help="GUIDs of root switches, one a line."),
    weights: Path | None = typer.Option(
        None, metavar="FILE", help="What links count: GUID PORT WEIGHT, one a line."
    ),
    lmc: int = typer.Option(0, min=0, max=7, metavar="N", help="Each adapter has 2^LMC LIDs."),
    priority: int = typer.Option(15, min=0, max=15, metavar="N", help="The twin's manager's rank among managers."),
    qos_options: Path | None = typer.Option(
        None, metavar="FILE", help="qos_max_vls, qos_sl2vl, qos_vlarb_high ..., as opensm.conf has them."
    ),
    guid2lid: Path | None = typer.Option(None, metavar="FILE", help="Keep LIDs in this file."),
    partitions: Path | None = typer.Option(
        None, metavar="FILE", help="Partitions, as OpenSM's partitions.conf has them."
    ),
    console: bool = typer.Option(False, help="Read commands from stdin: cut, mend, off, on, links, run, help."),
    run: bool = typer.Option(
        False, "--run", help="Run the spec's job inside the fabric once it is up: perfquery shows its traffic."
    ),
) -> None:
    """Serve until interrupted. Clients preload libumad2sim.so and name their node in SIM_HOST."""
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.cli.fabric.sm import settings_of
    from fabrictwin.subnet.operation.rehearsal import has_job, open_endpoint, partitioned
    from fabrictwin.subnet.serve.served_fabric import Standing

    def say(line: str) -> None:
        print(line, flush=True)  # whoever waits for a line reads a pipe

    settings = settings_of(
        engine, roots=roots, weights=weights, lmc=lmc, priority=priority, qos_options=qos_options
    )
    if run and sm == Manager.none:
        message = "got --run with --sm none, expected the tables of a manager first: type 'run' at the --console"
        raise ConfigError(message, key="--run")
    inside = None
    if run or (console and has_job(cluster)):
        from fabrictwin.runs.inside import Inside

        inside = Inside(cluster)
    endpoint = open_endpoint(cluster) if inside is None else inside.endpoint
    standing = Standing(
        endpoint,
        name=socket,
        udp_port=udp,
        manage=sm == Manager.auto,
        host=host,
        settings=partitioned(settings, partitions, endpoint, host),
        guid2lid=guid2lid,
        console=console,
        say=say,
    )
    if inside is not None:
        job = inside
        standing.commands["run"] = lambda: job.say([one.manager for one in standing.managers])
        standing.first = standing.commands["run"] if run else None
    standing.run()
