"""Every kernel and every communication of Mamba-2, embedding and head, in order, written down by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.layer_ledger import NORM, NORM_BACK, PLAIN, SKIP, TP, A, C, H, L, S, V, gemm, grads, lin, shape, t
from support.pass_lines import bw, fw, run, tensor, written, wt

from fabrictwin.base.grouped import grouped
from fabrictwin.workload.layers.state_space import MambaBlock
from fabrictwin.workload.layers.transformer import Ends
from fabrictwin.workload.model.model_blocks import Mamba

# ---------------------------------------------------------------------- Mamba-2, embedding, head

MAMBA = Mamba(heads=8, head_size=6, state=10, groups=2, kernel=4, chunk=20)


def test_a_mamba_layer_on_two_ranks():
    model = replace(PLAIN, pattern="M*M*", mamba=MAMBA)
    given = shape(model, tp=TP, scan_share=0.5, recompute_modules=("norms",))
    block = MambaBlock(L, given)
    inner, channels = 48, 48 + 2 * 2 * 10
    width = inner + channels + 8
    heads, groups, chunks = 4, 1, 3  # 48 tokens are two chunks of 20 and a rest
    conv = S(4 * t * channels // TP), S(6 * t * channels // TP)
    numbers = chunks * heads * 6 * 10
    once = (
        gemm(20, 20, 10, batch=chunks * groups)
        + gemm(20, 6, 20, batch=chunks * heads)
        + gemm(6, 10, 20, batch=chunks * heads)
        + gemm(20, 6, 10, batch=chunks * heads)
        + S(4 * numbers) * 2
        + S(8 * numbers)
    )
    scan = once.scaled(2), (once * 2 + S(4 * t * inner // TP)).scaled(2)
    gated = S(6 * t * inner // TP), S(10 * t * inner // TP)
    assert (block.convolution(), block.scan(), block.gated_norm()) == (conv, scan, gated)
    assert written(block.forward()) == run(
        fw(NORM, A(t * H)),
        fw(lin(t, width // TP, H)),
        fw(conv[0], scan[0], gated[0]),
        fw(C(t * inner // TP)),
        fw(lin(t, H, inner // TP)),
        tensor("all_reduce", 2 * t * H),
        fw(SKIP),
    )
    out, into = grads(t, inner // TP, H), grads(t, H, width // TP)
    assert written(block.backward()) == run(
        bw(SKIP),
        bw(C(t * H)),
        bw(out[0]),
        wt(out[1]),
        ("recompute", conv[0], scan[0]),
        bw(gated[1], scan[1], conv[1]),
        bw(C(t * width // TP)),
        bw(into[0]),
        wt(into[1]),
        tensor("all_reduce", 2 * t * H),
        ("recompute", NORM),
        bw(NORM_BACK),
    )
    held = MambaBlock(L, grouped(given, {"captured": ("mamba",)}))
    assert {item[2] for item in written(held.forward()) if item[0] == "forward"} == {0}


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("overlap", ["none", "gradients"])
def test_embedding_and_head(sequence_parallel, overlap):
    ends = Ends(L, shape(tp=TP, sequence_parallel=sequence_parallel, overlap=overlap, collective_sms=3))
    own = t // TP if sequence_parallel else t
    sums = tensor("reduce_scatter" if sequence_parallel else "all_reduce", 2 * t * H, 3)
    small = [tensor("all_gather", t * H, 3)] if sequence_parallel else []
    wide = [tensor("all_gather", 2 * t * H, 3)] if sequence_parallel else []
    assert written(ends.embedding_forward()) == run(fw(S(4 * t * H)), sums)
    assert written(ends.embedding_backward()) == run(*small, bw(S(10 * t * H)))
    scores = t * V // TP
    assert written(ends.output_forward()) == run(
        fw(S(4 * own * H)), *wide, fw(gemm(t, V // TP, H), S(10 * scores))
    )
    inputs, weights = bw(gemm(t, H, V // TP)), wt(gemm(V // TP, H, t, accumulate=True))
    if overlap == "none":
        middle = (*wide, inputs, weights, sums)
    else:
        begun = [("begin", c) for c in wide]
        middle = (*begun, inputs, *(("wait", 0) for _ in wide), ("begin", sums), weights, ("wait", len(wide)))
    assert written(ends.output_backward()) == run(bw(S(6 * scores)), *middle, bw(S(6 * own * H)))
    up = [tensor("all_gather", t * 2 * H, 3)] if sequence_parallel else []
    back = [tensor("reduce_scatter", 2 * t * H, 3)] if sequence_parallel else []
    assert written(ends.join_forward()) == run(
        fw(S(4 * t * H)),
        sums,
        fw(S(4 * own * H) * 2),
        fw(S(8 * own * H)),
        *up,
        fw(lin(t, H // TP, 2 * H)),
        *back,
    )
    joined = written(ends.join_backward())
    assert joined[-len(written(ends.embedding_backward())) - 2 :][:2] == run(
        bw(S(8 * own * H)), bw(S(6 * own * H) * 2)
    )
    assert [item[3:] for item in joined if item[0] == "begin"][-1 if not sequence_parallel else -2] == (
        "reduce_scatter" if sequence_parallel else "all_reduce", 2 * 2 * t * H, 3
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "forward", "backward"), [("compiled", 10, 6), ("fused", 2, 4), ("eager", 14, 37)]
)
def test_the_loss_moves_what_its_kernels_do(kind, forward, backward):
    scores = t * V // TP
    plain = Ends(L, shape(tp=TP, kind=kind))
    assert written(plain.output_forward())[-1:] == run(fw(gemm(t, V // TP, H), S(forward * scores)))
    assert written(plain.output_backward())[:1] == run(bw(S(backward * scores)))
    # a metric is one more cross-entropy forward, of which nothing comes backward
    twice = Ends(L, shape(tp=TP, kind=kind, metrics=2))
    again = [S(6 * scores), S(8 * scores)] * 2
    assert written(twice.output_forward())[-1:] == run(fw(gemm(t, V // TP, H), S(forward * scores), *again))
    assert written(twice.output_backward()) == written(plain.output_backward())


def test_a_predictor_gathers_what_it_was_given():
    ends = Ends(L, shape(tp=TP, sequence_parallel=True))
    kinds = [(c.kind, c.size_bytes) for c in ends.join_backward().collectives()]
    assert kinds[0] == ("all_gather", t * H)
    assert kinds[1:] == [
        ("all_gather", t * 2 * H), ("reduce_scatter", 2 * t * 2 * H), ("all_gather", t * H)
    ]  # fmt: skip
