"""Errors by the lists of the software that prints them, by the kind of thing that failed, and as numbers."""

from __future__ import annotations

import random

import pytest

from fabrictwin.diagnosis.causes import CAUSES
from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.mechanisms.table import mechanism_of, mechanisms
from fabrictwin.diagnosis.readers.line_shapes import LineShapes, pattern_sources
from fabrictwin.diagnosis.readers.reading import read_text

# numbers of CUDA's results (cuda.h, CUresult) beside their names there
CUDA = {
    2: "OUT_OF_MEMORY", 46: "DEVICE_UNAVAILABLE", 100: "NO_DEVICE", 101: "INVALID_DEVICE", 200: "INVALID_IMAGE",
    209: "NO_BINARY_FOR_GPU", 214: "ECC_UNCORRECTABLE", 222: "UNSUPPORTED_PTX_VERSION", 700: "ILLEGAL_ADDRESS",
    702: "LAUNCH_TIMEOUT", 715: "ILLEGAL_INSTRUCTION", 716: "MISALIGNED_ADDRESS", 719: "LAUNCH_FAILED",
    802: "SYSTEM_NOT_READY", 803: "SYSTEM_DRIVER_MISMATCH", 805: "MPS_CONNECTION_FAILED", 999: "UNKNOWN",
}  # fmt: skip

