"""How rules make findings of facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fabrictwin.diagnosis.causes import CAUSES
from fabrictwin.diagnosis.evidence import Fact, places
from fabrictwin.diagnosis.finding import Cause, Finding, Severity


def found(
    cause: str | Cause,
    facts: Iterable[Fact],
    seen: str,
    expected: str,
    confidence: float,
    *,
    object: str = "",
    severity: Severity | None = None,
    **rest: str,
) -> Finding:
    """Return a cause, by its id or as its entry, as the finding about the things that these facts are about.

    `rest` may give `expected_from` (where the expectation comes from), `gain` and `collect`.
    """
    facts = list(facts)
    cause = CAUSES[cause] if isinstance(cause, str) else cause
    about = list(dict.fromkeys(str(fact.subject) for fact in facts if str(fact.subject)))
    named = ", ".join(about[:4]) + (f" and {len(about) - 4} more" if len(about) > 4 else "")
    return Finding(
        cause=cause,
        object=object or named or (facts[0].place.file if facts else ""),
        seen=seen,
        expected=expected,
        confidence=confidence,
        evidence=places(facts),
        hosts=frozenset(fact.subject.host for fact in facts if fact.subject.host),
        severity=cause.severity if severity is None else severity,
        expected_from=rest.get("expected_from", ""),
        gain=rest.get("gain", ""),
        collect=rest.get("collect", ""),
    )


def reported(
    cause: str,
    facts: Sequence[Fact],
    seen: str,
    expected: str,
    confidence: float,
    *,
    severity: Severity | None = None,
    **rest: str,
) -> Iterator[Finding]:
    """Yield the finding of facts that are one wherever there are any.

    `seen` and `expected` are filled in from the first fact: `{0}` is a part of its value, `{text}` and `{number}`
    the whole.
    """
    if facts:
        first = facts[0]
        seen, expected = (t.format(*first.parts, text=first.text, number=first.number) for t in (seen, expected))
        yield found(cause, facts, seen, expected, confidence, severity=severity, **rest)
