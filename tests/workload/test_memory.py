"""Memory of a GPU: closed forms of the papers, published measurements, and what a run says of a layout."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.specs import spec_of

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.grouped import grouped
from fabrictwin.report.report import report_html
from fabrictwin.report.summary import summary, summary_json
from fabrictwin.report.terminal import block
from fabrictwin.runs.execute import predict
from fabrictwin.validation.published_data import find_data, read_data
from fabrictwin.workload.memory.gpu_memory import (
    end_parameters,
    gathered_bytes,
    in_flight,
    layer_bytes,
    layer_parameters,
    memory,
    stage_memory,
    states,
)
from fabrictwin.workload.memory.memory_inputs import MemoryInputs
from fabrictwin.workload.model.huggingface_families import read_model
from fabrictwin.workload.step.pipeline_schedule import Pass, one_forward_one_backward

DATA = read_data(find_data())
spec = spec_of(
    1,
    "dgx-h100",
    topology="single-switch",
    model=DATA.texts.models["llama-3-8b"],
    parallel={"tp": 8},
    micro_batches=1,
    sequence=2048,
    recompute="full",
)
GPT = read_model({**DATA.texts.models["megatron-22b"]}, name="22B")
LLAMA = read_model(DATA.texts.models["llama-3-8b"], name="8B")
S, B, H, A = 2048, 4, GPT.hidden, GPT.heads


def held(model, vocab: int, stage_layers: tuple[int, ...], **more) -> MemoryInputs:
    """Return inputs with single figures by name."""
    return grouped(MemoryInputs(model, vocab, stage_layers), more)


def gpt(**changes) -> MemoryInputs:
    base = held(GPT, 51200, (GPT.layers,), micro_batch_size=B, sequence=S, attention="materialised")
    return grouped(base, dict(**changes))


# Korthikanti et al. 2022: bytes of a layer's activations
@pytest.mark.parametrize("t", [1, 2, 8])
def test_a_layer_keeps_what_the_paper_says(t):
    sbh = S * B * H
    scores = 5 * A * S / H
    assert layer_bytes(gpt(), "none") == pytest.approx(sbh * (34 + scores))  # equation 1
    assert layer_bytes(gpt(tp=t), "none") == pytest.approx(sbh * (10 + 24 / t + scores / t))  # equation 2
    both = gpt(tp=t, sequence_parallel=True)
    assert layer_bytes(both, "none") == pytest.approx(sbh / t * (34 + scores))  # equation 4
    assert layer_bytes(both, "selective") == pytest.approx(sbh * 34 / t)  # equation 6
    assert layer_bytes(gpt(tp=t), "selective") == pytest.approx(sbh * (10 + 24 / t))
    assert layer_bytes(gpt(tp=t), "full") == 2 * sbh


def test_a_layer_with_experts_keeps_every_copy_of_a_token():
    model = read_model(DATA.texts.models["qwen3-30b-a3b"], name="moe")
    h, tokens = model.hidden, 4096
    inputs = held(model, model.vocab, (model.layers,), sequence=tokens, ep=8, dp=8, sparse_layers=(model.layers,))
    attention = 2 * (model.qkv_width + model.heads * model.head_size) + 4 * model.heads
    # norms twice in and out; eight copies, each in and out, with gate, up and their product 768 wide
    expected = tokens * (attention + 8 * h + 8 * 2 * (2 * h + 3 * 768))
    assert layer_bytes(inputs, "none", sparse=True) == pytest.approx(expected)
    busy = grouped(inputs, {"load": 1.5})
    grown = layer_bytes(busy, "none", sparse=True) - layer_bytes(inputs, "none", sparse=True)
    assert grown == pytest.approx(tokens * 0.5 * 8 * 2 * (2 * h + 3 * 768))


def test_states_of_experts_are_divided_over_those_that_hold_the_same():
    model = read_model(DATA.texts.models["qwen3-30b-a3b"], name="moe")
    inputs = held(
        model, model.vocab, (model.layers,), dp=32, ep=8, zero=1, sparse_layers=(model.layers,), sequence=64
    )
    routed = model.layers * model.experts.count // 8 * model.expert_parameters()
    dense = model.parameters - model.layers * model.experts.count * model.expert_parameters()
    found = {i.key: i.bytes for i in memory(inputs, "h100-sxm").items}
    assert found["optimizer"] == pytest.approx(12 * (dense / 32 + routed / 4), rel=1e-6)
    assert found["weights"] == pytest.approx(2 * (dense + routed), rel=1e-6)


def test_operations_with_tensor_parallelism_keep_whole_sums_and_their_shares():
    """Keep shares of input, both reduce-scatters, Q, V, attention and gate, and all of the last product."""
    inputs = held(
        LLAMA, LLAMA.vocab, (LLAMA.layers,), tp=4, micro_batch_size=1, sequence=1, sequence_parallel=True
    )
    h, kv = LLAMA.hidden, LLAMA.kv_heads * LLAMA.head_size
    shares = 3 * h + 2 * h + kv + LLAMA.ffn
    assert layer_bytes(inputs, "operations") == pytest.approx(2 * shares / 4 + 2 * h + 4 * LLAMA.heads / 4)


def test_a_parallel_layer_keeps_its_input_once():
    """Behind one norm two values of the model's width, behind two three, one after the other four."""
    whole = [
        layer_bytes(
            held(dataclasses.replace(GPT, parallel_norms=norms), GPT.vocab, (GPT.layers,), sequence=1), "none"
        )
        for norms in (0, 2, 1)
    ]
    assert [before - after for before, after in pairwise(whole)] == [2 * GPT.hidden] * 2


