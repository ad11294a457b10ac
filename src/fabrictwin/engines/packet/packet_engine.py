"""The packet engine: every packet, credit, pause, mark and retransmission of the fabric.

Programs, single messages and transfers share one network and one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.capabilities import Capabilities, Fidelity, capabilities_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base.changes import FOREVER, TimedChange
from fabrictwin.engines.base.engine import NO_COMPLETIONS, Advanced, Stop
from fabrictwin.engines.base.messages import NAK_REMOTE_ACCESS, NEAR, PLAIN, FlowOptions, Memories, Message
from fabrictwin.engines.base.packet_level import Observer, PacketTotals
from fabrictwin.engines.base.transfers import Transfers, TransferTimes
from fabrictwin.engines.packet.network import port_counters
from fabrictwin.engines.packet.network.faults import apply_change
from fabrictwin.engines.packet.network.packet_network import PacketNetwork
from fabrictwin.engines.packet.network.partitions import violations_by_queue_pair
from fabrictwin.engines.packet.packet_messages import PacketMessages
from fabrictwin.engines.packet.packet_operations import PacketOperations
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.engines.packet.packet_transfers import PacketTransfers
from fabrictwin.engines.packet.repetition.fast_forward import FastForward
from fabrictwin.engines.packet.run_estimate import PacketSize, check_size
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.program.program import Communication, Operations
from fabrictwin.routing.congestion_tables import CongestionCounts, CongestionLog
from fabrictwin.routing.partition_keys import KeyViolations
from fabrictwin.routing.tables import Routes
from fabrictwin.trace.trace import Counters

_new = tuple.__new__  # faster than Advanced(...), once a message


class PacketEngine:
    """The packet engine over one fabric and its tables; see `engines.base.engine.Engine`."""

    fidelity: Fidelity = "packet"

    def __init__(self, fabric: Fabric, routes: Routes, options: PacketOptions | None = None) -> None:
        self.fabric = fabric
        self.network = PacketNetwork(fabric, routes, options)
        self.options = self.network.options
        self.operations = PacketOperations(self.network)
        self.transfers = PacketTransfers(self.network)
        self.fast_forward = FastForward(self.network, self.operations.placed)
        self.messages: PacketMessages | None = None  # once a flow is open
        self.observer: Observer | None = None
        self._has_operations = False
        self._now = 0

    @property
    def packets(self) -> NetworkPackets:
        """The engine's packets, as a view that the engine does not keep."""
        return NetworkPackets(self)

    @property
    def capabilities(self) -> Capabilities:
        return capabilities_of(self.fidelity)

    @property
    def now_ps(self) -> int:
        if self.messages is not None:
            return max(self._now, self.messages.now_ps)
        return max(self._now, self.network.machine.now)

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        if self.messages is not None:
            return self.messages.idle
        return int(self.network.machine.state.clock[0].open) == 0

    @property
    def progress(self) -> float:
        """The share of the packet-hops that was counted on."""
        counted = self.operations.hops + self.transfers.hops
        if self.idle or not counted:
            return float(self.idle)
        return min(int(self.network.machine.state.clock[0].hops) / counted, 0.99)

    # ------------------------------------------------------------------ operations and transfers

    def post(self, operations: Operations, communications: Sequence[Communication], rank_node: I32) -> int:
        """Add operations. Raises ConfigError where they take more packet-hops or memory than the options allow."""
        self._settle_clock()
        self._has_operations = True
        return self.operations.post(operations, communications, rank_node)

    def started_ps(self) -> I64:
        return self.operations.started_ps()

    def ended_ps(self) -> I64:
        return self.operations.ended_ps()

    def transfer(self, transfers: Transfers) -> None:
        """Post transfers. Raises ConfigError where they take more than the options allow, and the second time."""
        if len(self.transfers):
            raise ConfigError("got transfers twice, expected them once an engine", key="transfers")
        self._settle_clock()
        self.transfers.post(transfers)

    def transfer_times(self) -> TransferTimes:
        return self.transfers.times()

    # ------------------------------------------------------------------ messages

    def _messages(self) -> PacketMessages:
        if self.messages is None:
            self.network.keep_whole("single messages")
            self.messages = PacketMessages(self.network, self.observer)
            self.operations.repeated.allowed = False  # from now on
            self.messages.begin_at(self._now)
        return self.messages

    def open(self, source: int, target: int, memories: Memories = NEAR, options: FlowOptions = PLAIN) -> int:
        """Open a flow. Raises ConfigError where there is no path, or packets may come out of order."""
        return self._messages().open((source, target), memories, options)

    def close(self, flow: int) -> None:
        self._messages().close(flow)

    def receives(self, flow: int, pool: int) -> None:
        self._messages().receives(flow, pool)

    def add_receives(self, pool: int, count: int) -> None:
        (self.messages or self._messages()).add_receives(pool, count)

    def send(self, flow: int, message: Message) -> int:
        return (self.messages or self._messages()).send(flow, message)

    def refuse(self, message: int, syndrome: int = NAK_REMOTE_ACCESS) -> None:
        self._messages().refuse(message, syndrome)

    # ------------------------------------------------------------------ time

    def change(self, change: TimedChange) -> None:
        """Let a link or tables change; what is on the wire of a link that goes down is lost.

        Packets are looked up switch by switch, so those on their way take new tables too. Raises ConfigError.
        """
        now_ps = self.now_ps
        if change.time_ps == now_ps and not self.network.changes:
            self._settle_clock()
            network = self.network
            apply_change(network.machine, network.model, network.connections, change)
        else:
            self.network.changes.add(change, now_ps)

    def await_changes(self, awaited: bool) -> None:
        """Say whether somebody outside will yet change something; packets without a path are dropped then."""
        self.network.awaits_changes = awaited
        self.network.machine.drops_unroutable |= awaited

    def _settle_clock(self) -> None:
        """Let the kernel's clock be where time was let pass to."""
        if self.messages is not None:
            self.messages.settle_clock()
        elif self.network.machine.now < self._now:
            self.network.machine.state.clock[0].now = self._now

    def _is_alone(self) -> bool:
        """Nothing but what was posted will happen, and nobody looks at packets."""
        network = self.network
        return not (network.changes or network.awaits_changes) and network.machine.drain_tap is None

    def advance(self, until_ps: int = FOREVER, budget: int | None = None, *, patient: bool = False) -> Advanced:
        """Advance; see `Engine`. Raises SimulatedError for a deadlock, spent retries, an unreachable adapter."""
        if self.messages is not None:
            stop, events = self.messages.advance(until_ps, budget, patient)
            ended = self.operations.completions() if self._has_operations else NO_COMPLETIONS
            return _new(Advanced, (stop, events, ended))
        alone = until_ps >= FOREVER and budget is None and self._is_alone()
        self.operations.repeated.allowed = alone and not len(self.transfers)
        if alone and self.options.hosts.repeats and self.fast_forward.possible:
            stop = self.fast_forward.run()
        else:
            stop = self.network.run(None if until_ps >= FOREVER else until_ps, budget=budget)
        if until_ps < FOREVER and stop != Stop.BUDGET:
            self._now = max(self._now, until_ps)
            stop = Stop.REACHED
        return Advanced(stop, [], self.operations.completions())

    def counters(self) -> Counters:
        return port_counters.counters(self.network)


