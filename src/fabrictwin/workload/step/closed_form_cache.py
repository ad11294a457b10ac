"""A cache for steps in closed form: scripts of layers, costs, parameters, shared by layouts of a search."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, cast

from fabrictwin.workload.job.job import Job
from fabrictwin.workload.layers.attention import AttentionBlock
from fabrictwin.workload.layers.feedforward import MlpBlock
from fabrictwin.workload.layers.number_formats import Precision
from fabrictwin.workload.layers.pass_script import FixedScript, Part, Script
from fabrictwin.workload.layers.roofline import Roofline
from fabrictwin.workload.layers.stage_segments import Parts, Segment, Segments, roofline, roofline_key
from fabrictwin.workload.layers.transformer import Ends, Shape


class CachedJob(Job):
    """A job that counts the parameters of a kind of layer once."""

    @classmethod
    def of(cls, job: Job, *, micro_batches: int) -> CachedJob:
        """The same job with another number of micro-batches, on which nothing rests that is kept of it."""
        same = cls.__new__(cls)
        same.__dict__.update(job.__dict__, micro_batches=micro_batches)
        return same

    @cached_property
    def _of_kind(self) -> dict[object, tuple[int, int, int]]:
        return {}

    @cached_property
    def _of_stage(self) -> dict[int, tuple[int, int]]:
        return {}

    def layer_parameters(self, layer: int) -> tuple[int, int, int]:
        kind = self.model.kind(layer) or self.model.is_sparse(layer)
        if kind not in self._of_kind:
            self._of_kind[kind] = super().layer_parameters(layer)
        return self._of_kind[kind]

    def split_parameters(self, stage: int) -> tuple[int, int]:
        if stage not in self._of_stage:
            self._of_stage[stage] = super().split_parameters(stage)
        return self._of_stage[stage]


_SCRIPTS: dict[tuple[object, ...], tuple[Script, Script]] = {}
_roofline = cache(roofline)


class CachedAttention(AttentionBlock):
    """An attention block that makes each script once."""

    def __init__(self, roof: Roofline, shape: Shape) -> None:
        super().__init__(roof, shape)
        self._forward, self._backward = cache(super().forward), cache(super().backward)

    def forward(self, part: Part = "forward") -> Script:
        return self._forward(part)

    def backward(self, *, recompute_core: bool) -> Script:
        return self._backward(recompute_core=recompute_core)


class CachedMlp(MlpBlock):
    """An MLP block that makes each script once."""

    def __init__(self, roof: Roofline, shape: Shape) -> None:
        super().__init__(roof, shape)
        self._forward, self._backward = cache(super().forward), cache(super().backward)

    def forward(self, load: float = 0.0, part: Part = "forward") -> Script:
        return self._forward(load, part)

    def backward(self, load: float = 0.0) -> Script:
        return self._backward(load)


# a layer is a few blocks, which layouts share: attention those that divide experts otherwise, an MLP those
# that divide sequences otherwise
_attention_block, _mlp_block, _end_blocks = cache(CachedAttention), cache(CachedMlp), cache(Ends)


def key_of(job: Job) -> tuple[object, ...]:
    """A key of all that the scripts of a job's layers depend on."""
    training = job.training
    return (
        *(job.hardware.gpu, job.shape, training.precision, training.scaling, training.recompute),
        training.recompute_ends_early,
        *(
            training.attention,
            training.attention_throughput,
            training.attention_backward_throughput,
            job.compute_share,
        ),
        *(training.eager_share, training.product_share, training.wide_layers),
        *(training.kernels, training.host, training.weights),
    )


_NUMBERS: dict[tuple[object, ...], int] = {}
_PARTS: dict[int, Parts] = {}


def number_of(job: Job) -> int:
    """A number in place of a job's key, which is long to hash, again and again."""
    return _NUMBERS.setdefault(key_of(job), len(_NUMBERS))


class CachedSegments(Segments):
    """Segments whose scripts are shared by layouts of one shape."""

    def __init__(self, job: Job) -> None:
        number = number_of(job)
        self.key = (number,)
        super().__init__(job, parts=_PARTS.get(number))
        _PARTS[number] = self.parts
        self._kinds: dict[tuple[object, ...], Segment] = {}
        self._chunks: dict[tuple[int, int], list[Segment]] = {}

    def _roofline(self, precision: Precision) -> Roofline:
        return _roofline(*roofline_key(self.job, precision))

    def _attention_block(self, roof: Roofline, shape: Shape) -> AttentionBlock:
        return _attention_block(roof, shape)

    def _mlp_block(self, roof: Roofline, shape: Shape) -> MlpBlock:
        return _mlp_block(roof, shape)

    def _end_blocks(self, roof: Roofline, shape: Shape) -> Ends:
        return _end_blocks(roof, shape)

    def scripts(self, load: float, kind: str = "", wide: bool = False) -> tuple[Script, Script]:
        """(forward, backward) of a layer whose busiest expert rank has so much load; 0 is dense.

        Of a hybrid without a kind, its cheapest layer.
        """
        if self.job.model.pattern and not kind:
            kinds = "E" if load else self.job.model.kinds
            found = [self.scripts(load, kind) for kind in kinds]
            return min(found, key=lambda pair: pair[0].cost().ps + pair[1].cost().ps)
        key = (*self.key, load, kind, wide)
        if key not in _SCRIPTS:
            made = self._make_layer(load, kind, wide)
            _SCRIPTS[key] = cast(Any, tuple(FixedScript.of(s) for s in made))
        return _SCRIPTS[key]

    def layer(self, number: int) -> Segment:
        model = self.job.model
        load, letter, wide = self.job.load(number), model.kind(number), self.is_wide(number)
        kind = (model.is_sparse(number), load, letter, wide)
        if kind not in self._kinds:
            scripts = self.scripts(load, letter, wide)
            self._kinds[kind] = Segment(*self.job.layer_parameters(number), *scripts)
        return self._kinds[kind]

    @cached_property
    def first(self) -> Segment:
        whole = self.job.first_parameters()
        scripts = self._ends_of("first", lambda: super(CachedSegments, self).first)
        return Segment(self.job.trained(whole), 0, self.job.frozen(whole), *scripts)

    @cached_property
    def last(self) -> Segment:
        scripts = self._ends_of("last", lambda: super(CachedSegments, self).last)
        whole = self.job.last_parameters()
        parameters = self.job.trained(whole), self.job.last_experts(), self.job.frozen(whole)
        return Segment(*parameters, *scripts)

    def _ends_of(self, name: str, make: Callable[[], Segment]) -> tuple[Script, Script]:
        # a predictor's layers are part of the last end
        own = self.key if self.job.model.predictors else (self.parts.ends,)
        key = (*own, name)
        if key not in _SCRIPTS:
            made = make()
            _SCRIPTS[key] = cast(Any, tuple(FixedScript.of(s) for s in (made.forward, made.backward)))
        return _SCRIPTS[key]

    def of(self, stage: int, chunk: int) -> list[Segment]:
        if (stage, chunk) not in self._chunks:
            self._chunks[stage, chunk] = super().of(stage, chunk)
        return self._chunks[stage, chunk]
