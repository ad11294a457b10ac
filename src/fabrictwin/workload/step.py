"""A training step lowered to a program: data, tensor and pipeline parallel, 1F1B, full recomputation or none.

A stage works through its micro-batches in 1F1B order. A layer's forward is two stretches of compute, each followed
by a tensor-parallel all-reduce; its backward likewise; full recomputation runs the forward again before it, with
its all-reduces (Narayanan et al. 2021; Korthikanti et al. 2022, figure 4). Activations and their gradients go to
the neighbouring stage as messages that overlap with compute; each tensor-parallel rank sends its slice, and the
receivers gather it (Narayanan et al. 2021, section 4.1), unless `scatter_gather` is off. After a stage's last
backward its gradients are reduced over data-parallel ranks, then (first and last stage, tied embeddings) the
embedding's; then the optimizer runs. Nothing of the reduction overlaps with backward.

Left out: embedding-gradient scaling, gradient-norm reductions of a few bytes, the data loader.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fabrictwin.errors import ConfigError
from fabrictwin.program import collectives
from fabrictwin.program.builder import Block, ProgramBuilder, inlet
from fabrictwin.program.program import NONE, Communication, Program
from fabrictwin.units import PS_PER_US
from fabrictwin.workload.job import Job
from fabrictwin.workload.layout import Cells
from fabrictwin.workload.pipeline import one_forward_one_backward
from fabrictwin.workload.roofline import Roofline
from fabrictwin.workload.transformer import EndTimes, LayerTimes, end_times, layer_times, optimizer_ps

I64 = npt.NDArray[np.int64]

# What a rank spends on a step of a collective beside the wire: flags, polling, the proxy between hosts. NCCL 2.30
# (src/graph/tuning.cc) gives a ring's LL128 hop 1.9 us over NVLink and 4.0 us over the network, wire included; the
# wire's own latency, which the twin counts by itself, is about 0.6 us and 1.9 us of these.
STEP_IN_HOST_PS = 13 * PS_PER_US // 10
STEP_BETWEEN_HOSTS_PS = 21 * PS_PER_US // 10


@dataclass
class _Stage:
    """One stage of one class of replicas: its actors, its blocks, and where their copies were laid down."""

    actors: list[int]
    forward: Block = field(default_factory=Block)
    backward: Block = field(default_factory=Block)
    forward_last: list[int] = field(default_factory=list)
    backward_last: list[int] = field(default_factory=list)
    forward_at: int = 0
    backward_at: int = 0

    def ends(self, forward: bool, micro_batch: npt.ArrayLike) -> I64:
        """[..., actors] ids of the last operations of a pass."""
        block, at, last = (
            (self.forward, self.forward_at, self.forward_last)
            if forward
            else (self.backward, self.backward_at, self.backward_last)
        )
        ends: I64 = at + np.asarray(micro_batch)[..., None] * len(block) + np.array(last)
        return ends


class _Chain:
    """Lays compute and collectives one after the other into a block; compute of one label joins up."""

    def __init__(self, block: Block, actors: list[int], factors: list[float]) -> None:
        self.block, self.actors, self.factors = block, actors, factors
        count = len(actors)
        # inlet a is what actor a did before, inlet count + a what it waits for from a neighbouring stage
        self.last: list[list[int]] = [[inlet(a), inlet(count + a)] for a in range(count)]
        self._pending_ps, self._pending_label = 0, NONE

    def compute(self, duration_ps: int, label: int) -> None:
        if label != self._pending_label:
            self.flush()
        self._pending_label = label
        self._pending_ps += duration_ps

    def flush(self) -> None:
        if self._pending_label == NONE:
            return
        for a, actor in enumerate(self.actors):
            duration = round(self._pending_ps * self.factors[a])
            self.last[a] = [self.block.compute(actor, duration, self._pending_label, self.last[a])]
        self._pending_ps, self._pending_label = 0, NONE

    def collective(self, communication: int, label: int) -> None:
        """A communication that every actor of the stage takes part in; NONE where there is none to do."""
        if communication == NONE:
            return
        self.flush()
        before = sorted({i for last in self.last for i in last}, reverse=True)
        op = self.block.communicate(self.actors[0], communication, label, before)
        self.last = [[op] for _ in self.actors]

    def ends(self) -> list[int]:
        self.flush()
        return [last[0] for last in self.last]


class _Lowering:
    """Builds the program of a job."""

    def __init__(self, job: Job, name: str, fold: bool) -> None:
        self.job = job
        self.layout = job.layout
        self.cells = Cells.of(job.layout, job.slowdown, fold=fold)
        self.builder = ProgramBuilder(name, job.layout.ranks)
        self.roof = Roofline(job.gpu, job.training.precision)
        self.layer: LayerTimes = layer_times(self.roof, job.shape)
        self.end: EndTimes = end_times(self.roof, job.shape)
        self.activation_bytes = job.shape.tokens * job.model.hidden * 2
        label = self.builder.label
        self.forward, self.backward = label("forward", "compute"), label("backward", "compute")
        self.again = label("recompute", "recompute")
        self.tp_label = label("tensor-parallel all-reduce", "tp")
        self.send_label = label("send activations", "pp")
        self.return_label = label("send gradients", "pp")
        self.gather_label = label("gather activations", "pp")
        self.dp_label = label("gradient all-reduce", "dp")
        self.tie_label = label("embedding-gradient all-reduce", "dp")
        self.step_label = label("optimizer", "optimizer")
        self.stages: list[list[_Stage]] = []  # [replica class][stage]

    def build(self) -> ProgramBuilder:
        pp = self.layout.pp
        for r, replicas in enumerate(self.cells.replicas):
            self.stages.append([self._stage(r, replicas, s) for s in range(pp)])
        for r, replicas in enumerate(self.cells.replicas):
            arrivals = self._reserve_messages(r, replicas)
            for s in range(pp):
                self._lay_down(r, s, arrivals)
        self._reduce_and_step()
        return self.builder

    def _step_cost(self, groups: I64) -> int:
        hosts = self.job.host_of_rank[groups]
        return STEP_IN_HOST_PS if (hosts == hosts[:, :1]).all() else STEP_BETWEEN_HOSTS_PS

    def _channels(self, groups: I64) -> int:
        """As many as a group has ranks on one host, so that each adapter serves one; one inside a host."""
        hosts = self.job.host_of_rank[groups]
        if (hosts == hosts[:, :1]).all():
            return 1
        return max(int(np.unique(row, return_counts=True)[1].max()) for row in np.unique(hosts, axis=0))

    def _ring(self, groups: I64, size_bytes: int, name: str) -> Communication:
        return collectives.all_reduce(
            groups,
            size_bytes,
            channels=self._channels(groups),
            host_of_rank=self.job.host_of_rank,
            element_bytes=2,
            step_cost_ps=self._step_cost(groups),
            name=name,
        )

    def _stage(self, r: int, replicas: I64, s: int) -> _Stage:
        """Actors and blocks of a stage."""
        job, builder = self.job, self.builder
        actors, factors = [], []
        for positions in self.cells.positions:
            ranks = self.layout.grid[s][np.ix_(replicas, positions)].reshape(-1)
            one = len(ranks) == 1
            name = f"rank {ranks[0]} (stage {s})" if one else f"stage {s}"
            if not one and len(self.cells.replicas) > 1:
                name += f", replica{'s' if len(replicas) > 1 else ''} {_span(replicas)}"
            actors.append(builder.actor(name, ranks))
            factors.append(float(job.slowdown[ranks].max()))
        stage = _Stage(actors)
        reduce = NONE
        if self.layout.tp > 1:
            groups = self.layout.tp_groups(replicas, s)
            reduce = builder.communication(
                self._ring(groups, self.activation_bytes, f"tensor-parallel all-reduce, stage {s}"), actors
            )
        first, last = s == 0, s == self.layout.pp - 1
        layers, layer, end = job.stage_layers, self.layer, self.end

        chain = _Chain(stage.forward, actors, factors)
        if first:
            chain.compute(end.embedding_forward, self.forward)
            chain.collective(reduce, self.tp_label)
        for _ in range(layers):
            chain.compute(layer.attention_forward, self.forward)
            chain.collective(reduce, self.tp_label)
            chain.compute(layer.mlp_forward, self.forward)
            chain.collective(reduce, self.tp_label)
        if last:
            chain.compute(end.output_forward, self.forward)
        stage.forward_last = chain.ends()

        chain = _Chain(stage.backward, actors, factors)
        if last:
            chain.compute(end.output_backward, self.backward)
            chain.collective(reduce, self.tp_label)
        for _ in range(layers):
            if job.training.recompute == "full":
                chain.compute(layer.attention_forward, self.again)
                chain.collective(reduce, self.tp_label)
                chain.compute(layer.mlp_forward, self.again)
                chain.collective(reduce, self.tp_label)
            chain.compute(layer.mlp_backward, self.backward)
            chain.collective(reduce, self.tp_label)
            chain.compute(layer.attention_backward, self.backward)
            chain.collective(reduce, self.tp_label)
        if first:
            chain.compute(end.embedding_backward, self.backward)
        stage.backward_last = chain.ends()
        stage.forward_at = builder.reserve(job.micro_batches * len(stage.forward))
        stage.backward_at = builder.reserve(job.micro_batches * len(stage.backward))
        return stage

    def _reserve_messages(self, r: int, replicas: I64) -> dict[tuple[int, bool], I64]:
        """Lay down the messages between stages. By (stage, forward): what each pass waits for, as

        [micro-batches, actors] ids.
        """
        job, layout, builder = self.job, self.layout, self.builder
        m = job.micro_batches
        every = np.arange(m)
        sliced = job.training.scatter_gather and layout.tp > 1
        size = self.activation_bytes // (layout.tp if sliced else 1)
        arrivals: dict[tuple[int, bool], I64] = {}
        for s in range(layout.pp):
            for forward, to in ((True, s + 1), (False, s - 1)):
                if not 0 <= to < layout.pp:
                    continue
                here, there = self.stages[r][s], self.stages[r][to]
                label = self.send_label if forward else self.return_label
                what = "activations" if forward else "gradients"
                sent = np.empty((m, len(here.actors)), np.int64)
                for a, positions in enumerate(self.cells.positions):
                    source = layout.grid[s][np.ix_(replicas, positions)].reshape(-1)
                    target = layout.grid[to][np.ix_(replicas, positions)].reshape(-1)
                    message = collectives.send(
                        np.stack([source, target], axis=1), size, name=f"{what}, stage {s} to {to}"
                    )
                    number = builder.communication(message, [here.actors[a], there.actors[a]])
                    first = builder.reserve(m)
                    block = Block()
                    block.communicate(here.actors[a], number, label, [inlet(0), inlet(1)])
                    before = np.concatenate([[NONE], first + every[:-1]])
                    ends = here.ends(forward, every)[:, a]
                    builder.place(block, first + every, micro_batch=every, inlets=np.stack([ends, before], axis=1))
                    sent[:, a] = first + every
                if sliced:
                    groups = layout.tp_groups(replicas, to)
                    gather = collectives.all_gather(
                        groups,
                        self.activation_bytes,
                        channels=self._channels(groups),
                        host_of_rank=job.host_of_rank,
                        element_bytes=2,
                        step_cost_ps=self._step_cost(groups),
                        name=f"gather {what}, stage {to}",
                    )
                    number = builder.communication(gather, there.actors)
                    first = builder.reserve(m)
                    block = Block()
                    block.communicate(
                        there.actors[0], number, self.gather_label, [inlet(a) for a in range(len(sent[0]))]
                    )
                    builder.place(block, first + every, micro_batch=every, inlets=sent)
                    sent = np.repeat((first + every)[:, None], len(here.actors), axis=1)
                arrivals[to, forward] = sent
        return arrivals

    def _lay_down(self, r: int, s: int, arrivals: dict[tuple[int, bool], I64]) -> None:
        """All passes of a stage, in 1F1B order."""
        job, stage = self.job, self.stages[r][s]
        m, actors = job.micro_batches, len(stage.actors)
        order = one_forward_one_backward(s, self.layout.pp, m)
        before = {True: np.full((m, actors), NONE, np.int64), False: np.full((m, actors), NONE, np.int64)}
        for task, previous in zip(order[1:], order[:-1], strict=True):
            before[task.forward][task.micro_batch] = stage.ends(previous.forward, previous.micro_batch)
        for forward, block, at in (
            (True, stage.forward, stage.forward_at),
            (False, stage.backward, stage.backward_at),
        ):
            waits = arrivals.get((s, forward), np.full((m, actors), NONE, np.int64))
            every = np.arange(m)
            self.builder.place(
                block,
                at + every * len(block),
                micro_batch=every,
                inlets=np.concatenate([before[forward], waits], axis=1),
            )

    def _reduce_and_step(self) -> None:
        """Gradients over data-parallel ranks, tied embeddings, the optimizer."""
        job, layout, builder = self.job, self.layout, self.builder
        last = job.micro_batches - 1
        reduced: dict[tuple[int, int], list[int]] = {}  # (stage, position class): what the optimizer waits for
        for s in range(layout.pp):
            for a, positions in enumerate(self.cells.positions):
                done = [int(self.stages[r][s].ends(False, last)[a]) for r in range(len(self.cells.replicas))]
                actors = [self.stages[r][s].actors[a] for r in range(len(self.cells.replicas))]
                if layout.dp > 1:
                    groups = layout.dp_groups(positions, s)
                    for phase in self._gradients(
                        groups, job.stage_parameters(s), f"gradient all-reduce, stage {s}"
                    ):
                        number = builder.communication(phase, actors)
                        done = [builder.communicate(number, self.dp_label, after=done)]
                reduced[s, a] = done
        tied: dict[tuple[int, int], int] = {}
        if job.model.tied and layout.pp > 1:
            for r, replicas in enumerate(self.cells.replicas):
                for a, positions in enumerate(self.cells.positions):
                    ends = [layout.grid[s][np.ix_(replicas, positions)].reshape(-1) for s in (0, layout.pp - 1)]
                    size = job.embedding_parameters() * job.gradient_bytes
                    pairs = self._ring(np.stack(ends, axis=1), size, "embedding-gradient all-reduce")
                    actors = [self.stages[r][s].actors[a] for s in (0, layout.pp - 1)]
                    number = builder.communication(pairs, actors)
                    after = [*reduced[0, a], *reduced[layout.pp - 1, a]]
                    tied[r, a] = builder.communicate(number, self.tie_label, after=after)
        for r in range(len(self.cells.replicas)):
            for s in range(layout.pp):
                for a in range(len(self.cells.positions)):
                    after = list(reduced[s, a])
                    if s in (0, layout.pp - 1):
                        after.append(tied.get((r, a), NONE))
                    duration = optimizer_ps(self.roof, job.stage_parameters(s))
                    builder.compute(self.stages[r][s].actors[a], duration, self.step_label, after=after)

    def _gradients(self, groups: I64, parameters: int, name: str) -> tuple[Communication, ...]:
        """The phases of a gradient all-reduce, to be chained. Raises ConfigError."""
        chosen = self.job.training.gradients
        size, element = parameters * self.job.gradient_bytes, self.job.gradient_bytes
        hosts, cost = self.job.host_of_rank, self._step_cost(groups)
        try:
            if chosen.algorithm == "hierarchical":
                return collectives.hierarchical_all_reduce(
                    groups,
                    size,
                    host_of_rank=hosts,
                    channels=chosen.channels or 1,  # every rank of a host has a rail of its own
                    element_bytes=element,
                    step_cost_ps=cost,
                    name=name,
                )
            whole = collectives.all_reduce(
                groups,
                size,
                algorithm=chosen.algorithm,
                channels=chosen.channels or self._channels(groups) * (2 if chosen.algorithm == "tree" else 1),
                host_of_rank=hosts,
                element_bytes=element,
                step_cost_ps=cost,
                name=name,
            )
        except ConfigError as error:
            raise error.within(key="workload.training.gradients") from None
        return (whole,)


def _span(numbers: I64) -> str:
    """`3` or `0-2, 4-7`."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def build_program(job: Job, *, name: str, fold: bool) -> Program:
    """The program of a checked job."""
    return _Lowering(job, name, fold).build().build()
