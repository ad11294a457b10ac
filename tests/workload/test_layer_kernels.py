"""Every kernel and every communication of attention and MLP, in order: Megatron-LM's, written down by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.layer_ledger import (
    BATCH,
    FLASH,
    GPT,
    HEADS,
    KV,
    NORM,
    NORM_BACK,
    PLAIN,
    QKV,
    ROTARY,
    SEQUENCE,
    SKIP,
    TP,
    A,
    C,
    D,
    F,
    H,
    L,
    S,
    T,
    Width,
    gemm,
    grads,
    lin,
    shape,
    t,
)
from support.pass_lines import bw, fw, run, tensor, written, wt

from fabrictwin.workload.layers.attention import AttentionBlock
from fabrictwin.workload.layers.feedforward import MlpBlock
from fabrictwin.workload.layers.kernel_traffic import EAGER, traffic_of
from fabrictwin.workload.layers.pass_script import Collective, Script
from fabrictwin.workload.layers.roofline import Cost
from fabrictwin.workload.model.model_blocks import Latent


def test_attention_on_one_rank():
    block = AttentionBlock(L, shape())
    core = FLASH(BATCH, Width(HEADS, 2 * D), SEQUENCE, "f")
    assert written(block.forward()) == run(
        fw(NORM, A(t * H)),
        fw(lin(t, QKV, H)),
        fw(ROTARY),
        fw(core),
        fw(C(t * HEADS * D)),
        fw(lin(t, H, HEADS * D)),
        fw(SKIP),
    )
    out, out_weight = grads(t, HEADS * D, H)
    qkv, qkv_weight = grads(t, H, QKV)
    assert written(block.backward(recompute_core=False)) == run(
        bw(SKIP),
        bw(C(t * H)),
        bw(out),
        wt(out_weight),
        bw(FLASH(BATCH, Width(HEADS, 2 * D), SEQUENCE, "b")),
        bw(ROTARY),
        bw(C(t * QKV)),
        bw(qkv),
        wt(qkv_weight),
        bw(NORM_BACK),
    )
    again = written(block.backward(recompute_core=True))
    assert again[4] == ("recompute", core.ps, 1)
    assert again[:4] + again[5:] == written(block.backward(recompute_core=False))


def test_attention_materialised_with_biases_dropout_and_layer_norms():
    block = AttentionBlock(L, shape(GPT, attention="materialised"))
    rows, s = BATCH * HEADS, SEQUENCE
    scores, width = rows * s * s, 3 * HEADS * D
    keys, values = gemm(s, s, D, batch=rows), gemm(s, D, s, batch=rows)
    context, packed = S(4 * t * HEADS * D), S(4 * t * width)
    forward = (keys, S(4 * scores), values, S(5 * scores), context)
    backward = (
        gemm(s, s, D, batch=rows), values, S(6 * scores), gemm(s, D, s, batch=rows) * 2,
        S(5 * scores), context, packed,
    )  # fmt: skip
    assert written(block.forward()) == run(
        fw(S(4 * t * H), A(t * H)),
        fw(lin(t, width, H)),
        fw(*forward),
        fw(C(t * HEADS * D)),
        fw(lin(t, H, HEADS * D)),
        fw(S(7 * t * H)),  # a byte of mask beside read, read, written
    )
    out, out_weight = grads(t, HEADS * D, H)
    qkv, qkv_weight = grads(t, H, width)
    assert written(block.backward(recompute_core=False)) == run(
        bw(S(6 * t * H), S(5 * t * H)),
        bw(C(t * H)),
        bw(out),
        wt(out_weight, S(2 * t * H)),
        bw(*backward),
        bw(C(t * width)),
        bw(qkv),
        wt(qkv_weight, S(2 * t * width)),
        bw(S(6 * t * H), S(4 * t * H)),
    )


def test_attention_by_eager_kernels_and_normed_heads():
    block = AttentionBlock(L, shape(replace(PLAIN, qk_norm=True), traffic=EAGER))
    assert block.norm() == (Cost(S(36 * t * H).ps, 8), Cost(S(76 * t * H).ps, 16))
    assert block.rotary() == Cost(S(20 * t * (HEADS + KV) * D).ps, 10) * 2
    assert block.rotary(backward=True) == Cost(S(20 * t * (HEADS + KV) * D).ps, 14) * 2
    assert block.activation(7) == (Cost(S(10 * 7).ps, 2), Cost(S(18 * 7).ps, 3))
    assert AttentionBlock(L, shape(replace(PLAIN, rotary=False))).rotary() == Cost()
    plain = AttentionBlock(L, shape(GPT))
    assert plain.rotary() == Cost()
    assert plain.activation(7) == (S(4 * 7), S(6 * 7))


def test_tensor_parallel_attention_is_summed():
    block = AttentionBlock(L, shape(tp=TP, collective_sms=9))
    assert written(block.forward()) == run(
        fw(NORM, A(t * H)),
        fw(lin(t, QKV // TP, H)),
        fw(S(4 * t * (HEADS + KV) * D // TP)),
        fw(FLASH(BATCH, Width(HEADS // TP, 2 * D), SEQUENCE, "f")),
        fw(C(t * HEADS * D // TP)),
        fw(lin(t, H, HEADS * D // TP)),
        tensor("all_reduce", 2 * t * H, 9),
        fw(SKIP),
    )
    out, out_weight = grads(t, HEADS * D // TP, H)
    qkv, qkv_weight = grads(t, H, QKV // TP)
    assert written(block.backward(recompute_core=False)) == run(
        bw(SKIP),
        bw(C(t * H)),
        bw(out),
        wt(out_weight),
        bw(FLASH(BATCH, Width(HEADS // TP, 2 * D), SEQUENCE, "b")),
        bw(S(4 * t * (HEADS + KV) * D // TP)),
        bw(C(t * QKV // TP)),
        bw(qkv),
        wt(qkv_weight),
        tensor("all_reduce", 2 * t * H, 9),
        bw(NORM_BACK),
    )


def sequence_parallel_mlp(overlap):
    """List what a dense, gated MLP does on two ranks that share the sequence: (forward, backward)."""
    own = t // TP
    norm, skip = S(4 * own * H), S(6 * own * H)
    gathered, scattered = tensor("all_gather", t * H, 9), tensor("reduce_scatter", 2 * t * H, 9)
    up, down = (H, 2 * F // TP), (F // TP, H)
    gate = (S(6 * t * F // TP), C(t * F // TP))
    back = (S(10 * t * F // TP), C(2 * t * F // TP))
    down_input, down_weight = grads(t, *down)
    up_input, up_weight = grads(t, *up)
    if overlap == "full":
        pieces_in, pieces_out = replace(gathered, sms=4), replace(scattered, sms=4)
        part_up, part_down = lin(own, up[1], up[0]), lin(own, down[1], down[0])
        forward = run(
            fw(norm),
            fw(A(own * H)),
            ("begin", pieces_in),
            fw(part_up),
            ("wait", 0),
            fw(part_up),
            fw(*gate),
            fw(part_down),
            ("begin", pieces_out),
            fw(part_down),
            ("wait", 1),
            fw(skip),
        )
        part, _ = grads(own, *down)
        backward = run(
            bw(skip),
            bw(C(own * H)),
            ("begin", pieces_in),
            bw(part),
            ("wait", 0),
            bw(part),
            bw(T(t * H)),
            wt(down_weight),
            bw(*back),
            ("begin", gathered),
            bw(up_input),
            ("wait", 1),
            ("begin", scattered),
            wt(T(t * H), up_weight),
            ("wait", 2),
            bw(S(6 * own * H)),
        )
        return forward, backward
    forward = run(
        fw(norm),
        fw(A(own * H)),
        gathered,
        fw(lin(t, up[1], up[0])),
        fw(*gate),
        fw(lin(t, down[1], down[0])),
        scattered,
        fw(skip),
    )
    begin = (bw(skip), bw(C(own * H)), gathered, bw(down_input), bw(T(t * H)), wt(down_weight), bw(*back))
    weight = wt(T(t * H), up_weight)
    if overlap == "none":
        end = (gathered, bw(up_input), weight, scattered)
    else:
        end = (("begin", gathered), bw(up_input), ("wait", 1), ("begin", scattered), weight, ("wait", 2))
    return forward, run(*begin, *end, bw(S(6 * own * H)))


@pytest.mark.parametrize("overlap", ["none", "gradients", "full"])
def test_an_mlp_of_ranks_that_share_the_sequence(overlap):
    given = shape(tp=TP, sequence_parallel=True, overlap=overlap, collective_sms=9, tensor_sms=4)
    block = MlpBlock(L, given)
    forward, backward = sequence_parallel_mlp(overlap)
    assert written(block.forward()) == forward
    assert written(block.backward()) == backward


def test_an_mlp_without_a_gate_on_two_ranks():
    block = MlpBlock(L, shape(GPT, tp=TP, overlap="gradients"))
    down, down_weight = grads(t, F // TP, H)
    up, up_weight = grads(t, H, F // TP)
    assert written(block.forward()) == run(
        fw(S(4 * t * H)),
        fw(A(t * H)),
        fw(lin(t, F // TP, H)),
        fw(S(4 * t * F // TP), C(t * F // TP)),
        fw(lin(t, H, F // TP)),
        tensor("all_reduce", 2 * t * H),
        fw(S(7 * t * H)),
    )
    assert written(block.backward()) == run(
        bw(S(6 * t * H), S(5 * t * H)),
        bw(C(t * H)),
        bw(down),
        wt(down_weight, S(2 * t * H)),
        bw(S(6 * t * F // TP), C(t * F // TP)),
        bw(up),
        ("begin", tensor("all_reduce", 2 * t * H)),
        wt(up_weight, S(2 * t * F // TP)),
        ("wait", 0),
        bw(S(6 * t * H), S(4 * t * H)),
    )


CP = 4


@pytest.mark.parametrize("context", ["ring", "all-gather"])
def test_context_parallel_attention(context):
    block = AttentionBlock(L, shape(cp=CP, context=context, collective_sms=9))
    own = t // CP
    size = t * 2 * KV * D * 2  # keys and values of all tokens in 2 bytes
    gather, sums = Collective("cp", "all_gather", size, 9), Collective("cp", "reduce_scatter", size, 9)
    cut = SEQUENCE // CP if context == "ring" else 0
    heads = Width(HEADS, 2 * D)
    forward = FLASH(BATCH, heads, SEQUENCE, "f", block=cut).ps / CP
    backward = FLASH(BATCH, heads, SEQUENCE, "b", block=cut).ps / CP
    script = written(block.forward())
    qkv, out = ("forward", lin(own, QKV, H).ps, 1), ("forward", C(own * HEADS * D).ps, 1)
    at, end = script.index(qkv) + 2, script.index(out)
    back = written(block.backward(recompute_core=False))
    begun = next(i for i, item in enumerate(back) if item[0] == "begin")
    last = max(i for i, item in enumerate(back) if item[0] == "wait")
    if context == "ring":
        part, part_back = Cost(forward / CP, 1), Cost(backward / CP, 1)
        assert script[at:end] == run(("begin", gather), fw(part * (CP - 1)), ("wait", 0), fw(part))
        assert back[begun : last + 1] == run(
            ("begin", gather), bw(part_back), ("begin", sums), bw(part_back * (CP - 1)), ("wait", 0), ("wait", 1)
        )
    else:
        assert script[at:end] == run(gather, fw(Cost(forward, CP)))
        assert back[begun : last + 1] == run(gather, bw(Cost(backward, CP)), sums)


@pytest.mark.parametrize("eager", [False, True])
def test_context_parallelism_of_pytorch(eager):
    """Keys and values of as many heads as queries have; results merged, and gradients summed, in 4 bytes."""
    traffic = traffic_of("master", eager=eager)
    block = AttentionBlock(L, shape(cp=CP, context="pytorch", collective_sms=9, traffic=traffic))
    own, heads = t // CP, Width(HEADS, 2 * D)
    queries, pairs = own * HEADS * D, 2 * own * HEADS * D
    gather = Collective("cp", "all_gather", CP * pairs * 2, 9)
    # cp - 1 messages of one rank's gradients, and one that goes home
    sums = Collective("cp", "reduce_scatter", CP * pairs * 4, 9)
    home = Collective("cp", "reduce_scatter", -(-pairs * 4 * CP // (CP - 1) // (4 * CP)) * 4 * CP, 9)
    assert sums.size_bytes * (CP - 1) // CP == (CP - 1) * pairs * 4
    assert pairs * 4 <= home.size_bytes * (CP - 1) / CP < pairs * 4 + 4 * CP
    one = [Cost(FLASH(BATCH, heads, SEQUENCE, part, block=SEQUENCE // CP).ps / CP / CP, 1) for part in "fb"]
    merged = one[0] + Cost(S((38 if eager else 10) * queries).ps, 9 if eager else 2)
    summed = one[1] + S(10 * queries) + Cost(S((21 if eager else 10) * pairs).ps, 5 if eager else 2)
    script = Script()
    block.core_forward(script, "forward")
    rest = fw(merged * (CP - 1)), fw(S(6 * queries) * 2)
    if eager:
        assert written(script) == run(("begin", gather), fw(one[0]), ("wait", 0), *rest)
    else:
        assert written(script) == run(gather, fw(one[0]), *rest)
    script = Script()
    block.core_backward(script)
    if eager:
        assert written(script) == run(
            ("begin", gather), bw(summed), ("wait", 0), ("begin", sums), bw(summed * (CP - 1)), ("wait", 1), home
        )
    else:
        assert written(script) == run(gather, bw(summed), bw(summed * (CP - 1)), sums, home)


def test_layers_that_take_turns_with_a_window():
    block = AttentionBlock(L, shape(replace(PLAIN, window=5)))
    heads = Width(HEADS, 2 * D)
    for index, part in enumerate("fb"):
        both = [FLASH(BATCH, heads, SEQUENCE, part, window=window).ps for window in (5, 0)]
        assert block.core()[index] == Cost(sum(both) / 2, 1)


LATENT = Latent(query_rank=20, kv_rank=10, rope_size=4, nope_size=6, value_size=8)


def test_latent_attention():
    model = replace(PLAIN, latent=LATENT, kv_heads=HEADS)
    keys, width = 10, HEADS * 8
    block = AttentionBlock(L, shape(model, tp=TP, recompute_modules=("latent-up", "norms")))
    heads = Width(HEADS // TP, keys + 8)
    rotary = S(4 * t * 2 * HEADS * 4 // TP)
    query_up, pairs_up = lin(t, HEADS * keys // TP, 20), lin(t, HEADS * (6 + 8) // TP, 10)
    assert written(block.forward()) == run(
        fw(NORM, A(t * H)),
        fw(lin(t, 20, H)),
        fw(S(4 * t * 20)),
        fw(lin(t, 14, H)),
        fw(S(4 * t * 14)),
        fw(query_up),
        fw(pairs_up),
        fw(rotary),
        fw(FLASH(BATCH, heads, SEQUENCE, "f")),
        fw(C(t * width // TP)),
        fw(lin(t, H, width // TP)),
        tensor("all_reduce", 2 * t * H),
        fw(SKIP),
    )
    out, out_weight = grads(t, width // TP, H)
    query, query_weight = grads(t, 20, HEADS * keys // TP)
    pairs, pairs_weight = grads(t, 10, HEADS * 14 // TP)
    query_down, pairs_down = grads(t, H, 20), grads(t, H, 14)
    assert written(block.backward(recompute_core=False)) == run(
        bw(SKIP),
        bw(C(t * H)),
        bw(out),
        wt(out_weight),
        ("recompute", query_up),
        ("recompute", pairs_up),
        ("recompute", rotary),
        bw(FLASH(BATCH, heads, SEQUENCE, "b")),
        bw(rotary),
        bw(C(t * HEADS * keys // TP)),
        bw(C(t * HEADS * 14 // TP)),
        bw(pairs),
        wt(pairs_weight),
        bw(query),
        wt(query_weight),
        tensor("all_reduce", 2 * t * 34),
        bw(S(6 * t * 20)),
        bw(query_down[0]),
        wt(query_down[1]),
        bw(S(6 * t * 14)),
        bw(pairs_down[0]),
        wt(pairs_down[1]),
        ("recompute", NORM),
        bw(NORM_BACK),
    )


def test_latent_attention_with_queries_of_one_product():
    model = replace(PLAIN, latent=replace(LATENT, query_rank=0), kv_heads=HEADS)
    block = AttentionBlock(L, shape(model))
    script = written(block.forward())
    assert script[1:5] == run(
        fw(lin(t, 14, H)), fw(S(4 * t * 14)), fw(lin(t, HEADS * 10, H)), fw(lin(t, HEADS * 14, 10))
    )


def test_heads_and_widths_are_divided_by_ranks():
    materialised = AttentionBlock(L, shape(GPT, attention="materialised"))
    divided = AttentionBlock(L, shape(GPT, attention="materialised", tp=TP))
    for whole, half in zip(materialised.core(), divided.core(), strict=True):
        assert half.kernels == whole.kernels
        # half the heads: half of all but the sides of the products, which a ledger adds to each
        assert half.ps == whole.ps / 2
    block = AttentionBlock(L, shape(tp=TP, cp=2))
    exchanged = [c.size_bytes for c in block.forward().collectives() if c.group == "cp"]
    assert exchanged == [t * 2 * KV * D * 2 // TP]
    alone = shape(overlap="full", sequence_parallel=True)
    assert not MlpBlock(L, alone).pieces
    assert written(MlpBlock(L, alone).forward()) == written(MlpBlock(L, shape()).forward())
    assert FLASH(BATCH, Width(HEADS, 2 * D), SEQUENCE, "f").kernels == AttentionBlock(L, shape()).core()[0].kernels


def test_recomputation_that_ends_early_leaves_out_the_last_product():
    block = MlpBlock(L, shape())
    whole, early = written(block.forward(0.0, "recompute")), written(block.forward_until_down())
    left = [(*item[:1], item[1]) for item in whole]
    assert sum(item[1] for item in early) == pytest.approx(
        sum(item[1] for item in left) - (lin(t, H, F) + SKIP).ps
    )
    assert {item[0] for item in early} == {"recompute"}
