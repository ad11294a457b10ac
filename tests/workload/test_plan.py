"""The closed form of a step beside the graph that it stands for, and the search over layouts."""

from __future__ import annotations

import gc
import json
import random
import weakref
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.specs import LLAMA_8B as DENSE
from support.specs import spec_of

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import silent
from fabrictwin.cli.predict.plan import plan as app
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.cluster.spec.spec import Spec, load_spec, read_spec
from fabrictwin.engines.base.play import play
from fabrictwin.program.collectives import Step, all_gather, reduce_scatter
from fabrictwin.report.resolved_config import spec_yaml
from fabrictwin.runs.execute import predict
from fabrictwin.runs.layout_plan import plan, plan_data, plan_text, with_layout
from fabrictwin.twin.routed_twin import make_twin
from fabrictwin.workload.job.nccl_communications import library_of
from fabrictwin.workload.layers.pass_script import Script
from fabrictwin.workload.memory.gpu_memory import Known, memory
from fabrictwin.workload.memory.memory_inputs import memory_inputs_of
from fabrictwin.workload.search.layout_search import Search, _ByText, _few_collections, divisors
from fabrictwin.workload.search.lower_bound import LowerBounds
from fabrictwin.workload.step.closed_form import ClosedForm
from fabrictwin.workload.step.communication_times import CommunicationTimes
from fabrictwin.workload.step.pipeline_schedule import order_of, rules_of
from fabrictwin.workload.step.training_step import build_program, check

