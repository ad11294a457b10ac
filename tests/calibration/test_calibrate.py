"""Constants found again from measurements that were made with known ones, and rules about few points."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import fabrictwin as ft
from fabrictwin.base.errors import ConfigError
from fabrictwin.calibration.calibrate import calibrate
from fabrictwin.calibration.fitting import Prior, fit
from fabrictwin.calibration.inputs import read_inputs
from fabrictwin.cli.predict.calibrate import calibrate as command
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import load_spec, read_spec
from fabrictwin.tools.perftest import perftest_text
from fabrictwin.tools.perftest.perftest_loops import play
from fabrictwin.tools.perftest.perftest_options import PerftestOptions
from fabrictwin.twin.routed_twin import make_twin

JOB = {
    "schema": 1,
    "name": "job",
    "cluster": {
        "hosts": {"type": "dgx-h100", "count": 2},
        "network": {"technology": "infiniband", "switch": "qm9700", "topology": {"kind": "fat-tree"}},
    },
    "workload": {
        "training": {
            "model": {
                "_name": "small",
                "hidden_size": 1024,
                "intermediate_size": 2816,
                "num_hidden_layers": 4,
                "num_attention_heads": 16,
                "vocab_size": 32000,
            },
            "global_batch": 64,
            "micro_batch_size": 4,
            "sequence": 2048,
        }
    },
    "run": {"fidelity": "analytic"},
}


def measured(**corrections: float) -> str:
    """Return nccl-tests' output of a machine that has these corrections."""
    spec = read_spec({**JOB, "calibration": {"collectives": corrections}} if corrections else JOB)
    sizes = {"minbytes": "8", "maxbytes": "1G", "stepfactor": 32}
    return str(ft.nccl_tests("all_reduce_perf", spec, fidelity="analytic", ngpus=8, check=0, **sizes))


@pytest.mark.second
def test_what_a_machine_adds_to_a_launch_is_found_again(tmp_path: Path) -> None:
    table = tmp_path / "out.txt"
    table.write_text(measured(launch_us=9.0, hop=1.3))
    found = calibrate(read_spec(JOB), [table])
    constants = {one.name: one.after for one in found.fitted}
    assert constants["collectives.launch_us"] == pytest.approx(9.0, abs=1.0)
    assert constants["collectives.hop"] == pytest.approx(1.3, abs=0.1)
    before, after, alone = found.fitted[0].errors
    assert before > 0.2
    assert after < 0.02
    assert alone is not None
    assert alone < 0.03
    # the file makes nccl-tests on the same cluster print what was measured
    found.save(tmp_path / "calibration.yaml")
    (tmp_path / "spec.yaml").write_text(json.dumps({**JOB, "calibration": "calibration.yaml"}))
    again = calibrate(load_spec(tmp_path / "spec.yaml"), [table])
    assert again.fitted == found.fitted  # a calibration that is named is not calibrated upon
    spec = load_spec(tmp_path / "spec.yaml")
    rows = ft.nccl_tests(
        "all_reduce_perf", spec, fidelity="analytic", ngpus=8, check=0, minbytes="8", maxbytes="8"
    )
    assert rows.rows["time_us"][0] == pytest.approx(read_inputs([table]).collectives[0].rows[0][1], rel=0.03)


def test_a_step_says_what_share_of_its_kernels_a_framework_reaches(tmp_path: Path) -> None:
    spec = read_spec(JOB)
    step = ft.run(spec).step_time
    found = calibrate(spec, step_times=[step * 1.2])
    others, own = found.fitted
    assert (others.name, own.name) == ("compute_share", "same_job.compute_share")
    assert 0.7 < own.after < others.after < 0.92
    assert own.errors[1] < 0.02 < others.errors[1] < others.errors[0]
    path = found.save(tmp_path / "c.yaml")
    slower = ft.run(load_spec_with(tmp_path, path.name)).step_time
    assert slower == pytest.approx(step * 1.2, rel=0.02)
    again = calibrate(load_spec_with(tmp_path, path.name), step_times=[step * 1.2])
    assert again.fitted == found.fitted  # not calibrated upon


