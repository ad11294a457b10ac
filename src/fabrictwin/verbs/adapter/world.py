"""All adapters of one twin in this process, one clock, one engine under them.

Simulated time stands still while a program computes. It moves when a program looks for a completion and there is
none yet: then to the next instant at which something happens, no further. So what a program sees depends on its
calls alone, never on the wall clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.engines.base.changes import FOREVER
from fabrictwin.engines.base.engine import Engine
from fabrictwin.engines.base.messages import EventKind
from fabrictwin.verbs.adapter import payload_placement as placement
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.memory_regions import ProcessMemory
from fabrictwin.verbs.adapter.queue_pair import QueuePair
from fabrictwin.verbs.adapter.transport import requester, responder, unreliable
from fabrictwin.verbs.adapter.transport.receivers import addressed
from fabrictwin.verbs.adapter.transport.request_states import ON_ITS_WAY, RequestState
from fabrictwin.verbs.adapter.work_requests import AddressVector, Response, Work

if TYPE_CHECKING:
    from fabrictwin.fabric.fabric import Fabric
    from fabrictwin.routing.tables import Routes
    from fabrictwin.twin import Twin

_BEGUN, _ARRIVED, _ENDED = int(EventKind.BEGUN), int(EventKind.ARRIVED), int(EventKind.ENDED)
_LOST = int(EventKind.LOST)
_ACKNOWLEDGED = frozenset((RequestState.ACKNOWLEDGED, RequestState.FLUSHED_ACKNOWLEDGED))


class World:
    """Every adapter of a twin, and time."""

    def __init__(self, twin: Twin, *, engine: Engine, process_memory: ProcessMemory | None = None) -> None:
        self.twin = twin
        self.process_memory = process_memory or ProcessMemory()  # where the bytes behind addresses are
        self.fabric: Fabric = twin.fabric
        self.engine = engine
        self.records: dict[int, Work | Response] = {}  # messages that an event is due for, but for plain writes
        self.plain: dict[int, Work] = {}  # writes that can only be taken, as everything stands
        self.standing = 0  # counts changes of what requests are checked against
        self.told: dict[
            int, Callable[[int], None]
        ] = {}  # of messages that are not the verbs': called with events' kinds
        self.instant_ps = engine.now_ps  # as the engine has it: time moves in `step` alone
        self.timers: list[tuple[int, int, Callable[[], None]]] = []
        self.captures = False  # whether the engine wants what only captures show
        self.places_memory = False  # whether some region lies on a GPU
        self._pools = 0
        self._timed = 0

    @cached_property
    def routes(self) -> Routes:
        return self.twin.routes

    @cached_property
    def adapters(self) -> list[Adapter]:
        """[adapters] as the fabric numbers them."""
        return [Adapter(self, index) for index in range(len(self.fabric.nic_node))]

    @cached_property
    def _by_lid(self) -> dict[tuple[int, int], Adapter]:
        step = 1 << self.routes.lmc
        return {(a.plane, a.lid + k): a for a in self.adapters if a.lid for k in range(step)}

    @cached_property
    def _by_gid(self) -> dict[bytes, Adapter]:
        return {gid.raw: adapter for adapter in self.adapters for gid in adapter.gids}

    @cached_property
    def _by_host(self) -> dict[str, list[Adapter]]:
        found: dict[str, list[Adapter]] = {name: [] for name in self.fabric.host_names}
        for adapter in self.adapters:
            found[adapter.host_name].append(adapter)
        return found

    def host(self, name: str) -> list[Adapter]:
        """The adapters of a host. Raises ConfigError."""
        found = self._by_host.get(name)
        if found is None:
            known = list(self._by_host)
            raise ConfigError(
                f"got host {name!r}, expected one such as {known[0]!r}{did_you_mean(name, known)}", key="host"
            )
        return found

    def by_lid(self, plane: int, lid: int) -> Adapter | None:
        return self._by_lid.get((plane, lid))

    def by_gid(self, raw: bytes) -> Adapter | None:
        return self._by_gid.get(raw)

    def resolve(self, adapter: Adapter, vector: AddressVector) -> Adapter | None:
        """The adapter that packets with an address vector reach; None: nobody has that address."""
        if adapter.ethernet:
            return self.by_gid(vector.dgid)
        return self.by_lid(adapter.plane, vector.dlid)

    def progress(self, qp: QueuePair) -> None:
        """Begin the requests of a queue pair that may begin."""
        requester.progress(qp)

    def note_change(self) -> None:
        """Something changed that requests are checked against: they are checked anew where they arrive."""
        self.standing += 1
        self.watch_all()

    def watch_all(self) -> None:
        """Let no request under way be a plain one any more."""
        if self.plain:
            self.records.update(self.plain)
            self.plain.clear()

    def forget(self, qp: QueuePair) -> None:
        """Drop what a queue pair had on the wire: its requests, and its answers to others'."""
        for message, record in list(self.records.items()):
            if type(record) is Response:
                if record.responder is qp:
                    del self.records[message]
                    requester.unanswered(self, record.work)
            elif type(record) is Work and record.qp is qp:
                del self.records[message]

    def deafen(self, qp: QueuePair) -> None:
        """A queue pair receives no more: what waits for it to have a receive is dropped there, unanswered."""
        for record in self.records.values():
            if type(record) is Work and record.counted and record.state in ON_ITS_WAY and record.qp.reliable:
                peer_flow = record.peer_flow
                if addressed(record) is qp and peer_flow.pool != self._endless_pool:
                    self.engine.receives(peer_flow.flow, self._endless_pool)
                    peer_flow.pool = self._endless_pool

    @cached_property
    def _endless_pool(self) -> int:
        pool = self.new_pool()
        self.engine.add_receives(pool, 1 << 40)
        return pool

    def new_pool(self) -> int:
        self._pools += 1
        return self._pools

    # ------------------------------------------------------------------ time

    @property
    def now_ps(self) -> int:
        return self.instant_ps

    def after(self, delay_ps: int, action: Callable[[], None]) -> None:
        """Do something at a later instant."""
        self._timed += 1
        heapq.heappush(self.timers, (self.instant_ps + delay_ps, self._timed, action))

    @property
    def idle(self) -> bool:
        """Nothing will happen any more unless a program posts something."""
        return not self.timers and self.engine.idle

    def next_event_ps(self) -> int:
        """Return when something may happen next: now, where the engine cannot tell; FOREVER: never."""
        due = self.timers[0][0] if self.timers else FOREVER
        if self.engine.idle:
            return due
        packets = self.engine.packets
        return min(due, self.engine.now_ps if packets is None else packets.next_event_ps())

    def step(self, until_ps: int = FOREVER, *, patient: bool = False) -> bool:
        """Go to the next instant at which something happens, at most to `until_ps`. False: nothing did.

        A `patient` caller looks at nothing but completions. Where only plain writes are under way it is taken past
        their arrivals, and the ends of those that make no completion, to what comes after them.
        """
        timers, records, plain = self.timers, self.records, self.plain
        limit = min(timers[0][0], until_ps) if timers else until_ps
        patient = patient and not (records or self.told)
        events = self.engine.advance(limit, patient=patient).events
        if not events:
            self.instant_ps = self.engine.now_ps
            if not timers or timers[0][0] > until_ps:
                return False
            due = timers[0][0]
            while timers and timers[0][0] <= due:
                heapq.heappop(timers)[2]()
            return True
        for self.instant_ps, message, kind in events:
            work = plain.get(message)
            if work is not None:
                if kind == _ARRIVED:
                    responder.take_plain(self, work)
                    continue
                del plain[message]
                if kind == _ENDED:
                    requester.finish(work.qp, work)
                    continue
                records[message] = work
            record = records.get(message)
            if record is None:
                told = self.told.get(message)
                if told is not None:
                    told(kind)
                continue
            if kind == _ARRIVED:
                late = self.places_memory and placement.after_arrival_ps(record, self.instant_ps)
                if late:
                    self.after(late, partial(self._arrived, message, record))
                else:
                    self._arrived(message, record)
            elif type(record) is Work:
                if kind == _ENDED:
                    requester.ended(self, record)
                elif kind == _BEGUN:
                    responder.begin(self, record)
                elif kind == _LOST:
                    requester.lost(self, record)
                else:
                    requester.failed(self, record, int(kind))
            elif kind != _ENDED:
                del records[message]
                requester.unanswered(self, record.work)  # type: ignore[union-attr]
        return True

    def _arrived(self, message: int, record: Work | Response) -> None:
        if self.records.get(message) is not record:
            return  # forgotten while it was copied
        if not isinstance(record, Work):
            del self.records[message]
            requester.answered(self, record)
        elif not record.qp.reliable:
            unreliable.arrive(self, record)
        else:
            acknowledged = record.state in _ACKNOWLEDGED
            if responder.arrive(self, record) is responder.SILENCE:
                requester.silent(self, record)
            if acknowledged:
                requester.ended(self, record)

    def run_until(self, done: Callable[[], Any]) -> bool:
        """Let time pass until `done()` is true. False: nothing is in flight, and it is not."""
        while not done():
            if not self.step():
                return bool(done())
        return True

    def settle(self) -> None:
        """Let time pass until nothing is in flight."""
        while self.step():
            pass

    def advance(self, until_ps: int) -> None:
        """Let time pass until an instant, whatever happens."""
        while self.instant_ps < until_ps and self.step(until_ps):
            pass

    def why_idle(self) -> str:
        """Return why nothing will happen: what every queue pair waits for, in words."""
        reasons = []
        for adapter in self.adapters:
            for qp in adapter.queue_pairs.values():
                reason = qp.why_waiting()
                if reason:
                    reasons.append(f"{adapter.host_name}/{adapter.name} QP {qp.number:#x} {reason}")
        return "nothing is in flight" + (f": {'; '.join(reasons[:8])}" if reasons else "")
