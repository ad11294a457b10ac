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

from fabrictwin.base.arrays import I32, I64, starts_of
from fabrictwin.base.errors import ConfigError, InvariantError, SimulatedError
from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.base.changes import TableEntries, TimedChange, payload_bps
from fabrictwin.engines.base.message_queues import MessageQueues
from fabrictwin.engines.channels.channel_resources import Bound, bind, capacities
from fabrictwin.engines.channels.edge_paths import OpenConnections
from fabrictwin.engines.flow.flow_tables import flow_columns, group_channels
from fabrictwin.engines.flow.graph_engine import GraphEngine
from fabrictwin.engines.flow.message_links import SharedLinks
from fabrictwin.engines.flow.operation_graph import OperationGraph
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.fabric.memory_paths import PathFinder, SpreadOver, Walker
from fabrictwin.program.program import Communication, Operations
from fabrictwin.routing.engines.filling import NO_PORT
from fabrictwin.routing.path_spread import spread as spread_paths
from fabrictwin.routing.tables import Routes
from fabrictwin.trace.trace import Counters


class FlowEngine(GraphEngine):
    """The flow engine over one fabric and its tables; see `engines.base.engine.Engine`."""

    def __init__(
        self,
        fabric: Fabric,
        routes: Walker,
        *,
        spread: bool = False,
        connections: OpenConnections | None = None,
        counted: bool = True,
        keep: bool = False,
    ) -> None:
        """`spread`: switches spread packets over all equal-cost ports whose link is up. `connections` are those of
        an engine before this one, over the same fabric and tables; with `keep` this one's serve others after it.
        Unless `counted` nobody asks for counters.
        """
        self.flows = FlowOperations(
            *(fabric, routes), spread=spread, connections=connections, counted=counted, keep=keep
        )
        super().__init__("flow", fabric, self.flows)

    def _make_queues(self, rates_bps: list[int]) -> MessageQueues:
        queues = MessageQueues(PathFinder(self.fabric, self.flows.connections.finder.routes), rates_bps)
        queues.links = SharedLinks(queues, np.array(rates_bps, np.float64))
        return queues


def _spread_over(routes: Walker, up: npt.NDArray[np.bool_] | None = None) -> SpreadOver:
    """Paths over which switches spread packets, over links that are `up`. Raises ConfigError without tables."""
    if not isinstance(routes, Routes):
        raise ConfigError("got traffic that is spread, expected a network of switches", key="run.packet.balance")
    return partial(spread_paths, routes, up=up)


