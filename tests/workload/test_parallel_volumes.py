"""What each kind of parallelism moves in a step: bytes summed over all edges, against closed forms."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from support.programs import lowered
from support.specs import DEEPSEEK, MIXTRAL, TINY
from support.specs import tiny_job as spec

from fabrictwin.program import patterns
from fabrictwin.program.data_execution import execute
from fabrictwin.runs.execute import predict
from fabrictwin.workload.job.job_communications import exchange
from fabrictwin.workload.layers.attention import AttentionBlock
from fabrictwin.workload.layers.feedforward import MlpBlock, peak_load
from fabrictwin.workload.layers.roofline import Cost, Roofline
from fabrictwin.workload.layers.transformer import Shape, Sharing
from fabrictwin.workload.model.huggingface_families import read_model

LAYERS, HIDDEN, SEQUENCE, MICRO = 8, 1024, 2048, 4


def sent(program) -> dict[str, int]:
    """Bytes over all edges in the step, by what the communication is called."""
    times = np.bincount(program.operations.communication[program.operations.communication != -1])
    found: dict[str, int] = defaultdict(int)
    for communication, count in zip(program.communications, times, strict=True):
        edges = patterns.edges(communication.channels)
        found[communication.name.split(",")[0]] += int(count) * int(edges.size_bytes.sum())
    return dict(found)


def parameters(job) -> int:
    """Count the parameters of all stages, on one tensor-parallel rank."""
    return sum(job.stage_parameters(s) for s in range(job.layout.pp))


@pytest.mark.parametrize("overlap", ["none", "gradients", "full"])
def test_sequence_parallel_gathers_and_scatters(overlap):
    of = spec(2, parallel={"tp": 4, "pp": 2}, sequence_parallel=True, overlap={"tensor": overlap})
    job, program = lowered(of)
    moved = sent(program)
    activation = SEQUENCE * HIDDEN * 2
    ring = 3 * activation * job.layout.dp * MICRO
    # a layer: forward gathers twice; backward gathers gradients twice and inputs twice. Ends: the embedding's
    # gradient, the head's input forward and backward
    assert moved["tensor-parallel all-gather"] == ring * (6 * LAYERS + 3)
    assert moved["tensor-parallel reduce-scatter"] == ring * (4 * LAYERS + 2)
    assert "tensor-parallel all-reduce" not in moved
    assert moved["activations"] == job.layout.dp * MICRO * activation  # 4 ranks send a quarter each


@pytest.mark.parametrize(
    ("parallel_norms", "gathers", "sums", "reduced"), [(0, 6, 4, 4), (2, 5, 3, 3), (1, 3, 2, 2)]
)
def test_parallel_layers_sum_once_for_both_blocks(parallel_norms, gathers, sums, reduced):
    """Forward one sum for both; behind one norm one gather, and backward one sum of gradients, as well."""
    falcon = {
        "model_type": "falcon", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 16,
        "vocab_size": TINY["vocab_size"], "ffn_hidden_size": 4096, "num_kv_heads": 8,
        **({"new_decoder_architecture": True, "num_ln_in_parallel_attn": parallel_norms} if parallel_norms
           else {"multi_query": False, "parallel_attn": False}),
    }  # fmt: skip
    of = spec(2, parallel={"tp": 4}, model=falcon, sequence_parallel=True)
    job, program = lowered(of)
    moved, ring = sent(program), 3 * SEQUENCE * HIDDEN * 2 * job.layout.dp * MICRO
    assert moved["tensor-parallel all-gather"] == ring * (gathers * LAYERS + 3)
    assert moved["tensor-parallel reduce-scatter"] == ring * (sums * LAYERS + 2)
    moved = sent(lowered(spec(2, parallel={"tp": 4}, model=falcon))[1])
    assert moved["tensor-parallel all-reduce"] == 2 * ring * (reduced * LAYERS + 2)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_every_second_product_again_sums_what_is_not_kept(sequence_parallel):
    """An all-reduce of attention's result again; what reduce-scatters gave was kept."""
    plain, again = (
        sent(lowered(spec(2, parallel={"tp": 4}, recompute=how, sequence_parallel=sequence_parallel))[1])
        for how in ("none", "operations")
    )
    reduced = again.pop("tensor-parallel all-reduce", 0) - plain.pop("tensor-parallel all-reduce", 0)
    assert again == plain
    assert reduced == (0 if sequence_parallel else 2 * 3 * SEQUENCE * HIDDEN * 2 * 4 * MICRO * LAYERS)


