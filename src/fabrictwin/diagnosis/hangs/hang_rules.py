"""Findings of hangs: from dumps, watchdogs and calls in NCCL's log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found
from fabrictwin.diagnosis.hangs import ras_rules
from fabrictwin.diagnosis.hangs.calls import UNEVEN, Group, logged, recorded, watched
from fabrictwin.diagnosis.hangs.transfers import transfer_waits
from fabrictwin.diagnosis.hangs.waiting import Mismatch, Verdict, mismatches, spans, verdict, waits

_KINDS = {
    "missing": "rank-missing",
    "late": "rank-late",
    "order": "collective-mismatch",
    "stuck": "collective-stuck",
}


def dumps(case: Case) -> Iterator[Finding]:
    """Flight recorders' dumps: mismatches first, then who is waited for."""
    groups, dumped = recorded(case.evidence)
    transfers = list(transfer_waits(case.evidence))
    if not groups and not transfers:
        return
    bad = list(mismatches(groups))
    yield from (_mismatched(one, confidence=0.95) for one in bad[:3])
    found_one = verdict(groups, dumped, transfers)
    # a mismatch explains why its ranks stand still, unless somebody left no dump at all
    if found_one is not None and (not bad or found_one.kind == "missing"):
        yield _verdict(found_one)


def _mismatched(one: Mismatch, *, confidence: float) -> Finding:
    odd, other = one.odd_call, one.other_call
    what = {"type": ("verb", odd.verb, other.verb), "size": ("size", odd.sizes, other.sizes)}.get(
        one.how, ("data type", odd.kinds, other.kinds)
    )
    return found(
        "collective-mismatch",
        [odd.fact, other.fact],
        f"{one.how} of collective {one.sequence} of group {one.group}: {what[1].strip()}",
        f"{what[2].strip()}, as rank {other.fact.subject.rank} and others",
        confidence,
        object=f"rank{'s' if len(one.odd) > 1 else ''} {spans(one.odd)}",
    )


def _verdict(one: Verdict) -> Finding:
    wait, waiting = one.wait, one.waiting
    who = spans([w.rank for w in waiting if w.group == wait.group])
    call = f"{wait.call.verb} (number {wait.sequence} of group {wait.group})"
    if one.kind == "stuck":
        return found(
            "collective-stuck",
            one.facts(),
            f"all have called {call}, none has completed it",
            "completed",
            0.85,
            object=f"ranks {spans(one.ranks)}",
            collect="ibqueryerrors or perfquery of these hosts' ports, dmesg, and ncclras -v",
        )
    words = {
        "missing": f"no dump of this rank; ranks {who} wait for it in {call}",
        "late": f"not in the collective that ranks {who} wait in: {call}",
        "order": f"waits in another group than ranks {who}, which wait for it in {call}: orders differ",
    }
    return found(
        _KINDS[one.kind],
        one.facts(),
        words[one.kind],
        f"all ranks in {call}",
        0.95 if one.kind != "order" else 0.85,
        object=f"rank{'s' if len(one.ranks) > 1 else ''} {spans(one.ranks)}",
    )


def watchdog(case: Case) -> Iterator[Finding]:
    """Time-outs: ranks that timed out in different calls, or did not time out at all."""
    groups = watched(case.evidence)
    if case.of("fr.call"):
        return
    for group in groups.values():
        yield from _timed_out(case, group)


