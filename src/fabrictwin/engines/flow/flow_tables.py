"""The flow engine's tables: what flows are, what they share, and the kernel's state over them.

Which resources are one constraint, and which flows meet, is `kernel.flow.max_min`'s; here it is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import F64, I64, place_of, ranges, starts_of
from fabrictwin.base.records import record
from fabrictwin.engines.channels.channel_resources import Bound
from fabrictwin.fabric.fabric import NONE

Columns = Mapping[str, npt.NDArray[Any]]  # operations and flows, as many as were posted

_PER_FLOW = (
    *("size_bytes", "fill_ps", "serial_ps", "piece_bytes", "path_ps", "limit"),
    *("key", "active", "drained"),
)
_PER_OPERATION = (
    *("kind", "duration_ps", "first_flow", "flow_count", "next_op"),
    *("waits", "open_flows", "start_ps", "end_ps"),
)
_MEMO_SLOTS = 1 << 16
_MEMO_POOL = 1 << 20
_MEMBER_SEED = 0xFE110


def empty_columns() -> dict[str, npt.NDArray[Any]]:
    """No operations and no flows."""
    kinds: dict[str, type] = dict.fromkeys(
        ("first_flow", "flow_count", "waits", "open_flows", "next_op", "use_resource", "active"), np.int32
    )
    kinds |= dict.fromkeys(
        ("duration_ps", "start_ps", "end_ps", "next_count", "fill_ps", "serial_ps", "path_ps"), np.int64
    )
    kinds |= dict.fromkeys(("member_count", "use_count", "drained"), np.int64)
    kinds |= dict.fromkeys(("size_bytes", "piece_bytes", "limit", "use_coefficient"), np.float64)
    kinds |= {"kind": np.int8, "key": np.uint64}
    return {name: np.zeros(0, kind) for name, kind in kinds.items()}


def flow_columns(bound: Bound, flow_of_channel: I64, lead: I64) -> dict[str, npt.NDArray[Any]]:
    """Return columns of F flows: sizes, latencies, limits, and the resources that each member uses."""
    uses, resource, coefficient = np.diff(bound.use_start), bound.use_resource, bound.use_coefficient
    if (np.diff(flow_of_channel) < 0).any():
        from fabrictwin.kernel.flow import sums

        member = np.argsort(flow_of_channel, kind="stable")  # channels in the order of their flows
        uses = uses[member]
        resource, coefficient = np.empty_like(resource), np.empty_like(coefficient)
        sums.take_rows(bound.use_start, member, bound.use_resource, bound.use_coefficient, resource, coefficient)
    longest = {name: np.zeros(len(lead), np.int64) for name in ("fill_ps", "serial_ps", "path_ps")}
    for name, column in longest.items():
        np.maximum.at(column, flow_of_channel, getattr(bound, name))
    limit = np.full(len(lead), np.inf)
    np.minimum.at(limit, flow_of_channel, bound.limit)
    return {
        "size_bytes": bound.size_bytes[lead].astype(np.float64),
        **longest,
        "piece_bytes": bound.piece_bytes[lead].astype(np.float64),
        "limit": limit,
        "member_count": np.bincount(flow_of_channel, minlength=len(lead)).astype(np.int64),
        "use_count": uses.astype(np.int64),
        "use_resource": resource,
        "use_coefficient": coefficient,
    }


@record
class Constraints:
    """R resources as C constraints: those that the same members use in the same proportions are one."""

    of: npt.NDArray[np.int32]  # [R] constraint, NONE where nothing uses it or it never binds
    scale: F64  # [R] times a resource's capacity: that of its constraint
    kept: npt.NDArray[np.bool_]  # [uses] of the resource that stands for its constraint
    count: int

    @classmethod
    def of_uses(cls, use_start: I64, columns: Columns, capacity: F64) -> Constraints:
        """Find the constraints: of the resources of each that can bind, the tightest stands for it."""
        from fabrictwin.kernel.flow import max_min as sharing

        resource, coefficient = columns["use_resource"], columns["use_coefficient"]
        largest, mark = np.zeros(len(capacity)), np.zeros(len(capacity), np.uint64)
        if len(resource):
            keys = np.random.Generator(np.random.PCG64(_MEMBER_SEED))
            key = keys.integers(1, 2**64, len(use_start) - 1, dtype=np.uint64)
            sharing.usage(use_start, resource, coefficient, key, largest, mark)
        binding = np.flatnonzero((largest > 0) & np.isfinite(capacity))
        _, one, which = np.unique(mark[binding], return_index=True, return_inverse=True)
        which = which.reshape(-1)
        # numbered as the resources that come first, so that the order of sums is that of resources
        number = place_of(np.argsort(one, kind="stable"), len(one))
        of = np.full(len(capacity), NONE, np.int32)
        of[binding] = number[which]
        ease = capacity[binding] / largest[binding]
        order = np.lexsort((binding, ease, of[binding]))
        first = np.searchsorted(of[binding][order], np.arange(len(one)))
        stands = binding[order[first]]
        scale = np.zeros(len(capacity))
        scale[binding] = largest[stands[of[binding]]] / largest[binding]
        represents = np.zeros(len(capacity), bool)
        represents[stands] = True
        return cls(of, scale, represents[resource], len(one))

    def capacities(self, capacity: F64) -> F64:
        """[C] capacity of each constraint."""
        result = np.full(self.count, np.inf)
        used = np.flatnonzero(self.of != NONE)
        np.minimum.at(result, self.of[used], capacity[used] * self.scale[used])
        return result


def flow_table(columns: Columns, capacity: F64) -> tuple[Any, Constraints]:
    """The kernel's flows over resources of these capacities."""
    from fabrictwin.kernel.flow import max_min as sharing

    flows = len(columns["size_bytes"])
    member_start, use_start = starts_of(columns["member_count"]), starts_of(columns["use_count"])
    members = len(use_start) - 1
    member_flow = np.repeat(np.arange(flows, dtype=np.int32), columns["member_count"])
    constraints = Constraints.of_uses(use_start, columns, capacity)
    use_member = np.repeat(np.arange(members, dtype=np.int32), columns["use_count"])[constraints.kept]
    use_constraint = constraints.of[columns["use_resource"][constraints.kept]]
    order = np.argsort(use_constraint, kind="stable")
    user_start = starts_of(np.bincount(use_constraint, minlength=constraints.count))
    user_member = use_member[order]
    mark = np.zeros(constraints.count, np.uint64)
    if len(user_member):
        sharing.meetings(user_start, user_member, member_flow, columns["key"], mark)
    _, met = np.unique(mark, return_index=True)
    met = met[mark[met] != 0]
    at = ranges(user_start[met], np.diff(user_start)[met])
    meeting = np.repeat(np.arange(len(met)), np.diff(user_start)[met])
    pairs = np.unique(meeting * max(flows, 1) + member_flow[user_member[at]])
    meeting, met_flow = pairs // max(flows, 1), pairs % max(flows, 1)
    by_flow = np.argsort(met_flow, kind="stable")
    table = sharing.Flows(
        member_start=member_start.astype(np.int32),
        use_start=starts_of(np.bincount(use_member, minlength=members)),
        use_constraint=use_constraint,
        use_coefficient=columns["use_coefficient"][constraints.kept],
        user_start=user_start,
        user_member=user_member,
        member_flow=member_flow,
        capacity=constraints.capacities(capacity),
        meeting_start=starts_of(np.bincount(met_flow, minlength=flows)),
        meeting=meeting[by_flow].astype(np.int32),
        met_start=starts_of(np.bincount(meeting, minlength=len(met))),
        met_flow=met_flow.astype(np.int32),
        **{name: columns[name] for name in _PER_FLOW},
    )
    return table, constraints


