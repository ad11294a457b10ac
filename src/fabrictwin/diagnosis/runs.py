"""Several runs in one file: how each ended, and which of them a finding is about.

A launch that left neither work nor trouble before the next one (a command for each host, a setting up) is part of
the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fabrictwin.base.records import record
from fabrictwin.diagnosis.evidence import Evidence, Place
from fabrictwin.diagnosis.finding import Finding, Severity

_TROUBLE = ("line.known", "line.unknown", "nccl.warn", "watchdog", "job.failed", "job.exit")
MOST_TOLD = 12


@record
class Run:
    """A run within a file: its lines, its number of how many."""

    begin: int
    end: int
    number: int
    of: int
    worked: bool

    def holds(self, place: Place) -> bool:
        """Return true for a line of this run."""
        return self.begin <= place.line <= self.end


def runs_of(evidence: Evidence) -> dict[str, tuple[Run, ...]]:
    """Return the runs of each file that holds more than one."""
    lines: dict[str, list[int]] = {}
    rows: dict[str, list[int]] = {}
    for kinds, found in ((_TROUBLE, lines), (("bench.row",), rows)):
        for fact in evidence.of(*kinds):
            found.setdefault(fact.place.file, []).append(fact.place.line)
    parts: dict[str, list[tuple[int, int, bool]]] = {}
    for fact in evidence.of("job.run"):
        begin, end, worked = (int(part or 0) for part in fact.parts)
        known = parts.setdefault(fact.place.file, [])
        if known and not known[-1][2] and not _any(lines.get(fact.place.file, ()), *known[-1][:2]):
            begin = known.pop()[0]  # nothing was said of it
        worked_on = bool(worked) or _any(rows.get(fact.place.file, ()), begin, end)
        known.append((begin, end, worked_on))
    return {
        file: tuple(Run(begin, end, place, len(known), on) for place, (begin, end, on) in enumerate(known, 1))
        for file, known in parts.items()
        if len(known) > 1
    }


def _any(lines: Iterable[int], begin: int, end: int) -> bool:
    return any(begin <= line <= end for line in lines)


def with_runs(findings: Iterable[Finding], runs: dict[str, tuple[Run, ...]]) -> list[Finding]:
    """Return findings that say which runs of their file they are about."""
    return [
        replace(one, object=_of_runs(one.object, held)) if (held := _held(one, runs)) else one for one in findings
    ]


def _of_runs(name: str, held: Sequence[Run]) -> str:
    numbers = ", ".join(str(run.number) for run in held)
    about = f"run{'s' if len(held) > 1 else ''} {numbers} of {held[0].of}"
    return f"{name}, {about}" if name else about


def _held(finding: Finding, runs: dict[str, tuple[Run, ...]]) -> list[Run]:
    """Return the runs that hold evidence of a finding; none where not all of it, or where it only slows."""
    known = runs.get(finding.evidence[0].file, ()) if finding.evidence and not finding.cause.slows else ()
    if not all(any(run.holds(place) for run in known) for place in finding.evidence):
        return []
    return [run for run in known if any(map(run.holds, finding.evidence))]


def run_notes(findings: Sequence[Finding], runs: dict[str, tuple[Run, ...]]) -> list[str]:
    """Return a note on each run of files with several: what ended it, or that it worked."""
    roots = [one for one in findings if one.severity > Severity.QUESTION and not one.instead_of]
    ended: dict[int, str] = {}
    for one in roots:
        for run in _held(one, runs):
            ended.setdefault(id(run), one.id)
    notes = []
    for file, known in runs.items():
        for run in known[:MOST_TOLD]:
            how = ended.get(id(run), "worked" if run.worked else "nothing said of its end")
            notes.append(f"{file}: run {run.number} of {run.of}, lines {run.begin} to {run.end}: {how}")
    return notes
