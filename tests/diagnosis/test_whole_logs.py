"""Whole logs of jobs that worked, and what they warn of on the way: no fault is made of it."""

from __future__ import annotations

import pytest

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.log_levels import is_survived, level_of
from fabrictwin.diagnosis.readers.reading import read_text


def answer(text: str, *, twin: bool = False) -> Diagnosis:
    return judged(read_text(text), twin=twin)


def shown(text: str, *, least: Severity = Severity.WARNING, twin: bool = False) -> list[str]:
    return [one.id for one in answer(text, twin=twin).findings if one.severity >= least]


FAILED = "ERROR frob: open /etc/frob failed: No such file or directory\n"
CAME_UP = "INFO:     Application startup complete.\n"
STEP = " iteration       {}/    1000 | elapsed time per iteration (ms): 2767.3 | lm loss: 2.1E+00 |\n"


@pytest.mark.parametrize(
    ("head", "level"),
    [
        ("WARNING 04-12 18:36:24 [sampler.py:69] frob", Severity.WARNING),
        ("INFO 04-12 18:36:24 [worker.py:3] frob", Severity.NOTE),
        ("[2026-01-04 01:49:49] WARNING server.py:18: frob", Severity.WARNING),
        ("2026-01-16 15:41:14,745 - WARNING - frob", Severity.WARNING),
        ("[2026-03-23 19:22:19,191] [WARNING] [runner.py:2:fetch] frob", Severity.WARNING),
        ("[W1105 11:27:58.7 ProcessGroupNCCL.cpp:15] frob", Severity.WARNING),
        ("[1.6] [n1:3 :0] ucp_context.c:2 UCX  WARN  frob", Severity.WARNING),
        ("/a/b.py:3: UserWarning: frob", Severity.WARNING),
        ("wandb: frob", Severity.NOTE),
        ("wandb: ERROR frob", Severity.NOTE),
        ("ERROR 04-12 18:36:24 [core.py:7] frob", None),
        ("RuntimeError: a WARNING of frob", None),
        ("a:1:2 [0] NCCL WARN frob", None),
    ],
)
def test_a_line_has_the_level_that_its_head_says(head, level):
    assert level_of(head) == level


def test_a_warning_that_says_how_a_program_goes_on_was_survived():
    assert is_survived("WARNING 04-12 18:36:24 [a.py:6] Frob is not installed. Falling back to native.")
    assert not is_survived("RuntimeError: Frob is not installed. Falling back to native.")
    assert not is_survived("WARNING 04-12 18:36:24 [a.py:6] Frob is not installed.")


def test_what_stands_before_a_jobs_work_did_not_end_it():
    assert Severity.ERROR in {one.severity for one in answer(FAILED).findings}
    assert Severity.ERROR in {one.severity for one in answer(CAME_UP + FAILED).findings}
    assert max(one.severity for one in answer(FAILED + CAME_UP).findings) == Severity.WARNING
    assert shown(FAILED.replace("ERROR", "WARNING 04-12 18:36:24") + CAME_UP) == []


def test_a_step_or_two_can_follow_another_ranks_end():
    steps = [STEP.format(number) for number in (10, 20, 30, 40)]
    assert Severity.ERROR in {one.severity for one in answer(FAILED + "".join(steps[:2])).findings}
    assert Severity.ERROR not in {one.severity for one in answer(FAILED + "".join(steps)).findings}


def test_what_came_again_after_the_work_did_end_it():
    assert Severity.ERROR in {one.severity for one in answer(FAILED + CAME_UP + FAILED).findings}


def test_of_a_bar_of_progress_the_end_is_read():
    bar = "".join(f"{n}it [00:{n:02}, 1.0it/s]\r" for n in range(50))
    assert shown(
        f"{bar}9it [0:9, 1it/s]slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2022-10-13T04:10:12 ***\n"
    ) == ["time-limit"]


def devices(gpu: str, hosts: int, each: int) -> str:
    rows = [
        f"#  Rank {host * each + n:2} Group  0 Pid {100 + n} on n{host} device {n:2} [0x0{n}] {gpu}\n"
        for host in range(hosts)
        for n in range(each)
    ]
    return "".join(rows)


HEADS = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
ROW = "  1073741824     268435456     float     sum      -1    40000   {alg:.2f}   {busbw:.2f}      0    40000   {alg:.2f}   {busbw:.2f}      0\n"


