"""NCCL's RAS reports, as its source prints them, and the finding that each ends in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fabrictwin.diagnosis.diagnose import CLEAN, FAULTS, UNCLEAR, Diagnosis, diagnose

TABLE = """Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
OK = TABLE + "    0         8         4         1         4        32   RUNNING      OK\n\nErrors\n======\n\n"
COMM = "#0-0 (cf264af53edbe986)"
ON = "GPU 5 managed by process 507290 on node 10.0.0.2"

TEXTS = {
    "ok": (OK + "Warnings\n========\n\n", CLEAN, "", ""),
    "counts": (
        f"{COMM} MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        "  30 ranks have launched up to operation 6650\n  2 ranks have launched up to operation 6649\n"
        f"  Rank 5 -- {ON}\n  Rank 8 -- [process information not found]\n",
        UNCLEAR, "ranks-differ", "ranks 5, 8",
    ),
    "not-launched": (
        f"{COMM} MISMATCH\n  Communicator ranks have different Broadcast operation counts\n"
        f"  31 ranks have launched up to operation 1\n  Rank 5 has not launched any operations -- {ON}\n",
        UNCLEAR, "ranks-differ", "ranks 5",
    ),
    "status": (
        f"{COMM} MISMATCH\n  Communicator ranks have different status\n  31 ranks have status RUNNING\n"
        f"  Rank 5 has status NOCOMM -- {ON}\n",
        UNCLEAR, "ranks-differ", "ranks 5",
    ),
    "unknown-of-2.24": (
        f"{COMM} MISMATCH\n  Communicator ranks have different status\n  30 ranks have status RUNNING\n"
        "  2 ranks have status UNKNOWN\n  The unknown ranks: 3,7\n",
        UNCLEAR, "ranks-differ", "ranks 3, 7",
    ),
    "incomplete": (
        f"INCOMPLETE\n  Missing communicator data from 1 job process\n  Process 7 on node 10.0.0.2 managing GPU 5\n\n"
        f"{COMM} INCOMPLETE\n  Missing communicator data from 1 rank\n  Rank 21 -- {ON}\n",
        FAULTS, "rank-missing", "rank 21",
    ),
    "incomplete-in-the-table": (
        TABLE + "    0         1         4       7-8        32        32   RUNNING  INCOMPLETE,MISMATCH\n",
        FAULTS, "rank-missing", "",
    ),
    "silent": (
        "Gathering data about the RAS network (timeout 5s)... obtained a result in 5.012s\n"
        " Warning: missing data from 2 processes (received from 30, expected 32)\n  The missing processes:\n"
        "  Process 7 on node 10.0.0.2 managing GPU 0\n  Process 8 on node 10.0.0.2 managing GPU 1\n",
        FAULTS, "rank-missing", "10.0.0.2 GPU 0, 10.0.0.2 GPU 1",
    ),
    "timeouts": (
        "TIMEOUT\n  Encountered 2 communication timeouts while gathering communicator data\n",
        UNCLEAR, "rank-missing", "",
    ),
    "cuda-error": (
        f"{COMM} ERROR\n  Asynchronous errors on 3 ranks\n  2 ranks reported Remote process error\n"
        f"  Rank 5 reported Unhandled CUDA error -- {ON}\n",
        FAULTS, "cuda-failure", "rank 5",
    ),
    "remote-error": (
        f"{COMM} ERROR\n  Asynchronous errors on 2 ranks\n  2 ranks reported Remote process error\n"
        f"  Rank 5 -- {ON}\n  Rank 6 -- {ON}\n",
        FAULTS, "rank-died", "a peer of ranks 5-6",
    ),
    "error-in-the-table": (
        TABLE + "    0         1         4         8        32        32   RUNNING  ERROR\n",
        FAULTS, "job-failed", "group 0",
    ),
    "clocks": (
        "Gathering data about the RAS network (timeout 5s)... obtained a result in 0.012s\n"
        " Warning: negative travel times were observed across 4 connections,\n",
        FAULTS, "clock-skew", "",
    ),
    "dead-event": (
        "[2025-12-19 13:07:07] PEER_TIMEOUT_DEAD: Process 15 on node 10.0.0.2 managing GPU 1 no answer\n",
        FAULTS, "rank-died", "process 15 on 10.0.0.2 (GPU 1)",
    ),
    "unresponsive-event": (
        "[2025-12-19 13:07:07] PEER_UNRESPONSIVE: Process 15 on node 10.0.0.2 managing GPU 1 no answer\n",
        UNCLEAR, "rank-died", "10.0.0.2 GPU 1",
    ),
    "recovered": (
        "[2025-12-19 13:07:07] PEER_UNRESPONSIVE: Process 15 on node 10.0.0.2 managing GPU 1 no answer\n"
        "[2025-12-19 13:07:09] PEER_RECOVERED: Process 15 on node 10.0.0.2 managing GPU 1 responds\n",
        CLEAN, "", "",
    ),
}  # fmt: skip


