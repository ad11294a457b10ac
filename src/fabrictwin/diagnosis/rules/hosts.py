"""Kernel logs, NVLink, PCIe, limits and the fabric manager of hosts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.causes import cause
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.finding import Finding, Severity, found
from fabrictwin.diagnosis.rules.reported import reported

# NVIDIA, "Xid errors": what a code means for a job that communicates
_XID = {
    79: "gpu-lost",
    119: "gpu-gsp",
    120: "gpu-gsp",
    48: "gpu-memory",
    64: "gpu-memory",
    94: "gpu-memory",
    95: "gpu-memory",
    74: "nvlink-error",
    145: "nvlink-error",
    146: "nvlink-error",
    147: "nvlink-error",
    148: "nvlink-error",
    149: "nvlink-error",
    13: "gpu-program",
    31: "gpu-program",
    43: "gpu-program",
    45: "gpu-program",
    69: "gpu-program",
}
_REMAPPED = 63  # a row was remapped: as it should be, until the next reset
SMALL_LOCKED = 64 << 20
SMALL_SHM = 128 << 20
FLAPS = 2
REPLAYS = 3  # one or two come with the start of a link
FEW_READS = 44  # NVIDIA/nccl-tests issue 152: 47 to 93 GB/s by raising it


def kernel(case: Case) -> Iterator[Finding]:
    """Xid and SXid errors, peermem, crashes, adapters, memory."""
    by_cause: dict[str, list[Fact]] = {}
    for fact in case.of("xid"):
        code = int(fact.number)
        by_cause.setdefault("gpu-memory" if code == _REMAPPED else _XID.get(code, "xid"), []).append(fact)
    for name, facts in by_cause.items():
        codes = sorted({int(fact.number) for fact in facts})
        only = codes == [_REMAPPED]
        yield found(
            cause(name),
            facts,
            seen="Xid " + ", ".join(str(code) for code in codes),
            expected="none",
            confidence=0.95 if name != "xid" else 0.7,
            severity=Severity.WARNING if only else None,
        )
    for fatal in (True, False):
        facts = [fact for fact in case.of("sxid") if bool(fact.parts[1]) is fatal]
        if facts:
            codes = sorted({int(fact.parts[0] or 0) for fact in facts})
            yield found(
                cause("sxid-fatal" if fatal else "sxid"),
                facts,
                seen="SXid " + ", ".join(str(c) for c in codes),
                expected="none",
                confidence=0.9,
            )
    for kind, name, confidence in (
        ("peermem.error", "peermem-broken", 0.95),
        ("segfault", "library-crash", 0.9),
        ("mlx5.module", "module-fault", 0.85),
        ("smi.failed", "driver-mismatch", 0.9),
        ("mlx5.error", "adapter-error", 0.6),
        ("oom", "host-memory", 0.9),
        ("fabricmanager.version", "fabric-manager", 0.95),
    ):
        facts = case.of(kind)
        if facts:
            value = " in ".join(str(part) for part in facts[0].parts)
            yield found(cause(name), facts, seen=value, expected="none", confidence=confidence)
    yield from reported(
        case.of("iommu.fault"),
        "iommu-on",
        seen="the IOMMU refused a transfer of a device",
        expected="none",
        confidence=0.8,
    )
    yield from _kernel_links(case)


def _kernel_links(case: Case) -> Iterator[Finding]:
    bonds = case.of("bond.dead")
    if bonds:
        members = [fact for fact in case.of("link.event") if fact.value == "down"]
        yield found(
            cause("port-down"),
            [*bonds, *members],
            seen="no interface of the bond has a link",
            expected="at least one active",
            confidence=0.85,
        )
        return
    downs = [fact for fact in case.of("link.event") if fact.value == "down"]
    # a link that comes up again and again went down in between, also where only that was passed on
    ups = [fact for fact in case.of("link.event") if fact.value == "up" and fact.count > FLAPS]
    flapping = [fact for fact in downs if fact.count >= FLAPS] or ([] if downs else ups)
    if flapping:
        most = max(f.count for f in flapping)
        yield found(
            cause("link-flapping"),
            flapping,
            seen=f"Link {flapping[0].value} {most} times",
            expected="up",
            confidence=0.85,
        )
    elif downs:
        again = {fact.subject for fact in case.of("link.event") if fact.value == "up"}
        yield found(
            cause("link-downed"),
            downs,
            seen="Link down once" + ("" if downs[0].subject in again else ", not up again"),
            expected="up",
            confidence=0.4,
        )
    bad = [fact for fact in case.of("aer") if fact.value == "uncorrectable"]
    yield from reported(bad, "pci-errors", seen="AER: uncorrectable", expected="none", confidence=0.8)
    again = [fact for fact in case.of("aer") if fact.value == "correctable" and fact.count >= REPLAYS]
    if again and not bad:
        yield found(
            cause("pci-replays"),
            again,
            seen=f"AER: corrected {max(fact.count for fact in again)} times",
            expected="none",
            confidence=0.6,
        )
    reports = case.of("fabricmanager.error")
    if reports and not case.of("sxid"):
        yield found(
            cause("fabric-manager"),
            reports,
            seen=reports[0].text,
            expected="no error",
            confidence=0.7,
            severity=Severity.WARNING,
        )


def nvlink(case: Case) -> Iterator[Finding]:
    """NVLink as nvidia-smi has it, and the state of the fabric."""
    inactive = case.of("nvlink.inactive")
    if inactive:
        links = Counter(fact.subject.device for fact in inactive)
        gpus = {fact.subject.device for fact in case.of("smi.gpu")}
        everywhere = (
            len(gpus) > 1 and set(links) == gpus and len(set(links.values())) == 1 and not case.of("nvlink.rate")
        )
        yield found(
            cause("nvlink-inactive"),
            inactive,
            seen=f"{len(inactive)} link(s) inactive" + (" on all GPUs alike" if everywhere else ""),
            expected="all active",
            confidence=0.9,
            severity=Severity.WARNING if everywhere else None,
        )
    count = Counter(fact.subject.device for fact in case.of("nvlink.rate"))
    if len(count) > 1 and not inactive:
        most = max(count.values())
        few = [fact for fact in case.of("nvlink.rate") if count[fact.subject.device] < most]
        if few:
            yield found(
                cause("nvlink-inactive"),
                few,
                seen=f"{min(count.values())} links",
                expected=f"{most}, as its peers",
                confidence=0.7,
                severity=Severity.WARNING,
            )
    errors = [
        fact
        for fact in case.of("nvlink.errors")
        if str(fact.parts[0]).lower() in ("replay", "recovery", "crc flit", "crc data")
        and int(fact.parts[1] or 0) >= 100
    ]
    yield from reported(
        errors, "nvlink-error", seen="{0} errors {1}", expected="0", confidence=0.7, severity=Severity.WARNING
    )
    fabric = [fact for fact in case.of("smi.fabric") if fact.text not in ("Completed", "N/A", "Success")]
    yield from reported(fabric, "fabric-manager", seen="Fabric: {text}", expected="Completed", confidence=0.9)
    stopped = [fact for fact in case.of("fabricmanager.state") if fact.value in ("failed", "inactive")]
    yield from reported(
        stopped, "fabric-manager", seen="Active: {text}", expected="active (running)", confidence=0.85
    )
    remap = case.of("smi.remap-pending", "smi.remap-failed")
    if remap:
        failed = bool(case.of("smi.remap-failed"))
        yield found(
            cause("gpu-memory"),
            remap,
            seen="remapping " + ("failed" if failed else "pending"),
            expected="none",
            confidence=0.9,
            severity=None if failed else Severity.WARNING,
        )


def topology(case: Case) -> Iterator[Finding]:
    """Paths of `nvidia-smi topo -m`: NVLink uneven, everything far apart."""
    paths = case.of("smi.path")
    between = [
        fact for fact in paths if str(fact.parts[0]).startswith("GPU") and fact.subject.device.startswith("GPU")
    ]
    linked = [fact for fact in between if str(fact.parts[1]).startswith("NV")]
    if linked:
        usual = Counter(str(fact.parts[1]) for fact in linked).most_common(1)[0][0]
        apart = [fact for fact in between if not str(fact.parts[1]).startswith("NV")]
        weak = [fact for fact in linked if int(str(fact.parts[1])[2:] or 0) < int(usual[2:] or 0)]
        mesh = len(apart) > len(between) / 4  # bridges and cubes join some pairs only
        if (apart or weak) and not mesh and len({str(f.parts[1]) for f in linked}) <= 2:
            bad = weak or apart
            yield found(
                cause("nvlink-degraded"),
                bad,
                seen=f"{bad[0].subject.device} - {bad[0].parts[0]}: {bad[0].parts[1]}",
                expected=usual,
                confidence=0.8,
            )
    near = [
        fact
        for fact in paths
        if str(fact.parts[0]).startswith(("NIC", "mlx5")) and fact.subject.device.startswith("GPU")
    ]
    if len(near) >= 8 and not any(str(fact.parts[1]) in ("PIX", "PXB", "PSB") for fact in near):
        yield found(
            cause("vm-topology"),
            near,
            seen=f"GPUs and adapters: {near[0].parts[1]} everywhere",
            expected="PIX or PXB to the adapter of each rail",
            confidence=0.6,
        )


def pci(case: Case) -> Iterator[Finding]:
    """Link widths and rates, access control, read requests."""
    down = case.of("pci.downgraded")
    narrow = [
        fact for fact in down if int(fact.parts[2] or 0) < int(fact.parts[4] or 0) and int(fact.parts[2] or 0) > 0
    ]
    slow_nic = [
        fact for fact in down if fact not in narrow and fact.parts[0] == "nic" and float(fact.parts[1] or 0) > 2.5
    ]
    idle = [fact for fact in down if fact not in narrow and fact not in slow_nic]
    if narrow:
        fact = narrow[0]
        yield found(
            cause("pci-narrow"),
            narrow,
            seen=f"{fact.parts[1]} GT/s x{fact.parts[2]}",
            expected=f"{fact.parts[3]} GT/s x{fact.parts[4]}",
            confidence=0.8,
            expected_from="the device's own capability",
            gain=f"{float(fact.parts[4] or 1) / float(fact.parts[2] or 1):.3g} times the rate of that device",
        )
    yield from reported(
        slow_nic,
        "pci-narrow",
        seen="{1} GT/s",
        expected="{3} GT/s",
        confidence=0.5,
        severity=Severity.QUESTION,
        collect="lspci -vvv while traffic runs: links may slow down at rest, and a slot may be slower",
    )
    yield from reported(idle, "pci-idle", seen="{1} GT/s x{2}", expected="any at rest", confidence=0.4)
    limited = case.of("pci.narrow")
    if limited:
        fact = limited[0]
        severe = float(fact.parts[0] or 0) < 0.6 * float(fact.parts[1] or 0)
        yield found(
            cause("pci-narrow"),
            limited,
            seen=f"{fact.parts[0]} Gb/s available, {fact.parts[2]}",
            expected=f"{fact.parts[1]} Gb/s",
            confidence=0.8,
            severity=None if severe else Severity.NOTE,
        )
    redirects = case.of("pci.acs")
    if redirects:
        virtual = not case.of("pci.gpu") and not case.of("pci.nic")
        yield found(
            cause("acs-redirects"),
            redirects,
            seen=f"ACSCtl: {redirects[0].text}",
            expected="ReqRedir- CmpltRedir-",
            confidence=0.6 if virtual else 0.85,
        )
    small = [fact for fact in case.of("pci.read-request") if fact.number <= 512]
    yield from reported(
        small,
        "read-request",
        seen="MaxReadReq {text} bytes",
        expected="4096 bytes",
        confidence=0.4,
        severity=Severity.NOTE,
    )


def limits(case: Case) -> Iterator[Finding]:
    """Limits and settings of hosts."""
    locked = [fact for fact in case.of("limit.locked") if 0 <= fact.number < SMALL_LOCKED]
    yield from reported(locked, "limit-locked", seen="{text} bytes", expected="unlimited", confidence=0.8)
    shm = [fact for fact in case.of("limit.shm") if 0 < fact.number < SMALL_SHM]
    if shm:
        yield found(
            cause("limit-shm"), shm, seen=f"{int(shm[0].number) >> 20} MiB", expected="gigabytes", confidence=0.8
        )
    for fact in case.of("nic.setting"):
        reads = re.match(r"(?:\w+\()?(\d+)", str(fact.parts[1]))
        if fact.parts[0] == "MAX_ACC_OUT_READ" and reads is not None and 0 < int(reads[1]) < FEW_READS:
            yield found(
                cause("read-request"),
                [fact],
                seen=f"MAX_ACC_OUT_READ {reads[1]}",
                expected=f"{FEW_READS} or more, or 0: the firmware's choice",
                confidence=0.5,
            )
        if fact.parts[0] == "PCI_WR_ORDERING" and "force_relax" in str(fact.parts[1]):
            yield found(
                cause("relaxed-ordering"), [fact], seen=str(fact.parts[1]), expected="per_mkey(0)", confidence=0.9
            )
    missing = [fact for fact in case.of("module.peermem") if fact.value is False]
    yield from reported(
        missing,
        "peermem-missing",
        seen="no nvidia_peermem among the modules",
        expected="nvidia_peermem, or DMA-BUF",
        confidence=0.6,
    )
    remapped = [
        fact
        for fact in case.of("kernel.cmdline")
        if re.search(r"(?:intel_|amd_)iommu=on", fact.text) and not re.search(r"\biommu=pt", fact.text)
    ]
    yield from reported(
        remapped, "iommu-on", seen="{text}", expected="iommu=pt beside it, on bare metal", confidence=0.6
    )
    translated = [fact for fact in case.of("iommu") if fact.text.lower().startswith("translat")]
    yield from reported(
        translated,
        "iommu-on",
        seen="IOMMU default domain: Translated",
        expected="passthrough, on bare metal",
        confidence=0.5,
        severity=Severity.WARNING if case.of("pci.acs", "nccl.warn", "bench.row") else Severity.NOTE,
    )


RULES: tuple[Rule, ...] = (kernel, nvlink, topology, pci, limits)
