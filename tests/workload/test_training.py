"""A training step as a program: closed forms, folding, faults, and sizes that do not divide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.programs import longest_path, lowered
from support.specs import TINY
from support.specs import tiny_job as spec

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.build_blueprint import build
from fabrictwin.fabric.fabric import NONE
from fabrictwin.program import patterns
from fabrictwin.runs.execute import predict
from fabrictwin.twin import Twin
from fabrictwin.workload.job.rank_layout import Layout
from fabrictwin.workload.layers.attention import AttentionBlock
from fabrictwin.workload.layers.roofline import Roofline, gemm_flops_per_s
from fabrictwin.workload.layers.transformer import Kernels, Shape
from fabrictwin.workload.model.huggingface_families import read_model
from fabrictwin.workload.step.pipeline_schedule import Pass, one_forward_one_backward
from fabrictwin.workload.step.training_step import build_program, check


def stage_work(program, actor: int) -> int:
    ops = program.operations
    return int(ops.duration_ps[(ops.actor == actor) & (ops.communication == NONE)].sum())


@pytest.mark.parametrize(("pp", "m"), [(1, 3), (2, 1), (2, 5), (4, 4), (8, 16), (8, 3)])
def test_one_forward_one_backward_keeps_its_rules(pp, m):
    for stage in range(pp):
        order = one_forward_one_backward(stage, pp, m)
        assert [t.micro_batch for t in order if t.kind == Pass.FORWARD] == list(range(m))
        assert [t.micro_batch for t in order if t.kind == Pass.BACKWARD] == list(range(m))
        in_flight, most = 0, 0
        for task in order:
            in_flight += 1 if task.kind == Pass.FORWARD else -1
            assert in_flight >= 0
            most = max(most, in_flight)
        assert most == min(pp - stage, m)  # what 1F1B is for: activations of at most that many micro-batches


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (8, 8), (8, 24)])
def test_the_bubble_of_equal_stages_is_p_minus_1_over_m(pp, m):
    """Equal stages and free communication leave (p - 1) / m of the useful work, exactly."""
    of = spec(2, parallel={"tp": 2, "pp": pp}, micro_batches=m)
    blueprint = build(of.cluster, spec=of)
    job, _ = check(of, blueprint, Twin(blueprint).fabric)
    program = build_program(job, name="test", fold=True)
    ops = program.operations
    labels = [label.name for label in program.labels]
    # a middle stage's passes stand for every stage's: the ends' embedding and logits are taken out
    equal = ops.duration_ps.copy()
    forward, backward = 0, 0
    for name in ("forward", "backward"):
        mine = ops.label == labels.index(name)
        per_pass = equal[mine & (ops.micro_batch == 0) & (ops.actor == min(1, pp - 1))].sum()
        forward, backward = (int(per_pass), backward) if name == "forward" else (forward, int(per_pass))
        for actor in range(pp):
            for i in range(m):
                rows = np.flatnonzero(mine & (ops.actor == actor) & (ops.micro_batch == i))
                equal[rows] = 0
                equal[rows[0]] = per_pass
    equal[ops.label == labels.index("optimizer")] = 0
    ops.duration_ps[:] = equal
    useful = m * (forward + backward)
    assert longest_path(program) == useful + (pp - 1) * (forward + backward)


def test_bytes_of_a_step_are_the_closed_forms():
    of = spec(2, parallel={"tp": 2, "pp": 2}, micro_batches=4)
    job, program = lowered(of)
    count = np.bincount(program.operations.communication[program.operations.communication != NONE])
    sent: dict[str, int] = {}
    for communication, times in zip(program.communications, count, strict=True):
        edges = patterns.edges(communication.channels)
        kind = communication.name.split(",")[0]
        sent[kind] = sent.get(kind, 0) + int(times) * int(edges.size_bytes.sum())
    dp, m, layers = job.layout.dp, 4, TINY["num_hidden_layers"]
    activation = 2048 * TINY["hidden_size"] * 2
    # two all-reduces forward and two backward in every layer, one for the embedding, one for the logits' gradient;
    # a ring of n sends 2 (n - 1) times the buffer in all
    reduces = 4 * layers + 2
    assert sent["tensor-parallel all-reduce"] == dp * m * reduces * 2 * (2 - 1) * activation
    # each of two tensor-parallel ranks sends its half once forward and once back, between two stages
    assert sent["activations"] == sent["gradients"] == dp * m * activation
    gradients = sum(job.stage_parameters(s) for s in (0, 1)) * 4
    assert sent["gradient all-reduce"] == 2 * 2 * (dp - 1) * gradients


def test_parameters_of_all_ranks_sum_to_the_model():
    """On one tensor-parallel rank, over all stages: the whole model, but for the padded vocabulary."""
    job, _ = lowered(spec(2, parallel={"tp": 1, "pp": 4}))
    pad = 2 * (job.vocab - TINY["vocab_size"]) * TINY["hidden_size"]
    assert sum(job.stage_parameters(s) for s in range(4)) == job.model.parameters + pad


@pytest.mark.parametrize(
    "parallel", [{"tp": 2, "pp": 2}, {"tp": 8, "pp": 2}, {"tp": 1, "pp": 4}, {"tp": 4, "pp": 1}]
)
@pytest.mark.parametrize("fidelity", ["flow", "analytic"])
def test_folded_and_unfolded_agree(parallel, fidelity):
    folded = predict(spec(2, parallel=parallel, fidelity=fidelity))
    apart = predict(spec(2, parallel=parallel, fidelity=fidelity, fold=False))
    assert len(apart.job.program.actors) == 16
    assert len(folded.job.program.actors) == parallel["pp"]
    assert folded.trace.end_ps == pytest.approx(apart.trace.end_ps, rel=0.02)
    assert folded.trace.counters.tx_bytes.sum() == apart.trace.counters.tx_bytes.sum()


@pytest.mark.parametrize(
    "parallel", [{"tp": 2, "pp": 4}, {"tp": 8, "pp": 2}, {"tp": 1, "pp": 2}, {"tp": 2, "pp": 1}]
)
@pytest.mark.parametrize("faults", [[], [{"gpu": "host-1/gpu3", "slowdown": 1.5}]])
def test_folding_keeps_the_longest_path_exactly(parallel, faults):
    """A class takes exactly what its slowest member takes where every communication takes the same."""
    changes: dict[str, Any] = {"parallel": parallel, "faults": faults, "recompute": "full"}
    _, folded = lowered(spec(2, **changes))
    _, apart = lowered(spec(2, fold=False, **changes))
    assert len(folded.operations) < len(apart.operations)
    for communication_ps in (0, 20_000_000, 3_000_000_000):
        assert longest_path(folded, communication_ps) == longest_path(apart, communication_ps)


def test_a_tied_embedding_is_reduced_between_first_and_last_stage():
    job, program = lowered(spec(2, model={**TINY, "tie_word_embeddings": True}))
    tied = [c for c in program.communications if c.name == "embedding-gradient all-reduce"]
    assert len(tied) == 1
    assert tied[0].size_bytes == job.vocab * TINY["hidden_size"] // 2 * 4
    assert tied[0].groups == job.layout.dp * 2
    # stage 0 holds ranks 0-7 and stage 1 ranks 8-15; a pair joins the same place of both
    edges = patterns.edges(tied[0].channels)
    assert (abs(edges.source - edges.target) == 8).all()
    assert not [c for c in lowered(spec(2))[1].communications if "embedding" in c.name]


def test_gradients_may_go_over_a_tree_or_along_rails():
    times, traffic = {}, {}
    for algorithm in ("ring", "tree", "hierarchical"):
        of = spec(2, parallel={"tp": 1, "pp": 1}, gradients={"algorithm": algorithm})
        job, program = lowered(of)
        phases = [c for c in program.communications if c.name.startswith("gradient")]
        assert len(phases) == (3 if algorithm == "hierarchical" else 1)
        sums = [patterns.edges(c.channels).size_bytes.sum() for c in phases]
        traffic[algorithm] = int(sum(sums))
        times[algorithm] = predict(of).trace.end_ps
    size, n = job.stage_parameters(0) * 4, 16
    # every one sends each of n - 1 contributions in and the sum back out: 2 (n - 1) times the buffer in all
    assert traffic == dict.fromkeys(traffic, 2 * (n - 1) * size)
    assert len(set(times.values())) == 3
    with pytest.raises(ConfigError, match=r"workload.training.gradients: got 3 channels, expected an even number"):
        predict(spec(2, gradients={"algorithm": "tree", "channels": 3}))


def test_a_layout_that_does_not_fit_its_gpus_says_so():
    assert not any(note.startswith("a GPU's memory:") for note in predict(spec(2)).job.notes)
    large = {**TINY, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
    result = predict(spec(2, model=large, parallel={"tp": 1, "pp": 1}, fidelity="analytic"))
    assert any(note.startswith("a GPU's memory: ") for note in result.job.notes)


@pytest.mark.parametrize("gpu", ["a100-80", "h100-sxm"])
def test_materialised_attention_is_near_what_was_measured(gpu):
    """Nothing in the roofline was fitted to it. The measured kernels are PyTorch's, which scale and mask apart."""
    measured = catalog.gpu(gpu).attention["materialised"]
    heads, size, sequence = 16, measured.head_size.value, measured.sequence.value
    keys = {**TINY, "num_attention_heads": heads, "num_key_value_heads": heads, "hidden_size": heads * size}
    shape = Shape(read_model(keys, name="measured"), 2, sequence, 32000, kernels=Kernels("materialised"))
    flops = 4 * 2 * heads * sequence**2 * size
    forward, _ = AttentionBlock(Roofline(gpu, "fp16"), shape).core()
    ratio = flops / forward.ps * 1e12 / measured.throughput.value
    assert 1.0 < ratio < 1.35