class NetworkPackets:
    """Losses, hardware counters and observers of the packet engine; see `PacketLevel`."""

    def __init__(self, engine: PacketEngine) -> None:
        self._engine, self.network, self.fabric = engine, engine.network, engine.fabric

    @property
    def marks_congestion(self) -> bool:
        return self.network.options.congestion.used != ("none",)

    @property
    def gpudirect(self) -> bool:
        return self.network.options.hosts.gpudirect

    @property
    def staging(self) -> tuple[int, int]:
        """(bytes of a chunk that software stages in host memory, its time in ps a chunk)."""
        return self.network.options.hosts.staging_chunk_bytes, self.network.options.hosts.staging_ps

    def lid(self, node: int) -> int:
        return int(self.network.routes.lid[node])

    def losses(self) -> tuple[int, int]:
        machine = self.network.machine
        again = machine.state.qp.retransmitted[: machine.queue_pairs].sum()
        return int(machine.state.clock[0].dropped), int(again)

    def totals(self) -> PacketTotals:
        return port_counters.totals(self.network)

    def repeated(self) -> float:
        hops = int(self.network.machine.state.clock[0].hops)
        return self._engine.operations.repeated.hops / max(hops, 1)

    def fast_forwarded(self) -> float:
        hops = int(self.network.machine.state.clock[0].hops)
        return self._engine.fast_forward.hops / max(hops, 1)

    @property
    def skip_error(self) -> float:
        return self.network.options.hosts.skip_error

    def forecast(self) -> tuple[float, float]:
        steps = self._engine.fast_forward.steps
        if steps is None:
            return 0.0, 0.0
        clock = self.network.machine.state.clock[0]
        return steps.hops / max(int(clock.hops), 1), steps.error_ps / max(int(clock.now), 1)

    def port_counters(self) -> dict[str, I64]:
        return port_counters.port_counters(self.network)

    def congestion_log(self) -> CongestionLog:
        return port_counters.congestion_log(self.network)

    def congestion_counts(self) -> CongestionCounts | None:
        return (
            port_counters.congestion_counts(self.network) if self.network.machine.has_congestion_tables else None
        )

    def key_violations(self) -> KeyViolations:
        return violations_by_queue_pair(self.network.machine)

    def adapter_counters(self) -> dict[str, I64]:
        return port_counters.adapter_counters(self.network)

    def size_of(
        self, operations: Operations, communications: Sequence[Communication], rank_node: I32
    ) -> PacketSize:
        size = self._engine.operations.size_of(operations, communications, rank_node)
        check_size(size, self.network.options, "this program")
        return size

    def excess(self, operations: Operations, communications: Sequence[Communication], rank_node: I32) -> float:
        size = self._engine.operations.size_of(operations, communications, rank_node)
        return size.excess(self.network.options)

    def next_event_ps(self) -> int:
        if self._engine.messages is not None and self._engine.messages.asked_for:
            return self._engine.now_ps
        return min(self.network.machine.next_event_ps(), self.network.changes.next_ps)

    def observe(self, observer: Observer, ports: Sequence[int], drain: Callable[[Any], None]) -> None:
        """Tell an observer of queue pairs and messages, and hand what ports see to `drain`."""
        engine = self._engine
        self.network.keep_whole("captures")
        engine.observer = observer
        self.network.machine.tap(sorted(ports), drain)
        self.network.connections.on_connect = observer.connected
        if engine.messages is not None:
            engine.messages.observe(observer)

    def read_tap(self) -> None:
        self.network.machine.read_tap()
