"""Arguments and options that several commands share, each defined once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

FILE = click.Path(path_type=Path)


class _Seed(click.ParamType):
    """A seed, wrong in the same words wherever it is typed."""

    name = "seed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number. Raises ConfigError."""
        from fabrictwin.base.errors import ConfigError, quoted
        from fabrictwin.base.whole_numbers import whole

        try:
            return whole(str(value))
        except ValueError:
            message = f"got {quoted(str(value))}, expected a whole number from 0 to 2^63 - 1"
            raise ConfigError(message, key="--seed") from None


SEED = _Seed()


class Group(click.Group):
    """A command that holds commands; its help has the first sentence of each whole."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands without cutting what they do at 45 columns, as click would."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=200)) for name, command in commands if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def fidelity(*choices: str, default: str | None = None, help: str) -> Decorator[Any]:
    """The option `--fidelity` of a command that knows these engines."""
    return click.option("--fidelity", type=click.Choice(choices), default=default, help=help)


# for commands that read it once, and for those that keep something beside it or read it again
CLUSTER = click.argument(
    "cluster",
    metavar="SPEC",
    help="A spec file, or a file that holds only a cluster; - reads it from stdin.",
)
CLUSTER_FILE = click.argument(
    "cluster", type=FILE, metavar="SPEC", help="A spec file, or a file that holds only a cluster."
)

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
DATA = click.option("--data", type=FILE, metavar="DIR", help="The folder of the measurements.")

PRICES = click.option("--prices", type=FILE, metavar="FILE", help="A price book of your own, over the catalog's.")
YEARS = click.option(
    "--years",
    default=4.0,
    type=click.FloatRange(min=0.1, max=30.0),
    metavar="YEARS",
    help="How long the equipment is used.",
)

PCAP = click.option("--pcap", type=FILE, metavar="FILE", help="Capture packets to a pcapng file.")
PCAP_AT = click.option(
    "--pcap-at",
    multiple=True,
    metavar="NAME",
    help="Capture at this host or adapter (repeatable); otherwise at all.",
)
SNAPLEN = click.option(
    "--snaplen",
    default=0,
    type=click.IntRange(min=0),
    metavar="BYTES",
    help="Keep so much of each packet; 0: all.",
)

ENGINE = click.option("--engine", default="", metavar="NAME", help="The routing engine; otherwise the spec's.")
ROOTS = click.option("--roots", type=FILE, metavar="FILE", help="GUIDs of root switches, one a line.")
WEIGHTS = click.option(
    "--weights", type=FILE, metavar="FILE", help="What links count: GUID PORT WEIGHT, one a line."
)
LMC = click.option("--lmc", default=0, type=click.IntRange(0, 7), metavar="N", help="Each adapter has 2^LMC LIDs.")
LANES = click.option("--lanes", default=8, metavar="N", help="Virtual lanes that an engine may use.")

QOS_OPTIONS = click.option(
    "--qos-options",
    type=FILE,
    metavar="FILE",
    help="qos_max_vls, qos_sl2vl, qos_vlarb_high ..., as opensm.conf has them.",
)
GUID2LID = click.option("--guid2lid", type=FILE, metavar="FILE", help="Keep LIDs in this file.")
PARTITIONS = click.option(
    "--partitions", type=FILE, metavar="FILE", help="Partitions, as OpenSM's partitions.conf has them."
)
