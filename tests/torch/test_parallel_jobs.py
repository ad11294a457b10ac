"""Programs made parallel in every way that PyTorch offers, on the backend: parameters, times and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fabrictwin as ft
from fabrictwin.api.traces import torchrun
from fabrictwin.base.errors import SimulatedError
from fabrictwin.torch.call_log import CallLog, CallLogs

PROGRAM = Path(__file__).parents[1] / "support" / "parallel_jobs.py"
WAYS = ("ddp", "fsdp1", "fsdp2", "hsdp", "tp", "sp", "1f1b", "interleaved", "experts", "compile")


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> ft.Spec:
    """One host of eight GPUs. One thread a process: the ranks share this machine's cores."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    network = {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"}
    cluster = {"hosts": {"type": "dgx-h100", "count": 1}, "network": network}
    return ft.load({"schema": 1, "name": "a", "cluster": cluster})


def _run(spec: ft.Spec, ranks: int, script: Path, *arguments: str) -> ft.Result:
    pytest.importorskip("torch.distributed")
    return torchrun(spec, ["--standalone", "--nproc-per-node", str(ranks), str(script), *arguments])


@pytest.mark.second
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_way_leaves_the_parameters_of_one_process(
    spec: ft.Spec, ranks: int, capfd: pytest.CaptureFixture[str]
) -> None:
    found = _run(spec, ranks, PROGRAM, ",".join(WAYS), "nccl", "64", "64")
    rows = [line.split() for line in capfd.readouterr().out.splitlines() if line.startswith("way ")]
    assert [row[1] for row in rows] == list(WAYS)
    assert {row[1]: float(row[2]) for row in rows if float(row[2]) > 1e-6} == {}
    assert found.step_time > 0
    kinds = {row["name"].split()[-1] for row in found.communications}
    assert {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send"} <= kinds


CALLS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
w = dist.get_world_size()
for n in (1 << 10, 1 << 16, 1 << 21):
    x, one = torch.ones(n * w, device="cuda"), torch.ones(n, device="cuda")
    dist.all_reduce(x); dist.broadcast(x, 0); dist.reduce(x, 0)
    dist.all_gather_into_tensor(x, one)
    dist.reduce_scatter_tensor(one, x)
    dist.all_to_all_single(torch.empty_like(x), x)
dist.destroy_process_group()
"""
TESTS = {"all-reduce": "all_reduce", "broadcast": "broadcast", "reduce": "reduce", "all-gather": "all_gather",
         "reduce-scatter": "reduce_scatter", "all-to-all": "alltoall"}  # fmt: skip


@pytest.mark.second
def test_every_collective_takes_the_time_of_nccl_tests(spec: ft.Spec, tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    found = _run(spec, 4, tmp_path / "calls.py").communications
    assert len(found) == 3 * len(TESTS)
    for row in found:
        size, kind = row["size_bytes"], TESTS[row["name"].split()[-1]]
        test = ft.nccl_tests(f"{kind}_perf", spec, minbytes=size, maxbytes=size, np=4, iters=1, check=0).rows[0]
        assert row["each_s"] == pytest.approx(test["time_us"] / 1e6, rel=0.02), (kind, size)


ONE_ON_A_HOST = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
x = torch.ones(1 << 22, device="cuda")
for _ in range(3):
    x = x * 2 + 1
dist.all_reduce(x)
dist.destroy_process_group()
"""


@pytest.mark.second
def test_degraded_links_and_slow_gpus_act_on_a_program(tmp_path: Path) -> None:
    """Two hosts of one GPU: a quarter of a link is a quarter of the bandwidth, as nccl-tests has it."""
    (tmp_path / "one.py").write_text(ONE_ON_A_HOST)
    network = {"technology": "ethernet", "topology": {"kind": "single-switch"}, "switch": "spectrum-4"}
    cluster = {"hosts": {"type": "pcie-box-100g", "count": 2}, "network": network}
    faults: dict[str, dict[str, Any]] = {
        "healthy": {},
        "link": {"link": "host-1/mlx5_0", "rate": "25 Gb/s"},
        "gpu": {"gpu": "host-1/gpu0", "slowdown": 4.0},
    }
    times, computes = {}, {}
    for name, fault in faults.items():
        spec = ft.load({"schema": 1, "name": name, "cluster": cluster, "faults": [fault] if fault else []})
        found = _run(spec, 2, tmp_path / "one.py")
        (row,) = found.communications
        times[name], computes[name] = row["each_s"], found.step_time - row["exposed_s"]
        test = ft.nccl_tests("all_reduce_perf", spec, minbytes=1 << 24, maxbytes=1 << 24, np=2, iters=1, check=0)
        assert row["each_s"] == pytest.approx(test.rows[0]["time_us"] / 1e6, rel=0.02), name
    assert times["link"] > 3 * times["healthy"]
    assert times["gpu"] == pytest.approx(times["healthy"])
    assert computes["gpu"] > 3 * computes["healthy"]


CUDA = """
import sys, torch, torch.distributed as dist
assert torch.cuda.is_available() and "H100" in torch.cuda.get_device_name()
torch.cuda.set_device(dist.get_node_local_rank() if dist.is_initialized() else 0)
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
model = torch.nn.Linear(256, 256, device="cuda")
model = torch.nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[torch.cuda.current_device()])
optimizer = torch.optim.AdamW(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cuda")
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record()
side = torch.cuda.Stream()
with torch.cuda.stream(side), torch.autocast("cuda", dtype=torch.bfloat16):
    loss = model(torch.ones(16, 256).pin_memory().to("cuda", non_blocking=True)).float().square().mean()
torch.cuda.current_stream().wait_stream(side)
scaler.scale(loss).backward()
scaler.step(optimizer); scaler.update()
end.record(); torch.cuda.synchronize()
assert torch.cuda.max_memory_allocated() >= 4 * 256 * 256
assert loss.item() > 0
others = [torch.zeros(1, device="cuda") for _ in range(2)]
if dist.get_rank() == 0:
    assert dist.recv(others[0]) == 1 and others[0].item() == 7
else:
    dist.send(torch.full((1,), 7.0, device="cuda"), 0)
dist.monitored_barrier(timeout=__import__("datetime").timedelta(seconds=60))
sys.stdout.write(f"mean {loss.item()}\\n")  # in one piece: torchrun runs Python unbuffered, and both ranks write
dist.destroy_process_group()
"""


@pytest.mark.second
def test_a_program_for_gpus_runs_on_the_cpu(
    spec: ft.Spec, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "for_gpus.py").write_text(CUDA)
    found = _run(spec, 2, tmp_path / "for_gpus.py")
    means = [line for line in capfd.readouterr().out.splitlines() if line.startswith("mean ")]
    assert len(means) == 2
    assert means[0] == means[1]
    assert any(row["name"].endswith("send") for row in found.communications)


NAMES = """
import threading
import torch, torch.distributed as dist
from torch.distributed import ReduceOp
assert dist.is_nccl_available() and torch.cuda.nccl.version() == (2, 28, 9)
for backend, named in (("nccl", "nccl"), ("cpu:gloo,cuda:nccl", "nccl"), (None, "nccl"), ("gloo", "gloo")):
    dist.init_process_group(backend)
    assert dist.get_backend() is dist.Backend(named), dist.get_backend()
    assert dist.get_backend(dist.new_group([0, 1], backend="gloo")) == "gloo"
    rank, group, half = dist.get_rank(), dist.group.WORLD, dist._make_nccl_premul_sum(0.5)
    one = torch.full((4,), rank + 1.0, device="cuda")
    dist.all_reduce(one, op=half)
    assert one.eq(1.5).all()
    kept, both = torch.full((4,), rank + 1.0), torch.full((8,), rank + 1.0)
    dist.reduce(kept, 0, op=half)
    assert kept.eq(1.5 if rank == 0 else 2.0).all()
    dist.reduce_scatter_tensor(kept, both, op=half)
    assert kept.eq(1.5).all() and both.eq(rank + 1.0).all()
    parts = [torch.empty(4) for _ in range(2)]
    group.allreduce(one, op=ReduceOp.MAX).wait()
    group.broadcast(one, root=1).wait()
    group.allgather(parts, one).wait()
    group.scatter(one, parts if rank == 0 else [], root=0).wait()
    group.gather(parts if rank == 0 else [], one, root=0).wait()
    group.reduce_scatter(one, parts, op=ReduceOp.SUM).wait()
    assert one.eq(3.0).all(), one
    try:
        group.allreduce([])
    except (RuntimeError, ValueError):
        pass
    else:
        raise AssertionError("took no tensors")
    both = torch.full((1 << 16,), rank + 1.0, device="cuda")
    dist.all_reduce(both, op=ReduceOp.AVG, async_op=True)
    torch.cuda.synchronize()  # which waits for NCCL's stream as well
    assert both.eq(1.5).all()
    dist.destroy_process_group()
from torch.testing._internal.two_tensor import TwoTensor
dist.init_process_group("nccl")
wraps = TwoTensor(torch.full((4,), rank + 1.0), torch.full((4,), 10.0 * (rank + 1)))
dist.all_reduce(wraps, op=ReduceOp.AVG)
assert wraps.a.eq(1.5).all() and wraps.b.eq(15.0).all()
pair = [TwoTensor(torch.full((4,), k + 1.0), torch.full((4,), k + 5.0)) for k in range(2)]
dist.scatter(wraps, pair if dist.get_rank() == 0 else None, src=0)
assert wraps.a.eq(dist.get_rank() + 1.0).all() and wraps.b.eq(dist.get_rank() + 5.0).all()
made = []
thread = threading.Thread(target=lambda: made.append(torch.ones(2, device="cuda")))
thread.start(); thread.join()
assert made
"""


@pytest.mark.second
def test_groups_bear_the_names_that_a_program_gives_and_can_be_made_anew(spec: ft.Spec, tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text(NAMES)
    found = _run(spec, 2, tmp_path / "names.py")
    calls = sum(row["calls"] for row in found.communications)
    assert calls == 4 * 10 + 4  # of each of four worlds, all recorded, and of what a tensor wraps


@pytest.mark.second
def test_compute_takes_what_it_took_here_only_where_that_is_asked_for(spec: ft.Spec, tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    (tmp_path / "one.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "a = torch.ones(1024, 1024, device='cuda')\n"
        "dist.all_reduce(a @ a)\n"
    )
    command = ["--standalone", "--nproc-per-node", "2", str(tmp_path / "one.py")]
    said = "compute takes what it took on this machine's processor, as was asked for"
    modelled, measured = (torchrun(spec, command, measured=one) for one in (False, True))
    assert said not in modelled.detail.job.notes
    assert said in measured.detail.job.notes
    assert measured.step_time > 10 * modelled.step_time


HANG = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(4)
first, second = (dist.new_group([0, 1]) for _ in range(2))
if dist.get_rank():
    first, second = second, first
dist.all_reduce(one, group=first)
dist.all_reduce(one, group=second)
"""


@pytest.mark.second
def test_ranks_that_wait_for_each_other_are_named(spec: ft.Spec, tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text(HANG)
    said = r"hangs: rank 0 waits in call 1 on .* all_reduce of 16 B .*, for rank 1; rank 1 waits .* for rank 0"
    with pytest.raises(SimulatedError, match=said):
        _run(spec, 2, tmp_path / "hang.py")


def _logs(folder: Path, ranks: int) -> tuple[list[CallLog], CallLogs]:
    made = [CallLog(folder / f"calls.{rank}") for rank in range(ranks)]
    for log in made:
        log.group("0", tuple(range(ranks)))
    return made, CallLogs(folder)


def _stuck(logs: CallLogs) -> str | None:
    assert logs.disagreement() is None
    return logs.hang()


def test_a_rank_that_ended_is_waited_for_in_vain(tmp_path: Path) -> None:
    (first, second), logs = _logs(tmp_path, 2)
    call = first.call("0", "all_reduce", 64, "float32", 0)
    with first.waiting(call):
        assert _stuck(logs) is None  # the other may still come
        second.end()
        assert _stuck(logs) == (
            "rank 0 waits in call 1 on group '0' of 2 ranks, all_reduce of 64 B float32, for rank 1 (ended)"
        )
    assert _stuck(logs) is None


def test_two_receives_wait_for_each_other_and_a_matched_one_does_not(tmp_path: Path) -> None:
    (first, second), logs = _logs(tmp_path, 2)

    def both(a: Any, b: Any) -> str | None:
        with first.waiting(a), second.waiting(b):
            return _stuck(logs)

    receives = first.message(1, 3, sends=False), second.message(0, 3, sends=False)
    assert both(*receives) == (
        "rank 0 waits to receive from rank 1 (message 1 with tag 3); "
        "rank 1 waits to receive from rank 0 (message 1 with tag 3)"
    )
    first.message(1, 3, sends=True)
    assert both(*receives) is None  # the second has what it waits for