def test_context_parallelism_divides_all_of_it():
    for recompute in ("none", "selective", "full", "operations"):
        flash = gpt(attention="flash")
        assert layer_bytes(grouped(flash, {"cp": 4}), recompute) == pytest.approx(
            layer_bytes(flash, recompute) / 4
        )


@given(
    st.sampled_from(["flash", "materialised"]),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
    st.sampled_from([GPT, LLAMA]),
)
@settings(max_examples=40)
def test_recomputing_more_keeps_less(attention, tp, sequence_parallel, model):
    inputs = held(
        model, model.vocab, (model.layers,), tp=tp, attention=attention, sequence_parallel=sequence_parallel
    )
    none, selective, operations, full = (
        layer_bytes(inputs, kind) for kind in ("none", "selective", "operations", "full")
    )
    assert none >= selective > operations > full
    assert (none > selective) == (attention == "materialised")


# Rajbhandari et al. 2020, figure 1: 7.5 B parameters, 64 ranks, 2 + 2 + 12 bytes a parameter
@pytest.mark.parametrize(("stage", "gbytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_stages_take_what_the_paper_says(stage, gbytes):
    inputs = gpt(dp=64, zero=stage, gradient_bytes=2)
    assert sum(states(7_500_000_000, inputs)) / 1e9 == pytest.approx(gbytes, abs=0.05)


def test_fully_sharded_states_are_16_bytes_over_all_ranks():
    assert sum(states(8_000_000_000, gpt(dp=4, cp=2, fsdp=True))) == 16 * 10**9
    # hybrid: sharded inside hosts, whole copies between them
    assert sum(states(8_000_000_000, gpt(dp=64, fsdp=True, shards=8))) == 16 * 10**9


def test_parameters_of_all_ranks_are_the_model():
    model = read_model({**DATA.texts.models["llama-3-70b"]}, name="70B")
    inputs = MemoryInputs(model, model.vocab, (20, 20, 20, 20))
    found = sum(20 * layer_parameters(inputs) + end_parameters(inputs, s) for s in range(4))
    assert found == model.parameters


@pytest.mark.parametrize(("p", "m"), [(1, 3), (4, 2), (4, 16), (8, 64)])
def test_in_flight_is_what_the_schedule_does(p, m):
    inputs = gpt(stage_layers=(1,) * p, micro_batches=m)
    for stage in range(p):
        now, most = 0, 0
        for task in one_forward_one_backward(stage, p, m):
            now += 1 if task.kind == Pass.FORWARD else -1
            most = max(most, now)
        assert in_flight(inputs, stage) == most
        assert in_flight(grouped(inputs, {"schedule": "gpipe"}), stage) == m


@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 3), (8, 5)])
def test_interleaving_keeps_more_by_the_papers_factor(p, v):
    """Korthikanti et al. 2022, section 4.2.3: the first stage holds L (1 + (p - 1) / (p v)) layers' worth."""
    inputs = gpt(stage_layers=(12,) * p, micro_batches=64, vp=v, schedule="interleaved")
    assert 12 * in_flight(inputs, 0) == pytest.approx(12 * p * (1 + (p - 1) / (p * v)))
    plain = grouped(inputs, {"schedule": "1f1b"})
    assert 12 * in_flight(plain, 0) == 12 * p


