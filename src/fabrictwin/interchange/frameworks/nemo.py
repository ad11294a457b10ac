"""NeMo's YAML by Megatron's names: NeMo 1's `model` section, NeMo 2's exported recipes, Megatron Bridge's."""

from __future__ import annotations

import re
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.interchange.frameworks.settings import Setting, Settings

# where the sections of the three write Megatron's arguments; the first that has a name wins
PLACES = ("model.config", "model", "trainer.strategy", "trainer.strategy.ddp", "ddp", "data", "model.data",
          "train", "dataset", "optimizer", "mixed_precision", "trainer.plugins", "comm_overlap",
          "model.optim", "optim")  # fmt: skip
RENAMED = {
    "encoder_seq_length": "seq_length",
    "sequence_length": "seq_length",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "moe_grouped_topk": "moe_router_topk",
    "num_moe_experts": "num_experts",
    "ub_tp_comm_overlap": "tp_comm_overlap",
    "bucket_size": "ddp_bucket_size",
    "add_qkv_bias": "add_qkv_bias",
    "qkv_bias": "add_qkv_bias",
}
_REFERENCE = re.compile(r"\$\{(\.?)([\w.]+)\}")


def is_bridge(found: dict[str, Setting]) -> bool:
    """Return true for Megatron Bridge's configuration, which has sections of its own where NeMo has a trainer."""
    sections = {key.partition(".")[0] for key in found}
    return "trainer" not in sections and bool(
        sections & {"train", "ddp", "dataset", "mixed_precision", "comm_overlap"}
    )


def settings_of(found: dict[str, Setting], file: str | None) -> Settings:
    """Settings by Megatron's names. Raises ConfigError for references that lead nowhere."""
    given = Settings(file, {})
    for place in PLACES:
        for dotted, one in found.items():
            head, _, name = dotted.rpartition(".")
            if head == place:
                resolved = Setting(_resolved(one, found, file), one.key, one.line)
                given.found.setdefault(RENAMED.get(name, name), resolved)
    _turn(given)
    _precision(given, found)
    for one in found.values():  # the rest is known to have no effect
        if one.key not in {other.key for other in given.found.values()}:
            given.found[f"of {one.key}"] = one
    return given


def _resolved(one: Setting, found: dict[str, Setting], file: str | None) -> Any:
    """A value with `${model.other}` or `${.sibling}` followed."""
    seen = {one.key}
    now = one
    while isinstance(now.value, str) and (match := _REFERENCE.fullmatch(now.value)):
        head = now.key.rpartition(".")[0] + "." if match[1] else ""
        target = found.get(head + match[2])
        if target is None or target.key in seen:
            raise ConfigError(f"got {now.value}, which names no other key", file=file, line=one.line, key=one.key)
        seen.add(target.key)
        now = target
    return now.value


def _turn(given: Settings) -> None:
    """Keys that say the same the other way round, or several of Megatron's at once."""

    def put(name: str, source: str, value: Any) -> None:
        one = given.found[source]
        given.found[name] = Setting(value, one.key, one.line)

    for source, name in (
        ("bias", "disable_bias_linear"),
        ("add_bias_linear", "disable_bias_linear"),
        ("share_embeddings_and_output_weights", "untie_embeddings_and_output_weights"),
    ):
        if source in given.found:
            put(name, source, not given.flag(source))
    if "untie_embeddings_and_output_weights" not in given.found:
        given.found["untie_embeddings_and_output_weights"] = Setting(False, "share_embeddings_and_output_weights")
    if "activation" in given.found:
        activation = str(given.get("activation"))
        put("swiglu", "activation", activation in ("swiglu", "fast-swiglu"))
        put("squared_relu", "activation", activation == "squared-relu")
        if activation not in ("swiglu", "fast-swiglu", "squared-relu", "gelu"):
            raise given.error(
                "activation", f"got {activation}, expected gelu, swiglu, fast-swiglu or squared-relu"
            )
    elif "gated_linear_unit" in given.found:
        put("swiglu", "gated_linear_unit", given.flag("gated_linear_unit"))
    if given.optional("num_query_groups"):
        put("group_query_attention", "num_query_groups", True)
    chunks = given.optional("virtual_pipeline_model_parallel_size")
    if chunks:
        put("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size", chunks)
        if "overlap_p2p_comm" in given.found:
            put("no_overlap_p2p_communication", "overlap_p2p_comm", not given.flag("overlap_p2p_comm"))
    if given.get("name") in ("distributed_fused_adam", "mcore_distributed_optim"):
        put("use_distributed_optimizer", "name", True)


def _precision(given: Settings, found: dict[str, Setting]) -> None:
    """`trainer.precision`, and the FP8 switches of NeMo 1."""
    place = next((key for key in ("trainer.precision", "trainer.plugins.precision") if key in found), None)
    if place:
        one = found[place]
        text = str(one.value).lower()
        for name in ("bf16", "fp16"):
            on = text.startswith("bf16") if name == "bf16" else text.startswith(("16", "fp16"))
            given.found.setdefault(name, Setting(on, one.key, one.line))
    for name in ("fp8_e4m3", "fp8_hybrid", "fp8"):
        one_ = given.found.get(name)
        if one_ is None:
            continue
        if isinstance(one_.value, str):
            given.found["fp8_format"] = one_
        elif given.flag(name):
            given.found["fp8_format"] = Setting("hybrid", one_.key, one_.line)
