"""Receive queues: a queue pair's own, or one that several share.

The engine below counts receives by pool, so that it can answer "not ready" at the right time; which buffer a
message takes is decided here, in order. InfiniBand Architecture, volume 1, 10.2.9 (shared receive queues).
"""

from __future__ import annotations

from collections import deque
from typing import Any

from fabrictwin.verbs.abi.device_codes import ibv_event_type
from fabrictwin.verbs.adapter.completions import CompletionQueue
from fabrictwin.verbs.adapter.memory_regions import Domain
from fabrictwin.verbs.adapter.message_layer import MessageLayer

Receive = tuple[int, tuple[tuple[int, int, int], ...], int]  # wr_id, (address, length, lkey)s, their lengths' sum

SRQ_LIMIT_REACHED = int(ibv_event_type.IBV_EVENT_SRQ_LIMIT_REACHED)


class ReceiveQueue:
    """Buffers in order. A slot is free again when software has seen the completion."""

    __slots__ = ("capacity", "domain", "max_sge", "pool", "posted", "queue", "world")

    def __init__(self, world: MessageLayer, domain: Domain | None, capacity: int, max_sge: int) -> None:
        self.world = world
        self.domain = domain
        self.capacity = capacity
        self.max_sge = max_sge
        self.queue: deque[Receive] = deque()
        self.posted = 0  # and not yet seen to complete
        self.pool = world.new_pool()

    @property
    def full(self) -> bool:
        return self.posted >= self.capacity

    def add(self, receive: Receive) -> None:
        self.queue.append(receive)
        self.posted += 1
        self.world.engine.add_receives(self.pool, 1)

    def refresh(self) -> None:
        """Take in what software has posted without saying so: nothing, since programs here call `add`."""

    def take(self) -> Receive | None:
        """The buffer for a message that has arrived; the engine has counted it already."""
        return self.queue.popleft() if self.queue else None

    def give_back(self) -> None:
        """A message was counted that takes none after all."""
        self.world.engine.add_receives(self.pool, 1)

    def release(self, slots: int) -> None:
        self.posted -= slots

    def clear(self) -> list[Receive]:
        """Withdraw every buffer."""
        withdrawn = list(self.queue)
        self.queue.clear()
        if withdrawn:
            self.world.engine.add_receives(self.pool, -len(withdrawn))
        return withdrawn


class SharedReceiveQueue(ReceiveQueue):
    """A receive queue of several queue pairs: `limit` asks for one event when fewer buffers than that remain."""

    __slots__ = ("completions", "extended", "limit", "number", "sink")

    def __init__(
        self,
        world: MessageLayer,
        domain: Domain | None,
        capacity: int,
        max_sge: int,
        *,
        number: int,
        completions: CompletionQueue | None = None,
        extended: object = None,
    ) -> None:
        super().__init__(world, domain, capacity, max_sge)
        self.number = number
        self.completions = completions  # of an XRC queue
        self.extended = extended  # the XRC domain
        self.limit = 0
        self.sink: Any = None

    def take(self) -> Receive | None:
        taken = super().take()
        if self.limit and len(self.queue) < self.limit:
            self.limit = 0
            if self.sink is not None:
                self.sink.raise_event(SRQ_LIMIT_REACHED, self)
        return taken
