"""The fluid simulation: operations in dependency order, and flows with max-min fair rates between them.

A *flow* is defined once and started by many operations. It has *members*, the coupled channels that make it up:
a member moves at one rate x over all of its edges at once, and uses `coefficient` times x of each resource it
crosses (links in bytes, adapters' message engines in messages). A flow moves at the rate of its slowest member.

Rates are solved by progressive filling (Bertsekas and Gallager, "Data Networks", 6.5.2) per *component*: flows
that share no resource, even through others, never influence each other. A component's rates depend only on the
set of flows active in it, so each set is solved once and remembered.

Events are the ends of compute, the drain of a flow's bytes, and its delivery a fill latency later. Everything
that happens at one instant is taken in before rates are solved again. Ties: ends and deliveries in the order in
which they were scheduled, then components by number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.jit import entry, hot_entry, outlined

NONE = -1
FOREVER = 2**62

COMPUTE = 0  # as program.OpKind

OK = 0
MEMO_FULL = 1  # not an error: later sets are solved anew each time


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


class Flows(NamedTuple):
    """Flow definitions; F flows, M members, K components, R resources."""

    size_bytes: np.ndarray  # float64 [F] bytes that drain at the flow's rate
    fill_ps: np.ndarray  # int64 [F] latency after the drain
    serial_ps: np.ndarray  # int64 [F] the first piece's serialization on its whole way ...
    piece_bytes: np.ndarray  # float64 [F] ... of which the drain covered that of so many bytes at its rate
    path_ps: np.ndarray  # int64 [F] what it takes from its start, at least
    limit: np.ndarray  # float64 [F] highest rate, bytes a picosecond
    component: np.ndarray  # int32 [F]
    member_start: np.ndarray  # int32 [F + 1]
    use_start: np.ndarray  # int64 [M + 1]
    use_resource: np.ndarray  # int32
    use_coefficient: np.ndarray  # float64
    user_start: np.ndarray  # int64 [R + 1] members that use a resource, CSR
    user_member: np.ndarray  # int32
    user_coefficient: np.ndarray  # float64
    member_flow: np.ndarray  # int32 [M]
    capacity: np.ndarray  # float64 [R] per picosecond
    key: np.ndarray  # uint64 [F] random, for the set's hash
    active: np.ndarray  # int32 [F] instances at work; modified
    drained: np.ndarray  # int64 [F] instances that drained; modified


class Instances(NamedTuple):
    """Flows at work, a pool with a free list, and per component a list in order of start."""

    op: np.ndarray  # int32
    flow: np.ndarray  # int32
    remaining: np.ndarray  # float64
    rate: np.ndarray  # float64
    since_ps: np.ndarray  # int64 when `remaining` was true
    drain_ps: np.ndarray  # int64
    after: np.ndarray  # int32 next in the component's list, or next free
    before: np.ndarray  # int32
    head: np.ndarray  # int32 [K]
    tail: np.ndarray  # int32 [K]
    free: np.ndarray  # int32 [1] first free


class Queue(NamedTuple):
    """A 4-ary heap by (time, sequence) of compute ends and deliveries."""

    time_ps: np.ndarray
    sequence: np.ndarray
    what: np.ndarray  # >= 0: operation whose compute ends; < 0: delivery for operation -1 - what
    size: np.ndarray  # int64 [2]: length, next sequence number


class Drains(NamedTuple):
    """An indexed 4-ary heap of components by the time of their next drain, ties by number."""

    order: np.ndarray  # int32 [K]
    place: np.ndarray  # int32 [K]
    time_ps: np.ndarray  # int64 [K]


class Memo(NamedTuple):
    """Solved rates by active set: open addressing, values in one pool."""

    set_hash: np.ndarray  # uint64 [slots], 0 free
    set_start: np.ndarray  # int32 [slots]
    set_size: np.ndarray  # int32 [slots]
    flow: np.ndarray  # int32 [pool]
    rate: np.ndarray  # float64 [pool]
    used: np.ndarray  # int64 [2]: pool, slots


class Scratch(NamedTuple):
    """Work space of the solver and of the loop."""

    flow_rate: np.ndarray  # float64 [F]
    member_frozen: np.ndarray  # int8 [M]
    demand: np.ndarray  # float64 [R] coefficients of members not frozen
    taken: np.ndarray  # float64 [R] capacity of frozen members
    touched: np.ndarray  # int32 [R]
    is_touched: np.ndarray  # int8 [R]
    heap_share: np.ndarray  # float64 [R + F]
    heap_what: np.ndarray  # int32 [R + F]
    dirty: np.ndarray  # int32 [K]
    is_dirty: np.ndarray  # int8 [K]
    members: np.ndarray  # int32 [F] distinct active flows of the component being solved


class State(NamedTuple):
    operations: Operations
    flows: Flows
    instances: Instances
    queue: Queue
    drains: Drains
    memo: Memo
    scratch: Scratch
    clock: np.ndarray  # int64 [4]: now, dirty components, operations ended, solves
    ended: np.ndarray  # int32 [n] operations in the order in which they ended


@outlined
def push(queue, time_ps, what):
    n = queue.size[0]
    sequence = queue.size[1]
    queue.size[0] = n + 1
    queue.size[1] = sequence + 1
    i = n
    while i > 0:
        parent = (i - 1) >> 2
        if queue.time_ps[parent] <= time_ps:
            break
        queue.time_ps[i] = queue.time_ps[parent]
        queue.sequence[i] = queue.sequence[parent]
        queue.what[i] = queue.what[parent]
        i = parent
    queue.time_ps[i] = time_ps
    queue.sequence[i] = sequence
    queue.what[i] = what


@outlined
def pop(queue):
    """Remove the earliest and return what it is."""
    top = queue.what[0]
    n = queue.size[0] - 1
    queue.size[0] = n
    time_ps, sequence, what = queue.time_ps[n], queue.sequence[n], queue.what[n]
    i = 0
    while True:
        child = 4 * i + 1
        if child >= n:
            break
        best = child
        for c in range(child + 1, min(child + 4, n)):
            if queue.time_ps[c] < queue.time_ps[best] or (
                queue.time_ps[c] == queue.time_ps[best] and queue.sequence[c] < queue.sequence[best]
            ):
                best = c
        if time_ps < queue.time_ps[best] or (time_ps == queue.time_ps[best] and sequence < queue.sequence[best]):
            break
        queue.time_ps[i] = queue.time_ps[best]
        queue.sequence[i] = queue.sequence[best]
        queue.what[i] = queue.what[best]
        i = best
    queue.time_ps[i] = time_ps
    queue.sequence[i] = sequence
    queue.what[i] = what
    return top


@outlined
def earlier(drains, a, b):
    return drains.time_ps[a] < drains.time_ps[b] or (drains.time_ps[a] == drains.time_ps[b] and a < b)


@outlined
def reschedule(drains, component, time_ps):
    """Set a component's next drain and restore the heap."""
    drains.time_ps[component] = time_ps
    order, place = drains.order, drains.place
    n = len(order)
    i = place[component]
    while i > 0:
        parent = (i - 1) >> 2
        if not earlier(drains, component, order[parent]):
            break
        order[i] = order[parent]
        place[order[i]] = i
        i = parent
    while True:
        child = 4 * i + 1
        if child >= n:
            break
        best = child
        for c in range(child + 1, min(child + 4, n)):
            if earlier(drains, order[c], order[best]):
                best = c
        if not earlier(drains, order[best], component):
            break
        order[i] = order[best]
        place[order[i]] = i
        i = best
    order[i] = component
    place[component] = i


