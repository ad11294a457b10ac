"""Prefixes and colours that launchers put before a line, taken off.

mpirun's `[1,3]<stdout>:`, torchrun's `[rank3]:` and `[default3]:`, Ray's and vLLM's `(Worker pid=7, ip=10.0.0.2)`,
Kubernetes' timestamps with `stdout F`, `[pod/name/container]`, Docker Compose's `name-1  |`. Slurm's `3: ` is
taken off where most lines of the file's beginning have one, since other formats number lines so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_ONE = re.compile(
    r"(?:\[\d+,\d+\]<std(?:out|err|diag)>:\s?"
    r"|\[\d+,\d+\]\s?<[\w.-]+>:\s?"
    r"|\[(?:rank|default)\d+\]:\s?"
    r"|\[(?:pod|container)/[^\]\s]+\]\s"
    r"|\([\w.:-]{1,80} (?:pid|ip)=[^)]{1,80}\)\s?"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,]?\d*(?:Z|[+-]\d\d:?\d\d)\s(?:std(?:out|err)\s[FP]\s)?"
    r"|[\w.-]{1,60}-\d+\s+\|\s"
    r")"
)
_SLURM = re.compile(r"\s{0,6}\d{1,6}:(?:\s|$)")
_BEGINS = frozenset("[(0123456789")


def without_colours(text: str) -> str:
    """The line without terminal escapes."""
    return COLOUR.sub("", text) if "\x1b" in text else text


class Prefixes:
    """Takes prefixes off the lines of one file."""

    def __init__(self, head: Sequence[str]) -> None:
        lines = [without_colours(line) for line in head if line.strip()]
        numbered = sum(1 for line in lines if _SLURM.match(line))
        ranks = {line.split(":")[0].strip() for line in lines if _SLURM.match(line)}
        self.slurm = len(lines) >= 3 and numbered >= 0.9 * len(lines) and len(ranks) <= max(1, len(lines) // 2)

    def strip(self, text: str) -> str:
        """The line as the program printed it."""
        text = without_colours(text)
        if self.slurm:
            text = _SLURM.sub("", text, count=1)
        for _ in range(4):
            if not text or (text[0] not in _BEGINS and "|" not in text[:64]):
                break
            found = _ONE.match(text)
            if found is None:
                break
            text = text[found.end() :]
        return text
