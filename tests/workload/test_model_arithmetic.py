"""Parameters and FLOPs of models small enough to be counted by hand, matrix by matrix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fabrictwin.workload.layers import flash_attention as flash
from fabrictwin.workload.layers.number_formats import format_of
from fabrictwin.workload.layers.pass_script import Collective, Script
from fabrictwin.workload.layers.roofline import NOTHING, AttentionKernel, Cost, Heads, Roofline
from fabrictwin.workload.model.model_blocks import Experts, Latent, Linear, Mamba
from fabrictwin.workload.model.model_sizes import Model

H, A, KV, D, F, V, N = 48, 4, 2, 12, 80, 160, 6
LLAMA = Model("plain", "llama", H, N, A, KV, D, F, V, 0, False)
GPT = replace(LLAMA, positions=32, gated=False, norm="layer", biases=True, kv_heads=A, tied=True)
SPARSE = replace(
    LLAMA, experts=Experts(8, 2, 20, shared_ffn=16, shared_gate=True, routing_bias=True, first_dense=2)
)
LATENT = replace(LLAMA, latent=Latent(20, 10, 4, 6, 8), kv_heads=A)
HYBRID = replace(
    LLAMA, pattern="MM*-ME", mamba=Mamba(6, 8, 10, 2, 4, 16), experts=Experts(8, 2, 20, shared_ffn=16, latent=30)
)
ATTENTION = H * (A + 2 * KV) * D + A * D * H
MLP = 3 * H * F


def test_a_layer_is_its_matrices_and_norms():
    assert LLAMA.parameters_on_rank(sparse=False) == ATTENTION + MLP + 2 * H
    assert LLAMA.parameters == LLAMA.active_parameters == N * (ATTENTION + MLP + 2 * H) + 2 * V * H + H
    assert (LLAMA.qkv_width, LLAMA.kv_width, LLAMA.ups) == (96, 2 * KV * D, 2)
    assert (LLAMA.windows, LLAMA.sparse_layers, LLAMA.sparse_before) == ((0,), 0, (0,) * (N + 1))
    assert LLAMA.expert_parameters() == 0


def test_a_gpt_has_biases_two_numbers_a_norm_and_learned_positions():
    width = 3 * A * D
    layer = H * width + width + A * D * H + H + H * F + F + F * H + H + 2 * 2 * H
    assert GPT.parameters_on_rank(sparse=False) == layer
    assert GPT.parameters == N * layer + (V + 32) * H + 2 * H
    assert replace(GPT, tied=False).parameters == GPT.parameters + V * H
    # columns divide their bias, rows keep theirs whole
    half = (H * width + width + A * D * H + H * F + F + F * H) // 2 + 2 * H + 4 * H
    assert GPT.parameters_on_rank(sparse=False, tp=2) == half
    assert (
        replace(LLAMA, qkv_bias=True).parameters_on_rank(sparse=False)
        == LLAMA.parameters_on_rank(sparse=False) + 96
    )
    assert (
        replace(LLAMA, qk_norm=True).parameters_on_rank(sparse=False)
        == LLAMA.parameters_on_rank(sparse=False) + 2 * D
    )
    assert replace(LLAMA, sinks=True).parameters_on_rank(sparse=False, tp=2) == (
        LLAMA.parameters_on_rank(sparse=False, tp=2) + A // 2
    )


def test_latent_attention_has_low_ranks():
    assert LATENT.key_size == 10
    low = H * 20 + 20 * A * 10 + H * 14 + 10 * A * 14 + A * 8 * H
    assert LATENT.parameters_on_rank(sparse=False) == low + 20 + 10 + MLP + 2 * H
    assert (LATENT.qkv_width, LATENT.kv_width, LATENT.value_size) == (A * 28, A * 18, 8)
    whole = H * 20 + H * 14
    assert LATENT.parameters_on_rank(sparse=False, tp=2) == whole + (low - whole) // 2 + 30 + MLP // 2 + 2 * H
    one = replace(LATENT, latent=Latent(0, 10, 4, 6, 8))
    assert (
        one.parameters_on_rank(sparse=False)
        == LATENT.parameters_on_rank(sparse=False) - (H * 20 + 20 * A * 10 + 20) + H * A * 10
    )


EXPERT = 3 * H * 20


def test_experts_and_what_a_token_meets():
    dense = ATTENTION + MLP + 2 * H
    sparse = ATTENTION + 2 * H + H * 8 + 8 + H + 3 * H * 16
    assert SPARSE.expert_parameters() == EXPERT
    assert [SPARSE.is_sparse(n) for n in range(N)] == [False, False, True, True, True, True]
    assert (SPARSE.sparse_layers, SPARSE.sparse_before) == (4, (0, 0, 0, 1, 2, 3, 4))
    assert SPARSE.parameters == 2 * dense + 4 * (sparse + 8 * EXPERT) + 2 * V * H + H
    assert SPARSE.active_parameters == 2 * dense + 4 * (sparse + 2 * EXPERT) + 2 * V * H + H
    assert SPARSE.layer_on_rank(0, 1) == dense
    assert SPARSE.layer_on_rank(2, 1) == sparse
    plain = replace(LLAMA, experts=Experts(8, 2, 20))
    assert plain.parameters_on_rank(sparse=True) == ATTENTION + 2 * H + H * 8
    assert replace(plain, router_bias=True).parameters_on_rank(sparse=True) == ATTENTION + 2 * H + H * 8 + 8
    other = replace(LLAMA, experts=Experts(8, 2, 20, every=2))
    assert [other.is_sparse(n) for n in range(N)] == [False, True] * 3
    later = replace(LLAMA, experts=Experts(8, 2, 20, every=2, first_dense=2))
    assert [later.is_sparse(n) for n in range(N)] == [False, False, True, False, True, False]
    assert (SPARSE.expert_hidden, HYBRID.expert_hidden, LLAMA.expert_hidden) == (H, 30, H)


MAMBA = H * (48 + 88 + 6) + 48 * H + 88 * 5 + 3 * 6 + 48 + H
STAR, DASH, SPARSE_ONE = ATTENTION + H, MLP + H, H * 8 + 2 * H * 30 + 3 * H * 16 + H


def test_a_hybrid_has_one_block_a_layer():
    assert HYBRID.kinds == {"M": 3, "*": 1, "-": 1}
    assert [HYBRID.layer_on_rank(n, 1) for n in range(N)] == [MAMBA, MAMBA, STAR, DASH, MAMBA, SPARSE_ONE]
    routed = 8 * 3 * 30 * 20
    assert HYBRID.parameters == 3 * MAMBA + STAR + DASH + SPARSE_ONE + routed + 2 * V * H + H
    assert HYBRID.parameters_on_rank(sparse=False) == (3 * MAMBA + STAR + DASH) // 5
    assert HYBRID.parameters_on_rank(sparse=True) == SPARSE_ONE
    own = 88 * 5 + 3 * 6 + 48
    assert HYBRID.layer_on_rank(0, 2) == (MAMBA - own - H) // 2 + own // 2 + H
    assert [HYBRID.kind(n) for n in range(N)] == list("MM*-ME")
    assert LLAMA.kind(0) == ""
    assert (HYBRID.mamba.inner, HYBRID.mamba.channels) == (48, 88)


def test_predictors_join_a_layer_and_two_norms():
    one = replace(LLAMA, predictors=2)
    each = 2 * H * H + 3 * H + ATTENTION + MLP + 2 * H
    assert one.parameters == LLAMA.parameters + 2 * each
    assert one.predictor_on_rank(1) == each
    assert one.predictor_on_rank(2) == (each - 5 * H) // 2 + 5 * H
    sparse = replace(SPARSE, predictors=1)
    layer = SPARSE.parameters_of(sparse=True)
    assert sparse.parameters == SPARSE.parameters + 2 * H * H + 3 * H + layer
    assert sparse.active_parameters == SPARSE.active_parameters + 2 * H * H + 3 * H + layer - 6 * EXPERT
    mixed = replace(HYBRID, predictors=1)
    assert mixed.parameters == HYBRID.parameters + 2 * H * H + 3 * H + HYBRID.parameters_of(sparse=True) + STAR
    assert mixed.predictor_on_rank(1) == 2 * H * H + 3 * H + SPARSE_ONE + STAR


T, S = 32, 16


def test_flops_are_two_for_a_weight_and_token():
    core = 2 * T * S * A * 2 * D
    assert LLAMA.core_attention_flops(T, S) == core
    assert LLAMA.layer_forward_flops(T, S) == 2 * T * (ATTENTION + MLP) + core
    head = 2 * T * H * V
    assert LLAMA.forward_flops(T, S) == N * (2 * T * (ATTENTION + MLP) + core) + head
    windowed = replace(LLAMA, window=4)
    assert windowed.windows == (4, 0)
    assert windowed.core_attention_flops(T, S) == 2 * T * (4 + S) * A * 2 * D // 2
    assert replace(LLAMA, window=99).core_attention_flops(T, S) == core
    expert = 2 * T * (ATTENTION + H * 8 + 2 * EXPERT + 3 * H * 16) + core
    assert SPARSE.layer_forward_flops(T, S, sparse=True) == expert
    assert SPARSE.layers_forward_flops(T, S) == 4 * expert + 2 * LLAMA.layer_forward_flops(T, S)
    predicted = replace(SPARSE, predictors=2)
    assert predicted.forward_flops(T, S) == SPARSE.forward_flops(T, S) + 2 * (expert + 2 * T * 2 * H * H + head)
    mamba = 2 * T * (H * 142 + 48 * H) + 7 * T * 48 * 10
    latent = 2 * T * (H * 8 + 2 * 3 * 30 * 20 + 3 * H * 16 + 2 * H * 30)
    layers = 3 * mamba + 2 * T * ATTENTION + core + 2 * T * MLP + latent
    assert HYBRID.layers_forward_flops(T, S) == layers


@pytest.mark.parametrize("recompute", ["none", "selective", "operations", "full"])
def test_a_step_is_three_forwards_and_what_is_done_again(recompute):
    core = 2 * T * S * A * 2 * D
    again = {
        "none": 0,
        "selective": N * core,
        "operations": N * 2 * T * (H * KV * D + A * D * H + H * F),
        "full": LLAMA.layers_forward_flops(T, S),
    }[recompute]
    model = 3 * LLAMA.forward_flops(T, S)
    assert LLAMA.step_flops(T, S, recompute=recompute) == (model, model + again)
    if recompute == "selective":
        model, hardware = HYBRID.step_flops(T, S, recompute="selective")
        assert hardware - model == core


def test_matrices_are_divided_by_their_side():
    for split, expected in (("column", 24 + 3), ("row", 24 + 6), ("whole", 48 + 6)):
        assert Linear("one", 8, 6, split, True).on_rank(2) == expected
        assert Linear("one", 8, 6, split).on_rank(2) == (48 if split == "whole" else 24)


# ---------------------------------------------------------------------- kernels' times


def test_a_product_takes_its_flops_or_its_bytes_or_its_launch():
    roof = Roofline("h100-sxm", "bf16")
    per_ps, launch = roof._bytes_per_ps, roof._launch_ps
    assert per_ps == pytest.approx(2.97, rel=1e-6)  # bytes a ps: the measured TB/s
    assert roof.stream(10**9) == Cost(10**9 / per_ps, 1)
    assert roof.stream(1) == Cost(launch, 1)
    half = Roofline("h100-sxm", "bf16", share=0.5, eager_share=0.25)
    assert half.stream(10**9).ps == pytest.approx(2 * roof.stream(10**9).ps)
    assert half.eager(10**9).ps == pytest.approx(4 * half.stream(10**9).ps)
    big = roof.gemm(8192, 8192, 8192)
    assert half.gemm(8192, 8192, 8192).ps == pytest.approx(2 * big.ps)
    assert roof.gemm(8192, 8192, 8192, batch=3).ps == pytest.approx(3 * big.ps)
    assert roof.linear(8192, 8192, 8192, copies=3) == big * 3
    # one row: as many bytes as there are weights, and no more FLOPs than 2 of each
    thin = roof.gemm(1, 65536, 65536)
    assert thin.ps == pytest.approx((2 * (65536 + 65536 * 65536) + 2 * 65536) / per_ps, rel=1e-9)
    summed = roof.gemm(8, 65536, 1, accumulate=True)
    assert summed.ps == max(launch, (2 * (8 + 65536) + 8 * 8 * 65536) / per_ps)
    assert roof.gemm(1, 1, 1) == Cost(launch, 1)


def test_casts_and_transposes_are_none_in_16_bits():
    roof = Roofline("h100-sxm", "bf16")
    assert roof.cast(10**9) == roof.cast_alone(10**9) == roof.transpose(10**9) == NOTHING
    fp8 = Roofline("h100-sxm", "fp8")
    assert fp8.cast(10**9) == fp8.stream(4 * 10**9)  # 16 bits in, two bytes out
    assert fp8.cast_alone(10**9) == NOTHING
    assert Roofline("h100-sxm", "fp8", scaling="current").cast_alone(10**9) == fp8.stream(6 * 10**9)
    assert fp8.transpose(10**9) == fp8.stream(2 * 10**9)


@pytest.mark.parametrize(
    ("precision", "scaling", "operand", "cast", "alone"),
    [
        ("bf16", "delayed", 2, 0, False),
        ("fp16", "current", 2, 0, False),
        ("fp8", "delayed", 1, 4, False),
        ("fp8", "current", 1, 6, True),
        ("fp8", "rowwise", 1, 8, True),
        ("fp8", "block", 1 + 1 / 32, 2 + 2 * (1 + 1 / 32), False),
        ("fp4", "block", 0.5 + 1 / 16, 6 + 2 * (0.5 + 1 / 16), True),
    ],
)
def test_formats(precision, scaling, operand, cast, alone):
    found = format_of(precision, scaling)
    assert (found.operand_bytes, found.cast_bytes, found.alone) == (operand, cast, alone)


def test_flash_attention_sees_half_of_the_products_or_a_window():
    roof = Roofline("h100-sxm", "bf16", attention=AttentionKernel("flash", 4e14))
    heads = Heads(16, 128)
    whole = roof.flash_attention(4, heads, 8192, "f")
    assert whole.ps == pytest.approx(2 * 4 * 16 * 8192**2 / 2 * 256 / 4e14 * 1e12)
    assert roof.flash_attention(4, heads, 8192, "f", window=8064) == whole  # as wide as the sequence with its tile
    wide = 1024 + 128
    seen = wide * (8192 - wide / 2)
    assert roof.flash_attention(4, heads, 8192, "f", window=1024).ps == pytest.approx(
        whole.ps * seen / (8192**2 / 2)
    )
    assert roof.flash_attention(4, heads, 8192, "f", block=2048).ps == pytest.approx(whole.ps * 333 / 298)
    back = roof.flash_attention(4, heads, 8192, "b")
    assert back.ps == pytest.approx(whole.ps * 2.5 / (318 / 370))
    own = Roofline("h100-sxm", "bf16", attention=AttentionKernel("flash", 4e14, 3e14))
    assert own.flash_attention(4, heads, 8192, "b").ps == pytest.approx(whole.ps * 2.5 * 4 / 3)
    assert (heads.width, Heads(1, 128, 64).width) == (256, 192)
    assert roof.flash_attention(1, Heads(1, 128), 16, "f") == Cost(roof._launch_ps, 1)


def test_shares_of_flash_attention_by_length():
    forward = [191, 260, 298, 319, 333, 335]
    backward = [214, 260, 291, 310, 318, 322]
    for at, length in enumerate((512, 1024, 2048, 4096, 8192, 16384)):
        assert flash.share(length, "f") == pytest.approx(forward[at] / 333)
        assert flash.share(length, "b") == pytest.approx(backward[at] / 370)
    assert flash.share(64, "f") == pytest.approx(191 / 333)
    assert flash.share(10**6, "b") == pytest.approx(322 / 370)
    assert flash.share(512 * 2**0.5, "f") == pytest.approx((191 + 260) / 2 / 333)
    # products and exponentials one after the other: half as wide, half the products and as many exponentials
    assert flash.stretch(64, 128, "f", 0.5) == pytest.approx((1 + 0.5 * 2) / 1.5)
    assert flash.stretch(128, 128, "b", 0.5) == 1
    total = 1.5 * 2.5 / ((318 / 370) / 1.0)
    assert flash.stretch(64, 128, "b", 0.5) == pytest.approx((total - 0.5 + 1.0) / total)


def test_costs_add_up():
    assert Cost(3, 1) + Cost(4, 2) == Cost(7, 3)
    assert Cost(3, 2) * 4 == Cost(12, 8)
    assert Cost(3, 2).scaled(0.5) == Cost(1.5, 2)
    assert (Cost(10, 3).took_ps(2), Cost(10, 3).took_ps(5)) == (10, 15)


def test_scripts_number_what_they_begin():
    one, two = Script(), Script()
    c = Collective("tp", "all_reduce", 8)
    assert (one.start(c), one.start(None), one.start(Collective("tp", "all_reduce", 0)), one.start(c)) == (
        0,
        None,
        None,
        1,
    )
    one.compute(Cost(), "forward")
    one.compute(Cost(0, 1), "forward")
    one.compute(Cost(5, 0), "weight")
    one.wait(None)
    two.communicate(c)
    one.extend(two)
    assert one.keys == 3
    assert [getattr(item, "key", None) for item in one.items] == [0, 1, None, None, 2, 2]
    assert one.start(c) == 3
    assert (one.cost(), one.last_part()) == (Cost(5, 1), "weight")
    assert one.captured().cost() == Cost(5, 0)
    assert one.captured().keys == 4
    assert one.collectives() == [c] * 4
    kept, apart = one.apart("weight")
    assert (kept.cost(), apart.cost(), kept.keys, len(apart.items)) == (Cost(0, 1), Cost(5, 0), 4, 1)
    assert Collective("tp", "all_reduce", 8).sms == 0


def test_normed_heads_and_sinks_are_both_counted():
    both = replace(LLAMA, qk_norm=True, sinks=True)
    assert both.parameters_on_rank(sparse=False) == LLAMA.parameters_on_rank(sparse=False) + 2 * D + A
    assert (
        both.parameters_on_rank(sparse=False, tp=2)
        == LLAMA.parameters_on_rank(sparse=False, tp=2) + 2 * D + A // 2
    )
