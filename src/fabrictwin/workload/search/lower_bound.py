"""Less than a step can take, from its layers alone: what a search over thousands of layouts begins with.

A stage has all its micro-batches' passes to do. Before its first, the stages before it do their part of one
forward, and after its last backward theirs of one backward (but in zero-bubble: weights' gradients come last).

Two bounds rest on that. The first takes of communication what no rate can beat: a layer's exchanges take at least
their bytes over a GPU's way out, beside what the script computes meanwhile; of layers with experts all have the
least load. The closer one takes the time of each exchange by itself, layers by a few loads that are no more than
theirs, and the optimizer; between the two, exchanges whose time no layout asked for yet take their bytes over the
ways out of their hosts. Layers' costs are found once for every shape of micro-batch and rank, so that a layout
costs a few sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np

from fabrictwin.base.arrays import F64, starts_of
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.job_communications import all_slowed_ps
from fabrictwin.workload.job.rank_layout import Layout
from fabrictwin.workload.layers.pass_script import Collective, Compute, Kind, Script, Start
from fabrictwin.workload.search.exchange_bounds import ExchangeBounds, StepExchanges, asked_byte_ps
from fabrictwin.workload.step.closed_form import ClosedForm, Messages, PassTimes, Price
from fabrictwin.workload.step.closed_form_cache import CachedSegments, number_of
from fabrictwin.workload.step.communication_times import Asked, CommunicationTimes

_FEW, _SOME, _MANY = 1, 4, 8  # loads of experts that bounds tell apart, the first, the second, the closer

_STEPS: dict[Kind, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@record
class _Passes:
    """Least times of the passes of one layer, or of an end, and what of them kernels take alone, in ps."""

    forward: float
    backward: float
    computed: tuple[float, float] = (0.0, 0.0)


_KNOWN: dict[tuple[object, ...], tuple[_Passes, ...]] = {}


_Price = Callable[[Collective], float]  # in ps, of a communication by itself


def _least_ps(script: Script, launch_ps: int, price: _Price) -> float:
    """Less than a script takes, with communication of which each takes at least its price.

    Where scripts follow on each other, what the host issues last and first is one stretch: of those ends only the
    device's time is sure.
    """
    now, ps, kernels, first = 0.0, 0.0, 0, True
    streams: dict[str, float] = {}
    until: dict[object, float] = {}
    for item in script.items:
        if isinstance(item, Compute):
            ps += item.cost.ps
            kernels += item.cost.kernels
            continue
        now += ps if first else max(ps, kernels * launch_ps)
        ps, kernels, first = 0.0, 0, False
        if isinstance(item, Start):
            group = item.collective.group
            until[item.key] = streams[group] = max(now, streams.get(group, 0.0)) + price(item.collective)
        else:
            now = max(now, until.get(item.key, 0.0))
    return max(script.cost().took_ps(launch_ps), now + ps)


def _price_ps(collective: Collective, job: Job, steps: dict[Kind, int]) -> float:
    """Less than a communication takes: its bytes over all ways out of a GPU."""
    layout = job.layout
    n = {"tp": layout.tp, "cp": layout.cp, "ep": layout.ep, "expert_tp": layout.expert_tp}.get(collective.group, 1)
    bits = steps[collective.kind] * collective.size_bytes * (n - 1) / n * 8
    return (
        bits
        * PS_PER_S
        / (job.hardware.inside_bps + (job.hardware.outside_bps if collective.kind == "all_to_all" else 0.0))
    )


def _passes(job: Job, pair: tuple[Script, Script], price: _Price) -> _Passes:
    forward, backward = (_least_ps(script, job.training.launch_ps, price) for script in pair)
    return _Passes(forward, backward, (pair[0].cost().ps, pair[1].cost().ps))


def _costs(job: Job, loads: tuple[float, ...], in_switch: bool) -> tuple[_Passes, ...]:
    """Passes of layers whose experts have these loads, of the first end and of the last."""
    key = (number_of(job), job.hardware.inside_bps, job.hardware.outside_bps, loads, in_switch)
    if key not in _KNOWN:
        segments = CachedSegments(job)
        pairs = [segments.scripts(load) for load in loads]
        ends = [(end.forward, end.backward) for end in (segments.first, segments.last)]
        steps: dict[Kind, int] = {**_STEPS, "all_reduce": 1} if in_switch else _STEPS
        price = partial(_price_ps, job=job, steps=steps)
        _KNOWN[key] = tuple(_passes(job, pair, price) for pair in (*pairs, *ends))
    return _KNOWN[key]


@lru_cache(maxsize=1 << 14)
def _layers(
    loads: tuple[float, ...], counts: tuple[int, ...], pp: int, most: int
) -> tuple[tuple[float, ...], F64]:
    """(a few loads of layers, [loads, chunks, stages] layers with each); none has more than its layers have.

    Of layers with experts `most` loads are told apart at most; that of dense ones is 0.
    """
    some = sorted(load for load in loads if load)
    chosen = sorted({*(some[i * len(some) // most] for i in range(most) if some), *(x for x in loads if not x)})
    which = np.searchsorted(chosen, loads, side="right") - 1
    ends = starts_of(counts)
    found = [np.diff(starts_of(which == number)[ends]).reshape(-1, pp) for number in range(len(chosen))]
    return tuple(chosen), np.array(found, np.float64)


@lru_cache(maxsize=1 << 14)
def _stage_sums(
    loads: tuple[float, ...], counts: tuple[int, ...], pp: int, most: int
) -> tuple[tuple[float, ...], F64]:
    """(loads of `_layers`, [2 x (loads + 2), stages] how often each stage does the layers of a load and the ends).

    The upper half counts what a micro-batch makes of a stage, the lower what comes before the stage's first pass.
    """
    chosen, layers = _layers(loads, counts, pp, most)
    ends = np.zeros((2, pp))
    ends[0, 0] = ends[1, -1] = 1
    own = np.concatenate([layers.sum(axis=1), ends])
    before = np.zeros_like(own)
    before[: len(layers), 1:] = np.cumsum(layers[:, 0, :-1], axis=1)
    before[len(layers), 1:] = 1
    return chosen, np.concatenate([own, before])


def _bound_ps(
    job: Job, forward: F64, backward: F64, exchanges: StepExchanges, optimizer: F64 | float = 0.0
) -> float:
    """Less than the step takes with passes of so many ps [chunks, stages], these exchanges, and so much [stages]
    of the optimizer.

    A stage's passes run one after the other. Its gradients are reduced once the last micro-batch's first backward
    begins, and the first micro-batch's last forward ends with what it waits for: from there to there what lies
    between in the schedule is left.
    """
    m, schedule = job.micro_batches, job.training.parallel.schedule
    both, before = forward + backward, np.zeros(job.layout.pp)
    around = forward[0] if schedule == "zero-bubble" else both[0]
    np.cumsum(around[:-1], out=before[1:])
    every = m * both.sum(axis=0)
    behind = optimizer + exchanges.behind
    bound = before + every + exchanges.between + behind
    if exchanges.beside:
        gathered = exchanges.gathered.sum(axis=1).max(axis=0)
        reduced = exchanges.reduced.sum(axis=1).max(axis=0)
        until = m * forward.sum(axis=0)  # passes before the last micro-batch's first backward
        if schedule == "1f1b":
            groups = m - (job.layout.pp if len(forward) > 1 else 1)  # whose backwards are all over
            until = until + groups * backward.sum(axis=0)
        first = job.layout.pp * forward[:-1].sum(axis=0) + forward[-1]  # until the last chunk's first forward ends
        left = np.maximum(before + until, gathered + until - first) + reduced
        bound = np.maximum(bound, np.maximum(left, gathered + every - first + exchanges.between) + behind)
    return float(bound.max())


class _KnownPrices:
    """Times of a layout's communications where they are known, otherwise the least that their bytes take."""

    def __init__(self, job: Job, closed: ClosedForm, *, in_switch: bool) -> None:
        self.job, self.closed, self.in_switch = job, closed, in_switch
        self._least: dict[Collective, float] = {}
        self._byte_ps: dict[tuple[int, object], float] = {}  # by groups, which the closed form keeps

    def of(self, asked: Asked) -> float:
        """In ps."""
        times = self.closed.times
        if times.knows(asked):
            return times.of(asked)
        key = id(asked.groups), asked.what[0]
        if key not in self._byte_ps:
            hosts = self.closed.factory.hosts
            self._byte_ps[key] = asked_byte_ps(asked, self.job, hosts, in_switch=self.in_switch)
        return asked.size_bytes * self._byte_ps[key]

    def least_ps(self, collective: Collective) -> float:
        """That of a pass's communication, in ps, in the stage where it takes least."""
        if collective not in self._least:
            self._least[collective] = self.closed.least_ps(collective, self.of)
        return self._least[collective]


