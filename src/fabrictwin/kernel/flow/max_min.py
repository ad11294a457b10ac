"""Compiled: what flows share, and their max-min fair rates.

A *flow* has *members*, the coupled channels that make it up: a member moves at one rate x over all of its edges at
once, and uses `coefficient` times x of each resource it crosses (links in bytes, adapters' message engines in
messages). A flow moves at the rate of its slowest member.

Rates are solved by progressive filling (Bertsekas and Gallager, "Data Networks", 6.5.2) among the active flows
that share resources, even through other active ones: flows that do not never influence each other. Two reductions
leave the rates as they are. Resources that the same members use in the same proportions (the hops of one cable
run, the edges of one ring) are one *constraint*, the tightest. And whether flows meet at all is kept for flows,
not for members: a *meeting* is a set of flows that some constraint has in common.

A set's rates depend on nothing else, so each set of active flows is solved once and remembered.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.flow.heaps import share_pop, share_push
from fabrictwin.kernel.jit.by_reference import by_reference
from fabrictwin.kernel.jit.decorators import entry, outlined

_GRAIN = 2.0**40  # proportions that differ by less are the same


@by_reference
class Flows(NamedTuple):
    """Flow definitions; F flows, M members, C constraints, H meetings."""

    size_bytes: np.ndarray  # float64 [F] bytes that drain at the flow's rate
    fill_ps: np.ndarray  # int64 [F] latency after the drain
    serial_ps: np.ndarray  # int64 [F] the first piece's serialization on its whole way ...
    piece_bytes: np.ndarray  # float64 [F] ... of which the drain covered that of so many bytes at its rate
    path_ps: np.ndarray  # int64 [F] what it takes from its start, at least
    limit: np.ndarray  # float64 [F] highest rate, bytes a picosecond
    member_start: np.ndarray  # int32 [F + 1]
    use_start: np.ndarray  # int64 [M + 1]
    use_constraint: np.ndarray  # int32
    use_coefficient: np.ndarray  # float64
    user_start: np.ndarray  # int64 [C + 1] members that use a constraint, CSR
    user_member: np.ndarray  # int32
    member_flow: np.ndarray  # int32 [M]
    capacity: np.ndarray  # float64 [C] per picosecond
    meeting_start: np.ndarray  # int64 [F + 1] meetings that a flow takes part in, CSR
    meeting: np.ndarray  # int32
    met_start: np.ndarray  # int64 [H + 1] flows of a meeting, CSR
    met_flow: np.ndarray  # int32
    key: np.ndarray  # uint64 [F] random, for the set's hash
    active: np.ndarray  # int32 [F] instances at work; modified
    drained: np.ndarray  # int64 [F] instances that drained; modified


@by_reference
class Memo(NamedTuple):
    """Solved rates by active set: open addressing, values in one pool."""

    set_hash: np.ndarray  # uint64 [slots], 0 free
    set_start: np.ndarray  # int32 [slots]
    set_size: np.ndarray  # int32 [slots]
    flow: np.ndarray  # int32 [pool]
    rate: np.ndarray  # float64 [pool]
    used: np.ndarray  # int64 [3]: pool, slots, sets that were solved


@by_reference
class Scratch(NamedTuple):
    """Work space of the solver."""

    flow_rate: np.ndarray  # float64 [F]
    member_frozen: np.ndarray  # int8 [M]
    demand: np.ndarray  # float64 [C] coefficients of members not frozen
    taken: np.ndarray  # float64 [C] capacity of frozen members
    touched: np.ndarray  # int32 [C]
    is_touched: np.ndarray  # int8 [C]
    heap_share: np.ndarray  # float64 [C + F]
    heap_what: np.ndarray  # int32 [C + F]
    group: np.ndarray  # int32 [F] flows whose rates depend on each other
    seen: np.ndarray  # int64 [F] round in which a flow was gathered
    passed: np.ndarray  # int64 [H] round in which a meeting was


@outlined
def gather(flows, scratch, flow, round_):
    """The active flows that an active one shares with, even through others, into scratch.group; their number."""
    scratch.group[0] = flow
    scratch.seen[flow] = round_
    count = 1
    at = 0
    while at < count:
        one = scratch.group[at]
        at += 1
        for m in range(flows.meeting_start[one], flows.meeting_start[one + 1]):
            meeting = flows.meeting[m]
            if scratch.passed[meeting] == round_:
                continue
            scratch.passed[meeting] = round_
            for k in range(flows.met_start[meeting], flows.met_start[meeting + 1]):
                other = flows.met_flow[k]
                if flows.active[other] > 0 and scratch.seen[other] != round_:
                    scratch.seen[other] = round_
                    scratch.group[count] = other
                    count += 1
    return count


@outlined
def unseen(flows, scratch, meeting, round_):
    """The first active flow at a meeting that was not gathered in this round, or NONE."""
    for k in range(flows.met_start[meeting], flows.met_start[meeting + 1]):
        other = flows.met_flow[k]
        if flows.active[other] > 0 and scratch.seen[other] != round_:
            return other
    return NONE


@outlined
def freeze(flows, scratch, member, rate):
    """Fix a member's rate; its demand becomes taken capacity."""
    flow = flows.member_flow[member]
    scratch.member_frozen[member] = 1
    scratch.flow_rate[flow] = min(scratch.flow_rate[flow], rate)
    count = flows.active[flow]
    for u in range(flows.use_start[member], flows.use_start[member + 1]):
        c = flows.use_constraint[u]
        used = count * flows.use_coefficient[u]
        scratch.demand[c] -= used
        scratch.taken[c] += used * rate