def test_what_a_step_shows_of_its_own_job_holds_on_any_number_of_gpus(tmp_path: Path) -> None:
    spec = read_spec(JOB)
    path = calibrate(spec, step_times=[ft.run(spec).step_time * 1.2]).save(tmp_path / "c.yaml")
    own = yaml.safe_load(path.read_text())["same_job"]["compute_share"]

    def share(hosts: int = 2, **training: Any) -> float:
        return share_of(load_spec_with(tmp_path, path.name, hosts, **training))

    assert share() == share(hosts=4) == share(global_batch=128) == own
    for other in ({"sequence": 1024}, {"micro_batch_size": 2}, {"precision": "fp8"}, {"parallel": {"tp": 2}}):
        assert share(**other) > own  # another job, which one row says less of
    assert share(parallel={"dp": 16}) == own
    assert share(compute_share=0.5) == 0.5


def share_of(spec: ft.Spec) -> float:
    return float(spec.workload["training"]["compute_share"])


def load_spec_with(folder: Path, calibration: str, hosts: int = 2, **training: Any) -> ft.Spec:
    job: Any = json.loads(json.dumps({**JOB, "calibration": calibration}))
    job["cluster"]["hosts"]["count"] = hosts
    job["workload"]["training"] |= training
    (folder / "with.yaml").write_text(json.dumps(job))
    return load_spec(folder / "with.yaml")


def test_a_single_row_within_a_tenth_changes_nothing(tmp_path: Path) -> None:
    spec = read_spec(JOB)
    found = calibrate(spec, step_times=[ft.run(spec).step_time * 1.08])
    assert not found.changes
    assert "one point, applied beyond 10% alone" in str(found)
    with pytest.raises(ConfigError, match="nothing was changed"):
        found.save(tmp_path / "c.yaml")


def test_a_profile_gives_the_median_of_its_steps(tmp_path: Path) -> None:
    events = [{"name": f"ProfilerStep#{i}", "ts": 0, "dur": length} for i, length in enumerate((5e5, 4e5, 9e5))]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [*events, {"name": "ProfilerStep#1", "dur": 1e5}]}))
    assert read_inputs([path]).steps_s == (0.5,)


def test_products_are_one_factor_a_type(tmp_path: Path) -> None:
    from fabrictwin.workload.layers.roofline import Roofline

    roof = Roofline("h100-sxm", "bf16")
    shapes = [(m, n, k) for m in (512, 4096) for n in (1024, 8192) for k in (2048, 4096)]
    lines = ["gemm_dtype,m,n,k,latency_ms"]
    lines += [f"bfloat16,{m},{n},{k},{roof.linear(m, n, k).ps / 1e9 / 0.8}" for m, n, k in shapes]
    path = tmp_path / "products.csv"
    path.write_text("\n".join(lines))
    (one,) = calibrate(read_spec(JOB), [path]).fitted
    assert one.after == pytest.approx(0.8, abs=0.01)
    job = read_spec({**JOB, "calibration": {"products": {"bf16": 0.8}}})
    assert job.workload["training"]["product_share"] == 0.8
    assert ft.run(job).step_time > ft.run(read_spec(JOB)).step_time * 1.05


def test_few_points_stay_near_the_prior_and_many_leave_it() -> None:
    prior = Prior("x", 1.0, 0.1)

    def fitted(points: int) -> float:
        def logs(at: np.ndarray) -> np.ndarray:
            return np.full(points, math.log(prior.at(float(at[0])) / 1.3))

        return fit(logs, [prior], points, "rows")[0].after

    assert 1.0 < fitted(1) < fitted(30) < 1.3
    with pytest.raises(AssertionError, match="never from fewer points"):
        fit(lambda at: np.zeros(1), [prior, prior], 1, "rows")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing here", "expected a table of nccl-tests or perftest"),
        ('{"a": 1}', "got no traceEvents"),
        ('{"traceEvents": []}', "got no ProfilerStep"),
        ("gemm_dtype,m,n,k\nbfloat16,1,1,1\n", "got no column"),
        ("# Collective test starting: other_perf\n 8 2 float sum -1 10.0 1 1 0\n", "got a table of other_perf"),
    ],
)
def test_files_of_no_use_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        calibrate(read_spec(JOB), [path])


