"""What kernels take: formats and their casts, attention by length and direction, experts one by one."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from statistics import median

import pytest
from support.specs import LLAMA_8B

from fabrictwin import catalog
from fabrictwin.base.grouped import grouped
from fabrictwin.base.progress import silent
from fabrictwin.catalog.step_shares import step_shares
from fabrictwin.cluster.spec.spec import load_spec
from fabrictwin.validation.published_data import find_data, read_data
from fabrictwin.validation.training_cases import cases
from fabrictwin.validation.training_judge import judge
from fabrictwin.workload.job.workload_section import Training, Workload
from fabrictwin.workload.layers import flash_attention as flash
from fabrictwin.workload.layers.attention import AttentionBlock
from fabrictwin.workload.layers.feedforward import MlpBlock
from fabrictwin.workload.layers.kernel_traffic import EAGER, FUSED
from fabrictwin.workload.layers.number_formats import format_of
from fabrictwin.workload.layers.pass_script import Compute, Start, Wait
from fabrictwin.workload.layers.roofline import AttentionKernel, Cost, Heads, Roofline, gemm_flops_per_s
from fabrictwin.workload.layers.state_space import MambaBlock
from fabrictwin.workload.layers.transformer import Shape
from fabrictwin.workload.model.huggingface_families import read_model

ROOT = Path(__file__).parents[2]

DENSE = {**LLAMA_8B, "num_hidden_layers": 4, "vocab_size": 32000}
EXPERTS = {**DENSE, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
TOKENS, HIDDEN, FFN = 15872, 4096, 16384  # of Transformer Engine's GEMM profile


def shape(keys=DENSE, **options) -> Shape:
    return grouped(Shape(read_model(keys, name="x"), 1, 4096, 32000), options)


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "gb200"])
def test_a_product_takes_as_long_with_its_sides_changed_places(gpu):
    precision = "fp8" if "fp8" in catalog.gpu(gpu).gemm else "fp16"
    for m, n, k, measured in catalog.gemm_efficiency(gpu, precision):
        assert gemm_flops_per_s(gpu, precision, n, m, k) == gemm_flops_per_s(gpu, precision, m, n, k)
        if m != n:
            assert gemm_flops_per_s(gpu, precision, n, m, k) == pytest.approx(measured)
    # but the inner side is not one of them: 802816 x 192 x 768 was measured, 768 x 192 x 802816 was not
    long = gemm_flops_per_s("h100-sxm", "fp8", 802816, 192, 768)
    assert gemm_flops_per_s("h100-sxm", "fp8", 768, 192, 802816) != pytest.approx(long, rel=0.01)


def test_attention_backward_is_two_and_a_half_times_the_products_at_a_lower_rate():
    roof = Roofline("h100-sxm", "bf16")
    forward, backward = (roof.flash_attention(2, Heads(32, 128), 8192, part) for part in ("f", "b"))
    flops = 2 * 2 * 32 * 8192**2 * 256 / 2
    assert forward.ps == pytest.approx(flops / catalog.gpu("h100-sxm").attention["flash"].throughput.value * 1e12)
    assert backward.ps / forward.ps == pytest.approx(2.5 * 370 / 318)


def test_attention_reaches_less_on_short_sequences():
    """FlashAttention-3, figures 5 and 6: at the measured lengths exactly, between them between."""
    assert flash.share(512, "f") == pytest.approx(191 / 333)
    assert flash.share(1024, "b") == pytest.approx(260 / 370)
    assert flash.share(1024, "f") < flash.share(1500, "f") < flash.share(2048, "f")
    assert flash.share(64, "f") == flash.share(512, "f")
    assert flash.share(1 << 20, "b") == flash.share(16384, "b")


def test_a_throughput_of_its_own_for_backward():
    roof = Roofline("h100-sxm", "bf16", attention=AttentionKernel("flash", 400e12, 100e12))
    forward, backward = (roof.flash_attention(1, Heads(8, 128), 8192, part) for part in ("f", "b"))
    assert backward.ps / forward.ps == pytest.approx(2.5 * 4)


def test_a_window_is_seen_by_every_query_but_the_first_ones():
    roof = Roofline("h100-sxm", "bf16")
    whole, part = (roof.flash_attention(1, Heads(64, 64), 4096, "f", window=window) for window in (0, 1024))
    # a tile that the window cuts is computed whole: of 128 keys, one more than a query sees
    seen = sum(min(i + 0.5, 1024 + 128) for i in range(4096))
    assert part.ps / whole.ps == pytest.approx(seen / (4096**2 / 2), rel=1e-3)
    assert roof.flash_attention(1, Heads(64, 64), 4096, "f", window=4096) == whole


def test_layers_that_take_turns_with_a_window_cost_their_mean():
    keys = {
        **DENSE, "model_type": "gpt_oss", "head_dim": 128, "sliding_window": 1024,
        "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    roof = Roofline("h100-sxm", "bf16")
    forward, backward = AttentionBlock(roof, shape(keys)).core()
    both = [roof.flash_attention(1, Heads(32, 128), 4096, "f", window=window).ps for window in (0, 1024)]
    assert forward.ps == pytest.approx(sum(both) / 2)
    assert backward.ps > 2 * forward.ps


def test_materialised_attention_has_one_product_of_scores_and_three_of_values_backward():
    roof = Roofline("a100-80", "fp16")
    block = AttentionBlock(roof, shape(attention="materialised", sequence=2048))
    rows, s, d = 32, 2048, 128
    products = roof.gemm(s, s, d, batch=rows).ps + 3 * roof.gemm(s, d, s, batch=rows).ps
    streams = 3 * 2 * rows * s * s + 2 * 2 * s * 4096 + 2 * 2 * s * (4096 + 2 * 1024)
    _, backward = block.core()
    assert backward.ps == pytest.approx(products + roof.stream(streams).ps, rel=1e-6)


@pytest.mark.parametrize(
    ("precision", "scaling", "forward_ms", "weight_ms", "within"),
    [
        # Transformer Engine's GEMM profile on a B300: with casts less without (validation.md)
        ("fp8", "block", 2.847 - 2.365, 3.092 - 2.400, 0.10),
        ("fp8", "current", 2.879 - 2.158, 3.205 - 2.325, 0.20),
        ("fp4", "delayed", 1.932 - 1.254, 2.331 - 1.205, 0.25),
    ],
)
def test_casts_take_what_transformer_engine_measured(precision, scaling, forward_ms, weight_ms, within):
    roof = Roofline("b300-sxm", precision, scaling=scaling)
    inputs = TOKENS * (3 * HIDDEN + FFN)
    weights = 4 * HIDDEN * HIDDEN + 2 * HIDDEN * FFN
    gradients = TOKENS * (3 * HIDDEN + HIDDEN + FFN + HIDDEN)
    assert roof.cast(inputs + weights).ps / 1e9 == pytest.approx(forward_ms, rel=within)
    assert roof.cast(inputs + gradients).ps / 1e9 == pytest.approx(weight_ms, rel=within)


@pytest.mark.parametrize(("precision", "measured_ms", "within"), [("bf16", 18.056, 0.01), ("fp8", 11.260, 0.015)])
def test_one_layer_takes_what_was_measured_on_a_gb200(precision, measured_ms, within):
    """Transformer Engine's example: 8,192 x 32,768 over 16,384 tokens, weights and their gradient in 4 bytes."""
    roof = Roofline("gb200", precision, scaling="block" if precision == "fp8" else "delayed")
    tokens, inner, out = 16384, 8192, 32768
    products = roof.linear(tokens, out, inner) + roof.linear(tokens, inner, out) + roof.linear(inner, out, tokens)
    # weights to 2 bytes, the loss reads both of its factors, the gradient to 4 bytes; and casts to fp8
    beside = roof.stream(2 * (4 + 2) * inner * out) + roof.stream(2 * 2 * tokens * out)
    casts = roof.cast(tokens * inner) + roof.cast(inner * out) + roof.cast(tokens * out)
    assert (products + beside + casts).ps / 1e9 == pytest.approx(measured_ms, rel=within)