@record
class _Near:
    """Least times of the passes of one layer, or of an end, by the times of communications that were known."""

    passes: _Passes
    unknown: tuple[Asked, ...]
    times: int  # that were known

    @classmethod
    def of(cls, pair: tuple[Script, Script], closed: ClosedForm, prices: _KnownPrices) -> _Near:
        collectives = dict.fromkeys(each for script in pair for each in script.collectives())
        asked = [one for each in collectives for one in closed.asked(each)]
        unknown = tuple(one for one in asked if not closed.times.knows(one))
        return cls(_passes(closed.job, pair, prices.least_ps), unknown, closed.times.found)

    def outdated(self, times: CommunicationTimes) -> bool:
        """Return true if more of its communications' times are known now."""
        return times.found > self.times and any(times.knows(one) for one in self.unknown)


class LowerBounds:
    """Lower bounds for layouts of one job, with layers' costs kept by what they depend on."""

    def __init__(self, *, in_switch: bool = False) -> None:
        self.in_switch = in_switch  # switches may add up: bytes of an all-reduce then leave once
        self._exchanges = ExchangeBounds(in_switch=in_switch)
        self._known: dict[tuple[object, ...], tuple[_Passes, ...]] = {}
        self._ep_hosts: dict[Layout, int] = {}
        self._by_load: dict[tuple[object, ...], _Passes] = {}
        self._near: dict[tuple[object, ...], _Near] = {}

    def _passes(self, job: Job, loads: tuple[float, ...]) -> tuple[_Passes, ...]:
        layout, training = job.layout, job.training
        hosts = 1
        if layout.ep > 1:
            if layout not in self._ep_hosts:
                self._ep_hosts[layout] = job.ep_hosts
            hosts = self._ep_hosts[layout]
        key = (
            *(layout.tp, layout.cp, layout.ep, layout.expert_tp, hosts),
            *(training.micro_batch_size, training.sequence_parallel, training.recompute, len(loads)),
        )
        if key not in self._known:
            self._known[key] = _costs(job, loads, self.in_switch)
        return self._known[key]

    def _summed(self, job: Job, most: int) -> tuple[F64, F64]:
        """([chunks, stages] forward, backward) with so many loads of experts told apart."""
        loads, layers = _layers(job.loads, job.layer_counts, job.layout.pp, most)
        return _summed(layers, self._passes(job, loads))

    def of(self, job: Job) -> float:
        """Time in ps that no step of the job is faster than: a stage's passes, and those before its first."""
        loads, sums = _stage_sums(job.loads, job.layer_counts, job.layout.pp, _FEW)
        passes = self._passes(job, loads)
        both = [each.forward + each.backward for each in passes]
        before = [each.forward for each in passes] if job.training.parallel.schedule == "zero-bubble" else both
        return float((np.array([job.micro_batches * ps for ps in both] + before) @ sums).max())

    def with_exchanges(self, job: Job) -> float:
        """The same with more loads of experts told apart, and with parameters and gradients on their way."""
        return _bound_ps(job, *self._summed(job, _SOME), self._exchanges.of(job))

    def nearly(self, job: Job, closed: ClosedForm) -> float | None:
        """The closer one, with communication that no layout had yet as fast as its bytes can be.

        None where there is none of that.
        """
        prices = _KnownPrices(job, closed, in_switch=self.in_switch)
        kinds, layers = self._kinds(job, _SOME)
        passes, known = self._near_passes(closed, kinds, prices)
        if known and all(closed.times.knows(one) for one in closed.sends):
            return None
        return self._with_passes(job, closed, (layers, passes), prices.of)

    def closer(self, job: Job, closed: ClosedForm) -> float:
        """A closer one, with communication in passes and messages as long as they take by themselves.

        Passes are in the order of the schedule, but in zero-bubble, whose backwards have two parts.
        """
        kinds, layers = self._kinds(job, _MANY)
        return self._with_passes(job, closed, (layers, self._closer_passes(job, closed, kinds)), closed.times.of)

    def _kinds(self, job: Job, most: int) -> tuple[list[float | str], F64]:
        """(kinds of layers by their loads, and of ends, [loads, chunks, stages] layers with each)."""
        loads, layers = _layers(job.loads, job.layer_counts, job.layout.pp, most)
        return [*loads, "first", "last"], layers

    def _with_passes(
        self, job: Job, closed: ClosedForm, layers: tuple[F64, Sequence[_Passes]], price: Price
    ) -> float:
        """Less than the step takes with so many layers of each kind and their passes, and with such messages."""
        took = _summed(*layers)
        if closed.context.split:
            return _bound_ps(job, *took, self._exchanges.of(job), self._optimizers_ps(job, closed))
        passes = self._pass_times(job, closed, took, _computed(*layers), closed.messages(price))
        return self._scheduled(job, closed, passes)

    def played(self, job: Job, closed: ClosedForm) -> float:
        """The closest, with passes as they are."""
        return self._scheduled(job, closed, closed.passes)

    def _pass_times(
        self, job: Job, closed: ClosedForm, took: tuple[F64, F64], computed: tuple[F64, F64], between: Messages
    ) -> PassTimes:
        """Least times of passes, of forwards and backwards [chunks, stages] and what communicates beside all."""
        lowering, sm_count = closed.lowering, closed.groups.sm_count
        overlap, extra = job.training.overlap, np.zeros((3, job.layout.pp, job.chunks))
        messages = lowering.messages_ps
        slowed = [
            part + all_slowed_ps(own, messages, overlap.send_sms, sm_count)
            for part, own in zip(took, computed, strict=True)
        ]
        at_place = [
            lowering.reduction_ps(closed.stages[closed.offsets.index(place)], 1) for place in closed.places
        ]
        each = np.array(at_place)[np.searchsorted(closed.places, closed.offsets)]
        dense = self._exchanges.parameters(job)[0]
        extra[1] = all_slowed_ps(computed[1], each * dense, overlap.collective_sms, sm_count).T
        return PassTimes(np.stack([*(part.T for part in slowed), 0 * extra[0]]), extra, extra, {}, between)

    def _scheduled(self, job: Job, closed: ClosedForm, passes: PassTimes) -> float:
        """Less than the step takes with such passes, if parameters and gradients take as long as their bytes."""
        exchanges, stages = self._exchanges.of(job), closed.last_stages
        first = np.zeros((job.layout.pp, job.chunks))
        if exchanges.gathered.any():
            opens = closed.play(passes, min(job.micro_batches, job.layout.pp), first).opens
            gathered = np.cumsum(exchanges.gathered, axis=1).max(axis=0).T
            first = np.maximum(gathered - opens - passes.took[0], 0.0)
        played = closed.played(passes, first)
        done = {s: float(played.over[s]) + exchanges.between[s] for s in stages}
        for s in stages if exchanges.reduced.any() else []:
            final = played.begin[int(closed.context.final), s]
            ready = [final[chunk] + min(passes.marks.get((s, chunk), (0.0,))) for chunk in range(job.chunks)]
            done[s] = max(done[s], *_reduced_ps(exchanges.reduced[:, :, s], ready))
        behind = self._optimizers_ps(job, closed) + exchanges.behind
        return played.shift + max(float(done[s] + behind[s]) for s in stages)

    def _optimizers_ps(self, job: Job, closed: ClosedForm) -> F64:
        return closed.optimizers_ps(self._exchanges.parameters(job))

    def _near_passes(
        self, closed: ClosedForm, kinds: Sequence[float | str], prices: _KnownPrices
    ) -> tuple[list[_Passes], bool]:
        """(passes of layers by their loads, and of ends, in no less time; true if these are the closer ones)."""
        keys = [(closed.layout_key, *closed.places, which) for which in kinds]
        new = [(key, which) for key, which in zip(keys, kinds, strict=True) if key not in self._by_load]
        for key, which in new:
            if key not in self._near or self._near[key].outdated(closed.times):
                self._near[key] = _Near.of(_scripts(closed.segments, which), closed, prices)
        return [self._by_load[key] if key in self._by_load else self._near[key].passes for key in keys], not new

    def _closer_passes(self, job: Job, closed: ClosedForm, kinds: Sequence[float | str]) -> list[_Passes]:
        """Passes of layers by their loads, and of ends."""
        keys = [(closed.layout_key, *closed.places, which) for which in kinds]
        new = {
            key: _scripts(closed.segments, which)
            for key, which in zip(keys, kinds, strict=True)
            if key not in self._by_load
        }
        closed.times.prepare(closed.communicated(script for pair in new.values() for script in pair))
        for key, pair in new.items():
            self._by_load[key] = _passes(job, pair, partial(closed.least_ps, price=closed.times.of))
        return [self._by_load[key] for key in keys]


