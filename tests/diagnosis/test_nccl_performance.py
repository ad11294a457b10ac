"""What NCCL's log and the tables of its tests tell of bandwidth that is lost, in pieces as people post them."""

from __future__ import annotations

import pytest

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text


def diagnosed(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def decided(text: str) -> list[str]:
    return [one.id for one in diagnosed(text).findings if one.severity > Severity.QUESTION]


def row(size: int, rate: float, between: str = "") -> str:
    return f"{size:12} {size // 4:12} float sum -1{between} 100.0 {rate} {rate} 0{between} 100.0 {rate} {rate} 0"


def table(*rates: float, between: str = "") -> str:
    return "\n".join(row((32 << 20) << step, rate, between) for step, rate in enumerate(rates))


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((20.0, 22.0, 22.5, 12.0, 11.8), ["bandwidth-collapse"]),  # half, and it stays there
        ((20.0, 22.0, 22.5, 22.0, 12.0), []),  # one row that is not below half
        ((20.0, 22.0, 22.5, 12.0, 22.0), []),
    ],
)
def test_bandwidth_that_falls_and_stays_low_has_collapsed(rates, expected):
    assert decided(table(*rates)) == expected


def test_rows_without_their_head_are_read_by_their_columns():
    facts = read_text(table(20.0, 22.0)).of("bench.row")
    assert [fact.parts[4] for fact in facts] == [20.0, 22.0]


def test_a_rank_before_each_piece_of_a_row_is_none_of_its_numbers():
    text = "\n".join(f"[0]{line}" for line in table(20.0, 18.0, 5.0, between="[0]").split("\n"))
    assert [fact.parts[4] for fact in read_text(text).of("bench.row")] == [20.0, 18.0, 5.0]


def test_a_table_that_a_text_quotes_loses_the_ranks_before_its_lines():
    text = "\n".join(
        ["I run four nodes with", "", "srun --label", *(f" 0: {line}" for line in table(*[20.0] * 7).split("\n"))]
    )
    assert len(read_text(text).of("bench.row")) == 7


def log(*messages: str) -> str:
    return "\n".join(f"node-1:10:20 [0] NCCL INFO {message}" for message in messages)


def test_a_port_that_an_emulator_made_is_a_bottleneck_to_nccl():
    behind = ("             + PCI[48.0] - GPU/0-68000 (8)",)
    assert decided(log("+ PCI[0.2] - PCI/0-65000 (104c823200000000)", *behind)) == ["vm-topology"]
    assert decided(log("+ PCI[6.0] - PCI/0-65000 (104c823200000000)", *behind)) == ["pci-narrow"]
    assert decided(log("+ PCI[24.0] - PCI/0-65000 (104c823200000000)", *behind)) == []


def test_a_device_without_a_port_above_it_is_one_of_a_virtual_machine():
    said = "Topology detection : could not read /sys/devices/pci0000:03/0000:03:01.0/../max_link_speed, ignoring"
    assert decided(log(said)) == ["vm-topology"]
    assert decided(log("NCCL_TOPO_FILE set by environment to /etc/topo.xml", said)) == []
    alone = "comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0"
    assert decided(log(alone, said)) == []


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        ("NVS/0-0 (1/370.8/NVL) NET/0-0 (4/12.0/PHB) NET/0-1 (5/24.0/PHB)", ["vm-topology"]),
        ("NVS/0-0 (1/370.8/NVL) NET/0-0 (4/12.0/PIX) NET/0-1 (5/24.0/PHB)", []),
        ("NET/0-0 (4/12.0/PHB) NET/0-1 (5/24.0/SYS)", []),  # boards without switches
    ],
)
def test_hosts_with_nvswitch_have_a_network_beside_a_gpu(ways, expected):
    assert decided(log(f"GPU/5000 :GPU/0-4000 (2/370.8/NVL) CPU/0-0 (2/24.0/PHB) {ways}")) == expected


def test_old_releases_name_rings_where_newer_ones_name_channels():
    ways = read_text(log("Ring 00 : 3[b01000] -> 4[201000] [send] via NET/Socket/0")).of("nccl.way")
    assert [fact.parts[0] for fact in ways] == ["NET/Socket/0"]


@pytest.mark.parametrize(
    ("gpus", "way", "expected"),
    [
        (2, "SYS", Severity.QUESTION),
        (4, "NV4", Severity.QUESTION),  # twelve links, four to each of three
        (4, "NV18", Severity.WARNING),  # all links to each: through NVSwitch
    ],
)
def test_adapters_far_from_boards_without_nvswitch_are_a_question(gpus, way, expected):
    heads = "\t".join(["", *(f"GPU{gpu}" for gpu in range(gpus)), "NIC0", "NIC1", "NIC2", "NIC3", "CPU Affinity"])
    rows = [
        "\t".join([f"GPU{gpu}", *(" X " if gpu == other else way for other in range(gpus)), *["SYS"] * 4, "0-15"])
        for gpu in range(gpus)
    ]
    (first, *_) = diagnosed("\n".join([heads, *rows])).findings
    assert (first.id, first.severity) == ("vm-topology", expected)


