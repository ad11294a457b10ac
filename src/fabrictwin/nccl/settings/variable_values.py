"""Readers of the text of NCCL's variables, and what is to be said of it.

Numbers go through `strtoll` with the base by prefix, so that `0x10` is 16, `010` is 8, `12abc` is 12 and a word
is 0; levels are names or the numbers from before they had names; lists are in `filters` and `selection`.
"""

from __future__ import annotations

import re

from fabrictwin.base.errors import did_you_mean
from fabrictwin.base.records import record
from fabrictwin.nccl.settings.algorithm_selection import ALGORITHMS, PROTOCOLS, Selection, select
from fabrictwin.nccl.settings.device_filters import DeviceFilter, device_filter
from fabrictwin.nccl.settings.version import Version
from fabrictwin.nccl.topology.graph_types import PathType

LEVELS = tuple(kind for kind in PathType if kind <= PathType.SYS)
# NCCL_P2P_LEVEL=3 and the like, from before levels had names
NUMBERED_LEVELS = (PathType.LOC, PathType.PIX, PathType.PXB, PathType.PHB, PathType.SYS)
# names of NCCL_TUNER_PLUGIN by which NCCL opens the tuner of AWS's network plugin
AWS_TUNERS = ("ofi", "aws-ofi", "libnccl-ofi-tuner.so", "libnccl-tuner-ofi.so", "libnccl-net-ofi.so")
DEBUG_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")
SUBSYSTEMS = (
    "INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY", "NVLS", "BOOTSTRAP",
    "REG", "PROFILE", "RAS", "DESTROY", "ALLOC_HOST",
)  # fmt: skip
_INT64 = 2**63


@record
class Note:
    """Something about a variable that its writer should know."""

    variable: str
    text: str

    def __str__(self) -> str:
        return f"{self.variable}: {self.text}"


class Reading:
    """One variable while it is read: what its value means, and what there is to say of it."""

    def __init__(self, name: str, release: Version) -> None:
        self.name = name
        self.release = release
        self.notes: list[Note] = []

    def note(self, text: str) -> None:
        self.notes.append(Note(self.name, text))

    def integer(self, text: str) -> int | None:
        value = strtoll(text)
        if value is None:
            self.note(f"got {short(text)}, which NCCL finds out of range: its default holds")
        elif not re.fullmatch(r"\s*[-+]?(0[xX][0-9a-fA-F]+|\d+)\s*", text):
            self.note(f"got {short(text)}, which NCCL reads as {value}")
        return value

    def disables(self, text: str) -> bool:
        """NCCL_P2P_DISABLE counts only when it is 1."""
        value = self.integer(text)
        if value not in (0, 1):
            self.note(f"got {short(text)}, which has no effect: only 1 disables")
        return value == 1

    def tuner(self, text: str) -> str:
        """NCCL_TUNER_PLUGIN: a library, its path or the middle of its name."""
        if text.lower() != "none" and text.rpartition("/")[2] not in AWS_TUNERS:
            self.note(f"got {short(text)}, a tuner that the twin does not play: NCCL's own chooses")
        return text

    def level(self, text: str) -> PathType | None:
        for kind in LEVELS:
            if text == kind.name:
                return kind
        if text[:1].isdigit():
            number = strtoll(text)
            number = len(NUMBERED_LEVELS) if number is None else number
            return NUMBERED_LEVELS[min(number, len(NUMBERED_LEVELS) - 1)]
        names = [kind.name for kind in LEVELS]
        self.note(
            f"got {short(text)}, which NCCL does not know and skips, expected one of {', '.join(names)}"
            + did_you_mean(text.upper(), names)
        )
        return None

    def text(self, text: str) -> str:
        return text

    def devices(self, text: str) -> DeviceFilter:
        return device_filter(text)

    def interfaces(self, text: str) -> DeviceFilter | None:
        return device_filter(text) if len(text) > 1 else None  # NCCL passes over a single letter

    def algorithms(self, text: str) -> Selection:
        return self._selection(text, ALGORITHMS)

    def protocols(self, text: str) -> Selection:
        return self._selection(text, PROTOCOLS)

    def _selection(self, text: str, names: tuple[str, ...]) -> Selection:
        result = select(text, names, release=self.release, key=self.name)
        for word in result.skipped:
            hint = did_you_mean(word.lower(), [name.lower() for name in names])
            self.note(f"got {word!r}, which NCCL {self.release} skips, expected {', '.join(names)}{hint}")
        return result

    def debug(self, text: str) -> str | None:
        if text.upper() in DEBUG_LEVELS:
            return text.upper()
        known = ", ".join(DEBUG_LEVELS)
        hint = did_you_mean(text.upper(), DEBUG_LEVELS)
        self.note(f"got {short(text)}, which prints nothing, expected one of {known}{hint}")
        return None

    def subsystems(self, text: str) -> frozenset[str]:
        exclude = text.startswith("^")
        found: set[str] = set()
        for word in text[exclude:].upper().split(","):
            if word == "ALL":
                found.update(SUBSYSTEMS)
            elif word in SUBSYSTEMS:
                found.add(word)
            elif word:
                self.note(f"got {word!r}, which is no subsystem{did_you_mean(word, SUBSYSTEMS)}")
        return frozenset(set(SUBSYSTEMS) - found if exclude else found)

    def thresholds(self, text: str) -> tuple[int, ...]:
        """`sscanf("%ld %ld ...")`: as many of tree's and ring's three as stand there."""
        numbers = []
        for word in text.split()[:6]:
            if not re.match(r"[-+]?\d", word):
                break
            numbers.append(int(re.match(r"[-+]?\d{1,15}", word)[0]))  # type: ignore[index]
        return tuple(numbers)


def strtoll(text: str) -> int | None:
    """C's reading of a whole number with the base by its prefix; None out of 64 bits."""
    found = re.match(r"[ \t\n\v\f\r]*([-+]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)", text)
    if found is None:
        return 0
    digits = found[2]
    if len(digits) > 40:
        return None
    base = 16 if digits[1:2] in ("x", "X") else 8 if digits.startswith("0") else 10
    value = int(digits, base) * (-1 if found[1] == "-" else 1)
    return value if -_INT64 <= value < _INT64 else None


def short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