def test_a_share_in_the_spec_goes_before_a_calibration() -> None:
    training = {**JOB["workload"]["training"], "compute_share": 0.9}  # type: ignore[index]
    spec = read_spec({**JOB, "workload": {"training": training}, "calibration": {"compute_share": 0.5}})
    assert spec.workload["training"]["compute_share"] == 0.9
    with pytest.raises(ConfigError, match="take it out"):
        calibrate(read_spec({**JOB, "workload": {"training": training}}), step_times=[1.0])


def test_the_command_writes_what_it_prints(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(json.dumps(JOB))
    out = tmp_path / "calibration.yaml"
    arguments = [
        str(tmp_path / "spec.yaml"),
        "--step-time",
        f"{1.3 * ft.run(read_spec(JOB)).step_time:.6f} s",
        "--write",
        str(out),
    ]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert "compute_share" in done.output
    assert "compute_share" in out.read_text()
    nothing = CliRunner().invoke(command, [str(tmp_path / "spec.yaml")])
    assert "got no measurement" in str(nothing.exception)


TWO = {
    "schema": 1,
    "name": "two",
    "cluster": {
        "hosts": {"type": "pcie-box-100g", "count": 2},
        "network": {"technology": "ethernet", "switch": "sn2700", "topology": {"kind": "single-switch"}},
    },
}


def perftest(test: str, corrections: dict[str, float], *, as_json: bool = False, **options: Any) -> str:
    """Return what perftest prints between two hosts that have these corrections."""
    spec = read_spec({**TWO, "calibration": {"adapters": corrections}} if corrections else TWO)
    twin = make_twin(spec, build(spec.cluster, spec=spec))
    run = play(twin, PerftestOptions(test=test, source="host-0", target="host-1", **options))
    return json.dumps(perftest_text.as_json(run)) if as_json else perftest_text.text(run)


@pytest.mark.second
def test_what_adapters_add_and_reach_is_found_again(tmp_path: Path) -> None:
    true = {"latency_ns": 700.0, "message_rate": 0.8}
    tables = {
        "write.txt": perftest("ib_write_lat", true, size=8, iterations=5)
        + perftest("ib_write_lat", true, size=4096, iterations=5),
        "read.json": perftest("ib_read_lat", true, as_json=True, size=64, iterations=5),
        "rate.txt": perftest("ib_write_bw", true, size=64, iterations=300, queue_pairs=2, inline=0)
        + perftest("ib_send_bw", true, size=65536, iterations=100),
    }
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
    found = calibrate(read_spec(TWO), [tmp_path / name for name in tables])
    constants = {one.name: (one.after, one.points) for one in found.fitted if one.applied}
    assert constants["adapters.latency_ns"][0] == pytest.approx(700, abs=40)
    assert constants["adapters.latency_ns"][1] == 3
    assert constants["adapters.message_rate"][0] == pytest.approx(0.8, rel=0.02)
    assert constants["adapters.message_rate"][1] == 1  # 64 KiB are decided by the wire
    # what was fitted reproduces the machine
    again = read_spec({**TWO, "calibration": found.data})
    twin = make_twin(again, build(again.cluster, spec=again))
    (row,) = play(
        twin, PerftestOptions(test="ib_write_lat", source="host-0", target="host-1", size=8, iterations=5)
    ).rows
    text = tables["write.txt"].splitlines()
    measured = next(line.split() for line in text if line.strip().startswith("8 "))
    assert row.typical / 1e6 == pytest.approx(float(measured[4]), rel=0.03)


def test_what_no_adapter_can_be_is_an_error(tmp_path: Path) -> None:
    head = "  RDMA_Write BW Test\n #bytes #iterations  BW peak[MB/sec]  BW average[MB/sec]  MsgRate[Mpps]\n"
    (tmp_path / "slow.txt").write_text(f"{head} 64 5000 0.6 0.6 0.01\n")
    with pytest.raises(ConfigError, match=r"for adapters.message_rate from ib_write_bw, expected 0.1 to 10"):
        calibrate(read_spec(TWO), [tmp_path / "slow.txt"])


@pytest.mark.parametrize("fidelity", ["analytic", "flow", "packet"])
def test_latency_of_adapters_holds_at_every_fidelity(fidelity: str) -> None:
    run = {**JOB, "run": {"fidelity": fidelity}}
    plain, later = (
        ft.nccl_tests("sendrecv_perf", read_spec(spec), ngpus=1, hosts=2, check=0, minbytes="8", maxbytes="8")
        for spec in (run, {**run, "calibration": {"adapters": {"latency_ns": 5000}}})
    )
    assert later.rows[0]["time_us"] > plain.rows[0]["time_us"] + 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("   RDMA_Write BW Test\n Mtu : 4096[B]\n", "perftest's header and no row"),
        ("  Send Latency Test\n #bytes #iterations  t_typical[usec]\n 8 100 x\n", "expected figures"),
        ('{"test_info": {"test": "ib_fly_bw"}, "results": []}', "got a test 'ib_fly_bw'"),
        ('{"test_info": {"test": "ib_write_bw"}, "results": [{"MsgSize": 2}]}', "got row 0 of results"),
    ],
)
def test_tables_of_perftest_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "out").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_inputs([tmp_path / "out"])


