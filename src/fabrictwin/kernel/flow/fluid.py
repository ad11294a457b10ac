"""The fluid simulation: operations in dependency order, and flows with max-min fair rates between them.

A *flow* is defined once and started by many operations. What it shares with others, and the rates that come of
it, are `sharing`'s. Where the active flows change, those that share with the ones that came or went are solved
anew, and nothing else: the others' rates and the times at which they drain stay.

Events are the ends of compute, the drain of a flow's bytes, and its delivery a fill latency later. Everything
that happens at one instant is taken in before rates are solved again. Ties: ends and deliveries in the order in
which they were scheduled, then drains in the order in which the flows started.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.codes import NEVER, NONE, OpKind
from fabrictwin.kernel.flow.heaps import Drains, Queue, enter, leave, pop, push, reschedule
from fabrictwin.kernel.flow.max_min import Flows, Memo, Scratch, gather, solve, unseen
from fabrictwin.kernel.jit.by_reference import by_reference
from fabrictwin.kernel.jit.decorators import entry, hot_entry, outlined
from fabrictwin.kernel.slices import OK, SLICED


@by_reference
class Operations(NamedTuple):
    """The graph of what runs; n operations."""

    kind: np.ndarray  # int8 [n]
    duration_ps: np.ndarray  # int64 [n]
    first_flow: np.ndarray  # int32 [n] flows first_flow .. first_flow + flow_count
    flow_count: np.ndarray  # int32 [n]
    next_start: np.ndarray  # int32 [n + 1] successors, CSR
    next_op: np.ndarray  # int32
    waits: np.ndarray  # int32 [n] predecessors still to end; modified
    open_flows: np.ndarray  # int32 [n] flows still to be delivered; modified
    start_ps: np.ndarray  # int64 [n], -1 before; modified
    end_ps: np.ndarray  # int64 [n], -1 before; modified


@by_reference
class Instances(NamedTuple):
    """Flows at work: a pool with a free list, and per flow a list in order of start."""

    op: np.ndarray  # int32
    flow: np.ndarray  # int32
    remaining: np.ndarray  # float64
    rate: np.ndarray  # float64
    since_ps: np.ndarray  # int64 when `remaining` was true
    after: np.ndarray  # int32 next in the flow's list, or next free
    before: np.ndarray  # int32
    head: np.ndarray  # int32 [F]
    tail: np.ndarray  # int32 [F]
    free: np.ndarray  # int32 [1] first free


@by_reference
class State(NamedTuple):
    operations: Operations
    flows: Flows
    instances: Instances
    queue: Queue
    drains: Drains  # of instances
    memo: Memo
    scratch: Scratch
    dirty: np.ndarray  # int32 [F] flows that came or went since rates were solved
    is_dirty: np.ndarray  # int8 [F]
    clock: np.ndarray  # int64 [4]: now, dirty flows, operations ended, rounds of solving
    ended: np.ndarray  # int32 [n] operations in the order in which they ended


@outlined
def update(state, count):
    """Solve the `count` flows in scratch.group anew and reschedule those whose rate is another."""
    instances, drains, scratch = state.instances, state.drains, state.scratch
    now = state.clock[0]
    solve(state.flows, state.memo, scratch, count)
    for k in range(count):
        flow = scratch.group[k]
        rate = scratch.flow_rate[flow]
        i = instances.head[flow]
        while i != NONE:
            if rate != instances.rate[i]:
                passed = now - instances.since_ps[i]
                instances.remaining[i] = max(0.0, instances.remaining[i] - instances.rate[i] * passed)
                instances.since_ps[i] = now
                instances.rate[i] = rate
                drained = NEVER
                if rate > 0.0:
                    wait = np.ceil(instances.remaining[i] / rate)
                    if wait < 4e18:
                        drained = now + np.int64(wait)
                reschedule(drains, i, drained)
            i = instances.after[i]


@outlined
def mark(state, flow):
    """A flow came or went: what shares with it is solved before time moves on."""
    if not state.is_dirty[flow]:
        state.is_dirty[flow] = 1
        state.dirty[state.clock[1]] = flow
        state.clock[1] += 1


@outlined
def settle(state):
    """Solve whatever shares with flows that came or went."""
    flows, scratch = state.flows, state.scratch
    if state.clock[1] == 0:
        return
    state.clock[3] += 1
    round_ = state.clock[3]
    for k in range(state.clock[1]):
        flow = state.dirty[k]
        state.is_dirty[flow] = 0
        if flows.active[flow] > 0:
            if scratch.seen[flow] != round_:
                update(state, gather(flows, scratch, flow, round_))
            continue
        for m in range(flows.meeting_start[flow], flows.meeting_start[flow + 1]):
            meeting = flows.meeting[m]
            if scratch.passed[meeting] == round_:
                continue
            other = unseen(flows, scratch, meeting, round_)
            if other == NONE:
                scratch.passed[meeting] = round_
            else:  # all others that meet here are among those that this one shares with
                update(state, gather(flows, scratch, other, round_))
    state.clock[1] = 0


@outlined
def line_up(instances, i, flow):
    """Put an instance at the end of its flow's list."""
    tail = instances.tail[flow]
    instances.before[i] = tail
    instances.after[i] = NONE
    if tail == NONE:
        instances.head[flow] = i
    else:
        instances.after[tail] = i
    instances.tail[flow] = i


