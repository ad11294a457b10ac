"""Lines of trouble in any text: their causes, the first in time on top; what no mechanism knows, as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fabrictwin.diagnosis.case import Case
from fabrictwin.diagnosis.causes import CAUSES
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found
from fabrictwin.diagnosis.readers.log_levels import (
    goes_on,
    is_an_error,
    is_of_a_shell,
    is_survived,
    level_of,
)

LATER = 0.02  # less sure for each cause that stands before, as far as it goes
MOST_LATER = 5
LIKELY = 0.8  # less sure, what a job survived is no fault of it
SURVIVED = 0.6  # so sure at most that it is what is wrong
WARNED = 0.15  # less sure, what its program calls a warning, where another line, not near it, tells of an error
NEAR = 8  # lines
LIKELIER = 0.6  # so sure, an error's own cause stands before what was warned of
AREA = 0.51  # below, a mechanism tells whose program failed, and no more
# by which a watchdog ends its process
_ABORT = re.compile(r"\bAborted\b|SIGABRT|[Ss]ignal:? (?:6|15)\b|exit ?code\s*:?\s*(?:-6|134)\b")
_UNKNOWN = {"fatal": 0.3, "error": 0.2, "warning": 0.1}
# what programs try and do without: where one only warns of it and nothing ended, it did
_CAUGHT = frozenset(
    ("library-missing", "library-mismatch", "file-missing", "settings-rejected", "setting-invalid",
     "program-error", "model-access", "name-resolution", "framework-bug")
)  # fmt: skip
_PROVIDER = re.compile(r"libibverbs: Warning: couldn.t load driver")
ASK = "the whole output of that rank from a minute before this line; NCCL_DEBUG=INFO; dmesg of its host"


def findings(case: Case, named: Sequence[Finding]) -> Iterator[Finding]:
    """Causes that lines name and that no rule has `named`, then the first line that nobody knows."""
    already = {one.id for one in named}
    told = any(one.severity >= Severity.WARNING for one in named)
    # a rule that reads more than one line says more of that line
    explained = {place for one in named if "*" not in one.cause.follows for place in one.evidence}
    known = _known(case)
    by_cause = _by_cause(known, already)
    # what somebody stopped did not end by what it warned of
    stopped = any(fact.parts[0] == "time-limit" and not fact.parts[6] for fact in known)
    ended = not stopped and any(map(_ended, (*known, *case.of("line.unknown"))))
    errors = [one for one in known if _ended(one) and _sure(one) >= LIKELIER and not _is_general(one)]
    areas = [
        name
        for name, facts in by_cause.items()
        if all(_sure(fact) < AREA for fact in facts) and "*" not in CAUSES[name].follows
    ]
    for place, (name, facts) in enumerate(by_cause.items()):
        if name in already or facts[0].place in explained or _excused(name, already | set(by_cause)):
            continue
        if name in areas and (told or len(areas) < len(by_cause) or areas[0] != name):
            continue  # says less than what is known already
        yield _finding(name, facts, errors, place=place, ended=ended)
    yield from _unknown(case, named)


def _known(case: Case) -> list[Fact]:
    """Lines that mechanisms know, in time, without what a watchdog's end of its process makes others say."""
    known = sorted(case.of("line.known"), key=_when)
    caught = {fact.place.file: fact.place.line for fact in reversed(case.of("watchdog"))}

    def follows(one: Fact) -> bool:
        after = one.place.line > caught.get(one.place.file, one.place.line)
        return one.parts[0] == "rank-died" and bool(after or _ABORT.search(str(one.parts[1])))

    # a device that was opened has its provider; others that packages name are for other adapters
    opened = any(fact.parts and fact.parts[0] for fact in case.of("nccl.hcas", "hca.guid", "perftest.option"))
    return [
        one
        for one in known
        if not (caught and follows(one)) and not (opened and _PROVIDER.search(str(one.parts[1])))
    ]


def _by_cause(known: Sequence[Fact], already: set[str]) -> dict[str, list[Fact]]:
    """Lines by their causes, the first in time first."""
    alone = already | {str(fact.parts[0]) for fact in known if not fact.parts[5]}
    by_cause: dict[str, list[Fact]] = {}
    for fact in known:
        if fact.parts[5] and alone.isdisjoint(str(fact.parts[5]).split()):
            continue  # says something beside another cause only
        by_cause.setdefault(str(fact.parts[0]), []).append(fact)
    return by_cause


