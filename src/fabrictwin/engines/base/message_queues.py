"""Messages between adapters without packets: queues, receives and events; how fast they leave is `Links`'.

A message leaves when those before it on its flow have left. It is there a latency after its last byte has left;
its acknowledgement takes that latency back. A receiver without a receive posted answers as InfiniBand
Architecture, volume 1, section 9.7.5.2.8 has it: the sender tries again after the receiver's timer.

Leaves out: timeouts (nothing is ever lost), headers, adapters' message rates.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from fabrictwin.engines.base.changes import FOREVER
from fabrictwin.engines.base.messages import (
    REQUESTS,
    RESPONSES,
    Event,
    EventKind,
    FlowOptions,
    Message,
)
from fabrictwin.engines.base.path import Path, memory_path
from fabrictwin.engines.base.queued_messages import Links, QueuedFlow, QueuedMessage
from fabrictwin.fabric.memory_paths import PathFinder

_ENDLESS_RETRY = 7  # of rnr_retry: for ever


# entries of the heap: a message reaches the receiver, an event is due, a message may leave
_REACH, _EVENT, _LEAVE = range(3)


class FixedTimes(NamedTuple):
    """Round figures in place of those of the fabric's paths, for tests."""

    latency_ps: int | None = None
    rate_bps: int | None = None


NOT_FIXED = FixedTimes()


