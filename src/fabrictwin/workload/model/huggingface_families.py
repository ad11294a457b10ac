"""Models from a Hugging Face `config.json`: one reader a family, told apart by `model_type`, else by their keys.

What each family holds is that of its published implementation:

- llama, mistral: RMS norms, rotary positions, grouped-query attention, gated MLP, no biases.
- qwen2: llama with biases on Q, K and V. qwen3: an RMS norm on each head's query and key instead.
- mixtral; qwen2_moe (shared experts behind a gate); qwen3_moe; minimax_m2 (a routing bias, norms over all queries
  and over all keys): experts in place of the MLP. glm4_moe: dense layers first, shared experts, a routing bias.
- deepseek_v3, kimi_k2: multi-head latent attention, dense layers first, shared and routed experts, a routing bias.
- gpt_oss: experts with biases, biases on attention, a sliding window in every second layer, a sink for each head.
- nemotron: layer norms, rotary, squared ReLU without a gate, no biases.
- nemotron_h: layers of one block each by `hybrid_override_pattern` (Mamba-2, attention without positions, squared
  ReLU, experts of it), RMS norms.
- gpt2: layer norms, learned positions, biases, MLP of 4 h, tied embeddings. gpt_neox: rotary, untied,
  attention and MLP beside each other (`use_parallel_residual`). falcon: the same without biases, tied, with
  grouped queries, behind one norm or each its own.

A config that says something which is not counted here (another activation) is an error. Of a model of several
kinds of input the language model is read (`text_config`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.textfile import read_text
from fabrictwin.base.whole_numbers import read_json
from fabrictwin.workload.model.huggingface_keys import Config
from fabrictwin.workload.model.huggingface_weights import published_weights
from fabrictwin.workload.model.model_blocks import Experts, Latent, Mamba
from fabrictwin.workload.model.model_sizes import Model

_LLAMA = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_MIXTRAL = (*_LLAMA, "num_local_experts", "num_experts_per_tok")
_QWEN_MOE = (*_LLAMA, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
_DEEPSEEK = (
    *_LLAMA,
    *("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
)
_MINIMAX = (*_MIXTRAL, "head_dim")
_GLM_MOE = (*_LLAMA, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "head_dim")
_GPT_OSS = (*_MIXTRAL, "head_dim", "sliding_window")
_HYBRID = (
    *("hidden_size", "num_hidden_layers", "vocab_size", "hybrid_override_pattern"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
    *("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "chunk_size"),
)
_GPT2 = ("n_embd", "n_layer", "n_head", "n_positions", "vocab_size")

BIASED = ("deepseek_v3", "kimi_k2", "glm4_moe")
"""Families with shared experts, a routing bias and dense layers first."""

NEEDS = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": (*_LLAMA, "head_dim"),
    "mixtral": _MIXTRAL,
    "qwen2_moe": (*_QWEN_MOE, "shared_expert_intermediate_size"),
    "qwen3_moe": (*_QWEN_MOE, "head_dim"),
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "minimax_m2": _MINIMAX,
    "glm4_moe": _GLM_MOE,
    "gpt_oss": _GPT_OSS,
    "nemotron": _LLAMA,
    "nemotron_h": _HYBRID,
    "gpt_neox": _LLAMA,
    "falcon": ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"),
    "gpt2": _GPT2,
}


def _model(config: Config, **own: Any) -> Model:
    """A model by the keys that most families share; `own` stands in place of them or beside them."""
    heads = config.count("num_attention_heads")
    shared: dict[str, Any] = {
        "hidden": config.count("hidden_size"),
        "layers": config.count("num_hidden_layers"),
        "heads": heads,
        "vocab": config.count("vocab_size"),
        "positions": 0,
        "tied": config.flag("tie_word_embeddings", False),
    }
    if "head_size" not in own:
        shared["head_size"] = config.head_size("hidden_size", "num_attention_heads")
    if "kv_heads" not in own:
        shared["kv_heads"] = config.kv_heads(heads)
    if "ffn" not in own:
        shared["ffn"] = config.count("intermediate_size")
    return Model(name=config.name, family=config.family, **shared, **own)


def _llama_like(config: Config) -> Model:
    family = config.family
    qwen, sparse = family.startswith("qwen"), NEEDS[family] is not _LLAMA
    if not (qwen and config.data.get("use_sliding_window") is False):
        config.without("sliding_window")
    config.without("mlp_bias")
    if family not in ("qwen2", "glm4_moe"):
        config.without("attention_bias")
    config.one_of("hidden_act", "silu")
    if not sparse:  # a dense family
        for key in ("num_local_experts", "n_routed_experts", "num_experts"):
            if config.data.get(key):
                raise config.error(key, f"got {config.data[key]!r} experts, expected a dense model")
    return _model(
        config,
        qkv_bias=family in ("qwen2", "qwen2_moe") or config.flag("attention_bias", False),
        qk_norm=family in ("qwen3", "qwen3_moe", "minimax_m2") or config.flag("use_qk_norm", False),
        experts=_experts(config),
    )


def _experts(config: Config) -> Experts | None:
    family = config.family
    if family in ("mixtral", "gpt_oss", "minimax_m2"):
        count_key, width_key = "num_local_experts", "intermediate_size"
    elif family in ("qwen2_moe", "qwen3_moe"):
        count_key, width_key = "num_experts", "moe_intermediate_size"
        if config.data.get("mlp_only_layers"):
            raise config.error("mlp_only_layers", "expected a model whose dense layers follow decoder_sparse_step")
    elif family in (*BIASED, "nemotron_h"):
        count_key, width_key = "n_routed_experts", "moe_intermediate_size"
    else:
        return None
    count, top_k = config.count(count_key), config.count("num_experts_per_tok")
    if top_k > count:
        raise config.error("num_experts_per_tok", f"got {top_k}, expected at most the {count} experts")
    width = config.count(width_key)
    if family in BIASED:
        return Experts(
            count,
            top_k,
            width,
            shared_ffn=width * config.optional("n_shared_experts"),
            routing_bias=config.data.get("topk_method", "noaux_tc") == "noaux_tc",
            first_dense=config.optional("first_k_dense_replace"),
            every=config.count("moe_layer_freq", 1),
        )
    if family == "nemotron_h":
        shared = config.optional("moe_shared_expert_intermediate_size") * config.count("n_shared_experts", 1)
        latent = config.optional("moe_latent_size")
        return Experts(count, top_k, width, shared_ffn=shared, routing_bias=True, latent=latent)
    shared = config.optional("shared_expert_intermediate_size") if family == "qwen2_moe" else 0
    every = config.count("decoder_sparse_step", 1) if family.startswith("qwen") else 1
    bias = family == "minimax_m2" and config.flag("use_routing_bias", False)
    return Experts(count, top_k, width, shared_ffn=shared, shared_gate=shared > 0, routing_bias=bias, every=every)


def _deepseek(config: Config) -> Model:
    config.without("attention_bias")
    config.one_of("hidden_act", "silu")
    heads = config.count("num_attention_heads")
    latent = Latent(
        query_rank=config.optional("q_lora_rank"),
        kv_rank=config.count("kv_lora_rank"),
        rope_size=config.count("qk_rope_head_dim"),
        nope_size=config.count("qk_nope_head_dim"),
        value_size=config.count("v_head_dim"),
    )
    return _model(
        config,
        kv_heads=heads,
        head_size=latent.nope_size + latent.rope_size,
        latent=latent,
        experts=_experts(config),
    )


def _gpt_oss(config: Config) -> Model:
    """gpt-oss-120b and 20b (OpenAI 2025): `layer_types` alternate, attention and experts have biases."""
    config.one_of("hidden_act", "silu")
    types = config.data.get("layer_types")
    layers = config.count("num_hidden_layers")
    if types is not None and types != (["sliding_attention", "full_attention"] * layers)[:layers]:
        raise config.error("layer_types", "expected sliding_attention and full_attention in turn")
    return _model(
        config,
        head_size=config.count("head_dim"),
        biases=True,
        experts=_experts(config),
        window=config.count("sliding_window"),
        router_bias=True,
        sinks=True,
        clamped=True,
    )


def _nemotron(config: Config) -> Model:
    config.one_of("hidden_act", "relu2")
    config.without("attention_bias", "mlp_bias", "sliding_window")
    return _model(config, gated=False, norm="layer")


def _nemotron_h(config: Config) -> Model:
    """Nemotron-H (arXiv 2504.03624) and Nemotron 3, whose experts may work on a latent of a token."""
    config.without("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias")
    layers, pattern = config.count("num_hidden_layers"), config.data["hybrid_override_pattern"]
    key = "hybrid_override_pattern"
    if not isinstance(pattern, str) or set(pattern) - set("M*-E") or not pattern:
        raise config.error(key, f"got {pattern!r}, expected a letter for every layer: M, *, - or E")
    if len(pattern) != layers:
        raise config.error(key, f"got {len(pattern)} letters, expected one for each of the {layers} layers")
    mamba = Mamba(
        heads=config.count("mamba_num_heads"),
        head_size=config.count("mamba_head_dim"),
        state=config.count("ssm_state_size"),
        groups=config.count("n_groups"),
        kernel=config.count("conv_kernel"),
        chunk=config.count("chunk_size"),
    )
    if mamba.heads % mamba.groups:
        raise config.error("n_groups", f"got {mamba.groups}, expected a divisor of the {mamba.heads} heads")
    for letter, needed in (("-", "intermediate_size"), ("E", "n_routed_experts")):
        if letter in pattern and not config.data.get(needed):
            raise config.error(needed, f"expected one: the pattern has layers {letter}")
    return _model(
        config,
        head_size=config.count("head_dim"),
        ffn=config.count("intermediate_size", 1),
        gated=False,
        experts=_experts(config) if "E" in pattern else None,
        pattern=pattern,
        mamba=mamba,
        rotary=False,
    )


def _neox(config: Config) -> Model:
    config.one_of("hidden_act", "gelu", "gelu_fast", "gelu_new")
    heads = config.count("num_attention_heads")
    return _model(
        config,
        kv_heads=heads,
        dropout=any(config.data.get(key, 0.0) for key in ("attention_dropout", "hidden_dropout")),
        gated=False,
        norm="layer",
        biases=True,
        parallel_norms=2 if config.flag("use_parallel_residual", True) else 0,
    )


def _falcon(config: Config) -> Model:
    config.without("alibi", "bias")
    config.one_of("activation", "gelu")
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    newer = config.flag("new_decoder_architecture", False)
    if newer:
        kv_heads, norms = config.count("num_kv_heads", heads), config.count("num_ln_in_parallel_attn", 2)
        if norms > 2:
            raise config.error("num_ln_in_parallel_attn", f"got {norms}, expected 1 or 2")
        if heads % kv_heads:
            raise config.error(
                "num_kv_heads", f"got {kv_heads}, expected a divisor of the {heads} attention heads"
            )
    else:
        kv_heads = 1 if config.flag("multi_query", True) else heads
        norms = 1 if config.flag("parallel_attn", True) else 0
    model = _model(
        config,
        kv_heads=kv_heads,
        ffn=config.count("ffn_hidden_size", 4 * hidden),
        dropout=any(config.data.get(key, 0.0) for key in ("attention_dropout", "hidden_dropout")),
        gated=False,
        norm="layer",
        parallel_norms=norms,
    )
    return replace(model, tied=config.flag("tie_word_embeddings", True))


def _gpt2(config: Config) -> Model:
    config.one_of("activation_function", "gelu_new", "gelu")
    hidden, heads = config.count("n_embd"), config.count("n_head")
    return Model(
        name=config.name,
        family=config.family,
        hidden=hidden,
        layers=config.count("n_layer"),
        heads=heads,
        kv_heads=heads,
        head_size=config.head_size("n_embd", "n_head"),
        ffn=config.count("n_inner", 4 * hidden),
        vocab=config.count("vocab_size"),
        positions=config.count("n_positions"),
        tied=config.flag("tie_word_embeddings", True),
        dropout=any(config.data.get(key, 0.1) for key in ("attn_pdrop", "resid_pdrop")),
        gated=False,
        norm="layer",
        biases=True,
    )


_READERS: dict[str, Callable[[Config], Model]] = {
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "gpt_oss": _gpt_oss,
    "nemotron": _nemotron,
    "nemotron_h": _nemotron_h,
    "gpt_neox": _neox,
    "falcon": _falcon,
    "gpt2": _gpt2,
}


def _lacks(data: Mapping[str, Any], family: str) -> list[str]:
    return [key for key in NEEDS[family] if data.get(key) is None]


def _family(data: Mapping[str, Any], where: str | None) -> str:
    """`model_type`, or the family whose keys are there; a family that asks for more keys comes first."""
    named = data.get("model_type")
    if named is not None:
        if isinstance(named, str) and named in NEEDS:
            return str(named)
        wants = [key for key in _LLAMA if data.get(key) is None]
        missing = f"; as a Llama model it lacks {', '.join(wants)}" if wants else ""
        raise ConfigError(
            f"got {named!r}, expected one of {', '.join(NEEDS)}{missing}{did_you_mean(str(named), NEEDS)}",
            file=where,
            key="model_type",
        )
    for family in ("deepseek_v3", "qwen2_moe", "qwen3_moe", "mixtral", "llama", "gpt2"):
        if not _lacks(data, family):
            return family
    nearest, other = sorted(("llama", "gpt2"), key=lambda family: len(_lacks(data, family)))
    dialect = {"llama": "Llama", "gpt2": "GPT-2"}
    raise ConfigError(
        f"expected a model's config.json; as a {dialect[nearest]} model it lacks "
        f"{', '.join(_lacks(data, nearest))} (as a {dialect[other]} model, {', '.join(_lacks(data, other))})",
        file=where,
    )


def read_model(data: object, *, name: str, where: str | None = None) -> Model:
    """A model from the content of a `config.json`. Raises ConfigError naming the keys it lacks."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"got {type(data).__name__}, expected the keys of a model's config.json", file=where)
    data = _language_model(data)
    family = _family(data, where)
    lacks = _lacks(data, family)
    if lacks:
        raise ConfigError(f"as a {family} model it lacks {', '.join(lacks)}", file=where)
    config = Config(data, name, family, where)
    model = _READERS.get(family, _llama_like)(config)
    return replace(model, longest=_longest(config), weights=published_weights(data))


