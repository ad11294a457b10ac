"""When each actor does what: the intervals of a trace, and a sweep that gives every moment exactly one state.

An actor can compute and communicate at once. To say where a step went, each moment of each actor is given to
one state by fixed priority: first compute, then communication, then waiting.

1. Compute of any category on the actor: the moment is that compute. Where computes overlap (they should not):
   compute, recompute, optimizer, then others by name.
2. No compute, but a communication that the actor takes part in is under way: the moment is exposed
   communication of that category. Where several are: tp, cp, ep, pp, dp, then others by name; that is, what
   stands in the way of the next layer before what may run behind it.
3. Nothing under way: the actor waits, and the moment is bubble. A communication is under way from the moment
   its last participant is ready, so waiting for a slower peer is bubble, not communication.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I16, I32, I64, ranges
from fabrictwin.base.records import record
from fabrictwin.program.program import OpKind, Program
from fabrictwin.trace.trace import Trace

COMPUTE_ORDER = ("compute", "recompute", "optimizer")
COMMUNICATION_ORDER = ("tp", "cp", "ep", "pp", "dp")
BUBBLE = "bubble"


@record
class State:
    """Something an actor can be found doing. `kind` is compute, communication or bubble."""

    kind: str
    category: str

    @property
    def key(self) -> str:
        """The state's name in files: `compute`, `optimizer`, `exposed_tp`, `bubble`."""
        return f"exposed_{self.category}" if self.kind == "communication" else self.category


@record
class StateColumns:
    """When actors were in a state, as columns."""

    states: tuple[State, ...]  # in order of priority, bubble last
    actor: I32
    state: I16  # into `states`
    start_ps: I64
    end_ps: I64

    def __len__(self) -> int:
        return len(self.actor)


@record
class Intervals(StateColumns):
    """What actors had under way: one row an operation and actor that takes part in it."""

    operation: I64


@record
class Occupancy(StateColumns):
    """The sweep's result, rows by actor and then time: each actor's rows cover 0 .. end without gap or overlap."""

    busy_ps: I64  # [actors, states] time in which a state was under way, hidden behind another or not


def _ordered(found: set[str], order: tuple[str, ...]) -> list[str]:
    return [c for c in order if c in found] + sorted(found - set(order))


def intervals(program: Program, trace: Trace) -> Intervals:
    """Intervals of what each actor had under way; operations that took no time or never ran are left out."""
    ops = program.operations
    is_compute = ops.kind == OpKind.COMPUTE
    used = [np.unique(ops.label[mask]) for mask in (is_compute, ~is_compute)]
    categories = [{program.labels[int(i)].category for i in labels} for labels in used]
    states = [State("compute", c) for c in _ordered(categories[0], COMPUTE_ORDER)]
    states += [State("communication", c) for c in _ordered(categories[1], COMMUNICATION_ORDER)]
    states.append(State(BUBBLE, BUBBLE))
    index = {state: i for i, state in enumerate(states)}
    of_label = np.array(
        [
            [index.get(State(kind, label.category), -1) for label in program.labels]
            for kind in ("compute", "communication")
        ],
        np.int16,
    ).reshape(2, len(program.labels))

    start, end = trace.start_ps, np.minimum(trace.end_op_ps, trace.end_ps)
    ran = (start >= 0) & (end > start)
    compute = np.flatnonzero(is_compute & ran)
    communicate = np.flatnonzero(~is_compute & ran)
    first = program.participants_start[ops.communication[communicate]].astype(np.int64)
    count = program.participants_start[ops.communication[communicate] + 1] - first
    operation = np.concatenate([compute, np.repeat(communicate, count)])
    actor = np.concatenate([ops.actor[compute], program.participants[ranges(first, count)]])
    return Intervals(
        states=tuple(states),
        actor=actor.astype(np.int32),
        operation=operation,
        state=of_label[np.where(is_compute[operation], 0, 1), ops.label[operation]],
        start_ps=start[operation],
        end_ps=end[operation],
    )


def occupancy(found: Intervals, actors: int, end_ps: int) -> Occupancy:
    """Give every moment 0 .. end_ps of every actor one state, by the priority above."""
    n = len(found)
    every = np.arange(actors, dtype=np.int32)
    bounds = np.zeros(2 * actors, np.int8)
    time = np.concatenate([found.start_ps, found.end_ps, np.zeros(actors, np.int64), np.full(actors, end_ps)])
    actor = np.concatenate([found.actor, found.actor, every, every])
    state = np.concatenate([found.state, found.state, bounds])
    delta = np.concatenate([np.ones(n, np.int8), -np.ones(n, np.int8), bounds])
    order = np.lexsort((time, actor))
    time, actor, state, delta = time[order], actor[order], state[order], delta[order]

    # the stretch from one event to the next of the same actor
    width = np.diff(time, append=end_ps)
    width[np.flatnonzero(np.diff(actor))] = 0
    bubble = len(found.states) - 1
    taken = np.full(len(time), bubble, np.int16)
    free = np.ones(len(time), bool)
    busy = np.zeros((actors, len(found.states)), np.int64)
    for k in range(bubble):
        active = np.cumsum(np.where(state == k, delta, 0), dtype=np.int32) > 0
        np.add.at(busy[:, k], actor[active], width[active])
        taken[active & free] = k
        free &= ~active
    np.add.at(busy[:, bubble], actor[free], width[free])

    keep = width > 0
    time, actor, taken, width = time[keep], actor[keep], taken[keep], width[keep]
    new = np.ones(len(time), bool)
    new[1:] = (actor[1:] != actor[:-1]) | (taken[1:] != taken[:-1])
    starts = np.flatnonzero(new)
    lasts = np.append(starts[1:], len(time)) - 1 if len(starts) else starts
    return Occupancy(
        states=found.states,
        actor=actor[starts],
        state=taken[starts],
        start_ps=time[starts],
        end_ps=time[lasts] + width[lasts],
        busy_ps=busy,
    )
