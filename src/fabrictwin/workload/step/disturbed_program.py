"""A program as a disturbed cluster runs it: noise in its compute, GPUs that begin late.

Noise is interruptions that come every `period` on average. A stretch of compute of d periods is hit floor(d)
times, and once more with the chance of d's fraction; each hit adds `mean` (fixed), or time that is exponentially
distributed about it. Ranks that an actor stands for are hit independently, and the actor takes as long as the
slowest of them: where they would have met only later, that is too much.

A draw is a quantile of that greatest of n sums, read off a table on a grid of 1/64 mean. The table is made by
adding, multiplying and dividing only, so that every machine has the same. Above 256 hits a sum's deviation grows
as the root of their number, from that of 256.

Left out: noise that several ranks of a host share, noise in communication, that interrupted GPUs had work queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import F64, I32, I64, U64
from fabrictwin.cluster.disturbances import HostNoise
from fabrictwin.cluster.faults import SlowGpu
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.program.program import NONE, Label, OpKind, Program

GRID = 64  # of a mean
MOST_HITS = 256
_STEP_DECAY = 0.9844964370054085  # exp(-1/64)


def uniform(seed: int, number: I64) -> F64:
    """[n] in (0, 1), from a seed and numbers: SplitMix64's finaliser."""
    x: U64 = number.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03) + np.uint64(seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return ((x >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def power(base: F64, exponent: int) -> F64:
    """`base` to the power of `exponent`, by squaring: products round alike everywhere."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        base, exponent = base * base, exponent >> 1
    return result


def sums(hits: int) -> F64:
    """[grid] the chance that `hits` exponential hits of mean 1 add up to at most i / GRID."""
    reach = GRID * (hits + 8 * (isqrt(hits) + 1) + 40)
    x = np.arange(reach) / GRID
    if hits == 0:
        return np.ones(reach)
    term = np.cumprod(np.concatenate([[1.0], np.full(reach - 1, _STEP_DECAY)]))
    tail = term.copy()
    for j in range(1, hits):
        term = term * x / j
        tail = tail + term
    cdf: F64 = np.maximum.accumulate(np.clip(1.0 - tail, 0.0, 1.0))
    return cdf


def greatest_table(periods: float, ranks: int, *, fixed: bool) -> tuple[F64, F64]:
    """(cdf, values in means), both [places]: the most that any of `ranks` ranks is held up in so many periods.

    What is drawn with a uniform u is the value at the first place whose cdf is not below u.
    """
    whole = int(periods)
    chance = periods - whole
    if fixed:
        none_more = float(power(np.array([1.0 - chance]), ranks)[0])
        return np.array([none_more, 1.0]), np.array([whole, whole + 1.0])
    few = min(whole, MOST_HITS)
    more = sums(few + 1)
    less = np.ones(len(more))
    base = sums(few)
    less[: len(base)] = base
    cdf = power((1.0 - chance) * less + chance * more, ranks)
    values: F64 = np.arange(len(cdf)) / GRID
    if whole > few:
        values = whole + (values - few) * np.sqrt(whole / few)
    return cdf, values


def greatest(periods: float, ranks: int, u: F64, *, fixed: bool) -> F64:
    """[n] draws, in means, of the most that any of `ranks` ranks is held up in so many periods."""
    cdf, values = greatest_table(periods, ranks, fixed=fixed)
    # a fixed interruption comes where u reaches the chance that none does
    place = np.searchsorted(cdf, u, side="right" if fixed else "left")
    drawn: F64 = values[np.minimum(place, len(cdf) - 1)]
    return drawn


def add_noise(program: Program, fabric: Fabric, rank_node: I32, noises: Sequence[HostNoise]) -> Program:
    """The program with its compute held up."""
    operations = program.operations
    host = fabric.node_host[rank_node]
    duration = operations.duration_ps.copy()
    for one in noises:
        hit = np.array([int(np.isin(host[actor.ranks], one.hosts).sum()) for actor in program.actors])
        ranks = hit[operations.actor]
        rows = np.flatnonzero((operations.kind == OpKind.COMPUTE) & (ranks > 0) & (operations.duration_ps > 0))
        u = uniform(one.seed, rows)
        pairs = np.stack([operations.duration_ps[rows], ranks[rows]], axis=1)
        kinds, which = np.unique(pairs, axis=0, return_inverse=True)
        order = np.argsort(which.reshape(-1), kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(which.reshape(-1), minlength=len(kinds)))])
        fixed = one.noise.distribution == "fixed"
        for k, (took, n) in enumerate(kinds.tolist()):
            here = order[starts[k] : starts[k + 1]]
            drawn = greatest(took / one.noise.period, n, u[here], fixed=fixed)
            duration[rows[here]] += np.rint(drawn * one.noise.mean).astype(np.int64)
    return replace(program, operations=replace(operations, duration_ps=duration))


def begin_late(program: Program, fabric: Fabric, rank_node: I32, gpus: Sequence[SlowGpu]) -> Program:
    """The program with the first operations of late GPUs' actors behind a wait of its own."""
    late = np.zeros(len(program.actors), np.int64)
    for gpu in gpus:
        here = (fabric.node_host[rank_node] == gpu.host) & (
            fabric.gpu_local[fabric.node_gpu[rank_node]] == gpu.gpu
        )
        for a, actor in enumerate(program.actors):
            if here[actor.ranks].any():
                late[a] = max(late[a], gpu.late_ps)
    actors = np.flatnonzero(late)
    if not len(actors):
        return program
    ops, n = program.operations, len(program.operations)
    waits_for = first_operations(program, actors)
    waiting = np.repeat(np.arange(n), np.diff(ops.after_start))
    more_of = np.concatenate(waits_for)
    more_on = np.repeat(n + np.arange(len(actors)), [len(rows) for rows in waits_for])
    all_of, all_on = np.concatenate([waiting, more_of]), np.concatenate([ops.after, more_on])
    order = np.argsort(all_of, kind="stable")
    count = np.bincount(all_of, minlength=n + len(actors))

    def tail(column: npt.NDArray[Any], values: npt.ArrayLike) -> npt.NDArray[Any]:
        return np.concatenate([column, np.broadcast_to(np.asarray(values), len(actors)).astype(column.dtype)])

    operations = replace(
        ops,
        kind=tail(ops.kind, OpKind.COMPUTE),
        actor=tail(ops.actor, actors),
        duration_ps=tail(ops.duration_ps, late[actors]),
        communication=tail(ops.communication, NONE),
        label=tail(ops.label, len(program.labels)),
        micro_batch=tail(ops.micro_batch, NONE),
        after_start=np.concatenate([[0], np.cumsum(count)]).astype(ops.after_start.dtype),
        after=all_on[order].astype(ops.after.dtype),
    )
    return replace(program, labels=(*program.labels, Label("late start", "other")), operations=operations)


def first_operations(program: Program, actors: I64) -> list[I64]:
    """For each actor its operations that wait for none of its own."""
    ops, n = program.operations, len(program.operations)
    waiting = np.repeat(np.arange(n), np.diff(ops.after_start))
    found = []
    for actor in actors.tolist():
        mine = ops.actor == actor
        of = np.zeros(len(program.communications), bool)
        count = np.diff(program.participants_start)
        of[np.repeat(np.arange(len(of)), count)[program.participants == actor]] = True
        takes_part = ops.communication != NONE
        mine |= takes_part & of[np.where(takes_part, ops.communication, 0)] if len(of) else False
        behind = np.zeros(n, bool)
        np.logical_or.at(behind, waiting, mine[ops.after])
        found.append(np.flatnonzero(mine & ~behind).astype(np.int64))
    return found
