"""Where the step went: a breakdown that adds up to the step, to the picosecond.

Each actor's time is divided by the sweep of `report.timeline.intervals`; the reported breakdown is the mean over
actors, weighted by the ranks of each, rounded to picoseconds by largest remainder so that it still adds up.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record
from fabrictwin.program.program import Program
from fabrictwin.report.timeline.intervals import Intervals, Occupancy, State, intervals, occupancy
from fabrictwin.trace.trace import Trace

NAMES = {
    "compute": "compute",
    "recompute": "recomputation",
    "optimizer": "optimizer",
    "exposed_tp": "tensor-parallel communication",
    "exposed_cp": "context-parallel communication",
    "exposed_ep": "expert-parallel communication",
    "exposed_pp": "pipeline communication",
    "exposed_dp": "data-parallel communication",
    "exposed_other": "other communication",
    "bubble": "bubble",
}


@record
class Share:
    """One state's part of the step, mean over ranks. `busy_ps` counts also what was hidden behind another."""

    state: State
    time_ps: int
    busy_ps: int

    @property
    def key(self) -> str:
        return self.state.key

    @property
    def name(self) -> str:
        """The state's name for people."""
        unnamed = self.state.category + (" communication" if self.state.kind == "communication" else "")
        return NAMES.get(self.key, unnamed)


@record
class Breakdown:
    """Shares that add up to `step_ps`; `actor_ps` [actors, shares] adds up to it in every row."""

    step_ps: int
    shares: tuple[Share, ...]
    actor_ps: I64
    occupancy: Occupancy

    @property
    def permille(self) -> tuple[int, ...]:
        """Each share in tenths of a percent; they add up to 1000."""
        return apportion([share.time_ps for share in self.shares], 1000)


@record
class Collective:
    """Communications of one name: the part of their category's exposed time that is theirs, mean over ranks."""

    category: str
    name: str
    operations: int
    time_ps: int
    busy_ps: int  # under way, hidden or not


def apportion(parts: list[int], total: int) -> tuple[int, ...]:
    """Integers in proportion to `parts` that add up to `total`, by largest remainder; ties go to the first."""
    whole = sum(parts)
    if whole == 0:
        return tuple(0 for _ in parts)
    floors = [part * total // whole for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda i: (-(parts[i] * total % whole), i))
    for i in by_remainder[: total - sum(floors)]:
        floors[i] += 1
    return tuple(floors)


def _weighted_sums(values: I64, weights: I64) -> list[int]:
    """Exact sum over rows of weight times value; ten thousand ranks times a minute in ps overflow int64."""
    low = values & 0xFFFF_FFFF
    high = values >> 32
    return [
        (int((high[:, k] * weights).sum()) << 32) + int((low[:, k] * weights).sum())
        for k in range(values.shape[1])
    ]


def breakdown(program: Program, trace: Trace) -> Breakdown:
    """Divide the step among what the actors did."""
    actors = len(program.actors)
    swept = occupancy(intervals(program, trace), actors, trace.end_ps)
    states = swept.states
    actor_ps = np.zeros((actors, len(states)), np.int64)
    np.add.at(actor_ps, (swept.actor, swept.state), swept.end_ps - swept.start_ps)
    weights = np.array([len(actor.ranks) for actor in program.actors], np.int64)
    means = apportion(_weighted_sums(actor_ps, weights), trace.end_ps)
    total = max(1, int(weights.sum()))
    busy = [value // total for value in _weighted_sums(swept.busy_ps, weights)]
    shares = tuple(
        Share(state, mean, max(mean, under_way))
        for state, mean, under_way in zip(states, means, busy, strict=True)
    )
    return Breakdown(trace.end_ps, shares, actor_ps, swept)


def collectives(program: Program, trace: Trace, parts: Breakdown) -> tuple[Collective, ...]:
    """Exposed communication by what it is called; those of a category add up to its share of the breakdown.

    Where several of one category are under way at once, the moment is the first by name's.
    """
    found = intervals(program, trace)
    compute = [state for state in found.states if state.kind == "compute"]
    of_row = program.operations.label[found.operation]
    is_compute = found.state < len(compute)
    order = {state.category: i for i, state in enumerate(found.states) if state.kind == "communication"}
    used = np.unique(of_row[~is_compute])
    labels = sorted(used.tolist(), key=lambda i: (order[program.labels[i].category], program.labels[i].name))
    place = np.zeros(len(program.labels), np.int16)
    place[labels] = len(compute) + np.arange(len(labels))
    named = [State("communication", program.labels[i].category) for i in labels]
    split = Intervals(
        states=(*compute, *named, found.states[-1]),
        actor=found.actor,
        operation=found.operation,
        state=np.where(is_compute, found.state, place[of_row]).astype(np.int16),
        start_ps=found.start_ps,
        end_ps=found.end_ps,
    )
    actors = len(program.actors)
    swept = occupancy(split, actors, trace.end_ps)
    actor_ps = np.zeros((actors, len(split.states)), np.int64)
    np.add.at(actor_ps, (swept.actor, swept.state), swept.end_ps - swept.start_ps)
    weights = np.array([len(actor.ranks) for actor in program.actors], np.int64)
    sums, busy = _weighted_sums(actor_ps, weights), _weighted_sums(swept.busy_ps, weights)
    total = max(1, int(weights.sum()))
    operations = np.bincount(program.operations.label, minlength=len(program.labels))
    result = []
    for share in parts.shares:
        mine = [i for i, state in enumerate(named, len(compute)) if share.state == state]
        for i, time_ps in zip(mine, apportion([sums[i] for i in mine], share.time_ps), strict=True):
            label = labels[i - len(compute)]
            under_way = max(time_ps, busy[i] // total)
            name = program.labels[label].name
            result.append(Collective(share.state.category, name, int(operations[label]), time_ps, under_way))
    return tuple(result)