def unnamed(rows: str, *, ranks: int = 8, first: str = "") -> str:
    """Return a table as releases of nccl-tests print it that do not name their test."""
    named = "".join(f"#   Rank {i:2} Pid 1 on host-0 device {i:2} [0x00] A100-SXM4-40GB\n" for i in range(ranks))
    head = "#  size  count  type  redop  root  time  algbw  busbw\n"
    return f"{first}# nThread 1 nGpus 8\n# Using devices\n{named}{head}{rows}"


@pytest.mark.parametrize(
    ("text", "name", "test"),
    [
        (unnamed("1048576 262144 float sum -1 60.0 17.48 30.58 0\n"), "out.txt", "all_reduce_perf"),
        (unnamed("1048576 262144 float sum -1 60.0 17.48 17.48 0\n", ranks=2), "out.txt", "all_reduce_perf"),
        (unnamed("1048576 32768 float sum -1 60.0 17.48 15.29 0\n"), "out.txt", "reduce_scatter_perf"),
        (unnamed("1048576 32768 float none -1 60.0 17.48 15.29 0\n"), "out.txt", "all_gather_perf"),
        (unnamed("1048576 32768 float none -1 60.0 17.48 15.29 0\n"), "nccl_alltoall.log", "alltoall_perf"),
        (
            unnamed("1048576 32768 float none -1 6.0 9.4 8.2 0\n", first="mpirun ./alltoall_perf -b 8\n"),
            "all_gather.log",
            "alltoall_perf",
        ),
        (unnamed("1048576 262144 float none 0 60.0 17.48 17.48 0\n"), "out.txt", "broadcast_perf"),
        (unnamed("1048576 262144 float sum 0 60.0 17.48 17.48 0\n"), "out.txt", "reduce_perf"),
    ],
)
def test_tables_that_do_not_name_their_test_are_known_by_their_bandwidths(
    tmp_path: Path, text: str, name: str, test: str
) -> None:
    (tmp_path / name).write_text(text)
    (table,) = read_inputs([tmp_path / name]).collectives
    assert (table.program, table.hosts, len(table.rows)) == (test, 1, 1)