@outlined
def fill_progressively(flows, scratch, count):
    """Max-min fair rates of the `count` active flows listed in scratch.group, into scratch.flow_rate."""
    touched = 0
    for k in range(count):
        flow = scratch.group[k]
        scratch.flow_rate[flow] = np.inf
        at_work = flows.active[flow]
        for member in range(flows.member_start[flow], flows.member_start[flow + 1]):
            scratch.member_frozen[member] = 0
            for u in range(flows.use_start[member], flows.use_start[member + 1]):
                c = flows.use_constraint[u]
                if not scratch.is_touched[c]:
                    scratch.is_touched[c] = 1
                    scratch.touched[touched] = c
                    touched += 1
                    scratch.demand[c] = 0.0
                    scratch.taken[c] = 0.0
                scratch.demand[c] += at_work * flows.use_coefficient[u]
    share, what = scratch.heap_share, scratch.heap_what
    constraints = len(flows.capacity)
    n = 0
    for k in range(touched):
        c = scratch.touched[k]
        share_push(share, what, n, flows.capacity[c] / scratch.demand[c], c)
        n += 1
    for k in range(count):
        flow = scratch.group[k]
        if flows.limit[flow] < np.inf:
            share_push(share, what, n, flows.limit[flow], constraints + flow)
            n += 1
    while n > 0:
        level, item = share[0], what[0]
        share_pop(share, what, n)
        n -= 1
        if item >= constraints:
            flow = item - constraints
            for member in range(flows.member_start[flow], flows.member_start[flow + 1]):
                if not scratch.member_frozen[member]:
                    freeze(flows, scratch, member, level)
            continue
        # demand shrinks by subtraction, so a constraint without unfrozen members keeps a rounding residue
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
def solve(flows, memo, scratch, count):
    """Rates of the `count` flows in scratch.group into scratch.flow_rate, from memory or by filling."""
    key = np.uint64(0)
    for k in range(count):
        flow = scratch.group[k]
        key += flows.key[flow] * np.uint64(flows.active[flow])
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
    fill_progressively(flows, scratch, count)
    memo.used[2] += 1
    begin = memo.used[0]
    if begin + count <= len(memo.flow) and 2 * memo.used[1] < len(memo.set_hash):
        for k in range(count):
            memo.flow[begin + k] = scratch.group[k]
            memo.rate[begin + k] = scratch.flow_rate[scratch.group[k]]
        memo.set_hash[slot] = key
        memo.set_start[slot] = begin
        memo.set_size[slot] = count
        memo.used[0] = begin + count
        memo.used[1] += 1


@entry
def usage(use_start, use_resource, use_coefficient, key, largest, mark):
    """Usage of each resource [R]: the `largest` coefficient and a `mark` of who uses it in which proportions.

    Both come filled with zeros; `key` uint64 [M] is random. Equal marks: the same members in the same proportions.
    """
    for u in range(len(use_resource)):
        r = use_resource[u]
        largest[r] = max(largest[r], use_coefficient[u])
    for member in range(len(use_start) - 1):
        for u in range(use_start[member], use_start[member + 1]):
            r = use_resource[u]
            part = np.uint64(np.int64(use_coefficient[u] / largest[r] * _GRAIN + 0.5))
            mark[r] += key[member] * part


@entry
def meetings(user_start, user_member, member_flow, key, mark):
    """[C] a `mark` of the set of flows that use each constraint, 0 where it is one flow alone. Comes zeroed."""
    for c in range(len(user_start) - 1):
        last = NONE
        count = 0
        for u in range(user_start[c], user_start[c + 1]):
            flow = member_flow[user_member[u]]  # ascending, as members are
            if flow != last:
                mark[c] += key[flow]
                last = flow
                count += 1
        if count < 2:
            mark[c] = np.uint64(0)


@entry
def fair_rates(flows, scratch, count):
    """Leave the max-min fair rates of the `count` active flows listed in scratch.group in scratch.flow_rate."""
    fill_progressively(flows, scratch, count)
