"""What operators may ask of a routing engine, and the files they write it in.

The files are OpenSM's: a root GUID file has one GUID a line, a port weight file (OpenSM calls it hop weights)
`GUID PORT WEIGHT`. What stands after `#` is a comment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

import numpy as np

from fabrictwin.base.arrays import I32
from fabrictwin.base.errors import ConfigError, quoted
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_text
from fabrictwin.base.whole_numbers import whole, whole_or_none
from fabrictwin.routing.graph.switches import MAX_LMC, Switches

MAX_WEIGHT = 255
MOST_LANES = 15  # virtual lanes for data; VL 15 is management's
DATA_VLS = 8  # what most switches of the field offer


@record
class Options:
    """`roots` are GUIDs of the switches at the top; `weights` what a link counts, by (GUID, port) of its start."""

    roots: tuple[int, ...] = ()
    weights: dict[tuple[int, int], int] = field(default_factory=dict)
    lmc: int = 0
    lanes: int = DATA_VLS  # virtual lanes for data that an engine may use
    order: tuple[int, ...] = ()  # port GUIDs that OpenSM's engines give ports first (guid_routing_order_file)
    scatter: int = 0  # seed by which OpenSM's engines choose among equal ports (scatter_ports); 0: the lowest
    compute: tuple[int, ...] = ()  # port GUIDs of compute nodes (cn_guid_file)
    storage: tuple[int, ...] = ()  # port GUIDs of I/O nodes (io_guid_file)

    def __post_init__(self) -> None:
        for key, got, least, most in (
            ("lmc", self.lmc, 0, MAX_LMC),
            ("lanes", self.lanes, 1, MOST_LANES),
            ("scatter", self.scatter, 0, 2**31 - 1),
        ):
            if not least <= got <= most:
                raise ConfigError(f"got {got}, expected {least} to {most}", key=key)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(read_text(path, errors="replace").splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            yield number, words


def parse_guid(word: str) -> int:
    """A GUID in hex, with or without 0x. Raises ValueError."""
    return whole(word, least=1, most=2**64 - 1, base=16)


def _guid(word: str, *, path: Path, line: int) -> int:
    try:
        return parse_guid(word)
    except ValueError:
        raise ConfigError(
            f"got {quoted(word)}, expected a GUID, such as 0x0c42a103002559fe", file=path, line=line
        ) from None


def read_guids(path: str | Path) -> tuple[int, ...]:
    """GUIDs of a root GUID file, or of any other list of them, in order. Raises ConfigError with file and line."""
    path = Path(path)
    guids: list[int] = []
    for line, words in _lines(path):
        if len(words) != 1:
            raise ConfigError(f"got {' '.join(words)!r}, expected one GUID a line", file=path, line=line)
        guids.append(_guid(words[0], path=path, line=line))
    if not guids:
        raise ConfigError("got no GUID, expected one a line", file=path)
    return tuple(dict.fromkeys(guids))


def read_weights(path: str | Path) -> dict[tuple[int, int], int]:
    """{(GUID, port): weight} of a port weight file. Raises ConfigError with file and line."""
    path = Path(path)
    weights: dict[tuple[int, int], int] = {}
    for line, words in _lines(path):
        if len(words) != 3:
            raise ConfigError(f"got {' '.join(words)!r}, expected GUID PORT WEIGHT", file=path, line=line)
        guid = _guid(words[0], path=path, line=line)
        numbers = []
        for word, what, most in ((words[1], "a port", 254), (words[2], "a weight", MAX_WEIGHT)):
            number = whole_or_none(word, least=1, most=most)
            if number is None:
                raise ConfigError(f"got {quoted(word)}, expected {what} from 1 to {most}", file=path, line=line)
            numbers.append(number)
        if (guid, numbers[0]) in weights:
            raise ConfigError(f"got port {numbers[0]} of {words[0]} twice", file=path, line=line)
        weights[guid, numbers[0]] = numbers[1]
    return weights


def rows_of_guids(switches: Switches, guids: tuple[int, ...], *, key: str) -> I32:
    """Rows of switches by GUID. Raises ConfigError for one that is not there."""
    row = {int(guid): r for r, guid in enumerate(switches.row_guid)}
    for guid in guids:
        if guid not in row:
            raise ConfigError(f"got {guid:#018x}, expected the GUID of a switch of this fabric", key=key)
    return np.array(sorted(row[guid] for guid in guids), np.int32)


def edge_costs(switches: Switches, weights: dict[tuple[int, int], int]) -> I32:
    """[E] what each directed link counts in a path: 1, or its weight."""
    cost = np.ones(len(switches.adjacent_row), np.int32)
    row = {int(guid): r for r, guid in enumerate(switches.row_guid)}
    for (guid, port), weight in weights.items():
        if guid not in row:
            raise ConfigError(f"got {guid:#018x}, expected the GUID of a switch of this fabric", key="weights")
        edge = int(switches.port_edge[row[guid], port])
        if edge >= 0:  # a weight of a port toward a host, or of one without a cable, changes no path
            cost[edge] = weight
    return cost
