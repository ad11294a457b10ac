"""Values of tools one at a time: each counter and state of a format, changed in a healthy print of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictwin.diagnosis.diagnose import CLEAN, FAULTS, UNCLEAR, Diagnosis, diagnose

PERFQUERY = """# Port extended counters: Lid 133 port 1 (CapMask: 0x5300 CapMask2: 0x0000002)
PortSelect:......................1
PortXmitData:....................178791657177235
PortXmitPkts:....................393094651266
SymbolErrorCounter:..............0
LinkErrorRecoveryCounter:........0
LinkDownedCounter:...............0
PortRcvErrors:...................0
PortRcvSwitchRelayErrors:........0
PortXmitDiscards:................0
PortXmitConstraintErrors:........0
PortRcvConstraintErrors:.........0
LocalLinkIntegrityErrors:........0
ExcessiveBufferOverrunErrors:....0
VL15Dropped:.....................0
QP1Dropped:......................0
"""
SWITCH = """=================================================
Quantum Mellanox Technologies
=================================================
serial number      | MT2000X00001
-------------------------------------------------
PSU0 status        | OK
     fan status    | OK
     power (W)     | 72
-------------------------------------------------
temperature (C)    | 45
max temp (C)       | 57
-------------------------------------------------
fan status         | OK
fan#1 (rpm)        | 8493
fan#2 (rpm)        | 7349
-------------------------------------------------
"""
IBSTAT = "".join(
    f"CA 'mlx5_{n}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n"
    f"\t\tPhysical state: LinkUp\n\t\tRate: 400\n\t\tBase lid: {n + 10}\n\t\tSM lid: 1\n"
    "\t\tLink layer: InfiniBand\n"
    for n in range(4)
)
NVLINK = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n" + "".join(
    f"\t Link {n}: Replay Errors: 0\n\t Link {n}: Recovery Errors: 0\n\t Link {n}: CRC Errors: 0\n"
    for n in range(4)
)
PCI = (
    '<pci busid="0000:{0:02x}:00.0" class="0x02{1}00" vendor="0x15b3" device="0x1021" subsystem_device="0x0041" '
    'link_speed="32.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_{0}" dev="{0}" speed="400000" port="1" '
    'gdr="1"/></nic></pci>\n'
)
TOPOLOGY = (
    '<system version="1">\n<cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">\n'
    + "".join(PCI.format(n, "07") for n in range(4))
    + "</cpu>\n</system>\n"
)
STATUS = """  Interface        Lanes    Speed    MTU    FEC    Alias    Vlan    Oper    Admin    Type    Asym PFC
-----------  -----------  -------  -----  -----  -------  ------  ------  -------  ------  ----------
  Ethernet0      0,1,2,3     400G   9100     rs   etp1a   routed      up       up    OSFP         off
  Ethernet8     8,9,10,11     400G   9100     rs   etp1b   routed      up       up    OSFP         off
 Ethernet16    16,17,18,19     400G   9100     rs   etp2a   routed      up       up    OSFP         off
"""
TABLE = """#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
  1073741824     268435456     float     sum      -1   4478.8  239.74  449.51      0   4463.7  240.55  451.03      0
  2147483648     536870912     float     sum      -1   8722.7  246.20  461.62      0   8717.9  246.33  461.87      0
  4294967296    1073741824     float     sum      -1    17228  249.30  467.43      0    17225  249.34  467.52      0
