"""A spec's `calibration`: constants that `fabrictwin calibrate` fitted to measurements of one's own.

A file, or its keys in the spec. What it says of training steps lies beneath `workload.training`: a key that stands
there is kept. A step that was measured says more of its own job, on whatever number of GPUs, than of others, whose
layout, sizes or precision differ: there are two shares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fabrictwin.cluster.spec.model_base import Model

Share = Annotated[float, Field(gt=0, le=1)]
_OF_SIZE = ("global_batch", "micro_batches", "compute_share", "product_share")
Factor = Annotated[float, Field(ge=0.1, le=10)]


class CollectiveCorrections(Model):
    """Corrections of NCCL's step costs: what is added to a launch, times as long a hop, times the rate."""

    launch_us: Annotated[float, Field(ge=-100, le=1000)] = 0.0
    hop: Factor = 1.0
    rate: Factor = 1.0


class AdapterCorrections(Model):
    """Corrections of network adapters: what is added to a message's way, times the catalog's message rates."""

    latency_ns: Annotated[float, Field(ge=-10_000, le=100_000)] = 0.0
    message_rate: Factor = 1.0  # of a queue pair and of an adapter


class SameJob(Model):
    """What a step's time says of the job that it was measured of, on any number of GPUs."""

    compute_share: Share
    job: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # by `job_of`


class CalibrationFile(Model):
    """Fitted constants, and what they rest on."""

    schema_version: Annotated[Literal[1], Field(alias="schema")] = 1
    compute_share: Share | None = None
    same_job: SameJob | None = None
    # times the catalog's throughput
    products: dict[Literal["bf16", "fp16", "fp8", "fp4"], Factor] = Field(default_factory=dict)
    collectives: CollectiveCorrections | None = None
    adapters: AdapterCorrections | None = None
    rests_on: tuple[Annotated[str, Field(max_length=300)], ...] = ()

    @model_validator(mode="after")
    def _something(self) -> CalibrationFile:
        known = (self.compute_share, self.same_job, self.products or None, self.collectives, self.adapters)
        if all(one is None for one in known):
            raise ValueError(
                "got no constant, expected compute_share, same_job, products, collectives or adapters"
            )
        return self


def job_of(training: Mapping[str, Any]) -> str:
    """Return a digest of a `workload.training` but for its GPUs, its global batch and what a calibration gives."""
    parallel = training.get("parallel")
    kept = {key: value for key, value in training.items() if key not in _OF_SIZE}
    if isinstance(parallel, Mapping):
        kept["parallel"] = {key: value for key, value in parallel.items() if key != "dp"}
    text = json.dumps({key: value for key, value in kept.items() if value}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def beneath(workload: Any, calibration: CalibrationFile) -> Any:
    """Return a workload section with what a calibration says of training steps where it says nothing."""
    training = workload.get("training") if isinstance(workload, Mapping) else None
    if not isinstance(training, Mapping):
        return workload
    found: dict[str, Any] = {}
    own = calibration.same_job
    if own is not None and own.job == job_of(training):
        found["compute_share"] = own.compute_share
    elif calibration.compute_share is not None:
        found["compute_share"] = calibration.compute_share
    precision = training.get("precision", "bf16")
    if isinstance(precision, str) and precision in calibration.products:
        found["product_share"] = dict(calibration.products)[precision]
    return {**workload, "training": {**found, **training}}
