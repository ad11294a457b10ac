"""Arguments and options that several commands share, each defined once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

FILE = click.Path(path_type=Path)


class _Seed(click.ParamType[int]):
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


class _Written(click.Path):
    """A file to be written: one that cannot be is refused before anything is computed for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises ConfigError."""
        from fabrictwin.base.textfile import check_can_be_written

        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]
        check_can_be_written(path)
        return path


WRITTEN = _Written(path_type=Path)


class Group(click.Group):
    """A command that holds commands; its help has the first sentence of each whole."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands without cutting what they do at 45 columns, as click would."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=200)) for name, command in commands if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def number(
    *names: str, least: int | None = None, most: int | None = None, default: int | None = None, help: str
) -> Decorator[Any]:
    """An option that takes a whole number, within bounds."""
    return click.option(*names, type=click.IntRange(least, most), default=default, metavar="N", help=help)


def seeded(*, default: int | None = None, help: str) -> Decorator[Any]:
    """The option `--seed`."""
    return click.option("--seed", type=_Seed(), default=default, metavar="N", help=help)


def file(*names: str, metavar: str = "FILE", help: str) -> Decorator[Any]:
    """An option that names a file."""
    return click.option(*names, type=FILE, metavar=metavar, help=help)


def written(*names: str, metavar: str = "FILE", help: str) -> Decorator[Any]:
    """An option that names a file to be written."""
    return click.option(*names, type=WRITTEN, metavar=metavar, help=help)


def repeated(name: str, *, metavar: str, required: bool = False, help: str) -> Decorator[Any]:
    """An option that may be given several times."""
    return click.option(name, multiple=True, required=required, metavar=metavar, help=help)


def fidelity(*choices: str, default: str | None = None, help: str) -> Decorator[Any]:
    """The option `--fidelity` of a command that knows these engines."""
    return click.option("--fidelity", type=click.Choice(choices), default=default, help=help)


def fast_forward(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--fast-forward`, as `run.packet.fast_forward` takes it."""
    return click.option(
        "--fast-forward",
        metavar="SHARE",
        help="Packets: the error that skipping steady steps may make (0.1%), exact, or off; otherwise the spec's.",
    )(command)


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
DATA = file("--data", metavar="DIR", help="The folder of the measurements.")

WORKERS = number("--workers", least=1, most=1024, default=1, help="Processes that work at once.")

PRICES = file("--prices", help="A price book of your own, over the catalog's.")
YEARS = click.option(
    "--years",
    default=4.0,
    type=click.FloatRange(min=0.1, max=30.0),
    metavar="YEARS",
    help="How long the equipment is used.",
)


def study_terms(command: Callable[..., None]) -> Any:
    """Add --prices, --years and --workers to a study, which takes them as one argument `terms`."""

    @wraps(command)
    def bundled(*, prices: Path | None, years: float, workers: int, **others: Any) -> None:
        command(terms={"prices": prices, "years": years, "workers": workers}, **others)

    return PRICES(YEARS(WORKERS(bundled)))


class Study(Protocol):
    """A study's answer."""

    def json(self) -> str: ...
    def save(self, path: str | Path, /) -> Path: ...


def show(found: Study, out: Path | None, *, as_json: bool) -> None:
    """Save a study's page or folder where one is asked for, and print its text or JSON."""
    if out is not None:
        found.save(out)
    click.echo(found.json() if as_json else str(found), nl=False)


_PCAP = written("--pcap", help="Capture packets to a pcapng file.")
_PCAP_AT = repeated(
    "--pcap-at", metavar="NAME", help="Capture at this host or adapter (repeatable); otherwise at all."
)
_SNAPLEN = click.option(
    "--snaplen",
    default=0,
    type=click.IntRange(min=0),
    metavar="BYTES",
    help="Keep so much of each packet; 0: all.",
)


def capture_options(command: Callable[..., None]) -> Any:
    """Add the options of a capture to a command, which takes them as one argument `capture`, or None."""

    @wraps(command)
    def bundled(*, pcap: Path | None, pcap_at: tuple[str, ...], snaplen: int, **others: Any) -> None:
        capture = None
        if pcap is not None:
            from fabrictwin.capture.recorder import CaptureRequest  # with all that a capture needs

            capture = CaptureRequest(pcap, pcap_at, snaplen)
        command(capture=capture, **others)

    return _PCAP(_PCAP_AT(_SNAPLEN(bundled)))


ENGINE = click.option("--engine", default="", metavar="NAME", help="The routing engine; otherwise the spec's.")
ROOTS = file("--roots", help="GUIDs of root switches, one a line.")
WEIGHTS = file("--weights", help="What links count: GUID PORT WEIGHT, one a line.")
LMC = number("--lmc", least=0, most=7, help="Each adapter has 2^LMC LIDs.")
LANES = number("--lanes", least=1, most=15, help="Virtual lanes that an engine may use; otherwise 8.")

QOS_OPTIONS = file("--qos-options", help="qos_max_vls, qos_sl2vl, qos_vlarb_high ..., as opensm.conf has them.")
GUID2LID = file("--guid2lid", help="Keep LIDs in this file.")
PARTITIONS = file("--partitions", help="Partitions, as OpenSM's partitions.conf has them.")