SPARSE = {
    "_name": "sparse",
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


spec = spec_of(4, "dgx-h100", model=DENSE, global_batch=128, sequence=4096)


def both(of: Spec) -> tuple[int, int]:
    """(closed form, graph on the analytic engine), in ps."""
    blueprint = build(of.cluster, spec=of)
    twin = make_twin(of, blueprint)
    job, nodes = check(of, blueprint, twin.fabric)
    library = library_of(of, blueprint, twin.fabric, nodes)
    program = build_program(job, name="test", fold=True, library=library)
    trace = play(program, nodes, twin.start_engine("analytic"))
    return ClosedForm(job, CommunicationTimes(twin.fabric, nodes, library)).estimate().step_ps, trace.end_ps


CASES: list[dict[str, Any]] = [
    {},
    {"parallel": {"tp": 4}},
    {"parallel": {"tp": 4, "pp": 2}, "recompute": "full"},
    {"parallel": {"tp": 2, "pp": 4}, "scatter_gather": False},
    {"parallel": {"tp": 2, "pp": 4, "schedule": "gpipe"}},
    {"parallel": {"tp": 2, "pp": 4, "schedule": "zero-bubble"}},
    {"parallel": {"tp": 2, "pp": 4, "vp": 2}, "overlap": {"pipeline": False}},
    {"parallel": {"pp": 4, "layers": [9, 8, 8, 7]}},
    {"parallel": {"tp": 8, "pp": 2, "cp": 2}, "sequence_parallel": True},
    {"parallel": {"tp": 2, "cp": 4, "context": "all-gather"}, "sequence_parallel": True},
    {"parallel": {"tp": 2, "cp": 4, "context": "pytorch"}},
    {"parallel": {"cp": 4, "context": "pytorch"}, "kernels": "eager"},
    {"parallel": {"tp": 2, "pp": 2}, "sharding": "zero-1"},
    {"parallel": {"tp": 2, "pp": 2}, "sharding": "zero-1", "overlap": True},
    {"parallel": {"tp": 2, "pp": 2, "vp": 4}, "sharding": "zero-1", "overlap": True, "sequence_parallel": True},
    {"parallel": {"tp": 2}, "sharding": "zero-2", "overlap": True},
    {"sharding": "fsdp"},
    {"sharding": {"strategy": "fsdp", "ranks": 8}, "parallel": {"cp": 2}},
    {"sharding": {"strategy": "zero-3", "prefetch": 0, "reshard_after_forward": False}},
    {"parallel": {"tp": 4}, "gradients": {"algorithm": "hierarchical"}},
    {"parallel": {"tp": 4}, "gradients": {"algorithm": "tree"}},
    {"precision": "fp8", "parallel": {"tp": 4, "pp": 2}},
    {"model": SPARSE, "parallel": {"ep": 8}},
    {"model": SPARSE, "parallel": {"ep": 16, "pp": 2, "vp": 3}, "sharding": "zero-1", "overlap": True},
    {"model": SPARSE, "parallel": {"tp": 2, "ep": 8, "expert_tp": 1}, "sequence_parallel": True},
]


@pytest.mark.parametrize("training", CASES, ids=lambda c: json.dumps({k: v for k, v in c.items() if k != "model"}))
def test_the_closed_form_is_the_graph_within_a_percent(training):
    closed, graph = both(spec(**training))
    assert closed == pytest.approx(graph, rel=0.01)


@pytest.mark.second
@pytest.mark.parametrize("training", [{"parallel": {"tp": 4, "pp": 2}}, {"model": SPARSE, "parallel": {"ep": 8}}])
def test_the_closed_form_takes_nccls_choices_unless_collectives_are_simple(training):
    plain = spec(hosts=2, **training)
    data = plain.to_dict()
    closed, graph = both(plain)
    assert closed == pytest.approx(graph, rel=0.01)
    simple, simple_graph = both(plain.with_(run__collectives="simple"))
    assert closed != simple
    assert simple == pytest.approx(simple_graph, rel=0.01)
    forced, forced_graph = both(read_spec({**data, "nccl": {"NCCL_PROTO": "LL"}}))
    assert forced > closed
    assert forced == pytest.approx(forced_graph, rel=0.01)


def test_a_rings_reduce_scatter_takes_what_its_all_gather_does():
    """Times of one stand for the other's by this."""
    of = spec(hosts=2)
    twin = make_twin(of, build(of.cluster, spec=of))
    forms, nodes = twin.closed_forms(), twin.fabric.gpu_node
    host = twin.fabric.node_host[nodes].astype(np.int64)
    step = Step(cost_ps=1000)
    for groups in (np.arange(16).reshape(2, 8), np.arange(16).reshape(8, 2).T.copy(), np.arange(16)[None]):
        made = [
            make(groups, 1 << 24, channels=1, host_of_rank=host, element_bytes=2, step=step, name="x")
            for make in (all_gather, reduce_scatter)
        ]
        gathered, scattered = forms.durations(made, nodes)
        assert gathered == scattered > 0


def random_section(rng: random.Random) -> dict[str, Any]:
    """A layout of 32 GPUs, with switches that it may have."""
    sparse = rng.random() < 0.25
    tp = rng.choice([1, 2, 4] if sparse else [1, 2, 4, 8])
    pp = rng.choice([1, 2, 4])
    cp = rng.choice([1, 1, 2])
    dp = 32 // (tp * pp * cp)
    if dp < 1:
        return random_section(rng)
    parallel: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "dp": dp}
    if pp > 1:
        parallel["vp"] = rng.choice([1, 2])
    section: dict[str, Any] = {
        "parallel": parallel,
        "micro_batch_size": rng.choice([1, 2]),
        "sequence_parallel": tp > 1 and (sparse or rng.random() < 0.5),
        "recompute": rng.choice(["none", "full"]),
        "sharding": rng.choice(["none", "zero-1"] if sparse or pp > 1 else ["none", "zero-1", "zero-2", "fsdp"]),
        "overlap": rng.random() < 0.5,
        "precision": rng.choice(["bf16", "fp8"]),
    }
    if sparse:
        section["model"] = SPARSE
        parallel["ep"], parallel["expert_tp"] = min(8, dp * cp * tp), 1
    return section


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.second) for seed in range(4, 12))]
)
def test_the_closed_form_is_the_graph_on_random_layouts(seed):
    closed, graph = both(spec(**random_section(random.Random(seed))))
    assert closed == pytest.approx(graph, rel=0.02)


@pytest.mark.second
@pytest.mark.parametrize("seed", range(100, 220))
def test_the_closed_form_is_the_graph_on_many_random_layouts(seed):
    closed, graph = both(spec(**random_section(random.Random(seed))))
    assert closed == pytest.approx(graph, rel=0.02)


@pytest.mark.parametrize("nccl", [False, True], ids=["simple", "nccl"])
@pytest.mark.parametrize("training", CASES, ids=lambda c: json.dumps({k: v for k, v in c.items() if k != "model"}))
def test_no_step_is_faster_than_its_lower_bounds(training, nccl):
    assert_bounds_hold(spec(**training), nccl)


@pytest.mark.second
@pytest.mark.parametrize("seed", range(300, 380))
def test_no_random_step_is_faster_than_its_lower_bounds(seed):
    assert_bounds_hold(spec(**random_section(random.Random(seed))), nccl=seed % 2 == 0)


