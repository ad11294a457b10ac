"""A training step in closed form: no graph of operations, for a search over thousands of layouts.

The lowering is that of the program: the passes of chunks, the buckets of the end of the step. Only the target
differs: a communication is a duration, a pass is added up once and not laid down for every micro-batch, and the
schedule is played stage by stage.

Two extrapolations make it cheaper still. Of a chunk's equal layers a few are added up and the rest extrapolated.
Of many micro-batches the first are played; then each group of as many as there are stages takes as long as the one
before.

Left out: slow GPUs and changed links (everything is as built), and folding: all replicas are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from fabrictwin.base.arrays import F64, I64
from fabrictwin.base.records import record
from fabrictwin.program.program import NONE
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.job_communications import Groups
from fabrictwin.workload.job.rank_layout import Cells
from fabrictwin.workload.layers.pass_script import Collective, Script
from fabrictwin.workload.layers.stage_segments import Segment
from fabrictwin.workload.step.closed_form_cache import CachedJob, CachedSegments
from fabrictwin.workload.step.communication_times import Asked, CommunicationTimes, TimedFactory
from fabrictwin.workload.step.optimizer_step import OptimizerStep
from fabrictwin.workload.step.pass_lowering import PassLowering
from fabrictwin.workload.step.pipeline_schedule import Pass, Task, rules_of
from fabrictwin.workload.step.step_clock import StepClock
from fabrictwin.workload.step.step_context import Stage, StepContext, distinct_gates
from fabrictwin.workload.step.timed_pass import PassTime, TimedPass

_GROUPS_PLAYED = 4  # of as many micro-batches as stages, before the rest is extrapolated
_LEAST_PLAYED = 16

Price = Callable[[Asked], float]  # the ps that a communication takes by itself


@record
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
        """Each part as a share of the step."""
        return {
            "compute": self.compute_ps / self.step_ps,
            "communication in passes": self.exchange_ps / self.step_ps,
            "pipeline": self.pipeline_ps / self.step_ps,
            "end of step": self.finish_ps / self.step_ps,
        }


@record
class Played:
    """When passes run in the order of the schedule, in ps."""

    opens: F64  # [stages, chunks] the first micro-batch's forwards begin
    begin: F64  # [3, stages, chunks] the last micro-batch's passes begin
    end: F64  # [3, stages, chunks] they end
    over: F64  # [stages] all passes have ended
    shift: float = 0.0  # by which micro-batches that were not played put off all of these but the first


class Messages(NamedTuple):
    """Times of what goes between stages, in ps."""

    sends: F64  # [stages, 2] forward and back
    slices: F64  # [stages] gathering a message's slices


@record
class PassTimes:
    """Times of passes in ps, [3, stages, chunks] each."""

    took: F64
    computed: F64  # of that compute
    extra: F64  # by which the last micro-batch's takes longer
    marks: dict[tuple[int, int], tuple[float, ...]]  # by stage and chunk, from the start of the last pass
    messages: Messages  # between them
    played: dict[tuple[object, ...], Played] = field(default_factory=dict)  # of them, by what else it depends on


class _ChunkKind(NamedTuple):
    """A chunk, as far as its passes depend on it beside the layout."""

    first: bool  # it holds the embedding
    last: bool  # it holds the output projection
    layers: int
    loads: tuple[object, ...]  # of each layer, where layers differ: its load, its kind, its precision


@cache
def _rules(schedule: Any, stages: int, chunks: int, micro_batches: int) -> I64:
    """[2, stages] the order of each stage's passes (`pipeline_schedule.rules_of`)."""
    return np.array([rules_of(schedule, s, stages, chunks, micro_batches) for s in range(stages)]).T.copy()