def row(busbw: float) -> str:
    """A row of an all-reduce of 16 ranks."""
    return ROW.format(alg=busbw * 16 / 30, busbw=busbw)


def test_a_table_alone_tells_of_no_fabric_to_be_too_slow_for():
    text = devices("NVIDIA A100-SXM4-40GB", 2, 8) + HEADS + row(20.0)
    assert "bandwidth-low" not in shown(text, twin=True)
    assert "bandwidth-low" in shown(text, least=Severity.QUESTION, twin=True)


def log(ranks: int, hosts: int, nics: str, rest: str = "") -> str:
    each = ranks // hosts
    lines = ["n0:1:1 [0] NCCL INFO NCCL version 2.22.3+cuda12.6\n", devices("NVIDIA H100", hosts, each)]
    for rank in range(ranks):
        head = f"n{rank // each}:{100 + rank % each}:7 [{rank % each}] NCCL INFO"
        lines += [
            f"{head} NET/IB : Using {nics} [RO]; OOB eth0:10.0.0.1<0>\n",
            f"{head} NVLS multicast support is not available on dev {rank % each}\n",
            f"{head} comm 0x{rank + 1} rank {rank} nRanks {ranks} nNodes {hosts} localRanks {each} localRank "
            f"{rank % each} MNNVL 0\n",
            f"{head} 8 coll channels, 8 collnet channels, 0 nvls channels, 8 p2p channels, 8 p2p channels per peer\n",
        ]
    return "".join(lines) + rest


RAILS = "[0]mlx5_2:1/IB [1]mlx5_3:1/IB [2]mlx5_4:1/IB [3]mlx5_5:1/IB"
STORAGE = "[0]mlx5_0:1/RoCE [1]mlx5_2:1/IB [2]mlx5_3:1/IB [3]mlx5_4:1/IB [4]mlx5_5:1/IB"


def test_hosts_with_half_of_the_gpus_are_other_hosts():
    assert shown(log(8, 2, RAILS), twin=True) == []
    eight = RAILS + " [4]mlx5_6:1/IB [5]mlx5_7:1/IB [6]mlx5_8:1/IB [7]mlx5_9:1/IB"
    assert "nvls-off" in shown(log(16, 2, eight), twin=True)


def test_a_sends_way_through_another_gpus_proxy_is_read():
    ways = "n0:103:7 [3] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/2(0)/GDRDMA\n"
    fact = read_text(ways).of("nccl.way")[0]
    assert fact.parts[0] == "NET/IB/2/GDRDMA"


def test_an_adapter_of_another_fabric_that_nothing_takes_is_no_fault():
    ways = "".join(
        f"n{n}:103:7 [3] NCCL INFO Channel 0{n}/0 : 3[3] -> 4[0] [send] via NET/IB/{{}}/GDRDMA\n" for n in (0, 1)
    )
    assert "wrong-hca" not in shown(log(8, 2, STORAGE, ways.format(2, 3)))
    assert "wrong-hca" in shown(log(8, 2, STORAGE, ways.format(0, 3)))
    assert "wrong-hca" in shown(log(8, 2, STORAGE))
    assert "wrong-hca" not in shown(log(4, 1, STORAGE))


@pytest.mark.parametrize(
    ("provider", "absent"), [("cxi", False), ("efa", False), ("tcp;ofi_rxm", True), ("sockets", True)]
)
def test_a_provider_with_adapters_of_its_own_is_none_over_sockets(provider, absent):
    text = f"n0:1:7 [0] NCCL INFO NET/OFI Selected Provider is {provider} (found 4 nics)\n"
    assert ("efa-absent" in shown(text)) == absent


def test_libfabric_looks_for_every_vendors_memory():
    head = "libfabric:7:1726684546::core:core:"
    assert shown(f"{head}ze_hmem_dl_init():474<warn> Failed to dlopen libze_loader.so\n") == []
    assert shown(f"{head}cuda_hmem_dl_init():294<warn> Failed to dlopen libcuda.so\n") == ["library-missing"]


def test_a_run_that_was_started_again_is_not_many_that_are_alone():
    header = "# nThread 8 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor)\n"
    runs = header + devices("V100", 1, 8) + header + devices("V100", 1, 8).replace("Pid 1", "Pid 2") + HEADS
    assert "no-mpi" not in shown(runs + row(20.0))
    alone = header + devices("V100", 1, 1) + header + devices("V100", 1, 1).replace("Pid 1", "Pid 2") + HEADS
    assert "no-mpi" in shown(alone + row(0.0))