@outlined
def start(state, op):
    """An operation whose predecessors have all ended."""
    operations, flows, instances = state.operations, state.flows, state.instances
    now = state.clock[0]
    operations.start_ps[op] = now
    if operations.kind[op] == OpKind.COMPUTE or operations.flow_count[op] == 0:
        push(state.queue, now + operations.duration_ps[op], op)
        return
    operations.open_flows[op] = operations.flow_count[op]
    first = operations.first_flow[op]
    for flow in range(first, first + operations.flow_count[op]):
        if flows.size_bytes[flow] <= 0.0:
            push(state.queue, now + flows.fill_ps[flow], -1 - op)
            continue
        i = instances.free[0]
        instances.free[0] = instances.after[i]
        instances.op[i] = op
        instances.flow[i] = flow
        instances.remaining[i] = flows.size_bytes[flow]
        instances.rate[i] = -1.0  # no rate yet: differs from any that the solver gives
        instances.since_ps[i] = now
        line_up(instances, i, flow)
        enter(state.drains, i, NEVER, state.drains.size[1])
        state.drains.size[1] += 1
        flows.active[flow] += 1
        mark(state, flow)


@outlined
def drain(state):
    """Take out the first flow whose bytes have left; it is delivered after its fill latency."""
    flows, instances = state.flows, state.instances
    now = state.clock[0]
    i = leave(state.drains)
    flow = instances.flow[i]
    before, following = instances.before[i], instances.after[i]
    if before == NONE:
        instances.head[flow] = following
    else:
        instances.after[before] = following
    if following == NONE:
        instances.tail[flow] = before
    else:
        instances.before[following] = before
    covered = np.int64(np.floor(flows.piece_bytes[flow] / instances.rate[i]))
    delivered = now + flows.fill_ps[flow] + max(0, flows.serial_ps[flow] - covered)
    begun = state.operations.start_ps[instances.op[i]]
    push(state.queue, max(delivered, begun + flows.path_ps[flow]), -1 - instances.op[i])
    flows.active[flow] -= 1
    flows.drained[flow] += 1
    instances.after[i] = instances.free[0]
    instances.free[0] = i
    mark(state, flow)


@outlined
def end(state, op):
    """An operation is over; start what waited for it alone."""
    operations = state.operations
    operations.end_ps[op] = state.clock[0]
    state.ended[state.clock[2]] = op
    state.clock[2] += 1
    for e in range(operations.next_start[op], operations.next_start[op + 1]):
        following = operations.next_op[e]
        operations.waits[following] -= 1
        if operations.waits[following] == 0:
            start(state, following)


