"""Shapes of lines: what stays of a line without its numbers and its names, so that lines of one message are one.

Logs of many hosts hold the same few messages with other names in them. A word stays where it is one of the
vocabulary of all patterns that lines are held against, or holds such a word; any other is a name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache

from fabrictwin.diagnosis.mechanisms.table import mechanisms
from fabrictwin.diagnosis.readers.registry import FAMILIES

LONGEST = 700  # of a line, of which a shape is made
MOST_WORDS = 200_000  # that are remembered
PREFIX = 4  # letters by which words within words are found
_ESCAPES = re.compile(r"\\[A-Za-z]")
_LETTERS = re.compile(r"[A-Za-z]{2,}")
_NUMBERS = re.compile(r"[0-9][0-9A-Za-z]*")  # hexadecimals and counts with their units, too
_WORDS = re.compile(r"([A-Za-z]+)(0?)")


class LineShapes(dict[str, str]):
    """Shapes of lines; as a dictionary, words between blanks with what stays of each."""

    def __init__(self, sources: Iterable[str]) -> None:
        """Take patterns, in whose `sources` the vocabulary stands."""
        super().__init__()
        self.vocabulary, self._within = _vocabulary(tuple(sources))
        self._last, self._shape = "", ""

    def of(self, text: str) -> str:
        """Return the shape of a line."""
        if text is not self._last:
            self._last = text
            self._shape = " ".join(map(self.__getitem__, _NUMBERS.sub("0", text[:LONGEST]).split(" ")))
        return self._shape

    def __missing__(self, word: str) -> str:
        if word.isascii() and word.isalpha():  # as most are: no need to look for letters within
            stays = self._stays(word)
        else:
            stays = _WORDS.sub(lambda found: self._stays(found[1], found[2]), word)
        if len(self) < MOST_WORDS:
            self[word] = stays
        return stays

    def _stays(self, letters: str, number: str = "") -> str:
        """Return what stays of letters and the number behind them: a name and its number are one."""
        if len(letters) == 1 or not self._knows(letters.lower()):
            return number or (letters if len(letters) == 1 else "w")
        return letters + number

    def _knows(self, letters: str) -> bool:
        if letters in self.vocabulary:
            return True
        get, starts = self._within.get, letters.startswith
        for at in range(len(letters) - PREFIX + 1):
            words = get(letters[at : at + PREFIX])
            if words is not None and starts(words, at):
                return True
        return False


@cache
def _vocabulary(sources: tuple[str, ...]) -> tuple[frozenset[str], dict[str, tuple[str, ...]]]:
    """Return the words of patterns, and the longer ones by how they begin."""
    found = {word.lower() for one in sources for word in _LETTERS.findall(_ESCAPES.sub(" ", one))}
    within: dict[str, list[str]] = defaultdict(list)
    for word in sorted(found):
        if len(word) >= PREFIX:
            within[word[:PREFIX]].append(word)
    return frozenset(found), {prefix: tuple(words) for prefix, words in within.items()}


@cache
def pattern_sources() -> tuple[str, ...]:
    """Patterns of all mechanisms and of the beginnings of all formats."""
    return (*(line for one in mechanisms() for line in one.lines), *(family.opens for family in FAMILIES))
