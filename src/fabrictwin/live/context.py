"""What a client holds: the objects behind an opened device, by handle. All of it goes when the client goes."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol, TypeVar

from fabrictwin.live import wire
from fabrictwin.live.datapath import PLACE_SHIFT, ClientMemory, SharedFile, library
from fabrictwin.live.event_pipe import EventPipe
from fabrictwin.live.message_statistics import Statistics
from fabrictwin.live.multicast import Groups
from fabrictwin.live.ring_queues import RingCompletions, RingQueuePair, RingReceives, RingSharedReceives
from fabrictwin.verbs.adapter import qp_transitions
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.memory_regions import Domain, Region, Window
from fabrictwin.verbs.adapter.work_requests import AddressVector, Work
from fabrictwin.verbs.adapter.world import World

MOST_QUEUE_BYTES = 1 << 32  # of one client's rings together


class Refused(OSError):  # noqa: N818 - an errno for the client, not an error of the twin's
    """What a command is refused with: an errno."""


def refuse(code: int) -> Refused:
    return Refused(code, errno.errorcode.get(code, str(code)))


class Registry(Protocol):
    """The server, as contexts know it."""

    world: World
    memory: ClientMemory
    statistics: Statistics
    groups: Groups
    failed: set[RingQueuePair]

    def watch(self, queue: RingReceives | RingSharedReceives) -> None: ...

    def watch_pipe(self, pipe: EventPipe, gone: Callable[[], None]) -> None: ...

    def unwatch_pipe(self, pipe: EventPipe) -> None: ...

    def note_news(self, pid: int) -> None: ...


@dataclass
class Registered:
    """A memory region of the client's, and its domain's handle."""

    region: Region
    domain: int


@dataclass
class Queue:
    """Where a queue pair's objects are: handles of what it uses."""

    pair: RingQueuePair
    domain: int
    sends: int
    receives: int
    shared: int  # 0: none
    groups: set[bytes] = field(default_factory=set)  # multicast GIDs


Kind = TypeVar("Kind")