@pytest.mark.parametrize("row", [r for r in DATA.rows if r.memory_gib], ids=lambda r: r.row)
def test_published_memory_is_met(row):
    """torchtitan reports what PyTorch's allocator reserved: without context and NCCL. Nothing is fitted."""
    inputs = held(
        LLAMA,
        LLAMA.vocab,
        (LLAMA.layers,),
        cp=row.cp or 1,
        dp=row.gpus // (row.cp or 1),
        micro_batch_size=row.micro_batch,
        sequence=row.sequence,
        recompute="operations" if row.recompute == "selective" else row.recompute,
        fsdp=True,
    )
    found = memory(inputs, "h100-hbm2e")
    own = sum(item.bytes for item in found.items if not item.estimate)
    assert own / 2**30 == pytest.approx(row.memory_gib, rel=0.06)
    assert found.fits


@pytest.mark.parametrize("row", [r for r in DATA.rows if r.set == "llm-foundry"], ids=lambda r: r.row)
def test_what_ran_fits(row):
    """MPT with the fused loss of flash-attn: logits and their gradient, nothing between."""
    keys = DATA.texts.models[row.model] | {"n_positions": row.sequence}
    model = read_model(keys, name=row.model)
    inputs = held(
        model,
        model.vocab,
        (model.layers,),
        dp=row.gpus,
        micro_batch_size=row.micro_batch,
        sequence=row.sequence,
        recompute=row.recompute,
        fsdp=True,
        loss="fused",
    )
    assert memory(inputs, "a100-80").fits


def test_korthikantis_530b_fits_only_with_sequence_parallelism_and_selective_recomputation():
    """Section 6.1: without recomputation none of the models fit in 80 GB."""
    model = read_model(DATA.texts.models["megatron-530b"], name="530B")
    inputs = held(
        model,
        51200,
        (3,) * 35,
        tp=8,
        vp=3,
        micro_batches=280,
        schedule="interleaved",
        attention="materialised",
    )
    assert not memory(inputs, "a100-80").fits
    assert memory(grouped(inputs, {"sequence_parallel": True, "recompute": "selective"}), "a100-80").fits


def test_the_items_add_up_and_the_fullest_stage_is_taken():
    inputs = gpt(stage_layers=(12, 12, 12, 12), micro_batches=8)
    found = [stage_memory(inputs, s, 80 << 30) for s in range(4)]
    worst = memory(inputs, "a100-80")
    assert worst.total_bytes == max(f.total_bytes for f in found) == sum(i.bytes for i in worst.items)
    assert worst.stage == 0
    assert "logits" in {i.key for i in found[3].items}
    assert "logits" not in {i.key for i in found[0].items}


def test_only_sharded_weights_are_gathered():
    assert gathered_bytes(gpt(zero=2, dp=8), 0) == 0
    assert gathered_bytes(gpt(zero=3, dp=8), 0) > 0


# --- in a run ----------------------------------------------------------------------------------------------


def test_a_run_says_what_it_holds():
    result = predict(spec())
    held = summary(result)["memory"]
    assert held["fits"]
    assert held["over_bytes"] == 0
    assert held["total_bytes"] == sum(item["bytes"] for item in held["items"])
    assert "memory " in block(result, None)
    assert not any("fit" in note for note in result.job.notes)
    assert "Memory of a GPU" in report_html(result)
    json.loads(summary_json(result))


def test_a_layout_that_does_not_fit_says_so_and_by_how_much():
    result = predict(spec(parallel={"tp": 1}))
    held = summary(result)["memory"]
    assert held["over_bytes"] == held["total_bytes"] - held["capacity_bytes"] > 0
    assert "does not fit" in block(result, None)
    assert any("does not fit" in note for note in result.job.notes)
    assert "It does not fit" in report_html(result)


def test_a_layout_that_does_not_fit_can_be_refused():
    with pytest.raises(ConfigError, match=r"workload.training.parallel: got a layout that needs .* too much"):
        predict(spec(parallel={"tp": 1}, run={"check_memory": "error"}))
    assert predict(spec(run={"check_memory": "error"})).job.memory.fits


def test_a_run_without_a_word_on_memory_prints_none():
    result = predict(spec())
    result = dataclasses.replace(result, job=dataclasses.replace(result.job, memory=None))
    assert "memory" not in block(result, None)
    assert summary(result)["memory"] is None
    assert "Memory of a GPU" not in report_html(result)
