"""Other causes that the same words can come from: second and third guesses beside a finding, less sure than it.

`causes/data/alternatives.yaml` says which message is ambiguous, by the cause that it names first and the words it
was named by, what else leads to it and what to gather to decide. An alternative turns no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from fabrictwin.base.records import record
from fabrictwin.base.yamlfile import read_bundled
from fabrictwin.diagnosis.causes import CAUSES
from fabrictwin.diagnosis.evidence import Evidence
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.mechanisms.table import HARMLESS, causes_of

MOST = (3, 1)  # alternatives of the first finding and of the second
BELOW = 0.05  # an alternative is less sure than its finding by so much at least
SECOND = 0.5  # of how sure a line's second mechanism is, as an alternative to the first


@record
class Ambiguity:
    """A kind of message that several causes lead to."""

    of: frozenset[str]
    lines: tuple[re.Pattern[str], ...]  # of which one stands in what was seen; none where any message counts
    instead: dict[str, float]
    source: str

    def fits(self, finding: Finding, words: str) -> bool:
        """Return true where a finding, seen in `words`, is one of these messages."""
        return finding.id in self.of and (not self.lines or any(line.search(words) for line in self.lines))


@cache
def _tables() -> tuple[tuple[Ambiguity, ...], dict[str, str], dict[str, tuple[str, ...]]]:
    """Return the ambiguities, what tells each alternative apart, and the facts that would have shown it."""
    data: Any = read_bundled("fabrictwin.diagnosis.causes", "alternatives.yaml")
    rows = tuple(
        Ambiguity(
            frozenset(row["of"]),
            tuple(re.compile(line, re.IGNORECASE) for line in row.get("lines", ())),
            row["instead"],
            row["source"],
        )
        for row in data["rows"]
    )
    return rows, data["tells"], {cause: tuple(kinds) for cause, kinds in data["shown"].items()}


def with_alternatives(findings: Sequence[Finding], evidence: Evidence) -> list[Finding]:
    """Return findings, in their order, and what else the first of them can be, before less sure questions."""
    named = {one.id for one in findings} | {below.id for one in findings for below in one.consequences}
    # a question beside an error is less sure than what the error can be
    asked = [one for one in findings if one.severity > Severity.NOTE]
    asked = [one for one in asked if one is asked[0] or one.severity > Severity.QUESTION]
    found: list[Finding] = []
    for one, most in zip(asked, MOST, strict=False):
        others = [other for other in _instead(one, evidence) if other.id not in named][:most]
        named.update(other.id for other in others)
        found += others
    # stable: of equally sure ones the finding's own order
    return sorted([*findings, *found], key=lambda one: (-int(one.severity), _place(one)))


def _place(finding: Finding) -> float:
    return -finding.confidence if finding.severity == Severity.QUESTION else 0.0


def _instead(finding: Finding, evidence: Evidence) -> Iterator[Finding]:
    """Yield what else can be behind a finding, the surest first."""
    rows, tells, shown = _tables()
    layers = "RoCE" if any("RoCE" in str(part) for fact in evidence.of("nccl.hcas") for part in fact.parts) else ""
    words = "\n".join((finding.seen, *(place.text for place in finding.evidence), layers))
    row = next((row for row in rows if row.fits(finding, words)), None)
    guesses = {} if row is None else dict(row.instead)
    for place in finding.evidence[:1]:
        for cause, sure in causes_of(place.text):
            if cause != HARMLESS:
                guesses.setdefault(cause, SECOND * sure)
    source = row.source if row is not None else ""
    most = finding.confidence - BELOW
    allowed = (cause for cause in guesses if cause != finding.id and not _ruled_out(cause, shown, evidence))
    for cause in sorted(allowed, key=lambda name: -guesses[name]):
        yield Finding(
            cause=CAUSES[cause],
            object=finding.object,
            seen=finding.seen,
            expected="",
            confidence=min(guesses[cause], most),
            evidence=finding.evidence[:1],
            hosts=finding.hosts,
            severity=Severity.QUESTION,
            expected_from=source,
            collect=tells.get(cause, ""),
            instead_of=finding.id,
        )


def _ruled_out(cause: str, shown: dict[str, tuple[str, ...]], evidence: Evidence) -> bool:
    """Return true where every host gave the facts that would have told of a cause."""
    told = {fact.subject.host for fact in evidence.of(*shown.get(cause, ()))}
    return bool(told) and set(evidence.hosts()) <= told
