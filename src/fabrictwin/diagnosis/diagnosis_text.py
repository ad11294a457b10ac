"""A diagnosis for terminals."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from fabrictwin.diagnosis.diagnose import FAULTS, UNCLEAR, Diagnosis
from fabrictwin.diagnosis.finding import Finding, Severity

WIDE = 110


def text(diagnosis: Diagnosis, *, notes: bool = False) -> str:
    """The diagnosis as text; `notes` adds what was seen and is no fault."""
    return "\n".join(_lines(diagnosis, notes=notes)) + "\n"


def _lines(diagnosis: Diagnosis, *, notes: bool) -> Iterator[str]:
    h = diagnosis.hardware
    if h is not None:
        yield f"Hardware: {h.hosts} x {h.host}, {h.fabric}" + (f", NCCL {h.release}" if h.release else "")
    files = len(diagnosis.evidence.read)
    families = sorted({name for _, names in diagnosis.evidence.read for name in names})
    yield f"Read: {files} file(s)" + (f": {', '.join(families)}" if families else "")
    for name, why in diagnosis.evidence.unread[:20]:
        yield f"Left alone: {name} {why}"
    yield from (f"Note: {note}" for note in diagnosis.notes)
    shown = [one for one in diagnosis.findings if notes or one.severity > Severity.NOTE]
    for number, one in enumerate(shown, 1):
        yield ""
        yield from _finding(one, number)
    if diagnosis.waiting:
        yield ""
        yield "Who waits for whom"
        yield from (f"  {line}" for line in diagnosis.waiting[:16])
        if len(diagnosis.waiting) > 16:
            yield f"  ... and {len(diagnosis.waiting) - 16} more"
    yield ""
    yield from _verdict(diagnosis)


def _finding(one: Finding, number: int) -> Iterator[str]:
    yield f"{number}. {one.severity.name} {one.id}: {one.object}"
    yield from _wrapped("cause", one.cause.cause)
    if one.instead_of:
        source = f" ({one.expected_from})" if one.expected_from else ""
        yield from _wrapped("instead", f"of {one.instead_of}: the same words can come from this{source}")
        if one.collect:
            yield from _wrapped("tells", one.collect)
        yield from _wrapped("fix", one.cause.fix)
        yield f"   {'sure':9} {one.confidence:.0%}"
        return
    yield from _wrapped("seen", one.seen)
    source = f" ({one.expected_from})" if one.expected_from else ""
    yield from _wrapped("expected", one.expected + source)
    for i, place in enumerate(one.evidence[:3]):
        yield f"   {'evidence' if not i else '':9} {place}" + (
            f": {place.text[: WIDE - 20]}" if place.text else ""
        )
    yield from _wrapped("fix", one.cause.fix)
    if one.gain or one.cause.gain:
        yield from _wrapped("gain", one.gain or one.cause.gain)
    if one.collect:
        yield from _wrapped("collect", one.collect)
    yield f"   {'sure':9} {one.confidence:.0%}; {one.cause.source}"
    for below in one.consequences:
        yield f"   follows   {below.id}: {below.object}: {below.seen[:80]}"


def _wrapped(name: str, words: str) -> Iterator[str]:
    for i, line in enumerate(wrap(words, WIDE - 13) or [""]):
        yield f"   {name if not i else '':9} {line}"


def _verdict(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.verdict == FAULTS:
        count = sum(one.severity >= Severity.WARNING for one in diagnosis.findings)
        yield f"Verdict: {count} cause{'s' * (count != 1)} found"
        return
    if diagnosis.verdict == UNCLEAR:
        yield "Verdict: not enough evidence"
        yield from (f"  collect: {one}" for one in diagnosis.to_collect)
        return
    yield "Verdict: nothing wrong in these files"
