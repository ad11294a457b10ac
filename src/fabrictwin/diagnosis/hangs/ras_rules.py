"""Findings of NCCL's RAS reports: processes that died or are silent, ranks that differ, errors they report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found
from fabrictwin.diagnosis.hangs.waiting import spans
from fabrictwin.diagnosis.readers.job.ras import SILENT

_TWICE = "ncclras -v twice, ten seconds apart: counts that advance are a running job"
# what an error of a communicator is by RAS's word for it: the finding, and how sure that word makes it
_ERRORS = {
    "Unhandled CUDA error": ("cuda-failure", 0.8),
    "Invalid usage": ("nccl-usage", 0.8),
    "Invalid argument": ("nccl-usage", 0.7),
    "Remote process error": ("rank-died", 0.6),
}
_LEAVING = ("FINALIZE", "ABORT")


def processes(case: Case) -> Iterator[Finding]:
    """Processes that died, ranks that are missing, and peers that do not answer."""
    dead, missing, absent = case.of("ras.dead"), case.of("ras.missing"), case.of("ras.absent")
    ranks = spans([fact.subject.rank for fact in missing])
    if dead:
        first = dead[0]
        who = f"process {first.parts[0]} on {first.subject.host} ({first.subject.device})"
        yield found(
            "rank-died",
            [*dead, *missing],
            "unreachable over the RAS network (DEAD)",
            "alive",
            0.95,
            object=f"{who}, rank {ranks}" if ranks else who,
        )
        return
    table = [fact for fact in _groups(case) if "INCOMPLETE" in _errors(fact)]
    silent = case.of("ras.silent")
    if missing or absent or table or silent:
        yield found(
            "rank-missing",
            [*missing, *absent, *silent, *table],
            "missing from the communicator (INCOMPLETE)" if missing or table else "no answer over the RAS network",
            "all ranks",
            0.85 if missing or absent else 0.7,
            object=f"rank{'s' if len(missing) > 1 else ''} {ranks}" if missing else "",
            collect="" if missing or absent else "ncclras -v -t 30",
        )
        return
    late, outlier = case.of("ras.timeouts"), case.of("ras.outlier")
    if late or outlier:
        yield found(
            "rank-missing",
            late or outlier,
            f"{late[0].parts[0]} time-outs of the RAS network"
            if late
            else "runs fewer processes than other hosts",
            "an answer of every process",
            0.4,
            severity=Severity.QUESTION,
            collect="ncclras -v -t 30",
        )


def events(case: Case) -> Iterator[Finding]:
    """Peers that a monitor saw fall silent, or leave, and that did not come back."""
    latest: dict[tuple[str, int], Fact] = {}
    for fact in case.of("ras.event"):
        if fact.parts[0] in (*SILENT, "DISCONNECTED", "RECOVERED", "CONNECTED"):
            latest[fact.subject.host, int(fact.parts[1] or 0)] = fact
    gone = [fact for fact in latest.values() if fact.parts[0] not in ("RECOVERED", "CONNECTED")]
    if gone and not case.of("ras.dead"):
        sure = any(fact.parts[0] in SILENT for fact in gone)
        yield found(
            "rank-died",
            gone,
            f"PEER_{gone[0].parts[0]}",
            "PEER_RECOVERED, or the job's end",
            0.5 if sure else 0.3,
            severity=Severity.QUESTION,
            collect="ncclras -v, and that host's kernel log",
        )


def errors(case: Case) -> Iterator[Finding]:
    """Errors of communicators: those that tell more than that another rank failed come first."""
    facts = [fact for fact in case.of("ras.error") if str(fact.parts[2])]
    by_word: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_word[str(fact.parts[2])].append(fact)
    if len(by_word) > 1:
        by_word.pop("Remote process error", None)
    for word, those in by_word.items():
        cause, sure = _ERRORS.get(word, ("job-failed", 0.6))
        ranks = sorted({fact.subject.rank for fact in those if fact.subject.rank >= 0})
        named = f"rank{'s' if len(ranks) > 1 else ''} {spans(ranks)}" if ranks else ""
        # who reports a remote error is not who died
        object = named if cause != "rank-died" else (f"a peer of {named}" if named else "")
        stage = str(those[0].parts[1])
        seen = f"{word} ({stage})" if stage else word
        yield found(cause, those, seen, "no error", sure, object=object, severity=Severity.ERROR)
    table = [fact for fact in _groups(case) if "ERROR" in _errors(fact)]
    if table and not by_word:
        yield found(
            "job-failed", table, "a communicator with an error (ERROR)", "OK", 0.6, severity=Severity.ERROR,
            object=f"group {table[0].parts[0]}", collect="ncclras -v: which ranks reported which error",
        )  # fmt: skip


def differences(case: Case) -> Iterator[Finding]:
    """Ranks whose counts or states differ in one report, with those that are fewest named."""
    counted = list(_counts(case))
    yield from counted
    differs, groups = case.of("ras.differs"), _groups(case)
    worst = [fact for fact in groups if {"MISMATCH", "TIMEOUT"} & _errors(fact)]
    aborted = [fact for fact in case.of("ras.rank") if fact.parts[1] == "ABORT"]
    if not (worst or differs or aborted) or counted:
        return
    if case.of("ras.dead", "ras.missing", "ras.absent", "ras.error"):
        return
    states = {str(fact.parts[1]) for fact in (*case.of("ras.state"), *aborted)} | {str(f.parts[3]) for f in worst}
    leaving = bool(states & set(_LEAVING))
    fewest, seen = _fewest(case)
    if not seen:
        seen = f"{worst[0].parts[3]} {worst[0].parts[4]}" if worst else "ABORT" if aborted else "MISMATCH"
    yield found(
        "ranks-differ",
        [*worst, *differs, *fewest, *aborted],
        seen,
        "OK, or the same again ten seconds later with other counts",
        0.3 if leaving else 0.5,
        object=f"ranks {spans([fact.subject.rank for fact in fewest])}" if fewest
        else f"group {worst[0].parts[0]}" if worst else "",
        collect=_TWICE + (", and FINALIZE is a communicator that is being torn down" if leaving else ""),
    )  # fmt: skip


def _fewest(case: Case) -> tuple[list[Fact], str]:
    """Ranks of the state or count that fewest have, and both in words."""
    comms: dict[str, dict[str, int]] = defaultdict(dict)
    for fact in case.of("ras.state"):
        comms[str(fact.parts[0])].setdefault(str(fact.parts[1]), int(fact.parts[2] or 0))
    for comm, states in comms.items():
        if len(states) < 2:
            continue
        few, many = min(states, key=lambda one: states[one]), max(states, key=lambda one: states[one])
        ranks = [
            f for f in case.of("ras.rank") if f.parts[0] == comm and f.parts[1] == few and f.subject.rank >= 0
        ]
        return ranks, f"{states[few]} of the ranks: {few}, {states[many]}: {many}"
    return [], ""


def _counts(case: Case) -> Iterator[Finding]:
    """Ranks behind in RAS's JSON; counts that did not move between two reports are a hang."""
    reports: dict[str, dict[str, dict[int, Fact]]] = defaultdict(lambda: defaultdict(dict))
    for fact in case.of("ras.count"):
        if int(fact.parts[1] or 0) >= 0:
            reports[str(fact.parts[0])][fact.place.file][fact.subject.rank] = fact
    for name, files in reports.items():
        latest = files[max(files)]
        counts = {rank: int(fact.parts[1] or 0) for rank, fact in latest.items()}
        most = max(counts.values())
        behind = [rank for rank, count in counts.items() if count < most]
        stood = len(files) > 1 and all(
            {r: int(f.parts[1] or 0) for r, f in rows.items()} == counts for rows in files.values()
        )
        if behind:
            yield found(
                "rank-late" if stood else "ranks-differ",
                [latest[rank] for rank in behind],
                f"{min(counts.values())} operations, others {most}" + (", in two reports" if stood else ""),
                f"{most}",
                0.85 if stood else 0.5,
                object=f"rank{'s' if len(behind) > 1 else ''} {spans(behind)} of communicator {name}",
                collect="" if stood else "ncclras -f json twice, ten seconds apart",
            )


def clocks(case: Case) -> Iterator[Finding]:
    """Clocks of hosts that differ, by messages that arrive before they were sent."""
    if facts := case.of("ras.clocks"):
        yield found("clock-skew", facts, f"negative travel times on {facts[0].parts[0]} connections", "none", 0.8)


def _groups(case: Case) -> list[Fact]:
    return [fact for fact in case.of("ras.group") if str(fact.parts[4]) not in ("OK", "")]


def _errors(fact: Fact) -> set[str]:
    return set(str(fact.parts[4]).split(","))


RULES: tuple[Rule, ...] = (processes, events, errors, differences, clocks)
