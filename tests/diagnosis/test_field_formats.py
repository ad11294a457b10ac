"""What programs and hosts in the field print: each line's cause named, and its harmless neighbours left alone.

The samples were written for these tests in the shape of what `docs/doctor-formats.md` names for each.
"""

from __future__ import annotations

import pytest

from fabrictwin.diagnosis.diagnose import CLEAN, FAULTS, UNCLEAR, Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def first(text: str) -> str:
    shown = [one for one in answer(text).findings if one.severity > Severity.NOTE]
    return shown[0].id if shown else ""


GPU_BUFFER = """\
initializing CUDA
Picking device No. 0
allocated GPU buffer address at 00007f1000000000 pointer=0x7f1000000000
Couldn't allocate MR
failed to create mr
"""
STATUS_12 = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : mlx5_3
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 Completion with error at client
 Failed status 12: wr_id 0 syndrom 0x81
scnt=128, ccnt=0
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[n1:70:0:70] ib_mlx5_log.c:143  Transport retry count exceeded on mlx5_2:1/RoCE (synd 0x15 vend 0x81)", "transport-retry"),
        ("[1.2] [n1:70 :0] ib_md.c:325 UCX ERROR ibv_reg_mr(address=0x7f20, length=4096, access=0xf) failed: Cannot allocate memory", "locked-memory"),
        ("[1.2] [n1:70 :0] ib_device.c:9 UCX ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory", "locked-memory"),
        ("/src/transport/ibrc/ibrc.cpp:418: non-zero status: 110 ibv_modify_qp failed", "gid-unreachable"),
        ("E0102 03:04:05 7 endpoint.cpp:3] [Handshake] Failed to modify QP to RTR, check mtu, gid, peer lid: Connection timed out [110]", "gid-unreachable"),
        (" Failed to modify QP 391 to RTR\n Unable to Connect the HCA's through the link", "gid-unreachable"),
        ("what(): ibv_modify_qp failed (errno 19) (Ib failure: No such device)", "gid-unreachable"),
        ("ibrc.cpp:nvshmemt_init:1851: neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.", "peermem-missing"),
        (" Port number 1 state is Down\n Couldn't set the link layer", "port-down"),
        (" Port number 1 state is Initialize\n Couldn't set the link layer", "no-subnet-manager"),
        (GPU_BUFFER, "peermem-missing"),
        ("Couldn't allocate MR\nfailed to create mr\n", "locked-memory"),
        (STATUS_12, "transport-retry"),
        (GPU_BUFFER.partition("\n")[2].partition("\n")[2], "peermem-missing"),
        ("[1538506296.549718] [n1:31199:0]  ib_device.c:9 UCX  ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory", "locked-memory"),
        ("[1538506296.549718] [n1:31199:0]  sys.c:620  UCX  ERROR socket create failed: Too many open files", "open-files"),
        ("NET/IB : Got completion from peer 10.6.1.3<315> with status=12 opcode=0 len=0 vendor err 129 (Send)", "transport-retry"),
    ],
)  # fmt: skip
def test_a_failing_call_of_a_program_over_verbs_names_its_cause(text, cause):
    assert first(text) == cause


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'", "shared-memory"),
        ("transport/net_socket.cc:9 NCCL WARN NET/Socket : message truncated : receiving 696320 bytes instead of 32768", "size-mismatch"),
        ("init.cc:12 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 3.", "size-mismatch"),
        ("NCCL INFO P2P is disabled between connected GPUs 2 and 3. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.", "p2p-off"),
        ("misc/ibvwrap.cc:80 NCCL WARN NET/IB : Unable to open device mlx5_5", "rails-missing"),
        ("misc/socket.cc:500 NCCL WARN Call to accept failed : Too many open files", "open-files"),
        ("proxy.cc:9 NCCL WARN Cuda failure 'uncorrectable NVLink error detected during the execution'", "nvlink-error"),
    ],
)  # fmt: skip
def test_a_warning_of_nccl_names_its_cause(message, cause):
    assert first(f"n1:100:101 [0] {message}") == cause


FLAPPING = "".join(
    f"Aug 17 06:{18 + i}:01 n1 systemd-networkd[53]: ib6: Lost carrier\n"
    f"Aug 17 06:{18 + i}:09 n1 systemd-networkd[53]: ib6: Gained carrier\n"
    for i in range(3)
)


def test_an_interface_whose_carrier_comes_and_goes_flaps():
    assert first(FLAPPING) == "link-flapping"
    assert first("[ 9.1] bond0: (slave ens1): link status definitely down for interface ens1, disabling it\n" * 3)


@pytest.mark.parametrize("name", ["cali17f2eeb40", "docker0", "veth12ab", "br-0a1b2c3d4e5f"])
def test_a_containers_interface_that_goes_with_it_does_not(name):
    assert first(FLAPPING.replace("ib6", name)) == ""


