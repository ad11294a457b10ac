"""Low-rank adapters: what is trained, what is computed, sent and kept, against counts by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.programs import lowered
from support.specs import TINY
from support.specs import tiny_job as spec

from fabrictwin.base.errors import ConfigError
from fabrictwin.program import patterns
from fabrictwin.program.program import NONE
from fabrictwin.runs.execute import predict
from fabrictwin.workload.layers.attention import AttentionBlock
from fabrictwin.workload.layers.feedforward import MlpBlock
from fabrictwin.workload.layers.roofline import Cost, Roofline
from fabrictwin.workload.layers.transformer import Adapters, Ends, Kernels, Shape
from fabrictwin.workload.model.huggingface_families import read_model

LORA = {"rank": 16}
LLAMA_70B = {
    "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 32000, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


class Counting(Roofline):
    """A roofline whose products cost their operations and whose other kernels nothing."""

    def _product(self, m: int, n: int, k: int, batch: int, precision: str, operand: float, out: int) -> Cost:
        return Cost(2.0 * m * n * k * batch, 1)

    def stream(self, moved_bytes: float) -> Cost:
        return Cost(0.0, 1)

    def flash_attention(self, *given: object, **more: object) -> Cost:
        return Cost(0.0, 1)


def shape(adapters: Adapters | None) -> Shape:
    model = read_model(LLAMA_70B, name="llama")
    return Shape(model, 1, 512, 32000, kernels=Kernels(adapters=adapters))


def layer_operations(adapters: Adapters | None) -> tuple[float, float]:
    roof, of = Counting("h100-sxm", "bf16"), shape(adapters)
    attention, mlp = AttentionBlock(roof, of), MlpBlock(roof, of)
    forward, backward = attention.forward(), attention.backward(recompute_core=False)
    forward.extend(mlp.forward(0.0))
    backward.extend(mlp.backward(0.0))
    return forward.cost().ps, backward.cost().ps


def test_backward_of_a_frozen_layer_is_one_forward_and_what_its_adapters_add() -> None:
    forward, backward = layer_operations(None)
    assert backward == 2 * forward
    rank, sides = (
        16,
        {"qkv": (8192, 10240), "projection": (8192, 8192), "up": (8192, 57344), "down": (28672, 8192)},
    )
    for targets in (tuple(sides), ("qkv", "projection"), ("down",)):
        added = sum(2 * 512 * rank * sum(sides[name]) for name in targets)
        assert layer_operations(Adapters(rank, targets)) == (forward + added, forward + 2 * added)


def test_the_head_has_no_gradient_of_weights_and_the_embedding_no_backward() -> None:
    roof = Counting("h100-sxm", "bf16")
    whole, frozen = Ends(roof, shape(None)), Ends(roof, shape(Adapters(8, ("qkv",))))
    assert whole.output_backward().cost().ps == 2 * frozen.output_backward().cost().ps > 0
    assert frozen.embedding_backward().items == []


def test_trained_parameters_are_those_that_others_count() -> None:
    """MLPerf's LoRA benchmark trains 44.6 million of Llama 2 70B's: rank 16 beside attention's products."""
    lora = {"rank": 16, "targets": ["qkv", "projection"]}
    job, _ = lowered(spec(2, model=LLAMA_70B, parallel={"tp": 1, "pp": 16}, micro_batches=1, lora=lora))
    assert sum(job.stage_parameters(s) for s in range(job.layout.pp)) == 44_564_480
    assert job.layer_parameters(0)[2] == job.model.parameters_on_rank(sparse=False)


@pytest.mark.parametrize("tp", [1, 2])
def test_only_adapters_gradients_are_reduced(tp: int) -> None:
    job, program = lowered(spec(2, parallel={"tp": tp}, micro_batches=2, lora=LORA))
    count = np.bincount(program.operations.communication[program.operations.communication != NONE])
    sent = 0
    for communication, times in zip(program.communications, count, strict=True):
        if communication.name.startswith("gradient all-reduce"):
            sent += int(times) * int(patterns.edges(communication.channels).size_bytes.sum())
    h, ffn = TINY["hidden_size"], TINY["intermediate_size"]
    qkv = h + 2 * h * TINY["num_key_value_heads"] // TINY["num_attention_heads"]
    each = (h + qkv // tp) + (h // tp + h) + (h + 2 * ffn // tp) + (ffn // tp + h)
    trained = 16 * each * TINY["num_hidden_layers"]
    assert job.stage_parameters(0) == trained
    assert sent == tp * 2 * (job.layout.dp - 1) * trained * 4


@pytest.mark.parametrize("strategy", ["none", "zero-1", "zero-2", "fsdp"])
@pytest.mark.parametrize("fidelity", ["flow", "analytic"])
def test_a_frozen_step_is_shorter_and_holds_less(strategy: str, fidelity: str) -> None:
    how = {"micro_batches": 2, "sharding": strategy, "fidelity": fidelity}
    whole, frozen = predict(spec(2, **how)), predict(spec(2, lora=LORA, **how))
    assert 0.5 * whole.trace.end_ps < frozen.trace.end_ps < whole.trace.end_ps
    assert whole.job.memory is not None
    assert frozen.job.memory is not None
    mine, theirs = (
        {item.key: item.bytes for item in held.items} for held in (frozen.job.memory, whole.job.memory)
    )
    assert mine["optimizer"] < 0.2 * theirs["optimizer"]
    assert mine["gradients"] < 0.2 * theirs["gradients"]
    assert mine["activations"] == theirs["activations"]


def test_engines_agree_on_a_frozen_step() -> None:
    found = [
        predict(spec(2, parallel={"tp": 2, "pp": 2}, lora=LORA, fidelity=fidelity)).trace.end_ps
        for fidelity in ("analytic", "flow")
    ]
    assert found[0] == pytest.approx(found[1], rel=0.05)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lora": {"rank": 0}}, "lora.rank"),
        ({"lora": {"rank": 8, "targets": []}}, "lora.targets: got none, expected some of qkv"),
        ({"lora": {"rank": 8, "targets": ["qkv", "qkv"]}}, "each once"),
        ({"lora": {"rank": 8, "targets": ["q_proj"]}}, "lora.targets"),
        (
            {"lora": LORA, "recompute": "operations", "parallel": {"tp": 1}},
            "recompute: got operations with adapters",
        ),
    ],
)
def test_what_does_not_go_with_adapters_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        lowered(spec(2, micro_batches=2, **given))
