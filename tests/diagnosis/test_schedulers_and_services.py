"""What schedulers, container runtimes and services of jobs say, by what is wrong, and what they say of healthy ones."""

from __future__ import annotations

import pytest

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def first(text: str) -> str:
    return next((one.id for one in answer(text).roots if one.severity > Severity.NOTE), "")


RIGHT = [
    ("device-permission", "n1 slurmd[7]: spank-epilog: error: pyxis: mkdir: cannot create directory '/frob': Permission denied\n"
     "n1 slurmd[7]: slurmd: error: epilog failed status=0:1\n"),
    ("node-failed", "slurmd: error: epilog failed status=0:1\n"),
    ("node-failed", "n7  1  main* down  112 2:28:2 2051000  0  1  (null) Node unexpectedly re\n"),
    ("settings-rejected", "srun: error: You must specify a frob!\nsrun: error: Unable to allocate resources: Unspecified error\n"),
    ("host-memory", "slurmstepd: error: pyxis: child 77 failed with error code: 137\nslurmstepd: error: pyxis: failed to import docker image\n"),
    ("cuda-driver-old", "[1.5] [n1:3:0] frob.c:9  UCX  ERROR cuDeviceGetCount(&num_devices) failed: unrecognized error code 34\n"),
    ("device-permission", "mm_posix.c:9  UCX  ERROR open(file_name=/proc/77/fd/8 flags=0x0) failed: Permission denied\n"
     "mm_ep.c:9  UCX  ERROR mm ep failed to connect to remote FIFO id 0x7: Shared memory error\n"),
    ("adapter-limits", "ucp_context.c:9 UCX  ERROR exceeded transports/devices limit (72 requested, up to 64 are supported)\n"),
    ("locked-memory", "mpool.c:9  UCX  ERROR Failed to allocate memory pool chunk: Input/output error\n"),
    ("model-access", "Error when calling remote API: Error code: 401 - {'errors': {}}\n"),
    ("settings-rejected", "ValueError: requires at least one frob to be set via --frob-list\n"),
    ("settings-rejected", "AssertionError: frob expects quux_backend to be one of ['a', 'b'], but got c\n"),
    ("settings-rejected", "ValueError: max_frobs_per_item (2496) is larger than max_batched_frobs (2048). Please increase it.\n"),
    ("settings-rejected", "NotImplementedError: Frobbing is not supported with quuxes yet\n"),
    ("settings-rejected", "ValueError: Unsupported frob backend: quux\n"),
    ("program-error", "ValueError: frob_size must be at least the batch of tensors\n"),
    ("program-error", "ValueError: You must be a frob\n"),
    ("library-mismatch", "TypeError: Frob.__init__() got an unexpected keyword argument 'quux'\n"),
    ("program-error", "RuntimeError: Scales must be calibrated before CUDA graph capture\n"),
    ("launch-failed", "pdsh@n1: 10.2.5.2: ssh exited with exit code 255\n"),
    ("job-failed", "pdsh@n1: 10.2.5.2: ssh exited with exit code 1\n"),
    ("no-gpu", "NotImplementedError: Frob cannot find any torch accelerator? You need a GPU.\n"),
    ("cuda-not-initialized", "/frob/cuda/__init__.py:9: UserWarning: CUDA initialization: CUDA unknown error\n" + "working\n" * 12
     + "NotImplementedError: Frob cannot find any torch accelerator? You need a GPU.\n"),
    ("program-error", "AttributeError: 'Tensor' object has no attribute 'quux' [at /x/site-packages/frob.py\", line 7, in f -]\n"),
    ("framework-bug", "torch._inductor.exc.InductorError: LoweringException: -56/25\n"),
    ("settings-rejected", "RuntimeError: Frob forward only supports head dimension at most 256\n"),
    ("host-memory", "  [1]: time=2026-04-22_10:23:55 worker_id=1 exit_code=-9\n"),
    ("name-resolution", "MPID_nem_tcp_init(377).............: gethostbyname failed, frob (errno 3)\n"),
    ("program-error", "RuntimeError: Worker failed with error 'expected frob but found quux', please check above\n"),
    ("time-limit", "ERROR: failed to build: failed to solve: Canceled: context canceled\n"),
    ("host-memory", "  MemoryPressure       True    Fri, 03 May 2024 18:34:48 +0900   KubeletHasInsufficientMemory\n"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "text"), RIGHT)
def test_a_message_points_to_its_cause(cause, text):
    assert first(text) == cause


NODE = """  Hostname:    node-1
Capacity:
  cpu:               224
  {device}:  8
Allocatable:
  cpu:               223
  {device}:  {free}
"""


@pytest.mark.parametrize("device", ["nvidia.com/gpu", "rdma/frob"])
def test_devices_that_a_node_may_not_give_out_are_told(device):
    finding = answer(NODE.format(device=device, free=7)).findings[0]
    assert (finding.id, finding.object) == ("resource-unavailable", "node-1")
    assert not answer(NODE.format(device=device, free=8)).findings


