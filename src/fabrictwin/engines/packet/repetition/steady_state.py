"""A moment of the packet kernel, and the same moment some periods later.

Long transfers repeat themselves: after some packets of each, everything stands as it stood, only later and further
on. `period` tells from two moments where that is so, exactly: whatever decides what comes next is equal, times lie
the period ahead, sequence numbers are as many packets further on as each queue pair sent. From there on every
period is like the one between, until something else comes: the end of a message, or an event that was scheduled
before. `skip` then sets the state as it will be so many periods later, to the last counter.

A field that is not listed here decides what comes next, and must be equal. So nothing is skipped while marks are
drawn (random numbers move on), a congestion control acts (its rates do), or packets spread by their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.congestion_controls import CONTROLS
from fabrictwin.base.records import record
from fabrictwin.engines.packet.repetition.kernel_snapshots import (
    PORT_COUNTS,
    Events,
    Moment,
    arrives,
    lane_sizes_of,
    moment,
)

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.state.state import State

# arrays of records, and which of their fields only add up
_COUNTS: dict[str, frozenset[str]] = {
    "port": frozenset(PORT_COUNTS),
    "count": frozenset({"pause_tx", "pause_rx"}),
    "hold": frozenset({"pause_ps"}),
    "outlet": frozenset({"deficit", "credit"}),  # where its lane takes no turns; as far as credits reach
    "inlet": frozenset({"unreturned"}),  # until they make a batch
    "queue": frozenset(),
    "node": frozenset(),
    "endpoint": frozenset(),
    "arbiter": frozenset(),
    "port_qos": frozenset(),
    "slot_qos": frozenset(),
    "qp": frozenset(),
    **{control: frozenset() for control in CONTROLS if control != "none"},  # under their names
}
_TIMES: dict[str, frozenset[str]] = {
    "port": frozenset({"wait_since"}),
    "hold": frozenset({"paused_until", "paused_since"}),
    "outlet": frozenset({"last_tx"}),
    "endpoint": frozenset({"next_message"}),
    "qp": frozenset({"next_send", "next_message", "progress_ps", "next_cnp"}),
}
_PSNS = ("next_psn", "una", "highest_psn", "expected", "in_memory")
_CLOCK = ("sequence", "events", "hops", "created", "delivered", "payload_delivered")  # that add up
_STILL = (
    *("heap", "kicks", "grow", "free", "random", "open", "logged", "called", "stall_seen"),
    *("refused", "dropped", "lost_control", "inbox", "message_events", "tapped", "congestion_events"),
)
# fields that name a packet, whose number in the pool means nothing
_NAMES: dict[str, frozenset[str]] = {
    "port": frozenset({"control_head", "control_tail"}),
    "queue": frozenset({"head", "tail"}),
}
_LINKS = frozenset({"next", "psn", "sent_ps", "extra"})  # of a packet: compared apart
_NOTHING: frozenset[str] = frozenset()
_NEVER = 1 << 62


@record
class Period:
    """What one period brings."""

    before: Moment
    after: Moment
    length_ps: int
    recurring: Any  # [events of the heap, after] that come again each period
    most: int  # periods before something else comes

    @property
    def events(self) -> int:
        return int(self.after.clock["events"] - self.before.clock["events"])

    @property
    def hops(self) -> int:
        return int(self.after.clock["hops"] - self.before.clock["hops"])


def look(state: State, queue_pairs: int, kept: bool = True) -> Moment:
    """Return all that periods are told from; the second moment need not be kept (`kernel_snapshots.moment`)."""
    return moment(state, queue_pairs, _COUNTS, kept)


def may_repeat(before: Moment, state: State) -> bool:
    """Return False where it is plain at a glance that now is not a period later."""
    clock = state.clock[0]
    qp = before.arrays["qp"]
    return bool(
        np.array_equal(before.queued, state.queued)
        and np.array_equal(qp.inflight, state.qp.inflight[: len(qp)])
        and np.array_equal(before.lane_sizes, lane_sizes_of(state))
        and all(before.clock[name] == clock[name] for name in _STILL)
    )


def period(before: Moment, after: Moment, state: State) -> Period | None:
    """Return the period between two moments, None where there is none."""
    length = after.time_ps - before.time_ps
    if length <= 0 or len(before.packets.at) != len(after.packets.at):
        return None
    moved = _moved(before.arrays["qp"], after.arrays["qp"], state)
    if moved is None or not _same_packets(before, after, moved):
        return None
    recurring = _recurring(before, after, length)
    if recurring is None:
        return None
    bounds = [_whole_before(int(after.heap.time[~recurring].min(initial=_NEVER)), after.time_ps, length)]
    for name, a in before.arrays.items():
        until = _same(name, a, after.arrays[name], (before.time_ps, after.time_ps), state)
        if until is None:
            return None
        bounds.append(_whole_before(until, after.time_ps, length))
    credits_last = _credits_last(before.arrays, after.arrays, state)
    if credits_last is None:
        return None
    bounds += [credits_last, _messages_last(after.arrays["qp"], moved, state)]
    return Period(before, after, length, recurring, max(min(bounds), 0))


def _moved(before: Any, after: Any, state: State) -> I64 | None:
    """[queue pairs] packets that each went on by, within one message; None where it is not so plain."""
    from fabrictwin.kernel.packet.state.constants import SELECTIVE

    moved: I64 = after.next_psn - before.next_psn
    if any((after[name] - before[name] != moved).any() for name in _PSNS) or (moved < 0).any():
        return None
    busy = moved > 0
    if (busy & (before.spray > 0)).any() or _out_of_order(
        state, np.flatnonzero(busy & (before["mode"] == SELECTIVE))
    ):
        return None
    task = state.task[before.sending[busy]]
    first = np.minimum(before.una, before.in_memory)[busy]
    apart = before.head[busy] != before.sending[busy]
    if apart.any() or (first < task.psn_start).any() or (before.next_psn[busy] <= task.psn_start).any():
        return None
    return moved


def _out_of_order(state: State, queue_pairs: I64) -> bool:
    """Return True where some of these know of packets beyond the next one."""
    window = int(state.settings[0].bitmap_mask) + 1
    return any(
        bits.reshape(-1, window)[queue_pairs].any() for bits in (state.received, state.sacked) if len(queue_pairs)
    )


def _messages_last(qp: Any, moved: I64, state: State) -> int:
    """Return the periods before some message's last packet is sent."""
    busy = moved > 0
    left = state.task.psn_end[qp.sending[busy]] - 1 - qp.next_psn[busy]
    return int((left // moved[busy]).min(initial=1 << 40))


def _credits_last(before: dict[str, Any], after: dict[str, Any], state: State) -> int | None:
    """Return the periods before credits are returned that are returned rarely, None where some were in this one.

    Acknowledgements take few blocks of a batch. Where blocks came to those that are kept back, and too few packets
    came for a batch and as many again, none was returned meanwhile.
    """
    from fabrictwin.kernel.packet.state.constants import BLOCK_BITS

    bits = int(state.settings[0].vl_bits)
    slots = np.arange(len(state.outlet))
    peer = np.maximum(state.port.peer[slots >> bits], 0)
    far = (peer << bits) + (slots & ((1 << bits) - 1))  # where what leaves by a slot arrives
    kept, batch = after["inlet"].unreturned[far], after["inlet"].batch[far]
    more = kept.astype(np.int64) - before["inlet"].unreturned[far]
    credit = after["outlet"].credit
    if (more < 0).any() or (before["outlet"].credit - credit != more).any():
        return None
    ports = {
        name: (after["port"][name] - before["port"][name])[slots >> bits] for name in ("tx_bytes", "tx_packets")
    }
    drifts = more > 0
    if ((ports["tx_bytes"] >> BLOCK_BITS) + ports["tx_packets"] >= batch + more)[drifts].any():
        return None
    qp = after["qp"]
    largest = int((qp.mtu + qp.header + qp.first_header).max(initial=0) >> BLOCK_BITS) + 1
    reach = np.minimum(batch - 1 - kept, credit - largest)[drifts] // more[drifts]
    return int(reach.min(initial=_NEVER))


def _same_packets(before: Moment, after: Moment, moved: I64) -> bool:
    from fabrictwin.kernel.packet.state.constants import ACK, ARRIVED, NONE

    if not np.array_equal(before.packets.chain, after.packets.chain):
        return False
    a, b = before.packets.record, after.packets.record
    if any((a[name] != b[name]).any() for name in a.dtype.names if name not in _LINKS):
        return False
    further = np.where(a.qp == NONE, 0, moved[np.maximum(a.qp, 0)])
    late = np.where(further > 0, after.time_ps - before.time_ps, 0)
    arrived = (a.marks & ARRIVED) != 0  # names its task, and the packets that are whole with it
    numbered = arrived | ((a.kind == ACK) & (a.extra != NONE))
    return bool(
        (b.psn - a.psn == further).all()
        and (b.sent_ps - a.sent_ps == np.where(arrived, 0, late)).all()
        and (b.extra - a.extra == np.where(numbered, further, 0)).all()
    )


def _recurring(before: Moment, after: Moment, length: int) -> Any:
    """[events of the heap, after] whether each comes again every period; None where there is no period."""
    if not _a_period_apart(before.lanes, after.lanes, length):
        return None
    kept, still = (
        np.isin(before.heap.sequence, after.heap.sequence),
        np.isin(after.heap.sequence, before.heap.sequence),
    )
    if arrives(after.heap.what[still]).any():
        return None
    come, new = before.heap.only(~kept), after.heap.only(~still)
    return ~still if _a_period_apart(come, new, length) else None


def _a_period_apart(before: Events, after: Events, length: int) -> bool:
    from fabrictwin.kernel.packet.events import VALUE_MASK

    if len(before.time) != len(after.time):
        return False
    named = np.where(arrives(before.what), ~VALUE_MASK, -1)  # packets are compared apart
    return bool(
        (after.time - before.time == length).all() and ((before.what & named) == (after.what & named)).all()
    )


def _same(name: str, before: Any, after: Any, between: tuple[int, int], state: State) -> int | None:
    """Return until when an array's records decide the same each period, None where they do not."""
    begin, end = between
    if len(before) != len(after):
        return None
    until = _NEVER
    skipped = _COUNTS[name] | _NAMES.get(name, _NOTHING) | (frozenset(_PSNS) if name == "qp" else _NOTHING)
    old, new = before.view(np.ndarray), after.view(np.ndarray)  # whose fields are found faster than a recarray's
    still = np.array_equal(old.view(np.uint8), new.view(np.uint8))
    for field in _TIMES.get(name, _NOTHING) if still else before.dtype.names:
        a, b = old[field], new[field]
        if name == "outlet" and field in ("head", "tail", "deficit"):
            decides = _takes_turns(before, after, state) if field == "deficit" else _queues(state) > 1
            if (a[decides] != b[decides]).any():
                return None
        elif field in skipped:
            continue
        elif field in _TIMES.get(name, _NOTHING):
            same = a == b
            if (b[~same] - a[~same] != end - begin).any() or ((b > begin) & (b <= end) & same).any():
                return None
            until = min(until, int(b[same & (b > end)].min(initial=_NEVER)))
        elif not np.array_equal(a, b):
            return None
    return until


def _queues(state: State) -> Any:
    """[slots] queues of the lane."""
    return np.repeat(state.port.queue_width, 1 << int(state.settings[0].vl_bits))


def _takes_turns(before: Any, after: Any, state: State) -> Any:
    """[slots] whether a lane could have had to wait for another one of its port."""
    lanes = 1 << int(state.settings[0].vl_bits)
    used = (before.last_tx != after.last_tx) | ((state.port.backlog[:, None] >> np.arange(lanes)) & 1 > 0).ravel()
    return np.repeat(used.reshape(-1, lanes).sum(axis=1) > 1, lanes)


def _whole_before(time_ps: int, now_ps: int, length: int) -> int:
    """Return how many periods end before a time."""
    return (time_ps - 1 - now_ps) // length


def skip(state: State, one: Period, times: int) -> None:
    """Let the state, which is at the end of the period, be as it is so many periods later."""
    before, after = one.before, one.after
    later = times * one.length_ps
    clock = state.clock[0]
    clock.now += later
    for name in _CLOCK:
        clock[name] += times * (after.clock[name] - before.clock[name])
    for name, a in before.arrays.items():
        array, b = getattr(state, name), after.arrays[name]
        fields = _COUNTS[name] | _TIMES.get(name, _NOTHING) | (frozenset(_PSNS) if name == "qp" else _NOTHING)
        for field in fields:
            moved = times * (b[field].astype(np.int64) - a[field])
            array[field][: len(a)] += moved.astype(array.dtype[field])
    packet, was = after.packets.record, before.packets.record
    for field in ("psn", "sent_ps", "extra"):
        state.packet[field][after.packets.at] += times * (packet[field] - was[field])
    state.event.time[after.lanes.at] += later
    busy = after.lane_sizes > 0
    state.lane_time[: len(busy)][busy] += later
    _move_heap(state, one, times)


def _move_heap(state: State, one: Period, times: int) -> None:
    """Let what recurs lie as many periods later; in order of time the events are a heap."""
    heap = state.heap[: len(one.after.heap.at)]
    which = one.after.heap.at[one.recurring]
    heap.time[which] += times * one.length_ps
    heap.sequence[which] += times * int(one.after.clock["sequence"] - one.before.clock["sequence"])
    heap[:] = heap[np.lexsort((heap.sequence, heap.time))]
