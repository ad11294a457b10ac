"""Routers in front of replicas."""

from __future__ import annotations

from typing import Literal, Protocol

from fabrictwin.serving.engine.replica import Replica
from fabrictwin.serving.scheduler.request import Request

Policy = Literal["round_robin", "least_loaded", "prefix_aware"]

WAITING_WEIGHT = 4
"""Of a request that waits against one that runs, in vLLM's own balancing (`vllm/v1/engine/core_client.py`)."""


class Router(Protocol):
    """Chooses the replica that a request is sent to."""

    def choose(self, request: Request, replicas: list[Replica]) -> int:
        """Return the replica's number."""


def _load(replica: Replica) -> int:
    running = len(replica.scheduler.running)
    return (replica.in_flight - running) * WAITING_WEIGHT + running


class RoundRobin:
    """Every replica in turn."""

    def __init__(self) -> None:
        self._sent = 0

    def choose(self, request: Request, replicas: list[Replica]) -> int:
        """Return the replica after the last one."""
        self._sent += 1
        return (self._sent - 1) % len(replicas)


class LeastLoaded:
    """The replica with the least of waiting × 4 + running, the first of equals."""

    def choose(self, request: Request, replicas: list[Replica]) -> int:
        """Return the least loaded replica."""
        return min(range(len(replicas)), key=lambda place: _load(replicas[place]))


class PrefixAware:
    """The replica that has most of the prompt cached; of equals the least loaded.

    A chain of cached blocks is taken to have no gaps, as the order of eviction leaves it, so that its end is
    found by halving.
    """

    def choose(self, request: Request, replicas: list[Replica]) -> int:
        """Return the replica with the longest prefix."""
        size = replicas[0].scheduler.cache.layout.block_size
        keys = request.key_source(0, request.prompt // size)
        cached = [self._cached(keys, replica) for replica in replicas]
        return min(range(len(replicas)), key=lambda place: (-cached[place], _load(replicas[place])))

    @staticmethod
    def _cached(keys: list[int], replica: Replica) -> int:
        cache = replica.scheduler.cache
        groups = len(cache.layout.windows)
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            if cache.pool.find(keys[middle - 1] * groups):
                low = middle
            else:
                high = middle - 1
        return low


def router(policy: Policy) -> Router:
    """Return a router of a policy."""
    if policy == "round_robin":
        return RoundRobin()
    return LeastLoaded() if policy == "least_loaded" else PrefixAware()
