"""The lowering of a pass, onto an operation's block or a clock: gathers ahead, scripts, reductions behind.

Parameters sharded over data-parallel ranks (zero-3, fsdp, fsdp-1) are gathered layer by layer in every pass,
`prefetch` layers ahead, and gradients reduce-scattered beside the next layer's backward; the one after waits for
it, so that one is under way at a time (as PyTorch's FSDP does; Zhao et al. 2023, arXiv 2304.11277, section 3.3).
On a single stage the last layer's parameters stay from forward to backward. FSDP 2 (`fsdp`) copies what it
gathered into each parameter, and gradients into the buffer that it scatters; FSDP 1 (`fsdp-1`), whose parameters
are views of a flat one, joins, casts and divides gradients. These kernels count as run one behind the other with
all others, though FSDP 1 issues the last two on a stream of their own: memory and multiprocessors are the same.
zero-2 reduces the gradients of every micro-batch by bucket.
"""

from __future__ import annotations

from functools import cached_property

from fabrictwin.base.arrays import I64
from fabrictwin.workload.job.job_communications import slowed_ps
from fabrictwin.workload.layers.pass_script import Collective, Kind, Script
from fabrictwin.workload.layers.roofline import NOTHING, Cost
from fabrictwin.workload.layers.stage_segments import Segment
from fabrictwin.workload.step.pass_target import Mark, PassTarget
from fabrictwin.workload.step.pipeline_schedule import Pass
from fabrictwin.workload.step.step_context import Stage, StepContext


