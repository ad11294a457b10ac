"""Single messages on the packet engine: every one is packets on the fabric, with whatever else is there.

Where a message of a flow goes between other memories than the one before, it waits until that one is done: an
adapter keeps a connection's order, two streams over different PCIe paths would not.

Left out: limits on outstanding READs (the caller's), the adapter's caches of keys and connections.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base import host_memory
from fabrictwin.engines.base.engine import FOREVER, LinkChange
from fabrictwin.engines.base.messages import NAK_REMOTE_ACCESS, Event, EventKind, FlowOptions, Opcode
from fabrictwin.engines.packet.message_flows import AETH_BYTES, Flow, PacketFlows, Way
from fabrictwin.engines.packet.message_kernel import MessageKernel
from fabrictwin.engines.packet.packet_network import PacketNetwork
from fabrictwin.engines.packet.packet_options import PacketOptions
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.routing.tables import Routes
from fabrictwin.trace.trace import Counters

FLOW_BITS = 40  # a message's number: its flow above, a count below
_KIND_OF = {int(kind): kind for kind in EventKind}  # faster than EventKind(number)
_new = tuple.__new__


def _request_bytes(opcode: Opcode, size_bytes: int) -> int:
    """A work request that holds its payload: control, remote address, length and bytes in units of 16."""
    remote = 16 if opcode in (Opcode.WRITE, Opcode.WRITE_IMMEDIATE) else 0
    return 16 + remote + (4 + size_bytes + 15) // 16 * 16


# what a message is to this engine
_PAYLOAD, _REQUEST, _READ_RESPONSE, _ATOMIC_RESPONSE = range(4)
_CLASS = [_PAYLOAD] * len(Opcode)
for _opcode in (Opcode.READ_REQUEST, Opcode.COMPARE_SWAP, Opcode.FETCH_ADD):
    _CLASS[_opcode] = _REQUEST
_CLASS[Opcode.READ_RESPONSE], _CLASS[Opcode.ATOMIC_RESPONSE] = _READ_RESPONSE, _ATOMIC_RESPONSE


class PacketMessages:
    """A session of single messages over one fabric and its tables."""

    fidelity = "packet"

    def __init__(
        self,
        fabric: Fabric,
        routes: Routes,
        options: PacketOptions | None = None,
        *,
        network: PacketNetwork | None = None,
    ) -> None:
        from fabrictwin.kernel.packet.state import state as s

        self.fabric = fabric
        self.network = network or PacketNetwork(fabric, routes, options)
        self.options = self.network.options
        if self.options.selective:
            raise ConfigError(
                "got packets out of order (adaptive routing, spraying, nscc or selective repeat); queue pairs of "
                "the verbs take them in order: expected balance routed and go-back-n",
                key="packet",
            )
        self._kernel = MessageKernel(self.network)
        endpoint = self.network.machine.state.endpoint
        for adapter in range(len(fabric.nic_node)):
            endpoint.deliver_ps[adapter] += host_memory.late_ps(fabric, adapter)
        self._ask = self._kernel.ask
        self._takes = [0] * len(Opcode)
        for opcode in (Opcode.SEND, Opcode.SEND_IMMEDIATE, Opcode.SEND_INVALIDATE):
            self._takes[opcode] = s.TAKES_FIRST
        self._takes[Opcode.WRITE_IMMEDIATE] = s.TAKES_LAST
        self._begin, self._end, self._close, self._refuse = s.TELL_BEGIN, s.TELL_ENDED, s.CLOSE, s.REFUSE
        self.flows = PacketFlows(self.network)
        self._flows: dict[int, Flow] = {}
        self._by_ends: dict[tuple[int, int, int, int], Flow] = {}
        self._next_flow = 1
        self._blocked: dict[int, Flow] = {}  # flows with messages that wait for those before
        self._pools: dict[int, int] = {}
        self.on_post: Callable[..., None] | None = None  # a capture wants to know what messages are
        self.on_events: Callable[[list[Event]], None] | None = None

    # ------------------------------------------------------------------ flows

    def open(
        self,
        source_adapter: int,
        target_adapter: int,
        *,
        source_memory: int | None = None,
        target_memory: int | None = None,
        options: FlowOptions | None = None,
    ) -> int:
        """As the Protocol says."""
        number, given = self._next_flow, options or FlowOptions()
        flow = self.flows.open(
            number, number << FLOW_BITS, (source_adapter, target_adapter), (source_memory, target_memory), given
        )
        self._next_flow += 1
        self._flows[number] = flow
        self._by_ends[source_adapter, target_adapter, given.source_qpn, given.target_qpn] = flow
        return number

    def _flow(self, number: int) -> Flow:
        try:
            return self._flows[number]
        except KeyError:
            raise ConfigError(f"got flow {number}, expected one that is open", key="flow") from None

    def close(self, flow: int) -> None:
        """As the Protocol says."""
        gone = self._flow(flow)
        del self._flows[flow]
        ends = (gone.source, gone.target, gone.options.source_qpn, gone.options.target_qpn)
        if self._by_ends.get(ends) is gone:
            del self._by_ends[ends]
        self._blocked.pop(flow, None)
        for way in gone.ways.values():
            for q in (way.q, way.responses):
                if q != NONE:
                    self._ask(self._close, q, 0, 0, 0, 0, 0, 0, 0, 0, 0)
                    self.flows.closed.append(q)

    def receives(self, flow: int, pool: int) -> None:
        """As the Protocol says."""
        mine = self._flow(flow)
        mine.pool = self._pool(pool)
        for way in mine.ways.values():
            self._kernel.set_pool(way.q, mine.pool)

    def _pool(self, name: int) -> int:
        at = self._pools.get(name)
        if at is None:
            at = self._pools[name] = len(self._pools)
            machine = self.network.machine
            if at >= len(machine.state.pool):
                longer = np.zeros(2 * at + 16, np.int64)
                longer[:at] = machine.state.pool[:at]
                machine.state = machine.state._replace(pool=longer)
        return at

    def add_receives(self, pool: int, count: int) -> None:
        """As the Protocol says."""
        self._kernel.add_receives(self._pool(pool), count)

    # ------------------------------------------------------------------ messages

    def send(
        self,
        flow: int,
        size_bytes: int,
        opcode: Opcode,
        *,
        takes_receive: bool = False,
        tell_begin: bool = False,
        tell_end: bool = True,
        inline: bool = False,
        chained: bool = False,
        remote_address: int = 0,
        remote_key: int = 0,
        immediate: int = 0,
        operands: tuple[int, int] = (0, 0),
        answers: int | None = None,
        payload: memoryview | None = None,
        memory: int | None = None,
        target_memory: int | None = None,
        later_ps: int = 0,
    ) -> int:
        """As the Protocol says."""
        mine = self._flows.get(flow)
        if mine is None:
            raise ConfigError(f"got flow {flow}, expected one that is open", key="flow")
        if size_bytes < 0:
            raise ConfigError(f"got a message of {size_bytes} bytes, expected none less than 0", key="size_bytes")
        first, last, traits = mine.extras[opcode]
        way: Way = mine.way
        if memory is not None or target_memory is not None:
            way = self._way(mine, memory, target_memory)
        mine.count += 1
        number = mine.base | mine.count
        q, travels, partner = way.q, size_bytes, NONE
        what = _CLASS[opcode]
        if what == _PAYLOAD:
            if not size_bytes:
                delay = way.inline_ps
            elif not inline:
                delay = way.fetch_ps
            else:
                request = _request_bytes(opcode, size_bytes)
                delay = way.inline_ps + (request - 1) // 64 * way.store_ps
                if request > way.room_bytes:
                    delay = way.inline_ps
                    chained = True
        elif what == _REQUEST:
            travels, delay = 0, way.inline_ps
            mine.requests[number] = q
        else:
            delay = way.answer_ps
            if what == _ATOMIC_RESPONSE:
                travels = 0
            elif travels > mine.mtu:
                last += AETH_BYTES
            q = way.responses if way.responses != NONE else self.flows.add_responses(mine, way)
            answers, partner = self._answered(mine, answers)
        if chained:
            delay += way.request_ps
        delay += later_ps
        last += -travels & 3
        if travels + first + last < mine.shortest:
            last = mine.shortest - travels - first
        if takes_receive:
            traits |= self._takes[opcode]
        if tell_begin:
            traits |= self._begin
        if not tell_end:
            traits &= ~self._end
        if self.on_post is not None:
            events = 2 if traits & self._end else 1
            headers = (remote_address, remote_key, immediate, operands)
            self.on_post(mine, number, opcode, size_bytes, headers, answers, payload, events)
        row = (0, q, travels, delay, number, first, last, traits, partner, NONE if answers is None else answers, 0)
        if way is not mine.current or mine.waiting:
            self._queue(mine, way, row)
        else:
            self._ask(*row)
        return number

    def _way(self, flow: Flow, memory: int | None, target_memory: int | None) -> Way:
        """The way between these memories, where they are not the flow's own."""
        memories = (
            flow.memories[0] if memory is None else memory,
            flow.memories[1] if target_memory is None else target_memory,
        )
        way = flow.ways.get(memories)
        return self.flows.add_way(flow, memories) if way is None else way

    def _answered(self, flow: Flow, answers: int | None) -> tuple[int | None, int]:
        """The request that a response answers (else the oldest of the flow back), and its queue pair."""
        if answers is None:
            o = flow.options
            back = self._by_ends.get((flow.target, flow.source, o.target_qpn, o.source_qpn))
            if back is None or not back.requests:
                return None, NONE
            answers = next(iter(back.requests))
        else:
            back = self._flows.get(answers >> FLOW_BITS)
        return answers, NONE if back is None else back.requests.pop(answers, NONE)

    def _queue(self, flow: Flow, way: Way, row: tuple[int, ...]) -> None:
        """Another way than before: wait until what took that one is done."""
        flow.waiting.append((way, row))
        self._blocked[flow.number] = flow
        self._unblock()

    def _unblock(self) -> None:
        """Post what need not wait any longer."""
        live = self.network.machine.state.qp["live"]
        kernel = self._kernel
        posted = {int(q) for q in kernel.inbox[: kernel.rows[0], 1]} if self._blocked else set()
        for number, flow in list(self._blocked.items()):
            while flow.waiting:
                way, row = flow.waiting[0]
                before: Way = flow.current
                if way is not before:
                    busy = [q for q in (before.q, before.responses) if q != NONE and (live[q] or q in posted)]
                    if busy:
                        break
                    flow.current = way
                flow.waiting.popleft()
                self._ask(*row)
                posted.add(row[1])
            if not flow.waiting:
                del self._blocked[number]

    def refuse(self, message: int, syndrome: int = NAK_REMOTE_ACCESS) -> None:
        """As the Protocol says."""
        flow = self._flows.get(message >> FLOW_BITS)
        if flow is None:
            return
        flow.waiting.clear()
        self._blocked.pop(flow.number, None)
        q = flow.requests.pop(message, flow.current.q)
        self._ask(self._refuse, q, syndrome, 0, message, 0, 0, 0, 0, 0, 0)

    # ------------------------------------------------------------------ time

    @property
    def now_ps(self) -> int:
        return self._kernel.now_ps

    @property
    def idle(self) -> bool:
        """As the Protocol says."""
        return self._kernel.idle and not self._blocked

    def advance(self, until_ps: int = FOREVER) -> list[Event]:
        """As the Protocol says. Raises SimulatedError for a deadlock or an unreachable adapter."""
        while True:
            news = self._kernel.advance(until_ps)
            if news:
                if len(news) == 1:  # nearly always
                    time, message, kind = news[0]
                    events = [_new(Event, (time, message, _KIND_OF[kind]))]
                else:
                    events = [Event(time, message, _KIND_OF[kind]) for time, message, kind in news]
                if self.on_events is not None:
                    self.on_events(events)
                if self._blocked:
                    self._unblock()
                return events
            if not self._blocked:
                return []
            before = self._kernel.rows[0]
            self._unblock()
            if self._kernel.rows[0] == before:
                return []

    def change(self, change: LinkChange) -> None:
        """A link changes now; what is on its wire when it goes down is lost."""
        self._kernel.time[0] = self.now_ps
        self.network.set_rate(change.port, change.rate_bps)

    def counters(self) -> Counters:
        """What the ports counted so far."""
        return self.network.counters()