def _scripts(segments: CachedSegments, which: float | str) -> tuple[Script, Script]:
    """(forward, backward) of a layer by its load, or of an end."""
    if isinstance(which, float):
        return segments.scripts(which)
    end = segments.first if which == "first" else segments.last
    return end.forward, end.backward


def _reduced_ps(reduced: F64, ready: Sequence[float]) -> F64:
    """[2] when a stage's gradients [2, chunks] are reduced that are ready so."""
    done = np.zeros(2)
    for chunk in np.argsort(ready, kind="stable").tolist():
        done = np.maximum(done, ready[chunk]) + reduced[:, chunk]
    return done


def _summed(layers: F64, passes: Sequence[_Passes]) -> tuple[F64, F64]:
    """([chunks, stages] forward, backward) of so many layers [kinds, chunks, stages] and the ends.

    `passes` are those of each kind of layer, of the first end and of the last.
    """
    return _totals(layers, [(p.forward, p.backward) for p in passes])


def _computed(layers: F64, passes: Sequence[_Passes]) -> tuple[F64, F64]:
    """([chunks, stages] kernels' time of forwards, of backwards), as `_summed`."""
    return _totals(layers, [p.computed for p in passes])


def _totals(layers: F64, pairs: Sequence[tuple[float, float]]) -> tuple[F64, F64]:
    """[chunks, stages] twice, of a pair for each kind of layer and for either end."""
    each = np.array(pairs).T
    total: F64 = (each[:, :-2] @ layers.reshape(len(layers), -1)).reshape(2, *layers.shape[1:])
    total[:, 0, 0] += each[:, -2]
    total[:, -1, -1] += each[:, -1]
    return total[0], total[1]