RIGHT = [
    ("setting-invalid", "n1:1:2 [0] misc/socket.cc:9 NCCL WARN Net : unsupported IP family"),
    ("setting-invalid", "n1:1:2 [0] misc/socket.cc:9 NCCL WARN Net : string is null"),
    ("peer-closed", "n1:1:2 [0] misc/socket.cc:9 NCCL WARN ncclSocketReady: unexpected socket state 7"),
    ("setting-invalid", "[1.5] [n1:3:0] frob.c:9 UCX  ERROR UCX_FROB_INTERVAL value must be greater than 7"),
    ("setting-invalid", "FROB_MODE=fast requires FROB_PROTO=1"),
    ("transport-none", "[1.5] [n1:3:0] ucp.c:9 UCX  WARN  transports 'frob','quux' are not available, please use one or more of: tcp"),
    ("library-mismatch", "[1.5] [n1:3:0] ucp.c:9 UCX  WARN  UCP version is incompatible, required: 7.8, actual: 7.2"),
    ("library-mismatch", "WARN frobs were detected, but FROB support was not found! It may be slow."),
    ("library-missing", "configure: error: <frob/driver.h> not found.  libfrob requires it."),
    ("library-missing", "E0721 03:11:02.21 7 agent.cpp:9] createBackend: unsupported backend 'FROB'"),
    ("library-missing", "/etc/frob.sh: 11: /opt/frob/bin: not found"),
    ("library-missing", "/bin/bash: line 1: /usr/sbin/frobd: No such file or directory"),
    ("container-runtime", "slurmstepd: error: pyxis:     [ERROR] Command not found: nvidia-container-cli, see elsewhere"),
    ("container-runtime", "Error: setting up CDI devices: failed to stat CDI host device \"/dev/frob\": no such file"),
    ("image-pull", "slurmstepd: error: pyxis: failed to import docker image"),
    ("no-roce-v2-gid", "W0710 03:11:02.210120  7 context.cpp:9] GID is NULL, please check your GID index"),
    ("bootstrap-interface", "n1:1:2 [0] socket.cc:9 NCCL WARN socketStartConnect: Connect to 172.17.0.9<77> failed : Software caused connection abort"),
    ("virtual-function", "[ 8.1] ice 0000:3b:00.0: Failed to enable SRIOV: Only 0 MSI-X interrupts available for SR-IOV"),
    ("p2p-off", "RuntimeError: Can't enable access between frobs 1 and 0"),
    ("efa-absent", "n1:1:2 [0] init:9 NCCL WARN NET/OFI frob-ofi-nccl initialization failed"),
    ("efa-absent", "n1:1:2 [0] init:9 NCCL WARN NET/OFI Could not find any supported EFA device"),
    ("model-access", "OSError: We couldn't connect to 'https://huggingface.co' to load frob"),
    ("model-access", "FrobError: HTTPSConnectionPool(host='hf.co', port=443): Max retries exceeded with url: /frob"),
    ("peermem-broken", "[app][error] RegisterFrobMemoryRegion failed! addr:0x7f, size:9, errno:22 (Invalid argument)"),
    ("peermem-missing", "cat: /sys/kernel/mm/memory_peers/nv_mem/version: No such file or directory"),
    ("library-mismatch", "n1:1:2 [0] register_mr:9 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0. RC: -22"),
    ("locked-memory", "n1:1:2 [0] register_mr:9 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 0. RC: -12"),
    ("connect-refused", "[rank1]: EI0006: [PID: 7] 2026-04-08-18:07:20 Getting socket times out"),
    ("transport-retry", "[PID: 7] Execution Error ROCE CQE(EI0013): server 10.0.0.7"),
    ("imex-domain", "[ERROR] Failed to get export ref for UUID: 77 for request from node id 0"),
    ("no-gpu", "E0312 9 daemon.cc:200] Number of GPUs detected in the tree 7 is not equal to the number reported 8"),
    ("efa-absent", "2026/02/03 15:23:32 Error to get device: No valid EFA devices found"),
    ("verbs-library", "ibv_frob_query_device: invalid comp_mask !!! (comp_mask = 0x77 valid_mask = 0x1)"),
    ("resource-unavailable", "\"FailureMessage\": \"We do not have sufficient capacity for the frobs\""),
    ("resource-unavailable", "srun: error: Unable to create step: Requested nodes are busy"),
    ("resource-unavailable", "sbatch: error: Insufficient GRES available in allocation"),
    ("launch-failed", "srun: error: Socket timed out on send/recv operation"),
    ("settings-rejected", "[7] error: _node_config_validate: gres/gpu: invalid GRES core specification (7) on node n7"),
    ("data-wrong", " Out of bounds values : 77 FAILED"),
    ("library-mismatch", "Invalid config frob attribute value -2147483648"),
    ("rank-died", "terminate called after throwing an instance of 'frob::QuuxException'"),
    ("driver-build", "WARNING: The nvidia-drm module will not be installed."),
    ("settings-rejected", "Both frob interface include and exclude lists were specified:"),
    ("settings-rejected", "quux: error: --frob-rate requires --frob-file to be set"),
    ("settings-rejected", "The specified frob directive is not recognized:"),
    ("settings-rejected", "FrobConfig: frob_interval must be > 0"),
    ("setting-invalid", "WARNING: An invalid value was given for oob_frob_range.  This"),
    ("adapter-limits", "[n1:3 :0:3] ud.c:9 UCX Assertion `attr.cap.max_send_sge >= 7' failed"),
    ("verbs-library", "[1.5] [n1:3:0] dv.c:9 UCX  ERROR mlx5dv_devx_frob(77) failed, syndrome 0: Invalid argument"),
    ("verbs-library", "[1.5] [n1:3:0] dc.c:9 UCX  ERROR ibv_modify_qp(DCI, RTR) failed : Invalid argument"),
    ("connect-refused", "A process or daemon was unable to complete a TCP connection"),
    ("slots-few", "The specified frob file contained a node (n7) that is not in your allocation."),
    ("device-permission", "/frob/heap.cpp:9: non-zero status: 800 cuFrobCreate failed"),
    ("gpu-busy", "cuFrobCreate return value:   46"),
    ("cuda-not-initialized", "frob.cc:9: frobGetAttribute failed: CUDA_ERROR_NOT_INITIALIZED"),
    ("gpu-program", "RuntimeError: frob: hipErrorLaunchOutOfResources"),
    ("protection", "frobd: event IBV_EVENT_QP_ACCESS_ERR on qp 77"),
    ("remote-access", "frob_send failed: -FI_EKEYREJECTED"),
    ("transport-retry", "frob: request failed, UCS_ERR_ENDPOINT_TIMEOUT"),
    ("file-missing", "[rank3]: ValueError: Path is not a file: '/frob/7.txt'"),
    ("rank-missing", "ValueError: rank 3 has read its frob, but there are other ranks that didn't finish reading."),
    ("rank-died", "E frob.cc:9] task:7 tried to connect with a different incarnation. It has likely restarted."),
    ("library-missing", "configure: error: frob provider was requested, but cannot be compiled"),
    ("rdma-connection", "ERROR: Error 7 listening on the 'rdma' transport."),
    ("transport-retry", "The InfiniBand retry count between two MPI processes has been"),
    ("host-settings", "WARNING: It appears that your OpenFabrics subsystem is configured to only"),
    ("gpu-hot", "WARNING in health system Thermal: 'Detected clocks event due to thermal violation in GPU 7.'"),
    ("nvlink-inactive", "Fail: GPU 7's NvLink link 9 is currently down"),
    ("pci-replays", "Detected more than 8 PCIe replays per minute for GPU 7 : 77"),
    ("library-missing", "[0] FROB startup(): cannot open dynamic library libfrob.so.7"),
    ("adapter-limits", "frob.c: 9: *ERROR*: RDMA CQ resize failed: errno 11: Resource temporarily unavailable"),
    ("library-mismatch", "FROB_put(7): OFI frob immediate failed (frob.h:7:FROB_put:Invalid argument)"),
    ("out-of-memory", "ValueError: frobs need 7 GiB of KV cache, which is larger than the available KV cache memory (2 GiB)"),
    ("no-gpu", "Reason=gres/gpu count reported lower than configured (7 < 8) [frob@n1]"),
    ("rank-missing", "frob.cc:7] Barrier 7 timed out. Number of tasks already at the barrier: 7/8. Frob."),
    ("module-absent", "[ERROR] frob:7 frob-fs.ko driver not loaded"),
    ("driver-mismatch", "the GPU driver is not loaded"),
    ("gpu-power", "            HW Power Brake Slowdown           : Active"),
    ("model-access", "frob.errors.FrobError: 429 Client Error: Too Many Requests for url: https://frob/api"),
    ("port-down", "n7.7 PSM2 no frob units are active (err=7)"),
    ("nvlink-error", "[Mar 02 2026 10:00:01] [ERROR] [tid 7] NVLink training failed between GPU 7 and NVSwitch port 7"),
    ("no-rdma-device", "[FROB_P2P] No compatible IB devices found"),
    ("connect-refused", "FrobError: Could not find any running Frob instance."),
    ("module-absent", "frob.c:7 UCX  ERROR could not open frob. Please check that the frobdrv module is loaded"),
    ("setting-invalid", "frob:7 [Fatal] no frobs are left. FI_FROB_MODE=[hybrid|software] is required"),
    ("gpu-lost", "I0302 7 frob.go:7] XidCriticalError: Xid=79 on Frob=7; marking frob as unhealthy."),
    ("gpu-gsp", "frobd: GPU 7 reported XID error 119"),
    ("library-missing", "frob.exc.FrobError: Failed to find C compiler."),
    ("model-access", "FrobError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"),
    ("sxid", "frobd: detected NVSwitch non-fatal error 7 on fid:0"),
    ("efa-unreachable", '      "message": "An EFA requires a security group that allows all traffic to and from itself."'),
    # switches' own logs, the subnet manager's notices
    ("link-errors", "osm: Received Generic Notice type:1 num:131 (Flow Control Update watchdog timer expired) from LID:7"),
    ("partition-key", "osm: Received Generic Notice type:2 num:257 (Bad P_Key) from LID:7"),
    ("pause-storm", "%FROB-2-PFCWD_QUEUE_DETECTED: Stuck queue 3 on port Ethernet1/9"),
    ("pfc-one-side", "%DCBX-4-PFC_MISMATCH: PFC mismatch on interface Ethernet1/9"),
    ("port-down", "%LINEPROTO-5-UPDOWN: Line protocol on Interface Ethernet9/1, changed state to down"),
    ("link-flapping", "%ETH-4-ERRDISABLE: link-flap error detected on Ethernet9/1"),
    ("module-fault", "%XCVR-3-RX: Ethernet9/1 receive power low alarm"),
    ("bgp-down", "%BGP-5-ADJCHANGE: peer 192.0.2.1 (AS 7) old state Established event HoldTime new state Idle"),
    ("switch-part", "%PLATFORM-2-PS_FAIL: Power supply 9 failed"),
    # DCGM, the fabric manager, IMEX
    ("gpu-memory", "GPU 9 had memory errors and row remappings are pending"),
    ("gpu-recovery", "GPU 9 requires a reset to recover from a fault. Recovery action: 1"),
    ("nvlink-inactive", "NVLink connections are not training: GPU 9 to NVSwitch 7"),
    ("imex-domain", "nodes_config.cfg: unable to find the local address"),
    # NCCL's own checks, its plugins, PMIx
    ("topology-malformed", "n1:1:2 [0] xml.cc:9 NCCL WARN XML Topology has wrong version 7, 9 needed"),
    ("setting-invalid", "n1:1:2 [0] p2p.cc:9 NCCL WARN NET/IB: OOO RQ is force enabled but AR is not enabled"),
    ("efa-unreachable", "n1:1:2 [0] NCCL WARN NET/OFI completed with error. RC: 113. Error: 4113 (Unresponsive receiver)"),
    ("launch-failed", "slurmstepd: error: pmixp_coll_ring_reset: frob timeout"),
    ("peermem-broken", "n1: nvidia_peermem: nv_mem_get_pages: page size mismatch"),
    # the loader of a daemon's plugins, a firmware that does not answer, CXI's results, storage over the fabric
    ("library-missing", "slurmd: error: cannot find frob plugin for frob/v2"),
    ("adapter-error", "[1.5] [n1:3:0] dc.c:9  UCX  ERROR mlx5dv_devx_obj_create(DCT) failed, syndrome 0: Operation canceled"),
    ("transport-retry", "OFI poll failed (ofi_events.c:9:frob:Input/output error - UNDELIVERABLE)"),
    ("no-rdma-device", "nvme_rdma.c:9:frob: *ERROR*: rdma_get_devices() failed: No such device (19)"),
    ("nccl-usage", "what(): NCCL Error 5: invalid usage"),
    ("locked-memory", "n1:1:2 [0] NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Cannot allocate memory"),
    ("nvlink-error", "[ 1.5] NVRM: knvlinkFrob_GH100: Getting frobs failed!"),
    # AMD's driver by block, drivers of other adapters, NVSHMEM's and Mooncake's calls, Slingshot, DCGM's checks
    ("gpu-memory", "[ 1.5] amdgpu 0000:09:00.0: amdgpu: 7 uncorrectable hardware errors detected in umc block"),
    ("nvlink-error", "[ 1.5] amdgpu 0000:09:00.0: amdgpu: 7 uncorrectable hardware errors detected in xgmi_wafl block"),
    ("gpu-gsp", "[ 1.5] amdgpu 0000:09:00.0: amdgpu: Failed to export SMU metrics table!"),
    ("adapter-error", "[ 1.5] bnxt_en 0000:09:00.0 eth9: Firmware reset request, frob reset"),
    ("adapter-limits", "[ 1.5] irdma 0000:09:00.0: CQP opcode[9] maj_err=0x7 min_err=0x9"),
    ("no-subnet-manager", "[ 1.5] ib9: sending join, multicast join failed for ff12::9, status -110"),
    ("adapter-limits", "frob.cpp:9: NULL value cannot create devx object for qpair."),
    ("setting-invalid", "frob.cpp:9: non-zero status: 7 IBGDA_RC_MAP_BY is not valid."),
    ("library-mismatch", "frob.cu:9: selected bootstrap returned an incompatible version 9. Expected version 7"),
    ("peermem-missing", "WARN: device mlx5_9 cannot allocate buffer on the specified memory type. Skipping..."),
    ("wrong-hca", "WARN: device frob_9 is not enumerated as an mlx5 device. Skipping..."),
    ("rank-late", "DeepEP frob timeout, channel: 7, RDMA: 9"),
    ("port-in-use", "E0302 10:00:01.5 7 frob.cpp:9] SocketHandShakePlugin: bind (port 9)"),
    ("adapter-limits", "MPICH WARNING: suspects a hang: CXI_EQ dropped, frob"),
    ("driver-mismatch", "Found driver on the denylist: frob"),
    ("setting-forced", "Found CUDA performance-limiting environment variable 'FROB'."),
    ("switch-part", "WARNING pmon#thermalctld: Fan fault warning: fan 9"),
    ("link-flapping", "ufm: WARNING: Link went down: (Switch:frob:9)"),
    ("subnet-manager-error", "osm: ERR 0D01: Found duplicated node GUID 0x9"),
    # node health checks, the kernel at its limits, daemons of storage, reserved memory
    ("nvlink-inactive", "ERROR:  nhc:  Health check failed:  check_frob: GPU 9 has nvlinks inactive: Link 7"),
    ("no-gpu", "ERROR:  nhc:  Health check failed:  check_gpu_count: Expected to see 9 but found 7"),
    ("gpu-memory", "ERROR:  nhc:  Health check failed:  check_frob: GPU id 9: Row remap pending. FaultCode: 7"),
    ("bandwidth-low", "ERROR:  nhc:  Health check failed:  check_frob: IB BW (expected > 9 Gbps, but measured 7 Gbps)"),
    ("bandwidth-low", "check_frob: bandwidth of 7 Gbps on mlx5_9 is below threshold of 9"),
    ("disk-full", "ERROR:  nhc:  Health check failed:  check_fs_used:  /frob has 99% used, threshold is 90%"),
    ("storage-error", "ERROR:  nhc:  Health check failed:  check_fs_mount:  /frob not mounted"),
    ("port-down", "ERROR:  nhc:  Health check failed:  check_hw_ib:  No IB port mlx5_9:1 is ACTIVE (LinkUp 9 Gb/sec)."),
    ("slow-node", "Straggler detected: rank 9"),
    ("discards", "[ 1.5] nf_conntrack: nf_conntrack: table full, dropping packet"),
    ("clock-skew", "chronyd[9]: System clock wrong by 7.5 seconds"),
    ("open-files", "[ 1.5] VFS: file-max limit 9 reached"),
    ("storage-error", "mmfs: [E] Disk lease period expired 7 seconds ago"),
    ("out-of-memory", "ValueError: No available memory for the cache blocks. Try frobbing it."),
    ("adapter-limits", "MPICH suspects a hang due to completion queue exhaustion."),
    ("no-roce-v2-gid", "[1.5] [n1:9:0] frob.c:9  UCX  ERROR Invalid gid[0] on mlx5_9:1"),
    # tools of InfiniBand without an answer, modules that are hot, functions that were not made, LNet, processors
    ("subnet-manager-error", "ibwarn: [9] _do_madrpc: recv failed: Connection timed out"),
    ("not-infiniband", "frob.c:9; Failed to resolve self"),
    ("no-rdma-device", "No local ports detected!"),
    ("no-rdma-device", "librdmacm: Fatal: no RDMA devices found"),
    ("host-hardware", "[ 1.5] mce: CPU9: Package temperature above threshold, cpu clock throttled (total events = 7)"),
    ("virtual-function", "[ 1.5] mlx5_core 0000:09:00.0: mlx5_frob:9:(pid 7): pci_enable_sriov failed : -12"),
    ("storage-error", "LNetError: 9:0:(frob.c:7:frob()) Timed out tx: frob, 7 seconds"),
    ("module-fault", "Module temperature 99C exceeds high alarm threshold 9C"),
    ("pci-errors", "[ 1.5] mlx5_core 0000:09:00.0: PCI error detected: frob = 1"),
    # prologs, NIXL's statuses
    ("node-failed", "salloc: Prolog failure on node frob9"),
    ("node-failed", "slurmstepd: error: Prolog hung on node frob9"),
    ("peer-closed", "ERROR frob: nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT"),
    ("settings-differ", "frob: NIXL_ERR_MISMATCH"),
]  # fmt: skip


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


