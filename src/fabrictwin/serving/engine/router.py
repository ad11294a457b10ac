"""Routers in front of replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from fabrictwin.serving.engine.lockstep import Loaded, Ranks
from fabrictwin.serving.scheduler.request import Request

Policy = Literal["round_robin", "least_loaded", "prefix_aware"]


class Router(Protocol):
    """Chooses the replica that a request is sent to."""

    def choose(self, request: Request, replicas: Sequence[Loaded]) -> int:
        """Return the replica's number."""


class RoundRobin:
    """Every replica in turn."""

    def __init__(self) -> None:
        self._sent = 0

    def choose(self, request: Request, replicas: Sequence[Loaded]) -> int:
        """Return the replica after the last one."""
        self._sent += 1
        return (self._sent - 1) % len(replicas)


class LeastLoaded:
    """The replica with the least of waiting × 4 + running, the first of equals."""

    def choose(self, request: Request, replicas: Sequence[Loaded]) -> int:
        """Return the least loaded replica."""
        return min(range(len(replicas)), key=lambda place: replicas[place].load)


class PrefixAware:
    """The replica that has most of the prompt cached; of equals the least loaded."""

    def choose(self, request: Request, replicas: Sequence[Loaded]) -> int:
        """Return the replica with the longest prefix."""
        size = replicas[0].scheduler.cache.layout.block_size
        keys = request.key_source(0, request.prompt // size)
        cached = [replica.cached_blocks(keys) for replica in replicas]
        return min(range(len(replicas)), key=lambda place: (-cached[place], replicas[place].load))


class DataParallel:
    """A router of servers whose data parallel ranks are engines of their own: vLLM takes the least loaded one."""

    def __init__(self, servers: Router, ranks: int) -> None:
        self._servers, self._ranks = servers, ranks

    def choose(self, request: Request, replicas: Sequence[Loaded]) -> int:
        """Return the engine: the server of the router's choice, and its least loaded rank."""
        count = self._ranks
        servers = [Ranks(replicas[start : start + count]) for start in range(0, len(replicas), count)]
        chosen = self._servers.choose(request, servers) if len(servers) > 1 else 0
        return min(range(chosen * count, (chosen + 1) * count), key=lambda place: replicas[place].load)


def router(policy: Policy, ranks: int = 1) -> Router:
    """Return a router of a policy over servers of so many engines each."""
    found: Router
    if policy == "round_robin":
        found = RoundRobin()
    else:
        found = LeastLoaded() if policy == "least_loaded" else PrefixAware()
    return DataParallel(found, ranks) if ranks > 1 else found