def answer(tmp_path: Path, text: str) -> Diagnosis:
    file = tmp_path / "ras.txt"
    file.write_text(text)
    return diagnose([file], twin=False)


def ends_in(found: Diagnosis, verdict: str, cause: str, about: str) -> None:
    assert found.verdict == verdict
    assert (found.findings[0].id if found.findings else "") == cause
    if about:
        assert found.findings[0].object == about


@pytest.mark.parametrize("name", TEXTS)
def test_texts(tmp_path: Path, name: str) -> None:
    text, *expected = TEXTS[name]
    ends_in(answer(tmp_path, text), *expected)


def rank(number: int, launched: int = 7, **status: Any) -> dict[str, Any]:
    return {
        "rank": number, "host": f"10.0.0.{number // 2}", "pid": 100 + number, "cuda_dev": number % 2,
        "status": {"init_state": 0, "async_error": 0, "abort_flag": False} | status,
        "collective_counts": {"Broadcast": 1, "AllReduce": launched},
    }  # fmt: skip


def report(*ranks: dict[str, Any], missing: tuple[dict[str, Any], ...] = (), timeouts: int = 0) -> str:
    comm = {"hash": "0xcf264af53edbe986", "size": 4, "ranks": ranks, "missing_ranks": missing}
    return json.dumps(
        {"nccl_version": "2.28.7", "communicators": [comm], "ras": {"timeouts_count": timeouts}}, indent=2
    )


GONE = {"rank": 3, "host": "10.0.0.1", "pid": 103, "cuda_dev": 1, "status": {"considered_dead": False}}
DOCUMENTS = {
    "ok": (report(rank(0), rank(1)), CLEAN, "", ""),
    "behind": (report(rank(0), rank(1, 6)), UNCLEAR, "ranks-differ", ""),
    "missing": (report(rank(0), missing=(GONE,)), FAULTS, "rank-missing", "rank 3"),
    "dead": (
        report(rank(0), missing=(GONE | {"status": {"considered_dead": True}},)),
        FAULTS, "rank-died", "process 103 on 10.0.0.1 (GPU 1), rank 3",
    ),
    "system-error": (report(rank(0), rank(1, async_error=2)), FAULTS, "job-failed", "rank 1"),
    "in-progress": (report(rank(0, init_state=7), rank(1, init_state=7)), CLEAN, "", ""),
    "aborted": (report(rank(0), rank(1, abort_flag=True)), UNCLEAR, "ranks-differ", ""),
    "timeouts": (report(rank(0), timeouts=2), UNCLEAR, "rank-missing", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents(tmp_path: Path, name: str) -> None:
    text, *expected = DOCUMENTS[name]
    ends_in(answer(tmp_path, text), *expected)


def test_a_stream_of_events_behind_the_monitors_banner(tmp_path: Path) -> None:
    def event(what: str) -> str:
        peer = {"host": "10.0.0.2", "pid": 15, "cuda_devs": [1]}
        whole = {
            "timestamp": "2025-12-19 13:07:07",
            "group": "LIFECYCLE",
            "event": what,
            "peer": peer,
            "details": "",
        }
        return json.dumps(whole, indent=2).replace("[\n      1\n    ]", "[1]") + "\n"

    banner = "RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...\n" + "=" * 64 + "\n"
    for head in (banner, ""):
        found = answer(tmp_path, head + event("PEER_NEW") + event("PEER_DEAD"))
        ends_in(found, FAULTS, "rank-died", "process 15 on 10.0.0.2 (GPU 1)")
    ends_in(answer(tmp_path, banner + event("PEER_NEW") + event("PEER_CONNECTED")), CLEAN, "", "")
