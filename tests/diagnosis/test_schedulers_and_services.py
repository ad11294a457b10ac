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
    ("host-memory", "  MemoryPressure       True    Fri, 03 May 2024 18:34:48 +0900   KubeletHasInsufficientMemory\n"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "text"), RIGHT)
def test_a_message_points_to_its_cause(cause, text):
    assert first(text) == cause


HEALTHY = [
    "  MemoryPressure       False   Fri, 03 May 2024 18:34:48 +0900   KubeletHasSufficientMemory   kubelet has sufficient memory\n"
    "  DiskPressure         False   Fri, 03 May 2024 18:34:48 +0900   KubeletHasNoDiskPressure     kubelet has no disk pressure\n",
    '  - type: DiskPressure\n    status: "False"\n',
    "NodeName=n1 State=IDLE+DRAIN Reason=scheduled maintenance [frob@2026-09-07T10:00:00]\n",
    "[2024-03-01T08:12:44.501] error: Domain socket directory /var/spool/frob: No such file or directory\n"
    "[2024-03-01T08:12:44.601] CPU frequency setting not configured for this node\n",
    'INFO:     18.97.5.1:7 - "GET /frob HTTP/1.1" 404 Not Found\n',
]  # fmt: skip


@pytest.mark.parametrize("text", HEALTHY)
def test_what_a_healthy_host_says_is_no_fault(text):
    assert first(text) == ""


def test_a_server_that_is_not_up_yet_is_a_question():
    probe = '  Warning  Unhealthy  2m (x3 over 3m)    kubelet   {} probe failed: Get "http://10.2.1.4:8000/health": dial tcp 10.2.1.4:8000: connect: connection refused\n'
    assert max(one.severity for one in answer(probe.format("Readiness")).findings) == Severity.QUESTION
    assert max(one.severity for one in answer(probe.format("Liveness")).findings) > Severity.QUESTION
