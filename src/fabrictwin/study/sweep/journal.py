"""Points of a sweep that are done, a line each, so that a sweep that was killed goes on where it was.

The first line says which sweep it is: a digest of the spec, its axes and points, and the version. A line that was
being written when the process died has no end, and is cut off. While a process has it open the file is locked.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError, unwritten
from fabrictwin.base.textfile import writing
from fabrictwin.base.version import __version__
from fabrictwin.base.whole_numbers import read_json
from fabrictwin.study.sweep.point import Question, Row
from fabrictwin.study.sweep.samples import Point


def digest(question: Question, points: Sequence[Point]) -> str:
    """A digest of all that decides a sweep's table."""
    told = json.dumps([question.data, question.folder, question.keys, points, __version__], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


class Journal:
    """Rows by place, and the file that each new one is added to."""

    def __init__(self, path: Path, descriptor: int, rows: dict[int, Row]) -> None:
        self._path, self._descriptor = path, descriptor
        self.rows = rows

    def add(self, place: int, row: Row) -> None:
        """Keep a row: in the file at once, in one piece."""
        line = json.dumps([place, row], separators=(",", ":")) + "\n"
        data = line.encode()
        with writing(self._path):
            while data:
                data = data[os.write(self._descriptor, data) :]
        self.rows[place] = row


@contextmanager
def journal(path: Path, question: Question, points: Sequence[Point]) -> Iterator[Journal]:
    """Open the journal of a sweep, with what an earlier run of the same sweep left in it. Raises ConfigError."""
    head = {"fabrictwin": __version__, "sweep": digest(question, points), "points": len(points)}
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise unwritten(error, file=path, key="--out") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a pipe would never end
            raise ConfigError(f"got {str(path)!r}, expected a plain file for the journal", key="--out")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"got {str(path)!r}, which another sweep is writing", key="--out") from None
        with os.fdopen(os.dup(descriptor), "rb") as file:
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        os.ftruncate(descriptor, len(whole))
        rows = _read(path, whole, head)
        if not whole:
            with writing(path):
                os.write(descriptor, json.dumps(head).encode() + b"\n")
        yield Journal(path, descriptor, rows)
    finally:
        os.close(descriptor)


def _read(path: Path, content: bytes, head: dict[str, Any]) -> dict[int, Row]:
    lines = content.splitlines()
    if not lines:
        return {}
    rows: dict[int, Row] = {}
    try:
        if read_json(lines[0].decode()) != head:
            raise ConfigError(
                f"got {str(path)!r}, of another sweep, expected this one's: remove it, or write elsewhere",
                key="--out",
            )
        for number, line in enumerate(lines[1:], 2):
            place, row = read_json(line.decode())
            if not (isinstance(place, int) and 0 <= place < head["points"] and _is_row(row)):
                raise ValueError(f"line {number}")
            rows[place] = row
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"got {str(path)!r}, expected a sweep's journal ({error}): remove it to begin anew", key="--out"
        ) from None
    return rows


def _is_row(row: Any) -> bool:
    """Return true for figures and words by name, which is all that `answer` gives."""
    return isinstance(row, dict) and all(
        isinstance(value, str | int | float) or value is None for value in row.values()
    )
