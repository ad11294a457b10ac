"""Messages between adapters by closed form: latency plus size over rate, one message of a flow after the other.

The smallest engine behind `engines.base.messages.MessageSession`, and the oracle that the others are held to:
exact in what arrives, in which order and what fails; in time it knows no packets and no contention between
flows. A message leaves when its flow is free, takes its size at the rate of the narrowest link, then the latency
of the way; its acknowledgement takes that latency back. A receiver without a receive posted answers as
InfiniBand Architecture, volume 1, section 9.7.5.2.8 has it: the sender tries again after the receiver's timer.

Leaves out: links that change, timeouts (nothing is ever lost), headers, adapters' message rates.
"""

from __future__ import annotations

import heapq
from collections import deque

from fabrictwin.engines.base.engine import FOREVER
from fabrictwin.engines.base.message_path import Way, find_way
from fabrictwin.engines.base.messages import (
    NAK_REMOTE_ACCESS,
    REQUESTS,
    RESPONSES,
    Event,
    EventKind,
    FlowOptions,
    Opcode,
    Service,
)
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.fabric.memory_paths import PathFinder
from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.routing.tables import Routes

_ENDLESS_RETRY = 7  # of rnr_retry: for ever


class Stream:
    """What a flow sends one after the other: its requests, or its answers."""

    __slots__ = ("free_ps", "queue", "remaining")

    def __init__(self) -> None:
        self.free_ps = 0  # in closed form: when the last message has left
        self.queue: deque[Message] = deque()  # where rates change: what has not left yet, the first leaves now
        self.remaining = 0.0  # bytes of the first


class _Flow:
    __slots__ = (
        "answers",
        "broken",
        "ends",
        "memories",
        "options",
        "pool",
        "queue",
        "reaches_ps",
        "reliable",
        "requests",
        "sends",
        "way",
    )

    def __init__(
        self,
        way: Way,
        options: FlowOptions,
        ends: tuple[int, int, int, int],
        memories: tuple[int | None, int | None],
    ) -> None:
        self.way = way
        self.options = options
        self.ends = ends  # adapters, queue pair numbers
        self.memories = memories
        self.requests: dict[int, Message] = {}  # that nobody has answered yet, oldest first
        self.reliable = options.service == Service.RELIABLE_CONNECTION
        self.pool: int | None = None
        self.sends, self.answers = Stream(), Stream()
        self.reaches_ps = 0  # when the last message posted is at the receiver
        self.queue: deque[Message] = deque()  # arrived at the receiver, the first waits for a receive
        self.broken = False


class Message:
    """One message, as long as anything may happen to it."""

    __slots__ = (
        "answers",
        "arrive_ps",
        "earliest_ps",
        "flow",
        "number",
        "opcode",
        "retries",
        "takes_receive",
        "tells_begin",
        "tells_end",
        "travels",
        "way",
    )

    def __init__(self, number: int, flow: _Flow, opcode: Opcode, way: Way) -> None:
        self.number = number
        self.flow = flow
        self.opcode = opcode
        self.way = way
        self.takes_receive = self.tells_begin = self.tells_end = False
        self.answers: int | None = None
        self.travels = 0  # bytes
        self.earliest_ps = 0
        self.arrive_ps = 0
        self.retries = 0


_REACH, _TELL = 0, 1  # what an entry of the heap does: a message reaches the receiver; an event is due


