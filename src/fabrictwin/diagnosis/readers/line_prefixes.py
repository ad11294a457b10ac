"""Prefixes and colours that launchers put before a line, taken off.

mpirun's `[1,3]<stdout>:`, torchrun's `[rank3]:` and `[default3]:`, Ray's and vLLM's `(Worker pid=7, ip=10.0.0.2)`,
Kubernetes' timestamps with `stdout F`, `[pod/name/container]`, Docker Compose's `name-1  |`, CloudWatch's
`| time |`, a journal's of what runs jobs. Slurm's `3: `, MPICH's `[3] ` and the host names of pdsh, DeepSpeed and
MPI operators (`node-1: `) are taken off where nearly all lines of the file's beginning have one, since other
formats begin lines so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# as terminals get them, and as viewers show them
COLOUR = re.compile(r"(?:\x1b|ESC|\^\[)\[[0-9;?]*[ -/]*[@-~]")
# the same where whoever passed the text on lost the escape
_BARE_COLOUR = re.compile(r"\[(?:[0-9]{1,2}(?:;[0-9]{1,3})*)?m(?!\])")
# one blank at most behind a prefix: a tab is the line's own
_ONE = re.compile(
    r"(?:\[\d+(?:,\d+)?\]<std(?:out|err|diag)>: ?"
    r"|\[\d+,\d+\]\s?<[\w.-]+>: ?"
    r"|\[(?:rank|default|trainer|worker|node)\d+(?:\|\d+)?\]: ?"
    r"|\[(?:pod|container)/[^\]\s]+\]\s"
    r"|\([\w.:-]{1,80}(?: rank=\d+)?,? (?:pid|ip)=[^)]{1,80}\) ?"
    r"|\|?\s?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,]?\d*(?:Z|[+-]\d\d:?\d\d):?\s(?:std(?:out|err)\s[FP]\s|\|\s)?"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3,9}(?: [+-]\d\d:?\d\d)?\s(?!- )"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\]\s"
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?=\[\d+,\d+\])"
    r"|[\w.-]{1,60}-\d+\s+\|\s"
    # of a service's journal, where it runs a job
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ "
    r"(?:python[\d.]*|bash|sh|env|torchrun|docker|vllm|sglang|ray|train|run)(?:\[\d+\])?: "
    r")"
)
_SLURM = re.compile(r"\s{0,6}\d{1,6}:(?:\s|$)|\[\d{1,6}\](?:\s|$)")
_LATER = (
    re.compile(r"\s{0,6}\d{1,6}: (?!\s*\d+:)"),
    re.compile(r"(?:localhost|\d{1,3}(?:\.\d{1,3}){3}|[\w.-]{2,80}(?=: \[(?:rank|default)\d)): "),
)
# ports of ibnetdiscover begin with a number in brackets, too, and a tab
_RANK = re.compile(r"\[\d{1,6}\] |\d{1,6}: ")
FEW_LINES = 3
IN_A_ROW = 12  # lines with ranks of few processes: a launcher has begun to put them there
FEWEST_QUOTED = 6  # lines with a prefix that stand together in a text whose others have none
# no hosts: a driver's name, a level, an exception
_NO_HOST = (
    r"(?!NVRM:|nvidia[\w-]*:|(?i:error|warn(?:ing)?|info|debug|fatal|critical|traceback|success|pass(?:ed)?|fail(?:ed|ure)?|ok):|"
    r"[\w.]*(?:Error|Exception):)"
)
_HOST = re.compile(_NO_HOST + r"(?=[\w.-]*[A-Za-z.])[\w.-]{2,80}:(?:\s|$)")
# Docker Compose's services that have a name of their own
_SERVICE = re.compile(r"[A-Za-z][\w.-]{1,60}\s+\|\s")
_BEGINS = frozenset("[(|0123456789")


def without_colours(text: str) -> str:
    """The line without terminal escapes."""
    if "\x1b" in text or "ESC[" in text or "^[[" in text:
        text = COLOUR.sub("", text)
    return _BARE_COLOUR.sub("", text) if "[0m" in text else text


class Prefixes:
    """Takes prefixes off the lines of one file."""

    def __init__(self, head: Sequence[str]) -> None:
        lines = [without_colours(line) for line in head if line.strip()]
        self.every = next((one for one in (_SLURM, _HOST, _SERVICE) if _nearly_all(one, lines)), None)
        if self.every is None and len(lines) >= FEW_LINES and all(map(_RANK.match, lines)):
            self.every = _SLURM  # many ranks, few lines of each
        if self.every is None and _nearly_all(_SLURM, quoted := _between(_SLURM, lines)):
            self.every = _SLURM if len(quoted) >= FEWEST_QUOTED else None
        # of a launcher within another
        inside = [one for line in lines if (one := without_prefixes(_without(self.every, line)))]
        self.inner = next((one for one in (_SLURM, _SERVICE) if _nearly_all(one, inside)), None)
        self._row: list[str] = []  # prefixes of ranks or hosts, of the last lines

    def strip(self, text: str) -> str:
        """The line as the program printed it."""
        text = without_colours(text)
        if self.every is None:
            self._see(text)
        text = without_prefixes(_without(self.every, text))
        return text if self.inner is None else without_prefixes(_without(self.inner, text))

    def _see(self, text: str) -> None:
        """Look for a launcher that a script starts behind lines of its own."""
        found = next((found for one in _LATER if (found := one.match(text)) is not None), None)
        if found is None:
            self._row.clear()
            return
        self._row.append(found[0])
        if len(self._row) >= IN_A_ROW:
            if len(set(self._row)) <= IN_A_ROW // 2:
                self.every = found.re
            self._row.clear()


def _without(prefix: re.Pattern[str] | None, text: str) -> str:
    return text if prefix is None else prefix.sub("", text, count=1) if prefix.match(text) else text


def without_prefixes(text: str) -> str:
    """The line without the prefixes that tell by themselves what they are."""
    for _ in range(4):
        if not text or (
            text[0] not in _BEGINS and "|" not in text[:64] and text[24:25] != "[" and text[9:10] != ":"
        ):
            break
        found = _ONE.match(text)
        if found is None:
            break
        text = text[found.end() :]
    return text


def _between(pattern: re.Pattern[str], lines: Sequence[str]) -> Sequence[str]:
    """Return lines from the first that begins with a prefix to the last: what somebody quotes in a text."""
    marked = [place for place, line in enumerate(lines) if pattern.match(line)]
    return lines[marked[0] : marked[-1] + 1] if marked else ()


def _nearly_all(pattern: re.Pattern[str], lines: Sequence[str]) -> bool:
    """Return true where nine of ten lines begin with one of few prefixes."""
    found = [match[0] for match in map(pattern.match, lines) if match is not None]
    return (
        len(lines) >= FEW_LINES and len(found) >= 0.9 * len(lines) and len(set(found)) <= max(1, len(lines) // 3)
    )