@pytest.mark.parametrize(("right", "line"), RIGHT, ids=[f"{n}-{right}" for n, (right, _) in enumerate(RIGHT)])
def test_a_line_names_its_cause_first(right, line):
    assert answer(line + "\n").findings[0].id == right


@pytest.mark.parametrize(("number", "name"), CUDA.items(), ids=CUDA.values())
def test_a_result_of_cuda_says_the_same_as_a_number_and_by_its_name(number, name):
    by_number, by_name = mechanism_of(f"cuFrobGet(0) returned {number}"), mechanism_of(f"CUDA_ERROR_{name}")
    assert by_number is not None
    assert by_name is not None
    assert by_number.cause == by_name.cause


def test_a_number_that_is_no_result_names_nothing():
    assert mechanism_of("cuFrobGet(0) returned 100.5 units") is None
    assert mechanism_of("the frob returned 100") is None


def test_of_one_refusal_of_the_environment_the_job_s_end_stands_before_what_slows_it():
    text = (
        "n1:1:2 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"
        "n1:1:2 [0] socket.h:9 NCCL WARN Net : No interface found in the same subnet as remote address 10.0.0.7<7>\n"
        "n1:1:2 [0] socket.h:9 NCCL WARN Call to bind failed : Cannot assign requested address\n"
    )
    assert [one.id for one in answer(text).findings][:2] == ["no-socket-interface", "setting-forced"]


