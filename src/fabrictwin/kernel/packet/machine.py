"""The packet simulation as an object: queue pairs and tasks are added, time is advanced, counters are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.kernel.packet.congestion import ALGORITHMS, Control, ibcc
from fabrictwin.kernel.packet.connection import Connection
from fabrictwin.kernel.packet.events import KIND_SHIFT, QueueEvent
from fabrictwin.kernel.packet.invariants import Blocked, find_deadlock, pending
from fabrictwin.kernel.packet.loop import begin, begin_at, kick_all, ready_all, run
from fabrictwin.kernel.packet.parts import Parts, seeds_of, window_ps
from fabrictwin.kernel.packet.state import build as b
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state.build import Wiring
from fabrictwin.kernel.packet.state.config import Config, VirtualLanes
from fabrictwin.kernel.packet.state.records import records
from fabrictwin.kernel.packet.state.state import State, nbytes
from fabrictwin.kernel.packet.state.transport_records import qp_dtype
from fabrictwin.kernel.packet.switch.pauses import force_pause
from fabrictwin.kernel.packet.task_columns import Place, Tasks, make_tasks

PAUSES_IN_VAIN = 8  # renewed pauses after which nothing else moved: it never will
# columns of a queue pair's record, by the part of a connection and the field that fills them
_COLUMNS = {
    "": {name: name for name in ("port", "src", "dst")},
    "framing": {
        "header_bytes": "header",
        "first_header_bytes": "first_header",
        "ack_bytes": "ack_bytes",
        "mtu_bytes": "mtu",
        "sl": "sl",
        "ack_sl": "ack_sl",
    },
    "reliability": {"window_bytes": "window"}
    | {name: name for name in ("mode", "ack_every", "reorder", "rto_ps", "retry_limit", "rnr_limit", "rnr_ps")},
    "paths": {name: name for name in ("entropy", "ack_entropy", "spray")},
    "pacing": {name: name for name in ("control", "message_ps")},
    "delivery": {name: name for name in ("service", "receives", "noted", "late_ps")},
}
# what grows by each status
_GROWS: dict[int, tuple[str, Callable[[State], State]]] = {
    s.GROW_PACKETS: ("packet", lambda state: b.add_packets(state, len(state.packet))),
    s.GROW_HEAP: ("heap", b.grow_heap),
    s.GROW_LANES: ("event", b.grow_lanes),
    s.GROW_MAIL: ("mail", b.grow_mail),
}
_GREW = (*_GROWS, s.TAP_FULL)


class MachineError(Exception):
    """The kernel could not go on: no way to a destination, or a capacity that nothing can raise."""


class OutOfMemoryError(MachineError):
    """The state would grow beyond its limit."""


class Machine:
    """One fabric at work. Everything is an integer; names and units belong to who builds it."""

    def __init__(self, wiring: Wiring, config: Config, *, limit_bytes: int = 1 << 34) -> None:
        self.wiring = wiring
        self.config = config
        self.limit_bytes = limit_bytes
        self.state: State = b.build(wiring, config)
        self.queue_pairs = 0
        self.tasks = 0
        self.deadlock: Blocked | None = None
        self.drops_unroutable = False  # a packet without a way is dropped; otherwise it ends the run
        self.drain_tap: Callable[[Any], None] | None = None  # is given the rows of State.tap
        self.on_call: Callable[[int], None] | None = None  # is given a CALL whose delay is over
        self._hops = 0
        self._owns_tables = False
        self._successors = 0
        self._stuck = self._done = 0
        self.has_congestion_tables = False
        self.threads = 1
        self.shuffle: Any = None  # [parts] the order in which they are played, None: as they are numbered
        self._division: Any = None  # [P] the part of each port, None: there is one
        self._parts: Parts | None = None  # while time runs
        self._random: list[int] = []

    @property
    def now(self) -> int:
        return int(self.state.clock[0].now)

    @property
    def parts(self) -> int:
        """The number of parts in which the fabric is played."""
        return 1 if self._division is None else int(self._division.max()) + 1

    def divide(self, part: Any) -> None:
        """Play the fabric in parts from now on: `part` [P] is that of each port.

        What is a part's alone is played there, messages between queue pairs and all that befalls them; whatever
        else is asked for later (tasks that wait for others, single messages, taps, InfiniBand's congestion
        control) ends the division. Raises ValueError for parts that cannot be played apart.
        """
        self.join()
        window_ps(self.state.port, part)
        task = self.state.task[: self.tasks]
        if self.has_congestion_tables or len(self.state.note) > 1 or self.drain_tap is not None or _linked(task):
            return
        self._division = part
        self._random = seeds_of(int(self.state.clock[0].random), self.parts)

    def join(self) -> None:
        """Let `state` be all there is: the parts are one until time runs again."""
        if self._parts is not None:
            self._random = self._parts.random
            self.state, self._parts = self._parts.join(self.state), None

    def _undivide(self) -> None:
        self.join()
        self._division = None

    def _begin_parts(self) -> Parts:
        short = self.parts * 2 * s.PACKET_MARGIN - int(self.state.clock[0].free)
        if short > 0:
            self.state = b.add_packets(self.state, short)
        return Parts(self.state, self.config, self._division, self._random)

    def add_queue_pairs(self, connections: list[Connection]) -> int:
        """Append queue pairs; returns the number of the first."""
        self.join()
        first, n = self.queue_pairs, len(connections)
        qp = _room(self.state.qp, first, n)
        hops = self._fill(qp[first : first + n], connections)
        self.queue_pairs += n
        window = self.config.endpoints.window_packets if (qp.mode == s.SELECTIVE).any() else 0
        self.state = self.state._replace(
            qp=qp,
            hop=self._with_hops(hops),
            received=_longer(self.state.received, self.queue_pairs * window),
            sacked=_longer(self.state.sacked, self.queue_pairs * window),
            **{
                control.name.lower(): _longer_records(
                    self._controlled(control), self.queue_pairs if (qp.control == control).any() else 1
                )
                for control in ALGORITHMS
            },
        )
        for i, c in enumerate(connections):
            self._set_control(first + i, c)
        self.check_memory(0)
        return first

    def reuse_queue_pair(self, q: int, connection: Connection) -> None:
        """Another connection in place of one that is closed and of which nothing is left."""
        self.join()
        records_ = self.state.qp[q : q + 1]
        records_[:] = np.zeros(1, qp_dtype)
        hops = self._fill(records_, [connection])
        self.state = self.state._replace(hop=self._with_hops(hops))
        if connection.pacing.control:
            for table in map(self._controlled, ALGORITHMS):
                if len(table) > q:
                    table[q : q + 1] = np.zeros(1, table.dtype)
            self._set_control(q, connection)

    def _fill(self, new: Any, connections: list[Connection]) -> list[int]:
        """Records of new queue pairs; returns the hops that they need, which follow those there are."""
        hops: list[int] = []
        for group, names in _COLUMNS.items():
            parts = connections if group == "" else [getattr(c, group) for c in connections]
            for name, column in names.items():
                new[column] = [getattr(part, name) for part in parts]
        new.last_end = s.NONE
        for name in ("ring_next", "head", "sending", "tail", "receiving", "accepting", "pool"):
            new[name] = s.NONE
        new.mtu = np.where(new.mtu == 0, self.config.frames.mtu_bytes, new.mtu)
        new.extras = new.noted
        sl2vl = self.state.sl2vl
        base = self._hops
        for i, c in enumerate(connections):
            new.hop_start[i] = base + len(hops)
            hops += c.paths.before
            new.hop_middle[i] = base + len(hops)
            hops += c.paths.after
            new.hop_end[i] = base + len(hops)
            new.ack_hop[i] = base + len(hops)
            hops += c.paths.back
            new.ack_hop_end[i] = base + len(hops)
            new.vl[i] = sl2vl[int(self.state.port.sl2vl[c.port]), c.framing.sl]
            answers = int(self.state.port.sl2vl[self.wiring.endpoint_port[c.dst]]) if c.dst >= 0 else 0
            new.ack_vl[i] = sl2vl[answers, c.framing.ack_sl]
        return hops

    def _with_hops(self, hops: list[int]) -> Any:
        """Source routes with these after those there are; room grows by doubling."""
        hop, base = self.state.hop, self._hops
        if len(hop) <= base + len(hops):
            hop = np.concatenate([hop[:base], np.zeros(max(base, len(hops)) + len(hops) + 1, np.int32)])
        hop[base : base + len(hops)] = hops
        self._hops += len(hops)
        return hop

    def _controlled(self, control: Control) -> Any:
        """[queue pairs] what an algorithm keeps of each."""
        return getattr(self.state, control.name.lower())

    def _set_control(self, q: int, c: Connection) -> None:
        if c.pacing.control:
            control = Control(c.pacing.control)
            line_kbps = int(8 * PS_PER_S << s.RATE_BITS) // int(self.state.port.ps_q[c.port]) // 1000
            ALGORITHMS[control].start(self._controlled(control)[q], line_kbps, c)
            self.state.qp.counts[q] = control == Control.IBCC

    def use_congestion_tables(self, log_events: int) -> None:
        """Make room for InfiniBand's congestion control, and put all queue pairs between adapters under it."""
        if self.has_congestion_tables:
            return
        self.has_congestion_tables = True
        self._undivide()
        ends, qp = len(self.state.endpoint), self.state.qp
        self.state = self.state._replace(
            ibcc=_longer_records(self.state.ibcc, max(len(qp), 1)),
            ibcc_settings=records(ends * ibcc.LEVELS, ibcc.settings_dtype),
            fecn=records(len(self.state.outlet), ibcc.lane_dtype),
            congestion_log=np.zeros((log_events, ibcc.LOG_COLUMNS), np.int64),
        )
        under = (qp.src != s.NONE) & (qp.src != qp.dst)
        qp.control[under] = Control.IBCC
        qp.counts[under] = 1
        self.check_memory(0)

    def add_tasks(self, *columns: Any, start: bool = True, **waiting: tuple[Any, Any] | None) -> int:
        """Append the tasks that `make_tasks` makes of these; returns the number of the first."""
        tasks = make_tasks(*columns, **waiting)
        place = self.reserve(len(tasks.task), len(tasks.successor))
        self.place(tasks, place, start=start)
        return place.task

    def reserve(self, tasks: int, successors: int) -> Place:
        """Make room for so many tasks that are yet to be placed, and their successors."""
        self.join()
        place = Place(self.tasks, self._successors)
        self.tasks += tasks
        self._successors += successors
        state = self.state
        self.state = state._replace(
            task=_room(state.task, place.task, tasks),
            log=_roomy(state.log, self.tasks),
            successor=_roomy(state.successor, self._successors + 1),
        )
        self.room_for_events(tasks)
        return place

    def place(self, tasks: Tasks, place: Place, *, then: int = s.NONE, start: bool = True) -> None:
        """Put tasks where there is room for them; `then` is the task elsewhere that waits for some of them."""
        self.join()
        if _linked(tasks.task) or then != s.NONE:
            self._undivide()
        first, n = place.task, len(tasks.task)
        new = self.state.task[first : first + n]
        new[:] = tasks.task
        for name in ("next_start", "next_middle", "next_end"):
            new[name] += place.successor
        successors = self.state.successor[place.successor : place.successor + len(tasks.successor)]
        successors[:] = np.where(tasks.successor < n, tasks.successor + first, then)
        self.state.clock[0].open += n
        if start:
            begin(self.state, first, first + n, self.now)

    def begin(self, task: int) -> None:
        """Start a task now if it waits for nothing."""
        self.join()
        begin(self.state, task, task + 1, self.now)

    def begin_at(self, first: int, times: Any) -> None:
        """Start tasks, from the first on, at these times if they wait for nothing."""
        self.join()
        begin_at(self.state, first, np.asarray(times, np.int64))

    def is_done(self, place: Place, count: int) -> bool:
        """Return True where both ends of so many tasks are done, so that others may take their place."""
        task = self.state.task[place.task : place.task + count]
        return bool(((task.status == s.DONE) & (task.received_ps != s.NONE)).all())

    def add_messages(self, count: int) -> None:
        """Room for so many more single messages at once."""
        self._undivide()
        first = self.tasks
        self.tasks += count
        task, note = _room(self.state.task, first, count), _room(self.state.note, first, count)
        clock = self.state.clock[0]
        free = np.arange(first, self.tasks)
        task.next[free] = np.append(free[1:], clock.tasks_head)
        clock.tasks_head = first
        clock.tasks_free += count
        self.state = self.state._replace(task=task, note=note)
        self.check_memory(0)
        self.room_for_events(count)

    def room_for_events(self, n: int) -> None:
        """Grow the heap: one event could start every task at once."""
        while len(self.state.heap) < int(self.state.clock[0].heap) + self.tasks + 2 * s.HEAP_MARGIN:
            self.state = b.grow_heap(self.state)

    def run(self, until: int = s.NEVER - 1, *, drain: bool = False, budget: int | None = None) -> int:
        """Run to `until`, or to the end (`drain`: to the last event). Returns IDLE, REACHED, FINISHED or STALLED.

        With a `budget`, SLICED is returned once so many events have happened: the caller shows progress and calls
        again, and nothing else is different. The compiled loop comes back every SLICE_EVENTS events in any case,
        so that a signal (Ctrl-C) is raised here; `now` then says how far it went, and a further run goes on.

        STALLED: tasks are open and nothing will ever move again; `deadlock` says which lanes wait for each other,
        or is None where something else is missing (a failed queue pair, an adapter without receives).
        """
        status = s.REACHED
        end = s.NEVER if budget is None else int(self.state.clock[0].events) + budget
        while True:
            if status in _GREW and self.state.clock[0].message_events:
                return s.MESSAGE_EVENT
            left = min(end - int(self.state.clock[0].events), s.SLICE_EVENTS)
            if left <= 0:
                return s.SLICED
            status = self._play(until, not drain, left)
            if self.state.clock[0].called != s.NONE:
                self._answer_call()
                if self.state.clock[0].message_events:
                    until = min(until, self.now)  # the instant is finished, as it would be without the call
            if status in (s.SLICED, s.CALLED):
                continue
            if status == s.MESSAGE_EVENT:
                return status
            if status == s.TAP_FULL:
                self.read_tap()
            elif status in _GROWS:
                self._grow(status)
            elif status == s.OVERFLOW:
                raise MachineError("more was scheduled in one event than any margin allows")
            elif status == s.UNROUTABLE and self.drops_unroutable:
                continue
            elif status == s.UNROUTABLE:
                raise MachineError(f"no way to endpoint {int(self.state.clock[0].unroutable)}")
            elif status == s.STALLED or (status == s.IDLE and self.state.clock[0].open > 0):
                self.join()
                # nothing moves; unless lanes wait for each other for ever, a timer will help
                self.deadlock = find_deadlock(self.state)
                lasting = self.deadlock is not None and self.config.forwarding.hoq_ps == 0
                lasting = lasting and not self._will_change()
                if lasting or status == s.IDLE or self._paused_for_ever():
                    return s.STALLED
            else:
                return status

    def _play(self, until: int, stop_when_done: bool, budget: int) -> int:
        """Run the compiled loop, over the whole or over its parts."""
        if self._division is None:
            return int(run(self.state, until, stop_when_done, budget))
        if self._parts is None:
            self._parts = self._begin_parts()
        order = np.arange(self.parts) if self.shuffle is None else self.shuffle
        return self._parts.run(self.state, (until, stop_when_done, budget), order, self.threads)

    def _grow(self, status: int) -> None:
        """Make more room for what is short, in the part that it is short in."""
        name, grow = _GROWS[status]
        self.check_memory(getattr(self.state if self._parts is None else self._parts.short, name).nbytes)
        if self._parts is None:
            self.state = grow(self.state)
        elif status == s.GROW_PACKETS:
            self._parts.grow_packets()
        else:
            self._parts.grow(grow)

    def _answer_call(self) -> None:
        clock = self.state.clock[0]
        task, clock.called = int(clock.called), s.NONE
        if self.on_call is not None:
            self.on_call(task)

    def _will_change(self) -> bool:
        """Return True where a watchdog, or a pause about to take effect, will yet break a circle of lanes."""
        if self.config.qos is None:
            return False
        kinds = pending(self.state) >> KIND_SHIFT
        return bool(np.isin(kinds, (QueueEvent.PAUSE_TAKES, QueueEvent.WATCHDOG)).any())

    def _paused_for_ever(self) -> bool:
        """Return True where a stuck adapter's pauses are all that still happens, a few times in a row."""
        if not (self.state.inlet.xoff == s.STUCK).any():
            return False
        clock = self.state.clock[0]
        kinds = np.unique(pending(self.state) >> KIND_SHIFT)
        if not np.isin(kinds, (QueueEvent.PAUSE_END, QueueEvent.PAUSE_REFRESH)).all():
            self._stuck = 0
            return False
        done = int(clock.delivered + clock.dropped + clock.refused + clock.created)
        self._stuck = self._stuck + 1 if done == self._done else 0
        self._done = done
        return self._stuck >= PAUSES_IN_VAIN

    def next_event_ps(self) -> int:
        """Return when the first event is due; NEVER: there is none. Joins the parts."""
        self.join()
        due = int(self.state.lane_time.min())
        return min(due, int(self.state.heap[0].time)) if self.state.clock[0].heap else due

    def storm(self, port: int, lane: int, on: bool) -> None:
        """Let a port pause its peer on a lane without end from now on, or end that."""
        self.join()
        force_pause(self.state, port * self.config.lanes + lane, on, self.now)

    def tap(self, ports: list[int], drain: Callable[[Any], None]) -> None:
        """Record what these ports send and receive from now on; `drain` is given rows, columns as in `tap`."""
        from fabrictwin.kernel.packet.tap import TAP_MARGIN

        self._undivide()
        self.drain_tap = drain
        rows = 2 * len(self.state.port) + 8 * TAP_MARGIN
        self.state = self.state._replace(tap=np.zeros((rows, s.TAP_COLUMNS), np.int64))
        for port in ports:
            self.state.port[port].traits |= s.TAPPED

    def read_tap(self) -> None:
        """Hand over what was recorded since the last time."""
        clock = self.state.clock[0]
        if self.drain_tap is not None and clock.tapped:
            self.drain_tap(self.state.tap[: int(clock.tapped)])
        clock.tapped = 0

    def check_memory(self, more: int) -> None:
        """Raises OutOfMemoryError where the arrays and `more` bytes are above the limit."""
        needed = nbytes(self.state) + more + (0 if self._parts is None else self._parts.nbytes)
        if needed > self.limit_bytes:
            raise OutOfMemoryError(f"needs {needed} bytes, the limit is {self.limit_bytes}")

    def set_rate(self, port: int, bps: int) -> None:
        """The directed link of `port` runs at another rate from now on; 0 takes it down."""
        self.join()
        record = self.state.port[port]
        if bps <= 0:
            if not record.traits & s.DOWN:
                record.traits |= s.DOWN
                self.state.queued[port] += s.OUT_OF_REACH
        else:
            if record.traits & s.DOWN:
                record.traits &= ~s.DOWN
                self.state.queued[port] -= s.OUT_OF_REACH
                lanes = self.config.lanes
                for lane, q in enumerate(self.state.outlet.ready_head[port * lanes : (port + 1) * lanes]):
                    record.backlog |= (q != s.NONE) << lane  # queue pairs waited for the link
            record.ps_q = int(b.rate_to_q(bps))
            for name in ("lane_tx_full", "lane_tx_ack", "lane_arrive_full", "lane_arrive_ack"):
                record[name] = s.NONE
            self._rejoin_lanes(port)
        self._mirror(port)
        kick_all(self.state, self.now)

    def set_tables(self, row: Any, lid: Any, port: Any) -> None:
        """Entries of linear forwarding tables are others from now on; a LID beyond the tables is nobody's.

        What waits for a port already stays there.
        """
        self.join()
        if not self._owns_tables:  # what it was built from stays as it is
            self.state = self.state._replace(lft=self.state.lft.copy())
            self._owns_tables = True
        known = np.asarray(lid) < self.state.lft.shape[1]
        self.state.lft[np.asarray(row)[known], np.asarray(lid)[known]] = np.asarray(port)[known]

    def set_virtual_lanes(self, lanes: VirtualLanes) -> None:
        """Ports map service levels to lanes and arbitrate by these from now on; what waits stays in its lane."""
        self.join()
        state, n = self.state, len(self.state.port)
        v = self.config.lanes
        state.port.traits &= ~np.int16(s.ARBITRATED | s.BY_INPUT)
        state.port.sl2vl = np.array(lanes.port_sl2vl, np.int16) if len(lanes.port_sl2vl) else 0
        if len(lanes.sl2vl_by_input):
            state.port.traits |= np.where(lanes.sl2vl_by_input, s.BY_INPUT, 0).astype(np.int16)
        arbiter, arbitration, high_limit = b.arbitration_state(
            replace(self.config, virtual_lanes=lanes), state.port, v
        )
        rows = lanes.sl2vl or (tuple(i % v for i in range(16)),)
        if len(arbiter) < len(state.arbiter) and n > 1:  # a record is read at every port that had one
            arbiter = records(n, arbiter.dtype)
        self.state = state = state._replace(
            sl2vl=np.array(rows, np.int16), arbiter=arbiter, arbitration=arbitration, high_limit=high_limit
        )
        self._relane_queue_pairs()
        state.port.rx_traits = np.where(state.port.peer >= 0, state.port.traits[np.maximum(state.port.peer, 0)], 0)
        self.touch()

    def _relane_queue_pairs(self) -> None:
        """Give queue pairs the lanes that their service levels have now, out of the rings of the old ones."""
        state = self.state
        qp = state.qp[: self.queue_pairs]
        state.outlet.ready_head = state.outlet.ready_tail = s.NONE
        qp.in_ring, qp.ring_next = 0, s.NONE
        qp.vl = state.sl2vl[state.port.sl2vl[qp.port], qp.sl]
        remote = qp.dst >= 0
        answers = np.where(remote, state.port.sl2vl[self.wiring.endpoint_port[np.maximum(qp.dst, 0)]], 0)
        qp.ack_vl = state.sl2vl[answers, qp.ack_sl]

    def forbid(self, queue_pairs: Any) -> None:
        """Let partition keys keep out what these [queue pairs] of bool carry from now on, and no others."""
        qp = self.state.qp[: self.queue_pairs]
        every = np.abs(qp.ack_every)
        qp.key_violation_ps[queue_pairs & (qp.ack_every > 0)] = s.NONE
        qp.ack_every = np.where(queue_pairs, -np.maximum(every, 1), every)

    def set_errors(self, port: int, error_q: int) -> None:
        """The directed link of `port` spoils a byte with chance `error_q` / 2**48 from now on."""
        record = self.state.port[port]
        record.error_q = error_q
        record.traits = (record.traits & ~s.FAULTY) | (s.FAULTY if error_q else 0)
        self._mirror(port)

    def _mirror(self, port: int) -> None:
        peer = int(self.state.port.peer[port])
        self.state.port.rx_traits[peer] = self.state.port.traits[port]

    def _rejoin_lanes(self, port: int) -> None:
        record, lanes = self.state.port[port], self.state.lane.delay[: int(self.state.clock[0].lanes)]
        stored = bool(record.traits & s.STORE)
        for size, tx, arrive in (
            (int(record.full_bytes), "lane_tx_full", "lane_arrive_full"),
            (int(record.ack_bytes), "lane_tx_ack", "lane_arrive_ack"),
        ):
            delay = int(b.serialize_ps(size, record.ps_q))
            for name, value in ((tx, delay), (arrive, int(record.arrive_ps) + stored * delay)):
                found = np.flatnonzero(lanes == value)
                record[name] = found[0] if len(found) else s.NONE

    def touch(self) -> None:
        """Windows, receives or limits were changed from outside: look at everything again."""
        self.join()
        ready_all(self.state)
        kick_all(self.state, self.now)


def _linked(task: Any) -> bool:
    """Return True where tasks wait for others, or are no messages."""
    return bool((task.kind != s.MESSAGE).any() or (task.next_end > task.next_start).any())


def _room(array: Any, used: int, more: int) -> Any:
    """The array with room for `more` records after those `used`; it grows by half, so that growing is cheap."""
    if len(array) >= used + more and used:
        return array
    longer = records(max(used + more, used + used // 2), array.dtype)
    longer[:used] = array[:used]
    return longer


def _roomy(array: Any, length: int) -> Any:
    """The array with at least so many entries; it grows by half."""
    return array if len(array) >= length else _longer(array, max(length, len(array) * 3 // 2))


def _longer(array: Any, length: int) -> Any:
    if len(array) >= length:
        return array
    return np.concatenate([array, np.zeros(length - len(array), array.dtype)])


def _longer_records(array: Any, length: int) -> Any:
    if len(array) >= length:
        return array
    longer = records(length, array.dtype)
    longer[: len(array)] = array
    return longer