def _timed_out(case: Case, group: Group) -> Iterator[Finding]:
    at = {rank: max(calls) for rank, calls in group.calls.items()}
    facts = [group.calls[rank][number].fact for rank, number in at.items()]
    bad = list(mismatches({group.name: group}))
    if bad:
        yield _mismatched(bad[0], confidence=0.9)
        return
    often = Counter(at.values())
    usual = max(often, key=lambda number: (often[number], number))  # of as many each the later call
    behind = [rank for rank, number in at.items() if number < usual]
    if not behind and max(at.values()) > usual:
        behind, usual = [rank for rank, number in at.items() if number == usual], max(at.values())
    if behind and len(behind) < len(at):
        yield found(
            "rank-late",
            facts,
            f"timed out in call {min(at[r] for r in behind)}, others in {usual}",
            f"all in {usual}",
            0.8 if len(behind) * 2 <= len(at) else 0.6,
            object=f"rank{'s' if len(behind) > 1 else ''} {spans(behind)}",
        )
        return
    whole = max((int(fact.parts[1] or 0) for fact in case.of("nccl.start")), default=0)
    silent = sorted(set(range(whole)) - set(at)) if whole else []
    verb = facts[0].parts[2]
    if silent and len(silent) < whole / 2:
        yield found(
            "rank-missing",
            facts,
            f"no time-out of its own; ranks {spans(list(at))} waited in {verb} {usual}",
            "all ranks in it",
            0.7,
            object=f"rank{'s' if len(silent) > 1 else ''} {spans(silent)}",
        )
        return
    yield found(
        "collective-stuck",
        facts,
        f"{verb} (number {usual}) ran longer than its limit",
        "completed",
        0.4,
        object=f"rank{'s' if len(at) > 1 else ''} {spans(list(at))}",
        severity=Severity.QUESTION,
        collect="flight recorders' dumps of all ranks: TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=2000",
    )


def progress(case: Case) -> Iterator[Finding]:
    """Ranks that have not called what the others wait in, by the counts that watchdogs print."""
    groups: dict[str, dict[int, Fact]] = defaultdict(dict)
    for fact in case.of("watchdog.progress"):
        groups[str(fact.parts[0])].setdefault(fact.subject.rank, fact)
    for name, ranks in groups.items():
        waiting = [fact for fact in ranks.values() if fact.parts[1] != fact.parts[2]]
        if not waiting or case.of("fr.call"):
            continue
        at = max(int(fact.parts[2] or 0) for fact in waiting) + 1
        behind = [rank for rank, fact in ranks.items() if int(fact.parts[1] or 0) < at]
        if behind and len(behind) < len(ranks):
            yield found(
                "rank-late",
                [ranks[rank] for rank in behind] + waiting,
                f"has called {ranks[behind[0]].parts[1]} of group {name or 'default'}, others wait in {at}",
                f"all in {at}",
                0.85,
                object=f"rank{'s' if len(behind) > 1 else ''} {spans(behind)}",
            )


def log_calls(case: Case) -> Iterator[Finding]:
    """Calls in NCCL's own log that do not fit each other."""
    groups = logged(case.evidence)
    for group in groups.values():
        # several communicators of one size share a name: only a job with one can be compared
        ids = {fact.parts[0] for fact in case.of("nccl.start") if f"{fact.parts[1]} ranks" == group.name}
        if len(ids) > 1:
            continue
        for number in sorted({n for calls in group.calls.values() for n in calls}):
            mine = {rank: calls[number] for rank, calls in group.calls.items() if number in calls}
            usual = Counter((c.verb, c.sizes) for c in mine.values()).most_common(1)
            if len(mine) < 2 or usual[0][1] == len(mine):
                continue
            odd = [rank for rank, call in mine.items() if (call.verb, call.sizes) != usual[0][0]]
            of_type = any(mine[rank].verb != usual[0][0][0] for rank in odd)
            # of two that call the same with other sizes neither is the odd one
            if not of_type and usual[0][1] * 2 <= len(mine):
                continue
            if of_type or not UNEVEN.search(mine[odd[0]].verb):
                facts = [mine[rank].fact for rank in (odd if usual[0][1] * 2 > len(mine) else mine)]
                yield found(
                    "collective-mismatch",
                    facts,
                    f"{mine[odd[0]].verb} of {mine[odd[0]].sizes} elements at opCount {number}",
                    f"{usual[0][0][0]} of {usual[0][0][1]} elements",
                    0.7,
                    object=f"ranks {spans(odd)}",
                )
                break


def waiting_lines(case: Case) -> list[str]:
    """Sentences of who waits for whom, for people."""
    groups, _ = recorded(case.evidence)
    lines = []
    for wait in [*waits(groups), *transfer_waits(case.evidence)]:
        if wait.absent:
            lines.append(
                f"rank {wait.rank} waits in {wait.call.verb} {wait.sequence} of group {wait.group} "
                f"for rank(s) {spans(wait.absent)}"
            )
    return lines


RULES: tuple[Rule, ...] = (dumps, watchdog, progress, log_calls, *ras_rules.RULES)
