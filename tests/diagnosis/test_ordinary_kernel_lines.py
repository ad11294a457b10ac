"""Lines that kernels of healthy hosts print as they start and run: no warning is made of them."""

from __future__ import annotations

import pytest

from fabrictwin.diagnosis.diagnose import judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text

ORDINARY = """\
iommu: Default domain type: Translated
DMAR: Using default fault reporting
pcieport 0000:00:01.0: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+ SwTrigger+ RP PIO Log 4
pcieport 0000:00:01.0: AER: enabled with IRQ 25
pci 0000:17:01.0: BAR 13: failed to assign [io  size 0x1000]
pci 0000:17:01.0: BAR 13: no space for [io  size 0x1000]
pci 0000:5e:00.2: BAR 7: failed to assign [mem size 0x00200000 64bit pref]
pci 0000:00:1f.0: can't claim BAR 0 [mem 0xfd000000-0xfdffffff]: no compatible bridge window
blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0
nvme nvme1: Shutdown timeout set to 10 seconds
nvme nvme0: missing or invalid SUBNQN field.
IPv6: ADDRCONF(NETDEV_UP): docker0: link is not ready
IPv6: ADDRCONF(NETDEV_CHANGE): ens1: link becomes ready
IPv6: ADDRCONF(NETDEV_UP): ens1: link is not ready
i40e 0000:3d:00.0: The driver for the device detected a newer version of the NVM image v1.15 than expected v1.9.
TCP: request_sock_TCP: Possible SYN flooding on port 443. Sending cookies.  Check SNMP counters.
clocksource: timekeeping watchdog on CPU3: Marking clocksource 'tsc' as unstable because the skew is too large:
ata1: SATA link down (SStatus 0 SControl 300)
mlx5_core 0000:5e:00.0: mlx5_pcie_event:301:(pid 1234): PCIe slot advertised sufficient power (75W).
nvidia: module verification failed: signature and/or required key missing - tainting kernel
ACPI Error: Aborting method \\_SB.PCI0.LPCB._INI due to previous error (AE_NOT_FOUND)
RAS: Correctable Errors collector initialized.
x86/split lock detection: #AC: crashing the kernel on kernel split_locks and warning on user-space split_locks
perf: interrupt took too long (2512 > 2500), lowering kernel.perf_event_max_sample_rate to 79500
"""


def shown(line: str) -> list[str]:
    text = f"[    0.000000] Linux version 5.15.0-91-generic\n[   12.345678] {line}\n"
    return [one.id for one in judged(read_text(text), twin=False).findings if one.severity >= Severity.WARNING]


@pytest.mark.parametrize("line", ORDINARY.splitlines())
def test_an_ordinary_line_of_a_kernel_is_no_fault(line: str) -> None:
    assert shown(line) == []


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("pcieport 0000:00:01.0: DPC: containment event, status:0x1f01 source:0x0000", "pci-errors"),
        ("pcieport 0000:00:01.0: DPC: unmasked uncorrectable error detected", "pci-errors"),
        ("pci 0000:17:00.0: BAR 1: no space for [mem size 0x2000000000 64bit pref]", "pci-errors"),
        ("DMAR: DRHD: handling fault status reg 2", "iommu-on"),
        ("nvme nvme0: I/O 12 QID 3 timeout, aborting", "storage-error"),
        ("blk_update_request: I/O error, dev sda, sector 128", "storage-error"),
        ("IPv6: ADDRCONF(NETDEV_UP): ib0: link is not ready", "port-down"),
    ],
)
def test_a_line_that_looks_like_one_is_a_fault_still(line: str, cause: str) -> None:
    assert cause in shown(line)


def test_what_a_kernel_went_on_after_is_a_warning():
    """A kernel goes on after nearly all that fails in it: how much it said since does not make it harmless."""
    later = "".join(f"[ 40.{n:06d}] usb 1-1: new device number {n}\n" for n in range(90))
    for line in (
        "[ 12.1] BUG: KASAN: slab-use-after-free in mlx5_frob+0x707/0x810",
        "[ 12.1] mlx5_core 0000:0a:00.1: print_health_info:424:(pid 0): synd 0x8: unrecoverable hardware error",
    ):
        found = judged(read_text(f"{line}\n{later}"), twin=False)
        assert found.findings[0].severity == Severity.WARNING, line