@outlined
def share_push(share, what, n, value, item):
    i = n
    while i > 0:
        parent = (i - 1) >> 1
        if share[parent] < value or (share[parent] == value and what[parent] <= item):
            break
        share[i], what[i] = share[parent], what[parent]
        i = parent
    share[i], what[i] = value, item


@outlined
def share_pop(share, what, n):
    """Drop the smallest of `n`; the caller has read it."""
    value, item = share[n - 1], what[n - 1]
    n -= 1
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and (
            share[child + 1] < share[child] or (share[child + 1] == share[child] and what[child + 1] < what[child])
        ):
            child += 1
        if value < share[child] or (value == share[child] and item <= what[child]):
            break
        share[i], what[i] = share[child], what[child]
        i = child
    share[i], what[i] = value, item


@outlined
def freeze(flows, scratch, member, rate):
    """Fix a member's rate; its demand becomes taken capacity."""
    flow = flows.member_flow[member]
    scratch.member_frozen[member] = 1
    scratch.flow_rate[flow] = min(scratch.flow_rate[flow], rate)
    count = flows.active[flow]
    for u in range(flows.use_start[member], flows.use_start[member + 1]):
        r = flows.use_resource[u]
        used = count * flows.use_coefficient[u]
        scratch.demand[r] -= used
        scratch.taken[r] += used * rate


