"""Kernel logs, NVLink, PCIe, limits and the fabric manager of hosts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from fabrictwin import catalog
from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.expectation.hardware import gpu_of, host_of
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found, reported
from fabrictwin.diagnosis.mechanisms.table import REMAPPED, SURE, mechanism_of, sxids, xids

SMALL_LOCKED = 64 << 20
SMALL_SHM = 128 << 20
FEW_FILES = 1024  # that a process may hold open: what systems come with
FLAPS = 2
FEW_LINK_ERRORS = 10
BASEBOARD = 8  # GPUs of an HGX baseboard with NVSwitches
MANY_REPLAYS = 1000
SEVERAL = 3  # links that go down and stay so
REPLAYS = 3  # one or two come with the start of a link
FEWEST_JOINED, MOST_ALONE = 3, 3  # GPUs that NVLink joins, for each that it does not
# GPUs that no NVSwitch joins, by a word of their names
_ALONE = re.compile(
    r"GeForce|\bRTX\b|Quadro|TITAN|Tesla [TPKM]\d|\b(?:T4|L4|L40S?|A2|A10G?|A16|A30|A40)\b|PCI-?E|"
    r"\bH[128]00 NVL\b",
    re.IGNORECASE,
)
FEW_READS = 44  # NVIDIA/nccl-tests issue 152: 47 to 93 GB/s by raising it


# from how many on errors of an NVLink count: replays and failed checks mend themselves, a recovery trains anew
_NVLINK_ERRORS = {"replay": 100, "crc": 100, "crc flit": 100, "crc data": 100, "recovery": 1}


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
    if failed and names and all(map(_ALONE.search, names)):
        seen = f"{failed[0].parts[1] if told else failed[0].text} ({names[0]})"
        yield found("fabric-manager-unneeded", failed, seen, "no fabric manager", 0.9, severity=Severity.WARNING)


def _of_the_manager(fact: Fact) -> bool:
    """Return true for an error of the fabric manager that names no other part."""
    mechanism = mechanism_of(fact.text)
    return mechanism is None or mechanism.cause.startswith("fabric-manager") or mechanism.sure < SURE


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
        unbridged = everywhere and all(map(_ALONE.search, names))
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
    whole = all(_on_baseboard(fact.text) for fact in case.of("smi.gpu"))
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


def _on_baseboard(name: str) -> bool:
    """Return true for a GPU, by its product's name, whose host in the catalog has eight behind NVSwitches."""
    host = host_of(gpu_of(name), efa=False)
    nodes = catalog.host(host).nodes if host is not None else None
    return nodes is not None and nodes.gpu == BASEBOARD and nodes.nvswitch > 0


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
        # bridges and cubes join some pairs only; beside GPUs that are all joined one alone has lost its links
        mesh = len(apart) > len(between) / 4 and not _left_out(between, linked)
        if (apart or weak) and not mesh and len({str(f.parts[1]) for f in linked}) <= 2:
            bad = weak or apart
            yield found(
                "nvlink-degraded",
                bad,
                f"{bad[0].subject.device} - {bad[0].parts[0]}: {bad[0].parts[1]}",
                usual,
                0.8,
                object=_common(bad),
            )
    near = [
        fact
        for fact in paths
        if str(fact.parts[0]).startswith(("NIC", "mlx5")) and fact.subject.device.startswith("GPU")
    ]
    # GPUs whose memory is a NUMA node of the host reach adapters over the processor's own links
    coherent = bool(case.of("smi.coherent"))
    if len(near) >= 8 and not coherent and not any(str(fact.parts[1]) in _UNDER_ONE_SWITCH for fact in near):
        yield found(
            "vm-topology",
            near,
            f"GPUs and adapters: {near[0].parts[1]} everywhere",
            "PIX or PXB to the adapter of each rail",
            0.6,
            # boards without NVSwitch may have their slots and adapters below different processors
            severity=None
            if _switched(between, linked)
            else Severity.NOTE
            if _of_cards(case, between, linked) and FEWER * _adapters(near) <= len(_gpus(near))
            else Severity.QUESTION,
            collect="systemd-detect-virt; lspci -tv: do GPUs and adapters share a PCIe switch on the hardware?",
        )
        return
    beside = {
        gpu: {str(f.parts[1]) for f in near if f.subject.device == gpu} for gpu in {f.subject.device for f in near}
    }
    close = {gpu for gpu, ways in beside.items() if ways & _UNDER_ONE_SWITCH}
    far = [fact for fact in near if fact.subject.device not in close]
    # hosts with one adapter for two GPUs have as many GPUs far from it as near
    if far and FEWEST_NEAR * (len(beside) - len(close)) <= len(close):
        yield found(
            "gdr-far",
            far,
            f"{far[0].subject.device}: no adapter nearer than {_nearest(far)}",
            "PIX or PXB, as its peers",
            0.4,
            severity=Severity.QUESTION,
            collect="lspci -tv, and NCCL's log with NCCL_DEBUG=INFO: which adapter that GPU uses, and how",
        )


