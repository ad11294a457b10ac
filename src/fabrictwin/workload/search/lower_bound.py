"""Less than a step can take, from its layers alone: what a search over thousands of layouts begins with.

A stage has all its micro-batches' passes to do. Before its first, the stages before it do their part of one
forward, and after its last backward theirs of one backward (but in zero-bubble: weights' gradients come last).

Two bounds rest on that. The first takes of communication what no rate can beat: a layer's exchanges take at least
their bytes over a GPU's way out, beside what the script computes meanwhile; of layers with experts all have the
least load. The closer one takes the time of each exchange by itself, layers by a few loads that are no more than
theirs, and the optimizer. Layers' costs are found once for every shape of micro-batch and rank, so that a layout
costs a few sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from fabrictwin.base.arrays import F64, I64, starts_of
from fabrictwin.base.units import PS_PER_S
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.layers.pass_script import Collective, Compute, Kind, Script, Start
from fabrictwin.workload.layers.roofline import NOTHING
from fabrictwin.workload.step.closed_form import ClosedForm
from fabrictwin.workload.step.closed_form_cache import CachedSegments, key_of

_LEVELS = 8  # of experts' loads, in the closer bound

_STEPS: dict[Kind, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@dataclass(frozen=True)
class _Passes:
    """Least times of the passes of one layer, or of an end, in ps."""

    forward: float
    backward: float


_KNOWN: dict[tuple[object, ...], tuple[_Passes, ...]] = {}
_LOADS: dict[tuple[object, ...], float] = {}


_Price = Callable[[Collective], float]  # in ps, of a communication by itself


def _least_ps(script: Script, launch_ps: int, price: _Price) -> float:
    """Less than a script takes, with communication of which each takes at least its price.

    Where scripts follow on each other, what the host issues last and first is one stretch: of those ends only the
    device's time is sure.
    """
    took = [item.cost.ps for item in script.items if isinstance(item, Compute)]
    whole = script.cost().took_ps(launch_ps)
    if len(took) == len(script.items):
        return whole
    now, pending, first = 0.0, NOTHING, True
    streams: dict[str, float] = {}
    until: dict[object, float] = {}
    for item in script.items:
        if isinstance(item, Compute):
            pending = pending + item.cost
            continue
        now += pending.ps if first else pending.took_ps(launch_ps)
        pending, first = NOTHING, False
        if isinstance(item, Start):
            group = item.collective.group
            until[item.key] = streams[group] = max(now, streams.get(group, 0.0)) + price(item.collective)
        else:
            now = max(now, until.get(item.key, 0.0))
    return max(whole, now + pending.ps)


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
    return _Passes(*(_least_ps(script, job.training.launch_ps, price) for script in pair))


def _least_load(job: Job) -> float:
    """0 without experts."""
    experts, routing = job.model.experts, job.training.routing
    if experts is None:
        return 0.0
    if not routing.imbalance:
        return 1.0
    key = (experts.count, job.layout.ep, routing.imbalance, routing.seed, job.model.sparse_before)
    if key not in _LOADS:
        loads = [job.load(layer) for layer in range(job.model.layers)]
        _LOADS[key] = min((load for load in loads if load), default=1.0)
    return _LOADS[key]


def _costs(job: Job, in_switch: bool) -> tuple[_Passes, ...]:
    """Passes of (a dense layer, one whose experts have the least load of all, the first end, the last end)."""
    load = _least_load(job)
    key = (*key_of(job), job.hardware.inside_bps, job.hardware.outside_bps, load, in_switch)
    if key not in _KNOWN:
        segments = CachedSegments(job)
        kinds = [0.0] + ([load] if load else [])
        pairs = [segments.scripts(load) for load in kinds]
        ends = [(end.forward, end.backward) for end in (segments.first, segments.last)]
        steps: dict[Kind, int] = {**_STEPS, "all_reduce": 1} if in_switch else _STEPS
        found = [_passes(job, pair, partial(_price_ps, job=job, steps=steps)) for pair in (*pairs, *ends)]
        _KNOWN[key] = tuple(found if job.model.experts else [found[0], found[0], *found[1:]])
    return _KNOWN[key]


@lru_cache(maxsize=1 << 14)
def _layers(sparse_before: tuple[int, ...], counts: tuple[int, ...], pp: int) -> tuple[F64, F64]:
    """([chunks, stages] dense layers, those with experts)."""
    ends = starts_of(counts)
    experts = np.diff(np.asarray(sparse_before)[ends]).astype(np.float64)
    return (np.diff(ends) - experts).reshape(-1, pp), experts.reshape(-1, pp)


def _bound_ps(job: Job, forward: F64, backward: F64, behind: F64 | float = 0.0) -> float:
    """Less than the step takes with passes of so many ps [chunks, stages] and so much [stages] behind them."""
    before = np.zeros(job.layout.pp)
    around = forward[0] if job.training.parallel.schedule == "zero-bubble" else forward[0] + backward[0]
    np.cumsum(around[:-1], out=before[1:])
    return float((job.micro_batches * (forward + backward).sum(axis=0) + before + behind).max())


@lru_cache(maxsize=1 << 10)
def _levels(loads: tuple[float, ...]) -> tuple[tuple[float, ...], I64]:
    """(a few loads of layers with experts, and that of dense ones; [layers] which is no more than the layer's)."""
    some = sorted(load for load in loads if load)
    chosen = sorted({0.0, *(some[i * len(some) // _LEVELS] for i in range(_LEVELS) if some)})
    return tuple(chosen), np.searchsorted(chosen, loads, side="right") - 1


class LowerBounds:
    """Lower bounds for layouts of one job, with layers' costs kept by what they depend on."""

    def __init__(self, *, in_switch: bool = False) -> None:
        self.in_switch = in_switch  # switches may add up: bytes of an all-reduce then leave once
        self._known: dict[tuple[object, ...], tuple[_Passes, ...]] = {}
        self._by_load: dict[tuple[object, ...], _Passes] = {}

    def _passes(self, job: Job) -> tuple[_Passes, ...]:
        layout, training = job.layout, job.training
        key = (
            *(layout.tp, layout.cp, layout.ep, layout.expert_tp, job.ep_hosts),
            *(training.micro_batch_size, training.sequence_parallel, training.recompute),
        )
        if key not in self._known:
            self._known[key] = _costs(job, self.in_switch)
        return self._known[key]

    def of(self, job: Job) -> float:
        """Time in ps that no step of the job is faster than."""
        dense, sparse, first, last = self._passes(job)
        plain, experts = _layers(job.model.sparse_before, job.layer_counts, job.layout.pp)
        forward = plain * dense.forward + experts * sparse.forward
        backward = plain * dense.backward + experts * sparse.backward
        return _bound_ps(job, *_with_ends(forward, backward, first, last))

    def closer(self, job: Job, closed: ClosedForm) -> float:
        """A closer one, with communication as long as it takes by itself."""
        levels, which = _levels(tuple(job.load(layer) for layer in range(job.model.layers)))
        ends = starts_of(job.layer_counts)
        forward: F64 = np.zeros((len(job.layer_counts) // job.layout.pp, job.layout.pp))
        backward: F64 = np.zeros_like(forward)
        for number, load in enumerate(levels):
            if not (which == number).any():
                continue
            layers = np.diff(starts_of(which == number)[ends]).reshape(forward.shape)
            cost = self._closer_passes(job, closed, load)
            forward += layers * cost.forward
            backward += layers * cost.backward
        first, last = (self._closer_passes(job, closed, end) for end in ("first", "last"))
        return _bound_ps(job, *_with_ends(forward, backward, first, last), closed.optimizers_ps)

    def _closer_passes(self, job: Job, closed: ClosedForm, which: float | str) -> _Passes:
        """Passes of a layer by its load, or of an end."""
        key = (*closed.layout_key, *closed.places, which)
        if key not in self._by_load:
            segments = closed.segments
            if isinstance(which, float):
                pair = segments.scripts(which)
            else:
                end = segments.first if which == "first" else segments.last
                pair = end.forward, end.backward
            self._by_load[key] = _passes(job, pair, closed.least_ps)
        return self._by_load[key]


def _with_ends(forward: F64, backward: F64, first: _Passes, last: _Passes) -> tuple[F64, F64]:
    """Passes of layers [chunks, stages], with those of the ends added in place."""
    forward[0, 0] += first.forward
    backward[0, 0] += first.backward
    forward[-1, -1] += last.forward
    backward[-1, -1] += last.backward
    return forward, backward


def lower_bound_ps(job: Job) -> float:
    """Time in ps that no step of the job is faster than."""
    return LowerBounds().of(job)
