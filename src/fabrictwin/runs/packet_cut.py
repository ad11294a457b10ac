"""A smaller cut of a job that the packet engine takes: fewer micro-batches, or fewer replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.engines.base.packet_level import PacketLevel
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.workload.job.job import check
from fabrictwin.workload.step.training_step import lower

TRIES = 12  # each lowers the job anew


def cut_that_fits(spec: Spec, blueprint: Blueprint, fabric: Fabric, packets: PacketLevel) -> str:
    """`in workload.training micro_batches: 4 (of 64) or parallel.dp: 2 (of 32) fits`; empty if nothing does.

    The numbers are the largest that fit, each alone.
    """
    job, _ = check(spec, blueprint, fabric)

    def fits(micro_batches: int, dp: int) -> bool:
        try:
            found = lower(_changed(spec, micro_batches, dp), blueprint, fabric)
        except ConfigError:
            return False  # sizes that do not divide
        return packets.excess(found.program.operations, found.program.communications, found.rank_node) <= 1

    m, dp = job.micro_batches, job.layout.dp
    step = job.layout.pp if job.chunks > 1 else 1  # the interleaved schedule wants multiples
    found = []
    if fewer := _largest(lambda k: fits(k * step, dp), m // step - 1):
        found.append(f"micro_batches: {fewer * step} (of {m})")
    if fewer := _largest(lambda k: fits(m, k), dp - 1):
        found.append(f"parallel.dp: {fewer} (of {dp})")
    if not found and fits(step, 1):
        found.append(f"micro_batches: {step} with parallel.dp: 1")
    return f"in workload.training {' or '.join(found)} fits" if found else ""


def _changed(spec: Spec, micro_batches: int, dp: int) -> Spec:
    workload: dict[str, Any] = dict(spec.workload)
    training = {k: v for k, v in workload["training"].items() if k not in ("global_batch", "micro_batches")}
    training["micro_batches"] = micro_batches
    training["parallel"] = {**training.get("parallel", {}), "dp": dp}
    run = spec.run.model_copy(update={"check_memory": "note"})
    return spec.model_copy(update={"workload": {**workload, "training": training}, "run": run})


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to `most` that fits, 0 if none does; more never fits where less does not."""
    low, high = 0, most
    for _ in range(TRIES):
        if low == high:
            break
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
