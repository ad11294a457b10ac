"""What a step in closed form remembers: scripts of layers, costs, parameters, shared by layouts of a search."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

from fabrictwin.workload.job import Job
from fabrictwin.workload.roofline import Cost
from fabrictwin.workload.script import Script
from fabrictwin.workload.segments import Segment, Segments


class Remembering(Job):
    """A job that counts the parameters of a kind of layer once."""

    @cached_property
    def _of_kind(self) -> dict[bool, tuple[int, int]]:
        return {}

    @cached_property
    def _of_stage(self) -> dict[int, tuple[int, int]]:
        return {}

    def layer_parameters(self, layer: int) -> tuple[int, int]:
        sparse = self.model.is_sparse(layer)
        if sparse not in self._of_kind:
            self._of_kind[sparse] = super().layer_parameters(layer)
        return self._of_kind[sparse]

    def split_parameters(self, stage: int) -> tuple[int, int]:
        if stage not in self._of_stage:
            self._of_stage[stage] = super().split_parameters(stage)
        return self._of_stage[stage]


_SCRIPTS: dict[tuple[object, ...], tuple[Script, Script]] = {}


class _Summed(Script):
    """A script whose compute is added up once."""

    @cached_property
    def _sum(self) -> Cost:
        return super().cost()

    def cost(self) -> Cost:
        return self._sum


def key_of(job: Job) -> tuple[object, ...]:
    """What the scripts of a job's layers depend on."""
    training = job.training
    return (
        *(job.gpu, job.shape, training.precision, training.scaling, training.recompute),
        *(training.attention_throughput, training.attention_backward_throughput, training.compute_share),
        training.eager_share,
        *(training.kernels, training.host),
    )


class Cached(Segments):
    """Segments whose scripts are shared by layouts of one shape."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.key = key_of(job)
        self._kinds: dict[tuple[bool, float], Segment] = {}
        self._chunks: dict[tuple[int, int], list[Segment]] = {}

    def scripts(self, load: float) -> tuple[Script, Script]:
        """(forward, backward) of a layer whose busiest expert rank has so much load; 0 is dense."""
        key = (*self.key, load)
        if key not in _SCRIPTS:
            _SCRIPTS[key] = cast(Any, tuple(_Summed(s.items, s.keys) for s in self._make_layer(load)))
        return _SCRIPTS[key]

    def layer(self, number: int) -> Segment:
        load = self.job.load(number)
        kind = (self.job.model.is_sparse(number), load)
        if kind not in self._kinds:
            self._kinds[kind] = Segment(*self.job.layer_parameters(number), *self.scripts(load))
        return self._kinds[kind]

    @cached_property
    def first(self) -> Segment:
        return Segment(self.job.first_parameters(), 0, *self._ends_of("first", lambda: super(Cached, self).first))

    @cached_property
    def last(self) -> Segment:
        scripts = self._ends_of("last", lambda: super(Cached, self).last)
        return Segment(self.job.last_parameters(), self.job.last_experts(), *scripts)

    def _ends_of(self, name: str, make: Callable[[], Segment]) -> tuple[Script, Script]:
        key = (*self.key, name)
        if key not in _SCRIPTS:
            made = make()
            _SCRIPTS[key] = cast(Any, tuple(_Summed(s.items, s.keys) for s in (made.forward, made.backward)))
        return _SCRIPTS[key]

    def of(self, stage: int, chunk: int) -> list[Segment]:
        if (stage, chunk) not in self._chunks:
            self._chunks[stage, chunk] = super().of(stage, chunk)
        return self._chunks[stage, chunk]
