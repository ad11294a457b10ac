"""Errors that people see.

Two kinds: what somebody wrote is wrong (`ConfigError`: file, line, key, what was expected), and what the
simulated hardware reports (`SimulatedError`: an errno or completion status). A third, `InvariantError`, is
ours alone: the simulation broke one of its own laws.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LONGEST_TOKEN = 160  # of what a message quotes
LONGEST_MESSAGE = 2_000
LONGEST_PATH = 400

_LONG_TOKEN = re.compile(rf"\S{{{LONGEST_TOKEN + 1},}}")


def shortened(text: str, most: int = LONGEST_TOKEN) -> str:
    """Return `text` with its middle left out where it is longer than `most`."""
    if len(text) <= most:
        return text
    head = max(most - 23, 1)
    return f"{text[:head]}...{text[-20:]}"


def quoted(value: object, most: int = 60) -> str:
    """Return `value` as a message quotes it: its repr, cut before it is made where it is long."""
    if isinstance(value, str | bytes):
        value = value[: most + 1]
    elif isinstance(value, int) and not -(10**most) < value < 10**most:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


class FabrictwinError(Exception):
    """Base class of everything that fabrictwin raises on purpose."""


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a disk, not of how a file is named


class ConfigError(FabrictwinError):
    """What was written is wrong. Prints as one line: `file:line key: got X, expected Y, did you mean Z`."""

    def __init__(
        self,
        message: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        key: str | None = None,
    ) -> None:
        # whatever a caller quotes, one line that a terminal shows
        self.message = shortened(_LONG_TOKEN.sub(lambda token: shortened(token[0]), message), LONGEST_MESSAGE)
        self.file = None if file is None else str(file)
        self.line = line
        self.key = None if key is None else shortened(key)
        super().__init__(str(self))

    def __str__(self) -> str:
        where = "" if self.file is None else shortened(self.file, LONGEST_PATH)
        if self.line is not None:
            where += f":{self.line}"
        if self.key:
            where += f" {self.key}" if where else self.key
        return f"{where}: {self.message}" if where else self.message

    def within(
        self, *, file: str | Path | None = None, line: int | None = None, key: str | None = None
    ) -> ConfigError:
        """The same error with the place filled in where it was still unknown."""
        return type(self)(
            self.message,
            file=self.file if self.file is not None else file,
            line=self.line if self.line is not None else line,
            key=self.key if self.key is not None else key,
        )


class UnwrittenError(ConfigError):
    """There is no room for what is to be written, which is nobody's mistake in writing a spec or a command."""


def unwritten(error: OSError, *, message: str = "cannot be written", **where: Any) -> ConfigError:
    """Return the error of a file that cannot be written; `where` as `ConfigError` takes it."""
    kind = UnwrittenError if error.errno in FULL else ConfigError
    return kind(f"{message}: {error.strerror or error}", **where)


class SimulatedError(FabrictwinError):
    """What the simulated hardware reports: an errno-like name and the entity that reported it."""

    def __init__(self, status: str, entity: str, detail: str = "") -> None:
        self.status = status
        self.entity = entity
        self.detail = detail
        super().__init__(f"{entity}: {status}" + (f": {detail}" if detail else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        """Take all that it was made of from one process to another."""
        return type(self), (self.status, self.entity, self.detail)


class InvariantError(FabrictwinError):
    """The simulation broke one of its own laws; always a defect of fabrictwin."""


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """`, did you mean 'x'?` for the nearest known name, or an empty string.

    Capital letters count as small ones. What was begun comes first (`h100`: h100-sxm), then what was misspelt,
    then what holds it (`gpu0`: host-0/gpu0).
    """
    if len(got) > LONGEST_TOKEN:
        return ""
    names = {name.lower(): name for name in known}
    got = got.lower()
    begun = [name for name in names if len(got) > 1 and name.startswith(got)]
    misspelt = difflib.get_close_matches(got, names, n=1, cutoff=0.75)
    held = [name for name in names if len(got) > 2 and got in name]
    near = (*begun, *misspelt, *held, *difflib.get_close_matches(got, names, n=1, cutoff=0.5))
    return f", did you mean {names[near[0]]!r}?" if near else ""
