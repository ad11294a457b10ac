"""Queues of the twin's adapters whose requests and completions lie in rings that a client maps.

As in the rxe driver: a doorbell says that a send queue has grown; receives are found in their ring when a message
wants one; completions are put into the client's ring, and tell the queue's channel if it was armed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol, cast

from fabrictwin.live import wire
from fabrictwin.live.datapath import Ring, library
from fabrictwin.verbs.abi.device_codes import ibv_event_type
from fabrictwin.verbs.adapter import qp_transitions
from fabrictwin.verbs.adapter import work_requests as wr
from fabrictwin.verbs.adapter.completions import LOC_QP_OP_ERR, WC, CompletionQueue
from fabrictwin.verbs.adapter.memory_regions import Domain
from fabrictwin.verbs.adapter.queue_pair import QueuePair
from fabrictwin.verbs.adapter.receive_queues import Receive, ReceiveQueue, SharedReceiveQueue
from fabrictwin.verbs.adapter.transport import requester
from fabrictwin.verbs.adapter.work_requests import AddressVector, Work
from fabrictwin.verbs.adapter.world import World

_BATCH = 64  # requests that are copied out of a ring at a time
_CQ_ERR = int(ibv_event_type.IBV_EVENT_CQ_ERR)
_UNARMED, _ANY = 0, 1


class RingCompletions(CompletionQueue):
    """A completion queue in a client's ring."""

    __slots__ = ("events", "handle", "on_completion", "ring", "tell", "user_handle")

    def __init__(self, world: World, number: int, ring: Ring, *, user_handle: int, handle: int) -> None:
        super().__init__(world, number, ring.capacity, channel=None)
        self.ring = ring
        self.user_handle = user_handle
        self.handle = handle
        self.events = 0  # told to the channel so far
        self.tell: Callable[[RingCompletions], None] | None = None  # the channel

    def push(self, completion: WC, solicited: bool = False) -> bool:
        """Put a completion into the client's ring. False: the ring is full, and the completion is lost."""
        queue = completion.queue
        if queue is not None:
            queue.release(completion.slots)  # before software sees the completion and posts again
        c, ring = completion, self.ring
        record = wire.COMPLETION.pack(
            c.wr_id, c.status, c.opcode, c.vendor_err, c.byte_len, c.imm_data & 0xFFFFFFFF, c.qp_num, c.src_qp,
            c.wc_flags, c.pkey_index, c.slid, c.sl, c.dlid_path_bits, 1, 0,
        )  # fmt: skip
        if not ring.put(record):
            if not self.overrun:
                self.overrun = True
                if self.sink is not None:
                    self.sink.raise_event(_CQ_ERR, self)
            return False
        if self.sink is not None:
            self.sink.note_news()
        armed = self.armed
        if armed and (armed == _ANY or solicited or completion.status):
            self.armed = _UNARMED
            if self.tell is not None:
                self.tell(self)
        return True

    def forget(self, qp_num: int) -> None:
        """Completions of a queue pair that is gone stay: the ring is the client's, which drops them itself."""

    def move_to(self, ring: Ring) -> None:
        """Go on in another ring: completions that software has not taken yet go along. Raises OSError."""
        old = self.ring
        held = library().live_held(old.address, old.mask, old.index)
        if held > ring.capacity:
            raise OSError(22, "more completions wait than would fit")
        data = old.address + wire.RING_HEADER_BYTES
        for at in range(old.index - held, old.index):
            record = ctypes.string_at(data + ((at & old.mask) << old.log2_element), old.element)
            ring.put(record)
        self.ring = ring
        self.capacity = ring.capacity


