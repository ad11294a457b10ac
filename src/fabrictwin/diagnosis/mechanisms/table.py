"""The table of mechanisms: patterns of messages, by concept, and the cause that each points to.

`data/*.yaml` hold entries of a cause, patterns (`lines`, regular expressions without regard to case), how sure the
cause is (0.9 where nothing is said) and, where it differs from the cause's own, the severity. One that has
`beside` counts where one of these causes was found as well. `harmless` lines are no trouble although they sound
so. An entry with `results` instead of a cause says what names or numbers mean, for which `<result>` stands in its
lines. Of several patterns that a line matches the surest holds, then the first. `xid.yaml` holds the GPU driver's
numbers, `scopes.yaml` says what lines of kernels' drivers and of a switch's daemons can tell of.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from fabrictwin.base.records import record
from fabrictwin.base.yamlfile import read_bundled
from fabrictwin.diagnosis.causes import CAUSES
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.literals import LiteralIndex, Pattern, alternatives, fewest
from fabrictwin.diagnosis.readers.log_levels import level_of

FILES = (
    "nccl", "verbs", "plugins", "gpu", "switches", "programs", "launch", "kernel", "runtime", "concepts",
    "options", "mpi", "results", "checks", "areas",
)  # fmt: skip
HARMLESS = "harmless"
SURE = 0.9
REMAPPED = 63  # of the GPU driver: a row was remapped, as it should be, until the next reset
LONGEST = 1200  # of a line
_WORD = re.compile(r"\(*(?!\?)[A-Za-z]")


@record
class Mechanism:
    """A cause that messages point to."""

    cause: str
    lines: tuple[str, ...]  # patterns, each without alternatives outside its groups
    sure: float
    severity: Severity | None = None
    beside: tuple[str, ...] = ()  # causes of which one must have been found too

    def told(self, words: str, stamp: float) -> tuple[str | float, ...]:
        """Return what a line told of the cause, and when (seconds of a day).

        A fact `line.known` has these and, last, whether the job worked after it.
        """
        severity = self.severity
        if level_of(words) == Severity.NOTE:
            severity = min(CAUSES[self.cause].severity if severity is None else severity, Severity.QUESTION)
        return (
            self.cause,
            words,
            stamp,
            self.sure,
            "" if severity is None else severity.name,
            " ".join(self.beside),
        )


def _of_row(row: dict[str, Any]) -> list[Mechanism]:
    if "results" not in row:
        return [_mechanism(row)]
    return [
        _mechanism(
            row | {"cause": cause, "lines": [one.replace("<result>", f"({values})") for one in row["lines"]]}
        )
        for cause, values in row["results"].items()
    ]


def _mechanism(row: dict[str, Any]) -> Mechanism:
    severity = row.get("severity")
    return Mechanism(
        row["cause"],
        tuple(_bounded(one) for line in row["lines"] for one in alternatives(line)),
        float(row.get("sure", SURE)),
        Severity[severity.upper()] if severity else None,
        tuple(row.get("beside", ())),
    )


def _bounded(alternative: str) -> str:
    """Return a pattern that begins where a word does: `allocate` is not in `posix_fallocate`."""
    return f"(?<![a-z]){alternative}" if _WORD.match(alternative) else alternative


def _rows(name: str) -> object:
    return read_bundled("fabrictwin.diagnosis.mechanisms", f"{name}.yaml")


@cache
def mechanisms() -> tuple[Mechanism, ...]:
    """All mechanisms, the surest first."""
    found: list[Mechanism] = []
    for name in FILES:
        rows = _rows(name)
        assert isinstance(rows, list)
        found += [one for row in rows for one in _of_row(row)]
    found += _quoted_xids()
    return tuple(sorted(found, key=lambda one: -one.sure))


def _quoted_xids() -> list[Mechanism]:
    """Return mechanisms of the GPU driver's errors, as programs quote their numbers."""
    by_cause: dict[tuple[str, Severity | None], list[int]] = {}
    for code, cause in xids().items():
        by_cause.setdefault((cause, Severity.WARNING if code == REMAPPED else None), []).append(code)
    return [
        Mechanism(
            cause,
            (rf"\bXid(criticalerror|error| errors?| event)?( code| number)?\W{{1,3}}({codes})\b(?![.:])",),
            0.92 if severity is None else SURE,
            severity,
        )
        for (cause, severity), numbers in by_cause.items()
        for codes in ["|".join(map(str, numbers))]
    ]


@cache
def _index() -> tuple[LiteralIndex, tuple[Mechanism, ...]]:
    """Return all patterns, those of the surest mechanisms first, and the mechanism of each."""
    rows = [(one, line) for one in mechanisms() for line in one.lines]
    return LiteralIndex(Pattern(line) for _, line in rows), tuple(one for one, _ in rows)


@lru_cache(maxsize=20_000)
def mechanism_of(text: str) -> Mechanism | None:
    """The mechanism that a line points to; None where none knows it."""
    index, owners = _index()
    line = text[:LONGEST]
    scope = _scope(line)
    return next((owners[number] for number in index.all(line) if not scope or owners[number].cause in scope), None)


def causes_of(text: str) -> tuple[tuple[str, float], ...]:
    """Causes that a line points to, each once with how sure it is, the surest first."""
    index, owners = _index()
    line = text[:LONGEST]
    scope = _scope(line)
    found: dict[str, float] = {}
    for number in index.all(line):
        if not scope or owners[number].cause in scope:
            found.setdefault(owners[number].cause, owners[number].sure)
    return tuple(found.items())


@cache
def scopes() -> tuple[tuple[Pattern, frozenset[str]], ...]:
    """Return how lines of drivers and daemons begin that have matters of their own, and the causes of these."""
    rows = _rows("scopes")
    assert isinstance(rows, list)
    return tuple((Pattern(row["head"]), frozenset(row["causes"])) for row in rows)


@cache
def _scope_texts() -> tuple[str, ...]:
    """Return texts of which a line with such a beginning holds one; an empty one where some need none."""
    needs = [head.needs for head, _ in scopes()]
    return fewest(frozenset().union(*needs)) if all(needs) else ("",)


def _scope(line: str) -> frozenset[str]:
    """Return the causes that who says a line can tell of; none where it can be any."""
    lower = line.lower()
    if not any(map(lower.__contains__, _scope_texts())):
        return frozenset()
    for head, causes in scopes():
        if any(text in lower for text in head.needs) and head.compiled.search(line):
            return causes
    return frozenset()


@cache
def xids() -> dict[int, str]:
    """The cause of each number of the GPU driver's errors."""
    rows = _rows("xid")
    assert isinstance(rows, dict)
    return {code: cause for cause, codes in rows.items() for code in codes}


@cache
def sxids() -> dict[int, str]:
    """Meanings of the numbers of NVSwitches' errors, in words."""
    rows = _rows("sxid")
    assert isinstance(rows, dict)
    return {code: words for words, codes in rows.items() for code in codes}