class AnalyticMessages:
    """A message session in closed form.

    `latency_ps` and `rate_bps` replace those of the fabric's ways, for tests that want round figures.
    """

    def __init__(
        self, fabric: Fabric, routes: Routes, *, latency_ps: int | None = None, rate_bps: int | None = None
    ) -> None:
        self.fabric = fabric
        self._finder = PathFinder(fabric, routes)
        self._fixed = latency_ps, rate_bps
        self._now = 0
        self._flows: dict[int, _Flow] = {}
        self._by_ends: dict[tuple[int, int, int, int], _Flow] = {}
        self._ways: dict[tuple[int, int, int | None, int | None], Way] = {}
        self._opened = 0
        self._posted = 0
        self._live: dict[int, Message] = {}
        self._receives: dict[int, int] = {}
        self._waiting: dict[int, list[_Flow]] = {}  # flows whose first message found a pool empty
        self._heap: list[tuple[int, int, int, Message, EventKind]] = []
        self._sequence = 0

    @property
    def now_ps(self) -> int:
        return self._now

    @property
    def idle(self) -> bool:
        return not self._heap

    def open(
        self,
        source_adapter: int,
        target_adapter: int,
        *,
        source_memory: int | None = None,
        target_memory: int | None = None,
        options: FlowOptions | None = None,
    ) -> int:
        """A flow between two adapters. Raises ConfigError where there is no way."""
        options = options or FlowOptions()
        ends = (source_adapter, target_adapter, options.source_qpn, options.target_qpn)
        memories = (source_memory, target_memory)
        self._opened += 1
        flow = self._flows[self._opened] = _Flow(self._timing(ends, memories, options), options, ends, memories)
        self._by_ends[ends] = flow
        return self._opened

    def _timing(
        self,
        ends: tuple[int, int, int, int],
        memories: tuple[int | None, int | None],
        options: FlowOptions,
    ) -> Way:
        """The way between two memories, no faster than a static rate. Raises ConfigError."""
        latency_ps, rate_bps = self._fixed
        way = Way(latency_ps or 0, rate_bps or 0, ())
        if latency_ps is None or rate_bps is None:
            key = (*ends[:2], *memories)
            found = self._ways.get(key)
            if found is None:
                found = self._ways[key] = find_way(self._finder, key[:2], key[2:])
            way = Way(
                found.latency_ps if latency_ps is None else latency_ps,
                found.rate_bps if rate_bps is None else rate_bps,
                found.ports,
            )
        return way if not options.rate_bps else way._replace(rate_bps=min(way.rate_bps, options.rate_bps))

    def close(self, flow: int) -> None:
        """Forget a flow: messages under way on it are lost, without an event."""
        gone = self._flows.pop(flow)
        gone.broken = True
        if self._by_ends.get(gone.ends) is gone:
            del self._by_ends[gone.ends]
        for waiting in self._waiting.values():
            if gone in waiting:
                waiting.remove(gone)
        self._heap = [entry for entry in self._heap if entry[3].flow is not gone]
        heapq.heapify(self._heap)
        self._live = {number: message for number, message in self._live.items() if message.flow is not gone}

    def receives(self, flow: int, pool: int) -> None:
        """Messages on the flow that take a receive take it from this pool."""
        mine = self._flows[flow]
        before, mine.pool = mine.pool, pool
        self._receives.setdefault(pool, 0)
        waiting = [] if before is None else self._waiting.get(before, [])
        if mine in waiting:
            waiting.remove(mine)
            self._waiting.setdefault(pool, []).append(mine)
            self._try_again(pool)

    def add_receives(self, pool: int, count: int) -> None:
        """So many more receives are posted (or, negative, withdrawn) in a pool."""
        self._receives[pool] = self._receives.get(pool, 0) + count
        if count > 0:
            self._try_again(pool)

    def _try_again(self, pool: int) -> None:
        waiting = self._waiting.get(pool)
        if not waiting or self._receives[pool] <= 0:
            return
        self._waiting[pool] = []
        for flow in waiting:
            # the sender tries again each time that the receiver's timer has run out
            message = flow.queue[0]
            period = flow.options.rnr_timer_ps + 2 * flow.way.latency_ps
            tries = max(1, -(-(self._now - message.arrive_ps) // period))
            message.retries = tries
            self._push(message.arrive_ps + tries * period, _REACH, message, EventKind.ARRIVED)

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
        """Post a message now; returns its number. `inline` and `chained` make no difference here."""
        on = self._flows[flow]
        self._posted += 1
        way = on.way
        if memory is not None or target_memory is not None:
            memories = (
                on.memories[0] if memory is None else memory,
                on.memories[1] if target_memory is None else target_memory,
            )
            way = self._timing(on.ends, memories, on.options)
        message = Message(self._posted, on, opcode, way)
        request, response = opcode in REQUESTS, opcode in RESPONSES
        message.takes_receive, message.tells_begin = takes_receive, tell_begin
        message.tells_end = tell_end and not request and not response
        message.answers = answers
        message.travels = 0 if request else size_bytes
        message.earliest_ps = self._now + later_ps
        self._live[message.number] = message
        if request:
            on.requests[message.number] = message
        # responses are a stream of their own beside the requests, which nobody acknowledges
        self._carry(on.answers if response else on.sends, message)
        return message.number

    def _carry(self, stream: Stream, message: Message) -> None:
        """Let a message leave after those before it."""
        start = max(message.earliest_ps, stream.free_ps)
        stream.free_ps = start + message.travels * 8 * PS_PER_S // message.way.rate_bps
        self._leaves(message, start)
        self._left(message, stream.free_ps)

    def _leaves(self, message: Message, when_ps: int) -> None:
        """Its first byte leaves."""
        there_ps = when_ps + message.way.latency_ps
        if message.opcode in RESPONSES:
            self._answer(message.flow, message.answers, there_ps)
        elif message.tells_begin:
            self._push(there_ps, _TELL, message, EventKind.BEGUN)

    def _left(self, message: Message, when_ps: int) -> None:
        """Its last byte has left."""
        on, there_ps = message.flow, when_ps + message.way.latency_ps
        if message.opcode in RESPONSES:
            self._push(there_ps, _TELL, message, EventKind.ARRIVED)
            return
        if not on.reliable and message.tells_end:
            self._push(when_ps, _TELL, message, EventKind.ENDED)
        # a flow keeps its order, whatever memories its messages go to
        on.reaches_ps = max(there_ps, on.reaches_ps)
        self._push(on.reaches_ps, _REACH, message, EventKind.ARRIVED)

    def _answer(self, on: _Flow, answers: int | None, when_ps: int) -> None:
        """A response ends the request that it answers, else the oldest of the flow back."""
        source, target, own, other = on.ends
        back = self._by_ends.get((target, source, other, own))
        if back is None or not back.requests:
            return
        request = back.requests.pop(next(iter(back.requests)) if answers is None else answers, None)
        if request is not None:
            self._push(when_ps, _TELL, request, EventKind.ENDED)

    def refuse(self, message: int, syndrome: int = NAK_REMOTE_ACCESS) -> None:
        """The receiver answers with a NAK: ENDED at its time; what follows on the flow never arrives."""
        refused = self._live.pop(message, None)
        if refused is None:
            return
        refused.flow.requests.pop(message, None)
        refused.flow.broken = True
        self._heap = [entry for entry in self._heap if entry[3] is not refused]
        heapq.heapify(self._heap)
        self._push(self._now + refused.way.latency_ps, _TELL, refused, EventKind.ENDED)

    def advance(self, until_ps: int = FOREVER) -> list[Event]:
        """Run to the next instant at which something happened, at most to `until_ps`; what happened then."""
        events: list[Event] = []
        heap = self._heap
        while heap and heap[0][0] <= until_ps:
            if events and heap[0][0] > self._now:
                return events
            self._happen(events)
        if not events and until_ps < FOREVER:
            self._now = max(self._now, until_ps)
        return events

    def _happen(self, events: list[Event]) -> None:
        """The first of what is to come."""
        time_ps, _, action, message, kind = heapq.heappop(self._heap)
        self._now = max(self._now, time_ps)
        if action != _TELL:
            self._reach(message, events)
            return
        if kind == EventKind.BEGUN and message.flow.broken:
            return
        if kind == EventKind.ENDED and message.flow.reliable:
            self._live.pop(message.number, None)
        events.append(Event(time_ps, message.number, kind))

    # ------------------------------------------------------------------ the receiver

    def _reach(self, message: Message, events: list[Event]) -> None:
        """A message is at the receiver, or is there once more."""
        flow = message.flow
        if flow.broken:
            return
        if not flow.queue or flow.queue[0] is not message:
            message.arrive_ps = self._now
            flow.queue.append(message)
            if flow.queue[0] is not message:
                return  # behind one that waits
        while flow.queue:
            first = flow.queue[0]
            if first.takes_receive and flow.pool is not None:
                if self._receives[flow.pool] <= 0:
                    if flow.reliable:
                        self._not_ready(first, events)
                        return
                    flow.queue.popleft()
                    self._live.pop(first.number, None)
                    events.append(Event(self._now, first.number, EventKind.LOST))
                    continue
                self._receives[flow.pool] -= 1
            flow.queue.popleft()
            events.append(Event(self._now, first.number, EventKind.ARRIVED))
            if first.tells_end and flow.reliable:
                self._push(self._now + first.way.latency_ps, _TELL, first, EventKind.ENDED)
            elif first.number not in flow.requests:
                self._live.pop(first.number, None)

    def _not_ready(self, message: Message, events: list[Event]) -> None:
        flow = message.flow
        allowed = flow.options.rnr_retry
        if message.retries == 0:
            message.arrive_ps = self._now
        if allowed != _ENDLESS_RETRY:
            if message.retries >= allowed:
                flow.broken = True
                flow.queue.clear()
                self._live.pop(message.number, None)
                self._push(self._now + flow.way.latency_ps, _TELL, message, EventKind.NOT_READY_FAILED)
                return
            message.retries += 1
            self._push(
                self._now + flow.options.rnr_timer_ps + 2 * flow.way.latency_ps, _REACH, message, EventKind.ARRIVED
            )
            return
        assert flow.pool is not None
        self._waiting.setdefault(flow.pool, []).append(flow)

    def _push(self, time_ps: int, action: int, message: Message, kind: EventKind) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time_ps, self._sequence, action, message, kind))
