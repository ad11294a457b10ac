"""nccl-tests on the twin: its table, its arithmetic, its JSON, its refusals."""

from __future__ import annotations

import io
import json
import re
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import blueprint

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import silent
from fabrictwin.nccl.settings.settings import read_settings
from fabrictwin.tools.nccl_tests import perf, perf_text
from fabrictwin.tools.nccl_tests.perf import TESTS, Options, Row, Run, parse_size
from fabrictwin.tools.nccl_tests.perf_check import Checker
from fabrictwin.tools.nccl_tests.perf_run import play
from fabrictwin.twin import Twin

# nccl-tests' row: size count type redop root, then time algbw busbw #wrong twice
ROW = re.compile(
    r"^ *(\d+) +(\d+) +(\w+) +(\w+) +(-?\d+)" + r" +([\d.e+]+) +([\d.e+]+) +([\d.e+]+) +(\d+|N/A)" * 2 + r"$"
)


@cache
def twin(hosts: int = 2) -> Twin:
    return Twin(blueprint(hosts, "dgx-h100", switch="qm9700"))


def run_of(program: str = "all_reduce_perf", *, hosts: int = 2, gpus: int = 8, **others: object) -> Run:
    variables = others.pop("variables", {})
    release = str(others.pop("release", "2.28.9"))
    sizes = {"min_bytes": 1024, "max_bytes": 64 << 20, "step_factor": 16}
    options = Options(TESTS[program], gpus=gpus, **{**sizes, **others})  # type: ignore[arg-type]
    nodes = perf.ranks_of(twin(), gpus_per_process=gpus, hosts=hosts, processes=hosts)
    settings = read_settings(variables, release=release)  # type: ignore[arg-type]
    return perf.prepare(twin(), options, settings=settings, rank_node=nodes)


def played(run: Run, fidelity: str = "analytic") -> tuple[str, list[Row]]:
    out = io.StringIO()
    rows = play(run, out, fidelity=fidelity, source="a spec", stage=silent)
    return out.getvalue(), rows


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("16G", 16 << 30), ("1.5k", 1536), ("64M", 64 << 20), ("2KiB", 2048), ("0", 0)]
)
def test_sizes_as_nccl_tests_reads_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1T", "1e3", "8 8", "99999999999999G"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_size(text)


@given(st.text(max_size=20) | st.from_regex(r"\A[0-9]{0,20}\.?[0-9]{0,20}[kKmMgG]?[iI]?[bB]?\Z"))
def test_any_text_is_a_size_or_one_clear_line(text: str) -> None:
    try:
        size, said = parse_size(text), ""
    except ConfigError as error:
        size, said = 0, str(error)
    assert 0 <= size <= 1 << 50
    assert len(said.splitlines()) <= 1