MOST_LINKS = 18  # of a GPU; to each of its peers as many as that only a switch makes of fewer


def _switched(between: list[Fact], linked: list[Fact]) -> bool:
    """Return true where GPUs reach every other over more NVLinks than they have for each: through NVSwitch."""
    if not linked or len(linked) != len(between):
        return False
    peers = Counter(fact.subject.device for fact in linked).most_common(1)[0][1]
    return peers * int(str(linked[0].parts[1])[2:] or 0) > MOST_LINKS


FEWER = 2  # GPUs to an adapter at least: each cannot have one beside it


def _adapters(near: list[Fact]) -> int:
    return len({str(fact.parts[0]) for fact in near})


def _gpus(near: list[Fact]) -> set[str]:
    return {fact.subject.device for fact in near}


def _of_cards(case: Case, between: list[Fact], linked: list[Fact]) -> bool:
    """Return true for cards, bridged or not, whose boards are as their makers like."""
    names = [fact.text for fact in case.of("smi.gpu")]
    return 2 * len(linked) < len(between) or not linked or (bool(names) and all(map(_ALONE.search, names)))


_UNDER_ONE_SWITCH = {"PIX", "PXB", "PSB"}
_DISTANCES = ("PHB", "NODE", "SYS")  # of nvidia-smi, from near to far
FEWEST_NEAR = 3  # GPUs with an adapter of their own, for each without


def _nearest(facts: list[Fact]) -> str:
    return min((str(f.parts[1]) for f in facts), key=lambda way: _DISTANCES.index(way) if way in _DISTANCES else 9)


def _common(pairs: list[Fact]) -> str:
    """Return the one GPU that is in all of several pairs; empty where there is none."""
    ends = [{fact.subject.device, str(fact.parts[0])} for fact in pairs]
    shared = set.intersection(*ends)
    return shared.pop() if len(shared) == 1 and len(ends) > SEVERAL else ""


def _left_out(between: list[Fact], linked: list[Fact]) -> bool:
    """Return true where NVLink joins three or more GPUs, each to all others, and reaches the rest nowhere."""
    joined = {fact.subject.device for fact in linked} | {str(fact.parts[0]) for fact in linked}
    alone = {fact.subject.device for fact in between} - joined
    inside = [fact for fact in between if fact.subject.device in joined and str(fact.parts[0]) in joined]
    return bool(alone) and MOST_ALONE * len(alone) <= len(joined) >= FEWEST_JOINED and len(inside) == len(linked)


def unreadable_devices(case: Case) -> Iterator[Finding]:
    """Devices whose configuration space reads as ones: revision ff is no revision, nothing answers any more."""
    gone = case.of("pci.gone")
    gpus = [fact for fact in gone if fact.text == "gpu"]
    yield from reported("gpu-lost", gpus, "revision ff", "a device that answers", 0.88)
    shown = {fact.subject for fact in case.of("pci.gpu")}
    switches = case.of("pci.nvswitch")
    if 0 < len(shown) < BASEBOARD and len({fact.subject for fact in switches}) >= SEVERAL and not gpus:
        yield found(
            "gpu-lost",
            switches,
            f"{len(shown)} GPUs beside {len(switches)} NVSwitches",
            f"{BASEBOARD}: a baseboard with NVSwitches has no fewer",
            0.75,
            object="a GPU",
            severity=Severity.WARNING,
            collect="dmesg | grep -i -e nvrm -e 'fallen off'; nvidia-smi -L",
        )
    adapters = [fact for fact in gone if fact.text == "nic"]
    yield from reported("pci-errors", adapters, "revision ff", "a device that answers", 0.85)


