"""The range around a predicted training step, by what of its case was compared with published steps.

Software counts as known where the spec names it (`workload.training.software`) or says what its kernels reach
(`compute_share` below 1, or a `calibration` of one's own). A GPU is known where steps on it were compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.base.units import format_time
from fabrictwin.catalog.error_ranges import BETWEEN_HOSTS, ONE_DOMAIN, STEP, ErrorRange, error_ranges
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.report.result import RunResult
from fabrictwin.workload.model.huggingface_families import read_model
from fabrictwin.workload.model.model_sizes import Model


@record
class StepCase:
    """What of a step says which compared ones it is like."""

    gpu: str
    ranks: int
    hosts: int
    training: Mapping[str, Any]
    one_framework: bool = False  # experts or state-space layers, whose constants are of Megatron-Bridge's steps


def step_case(fabric: Fabric, ranks: int, hosts: int, training: Mapping[str, Any], model: Model) -> StepCase:
    """Return the case of a job on a fabric."""
    one_framework = model.experts is not None or model.mamba is not None
    return StepCase(fabric.templates[0].gpu_type, ranks, hosts, training, one_framework)


def run_range(result: RunResult) -> ErrorRange | None:
    """Return the range of a run's step; None of a captured job, of which nothing alike was compared."""
    training = result.asked.resolved.get("workload", {}).get("training")
    if training is None:
        return None
    hosts = len(np.unique(result.fabric.node_host[result.job.rank_node]))
    calibration = result.asked.resolved.get("calibration")
    keys = {**training, "calibration": calibration}
    model = read_model(training["model"], name="model")
    return step_range(step_case(result.fabric, result.job.program.ranks, hosts, keys, model))


def step_range(case: StepCase) -> ErrorRange:
    """Return what steps like this one were off by on rows that were held out."""
    ranges = error_ranges("step")
    known = ranges.compared
    calibrated = bool(
        float(case.training.get("compute_share") or 1) < 1
        or case.training.get("software")
        or (case.training.get("calibration") or {}).get("compute_share")
    )
    span = ONE_DOMAIN if case.hosts == 1 else BETWEEN_HOSTS
    outside = []
    if case.gpu not in known["gpus"]:
        outside.append(f"no published step on {case.gpu} was compared")
    if case.ranks > known["most_gpus"]:
        outside.append(f"{case.ranks:,} GPUs, compared were up to {known['most_gpus']:,}")
    if case.ranks < known["least_gpus"]:
        outside.append(f"{case.ranks:,} GPUs, compared were {known['least_gpus']:,} and more")
    if case.training["sequence"] > known["longest_sequence"]:
        longest = known["longest_sequence"]
        outside.append(f"sequences of {case.training['sequence']:,} tokens, compared were up to {longest:,}")
    if case.training.get("offload", {}).get("optimizer"):
        outside.append("no published step with its optimizer on the host was compared")
    if not calibrated:
        if case.one_framework:
            outside.append(
                "no published step with experts or state-space layers but Megatron-Bridge's was compared"
            )
        features: tuple[str, ...] = (STEP.without_software,)
    elif case.gpu in known["gpus"]:
        features = (STEP.known, span)
    else:
        features = (STEP.without_hardware, span)
    return ranges.of(features, outside)


def range_lines(found: ErrorRange, time_ps: int, rate: float | None, unit: str) -> list[str]:
    """Return the lines about a step's range: half, nine in ten, what it rests on, what lies outside."""
    lines = []
    times = found.of_time(time_ps)
    rates = None if rate is None else found.of_rate(rate)
    for i, name in enumerate(("half of like steps", "nine in ten")):
        low, high = times[i]
        line = f"{name:<18}  {format_time(round(low))} to {format_time(round(high))}"
        if rates is not None:
            line += f", {rates[i][0]:,.0f} to {rates[i][1]:,.0f} {unit}"
        lines.append(line)
    lines.append(f"by {found.basis}")
    return lines + [f"outside of what was compared: {each}" for each in found.outside]
