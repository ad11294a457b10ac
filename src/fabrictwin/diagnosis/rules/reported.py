"""The simplest rule: facts that are a finding wherever there are any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fabrictwin.diagnosis.causes import cause
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity, found


def reported(
    facts: Sequence[Fact],
    name: str,
    *,
    seen: str,
    expected: str,
    confidence: float,
    severity: Severity | None = None,
    **rest: str,
) -> Iterator[Finding]:
    """Yield the finding of a cause, by its id, where there are facts.

    `seen` and `expected` are filled in from the first fact: `{0}` is a part of its value, `{text}` and `{number}`
    the whole.
    """
    if facts:
        first = facts[0]
        seen, expected = (t.format(*first.parts, text=first.text, number=first.number) for t in (seen, expected))
        yield found(
            cause(name), facts, seen=seen, expected=expected, confidence=confidence, severity=severity, **rest
        )
