"""Lines of trouble in any text: by the table of mechanisms, else as they stand, whatever stands before and around."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cluster_prints import PREFIXES, coloured, interleaved, prefixed, renamed

from fabrictwin.diagnosis.causes import CAUSES
from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.literals import Guarded, LiteralIndex, Pattern, alternatives, fewest, needed
from fabrictwin.diagnosis.mechanisms.table import HARMLESS, mechanism_of, mechanisms, xids
from fabrictwin.diagnosis.readers.line_shapes import LineShapes
from fabrictwin.diagnosis.readers.reading import read_text


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def timed_out(rank: int, verb: str, head: str = "") -> str:
    return (
        f"{head}[rank{rank}]:[E ProcessGroupNCCL.cpp:563] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=7, OpType={verb}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600001 milliseconds\n"
    )


RIGHT = [
    ("gpu-access-lost", "Failed to initialize NVML: Unknown Error\n"),
    ("driver-mismatch", "Failed to initialize NVML: Driver/library version mismatch\n"),
    ("no-gpu", "$ nvidia-smi\nNo devices were found\n"),
    ("gpu-lost", "Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot the system\n"),
    ("pci-power", "[ 1.5] mlx5_core 0000:c1:00.0: mlx5_pcie_event:301: Detected insufficient power on the PCIe slot (27W).\n"),
    ("verbs-library", "libibverbs: Warning: Driver mlx5 does not support the kernel ABI of 9 (supports 1 to 1)\n"),
    ("no-rdma-device", "$ ibv_devinfo\nNo IB devices found\n"),
    ("no-rdma-device", "Fatal error:  device '*': sys files not found (/sys/class/infiniband/*/ports)\n"),
    ("locked-memory", "[rank0]: ibv_reg_mr failed: Cannot allocate memory\n"),
    ("peermem-broken", "n1:1:2 [0] misc/ibvwrap.cc:9 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address\n"),
    ("cuda-driver-old", "n1: Test CUDA failure common.cu:9 'CUDA driver version is insufficient for CUDA runtime version'\n"),
    ("port-in-use", "RuntimeError: The server socket cannot be bound to port 29500: Address already in use\n"),
    ("name-resolution", "[W socket.cpp:601] The addresses of (n0, 29500) cannot be retrieved (gai error: -2).\n"),
    ("pci-narrow", "mlx5_core 0000:01:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8 GT/s x8 link at 0000:00:01.0 "
     "(capable of 252.048 Gb/s with 16 GT/s x16 link)\n"),
    ("firmware-old", "[ 2.0] mlx4_core 0000:05:00.0: Old FW 2.9 detected, please upgrade FW\n"),
    ("gpu-ipc", "RuntimeError: open of a CUDA IPC handle failed: peer access is not supported between these two devices\n"),
    ("fabric-manager-unneeded", "nv-fabricmanager[99]: query of NVSwitches failed with NV_WARN_NOTHING_TO_DO\n"),
    ("transport-retry", "WARN NET/IB : Got completion from peer 10.1.2.3<1234> with error 12, opcode 1, vendor err 129\n"),
    ("protection", "[n1:7:0:7] ib_mlx5_log.c:1  Local protection on mlx5_0:1/IB (synd 0x4 vend 0x51 hw_synd 0/2)\n"),
    ("collective-mismatch", timed_out(0, "ALLREDUCE") + timed_out(1, "_ALLGATHER_BASE")),
    ("collective-mismatch", timed_out(0, "ALLREDUCE", "[trainer0|0]:") + timed_out(1, "BROADCAST", "[trainer0|1]:")),
    ("no-mpi", "#  Rank  0 Group  0 Pid 123 on a device  0 [0x07] H100\n#  Rank  0 Group  0 Pid 124 on a device  0 [0x07] H100\n"),
    ("rdma-namespace", "hca_id: mlx5_0\n\tport: 1\n\t\tlink_layer: Ethernet\n\t\tGID[  0]:\t\t0000:0000:0000:0000:0000:0000:0000:0000\n"),
    ("roce-loss", "     out_of_sequence: 52134\n"),
    ("receive-queue-empty", "     rx_out_of_buffer: 1207959\n"),
    ("no-socket-interface", "a:1:2 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"),
    ("launch-failed", "Host key verification failed.\nORTE was unable to reliably start one or more daemons.\n"),
    ("time-limit", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"),
    ("resource-unavailable", "Warning FailedScheduling: 0/9 nodes are available: 8 Insufficient nvidia.com/gpu.\n"),
    ("container-runtime", "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1\n"),
    ("settings-rejected", "ValueError: 40 heads must be divisible by tensor parallel size (16).\n"),
    ("gpu-hardware", "[ 9.1] amdgpu 0000:68:00.0: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!\n"),
    ("efa-unreachable", "n1:5:9 [2] nccl_net_ofi: NCCL WARN NET/OFI completion error: Unreachable remote, peer 10.0.0.2\n"),
    ("adapter-limits", "[7.1] mlx5_0: CREATE_QP failed, status limits exceeded (0x8)\n"),
    ("locked-memory", "[n1:3] ib_md.c ERROR ibv_reg_mr(len 4096) failed: Cannot allocate memory, set max locked memory\n"),
    ("sharp-failed", "[n1:0] ERROR SHARP job: no valid tree for the Streaming tree lock failed\n"),
    ("pod-network", "Warning FailedCreatePodSandBox: error adding pod a_b to CNI network \"multus\": Link not found\n"),
    ("driver-build", "No DOCA driver found for kernel 6.1.0-1\n"),
    ("virtual-function", "E0102 1 server.go:9] no devices in device pool, skipping the server for nic_a\n"),
    ("resource-unavailable", "slurmd: error: node n1: gres/gpu: Count changed on node (7 != 8)\n"),
    ("host-settings", "ERROR: GDRCopy needs the parameter PeerMappingOverride=1 of the driver\n"),
    ("launch-failed", "slurmd: error: Invalid job credential from 1001@n2\n"),
    ("storage-error", "OSError: [Errno 116] Stale file handle\n"),
    ("settings-rejected", "(Core pid=2) ERROR 01-02 12:00:01 [core.py:9] ValueError: tensor size 4 exceeds available GPUs (2)\n"),
    ("program-error", "(Core pid=2) ERROR 01-02 12:00:01 [core.py:9] ValueError: the widget is round\n"),
    ("gpu-architecture", "n1:5:9 [1] enqueue.cc:12 NCCL WARN Cuda failure 'named symbol not found'\n"),
    ("storage-error", "lmdb.LockError: /frob/db: Resource temporarily unavailable\n"),
    ("storage-error", "OSError: [Errno 37] No locks available\n"),
    ("storage-error", "flock: /frob: No locks available\n"),
    ("clock-skew", "[2015-01-02T12:00:00.1] error: Check for out of sync clocks\n[2015-01-02T12:00:01.1] error: Nodes c[1-2] not responding\n"),
    ("gpu-lost", "Feb 1 08:02:06 n1 kernel: NVRM: _frobAndWait: rpc failed with status 0x0000000f for fn 7!\n"),
    ("firmware-old", "[ 9.3] mlx4_en 0000:0d:00.0: frobbing not supported, please upgrade to later FW version\n"),
    ("port-down", "ibwarn: [7] mad_rpc: _do_madrpc failed; dport (DR path slid 0; dlid 0; 0,1,2)\n"),
    ("port-down", "ibpanic: [7] main: stat of IB device 'mlx5_1' failed: Invalid argument\n"),
    ("roce-loss", "     rx_prio0_bytes: 5\n/sys/class/infiniband/mlx5_0/ports/1/hw_counters/local_ack_timeout_err:2700\n"),
    ("acs-redirects", "  ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
     "n1:5:9 [0] net_ib.cc:8 NCCL WARN NET/IB : Got completion with error 4, opcode 0, len 7, vendor err 81\n"),
    ("open-files", "[ 7.1] VFS: file-max limit 4096 reached\n"),
    ("node-failed", "[7.0] error: *** STEP 7.0 STEPD TERMINATED ON n1 AT 2020-01-01T01:01:01 DUE TO JOB NOT ENDING WITH SIGNALS ***\n"),
    ("resource-unavailable", "REASON           NODELIST\nLow RealMemory   n[1-3]\n"),
    ("library-crash", "Fatal Python error: Floating point exception\nActorDiedError: the actor is dead because its worker process has died\n"),
    ("port-down", "ibportstate: iberror: failed: smp query portinfo failed\n"),
    ("collective-mismatch", "error msg: Culprit rank 7; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[8]]'\n"),
    ("rank-late", "Not all ranks joining collective 7 at entry 6\n"),
    ("port-down", "src/query_smp.c:7; umad (DR path slid 0; dlid 0; 0,1,2 Attr 0x11:0) bad status 110; Connection timed out\n"),
    ("library-mismatch", "n1:7:9 [0] NCCL WARN NET/OFI Creating new endpoint for domain 0x7f9 failed: Invalid argument\n"),
    ("transport-retry", "[ 9.1] infiniband mlx5_0: mlx5_poll_one:7:(pid 0): syndrome 0x15, vendor syndrome 0x81\n"),
    ("flushed", "[ 9.1] infiniband mlx5_0: mlx5_poll_one:7:(pid 0): syndrome 0x5, vendor syndrome 0xf9\n"),
    ("request-refused", "frob.c:7:x: *ERROR*: Failed to post a send for the qpair 0xd1 with errno -22\n"),
    ("adapter-limits", "frob.c:7:x: ibv_post_recv failed: Cannot allocate memory\n"),
    ("adapter-limits", "x.c:1  UCX  ERROR mlx5dv_devx_obj_create(FROB) failed, syndrome 0: Cannot allocate memory\n"),
    ("rank-died", "[n1.7] PMIX ERROR: UNREACHABLE in file server/pmix_server.c at line 7\n"),
    ("pmi-mismatch", "[n1:7] OPAL ERROR: Unreachable in file frob3x_client.c at line 7\n"),
    ("connect-refused", "RuntimeError: Socket Timeout\nn1:7:9 [0] NCCL WARN Net : Connect to 10.1.2.3<40001> failed : No route to host\n"),
    ("gpu-lost", "[ 9.1] amdgpu 0000:75:00.0: SMU: response:0xFFFFFFFF for index:7 param:0x0 message:Frob?\n"),
    ("gpu-hardware", "[ 9.1] amdgpu: Failed to evict process queues\n"),
    ("bootstrap-interface", "[n1:5:0] sock.c:3 UCX ERROR connect(fd=7, dest_addr=172.17.0.1:40001) failed: Connection refused\n"),
    ("peermem-missing", "ibv_reg_mr(pd 0x1, buf 0x7f, size = 8)\nCouldn't register GPU MR\n"),
    ("library-missing", "ERROR x.py:4] Failed to load FROB library from /opt/libfrob.so.2\nNameError: name 'frob' is not defined\n"),
    ("shared-memory", "[n1:7] attach: unable to create shared memory coordinating structure\n"),
    ("gpu-busy", "Could not unload the NVIDIA driver kernel modules, driver is in use\n"),
    ("virtual-function", "E01 x.go:1] bind: write /sys/bus/pci/drivers/vfio-pci/bind: no such device\n"),
    ("cuda-driver-old", "torch/cuda/__init__.py:5: UserWarning: CUDA initialization: Error 804: forward compatibility was attempted on it\n"),
    ("imex-domain", "[Mar 17 2026 10:14:21] [ERROR] [tid 8] Failed to get export ref for request of node id 2\n"),
    ("network-differs", "a:1:2 [0] NCCL INFO Using network IB\nb:1:2 [0] NCCL INFO Using network IBext_v8\n"),
    ("host-memory", "ray: worker was killed due to memory pressure on node 10.0.0.7\n"),
    ("efa-unreachable", "n1:5:9 [2] NCCL WARN NET/OFI Request 0x7f completed with error. RC: 20. Error: unknown error\n"),
    ("adapter-limits", "[n1:3:0] ib_mlx5_dv.c:4 UCX ERROR mlx5dv_devx_obj_create(CQ) failed, syndrome 0x1: Remote I/O error\n"),
    ("pod-network", "kubelet: network plugin is not ready: cni config uninitialized\n"),
    ("container-runtime", "2026/01/02 Could not register device plugin: deadline exceeded\n"),
    ("fabric-manager", "fabric manager config file item: SOME_FILE has an invalid value\n"),
    ("connect-refused", "n1:1:2 [0] NCCL INFO socketPollConnect: connect returned No route to host, retrying (34/34)\n"),
    ("connect-refused", "n1:1:2 [0] NCCL INFO Using network Socket\nn2:1:2 [0] NCCL INFO Using network Socket\n"
     "n1:1:2 [0] socket.h:4 NCCL WARN Connect to 10.0.0.2<57> failed : Network is unreachable\n"),
    ("switch-software", "Jan  5 17:15:11 s1 CRIT syncd#syncd: [0] SAI_API_SWITCH:_log_backtrace:11 Obtained 17 stack frames.\n"),
    ("disk-full", "slurmstepd: error: pyxis: child 5 failed\nslurmstepd: error: pyxis:   Write failed: No space left on device\n"),
    ("rendezvous", "etcd.EtcdKeyNotFound: Key not found : /the/store\n"),
    ("peer-closed", "n1:1:2 [3] include/socket.h:194 WARN Call to recv failed : Connection reset by peer\n"),
    ("node-failed", "The node with IP 10.0.0.7 has been marked dead because it missed too many heartbeats\n"),
    ("adapter-limits", "[n1:3:0] ib_mlx5.c:4 UCX ERROR mlx5dv_devx_alloc_uar() failed: Operation not supported\n"),
    ("adapter-limits", "WARN: device hns_3 is not enumerated as one that can do this\n"),
    ("setting-invalid", "[n1:3:0] parser.c:1 UCX ERROR Invalid value for RNDV_THRESH: 'x'. Expected: a size\n"),
    ("rendezvous", "[W1 socket.cpp:4] [c10d] waitForInput: socket SocketImpl(fd=3, addr=[n1]:5) timed out after 9000ms\n"),
    ("pause-storm", "Jan 5 17:15:11 s1 NOTICE swss#orchagent: :- act: PFC Watchdog storm restored on port Ethernet8, queue index 3\n"),
    ("sharp-failed", "[n1][warn ] - Begin job id: 77 failed with status: No resource\n[n1:0] ERROR Job error in sharp_get_job_data.\n"),
    ("version-skew", "n1:1:2 [1] misc/socket.cc:9 NCCL WARN Net : connecting to address with family 4242 is neither AF_INET(2) nor AF_INET6(10)\n"),
    ("memory-mapping", "n1:1:2 [0] allocator.cc:2 NCCL WARN Allocation failed. No suitable space found to accommodate size=0x9 within limit=0x4\n"),
    ("mpi-interface", "n1:rank0: connecting from eth0 port 1 to a node (IP=10.0.0.9/24) on a different subnet 10.0.0.9/24\n"),
    ("link-narrow", "Switch s1:Port 11:Lid 4: Linkwidth (2X) not at maximum width supported (4X)\n"),
    ("link-slow", "-W- lid=0x1 dev=4 s1/P3: Unexpected actual link speed 25\n"),
    ("device-permission", "slurmd: spank: error: pyxis: mkdir: cannot create directory '/scratch/x': Permission denied\n"),
    ("gpu-lost", "1c:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4] (rev ff)\n1d:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4] (rev a1)\n"),
    ("link-errors", "Jan 5 08:03:03 mon ibmon[5]: ib19 Port 36: [SymbolErrorCounter == 4242] [PortRcvErrors == 3] - (n7)\n"),
    ("program-error", "torch.AcceleratorError: CUDA error: operation failed due to a previous error during capture\n"),
    ("gid-unreachable", "src/ibrc.cpp:1: non-zero status: 22 ibv_modify_qp failed.\n"),
    ("gid-unreachable", "a.cpp:6: enable_pair(): ibv_modify_qp: Invalid argument\n"),
    ("connect-refused", "2026-01-02 INFO node.py:1 -- Can't find a `address.json` file. Have you started the head?\n"),
    ("name-resolution", "No OFED driver found for kernel 6.1.0\n  - Curl error (6): Couldn't resolve host name for https://x/repomd.xml\n"),
    ("imex-domain", "[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression cuMemCreate(&handle, size) on n1 in Multinode\n"),
    ("nvlink-inactive", "|  NvLink Link Status  |\nGPUs:\n    gpuId 0:\n        U U D U\n    gpuId 1:\n        U U U U\n"),
    ("nvlink-inactive", "| Warning | GPU 3's NvLink link 2 is currently down Run a field diagnostic |\n"),
    ("rdma-connection", "[ 1.5] nvme nvme7: rdma connection establishment failed (-104)\n"),
    ("adapter-error", "[ 1.5] mlx5_cmd_check:9:(pid 4): create_mkey(0x200) op_mod(0x0) failed, status bad parameter(0x3)\n"
     "[ 1.6] nvme nvme7: rdma connection establishment failed (-22)\n"),
    ("transport-retry", "number 3 got bad completion with status: 0xc, vendor syndrome: 0x81\n"
     "number 4 got bad completion with status: 0x5, vendor syndrome: 0xf9\n"),
    ("rendezvous", "client.cc:9] Coordination service agent in error status: DEADLINE_EXCEEDED: Deadline Exceeded\n"),
    ("library-mismatch", "Error: coll_frob.c:7 - FROB library doesn't support THREAD_MULTIPLE\n"),
    ("storage-error", "07-11-2026 [pid=1 tid=1] ERROR  cufio-fs:9 some driver not registered with nvidia-fs!!!\n"),
    ("storage-error", "[ 7.5] nvidia-fs:write IO failed :-5\n"),
    ("connect-refused", "[ERROR] XCCL(1,):[socket_manager.cc:7] wait socket establish timeout, role[0] timeout[120 s]\n"),
    ("no-rdma-device", "server - fatal - operator(): caught exception: socket  No such device (19)\n"),
    ("no-rdma-device", "Device frob_3 port 1: issm character device missing from /sys/class/infiniband_mad\n"),
    ("transport-retry", "E1 7:8:9 203020 frob_task.cpp:3] Failed to complete transfers after 60 seconds for batch 7\n"),
    ("gpu-architecture", "RuntimeError: CUDA error: device kernel image is invalid\n"),
    ("mps-failed", "CUDA error: MPS server is not ready to accept new MPS client requests\n"),
    ("program-error", "torch.AcceleratorError: CUDA error: invalid configuration argument\n"),
    ("gpu-memory", "CUDA error: a kernel launch exited with uncorrectable memory error\n"),
    ("wrong-hca", "[1.5] [n1:3:0] ucp.c:9 UCX WARN network device 'mlx5_77:1' is not available, please use one or more of: 'eth0'(tcp)\n"),
    ("storage-error", "[ 7.5] nfs: server 10.0.0.7 not responding, timed out\n"),
    ("node-failed", "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE ***\n"),
    ("disk-full", "Warning  Evicted  The node was low on resource: ephemeral-storage.\n"),
    ("resource-unavailable", "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy\n"),
    ("mpi-interface", "Open MPI detected an inbound MPI TCP connection request from a peer\nthat appears to be part of this job\n"),
    ("transport-none", "n1:rank0: PSM3 can't open nic unit: 0 (err=23)\n"),
    ("gpu-program", "[7.5] amdgpu: sq_intr: error, detail 0x00000000, type 2, sh 0\n"),
    ("file-corrupt", "[rank0]: RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n"),
    ("shared-memory", "terminate called after throwing an instance of 'boost::interprocess::lock_exception'\n"),
    ("no-rdma-device", "frob: `/sys/class/infiniband` not found\n"),
    ("library-mismatch", "libibverbs: Warning: couldn't load driver 'frob': libibverbs.so.1: version `IBVERBS_PRIVATE_77' not found\n"),
    ("driver-build", "**** Kernel headers don't seem to be available, can't compile the module ****\n"),
    ("adapter-error", "[ 7.5] ice 0000:17:00.0: HMC Error\n"),
    ("port-in-use", "E1 7 main.cc:9] failed to start frob service: Unavailable - Socket '0.0.0.0:77' already in use\n"),
    ("gpu-lost", "XID 79(GPU has fallen off the bus) on PCI:0000:1f:00\n"),
    ("gpu-lost", "cannot read rows of GPU-77: nvml call: ERROR_GPU_IS_LOST\n"),
    ("driver-mismatch", "nvmlDeviceGetCount() = 9, ret: 9\n"),
    ("cuda-driver-old", "some-plugin: symbol lookup error: some-plugin: undefined symbol: nvmlFrobnicate_v2\n"),
    ("transport-none", "[7.5] [n1:3:0] ucp.c:9 UCX ERROR no usable transports/devices (asked a,b on all devices)\n"
     "Abort(77): Fatal error in internal_Init_thread: MPI_Init_thread(argc=nil) failed\n"),
    ("transport-none", "[n5:17] PML frob cannot be selected\n[n6:9] PMIX ERROR: UNREACHABLE in file frob.c at line 7\n"),
    ("pmi-mismatch", "[n5:17] PMIX ERROR: NOT-FOUND in file frob.c at line 7\n"),
    ("not-infiniband", "ibwarn: [77] mad_rpc_open_port: client_register for mgmt 1 failed\nfrobquery: iberror: failed: port '0'\n"),
    ("library-mismatch", "frob:2 NCCL WARN NET/OFI Couldn't set FI_OPT_FROB_SIZE. RC: -92\n"),
    ("node-failed", "salloc: Prolog failure on node n7\nsalloc: error: Job allocation 7 has been revoked\n"),
    ("resource-unavailable", "[2026-01-02T03:04:05.414] debug:  Node n7 has low tmp_disk size (4 < 5)\n"),
    ("shared-memory", "[launch.py:9:sigkill_handler] ['python', 'x.py'] exits with return code = -7\n"),
    ("host-memory", "[launch.py:9:sigkill_handler] ['python', 'x.py'] exits with return code = -9\n"),
    ("library-missing", "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n"),
    ("adapter-error", "[ 7.5] mlx5_core 0000:c1:00.0: frob alloc node failed, wait vital failed with error code: -5\n"),
    ("gpu-driver", "[ 7.5] NVRM: frob failed on device 9: size mismatch, timeout while in state 7\n"),
    ("switch-software", "Jan  5 17:15:01.123 leaf7 ERR swss#orchagent: :- frob: Interface 'Ethernet9' not found, task failed\n"),
    ("verbs-absent", "".join(f"n{i}:7:9 [0] NCCL INFO {text}\n" for i in (1, 2) for text in (
        "Failed to open libibverbs.so[.1]", "NET/Socket : Using [0]eth7:10.0.0.7<0>", "Using network Socket"))),
    ("rank-missing", "RuntimeError: frob_gather failed -- missing ranks: 7, 9\n"),
    ("rendezvous", "[E7 TCPStore.cpp:9] TCP client failed to connect/validate to host n7:29500 - timed out (try=9, timeout=7ms): frob\n"),
    ("host-memory", "srun: error: n7: task 9: Out Of Memory\n"),
    ("settings-rejected", "slurmctld: error: Invalid hostnames in switch configuration: frob[7-9]\n"),
    ("gdr-far", "[ 7.5] NVRM: dma-buf attach failed: PCI topology not supported for dma-buf\n"),
    ("link-layers-differ", "n7:9:9 [0] NCCL WARN NET/IB : Can't connect net devices with different link_layer. i=7 link_layer=1\n"),
    ("partition-key", "Jan 05 17:15:01 123456 [A1B2] 0x01 -> ERR 1B14: Cannot join port 0x7 to MGID ff12 - Port is not in partition of this "
     "MC group\n"),
    ("module-fault", "IB1/7   1024   Stamping of non-Frob Cables/Modules\n"),
    ("host-hardware", "[ 7.5] kernel BUG at /build/frob/frob.c:407!\n[ 7.6] invalid opcode: 0000 [#6] PREEMPT SMP NOPTI\n"),
]  # fmt: skip


def test_what_says_that_it_may_be_ignored_is_no_trouble():
    assert not answer(
        "W1 7 proxier.go:9] Failed to load kernel module frob with modprobe. You can ignore this message\n"
    ).findings


@pytest.mark.parametrize(("right", "text"), RIGHT, ids=[f"{n}-{right}" for n, (right, _) in enumerate(RIGHT)])
def test_a_decisive_line_names_its_cause_first(right, text):
    found = answer(text)
    assert found.findings[0].id == right
    assert found.findings[0].evidence[0].text.split()[0] in text


@pytest.mark.parametrize(
    "line",
    [
        "[ERROR] frobnicator 12 gave up",
        "quux WARN the widget is sad",
        "FrobError: no frob",
        "unhandled frob in widget",
    ],
)
def test_a_line_of_trouble_that_nobody_knows_is_quoted_and_asked_about(line):
    found = answer(f"starting\n{line}\n")
    assert found.verdict == "not enough evidence"
    assert found.findings[0].id == "unknown-error"
    assert line in found.findings[0].seen
    assert found.to_collect


def test_what_a_root_leads_to_stands_beneath_it():
    text = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n" + timed_out(
        0, "ALLREDUCE"
    )
    text += "[rank1]: RuntimeError: [1] is setting up NCCL communicator: Connection reset by peer\n"
    found = answer(text)
    assert [one.id for one in found.roots] == ["out-of-memory"]
    assert {below.id for below in found.findings[0].consequences} >= {"collective-stuck", "peer-closed"}


def test_the_first_in_time_leads_where_files_are_of_several_ranks():
    early = "2026-01-01 10:00:01,000 disk quota exceeded while writing\n"
    late = "2026-01-01 10:00:09,000 no kernel image is available for execution on the device\n"
    evidence = read_text(late, name="rank0")
    for fact in read_text(early, name="rank1").of("line.known"):
        evidence.add(fact.kind, fact.value, fact.place, fact.subject)
    ids = [one.id for one in judged(evidence, twin=False).roots]
    assert set(ids) == {"disk-full", "gpu-architecture"}
    seen = {one.id: one.confidence for one in judged(evidence, twin=False).findings}
    alone = answer(late).findings[0].confidence
    assert seen["gpu-architecture"] < alone


HARMLESS_LINES = [
    "W1122 run.py:757] Setting OMP_NUM_THREADS environment variable for each process to be 1",
    "n1:1:2 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v9 symbol.",
    "Xid errors: 0, failed: 0",
    "You can override this policy by setting the btl_openib_allow_ib MCA parameter",
    "UserWarning: this will be removed in a future release, error handling changes",
    "libfabric:9:core:core:fi_getinfo_():12<warn> fi_getinfo: provider ofi_rxm returned -61 (No data available)",
    "libfabric:9:mrail:core:parse():7<info> unable to read the variable",
    "n1:1:2 [0] ras/ras.cc:77 NCCL WARN RAS failed to bind its socket",
    "[1.2] [n1:3:0] ib_md.c:2 UCX  DEBUG mlx5_0: crossing_vhca_mkey is not supported",
    "2026-02-01 14:12:01 ERROR [9:9] Failed to load module 9 [/x/HostEngine.cpp:1831]",
    "Jan  5 17:15:01 cuxtqw app[7]: a request failed after 12 ms",
    "mpirun --allow-run-as-root -np 16 ./all_reduce_perf -b 8 -e 8G",
    "time=7 level=info msg=Generating CDI spec for resource: frob.com/gpu",
    "slurmstepd: debug: mpi/pmi2: got client PMI1 init, version=7.9",
    "n1:1:2 [0] NCCL INFO NCCL_NUM_RMA_CTX=0, RMA disabled for this communicator",
    "n1:1:2 [0] NCCL INFO RAS socket closed by the client on receive; terminating it",
    "usage: ibfrob [-vV] [-d <umad device>] [-t <timeout (ms)>] [-r <retries>]",
]


@pytest.mark.parametrize("line", HARMLESS_LINES)
def test_words_that_only_sound_like_trouble_raise_nothing(line):
    assert all(one.severity < Severity.WARNING for one in answer(f"{line}\n").findings)


def test_the_verdict_stays_however_messages_were_passed_on():
    lines = [
        "step 10 loss 2.5", "step 11 loss 2.4", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "step 12 loss 2.3", "connection reset by peer", "step 13 loss 2.2", "step 14 loss 2.2", "step 15 loss 2.1",
    ]  # fmt: skip
    text = "\n".join(lines) + "\n"
    before = [(one.id, one.severity) for one in answer(text).findings]
    assert before[0][0] == "out-of-memory"
    told = [prefixed(text, launcher) for launcher in PREFIXES]
    told += [
        coloured(text),
        renamed(text),
        interleaved(text, 3),
        text.replace("\n", "\r\n"),
        text[: len(text) * 9 // 10],
    ]
    for other in told:
        assert [(one.id, one.severity) for one in answer(other).findings] == before


def test_the_table_names_causes_that_exist_and_no_pattern_matches_everything():
    for one in mechanisms():
        assert one.cause in {*CAUSES, HARMLESS}
        assert 0 < one.sure <= 1
        for line in one.lines:
            pattern = re.compile(line, re.IGNORECASE)
            assert not pattern.search("")
            assert not pattern.search("step 10 of 100: loss 2.5, 31.4 samples a second"), line
    assert set(xids().values()) <= set(CAUSES)


def test_numbers_of_the_gpu_driver_lead_to_one_cause_each():
    table = xids()
    assert table[79] == "gpu-lost"
    assert table[48] == "gpu-memory"
    assert len(table) > 60


def test_rows_of_tracebacks_are_no_messages():
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    raise RuntimeError("cannot open shared object file")\n'
    found = answer(text + "KeyError: 'x'\n")
    assert [one.id for one in found.roots] == ["program-error"]
    assert re.match("KeyError", found.findings[0].seen)


def test_a_pattern_begins_where_a_word_does():
    assert alternatives("a|(b|c)d|[|]e") == ["a", "(b|c)d", "[|]e"]
    one = mechanism_of("posix_fallocate: the region does not fit")
    assert one is not None
    assert one.cause == "shared-memory"  # not of a verb that allocates


def test_a_call_of_nccl_that_failed_without_a_warning_is_asked_about_by_its_file():
    text = "n1:1:2 [0] NCCL INFO transport/net_ib.cc:282 -> 2\nn1:1:2 [0] NCCL INFO init.cc:12 -> 2\n"
    found = answer(text)
    assert [(one.id, one.severity) for one in found.roots] == [("gid-unreachable", Severity.QUESTION)]
    assert found.to_collect
    assert not answer(text.replace("-> 2", "-> 0")).findings


def test_ranks_of_the_watchdog_that_are_behind_are_named():
    def at(rank, number):
        return timed_out(rank, "ALLREDUCE").replace("SeqNum=7", f"SeqNum={number}")

    tie = answer(at(0, 7) + at(1, 8)).findings[0]
    assert (tie.id, tie.object) == ("rank-late", "rank 0")
    most = answer(at(0, 7) + at(1, 7) + at(2, 8)).findings[0]
    assert (most.id, most.object) == ("rank-late", "ranks 0-1")
    assert most.confidence < tie.confidence


def test_the_surest_mechanism_holds_where_a_line_fits_several():
    one = mechanism_of("NCCL error: unhandled cuda error: CUDA out of memory")
    assert one is not None
    assert one.cause == "out-of-memory"


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("ab?c def", {"c def"}),
        (r"(?:x|y)hello\b.*(wor|ld)", {"hello"}),
        ("abc{2,3}defg", {"defg"}),
        (r"[a-z]+error-*s", {"error"}),
        (r"Colou?r\d*", {"colo"}),
        (r"(lanes|ports \d+) (is )?up", {"lanes", "ports "}),
        (r"(eth0|x)?down!", {"down!"}),
        (r"a|gauge", set()),
        (r"(?<!not )(?=lamp)lamp (?-i:ON|OFF)\b", {"lamp on", "lamp off"}),
        (r"\d,(?:fan\d|full house)", {",fan", ",full house"}),
        (r"\d,(?:fan|house)?", set()),
        (r"lamp (?!on)(?:is|\d)", {"lamp "}),
        (r"\w+\.\w+|\d", set()),
        (r"[\]:] not collected", {" not collected"}),
        (r"[]a]+ lamps", {" lamps"}),
    ],
)
def test_texts_of_which_a_pattern_cannot_match_without_one(pattern: str, texts: set[str]) -> None:
    assert needed(pattern) == texts


@given(st.data())
def test_whatever_a_pattern_of_the_table_matches_holds_a_text_that_it_needs(data):
    line = data.draw(st.sampled_from([line for one in mechanisms() for line in one.lines]))
    letters = st.characters(min_codepoint=32, max_codepoint=126)
    text = data.draw(st.from_regex(re.compile(line, re.IGNORECASE | re.ASCII), alphabet=letters))
    needs = needed(line)
    assert not needs or any(one in text.lower() for one in needs)
    assert Pattern(line).found(text, text.lower()) == (re.search(line, text, re.IGNORECASE) is not None)


@pytest.mark.parametrize(
    ("text", "asked"),
    [("no port is up", True), ("no port is on", False), ("not a port up", True), ("x port up", False)],
)
def test_a_pattern_is_asked_where_all_that_it_needs_is_there(monkeypatch, text, asked):
    seen = []
    one = Pattern(r"(no|not any|not a) port\b.*(up|down)")
    monkeypatch.setitem(vars(one), "compiled", SimpleNamespace(search=seen.append))
    assert not one.found(text, text)
    assert seen == ([text] if asked else [])


@given(st.lists(st.sampled_from(["lamp", "lam", "am", "port", "is", " ", "down", "x", "7"]), max_size=9))
def test_the_index_finds_the_first_pattern_that_each_alone_would_find(parts):
    patterns = ["port.*down", "lamp|(is) x", r"\d{2}", "(am|lam)p x?d", "isx", r"7.*(lamp|port)"]
    text = "".join(parts)
    alone = next((number for number, one in enumerate(patterns) if re.search(one, text)), None)
    assert LiteralIndex(map(Pattern, patterns)).first(text) == alone


def test_a_guarded_pattern_finds_what_it_finds_by_itself():
    pattern = r"\bError\b|(?i:closed)|[Ff]atal: \d"
    one = Guarded(pattern)
    for text in ("Error", "error", "an Error: x", "Fatal: 7", "fatal: x", "CLOSED", "clo\u017fed \u00e9", ""):
        mine, plain = one.search(text), re.search(pattern, text)
        assert (mine and mine.span()) == (plain and plain.span())


def test_texts_within_others_stand_for_them():
    assert fewest({" port ", "ort ", "port number ", "syncd", "portsyncd", "bgp"}) == ("bgp", "ort ", "syncd")
    assert fewest(()) == ()


def test_lines_of_one_message_have_one_shape_whatever_names_they_hold():
    shapes = LineShapes(["connection (closed|refused)", "out of memory"])
    one = shapes.of("Jan 5 10:11:12 alpha7 app[31]: Connection closed by quux port 22")
    assert one == shapes.of("Jan 6 11:11:12 zulu7 app[4]: Connection closed by frob port 9")
    assert one != shapes.of("Jan 5 10:11:12 alpha7 app[31]: Connection refused by quux port 22")
    assert "Connection closed" in one
    assert "reconnections" in shapes.of("12 reconnections")  # holds a word that patterns know


def test_hosts_that_say_the_same_are_all_named():
    hosts = ["alpha", "bravo", "charlie", "delta"]
    text = "".join(f"[{h}:1:2:0] UCX ERROR no active ports found\n" for h in hosts for _ in range(3))
    found = answer(text)
    assert found.findings[0].hosts == set(hosts)


def test_a_warning_that_explains_an_error_goes_before_a_surer_warning():
    head = "n1:1:2 [0] NCCL INFO "
    text = (
        f"{head}NET/IB : No device found.\n{head}Using network Socket\n"
        f"{head}NET/Socket : Using [0]eno1:10.0.0.1<0> [1]veth3:fe80::1%veth3<0>\n"
        f"{head}Channel 00 : 0[18000] -> 1[18000] [send] via NET/Socket/1\n"
        "n1:1:2 [0] socket.h:4 NCCL WARN Connect to fe80::2%9<57> failed : Connection timed out\n"
    )
    first, second, *_ = answer(text).findings
    assert (first.id, second.id) == ("bootstrap-interface", "socket-fallback")
    assert [below.id for below in first.consequences] == ["connect-refused"]
    assert first.confidence < second.confidence


@pytest.mark.parametrize(
    "line",
    [
        "<6>[   13.2] lp: driver loaded but no devices found",
        "<6>[   13.8] EDAC MC0: Giving out device to module amd64_edac controller F19h: DEV 0000:00:18.3",
        "<6>[    2.9] mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged",
        "n1:7:9 [0] NCCL INFO [Service thread] Connection closed by localRank 0",
        " [WARNING]  frob_io requires the dev libfrob .so object and headers but these were not found.",
        "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:8:(pid 7): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), err(-22)",
    ],
)
def test_what_healthy_hosts_and_jobs_say_too_is_no_fault(line):
    assert all(one.severity < Severity.WARNING for one in answer(line + "\n").findings)


TABLE = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 510.47.03    Driver Version: 510.47.03    CUDA Version: 11.6     |
|   0  {name:20}  Off  | 00000000:05:00.0 Off |                  N/A |
+-----------------------------------------------------------------------------+
"""


@pytest.mark.parametrize(
    ("name", "cause"),
    [("NVIDIA GeForce ...", "fabric-manager-unneeded"), ("NVIDIA H100 80GB HBM3", "fabric-manager")],
)
def test_a_fabric_manager_that_fails_where_no_nvswitch_is_has_nothing_to_manage(name, cause):
    failed = "Job for nvidia-fabricmanager.service failed because the control process exited with error code.\n"
    assert answer(failed + TABLE.format(name=name)).findings[0].id == cause


def test_a_link_that_aims_below_what_it_can_is_slow_and_one_at_rest_is_not():
    link = (
        "01:00.0 3D controller: NVIDIA Corporation GB202GL [Frob]\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n"
        "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16\n\t\tLnkCtl2: Target Link Speed: {}GT/s, EnterCompliance-\n"
    )
    assert answer(link.format("2.5")).roots[0].id == "pci-narrow"
    assert all(one.severity < Severity.WARNING for one in answer(link.format("32")).findings)
