"""Captures: what streams make wait, whose ranks are whose, and a whole program against a closed form."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fabrictwin as ft
from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.torch.capture.processes import Asked, _spans, _wanted
from fabrictwin.torch.capture.record import meet
from fabrictwin.torch.rank_recorder import RankRecorder
from fabrictwin.workload.captured.captured_file import write_captured
from fabrictwin.workload.captured.captured_job import CapturedJob, Collective, Message, Work

WORK = Work((64, 64, 64, 1), None, False, 49152, "fp32")
EXAMPLE = Path(__file__).parents[2] / "examples" / "torch" / "llama_3d.py"


def _spec(hosts: int) -> ft.Spec:
    network = {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"}
    cluster = {"hosts": {"type": "dgx-h100", "count": hosts}, "network": network}
    return ft.load({"schema": 1, "name": "a", "cluster": cluster})


def test_streams_wait_for_events_alone() -> None:
    recorder = RankRecorder(0, 2)
    recorder.group("0", (0, 1), "")
    recorder.compute("first", WORK)
    event = recorder.mark()
    recorder.compute("second", WORK)
    recorder.stream = 7
    recorder.stream_waited(7, event)
    call = recorder.collective("all_gather", "0", 64, element_bytes=4)
    recorder.waited(call)
    gathered = recorder.mark(7)
    recorder.stream = 0
    recorder.compute("beside", WORK)
    recorder.stream_waited(0, gathered)
    recorder.compute("behind", WORK)
    assert [one.after for one in recorder.trace.operations] == [(), (0,), (0,), (1,), (0, 2, 3)]


def test_what_the_host_waits_for_streams_to_come_wait_for() -> None:
    recorder = RankRecorder(0, 1)
    recorder.compute("first", WORK)
    recorder.stream = 3
    recorder.compute("apart", WORK)
    recorder.host_waited()
    recorder.stream = 5
    recorder.compute("behind", WORK)
    assert [one.after for one in recorder.trace.operations] == [(), (), (0, 1)]


def test_ranks_that_exchange_messages_are_found_one_after_the_other(tmp_path: Path) -> None:
    asked = Asked(Path("a.py"), (), 16, 8)
    assert _wanted(asked, tmp_path) == {0}
    for rank, peer in ((0, 4), (4, 8), (8, 12), (3, 5)):
        meet(tmp_path, rank, peer)
    assert _wanted(asked, tmp_path) == {0, 4, 8, 12}


def test_stages_of_any_order_of_ranks_have_their_own() -> None:
    outermost = _spans(Asked(Path("a.py"), (), 16, 8), (0, 8))
    assert outermost == {0: tuple(range(8)), 8: tuple(range(8, 16))}
    within = _spans(Asked(Path("a.py"), (), 16, 8), (0, 4))
    assert within == {0: (0, 1, 2, 3, 8, 9, 10, 11), 4: (4, 5, 6, 7, 12, 13, 14, 15)}
    with pytest.raises(ConfigError, match="no regular way: expected --ranks"):
        _spans(Asked(Path("a.py"), (), 16, 8), (0, 5, 7))


def _calls(job: CapturedJob, stage: int) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for one in job.classes[stage].operations:
        if isinstance(one, Collective):
            found[one.kind, one.group.removeprefix("mesh_"), one.size_bytes] += 1
        elif isinstance(one, Message):
            found["send" if one.sends else "receive", one.peers, one.size_bytes] += 1
    return found


def _closed_form(stage: int, stages: int, sizes: dict[str, int], *, world: int) -> Counter[tuple[Any, ...]]:
    """Calls of a rank in one step, as docs/torch.md writes them down."""
    hidden, sequence, micro_batches, tp = (sizes[key] for key in ("hidden", "sequence", "micro-batches", "tp"))
    layers, vocabulary = sizes["layers"] // stages, sizes["vocabulary"]
    keys = hidden // sizes["heads"] * sizes["groups"]
    first, last = stage == 0, stage == stages - 1
    found: Counter[tuple[Any, ...]] = Counter()
    activation = 2 * sequence * hidden
    found["all_reduce", "tp", activation] = micro_batches * (4 * layers + first + last)
    layer = 2 * (hidden * (2 * hidden + 2 * keys + 3 * sizes["inner"]) // tp + 2 * hidden)
    found["all_gather", "dp", layer] = layers
    found["reduce_scatter", "dp", layer] = layers
    if first or last:
        end = 2 * (vocabulary * hidden // tp + hidden * last)
        found["all_gather", "dp", end] += 1
        found["reduce_scatter", "dp", end] += 1
    if last:
        found["all_reduce", "tp", 4 * sequence] = 2 * micro_batches
        found["all_reduce", "tp", 2 * sequence] = micro_batches
    apart = world // stages
    for there, distance in ((not last, apart), (not first, -apart)):
        if there:
            found["send", distance, activation] = found["receive", distance, activation] = micro_batches
    return found


@pytest.mark.second
@pytest.mark.parametrize("world", [64, 1024])
def test_a_pipeline_of_sharded_tensor_parallel_stages_calls_what_the_closed_form_says(
    tmp_path: Path, world: int
) -> None:
    pytest.importorskip("torch.distributed")
    sizes = {"layers": 8, "hidden": 1024, "inner": 4096, "heads": 16, "groups": 8, "vocabulary": 8192}
    sizes |= {"sequence": 512, "micro-batches": 6, "tp": 8, "pp": 4, "steps": 2}
    arguments = [word for key, value in sizes.items() for word in (f"--{key}", str(value))]
    spec = _spec(world // 8)
    job = ft.capture_program(EXAMPLE, spec, arguments=arguments, step=2)
    assert [len(one.ranks) for one in job.classes] == [world // 4] * 4
    for stage in range(4):
        assert _calls(job, stage) == _closed_form(stage, 4, sizes, world=world), stage
    write_captured(job, tmp_path / "job.json")
    played = ft.run(
        spec.with_({"workload": {"captured": str(tmp_path / "job.json")}, "run": {"fidelity": "analytic"}})
    )
    assert played.step_time > 0


ONE = """
import sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
x = torch.ones(1024, 1024, device="cuda")
dist.all_reduce(x)
print(f"{(x @ x).sum().item():.1f}")
if sys.argv[1:] == ["value"]:
    x.argmax().item()