@pytest.mark.parametrize("context", ["ring", "all-gather"])
@pytest.mark.parametrize("cp", [2, 4])
def test_context_parallel_moves_keys_and_values(context, cp):
    job, program = lowered(spec(2, parallel={"tp": 2, "pp": 2, "cp": cp, "context": context}))
    moved = sent(program)
    width = 2 * TINY["num_key_value_heads"] * HIDDEN // TINY["num_attention_heads"]
    # every rank's part passes cp - 1 times: forward, backward, and its gradients once more
    once = (cp - 1) * SEQUENCE * width * 2 * job.layout.dp * MICRO * LAYERS
    assert moved["key-value exchange"] == 2 * once
    assert moved["key-value gradients"] == once


@pytest.mark.parametrize("kernels", ["fused", "eager"])
@pytest.mark.parametrize("cp", [2, 4])
def test_pytorch_s_context_parallelism_repeats_heads_and_sends_gradients_home(kernels, cp):
    parallel = {"tp": 2, "pp": 2, "cp": cp, "context": "pytorch"}
    job, program = lowered(spec(2, parallel=parallel, kernels=kernels))
    moved = sent(program)
    once = SEQUENCE * 2 * HIDDEN * job.layout.dp * MICRO * LAYERS  # elements of all heads' keys and values
    assert moved["key-value exchange"] == 2 * (cp - 1) * once * 2
    assert moved["key-value gradients"] == pytest.approx(cp * once * 4, rel=0.01)


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_experts_are_sent_top_k_copies_of_each_token(ep):
    job, program = lowered(spec(2, model=MIXTRAL, parallel={"tp": 1, "pp": 2, "ep": ep}))
    ranks = job.layout.dp  # of each stage
    copies = SEQUENCE * 2 * HIDDEN * 2
    # to the experts and back, forward and backward; a rank keeps 1 / ep
    assert sent(program)["expert all-to-all"] == 4 * LAYERS * MICRO * ranks * copies * (ep - 1) // ep


def test_experts_gradients_are_reduced_over_those_who_hold_them():
    job, program = lowered(spec(2, model=MIXTRAL, parallel={"tp": 1, "pp": 2, "ep": 4}))
    moved = sent(program)
    dense = sum(job.split_parameters(s)[0] for s in range(2))
    experts = sum(job.split_parameters(s)[1] for s in range(2))
    assert experts == LAYERS * 2 * job.model.expert_parameters()
    assert moved["gradient all-reduce"] == 2 * (8 - 1) * dense * 4
    assert moved["expert-gradient all-reduce"] == 4 * 2 * (2 - 1) * experts * 4  # four groups of two


@pytest.mark.parametrize("overlap", [False, True])
def test_zero_volumes_are_those_of_the_paper(overlap):
    """Rajbhandari et al. 2020, section 7: 2 psi, and 3 psi where parameters are sharded too.

    One micro-batch, everything in two bytes.
    """
    volumes = {}
    for strategy in ("none", "zero-1", "zero-2", "zero-3"):
        switches = {"gradients": overlap, "bucket": "30 MB"} if strategy in ("none", "zero-1") else {}
        of = spec(
            2,
            parallel={"tp": 1, "pp": 1},
            micro_batches=1,
            gradient_precision="same",
            sharding=strategy,
            overlap=switches,
        )
        job, program = lowered(of)
        volumes[strategy] = sum(sent(program).values())
    ring, psi = 15, parameters(job) * 2  # a ring of 16 sends the whole 15 times over
    kept = job.last_parameters() * 2  # stays from forward to backward
    assert volumes["none"] == 2 * ring * psi
    # shards are padded to one size, bucket by bucket
    assert volumes["zero-1"] == pytest.approx(2 * ring * psi, rel=1e-5)
    assert volumes["zero-2"] == pytest.approx(2 * ring * psi, rel=1e-5)
    assert volumes["zero-3"] == pytest.approx(ring * (3 * psi - kept), rel=1e-5)


def test_fully_sharded_data_parallel_gathers_in_every_pass():
    base = {"parallel": {"tp": 1, "pp": 1}, "gradient_precision": "same"}
    job, program = lowered(spec(2, sharding="fsdp", **base))
    moved = sent(program)
    whole, kept = 15 * parameters(job) * 2, 15 * job.last_parameters() * 2
    assert moved["parameter all-gather"] == pytest.approx(MICRO * (2 * whole - kept), rel=1e-5)
    assert moved["gradient reduce-scatter"] == pytest.approx(MICRO * whole, rel=1e-5)
    _, once = lowered(spec(2, sharding={"strategy": "fsdp", "reshard_after_forward": False}, **base))
    assert sent(once)["parameter all-gather"] == pytest.approx(MICRO * whole, rel=1e-5)


