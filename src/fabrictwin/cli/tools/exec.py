"""`fabrictwin exec`: run unmodified RDMA programs on the twin's hosts."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from fabrictwin.cli.completion import host_name
from fabrictwin.cli.options import FILE, capture_options, file, written

if TYPE_CHECKING:
    from fabrictwin.base.capabilities import Fidelity
    from fabrictwin.capture.recorder import CaptureRequest
    from fabrictwin.live.clock.pace import ClockName


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, metavar="[--] [COMMAND...]", type=click.UNPROCESSED)
@click.option(
    "--host", shell_complete=host_name, metavar="NAME", help="The host that it runs on; otherwise the first."
)
@click.option("--cluster", type=FILE, metavar="SPEC", help="The cluster whose twin is started for it.")
@click.option("--twin", type=FILE, metavar="SOCKET", help="A twin that is up already (fabrictwin up).")
@click.option(
    "--all",
    "every",
    metavar="COMMAND",
    help="Run a command on every host; {rank}, {host} and {size} are filled in.",
)
@file("--hosts", help="Run the commands of lines 'host: command'.")
@click.option(
    "--engine",
    default="packet",
    type=click.Choice(["packet", "flow", "analytic"]),
    help="What times messages, of a twin that is started.",
)
@click.option(
    "--clock",
    default="real",
    type=click.Choice(["real", "virtual"]),
    help="The machine's, or the twin's own: programs then see modelled time. Of a twin that is started.",
)
@written("--messages", help="Write a line of CSV for each message.")
@click.option("--summary/--no-summary", default=True, help="Say at the end what crossed the twin, and its times.")
@click.option("--netns", is_flag=True, help="Give each host a network namespace with ib0 over the twin (IPoIB).")
@capture_options
@click.pass_context
def exec(
    context: click.Context,
    command: tuple[str, ...],
    host: str | None,
    cluster: Path | None,
    twin: Path | None,
    every: str | None,
    hosts: Path | None,
    engine: str,
    clock: str,
    messages: Path | None,
    summary: bool,
    netns: bool,
    capture: CaptureRequest | None,
) -> None:
    """Run a program, or one on each host, with the twin's adapters in place of the machine's."""
    from fabrictwin.base.errors import ConfigError
    from fabrictwin.live.exec import own_twin, running_twin

    asked = [name for name, given in (("COMMAND", command), ("--all", every), ("--hosts", hosts)) if given]
    if len(asked) != 1:
        got = " and ".join(asked) or "nothing to run"
        raise ConfigError(f"got {got}, expected one of COMMAND, --all, --hosts")
    if host is not None and not command:
        raise ConfigError(f"got --host with {asked[0]}, expected it with a COMMAND", key="--host")
    if (cluster is None) == (twin is None):
        raise ConfigError("expected one of --cluster SPEC and --twin SOCKET")
    if twin is not None and messages is not None:
        raise ConfigError("got --messages with --twin, expected it where the twin is started", key="--messages")
    for key, given in (("--netns", netns), ("--pcap", capture is not None)):
        if twin is not None and given:
            raise ConfigError(f"got {key} with --twin, expected it where the twin is started", key=key)
    if netns and clock != "real":
        raise ConfigError(
            "got 'virtual' with --netns, expected 'real': the kernel's clock is the machine's", key="--clock"
        )
    if twin is not None and clock != "real":
        raise ConfigError("got 'virtual' with --twin, expected it where the twin is started", key="--clock")
    if clock == "virtual" and platform.machine() != "x86_64":
        raise ConfigError(f"got 'virtual' on {platform.machine()}, expected it on x86-64", key="--clock")
    wanted = own_twin.Wanted(command, host, every, hosts)
    if twin is not None:
        code = running_twin.run(twin, wanted)
    else:
        assert cluster is not None
        code = own_twin.run(
            cluster,
            wanted,
            engine=cast("Fidelity", engine),
            clock=cast("ClockName", clock),
            messages=messages,
            summary=summary,
            netns=netns,
            capture=capture,
        )
    context.exit(code)
