"""Megatron-LM's arguments as a training section; NeMo's keys come here by Megatron's names."""

from __future__ import annotations

import re
from typing import Any

from fabrictwin.base.errors import quoted
from fabrictwin.base.whole_numbers import whole_or_none
from fabrictwin.interchange.frameworks.settings import Setting, Settings
from fabrictwin.interchange.frameworks.shell_arguments import Word

# options that take no value (megatron/training/arguments.py: store_true and its kin), among those read here;
# any other option without a value behind it is one as well
FLAGS = frozenset(
    (
        "accumulate_allreduce_grads_in_fp32",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "add_qkv_bias",
        "bf16",
        "cross_entropy_loss_fusion",
        "disable_bias_linear",
        "enable_cuda_graph",
        "first_last_layers_bf16",
        "fp16",
        "grad_reduce_in_bf16",
        "group_query_attention",
        "moe_router_enable_expert_bias",
        "multi_latent_attention",
        "optimizer_cpu_offload",
        "overlap_grad_reduce",
        "overlap_moe_expert_parallel_comm",
        "overlap_param_gather",
        "qk_layernorm",
        "recompute_activations",
        "sequence_parallel",
        "squared_relu",
        "swiglu",
        "tp_comm_overlap",
        "untie_embeddings_and_output_weights",
        "use_distributed_optimizer",
        "use_megatron_fsdp",
        "use_custom_fsdp",
        "use_rotary_position_embeddings",
        "use_tp_pp_dp_mapping",
        "use_torch_fsdp2",
        "no_async_tensor_model_parallel_allreduce",
        "no_overlap_p2p_communication",
    )
)
VOCABULARIES = {"gpt2bpetokenizer": 50257, "llama2tokenizer": 32000}
MODULES = {
    "layernorm": "norms",
    "moe": "experts",
    "moe_act": "expert-activations",
    "mla_up_proj": "latent-up",
}


def settings_of(words: list[Word], file: str | None) -> Settings:
    """Settings of `--name value` words. A later one replaces an earlier one, as argparse has it."""
    found: dict[str, Setting] = {}
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not word.text.startswith("--") or len(word.text) < 4:
            continue
        key, assigned, given = word.text.partition("=")
        name = key[2:].replace("-", "_")
        values = [given] if assigned else []
        while not assigned and name not in FLAGS and i < len(words) and not words[i].text.startswith("--"):
            values.append(words[i].text)
            i += 1
        value: Any = True if not values else values[0] if len(values) == 1 else values
        found[name] = Setting(value, key, word.line)
    return Settings(file, found)


def training_of(given: Settings, *, software: str, vocabulary: int | None, model: bool) -> dict[str, Any]:
    """The training section, without its model where `model` says that one is given. Raises ConfigError."""
    section: dict[str, Any] = {} if model else {"model": _model(given, vocabulary)}
    parallel = _parallel(given)
    section["parallel"] = parallel
    section |= _batch(given)
    section["sequence"] = given.count("seq_length")
    section |= _precision(given) | _recompute(given)
    tp = parallel.get("tp", 1)
    if given.flag("sequence_parallel") and tp > 1:
        section["sequence_parallel"] = True
    if str(given.get("attention_backend")).lower() in ("unfused", "local"):
        section["attention"] = "materialised"
    padded = given.optional("make_vocab_size_divisible_by")
    if padded not in (None, 128):
        section["pad_vocabulary"] = padded
    if predicted := given.optional("mtp_num_layers"):
        section["prediction_layers"] = predicted
    section |= _sharding(given, tp, bool(section.get("sequence_parallel")), parallel)
    if loss := _loss(given):
        section["loss"] = loss
    return section | {"software": software}


def _parallel(given: Settings) -> dict[str, Any]:
    sizes = {
        "tp": given.count("tensor_model_parallel_size", 1),
        "pp": given.count("pipeline_model_parallel_size", 1),
        "cp": given.count("context_parallel_size", 1),
        "ep": given.count("expert_model_parallel_size", 1),
        "vp": _chunks(given),
    }
    parallel: dict[str, Any] = {name: size for name, size in sizes.items() if size > 1}
    if expert_tp := given.optional("expert_tensor_parallel_size"):
        parallel["expert_tp"] = expert_tp
    if sizes["cp"] > 1:
        known = {"p2p": "ring", "all_gather": "all-gather"}
        if (way := given.word("cp_comm_type", known, "ring")) != "ring":
            parallel["context"] = way
    if given.flag("use_tp_pp_dp_mapping"):
        parallel["order"] = "tp-cp-pp-dp"
    ends = [given.flag(f"account_for_{end}_in_pipeline_split") for end in ("embedding", "loss")]
    if all(ends):
        parallel["ends_as_layers"] = True
    elif any(ends):
        raise given.error(
            f"account_for_{'embedding' if ends[0] else 'loss'}_in_pipeline_split",
            "got one of embedding and loss, expected both or none",
        )
    return parallel


