"""The table of mechanisms: patterns of messages, by concept, and the cause that each points to.

`data/*.yaml` hold entries of a cause, patterns (`lines`, regular expressions without regard to case), how sure the
cause is (0.9 where nothing is said) and, where it differs from the cause's own, the severity. `harmless` lines are
no trouble although they sound so. Of several patterns that a line matches the surest holds, then the first.
`xid.yaml` holds the GPU driver's numbers.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from fabrictwin.base.yamlfile import read_yaml
from fabrictwin.diagnosis.finding import Severity

FILES = ("nccl", "verbs", "plugins", "gpu", "programs", "launch", "kernel", "areas")
HARMLESS = "harmless"
SURE = 0.9
LONGEST = 600  # of a line, from its first word of trouble on
SHORTEST = 3  # of a text that is looked for before a pattern


@dataclass(frozen=True)
class Mechanism:
    """A cause that messages point to."""

    cause: str
    words: re.Pattern[str]
    sure: float
    severity: Severity | None = None
    needs: tuple[str, ...] = ()  # in lower case: one stands in any line that matches, unless `rest` does
    rest: re.Pattern[str] | None = None  # alternatives that need no text long enough to look for

    def matches(self, text: str, lower: str) -> bool:
        """Return true for a line that the words are found in; `lower` is it in lower case."""
        words = self.words if any(map(lower.__contains__, self.needs)) else self.rest
        return words is not None and words.search(text) is not None


_PLAIN = frozenset(string.ascii_letters + string.digits + " _/-:,'")
_WORD = re.compile(r"\(*(?!\?)[A-Za-z]")


def alternatives(line: str) -> list[str]:
    """Alternatives of a pattern that stand outside all groups."""
    found, depth, at, begin = [], 0, 0, 0
    while at < len(line):
        letter = line[at]
        if letter == "\\":
            at += 1
        elif letter == "[":
            at = line.index("]", at + 2)
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "|" and depth == 0:
            found.append(line[begin:at])
            begin = at + 1
        at += 1
    return [*found, line[begin:]]


def _longest_plain(line: str) -> str:
    """Return the longest run of letters and digits outside groups that a pattern can't match without."""
    runs, depth, at, run = [""], 0, 0, ""
    while at < len(line):
        letter = line[at]
        if letter in "?*{":
            run = run[:-1]  # what may be absent
        if depth == 0 and letter in _PLAIN:
            run += letter
        else:
            runs.append(run)
            run = ""
            if letter == "\\":
                at += 1
            elif letter == "[":
                at = line.index("]", at + 2)
            elif letter == "{":
                at = line.index("}", at)
            elif letter in "()":
                depth += 1 if letter == "(" else -1
        at += 1
    return max(*runs, run, key=len).lower()


def _mechanism(row: dict[str, Any]) -> Mechanism:
    """Return an entry of the table with its patterns compiled."""
    needs = {one: _longest_plain(one) for line in row["lines"] for one in alternatives(line)}
    rest = [one for one, text in needs.items() if len(text) < SHORTEST]
    severity = row.get("severity")
    return Mechanism(
        row["cause"],
        _compiled(row["lines"]),
        float(row.get("sure", SURE)),
        Severity[severity.upper()] if severity else None,
        tuple(sorted({text for text in needs.values() if len(text) >= SHORTEST})),
        _compiled(rest) if rest else None,
    )


def _compiled(lines: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{_bounded(line)})" for line in lines), re.IGNORECASE)


def _bounded(line: str) -> str:
    """Return a pattern whose alternatives begin where a word does: `allocate` is not in `posix_fallocate`."""
    return "|".join(f"(?<![a-z]){one}" if _WORD.match(one) else one for one in alternatives(line))


def _rows(name: str) -> object:
    text = resources.files(__package__).joinpath("data", f"{name}.yaml").read_text(encoding="utf-8")
    return read_yaml(text, f"{name}.yaml")[0]


@cache
def mechanisms() -> tuple[Mechanism, ...]:
    """All mechanisms, the surest first."""
    found: list[Mechanism] = []
    for name in FILES:
        rows = _rows(name)
        assert isinstance(rows, list)
        found += [_mechanism(row) for row in rows]
    return tuple(sorted(found, key=lambda one: -one.sure))


@lru_cache(maxsize=20_000)
def mechanism_of(text: str) -> Mechanism | None:
    """The mechanism that a line points to; None where none knows it."""
    text = text[:LONGEST]
    if not text.isascii():  # letters whose cases are not one to one
        return next((one for one in mechanisms() if one.words.search(text)), None)
    lower = text.lower()
    return next((one for one in mechanisms() if one.matches(text, lower)), None)


@cache
def xids() -> dict[int, str]:
    """The cause of each number of the GPU driver's errors."""
    rows = _rows("xid")
    assert isinstance(rows, dict)
    return {code: cause for cause, codes in rows.items() for code in codes}
