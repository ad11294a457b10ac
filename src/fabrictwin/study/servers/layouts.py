"""Layouts of a server that are worth a look: what vLLM takes and what fits, in one replica."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.serving.config.layout import machine
from fabrictwin.serving.config.section import Serving
from fabrictwin.serving.config.server import server
from fabrictwin.workload.model.model_sizes import Model

SMALL_STEP = 2048
"""Tokens of a step beside the default: short steps keep the gaps between tokens short."""


@record
class Layout:
    """One replica, or pools of engines that prefill and that decode.

    Attributes:
        name: In words.
        gpus: GPUs of a replica, or of an engine.
        keys: What it sets in `workload.serving`.
    """

    name: str
    gpus: int
    keys: dict[str, Any] = field(hash=False)

    def apart(self, prefill: int, decode: int) -> Layout:
        """Return pools of so many such engines."""
        pools = {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}}
        keys = {**self.keys, "disaggregated": pools}
        return Layout(f"{self.name}, prefill {prefill} : decode {decode}", self.gpus * (prefill + decode), keys)

    @property
    def pairs_up(self) -> bool:
        """Return if prefill and decode may be apart: neither a pipeline nor data parallelism."""
        return {self.keys["pipeline_parallel_size"], self.keys["data_parallel_size"]} == {1}


def layouts(spec: Spec, serving: Serving) -> list[Layout]:
    """Return the layouts of one replica that vLLM takes and whose weights and KV cache fit."""
    found = machine(spec)
    model = serving.read_model(spec.folder)
    fit = []
    for layout in _sizes(model, found.per_host, found.per_host * found.hosts):
        section = serving.model_copy(update={**layout.keys, "replicas": 1, "disaggregated": None})
        try:
            ready = server(spec, section)
        except ConfigError:
            continue
        fit.append(layout)
        if serving.max_num_batched_tokens is None and ready.scheduler.max_num_batched_tokens > SMALL_STEP:
            keys = {**layout.keys, "max_num_batched_tokens": SMALL_STEP}
            fit.append(Layout(f"{layout.name}, steps of {SMALL_STEP}", layout.gpus, keys))
    return fit


def _sizes(model: Model, per_host: int, gpus: int) -> Iterator[Layout]:
    """Powers of two of tensor parallelism; beyond a host also stages, and of mixtures data parallel ranks."""
    tensor = 1
    while tensor <= gpus:
        yield _layout(tensor)
        tensor *= 2
    for stages in (2, 4):
        if stages * per_host <= gpus:
            yield _layout(per_host, stages=stages)
    if model.experts is not None:
        ranks = 2
        while ranks <= gpus:
            yield _layout(1, ranks=ranks)
            ranks *= 2


def _layout(tensor: int, *, stages: int = 1, ranks: int = 1) -> Layout:
    name = f"TP {tensor}" + (f" × PP {stages}" if stages > 1 else "") + (f" × DP {ranks}, EP" if ranks > 1 else "")
    keys = {
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": stages,
        "data_parallel_size": ranks,
        "enable_expert_parallel": ranks > 1,
    }
    return Layout(name, tensor * stages * ranks, keys)
