"""Messages between adapters as fluid: they share links, and each moves at its max-min fair rate.

What arrives, in which order and what fails is as in `analytic_messages`, and so is the time of a message that
shares nothing with another. Here a flow's first message (and its first answer) drains at a rate that changes
whenever one begins or has left: rates are max-min fair over the directed ports of all ways (Bertsekas and
Gallager, "Data Networks", 6.5.2), in bytes of payload. A message is there a latency after its last byte has left.

Leaves out what the closed forms leave out, but for contention; queues, and what keeps them short.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import ceil

from fabrictwin.engines.analytic.analytic_messages import AnalyticMessages, Message, Stream
from fabrictwin.engines.base.engine import FOREVER
from fabrictwin.engines.base.message_path import Way
from fabrictwin.engines.base.messages import NAK_REMOTE_ACCESS, Event, EventKind
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.routing.tables import Routes

_BEGIN = 2  # an entry of the heap: a message may leave


def fair_rates(ways: Sequence[Way], capacity_bps: Sequence[int]) -> list[float]:
    """Max-min fair rates of transfers, in bits per second; none is faster than its way's.

    Progressive filling: all rates grow alike; those stop that reach their own limit or a port that is full.
    """
    rates = [0.0] * len(ways)
    open_ = set(range(len(ways)))
    users: dict[int, list[int]] = {}
    for i, way in enumerate(ways):
        for port in way.ports:
            users.setdefault(port, []).append(i)
    left = {port: float(capacity_bps[port]) for port in users}
    grow = {port: len(who) for port, who in users.items()}
    level = 0.0
    while open_:
        step = min(ways[i].rate_bps - level for i in open_)
        step = min([step, *(left[port] / count for port, count in grow.items() if count)])
        level += step
        for port, count in grow.items():
            left[port] -= step * count
        full = {port for port, count in grow.items() if count and left[port] <= 1e-6 * capacity_bps[port]}
        stops = {i for port in full for i in users[port]} | {i for i in open_ if ways[i].rate_bps - level < 1e-3}
        for i in sorted(stops & open_):
            rates[i] = level
            open_.discard(i)
            for port in ways[i].ports:
                grow[port] -= 1
    return rates


class FlowMessages(AnalyticMessages):
    """A message session whose messages share links."""

    fidelity = "flow"

    def __init__(self, fabric: Fabric, routes: Routes) -> None:
        super().__init__(fabric, routes)
        self._capacity: list[int] = fabric.port_payload_bps.tolist()
        self._rates: dict[Stream, float] = {}  # bytes a picosecond, of what drains; in the order of beginning
        self._since = 0  # when what remains was last brought up to date
        self._solved = True
        self._drain: tuple[int, Stream] | None = None  # what has left next, and when

    @property
    def idle(self) -> bool:
        return not self._heap and not self._rates

    def close(self, flow: int) -> None:
        """Forget a flow: messages under way on it are lost, without an event."""
        gone = self._flows[flow]
        super().close(flow)
        self._stop(gone.sends)
        self._stop(gone.answers)

    def refuse(self, message: int, syndrome: int = NAK_REMOTE_ACCESS) -> None:
        """The receiver answers with a NAK: ENDED at its time; what follows on the flow never arrives."""
        refused = self._live.get(message)
        super().refuse(message, syndrome)
        if refused is not None:
            self._stop(refused.flow.sends)

    def _stop(self, stream: Stream) -> None:
        """What a stream holds never leaves."""
        self._settle()
        stream.queue.clear()
        if self._rates.pop(stream, None) is not None:
            self._solved = False

    # ------------------------------------------------------------------ leaving

    def _carry(self, stream: Stream, message: Message) -> None:
        stream.queue.append(message)
        if len(stream.queue) == 1:
            self._begin(stream)

    def _begin(self, stream: Stream) -> None:
        """The first message of a stream leaves, once it may."""
        while stream.queue:
            message = stream.queue[0]
            if message.earliest_ps > self._now:
                self._push(message.earliest_ps, _BEGIN, message, EventKind.BEGUN)
                return
            self._leaves(message, self._now)
            if message.travels:
                self._settle()
                stream.remaining = float(message.travels)
                self._rates[stream] = 0.0
                self._solved = False
                return
            stream.queue.popleft()
            self._left(message, self._now)

    def _settle(self) -> None:
        """Bring what remains up to date."""
        passed = self._now - self._since
        if passed:
            for stream, rate in self._rates.items():
                stream.remaining -= rate * passed
            self._since = self._now

    def _solve(self) -> None:
        """Rates of what drains now, and what has left first."""
        self._settle()
        streams = list(self._rates)
        rates = fair_rates([stream.queue[0].way for stream in streams], self._capacity)
        self._drain = None
        for stream, rate in zip(streams, rates, strict=True):
            self._rates[stream] = bytes_a_ps = rate / (8 * PS_PER_S)
            when = self._now + ceil(max(stream.remaining, 0.0) / bytes_a_ps - 1e-6)
            if self._drain is None or when < self._drain[0]:
                self._drain = when, stream
        self._solved = True

    # ------------------------------------------------------------------ time

    def advance(self, until_ps: int = FOREVER) -> list[Event]:
        """Run to the next instant at which something happened, at most to `until_ps`; what happened then."""
        events: list[Event] = []
        while True:
            if not self._solved:
                self._solve()
            drain = FOREVER if self._drain is None else self._drain[0]
            due = min(drain, self._heap[0][0] if self._heap else FOREVER)
            if due >= FOREVER or due > until_ps or (events and due > self._now):
                break
            if drain > due:
                self._happen(events)
                continue
            assert self._drain is not None
            self._now = max(self._now, drain)
            self._settle()
            stream = self._drain[1]
            del self._rates[stream]
            self._drain, self._solved = None, False
            self._left(stream.queue.popleft(), self._now)
            self._begin(stream)
        if not events and until_ps < FOREVER:
            self._now = max(self._now, until_ps)
        return events

    def _happen(self, events: list[Event]) -> None:
        if self._heap[0][2] != _BEGIN:
            super()._happen(events)
            return
        time_ps, _, _, message, _ = heapq.heappop(self._heap)
        self._now = max(self._now, time_ps)
        for stream in (message.flow.sends, message.flow.answers):
            if stream.queue and stream.queue[0] is message:
                self._begin(stream)
