"""A training step lowered to a program: the passes of every stage in the order of its schedule.

A chunk's pass over a micro-batch is a block, written once and laid down for all micro-batches. It waits for what
its stage did before and for the message of the neighbouring stage; where sends do not overlap, also for the send
before it, as in Megatron-LM's batched blocking exchanges. Activations go to the next (virtual) stage as messages;
without sequence parallelism each tensor-parallel rank sends its slice and the receivers gather it (Narayanan et
al. 2021, section 4.1) unless `scatter_gather` is off.

Left out: embedding-gradient scaling, gradient-norm reductions of a few bytes, the data loader.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fabrictwin.base.arrays import I64, starts_of
from fabrictwin.program.builder import Block, ProgramBuilder, inlet
from fabrictwin.program.program import NONE, Communication, Program
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.job_communications import CommunicationFactory, Groups
from fabrictwin.workload.job.nccl_communications import Library
from fabrictwin.workload.job.rank_layout import Cells
from fabrictwin.workload.layers.pass_script import Collective
from fabrictwin.workload.layers.stage_segments import Segment, Segments
from fabrictwin.workload.step.optimizer_step import OptimizerStep
from fabrictwin.workload.step.pass_lowering import PassLowering
from fabrictwin.workload.step.pipeline_schedule import Pass, order_of
from fabrictwin.workload.step.program_pass import ProgramPass
from fabrictwin.workload.step.step_context import Stage, StepContext, distinct_gates


@dataclass
class _Written:
    """A pass as a block."""

    block: Block
    ends: list[int]  # [actors] last operations
    marks: list[list[list[int]]]  # [segments][actors] operations after which gradients are there


@dataclass
class _Copies:
    """A pass of a chunk over all micro-batches: its blocks, and the id at which each begins."""

    blocks: list[Block]  # [micro-batches]
    starts: I64  # [micro-batches]


@dataclass
class _ProgramStage(Stage):
    """A stage, and what of it is written."""

    passes: dict[tuple[Pass, int], _Copies] = field(default_factory=dict)
    sent: dict[tuple[Pass, int], I64] = field(default_factory=dict)  # [micro-batches, actors] message after a pass
    written: dict[tuple[object, ...], _Written] = field(default_factory=dict)  # by what a block is made of


class TrainingProgram:
    """Builds the program of a job."""

    def __init__(self, job: Job, name: str, fold: bool, library: Library | None = None) -> None:
        self.job, self.layout, self.training = job, job.layout, job.training
        self.cells = Cells.of(job.layout, job.placement.differs, fold=fold)
        self.builder = ProgramBuilder(name, job.layout.ranks)
        self.groups: Groups[Communication] = Groups(
            job, self.cells, self.builder, CommunicationFactory(job, library)
        )
        schedule, pp = self.training.parallel.schedule, self.layout.pp
        self.orders = [order_of(schedule, s, pp, job.chunks, job.micro_batches) for s in range(pp)]
        self.stages: list[list[_ProgramStage]] = []  # [class of units][stage]
        self.context = StepContext(job, self.groups, Segments(job), orders=self.orders)
        self.lowering = PassLowering(self.context)

    def build(self) -> Program:
        """The whole step."""
        for cell, units in enumerate(self.cells.units):
            self.stages.append([self._stage(cell, units, s) for s in range(self.layout.pp)])
        self.context.stages = [list(stages) for stages in self.stages]
        optimizer = OptimizerStep(self.context)
        if self.training.overlap.parameters:
            optimizer.gather_parameters()
        for stages in self.stages:
            for stage in stages:
                self._reserve(stage)
            self._messages(stages)
            for stage in stages:
                self._lay_down(stage)
        optimizer.lower()
        return self.builder.build()

    def _stage(self, cell: int, units: I64, s: int) -> _ProgramStage:
        actors, factors = [], []
        for positions in self.cells.positions:
            ranks = self.layout.grid[s][np.ix_(units, positions)].reshape(-1)
            one = len(ranks) == 1
            name = f"rank {ranks[0]} (stage {s})" if one else f"stage {s}"
            if not one and len(self.cells.units) > 1:
                what = "replica" if self.layout.width == 1 else "unit"
                name += f", {what}{'s' if len(units) > 1 else ''} {_span(units)}"
            actors.append(self.builder.actor(name, ranks))
            factors.append(float(self.job.placement.slowdown[ranks].max()))
        return _ProgramStage(s, units, cell, actors, factors)

    # --- blocks

    def _reserve(self, stage: _ProgramStage) -> None:
        """Write the blocks of a stage and hand out ids for their copies."""
        m, context = self.job.micro_batches, self.context
        kinds = [Pass.FORWARD, Pass.BACKWARD, *([Pass.WEIGHT] if context.split else [])]
        for chunk in range(self.job.chunks):
            segments = context.segments.of(stage.number, chunk)
            for kind in kinds:
                slow = self.lowering.slow(kind, segments)
                written = [self._written(stage, kind, segments, slow)] * m
                if kind == Pass.FORWARD and (stage.number, chunk) in context.gates:
                    gates = context.gates[stage.number, chunk]
                    written[0] = self._write(stage, kind, segments, slow, gates=gates)
                if kind == context.final and (context.reduced or self.training.overlap.gradients):
                    slow *= self.lowering.slow_reducing(stage, kind, segments)
                    written[-1] = self._written(stage, kind, segments, slow, mark=True)
                sizes = np.array([len(one.block) for one in written])
                first = self.builder.reserve(int(sizes.sum()))
                starts = first + starts_of(sizes[:-1])
                stage.passes[kind, chunk] = _Copies([one.block for one in written], starts)
                stage.ends[kind, chunk] = starts[:, None] + np.array([one.ends for one in written])
                if written[-1].marks:
                    base = int(starts[-1])
                    stage.ready[chunk] = [[[base + i for i in ids] for ids in row] for row in written[-1].marks]

    def _written(
        self, stage: _ProgramStage, kind: Pass, segments: list[Segment], slow: float, *, mark: bool = False
    ) -> _Written:
        """A pass of these segments; chunks of equal ones share a block."""
        alike = tuple((s.dense, s.experts, id(s.forward), id(s.backward)) for s in segments)
        key = kind, alike, slow, mark
        if key not in stage.written:
            stage.written[key] = self._write(stage, kind, segments, slow, mark=mark)
        return stage.written[key]

    def _write(
        self,
        stage: Stage,
        kind: Pass,
        segments: list[Segment],
        slow: float,
        *,
        gates: list[I64] | None = None,
        mark: bool = False,
    ) -> _Written:
        # a pass waits for what its stage did before, its message, the send before it
        inlets = 1 if kind == Pass.WEIGHT else 3 if self.context.blocking else 2
        target = ProgramPass(self.builder, self.groups, stage, slow, inlets=inlets)
        marks = self.lowering.lower(target, kind, segments, gates=gates, mark=mark)
        return _Written(target.block, target.close(), marks)

    # --- messages between stages

    def _messages(self, stages: list[_ProgramStage]) -> None:
        """Lay down the messages after passes; `sent` of a stage keeps them."""
        if self.layout.pp == 1:
            return
        for stage in stages:
            for kind, step in ((Pass.FORWARD, 1), (Pass.BACKWARD, -1)):
                self._send(stages, stage, kind, step)

    def _send(self, stages: list[_ProgramStage], here: _ProgramStage, kind: Pass, step: int) -> None:
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
        ends = np.stack([here.ends_of(task) for task in tasks])
        for a, positions in enumerate(self.cells.positions):
            ranks = [self.layout.grid[s.number][np.ix_(here.units, positions)].reshape(-1) for s in (here, there)]
            name = f"{what}, stage {here.number} to {there.number}"
            pairs = np.stack(ranks, axis=1)
            message = self.groups.factory.send(pairs, self.context.message_bytes, name)
            number = builder.communication(message, [here.actors[a], there.actors[a]])
            ids = builder.reserve(len(tasks)) + np.arange(len(tasks))
            block = Block()
            block.communicate(here.actors[a], number, label, [inlet(0), inlet(1)])
            before = np.concatenate([[NONE], ids[:-1]])  # one stream carries them in order
            builder.place(block, ids, micro_batch=micro_batch, inlets=np.stack([ends[:, a], before], axis=1))
            for chunk in range(self.job.chunks):
                mine = chunks == chunk
                here.sent[kind, chunk][micro_batch[mine], a] = ids[mine]

    def _arrivals(self, stage: _ProgramStage, kind: Pass, chunk: int) -> I64:
        """[m, A] what a chunk's passes wait for: the message, and its slices gathered."""
        m, actors = self.job.micro_batches, len(stage.actors)
        v = chunk * self.layout.pp + stage.number + (-1 if kind == Pass.FORWARD else 1)
        if kind == Pass.WEIGHT or self.layout.pp == 1 or not 0 <= v < self.layout.pp * self.job.chunks:
            return np.full((m, actors), NONE, np.int64)
        sender = self.stages[stage.cell][v % self.layout.pp]
        sent = sender.sent[kind, v // self.layout.pp]
        if not self.context.sends_slices:
            return sent
        whole = self.context.message_bytes * self.layout.tp
        slices = Collective("slices", "all_gather", whole)
        label = self.builder.label("gather activations", "pp")
        gathered = sent.copy()
        for number, classes in self.groups.within(slices, stage.number, stage.units, stage.cell, stage.actors):
            ids = self.builder.reserve(m) + np.arange(m)
            block = Block()
            block.communicate(stage.actors[classes[0]], number, label, [inlet(i) for i in range(len(classes))])
            self.builder.place(block, ids, micro_batch=np.arange(m), inlets=sent[:, classes])
            gathered[:, classes] = ids[:, None]
        return gathered

    def _lay_down(self, stage: _ProgramStage) -> None:
        """All passes of a stage, in the order of its schedule."""
        m, actors = self.job.micro_batches, len(stage.actors)
        before = {key: np.full((m, actors), NONE, np.int64) for key in stage.passes}
        sends = {key: np.full((m, actors), NONE, np.int64) for key in stage.passes}
        order = self.orders[stage.number]
        for task, previous in zip(order[1:], order[:-1], strict=True):
            before[task.kind, task.chunk][task.micro_batch] = stage.ends_of(previous)
            if self.context.blocking and (previous.kind, previous.chunk) in stage.sent:
                sent = stage.sent[previous.kind, previous.chunk][previous.micro_batch]
                sends[task.kind, task.chunk][task.micro_batch] = sent
        for (kind, chunk), copies in stage.passes.items():
            columns = [before[kind, chunk]]
            if kind != Pass.WEIGHT:
                columns.append(self._arrivals(stage, kind, chunk))
                columns += [sends[kind, chunk]] if self.context.blocking else []
            inlets = np.concatenate(columns, axis=1)
            for block in {id(block): block for block in copies.blocks}.values():
                rows = np.array([i for i, other in enumerate(copies.blocks) if other is block])
                mine = inlets[rows]
                if kind == Pass.FORWARD and rows[0] == 0 and (stage.number, chunk) in self.context.gates:
                    gates = self.context.gates[stage.number, chunk]
                    mine = np.concatenate([mine, np.concatenate(distinct_gates(gates))[None]], axis=1)
                self.builder.place(block, copies.starts[rows], micro_batch=rows, inlets=mine)


def _span(numbers: I64) -> str:
    """`3` or `0-2, 4-7`."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def build_program(job: Job, *, name: str, fold: bool, library: Library | None = None) -> Program:
    """The program of a checked job; `library` is NCCL where it is to choose."""
    return TrainingProgram(job, name, fold, library).build()