class FlowOperations:
    """Operations whose communications are flows over one fabric and its tables."""

    def __init__(
        self,
        fabric: Fabric,
        routes: Walker,
        *,
        spread: bool,
        connections: OpenConnections | None = None,
        counted: bool = True,
        keep: bool = False,
    ) -> None:
        self.fabric = fabric
        finder = PathFinder(fabric, routes, _spread_over(routes) if spread else None)
        self.connections = connections or OpenConnections(fabric, finder, keep=keep)
        self.counted = counted
        self._capacity = capacities(fabric)
        self.graph = OperationGraph(self._capacity)
        self._posted: list[tuple[Sequence[Communication], I32]] = []  # with the ranks' nodes
        self._port_use: list[tuple[int, Bound, I64]] = []  # (first flow, bound, flow of each channel)
        self._carried = np.zeros(fabric.ports, np.int64)  # bytes over paths that are no more
        self._settled = np.zeros(0)  # [flows] executions, and parts of them, that are counted there

    def post(self, operations: Operations, communications: Sequence[Communication], rank_node: I32) -> int:
        """Add operations; those without predecessors start now. Returns the id of the first."""
        bound = bind(communications, rank_node, self.connections, counted=self.counted)
        flow_of_channel, lead, communication = group_channels(bound, _folded(communications))
        self._posted.append((communications, rank_node))
        self._port_use.append((len(self._settled), bound, flow_of_channel))
        self._settled = np.concatenate([self._settled, np.zeros(len(lead))])
        first_flow = np.searchsorted(communication, np.arange(len(communications) + 1)).astype(np.int64)
        return self.graph.post(operations, first_flow, flow_columns(bound, flow_of_channel, lead))

    def held_up(self, operation: int, left: int) -> SimulatedError:
        """Name a link that is down on the way of an operation that never ends."""
        columns = self.graph.columns
        first = int(columns["first_flow"][operation])
        flows = slice(first, first + int(columns["flow_count"][operation]))
        members = starts_of(columns["member_count"])
        uses = starts_of(columns["use_count"])
        begin, end = uses[members[flows.start]], uses[members[flows.stop]]
        used = np.unique(columns["use_resource"][begin:end])
        down = used[(used < self.fabric.ports) & (self._capacity[used] == 0)]
        text = (
            f"it carries nothing, and {left} operation{'s' if left > 1 else ''} never end, the first {operation}"
        )
        if not len(down):
            return SimulatedError("links carry nothing", f"operation {operation}", text)
        more = f", and {len(down) - 1} more links are down" if len(down) > 1 else ""
        return SimulatedError("link down", self.fabric.link_name(int(down[0])), f"{text}{more}")

    def apply(self, change: TimedChange) -> None:
        """Let a link or tables change now: rates are solved again. Raises ConfigError without tables."""
        if change.tables is not None:
            self._reroute(change.tables)
            return
        payload = payload_bps(self.fabric, change)
        before, self._capacity[change.port] = self._capacity[change.port], payload / (8 * PS_PER_S)
        finder = self.connections.finder
        if finder.spread is not None and (before > 0) != (payload > 0):
            up = self._capacity[: self.fabric.ports] > 0
            self._rebind(PathFinder(self.fabric, finder.routes, _spread_over(finder.routes, up)))
        self.graph.capacity_changed()

    def _reroute(self, entries: TableEntries) -> None:
        """Lead all flows over the tables as they are now; those at work go on where they are.

        A destination that a switch has no path to any more keeps its old one, over which nothing comes.
        """
        finder = self.connections.finder
        routes = finder.routes
        if not isinstance(routes, Routes) or not routes.lft.size:
            raise ConfigError("got a change of forwarding tables, expected it with InfiniBand's", key="change")
        lft = routes.lft.copy()
        leads = (entries.port != NO_PORT) & (entries.lid < lft.shape[1])
        lft[entries.row[leads], entries.lid[leads]] = entries.port[leads]
        self._rebind(PathFinder(self.fabric, replace(routes, lft=lft), finder.spread))

    def _rebind(self, finder: PathFinder) -> None:
        """Lead all flows over the paths that are found now."""
        if self.counted:
            self._carried = self.counters().tx_bytes
        self._settled = self.graph.state.flows.drained + self.graph.flow_progress()
        self.connections = self.connections.over(finder)
        parts: list[dict[str, npt.NDArray[Any]]] = []
        for i, (communications, rank_node) in enumerate(self._posted):
            bound = bind(communications, rank_node, self.connections, counted=self.counted)
            flow_of_channel, lead, _ = group_channels(bound, _folded(communications))
            self._port_use[i] = (self._port_use[i][0], bound, flow_of_channel)
            parts.append(flow_columns(bound, flow_of_channel, lead))
        if parts:
            self.graph.replace_flows({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    def counters(self) -> Counters:
        """Bytes that left each port: of flows that are done, exactly; of those at work, as far as they are."""
        if not self.counted:
            raise InvariantError("counters of an engine that does not count")
        progress = self.graph.flow_progress()
        drained = self.graph.state.flows.drained
        tx_bytes = self._carried.copy()
        part = progress - self._settled
        for first, bound, flow_of_channel in self._port_use:
            bound.add_carried(flow_of_channel + first, drained, part, tx_bytes)
        return Counters(tx_bytes)


def _folded(communications: Sequence[Communication]) -> npt.NDArray[np.bool_]:
    return np.array([c.groups > 1 for c in communications], bool)
