"""Hosts: limits, modules and settings, what their controllers kept, and ping."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found, reported
from fabrictwin.diagnosis.mechanisms.table import SURE

SMALL_LOCKED = 64 << 20
SMALL_SHM = 128 << 20
FEW_FILES = 1024  # that a process may hold open: what systems come with
FEW_READS = 44  # NVIDIA/nccl-tests issue 152: 47 to 93 GB/s by raising it


ETHERNET_PAYLOAD = 1472  # bytes that ping sends in a frame of 1500


def pings(case: Case) -> Iterator[Finding]:
    """Peers that answer small packets and no large ones, or none at all."""
    sent: dict[str, list[Fact]] = {}
    for fact in case.of("ping"):
        if fact.parts[1]:
            sent.setdefault(fact.subject.device, []).append(fact)
    for peer, facts in sent.items():
        answered = [fact for fact in facts if fact.parts[2]]
        largest = max((int(fact.parts[0] or 0) for fact in answered), default=-1)
        lost = [fact for fact in facts if not fact.parts[2] and int(fact.parts[0] or 0) > largest]
        if lost and answered:
            yield found(
                "mtu-differs",
                [*lost, *answered],
                f"{lost[0].parts[0]} bytes to {peer} lost, {largest} answered",
                "both answered: one MTU on the whole way",
                0.9,
            )
        elif lost and all(int(fact.parts[0] or 0) <= ETHERNET_PAYLOAD for fact in lost):
            yield found("connect-refused", lost, f"no answer of {peer} to ping", "an answer", 0.6)


def management(case: Case) -> Iterator[Finding]:
    """Events that a host's management controller kept."""
    by_cause: dict[str, list[Fact]] = {}
    for fact in case.of("ipmi.event"):
        by_cause.setdefault(str(fact.parts[0]), []).append(fact)
    for cause, facts in by_cause.items():
        worst = max(facts, key=lambda fact: float(fact.parts[2] or 0))
        sure = float(worst.parts[2] or 0)
        weak = Severity.WARNING if sure < SURE else None
        yield found(cause, [worst, *facts], str(worst.parts[1]), "no such event", sure, severity=weak)


def limits(case: Case) -> Iterator[Finding]:
    """Limits and settings of hosts."""
    locked = [fact for fact in case.of("limit.locked") if 0 <= fact.number < SMALL_LOCKED]
    yield from reported("limit-locked", locked, "{text} bytes", "unlimited", 0.8)
    files = [fact for fact in case.of("limit.files") if fact.number < FEW_FILES]
    yield from reported("open-files", files, "{text} open files", "thousands", 0.7, severity=Severity.WARNING)
    shm = [fact for fact in case.of("limit.shm") if 0 < fact.number < SMALL_SHM]
    if shm:
        yield found("limit-shm", shm, f"{int(shm[0].number) >> 20} MiB", "gigabytes", 0.8)
    # the kubelet counts devices of a plugin's that are unhealthy as capacity, and gives out the others alone
    lost = [fact for fact in case.of("node.devices") if int(fact.parts[2] or 0) < int(fact.parts[1] or 0)]
    yield from reported(
        "resource-unavailable",
        lost,
        "{2} of {1} {0} can be given out",
        "all: none unhealthy, its plugin running",
        0.85,
    )
    yield from reported("shared-memory", case.of("limit.shm-full"), "/dev/shm {text}% used", "room in it", 0.8)
    for fact in case.of("nic.setting"):
        reads = re.match(r"(?:\w+\()?(\d+)", str(fact.parts[1]))
        if fact.parts[0] == "MAX_ACC_OUT_READ" and reads is not None and 0 < int(reads[1]) < FEW_READS:
            yield found(
                "read-request",
                [fact],
                f"MAX_ACC_OUT_READ {reads[1]}",
                f"{FEW_READS} or more, or 0: the firmware's choice",
                0.5,
            )
        if fact.parts[0] == "PCI_WR_ORDERING" and "force_relax" in str(fact.parts[1]):
            yield found("relaxed-ordering", [fact], str(fact.parts[1]), "per_mkey(0)", 0.9)
    missing = [fact for fact in case.of("module.peermem") if fact.value is False]
    yield from reported(
        "peermem-missing", missing, "no nvidia_peermem among the modules", "nvidia_peermem, or DMA-BUF", 0.6
    )
    remapped = [
        fact
        for fact in case.of("kernel.cmdline")
        if re.search(r"(?:intel_|amd_)iommu=on", fact.text) and not re.search(r"\biommu=pt", fact.text)
    ]
    yield from reported("iommu-on", remapped, "{text}", "iommu=pt beside it, on bare metal", 0.6)
    translated = [fact for fact in case.of("iommu") if fact.text.lower().startswith("translat")]
    yield from reported(
        "iommu-on",
        translated,
        "IOMMU default domain: Translated",
        "passthrough, on bare metal",
        0.5,
        severity=Severity.WARNING if case.of("pci.acs", "nccl.warn", "bench.row") else Severity.NOTE,
    )


RULES: tuple[Rule, ...] = (pings, management, limits)
