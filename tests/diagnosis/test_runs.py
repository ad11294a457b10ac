"""Several runs in one file: each is judged by itself, and findings say whose they are."""

from __future__ import annotations

import pytest

from fabrictwin.diagnosis.diagnose import Diagnosis, judged
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text

LAUNCH = "frob@n1:~/quux$ torchrun --nproc_per_node 8 frob.py\n"
STEPS = "".join(f"iteration {n:8}/  10 | elapsed time per iteration (ms): 1.2\n" for n in range(6))
FULL = "OSError: [Errno 28] No space left on device: '/frob'\n"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def told(text: str) -> list[tuple[str, str, Severity]]:
    return [
        (one.id, one.object[-10:], one.severity) for one in answer(text).roots if one.severity > Severity.QUESTION
    ]


def test_a_run_that_failed_before_one_that_worked_is_a_warning_of_that_run():
    text = LAUNCH + FULL + LAUNCH + STEPS
    assert told(text) == [("disk-full", "run 1 of 2", Severity.WARNING)]
    assert [note.rpartition(": ")[2] for note in answer(text).notes] == ["disk-full", "worked"]


def test_a_run_that_failed_after_one_that_worked_is_an_error_of_that_run():
    assert told(LAUNCH + STEPS + LAUNCH + FULL) == [("disk-full", "run 2 of 2", Severity.ERROR)]


def test_each_run_has_its_cause():
    found = told(LAUNCH + FULL + LAUNCH + STEPS + LAUNCH + MEMORY)
    assert found == [
        ("out-of-memory", "run 3 of 3", Severity.ERROR),
        ("disk-full", "run 1 of 3", Severity.WARNING),
    ]


@pytest.mark.parametrize("text", [LAUNCH + FULL, LAUNCH * 4 + STEPS, LAUNCH + LAUNCH + FULL])
def test_one_run_is_no_several(text):
    assert answer(text).notes == ()
    assert not any("run 1" in name for _, name, _ in told(text))


HEAD = "# nThread 1 nGpus 8 minBytes 8 maxBytes 8\n#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
ROW = "  1073741824     268435456     float     sum      -1    40000   26.84   50.33      0    40000   26.84   50.33      0\n"


def test_runs_of_nccl_tests_work_by_their_rows():
    notes = answer(
        HEAD
        + ROW
        + "# Out of bounds values : 0 OK\n"
        + HEAD
        + "n1: Test CUDA failure common.cu:9 'out of memory'\n"
    ).notes
    assert [note.rpartition(": ")[2] for note in notes] == ["worked", "out-of-memory"]


def test_a_cause_that_ended_two_runs_is_told_of_both():
    text = LAUNCH + FULL + LAUNCH + MEMORY + LAUNCH + FULL
    assert {one.id: one.object.rpartition("run")[2] for one in answer(text).roots[:2]} == {
        "disk-full": "s 1, 3 of 3",
        "out-of-memory": " 2 of 3",
    }
    assert [note.rpartition(": ")[2] for note in answer(text).notes] == ["disk-full", "out-of-memory", "disk-full"]
