"""DeepSpeed's JSON as a training section: batch, precision, ZeRO. The model is the program's."""

from __future__ import annotations

from typing import Any

from fabrictwin.interchange.frameworks.settings import Settings

STAGES = ("none", "zero-1", "zero-2", "zero-3")
BUCKET = 500_000_000  # elements, DeepSpeed's default
FOUR_BYTES = ("fp32", "float32", "float")


def training_of(given: Settings) -> dict[str, Any]:
    """The training section without its model. Raises ConfigError."""
    precision = _precision(given)
    reduced = str(given.get("communication_data_type") or given.get("data_types.grad_accum_dtype")).lower()
    same = reduced not in FOUR_BYTES
    section: dict[str, Any] = {**_batch(given), "precision": precision}
    if tp := given.optional("tensor_parallel.autotp_size"):
        section["parallel"] = {"tp": tp}
    if same:
        section["gradient_precision"] = "same"
    stage = given.count("zero_optimization.stage", 0, least=0)
    if stage >= len(STAGES):
        raise given.error("zero_optimization.stage", f"got {stage}, expected 0 to 3")
    if stage:
        section["sharding"] = {"strategy": STAGES[stage]}
        if stage > 1 and (group := _group(given)):
            section["sharding"]["ranks"] = group
    overlap: dict[str, Any] = {}
    # stage 0 reduces behind backward; stages 2 and 3 reduce in buckets beside it, as the twin's always do
    if stage == 1 and given.flag("zero_optimization.overlap_comm", False):
        overlap["gradients"] = True
    if stage:
        bucket = given.count("zero_optimization.reduce_bucket_size", BUCKET)
        overlap["bucket"] = f"{bucket * (2 if same else 4)} B"
    if overlap:
        section["overlap"] = overlap
    return section


def _group(given: Settings) -> int | None:
    """Ranks of MiCS that shard among themselves; -1 is none."""
    value = given.get("zero_optimization.mics_shard_size")
    return None if value in (None, -1) else given.count("zero_optimization.mics_shard_size")


def _batch(given: Settings) -> dict[str, Any]:
    size = given.optional("train_micro_batch_size_per_gpu")
    whole, steps = given.optional("train_batch_size"), given.optional("gradient_accumulation_steps")
    if size is None:
        raise given.error(
            "train_micro_batch_size_per_gpu",
            "got nothing, expected samples of a GPU's micro-batch: the number of GPUs is the cluster's",
        )
    if whole is not None:
        return {"micro_batch_size": size, "global_batch": whole}
    return {"micro_batch_size": size, "micro_batches": steps or 1}


def _precision(given: Settings) -> str:
    for name in ("bf16", "fp16"):
        key = f"{name}.enabled"
        if key in given.found and given.found[key].value == "auto":
            given.used.add(key)
            given.assumed.append(f"{key} is auto: bf16 is taken")
            return "bf16"
        if given.flag(key):
            return name
    if given.flag("bfloat16.enabled"):  # the name of older releases
        return "bf16"
    raise given.error("bf16.enabled", "got neither bf16 nor fp16, expected one: fp32 is not modelled")
