"""Texts that a regular expression can't match without, and patterns looked for only in lines that hold one.

A pattern is read as the tables of the doctor write them: plain text, escapes, classes, groups, alternatives,
quantifiers, look-around. Each alternative needs the text, or one of the texts of a group, that tells the most. An
index finds these texts in a line by their rarest three letters, so that a line costs its length and not the number
of patterns. A pattern whose text is there is asked only where one of each other set that it needs is there, too.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

SHORTEST = 3  # of a text that is looked for before a pattern
SHORT = 2  # of one that is looked for where a pattern is asked for already
MOST_TEXTS = 24  # of one pattern; more tell too little
MOST_SETS = 3  # of texts of which a line must hold one each
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

    def __init__(self, pattern: str, shortest: int = SHORTEST) -> None:
        self.pattern, self.at, self.shortest = pattern, 0, shortest
        self.depth = 0  # of groups
        self.every: list[Texts] = []  # what the whole pattern needs, one of each
        self.heads: list[str] = []  # of the group at hand, the letters that each alternative begins with

    def alternatives(self) -> list[Texts]:
        """Return what each alternative up to the group's end needs; an empty set needs nothing."""
        found = [self._sequence()]
        while self.at < len(self.pattern) and self.pattern[self.at] == "|":
            self.at += 1
            found.append(self._sequence())
        self.heads = [head for _, head in found]
        return [needs for needs, _ in found]

    def _sequence(self) -> tuple[Texts, str]:
        """Return what it needs, and the letters that it begins with."""
        best, run = _NOTHING, ""
        head: str | None = None
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            self.heads = []
            letter, needs = self._atom()
            heads, least = self.heads, self._least()
            if letter and least != 0:
                run += letter
            if not letter or least is not None:  # a run of letters ends
                head = run if head is None else head
                best = self._better(best, self._text(run))
                if least != 0:
                    best = self._better(best, self._begun(run, heads))
                run = ""
            if least != 0:
                best = self._better(best, needs)
        return self._better(best, self._text(run)), run if head is None else head

    def _begun(self, run: str, heads: list[str]) -> Texts:
        """Return a run of letters with those that a group goes on with."""
        texts = frozenset((run + head).lower() for head in heads if run)
        return texts if 0 < len(texts) <= MOST_TEXTS and len(min(texts, key=len)) >= self.shortest else _NOTHING

    def _better(self, best: Texts, other: Texts) -> Texts:
        if other and not self.depth:
            self.every.append(other)
        return max(best, other, key=_worth)

    def _text(self, run: str) -> Texts:
        return frozenset((run.lower(),)) if len(run) >= self.shortest else _NOTHING

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
        self.depth += 1
        found = self.alternatives()
        self.depth -= 1
        self.at += 1
        if head is not None and head[0][-1] in "=!":
            self.heads = []
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


def _joined(found: Sequence[Texts]) -> Texts:
    """Return the texts of which one stands in a match of any alternative; none where one needs nothing."""
    joined = _NOTHING.union(*found)
    return joined if all(found) and len(joined) <= MOST_TEXTS else _NOTHING


def needed(pattern: str) -> Texts:
    """Return texts, in lower case, of which each match of `pattern` holds one; none where it may hold none."""
    return _joined(_Reader(pattern).alternatives())


def fewest(texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts of which one stands in a line wherever one of `texts` does."""
    found: list[str] = []
    for text in sorted(texts, key=lambda text: (len(text), text)):
        if not any(map(text.__contains__, found)):
            found.append(text)
    return tuple(found)


def _needed_too(pattern: str, first: Texts) -> tuple[Texts, ...]:
    """Return more sets of texts of each of which a match of `pattern` holds one, the most telling first."""
    reader = _Reader(pattern, SHORT)
    if len(reader.alternatives()) > 1:
        return ()
    others = sorted((texts for texts in dict.fromkeys(reader.every) if texts != first), key=_worth, reverse=True)
    return tuple(others[:MOST_SETS])


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

    @cached_property
    def _too(self) -> tuple[Texts, ...]:
        return _needed_too(self.pattern, self.needs)

    def found(self, text: str, lower: str, held: dict[Texts, bool] | None = None) -> bool:
        """Return true for a text of ASCII letters, also given in lower case, that it matches.

        `held` remembers which sets of texts it holds one of: many patterns need the same.
        """
        held = {} if held is None else held
        for texts in self._too:
            holds = held.get(texts)
            if holds is None:
                holds = held[texts] = any(map(lower.__contains__, texts))
            if not holds:
                return False
        return self.compiled.search(text) is not None


class Guarded:
    """A pattern that is asked only where a line holds a text that it needs."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self._needs = pattern, fewest(needed(pattern))
        self._search = re.compile(pattern).search

    def search(self, text: str) -> re.Match[str] | None:
        """The first match in `text`."""
        if self._needs and text.isascii():  # of other letters some are those of texts in another case
            lower = text.lower()
            if not any(map(lower.__contains__, self._needs)):
                return None
        return self._search(text)


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
        parts: dict[tuple[str, str, str], list[tuple[str, list[int]]]] = defaultdict(list)
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
        held: dict[Texts, bool] = {}
        yield from (number for number in sorted(needed) if self.patterns[number].found(text, lower, held))


def _thirds(text: str) -> set[tuple[str, str, str]]:
    return {*zip(text, text[1:], text[2:], strict=False)}