def _finding(name: str, facts: Sequence[Fact], errors: Sequence[Fact], *, place: int, ended: bool) -> Finding:
    """Return the finding of a cause: how sure and how bad by its surest line that nothing outlived."""
    live = [fact for fact in facts if not fact.parts[6]]
    slow = CAUSES[name].slows  # a way that is slower is what a program falls back to
    if not slow and all(is_survived(str(fact.parts[1])) for fact in live):
        live = []
    telling = max(live or facts, key=_tells)  # of several as sure the first
    level, sure = level_of(str(telling.parts[1])), min(_sure(telling), 1.0 if live else SURVIVED)
    severity = Severity[str(telling.parts[4])] if telling.parts[4] else CAUSES[name].severity
    if level == Severity.WARNING:
        if not ended:  # the program went on
            caught = name in _CAUGHT and is_an_error(str(telling.parts[1]))
            severity = min(severity, Severity.QUESTION if caught else Severity.WARNING)
        elif errors:
            severity = min(severity, Severity.WARNING)  # that is what ended it
        if _apart(telling, errors):
            sure, severity = sure - WARNED, min(severity, Severity.QUESTION)
    if not live:
        said = str(telling.parts[1])
        mild = level is not None or _sure(telling) < LIKELY or is_of_a_shell(said)
        mild = mild or (not slow and (goes_on(said) or not is_an_error(said)))
        severity = Severity.WARNING if severity == Severity.ERROR and not mild else Severity.NOTE
    return found(
        name,
        [telling, *facts],
        str(telling.parts[1])[:200],
        "no such message",
        sure - LATER * min(place, MOST_LATER),
        severity=severity,
        collect=ASK if severity <= Severity.QUESTION else "",
    )


def _unknown(case: Case, named: Sequence[Finding]) -> Iterator[Finding]:
    """The first line of trouble that no mechanism knows, of the worst that there are."""
    quoted = {place for one in named for place in one.evidence}
    unknown = sorted(
        (fact for fact in case.of("line.unknown") if fact.place not in quoted and not _survived(fact)), key=_when
    )
    for level, sure in _UNKNOWN.items():
        facts = [fact for fact in unknown if fact.parts[0] == level]
        if facts:
            # what a job warned of that came up is nothing to look for
            past = level == "warning" and bool(case.of("job.succeeded", "check.passed"))
            yield found(
                "unknown-error",
                facts,
                str(facts[0].parts[1])[:200],
                "no such line",
                sure,
                severity=Severity.NOTE if past else None,
                collect="" if past else ASK,
            )
            return


def _is_general(fact: Fact) -> bool:
    """Return true for a cause that any other leads to: it says that something ended, and not why."""
    return "*" in CAUSES[str(fact.parts[0])].follows


def _apart(warning: Fact, errors: Sequence[Fact]) -> bool:
    """Return true for a warning of no error: none has its cause or follows from it, none stands near."""
    cause = str(warning.parts[0])
    own = any(cause == one.parts[0] or cause in CAUSES[str(one.parts[0])].follows for one in errors)
    return bool(errors) and not own and not any(_near(warning, one) for one in errors)


def _near(one: Fact, other: Fact) -> bool:
    return one.place.file == other.place.file and abs(one.place.line - other.place.line) <= NEAR


def _excused(name: str, seen: set[str]) -> bool:
    """Return true for a cause that follows from one that is none to mend."""
    roots = seen & set(CAUSES[name].follows)
    return any(CAUSES[one].severity == Severity.NOTE for one in roots)


def _ended(fact: Fact) -> bool:
    """Return true for a line of an error that the program calls no warning, and after which it did not work."""
    if fact.kind == "line.unknown":
        return fact.parts[0] != "warning" and not fact.parts[3] and level_of(str(fact.parts[1])) is None
    severity = Severity[str(fact.parts[4])] if fact.parts[4] else CAUSES[str(fact.parts[0])].severity
    return severity == Severity.ERROR and not fact.parts[6] and level_of(str(fact.parts[1])) is None


def _survived(fact: Fact) -> bool:
    """Return true for a line that nobody knows and that is information, or after which the job went on."""
    said = str(fact.parts[1])
    return bool(fact.parts[3]) or is_survived(said) or level_of(said) == Severity.NOTE


def _tells(fact: Fact) -> tuple[bool, float]:
    """Return how much a line tells of its cause: an error more than a warning of the same."""
    return _sure(fact) >= LIKELY and level_of(str(fact.parts[1])) is None, _sure(fact)


def _sure(fact: Fact) -> float:
    """Return how sure the mechanism of a line is."""
    return float(fact.parts[3] or 0.0)


def _when(fact: Fact) -> tuple[float, str, int]:
    stamp = float(fact.parts[2] or 0.0)
    return (stamp if stamp >= 0 else 0.0, fact.place.file, fact.place.line)
