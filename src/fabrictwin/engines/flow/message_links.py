"""Messages as fluid: they share links, and each moves at its max-min fair rate.

The time of a message that shares nothing with another is as in closed form. Here a flow's first message (and its
first answer) drains at a rate that changes whenever one begins or has left: rates are max-min fair over the
directed ports of all paths (`kernel.flow.max_min`), in bytes of payload.

Leaves out what the closed forms leave out, but for contention; queues, and what keeps them short.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from fabrictwin.base.arrays import F64
from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.base.changes import FOREVER
from fabrictwin.engines.base.message_queues import MessageQueues
from fabrictwin.engines.base.queued_messages import QueuedMessage, Stream
from fabrictwin.engines.flow.flow_tables import fair_rates


class SharedLinks:
    """Messages of all flows share the links of their paths."""

    def __init__(self, queues: MessageQueues, capacity_bps: F64) -> None:
        self._queues = queues
        self._capacity = capacity_bps  # [ports] of payload, as links run now
        self._rates: dict[Stream, float] = {}  # bytes a picosecond, of what drains; in the order of beginning
        self._since = 0  # when what remains was last brought up to date
        self._solved = True
        self._next: tuple[int, Stream] | None = None  # what has left next, and when

    @property
    def busy(self) -> bool:
        """Something is leaving."""
        return bool(self._rates)

    @property
    def next_ps(self) -> int:
        """Return the time in ps at which the next message has left, at the rates of now."""
        if not self._solved:
            self._solve()
        return FOREVER if self._next is None else self._next[0]

    def stop(self, stream: Stream) -> None:
        """Drop what a stream holds; it never leaves."""
        self._settle()
        stream.queue.clear()
        if self._rates.pop(stream, None) is not None:
            self._solved = False

    def change(self, port: int, rate_bps: int) -> None:
        """A port's rate is another from now on, for what is leaving too."""
        self._settle()
        self._capacity[port] = rate_bps
        for stream in self._rates:
            message = stream.queue[0]
            if port in message.path.ports:
                narrowest = int(self._capacity[list(message.path.ports)].min())
                static = message.flow.options.rate_bps
                message.path = message.path._replace(rate_bps=min(narrowest, static) if static else narrowest)
        self._solved = False

    def carry(self, stream: Stream, message: QueuedMessage) -> None:
        """Let a message leave after those before it."""
        stream.queue.append(message)
        if len(stream.queue) == 1:
            self._begin(stream)

    def may_leave(self, message: QueuedMessage) -> None:
        """Software has posted a message that its stream waited for."""
        for stream in (message.flow.sends, message.flow.answers):
            if stream.queue and stream.queue[0] is message:
                self._begin(stream)

    def _begin(self, stream: Stream) -> None:
        """Let the first message of a stream leave, once it may."""
        queues = self._queues
        while stream.queue:
            message = stream.queue[0]
            if message.earliest_ps > queues.now_ps:
                queues.leave_at(message)
                return
            queues.leaves(message, queues.now_ps)
            if message.travels:
                self._settle()
                stream.remaining = float(message.travels)
                self._rates[stream] = 0.0
                self._solved = False
                return
            stream.queue.popleft()
            queues.left(message, queues.now_ps)

    def _settle(self) -> None:
        """Bring what remains up to date."""
        now = self._queues.now_ps
        passed = now - self._since
        if passed:
            for stream, rate in self._rates.items():
                stream.remaining -= rate * passed
            self._since = now

    def _solve(self) -> None:
        """Find the rates of what drains now, and what has left first."""
        self._settle()
        streams = list(self._rates)
        paths = [stream.queue[0].path for stream in streams]
        limit = np.array([path.rate_bps for path in paths], np.float64)
        rates = fair_rates([path.ports for path in paths], self._capacity, limit).tolist() if streams else []
        self._next = None
        for stream, rate in zip(streams, rates, strict=True):
            self._rates[stream] = bytes_a_ps = rate / (8 * PS_PER_S)
            if not bytes_a_ps:
                continue  # a link of its path is down
            when = self._queues.now_ps + ceil(max(stream.remaining, 0.0) / bytes_a_ps - 1e-6)
            if self._next is None or when < self._next[0]:
                self._next = when, stream
        self._solved = True

    def drain(self) -> None:
        """Let the message that has left next leave, and the one behind it begin."""
        assert self._next is not None
        self._settle()
        stream = self._next[1]
        del self._rates[stream]
        self._next, self._solved = None, False
        self._queues.left(stream.queue.popleft(), self._queues.now_ps)
        self._begin(stream)
