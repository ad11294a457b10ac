"""GPUs by nvidia-smi: NVLinks and their errors, memory, clocks, lanes, and which of them is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found, reported
from fabrictwin.diagnosis.rules.inside.gpu_names import BASEBOARD, STANDS_ALONE, is_on_baseboard

FEW_LINK_ERRORS = 10
MANY_REPLAYS = 1000
# from how many on errors of an NVLink count: replays and failed checks mend themselves, a recovery trains anew
_NVLINK_ERRORS = {"replay": 100, "crc": 100, "crc flit": 100, "crc data": 100, "recovery": 1}


def nvlink(case: Case) -> Iterator[Finding]:
    """NVLink as nvidia-smi has it, and the state of the fabric."""
    inactive = case.of("nvlink.inactive")
    if inactive:
        links = Counter(fact.subject.device for fact in inactive)
        gpus = {fact.subject.device for fact in case.of("smi.gpu")}
        everywhere = (
            len(gpus) > 1 and set(links) == gpus and len(set(links.values())) == 1 and not case.of("nvlink.rate")
        )
        names = [fact.text for fact in case.of("smi.gpu")]
        unbridged = everywhere and all(map(STANDS_ALONE.search, names))
        yield found(
            "nvlink-inactive",
            inactive,
            f"{len(inactive)} link(s) inactive" + (" on all GPUs alike" if everywhere else ""),
            "all active" if not unbridged else "any: cards that a bridge may join or not",
            0.9 if not unbridged else 0.4,
            severity=Severity.NOTE if unbridged else Severity.WARNING if everywhere else None,
        )
    active = case.of("nvlink.rate")
    rates = Counter(fact.number for fact in active)
    usual = max(rates, key=lambda rate: rates[rate], default=0.0)
    weak = [fact for fact in active if 0 < fact.number < usual]
    if len(weak) * 4 <= len(active):
        yield from reported("nvlink-degraded", weak, "{0:g} GB/s", f"{usual:g} GB/s, as the others", 0.75)
    count = Counter(fact.subject.device for fact in active)
    if len(count) > 1 and not inactive:
        most = max(count.values())
        # the list may end before the last GPU's links do
        last = max(active, key=lambda fact: (fact.place.file, fact.place.line)).subject.device
        few = [fact for fact in active if count[fact.subject.device] < most and fact.subject.device != last]
        if few:
            yield found(
                "nvlink-inactive",
                few,
                f"{min(count.values())} links",
                f"{most}, as its peers",
                0.7,
                severity=Severity.WARNING,
            )
    counted = [fact for fact in case.of("nvlink.errors") if str(fact.parts[0]).lower() in _NVLINK_ERRORS]
    errors = [fact for fact in counted if int(fact.parts[1] or 0) >= _NVLINK_ERRORS[str(fact.parts[0]).lower()]]
    yield from reported("nvlink-error", errors, "{0} errors {1}", "0", 0.7, severity=Severity.WARNING)
    few = [fact for fact in counted if int(fact.parts[1] or 0) >= FEW_LINK_ERRORS]
    if not errors:
        yield from reported(
            "nvlink-error", few, "{0} errors {1}", "0", 0.5,
            severity=Severity.QUESTION, collect="nvidia-smi nvlink -e twice, minutes apart: does it still count?",
        )  # fmt: skip
    fabric = [fact for fact in case.of("smi.fabric") if fact.text not in ("Completed", "N/A", "Success")]
    yield from reported("fabric-manager", fabric, "Fabric: {text}", "Completed", 0.9)
    stopped = [fact for fact in case.of("fabricmanager.state") if fact.value in ("failed", "inactive")]
    yield from reported("fabric-manager", stopped, "Active: {text}", "active (running)", 0.85)
    remap = case.of("smi.remap-pending", "smi.remap-failed")
    if remap:
        failed = bool(case.of("smi.remap-failed"))
        yield found(
            "gpu-memory",
            remap,
            "remapping " + ("failed" if failed else "pending"),
            "none",
            0.9,
            severity=None if failed else Severity.WARNING,
        )


def queried(case: Case) -> Iterator[Finding]:
    """Errors of a GPU's memory, reasons of its low clocks, lanes, and the reset that it asks for (nvidia-smi)."""
    counted = case.of("smi.uncorrected")
    now = [fact for fact in counted if fact.parts[0] == "volatile"]
    before = [fact for fact in counted if fact.parts[0] != "volatile"]
    if not case.of("smi.remap-pending", "smi.remap-failed"):
        yield from reported("gpu-memory", now, "{1} uncorrected error(s) of memory", "0", 0.9)
        if not now:
            yield from reported(
                "gpu-memory",
                before,
                "{1} uncorrected error(s) of memory in its life",
                "0, or rows that were remapped for them",
                0.5,
                severity=Severity.NOTE,
            )
    yield from reported("gpu-lost", case.of("smi.lost"), "{text} in place of readings", "readings", 0.95)
    yield from reported("gpu-hot", case.of("smi.hot"), "{text}: Active", "Not Active", 0.9)
    yield from reported("gpu-power", case.of("smi.power"), "{text}: Active", "Not Active", 0.88)
    yield from reported("gpu-recovery", case.of("smi.recovery"), "GPU Recovery Action: {text}", "None", 0.9)
    replays = [fact for fact in case.of("smi.replays") if fact.number >= MANY_REPLAYS]
    yield from reported(
        "pci-replays", replays, "{text} replays since the reset", "few", 0.5,
        severity=Severity.QUESTION, collect="nvidia-smi -q twice, minutes apart: do they still count?",
    )  # fmt: skip
    listed = {fact.subject.device for fact in case.of("smi.gpu")}
    whole = all(is_on_baseboard(fact.text) for fact in case.of("smi.gpu"))
    if whole and len(listed) == BASEBOARD - 1:
        yield found(
            "gpu-lost", case.of("smi.gpu"), f"{len(listed)} GPUs", f"{BASEBOARD} of a baseboard", 0.5,
            object="a GPU", severity=Severity.QUESTION,
            collect="lspci | grep -i nvidia; dmesg | grep -i nvrm: has one of them gone, or was it left out?",
        )  # fmt: skip
    narrow = case.of("smi.narrow")
    # slots of half the lanes are common, and cloud hosts have them: one that differs from its peers is not
    odd = len({fact.subject for fact in narrow}) < len({fact.subject for fact in case.of("smi.lanes")})
    yield from reported(
        "pci-narrow",
        narrow,
        "x{0}",
        "x{1}",
        0.8 if odd else 0.5,
        severity=Severity.WARNING if odd else Severity.QUESTION,
        collect="" if odd else "lspci -vvv while traffic runs: does the slot have as many lanes?",
    )
    yield from reported(
        "gpu-hardware", case.of("smi.unreadable"), "{text} in place of a reading", "a reading", 0.85
    )


RULES: tuple[Rule, ...] = (nvlink, queried)
