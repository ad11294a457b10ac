"""GPUs by their own word (`nvidia-smi -q`): wear, repairs, heat, limits, the health of their links."""

from __future__ import annotations

from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import reported

AGAIN = "nvidia-smi -q twice, minutes apart, while the job runs"


def memory(case: Case) -> Iterator[Finding]:
    """Memory that is worn beyond its threshold, repairs that wait for a reset, banks without a row to spare."""
    yield from reported("gpu-memory", case.of("smi.worn"), "{text}: Yes", "No", 0.92)
    yield from reported("gpu-memory", case.of("smi.repair"), "{text}: Yes", "No", 0.85, severity=Severity.WARNING)
    yield from reported(
        "gpu-memory",
        case.of("smi.no-spares"),
        "{text} bank(s) with no row left to remap",
        "0",
        0.6,
        severity=Severity.WARNING,
    )


def limits(case: Case) -> Iterator[Finding]:
    """Heat at the bound, a power limit below the default, a mode that lets nobody in, replays given up."""
    yield from reported("gpu-hot", case.of("smi.hot-reading"), "{text}", "cooler than where it slows down", 0.85)
    yield from reported(
        "gpu-power",
        case.of("smi.capped"),
        "Current Power Limit {0:g} W",
        "{1:g} W, the default",
        0.5,
        severity=Severity.QUESTION,
        collect="nvidia-smi -q -d POWER; who sets the limit, and for what?",
    )
    yield from reported("gpu-busy", case.of("smi.closed"), "{text}", "Default", 0.92)
    yield from reported(
        "pci-replays",
        case.of("smi.rollovers"),
        "{text} replay number rollovers",
        "0: a packet was sent four times",
        0.5,
        severity=Severity.QUESTION,
        collect=AGAIN,
    )


def links(case: Case) -> Iterator[Finding]:
    """Health of the NVLink fabric as the fabric manager tells each GPU."""
    health = case.of("smi.link-health")
    slow = [fact for fact in health if fact.text.startswith("Bandwidth")]
    busy = [fact for fact in health if fact.text.startswith("Route Recovery")]
    bad = [fact for fact in health if fact not in slow and fact not in busy]
    yield from reported("nvlink-degraded", slow, "{text}", "Full", 0.9, severity=Severity.WARNING)
    yield from reported("nvlink-error", bad, "{text}: True", "False", 0.85, severity=Severity.WARNING)
    yield from reported(
        "nvlink-error", busy, "{text}: True", "False", 0.5, severity=Severity.QUESTION, collect=AGAIN
    )


RULES: tuple[Rule, ...] = (memory, limits, links)
