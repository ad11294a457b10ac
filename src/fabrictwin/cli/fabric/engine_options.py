"""What a routing engine is told on the command line, as one argument `given` of a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fabrictwin.base.records import record
from fabrictwin.cli.options import LANES, LMC, ROOTS, WEIGHTS, file

if TYPE_CHECKING:
    from fabrictwin.routing.engines.routing_options import Options


@record
class EngineOptions:
    """Numbers, and the files that lists are read from."""

    roots: Path | None
    weights: Path | None
    lmc: int | None
    lanes: int | None
    guid_routing_order: Path | None
    scatter_ports: int | None
    cn_guids: Path | None
    io_guids: Path | None

    def read(self, base: Options | None = None) -> Options:
        """Options that an engine takes; those of `base` where none was typed. Raises ConfigError."""
        from dataclasses import replace

        from fabrictwin.routing.engines.routing_options import Options, read_guids, read_weights

        given: dict[str, Any] = {
            "roots": read_guids(self.roots) if self.roots else None,
            "weights": read_weights(self.weights) if self.weights else None,
            "lmc": self.lmc,
            "lanes": self.lanes,
            "order": read_guids(self.guid_routing_order) if self.guid_routing_order else None,
            "scatter": self.scatter_ports,
            "compute": read_guids(self.cn_guids) if self.cn_guids else None,
            "storage": read_guids(self.io_guids) if self.io_guids else None,
        }
        return replace(base or Options(), **{key: value for key, value in given.items() if value is not None})


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
