"""What each state, width and counter of adapters, links and hosts means: one changed in a healthy print of a tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictwin.diagnosis.diagnose import CLEAN, Diagnosis, diagnose
from fabrictwin.diagnosis.finding import Severity


def judged(folder: Path, text: str) -> Diagnosis:
    (folder / "print.txt").write_text(text)
    return diagnose([folder], twin=False)


def first(folder: Path, text: str) -> tuple[str, Severity] | None:
    """Cause and severity of the first finding above a note."""
    shown = [one for one in judged(folder, text).findings if one.severity > Severity.NOTE]
    return (shown[0].id, shown[0].severity) if shown else None


def adapter(name: str, *, state: str = "Active", physical: str = "LinkUp", card: str = "", rate: int = 400) -> str:
    return (
        f"CA '{name}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tSystem image GUID: 0x{card or name}\n\tPort 1:\n"
        f"\t\tState: {state}\n\t\tPhysical state: {physical}\n\t\tRate: {rate}\n\t\tLink layer: InfiniBand\n"
    )


def adapters(count: int = 8, **changed: dict[str, str]) -> str:
    return "".join(adapter(f"mlx5_{n}", **changed.get(f"mlx5_{n}", {})) for n in range(count))  # type: ignore[arg-type]


POLLING = {"state": "Down", "physical": "Polling"}
DISABLED = {"state": "Down", "physical": "Disabled"}


def test_second_port_of_a_card_without_cable_is_asked_about(tmp_path: Path) -> None:
    second = adapter("mlx5_1", card="a1", **POLLING)  # type: ignore[arg-type]
    assert first(tmp_path, adapter("mlx5_0", card="a1") + second) == ("port-down", Severity.QUESTION)


def test_second_port_counts_where_another_card_has_two_in_use(tmp_path: Path) -> None:
    whole = adapter("mlx5_0", card="a1") + adapter("mlx5_1", card="a1")
    half = adapter("mlx5_2", card="a2") + adapter("mlx5_3", card="a2", **POLLING)  # type: ignore[arg-type]
    assert first(tmp_path, whole + half) == ("port-down", Severity.ERROR)


def test_cards_of_one_port_are_all_to_be_cabled(tmp_path: Path) -> None:
    down = {f"mlx5_{n}": DISABLED for n in range(4)}
    assert first(tmp_path, adapters(**down)) == ("port-down", Severity.WARNING)


def test_no_port_of_a_layer_has_a_link(tmp_path: Path) -> None:
    down = {f"mlx5_{n}": DISABLED for n in range(8)}
    management = adapter("mlx5_8").replace("InfiniBand", "Ethernet")
    assert first(tmp_path, adapters(**down) + management) == ("port-down", Severity.WARNING)


def test_cards_of_two_ports_are_not_held_against_those_of_one(tmp_path: Path) -> None:
    storage = "".join(adapter(f"mlx5_{n}", card="ff", rate=200) for n in (8, 9))
    assert judged(tmp_path, adapters() + storage).verdict == CLEAN


FILES = "".join(
    f"/sys/class/infiniband/mlx5_{n}/hca_type:MT4129\n/sys/class/infiniband/mlx5_{n}/ports/1/state:4: ACTIVE\n"
    f"/sys/class/infiniband/mlx5_{n}/ports/1/phys_state:5: LinkUp\n"
    f"/sys/class/infiniband/mlx5_{n}/ports/1/rate:400 Gb/sec (4X NDR)\n"
    f"/sys/class/infiniband/mlx5_{n}/ports/1/counters/link_downed:0\n"
    f"/sys/class/infiniband/mlx5_{n}/ports/1/counters/excessive_buffer_overrun_errors:0\n"
    for n in range(8)
)


@pytest.mark.parametrize(
    ("before", "after", "cause", "severity"),
    [
        ("mlx5_2/ports/1/state:4: ACTIVE", "mlx5_2/ports/1/state:1: DOWN", "port-down", Severity.WARNING),
        ("mlx5_2/ports/1/rate:400 Gb/sec (4X NDR)", "mlx5_2/ports/1/rate:100 Gb/sec (1X NDR)", "link-narrow", 2),
        ("mlx5_2/ports/1/rate:400 Gb/sec (4X NDR)", "mlx5_2/ports/1/rate:200 Gb/sec (4X HDR)", "link-slow", 2),
        ("mlx5_0/ports/1/counters/link_downed:0", "mlx5_0/ports/1/counters/link_downed:56", "link-flapping", 3),
        ("mlx5_0/ports/1/counters/exc", "mlx5_0/ports/1/counters/exc", "", 0),
    ],
)
def test_files_of_the_kernel(tmp_path: Path, before: str, after: str, cause: str, severity: int) -> None:
    text = FILES.replace(before, after)
    if "state:1" in after:
        text = text.replace("mlx5_2/ports/1/phys_state:5: LinkUp", "mlx5_2/ports/1/phys_state:3: Disabled")
    assert first(tmp_path, text) == ((cause, Severity(severity)) if cause else None)


def test_files_below_their_paths(tmp_path: Path) -> None:
    text = "".join(
        f"==> /sys/class/infiniband/mlx5_{n}/ports/1/counters/link_downed <==\n{56 if n == 2 else 0}\n\n"
        for n in range(8)
    )
    assert first(tmp_path, text) == ("link-flapping", Severity.ERROR)


def test_a_four_bit_counter_that_is_full_is_asked_about(tmp_path: Path) -> None:
    name = "mlx5_1/ports/1/counters/excessive_buffer_overrun_errors:"
    assert first(tmp_path, FILES.replace(name + "0", name + "15")) == ("receive-errors", Severity.QUESTION)


STATISTICS = "NIC statistics:\n     rx_packets_phy: 92283746512\n     tx_packets_phy: 92283746512\n"


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ("module_high_temp: 3", "module-fault"),
        ("module_unplug: 3", ""),
        ("outbound_pci_stalled_rd: 64", "host-drains-slowly"),
        ("outbound_pci_stalled_rd: 4", ""),
        ("link_down_events: 234", "link-flapping"),  # bnxt_en
        ("rx_discard_packets_cos5: 123123123", "roce-loss"),
    ],
)
def test_statistics_of_drivers(tmp_path: Path, row: str, cause: str) -> None:
    found = first(tmp_path, f"{STATISTICS}     {row}\n")
    assert (found[0] if found else "") == cause


def test_counters_of_bnxt_re(tmp_path: Path) -> None:
    text = "link bnxt_re0/1 active_qps 3 to_retransmits 23423 seq_err_naks_rcvd 12312 rx_pkts 1234\n"
    assert first(tmp_path, text) == ("roce-loss", Severity.WARNING)


LINKS = "Switch: 0xfc6a1c0300d7b440 leaf-1:\n" + "".join(
    f'          1   {n:>2}[  ] ==( 4X         106.25 Gbps Active/  LinkUp)==>       {n + 20}    1[  ] "gpu-{n} mlx5_0" ( )\n'
    for n in range(1, 9)
)


def test_a_link_that_recovers_is_told_and_empty_ports_are_not(tmp_path: Path) -> None:
    empty = '          1   18[  ] ==(                Down/ Polling)==>             [  ] "" ( )\n'
    assert first(tmp_path, LINKS + empty) is None
    assert first(tmp_path, LINKS + empty.replace(" Polling", "LinkErrorRecovery")) == (
        "link-errors",
        Severity.WARNING,
    )


def test_a_link_at_the_speed_at_which_training_begins(tmp_path: Path) -> None:
    slow = LINKS.replace("1    3[  ] ==( 4X         106.25 Gbps", "1    3[  ] ==( 4X            2.5 Gbps")
    assert first(tmp_path, slow) == ("link-slow", Severity.WARNING)


def test_a_baseboard_without_one_of_its_gpus(tmp_path: Path) -> None:
    gpus = "".join(
        f"{n}b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n" for n in range(7)
    )
    switches = "".join(f"0{n}:00.0 Bridge: NVIDIA Corporation GH100 [H100 NVSwitch] (rev a1)\n" for n in range(4))
    assert first(tmp_path, gpus + switches) == ("gpu-lost", Severity.WARNING)
    assert first(tmp_path, gpus) is None
    assert (
        first(tmp_path, gpus + gpus.splitlines()[0].replace("6b", "7b").replace("0b", "7b") + "\n" + switches)
        is None
    )


def run_of_perftest(device: str, rate: float) -> str:
    return (
        f"                    RDMA_Write BW Test\n Dual-port       : OFF\t\tDevice         : {device}\n"
        " Number of qps   : 1\t\tTransport type : IB\n Connection type : RC\t\tUsing SRQ      : OFF\n"
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        f" 65536      5000             {rate:.2f}             {rate:.2f}             0.7\n"
    )


@pytest.mark.parametrize(("slow", "cause"), [(196.0, "bandwidth-low"), (380.0, "")])
def test_perftest_of_adapters_beside_each_other(tmp_path: Path, slow: float, cause: str) -> None:
    text = "".join(run_of_perftest(f"mlx5_{n}", slow if n == 5 else 391 - n / 10) for n in range(8))
    found = judged(tmp_path, text).findings
    assert (found[0].id if found else "") == cause
    assert not found or found[0].object == "mlx5_5"


def nvlinks(model: str, rate: str, **changed: str) -> str:
    return "".join(
        f"GPU {gpu}: {model} (UUID: GPU-{gpu})\n"
        + "".join(f"\t Link {n}: {changed.get(f'g{gpu}l{n}', rate)}\n" for n in range(4))
        for gpu in range(2)
    )


def test_nvlinks_slower_than_others_and_cards_without_a_bridge(tmp_path: Path) -> None:
    assert first(tmp_path, nvlinks("NVIDIA H100 80GB HBM3", "26.562 GB/s", g1l2="13.281 GB/s")) == (
        "nvlink-degraded",
        Severity.ERROR,
    )
    assert first(tmp_path, nvlinks("NVIDIA A100-PCIE-40GB", "<inactive>")) is None
    assert first(tmp_path, nvlinks("NVIDIA A100-SXM4-40GB", "<inactive>")) == ("nvlink-inactive", Severity.WARNING)


def test_gpus_with_a_numa_node_of_their_own_have_adapters_at_the_processor(tmp_path: Path) -> None:
    def matrix(numa: str) -> str:
        heads = [f"GPU{n}" for n in range(4)] + [f"NIC{n}" for n in range(4)]
        rows = "".join(
            "\t".join(
                [f"GPU{n}", *("X" if n == m else "NV18" for m in range(4)), *["NODE"] * 4, "0-71", "0", numa]
            )
            + "\n"
            for n in range(4)
        )
        return "\t" + "\t".join(heads) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n" + rows

    assert first(tmp_path, matrix("2")) is None
    assert first(tmp_path, matrix("N/A")) == ("vm-topology", Severity.WARNING)


KERNEL = "[ 12.345678] "


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["nv_peer_mem: module verification failed: signature and/or required key missing - tainting kernel"], ""),
        (["nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)"], "peermem-broken"),
        (["platform regulatory.0: Direct firmware load for regulatory.db failed with error -2"], ""),
        (["mlx5_core 0000:17:00.0:    [12] Timeout                (First)"], ""),
        (["mlx5_core 0000:1b:00.0 ens1f0np0: Link down", "mlx5_core 0000:1b:00.0 ens1f0np0: Link up"], ""),
        (
            ["mlx5_core 0000:1b:00.0 ens1f0np0: Link up", "mlx5_core 0000:1b:00.0 ens1f0np0: Link down"],
            "port-down",
        ),
        (
            [
                "infiniband mlx5_3: dump_cqe:272:(pid 12345): dump error cqe",
                "00000030: 00 00 00 00 00 00 88 13 08 00 02 d5 00 69 e9 d2",
            ],
            "remote-access",
        ),
        (["NVRM: Xid (PCI:0000:1b:00): 136, pid=1, ALI Training Failed"], "nvlink-error"),
        (["BUG: KASAN: slab-use-after-free in lockdep_register_key+0x707/0x810"], "host-hardware"),
        ([" sriov_numvfs_store+0x209/0x370", " ? mlx5_health_try_recover+0x20/0x130 [mlx5_core]"], ""),
    ],
)
def test_lines_of_kernels(tmp_path: Path, lines: list[str], cause: str) -> None:
    found = first(tmp_path, "".join(f"{KERNEL}{line}\n" for line in lines))
    assert (found[0] if found else "") == cause


NARROW = (
    "4.000 Gb/s available PCIe bandwidth, limited by 5.0 GT/s PCIe x1 link at 0000:00:1c.1 (capable of 63.0 Gb/s)"
)


@pytest.mark.parametrize(
    ("lines", "severity"),
    [
        (["pci 0000:05:00.0: [17cb:1101] type 00 class 0x028000", f"pci 0000:05:00.0: {NARROW}"], None),  # Wi-Fi
        (
            ["pci 0000:05:00.0: [10de:2330] type 00 class 0x030200", f"pci 0000:05:00.0: {NARROW}"],
            Severity.QUESTION,
        ),
        ([f"mlx5_core 0000:05:00.0: {NARROW}"], Severity.WARNING),
    ],
)
def test_slots_narrower_than_their_device(tmp_path: Path, lines: list[str], severity: Severity | None) -> None:
    found = first(tmp_path, "".join(f"{KERNEL}{line}\n" for line in lines))
    assert (found[1] if found else None) == severity


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("        Volatile Uncorrectable ECC : 0\n        Reset Required : No\n", ""),
        ("        Volatile Uncorrectable ECC : 1\n        Reset Required : No\n", "gpu-memory"),
        ("Retired Pages Pending : Yes on device 1\n", "gpu-memory"),
        (" WARNING: BW peak won't be measured in this run.\n", ""),
        ("# HELP infiniband_linkdownedcounter_total Times the error recovery process failed\n", ""),
        ("[root@vm ~]# echo 0 > /sys/bus/pci/devices/0000:01:00.0/sriov_numvfs\n", ""),
        ("# rdma system\nnetns exclusive copy-on-fork on\n", ""),
    ],
)
def test_readings_and_typed_commands_are_no_trouble(tmp_path: Path, text: str, cause: str) -> None:
    found = first(tmp_path, text)
    assert (found[0] if found else "") == cause


def test_sums_over_ports_count_where_no_port_is_told(tmp_path: Path) -> None:
    text = (
        'Errors for 0x2c903006e29b0 "leaf-1"\n'
        "   GUID 0x2c903006e29b0 port ALL: [LinkDownedCounter == 48] [PortXmitDiscards == 15854]\n"
        "   GUID 0x2c903006e29b0 port 1: [LinkDownedCounter == 8]\n"
    )
    assert first(tmp_path, text) == ("discards", Severity.WARNING)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("failed to train NVLink: NVSwitch physical id 0 port 12 GPU 3", "nvlink-error"),
        ("GPU with UUID GPU-1 physical id 5 NVLink 3 is not trained to active state", "nvlink-inactive"),
        ("failed to detect all GPU NVLink connections: expected 144 found 138", "nvlink-inactive"),
    ],
)
def test_the_fabric_manager_about_nvlinks(tmp_path: Path, said: str, cause: str) -> None:
    found = first(tmp_path, f"[Sep 22 2023 11:06:01] [ERROR] [tid 1803] {said}\n")
    assert found is not None
    assert found[0] == cause


DIAGNET = "Discovery\n-I- Discovering ... 12 nodes (3 Switches & 9 CA-s) discovered.\n"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            '-E- lid=0x0011 dev=54002 leaf1/U1/P5 - "link_down_counter" value (value=42) is above threshold',
            "link-flapping",
        ),
        ('-W- lid=0x0011 leaf1/U1/P5 - "port_xmit_wait" increased during the run (difference value=132434)', ""),
        ("-E- Node GUID = 0x0002c903000e0b72 is duplicated in: gpu01/U1, gpu02/U1", "subnet-manager-error"),
        ("-W- Node with description: gpu01 mlx5_0 is duplicated", ""),
        ("-E- lid=0x0000 gpu01/U1/P1 - Configured with ZERO lid", "subnet-manager-error"),
        ("-W- Links in INIT state: leaf1/U1/P5 <-> gpu01/U1/P1", "no-subnet-manager"),
        ("-W- leaf1/U1 - Temperature 71 C is above high threshold 70", "switch-part"),
        ("-E- gpu07/U1/P1 - No response for MAD PMPortCountersGet", "port-down"),
    ],
)
def test_lines_of_ibdiagnet(tmp_path: Path, line: str, cause: str) -> None:
    found = first(tmp_path, f"{DIAGNET}{line}\n")
    assert (found[0] if found else "") == cause


MODULES = "Module                  Size  Used by\n"


@pytest.mark.parametrize(
    ("rows", "cause"),
    [
        (("nvidia", "mlx5_ib", "nvidia_peermem"), ""),
        (("nvidia", "mlx5_ib"), "peermem-missing"),
        (("nvidia", "ext4"), ""),  # no adapter to reach GPUs
        (("mlx5_ib", "ext4"), ""),  # no GPU to be reached
    ],
)
def test_lists_of_modules(tmp_path: Path, rows: tuple[str, ...], cause: str) -> None:
    found = judged(tmp_path, MODULES + "".join(f"{name}   123456  0\n" for name in rows))
    shown = [one.id for one in found.findings if one.severity > Severity.NOTE]
    assert (shown[0] if shown else "") == cause
    assert cause or found.verdict == CLEAN


def test_seven_gpus_of_a_baseboard_are_asked_about(tmp_path: Path) -> None:
    gpus = [f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n})\n" for n in range(8)]
    assert first(tmp_path, "".join(gpus)) is None
    assert first(tmp_path, "".join(gpus[:7])) == ("gpu-lost", Severity.QUESTION)


def test_a_full_shared_memory(tmp_path: Path) -> None:
    assert first(tmp_path, "shm             8.0G  8.0G   12K 100% /dev/shm\n") == ("shared-memory", Severity.ERROR)


def test_what_ends_a_task_of_the_kernel_counts_although_the_kernel_goes_on(tmp_path: Path) -> None:
    oops = f"{KERNEL}Unhandled fault: imprecise external abort (0x1406) at 0x00000000\n"
    after = "".join(f"[ {n}.345678] usb 1-{n}: new high-speed USB device\n" for n in range(13, 300))
    assert first(tmp_path, oops + after) == ("host-hardware", Severity.ERROR)