def assert_bounds_hold(of: Spec, nccl: bool) -> None:
    """Each bound is at most the next, and the last at most the time in closed form."""
    blueprint = build(of.cluster, spec=of)
    twin = make_twin(of, blueprint)
    job, nodes = check(of, blueprint, twin.fabric)
    library = library_of(of, blueprint, twin.fabric, nodes) if nccl else None
    times, bounds = CommunicationTimes(twin.fabric, nodes, library), LowerBounds(in_switch=nccl)
    took = [
        bounds.of(job), bounds.with_exchanges(job), bounds.nearly(job, ClosedForm(job, times)) or 0.0,
        bounds.closer(job, ClosedForm(job, times)),
        bounds.played(job, ClosedForm(job, times)), ClosedForm(job, times).estimate().step_ps,
    ]  # fmt: skip
    assert 0.3 * took[-1] < took[0]
    assert took[2] or not ClosedForm(job, times).sends
    assert bounds.nearly(job, ClosedForm(job, times)) is None  # all is known now
    for less, more in pairwise(part for part in took if part):
        assert less <= more * 1.0001


def test_what_other_layouts_communicate_brings_bounds_closer():
    """Times that one layout asked for are taken by the next, also where it was bounded before."""
    of = spec(hosts=2, parallel={"tp": 4, "pp": 2}, sequence_parallel=True)
    blueprint = build(of.cluster, spec=of)
    twin = make_twin(of, blueprint)
    job, nodes = check(of, blueprint, twin.fabric)
    times = CommunicationTimes(twin.fabric, nodes, library_of(of, blueprint, twin.fabric, nodes))
    bounds, closed = LowerBounds(in_switch=True), ClosedForm(job, times)
    scripts = closed.segments.scripts(job.loads[0])
    first = bounds.nearly(job, closed)
    times.prepare(closed.asked(scripts[0].collectives()[0]))
    second = bounds.nearly(job, closed)
    assert first < second <= bounds.closer(job, closed)
    assert bounds.nearly(job, closed) is None


@pytest.mark.parametrize("imbalance", [0.0, 0.3])
@pytest.mark.parametrize("parallel", [{"ep": 8}, {"tp": 2, "ep": 4, "pp": 2, "vp": 3, "expert_tp": 1}])
def test_bounds_of_uneven_experts_come_closer(parallel, imbalance):
    of = spec(
        model=SPARSE, parallel=parallel, sequence_parallel="tp" in parallel, routing={"imbalance": imbalance}
    )
    blueprint = build(of.cluster, spec=of)
    twin = make_twin(of, blueprint)
    job, nodes = check(of, blueprint, twin.fabric)
    times = CommunicationTimes(twin.fabric, nodes, library_of(of, blueprint, twin.fabric, nodes))
    bounds, closed = LowerBounds(in_switch=True), ClosedForm(job, times)
    bound = bounds.played(job, closed)
    assert bounds.of(job) < 0.97 * bounds.closer(job, closed)
    if imbalance:
        assert bounds.of(job) < bounds.with_exchanges(job) < bounds.closer(job, closed)
    assert 0.9 * bound < bounds.closer(job, closed) <= bound * (1 + 1e-9)


@pytest.mark.parametrize(
    "training",
    [
        {"parallel": {"tp": 8, "pp": 2, "cp": 2}, "sequence_parallel": True, "overlap": True},
        {"parallel": {"tp": 2, "pp": 4, "schedule": "zero-bubble"}},
        {"model": SPARSE, "parallel": {"ep": 8}, "recompute": "full", "overlap": True},
        {"parallel": {"tp": 2}, "sharding": "fsdp", "overlap": True},
    ],
)
def test_scripts_that_are_added_up_once_take_what_their_items_take(training):
    of = spec(**training)
    blueprint = build(of.cluster, spec=of)
    twin = make_twin(of, blueprint)
    job, nodes = check(of, blueprint, twin.fabric)
    closed = ClosedForm(job, CommunicationTimes(twin.fabric, nodes))
    fixed = closed.segments.of(0, 0)
    plain = [
        replace(one, **{way: Script(getattr(one, way).items) for way in ("forward", "backward")}) for one in fixed
    ]
    assert any(len(one.backward.coded) < len(one.backward.items) for one in fixed)
    for kind in closed.kinds:
        took = closed._timed(closed.stages[0], kind, fixed, mark=True)
        assert took == closed._timed(closed.stages[0], kind, plain, mark=True)
        assert took.took > 0


