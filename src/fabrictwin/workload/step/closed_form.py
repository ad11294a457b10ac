"""A training step in closed form: no graph of operations, for a search over thousands of layouts.

The pieces are those of the lowering itself: the scripts of layers, the passes of chunks, the buckets of the end of
the step. Only the clock differs: a communication is a duration (`prices`), a pass is added up once and not laid
down for every micro-batch, and the schedule is played stage by stage.

Cheaper than the lowering by two more shortcuts. Of a chunk's equal layers a few are added up and the rest
extrapolated. Of many micro-batches the first are played; then each group of as many as there are stages takes as
long as the one before.

Left out: slow GPUs and changed links (everything is as built), and folding: all replicas are alike.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fabrictwin.program.builder import Block, ProgramBuilder
from fabrictwin.program.program import NONE
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.job_communications import slowed_ps
from fabrictwin.workload.job.rank_layout import Cells
from fabrictwin.workload.job.training_checks import IN_PASS, SHARDED
from fabrictwin.workload.layers.pass_script import Script, Talk
from fabrictwin.workload.layers.roofline import NOTHING
from fabrictwin.workload.layers.stage_segments import Segment, buckets
from fabrictwin.workload.step.closed_form_cache import Cached, Remembering
from fabrictwin.workload.step.communication_times import Moments, Passed, Priced, Prices
from fabrictwin.workload.step.optimizer_step import Finish
from fabrictwin.workload.step.pipeline_schedule import Pass, Task, order_of
from fabrictwin.workload.step.script_lowering import Chain, _Open
from fabrictwin.workload.step.training_program import Laid, Lowering, Stage

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

_GROUPS_PLAYED = 4  # of as many micro-batches as stages, before the rest is extrapolated
_LEAST_PLAYED = 16


@dataclass(frozen=True)
class Estimate:
    """A step, and where the slowest stage's time goes. The parts add up to it."""

    step_ps: int
    compute_ps: int  # passes, recomputation included
    exchange_ps: int  # communication in passes that compute does not hide
    pipeline_ps: int  # waiting for other stages
    finish_ps: int  # gradients, optimizer, parameters
    balanced_ps: int  # the step if no stage waited for another: passes of the busiest, and the end of the step

    @property
    def shares(self) -> dict[str, float]:
        return {
            "compute": self.compute_ps / self.step_ps,
            "communication in passes": self.exchange_ps / self.step_ps,
            "pipeline": self.pipeline_ps / self.step_ps,
            "end of step": self.finish_ps / self.step_ps,
        }


