"""Tests of GPUs and of their links in one host: copies between host and GPUs, and between pairs; wrong results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fabrictwin import catalog
from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.expectation.hardware import gpu_of
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found, reported

SLOW = 0.8  # of what the others reach
MOST_SLOW = 0.25  # of pairs, or they are of two kinds: on one switch and over the processors
FEWEST = 3
HALF = 0.5  # of what the GPU's own link could carry: fewer lanes or a generation below


def peers(case: Case) -> Iterator[Finding]:
    """Pairs of GPUs that reach less directly than through the host's memory, which has twice the way."""
    staged = {fact.subject: fact for fact in case.of("p2p.staged")}
    slow = [
        fact
        for fact in case.of("p2p.direct")
        if fact.subject in staged and fact.number < staged[fact.subject].number / 2
    ]
    if slow:
        worst = min(slow, key=lambda fact: fact.number / staged[fact.subject].number)
        beside = staged[worst.subject]
        yield found(
            "acs-redirects",
            [worst, beside, *slow],
            f"{worst.subject.device}: {worst.number:g} GB/s directly, {beside.number:g} through the host's memory",
            "at least as much as through the host's memory",
            0.8,
        )


def copies(case: Case) -> Iterator[Finding]:
    """GPUs whose copies from and to the host, and pairs of GPUs whose copies, are slower than the others'."""
    by_way: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    for fact in case.of("gpu.copy"):
        by_way[fact.subject.host, str(fact.parts[0])].append(fact)
    for (_, way), facts in by_way.items():
        usual = sorted(map(_rate, facts))[len(facts) // 2]
        slow = [fact for fact in facts if _rate(fact) < SLOW * usual]
        between = way == "device_to_device"
        few = len(slow) <= MOST_SLOW * len(facts) if between else 2 * len(slow) < len(facts)
        if slow and few and len(facts) >= FEWEST:
            yield found(
                "nvlink-degraded" if between else "pci-narrow",
                sorted(slow, key=_rate),
                f"{way.replace('_', ' ')}: {min(map(_rate, slow)):g} GB/s",
                f"{usual:g} GB/s, as {'other pairs' if between else 'its peers'}",
                0.75,
                object=_gpu_of_all(slow) if between else "",
                severity=Severity.WARNING,
                expected_from="the median of the GPUs",
            )
        elif not between:
            yield from _against_its_link(case, way, facts)


def _rate(fact: Fact) -> float:
    return float(fact.parts[1] or 0)


def _gpu_of_all(pairs: list[Fact]) -> str:
    """Return the one GPU that all of these pairs have; nothing where there is none."""
    shared = set.intersection(*(set(fact.subject.device.split(" to ")) for fact in pairs))
    return next(iter(shared)) if len(shared) == 1 and len(pairs) > 1 else ""


def _against_its_link(case: Case, way: str, facts: list[Fact]) -> Iterator[Finding]:
    """Copies of GPUs of the catalog below half of what their PCIe link carries."""
    names = [fact.text for fact in case.of("smi.gpu", "bench.gpu")]
    gpu = gpu_of(names[0]) if names else ""
    if not gpu:
        return
    own = catalog.gpu(gpu)
    link = f"PCIe {own.pcie.removeprefix('gen')} x{own.pcie_lanes.value}"
    could = catalog.pcie(own.pcie).payload_rate_bps(own.pcie_lanes.value) / 8e9
    low = [fact for fact in facts if _rate(fact) < HALF * could]
    yield from reported(
        "pci-narrow",
        low,
        f"{way.replace('_', ' ')}: {{1:g}} GB/s",
        f"{could:.3g} GB/s over {link} at most",
        0.5,
        severity=Severity.QUESTION,
        collect="lspci -vvv of the GPUs under load (LnkSta); was the memory pinned, and on the GPU's own socket?",
    )


def computing(case: Case) -> Iterator[Finding]:
    """GPUs that computed or moved data wrongly, lost their process, or are slower than the others."""
    yield from reported("gpu-computes-wrong", case.of("gpu.wrong"), "{text}", "the same result every time", 0.9)
    yield from reported("gpu-computes-wrong", case.of("gpu.died"), "its process DIED", "one that goes on", 0.6)
    last = {fact.subject: fact for fact in case.of("gpu.flops")}
    rates = sorted(fact.number for fact in last.values())
    slow = [fact for fact in last.values() if fact.number < SLOW * rates[len(rates) // 2]]
    if slow and len(rates) >= FEWEST and 2 * len(slow) < len(rates):
        yield found(
            "gpu-slow",
            slow,
            f"{min(fact.number for fact in slow):g} Gflop/s",
            f"{rates[len(rates) // 2]:g} Gflop/s, as its peers",
            0.8,
            expected_from="the median of the GPUs",
        )


RULES: tuple[Rule, ...] = (peers, copies, computing)