@pytest.mark.parametrize(
    ("gpu", "expected"), [("NVIDIA GB10", []), ("NVIDIA GeForce RTX 4090", []), ("NVIDIA L40S", ["gdr-off"])]
)
def test_gpus_that_adapters_never_reach_are_not_at_fault(gpu, expected):
    rank = f"#  Rank  1 Group  0 Pid   9931 on   node-2 device  0 [0x01] {gpu}"
    off = "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
    assert decided(f"{rank}\n{log(off, 'Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0')}") == expected


def test_what_a_guide_says_can_happen_is_no_message():
    assert decided("> Sometimes `sockperf` may fail with errors like: `invalid host: unknown host`") == []


def test_wording_tells_of_hosts_with_other_releases():
    old = "node-1:10:20 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation"
    new = "{}:11:21 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin."
    assert decided(f"{old}\n{new.format('node-2')}") == ["version-skew"]
    assert decided(f"{old}\n{new.format('node-1')}") == []  # one host, one run after the other


def test_a_table_of_devices_without_a_row_is_a_host_without_adapters():
    table = "    device                 node GUID\n    ------              ----------------\n"
    assert decided(table) == ["no-rdma-device"]
    assert decided(f"{table}    mlx5_0              0c42a10300b95c02\n") == []


def test_providers_for_other_adapters_are_not_missed_where_one_was_opened():
    warning = "libibverbs: Warning: couldn't load driver 'liberdma-rdmav34.so': liberdma-rdmav34.so: cannot open"
    opened = "                    RDMA_Write BW Test\n Link type       : Ethernet\n"
    assert decided(warning) == ["verbs-library"]
    assert decided(f"{warning}\n{opened}") == []


@pytest.mark.parametrize(
    "command",
    [
        "mpirun -np 16 -H a:8,b:8 -x NCCL_DEBUG=WARN -x NCCL_ALGO=Ring -x LD_LIBRARY_PATH ./all_reduce_perf -b 1G",
        "$ NCCL_DEBUG=INFO NCCL_ALGO=Ring ./build/all_reduce_perf -b 8 -e 128M",
        "export NCCL_ALGO=Ring",
    ],
)
def test_a_command_sets_variables_of_what_it_starts(command):
    settings = {fact.parts for fact in read_text(command).of("nccl.setting")}
    assert ("NCCL_ALGO", "Ring") in settings
    assert decided(command) == ["setting-forced"]


def test_a_command_is_no_message():
    assert decided("mpirun -np 2 --mca btl_tcp_if_include eth0 --mca btl ^openib ./a.out") == []


def test_a_status_of_a_completion_is_no_errno():
    assert decided("  what():  a work item failed: status 12 (Ib failure: Cannot allocate memory)") == [
        "transport-retry"
    ]


def test_what_fails_in_the_transport_between_gpus_is_their_access_to_each_other():
    assert decided("node-1:10:20 [0] transport/p2p.cc:256 NCCL WARN Cuda failure 'invalid argument'") == [
        "gpu-ipc"
    ]


RANKS = "\n".join(
    f"#  Rank {one:2} Pid {one + 10} on node-1 device {one} [0x0{one}] NVIDIA A100" for one in range(8)
)
COLUMNS = "time   algbw   busbw #wrong"


@pytest.mark.parametrize(
    ("operation", "root", "wrong", "rate", "test"),
    [
        ("sum", -1, "0", 32.30, "reduce_scatter_perf"),
        ("none", -1, "0", 32.30, "all_gather_perf"),
        ("none", -1, "N/A", 32.30, "alltoall_perf"),
        ("sum", -1, "0", 64.59, "all_reduce_perf"),
        ("sum", 0, "0", 36.91, "reduce_perf"),
        ("none", 0, "0", 36.91, "broadcast_perf"),
        ("sum", -1, "N/A", 36.91, "sendrecv_perf"),
    ],
)
def test_a_table_without_a_name_tells_its_test_by_its_rows(operation, root, wrong, rate, test):
    head = f"#       size         count      type   redop    root     {COLUMNS}     {COLUMNS}"
    line = f"  1073741824  8388608  float  {operation}  {root}  29088  36.91  {rate}  0  29028  36.91  {rate}  {wrong}"
    (fact,) = read_text(f"{RANKS}\n{head}\n{line}").of("bench.row")
    assert fact.parts[0] == test


def test_multicast_that_a_gpu_may_not_have_is_a_question():
    assert decided("NVLS multicast support is not available on dev 2") == []
