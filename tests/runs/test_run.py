"""Breakdown, summary, tables, timeline and folder of a run, on a pipeline made by hand."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.perfetto_decoder import decode
from support.run_sample import (
    FORWARD,
    GRADIENTS,
    OPTIMIZER,
    RECOMPUTE,
    TENSOR,
    Builder,
    fabric,
    message,
    pipeline,
    ring,
    sample,
)

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.yamlfile import read_yaml
from fabrictwin.fabric.fabric import LinkKind
from fabrictwin.interchange.protobuf_wire import varint
from fabrictwin.program.program import Actor, Communication
from fabrictwin.report.breakdown import apportion, breakdown
from fabrictwin.report.csv_tables import bus_factor, flows_csv, links_csv
from fabrictwin.report.link_usage import busiest
from fabrictwin.report.resolved_config import config_yaml
from fabrictwin.report.result import RunResult
from fabrictwin.report.summary import summary, summary_json, what_limits
from fabrictwin.report.terminal import bar, block
from fabrictwin.report.timeline.intervals import intervals
from fabrictwin.report.timeline.perfetto import perfetto_trace
from fabrictwin.report.timeline.timeline_tracks import actors_within, slices
from fabrictwin.runs.folder import ENVIRONMENT, FILES, Clock, check_target, default_folders, write_folder
from fabrictwin.workload.step.step_work import Work

CLOCK = Clock(datetime(2020, 1, 2, tzinfo=UTC), 1.5)


def two_actors(ranks: tuple[int, int] = (1, 1)) -> Builder:
    first = np.arange(ranks[0], dtype=np.int32)
    second = np.arange(ranks[0], sum(ranks), dtype=np.int32)
    return Builder((Actor("a", first), Actor("b", second)))


# --- breakdown


def shares(made: Builder) -> dict[str, int]:
    parts = breakdown(made.program(), made.trace())
    return {share.key: share.time_ps for share in parts.shares}


def test_compute_hides_communication_and_what_sticks_out_is_exposed():
    made = Builder((Actor("only", np.arange(2, dtype=np.int32)),))
    reduce = made.communication(Communication("r", "all_reduce", "ring", 8, 1, ring(np.arange(2), 8)), [0])
    made.compute(0, FORWARD, 100, [])
    made.communicate(reduce, GRADIENTS, 130, [])
    assert shares(made) == {"compute": 100, "exposed_dp": 30, "bubble": 0}


def test_tensor_communication_goes_before_data_parallel_where_both_are_exposed():
    made = Builder((Actor("only", np.arange(2, dtype=np.int32)),))
    reduce = made.communication(Communication("r", "all_reduce", "ring", 8, 1, ring(np.arange(2), 8)), [0])
    made.communicate(reduce, GRADIENTS, 100, [])
    made.communicate(reduce, TENSOR, 40, [])
    parts = breakdown(made.program(), made.trace())
    assert {s.key: (s.time_ps, s.busy_ps) for s in parts.shares} == {
        "exposed_tp": (40, 40),
        "exposed_dp": (60, 100),
        "bubble": (0, 0),
    }


def test_a_communication_counts_on_every_actor_that_takes_part():
    made = two_actors()
    send = made.communication(Communication("s", "send", "message", 8, 1, message(0, 1, 8)), [0, 1])
    first = made.compute(0, FORWARD, 10, [])
    sent = made.communicate(send, 4, 5, [first])
    made.compute(1, FORWARD, 10, [sent])
    parts = breakdown(made.program(), made.trace())
    keys = [s.key for s in parts.shares]
    rows = [dict(zip(keys, row, strict=True)) for row in parts.actor_ps.tolist()]
    assert rows == [{"compute": 10, "exposed_pp": 5, "bubble": 10}, {"compute": 10, "exposed_pp": 5, "bubble": 10}]


def test_the_mean_is_weighted_by_ranks():
    made = two_actors((3, 1))
    made.compute(0, FORWARD, 100, [])
    made.compute(1, RECOMPUTE, 100, [])
    assert shares(made) == {"compute": 75, "recompute": 25, "bubble": 0}


def test_the_bubble_of_1f1b_is_its_closed_form():
    """Without communication time the bubble share is (p - 1) / (m + p - 1) (Narayanan et al. 2021, 2.2)."""
    stages, micro_batches = 4, 8
    made = pipeline(stages, micro_batches)
    made.lasts = [
        0 if row[0] == 1 or row[4] == OPTIMIZER else last for row, last in zip(made.rows, made.lasts, strict=True)
    ]
    parts = breakdown(made.program(), made.trace())
    bubble = next(s for s in parts.shares if s.key == "bubble")
    assert bubble.time_ps * (micro_batches + stages - 1) == parts.step_ps * (stages - 1)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 60), st.integers(0, 30), st.integers(0, 6)),
        max_size=25,
    )
)
def test_the_sweep_equals_a_moment_by_moment_count(rows):
    """Against a loop over every picosecond and actor; each actor's row adds up to the step."""
    actors = tuple(Actor(f"a{i}", np.arange(i * 2, i * 2 + 2, dtype=np.int32)) for i in range(3))
    made = Builder(actors)
    pairs = [
        made.communication(Communication("m", "send", "message", 1, 1, message(0, 2, 1)), [i, (i + 1) % 3])
        for i in range(3)
    ]
    # a first operation delays the next by `begins`, so that intervals start anywhere
    spans = []
    for compute, actor, begins, lasts, label in rows:
        wait = made.compute(actor, OPTIMIZER, 0, [])
        made.lasts[wait] = begins
        if compute:
            made.compute(actor, label, lasts, [wait])
        else:
            made.communicate(pairs[actor], label, lasts, [wait])
        spans.append((compute, actor, begins, begins + lasts, label))
    program, trace = made.program(), made.trace()
    # the delays themselves are not part of the picture
    start = trace.start_ps.copy()
    start[::2] = -1
    trace = dataclasses.replace(trace, start_ps=start)
    parts = breakdown(program, trace)
    assert (parts.actor_ps.sum(axis=1) == trace.end_ps).all()
    assert sum(s.time_ps for s in parts.shares) == trace.end_ps

    keys = [s.state for s in parts.shares]
    expected = np.zeros_like(parts.actor_ps)
    for actor in range(3):
        for moment in range(trace.end_ps):
            under_way = set()
            for compute, owner, low, high, label in spans:
                if low <= moment < high and (owner == actor or (not compute and (owner + 1) % 3 == actor)):
                    under_way.add(("compute" if compute else "communication", program.labels[label].category))
            first = next((i for i, k in enumerate(keys) if (k.kind, k.category) in under_way), len(keys) - 1)
            expected[actor, first] += 1
    assert (parts.actor_ps == expected).all()