def test_guesses_and_advice_behind_a_message_are_no_evidence():
    text = "A worker died while executing a task. There are some potential root causes. (1) It was killed by the OOM killer.\n"
    assert answer(text).findings[0].id != "host-memory"
    assert answer("the worker was killed by the OOM killer\n").findings[0].id == "host-memory"


def test_some_lines_say_something_beside_another_cause_only():
    alone = "libibverbs: Warning: couldn't open config directory '/etc/libibverbs.d'.\n"
    assert not answer(alone).findings
    first = answer(alone + "No IB devices found\n").findings[0]
    assert (first.id, [below.id for below in first.consequences]) == ("verbs-library", ["no-rdma-device"])
    for one in mechanisms():
        assert set(one.beside) <= set(CAUSES)


def test_an_exception_that_nobody_caught_stands_beneath_what_it_says():
    head = "terminate called after throwing an instance of 'gloo::IoException'\n"
    found = answer(
        f"{head}  what():  [pair.cc:7] connect [127.0.1.1]:77: Connection refused\nAborted (core dumped)\n"
    )
    assert (found.findings[0].id, found.findings[0].severity) == ("bootstrap-interface", Severity.ERROR)
    assert "rank-died" in {below.id for below in found.findings[0].consequences}


def test_imex_and_the_fabric_manager_write_alike_and_are_told_apart():
    error = "[Mar 21 2026 20:45:38] [ERROR] [tid 7] No matching network interface found\n"
    assert (
        answer(f"[Mar 21 2026 20:45:38] [INFO] [tid 7] IMEX version 570.00 is running\n{error}").findings[0].id
        == "imex-domain"
    )
    assert answer(error).findings[0].id == "fabric-manager"


