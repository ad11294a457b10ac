"""Records of ranks put together, without torch; and programs run on the backend, where torch is there."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fabrictwin as ft
from fabrictwin.api.traces import script_place
from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.torch.call_log import CallLog, CallLogs
from fabrictwin.torch.rank_record import read_records, write_record
from fabrictwin.torch.rank_recorder import RankRecorder
from fabrictwin.workload.captured.captured_file import write_captured
from fabrictwin.workload.captured.captured_job import Collective, Work

WORK = Work((64, 64, 64, 1), None, False, 49152, "fp32")


def _recorded(rank: int, size: int = 4096) -> RankRecorder:
    recorder = RankRecorder(rank, 2)
    recorder.group("0", (0, 1), "default_pg")
    recorder.compute("aten::mm", WORK)
    first = recorder.collective("all_reduce", "0", size, element_bytes=4)
    recorder.compute("aten::mm", WORK)
    recorder.waited(first)
    recorder.compute("aten::mm", WORK)
    recorder.collective("broadcast", "0", 64, element_bytes=4, root=1)
    recorder.joined()
    recorder.compute("aten::add", WORK)
    return recorder


def test_groups_of_a_world_that_is_made_anew_are_others() -> None:
    recorder = RankRecorder(0, 2)
    assert recorder.key("0") == "0"
    recorder.regrouped()
    assert recorder.key("0") != "0"


def test_compute_by_time_has_no_work() -> None:
    recorder = RankRecorder(0, 1)
    recorder.compute("aten::mm", WORK, 1500)
    recorder.compute("aten::mm", WORK)
    assert [(one.time_ps, one.work) for one in recorder.trace.operations] == [(1500, None), (None, WORK)]


def test_compute_waits_from_the_wait_on_and_calls_of_a_group_in_order() -> None:
    after = [one.after for one in _recorded(0).trace.operations]
    assert after == [(), (0,), (0,), (1, 2), (1, 3), (3, 4)]


def test_ranks_records_make_one_job(tmp_path: Path) -> None:
    for rank in range(2):
        write_record(_recorded(rank).trace, tmp_path / f"rank.{rank}.json")
    job = read_records(tmp_path, "train")
    assert (job.world, len(job.classes), job.name) == (2, 1, "train")
    calls = [one for one in job.classes[0].operations if isinstance(one, Collective)]
    assert [(one.kind, one.root) for one in calls] == [("all_reduce", 0), ("broadcast", 1)]


def test_the_table_of_a_run_has_bytes_choice_and_what_compute_hides(tmp_path: Path) -> None:
    size = 16 << 20
    for rank in range(2):
        write_record(_recorded(rank, size).trace, tmp_path / f"rank.{rank}.json")
    write_captured(read_records(tmp_path, "train"), tmp_path / "job.json")
    network = {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"}
    cluster = {"hosts": {"type": "dgx-h100", "count": 1}, "network": network}
    workload = {"captured": str(tmp_path / "job.json")}
    spec = ft.load({"schema": 1, "name": "a", "cluster": cluster, "workload": workload})
    found = ft.run(spec)
    reduced, sent = found.communications
    test = ft.nccl_tests("all_reduce_perf", spec, minbytes=size, maxbytes=size, np=2, iters=1, check=0).rows[0]
    assert (reduced["size_bytes"], reduced["group_ranks"], reduced["calls"]) == (size, 2, 1)
    assert reduced["algorithm"] == test["algorithm"].lower()
    assert reduced["protocol"] == test["protocol"].lower()
    # one product runs beside the all-reduce, nothing beside the broadcast, which the optimizer waits for
    compute = next(one for one in found.detail.job.program.operations.duration_ps.tolist() if one)
    assert reduced["hidden_s"] == pytest.approx(compute / 1e12)
    assert reduced["exposed_s"] + reduced["hidden_s"] == pytest.approx(reduced["each_s"])
    assert (sent["hidden_s"], sent["exposed_s"]) == (0, pytest.approx(sent["each_s"]))


def test_a_rank_that_left_no_record_is_named(tmp_path: Path) -> None:
    write_record(_recorded(0).trace, tmp_path / "rank.0.json")
    with pytest.raises(SimulatedError, match="rank 1: ended without its record"):
        read_records(tmp_path, "train")


def _logs(folder: Path, *calls: list[tuple[str, int | None, str]]) -> CallLogs:
    for rank, made in enumerate(calls):
        log = CallLog(folder / f"calls.{rank}")
        log.group("0", tuple(range(len(calls))))
        for kind, size, dtype in made:
            log.call("0", kind, size, dtype, 0)
    return CallLogs(folder)


def test_ranks_that_disagree_are_named_by_call(tmp_path: Path) -> None:
    good, other = ("all_reduce", 64, "float32"), ("all_reduce", 64, "int32")
    logs = _logs(tmp_path, [good, good], [good])
    assert logs.disagreement() is None
    assert logs.missing() == (
        "call 2 on group '0' of 2 ranks: rank 0 called all_reduce of 64 B float32, rank 1 never did"
    )
    CallLog(tmp_path / "calls.1").call("0", *other, 0)  # the file grows, and what is new is read
    assert logs.disagreement() == (
        "call 2 on group '0' of 2 ranks: rank 0 called all_reduce of 64 B float32, rank 1 all_reduce of 64 B int32"
    )


def test_uneven_exchanges_and_subgroups_of_one_name_agree(tmp_path: Path) -> None:
    uneven = ("all_to_all", None, "float32")
    logs = _logs(tmp_path, [uneven], [uneven])
    for rank, size in ((0, 4), (1, 8)):
        log = CallLog(tmp_path / f"calls.{rank}")
        log.group("mine", (rank,))
        log.call("mine", "all_reduce", size, "float32", 0)
    assert logs.disagreement() is None
    assert logs.missing() is None


def test_the_script_is_found_among_torchruns_options() -> None:
    assert script_place(["--nproc-per-node", "2", "--standalone", "--rdzv-id=3", "a.py", "--x"]) == 4
    with pytest.raises(ConfigError, match="no script"):
        script_place(["--nproc-per-node", "2"])


PROGRAM = """
import sys, torch, torch.nn as nn, torch.distributed as dist
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
torch.manual_seed(0)
x, y, one, many = torch.randn(8 * world, 64), torch.randn(8 * world, 64), model(), model()
if sys.argv[1] == "ddp":
    many = nn.parallel.DistributedDataParallel(many)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (world,))
    for layer in (many[0], many[2], many):
        fully_shard(layer, mesh=mesh)
