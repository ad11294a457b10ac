"""Captured jobs: read, matched among ranks, played; what disagrees is named."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fabrictwin as ft
from fabrictwin.base.errors import ConfigError
from fabrictwin.interchange.read_traces import read_traces
from fabrictwin.interchange.write_traces import write_chakra, write_goal
from fabrictwin.workload.captured.captured_file import (
    from_data,
    ranks_text,
    read_captured,
    to_data,
    write_captured,
)
from fabrictwin.workload.captured.captured_graph import MatchedGraph, parts_of

MIB = 1 << 20
JOB: dict[str, Any] = {
    "format": "fabrictwin captured job",
    "version": 1,
    "name": "toy",
    "world": 8,
    "groups": [
        {"name": "tp", "category": "tp", "members": ["0-1", "2-3", "4-5", "6-7"]},
        {"name": "dp", "category": "dp", "members": ["0,2", "1,3", "4,6", "5,7"]},
    ],
    "classes": [
        {
            "name": "stage 0",
            "ranks": "0-3",
            "operations": [
                {"compute": "mm", "ps": 1_000_000_000},
                {"collective": "all_reduce", "group": "tp", "bytes": 32 * MIB, "element": 2},
                {"send": 4, "bytes": 8 * MIB},
                {"receive": 4, "bytes": 8 * MIB, "tag": 1},
                {"collective": "reduce_scatter", "group": "dp", "bytes": 32 * MIB, "element": 2},
            ],
        },
        {
            "name": "stage 1",
            "ranks": "4-7",
            "operations": [
                {"receive": -4, "bytes": 8 * MIB},
                {"compute": "mm", "ps": 500_000_000},
                {"send": -4, "bytes": 8 * MIB, "tag": 1},
                {"collective": "reduce_scatter", "group": "dp", "bytes": 32 * MIB, "element": 2},
            ],
        },
    ],
}


def _spec(folder: Path, job: dict[str, Any], **run: Any) -> ft.Spec:
    (folder / "job.json").write_text(json.dumps(job))
    network = {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"}
    cluster = {"hosts": {"type": "dgx-h100", "count": 1}, "network": network}
    return ft.load(
        {
            "schema": 1,
            "name": "toy",
            "cluster": cluster,
            "workload": {"captured": str(folder / "job.json")},
            "run": {"fidelity": "analytic", **run},
        }
    )


def test_files_read_back_what_was_written(tmp_path: Path) -> None:
    job = from_data(JOB, "job")
    assert from_data(json.loads(json.dumps(to_data(job))), "again") == job
    for name in ("job.json", "job.json.gz"):
        write_captured(job, tmp_path / name)
        assert read_captured(tmp_path / name) == job


def test_ranks_are_written_in_their_order() -> None:
    assert ranks_text([0, 1, 2, 5, 3, 4]) == "0-2,5,3-4"


def test_a_job_is_played_in_the_order_of_its_waits(tmp_path: Path) -> None:
    result = ft.run(_spec(tmp_path, JOB))
    program, trace = result.detail.job.program, result.detail.trace
    names = [program.labels[label].name for label in program.operations.label]
    took = dict(zip(names, trace.end_op_ps - trace.start_ps, strict=True))
    assert took["mm"] in (500_000_000, 1_000_000_000)
    # two classes, four tensor-parallel pairs as one communication, a message each way
    assert sorted(names) == sorted(
        ["mm", "mm", "tp all-reduce", "send", "send", "dp reduce-scatter", "dp reduce-scatter"]
    )
    assert trace.end_ps == pytest.approx(
        1.5e9 + 2 * took["send"] + took["tp all-reduce"] + took["dp reduce-scatter"], rel=1e-9
    )


def test_folding_changes_no_time(tmp_path: Path) -> None:
    folded, whole = (ft.run(_spec(tmp_path, JOB, fold=fold)).detail for fold in (True, False))
    assert len(whole.job.program.actors) == 8
    assert whole.trace.end_ps == pytest.approx(folded.trace.end_ps, rel=1e-6)


def test_communications_of_many_names_are_told_apart(tmp_path: Path) -> None:
    calls = [
        {"collective": "all_reduce", "group": "world", "bytes": MIB, "element": 2, "name": f"bucket {i:03}"}
        for i in range(200)
    ]
    job = {**JOB, "groups": [{"name": "world", "members": ["0-7"]}]}
    result = ft.run(_spec(tmp_path, {**job, "classes": [{"name": "all", "ranks": "0-7", "operations": calls}]}))
    exposed = result.detail.collectives
    assert len(exposed) == 200
    assert sum(one.time_ps for one in exposed) == result.detail.trace.end_ps


def test_a_slow_gpu_holds_up_its_own_groups(tmp_path: Path) -> None:
    spec = _spec(tmp_path, JOB)
    fault = {"gpu": "host-0/gpu1", "slowdown": 2.0}
    slow = ft.run(spec.with_({"faults": [fault]})).detail
    assert [actor.name for actor in slow.job.program.actors] == ["stage 0", "rank 1 (stage 0)", "stage 1"]
    assert slow.trace.end_ps - ft.run(spec).detail.trace.end_ps == pytest.approx(1e9, rel=0.01)


def test_collectives_take_what_nccl_tests_measure(tmp_path: Path) -> None:
    one = {**JOB, "groups": [{"name": "world", "members": ["0-7"]}]}
    rows = [
        {"collective": kind, "group": "world", "bytes": 64 * MIB, "element": 4}
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
    ]
    one["classes"] = [
        {"name": "all", "ranks": "0-7", "operations": [*rows, {**rows[0], "collective": "all_to_all"}]}
    ]
    spec = _spec(tmp_path, one)
    trace = ft.run(spec).detail.trace
    took = (trace.end_op_ps - trace.start_ps).tolist()
    tests = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall")
    for name, mine in zip(tests, took, strict=True):
        found = ft.nccl_tests(f"{name}_perf", spec, minbytes="64M", maxbytes="64M", check=0, fidelity="analytic")
        assert mine == pytest.approx(found._rows[0].time_ps, rel=0.02), name


def _edited(*path: Any, to: Any) -> dict[str, Any]:
    job = deepcopy(JOB)
    at: Any = job
    for key in path[:-1]:
        at = at[key]
    if to is None:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return job


def _crossing(**other: Any) -> dict[str, Any]:
    """A data-parallel group over both classes, whose second one calls something else."""
    job = _edited("groups", 1, "members", to=["0,4", "1,5", "2,6", "3,7"])
    job["classes"][1]["operations"][3] |= other
    return job


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (_crossing(bytes=MIB), "call 0 on group 'dp': ranks 4-7 call reduce_scatter of 1,048,576"),
        (_crossing(collective="all_gather"), "call 0 on group 'dp': ranks 4-7 call all_gather"),
        (_edited("classes", 0, "operations", 2, to=None), "waits in a receive of 8,388,608 bytes for rank 0"),
        (_edited("classes", 0, "operations", 3, "tag", to=0), "a receive .* for rank 4, which never sends"),
        (_edited("classes", 1, "operations", 0, "bytes", to=MIB), "sends 8,388,608 bytes to rank 4"),
        (_edited("groups", 0, "members", to=["0-1", "2-3"]), None),
        (_edited("groups", 0, "members", to=["0-1"]), "has some of ranks 0-3"),
        (_edited("classes", 1, "ranks", to="3-7"), "got rank 3 again"),
        (_edited("classes", 0, "operations", 0, "ps", to=-1), "whole number from 0"),
        (_edited("classes", 0, "operations", 1, "group", to="pt"), "did you mean 'tp'"),
        (_edited("classes", 0, "operations", 1, "after", to=[5]), "from 0 to 0"),
    ],
)  # fmt: skip
def test_what_disagrees_is_named(job: dict[str, Any], said: str | None) -> None:
    def match() -> None:
        captured = from_data(job, "job.json")
        MatchedGraph(captured, parts_of(captured, np.zeros(8, bool), fold=True)).refuse_circle()

    if said is None:
        match()
        return
    with pytest.raises(ConfigError, match=said):
        match()


def test_a_hang_says_who_waits_for_whom() -> None:
    job = deepcopy(JOB)
    job["classes"][1]["operations"] = job["classes"][1]["operations"][::-1]
    captured = from_data(job, "job.json")
    graph = MatchedGraph(captured, parts_of(captured, np.zeros(8, bool), fold=True))
    with pytest.raises(ConfigError, match=r"a hang: .* which waits for .* for the first"):
        graph.refuse_circle()


def test_exports_come_back_as_the_same_job(tmp_path: Path) -> None:
    job = from_data(JOB, "job")
    write_chakra(job, tmp_path / "et")
    back = read_traces([tmp_path / "et"], None)
    before, after = (
        sorted(getattr(one, "size_bytes", 0) for each in either.classes for one in each.operations)
        for either in (job, back)
    )
    assert before == after
    write_goal(job, tmp_path / "job.goal")
    goal = read_traces([tmp_path / "job.goal"], None)
    sent = sum(one.size_bytes for each in goal.classes for one in each.operations if getattr(one, "sends", False))
    # two ranks a group: an all-reduce sends the buffer, a reduce-scatter half of it, from each
    assert sent == 4 * 32 * MIB + 8 * 16 * MIB + 8 * 8 * MIB
