"""Single messages on the packet kernel: every one is packets on the fabric, with whatever else is there.

Where a message of a flow goes between other memories than the one before, it waits until that one is done: an
adapter keeps a connection's order, two streams over different PCIe paths would not. Once a flow is open, adapters
also count what memory takes behind their last link, for everything that they receive.

Left out: limits on outstanding READs (the caller's), the adapter's caches of keys and connections.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base import host_memory
from fabrictwin.engines.base.engine import Stop
from fabrictwin.engines.base.messages import NO_CONTENTS, REQUESTS, Event, FlowOptions, Message, Opcode
from fabrictwin.engines.base.packet_level import Observer
from fabrictwin.engines.packet.message_flows import Flow, MemoryPair, PacketFlows
from fabrictwin.engines.packet.message_kernel import MessageKernel
from fabrictwin.engines.packet.network.model import AETH_BYTES
from fabrictwin.engines.packet.network.packet_network import PacketNetwork
from fabrictwin.fabric.fabric import NONE

FLOW_BITS = 40  # a message's number: its flow above, a count below
_BUDGET = Stop.BUDGET  # looked up once
_MOST_ROWS = 256  # of messages that a flow posts again and again


def _request_bytes(opcode: Opcode, size_bytes: int) -> int:
    """A work request that holds its payload: control, remote address, length and bytes in units of 16."""
    remote = 16 if opcode in (Opcode.WRITE, Opcode.WRITE_IMMEDIATE) else 0
    return 16 + remote + (4 + size_bytes + 15) // 16 * 16


# kinds of messages to this engine
_PAYLOAD, _REQUEST, _READ_RESPONSE, _ATOMIC_RESPONSE = range(4)
_CLASS = [_PAYLOAD] * len(Opcode)
for _opcode in REQUESTS:
    _CLASS[_opcode] = _REQUEST
_CLASS[Opcode.READ_RESPONSE], _CLASS[Opcode.ATOMIC_RESPONSE] = _READ_RESPONSE, _ATOMIC_RESPONSE


class PacketMessages:
    """Flows and messages over one network. Raises ConfigError where packets may come out of order."""

    def __init__(self, network: PacketNetwork, observer: Observer | None) -> None:
        from fabrictwin.kernel.packet.state import constants as s

        self.network = network
        if network.options.selective:
            raise ConfigError(
                "got packets out of order (adaptive routing, spraying, nscc or selective repeat); queue pairs of "
                "the verbs take them in order: expected balance routed and go-back-n",
                key="packet",
            )
        self._kernel = MessageKernel(network)
        endpoint = network.machine.state.endpoint
        for adapter in range(len(network.fabric.nic_node)):
            endpoint.deliver_ps[adapter] += host_memory.late_ps(network.fabric, adapter)
        self._ask = self._kernel.ask
        self._takes = [0] * len(Opcode)
        for opcode in (Opcode.SEND, Opcode.SEND_IMMEDIATE, Opcode.SEND_INVALIDATE):
            self._takes[opcode] = s.TAKES_FIRST
        self._takes[Opcode.WRITE_IMMEDIATE] = s.TAKES_LAST
        self._begin, self._end, self._close, self._refuse = s.REPORT_BEGIN, s.REPORT_ENDED, s.CLOSE, s.REFUSE
        self._later = [0, s.LATER_ARRIVED, s.LATER_ARRIVED | s.LATER_ENDED]  # by what is awaited
        self._flow_setup = PacketFlows(network)
        self._flows: dict[int, Flow] = {}
        self._by_ends: dict[tuple[int, int, int, int], Flow] = {}
        self._next_flow = 1
        self._blocked: dict[int, Flow] = {}  # flows with messages that wait for those before
        self._pools: dict[int, int] = {}
        self._observer: Observer | None = None
        self.observe(observer)

    def observe(self, observer: Observer | None) -> None:
        """Tell an observer what messages are."""
        self._observer = self._flow_setup.observer = observer

    # ------------------------------------------------------------------ flows

    def open(self, ends: tuple[int, int], memories: tuple[int | None, int | None], options: FlowOptions) -> int:
        """Open a flow. Raises ConfigError where there is no path."""
        number = self._next_flow
        flow = self._flow_setup.open(number, number << FLOW_BITS, ends, memories, options)
        self._next_flow += 1
        self._flows[number] = flow
        self._by_ends[(*ends, options.numbers.source_qpn, options.numbers.target_qpn)] = flow
        return number

    def _flow(self, number: int) -> Flow:
        try:
            return self._flows[number]
        except KeyError:
            raise ConfigError(f"got flow {number}, expected one that is open", key="flow") from None

    def close(self, flow: int) -> None:
        """Forget a flow; its queue pairs serve again once nothing is left of them."""
        gone = self._flow(flow)
        del self._flows[flow]
        ends = (gone.source, gone.target, gone.options.numbers.source_qpn, gone.options.numbers.target_qpn)
        if self._by_ends.get(ends) is gone:
            del self._by_ends[ends]
        self._blocked.pop(flow, None)
        for pair in gone.pairs.by_memories.values():
            for q in (pair.q, pair.responses):
                if q != NONE:
                    self._ask(self._close, q, 0, 0, 0, 0, 0, 0, 0, 0, 0)
                    self._flow_setup.closed.append(q)

    def receives(self, flow: int, pool: int) -> None:
        """Let messages on the flow take receives from a pool."""
        mine = self._flow(flow)
        mine.pool = self._pool(pool)
        for pair in mine.pairs.by_memories.values():
            self._kernel.set_pool(pair.q, mine.pool)

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
        """Post so many more receives in a pool."""
        self._kernel.add_receives(self._pool(pool), count)

    # ------------------------------------------------------------------ messages

    def send(self, flow: int, message: Message) -> int:
        """Post a message now; returns its number. Raises ConfigError."""
        mine = self._flows.get(flow)
        if mine is None:
            raise ConfigError(f"got flow {flow}, expected one that is open", key="flow")
        rows = mine.pairs.rows
        if rows and self._observer is None and message.contents is NO_CONTENTS:
            again = rows.get(message)
            if again is not None:
                mine.count += 1
                number = mine.base | mine.count
                self._kernel.ask_again(again, number)
                return number
        return self._send(mine, message)

    def _send(self, mine: Flow, message: Message) -> int:
        """Post a message unlike those before it."""
        size_bytes, opcode, takes_receive, answers, posting, contents, ended, begun = message
        if size_bytes < 0:
            raise ConfigError(f"got a message of {size_bytes} bytes, expected none less than 0", key="size_bytes")
        inline, chained, source_memory, target_memory, later_ps, awaited = posting
        framing = mine.framing
        first, last, traits = framing.extras[opcode]
        pair: MemoryPair = mine.pairs.own
        if source_memory is not None or target_memory is not None:
            pair = self._pair(mine, source_memory, target_memory)
        mine.count += 1
        number = mine.base | mine.count
        q, travels, partner = pair.q, size_bytes, NONE
        kind = _CLASS[opcode]
        if kind == _PAYLOAD:
            if not size_bytes:
                delay = pair.delays.inline_ps
            elif not inline:
                delay = pair.delays.fetch_ps
            else:
                request = _request_bytes(opcode, size_bytes)
                delay = pair.delays.inline_ps + (request - 1) // 64 * pair.delays.store_ps
                if request > pair.delays.room_bytes:
                    delay = pair.delays.inline_ps
                    chained = True
        elif kind == _REQUEST:
            travels, delay = 0, pair.delays.inline_ps
            mine.pairs.requests[number] = q
        else:
            delay = pair.delays.answer_ps
            if kind == _ATOMIC_RESPONSE:
                travels = 0
            elif travels > mine.mtu:
                last += AETH_BYTES
            q = pair.responses if pair.responses != NONE else self._flow_setup.add_responses(mine, pair)
            answers, partner = self._answered(mine, answers)
        if chained:
            delay += pair.delays.request_ps
        delay += later_ps
        last += -travels & 3
        if travels + first + last < framing.shortest:
            last = framing.shortest - travels - first
        if takes_receive:
            traits |= self._takes[opcode]
        if awaited:
            traits |= self._later[awaited]
        if begun:
            traits |= self._begin
        if not ended:
            traits &= ~self._end
        if self._observer is not None:
            self._observer.posted(mine, number, message, answers, acknowledged=bool(traits & self._end))
        row = (0, q, travels, delay, number, first, last, traits, partner, NONE if answers is None else answers, 0)
        if pair is not mine.pairs.current or mine.pairs.waiting:
            self._queue(mine, pair, row)
        else:
            self._ask(*row)
            if kind == _PAYLOAD and contents is NO_CONTENTS and len(mine.pairs.by_memories) == 1:
                if len(mine.pairs.rows) >= _MOST_ROWS:
                    mine.pairs.rows.clear()
                mine.pairs.rows[message] = self._kernel.packed(row)
        return number

    def _pair(self, flow: Flow, source: int | None, target: int | None) -> MemoryPair:
        """The queue pair between these memories, where they are not the flow's own."""
        memories = (flow.memories[0] if source is None else source, flow.memories[1] if target is None else target)
        pair = flow.pairs.by_memories.get(memories)
        return self._flow_setup.add_pair(flow, memories) if pair is None else pair

    def _answered(self, flow: Flow, answers: int | None) -> tuple[int | None, int]:
        """The request that a response answers (else the oldest of the flow back), and its queue pair."""
        if answers is None:
            ends = flow.options.numbers
            back = self._by_ends.get((flow.target, flow.source, ends.target_qpn, ends.source_qpn))
            if back is None or not back.pairs.requests:
                return None, NONE
            answers = next(iter(back.pairs.requests))
        else:
            back = self._flows.get(answers >> FLOW_BITS)
        return answers, NONE if back is None else back.pairs.requests.pop(answers, NONE)

    def _queue(self, flow: Flow, pair: MemoryPair, row: tuple[int, ...]) -> None:
        """Between other memories than before: wait until what went between those is done."""
        flow.pairs.waiting.append((pair, row))
        self._blocked[flow.number] = flow
        self._unblock()

    def _unblock(self) -> None:
        """Post what need not wait any longer."""
        live = self.network.machine.state.qp["live"]
        kernel = self._kernel
        posted = {int(q) for q in kernel.inbox[: kernel.rows[0], 1]} if self._blocked else set()
        for number, flow in list(self._blocked.items()):
            while flow.pairs.waiting:
                pair, row = flow.pairs.waiting[0]
                before: MemoryPair = flow.pairs.current
                if pair is not before:
                    busy = [q for q in (before.q, before.responses) if q != NONE and (live[q] or q in posted)]
                    if busy:
                        break
                    flow.pairs.current = pair
                flow.pairs.waiting.popleft()
                self._ask(*row)
                posted.add(row[1])
            if not flow.pairs.waiting:
                del self._blocked[number]

    def refuse(self, message: int, syndrome: int) -> None:
        """Answer a message with a NAK."""
        flow = self._flows.get(message >> FLOW_BITS)
        if flow is None:
            return
        flow.pairs.waiting.clear()
        self._blocked.pop(flow.number, None)
        q = flow.pairs.requests.pop(message, flow.pairs.current.q)
        self._ask(self._refuse, q, syndrome, 0, message, 0, 0, 0, 0, 0, 0)

    # ------------------------------------------------------------------ time

    @property
    def now_ps(self) -> int:
        return self._kernel.now_ps

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return self._kernel.idle and not self._blocked

    @property
    def asked_for(self) -> bool:
        """True where something was posted that the kernel has not read, or told that nobody has read."""
        return bool(self._kernel.rows[0] or self._kernel.unread)

    def begin_at(self, time_ps: int) -> None:
        """Let time begin where the engine let it pass to before there was any flow."""
        self._kernel.now = max(self._kernel.now, time_ps)

    def settle_clock(self) -> None:
        """Let the kernel's clock be where time was let pass to."""
        self._kernel.time[0] = self.now_ps

    def advance(self, until_ps: int, budget: int | None, patient: bool = False) -> tuple[Stop, list[Event]]:
        """Run to the next instant at which something happened to messages, at most to `until_ps`; see `Engine`.

        Raises SimulatedError for a deadlock or an unreachable adapter.
        """
        while True:
            stop, events = self._kernel.advance(until_ps, budget, patient and not self._blocked)
            if events:
                if self._observer is not None:
                    self._observer.happened(events)
                if self._blocked:
                    self._unblock()
                return stop, events
            if not self._blocked or stop is _BUDGET:
                return stop, []
            before = self._kernel.rows[0]
            self._unblock()
            if self._kernel.rows[0] == before:
                return stop, []