def test_formats_weigh_their_scales():
    assert format_of("bf16", "delayed").operand_bytes == 2
    assert format_of("fp8", "delayed").cast_bytes == 4
    assert format_of("fp8", "current").cast_bytes == 6  # a pass for the amax
    assert format_of("fp8", "block").operand_bytes == 1 + 1 / 32
    assert format_of("fp4", "delayed").operand_bytes == 0.5 + 1 / 16
    assert Roofline("h100-sxm", "bf16").cast(1e9).ps == 0
    # a norm can write what it knows the scale of
    assert Roofline("h100-sxm", "fp8").cast_alone(1e9).ps == 0
    assert Roofline("h100-sxm", "fp8", scaling="current").cast_alone(1e9).ps > 0


def test_products_backward_keep_full_sums_where_that_is_slower():
    for gpu, ratio in (("h100-sxm", 1.15), ("gb200", 1.0)):
        roof = Roofline(gpu, "fp8")
        fast, slow = (roof.linear(4096, 4096, 4096, backward=backward).ps for backward in (False, True))
        assert slow / fast == pytest.approx(ratio)
    roof = Roofline("h100-sxm", "bf16")
    assert roof.linear(4096, 4096, 4096, backward=True) == roof.linear(4096, 4096, 4096)


def test_experts_are_worked_on_one_by_one():
    roof = Roofline("h100-sxm", "bf16")
    one = roof.linear(512, 4096, 4096)
    many = roof.linear(512, 4096, 4096, copies=16)
    assert (many.kernels, many.ps) == (16, pytest.approx(16 * one.ps))