@pytest.mark.parametrize("words", ["inActive", "inactive"])
def test_a_gpu_whose_links_are_all_inactive_is_told_in_either_spelling(words):
    gpu = "GPU 6: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n"
    assert (
        first(f"{gpu}NVML: Unable to retrieve NVLink information as all links are {words}\n") == "nvlink-inactive"
    )


RETIRED = """\
==============NVSMI LOG==============

Attached GPUs                             : 1
GPU 00000002:00:00.0
    Retired Pages
        Single Bit ECC                    : 2
        Double Bit ECC                    : {double}
        Pending Page Blacklist            : {pending}
"""


def test_pages_that_wait_for_retirement_are_a_fault_and_retired_ones_are_not():
    assert first(RETIRED.format(double=61, pending="Yes")) == "gpu-memory"
    assert first(RETIRED.format(double=1, pending="No")) == ""


def port(number: int, state: str, physical: str, lid: int, layer: str = "InfiniBand") -> str:
    return f"""\
	Port {number}:
		State: {state}
		Physical state: {physical}
		Rate: 100
		Base lid: {lid}
		SM lid: {lid and 1}
		Link layer: {layer}
"""


def test_a_disabled_port_that_keeps_its_lid_was_in_use():
    head, up = "CA 'mlx5_0'\n	CA type: MT4123\n", port(2, "Active", "LinkUp", 7)
    assert first(head + port(1, "Down", "Disabled", 38) + up) == "port-down"
    assert first(head + port(1, "Down", "Disabled", 0) + up) == ""
    assert first(head + port(1, "Down", "Disabled", 0, "Ethernet") + up) == ""


LOG = """\
n1:25:27 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.10.10.10<0>
n1:25:27 [0] NCCL INFO Using network IB
n1:25:27 [0] NCCL INFO comm 0x55cc rank 0 nranks {ranks} cudaDev 0 nvmlDev 0 busId 1c000 commId 0x65e0 - Init START
n1:25:27 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
n1:25:27 [0] NCCL INFO comm 0x55cc rank 0 nranks {ranks} cudaDev 0 nvmlDev 0 busId 1c000 commId 0x65e0 - Init COMPLETE
"""


def test_a_log_of_one_rank_of_many_is_of_several_hosts():
    assert first(LOG.format(ranks=64)) == "gdr-off"
    assert first(LOG.format(ranks=8)) == ""


TIMED_OUT = (
    "[rank{rank}]:[E321 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType={verb}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600060 milliseconds\n"
    "[rank{rank}]:[E321 ProcessGroupNCCL.cpp:1664] [PG {group} Rank {rank}] Exception (either an error or timeout) "
    "detected by watchdog at work: {number}, last enqueued NCCL work: {number}, last completed NCCL work: 1.\n"
)


def timed_out(*calls: tuple[int, int, str, str]) -> str:
    return "".join(TIMED_OUT.format(rank=r, number=n, verb=v, group=g) for r, n, v, g in calls)


def test_time_outs_are_held_together_by_the_group_that_the_next_line_names():
    verb = "ALLREDUCE"
    together = timed_out((0, 90, verb, "1"), (1, 90, verb, "1"), (2, 40, verb, "1"))
    apart = timed_out((0, 90, verb, "1"), (1, 90, verb, "1"), (2, 40, "ALLGATHER", "3"), (3, 40, "ALLGATHER", "3"))
    assert first(together) == "rank-late"
    assert answer(apart).verdict == UNCLEAR
    assert first(apart) == "collective-stuck"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("RuntimeError: connect() timed out. Original timeout was 60000 ms.", "rendezvous"),
        ("[E socket.cpp:922] [c10d] The server socket has failed to listen on any local network address.", "rendezvous"),
        ("DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
         "store by key '0', but store->get('0') got error: Connection reset by peer", "rendezvous"),
        ("RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
         "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE)", "collective-mismatch"),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "nvlink-error"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-memory"),
        ("OSError: [Errno 24] Too many open files: '/dev/shm/x'", "open-files"),
    ],
)  # fmt: skip
def test_a_message_of_pytorch_names_its_cause(text, cause):
    assert first(text) == cause


INCOMPLETE = """\
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         1         2         1   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 604 on node 10.4.10.3 managing GPU 0

#0-0 (b3398875b8b2a063) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 0 managed by process 604 on node 10.4.10.3
"""


def test_a_rank_whose_data_ras_misses_is_missing():
    found = answer(INCOMPLETE)
    assert found.findings[0].id == "rank-missing"
    assert "rank 1" in found.findings[0].object
    assert "10.4.10.3" in found.findings[0].hosts


def test_an_event_of_ras_stands_alone():
    event = "[2026-01-02 03:04:05] PEER_DEAD: Process 15 on node 10.0.0.5 managing GPU 1"
    assert first(event) == "rank-died"
    assert answer(event).verdict == FAULTS
    assert answer("RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...").verdict == CLEAN