def _chunks(given: Settings) -> int:
    """Chunks of layers of each pipeline stage."""
    per_rank = given.optional("num_virtual_stages_per_pipeline_rank")
    each = given.optional("num_layers_per_virtual_pipeline_stage")
    if per_rank or not each:
        return per_rank or 1
    layers, stages = given.count("num_layers"), given.count("pipeline_model_parallel_size", 1)
    if layers % (stages * each):
        raise given.error(
            "num_layers_per_virtual_pipeline_stage",
            f"got {each}, expected one that divides {layers} layers over {stages} stages",
        )
    return layers // (stages * each)


def _batch(given: Settings) -> dict[str, Any]:
    size = given.count("micro_batch_size")
    whole = given.optional("global_batch_size")
    batch = {"micro_batches": 1} if whole is None else {"global_batch": whole}
    return {"micro_batch_size": size, **batch}


def _precision(given: Settings) -> dict[str, Any]:
    fp16, bf16 = given.flag("fp16"), given.flag("bf16")
    if not (fp16 or bf16):
        raise given.error("bf16", "got neither bf16 nor fp16, expected one: fp32 is not modelled")
    section: dict[str, Any] = {"precision": "bf16" if bf16 else "fp16"}
    if given.get("fp4_format") not in (None, False):
        section["precision"] = "fp4"
    elif given.get("fp8_format") not in (None, False):
        section["precision"] = "fp8"
        known = {"delayed": "delayed", "tensorwise": "current", "blockwise": "block", "mxfp8": "block"}
        if (scaling := given.word("fp8_recipe", known, "delayed")) != "delayed":
            section["scaling"] = scaling
        if given.flag("first_last_layers_bf16"):
            first = given.count("num_layers_at_start_in_bf16", 1, least=0)
            last = given.count("num_layers_at_end_in_bf16", 1, least=0)
            section["wide_layers"] = {"first": first, "last": last}
    wide = not given.flag("grad_reduce_in_bf16") if bf16 else given.flag("accumulate_allreduce_grads_in_fp32")
    if not wide:
        section["gradient_precision"] = "same"
    return section


def _recompute(given: Settings) -> dict[str, Any]:
    """Activations that backward computes again; parts of a stage's layers are not modelled."""
    way = given.word("recompute_granularity", {"full": "full", "selective": "selective"}, "none")
    if given.flag("recompute_activations"):
        way = "selective"
    if way == "full" and str(given.get("recompute_method")) == "block":
        raise given.error("recompute_method", "got block, expected uniform: all layers are alike in the twin")
    if way != "selective":
        return {} if way == "none" else {"recompute": way}
    modules = given.get("recompute_modules")
    chosen = ["core_attn"] if modules is None else modules if isinstance(modules, list) else [modules]
    for one in chosen:
        if one != "core_attn" and one not in MODULES:
            raise given.error("recompute_modules", f"got {quoted(one)}, expected core_attn, {', '.join(MODULES)}")
    section: dict[str, Any] = {"recompute": "selective"} if "core_attn" in chosen else {}
    if others := [MODULES[one] for one in chosen if one in MODULES]:
        section["recompute_modules"] = others
    return section


def _loss(given: Settings) -> str | None:
    """Return kernels of the loss where they are not compiled, which is what published steps were compared with."""
    way = given.word("cross_entropy_fusion_impl", {"native": "native", "te": "te", "linear": "linear"}, "native")
    if not given.flag("cross_entropy_loss_fusion") or way == "native":
        return None
    if way == "linear":
        given.assumed.append("the loss is fused, its logits are written: cross_entropy_fusion_impl is linear")
    return "fused"


