"""Modelled time after the machine's clock.

It never runs ahead: what the model takes longer for than this machine makes programs wait; what it takes less
for is as fast as the machine goes. Timeouts and retries wait by the same clock, so a program has as long to post a
receive as on hardware.
"""

from __future__ import annotations

import os
import select
import time

from fabrictwin.live.clock.pace import IDLE_S, ClockName, Served
from fabrictwin.live.context import Context

_STEPS = 256  # of the engine, before sockets are looked at again
_SPINS = 200  # rounds without news that are spun: waking a sleeping processor takes longer than most answers
_NAP_S = 0.0002  # between looks at what programs write without telling
_GLANCE_S = 0.01  # the same, of queue pairs that have failed
_WAKING_S = 0.0001  # that a sleeping processor may take to be back


class RealClock:
    """Modelled time follows the wall clock."""

    name: ClockName = "real"

    def __init__(self, served: Served) -> None:
        self._served = served
        self._quiet = 0
        self._behind = True  # modelled time has stood while nothing was under way
        self.begin()

    def begin(self) -> None:
        self._origin_ns = time.monotonic_ns() - self._served.world.instant_ps // 1000

    def seconds(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        """Nothing is held."""

    def turn(self, wait_s: float | None) -> None:
        served = self._served
        wait = self._wait_s() if wait_s is None else wait_s
        if 0 < wait < IDLE_S:  # epoll counts in milliseconds
            select.select([served.poll], [], [], wait)
            wait = 0
        happened = served.poll.poll(wait)
        if happened:
            self._quiet = 0
            self._behind = not self._under_way()
            if not self._behind:
                self._advance()  # to now: what was due before
            served.handle(happened)
        served.connections.refuse_overdue()
        if served.failed and served.flush_late():
            self._quiet = 0
        if (served.watched or self._under_way()) and self._advance():
            self._quiet = 0
        elif not happened:
            self._quiet += 1
            if not wait:
                os.sched_yield()

    def _under_way(self) -> bool:
        """True where modelled time has anything to do; otherwise it stands, until somebody posts something."""
        world = self._served.world
        return bool(world.records or world.timers) or not world.idle

    def behind_ps(self) -> int:
        """Return how far modelled time is behind the wall clock."""
        return (time.monotonic_ns() - self._origin_ns) * 1000 - self._served.world.instant_ps

    def catch_up(self) -> None:
        if self._behind:
            self._behind = False
            self._advance()

    def ring(self, context: Context, handle: int) -> None:
        self.catch_up()
        context.doorbell(handle)

    def _wait_s(self) -> float:
        """Return how long to wait for descriptors: until near the model's next event; the rest is spun."""
        served = self._served
        if self._quiet < _SPINS:
            return 0
        if served.watched:
            return _NAP_S
        due_ns = self._origin_ns + served.world.next_event_ps() // 1000
        wait = (due_ns - time.monotonic_ns()) / 1e9 - _WAKING_S
        if wait > 0:
            return min(wait, _GLANCE_S if served.failed else IDLE_S)
        while time.monotonic_ns() < due_ns and not served.poll.poll(0):
            pass
        return 0

    def _advance(self) -> bool:
        """Let modelled time follow the wall clock. Returns whether anything happened."""
        served = self._served
        world = served.world
        for queue in served.watched:
            queue.collect()
        limit = (time.monotonic_ns() - self._origin_ns) * 1000
        steps = 0
        while steps < _STEPS and world.step(limit):
            steps += 1
        if not steps and not world.records:
            served.watched.clear()
        if world.captures and world.engine.packets is not None:
            world.engine.packets.read_tap()  # a few rows at a time: thousands at once would keep programs waiting
        return steps > 0
