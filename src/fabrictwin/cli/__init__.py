"""The command line: one module a command, imported only when it is invoked.

Exit codes: 0 done; 1 the simulation failed (what the simulated hardware reports, or a defect of the twin);
2 what was written is wrong; 130 interrupted. An error is one line on stderr.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperGroup

from fabrictwin.base.errors import FabrictwinError, InvariantError, SimulatedError
from fabrictwin.base.version import __version__

# A command is a module with a Typer `app`, in the folder named here; adding one is one line here.
COMMANDS = {
    "run": ("predict", "Predict what a job gets on a cluster."),
    "plan": ("predict", "Search for the fastest layout of a job that fits."),
    "validate": ("predict", "Hold predictions against published measurements."),
    "topology": ("fabric", "Show, import or export a cluster."),
    "compare": ("predict", "Which fabric for this job: InfiniBand, RoCE or plain Ethernet."),
    "claims": ("predict", "Common statements about these technologies, tested."),
    "jitter": ("predict", "What unevenness costs a job, by size and by source."),
    "cost": ("predict", "The bill of materials, and what a cluster and its job cost."),
    "nccl-tests": ("tools", "all_reduce_perf and its kin: nccl-tests on a cluster."),
    "traffic": ("tools", "Play a traffic pattern over a cluster."),
    "perftest": ("tools", "Bandwidth and latency of RDMA between two hosts, as perftest measures."),
    "pcap": ("tools", "Read a capture of RDMA traffic."),
    "ibv_devinfo": ("tools", "RDMA devices of a host, as ibv_devinfo prints them."),
    "ibstat": ("tools", "Adapters of a host and their ports, as ibstat prints them."),
    "ibdev2netdev": ("tools", "Network interfaces of a host's RDMA devices."),
    "show_gids": ("tools", "GIDs of a host's RDMA devices, RoCE v1 and v2."),
    "cma_roce_mode": ("tools", "Show or set which RoCE a device's connections take."),
    "routes": ("fabric", "Judge forwarding tables, compare two, print them."),
    "sm": ("fabric", "Bring a subnet up with the twin's own manager."),
    "up": ("fabric", "Serve a fabric's management to the real InfiniBand tools."),
    "catalog": ("fabric", "Hardware figures and their sources."),
    "schema": ("fabric", "Print the JSON schema of a spec file, for editors."),
}

OK, FAILED, WRONG = 0, 1, 2
INTERRUPTED = 130  # 128 + SIGINT, as shells count

# the base of all errors in what was typed; Typer carries its own copy of click and exports only the leaves
_UsageError: type[Exception] = cast(Any, typer.BadParameter.__mro__[2])


def _module(command: str) -> str:
    return f"{__name__}.{COMMANDS[command][0]}.{command.replace('-', '_')}"


class LazyGroup(TyperGroup):
    """The root: knows its commands by name and one line, and imports the module of the one that is invoked."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # suggestions for a misspelt name read the keys; get_command fills in the values
        self.commands = cast(Any, dict.fromkeys(COMMANDS))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:
            return None
        command: Any = self.commands[cmd_name]
        if command is None:
            command = typer.main.get_command(import_module(_module(cmd_name)).app)
            command.name = cmd_name
            # completion is installed for the whole program, at the root
            command.params = [p for p in command.params if p.name not in ("install_completion", "show_completion")]
            # plain help like the root's: Rich's panels take as long to import as all the rest
            for part in (command, *getattr(command, "commands", {}).values()):
                part.rich_markup_mode = None
            self.commands[cmd_name] = command
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.commands])


app = typer.Typer(
    cls=LazyGroup,
    name="fabrictwin",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fabrictwin {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True, callback=_version),
) -> None:
    """A digital twin of the network that turns many GPUs into one computer."""


def _say(message: str) -> None:
    print("error: " + " ".join(message.split()), file=sys.stderr)


def _usage(error: Any) -> None:
    """A usage error as one line, with where to look; asked nothing, a command prints its help instead."""
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help(), file=sys.stderr)
        return
    where = f" (see '{context.command_path} --help')" if context is not None else ""
    _say(error.format_message().replace("Value error, ", "").rstrip(".") + where)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        code = typer.main.get_command(app).main(
            args=None if arguments is None else list(arguments), prog_name="fabrictwin", standalone_mode=False
        )
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Abort:
        return INTERRUPTED
    except (SimulatedError, InvariantError) as error:
        _say(f"{'internal: ' if isinstance(error, InvariantError) else ''}{error}")
        return FAILED
    except FabrictwinError as error:
        _say(str(error))
        return WRONG
    except _UsageError as error:
        _usage(error)
        return WRONG
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        # whoever read our output has left; Python would complain once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code if isinstance(code, int) else OK