mine = slice(rank * 8, rank * 8 + 8)
for model, a, b in ((one, x, y), (many, x[mine], y[mine])):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        ((model(a) - b) ** 2).mean().backward()
        optimizer.step()
whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in many.parameters()]
assert all(torch.allclose(a, b, atol=1e-6, rtol=0) for a, b in zip(one.parameters(), whole))
dist.destroy_process_group()
"""


@pytest.mark.second
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_a_program_computes_what_one_process_does_and_takes_the_clusters_time(tmp_path: Path, how: str) -> None:
    pytest.importorskip("torch.distributed")
    (tmp_path / "train.py").write_text(PROGRAM)
    network = {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"}
    spec = {"schema": 1, "name": "a", "cluster": {"hosts": {"type": "dgx-h100", "count": 1}, "network": network}}
    from fabrictwin.api.traces import torchrun

    found = torchrun(ft.load(spec), ["--standalone", "--nproc-per-node", "2", str(tmp_path / "train.py"), how])
    names = set(found.collectives["name"])
    assert ({"world all-reduce"} if how == "ddp" else {"world all-gather", "world reduce-scatter"}) <= names
    assert found.step_time > 0


@pytest.mark.second
def test_import_torch_knows_the_backend_by_its_entry_point(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "plugin-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(
        "[torch.backends]\n"
        + "".join(f"{name} = {place}\n" for name, place in project["entry-points"]["torch.backends"].items())
    )
    code = (
        "import sys, torch, torch.distributed as dist\n"
        "assert 'fabrictwin.nccl' not in sys.modules\n"
        "dist.init_process_group('fabrictwin', init_method=f'file://{sys.argv[1]}', rank=0, world_size=1)\n"
        "one = torch.ones(3); dist.all_reduce(one); assert one.tolist() == [1, 1, 1]\n"
        "assert dist.get_backend() == 'fabrictwin'\n"
        "dist.destroy_process_group()\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-c", code, str(tmp_path / "store")]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.second
def test_a_program_whose_ranks_disagree_ends_with_both_calls(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    (tmp_path / "bad.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "one = torch.ones(4)\n"
        "dist.all_reduce(one) if dist.get_rank() else dist.broadcast(one, 0)\n"
    )
    from fabrictwin.api.traces import torchrun

    network = {"technology": "infiniband", "topology": {"kind": "rail-optimised"}, "switch": "qm9700"}
    spec = {"schema": 1, "name": "a", "cluster": {"hosts": {"type": "dgx-h100", "count": 1}, "network": network}}
    with pytest.raises(SimulatedError, match=r"rank 0 called broadcast .*, root 0, rank 1 all_reduce of 16 B"):
        torchrun(ft.load(spec), ["--standalone", "--nproc-per-node", "2", str(tmp_path / "bad.py")])


def test_no_other_room_imports_torch() -> None:
    code = "import fabrictwin.api.traces, fabrictwin.cli, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