@hot_entry
def start_ready(state, first, last):
    """Start the operations of `first .. last` that wait for nothing."""
    for op in range(first, last):
        if state.operations.waits[op] == 0 and state.operations.start_ps[op] < 0:
            start(state, op)


@hot_entry
def run(state, until_ps, budget):
    """Advance to `until_ps`, or until nothing is left to happen (then the clock stays at the last event).

    Returns OK, or SLICED after `budget` instants with more to do: the next call goes on (`slices.in_slices`).
    """
    queue, drains, clock = state.queue, state.drains, state.clock
    instants = 0
    while True:
        if instants >= budget:
            return SLICED
        instants += 1
        settle(state)
        now = queue.time_ps[0] if queue.size[0] > 0 else NEVER
        if drains.size[0] > 0:
            now = min(now, drains.time_ps[drains.order[0]])
        if now >= NEVER or now > until_ps:
            break
        clock[0] = now
        while True:
            if queue.size[0] > 0 and queue.time_ps[0] == now:
                what = pop(queue)
                if what >= 0:
                    end(state, what)
                else:
                    op = -1 - what
                    state.operations.open_flows[op] -= 1
                    if state.operations.open_flows[op] == 0:
                        end(state, op)
            elif drains.size[0] > 0 and drains.time_ps[drains.order[0]] <= now:
                drain(state)
            else:
                break
    if until_ps < NEVER:
        clock[0] = max(clock[0], until_ps)
    return OK


@entry
def carry_over(old, new):
    """Move what is at work into a state with more operations and flows (ids stay the same)."""
    new.clock[0], new.clock[2] = old.clock[0], old.clock[2]
    new.memo.used[2] = old.memo.used[2]
    new.ended[: old.clock[2]] = old.ended[: old.clock[2]]
    for i in range(old.queue.size[0]):
        new.queue.time_ps[i] = old.queue.time_ps[i]
        new.queue.sequence[i] = old.queue.sequence[i]
        new.queue.what[i] = old.queue.what[i]
    new.queue.size[0], new.queue.size[1] = old.queue.size[0], old.queue.size[1]
    new.drains.size[1] = old.drains.size[1]
    for flow in range(len(old.instances.head)):
        i = old.instances.head[flow]
        while i != NONE:
            k = new.instances.free[0]
            new.instances.free[0] = new.instances.after[k]
            new.instances.op[k] = old.instances.op[i]
            new.instances.flow[k] = flow
            new.instances.remaining[k] = old.instances.remaining[i]
            new.instances.rate[k] = old.instances.rate[i]
            new.instances.since_ps[k] = old.instances.since_ps[i]
            line_up(new.instances, k, flow)
            enter(new.drains, k, old.drains.time_ps[i], old.drains.sequence[i])
            mark(new, flow)
            i = old.instances.after[i]


@entry
def forget(state):
    """Capacities changed: remembered rates are void, and whatever is at work is to be solved again."""
    state.memo.set_hash[:] = 0
    state.memo.used[:2] = 0
    for flow in range(len(state.instances.head)):
        if state.instances.head[flow] != NONE:
            mark(state, flow)


@entry
def progress(state):
    """[F] how much of its bytes each flow's instances at work have moved, in executions."""
    instances = state.instances
    moved = np.zeros(len(state.flows.size_bytes))
    for flow in range(len(instances.head)):
        i = instances.head[flow]
        while i != NONE:
            size = state.flows.size_bytes[flow]
            rate = max(instances.rate[i], 0.0)
            remaining = max(0.0, instances.remaining[i] - rate * (state.clock[0] - instances.since_ps[i]))
            moved[flow] += (size - remaining) / size
            i = instances.after[i]
    return moved