if sys.argv[1:] == ["object"]:
    found = [None]
    dist.broadcast_object_list(found, src=3)
if sys.argv[1:] == ["graph"]:
    torch.cuda.CUDAGraph()
if sys.argv[1:] == ["triton"]:
    import triton
"""


@pytest.mark.second
def test_a_program_without_messages_is_one_class(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    (tmp_path / "one.py").write_text(ONE)
    job = ft.capture_program(tmp_path / "one.py", _spec(2))
    assert [(one.name, len(one.ranks)) for one in job.classes] == [("all ranks", 16)]
    assert _calls(job, 0) == {("all_reduce", "world", 4 << 20): 1}
    assert "1 values of tensors were read, which were taken for 0" in job.notes


@pytest.mark.second
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("value", "an element of type torch.int64: has no value in a capture"),
        ("object", "broadcast_object_list from rank 3 to rank 0: cannot be captured"),
        ("graph", "torch.cuda.CUDAGraph: has no model here"),
        ("triton", "Triton kernels have no model here"),
    ],
)
def test_what_a_capture_cannot_know_is_refused_by_name(tmp_path: Path, what: str, said: str) -> None:
    pytest.importorskip("torch.distributed")
    (tmp_path / "one.py").write_text(ONE)
    with pytest.raises(SimulatedError, match=r"one\.py as rank 0: ended with 1.*" + said):
        ft.capture_program(tmp_path / "one.py", _spec(1), arguments=[what])


@pytest.mark.second
def test_a_step_that_never_comes_is_said(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    (tmp_path / "one.py").write_text(ONE)
    with pytest.raises(SimulatedError, match="ended before step 3 of its optimizer"):
        ft.capture_program(tmp_path / "one.py", _spec(1), step=3)


def test_outputs_that_are_known_are_those_that_an_operator_returns() -> None:
    pytest.importorskip("torch.distributed")
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    from fabrictwin.torch.capture.known_outputs import KnownOutputs

    ops, known, counts = torch.ops.aten, KnownOutputs(), Counter[bool]()
    with FakeTensorMode():
        a, whole = torch.empty(4, 6), torch.empty(4, 6, dtype=torch.int64)
        calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
            (ops.mm.default, (a, a.t()), {}),
            (ops.add.Tensor, (a, a.t().contiguous().t()), {}),
            (ops.add.Tensor, (whole, 1), {}),
            (ops.add.Tensor, (whole, 1.0), {}),  # of another type, by a scalar that equals the one above
            (ops.add.Tensor, (whole, True), {}),
            (ops.sum.dim_IntList, (a, [1], True), {}),
            (ops.sum.dim_IntList, (a, [1], False), {"dtype": torch.float64}),
            (ops.cat.default, ([a, a],), {}),
            (ops.t.default, (a,), {}),
            (ops._unsafe_view.default, (a, [24]), {}),
            (ops.mul_.Tensor, (a, 2.0), {}),
        ]
        for func, args, kwargs in (*calls, *calls):
            truth = func(*args, **kwargs)
            found = known.call(func, args, kwargs)
            assert type(found) is FakeTensor
            for one in (lambda x: x.shape, lambda x: x.stride(), lambda x: x.dtype, lambda x: x.device):
                assert one(found) == one(truth), func
            same = [x.untyped_storage()._cdata == a.untyped_storage()._cdata for x in (found, truth)]
            assert same[0] == same[1], func
            counts[same[0]] += 1
    assert counts == {True: 6, False: 16}
    assert sum(one is not None for one in known._found.values()) == 7
