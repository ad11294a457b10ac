"""A training step lowered to a program: the passes of every stage in the order of its schedule.

A chunk's pass over a micro-batch is a block, written once and laid down for all micro-batches. It waits for what
its stage did before and for the message of the neighbouring stage; where sends do not overlap, also for the send
before it, as in Megatron-LM's batched blocking exchanges. Activations go to the next (virtual) stage as messages;
without sequence parallelism each tensor-parallel rank sends its slice and the receivers gather it (Narayanan et
al. 2021, section 4.1) unless `scatter_gather` is off.

Parameters sharded over data-parallel ranks (zero-3, fsdp, fsdp-1) are gathered layer by layer in every pass,
`prefetch` layers ahead, and gradients reduce-scattered beside the next layer's backward; the one after waits for
it, so that one is under way at a time (as PyTorch's FSDP does; Zhao et al. 2023, arXiv 2304.11277, section 3.3).
On a single stage the last layer's parameters stay from forward to backward. FSDP 2 (`fsdp`) copies what it
gathered into each parameter, and gradients into the buffer that it scatters; FSDP 1 and ZeRO have flat ones and
need neither. zero-2 reduces the gradients of every micro-batch by bucket. What happens once a step is
`finish`'s.

Left out: embedding-gradient scaling, gradient-norm reductions of a few bytes, the data loader.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fabrictwin.program.builder import Block, ProgramBuilder, inlet
from fabrictwin.program.program import NONE, Program
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.job_communications import Groups, slowed_ps
from fabrictwin.workload.job.nccl_communications import Library
from fabrictwin.workload.job.rank_layout import Cells
from fabrictwin.workload.job.training_checks import IN_PASS, SHARDED
from fabrictwin.workload.layers.pass_script import Kind, Script, Talk
from fabrictwin.workload.layers.roofline import NOTHING, Cost
from fabrictwin.workload.layers.stage_segments import Segment, Segments, buckets
from fabrictwin.workload.step.pipeline_schedule import Pass, Task, order_of
from fabrictwin.workload.step.script_lowering import Chain

I64 = npt.NDArray[np.int64]
Written = tuple[Block, list[int], list[list[list[int]]]]


@dataclass
class Laid:
    """A pass of a chunk over all micro-batches: where its blocks lie. Shapes: A actors, m micro-batches."""

    blocks: list[Block]  # [m]
    starts: I64  # [m]
    ends: I64  # [m, A]


@dataclass
class Stage:
    """One stage of one class of units."""

    number: int
    units: I64
    cell: int  # which class of units
    actors: list[int]
    factors: list[float]
    passes: dict[tuple[Pass, int], Laid] = field(default_factory=dict)
    # by chunk, of the last micro-batch: [segments][actors] ids after which a segment's gradients are there
    ready: dict[int, list[list[list[int]]]] = field(default_factory=dict)
    sent: dict[tuple[Pass, int], I64] = field(default_factory=dict)  # [m, A] the message after a pass
    written: dict[tuple[object, ...], Written] = field(default_factory=dict)  # by what a block is made of

    def ends(self, task: Task) -> I64:
        ends: I64 = self.passes[task.kind, task.chunk].ends[task.micro_batch]
        return ends


class Lowering:
    """Builds the program of a job."""

    def __init__(self, job: Job, name: str, fold: bool, library: Library | None = None) -> None:
        self.job, self.layout = job, job.layout
        self.training = job.training
        self.cells = Cells.of(job.layout, job.differs, fold=fold)
        self.builder = ProgramBuilder(name, job.layout.ranks)
        self.groups = Groups(job, self.cells, self.builder, library)
        self.segments = Segments(job)
        self.sm_count = self.groups.sm_count
        schedule = self.training.parallel.schedule
        self.split = schedule == "zero-bubble"
        self.final = Pass.WEIGHT if self.split else Pass.BACKWARD  # after which gradients are there
        self.orders = [
            order_of(schedule, s, self.layout.pp, job.chunks, job.micro_batches) for s in range(self.layout.pp)
        ]
        strategy = self.training.sharding.strategy
        self.sharded = strategy in SHARDED and self.layout.width * self.layout.cp > 1
        self.reduced = strategy in IN_PASS and self.layout.width * self.layout.cp > 1
        sliced = self.training.scatter_gather or job.shape.sequence_parallel
        self.message_bytes = job.shape.tokens * job.model.hidden * 2 // (self.layout.tp if sliced else 1)
        self.gates: dict[tuple[int, int], list[I64]] = {}  # (stage, chunk): per segment, [positions classes] ids
        self.stages: list[list[Stage]] = []  # [class of units][stage]

    def build(self) -> ProgramBuilder:
        from fabrictwin.workload.step.optimizer_step import Finish

        finish = Finish(self)
        for cell, units in enumerate(self.cells.units):
            self.stages.append([self._stage(cell, units, s) for s in range(self.layout.pp)])
        if self.training.overlap.parameters:
            finish.gather_first()
        for stages in self.stages:
            for stage in stages:
                self._reserve(stage)
            self._messages(stages)
            for stage in stages:
                self._lay_down(stage)
        finish.lay()
        return self.builder

    def _stage(self, cell: int, units: I64, s: int) -> Stage:
        actors, factors = [], []
        for positions in self.cells.positions:
            ranks = self.layout.grid[s][np.ix_(units, positions)].reshape(-1)
            one = len(ranks) == 1
            name = f"rank {ranks[0]} (stage {s})" if one else f"stage {s}"
            if not one and len(self.cells.units) > 1:
                what = "replica" if self.layout.width == 1 else "unit"
                name += f", {what}{'s' if len(units) > 1 else ''} {_span(units)}"
            actors.append(self.builder.actor(name, ranks))
            factors.append(float(self.job.slowdown[ranks].max()))
        return Stage(s, units, cell, actors, factors)

    # --- blocks

    def _chain(self, stage: Stage, inlets: int, slow: float) -> Chain:
        return Chain(
            self.builder,
            self.groups,
            stage=stage.number,
            units=stage.units,
            number=stage.cell,
            actors=stage.actors,
            factors=stage.factors,
            inlets=inlets,
            slow=slow,
        )

    @property
    def _inlets(self) -> int:
        """What a pass waits for: what its stage did before, its message, the send before it."""
        return 3 if self._blocking else 2

    @property
    def _blocking(self) -> bool:
        return self.layout.pp > 1 and not self.training.overlap.pipeline

    def _reserve(self, stage: Stage) -> None:
        """Write the blocks of a stage and hand out ids for their copies."""
        m = self.job.micro_batches
        for chunk in range(self.job.chunks):
            segments = self.segments.of(stage.number, chunk)
            scripts: dict[Pass, list[Script]] = {Pass.FORWARD: [segment.forward for segment in segments]}
            scripts[Pass.BACKWARD] = [segment.backward for segment in segments]
            if self.split:
                apart = [segment.backward.apart("weight") for segment in segments]
                scripts[Pass.BACKWARD], scripts[Pass.WEIGHT] = [a for a, _ in apart], [b for _, b in apart]
            for kind, parts in scripts.items():
                slow = self._send_slows(parts)
                block, ends, _ = self._write(stage, kind, segments, parts, slow, gates=[], mark=False)
                blocks, lasts = [block] * m, [ends] * m
                if kind == Pass.FORWARD and (stage.number, chunk) in self.gates:
                    gates = self.gates[stage.number, chunk]
                    blocks[0], lasts[0], _ = self._write(
                        stage, kind, segments, parts, slow, gates=gates, mark=False
                    )
                marks: list[list[list[int]]] = []
                if kind == self.final and (self.reduced or self.training.overlap.gradients):
                    grown = slow * self._reduce_slows(stage, segments, parts)
                    blocks[-1], lasts[-1], marks = self._write(
                        stage, kind, segments, parts, grown, gates=[], mark=True
                    )
                sizes = np.array([len(block) for block in blocks])
                first = self.builder.reserve(int(sizes.sum()))
                starts = first + np.concatenate([[0], np.cumsum(sizes[:-1])])
                stage.passes[kind, chunk] = Laid(blocks, starts, starts[:, None] + np.array(lasts))
                if marks:
                    base = int(starts[-1])
                    stage.ready[chunk] = [[[base + i for i in ids] for ids in row] for row in marks]

    def _write(
        self,
        stage: Stage,
        kind: Pass,
        segments: list[Segment],
        scripts: list[Script],
        slow: float,
        *,
        gates: list[I64],
        mark: bool,
    ) -> Written:
        """(block, [actors] last operations, per segment and actor when its gradients are there) of a pass.

        Chunks of equal segments are one block.
        """
        if gates:
            return self._written(stage, kind, segments, scripts, slow, gates=gates, mark=mark)
        alike = tuple((s.dense, s.experts, id(s.forward), id(s.backward)) for s in segments)
        key = kind, alike, slow, mark
        if key not in stage.written:
            stage.written[key] = self._written(stage, kind, segments, scripts, slow, gates=gates, mark=mark)
        return stage.written[key]

    def _written(
        self,
        stage: Stage,
        kind: Pass,
        segments: list[Segment],
        scripts: list[Script],
        slow: float,
        *,
        gates: list[I64],
        mark: bool,
    ) -> Written:
        inlets = 1 if kind == Pass.WEIGHT else self._inlets
        chain = self._chain(stage, inlets, slow)
        if kind != Pass.FORWARD:
            return self._write_backward(chain, kind, segments, scripts, mark)
        ahead = self.training.sharding.prefetch
        for i in range(min(ahead + 1, len(segments)) if self.sharded else 0):
            chain.start(("gather", i), self._gather(segments[i]))
        width = len(stage.actors)
        for i, script in enumerate(scripts):
            chain.wait(("gather", i))
            if self.sharded:
                chain.compute(self._copied_out(segments[i]), self.builder.label("forward", "compute"))
            if gates and (i == 0 or gates[i] is not gates[i - 1]):
                number = sum(gates[j] is not gates[j - 1] for j in range(1, i + 1))
                chain.gate(inlets * width + number * width)
            chain.lay(script)
            if self.sharded and i + 1 + ahead < len(segments):
                chain.start(("gather", i + 1 + ahead), self._gather(segments[i + 1 + ahead]))
        return chain.block, chain.ends(), []

    def _write_backward(
        self, chain: Chain, kind: Pass, segments: list[Segment], scripts: list[Script], mark: bool
    ) -> Written:
        n = len(segments)
        gathered = self.sharded and self.training.sharding.reshard_after_forward and kind == Pass.BACKWARD
        kept = n - 1 if self.layout.pp == 1 else n  # stays from forward to backward
        ahead = self.training.sharding.prefetch
        for i in range(n - 1, max(n - 2 - ahead, -1), -1):
            if gathered and i != kept:
                chain.start(("gather", i), self._gather(segments[i]))
        reduced = self._reduced_at(segments) if self.reduced and kind == self.final else {}
        marks: list[list[list[int]]] = [[] for _ in segments]
        pending: list[int] = []
        for i in range(n - 1, -1, -1):
            chain.wait(("gather", i))
            if gathered and i != kept:
                chain.compute(self._copied_out(segments[i]), self.builder.label("backward", "compute"))
            chain.lay(scripts[i])
            if i in reduced:
                chain.compute(self._copied_in(segments, reduced[i]), self.builder.label("backward", "compute"))
            if gathered and i - 1 - ahead >= 0:
                chain.start(("gather", i - 1 - ahead), self._gather(segments[i - 1 - ahead]))
            if i in reduced:
                for before in pending:
                    chain.wait(("reduce", before))
                chain.start(("reduce", i), self._reduction([segments[j] for j in reduced[i]]))
                pending = [i]
                for j in reduced[i]:
                    marks[j] = chain.operations(("reduce", i))
            elif mark and not reduced:
                marks[i] = chain.mark()
        ends = chain.ends()
        return chain.block, ends, marks if mark else []

    def _reduced_at(self, segments: list[Segment]) -> dict[int, list[int]]:
        """After which segment's backward the gradients of which segments are reduced."""
        if self.sharded:
            return {i: [i] for i in range(len(segments))}
        n = len(segments)
        found = buckets(segments[::-1], self.job.gradient_bytes, self.training.overlap.bucket)
        return {n - 1 - bucket[-1]: [n - 1 - i for i in bucket] for bucket in found}

    # --- what sharded parameters and gradients move in a pass

    def _whole(self, parameters: int, each: int) -> int:
        """Bytes of parameters, padded so that every shard is of one size."""
        ranks = self.layout.width * self.layout.cp
        return -(-parameters // ranks) * ranks * each

    def _gather(self, segment: Segment) -> Talk:
        size = self._whole(segment.parameters, self.job.parameter_bytes)
        return Talk("shard", "all_gather", size, self.training.overlap.collective_sms)

    def _reduction(self, segments: list[Segment]) -> Talk:
        size = self._whole(sum(segment.parameters for segment in segments), self.job.gradient_bytes)
        return Talk("shard", "reduce_scatter", size, self.training.overlap.collective_sms)

    def _copied_out(self, segment: Segment) -> Cost:
        """FSDP 2 shards each parameter by itself: what was gathered is copied into whole ones."""
        if self.training.sharding.strategy != "fsdp":
            return NOTHING
        return self.segments.roof.stream(2 * self.job.parameter_bytes * segment.parameters)

    def _copied_in(self, segments: list[Segment], which: list[int]) -> Cost:
        """FSDP 2 copies gradients into the buffer that is scattered, in the precision that they are reduced in."""
        if self.training.sharding.strategy != "fsdp":
            return NOTHING
        return self.segments.roof.stream(
            (2 + self.job.gradient_bytes) * sum(segments[i].parameters for i in which)
        )

    # --- what communication beside a whole pass costs it

    def _send_slows(self, scripts: list[Script]) -> float:
        """A pass has a message arriving and one leaving beside it, where these overlap."""
        compute = sum(script.cost().ps for script in scripts)
        if self.layout.pp == 1 or self._blocking or not compute:
            return 1.0
        pair = self.layout.grid[:2, 0, :1].T
        beside = 2 * self.groups.roughly_ps("all_gather", pair, 2 * self.message_bytes)
        return 1 + slowed_ps(compute, beside, self.training.overlap.send_sms, self.sm_count) / compute

    def _reduce_slows(self, stage: Stage, segments: list[Segment], scripts: list[Script]) -> float:
        """The last micro-batch's backward has the reduction of the chunk's gradients beside it."""
        compute = sum(script.cost().ps for script in scripts)
        if not self.training.overlap.gradients or self.reduced or self.layout.batch_ranks == 1 or not compute:
            return 1.0
        size = sum(segment.dense for segment in segments) * self.job.gradient_bytes
        kind: Kind = "all_reduce" if self.training.sharding.strategy == "none" else "reduce_scatter"
        groups = self.groups.across("shard", stage.number)[0][0]
        beside = self.groups.roughly_ps(kind, groups, size)
        return 1 + slowed_ps(compute, beside, self.training.overlap.collective_sms, self.sm_count) / compute

    # --- messages between stages

    def _messages(self, stages: list[Stage]) -> None:
        """Lay down the messages after passes; `sent` of a stage keeps them."""
        if self.layout.pp == 1:
            return
        for stage in stages:
            for kind, step in ((Pass.FORWARD, 1), (Pass.BACKWARD, -1)):
                self._send(stages, stage, kind, step)

    def _send(self, stages: list[Stage], here: Stage, kind: Pass, step: int) -> None:
        pp, builder, m = self.layout.pp, self.builder, self.job.micro_batches
        there = stages[(here.number + step) % pp]
        last = pp * self.job.chunks - 1
        for chunk in range(self.job.chunks):
            here.sent[kind, chunk] = np.full((m, len(here.actors)), NONE, np.int64)
        end = last if step == 1 else 0
        tasks = [t for t in self.orders[here.number] if t.kind == kind and t.chunk * pp + here.number != end]
        if not tasks:
            return
        what = "activations" if step == 1 else "gradients"
        label = builder.label(f"send {what}", "pp")
        micro_batch = np.array([task.micro_batch for task in tasks])
        chunks = np.array([task.chunk for task in tasks])
        ends = np.stack([here.ends(task) for task in tasks])
        for a, positions in enumerate(self.cells.positions):
            ranks = [self.layout.grid[s.number][np.ix_(here.units, positions)].reshape(-1) for s in (here, there)]
            name = f"{what}, stage {here.number} to {there.number}"
            pairs = np.stack(ranks, axis=1)
            message = self.groups.send(pairs, self.message_bytes, name)
            number = builder.communication(message, [here.actors[a], there.actors[a]])
            ids = builder.reserve(len(tasks)) + np.arange(len(tasks))
            block = Block()
            block.communicate(here.actors[a], number, label, [inlet(0), inlet(1)])
            before = np.concatenate([[NONE], ids[:-1]])  # one stream carries them in order
            builder.place(block, ids, micro_batch=micro_batch, inlets=np.stack([ends[:, a], before], axis=1))
            for chunk in range(self.job.chunks):
                mine = chunks == chunk
                here.sent[kind, chunk][micro_batch[mine], a] = ids[mine]

    def _arrivals(self, stage: Stage, kind: Pass, chunk: int) -> I64:
        """[m, A] what a chunk's passes wait for: the message, and its slices gathered."""
        m, actors = self.job.micro_batches, len(stage.actors)
        v = chunk * self.layout.pp + stage.number + (-1 if kind == Pass.FORWARD else 1)
        if kind == Pass.WEIGHT or self.layout.pp == 1 or not 0 <= v < self.layout.pp * self.job.chunks:
            return np.full((m, actors), NONE, np.int64)
        sender = self.stages[stage.cell][v % self.layout.pp]
        sent = sender.sent[kind, v // self.layout.pp]
        if self.layout.tp == 1 or self.job.shape.sequence_parallel or not self.training.scatter_gather:
            return sent
        whole = self.message_bytes * self.layout.tp
        talk = Talk("slices", "all_gather", whole)
        label = self.builder.label("gather activations", "pp")
        gathered = sent.copy()
        for number, classes in self.groups.within(talk, stage.number, stage.units, stage.cell, stage.actors):
            ids = self.builder.reserve(m) + np.arange(m)
            block = Block()
            block.communicate(stage.actors[classes[0]], number, label, [inlet(i) for i in range(len(classes))])
            self.builder.place(block, ids, micro_batch=np.arange(m), inlets=sent[:, classes])
            gathered[:, classes] = ids[:, None]
        return gathered

    def _lay_down(self, stage: Stage) -> None:
        """All passes of a stage, in the order of its schedule."""
        m, actors = self.job.micro_batches, len(stage.actors)
        before = {key: np.full((m, actors), NONE, np.int64) for key in stage.passes}
        sends = {key: np.full((m, actors), NONE, np.int64) for key in stage.passes}
        order = self.orders[stage.number]
        for task, previous in zip(order[1:], order[:-1], strict=True):
            before[task.kind, task.chunk][task.micro_batch] = stage.ends(previous)
            if self._blocking and (previous.kind, previous.chunk) in stage.sent:
                sent = stage.sent[previous.kind, previous.chunk][previous.micro_batch]
                sends[task.kind, task.chunk][task.micro_batch] = sent
        for (kind, chunk), laid in stage.passes.items():
            columns = [before[kind, chunk]]
            if kind != Pass.WEIGHT:
                columns.append(self._arrivals(stage, kind, chunk))
                columns += [sends[kind, chunk]] if self._blocking else []
            inlets = np.concatenate(columns, axis=1)
            for block in {id(block): block for block in laid.blocks}.values():
                rows = np.array([i for i, other in enumerate(laid.blocks) if other is block])
                mine = inlets[rows]
                if kind == Pass.FORWARD and rows[0] == 0 and (stage.number, chunk) in self.gates:
                    gates = self.gates[stage.number, chunk]
                    apart = [g for i, g in enumerate(gates) if i == 0 or g is not gates[i - 1]]
                    mine = np.concatenate([mine, np.concatenate(apart)[None]], axis=1)
                self.builder.place(block, laid.starts[rows], micro_batch=rows, inlets=mine)


def _span(numbers: I64) -> str:
    """`3` or `0-2, 4-7`."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def build_program(job: Job, *, name: str, fold: bool, library: Library | None = None) -> Program:
    """The program of a checked job; `library` is NCCL where it is to choose."""
    return Lowering(job, name, fold, library).build().build()