def test_weights_times_picoseconds_may_exceed_64_bits():
    made = two_actors((1, 1))
    made.compute(0, FORWARD, 4 * 10**18, [])
    made.compute(1, RECOMPUTE, 4 * 10**18, [])
    program = made.program()
    heavy = tuple(Actor(a.name, np.zeros(50_000, np.int32)) for a in program.actors)
    parts = breakdown(dataclasses.replace(program, actors=heavy), made.trace())
    assert [s.time_ps for s in parts.shares] == [2 * 10**18, 2 * 10**18, 0]


def test_a_run_of_no_length_has_an_empty_breakdown():
    made = two_actors()
    made.compute(0, FORWARD, 0, [])
    parts = breakdown(made.program(), made.trace())
    assert parts.step_ps == 0
    assert parts.permille == (0,) * len(parts.shares)


@given(st.lists(st.integers(0, 10**18), min_size=1, max_size=9), st.integers(0, 5000))
def test_apportioned_parts_add_up_and_are_within_one(parts, total):
    shared = apportion(parts, total)
    if sum(parts):
        assert sum(shared) == total
        assert all(abs(s * sum(parts) - p * total) < sum(parts) for s, p in zip(shared, parts, strict=True))


# --- summary, tables, printed block


def test_the_summary_holds_what_the_closed_forms_say():
    result = sample()
    data = summary(result)
    seconds = result.trace.end_ps / 1e12
    assert data["step_time_ps"] == result.trace.end_ps
    assert data["hardware_tflops_per_gpu"] == pytest.approx(1.3 / seconds / 8, rel=1e-5)
    assert data["mfu"] == pytest.approx(1e12 / seconds / 8 / 312e12, rel=1e-5)
    assert data["tokens_per_s_per_gpu"] == pytest.approx(32_768 / seconds / 8, rel=1e-5)
    assert sum(s["time_ps"] for s in data["breakdown"]) == result.trace.end_ps
    assert round(sum(s["percent"] for s in data["breakdown"]), 6) == 100
    figure = data["reference"]["figures"]["hardware_tflops_per_gpu"]
    assert figure["difference_percent"] == pytest.approx(100 * (figure["predicted"] / 300 - 1), abs=0.01)
    assert "dropped packets" in data["not_modelled"]


