"""Every kernel and every communication of experts, in order: Megatron-LM's, written down by hand."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest
from support.layer_ledger import NORM, NORM_BACK, PLAIN, SKIP, C, E, H, L, S, gemm, grads, lin, shape, t
from support.pass_lines import bw, fw, run, written, wt

from fabrictwin.base.grouped import grouped
from fabrictwin.workload.layers.attention import AttentionBlock
from fabrictwin.workload.layers.feedforward import MlpBlock, peak_load
from fabrictwin.workload.layers.pass_script import Collective, Start, Wait
from fabrictwin.workload.layers.roofline import Cost
from fabrictwin.workload.layers.transformer import Shape
from fabrictwin.workload.model.model_blocks import Experts

# ---------------------------------------------------------------------- experts

COUNT, TOP, X, EP = 8, 3, 24, 2
SPARSE = replace(PLAIN, experts=Experts(COUNT, TOP, X))


def copies(load, capacity=None):
    return round(t * TOP * (capacity or load))


def moved(tokens, hidden=H):
    return S(4 * tokens * hidden)


def expert_lists(given: Shape, load: float):
    """(forward, backward) of an expert layer that shares no expert and has none beside."""
    sent = copies(load, given.routing.capacity_factor)
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
    plain, sparse = MlpBlock(L, given).forward(), MlpBlock(L, grouped(given, {"hide_experts": False})).forward(1.0)
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


def test_experts_shared_by_ranks_divide_their_width():
    given = shape(SPARSE, ep=EP, expert_tp=2, tp=2)
    rows, own = t * TOP * 2 // 4, 4
    width = own * rows * X // 2
    script, back = written(MlpBlock(L, given).forward(1.0)), written(MlpBlock(L, given).backward(1.0))
    assert ("forward", (S(6 * width) + C(width)).ps, 2) in script
    assert ("backward", (S(10 * width) + S(6 * width) + C(2 * width)).ps, 3) in back
