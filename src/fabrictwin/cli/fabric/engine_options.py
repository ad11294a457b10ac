"""What a routing engine is told on the command line, as one argument `given` of a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fabrictwin.cli.options import LANES, LMC, ROOTS, WEIGHTS, file

if TYPE_CHECKING:
    from fabrictwin.routing.engines.routing_options import Options


@dataclass(frozen=True)
class EngineOptions:
    """Numbers, and the files that lists are read from."""

    roots: Path | None
    weights: Path | None
    lmc: int
    lanes: int
    guid_routing_order: Path | None
    scatter_ports: int
    cn_guids: Path | None
    io_guids: Path | None

    def read(self) -> Options:
        """Options that an engine takes. Raises ConfigError with file and line."""
        from fabrictwin.routing.engines.routing_options import Options, read_guids, read_weights

        return Options(
            roots=read_guids(self.roots) if self.roots else (),
            weights=read_weights(self.weights) if self.weights else {},
            lmc=self.lmc,
            lanes=self.lanes,
            order=read_guids(self.guid_routing_order) if self.guid_routing_order else (),
            scatter=self.scatter_ports,
            compute=read_guids(self.cn_guids) if self.cn_guids else (),
            storage=read_guids(self.io_guids) if self.io_guids else (),
        )


def _guids(option: str, help_text: str) -> Callable[[Any], Any]:
    return file(option, help=f"{help_text}, one a line (OpenSM's engines).")


_ALL = (
    ROOTS,
    WEIGHTS,
    LMC,
    LANES,
    _guids("--guid-routing-order", "Port GUIDs that are given ports first"),
    click.option(
        "--scatter-ports",
        default=0,
        type=click.IntRange(0, 2**31 - 1),
        metavar="SEED",
        help="Choose among equal ports at random (OpenSM's engines); 0: the lowest.",
    ),
    _guids("--cn-guids", "Port GUIDs of compute nodes"),
    _guids("--io-guids", "Port GUIDs of I/O nodes"),
)


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which takes them as one argument `given`."""
    names = [field.name for field in fields(EngineOptions)]

    @wraps(command)
    def bundled(*arguments: Any, **options: Any) -> None:
        command(*arguments, given=EngineOptions(**{name: options.pop(name) for name in names}), **options)

    for option in reversed(_ALL):
        bundled = option(bundled)
    return bundled