def test_one_rank_alone_is_a_question():
    text = devices("V100", 1, 1) + HEADS + row(0.0)
    assert shown(text) == []
    assert shown(text, least=Severity.QUESTION) == ["no-mpi"]


def calls(*ranks: tuple[str, int, int]) -> str:
    """Two calls of each process: its verb, size, and the number of the first; process and device by position."""
    return "".join(
        f"n0:{7 + at}:7 [{at}] NCCL INFO {verb}: opCount {number + n:x} sendbuff 0x1 recvbuff 0x2 count {count + n} datatype 7 "
        f"op 0 root 0 comm 0x{at + 1:x} [nranks=4] stream 0x3\n"
        for at, (verb, count, number) in enumerate(ranks)
        for n in range(2)
    )


def test_ranks_whose_log_names_none_are_told_by_their_devices():
    alike = ("AllReduce", 512, 9)
    assert shown(calls(alike, alike, alike)) == []
    assert shown(calls(alike, ("AllGather", 512, 9), alike)) == ["collective-mismatch"]
    assert shown(calls(alike, ("AllGather", 512, 9))) == ["collective-mismatch"]
    assert shown(calls(alike, ("AllReduce", 64, 9), alike)) == ["collective-mismatch"]
    assert shown(calls(alike, ("AllReduce", 64, 9))) == []  # neither is the odd one
    assert shown(calls(("Send", 512, 9), ("Send", 64, 9), ("Send", 512, 9))) == []


def test_calls_that_share_a_number_are_not_held_against_each_other():
    first = calls(("AllReduce", 512, 9), ("AllGather", 512, 9))
    assert shown(first + first) == []
    other = first.replace("comm 0x1 ", "comm 0x8 ").replace("comm 0x2 ", "comm 0x9 ")
    assert shown(first + other.replace("opCount 9", "opCount 19").replace("opCount a", "opCount 1a")) == []


def test_a_warning_of_nccl_before_a_jobs_results_did_not_end_it():
    warned = "n0:7:7 [2] proxy.cc:1458 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable\n"
    assert "connect-refused" in shown(warned)
    assert shown(warned + "RESULT,LLM_FINETUNING,,1049,nvidia,2023-09-19 02:34:29 PM\n") == []


def test_a_processor_without_its_kind_is_a_question():
    topology = '<system version="1">\n  <cpu numaid="0">\n    <pci busid="0000:00:16.0"/>\n  </cpu>\n</system>\n'
    assert shown(topology) == []
    assert shown(topology, least=Severity.QUESTION) == ["topology-malformed"]


