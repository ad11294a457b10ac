"""From a published row to a spec: one cluster, one training step, and what had to be assumed.

A layout that the twin has no key for yet is not approximated: the row then lists what is missing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.nested import laid_over
from fabrictwin.base.records import record
from fabrictwin.cluster.spec.spec import Spec, read_spec
from fabrictwin.validation.published_data import Hardware, Measurements, Row, Set
from fabrictwin.workload.job.workload_section import Training, all_overlap

PRECISION = {"mxfp8": "fp8", "nvfp4": "fp4"}  # the tensor-core rate that a scaled format computes at


@record
class Case:
    """A row as a spec, or why there is none."""

    row: Row
    spec: Spec | None
    assumptions: tuple[str, ...]
    missing: tuple[str, ...] = ()  # features that are not modelled yet
    unknown: str = ""  # what the source does not say, without which there is nothing to predict
    hardware: str = ""  # what errors are grouped by
    framework: str = ""
    calibrates: bool = False  # a constant was fitted to it, so that what the twin says of it is no prediction

    @property
    def named(self) -> str:
        """All that a row is found by."""
        return f"{self.row.set}: {self.row.row} {self.row.model} {self.hardware}"

    @property
    def parallelism(self) -> str:
        """`TP PP CP`, `FSDP`, or `DP` alone."""
        row = self.row
        parts = [name for name in ("tp", "pp", "cp", "ep") if (getattr(row, name) or 1) > 1]
        parts += ["fsdp"] if row.fsdp else []
        return " ".join(parts).upper() or "DP"


def cases(data: Measurements) -> list[Case]:
    """Every row, in order; none is left out."""
    return [_case(row, data) for row in data.rows]


def _case(row: Row, data: Measurements) -> Case:
    found, hardware = data.texts.sets[row.set], data.texts.hardware[row.hardware]
    recipes = [recipe for recipe in found.recipes if recipe.of(row)]
    assumptions = (*hardware.assumptions, *found.assumptions, *(recipe.why for recipe in recipes if recipe.why))
    case = Case(row, None, assumptions, hardware=hardware.family, framework=found.framework)
    case = replace(case, calibrates=any(row.row in one.rows for one in found.calibrated_from))
    if found.unknown:
        return replace(case, unknown=found.unknown)
    training = training_section(row, found, data.texts.models[row.model])
    if found.kernels in hardware.attention:
        training["attention_throughput"] = hardware.attention[found.kernels]
    if found.kernels in hardware.attention_backward:
        training["attention_backward_throughput"] = hardware.attention_backward[found.kernels]
    missing = not_modelled(training)
    if missing:
        return replace(case, missing=missing)
    spec = read_spec(
        {
            "schema": 1,
            "name": f"{row.set}: {row.row}",
            "cluster": _cluster(row, hardware),
            "workload": {"training": training},
            "run": {"fidelity": "analytic"},
        }
    )
    return replace(case, spec=spec)


def _cluster(row: Row, hardware: Hardware) -> dict[str, Any]:
    per_host = catalog.host(hardware.host).nodes.gpu
    return {
        "hosts": {"type": hardware.host, "count": -(-row.gpus // per_host)},
        "network": {
            "technology": hardware.technology,
            "switch": hardware.switch,
            "topology": {"kind": hardware.topology},
        },
    }


def training_section(row: Row, found: Set, model: dict[str, Any]) -> dict[str, Any]:
    """`workload.training` of a row, with every key that its layout asks for."""
    beside = {"selective": found.selective, "full": found.full}
    settings = {**found.settings, **beside.get(row.recompute or "", {})}
    tp, pp, cp = row.tp or 1, row.pp or 1, row.cp or 1
    vp = row.vp or found.vp or 1
    parallel: dict[str, Any] = {"tp": tp, "pp": pp, "dp": row.gpus // (tp * pp * cp)}
    if cp > 1:
        parallel["cp"] = cp
        if "context" in settings:
            parallel["context"] = settings["context"]
    if (row.ep or 1) > 1:
        parallel["ep"] = row.ep
        if tp > 1:
            parallel["expert_tp"] = 1
    if vp > 1 and pp > 1:
        parallel["vp"] = vp
    keys = {**model, "_name": row.model}
    parallel |= _split(int(model.get("num_hidden_layers", model.get("n_layer", 1))), pp * vp)
    if keys.get("n_positions") == "sequence":
        keys["n_positions"] = row.sequence
    section: dict[str, Any] = {
        "model": keys,
        "parallel": parallel,
        "micro_batch_size": row.micro_batch or found.micro_batch.get(row.row, 1),
        "global_batch": row.global_batch,
        "sequence": row.sequence,
        "precision": PRECISION.get(row.precision, row.precision),
        "recompute": settings.get("recompute", row.recompute or "none"),
    }
    if settings.get("attention"):
        section["attention"] = settings["attention"]
    for key in (
        "attention_throughput",
        "attention_backward_throughput",
        "host",
        "software",
        "compute_share",
        "gradient_precision",
        "recompute_ends_early",
        "loss",
        "metrics",
    ):
        if settings.get(key):
            section[key] = settings[key]
    if row.row in found.eager:
        section["kernels"] = "eager"
    scaling = "block" if row.precision == "mxfp8" else settings.get("scaling")
    if scaling and section["precision"] == "fp8":
        section["scaling"] = scaling
    if settings.get("gradients"):
        section["gradients"] = {"algorithm": settings["gradients"]}
    if settings.get("sequence_parallel") and tp > 1:
        section["sequence_parallel"] = True
    if row.fsdp:
        section["sharding"] = settings.get("sharding", "fsdp")
    elif settings.get("optimizer_sharding") and parallel["dp"] > 1:
        section["sharding"] = "zero-1"
    if settings.get("overlap"):
        section["overlap"] = settings["overlap"]
    for recipe in found.recipes:
        if recipe.of(row):
            if "overlap" in recipe.settings and section.get("overlap") is True:
                section["overlap"] = all_overlap(section)
            section = laid_over(section, recipe.settings)
    return section


def _split(layers: int, stages: int) -> dict[str, Any]:
    """Layers of each stage where they do not divide: ends counted as layers, else fewer at the end."""
    if layers % stages == 0:
        return {}
    if (layers + 2) % stages == 0:
        return {"ends_as_layers": True}
    least, more = divmod(layers, stages)
    return {"layers": [least + 1] * more + [least] * (stages - more)}


def not_modelled(training: dict[str, Any]) -> tuple[str, ...]:
    """Keys and values of a section that `workload.training` does not know, or a model that is not counted."""
    missing = []
    try:
        Training.model_validate(training)
    except ValidationError as error:
        for detail in error.errors():
            key = ".".join(str(part) for part in detail["loc"])
            if detail["type"] == "extra_forbidden":
                missing.append(key)
            elif detail["type"] == "literal_error":
                missing.append(f"{key}: {detail['input']}")
            else:
                raise ConfigError(detail["msg"].removeprefix("Value error, "), key=key) from None
    try:
        Training(model=training["model"], micro_batches=1, sequence=1).read_model(Path())
    except ConfigError as error:
        missing.append(f"model {training['model']['_name']} ({error.message})")
    return tuple(missing)
