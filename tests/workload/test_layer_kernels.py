"""Every kernel and every communication of a layer's passes, in order: Megatron-LM's, written down by hand.

A ledger stands for the GPU: each kind of kernel has a cost from which its shape can be told. So a list of costs
says which kernels ran, on what, in which order, and what they were beside.
"""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest

from fabrictwin.workload.layers.attention import AttentionBlock
from fabrictwin.workload.layers.feedforward import MlpBlock, peak_load
from fabrictwin.workload.layers.pass_script import Collective, Compute, Script, Start, Wait
from fabrictwin.workload.layers.roofline import Cost
from fabrictwin.workload.layers.state_space import MambaBlock
from fabrictwin.workload.layers.transformer import Ends, Shape
from fabrictwin.workload.model.model_blocks import Experts, Latent, Mamba
from fabrictwin.workload.model.model_sizes import Model


class Ledger:
    """Kernels as numbers; bytes of elements as in fp8 with scales that must be known before."""

    element_bytes = 2
    operand_bytes = 1

    def stream(self, moved: float) -> Cost:
        return Cost(moved, 1)

    def eager(self, moved: float) -> Cost:
        return Cost(moved * 1_000.5, 1)

    def linear(self, m, n, k, *, copies=1, accumulate=False, backward=False) -> Cost:
        return Cost(m * n * k * 64 + 3 * accumulate + 5 * backward + 7 * m + 11 * n + 13 * k, 1) * copies

    def gemm(self, m, n, k, *, batch=1, accumulate=False) -> Cost:
        return Cost((m * n * k * 96 + 7 * m + 11 * n + 13 * k + 3 * accumulate) * batch, 1)

    def cast(self, elements: float) -> Cost:
        return Cost(4.25 * elements, 1)

    def cast_alone(self, elements: float) -> Cost:
        return Cost(8.25 * elements, 1)

    def transpose(self, elements: float) -> Cost:
        return Cost(16.25 * elements, 1)

    def flash_attention(self, batch, heads, sequence, part, *, window=0, block=None) -> Cost:
        each = batch * heads.count * sequence * heads.width * (5 if part == "b" else 2)
        return Cost(each + window * 1000 + (block or sequence) * 100_000, 1)


L = Ledger()
S, E, C, A, T, lin, gemm = L.stream, L.eager, L.cast, L.cast_alone, L.transpose, L.linear, L.gemm

H, HEADS, KV, D, F, V = 48, 4, 2, 12, 80, 160
BATCH, SEQUENCE = 3, 16
t = BATCH * SEQUENCE  # tokens of a micro-batch
QKV = (HEADS + 2 * KV) * D
PLAIN = Model("plain", "llama", H, 4, HEADS, KV, D, F, V, 0, False)
GPT = replace(PLAIN, positions=SEQUENCE, dropout=True, gated=False, norm="layer", biases=True, kv_heads=HEADS)


def shape(model: Model = PLAIN, **more) -> Shape:
    return replace(Shape(model, 1, BATCH, SEQUENCE, V, "flash"), **more)


def written(script: Script) -> list[tuple]:
    """A script as tuples: kernels with their part, communication begun, communication waited for."""
    found = []
    for item in script.items:
        if isinstance(item, Compute):
            found.append((item.part, item.cost.ps, item.cost.kernels))
        elif isinstance(item, Start):
            c = item.collective
            found.append(("begin", item.key, c.group, c.kind, c.size_bytes, c.sms))
        else:
            assert isinstance(item, Wait)
            found.append(("wait", item.key))
    return found


def run(*steps) -> list[tuple]:
    """The list by hand: (part, costs...), or a communication (group, kind, bytes, SMs) for itself, numbered."""
    found, key = [], 0
    for step in steps:
        if isinstance(step, Collective):
            found += [("begin", key, step.group, step.kind, step.size_bytes, step.sms), ("wait", key)]
            key += 1
        elif step[0] == "begin":
            c = step[1]
            found.append(("begin", key, c.group, c.kind, c.size_bytes, c.sms))
            key += 1
        elif step[0] == "wait":
            found.append(step)
        else:
            total = sum(step[2:], step[1])
            found.append((step[0], total.ps, total.kernels))
    return found


def fw(*costs):
    return ("forward", *costs)


def bw(*costs):
    return ("backward", *costs)


def wt(*costs):
    return ("weight", *costs)


def grads(m, inner, out):
    """(of a linear layer's input, of its weight) over m tokens."""
    return lin(m, inner, out, backward=True), lin(out, inner, m, accumulate=True, backward=True)


NORM, NORM_BACK, SKIP = S(4 * t * H), S(6 * t * H), S(6 * t * H)
ROTARY = S(4 * t * (HEADS + KV) * D)
FLASH = L.flash_attention


