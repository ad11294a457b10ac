"""Models against published counts and formulas, and files that are not models."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import specs

from fabrictwin.base.errors import ConfigError
from fabrictwin.workload.model.huggingface_families import NEEDS, load_model, read_model

LLAMA = {
    "8B": (
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
        8.03,
    ),
    "70B": (
        {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
        70.6,
    ),
}


@pytest.mark.parametrize("size", LLAMA)
def test_llama_3_has_the_published_number_of_parameters(size):
    keys, billions = LLAMA[size]
    model = read_model({**keys, "num_key_value_heads": 8, "vocab_size": 128256}, name=size)
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.05 if billions > 10 else 0.005)


def config(kind: str, hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int, **more) -> dict:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        **more,
    }


# configs and parameter counts as their model cards and checkpoints publish them
PUBLISHED = {
    "Llama 3 8B": (config("llama", 4096, 14336, 32, 32, 8, 128256), 8_030_261_248, None),
    "Llama 3 70B": (config("llama", 8192, 28672, 80, 64, 8, 128256), 70_553_706_496, None),
    "Llama 3.1 405B": (config("llama", 16384, 53248, 126, 128, 8, 128256), 405_853_388_800, None),
    "Mistral 7B": (config("mistral", 4096, 14336, 32, 32, 8, 32000), 7_241_732_096, None),
    "Qwen2 7B": (
        config("qwen2", 3584, 18944, 28, 28, 4, 152064, use_sliding_window=False, sliding_window=131072),
        7_615_616_512,
        None,
    ),
    "Qwen3 8B": (config("qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128), 8_190_735_360, None),
    "Mixtral 8x7B": (
        config("mixtral", 4096, 14336, 32, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2),
        46_702_792_704,
        12.9,
    ),
    "Mixtral 8x22B": (
        config("mixtral", 6144, 16384, 56, 48, 8, 32768, num_local_experts=8, num_experts_per_tok=2),
        140_630_071_296,
        39.2,
    ),
    "Qwen1.5 MoE A2.7B": (
        config(
            "qwen2_moe",
            *(2048, 5632, 24, 16, 16, 151936),
            num_experts=60,
            num_experts_per_tok=4,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
        ),
        14_315_784_192,
        2.7,
    ),
    "Qwen3 30B A3B": (
        config(
            "qwen3_moe",
            *(2048, 6144, 48, 32, 4, 151936),
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
        ),
        30_532_122_624,
        3.35,
    ),
    "Qwen3 235B A22B": (
        config(
            "qwen3_moe",
            *(4096, 12288, 94, 64, 4, 151936),
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=1536,
        ),
        235_093_634_560,
        22.2,
    ),
    "DeepSeek V3": (
        config(
            "deepseek_v3",
            *(7168, 18432, 61, 128, 128, 129280),
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            n_routed_experts=256,
            n_shared_experts=1,
            num_experts_per_tok=8,
            moe_intermediate_size=2048,
            first_k_dense_replace=3,
        ),
        671_026_419_200,
        37.5,
    ),
    "Nemotron 3 Nano": (
        {
            "model_type": "nemotron_h",
            "hidden_size": 2688,
            "num_hidden_layers": 52,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "vocab_size": 131072,
            "mamba_num_heads": 64,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
            "chunk_size": 128,
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
        },
        31_577_940_288,
        3.6,
    ),
    "GPT-NeoX 20B": (
        config("gpt_neox", 6144, 24576, 44, 64, 64, 50432, hidden_act="gelu_fast"),
        20_554_567_680,
        None,
    ),
    "Pythia 6.9B": (config("gpt_neox", 4096, 16384, 32, 32, 32, 50432, hidden_act="gelu"), 6_857_302_016, None),
    "Falcon 7B": (
        {
            "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
            "vocab_size": 65024, "multi_query": True, "parallel_attn": True, "bias": False, "alibi": False,
        },
        6_921_720_704,
        None,
    ),
    "Falcon 40B": (
        {
            "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
            "num_kv_heads": 8, "vocab_size": 65024, "new_decoder_architecture": True, "bias": False,
        },
        41_303_293_952,
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "norms"),
    [
        ({}, 1), ({"parallel_attn": False}, 0), ({"new_decoder_architecture": True}, 2),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, 1),
    ],
)  # fmt: skip
def test_falcons_layers_are_parallel_as_their_config_says(more, norms):
    keys = {**PUBLISHED["Falcon 7B"][0], **more}
    model = read_model(keys, name="x")
    assert model.parallel_norms == norms
    heads = 71 if "new_decoder_architecture" in more else 1
    assert model.kv_heads == heads
    for key, value in (("alibi", True), ("bias", True), ("activation", "relu")):
        with pytest.raises(ConfigError, match=key):
            read_model({**keys, key: value}, name="x")
    newer = {**keys, "new_decoder_architecture": True}
    for key, value in (("num_ln_in_parallel_attn", 3), ("num_kv_heads", 8)):
        with pytest.raises(ConfigError, match=key):
            read_model({**newer, key: value}, name="x")


def test_gpt_neox_is_parallel_unless_told_otherwise():
    keys = PUBLISHED["Pythia 6.9B"][0]
    assert read_model(keys, name="x").parallel_norms == 2
    assert read_model({**keys, "use_parallel_residual": False}, name="x").parallel_norms == 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_have_exactly_the_published_parameters(name):
    keys, parameters, active = PUBLISHED[name]
    model = read_model(keys, name=name)
    assert model.parameters == parameters
    if active is None:
        assert model.active_parameters == model.parameters
    else:
        assert model.active_parameters / 1e9 == pytest.approx(active, abs=0.06)


def test_a_hybrids_layers_are_what_its_pattern_says():
    keys = PUBLISHED["Nemotron 3 Nano"][0]
    model = read_model(keys, name="x")
    assert (model.kinds, model.sparse_layers) == ({"M": 23, "*": 6}, 23)
    # in: gate, inputs, both vectors of eight groups, a step a head; a convolution of 4 with its bias; out
    width = 64 * 64 + 2 * 8 * 128
    mamba = 2688 * (64 * 64 + width + 64) + 5 * width + 3 * 64 + 64 * 64 + 64 * 64 * 2688 + 2688
    assert model.layer_on_rank(0, 1) == mamba
    assert model.layer_on_rank(0, 8) == (mamba - 2688) // 8 + 2688
    attention = 2688 * (32 + 2 * 2) * 128 + 32 * 128 * 2688 + 2688
    assert model.layer_on_rank(5, 1) == attention
    # Megatron-LM's count: products, and seven for each number of a state
    flops = sum(model._block_flops(kind, 3, 8192) for kind in "M")
    assert flops == 3 * (2 * 2688 * (64 * 64 + width + 64) + 2 * 64 * 64 * 2688 + 7 * 64 * 64 * 128)


def test_experts_on_a_latent_have_products_to_it_and_back():
    plain = read_model(PUBLISHED["Nemotron 3 Nano"][0], name="x")
    latent = read_model({**PUBLISHED["Nemotron 3 Nano"][0], "moe_latent_size": 1024}, name="x")
    saved = 23 * (128 * 2 * (2688 - 1024) * 1856 - 2 * 2688 * 1024)
    assert plain.parameters - latent.parameters == saved


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hybrid_override_pattern": "MEX"}, r"hybrid_override_pattern: got 'MEX', expected a letter"),
        ({"hybrid_override_pattern": "ME*"}, r"hybrid_override_pattern: got 3 letters, expected one for each of"),
        ({"n_groups": 7}, r"n_groups: got 7, expected a divisor of the 64 heads"),
        ({"n_routed_experts": None}, r"n_routed_experts: expected one: the pattern has layers E"),
    ],
)
def test_a_hybrid_says_what_is_wrong_with_it(change, message):
    with pytest.raises(ConfigError, match=message):
        read_model({**PUBLISHED["Nemotron 3 Nano"][0], **change}, name="x")


def test_a_predictor_has_the_published_parameters():
    """DeepSeek-V3's README of its weights: 11.5 B of the prediction module's are its own."""
    model = read_model(PUBLISHED["DeepSeek V3"][0], name="x")
    longer = replace(model, predictors=1)
    own = longer.parameters - model.parameters
    assert own / 1e9 == pytest.approx(11.5, abs=0.15)
    assert own == longer.predictor_on_rank(1) + 256 * model.expert_parameters()
    # a layer and the join beside another head
    flops = longer.forward_flops(10, 4096) - model.forward_flops(10, 4096)
    layer = model.layer_forward_flops(10, 4096, sparse=True)
    assert flops == layer + 2 * 10 * 7168 * (2 * 7168 + 129280)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_family_names_the_key_that_it_lacks(name):
    keys, _, _ = PUBLISHED[name]
    needed = [key for key in keys if key in NEEDS[keys["model_type"]]]
    for key in needed:
        lacking = {k: v for k, v in keys.items() if k != key}
        with pytest.raises(ConfigError, match=f"lacks {key}"):
            read_model(lacking, name=name)


def gpt2(layers: int, hidden: int, heads: int, vocab: int = 50257, positions: int = 1024) -> dict:
    return {"n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": vocab, "n_positions": positions}


def test_gpt2_has_exactly_the_published_checkpoints_parameters():
    assert read_model(gpt2(12, 768, 12), name="small").parameters == 124_439_808
    assert read_model(gpt2(48, 1600, 25), name="xl").parameters == 1_557_611_200


def test_gpt_parameters_follow_narayanan_equation_2():
    layers, hidden, vocab, sequence = 80, 12288, 51200, 2048
    model = read_model(gpt2(layers, hidden, 96, vocab, sequence), name="145.6B")
    formula = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (vocab + sequence) / (12 * layers * hidden))
    assert model.parameters == pytest.approx(formula, rel=1e-6)
    assert model.parameters / 1e9 == pytest.approx(145.6, abs=0.05)


def test_hardware_flops_follow_narayanan_equation_3():
    layers, hidden, vocab, sequence, batch = 80, 12288, 51200, 2048, 2304
    model = read_model(gpt2(layers, hidden, 96, vocab, sequence), name="145.6B")
    _, executed = model.step_flops(batch * sequence, sequence, recompute="full")
    bracket = 1 + sequence / (6 * hidden) + vocab / (16 * layers * hidden)
    assert executed == pytest.approx(96 * batch * sequence * layers * hidden**2 * bracket, rel=1e-12)


def test_a_file_that_is_not_a_model_names_what_it_lacks(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hidden_size": 64, "vocab_size": 100}))
    with pytest.raises(ConfigError, match="lacks intermediate_size, num_hidden_layers, num_attention_heads"):
        load_model(path)
    path.write_text('{"hidden_size": 64,\n nonsense')
    with pytest.raises(ConfigError, match=r"config.json:2: expected JSON"):
        load_model(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_model(path)
    with pytest.raises(ConfigError, match="no such file"):
        load_model(tmp_path / "absent.json")


def test_a_model_is_named_by_itself_by_its_folder_or_by_its_file(tmp_path):
    folder = tmp_path / "llama"
    folder.mkdir()
    for file, more, name in (
        ("config.json", {}, "llama"),
        ("small.json", {}, "small"),
        ("config.json", {"_name": "own"}, "own"),
        ("small.json", {"_name": 7}, "small"),
    ):
        (folder / file).write_text(json.dumps({**specs.TINY, **more}))
        assert load_model(folder / file).name == name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 30}, "divides the other"),
        ({"num_key_value_heads": 5}, "divisor of the 32"),
        ({"hidden_size": -1}, "whole number from 1"),
        ({"hidden_size": True}, "whole number from 1"),
        ({"hidden_size": "4096"}, "whole number from 1"),
        ({"num_local_experts": 8}, "dense model"),
        ({"model_type": "bert"}, "model_type: got 'bert', expected one of llama, mistral"),
        ({"hidden_act": "gelu"}, "hidden_act: got 'gelu', expected silu"),
        ({"attention_bias": True}, "attention_bias: got True, expected a model without it"),
        ({"sliding_window": 4096}, "sliding_window: got 4096"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: got 'no', expected true or false"),
    ],
)
def test_sizes_that_make_no_model_are_errors(change, message):
    good = {**LLAMA["8B"][0], "vocab_size": 128256, "num_key_value_heads": 8}
    with pytest.raises(ConfigError, match=message):
        read_model({**good, **change}, name="broken")


def test_tied_embeddings_and_head_size_are_read():
    keys = {**LLAMA["8B"][0], "num_key_value_heads": 8, "vocab_size": 128256}
    untied = read_model(keys, name="untied")
    tied = read_model({**keys, "tie_word_embeddings": True}, name="tied")
    assert untied.parameters - tied.parameters == 128256 * 4096
    wide = read_model({**keys, "head_dim": 256}, name="wide")
    # queries and output of 32 heads, keys and values of 8, all of them twice as wide as 4096 / 32
    assert wide.parameters - untied.parameters == 32 * 4096 * 128 * (2 * 32 + 2 * 8)


def test_gpt2_drops_out_unless_its_config_says_otherwise():
    assert read_model(gpt2(12, 768, 12), name="as published").dropout
    off = {"attn_pdrop": 0.0, "resid_pdrop": 0}
    assert not read_model({**gpt2(12, 768, 12), **off}, name="without").dropout
    with pytest.raises(ConfigError, match="activation_function: got 'relu'"):
        read_model({**gpt2(12, 768, 12), "activation_function": "relu"}, name="broken")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["hidden_size", "n_embd", "n_layer", "n_head", "n_positions", "vocab_size", "x"]),
                inner,
                max_size=7,
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_stands_in_the_file_it_is_a_model_or_one_error(data):
    try:
        model = read_model(data, name="fuzz")
    except ConfigError:
        return
    assert model.parameters > 0
