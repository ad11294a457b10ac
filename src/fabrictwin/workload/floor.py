"""Less than a step can take, from its layers' compute alone: what a search over thousands of layouts begins with.

A stage has all its micro-batches' passes to do. Before its first, the stages before it do their part of one
forward, and after its last backward theirs of one backward (but in zero-bubble: weights' gradients come last).
Of communication only that counts which nothing hides and no rate can beat: tensor-parallel exchanges inside a
host that the script waits for at once, their bytes over a GPU's way out. Layers' costs are found once for every
shape of micro-batch and rank, so that a layout costs a few sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fabrictwin.units import PS_PER_S
from fabrictwin.workload.job import Job
from fabrictwin.workload.script import Script, Start, Talk, Wait
from fabrictwin.workload.shortcuts import Cached, key_of

F64 = npt.NDArray[np.float64]
_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


@dataclass(frozen=True)
class _Passes:
    """Of one layer, or of an end."""

    forward: float
    backward: float


_KNOWN: dict[tuple[object, ...], tuple[_Passes, ...]] = {}


def _exposed_ps(script: Script, tp: int, inside_bps: float) -> float:
    """What tensor-parallel communication takes at least, where it is waited for at once."""
    bits = 0.0
    for item, after in pairwise(script.items):
        if isinstance(item, Start) and isinstance(after, Wait) and after.key == item.key:
            talk: Talk = item.talk
            if talk.group == "tp":
                bits += _STEPS[talk.kind] * talk.size_bytes * (tp - 1) / tp * 8
    return bits * PS_PER_S / inside_bps


def _passes(job: Job, pair: tuple[Script, Script], launch_ps: int) -> _Passes:
    alone = job.layout.tp <= int(np.bincount(job.host_of_rank).max())
    exposed = [_exposed_ps(s, job.layout.tp, job.inside_bps) if alone else 0.0 for s in pair]
    took = [script.cost().took_ps(launch_ps) for script in pair]
    return _Passes(took[0] + exposed[0], took[1] + exposed[1])


def _costs(job: Job) -> tuple[_Passes, ...]:
    """Of (a dense layer, one with experts at even load, the first end, the last end)."""
    host = job.training.host
    key = (*key_of(job), job.inside_bps)
    if key not in _KNOWN:
        segments = Cached(job)
        launch = 0 if host.graphs else host.launch
        kinds = [0.0] + ([1.0] if job.model.experts else [])
        pairs = [segments.scripts(load) for load in kinds]
        ends = [(end.forward, end.backward) for end in (segments.first, segments.last)]
        found = [_passes(job, pair, launch) for pair in (*pairs, *ends)]
        _KNOWN[key] = tuple(found if job.model.experts else [found[0], found[0], *found[1:]])
    return _KNOWN[key]


def floor_ps(job: Job) -> float:
    """No step of the job is faster."""
    dense, sparse, first, last = _costs(job)
    pp, chunks, m = job.layout.pp, job.chunks, job.micro_batches
    kinds = job.model.sparse_before
    ends = np.concatenate([[0], np.cumsum(job.layer_counts)])
    experts = np.diff(np.asarray(kinds)[ends]).astype(np.float64)
    plain = np.diff(ends) - experts

    def all_of(name: str) -> F64:
        """[chunks, stages] of a kind of pass."""
        found: F64 = plain * getattr(dense, name) + experts * getattr(sparse, name)
        found[0] += getattr(first, name)
        found[-1] += getattr(last, name)
        return found.reshape(chunks, pp)

    forward, backward = all_of("forward"), all_of("backward")
    own = m * (forward + backward).sum(axis=0)
    around = forward[0] + (0.0 if job.training.parallel.schedule == "zero-bubble" else backward[0])
    before = np.concatenate([[0.0], np.cumsum(around)[:-1]])
    return float((own + before).max())
