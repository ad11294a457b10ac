"""Root causes on top, consequences beneath: one order for all findings of a case.

A finding is a consequence of another where the list of causes says so (`Cause.follows`) and both are about the
same hosts, or one of them is about no host in particular, or shows at a connection's other end. A consequence of
several goes to the most certain.
"""

from __future__ import annotations

from dataclasses import replace

from fabrictwin.diagnosis.finding import Finding, Severity

DEEPEST = 12
VAGUER = 0.18  # less sure than its effect, what ends a job is a word for it that says less
LIKELY = 0.6  # so sure, what ends a job stands before what slows it


def ranked(findings: list[Finding]) -> list[Finding]:
    """Root causes with their consequences beneath, the likeliest cause first."""
    merged = _merged(findings)
    ordered = sorted(merged, key=_weight)
    parents: dict[int, int] = {}
    for i, one in enumerate(ordered):
        better = [j for j, other in enumerate(ordered) if j != i and _explains(other, one)]
        if better:
            parents[i] = min(better)
    roots = [i for i in range(len(ordered)) if _root(i, parents) == i]
    # a warning that explains an error goes before other warnings
    return sorted((_with_consequences(i, ordered, parents, roots) for i in roots), key=_weight)


def _weight(finding: Finding) -> tuple[int, bool, float, str, str]:
    ends = finding.confidence >= LIKELY and not finding.cause.slows
    return -int(finding.severity), not ends, -finding.confidence, finding.id, finding.object


def _merged(findings: list[Finding]) -> list[Finding]:
    """One finding for each cause and object: the worse and more certain stays, evidence is joined.

    What is a note or a question stays beside what is decided.
    """
    kept: dict[tuple[str, str, int], Finding] = {}
    for one in findings:
        key = (one.id, one.object, min(int(one.severity), int(Severity.WARNING)))
        known = kept.get(key)
        if known is None:
            kept[key] = one
            continue
        better, other = sorted((known, one), key=_order, reverse=True)
        joined = tuple(dict.fromkeys((*better.evidence, *other.evidence)))[:5]
        kept[key] = replace(better, evidence=joined, hosts=better.hosts | other.hosts)
    return list(kept.values())


def _order(finding: Finding) -> tuple[int, float]:
    return int(finding.severity), finding.confidence


def _explains(cause: Finding, effect: Finding) -> bool:
    """Return true where `effect` follows from `cause` on hosts that they share."""
    follows = effect.cause.follows
    named = cause.id in follows or _setting(cause) in follows
    if not (named or ("*" in follows and _ends_jobs(cause))):
        return False
    if effect.severity > cause.severity and not _is_decided(cause, named=named):
        return False
    if not cause.cause.slows and cause.confidence < effect.confidence - VAGUER:
        return False
    return effect.cause.at_other_end or not cause.hosts or not effect.hosts or bool(cause.hosts & effect.hosts)


def _is_decided(cause: Finding, *, named: bool) -> bool:
    """Return true for a cause that explains what is worse than it.

    A question explains nothing that is decided. One that a job outlived, or that its program only warned of,
    explains no failure in general, and those that are `named` as its effects where it is likely.
    """
    if cause.severity < Severity.WARNING:
        return False
    return cause.severity >= cause.cause.severity or (named and cause.confidence > LIKELY)


def _setting(finding: Finding) -> str:
    """The finding's cause with the variable that it names, as `follows` has it."""
    return f"{finding.id}:{finding.seen.partition('=')[0]}"


def _ends_jobs(finding: Finding) -> bool:
    """Return true for a cause that explains any failure: it ends jobs, and no other leads to it in general."""
    cause = finding.cause
    return finding.severity >= Severity.WARNING and not cause.slows and "*" not in cause.follows


def _root(i: int, parents: dict[int, int]) -> int:
    seen = {i}
    while i in parents and parents[i] not in seen and len(seen) < DEEPEST:
        i = parents[i]
        seen.add(i)
    # in a circle the first in order is the root
    return min(seen) if i in parents else i


def _with_consequences(root: int, ordered: list[Finding], parents: dict[int, int], roots: list[int]) -> Finding:
    below = [one for i, one in enumerate(ordered) if i != root and i not in roots and _root(i, parents) == root]
    finding = ordered[root]
    # what an error follows from is as bad as the error
    worst = max([finding.severity, *(one.severity for one in below if one.severity == Severity.ERROR)])
    severity = worst if finding.severity >= Severity.WARNING else finding.severity
    return replace(finding, severity=severity, consequences=tuple(below))
