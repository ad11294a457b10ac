"""Readers of traces: what was called, with which bytes, behind what; and what garbled files are answered with."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from support import traces

from fabrictwin.base.errors import ConfigError
from fabrictwin.interchange import protobuf_wire as wire
from fabrictwin.interchange.read_traces import Given, read_traces
from fabrictwin.workload.captured.captured_job import CapturedJob, Collective, Compute, Message


def _read(
    folder: Path, name: str, data: bytes | str | dict[str, object], given: Given | None = None
) -> CapturedJob:
    path = folder / name
    path.write_bytes(
        data if isinstance(data, bytes) else (data if isinstance(data, str) else json.dumps(data)).encode()
    )
    return read_traces([path], given)


def test_kineto_keeps_compute_and_what_waited_for_the_collective(tmp_path: Path) -> None:
    job = _read(tmp_path, "trace.json", traces.kineto())
    (one,) = job.classes
    assert (job.world, one.ranks) == (2, (0, 1))
    gemm, gap, call, rest, adam = one.operations
    assert isinstance(gemm, Compute)
    assert gemm.time_ps == 100_000_000
    # 10 us after the product, the host's; 5 us after the all-reduce, likewise
    assert [(g.name, g.time_ps, g.after) for g in (gap, rest) if isinstance(g, Compute)] == [
        ("host", 10_000_000, (0,)),
        ("host", 5_000_000, (0, 2)),
    ]
    assert isinstance(call, Collective)
    assert (call.kind, call.size_bytes, call.element_bytes, call.after) == ("all_reduce", 4096, 4, (1,))
    assert adam.after == (3,)
    assert any("1 of 2 ranks have no trace" in note for note in job.notes)


def test_kineto_of_early_releases_says_the_same_by_other_names(tmp_path: Path) -> None:
    data = traces.kineto()
    new = _read(tmp_path, "trace.json", data)
    names = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime", "cpu_op": "Operator"}
    for event in data["traceEvents"]:  # type: ignore[attr-defined]
        event["cat"] = names.get(event.get("cat"), event.get("cat"))
    old = _read(tmp_path, "trace.json", data)
    assert old.classes == new.classes


def test_a_kernel_launched_after_the_collective_ended_does_not_wait_for_it(tmp_path: Path) -> None:
    data = traces.kineto()
    for event in data["traceEvents"]:
        if event["cat"] == "cuda_runtime" and event["args"]["correlation"] == 3:
            event["ts"] = 1163.0  # the all-reduce ended at 1160
    late = _read(tmp_path, "late.json", data).classes[0].operations
    assert late[3].after == (0,)
    # unless the host itself waited for it before
    span = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaDeviceSynchronize",
        "ts": 1120.0,
        "dur": 41.0,
        "args": {},
    }
    data["traceEvents"].append(span)
    assert _read(tmp_path, "sync.json", data).classes[0].operations[3].after == (0, 2)


def test_a_collective_without_bytes_keeps_its_time_and_is_reported(tmp_path: Path) -> None:
    data = traces.kineto()
    for event in data["traceEvents"]:
        event["args"].pop("In msg nelems", None)
    job = _read(tmp_path, "trace.json", data)
    assert [one.count for one in job.unplaced] == [1]
    assert job.classes[0].operations[2] == Compute("ncclDevKernel_AllReduce", (1,), 50_000_000, None, "other")


def test_execution_traces_give_work_and_wait_for_what_they_name(tmp_path: Path) -> None:
    job = _read(tmp_path, "et.json", traces.execution_trace())
    first, call, wait, second = job.classes[0].operations
    assert isinstance(first, Compute)
    assert first.work is not None
    assert (first.work.gemm, first.work.dtype) == ((4, 8, 8, 1), "fp32")
    assert isinstance(call, Collective)
    assert (call.kind, call.size_bytes, call.after) == ("broadcast", 53120 * 4, (0,))
    assert wait.after == (0, 1)
    assert second.after == (2,)


def test_flight_recorders_of_two_ranks_meet(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"dump_{rank}").write_bytes(traces.flight_recorder(rank))
    job = read_traces([tmp_path])
    assert (job.world, job.sends, len(job.classes)) == (2, "eager", 2)
    gather, host, message = job.classes[0].operations
    assert isinstance(gather, Collective)
    assert (gather.kind, gather.size_bytes) == ("all_gather", 2048)
    assert isinstance(host, Compute)
    assert host.time_ps == 500_000_000
    assert isinstance(message, Message)
    assert (message.sends, message.peers) == (True, 1)


def test_chakra_counts_shards_of_an_all_gather(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"job.{rank}.et").write_bytes(traces.chakra_trace(rank))
    job = read_traces([tmp_path])
    gemm, gather, message = job.classes[1].operations
    assert isinstance(gemm, Compute)
    assert gemm.time_ps == 5_000_000
    assert isinstance(gather, Collective)
    assert (gather.kind, gather.size_bytes, gather.after) == ("all_gather", 2 << 20, (0,))
    assert message == Message(False, -1, 4096, (1,), 3)


def test_of_a_folder_with_two_jobs_the_larger_is_read_and_the_other_named(tmp_path: Path) -> None:
    (tmp_path / "both").mkdir()
    for rank in range(2):
        (tmp_path / "both" / f"job.{rank}.et").write_bytes(traces.chakra_trace(rank))
    (tmp_path / "both" / "small_job.0.et").write_bytes(traces.chakra_trace(0))
    job = read_traces([tmp_path / "both"])
    assert job.world == 2
    assert [(Path(one.what).name, one.why) for one in job.unplaced] == [
        ("small_job.0.et", "its name is that of another job, which this archive or folder holds as well")
    ]
    named = [tmp_path / "both" / name for name in ("job.0.et", "small_job.0.et")]
    with pytest.raises(ConfigError, match="is of rank 0, as is"):
        read_traces(named)


def test_chakra_on_the_wire_is_what_protobuf_itself_writes() -> None:
    # Node {id: 3, name: "a", type: 7, data_deps: 1, attr {name: "comm_size", int64_val: 300}}, by hand
    by_hand = bytes([8, 3, 18, 1, 97, 24, 7, 40, 1, 82, 14, 10, 9]) + b"comm_size" + bytes([72, 172, 2])
    from fabrictwin.interchange import chakra

    raw = chakra.written([chakra.Node(3, "a", 7, [1], attributes={"comm_size": 300})])
    assert list(wire.messages(raw, ""))[1] == by_hand
    assert chakra.nodes_of(raw, "")[0].attributes == {"comm_size": 300}


def test_control_dependencies_in_a_circle_are_left_out_and_said(tmp_path: Path) -> None:
    rows = [
        {"Id": 1, "Name": "a", "NodeType": 4, "ctrlDeps": [2], "data_deps": [], "runtime": 1},
        {"Id": 2, "Name": "b", "NodeType": 4, "ctrlDeps": [1], "data_deps": [1], "runtime": 1},
    ]
    job = _read(tmp_path, "chakra.json", {"workload_graph": rows})
    assert [one.after for one in job.classes[0].operations] == [(), (0,)]
    assert any("circle" in note for note in job.notes)


def test_goal_starts_what_irequires_with_what_it_names(tmp_path: Path) -> None:
    job = _read(tmp_path, "a.goal", traces.GOAL)
    assert [type(one).__name__ for one in job.classes[0].operations] == ["Compute", "Message"]
    assert job.classes[0].operations[1] == Message(True, 1, 10, (0,), 5)
    together = traces.GOAL.replace("l2 requires l1\n}\nrank 1", "l2 irequires l1\n}\nrank 1")
    assert _read(tmp_path, "b.goal", together).classes[0].operations[1].after == ()


def test_layers_exchange_weights_beside_the_rest_of_the_backward_pass(tmp_path: Path) -> None:
    job = _read(tmp_path, "layers.txt", traces.LAYERS, Given(world=4))
    calls = [one for one in job.classes[0].operations if isinstance(one, Collective)]
    assert [(one.kind, one.group, one.size_bytes) for one in calls] == [
        ("all_gather", "model parallel", 8192),
        ("all_reduce", "data parallel", 1024),
        ("all_reduce", "data parallel", 9408),
    ]
    groups = {group.name: group.members for group in job.groups}
    assert groups["model parallel"] == ((0, 1), (2, 3))
    assert groups["data parallel"] == ((0, 2), (1, 3))


class _Code:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("code",)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("dump_0", pickle.dumps({"entries": [_Code()]}, 2), "holds GLOBAL"),
        ("a.et", traces.chakra_trace(0)[:-5], "ends within a message"),
        ("a.json", '{"traceEvents": []}', "no kernels, no collectives"),
        ("a.json", '{"traceEvents": [', "is no JSON"),
        ("a.json", '{"hello": 1}', "is none of the traces"),
        ("a.goal", traces.GOAL.replace("to 1", "to 7"), "a.goal:4"),
        ("a.goal", traces.GOAL.replace("l2 requires l1", "l2 requires l9"), "which no line before has"),
        ("layers.txt", traces.LAYERS.replace("ALLREDUCE", "ALLSUM", 1), "got 'ALLSUM'"),
        ("a.json.gz", b"\x1f\x8b\x08\x00rubbish", "is packed and (broken|ends early)"),
    ],
)  # fmt: skip
def test_garbled_files_end_in_one_error(tmp_path: Path, name: str, data: bytes | str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as found:
        _read(tmp_path, name, data, Given(world=4))
    assert "\n" not in str(found.value)
