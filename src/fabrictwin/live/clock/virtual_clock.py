"""Modelled time by itself: programs see it, and it moves only when every one of them waits.

A program's own work takes no time, but for what its driver takes to post and to find a completion
(fabric/driver_times.py). It waits when it sleeps, when the kernel has it wait (for a descriptor, a lock, a child),
when it has looked for completions and found none, when it looks at the clock and does nothing else, and when it
looks at memory that others may write to (datapath/quiet.c says how that is seen). Then time goes to the next
instant at which one of them has something to do, and they are told one after another, in an order that does not
depend on the machine: so results do not either.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.base.changes import FOREVER
from fabrictwin.fabric.driver_times import DriverTimes, driver_times
from fabrictwin.live import wire
from fabrictwin.live.client import Client
from fabrictwin.live.clock.clock_page import ClockPage
from fabrictwin.live.clock.pace import IDLE_S, ClockName, Served
from fabrictwin.live.context import Context, refuse
from fabrictwin.live.datapath import PLACE_SHIFT, library
from fabrictwin.live.event_pipe import EventPipe
from fabrictwin.live.uverbs.reply import Reply
from fabrictwin.live.wire import Kind, WaitKind

_QUIET, _READABLE = 0, 1  # live_await_quiet()
_PATIENCE_NS = 5_000_000  # of the machine's time, before the loop's caller is asked again
_SPIN_NS = 200_000  # of a processor, without acting on what it was told: a program looks at memory
_LONG_SPIN_NS = 1_000_000_000  # the same where no message is under way
_STEPS = 4096
# How long a program looks for news or at the clock before it is shown the time: at first, what part of the time
# that it has looked, and at most until it has looked for long. In even steps: programs measure the counter so.
_NEWS_STEPS = (20_000_000, 8, 1_000_000_000)
_LOOK_STEPS = (1_000_000, 16, 10_000_000)
_LONG_PART = 10_000
_MOST_SPINNERS = 256


@dataclass
class Wait:
    """A thread's wait."""

    number: int
    kind: int
    pid: int
    until_ps: int
    told: bool = False  # a lock's: it is over, and the thread has not said that it has seen so


@dataclass
class _Looking:
    """Since when a thread has looked in vain, and when it last stopped."""

    since_ps: int = -1
    until_ps: int = -1