class _Clock(Chain):
    """A chain that counts time from the start of its block. `computed` is what its compute takes."""

    def __init__(self, *args: Any, gates: list[float], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.now = self.computed = 0.0
        self._gates = gates
        self._ends: dict[str, float] = {}
        self._until: dict[object, float] = {}

    def flush(self) -> None:
        if self._label == NONE:
            return
        took = self._pending.took_ps(self._launch_ps) * self.slow
        extra = 0.0
        for other in self._open.values():
            extra += slowed_ps(took, other.left_ps, other.sms, self._sm_count)
            other.left_ps = max(0.0, other.left_ps - took)
        self.now += took + extra
        self.computed += took + extra
        self._pending, self._label = NOTHING, NONE

    def start(self, key: object, talk: Talk) -> None:
        self.flush()
        made = self.groups.within(talk, self.stage, self.units, self.number, self.actors)
        if not made:
            return
        price = cast(Moments, self.builder).prices[made[0][0]]
        end = max(self.now, self._ends.get(talk.group, 0.0)) + price
        self._ends[talk.group] = self._until[key] = end
        left = self.groups.roughly_within_ps(talk, self.stage) if talk.sms else 0.0
        self._open[key] = _Open([], [], left, talk.sms)

    def wait(self, key: object) -> None:
        if key in self._open:
            self.flush()
            del self._open[key]
            self.now = max(self.now, self._until[key])

    def mark(self) -> Any:
        self.flush()
        return self.now

    def gate(self, first: int) -> None:
        self.flush()
        self.now = max(self.now, self._gates.pop(0))

    def operations(self, key: object) -> Any:
        return self._until.get(key, self.now)

    def ends(self) -> Any:
        self.flush()
        return self.now


@cache
def _orders(schedule: Any, stages: int, chunks: int, micro_batches: int) -> tuple[npt.NDArray[np.int32], ...]:
    """(kind, micro-batch, chunk), each [stages, tasks]."""
    tasks = np.array([order_of(schedule, s, stages, chunks, micro_batches) for s in range(stages)], np.int32)
    kind, micro_batch, chunk = (np.ascontiguousarray(tasks[:, :, i]) for i in range(3))
    return kind, micro_batch, chunk


class _Finish(Finish):
    """The end of the step on the stages that can be last: a middle one does as the second does, and sooner."""

    @cached_property
    def stages(self) -> list[int]:
        pp = self.layout.pp
        alike = len(set(cast(Closed, self.low).offsets)) == 1
        return sorted({0, min(1, pp - 1), pp - 1}) if alike else list(range(pp))

    def gather_first(self) -> None:
        pp, counts = self.layout.pp, self.job.stage_layers
        alike = all(count == counts[1] for count in counts[1:-1]) if pp > 2 else True
        gathered = self.stages if alike else list(range(pp))
        self._gather_first(gathered)
        for s in range(pp):
            for chunk in range(self.job.chunks):
                self.low.gates.setdefault((s, chunk), self.low.gates[min(1, pp - 1), chunk])

    def _gather_first(self, stages: list[int]) -> None:
        for s in stages:
            for chunk in range(self.job.chunks):
                segments = self.low.segments.of(s, chunk)
                gates: list[I64] = [np.empty(0, np.int64)] * len(segments)
                for bucket in buckets(segments, self.job.gradient_bytes, self.training.overlap.bucket):
                    held = [segments[i] for i in bucket]
                    ready = self._gather(s, sum(x.dense for x in held), sum(x.experts for x in held), after={})
                    gate = np.array([max(ids, default=NONE) for ids in ready], np.int64)
                    for i in bucket:
                        gates[i] = gate
                self.low.gates[s, chunk] = gates

    def lay(self) -> None:
        reduced = {s: [(bucket, self._reduce(s, bucket)) for bucket in self._buckets(s)] for s in self.stages}
        tied = self._tie(reduced)
        for s in self.stages:
            self._step(s, reduced[s], tied)


class Closed(Lowering):
    """The step of a job, added up."""

    def __init__(self, job: Job, prices: Prices) -> None:
        # what the lowering sets up, with clocks for builders, and the end of the step told of one micro-batch
        self.micro_batches = job.micro_batches
        same = {field.name: getattr(job, field.name) for field in fields(Job)}
        self.job: Job = Remembering(**{**same, "micro_batches": 1})
        self.layout, self.training = job.layout, job.training
        self.cells = Cells((np.arange(job.layout.units),), (np.arange(job.layout.positions),))
        self.moments = Moments()
        self.builder = cast(ProgramBuilder, self.moments)
        self.groups: Priced = Priced(self.job, self.cells, self.moments, prices)
        self.segments: Cached = Cached(self.job)
        self.sm_count = self.groups.sm_count
        schedule = self.training.parallel.schedule
        self.split = schedule == "zero-bubble"
        self.final = Pass.WEIGHT if self.split else Pass.BACKWARD
        strategy = self.training.sharding.strategy
        several = self.layout.width * self.layout.cp > 1
        self.sharded = strategy in SHARDED and several
        self.reduced = strategy in IN_PASS and several
        sliced = self.training.scatter_gather or job.shape.sequence_parallel
        self.message_bytes = job.shape.tokens * job.model.hidden * 2 // (self.layout.tp if sliced else 1)
        self.gates: dict[tuple[int, int], list[I64]] = {}
        units = self.cells.units[0]
        self.stages = [[Stage(s, units, 0, [0], [1.0]) for s in range(self.layout.pp)]]
        self._gate_times: list[float] = []
        self.kinds: list[Pass] = []
        self._clock: _Clock | None = None
        self.prices = prices
        inside = int(np.bincount(job.host_of_rank - job.host_of_rank.min()).max())
        # where in a host each stage begins: stages that begin alike lie alike
        self.offsets = [s * (self.layout.ranks // self.layout.pp) % inside for s in range(self.layout.pp)]

    def _chain(self, stage: Stage, inlets: int, slow: float) -> Chain:
        self._clock = _Clock(
            self.builder,
            self.groups,
            stage=stage.number,
            units=stage.units,
            number=stage.cell,
            actors=stage.actors,
            factors=stage.factors,
            inlets=inlets,
            slow=slow,
            gates=self._gate_times,
        )
        return self._clock

    # --- passes

    def _scripts(self, segments: list[Segment], kind: Pass) -> list[Script]:
        if kind == Pass.FORWARD:
            return [segment.forward for segment in segments]
        if not self.split:
            return [segment.backward for segment in segments]
        return [segment.backward.apart("weight")[kind == Pass.WEIGHT] for segment in segments]

    def _timed(
        self, stage: Stage, kind: Pass, segments: list[Segment], *, mark: bool, gates: list[I64] | None = None
    ) -> Passed:
        found = self._written(
            stage, kind, segments, self._scripts(segments, kind), 1.0, gates=gates or [], mark=mark
        )
        _, took, marks = cast(tuple[Block, float, list[float]], found)
        assert self._clock is not None
        return Passed(took, self._clock.computed, tuple(marks))

    def _sign(self, s: int, chunk: int) -> tuple[object, ...]:
        """What a chunk's passes depend on beside the layout: its ends, its layers' kinds and loads."""
        layers, model, wide = self.job.layers_of(s, chunk), self.job.model, self.job.training.wide_layers
        loads: tuple[object, ...] = ()
        if model.experts or model.pattern or wide.first or wide.last:
            loads = tuple((self.job.load(n), model.kind(n), self.segments.is_wide(n)) for n in layers)
        return (
            s == 0 and chunk == 0,
            s == self.layout.pp - 1 and chunk == self.job.chunks - 1,
            len(layers),
            loads,
        )

    @cached_property
    def _place(self) -> tuple[object, ...]:
        """What passes of different layouts have in common."""
        layout, training = self.layout, self.training
        wide: tuple[object, ...] = (layout.width, layout.dp, layout.pp == 1) if self.reduced else ()
        if layout.ep > 1:
            unit = layout.grid[0, 0]
            wide = (*wide, *(self.prices.lie(unit[layout.inside(kind)]) for kind in ("ep", "expert_tp")))
        return (
            *self.segments.key,
            training.host,
            training.sharding,
            training.overlap.collective_sms,
            training.overlap.bucket if self.reduced else 0,
            training.gradient_precision,
            self.split,
            *(layout.tp, layout.cp, layout.ep, layout.expert_tp),
            *wide,
        )

    def _pass(self, stage: Stage, chunk: int, kind: Pass, *, mark: bool = False) -> Passed:
        """A pass of a chunk; of its equal layers a few are timed and the rest extrapolated."""
        sign = self._sign(stage.number, chunk)
        first, last, count, loads = cast(tuple[bool, bool, int, tuple[object, ...]], sign)
        place = (*self._place, first, last, kind, mark, self.offsets[stage.number])
        known = self.prices.passes
        # where the reductions of a pass go by bucket, or layers differ, nothing is left out
        few = 4 + self.training.sharding.prefetch if self.sharded else 2
        if count <= few or len(set(loads)) > 1 or (self.reduced and not self.sharded):
            key = (*place, count, loads)
            if key not in known:
                known[key] = self._timed(stage, kind, self.segments.of(stage.number, chunk), mark=mark)
            return known[key]
        segments = self.segments.of(stage.number, chunk)
        for some in (few - 1, few):
            key = (*place, some, loads[:1])
            if key not in known:
                cut = [*segments[: first + some], *segments[first + count :]]
                known[key] = self._timed(stage, kind, cut, mark=mark)
        less, more = (known[*place, some, loads[:1]] for some in (few - 1, few))
        times, each = count - few, more.took - less.took
        return Passed(
            more.took + times * each,
            more.computed + times * (more.computed - less.computed),
            _stretched(more.marks, times, each, int(first)) if mark else (),
        )

    # --- the schedule

    def _sends(self) -> tuple[F64, F64]:
        """([stages, 2] messages forward and back, [stages] gathering their slices)."""
        pp, size = self.layout.pp, self.message_bytes
        sends, slices = np.zeros((pp, 2)), np.zeros(pp)
        sliced = self.layout.tp > 1 and not self.job.shape.sequence_parallel and self.training.scatter_gather
        own = set(self.offsets) == {0}  # each stage has hosts of its own
        for stage in self.stages[0] if pp > 1 else []:
            s = stage.number
            if own and 1 < s < pp - 1:
                sends[s], slices[s] = sends[1], slices[1]
                continue
            for way, to in enumerate(((s + 1) % pp, (s - 1) % pp)):
                pairs = np.stack([self.layout.grid[s].reshape(-1), self.layout.grid[to].reshape(-1)], axis=1)
                sends[s, way] = self.prices.of(
                    "pp", ("send",), pairs, size, 1, lambda some, n: (self.groups.send(some, n, "send"),)
                )
            if sliced:
                talk = Talk("slices", "all_gather", size * self.layout.tp)
                made = self.groups.within(talk, s, stage.units, 0, stage.actors)
                slices[s] = self.moments.prices[made[0][0]]
        return sends, slices

    def _play(self, m: int, took: F64, first: F64, last: F64, sends: F64, slices: F64) -> tuple[F64, F64]:
        from fabrictwin.kernel.schedule.pipeline_times import play

        pp, chunks = self.layout.pp, self.job.chunks
        orders = _orders(self.training.parallel.schedule, pp, chunks, m)
        begin, end = np.zeros((3, pp, chunks, m)), np.zeros((3, pp, chunks, m))
        done = cast(Any, play)(*orders, took, sends, slices, self._blocking, first, last, begin, end)
        assert done, "a schedule waits for itself"
        return begin, end

    def _time_passes(self) -> None:
        """What passes take: [3, S, C] usually, of that compute, and the last micro-batch's more than usual."""
        if self.kinds:
            return  # for the bound
        pp, chunks = self.layout.pp, self.job.chunks
        self.took, self.computed, self.extra = (np.zeros((3, pp, chunks)) for _ in range(3))
        self.kinds = [Pass.FORWARD, Pass.BACKWARD, *([Pass.WEIGHT] if self.split else [])]
        found: dict[tuple[object, ...], Passed] = {}
        for stage in self.stages[0]:
            s = stage.number
            for chunk in range(chunks):
                place = (*self._sign(s, chunk), s in (0, pp - 1), self.offsets[s])
                for kind in self.kinds:
                    key = (kind, *place)
                    if key not in found:
                        slow = self._send_slows(self._scripts(self.segments.of(s, chunk), kind))
                        found[key] = self._pass(stage, chunk, kind).slowed(slow)
                    self.took[int(kind), s, chunk] = found[key].took
                    self.computed[int(kind), s, chunk] = found[key].computed

    def _time_last(self) -> dict[tuple[int, int], tuple[float, ...]]:
        """Fill `extra`; when the gradients of each segment are there, from the start of a chunk's last pass."""
        if not (self.reduced or self.training.overlap.gradients):
            return {}
        pp, kind = self.layout.pp, self.final
        found: dict[tuple[object, ...], Passed] = {}
        marks = {}
        for stage in self.stages[0]:
            s = stage.number
            for chunk in range(self.job.chunks):
                key = (*self._sign(s, chunk), s in (0, pp - 1), self.offsets[s])
                if key not in found:
                    segments = self.segments.of(s, chunk)
                    scripts = self._scripts(segments, kind)
                    slow = self._send_slows(scripts) * self._reduce_slows(stage, segments, scripts)
                    found[key] = self._pass(stage, chunk, kind, mark=True).slowed(slow)
                at = (int(kind), s, chunk)
                self.extra[at] = found[key].took - self.took[at]
                marks[s, chunk] = found[key].marks
        return marks

    def _played(self, first: F64, sends: F64, slices: F64) -> tuple[F64, F64, float]:
        """When passes begin and end; of many micro-batches the first, and how much later the last are."""
        pp, m = self.layout.pp, self.micro_batches
        played = max(_LEAST_PLAYED, _GROUPS_PLAYED * pp) // pp * pp
        played = min(m, max(played, pp))
        begin, end = self._play(played, self.took, first, self.extra, sends, slices)
        shift = 0.0
        if m > played:
            _, later = self._play(played + pp, self.took, first, self.extra, sends, slices)
            shift = float((later.max() - end.max()) * (m - played) / pp)
        return begin, end, shift

    def bound_ps(self) -> float:
        """Less than the step takes: its passes and the optimizer behind them.

        Left out are parameters gathered at the start, and gradients that the optimizer waits for.
        """
        self._time_passes()
        self._time_last()
        sends, slices = self._sends()
        _, end, shift = self._played(np.zeros(self.took.shape[1:]), sends, slices)
        finish = _Finish(self)
        apart = self.training.overlap.optimizer  # bucket by bucket, beside the passes
        return shift + max(
            float(end[:, s].max()) + (0 if apart else finish.optimizer_ps(*self.job.split_parameters(s)))
            for s in finish.stages
        )

    def estimate(self) -> Estimate:
        """The step's time and where it goes."""
        pp, chunks, m = self.layout.pp, self.job.chunks, self.micro_batches
        finish = _Finish(self)
        if self.training.overlap.parameters:
            finish.gather_first()
        self._time_passes()
        marks = self._time_last()
        sends, slices = self._sends()
        first = np.zeros((pp, chunks))
        if self.gates:
            begin, _ = self._play(min(m, pp), self.took, first, self.extra, sends, slices)
            for stage in self.stages[0]:
                for chunk in range(chunks):
                    s = stage.number
                    usual = self.took[0, s, chunk]
                    first[s, chunk] = self._gated(stage, chunk, begin[0, s, chunk, 0], usual) - usual
        begin, end, shift = self._played(first, sends, slices)
        last = int(end[:, :, :, -1].max(axis=(0, 2)).argmax())
        self._end(begin[..., -1] + shift, end[..., -1] + shift, self.kinds, marks)
        finish.lay()
        step = max(self.moments.ends)
        passes = end.max() + shift
        each = m * self.took.sum(axis=(0, 2)) + self.extra.sum(axis=(0, 2)) + first.sum(axis=1)
        own = each[last]
        compute = m * self.computed[:, last].sum()
        total = round(step)
        spent, exchanged, waited = round(compute), round(own - compute), round(passes - own)
        end_of_step = total - spent - exchanged - waited
        return Estimate(total, spent, exchanged, waited, end_of_step, round(each.max()) + end_of_step)

    def _gated(self, stage: Stage, chunk: int, start: float, usual: float) -> float:
        """The first micro-batch's forward, which waits for parameters on its way."""
        gates = self.gates[stage.number, chunk]
        apart = [g for i, g in enumerate(gates) if i == 0 or g is not gates[i - 1]]
        self._gate_times = [
            max((self.moments.ends[int(i)] for i in gate if i != NONE), default=0.0) - start for gate in apart
        ]
        if max(self._gate_times) <= 0:
            return usual
        found = self._timed(stage, Pass.FORWARD, self.segments.of(stage.number, chunk), mark=False, gates=gates)
        self._gate_times = []
        return max(usual, found.took)

    def _end(
        self, begin: F64, end: F64, kinds: list[Pass], marks: dict[tuple[int, int], tuple[float, ...]]
    ) -> None:
        """Tell the end of the step when the last micro-batch's passes are done: [3, S, C] moments."""
        self.orders = []
        for stage in self.stages[0]:
            s = stage.number
            tasks = []
            for chunk in range(self.job.chunks):
                for kind in kinds:
                    moment = float(end[int(kind), s, chunk])
                    stage.passes[kind, chunk] = Laid(
                        [], np.zeros(1, np.int64), np.array([[self.moments.at(moment)]])
                    )
                    tasks.append((moment, Task(kind, 0, chunk)))
                if (s, chunk) in marks:
                    start = float(begin[int(self.final), s, chunk])
                    stage.ready[chunk] = [[[self.moments.at(start + mark)]] for mark in marks[s, chunk]]
            self.orders.append([task for _, task in sorted(tasks, key=lambda pair: pair[0])])


def _stretched(marks: tuple[float, ...], times: int, each: float, lead: int) -> tuple[float, ...]:
    """Marks of a backward pass with `times` more layers put in among its equal ones.

    The backward runs from the last segment to the first, so what lies before the new layers is later by them.
    """
    at = lead + 1  # segments below this one come after the new layers
    upper = marks[at:]
    new = tuple(upper[0] + each * (i + 1) for i in range(times))
    return (*(mark + each * times for mark in marks[:at]), *new[::-1], *upper)
