"""What there is in the packet kernel at one moment, in an order that means something.

Packets stand anywhere in their pool, and events anywhere in the heap: here they come in the order in which they
are scheduled, or wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.state.state import State

# fields of a port that count and decide nothing: what is skipped is added to them
PORT_COUNTS = ("tx_bytes", "tx_payload", "tx_packets", "wait_ps")


@record
class Events:
    """What is scheduled, in its order: [events] time, what, sequence; where in the state each stands."""

    time: I64
    what: I64
    at: I64
    sequence: I64

    def only(self, which: Any) -> Events:
        """Return some of them."""
        return Events(self.time[which], self.what[which], self.at[which], self.sequence[which])


@record
class Packets:
    """Packets on a wire and then those that wait, in order."""

    at: I64  # where in the pool each stands
    chain: I64  # of each that waits: its queue
    record: Any


@record
class Moment:
    """What there is between two events."""

    clock: Any
    arrays: dict[str, Any]
    queued: I64
    lane_sizes: I64
    lanes: Events
    heap: Events
    packets: Packets

    @property
    def time_ps(self) -> int:
        return int(self.clock["now"])


def moment(state: State, queue_pairs: int, names: Iterable[str], kept: bool = True) -> Moment:
    """Return what there is now, of so many queue pairs and of the arrays of these names.

    Where it is not `kept`, its arrays are the state's own: right until the kernel goes on.
    """
    arrays = {name: getattr(state, name) for name in names}
    arrays["qp"] = state.qp[:queue_pairs]
    if kept:
        arrays = {name: array.copy() for name, array in arrays.items()}
    lanes, heap = lanes_of(state), heap_of(state)
    return Moment(
        state.clock[0].copy(),
        arrays,
        state.queued.copy(),
        lane_sizes_of(state),
        lanes,
        heap,
        packets_of(state, lanes, heap),
    )


def lane_sizes_of(state: State) -> I64:
    """Events in each lane."""
    ring = state.lane[: int(state.clock[0].lanes)]
    sizes: I64 = (ring["tail"] - ring["head"]).astype(np.int64)
    return sizes


def lanes_of(state: State) -> Events:
    """Events of all lanes, the first lane's first."""
    ring = state.lane[: int(state.clock[0].lanes)]
    sizes = lane_sizes_of(state)
    before = np.repeat(ring["head"] - (np.cumsum(sizes) - sizes), sizes)
    at = np.repeat(ring["first"], sizes) + (
        (before + np.arange(int(sizes.sum()))) & np.repeat(ring["mask"], sizes)
    )
    event = state.event[at]
    return Events(event.time.copy(), event.what.copy(), at, np.zeros(0, np.int64))


def heap_of(state: State) -> Events:
    """Events of the heap, sorted."""
    heap = state.heap[: int(state.clock[0].heap)]
    order = np.lexsort((heap.sequence, heap.time))
    return Events(heap.time[order], heap.what[order], order, heap.sequence[order])


def packets_of(state: State, lanes: Events, heap: Events) -> Packets:
    """Packets that these events name, and those that wait."""
    from fabrictwin.kernel.packet.events import VALUE_MASK

    chain, queued = _waiting(state)
    at = np.concatenate([*(each.what[arrives(each.what)] & VALUE_MASK for each in (lanes, heap)), queued])
    return Packets(at, chain, state.packet[at])


def arrives(what: I64) -> Any:
    """Tell which events name a packet."""
    from fabrictwin.kernel.packet.events import KIND_SHIFT, QueueEvent

    kind = what >> KIND_SHIFT
    return (kind == QueueEvent.ARRIVE) | (kind == QueueEvent.LATE_ARRIVE)


def _waiting(state: State) -> tuple[I64, I64]:
    """Return, of each packet that waits at a port, its queue and the packet: all first ones, then the second."""
    from fabrictwin.kernel.packet.state.constants import NONE

    single = np.repeat(state.port.queue_width == 1, 1 << int(state.settings[0].vl_bits))
    heads = np.concatenate([np.where(single, state.outlet.head, NONE), state.queue.head, state.port.control_head])
    chain = np.flatnonzero(heads != NONE)
    at = heads[chain].astype(np.int64)
    chains, packets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    while len(at):
        chains.append(chain)
        packets.append(at)
        at = state.packet.next[at].astype(np.int64)
        chain, at = chain[at != NONE], at[at != NONE]
    return np.concatenate(chains), np.concatenate(packets)