"""

CASES = {
    "overrun": (PERFQUERY, "OverrunErrors:....0", "OverrunErrors:....15", UNCLEAR, "receive-errors"),
    "received constraint": (PERFQUERY, "RcvConstraintErrors:.........0", "RcvConstraintErrors:.........4711",
                            FAULTS, "partition-key"),
    "sent constraint": (PERFQUERY, "XmitConstraintErrors:........0", "XmitConstraintErrors:........4711",
                        FAULTS, "partition-key"),
    "management packets": (PERFQUERY, "VL15Dropped:.....................0", "VL15Dropped:.....................4711",
                           CLEAN, "congestion"),
    "relay": (PERFQUERY, "RelayErrors:........0", "RelayErrors:........7", CLEAN, ""),
    "hot": (SWITCH, "temperature (C)    | 45", "temperature (C)    | 104", FAULTS, "switch-part"),
    "warm": (SWITCH, "temperature (C)    | 45", "temperature (C)    | 89", CLEAN, ""),
    "still fan": (SWITCH, "| 8493", "| 0", FAULTS, "switch-part"),
    "armed": (IBSTAT, "State: Active", "State: Armed", FAULTS, "no-subnet-manager"),
    "recovering": (IBSTAT, "LinkUp", "LinkErrorRecovery", FAULTS, "link-errors"),
    "recovery": (NVLINK, "Recovery Errors: 0", "Recovery Errors: 1", FAULTS, "nvlink-error"),
    "few replays": (NVLINK, "Replay Errors: 0", "Replay Errors: 7", CLEAN, ""),
    "slow network": (TOPOLOGY, 'speed="400000"', 'speed="200000"', FAULTS, "link-slow"),
    "no GPUDirect": (TOPOLOGY, 'gdr="1"', 'gdr="0"', UNCLEAR, "gdr-off"),
    "dip": (TABLE, "8722.7  246.20  461.62      0   8717.9  246.33  461.87", "28722  74.8  140.2      0   28717  74.8  140.2",
            UNCLEAR, "bandwidth-collapse"),
    "short frames": (STATUS, "9100", "1500", UNCLEAR, "mtu-differs"),
}  # fmt: skip


def answer(tmp_path: Path, text: str) -> Diagnosis:
    file = tmp_path / "print.txt"
    file.write_text(text)
    return diagnose([file], twin=False)


@pytest.mark.parametrize("name", CASES)
def test_one_value(tmp_path: Path, name: str) -> None:
    healthy, old, new, verdict, cause = CASES[name]
    assert old in healthy
    assert answer(tmp_path, healthy).verdict == CLEAN
    assert answer(tmp_path, healthy).findings == ()
    found = answer(tmp_path, healthy.replace(old, new, 1))
    assert found.verdict == verdict
    assert (found.findings[0].id if found.findings else "") == cause


@pytest.mark.parametrize(("healthy", "old", "new"), [(TOPOLOGY, 'gdr="1"', 'gdr="0"'), (IBSTAT, "400", "200")])
def test_what_all_have_in_common_is_no_fault_of_one(tmp_path: Path, healthy: str, old: str, new: str) -> None:
    assert answer(tmp_path, healthy.replace(old, new)).findings == ()


def test_a_switchs_fan_is_not_a_supplys(tmp_path: Path) -> None:
    found = answer(tmp_path, SWITCH.replace("| 8493", "| 0"))
    assert found.findings[0].object == "MT2000X00001"


KERNEL = {
    "NVRM: API mismatch: the client has the version 535.104.05, but": "driver-mismatch",
    "INFO: task python:123456 blocked for more than 120 seconds.": "storage-error",
    "TCP: out of memory -- consider tuning tcp_mem": "discards",
}


@pytest.mark.parametrize("line", KERNEL)
def test_one_line_of_the_kernel(tmp_path: Path, line: str) -> None:
    assert answer(tmp_path, f"[ 1234.567890] {line}\n").findings[0].id == KERNEL[line]


def paths(*changes: tuple[int, int, str]) -> str:
    """Print `nvidia-smi topo -m` of four GPUs, each with an adapter under its switch, but for the changes."""
    ways = {(a, b): "NV18" for a in range(4) for b in range(4)}
    ways |= {(a, 4 + n): "PXB" if a == n else "NODE" for a in range(4) for n in range(4)}
    ways |= {(a, b): way for a, b, way in changes} | {(b, a): way for a, b, way in changes}
    names = [f"GPU{n}" for n in range(4)] + [f"NIC{n}" for n in range(4)]
    rows = [
        "\t".join([names[a], *(" X " if a == b else ways.get((a, b), ways.get((b, a), "NODE")) for b in range(8))])
        for a in range(8)
    ]
    return "\t" + "\t".join([*names, "CPU Affinity"]) + "\n" + "".join(f"{row}\t0-47\n" for row in rows)


def test_paths_of_gpus(tmp_path: Path) -> None:
    assert answer(tmp_path, paths()).findings == ()
    apart = answer(tmp_path, paths((1, 0, "SYS"), (1, 2, "SYS"), (1, 3, "SYS"))).findings[0]
    assert (apart.id, apart.object) == ("nvlink-degraded", "GPU1")
    far = answer(tmp_path, paths((0, 4, "SYS"))).findings[0]
    assert (far.id, far.object) == ("gdr-far", "GPU0")
