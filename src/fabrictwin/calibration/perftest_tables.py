"""perftest's output as it prints it, or as the twin's `--json` has it: tests, their settings and rows.

Both ends may be in one file, and several tests. A row is the time that a message took: the typical latency, or one
over the rate of messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.tools.perftest.perftest_options import CONNECTIONS, TESTS

_TITLE = re.compile(r"(RDMA_Write|RDMA_Read|Send|Atomic)(?: \w+)*? (BW|Latency) Test")
_VERBS = {"RDMA_Write": "write", "RDMA_Read": "read", "Send": "send", "Atomic": "atomic"}
_SETTINGS = {
    "queue_pairs": re.compile(r"Number of qps\s*:\s*(\d{1,6})"),
    "tx_depth": re.compile(r"TX depth\s*:\s*(\d{1,6})"),
    "mtu": re.compile(r"Mtu\s*:\s*(\d{1,6})"),
    "inline": re.compile(r"Max inline data\s*:\s*(\d{1,6})"),
}
_CONNECTION = re.compile(r"Connection type\s*:\s*(\w+)")
_COLUMN = re.compile(r"#\w+|[\w.%]+(?: [\w.%]+)?\[[^\]]{1,20}\]|tps average")
LARGEST_MESSAGE = 1 << 31
_TIMES = ("t_typical", "t_avg")  # the first that a table has
OPENS = re.compile(rb"(?:RDMA_Write|RDMA_Read|Send|Atomic)[\w ]{0,40} (?:BW|Latency) Test")


@record
class PerftestRows:
    """One test: program, settings that its header has, and (bytes, us a message) of each row."""

    test: str
    settings: tuple[tuple[str, int | str | bool], ...]
    rows: tuple[tuple[int, float], ...]

    @property
    def latency(self) -> bool:
        return self.test.endswith("lat")


def read_text(raw: bytes, path: Path) -> list[PerftestRows]:
    """Return the tests of a file. Raises ConfigError for a figure that is none, and where there are no rows."""
    found: list[PerftestRows] = []
    for title, lines in _tests(raw.decode(errors="replace")):
        settings: dict[str, int | str | bool] = {}
        columns: list[str] = []
        rows: dict[int, float] = {}
        for number, line in lines:
            settings |= _settings(line)
            if "#bytes" in line:
                columns = [column.partition("[")[0].lower() for column in _COLUMN.findall(line)]
            elif columns and line.split() and line.split()[0].isdigit():
                row = _row(columns, line.split(), path, number)
                if row is not None:
                    rows.setdefault(*row)
        if rows:
            verb, kind = title
            test = f"ib_{_VERBS[verb]}_{'lat' if kind == 'Latency' else 'bw'}"
            if test.endswith("lat"):
                settings.pop("tx_depth", None)  # one request is outstanding
            if "read" in test or "atomic" in test:
                settings.pop("inline", None)
            found.append(PerftestRows(test, tuple(settings.items()), tuple(rows.items())))
    if not found:
        raise ConfigError("got perftest's header and no row of its table", file=path)
    return found


def _tests(text: str) -> Iterator[tuple[tuple[str, str], list[tuple[int, str]]]]:
    """Yield (title, numbered lines) of every test; the header of the other end begins none."""
    title: tuple[str, str] | None = None
    lines: list[tuple[int, str]] = []
    rows = False
    for number, line in enumerate(text.splitlines(), 1):
        match = _TITLE.search(line)
        if match is not None and (title != (match[1], match[2]) or rows):
            if title is not None:
                yield title, lines
            title, lines, rows = (match[1], match[2]), [], False
        rows |= line.strip()[:1].isdigit()
        lines.append((number, line))
    if title is not None:
        yield title, lines


def _settings(line: str) -> dict[str, int | str | bool]:
    found: dict[str, int | str | bool] = {
        name: int(match[1]) for name, pattern in _SETTINGS.items() if (match := pattern.search(line)) is not None
    }
    match = _CONNECTION.search(line)
    if match is not None and match[1] in CONNECTIONS:
        found["connection"] = match[1]
    if " Bidirectional " in line and " Test" in line:
        found["bidirectional"] = True
    if "cuda" in line.lower():
        found["gpu"] = 0
    return found


def _row(columns: list[str], cells: list[str], path: Path, number: int) -> tuple[int, float] | None:
    """(bytes, us a message); None where the table has neither a time nor a rate."""
    try:
        named = {name: float(cell) for name, cell in zip(columns, cells, strict=False)}
        size = int(named.get("#bytes", 0))
    except (ValueError, OverflowError):
        raise ConfigError(f"got {' '.join(cells)[:60]!r}, expected figures", file=path, line=number) from None
    rate = named.get("msgrate", 0.0)
    time = next((named[name] for name in _TIMES if name in named), 1 / rate if rate > 0 else 0.0)
    return (size, time) if 0 < size <= LARGEST_MESSAGE and 0 < time < 1e9 else None


def read_json(data: dict[str, Any], path: Path) -> list[PerftestRows]:
    """Return the test of the twin's own JSON. Raises ConfigError."""
    info, results = data.get("test_info"), data.get("results")
    test = info.get("test") if isinstance(info, dict) else None
    if test not in TESTS or not isinstance(results, list):
        raise ConfigError(f"got a test {test!r}, expected one of {', '.join(TESTS)} with its results", file=path)
    assert isinstance(info, dict)
    rows: dict[int, float] = {}
    for one in results:
        try:
            size = int(one["MsgSize"])
            time = float(one["t_typical"]) if test.endswith("lat") else 1 / float(one["MsgRate"])
        except (KeyError, TypeError, ValueError, ArithmeticError):
            message = f"got row {len(rows)} of results, expected MsgSize and t_typical or MsgRate above 0"
            raise ConfigError(message, file=path) from None
        if 0 < size <= LARGEST_MESSAGE and 0 < time < 1e9:
            rows[size] = time
    if not rows:
        raise ConfigError("got no results, expected rows of a table", file=path)
    settings: dict[str, int | str | bool] = {}
    for name, key in (("queue_pairs", "Number_of_qps"), ("mtu", "MTU")):
        given = info.get(key)
        if isinstance(given, int) and 0 < given < LARGEST_MESSAGE:
            settings[name] = given
    inline = info.get("Max_inline_data")
    if isinstance(inline, int) and 0 <= inline < LARGEST_MESSAGE and "read" not in test and "atomic" not in test:
        settings["inline"] = inline
    if isinstance(connection := info.get("Connection_type"), str) and connection in CONNECTIONS:
        settings["connection"] = connection
    if info.get("Bidirectional"):
        settings["bidirectional"] = True
    return [PerftestRows(test, tuple(settings.items()), tuple(rows.items()))]
