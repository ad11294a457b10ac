"""Causes by mechanism, and what is no fault: states that look odd and are as they should be."""

from __future__ import annotations

import pytest

from fabrictwin.diagnosis.causes import CAUSES
from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def log(*messages: str, host: str = "a") -> str:
    """Lines of rank 0 on a host."""
    return "".join(f"{host}:10:11 [0] NCCL INFO {message}\n" for message in messages)


def warning(text: str) -> str:
    return f"a:10:11 [0] transport/net_ib.cc:1 NCCL WARN {text}\n"


TWO_NODES = "comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"

FAULTS = [
    ("gdr-far", log(TWO_NODES, "GPU Direct RDMA Disabled for GPU 1000 / HCA 0 (distance 8 > 5)")),
    ("bootstrap-interface", log(TWO_NODES, "Bootstrap : Using docker0:172.17.0.1<0>")),
    ("wrong-hca", log(TWO_NODES, "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_bond_0:1/RoCE ; OOB eth0:1<0>")),
    ("transport-retry", warning("NET/IB : Got completion from peer 10.0.0.2<1> with error 12, opcode 0, vendor err 129")),
    ("transport-retry", warning("Got completion from peer 10.0.0.2<1> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=1")),
    ("protection", warning("NET/IB: Got completion from peer 10.0.0.2<1> with status=4 opcode=1 vendor err 81")),
    ("port-error-event", warning("NET/IB : mlx5_0:1 async fatal event: port error")),
    ("locked-memory", warning("Call to ibv_reg_mr failed with error Cannot allocate memory")),
    ("shared-memory", warning("Error while creating shared memory segment /dev/shm/nccl-x: No space left on device (28)")),
    ("cuda-not-initialized", warning("Cuda failure 802 'system not yet initialized'")),
    ("foreign-peer", warning("socketFinalizeAccept: wrong type 4 != 3")),
    ("size-mismatch", warning("Message truncated : received 512 bytes instead of 256")),
    ("duplicate-gpu", warning("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000")),
    ("rank-died", "  DEAD\n    1 job process is considered dead\n    Process 7 on node h managing GPU 5\n"),
    ("no-subnet-manager", "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Initializing\n\t\tPhysical state: LinkUp\n\t\tLink layer: InfiniBand\n"),
    ("port-down", "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tLink layer: InfiniBand\n"),
    ("link-flapping", "# Port extended counters: Lid 3 port 1\nLinkDownedCounter:...............255\n"),
    ("discards", "# Port extended counters: Lid 3 port 1\nPortXmitDiscards:................5000\n"),
    ("headroom", "NIC statistics:\n     rx_discards_phy: 5000\n     tx_prio3_pause: 99\n"),
    ("host-drains-slowly", "NIC statistics:\n     tx_pfc_ena_frames_pri3: 4183920\n     rx_pfc_ena_frames_pri3: 12\n"),
    ("host-drains-slowly", "NIC statistics:\n     tx_priority_3_xoff.nic: 4183920\n     tx_priority_3_xon.nic: 9\n"),
    ("port-down", "Port 1:\n        State: Down\n        Physical state: Polling\n        Rate: 10\n"),
    (
        "pci-narrow",
        "03:00.0 0302: 10de:2330 (rev a1)\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n"
        "\t\tLnkSta:\tSpeed 32GT/s, Width x4 (downgraded)\n",
    ),
    ("host-drains-slowly", "NIC statistics:\n     tx_pause_prio_3: 4183920\n     rx_packets: 9182736\n"),
    ("ecn-off", "NIC statistics:\n     rx_prio3_pause: 9000000\n     rx_prio3_bytes: 5\n"),
    ("trust-pcp", "Priority trust state: pcp\n"),
    ("no-pfc", "PFC configuration:\n\tpriority    0   1   2   3\n\tenabled     0   0   0   0\n"),
    ("gpu-lost", "[  1.000000] NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus.\n"),
    ("gpu-gsp", "[  1.000000] NVRM: Xid (PCI:0000:0f:00): 119, Timeout after 6s of waiting for RPC response\n"),
    ("nvlink-error", "[  1.000000] NVRM: Xid (PCI:0000:0f:00): 74, pid='<unknown>'\n"),
    ("sxid-fatal", "nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"),
    ("nvlink-inactive", "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"),
    ("limit-shm", "shm              64M     0   64M   0% /dev/shm\n"),
    ("no-roce-v2-gid", "mlx5_0\t1\t0\tfe80:0000:0000:0000:0e42:a1ff:fe4b:6c12\t\tv1\teth2\n"),
    ("pause-storm", "      QUEUE       STATUS    STORM DETECTED/RESTORED    TX OK/DROP\n"
     "-----------  -----------  -------------------------  ------------\n"
     "Ethernet0:3  operational                        2/1           0/0\n"),
    ("headroom", "Ingress PG dropped packets:\n     Port    PG0    PG3\n---------  -----  -----\nEthernet0      0     41\n"),
    ("gpu-lost", "[  1.000000] NVRM: The NVIDIA GPU 0000:0f:00.0\n NVRM: (PCI ID: 10de:2330) installed in this system has\n"
     " NVRM: fallen off the bus and is not responding to commands.\n"),
    ("nvlink-error", "kernel: NVRM: Xid (PCI:0000:0f:00): 45, pid=7, name=python3, Ch 00000001 caused by previous Xid 149\n"),
    ("pci-replays", "[  1.000000] pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0\n" * 3),
    ("port-down", "[  1.000000] bond1: link status definitely down for interface ens1f0, disabling it\n"
     "[  1.000000] bond1: now running without any active interface!\n"),
    ("link-flapping", "Jan 01 00:00:00 h kernel: mlx5_core 0000:0f:00.0 eth2: Link up\n" * 3),
    ("link-flapping", " GUID 0x248a0703000a port 4: [LinkDownedCounter == 255 (255.000)] [PortXmitWait == 7 (7.000)]\n"),
    ("pfc-one-side", "Jan 01 00:00:00.0 s WARNING swss#orchagent: :- pfcFrameCounterCheck: "
     "Got PFC 7 frame(s) on lossy queue 3 port Ethernet4\n"),
    ("transport-retry", "what(): NCCL error: remote process exited, NCCL version 2.14.3 ncclRemoteError: A call failed. "
     "Last error: NET/IB : Got completion from peer 10.0.0.2<1> with error 12, opcode 0, len 0, vendor err 129\n"),
    ("locked-memory", "machine [0] misc/ibvwrap.cu:2 WARN Call to ibv_create_qp failed\n"),
    ("fabric-manager", "[2026-01-02 03:04:05] a:10:11 [0] transport/nvls.cc:1 NCCL WARN Cuda failure 1 'invalid argument'\n"),
    ("fabric-manager", "RuntimeError: NCCL error in: c10d/NCCLUtils.cpp:1, unhandled cuda error, NCCL version 2.28.9\nLast error:\n"
     "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 1 : CUDA error 401\n"),
    ("shared-memory", "[3] misc/shmutils.cc:1 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a\n"),
    ("shared-memory", "[rank1]: RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error.\n"),
    ("adapter-error", warning("NET/IB : mlx5_0:1 async fatal event: local catastrophic error")),
    ("protection", warning("NET/IB : mlx5_0:1 async fatal event on QP (0x7f): local access violation work queue error")),
    ("gid-unreachable", warning("NET/IB: Got completion from peer 10.0.0.2<1> with status=12 opcode=0 len=0 vendor err 129 "
                                "(Send) localGid fe80::1 remoteGids::ffff:10.0.0.2 hca mlx5_0")),
    ("size-mismatch", warning("NET/IB : req 0/1 tag 0 peer 10.0.0.2<1> collective mismatch error, local size 4 remote size 8")),
    ("efa-absent", "n1: starting\nn1: libfabric:5:6::core:core:fi_getinfo_():1<warn> fi_getinfo: provider efa output empty list\n"
     "n1: done\n"),
    ("gpu-lost", "[ 1.000000] NVRM: The NVIDIA GPU 0000:b3:00.0\n   NVRM: fallen off the bus and is not responding to commands.\n"),
    ("fabric-manager", "[Jan 02 2026 03:04:05] [ERROR] [tid 9] fabric manager NVIDIA GPU driver interface version 1.2 "
     "don't match with driver version 1.3. Please update with matching NVIDIA driver package.\n"),
    ("driver-mismatch", "Failed to initialize NVML: Driver/library version mismatch\n"),
    ("nvlink-inactive", "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nNVML: Unable to retrieve NVLink information as all links "
     "are inActive\n"),
    ("module-fault", "[ 1.000000] mlx5_core 0000:0c:00.0: Port module event[error]: module 0, Cable error, Bus stuck\n"),
    ("iommu-on", "[ 1.000000] DMAR: [DMA Write NO_PASID] Request device [0c:00.0] fault addr 0x1000 [fault reason 0x05]\n"),
    ("iommu-on", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro intel_iommu=on quiet\n"),
    ("wrong-priority", "NCCL_IB_TC=26\nPriority trust state: dscp\nPFC configuration:\n\tpriority    0   1   2   3\n"
     "\tenabled     0   0   0   1\n"),
    ("rendezvous", "[E1122 1:2:3 socket.cpp:1] [c10d] The client socket has timed out after 900s while trying to connect to "
     "(10.0.0.1, 29500).\n"),
    ("no-subnet-manager", "ibwarn: [7] mad_rpc: _do_madrpc failed; dport (Lid 1)\nsminfo: iberror: failed: query\n"),
    ("no-subnet-manager", "Infiniband device 'mlx5_0' port 1 status:\n\tsm lid:\t\t 0x0\n\tstate:\t\t 2: INIT\n"
     "\tphys state:\t 5: LinkUp\n\trate:\t\t 400 Gb/sec (4X NDR)\n\tlink_layer:\t InfiniBand\n"),
    ("no-subnet-manager", "# Port info: Lid 7 port 1\nLinkState:.......................Initialize\n"
     "PhysLinkState:...................LinkUp\nLid:.............................65535\n"),
    ("port-down", "CA PortInfo:\n# Port info: Lid 7 port 1\nLinkState:.......................Down\n"
     "PhysLinkState:...................Polling\nLinkWidthSupported:..............1X or 4X\n"),
    ("acs-redirects", "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n   D\\D     0      1\n     0 673.20  13.15\n"
     "     1  12.99 673.20\nUnidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1\n"
     "     0 673.49   2.60\n     1   2.12 672.33\n"),
    ("shared-memory", "ESC[36m(RayWorkerVllm pid=4)ESC[0m " + warning("Error while creating shared memory segment x")),
    ("no-pfc", "pfc-cap 8 macsec-bypass off delay 0\nprio-pfc 0:off 1:off 2:off 3:off 4:off 5:off 6:off 7:off\n"),
    ("check-dependency", "x - WARNING - check crashed: No module named 'torch'\n"),
    ("adapter-lost", "[8.1] mlx5_core 0000:3b:00.0: poll_health:825:(pid 0): Fatal error 1 detected\n"
     "[8.2] mlx5_core 0000:3b:00.0: mlx5_health_try_recover:335:(pid 712): handling bad device here\n"),
]  # fmt: skip


@pytest.mark.parametrize(("right", "text"), FAULTS, ids=[f"{n}-{right}" for n, (right, _) in enumerate(FAULTS)])
def test_a_cause_is_found_first_by_its_mechanism(right, text):
    found = answer(text)
    assert found.findings[0].id == right
    assert found.findings[0].severity >= Severity.WARNING
    assert found.findings[0].evidence[0].line >= 1
    assert found.exit_code == 1


HARMLESS = [
    ("no plugin on InfiniBand", log("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.", TWO_NODES)),
    ("0 nvls channels", log(TWO_NODES, "16 coll channels, 0 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p")),
    ("shared memory between GeForce cards", log("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct")),
    ("GDR off on one host", log("comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0",
                                "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'")),
    ("link down once since boot", "# Port extended counters: Lid 3 port 1\nLinkDownedCounter:...............1\n"),
    ("waiting alone", "# Port extended counters: Lid 3 port 1\nPortXmitWait:....................99999999\n"),
    ("CNPs alone", "link mlx5_0/1 np_cnp_sent 5000000 rp_cnp_handled 4000000 out_of_sequence 0\n"),
    ("a device at rest", "19:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB]\n"
     "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16\n"),
    ("SrcValid alone", "18:00.0 PCI bridge: Intel Corporation\n\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd-\n"),
    ("a row that was remapped is a warning at most", "[1.000000] NVRM: Xid (PCI:0000:0f:00): 63, row remapper\n"),
    ("an address that is tried again", "[W1122 1:2:3 socket.cpp:1] [c10d] The client socket has failed to connect to "
     "[n1]:29500 (errno: 111 - Connection refused).\n"),
    ("the subnet manager came back", warning("NET/IB : mlx5_0:1 Got async event : client reregistration")),
    ("no verbs library on one host", log("comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0")
     + warning("Failed to open libibverbs.so[.1]")),
    ("another cable was plugged in", "[ 1.0] mlx5_core 0000:0c:00.0: Port module event: module 0, Cable plugged\n"),
    ("GPUDirect over libfabric", log(TWO_NODES, "Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/6/GDRDMA")),
    ("a traffic class that the adapter maps to its lossless priority", "NCCL_IB_TC=104\nPFC configuration:\n"
     "\tpriority    0   1   2   3\n\tenabled     0   0   0   1\n"),
    ("a fabric without errors", "\n## Summary: 41 nodes checked, 0 bad nodes found\n##          608 ports checked, 0 ports "
     "have errors beyond threshold\n"),
    ("GPUs that reach more directly", "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\nUnidirectional P2P=Disabled "
     "Bandwidth Matrix (GB/s)\n   D\\D     0      1\n     0 673.20  13.15\n     1  12.99 673.20\nUnidirectional P2P="
     "Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1\n     0 673.49  52.60\n     1  52.12 672.33\n"
     "P2P=Disabled Latency Matrix (us)\n   GPU     0      1\n     0   1.60  14.20\n     1  14.10   1.58\n"
     "P2P=Enabled Latency (P2P Writes) Matrix (us)\n   GPU     0      1\n     0   1.60   1.10\n     1   1.10   1.58\n"),
    ("a port that works", "# Port info: Lid 7 port 1\nLinkState:.......................Active\n"
     "PhysLinkState:...................LinkUp\n"),
    ("a subnet manager", "sminfo: sm lid 1 sm guid 0x20000fffe000091, activity count 9 priority 14 state 3 SMINFO_MASTER\n"),
    ("interfaces of InfiniBand adapters without an address", "mlx5_0 port 1 ==> ibp26s0 (Down)\n"
     "mlx5_1 port 1 ==> ibp60s0 (Down)\n"),
    ("an engine that starts", "INFO 05-28 03:19:44 [llm_engine.py:240] Initializing a V0 LLM engine (v0.8.5) with config: x\n"
     "W0722 15:05:15.07 140 torch/distributed/run.py:757] Setting OMP_NUM_THREADS environment variable to 1\n"),
    ("IOMMU in passthrough", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro intel_iommu=on iommu=pt\n"),
    ("a mismatch seen once", "  Group Comms Nodes Ranks Ranks Ranks Status Errors\n 0 1 4 8 32 32 RUNNING MISMATCH\n"),
    ("average below the largest size", "# nThread 1 nGpus 8 minBytes 8\n# Avg bus bandwidth    : 52.98\n"),
]  # fmt: skip


@pytest.mark.parametrize("text", [text for _, text in HARMLESS], ids=[name for name, _ in HARMLESS])
def test_what_only_looks_odd_raises_no_error(text):
    assert max((one.severity for one in answer(text).findings), default=Severity.NOTE) < Severity.ERROR


def test_a_mismatch_seen_once_ends_in_not_enough_evidence_and_says_what_to_collect():
    found = answer(dict(HARMLESS)["a mismatch seen once"])
    assert found.verdict == "not enough evidence"
    assert "ncclras" in found.to_collect[0]
    assert found.exit_code == 0


def test_nothing_readable_ends_in_not_enough_evidence():
    found = judged(read_text("hello\n"), twin=False)
    assert found.verdict == "clean" or found.to_collect


def test_causes_name_only_causes_that_exist():
    for cause in CAUSES.values():
        assert {one.partition(":")[0] for one in cause.follows} <= {*CAUSES, "*"}, cause.id
        assert cause.fix
        assert cause.source


def test_a_watchdog_behind_a_healthy_report_is_read():
    report = "NCCL version 2.26.2 compiled with CUDA 12.4\nJob summary\n===========\n\nErrors\n======\n\nWarnings\n========\n\n"
    text = "[rank3]:[E603 1:2:3.4 ProcessGroupNCCL.cpp:6] [Rank 3] Watchdog caught collective operation timeout: "
    text += "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds\n"
    assert [one.id for one in answer(report + text).roots] == ["collective-stuck"]


def test_sums_over_ports_count_only_where_ports_do_not_stand_by_themselves():
    ports = 'Errors for "s1"\n   GUID 0x1 port ALL: [LinkDownedCounter == 255]\n   GUID 0x1 port 4: [LinkDownedCounter == 255]\n'
    assert answer(ports).findings[0].object == "s1/4"


def test_one_root_with_its_consequences_beneath():
    text = warning("Call to ibv_reg_mr failed with error Cannot allocate memory") + (
        "a: Test NCCL failure common.cu:958 'unhandled system error / x'\nmax locked memory       (kbytes, -l) 64\n"
    )
    found = answer(text)
    assert [one.id for one in found.findings] == ["limit-locked"]
    assert {below.id for below in found.findings[0].consequences} == {"locked-memory", "job-failed"}


def test_a_gpu_has_one_name_whether_its_function_is_told_or_not():
    lost = "[1.0] NVRM: Xid (PCI:0000:3a:00): 79, pid=1, GPU has fallen off the bus.\n"
    found = answer(f"{lost}[1.1] NVRM: GPU 0000:3a:00.0: GPU has fallen off the bus.\n")
    assert found.findings[0].object == "GPU 0000:3a:00"
    (module,) = answer("mlx5_core 0000:5d:00.0: Port module event[error]: module 0, Cable error, x\n").roots
    assert module.object == "0000:5d:00.0"
