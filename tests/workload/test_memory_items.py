"""Every item of a GPU's memory by the equations that it is from, for a model small enough to write them out.

Weights and their states: Rajbhandari et al. 2020 (ZeRO), section 3. Activations: Korthikanti et al. 2022,
equations 1 to 6. Micro-batches in flight: the same, section 4.2.3. Sizes are told apart by being different.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fabrictwin.base.grouped import grouped
from fabrictwin.workload.memory import gpu_memory as gm
from fabrictwin.workload.memory.memory_inputs import MemoryInputs
from fabrictwin.workload.model.model_blocks import Experts, Latent, Mamba
from fabrictwin.workload.model.model_sizes import Model

H, A, KV, D, F, V = 48, 4, 2, 12, 80, 160
MIB = 2**20
LLAMA = Model("plain", "llama", H, 8, A, KV, D, F, V, 0, False)
GPT = replace(LLAMA, positions=32, dropout=True, gated=False, norm="layer", biases=True, kv_heads=A, tied=True)
SPARSE = replace(LLAMA, experts=Experts(8, 2, 20, shared_ffn=16, first_dense=2))
T = 3 * 16  # tokens of a micro-batch
QKV = (A + 2 * KV) * D


def inputs(model: Model = LLAMA, **more) -> MemoryInputs:
    return grouped(MemoryInputs(model, V, (8,)), {"micro_batch_size": 3, "sequence": 16, **more})


LAYER = H * QKV + A * D * H + 3 * H * F + 2 * H  # QKV, projection, gate, up, down, two norms


def test_parameters_of_a_layer_and_of_the_ends():
    assert gm.layer_parameters(inputs()) == LAYER
    assert gm.layer_parameters(inputs(tp=2)) == (LAYER - 2 * H) // 2 + 2 * H
    four = inputs(stage_layers=(2, 2, 2, 2), tp=2)
    assert [gm.end_parameters(four, stage) for stage in range(4)] == [V * H // 2, 0, 0, V * H // 2 + H]
    assert gm.end_parameters(inputs(), 0) == 2 * V * H + H
    tied = inputs(GPT)
    assert gm.end_parameters(tied, 0) == V * H + 32 * H + 2 * H
    split = replace(tied, stage_layers=(4, 4))
    assert [gm.end_parameters(split, stage) for stage in (0, 1)] == [V * H + 32 * H, V * H + 2 * H]
    predicted = inputs(replace(LLAMA, predictors=2))
    assert gm.end_parameters(predicted, 0) == 2 * V * H + H + 2 * (LAYER + 2 * H * H + 3 * H)
    assert gm.expert_parameters(inputs(SPARSE, ep=4)) == 2 * 3 * H * 20
    assert gm.expert_parameters(inputs(SPARSE, ep=4, expert_tp=2)) == 2 * 3 * H * 20 // 2
    assert gm.expert_parameters(inputs()) == 0


FLASH = 4 * A  # the logarithm of a row's sum of exponentials, in 4 bytes a head


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 8 * H + 2 * (A * D + QKV) + 6 * F + FLASH),
        ({"tp": 2}, 8 * H + (2 * (A * D + QKV) + 6 * F + FLASH) / 2),
        ({"tp": 2, "sequence_parallel": True}, (8 * H + 2 * (A * D + QKV) + 6 * F + FLASH) / 2),
        ({"cp": 2}, (8 * H + 2 * (A * D + QKV) + 6 * F + FLASH) / 2),
        ({"attention": "materialised"}, 8 * H + 2 * (A * D + QKV) + 6 * F + 2 * A * 16),
        ({"recompute_modules": ("norms",)}, 4 * H + 2 * (A * D + QKV) + 6 * F + FLASH),
        ({"recompute_modules": ("latent-up",)}, 8 * H + 2 * A * D + 6 * F + FLASH),
    ],
)
def test_activations_of_a_dense_layer(more, expected):
    found = inputs(**more)
    assert gm.layer_bytes(found, "none") == T * expected
    if found.activations.attention == "materialised":
        assert gm.layer_bytes(found, "selective") == T * (expected - 2 * A * 16)
    over = (2 if found.activations.sequence_parallel else 1) * found.ranks.cp
    assert gm.layer_bytes(found, "full") == T * 2 * H / over


def test_activations_of_the_paper():
    """Equation 1: s b h (34 + 5 a s / h) bytes, less one mask and one input that this model of kernels has not."""
    s, b = 16, 3
    kept = gm.layer_bytes(inputs(replace(GPT, ffn=4 * H), attention="materialised"), "none")
    paper = s * b * H * (34 + 5 * A * s / H)
    mine = {
        "norms": 4 * 2 * H,
        "masks": 2 * H,
        "core": 2 * (A * D + 3 * A * D),
        "mlp": 2 * 2 * 4 * H,
        "scores": 5 * A * s,
    }
    assert kept == s * b * sum(mine.values())
    assert kept == paper  # 8 + 2 + 8 + 16 are 34


def test_every_second_product_is_kept():
    found = inputs(tp=2, sequence_parallel=True)
    q, kv, attention = A * D, KV * D, A * D  # Q, V, gate and attention's output are kept, and the layer's input
    whole = (
        3 * H / 2 + H
    )  # the input and both reduce-scatters' results are divided, the last product's sums are not
    assert gm.layer_bytes(found, "operations") == T * (2 * whole + (2 * (q + kv + F + attention) + FLASH) / 2)
    plain = inputs(replace(GPT, biases=False))
    assert gm.layer_bytes(plain, "operations") == T * (2 * H + 2 * (q + A * D + F + H + attention) + FLASH)


def test_activations_of_latent_attention():
    found = inputs(replace(LLAMA, latent=Latent(20, 10, 4, 6, 8), kv_heads=A))
    wide = A * (2 * 10 + 8)
    low = 2 * (2 * 20 + 2 * 10 + 4)
    assert gm.layer_bytes(found, "none") == T * (8 * H + low + 2 * (A * 8 + wide) + 6 * F + FLASH)


@pytest.mark.parametrize(
    ("more", "copy"),
    [
        ({}, H + 3 * 20 + H),
        ({"expert_tp": 2}, 2 * H + 3 * 20 + H),
        ({"load": 1.5}, 1.5 * (H + 3 * 20 + H)),
        ({"recompute_modules": ("expert-activations",)}, H + 2 * 20 + H),
        ({"recompute_modules": ("experts",)}, 0),
    ],
)
def test_activations_of_experts(more, copy):
    found = inputs(SPARSE, tp=2, **more)
    shared = 0 if "experts" in more.get("recompute_modules", ()) else 6 * 16
    expected = 8 * H + 2 * 2 * copy + (2 * (A * D + QKV) + shared + FLASH) / 2
    assert gm.layer_bytes(found, "none", sparse=True) == T * expected
    two = replace(SPARSE, gated=False)
    if not more:
        ungated = 8 * H + 2 * 2 * (H + 2 * 20 + H) + (2 * (A * D + QKV) + 4 * 16 + FLASH) / 2
        assert gm.layer_bytes(inputs(two, tp=2), "none", sparse=True) == T * ungated


def test_activations_of_a_hybrid():
    mamba = Mamba(heads=6, head_size=8, state=10, groups=2, kernel=4, chunk=16)
    model = replace(LLAMA, pattern="MM*-MM*E", mamba=mamba, experts=Experts(8, 2, 20, shared_ffn=16, latent=30))
    read = 48 + (48 + 2 * 2 * 10) + 6
    kinds = {"M": 2 * (read + 48), "*": 2 * (QKV + A * D) + FLASH, "-": 2 * 2 * F}
    mean = (4 * kinds["M"] + 2 * kinds["*"] + kinds["-"]) / 7
    for norms, kept in (((), 2), (("norms",), 1)):
        found = inputs(model, tp=2, recompute_modules=norms)
        whole = kept * 2 * H
        assert gm.layer_bytes(found, "none") == pytest.approx(T * (whole + mean / 2))
        copy = 30 * (1 + 1) + 2 * 20
        assert gm.layer_bytes(found, "none", sparse=True) == T * (whole + 2 * 2 * copy + 2 * 2 * 16 / 2)
    again = inputs(model, tp=2, sequence_parallel=True, recompute_modules=("expert-activations",))
    assert gm.layer_bytes(again, "none", sparse=True) == T * (2 * H + 2 * 2 * (60 + 20) + 2 * 16)
    gone = inputs(model, tp=2, recompute_modules=("experts",))
    assert gm.layer_bytes(gone, "none", sparse=True) == T * 4 * H


@pytest.mark.parametrize(
    ("schedule", "vp", "micro_batches", "expected"),
    [
        ("1f1b", 1, 8, [4, 3, 2, 1]),
        ("1f1b", 1, 2, [2, 2, 2, 1]),
        ("gpipe", 1, 8, [8, 8, 8, 8]),
        # chunks: 2 (p - s - 1) + (v - 1) p + 1
        ("interleaved", 2, 8, [11 / 2, 9 / 2, 7 / 2, 5 / 2]),
        ("interleaved", 2, 4, [8 / 2, 8 / 2, 7 / 2, 5 / 2]),
        ("interleaved", 1, 8, [4, 3, 2, 1]),
    ],
)
def test_micro_batches_in_flight(schedule, vp, micro_batches, expected):
    found = inputs(stage_layers=(2,) * 4, schedule=schedule, vp=vp, micro_batches=micro_batches)
    assert [gm.in_flight(found, stage) for stage in range(4)] == expected
    assert gm.in_flight(inputs(schedule="interleaved", vp=2, micro_batches=8), 0) == 1


@pytest.mark.parametrize(("zero", "shares"), [(0, (1, 1, 1)), (1, (1, 1, 8)), (2, (1, 8, 8)), (3, (8, 8, 8))])
def test_states_are_divided_by_stage(zero, shares):
    found = inputs(zero=zero, dp=4, cp=2, gradient_bytes=2)
    assert gm.states(8000, found) == (16000 // shares[0], 16000 // shares[1], 96000 // shares[2])
    assert gm.states(8000, found, over=2)[2] == (96000 if zero == 0 else 48000)
    sharded = inputs(fsdp=True, dp=4, cp=2)
    assert gm.states(8000, sharded) == (4000, 4000, 8000)
    assert gm.states(8000, grouped(sharded, {"shards": 2})) == (16000, 16000, 32000)


def test_experts_are_held_by_fewer():
    assert inputs(dp=8, cp=2, tp=2, ep=4, expert_tp=2).experts_over == 8 * 2 * 2 // 8
    assert inputs(dp=1, ep=4).experts_over == 1
    assert inputs(dp=3, cp=2).sharded_over == 6
    assert inputs(dp=3, cp=2, shards=4).sharded_over == 4
    assert inputs(SPARSE, stage_layers=(4, 4), sparse_layers=(2, 4)).layers_of(0) == (2, 2)


def test_what_is_gathered_while_it_is_computed():
    assert gm.gathered_bytes(inputs(zero=2), 0) == 0
    ends = 2 * V * H + H
    for more in ({"zero": 3}, {"fsdp": True}):
        assert gm.gathered_bytes(inputs(**more), 0) == 2 * (2 * LAYER + ends) + 4 * LAYER + 2 * ends
    found = inputs(SPARSE, zero=3, ep=4, stage_layers=(8,), sparse_layers=(6,))
    layer = gm.layer_parameters(found, sparse=True) + 2 * 3 * H * 20
    assert gm.gathered_bytes(found, 0) == 2 * (2 * layer + ends) + 4 * layer + 2 * ends
    assert gm.layer_parameters(found, sparse=True) == LAYER - 3 * H * F + H * 8 + 3 * H * 16


def test_communicators_of_a_rank():
    assert gm.communicators(inputs(), 0) == []
    found = inputs(tp=4, cp=3, dp=5, stage_layers=(2,) * 4, shards=15)
    assert gm.communicators(found, 0) == [4, 3, 15, 2]
    assert gm.communicators(found, 1) == gm.communicators(found, 2) == [4, 3, 15, 2, 2]
    assert gm.communicators(found, 3) == [4, 3, 15, 2]
    assert gm.communicators(grouped(found, {"shards": 5}), 0) == [4, 3, 5, 2]
    tied = replace(found, model=GPT)
    assert [len(gm.communicators(tied, stage)) for stage in range(4)] == [5, 5, 5, 5]
    assert gm.communicators(inputs(GPT, dp=2), 0) == [2]


def items(found: MemoryInputs, stage: int) -> dict[str, int]:
    return {item.key: item.bytes for item in gm.stage_memory(found, stage, 0).items}


def test_all_items_of_one_rank():
    found = inputs(dp=4, micro_batches=2)
    parameters = 8 * LAYER + 2 * V * H + H
    layer = gm.layer_bytes(found, "none")
    assert items(found, 0) == {
        "weights": 2 * parameters,
        "gradients": 4 * parameters,
        "optimizer": 12 * parameters,
        "activations": 8 * layer + 4 * T * H,  # and the final norm's input and output
        "logits": 6 * T * V,
        "nccl": 688 * MIB,
        "context": 512 * MIB,
    }
    memory = gm.stage_memory(found, 0, 10**12)
    assert memory.total_bytes == sum(items(found, 0).values())
    assert (memory.fits, memory.over_bytes) == (True, 0)
    tight = gm.stage_memory(found, 0, memory.total_bytes)
    assert tight.fits
    short = gm.stage_memory(found, 0, memory.total_bytes - 7)
    assert (short.fits, short.over_bytes) == (False, 7)
    assert "does not fit" in short.line
    assert "does not fit" not in tight.line
    assert [item.key for item in memory.items if item.estimate] == ["nccl", "context"]
    assert "activations, 1 micro-batches" in [item.name for item in memory.items]


def test_items_by_stage():
    found = inputs(GPT, stage_layers=(3, 3, 2), dp=2, tp=2, sequence_parallel=True, micro_batches=8)
    layer = gm.layer_bytes(found, "none")
    kept = [items(found, stage)["activations"] for stage in range(3)]
    # in flight 3, 2, 1; the embedding's mask of a byte; the final norm's input and output
    assert kept == [round(3 * 3 * layer + 3 * T * H / 2), round(2 * 3 * layer), round(2 * layer + 4 * T * H / 2)]
    assert ["logits" in items(found, stage) for stage in range(3)] == [False, False, True]
    assert items(found, 2)["logits"] == 6 * T * V // 2
    assert items(found, 1)["nccl"] == (1 + 1 + 2) * 544 * MIB
    assert items(found, 0)["nccl"] == (1 + 1 + 1 + 1) * 544 * MIB  # embeddings that are tied meet the head's
    weights = [items(found, stage)["weights"] for stage in range(3)]
    own = gm.layer_parameters(found)
    assert weights == [2 * (n * own + gm.end_parameters(found, s)) for s, n in enumerate((3, 3, 2))]


def test_items_with_experts_and_predictors():
    model = replace(SPARSE, predictors=1)
    found = inputs(
        model, stage_layers=(4, 4), sparse_layers=(2, 4), ep=2, dp=4, zero=1, micro_batches=4, load=1.25
    )
    dense, sparse = gm.layer_parameters(found), gm.layer_parameters(found, sparse=True)
    each = 4 * 3 * H * 20  # four experts of a layer on a rank
    first, last = items(found, 0), items(found, 1)
    assert first["weights"] == 2 * (2 * dense + 2 * sparse + V * H) + 2 * 2 * each
    assert first["optimizer"] == 12 * (2 * dense + 2 * sparse + V * H) // 4 + 12 * 2 * each // 2
    own = 4 * sparse + gm.end_parameters(found, 1)
    assert last["weights"] == 2 * own + 2 * 5 * each
    assert last["gradients"] == 2 * last["weights"]
    kept = gm.layer_bytes(found, "none"), gm.layer_bytes(found, "none", sparse=True)
    assert first["activations"] == round(2 * (2 * kept[0] + 2 * kept[1]))
    assert last["activations"] == round(5 * kept[1] + 4 * T * H)


def test_one_layer_recomputed_counts_where_it_is_more_than_the_logits():
    found = inputs(recompute="full", stage_layers=(4, 4), micro_batches=1, vocab=640)
    again = gm.layer_bytes(found, "none") - gm.layer_bytes(found, "full")
    assert items(found, 0)["recomputed"] == again
    assert again < 6 * T * 640
    assert items(found, 1)["logits"] == 6 * T * 640
    assert "recomputed" not in items(found, 1)
    small = replace(found, vocab=16)
    last = items(small, 1)
    assert last["recomputed"] == again
    assert "logits" not in last
    stage, total = gm.fullest(small, "full")
    assert total == sum(items(small, stage).values())
    sparse = inputs(SPARSE, recompute="full", stage_layers=(8,), sparse_layers=(6,), vocab=16)
    more = gm.layer_bytes(sparse, "none", sparse=True) - gm.layer_bytes(sparse, "full", sparse=True)
    assert items(sparse, 0)["recomputed"] == round(more)


def test_the_fullest_stage_is_found_among_all():
    layers = ((2, 2, 2, 2), (1, 1, 5, 1), (1, 1, 1, 6), (5, 1, 1, 1), (1, 4, 1, 1), (8,), (4, 4))
    for stages in layers:
        for micro_batches in (1, 8):
            found = inputs(stage_layers=stages, micro_batches=micro_batches)
            totals = [sum(items(found, stage).values()) for stage in range(len(stages))]
            stage, total = gm.fullest(found, "none")
            assert total == max(totals) == totals[stage]
    sparse = inputs(SPARSE, stage_layers=(2, 2, 2, 2), sparse_layers=(0, 0, 2, 0), load=9.0)
    totals = [sum(items(sparse, stage).values()) for stage in range(4)]
    assert gm.fullest(sparse, "none") == (2, max(totals))


def test_pytorch_keeps_more_of_logits():
    assert gm.logit_bytes(inputs(tp=2)) == (2 + 4) * T * V // 2
    assert gm.logit_bytes(inputs(fsdp=True)) == (2 + 4 + 4 + 4) * T * V