def test_steps() -> None:
    test = TESTS["all_reduce_perf"]
    assert Options(test, 8, 100, step_factor=2).sizes() == [8, 16, 32, 64]
    assert Options(test, 8, 32, step_bytes=8).sizes() == [8, 16, 24, 32]
    assert Options(test).sizes() == [32 << 20]
    with pytest.raises(ConfigError, match="more than 10000 sizes"):
        Options(test, 0, 1 << 30, step_bytes=1).sizes()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_bytes": 16, "max_bytes": 8}, "-b: got 16 bytes, expected at most -e: 8 bytes"),
        ({"step_bytes": 0}, "-i: got no step"),
        ({"datatype": "flaot"}, "did you mean 'float'"),
        ({"operation": "add"}, "-o: got 'add'"),
    ],
)
def test_what_cannot_be_is_one_clear_line(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        Options(TESTS["all_reduce_perf"], **wrong)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_processes_and_hosts() -> None:
    fabric = twin().fabric
    every = perf.ranks_of(twin(), gpus_per_process=8, hosts=None, processes=None)
    assert every.tolist() == fabric.gpu_node.tolist()
    halves = perf.ranks_of(twin(), gpus_per_process=1, hosts=2, processes=8)
    assert fabric.node_host[halves].tolist() == [0] * 4 + [1] * 4
    for wrong in ({"gpus_per_process": 9}, {"hosts": 3}, {"processes": 5}, {"processes": 0}, {"processes": 32}):
        given = {"gpus_per_process": 1, "hosts": None, "processes": None, **wrong}
        with pytest.raises(ConfigError):
            perf.ranks_of(twin(), **given)  # type: ignore[arg-type]


def test_columns_are_nccl_tests_own() -> None:
    text, rows = played(run_of(check=0))
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.split()[1:3] == ["size", "count"])
    assert lines[head] == (
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "     time   algbw   busbw  #wrong "
    )
    assert lines[head + 1].split() == ["#", "(B)", "(elements)", *["(us)", "(GB/s)", "(GB/s)"] * 2]
    table = [ROW.match(line) for line in lines[head + 2 :] if not line.startswith("#")]
    assert all(table)
    assert len(table) == len(rows) == 5
    for found, row in zip(table, rows, strict=True):
        assert found is not None
        assert (int(found[1]), int(found[2]), found[3], found[4], found[5]) == (
            row.size_bytes, row.size_bytes // 4, "float", "sum", "-1",
        )  # fmt: skip
        assert float(found[6]) == pytest.approx(row.time_ps / 1e6, rel=1e-3)
        assert found.groups()[5:9] == found.groups()[9:13]
        assert found[9] == "N/A"
    average = next(line for line in lines if line.startswith("# Avg bus bandwidth"))
    assert float(average.split(":")[1]) == pytest.approx(np.mean([row.bus_gbps for row in rows]), rel=1e-5)
    assert "# Out of bounds values : 0 OK" in lines
    assert sum(line.startswith("#  Rank ") for line in lines) == 16


@pytest.mark.parametrize(
    ("value", "text"), [(1.234, "   1.23"), (12345.6, "12345.6"), (1234567.8, "1234568"), (123456789.0, "1.2e+08")]
)
def test_numbers_keep_as_many_decimals_as_fit(value: float, text: str) -> None:
    assert perf_text.number(value, 7) == text


@pytest.mark.parametrize(
    ("program", "factor"),
    [
        ("all_reduce_perf", 2 * 15 / 16), ("all_gather_perf", 15 / 16), ("reduce_scatter_perf", 15 / 16),
        ("alltoall_perf", 15 / 16), ("broadcast_perf", 1), ("reduce_perf", 1), ("sendrecv_perf", 1),
    ],
)  # fmt: skip
def test_bandwidths_follow_from_size_and_time(program: str, factor: float) -> None:
    _, rows = played(run_of(program))
    for row in rows:
        assert row.alg_gbps == pytest.approx(row.size_bytes / (row.time_ps / 1e12) / 1e9)
        assert row.bus_gbps == pytest.approx(row.alg_gbps * factor)
        assert row.wrong == 0
        assert row.time_ps > 0
    assert [row.time_ps for row in rows] == sorted(row.time_ps for row in rows)


def test_blocks_are_cut_to_16_bytes_for_each_rank() -> None:
    _, rows = played(run_of("all_gather_perf", min_bytes=8, max_bytes=1000, step_factor=5))
    # 16 ranks: blocks of 4 floats
    assert [(row.size_bytes, row.count) for row in rows] == [(0, 0), (0, 0), (0, 0), (768, 12)]
    assert rows[0].time_ps == 0


