"""torchtitan's TOML as a training section."""

from __future__ import annotations

from typing import Any

from fabrictwin.base.errors import quoted
from fabrictwin.interchange.frameworks.settings import Settings

# hidden, layers, heads, key-value heads, width of the MLP, tokens: torchtitan's llama3 flavors
LLAMA_3 = {
    "debugmodel": (256, 6, 16, 16, 768, 2048),
    "8B": (4096, 32, 32, 8, 14336, 128256),
    "70B": (8192, 80, 64, 8, 28672, 128256),
    "405B": (16384, 126, 128, 8, 53248, 128256),
}
RECIPES = ("quantize.linear.float8.recipe_name", "float8.recipe_name")
SCHEDULES = {"1f1b": ("1f1b", 1), "gpipe": ("gpipe", 1), "interleaved1f1b": ("1f1b", 2)}


def training_of(given: Settings, *, model: bool) -> dict[str, Any]:
    """The training section, without its model where `model` says that one is given. Raises ConfigError."""
    section: dict[str, Any] = {} if model else {"model": _model(given)}
    parallel = _parallel(given, None if model else section["model"]["num_hidden_layers"])
    tp = parallel.get("tp", 1)
    section |= {"parallel": parallel, **_batch(given, parallel.get("pp", 1))}
    section["sequence"] = given.count("training.seq_len", 2048)
    if given.word("training.mixed_precision_param", {"bfloat16": "bf16", "float32": "fp32"}, "bf16") == "fp32":
        raise given.error("training.mixed_precision_param", "got float32, expected bfloat16: fp32 is not modelled")
    section["precision"] = "bf16"
    if "float8" in str(given.get("model.converters") or ""):
        section |= {"precision": "fp8", "scaling": _float8_scaling(given)}
    section |= _recompute(given) | _sharding(given, parallel)
    if tp > 1:
        section["sequence_parallel"] = True
    compiled = _compiled(given)
    if "model" not in compiled:
        section["kernels"] = "eager"
    section |= {"loss": "compiled" if "loss" in compiled else "eager", "software": "torchtitan"}
    overlap: dict[str, Any] = {}
    if tp > 1 and "model" in compiled and given.flag("parallelism.enable_async_tensor_parallel"):
        overlap["tensor"] = "full"
    if section["sharding"]["strategy"] == "none":
        overlap["gradients"] = True  # DistributedDataParallel
        if given.flag("optimizer.early_step_in_backward"):
            overlap["optimizer"] = True
    if overlap:
        section["overlap"] = overlap
    return section


def _float8_scaling(given: Settings) -> str:
    """Return how torchao scales, by the recipe's name under either of torchtitan's sections."""
    known = {"tensorwise": "current", "rowwise": "rowwise"}
    section = next((name for name in RECIPES if name in given.found), RECIPES[0])
    return given.word(section, known, "current")


def _compiled(given: Settings) -> list[str]:
    """Return what torch.compile compiles, of model and loss."""
    chosen = given.get("compile.components")
    on = given.flag("compile.enable") or given.flag("training.compile")
    if chosen is not None and not isinstance(chosen, list):
        raise given.error("compile.components", f"got {quoted(chosen)}, expected a list of model, loss")
    return [] if not on else ["model", "loss"] if chosen is None else list(map(str, chosen))


def _model(given: Settings) -> dict[str, Any]:
    name, flavor = str(given.get("model.name") or "llama3"), str(given.get("model.flavor") or "debugmodel")
    if name != "llama3" or flavor not in LLAMA_3:
        raise given.error(
            "model.flavor" if name == "llama3" else "model.name",
            f"got {quoted(name)} {quoted(flavor)}, expected llama3 {' or '.join(LLAMA_3)}, or --model CONFIG.json",
        )
    hidden, layers, heads, groups, width, tokens = LLAMA_3[flavor]
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": tokens,
        "hidden_act": "silu",
    }