@pytest.mark.parametrize(
    ("precision", "order"),
    # bytes a parameter: FSDP 2 copies 4, twice, and 2 + the gradient's; FSDP 1 joins 4, casts 2 + 4, divides 2 × 4
    [("fp32", ["zero-3", "fsdp", "fsdp-1"]), ("same", ["zero-3", "fsdp-1", "fsdp"])],
)
def test_fsdp_1_moves_the_same_and_copies_gradients_alone(precision, order):
    moved, took = {}, {}
    for strategy in order:
        of = spec(2, parallel={"tp": 1, "pp": 1}, sharding=strategy, gradient_precision=precision)
        moved[strategy] = sent(lowered(of)[1])
        took[strategy] = predict(of).trace.end_ps
    assert moved["fsdp"] == moved["fsdp-1"] == moved["zero-3"]
    assert sorted(took, key=took.__getitem__) == order


def test_hybrid_sharding_keeps_gathers_inside_hosts():
    sharding = {"strategy": "fsdp", "ranks": 8}
    of = spec(2, parallel={"tp": 1, "pp": 1}, gradient_precision="same", sharding=sharding)
    job, program = lowered(of)
    for communication in program.communications:
        edges = patterns.edges(communication.channels)
        crosses = job.placement.host_of_rank[edges.source] != job.placement.host_of_rank[edges.target]
        assert crosses.all() if "copies" in communication.name else not crosses.any()
    shard = -(-parameters(job) // 8) * 2
    assert sent(program)["gradient all-reduce of copies"] == 8 * 2 * shard


def test_an_exchange_at_once_moves_what_the_steps_one_by_one_do():
    rng = np.random.default_rng(5)
    groups = np.array([[0, 2, 5], [1, 3, 4]])
    blocks = exchange(groups, 8, step_cost_ps=0, name="exchange")
    data = rng.integers(0, 1 << 15, (6, 12)).astype(np.int16)
    for seed in range(4):
        after = execute([blocks], data, seed=seed)
        for group in groups:
            for i, me in enumerate(group):
                for j, other in enumerate(group):
                    if i != j:
                        assert (after[me, 4 * j : 4 * j + 4] == data[other, 4 * i : 4 * i + 4]).all()


class Counting(Roofline):
    """Adds up the FLOPs of matrix products."""

    def __init__(self) -> None:
        super().__init__("h100-sxm", "bf16")
        self.flops = 0.0

    def linear(self, m, n, k, *, copies=1, **options) -> Cost:
        self.flops += 2.0 * m * n * k * (copies - 1)
        return super().linear(m, n, k, copies=copies, **options)

    def _product(self, m, n, k, batch, precision, operand, out) -> Cost:
        self.flops += 2.0 * m * n * k * batch
        return super()._product(m, n, k, batch, precision, operand, out)


@pytest.mark.parametrize(("keys", "sparse"), [(TINY, False), (MIXTRAL, True), (DEEPSEEK, True), (DEEPSEEK, False)])
@pytest.mark.parametrize("tp", [1, 4])
def test_kernels_execute_the_models_flops(keys, sparse, tp):
    """All ranks of a layer together: forward as the formula says, backward twice that."""
    roof, model = Counting(), read_model(keys, name="x")
    shape = Shape(model, 2, 512, 32000, Sharing(tp, sequence_parallel=tp > 1, expert_tp=tp))
    load = 1.0 if sparse else 0.0
    tokens = shape.tokens
    expected = model.layer_forward_flops(tokens, 512, sparse=sparse) - model.core_attention_flops(tokens, 512)
    AttentionBlock(roof, shape).forward()
    MlpBlock(roof, shape).forward(load)
    assert roof.flops * tp == expected
    roof.flops = 0
    AttentionBlock(roof, shape).backward(recompute_core=False)
    MlpBlock(roof, shape).backward(load)
    assert roof.flops * tp == 2 * expected


def test_loads_of_experts_are_seeded_and_bounded():
    assert peak_load(64, 8, 0.0, 1, 0) == 1.0
    assert peak_load(64, 8, 0.3, 1, 0) == peak_load(64, 8, 0.3, 1, 0) != peak_load(64, 8, 0.3, 2, 0)
    loads = [peak_load(64, 64, 0.2, 7, layer) for layer in range(200)]
    # the largest of 64 draws of a bell lies about 2.4 deviations above the mean
    assert np.mean(loads) == pytest.approx(1 + 2.4 * 0.2, abs=0.03)
    assert peak_load(64, 1, 0.5, 3, 0) == pytest.approx(1.0)
    # experts that share a rank even out
    assert np.mean([peak_load(64, 4, 0.2, 7, layer) for layer in range(200)]) < 1.1