def _longest(config: Config) -> int:
    """Return the positions that a model takes, as vLLM derives them of its rotary scaling; 0 where it tells none.

    `_get_and_verify_max_len`: a factor counts, but not of scalings whose positions have it already.
    """
    most = config.optional("max_position_embeddings")
    scaling = config.data.get("rope_parameters") or config.data.get("rope_scaling")
    if not isinstance(scaling, Mapping) or not most or "gemma3" in str(config.data.get("model_type")):
        return most
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor", 1)
    if kind not in ("linear", "dynamic", "yarn", "ntk"):
        return most
    if kind == "yarn":
        most = scaling.get("original_max_position_embeddings") or most
    if not all(isinstance(one, int | float) and one > 0 for one in (most, factor)):
        raise config.error("rope_scaling", f"got {dict(scaling)!r}, expected numbers above 0")
    return int(most * factor)


def _language_model(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of the language model where a config has other parts beside it."""
    part = data.get("text_config")
    if not isinstance(part, Mapping) or "hidden_size" in data:
        return data
    return {key: data[key] for key in ("quantization_config", "_name") if key in data} | dict(part)


def load_model(path: Path) -> Model:
    """A model from a `config.json`. Raises ConfigError."""
    text = read_text(path)
    try:
        data = read_json(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"expected JSON: {error.msg}", file=path, line=error.lineno) from None
    except ValueError as error:
        raise ConfigError(f"expected a model's config.json: {error}", file=path) from None
    name = data.get("_name") if isinstance(data, dict) and isinstance(data.get("_name"), str) else None
    return read_model(
        data, name=name or (path.parent.name if path.name == "config.json" else path.stem), where=str(path)
    )
