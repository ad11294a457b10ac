"""The packet kernel as single messages drive it: requests in, events out.

Software's requests are rows that the next run reads; a run stops at the next instant that software is to know of.
Both go through buffers that are shared with the kernel, so that many small messages cost little.

A receiver that is never ready is asked again and again for ever (InfiniBand Architecture, volume 1, 9.7.5.2.8,
with an RNR retry count of 7). A run without an end looks, now and then, whether anything but that is going on: if
not, nothing will happen until software does something.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from fabrictwin.engines.base.changes import FOREVER
from fabrictwin.engines.base.engine import Stop
from fabrictwin.engines.base.messages import Event, EventKind
from fabrictwin.engines.packet.network.packet_network import PacketNetwork
from fabrictwin.fabric.fabric import NONE

_MESSAGE = 4  # the column of a request's message
_ROOM = 1024  # messages at once, to begin with
_EVENT_ROOM = 4096
_MOST_ROWS = 2048  # that one run may read: each schedules an event
_PATIENCE_PS = 100_000_000  # without an event, before looking at what goes on; twice as long each time
_FINISHED, _REACHED, _EVENTS, _BUDGET = Stop  # members looked up once
_KINDS = tuple(EventKind)
_new = tuple.__new__  # faster than Event(...), twice a message


class MessageKernel:
    """The kernel of one network, its inbox and the events that it reports."""

    def __init__(self, network: PacketNetwork) -> None:
        from fabrictwin.kernel.packet.state import constants as s
        from fabrictwin.kernel.packet.stepping import stepper

        self.network = network
        self.now = 0  # where time was let pass to without an event
        self._machine = machine = network.machine
        self._changes = network.changes.pending
        self._stepper = stepper
        self._stepped: Any = None
        self._steps: Any = None
        self._asked: Any = None
        self._stalled, self._event_status, self._sliced = s.STALLED, s.MESSAGE_EVENT, s.SLICED
        self._reached, self._idle = s.REACHED, s.IDLE
        self._only_retries = False  # as far as the last look saw, and nothing was asked for since
        machine.state = machine.state._replace(
            inbox=np.zeros((_ROOM, s.INBOX_COLUMNS), np.int64), message_event=np.zeros((_EVENT_ROOM, 3), np.int64)
        )
        machine.add_messages(_ROOM)
        self._row = struct.Struct(f"{s.INBOX_COLUMNS}q")
        self._view_inbox()
        clock = machine.state.clock
        # views of single fields, as plain memory: numpy's scalars cost more
        self.rows, self._events_ready, self._open, self._free, self.time, self._grow, self._stall_seen = (
            memoryview(clock[name])
            for name in ("inbox", "message_events", "open", "tasks_free", "now", "grow", "stall_seen")
        )
        self._patient = memoryview(clock["patient"])
        self._happened = memoryview(machine.state.message_event).cast("B").cast("q")

    # ------------------------------------------------------------------ rows

    def _view_inbox(self) -> None:
        self.inbox = self._machine.state.inbox
        self._bytes = memoryview(self.inbox).cast("B")
        self._words = self._bytes.cast("q")
        self._room = len(self.inbox)

    def packed(self, row: tuple[int, ...]) -> bytes:
        """Return a request as it lies in the inbox."""
        return self._row.pack(*row)

    def ask(self, *row: int) -> None:
        """A request that the next run reads."""
        self.ask_again(self._row.pack(*row), row[_MESSAGE])

    def ask_again(self, packed: bytes, message: int) -> None:
        """A request like one before, for another message."""
        n = self.rows[0]
        if n == self._room:
            longer = np.zeros((2 * n, self.inbox.shape[1]), np.int64)
            longer[:n] = self.inbox
            self._machine.state = self._machine.state._replace(inbox=longer)
            self._view_inbox()
        size = self._row.size
        at = n * size
        self._bytes[at : at + size] = packed
        self._words[(at >> 3) + _MESSAGE] = message
        self.rows[0] = n + 1

    def add_receives(self, pool: int, count: int) -> None:
        """So many more receives are in a pool."""
        self._machine.state.pool[pool] += count
        self._only_retries = False

    def set_pool(self, q: int, pool: int) -> None:
        """The pool that a queue pair's messages take receives from."""
        self._machine.state.qp[q].pool = pool
        self._only_retries = False

    # ------------------------------------------------------------------ time

    @property
    def now_ps(self) -> int:
        now, time = self.now, self.time[0]
        return now if now > time else time

    @property
    def unread(self) -> bool:
        """True where events wait to be taken."""
        return bool(self._events_ready[0])

    @property
    def idle(self) -> bool:
        """Nothing was asked for that is not done, with its event taken."""
        return not (self._open[0] or self.rows[0] or self._events_ready[0])

    def advance(self, until_ps: int, budget: int | None, patient: bool = False) -> tuple[Stop, list[Event]]:
        """Run to the next instant with events; none: see why it stopped. A `patient` one takes some of them later.

        Raises SimulatedError for a deadlock or an unreachable adapter.
        """
        ready = self._events_ready
        if not ready[0]:
            stop = self._run(until_ps, budget, patient)
            if not ready[0]:
                return stop, []
        n, happened = ready[0], self._happened
        ready[0] = 0
        if n == 1:
            return _EVENTS, [_new(Event, (happened[0], happened[1], _KINDS[happened[2]]))]
        flat = iter(happened[: 3 * n].tolist())
        rows = zip(flat, flat, flat, strict=True)
        return _EVENTS, [_new(Event, (time, message, _KINDS[kind])) for time, message, kind in rows]

    def _run(self, until_ps: int, budget: int | None, patient: bool) -> Stop:
        """Run to the next events; returns why it stopped, where there are none."""
        rows, time, endless = self.rows[0], self.time, until_ps >= FOREVER
        if rows:
            self._only_retries = False
        elif endless and (self._only_retries or not self._open[0]):
            return _FINISHED
        now = time[0]
        if now < self.now:
            now = time[0] = self.now
        if self._changes or budget is not None or (rows and (self._free[0] < rows or rows > _MOST_ROWS)):
            self._make_room(rows)
            return self._run_on(until_ps, budget)
        # straight to the kernel; what it stops at beside events is dealt with by `_run_on`, without patience
        if self._machine.state is not self._stepped:
            self._stepped = self._machine.state
            self._steps, asked = self._stepper(self._stepped)
            self._asked = memoryview(asked)
        asked = self._asked
        asked[1] = now + _PATIENCE_PS if endless else until_ps
        asked[3] = not endless  # timers that nobody waits for
        self._patient[0] = patient
        status = next(self._steps)
        if status >= self._stalled:
            if status == self._stalled:
                self._stall_seen[0] = 0
            elif status != self._event_status and status != self._sliced:
                self._grow[0] = status
        if self._events_ready[0]:
            return _EVENTS
        nothing_till_then = status == self._reached or (status == self._idle and not self._open[0])
        if nothing_till_then and not endless:
            self.now = time[0] = max(time[0], until_ps)
            return _REACHED
        return _FINISHED if endless and not self._open[0] else self._run_on(until_ps, None)

    def _make_room(self, rows: int) -> None:
        machine = self._machine
        if rows and self._free[0] < rows:
            machine.add_messages(max(rows, machine.tasks))
        if rows > _MOST_ROWS:
            machine.room_for_events(rows)

    def _run_on(self, until_ps: int, budget: int | None) -> Stop:
        """Run to the next events, to `until_ps`, or out of budget; changes happen on the way as they are due."""
        network, ready = self.network, self._events_ready
        self._patient[0] = False
        looks, patience = self.time[0], _PATIENCE_PS
        last = None if budget is None else network.events + budget

        def run(until: int, *, drain: bool = False) -> Stop:
            left = None if last is None else max(last - network.events, 0)
            return network.advance(until, drain=drain, budget=left)

        while True:
            due = min(network.changes.next_ps, until_ps)
            if due >= FOREVER:
                looks += patience
                patience *= 2
                stop = run(looks)
                if stop != _REACHED or ready[0]:
                    return stop
                if self.retries_only():
                    self._only_retries = True
                    return _FINISHED
                continue
            stop = run(due)
            if stop == _FINISHED and not ready[0]:
                if until_ps >= FOREVER:
                    return stop
                stop = run(due, drain=True)  # timers that nobody waits for
            if ready[0] or stop == _BUDGET:
                return stop
            self.time[0] = max(self.time[0], due)
            if network.changes.next_ps == due:
                network.apply_next()
                continue
            self.now = max(self.now, due)
            return _REACHED

    def retries_only(self) -> bool:
        """Tell whether all that is open waits for receives that are not posted, or behind what does, for ever."""
        from fabrictwin.kernel.packet import events as e
        from fabrictwin.kernel.packet.state import constants as s

        state = self._machine.state
        kinds = state.heap.what[: int(state.clock[0].heap)] >> e.KIND_SHIFT
        if np.isin(kinds, (e.QueueEvent.TASK, e.QueueEvent.REPORT, e.QueueEvent.SENT)).any():
            return False  # software will hear of something
        qps = state.qp[: self._machine.queue_pairs]
        busy = qps[qps.live > 0]
        if int(busy.live.sum()) != self._open[0]:
            return False
        if not (
            (busy.service == s.RC) & (busy.rnr_limit >= 7) & (busy.pool != NONE) & (busy.accepting != NONE)
        ).all() or np.any(busy.failed | busy.closed | busy.refused):
            return False
        first = busy.accepting
        traits = state.note.traits[first]
        waits = np.where(
            traits & s.TAKES_FIRST != 0,
            busy.expected == state.task.psn_start[first],
            (traits & s.TAKES_LAST != 0) & (busy.expected == state.task.psn_end[first] - 1),
        )
        before_is_done = (busy.head == first) & (busy.receiving == first)
        return bool((waits & before_is_done & (state.pool[busy.pool] <= 0)).all())
