"""The layer below adapters: the clock, the engine that times messages, memory of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fabrictwin.engines.base.engine import Engine
    from fabrictwin.fabric.fabric import Fabric
    from fabrictwin.routing.tables import Routes
    from fabrictwin.twin import Twin
    from fabrictwin.verbs.adapter.memory_regions import ProcessMemory


class MessageLayer(Protocol):
    """The part of the world that adapters and their queues stand on."""

    twin: Twin
    fabric: Fabric
    engine: Engine
    instant_ps: int
    captures: bool  # whether the engine wants what only captures show
    places_memory: bool  # whether some region lies on a GPU
    process_memory: ProcessMemory

    @property
    def routes(self) -> Routes: ...
    def new_pool(self) -> int: ...
    def note_change(self) -> None:
        """Something changed that requests are checked against."""
        ...

    def after(self, delay_ps: int, action: Callable[[], None]) -> None: ...
