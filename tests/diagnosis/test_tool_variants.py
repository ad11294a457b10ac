"""Variants of what tools print: excerpts, indented quotes, units left out, states of older and newer releases."""

from __future__ import annotations

import pytest

from fabrictwin.diagnosis.diagnose import judged
from fabrictwin.diagnosis.finding import Finding, Severity
from fabrictwin.diagnosis.readers.reading import read_text


def told(text: str) -> list[Finding]:
    """Findings above a note, the first on top."""
    return [one for one in judged(read_text(text), twin=False).findings if one.severity > Severity.NOTE]


@pytest.mark.parametrize(
    ("code", "words"), [(11004, "outside the partition"), (12028, "refused"), (20034, "trained anew"), (99999, "")]
)
def test_an_error_of_an_nvswitch_says_what_its_number_means(code: int, words: str) -> None:
    line = f"[ 81.6] nvidia-nvswitch1: SXid (PCI:0000:00:08.0): {code}, Non-fatal, Link 36 something (First)\n"
    (first, *_) = told(line)
    assert first.id == "sxid"
    assert f"SXid {code}" in first.seen
    assert words in first.seen


def test_sums_of_ports_are_quoted_from_their_own_line_and_quotes_may_be_indented() -> None:
    text = (
        '    Errors for 0x2c903006e29b0 "switch"\n'
        "       GUID 0x2c903006e29b0 port ALL: [PortXmitDiscards == 15854]\n"
        "       GUID 0x2c903006e29b0 port 1: [PortXmitWait == 2]\n"
    )
    (first,) = told(text)
    assert first.id == "discards"
    assert "port ALL" in first.evidence[0].text
    assert not first.consequences


@pytest.mark.parametrize(("errors", "asked"), [(9, False), (52, True)])
def test_receive_errors_from_ten_on_are_asked_about(errors: int, asked: bool) -> None:
    found = told(f'Errors for "c015 HCA-1"\n   GUID 0x800380001389e62 port 1: [PortRcvErrors == {errors}]\n')
    assert [one.id for one in found] == ["receive-errors"] * asked
    assert all(one.severity == Severity.QUESTION for one in found)


@pytest.mark.parametrize(
    ("status", "restored", "severity"),
    [("stormed", 0, Severity.ERROR), ("operational", 1, Severity.WARNING), ("N/A", 0, Severity.WARNING)],
)
def test_storms_that_are_over_or_unwatched_are_warnings(status: str, restored: int, severity: Severity) -> None:
    text = (
        "      QUEUE       STATUS    STORM DETECTED/RESTORED    TX OK/DROP    RX OK/DROP\n"
        "-----------  -----------  -------------------------  ------------  ------------\n"
        f"Ethernet0:3  {status:>11}  {f'1/{restored}':>25}       100/300       100/300\n"
    )
    (first, *_) = told(text)
    assert (first.id, first.severity) == ("pause-storm", severity)


def test_lanes_that_lspci_calls_downgraded_need_no_capability_beside_them() -> None:
    device = "01:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n"
    narrow = "\t\tLnkSta:\tSpeed 32GT/s (ok), Width x8 (downgraded)\n"
    slow = "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16 (ok)\n"  # at rest
    assert [one.id for one in told(device + narrow)] == ["pci-narrow"]
    assert not told(device + slow)


@pytest.mark.parametrize("uuid", ["", " (UUID: GPU-1234)"])
@pytest.mark.parametrize("state", ["0 GB/s", "<inactive>"])
def test_a_link_without_a_rate_is_inactive(uuid: str, state: str) -> None:
    gpus = [f"GPU {n}: NVIDIA H100 80GB HBM3{uuid}\n" + "".join(
        f"\t Link {link}: {state if (n, link) == (0, 11) else '26.562 GB/s'}\n" for link in range(18)
    ) for n in range(2)]  # fmt: skip
    (first, *_) = told("".join(gpus))
    assert first.id == "nvlink-inactive"
    assert "GPU 0" in first.object