def test_parts_of_an_estimate_add_up():
    of = spec(parallel={"tp": 2, "pp": 4}, sharding="zero-1")
    blueprint = build(of.cluster, spec=of)
    job, nodes = check(of, blueprint, make_twin(of, blueprint).fabric)
    closed = ClosedForm(job, CommunicationTimes(make_twin(of, blueprint).fabric, nodes))
    found = closed.estimate()
    assert sum(found.shares.values()) == pytest.approx(1)
    assert min(found.shares.values()) > 0


# --- the schedule by itself


def play_stages(schedule: str, p: int, v: int, m: int, more: int, *times: Any) -> tuple[Any, ...]:
    """(end with more micro-batches, first forwards' beginnings, the last one's begin and end, ends of stages)."""
    from fabrictwin.kernel.schedule.pipeline_times import play as play_passes

    rules = np.array([rules_of(schedule, s, p, v, m + more) for s in range(p)]).T.copy()
    found = np.zeros((p, v)), np.zeros((3, p, v)), np.zeros((3, p, v)), np.zeros(p)
    return play_passes(*rules, *times, m, more, *found), *found


def bubble(schedule: str, p: int, v: int, m: int, times: tuple[float, float, float]) -> float:
    """A step's length less a stage's work, played without communication."""
    took = np.zeros((3, p, v))
    for kind, time in enumerate(times):
        took[kind] = time / v
    nothing = np.zeros((p, 2)), np.zeros(p), False, np.zeros((p, v)), np.zeros((3, p, v))
    return play_stages(schedule, p, v, m, 0, took, *nothing)[0] - m * sum(times)


def passes_by_their_tasks(
    order: list[list[Any]], times: tuple[Any, ...]
) -> dict[tuple[int, ...], tuple[float, float]]:
    """Beginning and end of each pass (kind, stage, chunk, micro-batch), by who waits for whom."""
    took, send, slices, blocking, first, last = times
    _, p, v = took.shape
    m = 1 + max(task.micro_batch for task in order[0])
    done: dict[tuple[int, ...], tuple[float, float]] = {}
    arrived: dict[tuple[int, ...], float] = {}
    left, line, at = [0.0] * p, np.zeros((p, 2)), [0] * p
    while any(at[s] < len(order[s]) for s in range(p)):
        moved = list(at)
        for s in range(p):
            if at[s] == len(order[s]):
                continue
            k, i, c = (int(part) for part in order[s][at[s]])
            virtual, way = c * p + s, -1 if k else 1
            waits = k < 2 and 0 <= virtual - way < p * v
            if waits and (k, virtual, i) not in arrived:
                continue
            free = max((end for key, (_, end) in done.items() if key[1] == s), default=0.0)
            start = max(free, arrived.get((k, virtual, i), 0.0) if waits else 0.0, left[s] if blocking else 0.0)
            end = (
                start + took[k, s, c] + (first[s, c] if k == i == 0 else 0) + (last[k, s, c] if i == m - 1 else 0)
            )
            done[k, s, c, i], left[s] = (start, end), end
            if k < 2 and 0 <= virtual + way < p * v:
                left[s] = line[s, k] = max(end, line[s, k]) + send[s, k]
                arrived[k, virtual + way, i] = line[s, k] + slices[(virtual + way) % p]
            at[s] += 1
        assert at != moved
    return done


@given(
    st.sampled_from(["1f1b", "gpipe", "zero-bubble"]), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4),
    st.booleans(), st.booleans(), st.integers(0, 1 << 16),
)  # fmt: skip
@settings(max_examples=60)
def test_stages_run_in_the_order_of_their_tasks(schedule, p, v, groups, extends, blocking, seed):
    """The compiled rules, with a group more too, do what a loop over the tasks of the schedule does."""
    m, more, draw = groups * p, p if extends else 0, np.random.default_rng(seed)
    took, last = draw.integers(1, 50, (2, 3, p, v)).astype(float)
    last[0] = 0
    send, slices, first = (draw.integers(0, 9, shape).astype(float) for shape in ((p, 2), p, (p, v)))
    times = took, send, slices, blocking, first, last
    later, opens, begin, end, over = play_stages(schedule, p, v, m, more, *times)
    done = passes_by_their_tasks([order_of(schedule, s, p, v, m) for s in range(p)], times)
    for (k, s, c, i), (starts, ends) in done.items():
        if i == m - 1:
            assert (begin[k, s, c], end[k, s, c]) == (starts, ends)
        if k == i == 0:
            assert opens[s, c] == starts
    assert over.tolist() == [max(ends for key, (_, ends) in done.items() if key[1] == s) for s in range(p)]
    longer = passes_by_their_tasks([order_of(schedule, s, p, v, m + more) for s in range(p)], times)
    assert later == max(ends for _, ends in longer.values())