def _sharding(given: Settings, tp: int, sequence_parallel: bool, parallel: dict[str, Any]) -> dict[str, Any]:
    section: dict[str, Any] = {}
    strategy = "zero-1" if given.flag("use_distributed_optimizer") else "none"
    if given.flag("use_megatron_fsdp") or given.flag("use_custom_fsdp"):
        known = {"no_shard": "none", "optim": "zero-1", "optim_grads": "zero-2", "optim_grads_params": "zero-3"}
        strategy = given.word("data_parallel_sharding_strategy", known, "none")
    if given.flag("use_torch_fsdp2"):
        strategy = "fsdp"
    if strategy != "none":
        section["sharding"] = strategy
    overlap: dict[str, Any] = {}
    if given.flag("overlap_grad_reduce") and strategy in ("none", "zero-1"):
        overlap["gradients"] = True
    if given.flag("overlap_param_gather") and strategy in ("zero-1", "zero-2"):
        overlap["parameters"] = True
    if bucket := given.optional("ddp_bucket_size"):
        wide = 2 if given.flag("grad_reduce_in_bf16") else 4
        overlap["bucket"] = f"{bucket * wide} B"
    if tp > 1:
        whole = given.flag("tp_comm_overlap") and sequence_parallel
        alone = given.flag("no_async_tensor_model_parallel_allreduce")
        if whole or not alone:
            overlap["tensor"] = "full" if whole else "gradients"
    # without chunks Megatron's schedule waits for each send and receive
    if parallel.get("pp", 1) > 1 and (parallel.get("vp", 1) == 1 or given.flag("no_overlap_p2p_communication")):
        overlap["pipeline"] = False
    if given.flag("overlap_moe_expert_parallel_comm"):
        overlap["experts"] = True
    if overlap:
        section["overlap"] = overlap
    routing: dict[str, Any] = {}
    if (factor := given.share("moe_expert_capacity_factor", 0.0)) > 0:
        routing["capacity_factor"] = factor
    kinds = {"alltoall": "all-to-all", "allgather": "all-gather", "flex": "flex", "alltoall_seq": "all-to-all"}
    dispatcher = given.word("moe_token_dispatcher_type", kinds, "all-to-all")
    if parallel.get("ep", 1) > 1 and dispatcher != "all-to-all":
        if dispatcher == "all-gather":
            raise given.error("moe_token_dispatcher_type", "got allgather, expected alltoall or flex")
        routing["dispatcher"] = dispatcher
    if routing:
        section["routing"] = routing
    if given.flag("enable_cuda_graph"):
        section["host"] = {"graphs": True}
    return section


def _model(given: Settings, vocabulary: int | None) -> dict[str, Any]:
    """The model as the keys of a `config.json`, of the family that computes the same."""
    hidden, heads = given.count("hidden_size"), given.count("num_attention_heads")
    gated, squared = given.flag("swiglu"), given.flag("squared_relu")
    biases = not given.flag("disable_bias_linear")
    shape: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": given.optional("ffn_hidden_size")
        or (hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden),
        "num_hidden_layers": given.count("num_layers"),
        "num_attention_heads": heads,
        "vocab_size": _vocabulary(given, vocabulary),
        "tie_word_embeddings": not given.flag("untie_embeddings_and_output_weights"),
    }
    grouped = given.flag("group_query_attention")
    queries = given.optional("num_query_groups")
    shape["num_key_value_heads"] = (queries or 1) if grouped else heads
    if width := given.optional("kv_channels"):
        shape["head_dim"] = width
    norm = given.word("normalization", {"rmsnorm": "rms", "layernorm": "layer", "layernorm1p": "layer"}, "layer")
    rotary = given.flag("use_rotary_position_embeddings") or given.word(
        "position_embedding_type",
        {"learned_absolute": "", "rope": "rope", "yarn": "rope", "mrope": "rope", "none": ""},
        "",
    )
    if given.optional("num_experts"):
        _check(given, gated, "num_experts", "swiglu", "experts without gates are not modelled")
        return shape | _experts(given, shape, norm)
    if gated:
        if not rotary:
            given.assumed.append(
                "positions are rotary, as gated models have them: position_embedding_type is not rope"
            )
        return shape | _gated(given, norm, biases=biases)
    if squared:
        if biases or not rotary:
            raise given.error("squared_relu", "expected it with disable_bias_linear and rotary positions")
        return {"model_type": "nemotron", "hidden_act": "relu2", **shape}
    if shape["num_key_value_heads"] != heads or not biases:
        name = "num_query_groups" if biases else "disable_bias_linear"
        raise given.error(
            name, "expected it with swiglu or squared_relu: of GELU, GPT-2 and GPT-NeoX are modelled"
        )
    if norm == "rms":
        given.assumed.append("RMS norms are counted as layer norms, as GPT-2 and GPT-NeoX have them")
    drops = {name: given.share(name, 0.1) for name in ("attention_dropout", "hidden_dropout")}
    if rotary:
        return {"model_type": "gpt_neox", "hidden_act": "gelu", "use_parallel_residual": False, **shape, **drops}
    return {
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": shape["num_hidden_layers"],
        "n_head": heads,
        "n_inner": shape["intermediate_size"],
        "n_positions": given.count("max_position_embeddings"),
        "vocab_size": shape["vocab_size"],
        "tie_word_embeddings": shape["tie_word_embeddings"],
        "attn_pdrop": drops["attention_dropout"],
        "resid_pdrop": drops["hidden_dropout"],
    }