@pytest.mark.parametrize("gpu", ["a100-80", "h100-sxm"])
def test_no_measured_product_is_below_the_memory_roof(gpu):
    roof = Roofline(gpu, "fp16")
    for m, n, k, flops_per_s in catalog.gemm_efficiency(gpu, "fp16"):
        assert roof.gemm(m, n, k).ps == pytest.approx(2 * m * n * k / flops_per_s * 1e12, rel=1e-9)


def test_flow_and_analytic_agree_on_a_step():
    a, b = (predict(spec(2, fidelity=fidelity)).trace.end_ps for fidelity in ("flow", "analytic"))
    assert a == pytest.approx(b, rel=0.05)


def test_a_slow_gpu_slows_its_replica_and_splits_it_from_the_others():
    healthy = predict(spec(2))
    slow = spec(2, faults=[{"gpu": "host-1/gpu3", "slowdown": 1.5}])
    result = predict(slow)
    names = [actor.name for actor in result.job.program.actors]
    assert len(names) == 4
    ratio = result.trace.end_ps / healthy.trace.end_ps
    assert 1.2 < ratio < 1.5
    apart = predict(spec(2, faults=[{"gpu": "host-1/gpu3", "slowdown": 1.5}], fold=False))
    assert result.trace.end_ps == pytest.approx(apart.trace.end_ps, rel=0.02)