class _FromRing:
    """What both sorts of receive queues do with their ring."""

    ring: Ring
    max_sge: int
    posted: int
    capacity: int
    room: ctypes.Array[ctypes.c_char]
    add: Callable[[Receive], None]
    watch: Callable[[Any], None]

    def attach(self, ring: Ring, watch: Callable[[Any], None]) -> None:
        """Take receives from a ring. `watch` is told when a message may come to take one."""
        self.ring, self.watch = ring, watch
        self.room = ctypes.create_string_buffer(_BATCH * ring.element)

    def refresh(self) -> None:
        """Take in what the client has posted, and say that a message is under way."""
        self.collect()
        self.watch(self)

    def collect(self) -> int:
        """Take in what the client has posted; returns how many receives that was."""
        ring, total = self.ring, 0
        while ring.address:
            count = min(_BATCH, self.capacity - self.posted)
            count = ring.take(self.room, count) if count > 0 else 0
            for at in range(0, count * ring.element, ring.element):
                self.add(self._receive(at))
            total += count
            if count < _BATCH:
                break
        return total

    def _receive(self, at: int) -> Receive:
        wr_id, _, number = wire.RECEIVE_HEAD.unpack_from(self.room, at)
        if number > self.max_sge:
            return wr_id, (), 0  # more than it can have: nothing fits into it
        first = at + wire.RECEIVE_BYTES
        if number == 1:
            segment = wire.SEGMENT.unpack_from(self.room, first)
            return wr_id, (segment,), segment[1]
        segments = tuple(wire.SEGMENT.unpack_from(self.room, first + 16 * i) for i in range(number))
        return wr_id, segments, sum(segment[1] for segment in segments)

    def free(self, slots: int) -> None:
        """Slots of the ring are free again, in order."""
        ring = self.ring
        if ring.address:
            library().live_free(ring.address, ring.mask, ring.index - self.posted)


class RingReceives(_FromRing, ReceiveQueue):
    """The receive queue of a queue pair."""

    def __init__(self, world: World, domain: Domain | None, ring: Ring, max_sge: int) -> None:
        super().__init__(world, domain, ring.capacity, max_sge)

    def release(self, slots: int) -> None:
        super().release(slots)
        self.free(slots)

    def withdraw(self) -> None:
        """The queue pair is reset: nothing is posted any more."""
        if self.ring.address:
            self.ring.index = library().live_clear(self.ring.address, self.ring.mask)


class RingSharedReceives(_FromRing, SharedReceiveQueue):
    """A shared receive queue."""

    handle = 0
    user_handle = 0
    events = 0  # asynchronous ones that were told

    def release(self, slots: int) -> None:
        super().release(slots)
        self.free(slots)

    def withdraw(self) -> None:
        """Nothing: other queue pairs take receives from it too."""

    def move_to(self, ring: Ring) -> None:
        """Go on in another ring, where what is posted takes its slots."""
        ring.index = self.posted
        ctypes.c_uint32.from_address(ring.address + wire.RING_PRODUCER).value = ring.index
        self.ring, self.capacity = ring, ring.capacity
        self.room = ctypes.create_string_buffer(_BATCH * ring.element)


FIRST_MULTICAST_LID = 0xC000


def names_group(vector: AddressVector) -> bool:
    """Return True for an address vector that leads to a group."""
    gid = vector.dgid
    mapped = gid[:12] == bytes(10) + b"\xff\xff" and gid[12] >> 4 == 0xE
    return vector.dlid >= FIRST_MULTICAST_LID or (vector.is_global and (gid[0] == 0xFF or mapped))


class RingOwner(Protocol):
    """The client's context, as its queue pairs need it."""

    def note_state(self, pair: RingQueuePair) -> None: ...

    def bind(self, work: Work, keys: tuple[int, int, int], part: tuple[int, int], access: int) -> bool: ...

    def vector(self, handle: int) -> AddressVector | None: ...

    def rings(self, handle: int) -> int: ...

    def count(self, pair: RingQueuePair, work: Work) -> None: ...

    def note_completion(self, pair: RingQueuePair, work: Work, status: int) -> None: ...

    def post_to_group(self, pair: RingQueuePair, work: Work) -> int: ...