def _check(given: Settings, true: bool, name: str, needs: str, why: str) -> None:
    if not true:
        raise given.error(name, f"expected it with {needs}: {why}")


def _vocabulary(given: Settings, vocabulary: int | None) -> int:
    found = given.optional("vocab_size")
    known = VOCABULARIES.get(str(given.get("tokenizer_type")).lower())
    if vocabulary or found or known:
        return vocabulary or found or known or 1
    raise given.error("vocab_size", "got nothing, expected tokens of the vocabulary here or as --vocabulary")


def _gated(given: Settings, norm: str, *, biases: bool) -> dict[str, Any]:
    """Llama, Qwen2 (biases on Q, K, V) or Qwen3 (norms on Q and K)."""
    if norm == "layer":
        given.assumed.append("layer norms are counted as RMS norms, as gated models have them")
    query, norms = given.flag("add_qkv_bias"), given.flag("qk_layernorm")
    if biases:
        given.assumed.append("biases of linear layers are not counted: disable_bias_linear is not set")
    if any(given.share(name, 0.1) for name in ("attention_dropout", "hidden_dropout")):
        given.assumed.append("dropout is not counted in gated models; Megatron's default is 0.1")
    return {"model_type": "qwen3" if norms else "qwen2" if query else "llama", "hidden_act": "silu"}


def _experts(given: Settings, shape: dict[str, Any], norm: str) -> dict[str, Any]:
    count, top = given.count("num_experts"), given.count("moe_router_topk", 2)
    width = given.optional("moe_ffn_hidden_size") or shape["intermediate_size"]
    shared = given.optional("moe_shared_expert_intermediate_size") or 0
    first, every = _layers_with_experts(given, shape["num_hidden_layers"])
    common = {"num_experts_per_tok": top, "hidden_act": "silu"}
    if norm == "layer":
        given.assumed.append("layer norms are counted as RMS norms, as gated models have them")
    if given.flag("multi_latent_attention"):
        _check(given, shared % width == 0, "moe_shared_expert_intermediate_size", "a multiple of an expert's", "")
        shape.pop("num_key_value_heads")
        shape.pop("head_dim", None)
        return {
            "model_type": "deepseek_v3",
            **common,
            "n_routed_experts": count,
            "moe_intermediate_size": width,
            "n_shared_experts": shared // width,
            "first_k_dense_replace": first,
            "moe_layer_freq": every,
            "q_lora_rank": given.optional("q_lora_rank"),
            "kv_lora_rank": given.count("kv_lora_rank", 32),
            "qk_nope_head_dim": given.count("qk_head_dim", 128),
            "qk_rope_head_dim": given.count("qk_pos_emb_head_dim", 64),
            "v_head_dim": given.count("v_head_dim", 128),
            "topk_method": "noaux_tc" if given.flag("moe_router_enable_expert_bias") else "greedy",
        }
    if first:
        raise given.error("moe_layer_freq", "got dense layers first, expected it with multi_latent_attention")
    sizes = {"num_experts": count, "moe_intermediate_size": width, "decoder_sparse_step": every}
    if given.flag("qk_layernorm"):
        _check(given, not shared, "moe_shared_expert_intermediate_size", "qk_layernorm unset", "Qwen3 has none")
        return {"model_type": "qwen3_moe", **common, **sizes}
    if shared:
        given.assumed.append("the shared expert's gate and biases on Q, K and V are counted, as Qwen2 has them")
        return {"model_type": "qwen2_moe", **common, **sizes, "shared_expert_intermediate_size": shared}
    if every > 1:
        raise given.error("moe_layer_freq", f"got {every}, expected 1 without qk_layernorm or a shared expert")
    return {"model_type": "mixtral", **common, "num_local_experts": count, "intermediate_size": width}


def _layers_with_experts(given: Settings, layers: int) -> tuple[int, int]:
    """Dense layers first, and every how many one has experts: of a number or a pattern like ([0]*3+[1]*58)."""
    value = given.get("moe_layer_freq")
    if value is None or whole_or_none(str(value), least=1, most=layers) is not None:
        return 0, 1 if value is None else int(value)
    text = re.sub(r"\s", "", str(value)).replace("(", "").replace(")", "")
    ones = re.fullmatch(r"(?:\[0\]\*(\d{1,6})\+)?\[1\]\*(\d{1,6})", text)
    if ones is None or int(ones[1] or 0) + int(ones[2]) != layers:
        raise given.error(
            "moe_layer_freq", f"got {quoted(value)}, expected N or ([0]*DENSE+[1]*REST) of {layers} layers"
        )
    return int(ones[1] or 0), 1