def test_a_share_slows_everything_alike():
    whole, part = (Roofline("h100-sxm", "fp8", share=share) for share in (1.0, 0.8))
    for take in (
        lambda roof: roof.linear(4096, 4096, 4096),
        lambda roof: roof.gemm(4096, 4096, 4096),
        lambda roof: roof.stream(1e9),
        lambda roof: roof.cast(1e9),
        lambda roof: roof.flash_attention(1, Heads(32, 128), 8192, "b"),
    ):
        assert take(part).ps == pytest.approx(take(whole).ps / 0.8)


def test_the_host_is_late_where_it_does_more_than_the_device():
    assert Cost(10.0, 3).took_ps(5) == 15
    assert Cost(100.0, 3).took_ps(5) == 100
    assert (Cost(1.0, 1) + Cost(1.0, 1)) * 2 == Cost(4.0, 4)
    assert Cost(4.0, 1).scaled(0.5) == Cost(2.0, 1)


@pytest.mark.parametrize(("ep", "own"), [(1, 8), (4, 2)])
def test_the_device_waits_forward_for_a_time_a_layer_and_one_an_expert(ep, own):
    roof = Roofline("h100-sxm", "bf16")
    alone = MlpBlock(roof, shape(EXPERTS, ep=ep))
    block = MlpBlock(roof, shape(EXPERTS, ep=ep, routing_ps=10**9, expert_ps=10**8))
    waits = block.forward(1.0).cost().ps - alone.forward(1.0).cost().ps
    assert waits == pytest.approx(10**9 + 10**8 * own)
    assert block.backward(1.0).cost() == alone.backward(1.0).cost()
    dense = MlpBlock(roof, shape(routing_ps=10**9, expert_ps=10**8)).forward()
    assert dense.cost() == MlpBlock(roof, shape()).forward().cost()


