"""Models as they are published: families, how weights are stored, and the language model among other parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.workload.model.huggingface_families import read_model
from fabrictwin.workload.model.huggingface_weights import published_weights
from fabrictwin.workload.model.model_blocks import Weights

LLAMA = json.loads((Path(__file__).parents[2] / "examples/models/llama-3-8b.json").read_text("utf-8"))
KIMI: dict[str, Any] = {
    "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 163840, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "max_position_embeddings": 262144,
}  # fmt: skip
MINIMAX: dict[str, Any] = {
    "model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
    "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 200064,
    "num_local_experts": 256, "num_experts_per_tok": 8, "max_position_embeddings": 196608, "use_qk_norm": True,
    "use_routing_bias": True,
}  # fmt: skip
GLM_AIR: dict[str, Any] = {
    "model_type": "glm4_moe", "attention_bias": True, "first_k_dense_replace": 1, "head_dim": 128,
    "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 128,
    "n_shared_experts": 1, "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 46,
    "num_key_value_heads": 8, "use_qk_norm": False, "vocab_size": 151552, "max_position_embeddings": 131072,
}  # fmt: skip
INT4 = {"num_bits": 4, "type": "int", "group_size": 32}


@pytest.mark.parametrize(
    ("config", "billions", "context"),
    [
        (KIMI, 1026, 262144),  # "1T" of its model card
        (MINIMAX, 229, 196608),  # 229B
        (GLM_AIR, 107, 131072),  # 106B, its draft layer left out
    ],
    ids=lambda value: value.get("model_type", "") if isinstance(value, dict) else str(value),
)
def test_published_mixtures_have_the_parameters_that_their_cards_name(
    config: dict[str, Any], billions: int, context: int
) -> None:
    model = read_model(config, name="m")
    assert round(model.parameters / 1e9) == billions
    assert model.longest == context
    assert model.weights == Weights()


def test_the_language_model_is_read_from_among_other_parts() -> None:
    whole = {
        "model_type": "kimi_k25",
        "vision_config": {"hidden_size": 1152},
        "text_config": KIMI,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "ignore": ["lm_head", "re:.*self_attn.*"],
            "config_groups": {"group_0": {"weights": INT4}},
        },
    }
    model = read_model(whole, name="m")
    assert model.parameters == read_model(KIMI, name="m").parameters
    assert model.weights == Weights("none", "int4")


@pytest.mark.parametrize(
    ("found", "linear", "experts"),
    [
        (None, "none", "none"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", "fp8"),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, "none", "mxfp4"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", "int4"),
        ({"quant_method": "gptq", "bits": 8}, "gptq of 8 bits", "gptq of 8 bits"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4", "fp4"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, "fp8", "fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": INT4}}}, "int4", "int4"),
        ({"quant_method": "compressed-tensors"}, "None of None bits", "None of None bits"),
        ({"quant_method": "hqq"}, "hqq", "hqq"),
    ],
)
def test_weights_are_stored_as_the_config_says(found: Any, linear: str, experts: str) -> None:
    assert published_weights({"quantization_config": found}) == Weights(linear, experts)


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        (None, 8192),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 8192),
        ({"type": "linear", "factor": 4.0}, 32768),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        ({"type": "yarn", "factor": 4.0}, 32768),
        ({"type": "longrope", "factor": 32.0}, 8192),
    ],
)
def test_the_scaling_of_positions_counts_as_vllm_derives_it(
    scaling: dict[str, Any] | None, positions: int
) -> None:
    assert read_model({**LLAMA, "rope_scaling": scaling}, name="m").longest == positions


@pytest.mark.parametrize("factor", ["four", -1, None])
def test_a_factor_that_is_none_is_refused(factor: object) -> None:
    with pytest.raises(ConfigError, match=r"rope_scaling: got .* expected numbers above 0"):
        read_model({**LLAMA, "rope_scaling": {"type": "linear", "factor": factor}}, name="m")