def test_roots_types_and_operations() -> None:
    _, rows = played(run_of("broadcast_perf", root=-1, min_bytes=4096, max_bytes=4096))
    assert [row.root for row in rows] == list(range(16))
    assert {row.operation for row in rows} == {"none"}
    _, rows = played(run_of("reduce_perf", root=3, datatype="all", min_bytes=4096, max_bytes=4096))
    assert [row.datatype for row in rows][:3] == ["int8", "uint8", "int32"]
    assert {row.root for row in rows} == {3}
    _, rows = played(run_of(operation="all", min_bytes=4096, max_bytes=4096))
    assert [row.operation for row in rows] == ["sum", "prod", "max", "min", "avg", "mulsum"]
    assert [row.wrong for row in rows] == [0, 0, 0, 0, 0, None]
    with pytest.raises(ConfigError, match="-r: got 16, expected a rank from 0 to 15"):
        run_of("broadcast_perf", root=16)


@pytest.mark.parametrize("datatype", ["int8", "uint64", "half", "bfloat16", "double"])
@pytest.mark.parametrize("operation", ["sum", "prod", "avg"])
def test_checks_hold_for_types_and_operations(datatype: str, operation: str) -> None:
    run = run_of(datatype=datatype, operation=operation)
    checker = Checker(run)
    assert {checker.wrong(plan) for plan in run.plans} == {0}


def test_a_wrong_answer_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from fabrictwin.tools.nccl_tests import perf_check

    def broken(communications: object, data: np.ndarray, **rest: object) -> np.ndarray:
        return data + 1

    monkeypatch.setattr(perf_check, "execute", broken)
    text, rows = played(run_of())
    assert all(row.wrong for row in rows)
    assert "# Out of bounds values : 10 FAILED" in text


def test_what_nccl_chose_is_what_is_timed() -> None:
    slow = played(run_of(variables={"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}, min_bytes=64 << 20, check=0))[1][0]
    fast = played(run_of(min_bytes=64 << 20, check=0))[1][0]
    assert slow.choice is not None
    assert fast.choice is not None
    assert slow.time_ps > fast.time_ps


def test_flow_and_analytic_agree_where_nothing_collides() -> None:
    run = run_of(min_bytes=64 << 20, check=0)
    closed, fluid = played(run)[1][0], played(run, "flow")[1][0]
    assert fluid.time_ps == pytest.approx(closed.time_ps, rel=0.05)


def test_json_has_nccl_tests_keys_and_what_was_chosen() -> None:
    run = run_of()
    _, rows = played(run)
    written = perf_text.as_json(run, rows, arguments=["all_reduce_perf"], environment=["NCCL_ALGO=Ring"])
    data = json.loads(written)
    assert data["nccl_version"] == 22809
    assert data["config"]["step_factor"] == 16
    assert len(data["config"]["devices"]) == 16
    first = data["results"][0]
    keys = "size count type redop root out_of_place in_place actual_iterations experiment_name"
    assert list(first)[:9] == keys.split()
    assert set(first["in_place"]) == {"time", "alg_bw", "bus_bw", "nwrong"}
    assert first["nccl"]["algorithm"] == "Tree"
    assert data["average_bus_bandwidth"]["bandwidth"] == pytest.approx(np.mean([row.bus_gbps for row in rows]))
    assert (
        perf_text.as_json(run, played(run)[1], arguments=["all_reduce_perf"], environment=["NCCL_ALGO=Ring"])
        == written
    )


def test_sizes_are_cut_to_the_memory_of_the_gpu() -> None:
    nodes = perf.ranks_of(twin(), gpus_per_process=8, hosts=1, processes=None)
    options, cut = perf.limited(Options(TESTS["all_reduce_perf"], 8, 1 << 40, step_factor=2), twin(), nodes)
    assert cut
    # 80 GiB, less 4 GiB and 1 GiB, for three buffers
    assert options.max_bytes == (80 - 5 << 30) // 3
    same, cut = perf.limited(Options(TESTS["all_reduce_perf"], 8, 16 << 30, step_factor=2), twin(), nodes)
    assert not cut
    assert same.max_bytes == 16 << 30


def test_one_gpu_takes_no_time() -> None:
    run = run_of("all_gather_perf", hosts=1, gpus=1)
    assert {row.bus_gbps for row in played(run)[1]} == {0}