def test_an_assertion_without_words_is_told_by_its_row():
    row = "[rank3]:     assert self.lr_warmup_steps < self.lr_decay_steps\n[rank3]:            ^^^^^^^\n[rank3]: AssertionError\n"
    assert shown(row) == ["settings-rejected"]
    assert shown(row.replace("self.lr_warmup_steps < self.lr_decay_steps", "found is not None")) == [
        "program-error"
    ]


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ("framework-bug", "RuntimeError: PassManager::run failed"),
        ("framework-bug", "RuntimeError: cutlass_gemm_caller, /a/c3x/cutlass_gemm_caller.cuh:62, Error Internal"),
        ("gpu-architecture", "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"),
        ("gpu-architecture", "ValueError: Failed to find a kernel that can implement the frob layer. Reasons:"),
        ("gpu-program", "RuntimeError: Check failed: (status == cudaSuccess) is false: Frob failed with error invalid argument"),
        ("no-socket-interface", "a:1:2 [0] misc/socket.cc:9 NCCL WARN ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)"),
        ("peermem-broken", "libfabric:7:1726869859::cxi:mr:cxip_do_map():94<warn> n1: cxil_map failed: -22:Invalid argument"),
        ("gpu-hardware", "terminate called after throwing an instance of 'c10::CUDAError'\n  what():  CUDA error: unknown error"),
        ("library-missing", "a:1:2 [0] net.cc:626 NCCL WARN Error: network Some Fabric not found."),
        ("remote-access", "libfabric:7:1::efa:cq:efa_cq_handle_error():103<warn> err: 22, message: Remote key (RKEY) not registered or does not match remote IOVA"),
        ("protection", "libfabric:7:1::efa:cq:f():1<warn> err: 22, message: Local key (LKEY) invalid or does not match IOVA"),
        ("receiver-not-ready", "a:1:2 [0] f:196 NCCL WARN NET/OFI Request completed with error. Error: 10 (Destination resource not ready (no work queue entries posted on receive queue))"),
        ("request-refused", "libfabric:7:1::efa:cq:f():1<warn> err: 90, message: Message too long"),
        ("module-absent", "NCCL WARN NET/OFI Failed to initialize GDRCopy: Failed to open gdr handle"),
        ("library-missing", "UCX  WARN  transports 'cuda_copy','cuda_ipc' are not available, please use one or more of: self, shm"),
        ("transport-none", "UCX  WARN  transport 'frob' is not available, please use one or more of: self, shm"),
        ("mpi-interface", "[n1:7] btl_tcp connect() to 172.17.0.1:1024 failed: Connection refused"),
        ("connect-refused", "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.1.1.3<37999> failed : Cannot assign requested address"),
        ("cuda-failure", "n1:7:8 [0] enqueue.cc:2061 NCCL WARN HIP failure 'the operation cannot be performed in the present state'"),
        ("fabric-manager", "n1:7:8 [0] transport/nvls.cc:244 NCCL WARN Cuda failure 401 'the operation cannot be performed in the present state'"),
        ("no-rdma-device", "/tmp/s/ibgda.cpp 3888 no active IB device that supports GPU-initiated communication is found, exiting..."),
        ("no-gpu", "PROC_ID=0 No devices found."),
        ("rank-died", "pyxis: child 7 terminated with signal 11"),
        ("settings-rejected", "Error, invalid rank (1) in the rankfile (r1)"),
        ("launch-failed", "[n7:29482] ERROR: The daemon exited unexpectedly with status 2."),
        ("rank-died", "mpirun noticed that process rank 0 with PID 7 on node n3 exited on\nsignal 9 (Killed)."),
        ("open-files", "[1.9] [n1:96:f]   vfs_fuse.c:281  UCX  ERROR inotify_add_watch(/tmp) failed: No space left on device"),
    ],
)  # fmt: skip
def test_a_message_of_a_programs_source_names_its_cause(cause, line):
    assert shown(line + "\n")[0] == cause


@pytest.mark.parametrize(
    "line",
    [
        "shared memory (/dev/shm) size .... 755.27 GB",
        " [WARNING]  Frob is only supported on Ampere and newer architectures",
        "Error. nthreads cannot be larger than environment variable FROB_MAX_THREADS (64)",
        "CUDA_CACHE_PATH=/dev/shm/me/cuda_cache",
        "_CUDA_COMPAT_STATUS=System has unsupported display driver / cuda driver combination",
        "wandb: Use W&B Weave for tracing. Install Weave with `pip install weave`",
        "Ignore import error when loading a.b: No module named 'frob'",
        "To enable SHARP, SBATCH_NETWORK=sharp should be set in the script.",
        "n0:7:7 [0] configure_nvls_option:287 NCCL WARN NET/OFI Could not find ncclGetVersion symbol",
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address).",
        "mpirun noticed that process rank 0 with PID 5997 on node n5 exited on signal 2 (Interrupt).",
        "pyxis: child 7 terminated with signal 15",
        "a:1:2 [0] transport/net_ib.cc:526 NCCL WARN Could not find real path of soft0 (/sys/class/infiniband/soft0/device)",
        "n0:7:7 [0] NCCL INFO Could not enable P2P between dev 0(=18000) and dev 1(=3b000)",
    ],
)
def test_what_programs_say_of_themselves_is_no_fault(line):
    assert shown(line + "\n") == []


def test_a_watchdogs_own_abort_is_no_rank_that_died():
    timed_out = (
        "[rank1]:[E1 ProcessGroupNCCL.cpp:565] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
    )
    aborted = (
        "./run.sh: line 14: 191644 Aborted                 (core dumped) $@\nn1: rank 1 died from signal 15\n"
    )
    assert shown(timed_out + aborted, least=Severity.QUESTION)[0] == "collective-stuck"
    assert shown(aborted) == ["rank-died"]


def test_a_call_of_verbs_that_fails_without_an_errno_is_asked_about():
    assert shown("ibv_modify_qp failed \n") == []
    assert shown("ibv_modify_qp failed \n", least=Severity.QUESTION)[0] == "gid-unreachable"
    assert shown(
        "n1:7:8 [0] ibvwrap.c:1 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out\n"
    ) == ["gid-unreachable"]


