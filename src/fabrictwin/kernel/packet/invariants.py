"""Laws that hold at every moment between events, and who waits for whom when nothing moves.

Conservation: every packet of the pool is free, queued, on a wire, or known to an event; credits that a sender
has, that are on their way, and that packets or unreturned blocks occupy add up to the buffer. Deadlock: a lane
that cannot send waits for room at its peer, which waits for packets there to leave. What can never move again is
the largest set of waiting lanes in which each waits for another of the set.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from fabrictwin.kernel.packet import events as e
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state.state import State


def pending(state: State) -> Any:
    """[events] the `what` of everything scheduled."""
    parts = [state.heap.what[: int(state.clock[0].heap)]]
    for i in range(int(state.clock[0].lanes)):
        lane = state.lane[i]
        at = int(lane.first) + (np.arange(int(lane.head), int(lane.tail)) & int(lane.mask))
        parts.append(state.event.what[at])
    return np.concatenate(parts).astype(np.int64)


def _chain(state: State, head: int) -> list[int]:
    packets = []
    while head != s.NONE:
        packets.append(head)
        head = int(state.packet[head].next)
    return packets


def queued_packets(state: State) -> dict[int, list[int]]:
    """Packets waiting in queues, by the outlet slot that they wait at (a port's pause frames: slot -1 - port)."""
    bits = int(state.settings[0].vl_bits)
    waiting: dict[int, list[int]] = {}
    for slot in np.flatnonzero(state.outlet.head != s.NONE):
        port, head = state.port[int(slot) >> bits], int(state.outlet[slot].head)
        if port.queue_width == 1:
            waiting[int(slot)] = _chain(state, head)
            continue
        lane = int(slot) & ((1 << bits) - 1)
        first = int(port.queue_start) + lane * int(port.queue_width)
        waiting[int(slot)] = [
            p
            for queue in state.queue[first : first + int(port.queue_width)]
            for p in _chain(state, int(queue.head))
        ]
    for port in np.flatnonzero(state.port.control_head != s.NONE):
        waiting[-1 - int(port)] = _chain(state, int(state.port[port].control_head))
    return waiting


def violations(state: State) -> list[str]:
    """Laws that are broken now, in words; empty when all hold."""
    found: list[str] = []
    clock = state.clock[0]
    bits = int(state.settings[0].vl_bits)
    waiting = queued_packets(state)
    what = pending(state)
    kind = what >> e.KIND_SHIFT
    flying = what[(kind == e.QueueEvent.ARRIVE) | (kind == e.QueueEvent.LATE_ARRIVE)] & e.VALUE_MASK
    queued = [p for packets in waiting.values() for p in packets]
    seen = Counter([*queued, *flying.tolist()])
    twice = [p for p, n in seen.items() if n > 1]
    if twice:
        found.append(f"packet {twice[0]} is in two places")
    used = len(state.packet) - int(clock.free)
    if used != len(seen):
        found.append(f"{used} packets are taken, {len(seen)} can be found")
    data = sum(int(state.packet[p].kind) in (s.DATA, s.TRIM) for p in seen)
    ends = int(clock.delivered + clock.refused + clock.dropped)
    if int(clock.created) != ends + data:
        found.append(f"{int(clock.created)} data packets were sent, {ends} ended and {data} are under way")

    # bytes queued, by port and lane
    for slot, packets in waiting.items():
        if slot >= 0:
            total = sum(int(state.packet[p].wire) for p in packets)
            if total != int(state.outlet[slot].queued):
                found.append(
                    f"slot {slot} counts {int(state.outlet[slot].queued)} bytes queued, its queues {total}"
                )

    # credits: what the sender has + what returns + what flies + what the receiver holds or has not told
    credit_ports = np.flatnonzero((state.port.traits & s.CREDIT != 0) & (state.port.peer != s.NONE))
    returning: Counter[int] = Counter()
    for w in what[kind == e.QueueEvent.CREDITS].tolist():
        value = w & e.VALUE_MASK
        port = (w >> e.PORT_SHIFT) & e.PORT_MASK
        returning[(port << bits) + (value >> e.VL_SHIFT)] += value & ((1 << e.VL_SHIFT) - 1)
    flight: Counter[int] = Counter()
    for w in what[kind == e.QueueEvent.ARRIVE].tolist():
        packet = state.packet[w & e.VALUE_MASK]
        port = (w >> e.PORT_SHIFT) & e.PORT_MASK
        flight[(port << bits) + int(packet.vl)] += (int(packet.wire) + 63) >> s.BLOCK_BITS
    for port in credit_ports.tolist():
        peer = int(state.port[port].peer)
        for vl in range(1 << bits):
            out, into = (port << bits) + vl, (peer << bits) + vl
            credit = int(state.outlet[out].credit)
            if credit < 0:
                found.append(f"port {port} lane {vl} has {credit} credits")
            inlet = state.inlet[into]
            total = credit + returning[out] + flight[into] + int(inlet.held) + int(inlet.unreturned)
            if total != int(inlet.capacity):
                found.append(
                    f"port {port} lane {vl}: {total} credits in all, the buffer has {int(inlet.capacity)}"
                )
    for n in np.flatnonzero(state.node.traits & s.SHARED):
        used_bytes, limit = int(state.node[n].shared_used), int(state.node[n].shared_limit)
        if not 0 <= used_bytes <= limit:
            found.append(f"node {n} uses {used_bytes} of {limit} shared bytes")
    if (state.inlet.held < 0).any() or (state.inlet.headroom < 0).any():
        found.append("a buffer holds less than nothing")
    return found


@dataclass(frozen=True)
class Blocked:
    """Outlets that can never send again: `cycle` in order, each waiting for the next; `all` of them."""

    cycle: tuple[tuple[int, int], ...]  # (port, lane)
    all: tuple[tuple[int, int], ...]


def find_deadlock(state: State) -> Blocked | None:
    """The lanes that wait for each other for ever, or None. Lanes held by credits and by pauses both count."""
    bits = int(state.settings[0].vl_bits)
    waiting = queued_packets(state)
    holds: dict[int, set[int]] = {}  # inlet slot: outlets at that node that its packets wait for
    for slot, packets in waiting.items():
        if slot >= 0:
            for p in packets:
                inlet = int(state.packet[p].slot)
                if inlet != s.NONE:
                    holds.setdefault(inlet, set()).add(slot)
    stuck: dict[int, int] = {}  # outlet: the inlet at its peer that it waits for
    for slot in waiting:
        if slot < 0:
            continue
        port, vl = slot >> bits, slot & ((1 << bits) - 1)
        record = state.port[port]
        if record.busy or int(record.peer) == s.NONE:
            continue
        if ((int(record.starved) | int(record.paused)) >> vl) & 1:
            stuck[slot] = (int(record.peer) << bits) + vl
    # drop whoever waits for a buffer from which something can still leave
    changed = True
    while changed:
        changed = False
        for slot, inlet in list(stuck.items()):
            wanted = holds.get(inlet, set())
            # a buffer frees room for an input only by that input's own packets leaving
            if not wanted or not all(w in stuck for w in wanted):
                del stuck[slot]
                changed = True
    if not stuck:
        return None
    at = min(stuck)
    path: list[int] = []
    while at not in path:
        path.append(at)
        at = min(holds[stuck[at]])
    cycle = path[path.index(at) :]
    lane = (1 << bits) - 1
    return Blocked(
        tuple((slot >> bits, slot & lane) for slot in cycle),
        tuple((slot >> bits, slot & lane) for slot in sorted(stuck)),
    )