def _slots(case: Case) -> Iterator[Finding]:
    """Slots that the kernel finds narrower or slower than the device in them."""
    limited = case.of("pci.narrow")
    if limited:
        fact = limited[0]
        severe = float(fact.parts[0] or 0) < 0.6 * float(fact.parts[1] or 0)
        yield found(
            "pci-narrow",
            limited,
            f"{fact.parts[0]} Gb/s available, {fact.parts[2]}",
            f"{fact.parts[1]} Gb/s",
            0.8,
            # a GPU at rest, or a slot of fewer lanes, is found so, too
            severity=Severity.NOTE if not severe else Severity.QUESTION if fact.parts[3] else None,
            collect="lspci -vvv of that device while traffic runs" if severe and fact.parts[3] else "",
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
            "pci-narrow",
            narrow,
            f"{fact.parts[1]} GT/s x{fact.parts[2]}",
            f"{fact.parts[3]} GT/s x{fact.parts[4]}",
            0.8,
            expected_from="the device's own capability",
            gain=f"{float(fact.parts[4] or 1) / float(fact.parts[2] or 1):.3g} times the rate of that device",
        )
    somewhere = [fact for fact in case.of("pci.narrow-somewhere") if int(fact.parts[0] or 0)]
    yield from reported(
        "pci-narrow",
        somewhere,
        "x{0} (downgraded)",
        f"x{somewhere[0].parts[1]}" if somewhere and somewhere[0].parts[1] else "the lanes that the device has",
        0.7,
        expected_from="the device's own capability",
    )
    yield from reported(
        "pci-narrow",
        slow_nic,
        "{1} GT/s",
        "{3} GT/s",
        0.5,
        severity=Severity.QUESTION,
        collect="lspci -vvv while traffic runs: links may slow down at rest, and a slot may be slower",
    )
    # a device at rest keeps the rate that it aims at
    held = {fact.subject for fact in down}
    yield from reported(
        "pci-narrow",
        [fact for fact in case.of("pci.target") if fact.subject in held],
        "Target Link Speed {1} GT/s",
        "{2} GT/s",
        0.75,
        severity=Severity.WARNING,
        expected_from="the device's own capability",
    )
    yield from reported("pci-idle", idle, "{1} GT/s x{2}", "any at rest", 0.4)
    yield from _slots(case)
    redirects = case.of("pci.acs")
    if redirects:
        virtual = not case.of("pci.gpu") and not case.of("pci.nic")
        # of a host whose job failed, not of any virtual machine
        sure = 0.85 if not virtual else 0.75 if case.of("nccl.warn") else 0.6
        yield found(
            "acs-redirects",
            redirects,
            f"ACSCtl: {redirects[0].text}",
            "ReqRedir- CmpltRedir-",
            sure,
        )
    small = [fact for fact in case.of("pci.read-request") if fact.number <= 512]
    yield from reported(
        "read-request", small, "MaxReadReq {text} bytes", "4096 bytes", 0.4, severity=Severity.NOTE
    )


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


def peer_access(case: Case) -> Iterator[Finding]:
    """GPUs that cannot reach each other's memory (`nvidia-smi topo -p2p`), where others can or all should."""
    facts = [fact for fact in case.of("smi.peer") if fact.parts[1] != "TNS"]  # sockets of some hosts keep apart
    bad = [fact for fact in facts if fact.parts[1] != "OK"]
    names = [fact.text for fact in case.of("smi.gpu")]
    some = len(bad) < len(facts)
    able = some or (bool(names) and not any(map(_ALONE.search, names)))
    if bad and not (names and all(map(_ALONE.search, names)) and not some):
        fact = bad[0]
        yield found(
            "p2p-off",
            bad,
            f"{fact.subject.device} - {fact.parts[0]}: {fact.parts[1]} ({len(bad)} of {len(facts)} pairs)",
            "OK",
            0.8 if able else 0.6,
            severity=Severity.WARNING if able else Severity.QUESTION,
            collect=""
            if able
            else "nvidia-smi -L: GeForce and inference cards have none; lspci -vvv | grep ACSCtl",
        )


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


RULES: tuple[Rule, ...] = (
    kernel, manager_without_switches, nvlink, queried, topology, unreadable_devices, pci, pings,
    peer_access, management, limits,
)  # fmt: skip
