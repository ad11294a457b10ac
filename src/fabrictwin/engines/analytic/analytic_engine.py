"""The analytic engine: every operation by closed forms, no forwarding tables, no contention between operations.

Messages between adapters take their tables' paths, by closed form as well; tables are asked for when a flow is
first opened. A link that changes counts for what is posted later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fabrictwin.base.arrays import I32
from fabrictwin.base.errors import SimulatedError
from fabrictwin.engines.analytic.closed_forms import ClosedForms
from fabrictwin.engines.analytic.message_links import OwnLinks
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.message_queues import NOT_FIXED, FixedTimes, MessageQueues
from fabrictwin.engines.channels.channel_resources import Bound
from fabrictwin.engines.flow.graph_engine import GraphEngine
from fabrictwin.engines.flow.operation_graph import OperationGraph
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.fabric.memory_paths import PathFinder, Walker
from fabrictwin.program.program import Communication, Operations, OpKind
from fabrictwin.trace.trace import Counters


class AnalyticEngine(GraphEngine):
    """The analytic engine over one fabric; see `engines.base.engine.Engine`."""

    def __init__(
        self, fabric: Fabric, routes: Callable[[], Walker] | None = None, *, fixed: FixedTimes = NOT_FIXED
    ) -> None:
        """`routes` are asked for when a flow is opened, without them cables and tiers; `fixed` are for tests."""
        self._routes, self._fixed = routes, fixed
        self.closed = ClosedOperations(fabric)
        super().__init__("analytic", fabric, self.closed)

    def _make_queues(self, rates_bps: list[int]) -> MessageQueues:
        routes = self.closed.forms.network if self._routes is None else self._routes()
        queues = MessageQueues(PathFinder(self.fabric, routes), rates_bps, self._fixed)
        queues.links = OwnLinks(queues)
        return queues


class ClosedOperations:
    """Operations whose communications take closed-form durations."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.forms = fabric, ClosedForms(fabric)
        self.graph = OperationGraph(np.zeros(0))
        self._executed: list[tuple[int, I32, Bound]] = []  # (first operation, their communications, bound)

    def post(self, operations: Operations, communications: Sequence[Communication], rank_node: I32) -> int:
        """Add operations; those without predecessors start now. Returns the id of the first."""
        duration, bound = self.forms.bind(communications, rank_node)
        takes_part = operations.communication != NONE
        which = np.where(takes_part, operations.communication, 0)
        as_compute = replace(
            operations,
            kind=np.full(len(operations), OpKind.COMPUTE, np.int8),
            duration_ps=np.where(
                takes_part, duration[which] if len(duration) else 0, operations.duration_ps
            ).astype(np.int64),
            communication=np.full(len(operations), NONE, np.int32),
        )
        first = self.graph.post(as_compute, np.zeros(1, np.int64), {})
        self._executed.append((first, operations.communication, bound))
        return first

    def held_up(self, operation: int, left: int) -> SimulatedError:
        """Durations are known when operations start, so none is ever held up."""
        return SimulatedError("stalled", f"operation {operation}", f"{left} operations never end")

    def apply(self, change: TimedChange) -> None:
        """Let a link run at another rate, for what is posted later."""
        self.forms.change(change)

    def counters(self) -> Counters:
        """Bytes on what the closed form knows: hosts' links and adapters' cables, of finished operations."""
        tx_bytes = np.zeros(self.fabric.ports, np.int64)
        ended = self.graph.ended_ps() >= 0
        for first, communication, bound in self._executed:
            done = ended[first : first + len(communication)] & (communication != NONE)
            count = np.bincount(communication[done], minlength=int(bound.communication.max(initial=-1)) + 1)
            bound.add_carried(bound.communication.astype(np.int64), count, np.zeros(len(count)), tx_bytes)
        return Counters(tx_bytes)
