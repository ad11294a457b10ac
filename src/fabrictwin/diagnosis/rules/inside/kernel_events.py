"""What kernels and fabric managers say went wrong: Xid, SXid, peermem, crashes, adapters, memory."""

from __future__ import annotations

from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found, reported
from fabrictwin.diagnosis.mechanisms.table import REMAPPED, SURE, mechanism_of, sxids, xids
from fabrictwin.diagnosis.rules.inside.gpu_names import STANDS_ALONE

FLAPS = 2
SEVERAL = 3  # links that go down and stay so
REPLAYS = 3  # one or two come with the start of a link


def kernel(case: Case) -> Iterator[Finding]:
    """Xid and SXid errors, peermem, crashes, adapters, memory."""
    by_cause: dict[str, list[Fact]] = {}
    for fact in case.of("xid"):
        code = int(fact.number)
        by_cause.setdefault("gpu-memory" if code == REMAPPED else xids().get(code, "xid"), []).append(fact)
    for name, facts in by_cause.items():
        codes = sorted({int(fact.number) for fact in facts})
        only = codes == [REMAPPED]
        yield found(
            name,
            facts,
            "Xid " + ", ".join(str(code) for code in codes),
            "none",
            0.95 if name != "xid" else 0.7,
            severity=Severity.WARNING if only else None,
        )
    for fatal in (True, False):
        facts = [fact for fact in case.of("sxid") if bool(fact.parts[1]) is fatal]
        if facts:
            codes = sorted({int(fact.parts[0] or 0) for fact in facts})
            seen = "SXid " + ", ".join(
                f"{code} ({sxids()[code]})" if code in sxids() else str(code) for code in codes
            )
            yield found("sxid-fatal" if fatal else "sxid", facts, seen, "none", 0.9)
    for kind, name, confidence in (
        ("peermem.error", "peermem-broken", 0.95),
        ("segfault", "library-crash", 0.9),
        ("mlx5.module", "module-fault", 0.85),
        ("mlx5.error", "adapter-error", 0.6),
        ("oom", "host-memory", 0.9),
        ("fabricmanager.version", "fabric-manager", 0.95),
        ("imex.error", "imex-domain", 0.85),
    ):
        facts = case.of(kind)
        if facts:
            value = " in ".join(str(part) for part in facts[0].parts)
            yield found(name, facts, value, "none", confidence)
    yield from reported(
        "iommu-on", case.of("iommu.fault"), "the IOMMU refused a transfer of a device", "none", 0.8
    )
    yield from _kernel_links(case)


def _kernel_links(case: Case) -> Iterator[Finding]:
    bonds = case.of("bond.dead")
    downs = [fact for fact in case.of("link.event") if fact.value == "down"]
    # a link that comes up again and again went down in between, also where only that was passed on
    ups = [fact for fact in case.of("link.event") if fact.value == "up" and fact.count > FLAPS]
    flapping = [fact for fact in downs if fact.count >= FLAPS] or ([] if downs else ups)
    if bonds:
        yield found(
            "port-down", [*bonds, *downs], "no interface of the bond has a link", "at least one active", 0.85
        )
    elif case.of("bond.lost") and not flapping:
        yield from reported("port-down", case.of("bond.lost"), "link of a bond down, not up again", "up", 0.9)
    elif flapping:
        most = max(f.count for f in flapping)
        yield found("link-flapping", flapping, f"Link {flapping[0].value} {most} times", "up", 0.85)
    elif downs:
        back = {fact.subject for fact in case.of("link.last") if fact.value == "up"}
        gone = [fact for fact in downs if fact.subject not in back]
        yield found("link-downed", downs, "Link down once" + (", not up again" if gone else ""), "up", 0.4)
        if len(gone) >= SEVERAL:
            yield found("port-down", gone, f"{len(gone)} links down, not up again", "up", 0.6)
        elif gone:
            yield found(
                "port-down", gone, "Link down, not up again in this log", "up", 0.45,
                severity=Severity.QUESTION, collect="the log's next minutes; ip -br link",
            )  # fmt: skip
    bad = [fact for fact in case.of("aer") if fact.value == "uncorrectable"]
    yield from reported("pci-errors", bad, "AER: uncorrectable", "none", 0.8)
    again = [fact for fact in case.of("aer") if fact.value == "correctable" and fact.count >= REPLAYS]
    if again and not bad:
        most = max(fact.count for fact in again)
        yield found("pci-replays", again, f"AER: corrected {most} times", "none", 0.6)
    reports = [fact for fact in case.of("fabricmanager.error") if _of_the_manager(fact)]
    idle = [fact for fact in reports if "NOTHING_TO_DO" in fact.text]
    if idle:
        yield found(
            "fabric-manager-unneeded", idle, idle[0].text, "no fabric manager", 0.95, severity=Severity.WARNING
        )
    elif reports and not case.of("sxid"):
        yield found("fabric-manager", reports, reports[0].text, "no error", 0.7, severity=Severity.WARNING)


def manager_without_switches(case: Case) -> Iterator[Finding]:
    """A fabric manager that failed on GPUs which no NVSwitch joins."""
    names = [fact.text for fact in case.of("smi.gpu")]
    told = [fact for fact in case.of("line.known") if fact.parts[0] == "fabric-manager"]
    failed = [*told, *case.of("fabricmanager.state", "fabricmanager.error")]
    if failed and names and all(map(STANDS_ALONE.search, names)):
        seen = f"{failed[0].parts[1] if told else failed[0].text} ({names[0]})"
        yield found("fabric-manager-unneeded", failed, seen, "no fabric manager", 0.9, severity=Severity.WARNING)


def _of_the_manager(fact: Fact) -> bool:
    """Return true for an error of the fabric manager that names no other part."""
    mechanism = mechanism_of(fact.text)
    return mechanism is None or mechanism.cause.startswith("fabric-manager") or mechanism.sure < SURE


RULES: tuple[Rule, ...] = (kernel, manager_without_switches)
