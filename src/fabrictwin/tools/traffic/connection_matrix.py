"""Traffic patterns in htsim's connection-matrix format.

    Nodes 128
    Connections 2
    Triggers 1
    9->92 id 1 start 0 size 65536 send_done_trigger 1
    9->49 id 2 trigger 1 size 65536
    trigger id 1 oneshot

Sizes are bytes, starts are picoseconds. A flow names the trigger that starts it and the one that fires when its
last acknowledgement is in. A oneshot trigger starts all its flows at once; a multishot one starts one more, in
the file's order, each time that a flow fires it; a barrier starts all when so many have fired it. `prio` is the
flow's service level, on Ethernet its priority; without it the options' (facts of the
format, from csg-htsim's `connection_matrix.cpp` and `trigger.cpp`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from fabrictwin.base.errors import ConfigError, did_you_mean, quoted
from fabrictwin.base.records import record
from fabrictwin.base.textfile import read_text
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.fabric.fabric import I32, I64, NONE

_KEYS = ("id", "start", "trigger", "size", "send_done_trigger", "recv_done_trigger", "prio")
_TRIGGERS = ("oneshot", "multishot", "barrier")
_LARGEST = 1 << 40
_MOST = {"prio": 15}  # a service level


@record
class Trigger:
    """A trigger that starts flows: `kind` oneshot, multishot or barrier (of `count`)."""

    kind: str
    count: int = 0


@record
class Traffic:
    """F flows as columns."""

    nodes: int
    source: I32
    destination: I32
    size_bytes: I64
    start_ps: I64  # NONE where a trigger starts it
    trigger: I32  # NONE where none does
    send_done: I32  # trigger fired by the sender's last acknowledgement, NONE
    receive_done: I32  # trigger fired by the receiver's last byte, NONE
    triggers: dict[int, Trigger]
    level: I32 | None = None  # service level, NONE where the options say; None: of all

    def __len__(self) -> int:
        return len(self.source)

    @property
    def levels(self) -> I32:
        """Service levels [F], NONE where the options say."""
        return np.full(len(self), NONE, np.int32) if self.level is None else self.level


def _number(text: str, what: str, path: Path, line: int, largest: int = _LARGEST) -> int:
    number = whole_or_none(text, most=largest)
    if number is None:
        raise ConfigError(
            f"got {quoted(text)}, expected a whole number up to {largest}", file=path, line=line, key=what
        )
    return number


def read_traffic(path: str | Path) -> Traffic:
    """Read a connection matrix. Raises ConfigError with file, line and key."""
    path = Path(path)
    head: dict[str, int] = {}
    rows: list[tuple[int, dict[str, int]]] = []
    triggers: dict[int, Trigger] = {}
    for number, text in enumerate(read_text(path).splitlines(), 1):
        words = text.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] in ("Nodes", "Connections", "Triggers", "Failures"):
            if len(words) != 2:
                raise ConfigError(f"got {text!r}, expected '{words[0]} N'", file=path, line=number)
            head[words[0]] = _number(words[1], words[0], path, number)
        elif words[0] == "trigger":
            key, trigger = _trigger(words, path, number)
            if key in triggers:
                raise ConfigError(f"got trigger {key} twice", file=path, line=number)
            triggers[key] = trigger
        else:
            rows.append((number, _flow(words, path, number)))
    _check(path, head, rows, triggers)

    def column(key: str, kind: Any) -> Any:
        return np.array([row.get(key, NONE) for _, row in rows], kind)

    return Traffic(
        nodes=head["Nodes"],
        source=column("source", np.int32),
        destination=column("destination", np.int32),
        size_bytes=column("size", np.int64),
        start_ps=column("start", np.int64),
        trigger=column("trigger", np.int32),
        send_done=column("send_done_trigger", np.int32),
        receive_done=column("recv_done_trigger", np.int32),
        level=column("prio", np.int32),
        triggers=triggers,
    )


def _check(
    path: Path, head: dict[str, int], rows: list[tuple[int, dict[str, int]]], triggers: dict[int, Trigger]
) -> None:
    """Refuse a file whose parts do not fit together. Raises ConfigError."""
    for name in ("Nodes", "Connections"):
        if name not in head:
            raise ConfigError(f"got no line '{name} N', expected one at the top", file=path, line=1, key=name)
    if len(rows) != head["Connections"]:
        raise ConfigError(f"got {len(rows)} flows, expected {head['Connections']}", file=path, key="Connections")
    if not rows:
        raise ConfigError("got no flows: a run that moves nothing answers nothing", file=path)
    for number, row in rows:
        for end in ("source", "destination"):
            if row[end] >= head["Nodes"]:
                raise ConfigError(
                    f"got node {row[end]}, expected one of the {head['Nodes']} nodes from 0",
                    file=path,
                    line=number,
                )
        for use in ("trigger", "send_done_trigger", "recv_done_trigger"):
            if use in row and row[use] not in triggers:
                raise ConfigError(
                    f"got trigger {row[use]}, which no line defines", file=path, line=number, key=use
                )


def _trigger(words: list[str], path: Path, line: int) -> tuple[int, Trigger]:
    if len(words) < 4 or words[1] != "id":
        raise ConfigError(f"got {' '.join(words)!r}, expected 'trigger id N oneshot'", file=path, line=line)
    key = _number(words[2], "id", path, line, 2**31 - 1)
    kind = words[3]
    if kind not in _TRIGGERS:
        raise ConfigError(
            f"got {kind!r}, expected one of {', '.join(_TRIGGERS)}{did_you_mean(kind, _TRIGGERS)}",
            file=path,
            line=line,
            key="trigger",
        )
    count = 0
    if kind == "barrier":
        if len(words) < 5:
            raise ConfigError("got a barrier without a count, expected 'barrier N'", file=path, line=line)
        count = _number(words[-1], "barrier", path, line)
    return key, Trigger(kind, count)


def _flow(words: list[str], path: Path, line: int) -> dict[str, int]:
    ends = re.fullmatch(r"(\d+)->(\d+)", words[0])
    if ends is None:
        raise ConfigError(
            f"got {words[0]!r}, expected a flow such as '3->7', or trigger, Nodes, Connections, Triggers",
            file=path,
            line=line,
        )
    row = {
        "source": _number(ends[1], "source", path, line, 2**31 - 1),
        "destination": _number(ends[2], "destination", path, line, 2**31 - 1),
    }
    if row["source"] == row["destination"]:
        raise ConfigError(f"got a flow from node {row['source']} to itself", file=path, line=line)
    if len(words) % 2 == 0:
        raise ConfigError(f"got {words[-1]!r} without a value", file=path, line=line, key=words[-1])
    for key, value in zip(words[1::2], words[2::2], strict=True):
        if key not in _KEYS:
            raise ConfigError(
                f"got {key!r}, expected one of {', '.join(_KEYS)}{did_you_mean(key, _KEYS)}", file=path, line=line
            )
        row[key] = _number(value, key, path, line, 2**31 - 1 if "trigger" in key else _MOST.get(key, _LARGEST))
    if "size" not in row:
        raise ConfigError("got a flow without a size", file=path, line=line, key="size")
    if ("start" in row) == ("trigger" in row):
        raise ConfigError("got a flow with neither or both of start and trigger", file=path, line=line)
    return row