class ClosedForm:
    """The step of a job, added up."""

    def __init__(self, job: Job, times: CommunicationTimes) -> None:
        self.micro_batches, self.times = job.micro_batches, times
        # the end of the step sees the last micro-batch alone
        self.job = CachedJob.of(job, micro_batches=1)
        self.layout, self.training = job.layout, job.training
        self.clock = StepClock()
        units = np.arange(job.layout.units)
        cells = Cells((units,), (np.arange(job.layout.positions),))
        self.factory = TimedFactory(self.job, times)
        self.groups: Groups[float] = Groups(self.job, cells, self.clock, self.factory)
        self.segments = CachedSegments(self.job)
        self.stages = [Stage(s, units, 0, [0], [1.0]) for s in range(self.layout.pp)]
        self.context = StepContext(self.job, self.groups, self.segments, stages=[self.stages])
        self.lowering = PassLowering(self.context)
        self.kinds = [Pass.FORWARD, Pass.BACKWARD, *([Pass.WEIGHT] if self.context.split else [])]
        inside = int(np.bincount(job.placement.host_of_rank - job.placement.host_of_rank.min()).max())
        self._asked: dict[Collective, list[Asked]] = {}
        # where in a host each stage begins: stages that begin alike lie alike
        self.offsets = [s * (self.layout.ranks // self.layout.pp) % inside for s in range(self.layout.pp)]

    # --- passes

    def _timed(
        self,
        stage: Stage,
        kind: Pass,
        segments: list[Segment],
        *,
        mark: bool = False,
        gates: list[I64] | None = None,
        opens: Sequence[float] = (),
    ) -> PassTime:
        """A pass; `opens` are the times from its start at which its gates open."""
        target = TimedPass(self.clock, self.groups, stage, gates=opens)
        marks = self.lowering.lower(target, kind, segments, gates=gates, mark=mark)
        return PassTime(target.mark(), target.computed, tuple(marks))

    def _chunk_kind(self, s: int, chunk: int) -> _ChunkKind:
        layers, model, wide = self.job.layers_of(s, chunk), self.job.model, self.training.wide_layers
        loads: tuple[object, ...] = ()
        if model.experts or model.pattern or wide.first or wide.last:
            known = self.job.loads
            loads = tuple((known[n], model.kind(n), self.segments.is_wide(n)) for n in layers)
        first, last = s == 0 and chunk == 0, s == self.layout.pp - 1 and chunk == self.job.chunks - 1
        return _ChunkKind(first, last, len(layers), loads)

    @cached_property
    def layout_key(self) -> int:
        """A number that layouts share whose passes of equal chunks take equally long."""
        layout, training, reduced = self.layout, self.training, self.context.reduced
        wide: tuple[object, ...] = (layout.width, layout.dp, layout.pp == 1) if reduced else ()
        if layout.ep > 1:
            unit = layout.grid[0, 0]
            places = (self.times.placement_key(unit[layout.inside(kind)]) for kind in ("ep", "expert_tp"))
            wide = (*wide, *places)
        key = (
            *self.segments.key,
            training.host,
            training.sharding,
            training.overlap.collective_sms,
            training.overlap.bucket if reduced else 0,
            training.gradient_precision,
            training.weights,
            self.context.split,
            *(layout.tp, layout.cp, layout.ep, layout.expert_tp),
            *wide,
        )
        return self.times.numbers.setdefault(key, len(self.times.numbers))

    def _pass(self, stage: Stage, chunk: int, kind: Pass, *, mark: bool = False) -> PassTime:
        """A pass of a chunk; of its equal layers a few are timed and the rest extrapolated."""
        first, last, count, loads = self._chunk_kind(stage.number, chunk)
        place = (self.layout_key, first, last, kind, mark, self.offsets[stage.number])
        known, sharded = self.times.passes, self.context.sharded
        # where the reductions of a pass go by bucket, or layers differ, nothing is left out
        few = 4 + self.training.sharding.prefetch if sharded else 2
        if count <= few or len(set(loads)) > 1 or (self.context.reduced and not sharded):
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
        fewer, more = (known[*place, some, loads[:1]] for some in (few - 1, few))
        return more.with_layers(fewer, count - few, int(first))

    @cached_property
    def passes(self) -> PassTimes:
        """The times of all passes."""
        took, computed, extra = (np.zeros((3, self.layout.pp, self.job.chunks)) for _ in range(3))
        marks: dict[tuple[int, int], tuple[float, ...]] = {}
        found: dict[tuple[object, ...], tuple[list[PassTime], PassTime | None]] = {}
        final = int(self.context.final)
        for stage in self.stages:
            s = stage.number
            for chunk in range(self.job.chunks):
                place = (self._chunk_kind(s, chunk), s in (0, self.layout.pp - 1), self.offsets[s])
                if place not in found:
                    found[place] = self._passes(stage, chunk)
                usual, last = found[place]
                for kind, one in enumerate(usual):
                    took[kind, s, chunk], computed[kind, s, chunk] = one.took, one.computed
                if last is not None:
                    extra[final, s, chunk] = last.took - usual[final].took
                    marks[s, chunk] = last.marks
        return PassTimes(took, computed, extra, marks, self.messages(self.times.of))

    def _passes(self, stage: Stage, chunk: int) -> tuple[list[PassTime], PassTime | None]:
        """(a chunk's passes by their kind, the last micro-batch's final one where gradients go beside it)."""
        segments, final = self.segments.of(stage.number, chunk), self.context.final
        slow = [self.lowering.slow(kind, segments) for kind in self.kinds]
        usual = [self._pass(stage, chunk, kind).slowed(by) for kind, by in zip(self.kinds, slow, strict=True)]
        if not (self.context.reduced or self.training.overlap.gradients):
            return usual, None
        by = slow[int(final)] * self.lowering.slow_reducing(stage, final, segments)
        return usual, self._pass(stage, chunk, final, mark=True).slowed(by)

    # --- the schedule

    @cached_property
    def _pairs(self) -> dict[int, tuple[I64, I64]]:
        """[pairs, 2] ranks of a stage and who its messages forward go to, and back, by stage.

        Where each has hosts of its own, a middle one's go as the second's.
        """
        grid, pp = self.layout.grid, self.layout.pp
        if pp == 1:
            return {}
        stages = sorted({0, 1, pp - 1}) if set(self.offsets) == {0} else range(pp)
        ranks = [grid[s].reshape(-1) for s in range(pp)]

        def pairs(s: int, to: int) -> I64:
            return np.stack([ranks[s], ranks[to % pp]], axis=1)

        return {s: (pairs(s, s + 1), pairs(s, s - 1)) for s in stages}

    @cached_property
    def _sends(self) -> dict[int, tuple[Asked, Asked]]:
        """Messages of a stage forward and back."""
        size, asked = self.context.message_bytes, self.factory.asked_send
        return {s: (asked(ahead, size), asked(back, size)) for s, (ahead, back) in self._pairs.items()}

    @property
    def sends(self) -> list[Asked]:
        """Messages between stages."""
        return [each for both in self._sends.values() for each in both]

    def messages(self, price: Price) -> Messages:
        """Times of messages where each communication takes so long."""
        pp, size = self.layout.pp, self.context.message_bytes
        sends, slices = np.zeros((pp, 2)), np.zeros(pp)
        for stage in self.stages if pp > 1 else []:
            s = stage.number
            if s not in self._sends:
                sends[s], slices[s] = sends[1], slices[1]
                continue
            sends[s] = [price(each) for each in self._sends[s]]
            if self.context.sends_slices:
                slices[s] = price(
                    self._within(Collective("slices", "all_gather", size * self.layout.tp), stage)[0]
                )
        return Messages(sends, slices)

    def play(self, passes: PassTimes, m: int, first: F64, more: int = 0) -> Played:
        """Times of passes of `m` micro-batches, whose first forwards take `first` [stages, chunks] ps more.

        The shift is that by `more` micro-batches.
        """
        from fabrictwin.kernel.schedule.pipeline_times import NEVER, play

        key = m, more, first.tobytes()
        if key not in passes.played:
            pp, chunks = self.layout.pp, self.job.chunks
            rules = _rules(self.training.parallel.schedule, pp, chunks, m + more)
            found = Played(
                np.zeros((pp, chunks)), np.zeros((3, pp, chunks)), np.zeros((3, pp, chunks)), np.zeros(pp)
            )
            times = passes.took, *passes.messages, self.context.blocking, first, passes.extra
            late = cast(Any, play)(*rules, *times, m, more, found.opens, found.begin, found.end, found.over)
            assert late != NEVER, "a schedule waits for itself"
            passes.played[key] = replace(found, shift=float(late - found.over.max()))
        return passes.played[key]

    def played(self, passes: PassTimes, first: F64) -> Played:
        """Times of all passes: of many micro-batches some are played, and what they put off the last by."""
        pp, m = self.layout.pp, self.micro_batches
        played = max(_LEAST_PLAYED, _GROUPS_PLAYED * pp) // pp * pp
        played = min(m, max(played, pp))
        if m == played:
            return self.play(passes, m, first)
        found = self.play(passes, played, first, pp)
        return replace(found, shift=found.shift * (m - played) / pp)

    # --- bounds

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Places in a host where stages begin, each once."""
        return tuple(sorted(set(self.offsets)))

    @property
    def _placed(self) -> list[Stage]:
        """The first stage at each of these places."""
        return [self.stages[self.offsets.index(place)] for place in self.places]

    def _within(self, collective: Collective, stage: Stage) -> list[Asked]:
        """A pass's communication in one stage; none where groups are of one rank."""
        groups = self.groups.ranks_within(collective.group, stage.number, stage.units, stage.cell)
        return [self.factory.asked_collective(collective, ranks) for ranks, _ in groups]

    def asked(self, collective: Collective) -> list[Asked]:
        """A pass's communication in the first stage at each place."""
        if collective not in self._asked:
            self._asked[collective] = [one for stage in self._placed for one in self._within(collective, stage)]
        return self._asked[collective]

    def communicated(self, scripts: Iterable[Script]) -> list[Asked]:
        """Return what these communicate at each place, and messages between stages."""
        collectives = dict.fromkeys(each for script in scripts for each in script.collectives())
        within = [one for each in collectives for one in self.asked(each)]
        return [*within, *self.sends]

    def least_ps(self, collective: Collective, price: Price) -> float:
        """The time in ps that a pass's communication takes by itself, in the stage where it takes least."""
        return min(map(price, self.asked(collective)), default=0.0)

    def optimizers_ps(self, parameters: F64) -> F64:
        """[stages] ps of the optimizer behind a stage's passes, of those that can be last.

        `parameters` [2, chunks, stages] are those of one rank that are trained, dense and of experts.
        """
        took, optimizer = np.zeros(self.layout.pp), OptimizerStep(self.context, self.last_stages)
        if not self.training.overlap.optimizer:  # otherwise bucket by bucket, beside the passes
            dense, experts = parameters.sum(axis=1)
            for s in self.last_stages:
                took[s] = optimizer.optimizer_ps(int(dense[s]), int(experts[s]))
        return took

    # --- the step

    @cached_property
    def last_stages(self) -> list[int]:
        """Stages that can be last: a middle one does as the second does, and sooner."""
        pp = self.layout.pp
        return sorted({0, min(1, pp - 1), pp - 1}) if len(set(self.offsets)) == 1 else list(range(pp))

    def estimate(self) -> Estimate:
        """The step's time and where it goes."""
        m, optimizer = self.micro_batches, OptimizerStep(self.context, self.last_stages)
        if self.training.overlap.parameters:
            self._gather_parameters(optimizer)
        passes, first = self.passes, self._first_forwards()
        played = self.played(passes, first)
        last, shift = int(played.end.max(axis=(0, 2)).argmax()), played.shift
        self._end_passes(played.begin + shift, played.end + shift)
        optimizer.lower()
        step = max(max(self.clock.ends), float(played.end.max() + shift))
        each = m * passes.took.sum(axis=(0, 2)) + passes.extra.sum(axis=(0, 2)) + first.sum(axis=1)
        own = each[last]
        compute = m * passes.computed[:, last].sum()
        total = round(step)
        spent, exchanged, waited = round(compute), round(own - compute), round(played.over.max() + shift - own)
        end_of_step = total - spent - exchanged - waited
        return Estimate(total, spent, exchanged, waited, end_of_step, round(each.max()) + end_of_step)

    def _gather_parameters(self, optimizer: OptimizerStep) -> None:
        """Parameters gathered at the start; where middle stages are alike, those of the second stand for all."""
        pp, counts, gates = self.layout.pp, self.job.stage_layers, self.context.gates
        alike = all(count == counts[1] for count in counts[1:-1]) if pp > 2 else True
        optimizer.gather_parameters(self.last_stages if alike else range(pp))
        for s in range(pp):
            for chunk in range(self.job.chunks):
                gates.setdefault((s, chunk), gates[min(1, pp - 1), chunk])

    def _first_forwards(self) -> F64:
        """[stages, chunks] ps that the first micro-batch's forward takes longer, for parameters on their way."""
        pp, chunks = self.layout.pp, self.job.chunks
        first = np.zeros((pp, chunks))
        if not self.context.gates:
            return first
        opens = self.play(self.passes, min(self.micro_batches, pp), first).opens
        for stage in self.stages:
            s = stage.number
            for chunk in range(chunks):
                usual, start = self.passes.took[0, s, chunk], opens[s, chunk]
                gates = self.context.gates[s, chunk]
                gates_open = [
                    max((self.clock.ends[int(i)] for i in gate if i != NONE), default=0.0) - start
                    for gate in distinct_gates(gates)
                ]
                if max(gates_open) > 0:
                    segments = self.segments.of(s, chunk)
                    gated = self._timed(stage, Pass.FORWARD, segments, gates=gates, opens=gates_open)
                    first[s, chunk] = max(usual, gated.took) - usual
        return first

    def _end_passes(self, begin: F64, end: F64) -> None:
        """Put the begin and end of the last micro-batch's passes into the context: [3, stages, chunks] ps.

        Of stages that cannot be last nothing follows.
        """
        orders, marks, at = self.context.orders, self.passes.marks, self.clock.at
        for stage in self.stages:
            s = stage.number
            tasks: list[tuple[float, Task]] = []
            if s not in self.last_stages:
                orders.append([])
                continue
            for chunk in range(self.job.chunks):
                for kind in self.kinds:
                    moment = float(end[int(kind), s, chunk])
                    stage.ends[kind, chunk] = np.array([[at(moment)]])
                    tasks.append((moment, Task(kind, 0, chunk)))
                if (s, chunk) in marks:
                    start = float(begin[int(self.context.final), s, chunk])
                    stage.ready[chunk] = [[[at(start + mark)]] for mark in marks[s, chunk]]
            orders.append([task for _, task in sorted(tasks, key=lambda pair: pair[0])])