class Width:
    def __init__(self, count, width):
        self.count, self.width = count, width


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
    block = AttentionBlock(L, shape(replace(PLAIN, qk_norm=True), eager=True))
    assert block.norm() == (S(36 * t * H), S(76 * t * H))
    assert block.rotary() == S(20 * t * (HEADS + KV) * D) * 2
    assert block.activation(7) == (S(10 * 7), S(18 * 7))
    assert AttentionBlock(L, shape(replace(PLAIN, rotary=False))).rotary() == Cost()
    plain = AttentionBlock(L, shape(GPT))
    assert plain.rotary() == Cost()
    assert plain.activation(7) == (S(4 * 7), S(6 * 7))


TP = 2


def tensor(kind, size, sms=0):
    return Collective("tp", kind, size, sms)


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
    """What happens in a dense, gated MLP on two ranks that share the sequence: (forward, backward)."""
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


# ---------------------------------------------------------------------- experts

COUNT, TOP, X, EP = 8, 3, 24, 2
SPARSE = replace(PLAIN, experts=Experts(COUNT, TOP, X))


def copies(load, capacity=None):
    return round(t * TOP * (capacity or load))


def moved(tokens, hidden=H):
    return S(4 * tokens * hidden)


def expert_lists(given: Shape, load: float):
    """(forward, backward) of an expert layer that shares no expert and has none beside."""
    sent = copies(load, given.capacity_factor)
    own, rows = COUNT // EP, sent // (COUNT // EP)
    width = own * rows * X
    exchange = Collective("ep", "all_to_all", -(-sent * H * 2 // 4) * 4, 9)
    router = gemm(t, COUNT, H) + S(12 * t * COUNT)
    up, down = grads(rows, H, 2 * X), grads(rows, X, H)
    forward = run(
        fw(NORM),
        fw(router, moved(t * TOP)),
        fw(Cost(700 + own * 30)),
        exchange,
        fw(moved(own * rows), C(own * rows * H)),
        fw(lin(rows, 2 * X, H) * own),
        fw(S(6 * width), C(width)),
        fw(lin(rows, H, X) * own),
        fw(moved(own * rows)),
        exchange,
        fw(moved((sent + t) / 2)),
        fw(SKIP),
    )
    backward = run(
        bw(SKIP),
        bw(moved(t * TOP)),
        exchange,
        bw(moved(own * rows)),
        bw(C(own * rows * H)),
        bw(down[0] * own),
        wt(down[1] * own),
        bw(S(10 * width), S(2 * 3 * width), C(2 * width)),
        bw(up[0] * own),
        wt(up[1] * own),
        bw(moved(own * rows)),
        exchange,
        bw(moved((sent + t) / 2), gemm(t, H, COUNT), S(12 * t * COUNT)),
        wt(gemm(COUNT, H, t, accumulate=True)),
        bw(NORM_BACK),
    )
    return forward, backward


@pytest.mark.parametrize(("load", "capacity"), [(1.0, None), (1.3, None), (1.3, 1.5)])
def test_experts_of_two_ranks(load, capacity):
    given = shape(SPARSE, ep=EP, collective_sms=9, routing_ps=700, expert_ps=30, capacity_factor=capacity)
    forward, backward = expert_lists(given, load)
    block = MlpBlock(L, given)
    assert written(block.forward(load)) == forward
    assert written(block.backward(load)) == backward


def test_experts_on_one_rank_are_neither_sent_nor_sorted():
    script = written(MlpBlock(L, shape(SPARSE)).forward(1.0))
    rows = t * TOP // COUNT
    assert script == run(
        fw(NORM),
        fw(gemm(t, COUNT, H), S(12 * t * COUNT), moved(t * TOP)),
        fw(C(COUNT * rows * H)),
        fw(lin(rows, 2 * X, H) * COUNT),
        fw(S(6 * COUNT * rows * X), C(COUNT * rows * X)),
        fw(lin(rows, H, X) * COUNT),
        fw(moved((t * TOP + t) / 2)),
        fw(SKIP),
    )


def test_an_expert_a_rank_needs_no_sorting():
    script = written(MlpBlock(L, shape(SPARSE, ep=COUNT)).forward(1.0))
    rows = t * TOP
    assert ("forward", C(rows * H).ps, 1) in script
    assert ("forward", moved(rows).ps, 1) not in script


def test_experts_shared_by_ranks_are_gathered_and_scattered():
    given = shape(SPARSE, ep=EP, expert_tp=2, tp=2, sequence_parallel=True)
    block, local = MlpBlock(L, given), t // 2
    sent = local * TOP
    own, rows = COUNT // EP, sent * 2 // (COUNT // EP)
    there = Collective("ep", "all_to_all", sent * H * 2)
    gather, scatter = (
        Collective("expert_tp", kind, sent * H * 2 * 2) for kind in ("all_gather", "reduce_scatter")
    )
    script = written(block.forward(1.0))
    communicated = [item[2:5] for item in script if item[0] == "begin"]
    assert communicated == [(c.group, c.kind, c.size_bytes) for c in (there, gather, scatter, there)]
    assert ("forward", (lin(rows, 2 * X // 2, H) * own).ps, own) in script
    assert ("forward", (lin(rows, H, X // 2) * own).ps, own) in script
    back = written(block.backward(1.0))
    assert [item[2:5] for item in back if item[0] == "begin"] == communicated
    assert ("backward", (grads(rows, X // 2, H)[0] * own).ps, own) in back


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_flexible_dispatcher_sends_once_to_each_place(hosts):
    given = shape(SPARSE, ep=4, ep_hosts=hosts, dispatcher="flex")
    places = hosts if hosts > 1 else 4
    others = COUNT - COUNT // places
    met = places * (1 - comb(others, TOP) / comb(COUNT, TOP))  # places that hold one of a token's experts
    sent = round(t * met)
    script = written(MlpBlock(L, given).forward(1.0))
    sizes = [item[4] for item in script if item[0] == "begin"]
    assert sizes == [-(-sent * H * 2 // 8) * 8] * 2
    assert script[1] == ("forward", (gemm(t, COUNT, H) + S(12 * t * COUNT)).ps, 2)  # sent as they are
    assert ("forward", moved((sent + t) / 2).ps, 1) in script


def test_exchanges_beside_another_micro_batch():
    given = shape(SPARSE, ep=EP, hide_experts=True)
    for script in (MlpBlock(L, given).forward(1.0), MlpBlock(L, given).backward(1.0)):
        begins, waits = ({item[1]: i for i, item in enumerate(written(script)) if item[0] == word} for word in
                         ("begin", "wait"))  # fmt: skip
        assert set(begins) == set(waits) == {0, 1}
        assert begins[0] < waits[0] < begins[1] < waits[1]
        assert waits[0] - begins[0] > 3
        assert waits[1] - begins[1] == 2
    plain, sparse = MlpBlock(L, given).forward(), MlpBlock(L, replace(given, hide_experts=False)).forward(1.0)
    assert not plain.collectives()
    assert all(
        isinstance(b, Wait) for a, b in zip(sparse.items, sparse.items[1:], strict=False) if isinstance(a, Start)
    )


def test_experts_of_fewer_dimensions_with_shared_ones_beside():
    model = replace(PLAIN, experts=Experts(COUNT, TOP, X, shared_ffn=32, latent=30))
    given = shape(model, ep=EP, recompute_modules=("expert-activations", "norms"))
    block, rows, own = MlpBlock(L, given), t * TOP // 4, 4
    width = own * rows * X
    exchange = Collective("ep", "all_to_all", t * TOP * 30 * 2)
    latent_in, latent_out = grads(t, H, 30), grads(t, 30, H)
    shared_up, shared_down = grads(t, H, 64), grads(t, 32, H)
    assert written(block.forward(1.0)) == run(
        fw(NORM),
        fw(gemm(t, COUNT, H), S(12 * t * COUNT), moved(t * TOP, 30)),
        fw(lin(t, 64, H)),
        fw(S(6 * t * 32), C(t * 32)),
        fw(lin(t, H, 32)),
        fw(lin(t, 30, H)),
        exchange,
        fw(moved(own * rows, 30), C(own * rows * 30)),
        fw(lin(rows, 2 * X, 30) * own),
        fw(S(6 * width), C(width)),
        fw(lin(rows, 30, X) * own),
        fw(moved(own * rows, 30)),
        exchange,
        fw(moved((t * TOP + t) / 2, 30)),
        fw(lin(t, H, 30)),
        fw(SKIP),
    )
    down, up = grads(rows, X, 30), grads(rows, 30, 2 * X)
    assert written(block.backward(1.0)) == run(
        bw(SKIP),
        bw(latent_out[0]),
        wt(latent_out[1]),
        bw(moved(t * TOP, 30)),
        exchange,
        bw(moved(own * rows, 30)),
        bw(C(own * rows * 30)),
        bw(down[0] * own),
        wt(down[1] * own),
        ("recompute", S(6 * width), C(width)),
        bw(S(10 * width), S(6 * width), C(2 * width)),
        bw(up[0] * own),
        wt(up[1] * own),
        bw(moved(own * rows, 30)),
        exchange,
        bw(C(t * H)),
        bw(shared_down[0]),
        wt(shared_down[1]),
        bw(S(10 * t * 32), C(2 * t * 32)),
        bw(shared_up[0]),
        wt(shared_up[1]),
        bw(moved((t * TOP + t) / 2, 30), gemm(t, H, COUNT), S(12 * t * COUNT)),
        wt(gemm(COUNT, H, t, accumulate=True)),
        bw(latent_in[0]),
        wt(latent_in[1]),
        ("recompute", NORM),
        bw(NORM_BACK),
    )


def test_clamped_and_biased_experts():
    block = MlpBlock(L, shape(replace(SPARSE, clamped=True, biases=True), ep=EP))
    width, e = 24, 2
    forward, backward = block._activated(width)
    assert forward == S(6 * width) + E(2 * e * width) * 2 + E(2 * e * 2 * width)
    assert backward == S(10 * width) + S(e * 3 * width) + E(3 * e * width) * 2 + E(2 * e * 2 * width)
    n = 5 * H
    forward, backward = block._biased(5)
    assert forward == E(4 * n) + E(10 * n) + E(8 * n) + E(6 * n)
    assert backward == E(6 * n) * 2 + E(4 * n) + (E(8 * n) + E(4 * n)) * 2
    rows = t * TOP // 4
    script, back = written(block.forward(1.0)), written(block.backward(1.0))
    down = lin(rows, H, X) * 4 + block._biased(4 * rows)[0]
    assert ("forward", down.ps, down.kernels) in script
    sort = moved(4 * rows) + block._biased(4 * rows)[1]
    assert ("backward", sort.ps, sort.kernels) in back


def test_captured_parts_launch_nothing():
    given = shape(SPARSE, ep=EP, captured=("router", "attention"))
    block = MlpBlock(L, given)
    script, back = written(block.forward(1.0)), written(block.backward(1.0))
    assert [item[2] for item in script[:2]] == [0, 0]
    assert ("backward", (moved((t * TOP + t) / 2) + gemm(t, H, COUNT) + S(12 * t * COUNT)).ps, 0) in back
    assert written(block.forward())[0][2] == 1
    for script in (AttentionBlock(L, given).forward(), AttentionBlock(L, given).backward(recompute_core=True)):
        assert {item[2] for item in written(script) if item[0] not in ("begin", "wait")} == {0}


def test_the_busiest_rank_has_its_share_of_the_load():
    assert peak_load(16, 4, 0.0, 1, 2) == 1.0
    found = {layer: peak_load(16, 4, 0.2, 7, layer) for layer in range(200)}
    assert all(1.0 <= load < 2.0 for load in found.values())
    assert len(set(found.values())) == 200
    # the greatest of four means of four, each of deviation 0.1: 1.03 deviations above their mean, 1.03 * 0.1
    assert sum(found.values()) / 200 == pytest.approx(1.103, abs=0.01)
    # loads are symmetric about the mean: of many experts a rank, the peak comes near it
    assert peak_load(4096, 2, 0.2, 3, 0) == pytest.approx(1.0, abs=0.02)
    # so uneven that most get nothing, one expert a rank: never more than all of it
    assert 1.0 < peak_load(8, 8, 50.0, 1, 1) <= 8.0
    assert peak_load(8, 8, 0.2, 1, 1) != peak_load(8, 8, 0.2, 2, 1)


def splitmix(seed: int):
    """splitmix64, stream of numbers, as its authors' C code has it."""
    mask = 2**64 - 1
    z = (seed + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_loads_are_drawn_from_splitmix():
    assert splitmix(0) == 0xE220A8397B1DCDAF  # the first number of the published generator from 0
    state, loads = splitmix(splitmix(5) ^ 9), []
    for _ in range(6):
        total = 0
        for _ in range(12):
            state = splitmix(state)
            total += state >> 32
        loads.append(max(0.0, 1 + 0.4 * (total / 2**32 - 6)))
    pairs = [loads[0] + loads[1], loads[2] + loads[3], loads[4] + loads[5]]
    assert peak_load(6, 3, 0.4, 5, 9) == max(pairs) * 3 / sum(pairs)


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
    held = MambaBlock(L, replace(given, captured=("mamba",)))
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


def test_experts_shared_by_ranks_divide_their_width():
    given = shape(SPARSE, ep=EP, expert_tp=2, tp=2)
    rows, own = t * TOP * 2 // 4, 4
    width = own * rows * X // 2
    script, back = written(MlpBlock(L, given).forward(1.0)), written(MlpBlock(L, given).backward(1.0))
    assert ("forward", (S(6 * width) + C(width)).ps, 2) in script
    assert ("backward", (S(10 * width) + S(6 * width) + C(2 * width)).ps, 3) in back


def test_a_predictor_gathers_what_it_was_given():
    ends = Ends(L, shape(tp=TP, sequence_parallel=True))
    kinds = [(c.kind, c.size_bytes) for c in ends.join_backward().collectives()]
    assert kinds[0] == ("all_gather", t * H)
    assert kinds[1:] == [
        ("all_gather", t * 2 * H), ("reduce_scatter", 2 * t * 2 * H), ("all_gather", t * H)
    ]  # fmt: skip