def test_an_address_that_another_host_does_not_reach_settles_which_interface_is_wrong():
    met = (
        "a:9:9 [0] NCCL INFO Bootstrap : Using ib0:10.42.8.11<0>\n"
        "b:8:8 [0] NCCL INFO Bootstrap : Using eth0:172.19.0.12<0>\n"
    )
    refused = "b:8:9 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to {}<4> failed : Network is unreachable\n"
    assert shown(met + refused.format("10.42.8.11"))[0] == "bootstrap-interface"
    assert shown(met + refused.format("10.42.9.77"))[0] == "connect-refused"


def test_what_a_program_passes_over_is_no_error_of_it():
    assert is_survived("Could not fetch URL https://frob/: connection error: Failed to resolve 'frob' - skipping")
    assert not is_survived("error: Failed to resolve 'frob'")


def test_a_number_that_is_divisible_is_no_trouble():
    assert shown("the largest number of them is divisible by 3\n") == []
    assert shown("ValueError: train_batch_size 30 is not divisible by 4\n") == ["settings-rejected"]


TASKS = "".join(f"{n % 4}: [rank{n % 4}]: step {n}\n" for n in range(60))


def test_what_a_script_said_before_it_started_processes_did_not_end_them():
    before = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'frob'\n"
    failed = "2: [rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB.\n"
    assert shown(before) == ["library-missing"]
    assert shown(before + TASKS + failed)[0] == "out-of-memory"


def test_a_script_goes_on_behind_a_command_of_its_shell():
    shells = "cat: '': No such file or directory\n/tmp/slurm_script: line 7: npu-smi: command not found\n"
    failed = "Traceback (most recent call last):\nValueError: global batch size 3 is not divisible by 2\n"
    assert shown(shells)[0] in ("file-missing", "library-missing")
    assert shown(shells + "frob\n" * 5 + failed)[0] == "settings-rejected"
    assert shown(shells + "frob\n" * 100) == []


def test_a_script_that_its_user_may_not_run_or_that_is_not_there():
    said = "slurmstepd: error: execve(): /home/u/run.sh: {}\nsrun: error: n1: task 0: Exited with exit code 13\n"
    assert shown(said.format("Permission denied"))[0] == "device-permission"
    assert shown(said.format("No such file or directory"))[0] == "file-missing"


def test_a_launchers_prefix_is_taken_off_where_it_begins_late():
    wandb = "0: [default0]:wandb: Install Frob with `pip install frob`.\n"
    assert shown("+ date\n" * 30 + TASKS.replace("[rank", "[default") + wandb + TASKS) == []
    assert shown("".join(f"{n}: step\n" for n in range(30)) + "31: OSError: [Errno 28] No space left on device\n")


def test_servers_that_are_not_ready_in_time_are_missing():
    assert shown("Timeout: Not all nodes are ready after 3600 seconds\n")[0] == "rank-missing"


def test_what_a_program_warns_of_and_does_without_is_a_question():
    warning = "WARNING 04-12 18:36:24 [a.py:6] ImportError: libfrob.so.13: cannot open shared object file\n"
    assert {one.severity for one in answer(warning + "Results saved\n").findings} == {Severity.QUESTION}
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB.\n"
    assert shown(warning + error)[0] == "out-of-memory"


def test_the_cause_that_an_exception_names_in_its_second_line_ended_it():
    said = "[rank0]: torch.distributed.DistBackendError: NCCL error, unhandled cuda error\n[rank0]: Last error:\n"
    more = "".join(f"[rank1]: a line {n} of another rank\n" for n in range(50))
    assert shown(said + "[rank0]: Failed to CUDA calloc async 4 bytes\n" + more)[0] == "out-of-memory"


def test_an_error_of_a_tracker_ends_no_job():
    assert shown("wandb: ERROR Error while calling API: context deadline exceeded\nwandb: Synced 6 files\n") == []


