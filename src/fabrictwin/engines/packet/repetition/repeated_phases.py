"""Communications inside hosts that happen again, played once.

Where nobody else uses a communication's ports and queue pairs while it goes on, and it finds them as they were at
an earlier start, it takes as long as then and leaves the same behind: nothing inside a host is drawn at random. So
its packets are played once, and later ones take their time and are counted.

Nobody else: communications inside hosts that share a port make a *site*. One of them is repeated where neither
another of the site nor a *guest*, which uses its ports and leaves the host too, is under way, and where none can
start before it is over, by what the program's dependencies and its computing alone still take (`program_front`).
As they were: everything idle, the same credits, and the same time until each queue pair's next packet may leave.
Credits still on their way when a communication starts are back before its first byte leaves, or there is no site.

Only for runs that nothing from outside can disturb; the engine says when. Events that happen at the very same
picosecond elsewhere may be taken in another order than without.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record
from fabrictwin.engines.packet.repetition.kernel_snapshots import PORT_COUNTS
from fabrictwin.engines.packet.repetition.program_front import ProgramFront
from fabrictwin.program.program import Operations

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.machine import Machine

_NO_PAIRS = np.zeros(0, np.int64)
_PSNS = ("next_psn", "una", "posted_psn", "highest_psn", "expected", "in_memory")
_SEARCH = 64  # operations looked at for each one of the program, before order counts as unknown


@record
class _Snapshot:
    """A site's state at one moment."""

    time_ps: int
    port: Any
    outlet: Any  # of each port's only lane in use
    unreturned: Any  # blocks that each port's peer keeps back
    qp: Any
    idle: bool

    def waits(self) -> tuple[I64, I64]:
        """Times in ps until each queue pair's next packet, and its next message, may leave."""
        from fabrictwin.kernel.packet.state.constants import RATE_BITS

        gap = (self.qp.gap_q * (self.qp.mtu + self.qp.header).astype(np.int64)) >> RATE_BITS  # made good at most
        return (
            np.maximum(self.qp.next_send - self.time_ps, -gap),
            np.maximum(self.qp.next_message - self.time_ps, 0),
        )

    def key(self) -> bytes:
        """Return what the course of a communication depends on; ports serve one lane, so lanes take no turns."""
        parts = (self.outlet.credit, *self.waits())
        return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


@record
class _Phase:
    """One communication from its start to its end, and what it left."""

    took_ps: int
    payload_bytes: int
    before: _Snapshot
    after: _Snapshot

    @property
    def hops(self) -> int:
        return int((self.after.port.tx_packets - self.before.port.tx_packets).sum())


@record
class Start:
    """A communication that starts."""

    operation: int
    communication: int
    end: int  # the task that ends it
    payload_bytes: int


@record
class _Links:
    """Links by their sending port, its slot and that of the port at the other end."""

    ports: I64
    slots: I64
    peer_slots: I64


@dataclass
class _Site:
    """Links and queue pairs of communications inside hosts that share them."""

    links: _Links
    queue_pairs: I64
    guests: I64  # queue pairs of others that use some of the ports
    operations: frozenset[int]  # of guests too
    phases: dict[tuple[int, bytes], _Phase] = field(default_factory=dict)
    played: tuple[Start, _Snapshot] | None = None  # what was begun last, alone
    under_way: list[Start] = field(default_factory=list)


