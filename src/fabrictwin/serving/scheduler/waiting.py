"""Queues of waiting requests (`vllm/v1/core/sched/request_queue.py`): in order of arrival, or by priority."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from fabrictwin.serving.scheduler.request import Request


class WaitingQueue(Protocol):
    """Requests that wait to run, first the one that is admitted next."""

    def __len__(self) -> int: ...

    def add(self, request: Request) -> None:
        """Add a request that has arrived."""

    def put_back(self, request: Request) -> None:
        """Add a request that was ahead of those that wait."""

    def peek(self) -> Request:
        """Return the request that is next."""

    def pop(self) -> Request:
        """Remove and return the request that is next."""

    def remove(self, requests: Iterable[Request]) -> None:
        """Remove requests wherever they stand."""


class ArrivalQueue:
    """First come, first served; a preempted request goes to the front."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: Request) -> None:
        """Add a request at the end."""
        self._queue.append(request)

    def put_back(self, request: Request) -> None:
        """Add a request at the front."""
        self._queue.appendleft(request)

    def peek(self) -> Request:
        """Return the first request."""
        return self._queue[0]

    def pop(self) -> Request:
        """Remove and return the first request."""
        return self._queue.popleft()

    def remove(self, requests: Iterable[Request]) -> None:
        """Remove requests wherever they stand."""
        gone = set(requests)
        self._queue = deque(request for request in self._queue if request not in gone)


class PriorityQueue:
    """By (priority, arrival, number), smallest first; a preempted request takes its place in that order."""

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Add a request in its place."""
        heapq.heappush(self._heap, request)

    put_back = add

    def peek(self) -> Request:
        """Return the first request."""
        return self._heap[0]

    def pop(self) -> Request:
        """Remove and return the first request."""
        return heapq.heappop(self._heap)

    def remove(self, requests: Iterable[Request]) -> None:
        """Remove requests wherever they stand."""
        gone = set(requests)
        self._heap = [request for request in self._heap if request not in gone]
        heapq.heapify(self._heap)


def waiting_queue(policy: str) -> WaitingQueue:
    """Return an empty queue of a scheduling policy, `fcfs` or `priority`."""
    return PriorityQueue() if policy == "priority" else ArrivalQueue()
