"""Communications of a run by what they are: bytes, NCCL's choice, time, and what of it compute hides."""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.units import PS_PER_S
from fabrictwin.program.program import OpKind, Program
from fabrictwin.report.csv_tables import ranks_per_group
from fabrictwin.report.timeline.intervals import intervals
from fabrictwin.trace.trace import Trace

COLUMNS = (
    "name",
    "category",
    "group_ranks",
    "size_bytes",
    "algorithm",
    "protocol",
    "calls",
    "each_s",
    "exposed_s",
    "hidden_s",
)
PROTOCOLS = ("ll", "ll128", "simple")


def rows(program: Program, trace: Trace) -> list[tuple[object, ...]]:
    """One row a name, group size, size and choice, in the order of first calls, under `COLUMNS`.

    `each_s` is the mean of its calls. The other times are of all of them, mean over all ranks: hidden is what of
    a call runs while its rank computes, exposed the rest.
    """
    ops = program.operations
    ran = np.flatnonzero((ops.kind == OpKind.COMMUNICATE) & (trace.start_ps >= 0) & (trace.end_op_ps >= 0))
    number: dict[tuple[object, ...], int] = {}
    row_of = np.full(len(ops), -1, np.int64)
    for i in ran[np.argsort(trace.start_ps[ran], kind="stable")].tolist():
        one, label = program.communications[ops.communication[i]], program.labels[ops.label[i]]
        algorithm, _, protocol = one.algorithm.rpartition(" ")
        if protocol not in PROTOCOLS:
            algorithm, protocol = one.algorithm, ""
        key = label.name, label.category, ranks_per_group(one), one.size_bytes, algorithm, protocol
        row_of[i] = number.setdefault(key, len(number))
    calls = np.bincount(row_of[ran], minlength=len(number))
    took = np.bincount(
        row_of[ran], (trace.end_op_ps[ran] - trace.start_ps[ran]).astype(float), minlength=len(number)
    )
    exposed, hidden = _beside_compute(program, trace, row_of, len(number))
    return [
        (*key, int(calls[i]), took[i] / calls[i] / PS_PER_S, exposed[i] / PS_PER_S, hidden[i] / PS_PER_S)
        for key, i in number.items()
    ]


def _beside_compute(program: Program, trace: Trace, row_of: I64, n: int) -> tuple[list[float], list[float]]:
    """Exposed and hidden time of each row, mean over ranks, in ps."""
    found = intervals(program, trace)
    computes = np.array([state.kind == "compute" for state in found.states])[found.state]
    weights = np.array([len(actor.ranks) for actor in program.actors], float)
    exposed, hidden = np.zeros(n), np.zeros(n)
    order = np.argsort(found.actor, kind="stable")
    bounds = np.searchsorted(found.actor[order], np.arange(len(program.actors) + 1))
    for actor in range(len(program.actors)):
        mine = order[bounds[actor] : bounds[actor + 1]]
        work, calls = mine[computes[mine]], mine[~computes[mine]]
        start, end = found.start_ps[calls], found.end_ps[calls]
        beside = _covered(found.start_ps[work], found.end_ps[work], end) - _covered(
            found.start_ps[work], found.end_ps[work], start
        )
        rows_ = row_of[found.operation[calls]]
        weight = weights[actor] / weights.sum()
        hidden += weight * np.bincount(rows_, beside, minlength=n)
        exposed += weight * np.bincount(rows_, (end - start) - beside, minlength=n)
    return exposed.tolist(), hidden.tolist()


def _covered(starts: I64, ends: I64, until: I64) -> I64:
    """Return how much of 0 .. each of `until` intervals cover, which may touch or overlap."""
    if not len(starts):
        return np.zeros(len(until), np.int64)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.ones(len(starts), bool)
    first[1:] = starts[1:] > ends[:-1]
    begins = starts[first]
    stops = ends[np.append(np.flatnonzero(first)[1:] - 1, len(ends) - 1)]
    whole = np.cumsum(np.append(0, stops - begins))
    at = np.searchsorted(begins, until, side="right")  # blocks begun before
    last = np.maximum(at - 1, 0)
    inside: I64 = np.where(at > 0, np.minimum(until, stops[last]) - begins[last], 0)
    return whole[last] * (at > 0) + inside
