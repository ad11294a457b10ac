"""Warnings of NCCL, by their words. The first in time is nearest to the cause; consequences go beneath it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found
from fabrictwin.diagnosis.mechanisms.table import HARMLESS, SURE, mechanism_of

# status codes of completions: ibv_wc_status of rdma-core's libibverbs/verbs.h
_STATUS = {
    4: "protection",
    5: "flushed",
    9: "remote-access",
    10: "remote-access",
    11: "remote-access",
    12: "transport-retry",
    13: "receiver-not-ready",
}
_COMPLETION = re.compile(r"ompletion .*?(?:with error|status[= ]) ?=?(?:\w+\()?(\d+)|Failed status (\d+)")
# NCCL prints the GIDs of RoCE alone, where a link-local one reaches no other subnet
_LINK_LOCAL = re.compile(r"(?:localGid|local GID) fe80:")


def cause_of(text: str) -> str:
    """The id of the cause that a warning points to; empty where it is harmless."""
    if _LINK_LOCAL.search(text):
        return "gid-unreachable"
    status = _COMPLETION.search(text)
    if status is not None:
        return _STATUS.get(int((status[1] or status[2])[:4]), "nccl-warning")
    mechanism = mechanism_of(text)
    if mechanism is None:
        return _VAGUEST
    return "" if mechanism.cause == HARMLESS else mechanism.cause


_EXPECTED = {
    "transport-retry": "packets acknowledged within the queue pair's retries",
    "locked-memory": "memory registered: locked memory unlimited",
    "gid-unreachable": "the queue pair connected over a routable GID",
    "shared-memory": "/dev/shm with room for all ranks' buffers",
    "peer-closed": "the peer alive",
    "connect-refused": "the peer answers",
}


_OF_NETWORKS = frozenset(("socket-fallback", "verbs-absent", "efa-absent"))
_VAGUEST = "nccl-warning"  # that nobody knows: the file that says it tells the area
_VAGUE = frozenset(("peer-closed", _VAGUEST))


def warnings(case: Case) -> Iterator[Finding]:
    """Findings of warnings, each cause once."""
    by_cause: dict[str, list[Fact]] = {}
    for fact in case.of("nccl.warn", "verbs.failed"):
        name = cause_of(fact.text)
        if name and (name != _VAGUEST or fact.kind == "nccl.warn"):
            by_cause.setdefault(name, []).append(fact)
    hosts = set(case.evidence.hosts())
    until = {fact.place.file: int(fact.number) for fact in case.of("job.worked")}
    ended = bool(case.of("job.failed", "job.exit", "job.killed", "watchdog"))
    for position, (name, facts) in enumerate(by_cause.items()):
        mine = {fact.subject.host for fact in facts} - {""}
        where = "all hosts: a setting or the fabric" if len(hosts) > 1 and mine == hosts else ""
        if len(hosts) > 2 and len(mine) == 1:
            where = "one host alone: that host"
        if name == _VAGUEST:
            if len(by_cause) == 1:
                yield _unknown(facts)
            continue
        if name in _OF_NETWORKS and case.nodes == 1:
            continue  # a host alone needs no adapters
        confidence = max(map(_sure, facts))
        # what a peer's end looks like is no cause of its own where nothing else is known: say so
        severity = _severity(facts)
        if name == "peer-closed" and not set(by_cause) - _VAGUE:
            severity = Severity.QUESTION
        # what a job worked after did not end it; ranks that close warn so while others still write results
        if not ended and all(fact.place.line < until.get(fact.place.file, 0) for fact in facts):
            severity = Severity.NOTE if confidence < SURE else Severity.WARNING
        yield found(
            name,
            facts,
            facts[0].text + (f" ({where})" if where else ""),
            _EXPECTED.get(name, "no such warning"),
            confidence - 0.02 * min(position, 5),
            severity=severity,
            collect="the logs of all ranks: the peer's first warning is nearer to the cause"
            if name == "peer-closed"
            else "",
        )


# whose call failed, by NCCL's source file, where no warning says more
_FILES = (
    ("net_ib|ibvwrap|gdr", "gid-unreachable"),
    ("net_socket|socket|bootstrap", "connect-refused"),
    ("shm", "shared-memory"),
    ("nvls|coll_net", "nvls-off"),
    ("p2p|ipc", "gpu-ipc"),
    ("xml|topo|search|graph/", "topology-malformed"),
)
# and where one does in words that nobody knows
_SAID_IN = (
    *_FILES,
    ("param/", "setting-invalid"),
    ("plugin/", "library-mismatch"),
    ("proxy|scheduler/|channel", "framework-bug"),
    (
        "enqueue|argcheck|group|dev_runtime|ce_coll|sym|allocator|register|mem_manager|rma/|gin/|collectives",
        "nccl-usage",
    ),
)
ASK = "the same with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV: the warning that stands before"
_SOURCE = re.compile(r"([\w./-]+\.(?:cc|cu|h)): ")


def _area(files: tuple[tuple[str, str], ...], source: str) -> str:
    """Return the cause that most failures of a source file have; empty where there is none."""
    return next((cause for names, cause in files if re.search(names, source)), "")


def _unknown(facts: list[Fact]) -> Finding:
    """Return the finding of warnings that nobody knows."""
    said = _SOURCE.match(facts[0].text)
    area = _area(_SAID_IN, said[1]) if said is not None else ""
    severity = Severity.QUESTION if area else None
    ask = ASK if area else ""
    sure = 0.4 if area else 0.3
    return found(area or _VAGUEST, facts, facts[0].text, "no such warning", sure, severity=severity, collect=ask)


def returned(case: Case) -> Iterator[Finding]:
    """Calls of NCCL that failed without a warning: the first on each way up tells whose they were."""
    facts = [fact for fact in case.of("nccl.returned") if fact.parts[1]]
    if not facts or case.of("nccl.warn"):
        return
    name = _area(_FILES, str(facts[0].parts[0]))
    if name:
        yield found(
            name,
            facts[:1],
            f"{facts[0].parts[0]} returned {facts[0].parts[1]}",
            "0",
            0.4,
            severity=Severity.QUESTION,
            collect=ASK,
        )


def _sure(fact: Fact) -> float:
    """Return how sure the message of a warning is of its cause; a completion's status says it by number."""
    mechanism = mechanism_of(fact.text)
    told = mechanism is None or _COMPLETION.search(fact.text) or _LINK_LOCAL.search(fact.text)
    return SURE if told or mechanism is None else min(mechanism.sure, SURE)


def _severity(facts: list[Fact]) -> Severity | None:
    """Return how bad the messages say that it is, where all of them differ from the cause's own."""
    told = [mechanism.severity for fact in facts if (mechanism := mechanism_of(fact.text)) is not None]
    return max(one for one in told if one is not None) if len(told) == len(facts) and None not in told else None


RULES: tuple[Rule, ...] = (warnings, returned)