@pytest.mark.parametrize(
    "column", ["link_downed_counter", "link_downed_counter_extended", "LinkDownedCounterExt", "LinkDownedCounter"]
)
def test_a_column_of_ibdiagnet_is_known_in_each_spelling(column):
    table = f"START_PM_INFO\nNodeGUID,PortNumber,{column},PortXmitWaitExt\n0x1,7,255,12\n0x1,8,0,9\nEND_PM_INFO\n"
    found = answer(table).findings[0]
    assert found.id == "link-flapping"
    assert found.object.endswith("7")


def test_distances_of_gpu_and_adapter_are_read_behind_the_network_too():
    far = "NET/IB : GPU Direct RDMA Disabled for GPU 0[0] / HCA 0 (distance 3 >= 3)"
    assert (
        first(
            "".join(
                f"n{i}:25:27 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{i}<0>\nn{i}:25:27 [0] NCCL INFO {far}\n"
                for i in (1, 2)
            )
        )
        == "gdr-far"
    )


@pytest.mark.parametrize("indent", ["", "\t\t", "                "])
def test_access_control_is_read_as_grep_prints_it(indent):
    line = f"{indent}ACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+\n"
    assert first(line * 2) == "acs-redirects"
    assert first(line.replace("Redir+", "Redir-") * 2) == ""


GID_TABLE = """\
NCCL_IB_GID_INDEX={index}
DEV	PORT	INDEX	GID					IPv4  		VER	DEV
mlx5_0	1	4	0000:0000:0000:0000:0000:ffff:0a0c:0015	10.12.0.21	v1	net1
mlx5_0	1	5	0000:0000:0000:0000:0000:ffff:0a0c:0015	10.12.0.21	v2	net1
mlx5_0	1	7	fe80:0000:0000:0000:9cbb:b7ff:feb3:937a			v2	net1
"""


@pytest.mark.parametrize(("index", "cause"), [(4, "gid-unreachable"), (7, "gid-unreachable"), (5, "")])
def test_a_gid_index_is_held_against_the_table_of_gids(index, cause):
    found = [one for one in answer(GID_TABLE.format(index=index)).findings if one.id == "gid-unreachable"]
    assert [one.id for one in found] == ([cause] if cause else [])
    assert not cause or "index 5" in found[0].expected


@pytest.mark.parametrize(
    "text",
    [
        "Nov 05 13:55:26 n1 systemd[1]: nvidia-fabricmanager.service: Control process exited, status=1/FAILURE",
        "Job for nvidia-fabricmanager.service failed because the control process exited with error code.",
    ],
)
def test_a_fabric_manager_that_does_not_start_is_told(text):
    assert first(text) == "fabric-manager"


def test_a_fabric_manager_that_has_no_switches_is_no_fault_of_its_own():
    text = (
        "n1 nvidia-fabricmanager-start.sh[47]: query of NVSwitches failed: Nothing to do [NV_WARN_NOTHING_TO_DO]"
    )
    assert first(text) == "fabric-manager-unneeded"


def test_an_interface_of_ethernet_that_is_down_is_told_and_one_of_infiniband_is_not():
    down = "mlx5_3 port 1 ==> net1 (Down)\n"
    assert first(down) == "port-down"
    assert first("mlx5_3 port 1 ==> ib3 (Down)\n") == ""
    other = [one.severity.name for one in answer(down + "mlx5_4 port 1 ==> net2 (Up)\n").findings]
    assert other == ["NOTE"]


PERFTEST_GIDS = """\
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_2
 Link type       : {layer}
 local address: LID 0000 QPN 0x00aa PSN 0x12
 GID: {gid}
 remote address: LID 0000 QPN 0x00ab PSN 0x34
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:02
"""


@pytest.mark.parametrize(
    ("layer", "gid", "cause"),
    [
        ("Ethernet", ":".join(["00"] * 16), "rdma-namespace"),
        ("IB", ":".join(["00"] * 16), ""),
        ("Ethernet", "00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:01", ""),
    ],
)
def test_perftest_with_a_gid_of_zeros_over_ethernet_is_told(layer, gid, cause):
    assert first(PERFTEST_GIDS.format(layer=layer, gid=gid)) == cause


@pytest.mark.parametrize(
    ("syndrome", "cause"),
    [("13", "remote-access"), ("15", "transport-retry"), ("04", "protection"), ("16", "receiver-not-ready")],
)
def test_a_completion_that_libmlx5_dumps_is_known_by_its_syndrome(syndrome: str, cause: str) -> None:
    rows = "00000000 00000000 00000000 00000000\n" * 3 + f"00000000 000088{syndrome} 08000aec 0000a5d2\n"
    found = judged(read_text(f"mlx5: node1: got completion with error:\n{rows}"), twin=False).findings
    assert (found[0].id, found[0].object) == (cause, "node1")