@outlined
def fill_progressively(flows, scratch, distinct):
    """Max-min fair rates of the `distinct` active flows listed in scratch.members, into scratch.flow_rate."""
    touched = 0
    for k in range(distinct):
        flow = scratch.members[k]
        scratch.flow_rate[flow] = np.inf
        count = flows.active[flow]
        for member in range(flows.member_start[flow], flows.member_start[flow + 1]):
            scratch.member_frozen[member] = 0
            for u in range(flows.use_start[member], flows.use_start[member + 1]):
                r = flows.use_resource[u]
                if not scratch.is_touched[r]:
                    scratch.is_touched[r] = 1
                    scratch.touched[touched] = r
                    touched += 1
                    scratch.demand[r] = 0.0
                    scratch.taken[r] = 0.0
                scratch.demand[r] += count * flows.use_coefficient[u]
    share, what = scratch.heap_share, scratch.heap_what
    resources = len(flows.capacity)
    n = 0
    for k in range(touched):
        r = scratch.touched[k]
        share_push(share, what, n, flows.capacity[r] / scratch.demand[r], r)
        n += 1
    for k in range(distinct):
        flow = scratch.members[k]
        if flows.limit[flow] < np.inf:
            share_push(share, what, n, flows.limit[flow], resources + flow)
            n += 1
    while n > 0:
        level, item = share[0], what[0]
        share_pop(share, what, n)
        n -= 1
        if item >= resources:
            flow = item - resources
            for member in range(flows.member_start[flow], flows.member_start[flow + 1]):
                if not scratch.member_frozen[member]:
                    freeze(flows, scratch, member, level)
            continue
        # demand shrinks by subtraction, so a resource without unfrozen members keeps a rounding residue
        live = False
        for u in range(flows.user_start[item], flows.user_start[item + 1]):
            member = flows.user_member[u]
            if flows.active[flows.member_flow[member]] > 0 and not scratch.member_frozen[member]:
                live = True
                break
        if not live:
            continue
        now = max(0.0, flows.capacity[item] - scratch.taken[item]) / scratch.demand[item]
        if now > level * (1.0 + 1e-12):
            share_push(share, what, n, now, item)
            n += 1
            continue
        for u in range(flows.user_start[item], flows.user_start[item + 1]):
            member = flows.user_member[u]
            if flows.active[flows.member_flow[member]] > 0 and not scratch.member_frozen[member]:
                freeze(flows, scratch, member, level)
    for k in range(touched):
        scratch.is_touched[scratch.touched[k]] = 0


@outlined
def solve(state, component):
    """Rates of a component's active flows into scratch.flow_rate, from memory or by filling."""
    flows, instances, memo, scratch = state.flows, state.instances, state.memo, state.scratch
    distinct = 0
    key = np.uint64(0)
    i = instances.head[component]
    while i != NONE:
        flow = instances.flow[i]
        key += flows.key[flow]
        if scratch.flow_rate[flow] >= 0.0:
            scratch.flow_rate[flow] = -1.0  # met
            scratch.members[distinct] = flow
            distinct += 1
        i = instances.after[i]
    for k in range(distinct):
        scratch.flow_rate[scratch.members[k]] = 0.0
    if key == 0:
        key = np.uint64(1)
    mask = np.uint64(len(memo.set_hash) - 1)
    slot = key & mask
    while memo.set_hash[slot] != 0:
        if memo.set_hash[slot] == key:
            for p in range(memo.set_start[slot], memo.set_start[slot] + memo.set_size[slot]):
                scratch.flow_rate[memo.flow[p]] = memo.rate[p]
            return
        slot = (slot + np.uint64(1)) & mask
    fill_progressively(flows, scratch, distinct)
    state.clock[3] += 1
    begin = memo.used[0]
    if begin + distinct <= len(memo.flow) and 2 * memo.used[1] < len(memo.set_hash):
        for k in range(distinct):
            memo.flow[begin + k] = scratch.members[k]
            memo.rate[begin + k] = scratch.flow_rate[scratch.members[k]]
        memo.set_hash[slot] = key
        memo.set_start[slot] = begin
        memo.set_size[slot] = distinct
        memo.used[0] = begin + distinct
        memo.used[1] += 1