def test_a_slow_gpu_is_slow_in_the_optimizer_too():
    result = predict(spec(2, faults=[{"gpu": "host-1/gpu3", "slowdown": 2.0}]))
    labels = [label.name for label in result.job.program.labels]
    operations = result.job.program.operations
    steps = operations.duration_ps[operations.label == labels.index("optimizer")]
    assert steps.max() == pytest.approx(2 * steps.min(), rel=0.35)  # stages differ a little in parameters
    assert steps.max() > 1.5 * np.median(steps[:2])


def test_a_slow_link_slows_what_crosses_it():
    healthy = predict(spec(2, parallel={"tp": 8, "pp": 1}))
    broken = predict(spec(2, parallel={"tp": 8, "pp": 1}, faults=[{"link": "host-0/mlx5_0", "rate": "10 Gb/s"}]))
    assert broken.trace.end_ps > healthy.trace.end_ps * 1.1


def test_recomputation_adds_a_forward_and_its_all_reduces():
    plain, again = predict(spec(2)), predict(spec(2, recompute="full"))
    assert again.job.work.model_flops == plain.job.work.model_flops
    job, _ = lowered(spec(2))
    tokens = plain.job.work.tokens
    batch = job.layout.dp * job.micro_batches * job.training.micro_batch_size
    assert tokens == batch * 2048  # sequences of as many
    assert again.job.work.hardware_flops - plain.job.work.hardware_flops == 8 * job.model.layer_forward_flops(
        tokens, 2048
    )
    keys = {share.key for share in again.breakdown.shares if share.time_ps}
    assert "recompute" in keys