def new_state(columns: Columns, flows: Any) -> Any:
    """The kernel's state before anything has started."""
    from fabrictwin.kernel.flow import fluid
    from fabrictwin.kernel.flow import heaps as queues
    from fabrictwin.kernel.flow import max_min as sharing

    n, count = len(columns["kind"]), len(columns["size_bytes"])
    operations = fluid.Operations(
        next_start=starts_of(columns["next_count"]), **{name: columns[name] for name in _PER_OPERATION}
    )
    at_work = int(columns["flow_count"].astype(np.int64).sum()) + 1
    instances = fluid.Instances(
        op=np.zeros(at_work, np.int32),
        flow=np.zeros(at_work, np.int32),
        remaining=np.zeros(at_work),
        rate=np.zeros(at_work),
        since_ps=np.zeros(at_work, np.int64),
        after=np.append(np.arange(1, at_work, dtype=np.int32), np.int32(NONE)),
        before=np.full(at_work, NONE, np.int32),
        head=np.full(count, NONE, np.int32),
        tail=np.full(count, NONE, np.int32),
        free=np.zeros(1, np.int32),
    )
    events = n + at_work + 1
    queue = queues.Queue(
        np.zeros(events, np.int64), np.zeros(events, np.int64), np.zeros(events, np.int64), np.zeros(2, np.int64)
    )
    drains = queues.Drains(
        np.zeros(at_work, np.int32),
        np.zeros(at_work, np.int32),
        np.zeros(at_work, np.int64),
        np.zeros(at_work, np.int64),
        np.zeros(2, np.int64),
    )
    memo = sharing.Memo(
        np.zeros(_MEMO_SLOTS, np.uint64),
        np.zeros(_MEMO_SLOTS, np.int32),
        np.zeros(_MEMO_SLOTS, np.int32),
        np.zeros(_MEMO_POOL, np.int32),
        np.zeros(_MEMO_POOL),
        np.zeros(3, np.int64),
    )
    scratch = _scratch(flows)
    return fluid.State(
        operations,
        flows,
        instances,
        queue,
        drains,
        memo,
        scratch,
        np.zeros(count, np.int32),
        np.zeros(count, np.int8),
        np.zeros(4, np.int64),
        np.zeros(n, np.int32),
    )


