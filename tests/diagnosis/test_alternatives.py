"""What else an ambiguous message can mean: listed below its cause, as a question, unless files rule it out."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fabrictwin.diagnosis import causes
from fabrictwin.diagnosis.causes import CAUSES
from fabrictwin.diagnosis.diagnose import FAULTS, UNCLEAR, Diagnosis, judged
from fabrictwin.diagnosis.diagnosis_page import page
from fabrictwin.diagnosis.diagnosis_text import text as as_text
from fabrictwin.diagnosis.finding import Severity
from fabrictwin.diagnosis.readers.reading import read_text

RETRIED = "a:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.1.2.3<1234> with error 12, opcode 1, vendor err 129\n"
STUCK = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:5] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600001 milliseconds\n"
)


def answer(text: str) -> Diagnosis:
    return judged(read_text(text), twin=False)


def others(found: Diagnosis) -> list[str]:
    return [one.id for one in found.findings if one.instead_of]


def test_the_table_names_causes_and_says_how_to_tell_each_apart():
    table = yaml.safe_load((Path(causes.__file__).parent / "data/alternatives.yaml").read_text(encoding="utf-8"))
    listed = {cause for row in table["rows"] for cause in row["instead"]}
    assert listed == set(table["tells"])
    assert (listed | set(table["shown"]) | {cause for row in table["rows"] for cause in row["of"]}) <= set(CAUSES)
    for row in table["rows"]:
        assert row["source"]
        assert not set(row["of"]) & set(row["instead"]) or len(row["of"]) > 1
        assert all(0 < sure < 0.51 for sure in row["instead"].values())


@pytest.mark.parametrize(
    ("text", "root", "other"),
    [
        (RETRIED, "transport-retry", "rank-died"),
        (
            "a:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE ; OOB eth0:10.1.2.4<0>\n" + RETRIED,
            "transport-retry",
            "gid-unreachable",
        ),
        ("RuntimeError: NCCL error: unhandled system error\n", "job-failed", "shared-memory"),
        ("OSError: [Errno 28] No space left on device\n", "disk-full", "shared-memory"),
        ("ActorDiedError: the actor is dead because its worker process has died\n", "rank-died", "host-memory"),
        ("CUDA error: an illegal memory access was encountered\n", "gpu-program", "gpu-memory"),
        (
            "n1:5:9 [0] NCCL WARN NET/IB : Got completion from peer 10.1.2.3<1> with status=9 opcode=0 vendor err 138\n",
            "remote-access",
            "mtu-differs",
        ),
        (
            "ERROR: Failed to modify QP to RTR: Invalid argument (22), path_mtu 4096\n",
            "gid-unreachable",
            "mtu-differs",
        ),
        (
            "Error: No available node types can fulfill resource request {'node:10.1.2.3': 0.01, 'GPU': 1.0}\n",
            "resource-unavailable",
            "bootstrap-interface",
        ),
        (STUCK.format(rank=1, number=1), "collective-stuck", "acs-redirects"),
        (STUCK.format(rank=1, number=800), "collective-stuck", "rank-late"),
    ],
)
def test_an_ambiguous_message_lists_what_else_it_can_mean(text, root, other):
    found = answer(text)
    assert not root or found.findings[0].id == root
    three = found.findings[:3]
    assert other in [one.id for one in three]
    listed = next(one for one in three if one.id == other)
    assert listed.severity == Severity.QUESTION
    assert listed.collect
    assert 0 < listed.confidence < found.findings[0].confidence


def test_alternatives_turn_no_verdict_and_are_no_roots():
    found = answer(RETRIED)
    assert others(found)
    assert (found.verdict, found.exit_code) == (FAULTS, 1)
    assert [one.id for one in found.roots] == ["transport-retry"]
    assert "Verdict: 1 cause found" in as_text(found)
    unclear = answer("RuntimeError: NCCL error: unhandled system error\n")
    assert (unclear.verdict, unclear.exit_code) == (UNCLEAR, 0)
    assert any("/dev/shm" in one for one in unclear.to_collect)
    assert others(answer("all ranks are well\n")) == []


def test_data_and_page_say_instead_of_what():
    found = answer(RETRIED)
    told = found.as_data()["findings"]
    assert {one.get("instead_of") for one in told[1:]} == {"transport-retry"}
    assert "1 cause<" in page(found).replace("1 cause:", "1 cause<")
    assert "instead" in page(found)


def test_what_the_files_would_have_shown_is_no_alternative():
    down = answer(STUCK.format(rank=1, number=800))
    assert "rank-late" in others(down)
    status = (
        "[rank{0}]:[E ProcessGroupNCCL.cpp:7] [PG ID 1 PG GUID 7(tp) Rank {0}]  failure detected by watchdog at work "
        "sequence id: 71 PG status: last enqueued work: 77, last completed work: 70\n"
    )
    told = answer(status.format(0) + status.format(1))
    assert told.findings[0].id == "collective-stuck"
    assert "rank-late" not in [one.id for one in told.findings]


def test_what_is_found_by_itself_is_listed_once():
    found = answer(RETRIED + "a: kernel: Out of memory: Killed process 17 (python3) total-vm:1kB\n")
    ids = [one.id for one in found.findings]
    assert len(ids) == len(set(ids))


def test_a_cause_that_is_told_twice_is_one_finding() -> None:
    """The fabric manager speaks of its driver, then systemd of the fabric manager."""
    log = (
        "Feb 24 09:28:28 node7 nv-fabricmanager[1507]: fabric manager NVIDIA GPU driver interface version "
        "535.183.01 don't match with driver version 535.216.03. Please update with matching NVIDIA driver package.\n"
        "Feb 24 09:28:28 node7 systemd[1]: nvidia-fabricmanager.service: Control process exited, code=exited, "
        "status=1/FAILURE\n"
    )
    found = judged(read_text(log, name="messages"))
    assert [one.id for one in found.roots] == ["fabric-manager"]
    assert [place.line for place in found.roots[0].evidence] == [1, 2]