@outlined
def update(state, component):
    """Solve a component anew and reschedule its next drain."""
    instances, scratch = state.instances, state.scratch
    now = state.clock[0]
    if instances.head[component] == NONE:
        reschedule(state.drains, component, FOREVER)
        return
    solve(state, component)
    first = FOREVER
    i = instances.head[component]
    while i != NONE:
        rate = scratch.flow_rate[instances.flow[i]]
        if rate != instances.rate[i]:
            passed = now - instances.since_ps[i]
            instances.remaining[i] = max(0.0, instances.remaining[i] - instances.rate[i] * passed)
            instances.since_ps[i] = now
            instances.rate[i] = rate
            if rate > 0.0:
                wait = np.ceil(instances.remaining[i] / rate)
                instances.drain_ps[i] = now + np.int64(wait) if wait < 4e18 else FOREVER
            else:
                instances.drain_ps[i] = FOREVER
        first = min(first, instances.drain_ps[i])
        i = instances.after[i]
    reschedule(state.drains, component, first)


@outlined
def mark(state, component):
    """The component's set of active flows changed: solve it before time moves on."""
    scratch = state.scratch
    if not scratch.is_dirty[component]:
        scratch.is_dirty[component] = 1
        scratch.dirty[state.clock[1]] = component
        state.clock[1] += 1


@outlined
def start(state, op):
    """An operation whose predecessors have all ended."""
    operations, flows, instances = state.operations, state.flows, state.instances
    now = state.clock[0]
    operations.start_ps[op] = now
    if operations.kind[op] == COMPUTE or operations.flow_count[op] == 0:
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
        component = flows.component[flow]
        instances.op[i] = op
        instances.flow[i] = flow
        instances.remaining[i] = flows.size_bytes[flow]
        instances.rate[i] = -1.0  # no rate yet: differs from any that the solver gives
        instances.since_ps[i] = now
        instances.drain_ps[i] = FOREVER
        instances.after[i] = NONE
        tail = instances.tail[component]
        instances.before[i] = tail
        if tail == NONE:
            instances.head[component] = i
        else:
            instances.after[tail] = i
        instances.tail[component] = i
        flows.active[flow] += 1
        mark(state, component)


@outlined
def drain(state, component):
    """Take out the flows of a component whose bytes have left; they are delivered after their fill latency."""
    flows, instances = state.flows, state.instances
    now = state.clock[0]
    i = instances.head[component]
    while i != NONE:
        following = instances.after[i]
        if instances.drain_ps[i] <= now:
            flow = instances.flow[i]
            before = instances.before[i]
            if before == NONE:
                instances.head[component] = following
            else:
                instances.after[before] = following
            if following == NONE:
                instances.tail[component] = before
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
        i = following
    # what is left keeps its own drain times until the set is solved again
    reschedule(state.drains, component, FOREVER)
    mark(state, component)


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


@outlined
def settle(state):
    """Solve every component whose active set changed."""
    for k in range(state.clock[1]):
        component = state.scratch.dirty[k]
        state.scratch.is_dirty[component] = 0
        update(state, component)
    state.clock[1] = 0


@hot_entry
def start_ready(state, first, last):
    """Start the operations of `first .. last` that wait for nothing."""
    for op in range(first, last):
        if state.operations.waits[op] == 0 and state.operations.start_ps[op] < 0:
            start(state, op)