class RingQueuePair(QueuePair):
    """A queue pair whose requests lie in a client's ring."""

    context: RingOwner
    handle: int
    user_handle: int
    copies: QueuePair | None = None  # what sends copies of its multicast datagrams
    ring: Ring
    room: ctypes.Array[ctypes.c_char]

    def attach(self, context: RingOwner, ring: Ring, *, handle: int, user_handle: int) -> None:
        """Take requests from a ring of a client."""
        self.context, self.ring, self.handle, self.user_handle = context, ring, handle, user_handle
        self.room = ctypes.create_string_buffer(_BATCH * ring.element)
        self.handed = 0  # requests that the adapter has got
        self.rings = context.rings(handle)  # doorbells that were seen

    def release(self, slots: int) -> None:
        super().release(slots)
        ring = self.ring
        if ring.address:
            library().live_free(ring.address, ring.mask, self.handed - self.occupied)

    def _reset(self) -> None:
        super()._reset()
        if self.ring.address:
            self.handed = self.ring.index = library().live_clear(self.ring.address, self.ring.mask)
        if isinstance(self.receives, (RingReceives, RingSharedReceives)):
            self.receives.withdraw()

    def enter_error(self) -> None:
        """The error state: what the client has posted meanwhile is flushed with the rest."""
        if isinstance(self.receives, RingReceives):
            self.receives.collect()
        super().enter_error()
        self.context.note_state(self)

    def flush_late(self) -> bool:
        """Flush the receives that the client has posted since the error. Returns whether there were any."""
        if not isinstance(self.receives, RingReceives) or not self.receives.collect():
            return False
        self.flush_receives()
        return True

    def doorbell(self, rings: int) -> int:
        """Begin what the client has put into the send queue; returns how many requests that was.

        `rings` counts the queue's doorbells, of which several may have been told as one: where there were as many
        as requests, none was chained to another.
        """
        ring, room, total = self.ring, self.room, 0
        rang, self.rings = rings - self.rings & 0xFFFFFFFF, rings
        while ring.address:
            count = ring.take(room, _BATCH)
            for i in range(count):
                self.handed += 1
                self._post(i * ring.element, chained=rang < total + count)
            total += count
            if count < _BATCH:
                break
        return total

    def _post(self, at: int, *, chained: bool) -> None:
        room = self.room
        wr_id, opcode, flags, immediate = wire.SEND_HEAD.unpack_from(room, at)
        length, _, _, number = wire.DMA.unpack_from(room, at + wire.SEND_DMA)
        first = at + wire.SEND_BYTES
        inline = bool(flags & wr.INLINE) or opcode == wr.ATOMIC_WRITE
        if inline or number > self.max_send_sge:
            segments: tuple[tuple[int, int, int], ...] = ()
        elif number == 1:
            segments = (wire.SEGMENT.unpack_from(room, first),)
        else:
            segments = tuple(wire.SEGMENT.unpack_from(room, first + 16 * i) for i in range(number))
        work = Work(self, wr_id, opcode, flags, segments, immediate)
        work.chained = chained
        work.posted_ps = self.world.instant_ps  # type: ignore[attr-defined]
        sound = inline or number <= self.max_send_sge
        if inline:
            sound = length <= self.ring.element - wire.SEND_BYTES
            work.data, work.length = cast("bytes", room[first : first + length]) if sound else b"", length
        if not sound or not self._describe(work, at + wire.SEND_UNION):
            requester.reject(self, work, LOC_QP_OP_ERR)
            return
        self.context.count(self, work)
        group = work.vector is not None and names_group(work.vector)
        if self.context.post_to_group(self, work) if group else requester.post(self, work):
            requester.reject(self, work, LOC_QP_OP_ERR)

    def _describe(self, work: Work, at: int) -> bool:
        """Read what the kind of request asks for. False: it makes no sense."""
        room, opcode = self.room, work.opcode
        if opcode in (wr.COMPARE_SWAP, wr.FETCH_ADD):
            work.address, work.compare, work.swap, work.rkey = wire.SEND_ATOMIC.unpack_from(room, at)
        elif opcode == wr.FLUSH:
            work.address, work.info, work.rkey, work.compare, work.swap = wire.SEND_FLUSH.unpack_from(room, at)
        elif opcode in wr.NAMES_ADDRESS:
            work.address, work.rkey = wire.SEND_RDMA.unpack_from(room, at)
        elif opcode == wr.BIND:
            address, length, mr_lkey, window_key, key, access = wire.SEND_WINDOW.unpack_from(room, at)
            return self.context.bind(work, (window_key, mr_lkey, key), (address, length), access)
        if self.kind == qp_transitions.UD:
            number, key, _, _, handle = wire.SEND_DATAGRAM.unpack_from(room, at)
            work.vector = self.context.vector(handle)
            work.remote_qpn, work.remote_qkey = number, key
            return work.vector is not None
        return True

    def complete_send(self, work: Work, status: int) -> None:
        self.context.note_completion(self, work, status)
        super().complete_send(work, status)