class PassLowering:
    """Lowers passes of a job's chunks."""

    def __init__(self, context: StepContext) -> None:
        self.context, self.job = context, context.job
        self.layout, self.training, self.groups = self.job.layout, self.job.training, context.groups
        self._shards: dict[int, I64] = {}  # by stage, groups of all who hold the same

    def scripts(self, segments: list[Segment], kind: Pass) -> list[Script]:
        """The script of each segment in one pass."""
        if kind == Pass.FORWARD:
            return [segment.forward for segment in segments]
        if not self.context.split:
            return [segment.backward for segment in segments]
        return [segment.backward.apart("weight")[kind == Pass.WEIGHT] for segment in segments]

    def lower(
        self,
        target: PassTarget[Mark],
        kind: Pass,
        segments: list[Segment],
        *,
        gates: list[I64] | None = None,
        mark: bool = False,
    ) -> list[Mark]:
        """Lower one pass; with `mark`, return for each segment the point at which its gradients are there.

        A forward's segment waits for its gate, of `gates` by segment, if there are any.
        """
        if kind == Pass.FORWARD:
            self._forward(target, segments, gates or [])
            return []
        marks = self._backward(target, kind, segments, mark)
        return [marks[i] for i in range(len(segments))] if mark else []

    def _forward(self, target: PassTarget[Mark], segments: list[Segment], gates: list[I64]) -> None:
        sharded, ahead = self.context.sharded, self.training.sharding.prefetch
        for i in range(min(ahead + 1, len(segments)) if sharded else 0):
            target.start(("gather", i), self._gather(segments[i]))
        number = 0
        for i, segment in enumerate(segments):
            target.wait(("gather", i))
            if sharded:
                target.compute(self._copied_out(segment), "forward")
            if gates and (i == 0 or gates[i] is not gates[i - 1]):
                target.gate(number)
                number += 1
            target.lay(segment.forward)
            if sharded and i + 1 + ahead < len(segments):
                target.start(("gather", i + 1 + ahead), self._gather(segments[i + 1 + ahead]))

    def _backward(
        self, target: PassTarget[Mark], kind: Pass, segments: list[Segment], mark: bool
    ) -> dict[int, Mark]:
        n, context = len(segments), self.context
        scripts = self.scripts(segments, kind)
        gathered = context.sharded and self.training.sharding.reshard_after_forward and kind == Pass.BACKWARD
        kept = n - 1 if self.layout.pp == 1 else n  # stays from forward to backward
        ahead = self.training.sharding.prefetch
        for i in range(n - 1, max(n - 2 - ahead, -1), -1):
            if gathered and i != kept:
                target.start(("gather", i), self._gather(segments[i]))
        reduced = context.gradient_buckets(segments) if context.reduced and kind == context.final else {}
        marks: dict[int, Mark] = {}
        pending: int | None = None
        for i in range(n - 1, -1, -1):
            target.wait(("gather", i))
            if gathered and i != kept:
                target.compute(self._copied_out(segments[i]), "backward")
            target.lay(scripts[i])
            bucket = [segments[j] for j in reduced.get(i, []) if segments[j].trained]
            if bucket:
                target.compute(self._copied_in(bucket), "backward")
            if gathered and i - 1 - ahead >= 0:
                target.start(("gather", i - 1 - ahead), self._gather(segments[i - 1 - ahead]))
            if bucket:
                if pending is not None:
                    target.wait(("reduce", pending))
                target.start(("reduce", i), self._reduction(bucket))
                pending = i
                marks.update(dict.fromkeys(reduced[i], target.end_of(("reduce", i))))
            elif mark and (not reduced or i in reduced):
                marks[i] = target.mark()
        return marks

    # --- sharded parameters and gradients that move in a pass

    def _whole(self, parameters: int, each: int) -> int:
        """Bytes of parameters, padded so that every shard is of one size."""
        ranks = self.layout.width * self.layout.cp
        return -(-parameters // ranks) * ranks * each

    def _gather(self, segment: Segment) -> Collective:
        size = self._whole(segment.parameters, self.job.parameter_bytes)
        return Collective("shard", "all_gather", size, self.training.overlap.collective_sms)

    def _reduction(self, segments: list[Segment]) -> Collective:
        size = self._whole(sum(segment.trained for segment in segments), self.job.gradient_bytes)
        return Collective("shard", "reduce_scatter", size, self.training.overlap.collective_sms)

    def _copied_out(self, segment: Segment) -> Cost:
        """FSDP 2 shards each parameter by itself: what was gathered is copied into whole ones."""
        if self.training.sharding.strategy != "fsdp":
            return NOTHING
        return self.context.segments.roof.stream(2 * self.job.parameter_bytes * segment.parameters)

    def _copied_in(self, bucket: list[Segment]) -> Cost:
        """Copies of gradients between the products that yield them and the reduction, in its precision.

        FSDP 2 copies them into the buffer that is scattered. FSDP 1 joins them into a flat one (the backward of
        the views that parameters are), casts it where the reduction is wider, and divides it by the root of the
        ranks, in a kernel each (torch.distributed.fsdp, _post_backward_hook and _reduce_grad).
        """
        strategy = self.training.sharding.strategy
        if strategy not in ("fsdp", "fsdp-1"):
            return NOTHING
        parameters = sum(segment.trained for segment in bucket)
        own, reduced = 4 if self.training.weights == "autocast" else 2, self.job.gradient_bytes
        moved = own + reduced
        if strategy == "fsdp-1":
            moved = 2 * own + (own + reduced if own != reduced else 0) + 2 * reduced
        return self.context.segments.roof.stream(moved * parameters)

    # --- the factor by which communication beside a whole pass slows its compute

    @cached_property
    def messages_ps(self) -> float:
        """The time of a message that arrives and one that leaves beside every pass, roughly."""
        if self.layout.pp == 1 or self.context.blocking:
            return 0.0
        pair = self.layout.grid[:2, 0, :1].T
        return 2 * self.groups.roughly_ps("all_gather", pair, 2 * self.context.message_bytes)

    def reduction_ps(self, stage: Stage, dense: int) -> float:
        """The time of the reduction of so many gradients beside the last micro-batch's backward, roughly."""
        overlaps = self.training.overlap.gradients and not self.context.reduced
        if not overlaps or self.layout.batch_ranks == 1:
            return 0.0
        reduction: Kind = "all_reduce" if self.training.sharding.strategy == "none" else "reduce_scatter"
        if stage.number not in self._shards:
            self._shards[stage.number] = self.groups.across("shard", stage.number)[0][0]
        return self.groups.roughly_ps(reduction, self._shards[stage.number], dense * self.job.gradient_bytes)

    def slow(self, kind: Pass, segments: list[Segment]) -> float:
        """The factor of a pass that has a message arriving and one leaving beside it, where these overlap."""
        return self._slowed(kind, segments, self.messages_ps, self.training.overlap.send_sms)

    def slow_reducing(self, stage: Stage, kind: Pass, segments: list[Segment]) -> float:
        """The factor of the last micro-batch's backward, which has the reduction of the gradients beside it."""
        beside = self.reduction_ps(stage, sum(segment.dense for segment in segments))
        return self._slowed(kind, segments, beside, self.training.overlap.collective_sms)

    def _slowed(self, kind: Pass, segments: list[Segment], beside_ps: float, sms: int) -> float:
        compute = self._compute_ps(kind, segments) if beside_ps else 0.0
        return 1 + slowed_ps(compute, beside_ps, sms, self.groups.sm_count) / compute if compute else 1.0

    def _compute_ps(self, kind: Pass, segments: list[Segment]) -> float:
        return sum(script.cost().ps for script in self.scripts(segments, kind))