@hot_entry
def run(state, until_ps):
    """Advance to `until_ps`, or until nothing is left to happen (then the clock stays at the last event)."""
    queue, drains, clock = state.queue, state.drains, state.clock
    while True:
        settle(state)
        now = queue.time_ps[0] if queue.size[0] > 0 else FOREVER
        if len(drains.order) > 0:
            now = min(now, drains.time_ps[drains.order[0]])
        if now >= FOREVER or now > until_ps:
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
            elif len(drains.order) > 0 and drains.time_ps[drains.order[0]] <= now:
                drain(state, drains.order[0])
            else:
                break
    if until_ps < FOREVER:
        clock[0] = max(clock[0], until_ps)
    return OK


@outlined
def root_of(parent, i):
    """The root of a union-find forest, halving the path on the way."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@entry
def find_components(member_start, use_start, use_resource, owner, component):
    """Number the sets of flows that share resources, even through others. `owner` int32 [R] comes filled with -1.

    Returns their number; `component` int32 [F] is filled, numbered by first flow.
    """
    flows = len(component)
    parent = np.arange(flows).astype(np.int32)
    for flow in range(flows):
        for member in range(member_start[flow], member_start[flow + 1]):
            for u in range(use_start[member], use_start[member + 1]):
                r = use_resource[u]
                if owner[r] == NONE:
                    owner[r] = flow
                else:
                    a, b = root_of(parent, owner[r]), root_of(parent, flow)
                    if a < b:
                        parent[b] = a
                    elif b < a:
                        parent[a] = b
    count = 0
    for flow in range(flows):
        if parent[flow] == flow:
            component[flow] = count
            count += 1
        else:
            component[flow] = component[root_of(parent, flow)]
    return count


@entry
def carry_over(old, new):
    """Move what is at work into a state with more operations and flows (ids stay the same)."""
    new.clock[0], new.clock[2], new.clock[3] = old.clock[0], old.clock[2], old.clock[3]
    new.ended[: old.clock[2]] = old.ended[: old.clock[2]]
    for i in range(old.queue.size[0]):
        new.queue.time_ps[i] = old.queue.time_ps[i]
        new.queue.sequence[i] = old.queue.sequence[i]
        new.queue.what[i] = old.queue.what[i]
    new.queue.size[0], new.queue.size[1] = old.queue.size[0], old.queue.size[1]
    for component in range(len(old.instances.head)):
        i = old.instances.head[component]
        while i != NONE:
            k = new.instances.free[0]
            new.instances.free[0] = new.instances.after[k]
            flow = old.instances.flow[i]
            to = new.flows.component[flow]
            new.instances.op[k] = old.instances.op[i]
            new.instances.flow[k] = flow
            new.instances.remaining[k] = old.instances.remaining[i]
            new.instances.rate[k] = old.instances.rate[i]
            new.instances.since_ps[k] = old.instances.since_ps[i]
            new.instances.drain_ps[k] = old.instances.drain_ps[i]
            new.instances.after[k] = NONE
            tail = new.instances.tail[to]
            new.instances.before[k] = tail
            if tail == NONE:
                new.instances.head[to] = k
            else:
                new.instances.after[tail] = k
            new.instances.tail[to] = k
            mark(new, to)
            i = old.instances.after[i]


@entry
def forget(state):
    """Capacities changed: remembered rates are void, and every component is to be solved again."""
    state.memo.set_hash[:] = 0
    state.memo.used[:] = 0
    for component in range(len(state.instances.head)):
        mark(state, component)


@entry
def progress(state):
    """[F] how much of its bytes each flow's instances at work have moved, in executions."""
    instances = state.instances
    moved = np.zeros(len(state.flows.size_bytes))
    for component in range(len(instances.head)):
        i = instances.head[component]
        while i != NONE:
            flow = instances.flow[i]
            size = state.flows.size_bytes[flow]
            rate = max(instances.rate[i], 0.0)
            remaining = max(0.0, instances.remaining[i] - rate * (state.clock[0] - instances.since_ps[i]))
            moved[flow] += (size - remaining) / size
            i = instances.after[i]
    return moved