class RepeatedPhases:
    """Phases of the program that was posted last on one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.allowed = False  # nothing from outside can happen before all is done
        self.hops = 0  # packet-hops that were not played
        self._sites: dict[int, _Site] = {}  # by communication
        self._visited: dict[int, list[_Site]] = {}  # by a guest
        self._front: ProgramFront | None = None

    def forget(self) -> None:
        """Let no communication repeat any more."""
        self._sites, self._visited, self._front = {}, {}, None

    def find(self, operations: Operations, bases_ps: I64, queue_pairs: dict[int, I64], first_byte_ps: int) -> None:
        """Find the sites of a program.

        `bases_ps` is what each operation takes at least, `queue_pairs` are each communication's; a first byte
        leaves no sooner than `first_byte_ps` after its communication's start.
        """
        self.forget()
        ports = {at: self._ports(pairs) for at, pairs in queue_pairs.items()}
        inside = {at for at, pairs in queue_pairs.items() if self._stays_inside(pairs)}
        for members in _sharing({at: ports[at] for at in ports if at in inside}):
            if int(np.isin(operations.communication, members).sum()) <= len(members):
                continue  # none happens again
            shared = np.unique(np.concatenate([ports[at] for at in members]))
            guests = [at for at in ports if at not in inside and np.isin(ports[at], shared).any()]
            site = self._site(
                [
                    np.unique(np.concatenate([queue_pairs[at] for at in group] or [_NO_PAIRS]))
                    for group in (members, guests)
                ],
                frozenset(np.flatnonzero(np.isin(operations.communication, members + guests)).tolist()),
                first_byte_ps,
            )
            if site is not None:
                self._sites |= dict.fromkeys(members, site)
                for at in guests:
                    self._visited.setdefault(at, []).append(site)
        if self._sites:
            self._front = ProgramFront(operations, bases_ps, self.machine.now)

    def ended(self, operations: list[tuple[int, int]]) -> None:
        """Take note of operations of the program that ended, and when."""
        if self._front is not None:
            self._front.ended(operations)

    def _ports(self, queue_pairs: I64) -> I64:
        """Ports that their packets pass by source routes."""
        state = self.machine.state
        qp = state.qp[queue_pairs]
        first, count = qp.hop_start.astype(np.int64), qp.ack_hop_end - qp.hop_start
        hops = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
        return np.unique(np.concatenate([qp.port, state.hop[hops]])).astype(np.int64)

    def _stays_inside(self, queue_pairs: I64) -> bool:
        from fabrictwin.kernel.packet.state.constants import LOCAL

        return bool((self.machine.state.qp.mode[queue_pairs] == LOCAL).all())

    def _site(self, queue_pairs: list[I64], operations: frozenset[int], first_byte_ps: int) -> _Site | None:
        """The site of these queue pairs and those of guests; None where something could be drawn at random."""
        from fabrictwin.kernel.packet.state import constants as s

        state = self.machine.state
        own, guests = queue_pairs
        qp, ports = state.qp[own], self._ports(own)
        port, peer = state.port[ports], state.port[state.port.peer[ports]]
        plain = s.CREDIT | s.INTERNAL
        lane, bits = int(qp.vl[0]), int(state.settings[0].vl_bits)
        slots = (ports << bits) + lane
        if (
            qp.control.any()
            or (qp.vl != lane).any()
            or ((port.traits & ~s.STORE) != plain).any()
            or ((peer.traits & ~s.STORE) != plain).any()
            or state.outlet.kmax[slots].any()
            or state.settings[0].hoq_ps
            or peer.credit_ps.max() >= first_byte_ps
        ):
            return None
        links = _Links(ports, slots, (port.peer.astype(np.int64) << bits) + lane)
        return _Site(links, own, guests, operations)

    def repeat(self, start: Start) -> bool:
        """A communication starts: take it as played where it was before, and return whether it is."""
        for visited in self._visited.get(start.communication, ()):
            self._begins(visited, start)
        site, front = self._sites.get(start.communication), self._front
        if site is None or front is None:
            return False
        now = self._begins(site, start)
        if now is None or not self.allowed:
            return False
        phase = site.phases.get((start.communication, now.key()))
        if phase is None:
            site.played = start, now
            return False
        ends_ps = now.time_ps + phase.took_ps
        if front.may_start(site.operations, start.operation, now.time_ps, ends_ps):
            return False
        self._take_as_played(site, phase, start.end)
        front.ends_ps[start.operation] = ends_ps
        return True

    def _begins(self, site: _Site, start: Start) -> _Snapshot | None:
        """Take note of who starts there; returns what it finds, None where it is not alone."""
        state = self.machine.state
        guest = state.qp[site.guests]
        site.under_way = [other for other in site.under_way if state.task.done_ps[other.end] < 0]
        now = self._look(site)
        alone = not site.under_way and now.idle and bool((guest.una == guest.posted_psn).all())
        if site.played is not None and alone:
            earlier, then = site.played
            took = int(state.task.done_ps[earlier.end]) - then.time_ps
            site.phases[earlier.communication, then.key()] = _Phase(took, earlier.payload_bytes, then, now)
        site.played = None
        site.under_way.append(start)
        return now if alone else None

    def _look(self, site: _Site) -> _Snapshot:
        from fabrictwin.kernel.packet.state.constants import NONE

        state = self.machine.state
        port, outlet, qp = state.port[site.links.ports], state.outlet[site.links.slots], state.qp[site.queue_pairs]
        unreturned = state.inlet.unreturned[site.links.peer_slots]
        idle = (
            not (port.busy.any() or port.backlog.any() or port.paused.any() or port.starved.any())
            and bool((port.wait_since == NONE).all() and (outlet.head == NONE).all())
            and bool((outlet.credit + unreturned == state.inlet.capacity[site.links.peer_slots]).all())
            and bool((qp.una == qp.posted_psn).all() and (qp.in_memory == qp.posted_psn).all())
            and not (qp.in_ring.any() or qp.waking.any() or qp.failed.any())
        )
        return _Snapshot(self.machine.now, port, outlet, unreturned, qp, idle)

    def _take_as_played(self, site: _Site, phase: _Phase, end: int) -> None:
        """Let the state be as the phase leaves it, count it, and end it when it ends."""
        from fabrictwin.kernel.packet.loop import begin

        machine, before, after = self.machine, phase.before, phase.after
        state, start = machine.state, machine.now
        for name in PORT_COUNTS:
            state.port[name][site.links.ports] += after.port[name] - before.port[name]
        state.port.wrr[site.links.ports] = after.port.wrr
        state.outlet.credit[site.links.slots], state.outlet.deficit[site.links.slots] = (
            after.outlet.credit,
            after.outlet.deficit,
        )
        state.inlet.unreturned[site.links.peer_slots] = after.unreturned
        packets = after.qp.posted_psn - before.qp.posted_psn
        for name in _PSNS:
            state.qp[name][site.queue_pairs] += packets
        for name in ("next_send", "next_message"):
            was, then = before.qp[name], after.qp[name]
            left = np.where(then != was, then - before.time_ps + start, state.qp[name][site.queue_pairs])
            state.qp[name][site.queue_pairs] = left
        clock, carried = state.clock[0], int(packets.sum())
        clock.created += carried
        clock.delivered += carried
        clock.payload_delivered += phase.payload_bytes
        clock.hops += phase.hops
        self.hops += phase.hops
        state.task.waits[end] = 0
        begin(state, end, end + 1, start + phase.took_ps)


def _sharing(ports: dict[int, I64]) -> Iterable[list[int]]:
    """Communications in groups: those of two groups have no port in common."""
    above = {at: at for at in ports}

    def top(at: int) -> int:
        while above[at] != at:
            above[at] = at = above[above[at]]
        return at

    owner = np.full(1 + max((int(used.max(initial=-1)) for used in ports.values()), default=-1), -1)
    for at, used in ports.items():
        for other in np.unique(owner[used]).tolist():
            if other >= 0:
                above[top(other)] = top(at)
        owner[used] = at
    groups: dict[int, list[int]] = {}
    for at in ports:
        groups.setdefault(top(at), []).append(at)
    return groups.values()