class MessageQueues:
    """Flows and messages over one fabric."""

    def __init__(self, finder: PathFinder, rates_bps: list[int], fixed: FixedTimes = NOT_FIXED) -> None:
        """`rates_bps` [ports] are the payload rates at which links run now; they are kept up to date elsewhere."""
        self.links: Links  # set by who composes the two
        self._finder, self._rates, self._fixed = finder, rates_bps, fixed
        self._now = 0
        self._flows: dict[int, QueuedFlow] = {}
        self._by_ends: dict[tuple[int, int, int, int], QueuedFlow] = {}
        self._paths: dict[tuple[int, int, int | None, int | None], Path] = {}
        self._opened = 0
        self._posted = 0
        self._live: dict[int, QueuedMessage] = {}
        self._receives: dict[int, int] = {}
        self._waiting: dict[int, list[QueuedFlow]] = {}  # flows whose first message found a pool empty
        self._heap: list[tuple[int, int, int, QueuedMessage, EventKind]] = []
        self._sequence = 0

    @property
    def now_ps(self) -> int:
        return self._now

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return not self._heap and not self.links.busy

    def pass_to(self, time_ps: int) -> None:
        """Let time be no earlier than that: nothing of messages happens before."""
        self._now = max(self._now, time_ps)

    def open(self, ends: tuple[int, int], memories: tuple[int | None, int | None], options: FlowOptions) -> int:
        """Open a flow between two adapters. Raises ConfigError where there is no path."""
        between = (*ends, options.numbers.source_qpn, options.numbers.target_qpn)
        self._opened += 1
        path = self._path(between, memories, options)
        flow = self._flows[self._opened] = QueuedFlow(path, options, between, memories)
        self._by_ends[between] = flow
        return self._opened

    def _path(
        self, ends: tuple[int, int, int, int], memories: tuple[int | None, int | None], options: FlowOptions
    ) -> Path:
        """The path between two memories, no faster than a static rate. Raises ConfigError."""
        latency_ps, rate_bps = self._fixed
        path = Path((), latency_ps or 0, rate_bps or 0)
        if latency_ps is None or rate_bps is None:
            key = (*ends[:2], *memories)
            found = self._paths.get(key)
            if found is None:
                found = self._paths[key] = memory_path(self._finder, key[:2], key[2:])
            path = Path(
                found.ports,
                found.latency_ps if latency_ps is None else latency_ps,
                min(self._rates[port] for port in found.ports) if rate_bps is None else rate_bps,
            )
        return path if not options.rate_bps else path._replace(rate_bps=min(path.rate_bps, options.rate_bps))

    def change(self, port: int, rate_bps: int) -> None:
        """A port's payload rate is another from now on, for what is under way as far as `Links` model that."""
        self._rates[port] = rate_bps
        for flow in self._flows.values():
            if port in flow.path.ports:
                flow.path = self._path(flow.ends, flow.memories, flow.options)
        self.links.change(port, rate_bps)

    def close(self, flow: int) -> None:
        """Forget a flow: messages under way on it are lost, without an event."""
        gone = self._flows.pop(flow)
        gone.broken = True
        if self._by_ends.get(gone.ends) is gone:
            del self._by_ends[gone.ends]
        self.links.stop(gone.sends)
        self.links.stop(gone.answers)
        for waiting in self._waiting.values():
            if gone in waiting:
                waiting.remove(gone)
        self._heap = [entry for entry in self._heap if entry[3].flow is not gone]
        heapq.heapify(self._heap)
        self._live = {number: message for number, message in self._live.items() if message.flow is not gone}

    def receives(self, flow: int, pool: int) -> None:
        """Let messages on the flow that take a receive take it from this pool."""
        mine = self._flows[flow]
        before, mine.pool = mine.pool, pool
        self._receives.setdefault(pool, 0)
        waiting = [] if before is None else self._waiting.get(before, [])
        if mine in waiting:
            waiting.remove(mine)
            self._waiting.setdefault(pool, []).append(mine)
            self._try_again(pool)

    def add_receives(self, pool: int, count: int) -> None:
        """Post so many more receives (or, negative, withdraw them) in a pool."""
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
            period = flow.options.retries.rnr_timer_ps + 2 * flow.path.latency_ps
            tries = max(1, -(-(self._now - message.arrive_ps) // period))
            message.retries = tries
            self._push(message.arrive_ps + tries * period, _REACH, message, EventKind.ARRIVED)

    def send(self, flow: int, message: Message) -> int:
        """Post a message now; returns its number. How software rings the doorbell makes no difference here."""
        on = self._flows[flow]
        self._posted += 1
        path, posting = on.path, message.posting
        if posting.source_memory is not None or posting.target_memory is not None:
            memories = (
                on.memories[0] if posting.source_memory is None else posting.source_memory,
                on.memories[1] if posting.target_memory is None else posting.target_memory,
            )
            path = self._path(on.ends, memories, on.options)
        queued = QueuedMessage(self._posted, on, message.opcode, path)
        request, response = message.opcode in REQUESTS, message.opcode in RESPONSES
        queued.takes_receive, queued.begun = message.takes_receive, message.begun
        queued.ended = message.ended and not request and not response
        queued.answers = message.answers
        queued.travels = 0 if request else message.size_bytes
        queued.earliest_ps = self._now + posting.later_ps
        self._live[queued.number] = queued
        if request:
            on.requests[queued.number] = queued
        # responses are a stream of their own beside the requests, which nobody acknowledges
        self.links.carry(on.answers if response else on.sends, queued)
        return queued.number

    def leaves(self, message: QueuedMessage, when_ps: int) -> None:
        """A message's first byte leaves."""
        there_ps = when_ps + message.path.latency_ps
        if message.opcode in RESPONSES:
            self._answer(message.flow, message.answers, there_ps)
        elif message.begun:
            self._push(there_ps, _EVENT, message, EventKind.BEGUN)

    def left(self, message: QueuedMessage, when_ps: int) -> None:
        """A message's last byte has left."""
        on, there_ps = message.flow, when_ps + message.path.latency_ps
        if message.opcode in RESPONSES:
            self._push(there_ps, _EVENT, message, EventKind.ARRIVED)
            return
        if not on.reliable and message.ended:
            self._push(when_ps, _EVENT, message, EventKind.ENDED)
        # a flow keeps its order, whatever memories its messages go to
        on.reaches_ps = max(there_ps, on.reaches_ps)
        self._push(on.reaches_ps, _REACH, message, EventKind.ARRIVED)

    def _answer(self, on: QueuedFlow, answers: int | None, when_ps: int) -> None:
        """A response ends the request that it answers, else the oldest of the flow back."""
        source, target, own, other = on.ends
        back = self._by_ends.get((target, source, other, own))
        if back is None or not back.requests:
            return
        request = back.requests.pop(next(iter(back.requests)) if answers is None else answers, None)
        if request is not None:
            self._push(when_ps, _EVENT, request, EventKind.ENDED)

    def leave_at(self, message: QueuedMessage) -> None:
        """Let `Links.may_leave` be called when software has posted a message."""
        self._push(message.earliest_ps, _LEAVE, message, EventKind.BEGUN)

    def refuse(self, message: int) -> None:
        """Answer a message with a NAK: ENDED at its time; what follows on the flow never arrives."""
        refused = self._live.pop(message, None)
        if refused is None:
            return
        refused.flow.requests.pop(message, None)
        refused.flow.broken = True
        self._heap = [entry for entry in self._heap if entry[3] is not refused]
        heapq.heapify(self._heap)
        self._push(self._now + refused.path.latency_ps, _EVENT, refused, EventKind.ENDED)
        self.links.stop(refused.flow.sends)

    def advance(self, until_ps: int, budget: int = FOREVER) -> tuple[list[Event], int]:
        """Run to the next instant at which something happened, at most to `until_ps`.

        Returns what happened, and what is left of the budget: nothing where it stopped for that.
        """
        events: list[Event] = []
        links = self.links
        while budget > 0:
            leaving = links.next_ps
            due = min(leaving, self._heap[0][0] if self._heap else FOREVER)
            if due >= FOREVER or due > until_ps or (events and due > self._now):
                break
            budget -= 1
            if leaving > due:
                self._happen(events)
                continue
            self._now = max(self._now, leaving)
            links.drain()
        if not events and until_ps < FOREVER and budget > 0:
            self._now = max(self._now, until_ps)
        return events, budget

    def _happen(self, events: list[Event]) -> None:
        """Let the first of what is to come happen."""
        time_ps, _, action, message, kind = heapq.heappop(self._heap)
        self._now = max(self._now, time_ps)
        if action == _LEAVE:
            self.links.may_leave(message)
            return
        if action == _REACH:
            self._reach(message, events)
            return
        if kind == EventKind.BEGUN and message.flow.broken:
            return
        if kind == EventKind.ENDED and message.flow.reliable:
            self._live.pop(message.number, None)
        events.append(Event(time_ps, message.number, kind))

    # ------------------------------------------------------------------ the receiver

    def _reach(self, message: QueuedMessage, events: list[Event]) -> None:
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
            if first.ended and flow.reliable:
                self._push(self._now + first.path.latency_ps, _EVENT, first, EventKind.ENDED)
            elif first.number not in flow.requests:
                self._live.pop(first.number, None)

    def _not_ready(self, message: QueuedMessage, events: list[Event]) -> None:
        flow = message.flow
        allowed = flow.options.retries.rnr_retry
        if message.retries == 0:
            message.arrive_ps = self._now
        if allowed != _ENDLESS_RETRY:
            if message.retries >= allowed:
                flow.broken = True
                flow.queue.clear()
                self._live.pop(message.number, None)
                self._push(self._now + flow.path.latency_ps, _EVENT, message, EventKind.NOT_READY_FAILED)
                return
            message.retries += 1
            self._push(
                self._now + flow.options.retries.rnr_timer_ps + 2 * flow.path.latency_ps,
                _REACH,
                message,
                EventKind.ARRIVED,
            )
            return
        assert flow.pool is not None
        self._waiting.setdefault(flow.pool, []).append(flow)

    def _push(self, time_ps: int, action: int, message: QueuedMessage, kind: EventKind) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time_ps, self._sequence, action, message, kind))
