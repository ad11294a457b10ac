"""What a reader could not take: kept for the rules, so that one wrong value hides no other."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fabrictwin.base.errors import quoted
from fabrictwin.base.records import record
from fabrictwin.base.whole_numbers import whole_or_none


@record
class Problem:
    """A value that is not what its place takes. `kind`: range, reference, syntax, conflict or twice."""

    kind: str
    file: str
    line: int | None
    key: str
    message: str


@dataclass
class Problems:
    """The problems of one file, in the order in which they were met."""

    file: str
    found: list[Problem] = field(default_factory=list)

    def add(self, kind: str, key: str, message: str, line: int | None = None) -> None:
        """Keep a problem."""
        self.found.append(Problem(kind, self.file, line, key, message))

    def number(self, text: object, key: str, *, most: int, least: int = 0, line: int | None = None) -> int | None:
        """Return a whole number in its range; None, and a problem, for anything else."""
        value = None
        if isinstance(text, str):
            value = -(whole_or_none(text[1:], most=-least) or 10**9) if text[:1] == "-" and least < 0 else None
            if value is None or value < least:
                value = whole_or_none(text, least=max(least, 0), most=most)
        elif isinstance(text, int) and not isinstance(text, bool) and least <= text <= most:
            value = text
        if value is None:
            self.add("range", key, f"got {quoted(text)}, expected a number from {least} to {most}", line)
        return value

    def priorities(self, text: object, key: str, line: int | None = None) -> frozenset[int]:
        """Return the priorities of `3,4`; what is none is a problem."""
        parts = [part.strip() for part in str(text).split(",")] if isinstance(text, str) else []
        if not isinstance(text, str):
            self.add("syntax", key, f"got {quoted(text)}, expected priorities such as '3,4'", line)
        numbers = (self.number(part, key, most=7, line=line) for part in parts if part)
        return frozenset(value for value in numbers if value is not None)

    def switches(self, text: str, key: str, line: int | None = None) -> frozenset[int] | None:
        """Return the priorities of eight bits, `0,0,0,1,0,0,0,0`; None, and a problem, for anything else."""
        parts = [part.strip() for part in text.split(",")]
        if len(parts) != 8 or any(part not in ("0", "1") for part in parts):
            self.add("syntax", key, f"got {quoted(text)}, expected eight of 0 and 1 with commas", line)
            return None
        return frozenset(priority for priority, part in enumerate(parts) if part == "1")

    def eight(self, text: str, key: str, *, most: int, line: int | None = None) -> tuple[int, ...]:
        """Return eight numbers with commas; an empty tuple, and a problem, for anything else."""
        parts = [part.strip() for part in text.split(",")]
        values = [self.number(part, key, most=most, line=line) for part in parts]
        if len(parts) != 8:
            self.add("syntax", key, f"got {len(parts)} numbers, expected eight", line)
        if len(parts) != 8 or None in values:
            return ()
        return tuple(value for value in values if value is not None)

    def length_m(self, text: object, key: str, line: int | None = None) -> int | None:
        """Return the metres of `40m`; None, and a problem, for anything else."""
        found = re.fullmatch(r"(\d{1,6})m", text) if isinstance(text, str) else None
        if found is None:
            self.add("syntax", key, f"got {quoted(text)}, expected metres such as '40m'", line)
            return None
        return int(found[1])