def test_a_node_in_yaml_names_what_is_free_before_what_it_has():
    text = """  - address: node-2
    type: Hostname
  allocatable:
    cpu: "48"
    nvidia.com/gpu: "0"
  capacity:
    cpu: "48"
    nvidia.com/gpu: "16"
"""
    assert first(text) == "resource-unavailable"
    assert first(text.replace('"0"', '"16"')) == ""


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        ("host-memory", "OUT_OF_ME+    0:125"),
        ("time-limit", "  TIMEOUT      0:0"),
        ("node-failed", "BOOT_FAIL      0:0"),
        ("", "COMPLETED      0:0"),
        ("unknown-error", "   FAILED      1:0"),
    ],
)
def test_states_of_an_account_of_jobs(cause, state):
    text = f"""JobID           JobName  Partition    Account  AllocCPUS      State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
90                 frob       main        acc        896 {state}
90.batch          batch                   acc        112  CANCELLED     0:15
"""
    assert first(text) == cause


@pytest.mark.parametrize(
    "text",
    [
        "NCCL WARN NET/OFI Disabling frob failed: Protocol not available",
        "NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument",
        "NCCL WARN NET/OFI Couldn't bind CQ. RC: -38, ERROR: Function not implemented",
    ],
)
def test_what_libfabric_does_not_know_is_of_another_release(text):
    assert first(f"host-1:77:99 [0] nccl_net_ofi_frob:212 {text}\n") == "library-mismatch"


HEALTHY = [
    "  MemoryPressure       False   Fri, 03 May 2024 18:34:48 +0900   KubeletHasSufficientMemory   kubelet has sufficient memory\n"
    "  DiskPressure         False   Fri, 03 May 2024 18:34:48 +0900   KubeletHasNoDiskPressure     kubelet has no disk pressure\n",
    '  - type: DiskPressure\n    status: "False"\n',
    "NodeName=n1 State=IDLE+DRAIN Reason=scheduled maintenance [frob@2026-09-07T10:00:00]\n",
    "[2024-03-01T08:12:44.501] error: Domain socket directory /var/spool/frob: No such file or directory\n"
    "[2024-03-01T08:12:44.601] CPU frequency setting not configured for this node\n",
    "Could not cache frob. Will ignore error and continue. Error: [Errno 30] Read-only file system: '/frob'\n",
    "[notice] To update, run: python3 -m pip install --upgrade pip\n",
    "    107     raise ImportError(\n    108         f\"Please install frob via `pip install frob` then retry!\"\n    109     )\n",
    "FABRIC handle export failed on rank 7; falling back to POSIX fd transport: 8\n",
    'INFO:     18.97.5.1:7 - "GET /frob HTTP/1.1" 404 Not Found\n',
]  # fmt: skip


@pytest.mark.parametrize("text", HEALTHY)
def test_what_a_healthy_host_says_is_no_fault(text):
    assert first(text) == ""


def test_a_server_that_is_not_up_yet_is_a_question():
    probe = '  Warning  Unhealthy  2m (x3 over 3m)    kubelet   {} probe failed: Get "http://10.2.1.4:8000/health": dial tcp 10.2.1.4:8000: connect: connection refused\n'
    assert max(one.severity for one in answer(probe.format("Readiness")).findings) == Severity.QUESTION
    assert max(one.severity for one in answer(probe.format("Liveness")).findings) > Severity.QUESTION


def test_a_step_that_waits_for_room_is_a_question_until_it_is_refused():
    waits = "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
    assert max(one.severity for one in answer(waits).findings) == Severity.QUESTION
    refused = waits + "srun: error: Unable to create step for job 7: Memory required by task is not available\n"
    assert first(refused) == "resource-unavailable"


def test_tasks_that_do_not_fit_their_processors_are_too_many():
    text = "srun: error: Task launch for StepId=7.4 failed on node n1: Unable to layout tasks on given cpus\n"
    assert first(text) == "slots-few"
    assert (
        first(text.replace("Unable to layout tasks on given cpus", "Communication connection failure"))
        == "launch-failed"
    )


RAISED = 'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {row}\n{error}\n'


@pytest.mark.parametrize(
    ("cause", "file", "function"),
    [
        ("settings-rejected", "/opt/dist-packages/frob/server_args.py", "start"),
        ("settings-rejected", "/opt/dist-packages/frob/config/model.py", "start"),
        ("settings-rejected", "/opt/frob/launch.py", "validate_args"),
        ("program-error", "/opt/frob/launch.py", "start"),
    ],
)
def test_what_modules_of_options_raise_is_about_options(cause, file, function):
    assert (
        first(RAISED.format(file=file, function=function, row="raise ValueError(", error="ValueError: odd frob"))
        == cause
    )


@pytest.mark.parametrize(
    ("cause", "file", "kind"),
    [
        ("library-mismatch", "/opt/python3.12/site-packages/frob/models/quux.py", "Frob"),
        ("program-error", "/home/u/train.py", "Frob"),
        ("program-error", "/opt/python3.12/site-packages/frob/models/quux.py", "NoneType"),
    ],
)
def test_an_attribute_that_a_package_misses_is_of_another_release(cause, file, kind):
    error = f"AttributeError: '{kind}' object has no attribute 'quux'"
    assert first(RAISED.format(file=file, function="forward", row="x = y.quux", error=error)) == cause