@given(st.sampled_from([2, 3, 4, 8]), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=40)
def test_bubbles_are_the_published_ones(p, groups, f, b):
    m = p * groups
    assert bubble("1f1b", p, 1, m, (f, b, 0)) == pytest.approx((p - 1) * (f + b))
    assert bubble("gpipe", p, 1, m, (f, b, 0)) == pytest.approx((p - 1) * (f + b))
    assert bubble("1f1b", p, 2, m, (f, b, 0)) == pytest.approx((p - 1) * (f + b) / 2)
    # F = B = W: (p - 1) (F + B - W)
    assert bubble("zero-bubble", p, 1, m, (f, f, f)) == pytest.approx((p - 1) * f)


def test_a_schedule_that_waits_for_itself_is_found():
    from fabrictwin.kernel.schedule.pipeline_times import NEVER
    from fabrictwin.kernel.schedule.pipeline_times import play as play_passes

    ahead, late = np.array([-1, 0]), np.array([-1, -1])  # the first stage goes backward first
    ones, found = np.ones((3, 2, 1)), (np.zeros((2, 1)), np.zeros((3, 2, 1)), np.zeros((3, 2, 1)), np.zeros(2))
    times = ones, np.zeros((2, 2)), np.zeros(2), False, np.zeros((2, 1)), 0 * ones
    for more in (0, 2):
        assert play_passes(ahead, late, *times, 1, more, *found) == NEVER


# --- the search


def search(of: Spec) -> Search:
    blueprint = build(of.cluster, spec=of)
    return Search(of, blueprint, make_twin(of, blueprint).fabric)


SMALL = {"model": {**DENSE, "num_hidden_layers": 8}, "global_batch": 32}


def test_the_search_finds_what_trying_everything_finds():
    """The best by the analytic engine among all layouts that fit, by brute force over the same space."""
    of = spec(hosts=1, **SMALL, sharding="zero-1")
    found = search(of)
    result = found.run(silent, keep=5)
    everything = []
    for section in found._sections():
        fitting = found._held(section)
        if fitting is not None and fitting.job is not None:
            everything.append(ClosedForm(fitting.job, found.times).estimate().step_ps)
    everything.sort()
    assert [c.estimate.step_ps for c in result.candidates] == everything[:5]
    assert len(everything) + result.too_large == result.considered > 50
    simulated = [predict(with_layout(of, c)).trace.end_ps for c in result.candidates]
    assert simulated == pytest.approx([c.estimate.step_ps for c in result.candidates], rel=0.01)


def test_memory_that_layouts_share_is_that_of_each_by_itself():
    found = search(spec(hosts=2, model={**SPARSE, "num_hidden_layers": 4}, global_batch=32, sequence=32768))
    tried = list(found._sections())
    kept = [found._held(section) for section in tried]
    alone = []
    for section in tried:
        found._memory, found._divided = Known(), (None, None)
        alone.append(found._held(section))
    assert kept == alone
    assert {one.section and one.section["recompute"] for one in kept if one} >= {None, "none", "full"}


def test_layouts_that_seem_as_fast_are_looked_at_in_the_order_of_their_text():
    sections = [{"micro_batch_size": size, "parallel": {"tp": tp}} for size in (8, 1, 4) for tp in (2, 1)]
    queue = [(1.0, _ByText(section)) for section in sections] + [(0.5, _ByText({"parallel": {"tp": 9}}))]
    found = [each.section for _, each in sorted(queue)]
    assert found == [{"parallel": {"tp": 9}}, *sorted(sections, key=repr)]


def test_every_layout_keeps_the_batch_and_uses_all_gpus():
    for candidate in search(spec(hosts=2, **SMALL)).run(silent, keep=40).candidates:
        job, par = candidate.job, candidate.job.training.parallel
        assert par.tp * par.pp * par.cp * par.dp == 16
        assert job.micro_batches * job.training.micro_batch_size * par.dp == 32
        assert candidate.memory.total_bytes <= 0.95 * candidate.memory.capacity_bytes


