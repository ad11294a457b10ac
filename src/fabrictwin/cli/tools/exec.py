"""`fabrictwin exec`: run unmodified RDMA programs on the twin's hosts."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

app = typer.Typer(help="Run unmodified RDMA programs on hosts of the twin.")


class Engine(StrEnum):
    packet = "packet"
    flow = "flow"
    analytic = "analytic"


@app.command(context_settings={"allow_interspersed_args": False})
def exec_(
    command: list[str] | None = typer.Argument(
        None, metavar="[--] COMMAND...", help="What to run, and its arguments."
    ),
    host: str | None = typer.Option(None, metavar="NAME", help="The host it runs on; otherwise the first."),
    cluster: Path | None = typer.Option(None, metavar="FILE", help="The cluster whose twin is started for it."),
    twin: Path | None = typer.Option(None, metavar="SOCKET", help="A twin that is up already (fabrictwin up)."),
    every: str | None = typer.Option(
        None, "--all", metavar="COMMAND", help="Run a command on every host; {rank}, {host}, {size} are filled in."
    ),
    hosts: Path | None = typer.Option(None, metavar="FILE", help="Run the commands of lines 'host: command'."),
    engine: Engine = typer.Option(Engine.packet, help="What times messages."),
    messages: Path | None = typer.Option(None, metavar="FILE", help="Write a line of CSV for each message."),
    summary: bool = typer.Option(True, help="Say at the end what crossed the twin, and its modelled times."),
) -> None:
    """Run a program, or one on each host, with the twin's adapters in place of the machine's."""
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.live.exec import own_twin, running_twin

    asked = [name for name, given in (("COMMAND", command), ("--all", every), ("--hosts", hosts)) if given]
    if len(asked) != 1:
        raise ConfigError(
            f"got {' and '.join(asked) or 'nothing to run'}, expected one of COMMAND, --all, --hosts"
        )
    if (cluster is None) == (twin is None):
        raise ConfigError("expected one of --cluster FILE and --twin SOCKET")
    wanted = own_twin.Wanted(tuple(command or ()), host, every, hosts)
    if twin is not None:
        code = running_twin.run(twin, wanted)
    else:
        assert cluster is not None
        code = own_twin.run(cluster, wanted, engine=engine.value, messages=messages, summary=summary)
    raise typer.Exit(code)
