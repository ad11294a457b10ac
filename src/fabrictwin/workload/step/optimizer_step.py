"""The end of a step: gradients over data-parallel ranks, tied embeddings, the optimizer, new parameters.

Dense gradients are reduced over data and context parallel ranks, those of experts over the ranks that hold the
same ones. DistributedDataParallel all-reduces; zero-1 (Megatron-LM's distributed optimizer) reduce-scatters,
steps on its shard and gathers the parameters, zero-2 likewise, having reduced in every backward. Where sharding
is hybrid, shards are all-reduced over the copies. With `overlap.gradients` each bucket goes as soon as the last
micro-batch's backward has its gradients; with `overlap.parameters` parameters are gathered beside the next step's
first forwards
(here: this step's, which is the same in a steady run), a chunk waiting for its own buckets alone.

The optimizer is Adam in mixed precision and moves memory. Offloaded, it moves a shard's gradients to the host
over PCIe, steps at the rate of the host's memory (which its GPUs share), and moves the parameters back, one after
the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.program.program import NONE
from fabrictwin.workload.job.training_checks import IN_PASS
from fabrictwin.workload.layers.kernel_traffic import Weights
from fabrictwin.workload.layers.pass_script import Collective, Kind
from fabrictwin.workload.layers.stage_segments import Segment, buckets
from fabrictwin.workload.step.step_context import StepContext

Ready = list[list[list[int]]]  # [classes of units][classes of positions] ids after which something is there

# Of a parameter. master: gradient 4 for its norm and 4 for the step, zeroed 4; master, two moments read and
# written 24; the copy in 2 bytes written. autocast: no copy. same: all of these in 2 bytes, and no copy
ADAM_BYTES: Mapping[Weights, int] = {"master": 38, "autocast": 36, "same": 18}
# the gradient read once, no norm, nothing zeroed
HOST_ADAM_BYTES: Mapping[Weights, int] = {"master": 30, "autocast": 28, "same": 14}


@record
class _Bucket:
    """Gradients that go together: parameters of one rank, and who of a chunk holds them."""

    dense: int
    experts: int
    chunk: int
    segments: tuple[int, ...]  # of the chunk; empty: everything of the stage


@record
class _Reduced:
    """A bucket, and the ids after which the optimizer may take it."""

    bucket: _Bucket
    ready: Ready


class OptimizerStep:
    """Lowers the end of the step of a job's stages, or of those among them that are given."""

    def __init__(self, context: StepContext, stages: Sequence[int] | None = None) -> None:
        self.context, self.job, self.groups = context, context.job, context.groups
        self.layout, self.training = self.job.layout, self.job.training
        self.target, self.cells = self.groups.target, self.groups.cells
        self.stages = range(self.layout.pp) if stages is None else stages
        self.strategy = self.training.sharding.strategy
        self._streams: dict[tuple[int, str, tuple[int, ...]], int] = {}
        # experts that lie as dense parameters do are reduced with them
        self._as_dense = self.layout.ep * self.layout.expert_tp == self.layout.tp

    # --- parameters gathered at the start

    def gather_parameters(self, stages: Sequence[int] | None = None) -> None:
        """Gather updated parameters bucket by bucket; the context's `gates` say who waits for what."""
        for s in self.stages if stages is None else stages:
            for chunk in range(self.job.chunks):
                segments = self.context.segments.of(s, chunk)
                gates: list[I64] = [np.empty(0, np.int64)] * len(segments)
                for bucket in buckets(segments, self.job.gradient_bytes, self.training.overlap.bucket):
                    held = [segments[i] for i in bucket]
                    ready = self._gather(s, sum(x.dense for x in held), sum(x.experts for x in held), after={})
                    gate = np.array([max(ids, default=NONE) for ids in ready], np.int64)
                    for i in bucket:
                        gates[i] = gate
                self.context.gates[s, chunk] = gates

    # --- gradients and optimizer

    def lower(self) -> None:
        """Reduce gradients, sum those of tied embeddings, step the optimizer, gather parameters."""
        reduced = {
            s: [_Reduced(bucket, self._reduce(s, bucket)) for bucket in self._buckets(s)] for s in self.stages
        }
        tied = self._tie(reduced)
        for s in self.stages:
            self._step(s, reduced[s], tied)

    def _buckets(self, s: int) -> list[_Bucket]:
        """A stage's buckets in the order in which their gradients are ready."""
        if not self.training.overlap.gradients:
            return [_Bucket(*self.job.split_parameters(s), 0, ())]
        found = []
        last = self.job.micro_batches - 1
        for task in self.context.orders[s]:
            if task.kind != self.context.final or task.micro_batch != last:
                continue
            segments = self.context.segments.of(s, task.chunk)
            for part in self.context.gradient_buckets(segments).values():
                held: list[Segment] = [segments[i] for i in part]
                dense, experts = sum(x.dense for x in held), sum(x.experts for x in held)
                found.append(_Bucket(dense, experts, task.chunk, tuple(part)))
        return found

    def _ready(self, s: int, bucket: _Bucket) -> Ready:
        """[classes of units][classes of positions] ids after which a bucket's gradients are there."""
        last = self.job.micro_batches - 1
        found = []
        for stages in self.context.stages:
            stage = stages[s]
            if bucket.segments:
                rows = [stage.ready[bucket.chunk][i] for i in bucket.segments]
            else:
                ends = [stage.ends[self.context.final, chunk][last] for chunk in range(self.job.chunks)]
                rows = [[[int(end)] for end in row] for row in ends]
                rows += [row for chunk in stage.ready.values() for row in chunk]
            found.append([sorted({i for row in rows for i in row[a]}) for a in range(len(self.cells.positions))])
        return found

    def _reduce(self, s: int, bucket: _Bucket) -> Ready:
        """Reduce a bucket: [classes of units][classes of positions] ids that the optimizer waits for."""
        ready = self._ready(s, bucket)
        dense, experts = bucket.dense, bucket.experts
        if self._as_dense:
            dense, experts = dense + experts, 0
        size = self.job.gradient_bytes
        if self.context.reduced or self.strategy in IN_PASS:
            shard = -(-dense // (self.layout.width * self.layout.cp))
            if self.layout.units > 1:
                ready = self._all_reduce(s, "copies", shard * size, ready, "gradient all-reduce of copies")
            return ready
        kind: Kind = "all_reduce" if self.strategy == "none" else "reduce_scatter"
        for group, parameters, what in (
            ("shard", dense, "gradient"),
            ("expert_shard", experts, "expert-gradient"),
        ):
            if not parameters:
                continue
            if kind == "all_reduce":
                ready = self._all_reduce(s, group, parameters * size, ready, f"{what} all-reduce")
            else:
                ready = self._ring(s, group, kind, parameters, size, ready, f"{what} reduce-scatter")
        return ready

    def _after(self, s: int, group: str, classes: list[int], ready: Ready) -> list[int]:
        stream = self._streams.get((s, group, tuple(classes)), NONE)
        return [*(i for cell in ready for a in classes for i in cell[a]), stream]

    def _actors(self, s: int, classes: list[int]) -> list[int]:
        return [stages[s].actors[a] for stages in self.context.stages for a in classes]

    def _done(self, s: int, group: str, classes: list[int], op: int, ready: Ready) -> Ready:
        self._streams[s, group, tuple(classes)] = op
        return [[[op] if a in classes else ids for a, ids in enumerate(cell)] for cell in ready]

    def _all_reduce(self, s: int, group: str, size_bytes: int, ready: Ready, what: str) -> Ready:
        label = self.target.label("gradient all-reduce", "dp")
        for groups, classes in self.groups.across(group, s):
            if groups.shape[1] == 1:
                continue
            before = self._after(s, group, classes, ready)
            for number in self._made(s, group, classes, size_bytes, groups, f"{what}, stage {s}"):
                before = [self.target.communicate(number, label, after=before)]
            ready = self._done(s, group, classes, before[0], ready)
        return ready

    def _made(self, s: int, group: str, classes: list[int], size: int, groups: I64, name: str) -> list[int]:
        """Numbers of the phases of an all-reduce; buckets of one size share them."""
        key = ("all_reduce", s, group, tuple(classes), size)
        if key not in self.groups.made:
            phases = self.groups.factory.gradients(groups, size, name)
            actors = self._actors(s, classes)
            self.groups.made[key] = [(self.target.communication(p, actors), classes) for p in phases]
        return [number for number, _ in self.groups.made[key]]

    def _ring(
        self,
        s: int,
        group: str,
        kind: Kind,
        parameters: int,
        bytes_each: int,
        ready: Ready,
        what: str,
    ) -> Ready:
        """Reduce-scatter of gradients or all-gather of parameters over those who hold the same."""
        label = self.target.label("gradient reduce-scatter" if kind == "reduce_scatter" else what, "dp")
        for groups, classes in self.groups.across(group, s):
            n = groups.shape[1]
            if n == 1:
                continue
            size = -(-parameters // n) * n * bytes_each
            key = (kind, s, group, tuple(classes), size)
            if key not in self.groups.made:
                ring = self.groups.factory.ring(kind, groups, size, f"{what}, stage {s}", bytes_each)
                self.groups.made[key] = [(self.target.communication(ring, self._actors(s, classes)), classes)]
            number, _ = self.groups.made[key][0]
            op = self.target.communicate(number, label, after=self._after(s, group, classes, ready))
            ready = self._done(s, group, classes, op, ready)
        return ready

    def _gather(self, s: int, dense: int, experts: int, *, after: dict[tuple[int, int], int]) -> list[list[int]]:
        """All-gather parameters over those who shard them: [classes of positions] ids of what was laid down."""
        if self._as_dense:
            dense, experts = dense + experts, 0
        cells, width = len(self.context.stages), len(self.cells.positions)
        ready = [[[after[c, a]] if (c, a) in after else [] for a in range(width)] for c in range(cells)]
        before = [[list(ids) for ids in cell] for cell in ready]
        each, what = self.job.parameter_bytes, "parameter all-gather"
        if self.strategy == "zero-2":  # shards lie within units
            self._gather_units(s, dense, each, ready)
            return [[] for _ in range(width)]
        if dense:
            ready = self._ring(s, "shard", "all_gather", dense, each, ready, what)
        if experts:
            ready = self._ring(s, "expert_shard", "all_gather", experts, each, ready, f"expert {what}")
        return [ids if ids != old else [] for ids, old in zip(ready[0], before[0], strict=True)]

    def _gather_units(self, s: int, dense: int, each: int, ready: Ready) -> None:
        """Parameters over the ranks of each unit, after the optimizer."""
        ranks = self.layout.width * self.layout.cp
        collective = Collective("shard", "all_gather", -(-dense // ranks) * ranks * each)
        label = self.target.label("parameter all-gather", "dp")
        if ranks == 1:
            return
        for cell, stages in enumerate(self.context.stages):
            stage = stages[s]
            for number, classes in self.groups.within(collective, s, stage.units, cell, stage.actors):
                self.target.communicate(number, label, after=[i for a in classes for i in ready[cell][a]])

    # --- the rest

    def _tie(self, reduced: dict[int, list[_Reduced]]) -> dict[tuple[int, int], int]:
        """The gradients of a tied embedding's two copies, summed: by class of units and of positions."""
        pp = self.layout.pp
        if not self.job.model.tied or pp == 1 or not self.job.trained(1):
            return {}
        tied: dict[tuple[int, int], int] = {}
        label = self.target.label("embedding-gradient all-reduce", "dp")
        for r, units in enumerate(self.cells.units):
            for a, positions in enumerate(self.cells.positions):
                ends = [self.layout.grid[s][np.ix_(units, positions)].reshape(-1) for s in (0, pp - 1)]
                size = self.job.embedding_parameters() * self.job.gradient_bytes
                name = "embedding-gradient all-reduce"
                pairs = self.groups.factory.ring("all_reduce", np.stack(ends, axis=1), size, name)
                actors = [self.context.stages[r][s].actors[a] for s in (0, pp - 1)]
                number = self.target.communication(pairs, actors)
                after = [i for s in (0, pp - 1) for part in reduced[s] for i in part.ready[r][a]]
                tied[r, a] = self.target.communicate(number, label, after=sorted(set(after)))
        return tied

    def _shards(self) -> tuple[int, int]:
        """Into how many the optimizer's work on (dense, experts') parameters is divided."""
        if self.strategy == "none":
            return 1, 1
        if self.strategy == "zero-1":
            return self.layout.batch_ranks, self.layout.expert_ranks
        ranks = self.layout.width * self.layout.cp
        return ranks, ranks

    def optimizer_ps(self, dense: int, experts: int) -> int:
        """One Adam step of a rank over its share of so many parameters."""
        of_dense, of_experts = self._shards()
        own = -(-dense // of_dense) + -(-experts // of_experts)
        roof, offload = self.context.segments.roof, self.training.offload
        cast = roof.cast(dense + experts).ps  # weights for the next step's products
        if not offload.optimizer or offload.memory_rate is None:
            return round(roof.stream(ADAM_BYTES[self.training.weights] * own).ps + cast)
        gpu = catalog.gpu(self.job.hardware.gpu)
        pcie = catalog.pcie(gpu.pcie).payload_rate_bps(gpu.pcie_lanes.value)
        weights = self.training.weights
        moved = own * (self.job.gradient_bytes + (4 if weights == "autocast" else 2)) * 8 * PS_PER_S / pcie
        shared = int(np.bincount(self.job.placement.host_of_rank).max())
        stepped = HOST_ADAM_BYTES[weights] * own * shared * 8 * PS_PER_S / offload.memory_rate
        return round(moved + stepped + cast)

    def _step(
        self,
        s: int,
        reduced: list[_Reduced],
        tied: dict[tuple[int, int], int],
    ) -> None:
        label = self.target.label("optimizer", "optimizer")
        host = self.target.label("host", "host")
        after: dict[tuple[int, int], int] = {}
        if self.training.overlap.optimizer:
            steps = [(part.bucket.dense, part.bucket.experts, [part.ready]) for part in reduced]
        else:
            steps = [(*self.job.split_parameters(s), [part.ready for part in reduced])]
        last = self.job.micro_batches - 1
        for r, stages in enumerate(self.context.stages):
            stage = stages[s]
            for a, actor in enumerate(stage.actors):
                # the optimizer runs on the stream of the passes
                order = [task for task in self.context.orders[s] if task.micro_batch == last]
                before = int(stage.ends_of(order[-1])[a])
                for dense, experts, waits in steps:
                    waited = sorted({i for ready in waits for i in ready[r][a]})
                    if s in (0, self.layout.pp - 1) and (r, a) in tied:
                        waited.append(tied[r, a])
                    duration = round(self.optimizer_ps(dense, experts) * stage.factors[a])
                    before = self.target.compute(actor, duration, label, after=[*waited, before])
                if self.training.host.step:
                    self.target.compute(actor, self.training.host.step, host, after=[before])
                after[r, a] = before
        if self.strategy in ("zero-1", "zero-2") and not self.training.overlap.parameters:
            self._gather(s, *self.job.split_parameters(s), after=after)
