"""Of all that a long log complains of, what ended the job: warnings, advice and what a job outlived stand behind."""

from __future__ import annotations

import pytest

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text

TRACEBACK = 'Traceback (most recent call last):\n  File "{file}", line 7, in run\n    {row}\n{error}\n'
QUIET = "".join(f"loaded part {n} of the model\n" for n in range(80))


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def errors(text: str) -> list[str]:
    return [one.id for one in answer(text).roots if one.severity == Severity.ERROR]


def first(text: str) -> str:
    return next((one.id for one in answer(text).roots if one.severity > Severity.NOTE), "")


def test_errors_that_python_ignores_end_nothing():
    lost = TRACEBACK.format(
        file="cache.py", row="os.replace(a, b)", error="FileNotFoundError: [Errno 2] No such file: 'b'"
    )
    assert errors(lost) == ["file-missing"]
    ignored = f"Exception ignored in atexit callback: <function save at 0x7f>\n{lost}"
    assert first(ignored) == ""
    # ranks' names that stand before few lines of a file are no prefix of it
    assert first(QUIET + "".join(f"1: {line}\n" for line in ignored.splitlines())) == ""


def test_an_ignored_error_of_a_gpu_tells_of_the_gpu():
    text = TRACEBACK.format(
        file="a.py", row="self.free()", error="RuntimeError: CUDA error: an illegal memory access was encountered"
    )
    assert first("Exception ignored in: <function f>\n" + text) == "gpu-program"


def test_an_error_after_an_ignored_one_counts():
    lost = TRACEBACK.format(file="cache.py", row="f()", error="FileNotFoundError: no such file")
    real = TRACEBACK.format(
        file="train.py", row="g()", error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    )
    assert errors(f"Exception ignored in: f\n{lost}{real}") == ["out-of-memory"]


def test_what_a_warning_could_lead_to_is_no_evidence():
    warning = "WARNING 01-02 03:04:05 [u.py:1] ulimit 51200 could not be raised. This can cause errors like `[Errno 24] Too many open files`\n"
    assert errors(warning) == []
    assert first("OSError: [Errno 24] Too many open files\n") == "open-files"


def test_a_warning_long_before_an_error_stands_behind_it():
    warning = "WARNING 01-02 03:04:05 [o.py:19] Failed to import from a._C with ImportError('libcuda.so.1: cannot open shared object file')\n"
    error = TRACEBACK.format(file="m.py", row="check(a)", error="ValueError: 5 heads must be divisible by 2")
    assert first(warning) == "library-missing"
    assert first(warning + QUIET + error) == "settings-rejected"


def test_what_only_says_that_a_process_ended_leaves_a_warning_as_it_is():
    warning = "WARNING 01-02 03:04:05 [o.py:19] Failed to import from a._C with ImportError('libcuda.so.1: cannot open shared object file')\n"
    ended = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    assert first(warning + QUIET[:400] + ended) == "library-missing"


def test_a_failed_job_whose_words_say_nothing_stands_behind_what_was_asked():
    lost = "n1:1:1 [0] misc/cudawrap.cc:179 NCCL WARN Failed to find CUDA library libcuda.so (NCCL_CUDA_PATH='')\n"
    failed = "n1: Test NCCL failure common.cu:958 'internal error - please report this issue to the NCCL developers / '\n"
    assert [one.id for one in answer(lost + failed).roots][:2] == ["container-runtime", "job-failed"]


def test_a_warning_beside_an_error_may_be_its_cause():
    text = "W0302 09:15:07.1 7 rdma_context.cpp:581] No suitable GID found on mlx5_0/\nE0302 09:15:07.2 7 rdma.cpp:662] No available RNIC\n"
    near = {one.id: one.confidence for one in answer(text).roots}
    far = {one.id: one.confidence for one in answer(text.replace("\nE", "\n" + QUIET + "E")).roots}
    assert near["no-roce-v2-gid"] > far["no-roce-v2-gid"]