@pytest.mark.second
def test_more_recomputation_only_where_less_does_not_fit():
    of = spec(hosts=1, model=DENSE, global_batch=8, sequence=16384)
    found = search(of)
    candidates = found.run(silent, keep=1000).candidates
    assert {c.section["recompute"] for c in candidates} == {"none", "operations", "full"}
    for candidate in candidates:
        if candidate.section["recompute"] != "none":
            without = memory(
                memory_inputs_of(found._job({**candidate.section, "recompute": "none"})),
                candidate.job.hardware.gpu,
            )
            assert without.total_bytes > 0.95 * without.capacity_bytes


def test_the_batch_is_the_specs_where_it_counts_micro_batches():
    of = spec(hosts=1, model=DENSE, global_batch=None, micro_batches=6, parallel={"tp": 2, "pp": 2})
    assert search(of).global_batch == 6 * 2
    wrong = spec(hosts=1, model=DENSE, global_batch=None, micro_batches=6, parallel={"tp": 3})
    with pytest.raises(ConfigError, match=r"micro_batches: .*does not divide 8 GPUs, expected global_batch"):
        search(wrong)


@pytest.mark.second
def test_overlap_of_tensor_communication_follows_the_layout():
    of = spec(hosts=1, **SMALL, parallel={"tp": 2}, sequence_parallel=True, overlap={"tensor": "full"})
    found = search(of).run(silent, keep=1000).candidates
    assert {c.job.training.overlap.tensor for c in found if c.job.layout.tp == 1} == {"none"}
    assert {c.job.training.overlap.tensor for c in found if c.job.layout.tp > 1} == {"full"}


@pytest.mark.second
def test_experts_are_laid_out_too():
    of = spec(hosts=2, model={**SPARSE, "num_hidden_layers": 4}, global_batch=32, sharding="zero-1")
    found = search(of).run(silent, keep=1000).candidates
    assert {c.job.layout.ep for c in found} >= {2, 4, 8}


def test_divisors():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


def test_a_plan_ranks_by_the_simulation_and_says_why():
    of = spec(hosts=1, **SMALL, run={"fidelity": "flow"})
    found = plan(of, top=4, fidelity="flow", stage=silent)
    steps = [item.step_ps for item in found.ranked]
    assert steps == sorted(steps)
    assert len(steps) == 4
    assert predict(with_layout(of, found.ranked[0].candidate)).trace.end_ps == steps[0]
    data = plan_data(found)
    assert all(row["why"] for row in data["layouts"])
    text = plan_text(found)
    assert "compute " in text
    assert f"{data['layouts_considered']:,} layouts" in text


def test_nothing_that_fits_is_said_clearly():
    large = {**DENSE, "hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128}
    with pytest.raises(ConfigError, match=r"none of .* layouts fits in a GPU's memory"):
        plan(spec(hosts=1, model=large, global_batch=8), top=3, fidelity="analytic", stage=silent)


def test_the_command_writes_a_spec_that_runs_from_another_folder(tmp_path):
    (tmp_path / "best").mkdir()
    path, best = tmp_path / "a.yaml", tmp_path / "best" / "best.yaml"
    (tmp_path / "model.json").write_text(json.dumps(DENSE))
    given = spec(hosts=1, **SMALL).to_dict()
    given["name"] = "1e9"  # a word for us and for PyYAML, a number for our reader
    given["workload"]["training"]["model"] = "model.json"
    path.write_text(spec_yaml(given))
    result = CliRunner().invoke(
        app, [str(path), "--top", "2", "--fidelity", "analytic", "--json", "--write", str(best)]
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)["layouts"]
    assert len(rows) == 2
    written = load_spec(best)
    assert written.name == "1e9"
    assert predict(written).trace.end_ps == rows[0]["step_time_ps"]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_search_leaves_garbage_to_collections_of_everything(monkeypatch, frozen):
    class Cycle:
        pass

    monkeypatch.setattr(gc, "get_freeze_count", lambda: int(frozen))
    before, one = gc.get_threshold(), Cycle()
    one.itself = one
    left = weakref.ref(one)
    with _few_collections():
        assert gc.get_threshold()[0] > before[0]
        del one
        gc.collect(0)
        assert (left() is None) == frozen  # it was old when the search began
    assert gc.get_threshold() == before
    gc.collect()
    assert left() is None
