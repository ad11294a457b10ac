"""Texts that a regular expression can't match without, and patterns looked for only in lines that hold one.

A pattern is read as the tables of the doctor write them: plain text, escapes, classes, groups, alternatives,
quantifiers, look-around. Each alternative needs the text, or one of the texts of a group, that tells the most. An
index finds these texts in a line by their rarest three letters, so that a line costs its length and not the number
of patterns.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

SHORTEST = 3  # of a text that is looked for before a pattern
MOST_TEXTS = 24  # of one pattern; more tell too little
# in most lines of trouble: a text that is part of one of these tells little
_COMMON = (
    "error",
    "failed",
    "failure",
    "warning",
    "not ",
    "unable",
    "timed out",
    "timeout",
    "invalid",
    "cannot",
    "device",
)
_ZERO_WIDTH = frozenset("bBAZ")
_CLASSES = frozenset("dDwWsS123456789")

Texts = frozenset[str]
# of a class of letters behind its bracket: its first may be a bracket that ends nothing, and so is one behind a \\
_REST_OF_CLASS = re.compile(r"\^?(?:\\.|[^\\])(?:\\.|[^\]\\])*\]", re.DOTALL)
_NOTHING: Texts = frozenset()


def _worth(texts: Texts) -> float:
    """Return how much it tells that one of these texts stands in a line, in letters of the least telling one."""
    if not texts:
        return 0.0
    letters = min(2.0 if any(text in word for word in _COMMON) else float(len(text)) for text in texts)
    return letters - len(texts) / 100


class _Reader:
    """Reads one pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0

    def alternatives(self) -> list[Texts]:
        """Return what each alternative up to the group's end needs; an empty set needs nothing."""
        found = [self._sequence()]
        while self.at < len(self.pattern) and self.pattern[self.at] == "|":
            self.at += 1
            found.append(self._sequence())
        return found

    def _sequence(self) -> Texts:
        best, run = _NOTHING, ""
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            letter, needs = self._atom()
            least = self._least()
            if letter and least != 0:
                run += letter
            if not letter or least is not None:  # a run of letters ends
                best = max(best, _text(run), key=_worth)
                run = ""
            if least != 0:
                best = max(best, needs, key=_worth)
        return max(best, _text(run), key=_worth)

    def _atom(self) -> tuple[str, Texts]:
        """Take one letter, class or group: the letter that it stands for, and what a group needs."""
        letter = self.pattern[self.at]
        self.at += 1
        if letter == "\\":
            letter = self.pattern[self.at]
            self.at += 1
            return ("" if letter in _ZERO_WIDTH or letter in _CLASSES else letter), _NOTHING
        if letter == "[":
            found = _REST_OF_CLASS.match(self.pattern, self.at)
            assert found is not None, self.pattern
            self.at = found.end()
            return "", _NOTHING
        if letter == "(":
            return "", self._group()
        return ("" if letter in ".^$" else letter), _NOTHING

    def _group(self) -> Texts:
        head = re.compile(r"\?(?::|P<\w+>|[a-z]*-?[a-z]*:|<?[=!])").match(self.pattern, self.at)
        if head is not None:
            self.at = head.end()
        found = self.alternatives()
        self.at += 1
        if head is not None and head[0][-1] in "=!":
            return _NOTHING  # what stands around needs nothing of its own
        return _joined(found)

    def _least(self) -> int | None:
        """Take a quantifier: how often at least; None where there is none."""
        letter = self.pattern[self.at : self.at + 1]
        if not letter or letter not in "?*+{":
            return None
        if letter == "{":
            end = self.pattern.index("}", self.at)
            least = int(self.pattern[self.at + 1 : end].split(",")[0] or 0)
            self.at = end + 1
        else:
            least = 1 if letter == "+" else 0
            self.at += 1
        if self.pattern[self.at : self.at + 1] in ("?", "+"):
            self.at += 1
        return least


def _text(run: str) -> Texts:
    return frozenset((run.lower(),)) if len(run) >= SHORTEST else _NOTHING


def _joined(found: Sequence[Texts]) -> Texts:
    """Return the texts of which one stands in a match of any alternative; none where one needs nothing."""
    joined = _NOTHING.union(*found)
    return joined if all(found) and len(joined) <= MOST_TEXTS else _NOTHING


def needed(pattern: str) -> Texts:
    """Return texts, in lower case, of which each match of `pattern` holds one; none where it may hold none."""
    return _joined(_Reader(pattern).alternatives())


def alternatives(pattern: str) -> list[str]:
    """Alternatives of a pattern that stand outside all groups."""
    reader, found, begin = _Reader(pattern), [], 0
    while reader.at < len(pattern):
        if pattern[reader.at] == "|":
            found.append(pattern[begin : reader.at])
            reader.at += 1
            begin = reader.at
        else:
            reader._atom()
            reader._least()
    return [*found, pattern[begin:]]


class Pattern:
    """A pattern without regard to case, compiled when a line first holds a text that it needs."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.needs = pattern, needed(pattern)

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.IGNORECASE)


class LiteralIndex:
    """Patterns by the texts that they need."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self.patterns = tuple(patterns)
        self._always = [number for number, one in enumerate(self.patterns) if not one.needs]
        users: dict[str, list[int]] = defaultdict(list)
        for number, one in enumerate(self.patterns):
            for text in one.needs:
                users[text].append(number)
        often = Counter(part for text in users for part in _thirds(text))
        parts: dict[str, list[tuple[str, list[int]]]] = defaultdict(list)
        for text, numbers in users.items():
            parts[min(sorted(_thirds(text)), key=often.__getitem__)].append((text, numbers))
        self._parts = dict(parts)

    def first(self, text: str) -> int | None:
        """The number of the first pattern that is found in `text`; None where none is."""
        return next(self.all(text), None)

    def all(self, text: str) -> Iterator[int]:
        """The numbers of the patterns that are found in `text`, in their order."""
        if not text.isascii():  # letters whose cases are not one to one
            asked = range(len(self.patterns))
            yield from (number for number in asked if self.patterns[number].compiled.search(text))
            return
        lower = text.lower()
        needed = set(self._always)
        for part in self._parts.keys() & _thirds(lower):
            for needs, numbers in self._parts[part]:
                if needs in lower:
                    needed.update(numbers)
        yield from (number for number in sorted(needed) if self.patterns[number].compiled.search(text))


def _thirds(text: str) -> set[str]:
    return {text[at : at + SHORTEST] for at in range(len(text) - SHORTEST + 1)}
