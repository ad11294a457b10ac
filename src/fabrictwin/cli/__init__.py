"""The command line: one module a command, imported only when it is invoked.

Exit codes: 0 done; 1 the simulation failed (what the simulated hardware reports, or a defect of the twin), or what
it answers cannot be written; 2 what was written is wrong; 130 interrupted. An error is one line on stderr.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click
from click.exceptions import Exit, NoArgsIsHelpError

from fabrictwin.base.errors import (
    FULL,
    ConfigError,
    FabrictwinError,
    InvariantError,
    SimulatedError,
    UnwrittenError,
    did_you_mean,
)
from fabrictwin.base.process.end import end
from fabrictwin.base.process.inherited import start_quickly
from fabrictwin.base.process.interrupt import INTERRUPTED, InterruptGuard, leave
from fabrictwin.base.version import __version__

# Objects made, and not freed, between two searches for cyclic garbage: before the first one, and from then on. A
# command that imports and makes what stays alive to its end needs none; one that works for long does.
_AT_START, _COLLECTED = 300_000, 50_000

# A command is a click command of its own name, in the module named here; adding one is one line here.
COMMANDS = {
    "init": ("predict.init", "Write the bundled examples, to begin with."),
    "warm": ("predict.warm", "Compile the engines before the first run needs them."),
    "run": ("predict.run", "Predict what a job gets on a cluster."),
    "plan": ("predict.plan", "Search for the fastest layout of a job that fits."),
    "calibrate": ("predict.calibrate", "Fit constants to measurements of one's own."),
    "validate": ("predict.validate", "Hold predictions against published measurements."),
    "topology": ("fabric.topology", "Show, import or export a cluster."),
    "serve": ("predict.serve", "Predict what a benchmark of an inference server prints."),
    "compare": ("predict.compare", "Which fabric for this job: InfiniBand, RoCE or plain Ethernet."),
    "ui": ("predict.ui", "A page to play with a cluster and its job, and an HTTP interface."),
    "sweep": ("predict.sweep", "A spec over many values of its keys: a table and a page."),
    "diff": ("predict.diff", "What differs between two runs."),
    "claims": ("predict.claims", "Common statements about these technologies, tested."),
    "jitter": ("predict.jitter", "What unevenness costs a job, by size and by source."),
    "campaign": ("predict.campaign", "Months of a training run: failures, checkpoints, time to train."),
    "cost": ("predict.cost", "The bill of materials, and what a cluster and its job cost."),
    "doctor": ("diagnosis.doctor", "Say what is wrong with a cluster, by what it printed."),
    "expect": (
        "diagnosis.expect",
        "Bandwidths that a cluster's tests should show, as a table or for health checks.",
    ),
    "collect": ("diagnosis.collect", "Write a script that gathers what the doctor reads."),
    "nccl-tests": ("tools.nccl_tests", "all_reduce_perf and its kin: nccl-tests on a cluster."),
    "import-config": (
        "tools.framework_configs",
        "Read a training framework's configuration into a spec's workload.",
    ),
    "import-trace": ("tools.traces", "Read traces of a job that ran elsewhere, to play it on a spec's cluster."),
    "export-trace": ("tools.traces", "Write a captured job as Chakra's traces or GOAL."),
    "capture": ("tools.capture", "Capture a program of PyTorch on a whole cluster, without computing anything."),
    "torchrun": ("tools.torchrun", "Run a program of PyTorch here, with the cluster's time."),
    "traffic": ("tools.traffic", "Play a traffic pattern over a cluster."),
    "perftest": ("tools.perftest", "Bandwidth and latency of RDMA between two hosts, as perftest measures."),
    "sockets": ("tools.sockets", "Bandwidth and latency of TCP sockets between two hosts."),
    "pcap": ("tools.pcap", "Read a capture of RDMA traffic."),
    "ibv_devinfo": ("tools.rdma_tools", "RDMA devices of a host, as ibv_devinfo prints them."),
    "ibstat": ("tools.rdma_tools", "Adapters of a host and their ports, as ibstat prints them."),
    "ibdev2netdev": ("tools.rdma_tools", "Network interfaces of a host's RDMA devices."),
    "show_gids": ("tools.rdma_tools", "GIDs of a host's RDMA devices, RoCE v1 and v2."),
    "cma_roce_mode": ("tools.rdma_tools", "Show or set which RoCE a device's connections take."),
    "routes": ("fabric.routes", "Judge forwarding tables, compare two, print them."),
    "sm": ("fabric.sm", "Bring a subnet up with the twin's own manager."),
    "exec": ("tools.exec", "Run unmodified RDMA programs on hosts of the twin."),
    "up": ("fabric.up", "Serve a fabric's management to the real InfiniBand tools."),
    "configure": ("fabric.configure", "Write the configuration of a cluster's switches, hosts and managers."),
    "lint": ("fabric.lint", "Check configurations of switches, hosts and managers."),
    "catalog": ("fabric.catalog", "Hardware figures and their sources."),
    "schema": ("fabric.schema", "Print the JSON schema of a spec file, for editors."),
}

OK, FAILED, WRONG = 0, 1, 2
PIPE_CLOSED = 128 + signal.SIGPIPE
COMPLETE = "_FABRICTWIN_COMPLETE"  # in the environment: a shell asks for completions


class LazyGroup(click.Group):
    """The root: knows its commands by name and one line, and imports the module of the one that is invoked."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of their help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, from its module; None where there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"{__name__}.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        command.name = cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is typed. Raises UsageError with the nearest name where there is none."""
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}{did_you_mean(args[0], COMMANDS).rstrip('?')}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their lines from `COMMANDS`: help imports none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _show_completion(context: click.Context, _option: click.Parameter, shell: str | None) -> None:
    if shell is not None and not context.resilient_parsing:
        from fabrictwin.cli.completion import script

        click.echo(script(root, shell, COMPLETE), nl=False)
        context.exit()


def _install_completion(context: click.Context, _option: click.Parameter, shell: str | None) -> None:
    if shell is not None and not context.resilient_parsing:
        from fabrictwin.cli.completion import install

        click.echo(install(root, shell, COMPLETE))
        context.exit()


SHELL = click.Choice(["bash", "zsh", "fish"])


@click.group(
    cls=LazyGroup,
    name="fabrictwin",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name="fabrictwin", message="%(prog)s %(version)s")
@click.option(
    "--install-completion",
    type=SHELL,
    is_eager=True,
    expose_value=False,
    callback=_install_completion,
    help="Install completion for a shell.",
)
@click.option(
    "--show-completion",
    type=SHELL,
    is_eager=True,
    expose_value=False,
    callback=_show_completion,
    help="Print the completion of a shell, to be sourced.",
)
def root() -> None:
    """A digital twin of the network that turns many GPUs into one computer."""


def _say(message: str) -> None:
    print("error: " + " ".join(message.split()), file=sys.stderr)


def _usage(error: click.UsageError) -> None:
    """Print a usage error as one line, with where to look; asked nothing, a command prints its help instead."""
    if isinstance(error, NoArgsIsHelpError):
        assert error.ctx is not None
        print(error.ctx.get_help(), file=sys.stderr)
        return
    where = f" (see '{error.ctx.command_path} --help')" if error.ctx is not None else ""
    # the message of a ConfigError: what is typed, however long, is quoted in part
    said = ConfigError(error.format_message().replace("Value error, ", "").rstrip("."))
    _say(said.message + where)


def _complete() -> int:
    from click.shell_completion import shell_complete

    return shell_complete(root, {}, "fabrictwin", COMPLETE, os.environ[COMPLETE])


def _invoke(arguments: list[str]) -> int:
    """Run a command and flush what it printed; the exit code."""
    try:
        with root.make_context("fabrictwin", arguments) as context:
            root.invoke(context)
        code = OK
    except Exit as end:
        code = end.exit_code
    if sys.stdout is not None:
        sys.stdout.flush()
    return code


# Errors of writing that name no file are of stdout: whatever else writes says which file it was.
UNWRITTEN = (errno.EPIPE, *FULL)


def _unwritten(error: OSError) -> int:
    """The exit code where stdout takes nothing more; what is left of the output is discarded."""
    # Python would complain once more when it flushes at exit
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return PIPE_CLOSED
    _say(f"cannot write to stdout: {error.strerror}")
    return FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if arguments is None and COMPLETE in os.environ:
        return _complete()
    guard = InterruptGuard()
    try:
        with guard:
            return _invoke(sys.argv[1:] if arguments is None else list(arguments))
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except (SimulatedError, InvariantError) as error:
        _say(f"{'internal: ' if isinstance(error, InvariantError) else ''}{error}")
        return FAILED
    except FabrictwinError as error:
        _say(str(error))
        return FAILED if isinstance(error, UnwrittenError) else WRONG
    except click.UsageError as error:
        _usage(error)
        return WRONG
    except OSError as error:
        if error.filename is not None and isinstance(error.filename, str | bytes | os.PathLike):
            # a name too long for its file system, a folder that may not be searched: the caller's path
            _say(str(ConfigError(str(error.strerror), file=os.fsdecode(error.filename))))
            return FAILED if error.errno in FULL else WRONG
        if error.errno not in UNWRITTEN:
            raise
        return _unwritten(error)
    except Exception:
        # while classes are made an interrupt comes out as another error (RuntimeError, or of pydantic)
        if guard.interrupted():
            return INTERRUPTED
        raise


def _collect_from_now_on(phase: str, info: dict[str, int]) -> None:
    """Look for garbage more often once a command has shown that it is no short one."""
    if phase == "stop":
        gc.callbacks.remove(_collect_from_now_on)
        gc.set_threshold(_COLLECTED)


def program() -> Any:
    """Be the program `fabrictwin`: as `main`, and die of SIGPIPE where whoever read our output has left."""
    gc.set_threshold(_AT_START)
    gc.callbacks.append(_collect_from_now_on)
    start_quickly()
    code = main()
    if code == INTERRUPTED:
        sys.stderr.flush()
        leave(code)
    if code == PIPE_CLOSED:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    end(code)
    return code
