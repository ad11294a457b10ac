"""A fabric in parts: each with its own clock, lanes, heap, pool of packets and random numbers.

Time advances in windows no longer than the shortest delay between two parts. Within one, parts know nothing of
each other: they are played one after the other, on one thread or several, in any order, and what crosses waits in
mailboxes (`mailbox`). What a part touches in a window fits into a core's cache, so parts pay on one thread too.
Results depend on the parts, never on the threads.

Ports, queue pairs and tasks stay in arrays that all parts share; each record, or the sender's or receiver's half
of it, belongs to one part. Packets are handed over by their index; each part has a list of free ones.

Parts are there only while time runs: `join` makes one whole of them, which can be changed from outside.

Windows are the conservative lookahead of parallel discrete-event simulation (Fujimoto, CACM 33(10), 1990).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np

from fabrictwin.kernel.jit.by_reference import addresses
from fabrictwin.kernel.jit.threads import THREADED
from fabrictwin.kernel.packet import events as e
from fabrictwin.kernel.packet.mailbox import mail_entries, mail_of
from fabrictwin.kernel.packet.state import build as b
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state.config import Config
from fabrictwin.kernel.packet.state.records import plain_columns, records
from fabrictwin.kernel.packet.state.state import State, chain_dtype, clock_dtype, heap_dtype, mail_dtype
from fabrictwin.kernel.packet.stepping import address
from fabrictwin.kernel.packet.windows import (
    BUDGET,
    COLUMNS,
    GO,
    LENGTH,
    OPEN,
    SHORT,
    STATUS,
    UNTIL,
    WHEN_DONE,
    hand_over,
    plan,
    work,
)

LONGEST_WINDOW_PS = 10_000_000

_PACKETS = ("created", "delivered", "refused", "dropped", "lost_control", "payload_delivered")
_SUMS = ("events", "hops", "open", *_PACKETS)
_INBOUND_LANES = 6
_BY_QUEUE_PAIR = (e.QueueEvent.WAKE, e.QueueEvent.SENT, e.QueueEvent.RTO, e.QueueEvent.CONTROL)
_BY_SLOT = (e.QueueEvent.PAUSE_REFRESH, e.QueueEvent.HOQ)
_BY_TASK = (e.QueueEvent.TASK, e.QueueEvent.REPORT)


def crossing(port: Any, part: Any) -> Any:
    """Return [P] which ports lead into another part."""
    return (port.peer != s.NONE) & (part[np.maximum(port.peer, 0)] != part)


def window_ps(port: Any, part: Any) -> int:
    """Return the shortest delay in ps between two parts, at most LONGEST_WINDOW_PS; `part` [P] is each port's.

    Raises ValueError where two parts have none between them, or share a host.
    """
    crosses = crossing(port, part)
    if (crosses & (port.traits & s.INTERNAL != 0)).any():
        raise ValueError("got a host in two parts, expected each in one")
    credit = port.traits & s.CREDIT != 0
    delay = np.where(credit, np.minimum(port.arrive_ps, port.credit_ps), port.arrive_ps)[crosses]
    shortest = int(delay.min(initial=LONGEST_WINDOW_PS))
    if shortest <= 0:
        raise ValueError("got parts without a delay between them")
    return shortest


class Parts:
    """The parts of a fabric at work, made of its whole state.

    `part` [P] is each port's, `random` the state of each part's random numbers. Raises ValueError for parts that
    cannot be played apart (`window_ps`).
    """

    def __init__(self, whole: State, config: Config, part: Any, random: list[int]) -> None:
        self.config, self.part = config, part
        self._windows = plain_columns(COLUMNS, np.int64)
        self._windows[LENGTH] = window_ps(whole.port, part)
        self._look_ahead = int(whole.settings[0].look_ahead)
        self._addresses: Any = None
        self._loop: int | None = None
        events, free = _events([whole]), _free_packets([whole])
        lanes = self._set_ports(whole)
        self._clocks = clocks = records(len(random), clock_dtype)
        clocks.part, clocks.random, clocks.now = np.arange(len(random)), random, whole.clock[0].now
        clocks.mail_time, clocks.status = s.NEVER, s.REACHED
        clocks.unroutable = clocks.free_head = clocks.tasks_head = clocks.called = s.NONE
        self.states = [self._state_of(whole, at, lanes) for at in range(len(random))]
        self._deal(whole, events, free)

    def _set_ports(self, whole: State) -> tuple[Any, int]:
        """Tell ports of the parts; returns delays of event lanes, and how many of them are not from outside."""
        port, part = whole.port, self.part
        crosses = crossing(port, part)
        port.peer_part = np.where(crosses, part[np.maximum(port.peer, 0)], part)
        port.traits |= np.where(crosses, s.CROSSES, 0).astype(np.int16)
        delays = b.lane_delays(whole, self.config)
        own = delays | {name: np.where(crosses, s.NONE, delays[name]) for name in b.ARRIVALS}
        from_others = {name: np.where(crosses, delays[name], s.NONE) for name in b.ARRIVALS}
        values, more = b.common_delays(own, b.MOST_LANES), b.common_delays(from_others, _INBOUND_LANES)
        for name in delays:
            port[name] = s.NONE
        b.join_lanes(port, own, values)
        b.join_lanes(port, from_others, more, len(values))
        whole.settings[0].inbound = len(values)
        whole.settings[0].look_ahead = 0  # the caches hold a part's ports
        return np.concatenate([values, more]), len(values)

    def _state_of(self, whole: State, at: int, lanes: tuple[Any, int]) -> State:
        """A part's own arrays, empty, beside those that all share."""
        values, inbound = lanes
        parts, mine = len(self._clocks), self.part == at
        ports, edge = int(mine.sum()), int((mine & (whole.port.traits & s.CROSSES != 0)).sum())
        chains = 2 * parts * (len(values) + 1)
        state = whole._replace(
            clock=self._clocks[at : at + 1],
            kick=plain_columns(b.kick_room(ports), np.int32),
            mail=records(mail_entries(chains, edge), mail_dtype),
            chain=records(chains, chain_dtype),
            merge=plain_columns(4 << (parts - 1).bit_length(), np.int64),
        )
        arrivals = b.arrival_lanes(whole.port, len(values)).tolist()
        rooms = [b.lane_room(ports if lane < inbound else edge, arrivals[lane]) for lane in range(len(values))]
        return b.with_lanes(state, values, rooms)

    def _deal(self, whole: State, events: tuple[Any, Any], free: Any) -> None:
        """Give every part its events, its share of the free packets, and room for tasks that end."""
        times, what = events
        owner = _part_of_events(whole, what, self.part)
        parts = len(self.states)
        ends = np.bincount(_part_of_tasks(whole, np.arange(len(whole.task)), self.part), minlength=parts)
        for at, (state, share) in enumerate(zip(self.states, np.array_split(free, parts), strict=True)):
            mine = owner == at
            state = _with_events(state, times[mine], what[mine])
            _give_packets(state, share)
            self.states[at] = state._replace(log=plain_columns(int(ends[at]) + 1, np.int32))

    def run(self, whole: State, asked: tuple[int, bool, int], order: Any, threads: int) -> int:
        """Run as `loop.run` does, (until, stop when done, budget), and count it in the whole state's clock.

        Parts are played in the given order by so many threads. Statuses that ask for more room are of `short`.
        """
        windows = self._windows
        windows[UNTIL], windows[WHEN_DONE], windows[BUDGET] = asked
        windows[OPEN] = whole.clock[0].open
        if self._loop is None:
            self._loop = address(self.states[0])
        if self._addresses is None:
            self._addresses = addresses(self.states)
        arguments = (self.states[0], self._addresses, windows)
        if windows[STATUS] != GO:  # else a window was cut short
            plan(*arguments)
        if windows[STATUS] == GO:
            self._play(arguments, order, threads)
        status = int(windows[STATUS])
        if status in (s.IDLE, s.REACHED, s.FINISHED, s.STALLED, s.SLICED, s.UNROUTABLE):
            self._count(whole)
        if status not in (s.IDLE, s.REACHED, s.FINISHED, s.STALLED, s.SLICED):
            windows[STATUS] = GO
        return status

    @property
    def short(self) -> State:
        """The part that needs more room."""
        return self.states[int(self._windows[SHORT])]

    def grow(self, grow: Callable[[State], State]) -> None:
        """Make more room in the part that is short of it."""
        self.states[int(self._windows[SHORT])] = grow(self.short)
        self._addresses = None

    def grow_packets(self) -> None:
        """Give the part that is short packets of the one with the most, or all more where most are in use."""
        taker, clocks = self.short, self._clocks
        if 2 * clocks.free.sum() > len(taker.packet):
            giver = self.states[int(np.argmax(clocks.free))]
            hand_over(giver, taker, int(giver.clock[0].free) // 2)
            return
        old = len(taker.packet)
        packet = records(2 * old, taker.packet.dtype)
        packet[:old] = taker.packet
        self.states = [state._replace(packet=packet) for state in self.states]
        more = np.array_split(np.arange(old, 2 * old), len(self.states))
        for state, share in zip(self.states, more, strict=True):
            _give_packets(state, share)
        self._addresses = None

    def _play(self, arguments: tuple[Any, ...], order: Any, threads: int) -> None:
        threads = min(threads, len(self.states)) if THREADED else 1
        arguments = (*arguments, self._loop, order, threads)
        others = [Thread(target=work, args=arguments, daemon=True) for _ in range(threads - 1)]
        for thread in others:
            thread.start()
        work(*arguments)
        for thread in others:
            thread.join()

    def _count(self, whole: State) -> None:
        """Move what parts counted, and the tasks that ended, to the whole state, in the order of time."""
        clock, clocks = whole.clock[0], self._clocks
        for name in _SUMS:
            clock[name] += clocks[name].sum()
            clocks[name] = 0
        clock.now = max(clock.now, clocks.now.max())
        clock.unroutable = max(clock.unroutable, clocks.unroutable.max())
        if clocks.logged.any():
            ended = np.concatenate([state.log[: int(state.clock[0].logged)] for state in self.states])
            ended = ended[np.argsort(whole.task.done_ps[ended], kind="stable")]
            logged = int(clock.logged)
            whole.log[logged : logged + len(ended)] = ended
            clock.logged = logged + len(ended)
            clocks.logged = 0

    def join(self, whole: State) -> State:
        """Return one whole state with the events and packets of all parts; these are of no use any more."""
        self._count(whole)
        port = whole.port
        whole.settings[0].look_ahead = self._look_ahead
        port.traits &= ~np.int16(s.CROSSES)
        events, free = _events(self.states), _free_packets(self.states)
        joined = whole._replace(packet=self.states[0].packet)
        joined = _with_events(b.set_lanes(joined, self.config), *events)
        joined.clock[0].free, joined.clock[0].free_head = 0, s.NONE
        _give_packets(joined, free)
        return joined

    @property
    def random(self) -> list[int]:
        """The states of the parts' random numbers."""
        return [int(state.clock[0].random) for state in self.states]

    @property
    def nbytes(self) -> int:
        """Bytes of what parts have of their own."""
        return sum(
            array.nbytes
            for state in self.states
            for array in (state.heap, state.event, state.mail, state.chain, state.kick, state.log)
        )


def seeds_of(seed: int, parts: int) -> list[int]:
    """Return a first state of random numbers for each part; that of the first is the given one."""
    return [seed, *(((seed + at * 0x9E3779B1) * 0x85EBCA6B & s.M32) or 1 for at in range(1, parts))]


def _events(states: list[State]) -> tuple[Any, Any]:
    """(time, what) of everything scheduled, in the order in which it happens."""
    columns = []
    for at, state in enumerate(states):
        clock = state.clock[0]
        heap = state.heap[: int(clock.heap)]
        found = [(heap.time, np.full(len(heap), int(clock.lanes)), heap.sequence, heap.what)]
        for i in range(int(clock.lanes)):
            lane = state.lane[i]
            number = np.arange(int(lane.head), int(lane.tail))
            event = state.event[int(lane.first) + (number & int(lane.mask))]
            found.append((event.time, np.full(len(number), i), number, event.what))
        mail = state.mail[mail_of(state)]
        found.append((mail.time, np.full(len(mail), s.NONE), mail.sequence, mail.what))
        columns += [(*one, np.full(len(one[0]), at)) for one in found]
    time, lane, sequence, what, part = (
        np.concatenate(column).astype(np.int64) for column in zip(*columns, strict=True)
    )
    order = np.lexsort((sequence, lane, part, time))
    return time[order], what[order]


def _free_packets(states: list[State]) -> Any:
    """Numbers of all free packets, ascending."""
    following = states[0].packet.next
    if len(states) == 1 and int(states[0].clock[0].free) == len(following):
        return np.arange(len(following))
    found, link = [], following.tolist()
    for state in states:
        at = int(state.clock[0].free_head)
        while at != s.NONE:
            found.append(at)
            at = link[at]
    return np.sort(np.array(found, np.int64))


def _give_packets(state: State, free: Any) -> None:
    """Put these packets before the free ones of a state."""
    clock = state.clock[0]
    state.packet.next[free] = np.append(free[1:], clock.free_head)
    clock.free_head = free[0]
    clock.free += len(free)


def _with_events(state: State, time: Any, what: Any) -> State:
    """A state with these events, in order of time, in its heap."""
    heap = records(2 * (len(time) + s.HEAP_MARGIN), heap_dtype)
    heap.time[: len(time)], heap.what[: len(time)], heap.sequence[: len(time)] = time, what, np.arange(len(time))
    state.clock[0].heap = state.clock[0].sequence = len(time)
    return state._replace(heap=heap)


def _part_of_tasks(state: State, tasks: Any, part: Any) -> Any:
    """The parts of tasks: those of their senders."""
    return part[state.qp.port[state.task.qp[tasks]]]


def _part_of_events(state: State, what: Any, part: Any) -> Any:
    """The parts in which events happen."""
    kind, value = what >> e.KIND_SHIFT, what & e.VALUE_MASK
    port = (what >> e.PORT_SHIFT) & e.PORT_MASK
    owner = part[np.minimum(port, len(part) - 1)]
    by_queue_pair, by_slot, by_task = (np.isin(kind, kinds) for kinds in (_BY_QUEUE_PAIR, _BY_SLOT, _BY_TASK))
    owner[by_queue_pair] = part[state.qp.port[value[by_queue_pair]]]
    owner[by_slot] = part[value[by_slot] >> int(state.settings[0].vl_bits)]
    owner[by_task] = _part_of_tasks(state, value[by_task], part)
    return owner