def test_the_driver_that_says_every_line_is_no_host() -> None:
    text = (
        "NVRM: GPU at PCI:0000:03:00: GPU-455d8f70\nNVRM: GPU Board Serial Number: 1324023049334\n"
        "NVRM: Xid (PCI:0000:03:00): 48, pid=91237, name=nv-hostengine, Ch 00000076\n"
    )
    assert next(one.id for one in told(text)) == "gpu-memory"


TABLE = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "  1073741824     268435456     float     sum      -1    33860   31.71   31.71      0    33896   31.68   31.68      0\n"
    "# Out of bounds values : 0 OK\n"
)


@pytest.mark.parametrize("ended", [False, True])
def test_what_a_test_came_to_its_end_after_is_no_error(ended: bool) -> None:
    text = "Failed to get IB devices list: Function not implemented\n" + TABLE
    found = told(text if ended else text[: text.index("# Out of")])
    assert (Severity.ERROR in {one.severity for one in found}) is not ended


def test_commands_that_a_shell_traces_are_no_messages() -> None:
    trace = "++ export '_CUDA_COMPAT_STATUS=CUDA Driver UNAVAILABLE (cuInit(0) returned 100)'\n"
    assert not told(trace * 2 + "+ echo no CUDA-capable device is detected\n")


@pytest.mark.parametrize(("said", "differ"), [("21.1.4", False), ("2.11.4", False), ("21.2.10", True)])
def test_releases_that_pytorch_takes_apart_by_three_digits_are_the_same(said: str, differ: bool) -> None:
    text = f"NCCL version 2.11.4+cuda11.4\nRuntimeError: unhandled cuda error, NCCL version {said}\n"
    assert ("version-skew" in {one.id for one in told(text)}) is differ


@pytest.mark.parametrize(
    ("severity", "category", "cause"),
    [
        ("fatal", "firmware", "switch-software"),
        ("warning", "cpu_hw", "switch-part"),
        ("fatal", "asic_hw", "switch-part"),
        ("notice", "asic_hw", ""),
    ],
)
def test_health_events_of_a_switch_s_chip_are_told(severity: str, category: str, cause: str) -> None:
    text = (
        "Time                 Severity     Category   Description\n"
        "-------------------  -----------  ---------  -----------------\n"
        f"2023-10-20 05:07:34  {severity:<11}  {category:<9}  ECC error\n"
    )
    assert [one.id for one in told(text) if not one.instead_of] == [cause] * bool(cause)


def test_an_adapter_as_it_was_made_is_asked_about() -> None:
    qos = (
        "DCBX mode: OS controlled\nPriority trust state: {trust}\nPFC configuration:\n"
        "\tpriority    0   1   2   3   4   5   6   7\n\tenabled     0   0   0   0   0   0   0   0   \n"
    )
    assert {one.severity for one in told(qos.format(trust="pcp"))} == {Severity.QUESTION}
    assert told(qos.format(trust="dscp"))[0].severity == Severity.WARNING  # somebody meant RoCE


def test_a_gid_of_the_segment_alone_is_asked_about() -> None:
    row = "mlx5_1  1       {n}       fe80:0000:0000:0000:0e42:a1ff:fe2d:9c3b                 v{v}      enp4s0f1\n"
    head = "DEV     PORT    INDEX   GID                                     IPv4            VER     DEV\n"
    assert told(head + row.format(n=0, v=1) + row.format(n=1, v=2))[0].severity == Severity.QUESTION
    assert told(head + row.format(n=0, v=1))[0].severity == Severity.WARNING


@pytest.mark.parametrize(("ranks", "limits"), [(1, False), (4, True)])
def test_one_adapter_is_enough_for_one_rank_of_a_host(ranks: int, limits: bool) -> None:
    rows = "".join(
        f"#  Rank  {host * ranks + one} Group  0 Pid {7 + one} on host-{host} device  {one} [0000:0{one}:00] NVIDIA H100\n"
        for host in range(2)
        for one in range(ranks)
    )
    log = (
        "host-0:7:9 [0] NCCL INFO NCCL version 2.26.2+cuda12.4\n"
        "host-0:7:9 [0] NCCL INFO NCCL_IB_HCA set to mlx5_5\n"
        "host-0:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_5:1/RoCE [RO]; OOB eno7np0:10.1.103.56<0>\n"
        "host-0:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n"
        f"host-0:7:9 [0] NCCL INFO comm 0x3 rank 0 nRanks {2 * ranks} nNodes 2 localRanks {ranks} localRank 0 MNNVL 0\n"
    )
    found = judged(read_text("# nThread 1 nGpus 1 minBytes 8\n" + rows + log)).findings
    assert ("setting-forced" in {one.id for one in found}) is limits


