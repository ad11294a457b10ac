"""PCIe devices by their own word (`lspci -vvv`): errors, drivers that have not taken them, payloads and tags."""

from __future__ import annotations

from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import reported
from fabrictwin.diagnosis.readers.host.pci import FATAL

AGAIN = "lspci -vvv twice, minutes apart, after the flags were cleared; dmesg | grep -e AER -e pcieport"
SMALLEST_PAYLOAD = 128  # bytes, which every device can; hosts' own ports take 256 or more


def errors(case: Case) -> Iterator[Finding]:
    """Errors that stay set: of GPUs and adapters told, of ports above, which serve other devices too, asked."""
    facts = case.of("pci.status")
    contained = _of(facts, "DpcSta")
    yield from reported("pci-errors", contained, "DpcSta: Trigger+", "Trigger-: the port lets traffic pass", 0.85)
    wrong = [fact for fact in _of(facts, "UESta") if set(str(fact.parts[1]).split()) & FATAL]
    own = [fact for fact in wrong if fact.parts[2]]
    late = [fact for fact in _of(facts, "UESta") if fact not in wrong]
    yield from reported("pci-errors", own, "UESta: {1}", "none set", 0.75)
    above = [fact for fact in wrong if not fact.parts[2]]
    asked = [*above, *late, *[fact for fact in _of(facts, "DevSta") if fact.parts[2]]]
    if not own and not contained:
        yield from reported(
            "pci-errors", asked, "{0}: {1}", "none set", 0.45, severity=Severity.QUESTION, collect=AGAIN
        )
    replayed = [fact for fact in _of(facts, "CESta") if fact.parts[2]]
    yield from reported(
        "pci-replays",
        replayed,
        "CESta: {1}",
        "none, or those of training",
        0.45,
        severity=Severity.QUESTION,
        collect=AGAIN,
    )
    power = _of(facts, "SltSta")
    yield from reported(
        "pci-power", power, "SltSta: PowerFlt+", "PowerFlt-", 0.5, severity=Severity.QUESTION, collect=AGAIN
    )


def _of(facts: list[Fact], row: str) -> list[Fact]:
    return [fact for fact in facts if fact.parts[0] == row]


def drivers(case: Case) -> Iterator[Finding]:
    """GPUs that another driver has, or none although a module is there for them."""
    held = [fact for fact in case.of("pci.driver") if fact.parts[1] == "nouveau"]
    yield from reported("gpu-driver", held, "Kernel driver in use: {1}", "nvidia", 0.9)
    without = [fact for fact in case.of("pci.undriven") if fact.parts[0] == "gpu"]
    some = [fact for fact in case.of("pci.driver") if fact.parts[0] == "gpu"]
    yield from reported(
        "gpu-driver",
        without,
        "no driver in use; modules: {1}",
        "nvidia, as its peers" if some else "nvidia",
        0.8 if some else 0.55,
        severity=None if some else Severity.QUESTION,
        collect="" if some else "lspci -k; lsmod | grep nvidia; dmesg | grep NVRM",
    )


def requests(case: Case) -> Iterator[Finding]:
    """Smallest payloads, and tags that are switched off: fewer bytes in flight than the device can have."""
    small = [
        fact for fact in case.of("pci.payload") if fact.parts[1] == SMALLEST_PAYLOAD < int(fact.parts[2] or 0)
    ]
    yield from reported(
        "read-request", small, "MaxPayload {1} bytes", "256 bytes or more", 0.4, severity=Severity.NOTE
    )
    few = case.of("pci.few-tags")
    yield from reported(
        "read-request",
        few,
        "ExtTag-: 32 reads at a time",
        "ExtTag+, which the device can",
        0.5,
        severity=Severity.QUESTION,
        collect="ib_write_bw and ib_read_bw over that adapter",
    )


RULES: tuple[Rule, ...] = (errors, drivers, requests)
