"""Findings: what is wrong, with its evidence, what was expected, and what makes it right."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from typing import Any

from fabrictwin.base.records import record
from fabrictwin.diagnosis.evidence import Place


class Severity(IntEnum):
    """Weight of a finding. A question cannot be decided from these files: it says which one to collect."""

    NOTE = 0
    QUESTION = 1
    WARNING = 2
    ERROR = 3


@record
class Cause:
    """A thing that can be wrong: one entry of the list of causes.

    `fix` is a command or a setting. `follows` are causes of which this is a consequence where both were found, `*`
    any that ends jobs, `cause:VARIABLE` one that is about this setting; one that `slows` ends none. One that shows
    `at_other_end` has its cause on another host, too: whoever waits for a peer says so first.
    """

    id: str
    severity: Severity
    cause: str
    fix: str
    source: str
    gain: str = ""
    follows: tuple[str, ...] = ()
    slows: bool = False
    at_other_end: bool = False


@record
class Finding:
    """A cause that evidence points to."""

    cause: Cause
    object: str
    seen: str
    expected: str
    confidence: float
    evidence: tuple[Place, ...] = ()
    hosts: frozenset[str] = frozenset()
    severity: Severity = Severity.WARNING
    expected_from: str = ""
    gain: str = ""
    collect: str = ""  # what to gather to decide
    instead_of: str = ""  # the cause that the same words name first, of one that they can mean besides
    consequences: tuple[Finding, ...] = field(default=())

    @property
    def id(self) -> str:
        return self.cause.id

    def as_data(self) -> dict[str, Any]:
        """The finding as plain data for JSON."""
        return {
            "id": self.id,
            "severity": self.severity.name.lower(),
            "object": self.object,
            "cause": self.cause.cause,
            "evidence": [{"file": p.file, "line": p.line, "text": p.text} for p in self.evidence],
            "seen": self.seen,
            "expected": self.expected,
            "expected_from": self.expected_from,
            "fix": self.cause.fix,
            "predicted_gain": self.gain or self.cause.gain,
            "confidence": round(self.confidence, 2),
            "source": self.cause.source,
            **({"collect": self.collect} if self.collect else {}),
            **({"instead_of": self.instead_of} if self.instead_of else {}),
            "consequences": [one.as_data() for one in self.consequences],
        }