def test_a_kernel_s_worker_is_no_host() -> None:
    found = told("kernel: watchdog: BUG: soft lockup - CPU#12 stuck for 226906s! [kworker/u256:2:991]\n")
    assert not any("u256" in one.object for one in found)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("    Module temperature high alarm             :  Off", ""),
        ("    Laser bias current high alarm threshold   :  64.999 mA", ""),
        ("    Module temperature high alarm             :  On", "module-fault"),
        ("NOTICE pmon#xcvrd: Ethernet504: temperature status change from normal to temperature high alarm", "module-fault"),
        ("NOTICE pmon#xcvrd: Ethernet504: temperature status change from temperature high alarm to normal", ""),
        ("     0 lost carrier  0 no carrier  0 babble  0 output discard", ""),
        ("E0701 08:43:59.424840 654617 transport.cc:3381] RTO retransmission threshold reached.0", "transport-retry"),
        ("Fabric\n    State    : Completed\n    Status   : Insufficient Resources", "fabric-manager"),
    ],
)  # fmt: skip
def test_alarms_that_are_off_and_counts_of_nothing_are_none(line: str, cause: str) -> None:
    found = [one.id for one in told(f"{line}\n") if not one.instead_of and one.severity > Severity.QUESTION]
    assert found == [cause] * bool(cause)


def test_a_table_of_a_switch_whose_ruler_was_left_out_is_read() -> None:
    head = "      IFACE    STATE       RX_OK    RX_ERR    RX_DRP       TX_OK    TX_ERR     TX_DRP\n"
    rows = "  Ethernet0        U  61,115,381         0         0  51,847,244         0  {}\n  Ethernet2        U  61         0         0  51         0  0\n"
    found = [one.id for one in told(head + rows.format("9,268,210")) if not one.instead_of]
    assert found == ["discards"]
    assert not told(head + rows.format("0"))


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("      WARNING: No AMD GPUs specified", "no-gpu"),
        ("| 3 | n25 | FAIL | 23.0s | gpu0: FAIL: pre-touch HBM busy: 213.14 GiB already in use (threshold 2.0 GiB) |", "gpu-busy"),
    ],
)  # fmt: skip
def test_what_checks_of_amd_s_gpus_say_is_told(line: str, cause: str) -> None:
    assert told(f"{line}\n")[0].id == cause


@pytest.mark.parametrize(
    ("rows", "causes"),
    [
        ("* soft memlock unlimited\n* hard memlock unlimited\n* soft nofile 65535\n", []),
        ("* soft memlock unlimited\n* hard nofile 100\n* soft nofile 100\n", ["open-files"]),
        ("@users  -  memlock  64\n", ["limit-locked"]),
        ("max locked memory       (kbytes, -l) unlimited\nopen files                      (-n) 1024\n", []),
    ],
)
def test_limits_that_a_file_gives_to_users_are_read(rows: str, causes: list[str]) -> None:
    assert [one.id for one in told(f"# /etc/security/limits.conf\n{rows}") if not one.instead_of] == causes


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        ("LinkDownedCounter:...............12\nSymbolErrorCounter:..............65535\n", "link-flapping"),
        ("\t Link 3: Replay Errors: 0\n\t Link 3: CRC Errors: 91231\n", "nvlink-error"),
        ("  Ethernet0:3      stormed      4/3      0/912312           0/0\n", "pause-storm"),
    ],
)
def test_rows_that_somebody_picked_out_are_read(row, cause):
    found = judged(read_text(row), twin=False)
    assert found.findings[0].id == cause
    assert not found.findings[0].object.startswith("/")


def test_a_queue_without_storms_is_well():
    assert judged(read_text("  Ethernet0:3   operational   0/0   0/0   0/0\n"), twin=False).verdict == "clean"