OF_NCCL = "n1:1:2 [0] {}\n"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "transport/net_ib/p2p.cc:854 NCCL WARN NET/IB: Got CQE with error (devIndex=0, qp_num=77)",
            "transport-retry",
        ),
        ("NCCL INFO NET/IB : mlx5_0:1 speed change detected: 400000 -> 100000 Mbps", "link-slow"),
        ("NCCL INFO Failed to initialize NET plugin Libfabric", "efa-absent"),
        (
            "transport.cc:9 NCCL WARN Cannot initialize CollNet, using point-to-point network instead",
            "sharp-failed",
        ),
        ("init.cc:2000 NCCL WARN Invalid device 3 (totalnDev=2)", "gpu-ordinal"),
        ("dev_runtime.cc:9 NCCL WARN Communicator does not support symmetric memory!", "nccl-usage"),
        ("mem_manager.cc:99 NCCL WARN MemManager: Failed to allocate CPU backup for offload", "host-memory"),
        ("NCCL INFO NET/IB : GPU Direct RDMA (DMABUF) disabled for HCA 0 'rocep1s0f1", "gdr-off"),
    ],
)
def test_what_newer_nccl_and_plugins_say(said: str, cause: str):
    assert shown(OF_NCCL.format(said))[0] == cause


@pytest.mark.parametrize(
    "said",
    [
        "NCCL INFO NET/IB : mlx5_0:1 speed change detected: 100000 -> 400000 Mbps",
        "NCCL INFO Failed to initialize NET plugin IB",
        "NCCL INFO NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 0 'rocep1s0f1",
    ],
)
def test_what_newer_nccl_says_of_no_fault(said: str):
    assert shown(OF_NCCL.format(said)) == []


def test_a_library_that_nccl_did_not_load_is_a_question():
    said = OF_NCCL.format("misc/ibvwrap.cc:173 NCCL WARN lib wrapper not initialized.")
    assert shown(said) == []
    assert answer(said).findings[0].id == "verbs-absent"


def test_an_unknown_warning_of_nccl_is_asked_of_the_part_that_gave_it():
    found = answer(OF_NCCL.format("proxy.cc:100 NCCL WARN frob was frobbed (128 max)")).findings
    assert found != []
    assert {one.severity for one in found} == {Severity.QUESTION}


def test_what_the_watchdog_says_behind_any_error_is_no_hang():
    head = "[rank1]:[E ProcessGroupNCCL.cpp:5] [Rank 1] "
    said = (
        head
        + "Some NCCL operations have failed or timed out.\n"
        + head
        + "To avoid data inconsistency, we stop.\n"
    )
    why = head + "NCCL error: remote process exited or there was a network error, NCCL version 2.20.5\n"
    why += "Last error:\nsocketProgress: Connection closed by remote peer n1.example.org<45074>\n"
    assert answer(said + why).findings[0].id == "peer-closed"
    late = head + "Watchdog caught collective operation timeout: ran for 600001 milliseconds before timing out.\n"
    assert answer(said + late).findings[0].id == "collective-stuck"


def test_slurm_goes_on_without_a_prolog_of_tasks():
    said = "slurmstepd: error: Could not run slurm task_prolog [/nfs/prolog]: No such file or directory\n"
    assert shown(said + "slurmstepd: error: TMPDIR [/scratch/u] is not writeable\nfrob\n") == []


def test_ray_marks_nodes_dead():
    dead = "[2022-02-16 12:46:52,789 C 149 149] node_manager.cc:170: This node has been marked as dead.\n"
    may = "[2022-02-16 12:45:07,907 W 149 199] node_manager.cc:157: this node can be marked as dead mistakenly.\n"
    assert shown(may + dead)[0] == "node-failed"
    assert shown(may) == []


def test_a_peer_that_closed_on_the_loopback_is_no_wrong_interface():
    said = (
        "[1]<stderr>:  what():  [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:598] {} [127.0.0.1]:54168\n"
    )
    closed = answer("[0]<stderr>:Killed\n" + said.format("Connection closed by peer"))
    assert closed.findings[0].id == "rank-died"
    assert shown(said.format("connect failed"))[0] == "bootstrap-interface"


def test_a_task_without_heartbeats_has_died():
    said = (
        "coordination_service.cc:1170] /job:w/task:0 has been set to ERROR in coordination service: UNAVAILABLE: "
    )
    said += "Task /job:w/task:0 heartbeat timeout. [type.googleapis.com/tensorflow.CoordinationServiceError='']\n"
    assert shown(said)[0] == "rank-died"


def test_what_a_shell_says_of_a_process_that_was_killed():
    for said in ("Killed\n", "/tmp/x.sh: line 5: 12345 Killed                  python train.py\n"):
        assert shown("step 1\n" + said)[0] == "rank-died"
    assert shown("/tmp/x.sh: line 5: 12345 Killed      vllm serve m\n" + "frob\n" * 100) == []
