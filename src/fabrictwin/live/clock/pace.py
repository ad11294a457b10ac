"""What a clock is to the server, and the server to its clock."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from fabrictwin.live.context import Context
    from fabrictwin.live.rdma_cm.manager import ConnectionManager
    from fabrictwin.live.ring_queues import RingQueuePair, RingReceives, RingSharedReceives
    from fabrictwin.verbs.adapter.world import World

ClockName = Literal["real", "virtual"]
IDLE_S = 0.2  # without news before the loop's caller is asked again


class Served(Protocol):
    """The server, as its clock knows it."""

    world: World
    connections: ConnectionManager
    watched: set[RingReceives | RingSharedReceives]
    failed: set[RingQueuePair]
    poll: select.epoll

    def handle(self, happened: list[tuple[int, int]]) -> None:
        """Do what descriptors ask for."""

    def flush_late(self) -> bool:
        """Flush what was posted to queue pairs since they failed. Returns whether any was."""


class Clock(Protocol):
    """Lets modelled time pass."""

    name: ClockName

    def turn(self, wait_s: float | None) -> None:
        """Wait for something (for `wait_s` at most, where that is given), and do it."""

    def begin(self) -> None:
        """Modelled time begins to pass now."""

    def catch_up(self) -> None:
        """Bring modelled time up to date before something is posted."""

    def ring(self, context: Context, handle: int) -> None:
        """A client has posted to a send queue."""

    def seconds(self) -> float:
        """The time that programs see, from an origin of its own."""

    def close(self) -> None:
        """Give up what the clock holds."""