def _parallel(given: Settings, layers: int | None) -> dict[str, Any]:
    sizes = {
        name: given.count(f"parallelism.{word}_parallel_degree", 1)
        for name, word in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"), ("ep", "expert"))
    }
    parallel: dict[str, Any] = {name: size for name, size in sizes.items() if size > 1}
    if sizes["cp"] > 1:
        way = given.word(
            "parallelism.context_parallel_rotate_method",
            {"allgather": "pytorch", "alltoall": "pytorch"},  # which bytes go, and what is merged, is the same
            "pytorch",
        )
        parallel["context"] = way
    if sizes["pp"] > 1:
        name = "parallelism.pipeline_parallel_schedule"
        written = str(given.get(name) or "1F1B")
        if written.lower() not in SCHEDULES:
            raise given.error(name, f"got {quoted(written)}, expected 1F1B, GPipe or Interleaved1F1B")
        schedule, chunks = SCHEDULES[written.lower()]
        each = given.optional("parallelism.pipeline_parallel_layers_per_stage")
        if each and layers and chunks > 1:
            chunks = -(-layers // (each * sizes["pp"]))
        if schedule != "1f1b":
            parallel["schedule"] = schedule
        if chunks > 1:
            parallel["vp"] = chunks
    return parallel


def _batch(given: Settings, stages: int) -> dict[str, Any]:
    old = "training.batch_size"  # until local_batch_size took its place
    local = given.count("training.local_batch_size", given.optional(old) or 8)
    size = given.count("parallelism.pipeline_parallel_microbatch_size", 1) if stages > 1 else local
    if local % size:
        raise given.error(
            "parallelism.pipeline_parallel_microbatch_size", f"got {size}, expected a divisor of {local}"
        )
    whole = given.get("training.global_batch_size")
    if whole not in (None, -1):
        return {"micro_batch_size": size, "global_batch": given.count("training.global_batch_size")}
    return {"micro_batch_size": size, "micro_batches": local // size}


def _sharding(given: Settings, parallel: dict[str, Any]) -> dict[str, Any]:
    copies = given.count("parallelism.data_parallel_replicate_degree", 1)
    shard = given.get("parallelism.data_parallel_shard_degree")
    rest = shard in (None, -1)
    ranks = 0 if rest else given.count("parallelism.data_parallel_shard_degree")
    if rest and copies > 1:
        raise given.error(
            "parallelism.data_parallel_shard_degree",
            "got -1 beside copies, expected the number of ranks that shard",
        )
    if not rest:
        parallel["dp"] = copies * ranks
    if ranks == 1 and parallel.get("cp", 1) == 1:
        return {"sharding": {"strategy": "none"}}
    sharding: dict[str, Any] = {"strategy": "fsdp"}
    if copies > 1:
        sharding["ranks"] = ranks
    kept = given.word(
        "parallelism.fsdp_reshard_after_forward",
        {"default": "default", "always": "always", "never": "never"},
        "default",
    )
    if kept == "never" or (kept == "default" and parallel.get("pp", 1) > 1):
        sharding["reshard_after_forward"] = False
    return {"sharding": sharding}


def _recompute(given: Settings) -> dict[str, Any]:
    mode = given.word(
        "activation_checkpoint.mode",
        {"none": "none", "selective": "selective", "full": "full", "memory_budget": "memory_budget"},
        "selective",
    )
    early = "activation_checkpoint.early_stop"
    if mode == "full":
        if early not in given.found:
            given.assumed.append(f"full recomputation ends early, as PyTorch's does by default: no {early}")
        return {"recompute": mode, "recompute_ends_early": given.flag(early, True)}
    if mode == "none":
        return {}
    option = str(given.get("activation_checkpoint.selective_ac_option") or "2")
    if mode == "selective" and option == "op":
        return {"recompute": "operations"}
    what = f"{mode} {option}" if mode == "selective" else mode
    given.assumed.append(f"activation_checkpoint {what} is not modelled: nothing is recomputed")
    return {}
