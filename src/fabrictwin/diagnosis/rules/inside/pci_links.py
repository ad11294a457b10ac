"""PCIe: widths and rates of links, devices that do not answer, access control, read requests."""

from __future__ import annotations

from collections.abc import Iterator

from fabrictwin.diagnosis.case import Case, Rule
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.found import found, reported
from fabrictwin.diagnosis.rules.inside.gpu_names import BASEBOARD

SEVERAL = 3  # NVSwitches of a baseboard at least


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


RULES: tuple[Rule, ...] = (unreadable_devices, pci)