def sent_bytes(block: MlpBlock) -> int:
    return next(
        collective.size_bytes for collective in block.forward(1.0).collectives() if collective.group == "ep"
    )


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_a_flexible_dispatcher_sends_a_token_once_to_a_rank(ep):
    """Against every choice of two of eight experts."""
    roof = Roofline("h100-sxm", "bf16")
    copied, flexible = (MlpBlock(roof, shape(EXPERTS, ep=ep, dispatcher=kind)) for kind in ("all-to-all", "flex"))
    chosen = list(combinations(range(8), 2))
    ranks = sum(len({expert * ep // 8 for expert in pair}) for pair in chosen) / len(chosen)
    assert sent_bytes(flexible) / sent_bytes(copied) == pytest.approx(ranks / 2, rel=1e-3)
    # over two hosts, once to a host
    over = MlpBlock(roof, shape(EXPERTS, ep=ep, ep_hosts=2, dispatcher="flex"))
    hosts = sum(len({expert // 4 for expert in pair}) for pair in chosen) / len(chosen)
    assert sent_bytes(over) / sent_bytes(copied) == pytest.approx(hosts / 2, rel=1e-3)


def test_exchanges_beside_another_micro_batch_are_waited_for_last():
    roof = Roofline("h100-sxm", "bf16")
    for hidden in (False, True):
        script = MlpBlock(roof, shape(EXPERTS, ep=8, hide_experts=hidden)).forward(1.0)
        starts = [i for i, item in enumerate(script.items) if isinstance(item, Start)]
        beside = [not isinstance(script.items[i + 1], Wait) for i in starts]
        assert beside == [hidden, hidden]


def test_an_experts_weight_has_a_gradient_that_reads_what_its_activation_did():
    roof = Roofline("h100-sxm", "bf16")
    block = MlpBlock(roof, shape(EXPERTS))
    plain, weighted = block.activation(10**9), block._activated(10**9)
    assert weighted[0] == plain[0]
    assert weighted[1].ps - plain[1].ps == pytest.approx(roof.stream(6 * 10**9).ps)
    clamped = MlpBlock(roof, shape({**EXPERTS, "model_type": "gpt_oss", "head_dim": 64, "sliding_window": 128}))
    assert clamped._activated(10**9)[0].ps - plain[0].ps == pytest.approx(roof.eager(16 * 10**9).ps)
    assert clamped._activated(10**9)[1].ps - weighted[1].ps == pytest.approx(roof.eager(20 * 10**9).ps)


def test_what_is_recomputed_by_parts_runs_again():
    roof = Roofline("h100-sxm", "bf16")
    parts = ("norms", "expert-activations")
    block = MlpBlock(roof, shape(EXPERTS, recompute_modules=parts))
    again = [i.cost for i in block.backward(1.0).items if isinstance(i, Compute) and i.part == "recompute"]
    width = 8 * (4096 * 2 // 8) * 14336
    assert sum(again, Cost()).ps == pytest.approx((block._activated(width)[0] + block.norm()[0]).ps)
    assert not any(
        isinstance(i, Compute) and i.part == "recompute"
        for i in MlpBlock(roof, shape(EXPERTS)).backward(1.0).items
    )


HYBRID = {
    "model_type": "nemotron_h", "hidden_size": 2048, "num_hidden_layers": 4, "hybrid_override_pattern": "MM*-",
    "intermediate_size": 8192, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128,
    "vocab_size": 32000, "mamba_num_heads": 32, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
    "conv_kernel": 4, "chunk_size": 128,
}  # fmt: skip


def test_a_scan_takes_the_products_and_the_states_of_its_chunks():
    roof = Roofline("h100-sxm", "bf16")
    chunks, states = 4096 // 128, 4096 // 128 * 32 * 64 * 128
    products = [(128, 128, 128, 8), (128, 64, 128, 32), (64, 128, 128, 32), (128, 64, 128, 32)]
    alone = sum(roof.gemm(m, n, k, batch=chunks * each).ps for m, n, k, each in products)
    alone += roof.stream(16 * states).ps  # written, read and written, read
    for share in (1.0, 0.25):
        forward, backward = MambaBlock(roof, shape(HYBRID, scan_share=share)).scan()
        assert forward.ps == pytest.approx(alone / share)
        assert backward.ps > 2 * forward.ps
    # divided over tensor-parallel ranks; run again backward
    half = MambaBlock(roof, shape(HYBRID, tp=2)).scan()[0]
    assert half.ps < 0.75 * alone
    again = [i for i in MambaBlock(roof, shape(HYBRID)).backward().items if isinstance(i, Compute)]
    assert sum(i.part == "recompute" for i in again) == 1


def test_a_captured_part_launches_nothing():
    roof = Roofline("h100-sxm", "bf16")
    for captured in ((), ("attention",)):
        block = AttentionBlock(roof, shape(captured=captured))
        for script in (block.forward(), block.backward(recompute_core=False)):
            assert bool(script.cost().kernels) is not bool(captured)
            assert script.cost().ps > 0


def test_attention_takes_longer_for_a_flop_where_heads_are_narrow():
    """A score costs one exponential whatever the width: on a B200 they add up to what cuDNN was measured at."""
    b200, ultra = catalog.gpu("b200-sxm"), catalog.gpu("b300-sxm")
    score = [4 * 128 / gpu.peak_flops["bf16"].value + 1 / gpu.exponentials.value for gpu in (b200, ultra)]
    assert 4 * 128 / score[0] == pytest.approx(1605e12 / 1.3, rel=0.05)
    # the figures of training.yaml for Blackwell Ultra follow from that of the B200
    texts = read_data(find_data()).texts.hardware
    ratio = [float(texts[name].attention["transformer-engine"].split()[0]) for name in ("dgx-b200", "dgx-b300")]
    assert ratio[1] / ratio[0] == pytest.approx(score[0] / score[1], rel=1e-3)
    roof = Roofline("h100-sxm", "bf16")
    wide, narrow = (roof.flash_attention(1, Heads(128 // d, 64 * d), 8192, "f").ps for d in (2, 1))
    products, exponential = 4 * 64 / 989.4e12, 1 / 3.9e12
    assert narrow / wide == pytest.approx(2 * (products + exponential) / (2 * products + exponential))


def test_without_a_compiler_more_bytes_move():
    """PyTorch's RMS norm kernel by kernel: 36 bytes an element forward where one kernel moves 4."""
    roof = Roofline("h100-sxm", "bf16")
    fused, eager = (MlpBlock(roof, shape(traffic=kind)) for kind in (FUSED, EAGER))
    for part in (0, 1):
        assert eager.norm()[part].ps > 5 * fused.norm()[part].ps
        assert eager.activation(10**9)[part].ps == pytest.approx(
            (10, 18)[part] / (6, 10)[part] * fused.activation(10**9)[part].ps
        )


def test_a_share_is_that_of_the_gpu_and_the_framework():
    shares = step_shares()
    assert 0.8 < shares.typical < 1
    assert shares.of("mi300x", "nobody's") == shares.of("mi300x") == shares.typical
    known = shares.typical * shares.gpus["a100-80"] * shares.software["llm-foundry"]
    assert shares.of("a100-80", "llm-foundry") == pytest.approx(min(1.0, known))
    data = read_data(find_data())
    used = {found.settings.get("software") for found in data.texts.sets.values() if not found.unknown}
    assert used == set(shares.software)


def test_a_framework_that_is_not_known_is_named():
    with pytest.raises(ValueError, match=r"got 'nemmo', expected one of .*, did you mean 'nemo'"):
        Training.model_validate({"model": {"a": 1}, "sequence": 8, "micro_batches": 1, "software": "nemmo"})


@pytest.mark.second
def test_constants_are_what_the_declared_rows_give():
    """Calibrated constants meet their rows: each set's median is off by less than a twentieth."""
    data = read_data(find_data())
    for name, found in data.texts.sets.items():
        own = [case for case in cases(data) if case.row.set == name and case.calibrates]
        assert len(own) == sum(len(one.rows) for one in found.calibrated_from)
        if own:
            errors = [outcome.error for outcome in judge(own, fidelity="analytic", stage=silent)]
            assert abs(median(errors)) < 0.05


@pytest.mark.parametrize(
    ("example", "row"),
    [
        ("llama-3.1-405b", "NVIDIA eos-dfw_n256_ngc25.01_nemo"),
        ("llama-3-70b", "LLAMA3-70B 64"),
        ("llama-3-405b-16k", "16384 GPUs CP16"),
        ("selene-shape", "145.6B"),
    ],
)
def test_examples_have_the_settings_of_their_rows(example, row):
    """One truth: what `run` says of an example is what `validate` says of the row."""
    mine = load_spec(ROOT / "examples" / f"{example}.yaml").validate_section("workload", Workload).training
    (case,) = [case for case in cases(read_data(find_data())) if case.row.row == row]
    published = case.spec.validate_section("workload", Workload).training
    left, right = mine.model_dump(), published.model_dump()
    replicas = right["parallel"].pop("dp")
    assert left["parallel"].pop("dp") in (None, replicas)
    for one in (left, right):
        one.pop("model")
        batch, count = one.pop("global_batch"), one.pop("micro_batches")
        one["batch"] = batch or count * one["micro_batch_size"] * replicas
    assert left == right