class VirtualClock:
    """Programs wait for modelled time."""

    name: ClockName = "virtual"

    def __init__(self, served: Served) -> None:
        self._served = served
        self.page = ClockPage(int(time.time()) * 1_000_000_000)
        self._library = library()
        self._library.live_forget_all()
        self._library.live_take_short_turns(0)
        self._slots: dict[int, int] = {}
        self._waits: dict[Client, Wait] = {}
        self._looking: dict[Client, _Looking] = {}
        self._due: list[tuple[int, int, Client, Wait]] = []
        self._timers: dict[int, tuple[int, int]] = {}  # by process: when SIGALRM is due, and how often
        self._bells: list[tuple[int, int, int, Callable[[], None]]] = []
        self._times: dict[int, DriverTimes] = {}
        self._noticed: set[int] = set()  # processes whose memory was written while they looked at it
        self._contexts: dict[int, list[Context]] = {}
        self._spinners: set[int] = set()
        self._fresh: set[int] = set()  # processes that have had news since they were last told
        self._place: dict[int, int] = {}
        self._room = (ctypes.c_int32 * _MOST_SPINNERS)()
        self._spinning = ctypes.c_int32()
        self._stirred = True  # somebody may run who did not when all waited last
        self.begin()

    # ------------------------------------------------------------------ processes

    def begin(self) -> None:
        self.page.publish(self._served.world.instant_ps)

    def close(self) -> None:
        self.page.close()

    def follow(self, pid: int) -> None:
        """A program was started: time stands until it waits."""
        self._library.live_follow(pid)

    def admit(self, context: Context) -> None:
        """A process has opened a device."""
        self._contexts.setdefault(context.pid, []).append(context)
        self._place[context.tag >> PLACE_SHIFT] = context.pid
        self._times[context.pid] = driver_times(self._served.world.fabric, context.adapter.index)

    def _slot(self, pid: int) -> int:
        found = self._slots.get(pid)
        if found is None:
            if len(self._slots) >= wire.CLOCK_SLOTS:
                self._slots = {each: slot for each, slot in self._slots.items() if os.path.exists(f"/proc/{each}")}
            taken = set(self._slots.values())
            found = self._slots[pid] = next(slot for slot in range(wire.CLOCK_SLOTS) if slot not in taken)
        return found

    def seconds(self) -> float:
        return self._served.world.instant_ps / PS_PER_S

    # ------------------------------------------------------------------ what clients say

    def serve(self, client: Client, kind: int, argument: int, body: bytes) -> Reply | None:
        """Answer a request about time. Raises Refused."""
        if kind == Kind.JOIN:
            self.follow(client.pid)
            self._library.live_read_acts(client.pid, argument)
            return Reply(wire.JOINED.pack(self._slot(client.pid)), descriptor=self.page.descriptor)
        if kind == Kind.WAIT:
            self._begin_wait(client, argument, *wire.WAIT.unpack(body))
            return None
        if kind == Kind.WITHDRAW:
            wait = self._waits.get(client)
            if wait is not None and wait.number == argument & 0xFFFFFFFF:
                del self._waits[client]
                self._mark(client.pid)
                if not wait.told:
                    _answer(client, wait)
            return None
        if kind == Kind.TIMER:
            (every,) = struct.unpack("=Q", body)
            if argument:
                self._timers[client.pid] = (argument, every)
            else:
                self._timers.pop(client.pid, None)
            return Reply()
        raise refuse(errno.EPROTO)

    def _begin_wait(self, client: Client, until_ps: int, kind: int, number: int, news: int) -> None:
        now = self._served.world.instant_ps
        self._noticed.discard(client.pid)
        if kind in (WaitKind.NEWS, WaitKind.LOOK):
            first, part, most = _NEWS_STEPS if kind == WaitKind.NEWS else _LOOK_STEPS
            looking = self._looking.setdefault(client, _Looking())
            if looking.until_ps != now:
                looking.since_ps = now
            looked = now - looking.since_ps
            until_ps = now + max(min(max(first, looked // part), most), looked // _LONG_PART)
            looking.until_ps = until_ps
        wait = self._waits[client] = Wait(number, kind, client.pid, until_ps)
        if kind == WaitKind.NEWS and news != self.page.news[self._slot(client.pid)]:
            self._over(client, wait)

    def drop(self, client: Client) -> None:
        """A connection has ended."""
        self._waits.pop(client, None)
        self._looking.pop(client, None)
        if client.context is not None:
            held = self._contexts.get(client.pid, [])
            if client.context in held:
                held.remove(client.context)
            if not held:
                self._contexts.pop(client.pid, None)
            self._place.pop(client.context.tag >> PLACE_SHIFT, None)

    def ring(self, context: Context, handle: int) -> None:
        """Posted at one instant, in whatever order: begun in one that is always the same, once all wait."""
        self._mark(context.pid)  # it has posted, and looks at no memory as yet
        times = self._times[context.pid]
        delay = times.post_ps
        if context.pid in self._noticed:
            self._noticed.discard(context.pid)
            delay += times.poll_ps
        self._bells.append((self._slot(context.pid), len(self._bells), delay, partial(_begin, context, handle)))

    def catch_up(self) -> None:
        """Time stands while anybody runs: it is up to date."""

    # ------------------------------------------------------------------ news

    def note_news(self, pid: int) -> None:
        """A process can find something."""
        slot = self._slots.get(pid)
        if slot is not None:
            self.page.news[slot] += 1
            self._fresh.add(pid)

    def note_written(self, place: int) -> None:
        """A client's memory was written."""
        pid = self._place.get(place)
        if pid is not None:
            self.note_news(pid)

    def _mark(self, pid: int) -> None:
        may_spin = any(context.may_be_written for context in self._contexts.get(pid, ()))
        self._library.live_mark(pid, may_spin)

    def _concerned(self) -> bool:
        """True where somebody looks for what has come; news of others is not waited for."""
        if not self._fresh:
            return False
        looking = {wait.pid for wait in self._waits.values() if wait.kind in (WaitKind.NEWS, WaitKind.LOOK)}
        concerned = self._fresh & (looking | self._spinners)
        self._stirred |= bool(concerned & self._spinners)
        self._noticed |= concerned & self._spinners
        self._fresh.clear()
        for pid in concerned:
            self._mark(pid)
        for client, wait in list(self._waits.items()):
            if wait.pid in concerned and wait.kind == WaitKind.LOOK:
                self._over(client, wait)
            elif wait.pid in concerned and wait.kind == WaitKind.NEWS:
                wait.kind = WaitKind.SLEEP  # until its processor has found it
                times = self._times.get(wait.pid)
                poll_ps = 0 if times is None else times.poll_ps
                wait.until_ps = min(wait.until_ps, self._served.world.instant_ps + poll_ps)
        return bool(concerned)

    def _over(self, client: Client, wait: Wait) -> None:
        if self._waits.get(client) is wait and not wait.told:
            if wait.kind == WaitKind.LOCK:
                wait.told = True
            else:
                del self._waits[client]
            self._due.append((self._slot(wait.pid), wait.number, client, wait))

    # ------------------------------------------------------------------ the loop

    def turn(self, wait_s: float | None) -> None:
        served = self._served
        happened = served.poll.poll(0)
        if happened:
            self._stirred = True
            served.handle(happened)
            return
        if self._stirred and not self._all_wait():
            return
        written, self._stirred = EventPipe.written, False
        if self._bells:
            self._begin_posted()
        elif self._due:
            self._tell_next()
        elif served.failed and served.flush_late():
            self._stirred = True
        elif not self._advance():
            self._stirred = True
            happened = served.poll.poll(IDLE_S if wait_s is None else wait_s)
            if happened:
                served.handle(happened)
        self._stirred |= written != EventPipe.written

    def settle(self, seconds: float = 20.0) -> None:
        """Serve without letting time pass until everybody waits."""
        served, until = self._served, time.monotonic() + seconds
        while time.monotonic() < until:
            happened = served.poll.poll(0)
            if happened:
                served.handle(happened)
            elif self._all_wait():
                return

    def _all_wait(self) -> bool:
        if any(wait.told for wait in self._waits.values()):
            time.sleep(0)
            return False
        nothing = self._served.world.idle and not self._bells and not self._due
        spin_ns = _LONG_SPIN_NS if nothing else _SPIN_NS
        said = self._library.live_await_quiet(
            self._served.poll.fileno(), spin_ns, _PATIENCE_NS, ctypes.byref(self._spinning)
        )
        if said != _QUIET:
            return False
        if self._spinning.value:
            found = self._library.live_spinners(self._room, _MOST_SPINNERS)
            self._spinners = set(self._room[:found])
        elif self._spinners:
            self._spinners = set()
        return True

    def _begin_posted(self) -> None:
        bells, self._bells = sorted(self._bells, key=lambda bell: bell[:2]), []
        for _, _, delay, begin in bells:
            self._served.world.after(delay, begin)

    def _tell_next(self) -> None:
        """One thread goes on; the next one after it waits again."""
        self._due.sort(key=lambda each: each[:2])
        _, _, client, wait = self._due.pop(0)
        self._mark(wait.pid)
        self._stirred = True
        _answer(client, wait)

    def _deadlines(self) -> Iterator[int]:
        yield from (wait.until_ps for wait in self._waits.values() if not wait.told)
        yield from (due for due, _ in self._timers.values())
        held = self._served.connections.overdue_from_s()
        if held is not None:
            yield int(held * PS_PER_S) + 1

    def _advance(self) -> bool:
        """Let time pass until somebody has something to do. False: nothing will happen any more."""
        served = self._served
        world = served.world
        until = min(self._deadlines(), default=FOREVER)
        if until >= FOREVER and world.idle:
            return False
        for queue in served.watched:
            queue.collect()
        steps, moved = 0, True
        while steps < _STEPS and world.step(until):
            steps += 1
            if self._concerned():
                break
        else:
            moved = steps == _STEPS
        if not steps and not world.records:
            served.watched.clear()
        if not moved and until < FOREVER:
            world.instant_ps = max(world.instant_ps, until)
        now = world.instant_ps
        self.page.publish(now)
        self._end_waits(now)
        served.connections.refuse_overdue()
        return True

    def _end_waits(self, now: int) -> None:
        for client, wait in list(self._waits.items()):
            if wait.until_ps <= now:
                self._over(client, wait)
        for pid, (due, every) in list(self._timers.items()):
            if due <= now:
                if every:
                    self._timers[pid] = (due + every, every)
                else:
                    del self._timers[pid]
                self._mark(pid)
                self._stirred = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGALRM)


def _begin(context: Context, handle: int) -> None:
    if not context.closed:
        context.doorbell(handle)


def _answer(client: Client, wait: Wait) -> None:
    with contextlib.suppress(OSError):
        client.connection.sendmsg([wire.REPLY.pack(0, 0, -1, wait.number)])
