"""What a server of live programs holds for its clients."""

from __future__ import annotations

from collections.abc import Iterator

from fabrictwin.live.server import Server


def held(server: Server) -> Iterator[str]:
    """Objects that are there, in words; nothing once every client is gone. For the server's own thread."""
    for adapter in server.world.adapters:
        memory = adapter.memory
        for kind, objects in (
            ("queue pairs", adapter.queue_pairs),
            ("shared receive queues", adapter.shared_receives),
            ("local keys", memory.local),
            ("remote keys", memory.remote),
        ):
            if objects:
                yield f"{len(objects)} {kind} of {adapter.host_name}"
    for kind, found in (
        ("clients", server.clients),
        ("connection channels", server.connections.channels),
        ("messages", server.world.records),
        ("groups", server.groups.attached),
        ("receive queues", server.watched),
    ):
        if found:
            yield f"{len(found)} {kind}"
