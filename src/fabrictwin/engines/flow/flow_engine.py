"""The flow engine: messages as fluid flows over the real routes, with max-min fair rates.

Where nothing is congested it agrees with the packet engine. Where something is, it knows routes, headers and
latency only: queues, pauses, marks and losses are not modelled, and their counters say so.

A communication of one group starts one flow a channel. One of several groups (folded: they act alike) starts
one flow for all channels of the same size, which moves at the rate of its slowest member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fabrictwin.base.errors import ConfigError, InvariantError, SimulatedError
from fabrictwin.engines.base.engine import FOREVER, Change, Completions, TableChange
from fabrictwin.engines.channels.channel_resources import Bound, bind, capacities
from fabrictwin.engines.channels.edge_paths import QueuePairs
from fabrictwin.engines.flow.flow_tables import (
    empty_columns,
    flow_columns,
    flow_table,
    group_channels,
    new_state,
    starts,
)
from fabrictwin.fabric.fabric import I32, I64, NONE, Fabric
from fabrictwin.fabric.memory_paths import PathFinder, SpreadOver, Walker
from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.kernel.slices import in_slices
from fabrictwin.program.program import Communication, Operations, Seat
from fabrictwin.routing.engines.filling import NO_PORT
from fabrictwin.routing.path_spread import spread as spread_paths
from fabrictwin.routing.tables import Routes
from fabrictwin.trace.trace import Counters

_KEY_SEED = 0x5EED


def _spread_over(routes: Walker, up: npt.NDArray[np.bool_] | None = None) -> SpreadOver:
    """How switches spread packets over links that are `up`. Raises ConfigError where they have no tables."""
    if not isinstance(routes, Routes):
        raise ConfigError("got traffic that is spread, expected a network of switches", key="run.packet.balance")
    return partial(spread_paths, routes, up=up)


class FlowSession:
    """A session of the flow engine over one fabric and its tables."""

    fidelity = "flow"

    def __init__(self, fabric: Fabric, routes: Walker, *, spread: bool = False) -> None:
        """`spread`: switches spread packets over all equal-cost ports whose link is up."""
        from fabrictwin.kernel.flow import fluid

        self._fluid = fluid
        self.fabric = fabric
        self.finder = PathFinder(fabric, routes, _spread_over(routes) if spread else None)
        self._capacity = capacities(fabric)
        self._keys = np.random.Generator(np.random.PCG64(_KEY_SEED))
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self._posted: list[tuple[Sequence[Communication], I32]] = []  # with the ranks' nodes
        self._port_use: list[tuple[int, Bound, I64]] = []  # (first flow, bound, flow of each channel)
        self._carried = np.zeros(fabric.ports, np.int64)  # bytes over paths that are no more
        self._settled = np.zeros(0)  # [flows] executions, and parts of them, that are counted there
        self._queue_pairs = QueuePairs(len(fabric.nic_node))
        self._reported = 0
        self._state = self._build(empty_columns())

    @property
    def now_ps(self) -> int:
        return int(self._state.clock[0])

    @property
    def solves(self) -> int:
        """How often rates were solved rather than remembered."""
        return int(self._state.memo.used[2])

    def post(self, operations: Operations, communications: Sequence[Communication], rank_node: I32) -> int:
        """Add operations; those without predecessors start now. Returns the id of the first."""
        self._check(operations, communications, rank_node)
        old = self._columns
        base_op, base_flow = len(old["kind"]), len(old["size_bytes"])
        bound, _ = bind(communications, rank_node, self.fabric, self.finder, self._queue_pairs)
        flow_of_channel, flow_channels, flow_communication = group_channels(bound, _folded(communications))
        self._posted.append((communications, rank_node))
        self._port_use.append((base_flow, bound, flow_of_channel))
        self._settled = np.concatenate([self._settled, np.zeros(len(flow_channels))])

        n = len(operations)
        first = np.searchsorted(flow_communication, np.arange(len(communications) + 1))
        takes_part = operations.communication != NONE
        which = np.where(takes_part, operations.communication, 0)
        some = len(communications) > 0
        new: dict[str, npt.NDArray[Any]] = {
            "kind": operations.kind.astype(np.int8),
            "duration_ps": operations.duration_ps.astype(np.int64),
            "first_flow": (np.where(takes_part, first[which], 0) + base_flow).astype(np.int32),
            "flow_count": np.where(takes_part, np.diff(first)[which] if some else 0, 0).astype(np.int32),
            "waits": np.diff(operations.after_start).astype(np.int32),
            "open_flows": np.zeros(n, np.int32),
            "start_ps": np.full(n, -1, np.int64),
            "end_ps": np.full(n, -1, np.int64),
        }
        waiting = np.repeat(np.arange(n, dtype=np.int32), np.diff(operations.after_start))
        order = np.argsort(operations.after, kind="stable")
        new["next_op"] = (waiting[order] + base_op).astype(np.int32)
        counts = np.bincount(operations.after, minlength=n)
        new["next_count"] = counts.astype(np.int64)

        lead = flow_channels
        new |= flow_columns(bound, flow_of_channel, lead)
        new["key"] = self._keys.integers(1, 2**64, len(lead), dtype=np.uint64)
        new["active"] = np.zeros(len(lead), np.int32)
        new["drained"] = np.zeros(len(lead), np.int64)
        for name, part in new.items():
            self._columns[name] = np.concatenate([old[name], part])
        self._state = self._build(self._columns)
        self._fluid.start_ready(self._state, base_op, base_op + n)
        return base_op

    def _check(self, operations: Operations, communications: Sequence[Communication], rank_node: I32) -> None:
        """Refuse what the kernel would take for indices into something else. Raises ConfigError."""
        n = len(operations)
        if n and int(operations.duration_ps.min()) < 0:
            raise ConfigError("got a negative duration, expected picoseconds from 0 upwards")
        after, which = operations.after, operations.communication
        if len(after) and not 0 <= int(after.min()) <= int(after.max()) < n:
            raise ConfigError(f"got a predecessor outside of the {n} operations that are posted together")
        if n and not -1 <= int(which.min()) <= int(which.max()) < len(communications):
            raise ConfigError(f"got a communication outside of the {len(communications)} that are posted")
        for communication in communications:
            ranks = communication.channels.ranks[communication.channels.seats != Seat.SWITCH]
            if len(ranks) and not 0 <= int(ranks.min()) <= int(ranks.max()) < len(rank_node):
                raise ConfigError(
                    f"{communication.name}: got a rank outside of the {len(rank_node)} that are placed"
                )

    def _build(self, columns: dict[str, npt.NDArray[Any]]) -> Any:
        """The kernel's state over the present columns; what is at work carries over."""
        self._columns = columns
        before = getattr(self, "_state", None)
        flows, self._constraints = flow_table(columns, self._capacity)
        state = new_state(columns, flows)
        if before is not None and len(before.operations.kind):
            self._fluid.carry_over(before, state)
        elif before is not None:
            state.clock[0] = before.clock[0]
        return state

    def advance(self, until_ps: int = FOREVER) -> Completions:
        """Run until `until_ps` or until nothing is left to do.

        Raises SimulatedError where a communication waits on a link that is down, and InvariantError where
        operations are left that can never start (their predecessors form a cycle).
        """
        state = self._state
        in_slices(lambda budget: int(self._fluid.run(state, until_ps, budget)))
        done = int(state.clock[2])
        if until_ps >= FOREVER and done < len(state.operations.kind):
            stuck = np.flatnonzero(state.operations.end_ps < 0)
            idle = np.flatnonzero((state.operations.end_ps < 0) & (state.operations.start_ps >= 0))
            if len(idle):
                raise self._stuck(int(idle[0]), len(stuck))
            raise InvariantError(
                f"{len(stuck)} operations never start: the first, {int(stuck[0])}, waits for some that wait for it"
            )
        ended = state.ended[self._reported : done].astype(np.int64)
        self._reported = done
        return Completions(ended, state.operations.end_ps[ended])

    def _stuck(self, operation: int, stuck: int) -> SimulatedError:
        """What holds an operation up: a link on its way that is down."""
        columns = self._columns
        first = int(columns["first_flow"][operation])
        flows = slice(first, first + int(columns["flow_count"][operation]))
        members = starts(columns["member_count"])
        uses = starts(columns["use_count"])
        begin, end = uses[members[flows.start]], uses[members[flows.stop]]
        used = np.unique(columns["use_resource"][begin:end])
        down = used[(used < self.fabric.ports) & (self._capacity[used] == 0)]
        what = (
            f"it carries nothing, and {stuck} operation{'s' if stuck > 1 else ''} never end, the first {operation}"
        )
        if not len(down):
            return SimulatedError("links carry nothing", f"operation {operation}", what)
        more = f", and {len(down) - 1} more links are down" if len(down) > 1 else ""
        return SimulatedError("link down", self.fabric.link_name(int(down[0])), f"{what}{more}")

    def change(self, change: Change) -> None:
        """A link or tables change now: rates are solved again.

        Raises ConfigError for a port or rate that cannot be, and where there are no tables.
        """
        if isinstance(change, TableChange):
            self._reroute(change)
            return
        if not 0 <= change.port < self.fabric.ports:
            raise ConfigError(f"got port {change.port}, expected one of the fabric's {self.fabric.ports}")
        if change.rate_bps is not None and change.rate_bps < 0:
            raise ConfigError(f"got a rate of {change.rate_bps} b/s, expected one that is not negative")
        fabric = self.fabric
        built = int(fabric.port_payload_bps[change.port])
        if change.rate_bps is not None:
            share = built / max(int(fabric.port_rate_bps[change.port]), 1)
            built = round(change.rate_bps * share)
        before, self._capacity[change.port] = self._capacity[change.port], built / (8 * PS_PER_S)
        if self.finder.spread is not None and (before > 0) != (built > 0):
            up = self._capacity[: fabric.ports] > 0
            self._rebind(PathFinder(fabric, self.finder.routes, _spread_over(self.finder.routes, up)))
        state = self._state
        state.flows.capacity[:] = self._constraints.capacities(self._capacity)
        self._fluid.forget(state)

    def _reroute(self, change: TableChange) -> None:
        """All flows over the tables as they are now; those at work go on where they are.

        A destination that a switch has no way to any more keeps its old path, over which nothing comes.
        """
        routes = self.finder.routes
        if not isinstance(routes, Routes) or not routes.lft.size:
            raise ConfigError("got a change of forwarding tables, expected it with InfiniBand's", key="change")
        lft = routes.lft.copy()
        leads = (change.port != NO_PORT) & (change.lid < lft.shape[1])
        lft[change.row[leads], change.lid[leads]] = change.port[leads]
        self._rebind(PathFinder(self.fabric, replace(routes, lft=lft), self.finder.spread))

    def _rebind(self, finder: PathFinder) -> None:
        """All flows over the ways that are found now."""
        self._carried = self.counters().tx_bytes
        self._settled = self._state.flows.drained + self._fluid.progress(self._state)
        self.finder = finder
        parts: list[dict[str, npt.NDArray[Any]]] = []
        for i, (communications, rank_node) in enumerate(self._posted):
            bound, _ = bind(communications, rank_node, self.fabric, self.finder, self._queue_pairs)
            flow_of_channel, lead, _ = group_channels(bound, _folded(communications))
            self._port_use[i] = (self._port_use[i][0], bound, flow_of_channel)
            parts.append(flow_columns(bound, flow_of_channel, lead))
        if parts:
            columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            self._state = self._build(self._columns | columns)

    def counters(self) -> Counters:
        """Bytes that left each port: of flows that are done, exactly; of those at work, as far as they are."""
        progress = self._fluid.progress(self._state)
        drained = self._state.flows.drained
        tx_bytes = self._carried.copy()
        for first, bound, flow_of_channel in self._port_use:
            flow = np.repeat(flow_of_channel + first, np.diff(bound.port_start))
            whole = drained[flow] * bound.port_bytes
            part = np.rint((progress - self._settled)[flow] * bound.port_bytes).astype(np.int64)
            np.add.at(tx_bytes, bound.port, whole + part)
        return Counters(tx_bytes)

    def started_ps(self) -> I64:
        """When each operation started; -1 where it has not."""
        started: I64 = self._state.operations.start_ps.copy()
        return started

    def ended_ps(self) -> I64:
        """When each operation ended; -1 where it has not."""
        ended: I64 = self._state.operations.end_ps.copy()
        return ended


def _folded(communications: Sequence[Communication]) -> npt.NDArray[np.bool_]:
    return np.array([c.groups > 1 for c in communications], bool)
