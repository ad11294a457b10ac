"""What a claim is: a statement, the experiment that tests it, what the twin found, and a judgement."""

from __future__ import annotations

from enum import StrEnum

from fabrictwin.base.records import record


class Judgement(StrEnum):
    HOLDS = "holds"
    CONDITIONS = "holds under conditions"
    OFF = "off"
    WRONG = "wrong"
    UNKNOWN = "not modelled"


@record
class Claim:
    """One statement. Figures are text with units, made by the experiment."""

    key: str
    statement: str
    experiment: str
    figures: tuple[tuple[str, str], ...]
    judgement: Judgement
    why: str


def within(found: float, said: float, tolerance: float) -> bool:
    """Return whether a figure is what was said, give or take a share of it."""
    return abs(found / said - 1) <= tolerance