def test_a_retry_of_nccl_is_a_question_and_its_last_one_an_error():
    retry = "n1:1:2 [0] NCCL INFO Call to connect returned Connection refused, retrying\n"
    assert answer(retry).findings[0].severity == Severity.QUESTION
    assert (
        answer("n1:1:2 [0] net.cc:9 NCCL WARN Connect to 10.0.0.7<7> failed : Connection refused\n").verdict
        == "faults"
    )


def test_a_topology_that_is_loaded_is_no_malformed_one():
    loaded = "n1:1:2 [0] NCCL INFO Loading topology file /home/frob/topo_fail.xml\n"
    assert "topology-malformed" not in {one.id for one in answer(loaded).findings}


def test_a_message_has_one_shape_whatever_random_names_its_lines_hold():
    draw, shapes = random.Random(7), LineShapes(pattern_sources())
    names = ["".join(draw.choices("abcdefghijklmnop", k=draw.randrange(5, 12))) for _ in range(400)]
    lines = [
        f"2026-01-02 {name}7 [{n}] connect to {name}-{n}.example: Connection refused"
        for n, name in enumerate(names)
    ]
    assert len({shapes.of(line) for line in lines}) < len(lines) / 20
    found = answer("\n".join(lines) + "\n")
    assert found.findings[0].id == "connect-refused"