class Context:
    """An opened device of a client."""

    def __init__(self, server: Registry, adapter: Adapter, pid: int) -> None:
        self.server = server
        self.world = server.world
        self.adapter = adapter
        self.pid = pid
        self.file = SharedFile(f"fabrictwin-{adapter.host_name}-{adapter.name}", MOST_QUEUE_BYTES)
        self.tag = server.memory.admit(pid)
        self.asynchronous: EventPipe | None = None
        self.domains: dict[int, Domain] = {}
        self.regions: dict[int, Registered] = {}
        self.windows: dict[int, tuple[Window, int]] = {}
        self.vectors: dict[int, AddressVector] = {}
        self.channels: dict[int, EventPipe] = {}  # by the number of the client's descriptor
        self.completions: dict[int, RingCompletions] = {}
        self.channel_of: dict[int, EventPipe] = {}  # by completion queue
        self.shared: dict[int, tuple[RingSharedReceives, int]] = {}
        self.queues: dict[int, Queue] = {}
        self.fresh_channel: EventPipe | None = None  # whose descriptor's number is not known yet
        self._freed: list[int] = []
        self._handles = 0
        self.closed = False

    # ------------------------------------------------------------------ handles

    def handle(self) -> int:
        """The lowest number that stands for nothing. Raises Refused where there are too many objects."""
        if self._freed:
            return heappop(self._freed)
        if self._handles >= wire.HANDLES - 1:
            raise refuse(errno.ENOMEM)
        self._handles += 1
        return self._handles

    def release(self, handle: int) -> None:
        heappush(self._freed, handle)

    @staticmethod
    def find(table: dict[int, Kind], handle: int) -> Kind:
        """Return what a handle stands for. Raises Refused."""
        found = table.get(handle)
        if found is None:
            raise refuse(errno.EINVAL)
        return found

    # ------------------------------------------------------------------ memory

    def place(self, address: int, length: int) -> int:
        """An address of the client's as the twin's adapters know it. Raises Refused where nothing is there."""
        if not length or address + length > 1 << PLACE_SHIFT:
            raise refuse(errno.EINVAL)
        place = self.tag + address
        probe = ctypes.create_string_buffer(1)
        for at in (address, address + length - 1):
            code = library().live_read(self.tag + at, probe, 1)
            if code:
                raise refuse(errno.EFAULT if code in (errno.EFAULT, errno.EIO) else code)
        return place

    def vector(self, handle: int) -> AddressVector | None:
        """Return where an address handle leads."""
        return self.vectors.get(handle)

    def bind(self, work: Work, keys: tuple[int, int, int], part: tuple[int, int], access: int) -> bool:
        """Read a bind request: (window's key, region's lkey, new key), (address, length)."""
        window_key, lkey, key = keys
        found = next((w for w, _ in self.windows.values() if w.handle == window_key >> 8), None)
        region = self.adapter.memory.local.get(lkey)
        if region is None and not part[1]:
            region = next((each.region for each in self.regions.values()), None)  # unbinding names none
        if found is None or region is None:
            return False
        work.info = (found, region, key, part[0], part[1], access)
        return True

    # ------------------------------------------------------------------ events

    def raise_event(self, kind: int, element: object) -> None:
        """An asynchronous event of an object of this context (the adapters' sink)."""
        if self.asynchronous is None:
            return
        handle = getattr(element, "user_handle", 1)
        self.asynchronous.write(wire.ASYNC_EVENT.pack(handle, kind, 0), id(element))

    def raise_port_event(self, kind: int) -> None:
        if self.asynchronous is not None:
            self.asynchronous.write(wire.ASYNC_EVENT.pack(1, kind, 0), None)

    def tell_channel(self, queue: RingCompletions) -> None:
        """A completion queue that was armed has a completion."""
        channel = self.channel_of.get(queue.handle)
        if channel is not None:
            channel.write(queue.user_handle.to_bytes(8, "little"), id(queue))

    def note_news(self) -> None:
        """A completion can be found."""
        self.server.note_news(self.pid)

    @property
    def may_be_written(self) -> bool:
        """Others can write to the client's memory, or will."""
        return any(queue.pair.state >= qp_transitions.RTR for queue in self.queues.values())

    def add_pipe(self, pipe: EventPipe, gone: Callable[[], None]) -> None:
        self.server.watch_pipe(pipe, gone)

    def name_descriptor(self, number: int) -> None:
        """The client says which number its newest descriptor has."""
        channel, self.fresh_channel = self.fresh_channel, None
        if channel is not None:
            self.channels[number] = channel

    def drop_channel(self, channel: EventPipe) -> None:
        """The client has closed a channel."""
        self.server.unwatch_pipe(channel)
        channel.close()
        for number in [n for n, each in self.channels.items() if each is channel]:
            del self.channels[number]

    # ------------------------------------------------------------------ what is done

    def note_state(self, pair: RingQueuePair) -> None:
        """Show the client a queue pair's state: posting is refused below RTS."""
        failed = self.server.failed
        (failed.add if pair.state == qp_transitions.ERR else failed.discard)(pair)
        if not self.closed:
            self.file.state[pair.handle % wire.HANDLES] = pair.state

    def rings(self, handle: int) -> int:
        """Return how many doorbells of a queue pair the client has counted."""
        return int(self.file.rings[handle % wire.HANDLES])

    def doorbell(self, handle: int) -> None:
        """A send queue has grown."""
        self.file.rung[handle % wire.HANDLES] = 0
        queue = self.queues.get(handle)
        if queue is not None and queue.pair.state >= qp_transitions.RTS:
            queue.pair.doorbell(self.rings(handle))

    def post_to_group(self, pair: RingQueuePair, work: Work) -> int:
        """Send a datagram to every member of a multicast group; returns 0, or an errno."""
        return self.server.groups.post(pair, work)

    def count(self, pair: RingQueuePair, work: Work) -> None:
        self.server.statistics.posted(pair, work)

    def note_completion(self, pair: RingQueuePair, work: Work, status: int) -> None:
        self.server.statistics.completed(pair, work, status, self.world.instant_ps)

    # ------------------------------------------------------------------ the end

    def destroy_queue(self, handle: int) -> int:
        """Destroy a queue pair; returns how many of its events were read."""
        queue = self.queues.pop(handle)
        pair = queue.pair
        for group in queue.groups:
            self.server.groups.leave(group, pair)
        pair.destroy()
        if pair.copies is not None:
            pair.copies.destroy()
        self.file.give_back(pair.ring)
        if isinstance(pair.receives, RingReceives):
            self.file.give_back(pair.receives.ring)
        self.file.state[handle % wire.HANDLES] = 0
        self.file.rung[handle % wire.HANDLES] = 0
        self.release(handle)
        return 0 if self.asynchronous is None else self.asynchronous.end(id(pair))

    def close(self) -> None:
        """Free everything: the client is gone, or has closed the device."""
        if self.closed:
            return
        for handle in list(self.queues):
            self.destroy_queue(handle)
        self.closed = True
        memory = self.adapter.memory
        for shared, _ in self.shared.values():
            self.adapter.shared_receives.pop(shared.number, None)
            shared.clear()
            shared.ring.unmap()
        for queue in self.completions.values():
            queue.ring.unmap()
        for window, _ in self.windows.values():
            memory.free(window)
        for registered in self.regions.values():
            memory.deregister(registered.region)
        for pipe in {*self.channels.values(), *self.channel_of.values(), self.asynchronous, self.fresh_channel} - {
            None
        }:
            assert pipe is not None
            self.server.unwatch_pipe(pipe)
            pipe.close()
        for table in (self.domains, self.regions, self.windows, self.vectors, self.channels, self.completions):
            table.clear()
        self.shared.clear()
        self.channel_of.clear()
        self.server.memory.dismiss(self.tag)
        self.file.close()