def test_a_line_without_a_level_that_a_program_goes_on_after_is_no_error():
    line = "flash_attn is not installed, please install it\n"
    assert errors(line) == ["library-missing"]
    assert errors(line + QUIET) == []
    error = TRACEBACK.format(
        file="m.py", row="f()", error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    )
    assert first(line + QUIET + error) == "out-of-memory"


def test_what_somebody_waited_for_until_he_gave_up_stays():
    line = "The number of required GPUs exceeds the total number of available GPUs in the placement group.\n"
    stopped = TRACEBACK.format(file="m.py", row="wait()", error="KeyboardInterrupt")
    assert first(line + QUIET + stopped) == "resource-unavailable"


def test_what_a_served_job_outlived_stands_behind_what_ended_it():
    text = "error: bind: Address already in use\n" + QUIET + "INFO:     Application startup complete.\n"
    text += "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    assert first(text) == "time-limit"


def test_an_error_that_says_nothing_is_read_by_the_row_that_raised_it():
    assert (
        first(
            TRACEBACK.format(
                file="ops.py", row="torch.ops._C.cutlass_scaled_mm(a, b)", error="RuntimeError: Error Internal"
            )
        )
        == "framework-bug"
    )
    assert (
        first(TRACEBACK.format(file="ops.py", row="compute(a, b)", error="RuntimeError: Error Internal"))
        == "program-error"
    )


def test_text_that_would_be_raised_is_not_what_was_raised():
    text = TRACEBACK.format(file="a.py", row='raise OSError("no space left on device")', error="KeyError: 'x'")
    assert errors(text) == ["program-error"]


def test_a_process_that_its_watchdog_ends_did_not_die_by_itself():
    watchdog = (
        "[rank3]:[E ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=31, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600000 milliseconds\n"
    )
    died = "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n"
    assert first(watchdog + died) == "collective-stuck"
    assert first(died + watchdog) == "rank-died"


@pytest.mark.parametrize("head", ["\x1b[36m(Worker pid=7)\x1b[0m ", "[36m(Worker pid=7)[0m ", "llm-server  | "])
def test_a_level_is_read_behind_colours_and_names_of_services(head):
    line = "WARNING 04-16 10:29:53 [f.py:431] Using default kernel config. Config file not found at /x.json\n"
    assert first("".join(head + one for one in (line, "ready\n", "steady\n", "done\n"))) == ""


def test_an_error_that_is_passed_on_as_information_is_an_error():
    line = "2024-07-13 15:07:34,954 - INFO - vLLM: ERROR 07-13 15:07:34 e.py:53] OSError: [Errno 28] No space left on device\n"
    assert errors(line) == ["disk-full"]
    assert errors(line.replace("ERROR 07-13 15:07:34 e.py:53] ", "")) == []


def test_a_row_of_nccl_tests_that_was_broken_twice_keeps_its_time():
    head = "# nThread 1 nGpus 2 minBytes 8 maxBytes 8\n#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    said = "n1:1:1 [1] NCCL INFO AllReduce: opCount 0\n"
    row = (
        "  2147483648     536870912     float     sum      -1"
        + said
        + "    10284  208.82  208.82      0"
        + said
        + "    10236  209.80  209.80      0\n"
    )
    rows = [fact.parts for fact in judged(read_text(head + row), twin=False).evidence.of("bench.row")]
    assert [(one[2], one[3], one[4]) for one in rows] == [(2147483648, 10236.0, 209.8)]


def test_a_launcher_within_another_puts_two_prefixes():
    ignored = "Exception ignored in atexit callback: <function save at 0x7f>\n" + TRACEBACK.format(
        file="cache.py", row="os.replace(a, b)", error="FileNotFoundError: [Errno 2] No such file: 'b'"
    )
    lines = ["ready", "steady", *ignored.splitlines(), "done"]
    assert first("".join(f"[1,3]<stdout>:0: {line}\n" for line in lines)) == ""