def test_a_trained_link_whose_port_is_down_waits_for_its_subnet_manager():
    head = "CA 'mlx5_7'\n\tCA type: MT4124\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Down\n"
    linked = head + "\t\tPhysical state: LinkUp\n\t\tRate: 200\n\t\tBase lid: 65535\n\t\tLink layer: InfiniBand\n"
    assert answer(linked).findings[0].id == "no-subnet-manager"
    assert answer(linked.replace("LinkUp", "Polling")).findings[0].id == "port-down"
    assert answer(linked.replace("InfiniBand", "Ethernet")).findings[0].id == "port-down"


def test_an_abort_of_the_watchdog_itself_decides_nothing():
    watchdog = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLGATHER) ran for 9 milliseconds"
    text = f"[E ProcessGroupNCCL.cpp:828] {watchdog} before timing out.\nterminate called\n  what():  {watchdog}\n"
    found = answer(text + "ERROR:torch.distributed:failed (exitcode: -6) local_rank: 0\n")
    assert all(one.severity < Severity.ERROR for one in found.findings)


def test_an_entry_of_results_becomes_a_mechanism_for_each_cause():
    known = {mechanism_of(f"frob: completion status {number}").cause for number in (4, 12, 13)}
    assert known == {"protection", "transport-retry", "receiver-not-ready"}
    assert not any("<result>" in line for one in mechanisms() for line in one.lines)