def test_the_breakdown_adds_up_to_the_step():
    result = predict(spec(2, recompute="full"))
    assert sum(share.time_ps for share in result.breakdown.shares) == result.trace.end_ps


def test_a_replicas_stages_lie_together_where_the_order_says_so():
    layout = Layout(tp=4, dp=3, pp=2, cp=2, order="tp-cp-pp-dp")
    assert layout.grid.shape == (2, 3, 8)
    assert (layout.grid == [[[16 * d + 8 * s + i for i in range(8)] for d in range(3)] for s in range(2)]).all()
    bound = Layout(tp=4, dp=4, pp=2, width=2, order="tp-cp-pp-dp")
    # a unit of two replicas: each position's stages are 4 ranks apart
    assert (bound.grid[1] - bound.grid[0] == 4).all()
    assert bound.grid[0, 1].tolist() == [16, 17, 18, 19, 24, 25, 26, 27]


def test_megatron_numbers_tensor_parallel_fastest_and_pipeline_slowest():
    layout = Layout(tp=4, dp=3, pp=2)
    assert list(layout.grid[1, 1]) == [16, 17, 18, 19]
    assert list(layout.grid[0, :, 2]) == [2, 6, 10]


def test_measured_products_are_met_and_others_lie_between():
    assert gemm_flops_per_s("a100-80", "fp16", 4096, 4096, 4096) == pytest.approx(228.0e12)
    between = gemm_flops_per_s("a100-80", "fp16", 6000, 6000, 6000)
    assert 228.0e12 < between < 256.5e12
    roof = Roofline("a100-80", "fp16")
    # a product with an inner dimension of one is memory's: it writes m x n for two FLOPs each
    thin = roof.gemm(8192, 8192, 8)
    assert thin.ps >= 2 * 8192 * 8192 / (roof.gpu.memory_bandwidth_measured.value / 8) * 1e12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parallel": {"tp": 3}}, r"workload.training.parallel.tp: got 3, expected a divisor of the model's 16"),
        ({"parallel": {"pp": 3}}, r"parallel.pp: got 3, expected a divisor of the model's 8 layers"),
        ({"parallel": {"tp": 8, "pp": 4}}, r"got tp 8 × pp 4 = 32, expected a divisor of the cluster's 16"),
        ({"parallel": {"tp": 2, "pp": 2, "dp": 5}}, r"= 20 ranks, expected at most the cluster's 16"),
        ({"micro_batches": None, "global_batch": 10}, r"global_batch: got 10, expected a multiple of .* = 4"),
        ({"global_batch": 16}, r"got both of micro_batches and global_batch"),
        ({"paralel": {"tp": 2}}, r"paralel: .*did you mean 'parallel'"),
        ({"model": {"hidden_size": 5}}, r"workload.training.model: .*lacks"),
        ({"sequence": 0}, r"sequence"),
    ],
)
def test_what_does_not_divide_is_one_clear_error(change, message):
    with pytest.raises(ConfigError, match=message):
        predict(spec(2, **change))
