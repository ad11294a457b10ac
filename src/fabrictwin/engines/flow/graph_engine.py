"""An engine without packets: a graph of operations and queues of messages on one clock.

What a fidelity has of its own it brings along: how communications become flows or durations (`OperationModel`),
and how fast messages leave (`Links`). Operations and messages do not share links with each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.capabilities import Capabilities, Fidelity, capabilities_of
from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.engines.base.changes import FOREVER, PendingChanges, TimedChange, payload_bps
from fabrictwin.engines.base.engine import Advanced, Stop
from fabrictwin.engines.base.message_queues import MessageQueues
from fabrictwin.engines.base.messages import NAK_REMOTE_ACCESS, NEAR, PLAIN, Event, FlowOptions, Memories, Message
from fabrictwin.engines.base.transfers import Transfers, TransferTimes
from fabrictwin.engines.flow.operation_graph import OperationGraph, check_operations
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.program.program import Communication, Operations
from fabrictwin.trace.trace import Counters


class OperationModel(Protocol):
    """Communications of operations, as a fidelity models them."""

    @property
    def graph(self) -> OperationGraph: ...

    def post(self, operations: Operations, communications: Sequence[Communication], rank_node: I32) -> int:
        """Add operations to the graph; returns the id of the first. Raises ConfigError."""
        ...

    def apply(self, change: TimedChange) -> None:
        """Let a link or tables change now. Raises ConfigError."""
        ...

    def counters(self) -> Counters:
        """Counts of the ports so far."""
        ...

    def held_up(self, operation: int, left: int) -> SimulatedError:
        """Return the error of an operation that started and never ends; `left` never do."""
        ...


class GraphEngine(ABC):
    """Implements `Engine` over an operation model; queues of messages are each engine's own."""

    packets = None

    def __init__(self, fidelity: Fidelity, fabric: Fabric, model: OperationModel) -> None:
        self.fidelity: Fidelity = fidelity
        self.fabric, self.model, self.graph = fabric, model, model.graph
        self._queues: MessageQueues | None = None  # once a flow is open
        self._changes = PendingChanges()
        self._rates: dict[int, int] = {}  # payload rates of ports that do not run as built
        self._awaits_changes = False

    @abstractmethod
    def _make_queues(self, rates_bps: list[int]) -> MessageQueues:
        """Return queues of messages over ports that carry so much payload."""

    @property
    def capabilities(self) -> Capabilities:
        return capabilities_of(self.fidelity)

    @property
    def now_ps(self) -> int:
        now = self.graph.now_ps
        return now if self._queues is None else max(now, self._queues.now_ps)

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return self.graph.idle and (self._queues is None or self._queues.idle)

    @property
    def progress(self) -> float:
        """The share of operations that have ended."""
        if not len(self.graph) or self.graph.idle:
            return float(self.idle)
        return self.graph.ended / len(self.graph)

    # ------------------------------------------------------------------ operations

    def post(self, operations: Operations, communications: Sequence[Communication], rank_node: I32) -> int:
        """Add operations; returns the id of the first. Raises ConfigError."""
        check_operations(operations, communications, rank_node)
        if self._queues is not None:
            self.graph.run(self.now_ps)
        return self.model.post(operations, communications, rank_node)

    def started_ps(self) -> I64:
        return self.graph.started_ps()

    def ended_ps(self) -> I64:
        return self.graph.ended_ps()

    def transfer(self, transfers: Transfers) -> None:
        """Refuse: transfers are the packet engine's. Raises ConfigError."""
        raise ConfigError(f"got transfers at fidelity {self.fidelity}, expected packet", key="fidelity")

    def transfer_times(self) -> TransferTimes:
        """Refuse, as `transfer` does. Raises ConfigError."""
        raise ConfigError(f"got transfers at fidelity {self.fidelity}, expected packet", key="fidelity")

    # ------------------------------------------------------------------ messages

    @property
    def queues(self) -> MessageQueues:
        """Queues of messages, made when they are first needed."""
        if self._queues is None:
            rates = self.fabric.port_payload_bps.tolist()
            for port, rate_bps in self._rates.items():
                rates[port] = rate_bps
            self._queues = self._make_queues(rates)
        self._queues.pass_to(self.graph.now_ps)
        return self._queues

    def open(self, source: int, target: int, memories: Memories = NEAR, options: FlowOptions = PLAIN) -> int:
        """Open a flow between two adapters. Raises ConfigError where there is no path."""
        return self.queues.open((source, target), memories, options)

    def close(self, flow: int) -> None:
        self.queues.close(flow)

    def receives(self, flow: int, pool: int) -> None:
        self.queues.receives(flow, pool)

    def add_receives(self, pool: int, count: int) -> None:
        self.queues.add_receives(pool, count)

    def send(self, flow: int, message: Message) -> int:
        return self.queues.send(flow, message)

    def refuse(self, message: int, syndrome: int = NAK_REMOTE_ACCESS) -> None:
        self.queues.refuse(message)

    # ------------------------------------------------------------------ time

    def change(self, change: TimedChange) -> None:
        """Let a link or tables change. Raises ConfigError for what this fidelity does not model."""
        can = self.capabilities
        if change.error_rate is not None and not can.changes.bit_errors:
            raise ConfigError(f"got bit errors at fidelity {self.fidelity}, expected packet", key="faults")
        if change.tables is not None and not can.routes:
            raise ConfigError(
                f"got a change of tables at fidelity {self.fidelity}, expected flow or packet", key="change"
            )
        if change.settings is not None:
            message = f"got lanes, marks or keys of ports at fidelity {self.fidelity}, expected packet"
            raise ConfigError(message, key="change")
        if change.tables is None:
            payload_bps(self.fabric, change)  # refuses what cannot be
        self._changes.add(change, self.now_ps)
        if change.time_ps == self._changes.next_ps == self.now_ps:
            self._apply(self._changes.pop())

    def _apply(self, change: TimedChange) -> None:
        self.model.apply(change)
        if change.tables is not None:
            return
        self._rates[change.port] = payload_bps(self.fabric, change)
        if self._queues is not None:
            self._queues.change(change.port, self._rates[change.port])

    def await_changes(self, awaited: bool) -> None:
        """Say whether somebody outside will yet change something: what waits for it is not stuck."""
        self._awaits_changes = awaited

    def advance(self, until_ps: int = FOREVER, budget: int | None = None, *, patient: bool = False) -> Advanced:
        """Advance; see `Engine`. Raises SimulatedError where something waits on a link that is down."""
        left = FOREVER if budget is None else budget
        while True:
            due = min(self._changes.next_ps, until_ps)
            if self._queues is None:
                if self.graph.run(due, budget):
                    return self._stopped(Stop.BUDGET)
            else:
                events, left = self._queues.advance(due, left)
                at = self._queues.now_ps if events or left <= 0 else due
                self.graph.run(at)
                if events:
                    return self._stopped(Stop.EVENTS, events)
                if left <= 0:
                    return self._stopped(Stop.BUDGET)
            if not self._changes or self._changes.next_ps > until_ps:
                break
            if until_ps >= FOREVER and self.idle:
                break  # everything is done before it happens
            self._apply(self._changes.pop())
        if until_ps < FOREVER:
            return self._stopped(Stop.REACHED)
        if not self.graph.idle and not self._awaits_changes:
            waiting = self.graph.waiting()
            if waiting != NONE:
                raise self.model.held_up(waiting, len(self.graph) - self.graph.ended)
        return self._stopped(Stop.FINISHED)

    def _stopped(self, stop: Stop, events: list[Event] | None = None) -> Advanced:
        return Advanced(stop, events or [], self.graph.completions())

    def counters(self) -> Counters:
        return self.model.counters()
