"""Evidence: what files say, each with the file and line where it stands.

A fact has a kind (`nccl.hca`, `port.counter`, ...), the thing it is about, and a value. Facts that repeat are kept
once and counted, so that a log of a gigabyte leaves a few thousand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fabrictwin.base.errors import shortened

LONGEST_QUOTE = 240  # of a line
MOST_OF_A_KIND = 100_000

Scalar = str | int | float | bool | None
Value = Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, as it was seen."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Subject:
    """The thing that a fact is about; what is not known is empty or -1."""

    host: str = ""
    rank: int = -1
    device: str = ""
    port: str = ""

    def __str__(self) -> str:
        parts = [self.host, f"rank {self.rank}" if self.rank >= 0 else "", self.device]
        text = " ".join(part for part in parts if part)
        return f"{text}/{self.port}" if self.port else text


NOTHING = Subject()


@dataclass(slots=True)
class Fact:
    """A thing that was read. `place` is where it stood first, `count` how often it stood."""

    kind: str
    subject: Subject
    value: Value
    place: Place
    count: int = 1

    @property
    def text(self) -> str:
        """The value as text."""
        return str(self.value)

    @property
    def number(self) -> float:
        """The value as a number; 0 where it is none."""
        return float(self.value) if isinstance(self.value, int | float) else 0.0

    @property
    def parts(self) -> tuple[Scalar, ...]:
        """The value as a tuple."""
        return self.value if isinstance(self.value, tuple) else (self.value,)


class Evidence:
    """Facts by kind, in the order in which they were read."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Subject, Value], Fact] = {}
        self._kinds: dict[str, list[Fact]] = defaultdict(list)
        self.unread: list[tuple[str, str]] = []  # files that no reader knows, and why
        self.read: list[tuple[str, tuple[str, ...]]] = []  # files and the families found in them
        self.touched: list[Fact] = []  # facts that were kept or counted since somebody emptied this

    def add(self, kind: str, value: Value, place: Place, subject: Subject = NOTHING, *, count: int = 1) -> None:
        """Keep a fact, or count it where it is known."""
        if self.again(kind, value, subject, count=count):
            return
        key = (kind, subject, value)
        kept = self._kinds[kind]
        if len(kept) < MOST_OF_A_KIND:
            fact = Fact(kind, subject, value, place, count)
            self._known[key] = fact
            kept.append(fact)
            self.touched.append(fact)

    def again(self, kind: str, value: Value, subject: Subject, *, count: int = 1) -> bool:
        """Count a fact that is known; False where it is not."""
        known = self._known.get((kind, subject, value))
        if known is None:
            return False
        known.count += count
        self.touched.append(known)
        return True

    def of(self, *kinds: str) -> list[Fact]:
        """Facts of these kinds."""
        return [fact for kind in kinds for fact in self._kinds.get(kind, ())]

    def first(self, kind: str) -> Fact | None:
        """The first fact of a kind."""
        return next(iter(self._kinds.get(kind, ())), None)

    def hosts(self) -> list[str]:
        """Names of all hosts that anything is known of, sorted."""
        return sorted({fact.subject.host for facts in self._kinds.values() for fact in facts} - {""})

    def kinds(self) -> Iterator[str]:
        """Kinds of which there are facts."""
        return iter(kind for kind, facts in self._kinds.items() if facts)


class Sink:
    """The end that one file's readers write to."""

    def __init__(self, evidence: Evidence, file: str, *, host: str = "") -> None:
        self.evidence, self.file, self.host = evidence, file, host
        self.number, self.text = 0, ""  # the line that is being read

    def here(self) -> Place:
        """The line that is being read."""
        return Place(self.file, self.number, shortened(self.text.strip(), LONGEST_QUOTE))

    def add(
        self,
        kind: str,
        value: Value,
        subject: Subject | None = None,
        *,
        place: Place | None = None,
        count: int = 1,
    ) -> None:
        """Keep a fact of the line that is being read; of this file's host where nothing else is said."""
        about = Subject(self.host) if subject is None else subject
        if not about.host and self.host:
            about = Subject(self.host, about.rank, about.device, about.port)
        # most facts of a log were there before, and where they stand again is not kept
        if not self.evidence.again(kind, value, about, count=count):
            self.evidence.add(kind, value, place or self.here(), about, count=count)


def places(facts: Iterable[Fact], most: int = 5) -> tuple[Place, ...]:
    """Lines that facts stood in, each once; at most so many."""
    found = dict.fromkeys(fact.place for fact in facts)
    return tuple(found)[:most]