def test_a_counter_that_was_modelled_is_not_said_to_be_missing():
    result = sample()
    counters = dataclasses.replace(result.trace.counters, drops=np.zeros(result.fabric.ports, np.int64))
    trace = dataclasses.replace(result.trace, counters=counters)
    data = summary(dataclasses.replace(result, trace=trace))
    assert "dropped packets" not in data["not_modelled"]
    assert "ECN marks" in data["not_modelled"]


def test_a_run_that_moved_nothing_says_so():
    result = sample(tx=np.zeros(fabric().ports, np.int64))
    assert any("no link carried a byte" in note for note in summary(result)["notes"])
    assert "no link carried anything" in block(result, None)


def test_faster_than_the_peak_is_remarked_on():
    remark = "faster than the GPUs' peak"
    assert not any(remark in note for note in summary(sample())["notes"])
    result = sample(work=Work(1, 1e12, 1e13, 1, 312e12, "bf16"))
    assert any(remark in note for note in summary(result)["notes"])


def test_many_notes_are_cut_in_print_and_whole_in_the_summary():
    result = sample(notes=tuple(f"note {i}" for i in range(30)))
    assert len(summary(result)["notes"]) == 30
    text = block(result, None)
    assert "note 7" in text
    assert "note 8" not in text
    assert "… and 22 more in summary.json" in text


def test_the_busiest_links_are_those_of_the_network_while_it_carries_anything():
    net = fabric()
    tx = np.zeros(net.ports, np.int64)
    tx[net.port_kind == LinkKind.NVLINK] = 10**9
    inside = sample(tx=tx)
    assert (net.port_kind[busiest(net, inside.trace)] == LinkKind.NVLINK).all()
    wire = np.flatnonzero(net.port_kind == LinkKind.INFINIBAND)[[3, 1]]
    tx[wire] = [500, 900]
    assert busiest(net, sample(tx=tx).trace).tolist() == [wire[1], wire[0]]


def test_links_csv_has_a_row_for_each_link_that_carried_anything():
    net = fabric()
    tx = np.zeros(net.ports, np.int64)
    tx[net.nic_port[0]] = 123
    rows = list(csv.DictReader(io.StringIO(links_csv(sample(tx=tx)))))
    assert [(r["link"], r["tx_bytes"], r["drops"]) for r in rows] == [
        ("host-0/mlx5_0/2 > leaf-0/1", "123", "not modelled")
    ]


def test_flows_csv_counts_and_rates():
    rows = {r["communication"]: r for r in csv.DictReader(io.StringIO(flows_csv(sample())))}
    tensor = rows["tp all-reduce, stage 0"]
    assert (tensor["count"], tensor["ranks_per_group"], tensor["mean_us"]) == ("16", "2", "3.000000")
    # 1 MiB in 3 us; of two ranks, 2 (n - 1) / n is 1
    assert float(tensor["algbw_gbytes_per_s"]) == pytest.approx((1 << 20) / 3e-6 / 1e9, rel=1e-5)
    assert tensor["busbw_gbytes_per_s"] == tensor["algbw_gbytes_per_s"]


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("all_to_all", 0.875), ("send", 1.0)],
)
def test_bus_factors_are_those_of_nccl_tests(kind, factor):
    assert bus_factor(kind, 8) == factor


def test_the_printed_block_says_the_answer():
    result = sample()
    text = block(result, Path("runs/sample"))
    for part in ("sample\n", "step time   557 us", "MFU", "bubble", "published   a paper, table 1", "report.html"):
        assert part in text
    percents = [line.split("%")[0].split()[-1] for line in text.splitlines() if "%  " in line and "/" not in line]
    assert round(sum(map(float, percents)), 6) == 100
    assert what_limits(result) in text


def test_bars_fill_their_width():
    assert bar(1000, 10) == "█" * 10
    assert bar(0) == ""
    assert bar(500, 1) == "▌"
    assert bar(1, 10) == "▏"


# --- timeline


@given(st.integers(0, 2**64 - 1))
def test_varints_are_read_back(value):
    from support.perfetto_decoder import fields

    assert list(fields(b"\x08" + varint(value))) == [(1, value)]


def test_the_timeline_decodes_to_the_intervals():
    made = pipeline(3, 4)
    program, trace = made.program(), made.trace()
    found = intervals(program, trace)
    data = perfetto_trace(program, slices(program, found, np.arange(3, dtype=np.int32)))
    decoded = decode(data)
    assert sorted(decoded.processes.values()) == ["stage 0", "stage 1", "stage 2"]
    expected = sorted(
        (
            program.actors[a].name,
            program.labels[program.operations.label[o]].name,
            trace.start_ps[o] // 1000,
            trace.end_op_ps[o] // 1000,
        )
        for a, o in zip(found.actor.tolist(), found.operation.tolist(), strict=True)
    )
    assert sorted((s.process, s.name, s.start_ns, s.end_ns) for s in decoded.slices) == expected
    sends = [s for s in decoded.slices if s.category == "pp"]
    assert {s.notes["communication"] for s in sends} >= {"pp send, stage 0 to 1"}
    assert {s.notes["micro_batch"] for s in sends} == {0, 1, 2, 3}
    assert not any("micro_batch" in s.notes for s in decoded.slices if s.name == "optimizer")


