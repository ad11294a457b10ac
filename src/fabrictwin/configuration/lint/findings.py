"""A finding: what was got where, what was expected, what it does, and what makes it right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from fabrictwin.base.records import record
from fabrictwin.configuration.model.cluster import Configuration

Severity = Literal["error", "warning"]


@record
class Finding:
    """A rule that is broken: `effect` says what it leads to, `fix` what to write instead."""

    rule: str
    severity: Severity
    object: str  # `leaf-0/Ethernet0 priority 3`
    got: str
    expected: str
    effect: str
    file: str = ""
    fix: str = ""
    line: int | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.file and self.line else f"{self.file}: " if self.file else ""
        fix = f" Fix: {self.fix}." if self.fix else ""
        return (
            f"{where}{self.severity}: {self.object}: got {self.got}, expected {self.expected}: "
            f"{self.effect} [{self.rule}].{fix}"
        )


Rule = Callable[[Configuration], Iterator[Finding]]