def _scratch(flows: Any) -> Any:
    """Work space for the solver."""
    from fabrictwin.kernel.flow import max_min as sharing

    count, constraints = len(flows.limit), len(flows.capacity)
    return sharing.Scratch(
        flow_rate=np.zeros(count),
        member_frozen=np.zeros(len(flows.member_flow), np.int8),
        demand=np.zeros(constraints),
        taken=np.zeros(constraints),
        touched=np.zeros(constraints, np.int32),
        is_touched=np.zeros(constraints, np.int8),
        heap_share=np.zeros(constraints + count + 1),
        heap_what=np.zeros(constraints + count + 1, np.int32),
        group=np.zeros(count, np.int32),
        seen=np.zeros(count, np.int64),
        passed=np.zeros(max(len(flows.met_start) - 1, 0), np.int64),
    )


def fair_rates(ports: Sequence[Sequence[int]], capacity: F64, limit: F64) -> F64:
    """Return max-min fair rates of flows that each use some `ports` whole, none above its `limit`.

    `capacity` [P] is of all ports, in the unit of the rates.
    """
    from fabrictwin.kernel.flow import max_min as sharing

    flows, none, never = len(ports), np.zeros(0, np.int64), np.zeros(0)
    uses = np.array([len(each) for each in ports], np.int64)
    used, constraint = np.unique(np.array([p for each in ports for p in each], np.int64), return_inverse=True)
    constraint = constraint.reshape(-1).astype(np.int32)
    every = np.arange(flows, dtype=np.int32)
    table = sharing.Flows(
        size_bytes=never,
        fill_ps=none,
        serial_ps=none,
        piece_bytes=never,
        path_ps=none,
        limit=limit,
        member_start=np.arange(flows + 1, dtype=np.int32),
        use_start=starts_of(uses),
        use_constraint=constraint,
        use_coefficient=np.ones(len(constraint)),
        user_start=starts_of(np.bincount(constraint, minlength=len(used))),
        user_member=np.repeat(every, uses)[np.argsort(constraint, kind="stable")],
        member_flow=every,
        capacity=capacity[used],
        meeting_start=none,
        meeting=every[:0],
        met_start=none,
        met_flow=every[:0],
        key=np.zeros(0, np.uint64),
        active=np.ones(flows, np.int32),
        drained=none,
    )
    scratch = _scratch(table)
    scratch.group[:] = every
    sharing.fair_rates(table, scratch, flows)
    rates: F64 = scratch.flow_rate
    return rates


def group_channels(bound: Bound, folded: npt.NDArray[np.bool_]) -> tuple[I64, I64, I64]:
    """(flow of each channel, one channel of each flow, communication of each flow).

    Channels of a folded communication that carry the same are one flow.
    """
    channels = len(bound.communication)
    alone = np.where(folded[bound.communication], 0, np.arange(channels)) if channels else np.zeros(0, np.int64)
    key = np.stack([bound.communication.astype(np.int64), alone, bound.size_bytes, bound.piece_bytes], axis=1)
    _, lead, flow = np.unique(key, axis=0, return_index=True, return_inverse=True)
    return flow.reshape(-1).astype(np.int64), lead.astype(np.int64), bound.communication[lead].astype(np.int64)