def test_overlapping_slices_get_tracks_of_their_own():
    made = Builder((Actor("only", np.arange(2, dtype=np.int32)),))
    reduce = made.communication(Communication("r", "all_reduce", "ring", 8, 1, ring(np.arange(2), 8)), [0])
    wait = made.compute(0, FORWARD, 2_000, [])
    made.communicate(reduce, GRADIENTS, 10_000, [])
    made.communicate(reduce, GRADIENTS, 3_000, [wait])
    program, trace = made.program(), made.trace()
    lanes = slices(program, intervals(program, trace), np.zeros(1, np.int32))
    assert [t.name for t in lanes.tracks] == ["compute", "dp communication", "dp communication 2"]
    assert [(s.track, s.start_ns, s.end_ns) for s in decode(perfetto_trace(program, lanes)).slices] == [
        ("compute", 0, 2),
        ("dp communication", 0, 10),
        ("dp communication 2", 2, 5),
    ]


def test_actors_beyond_the_limit_are_left_out_of_the_timeline():
    made = pipeline(4, 8)
    found = intervals(made.program(), made.trace())
    counts = np.bincount(found.actor)
    assert actors_within(found, 4, int(counts.sum())).tolist() == [0, 1, 2, 3]
    assert actors_within(found, 4, int(counts[:2].sum())).tolist() == [0, 1]
    assert actors_within(found, 4, 1).tolist() == [0]


# --- folder


def test_the_configuration_reads_back_as_it_was():
    """Also words that one YAML takes for numbers or booleans and another does not."""
    words = ["1e9", "on", "no", "1:30", "0x1f", "null", "400 Gb/s", "-", "a: b", "# c", "1_000", "", "é×", ".inf"]
    resolved = {"schema": 1, "words": words, "number": 1e16, "small": 1e-7, "yes": True, "nothing": None}
    data, _ = read_yaml(config_yaml(sample(resolved=resolved)), "config.resolved.yaml")
    assert data == resolved


def test_the_folder_holds_every_file_and_repeats_byte_for_byte(tmp_path):
    for name in ("one", "two"):
        write_folder(sample(), tmp_path / name, CLOCK)
    names = {*FILES, ENVIRONMENT}
    assert {p.name for p in (tmp_path / "one").iterdir()} == names
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    assert yaml.safe_load((tmp_path / "one" / "config.resolved.yaml").read_text()) == sample().asked.resolved
    assert json.loads((tmp_path / "one" / "summary.json").read_text()) == json.loads(summary_json(sample()))
    environment = json.loads((tmp_path / "one" / ENVIRONMENT).read_text())
    assert environment["started_at"] == "2020-01-02T00:00:00+00:00"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"], "nothing temporary is left"


def test_a_run_replaces_a_run(tmp_path):
    write_folder(sample(), tmp_path / "run", CLOCK)
    write_folder(sample(name="later"), tmp_path / "run", CLOCK)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["name"] == "later"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_what_is_not_a_run_is_not_overwritten(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis\.tex.*is not a run"):
        write_folder(sample(), tmp_path, CLOCK)
    with pytest.raises(ConfigError, match="which is a file"):
        check_target(tmp_path / "thesis.tex")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_nothing_is_left_when_writing_fails(tmp_path, monkeypatch):
    write_folder(sample(), tmp_path / "run", CLOCK)
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}

    def fails(_result: RunResult) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(FILES, "report.html", fails)
    with pytest.raises(ConfigError, match="No space left"):
        write_folder(sample(name="later"), tmp_path / "run", CLOCK)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_the_default_folder_is_the_next_free_one(tmp_path):
    assert next(default_folders("gpt 145.6B", tmp_path)) == tmp_path / "gpt-145.6B"
    (tmp_path / "gpt-145.6B").mkdir()
    (tmp_path / "gpt-145.6B-2").mkdir()
    assert next(default_folders("gpt 145.6B", tmp_path)) == tmp_path / "gpt-145.6B-3"
    assert next(default_folders("../..", tmp_path)) == tmp_path / "run"
