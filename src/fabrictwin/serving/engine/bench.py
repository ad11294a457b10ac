"""A benchmark's client and its server: requests go to replicas, and the times of their tokens come back.

Replicas act in the order of their clocks. A request's text is turned into tokens, and it is routed when no
replica has anything to do before that is done. With a limit on concurrency a request is sent when it is due and
fewer are in flight. An engine goes on as soon as a step is done, before its client has the tokens: what the client
sends when a request ends is never in the step that begins in that instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from fabrictwin.base.errors import SimulatedError
from fabrictwin.base.records import record
from fabrictwin.serving.arrivals.demand import Demand, Integers
from fabrictwin.serving.engine.lockstep import Engine
from fabrictwin.serving.engine.replica import NEVER
from fabrictwin.serving.engine.router import Router
from fabrictwin.serving.scheduler.request import Request, no_keys
from fabrictwin.serving.scheduler.scheduler import Scheduler


@record
class Served:
    """Deliveries as the client saw them, in arrays by request or by delivery; times in picoseconds from the start.

    Attributes:
        demand: What was asked for.
        sent_ps: When each request was sent.
        replica: Which replica each went to.
        hits: Tokens of its prompt that were found in the prefix cache.
        preemptions: Times that each was preempted.
        request: Request of each delivery, in order of time.
        delivered_ps: When it was made.
        tokens: Tokens in it.
    """

    demand: Demand
    sent_ps: Integers
    replica: Integers
    hits: Integers
    preemptions: Integers
    request: Integers
    delivered_ps: Integers
    tokens: Integers


TURNAROUND_PS = 1
"""Between the last token of a request and the next that is sent for it: enough to miss the step that begins then.
The way to a client and back, with its tokens read and a prompt parsed, takes milliseconds, and the engine none."""


class _Client:
    """Requests that are yet to be sent, and those in flight."""

    def __init__(self, demand: Demand, concurrency: int | None) -> None:
        self.demand = demand
        self._due: deque[int] = deque(demand.arrival_ps.tolist())
        self._limit = concurrency or len(demand)
        self._ended_ps: deque[int] = deque()
        self._in_flight = 0
        self.sent = 0

    def next_ps(self) -> int:
        """Return when the next request may be sent, `NEVER` if one has to end first or none is left."""
        if not self._due:
            return NEVER
        if self._in_flight < self._limit:
            return self._due[0]
        return max(self._due[0], self._ended_ps[0]) if self._ended_ps else NEVER

    def send(self) -> tuple[int, int]:
        """Return the number of the next request and when it is sent."""
        at = self.next_ps()
        if self._in_flight >= self._limit:
            self._ended_ps.popleft()
            self._in_flight -= 1
        self._due.popleft()
        self._in_flight += 1
        self.sent += 1
        return self.sent - 1, at

    def ended(self, at_ps: int) -> None:
        """Count a request that has ended: its place is free right after."""
        at_ps += TURNAROUND_PS
        place = len(self._ended_ps)
        while place and self._ended_ps[place - 1] > at_ps:
            place -= 1
        self._ended_ps.insert(place, at_ps)


def _request(demand: Demand, number: int, sent_ps: int, scheduler: Scheduler) -> Request:
    layout = scheduler.cache.layout
    prompt, output = int(demand.prompt[number]), int(demand.output[number])
    keys = (
        demand.contents.keys(number, prompt, layout.block_size, layout.hash_lookahead)
        if layout.caching
        else no_keys
    )
    priority = int(demand.priority[number]) if demand.priority is not None else 0
    return Request(number, prompt, output, arrival_ps=sent_ps, priority=priority, key_source=keys)


def serve(
    demand: Demand,
    replicas: Sequence[Engine],
    router: Router,
    *,
    concurrency: int | None = None,
    token_ps: int = 0,
) -> Served:
    """Return what a client sees of a server that turns text into tokens in `token_ps` each.

    Raises:
        SimulatedError: A request fits no replica even alone, or its prompt is longer than the model takes.
    """
    client = _Client(demand, concurrency)
    count = len(demand)
    sent, chosen, hits, preemptions = (np.zeros(count, np.int64) for _ in range(4))
    config = replicas[0].scheduler.config
    limited = concurrency is not None
    read: list[tuple[int, int, Request]] = []  # when they are tokens, in a heap
    while True:
        first = min(range(len(replicas)), key=lambda place: replicas[place].next_ps)
        sends, due = client.next_ps(), read[0][0] if read else NEVER
        if min(sends, due) <= replicas[first].next_ps:
            if sends == due == NEVER:
                break
            if sends < due:
                number, at = client.send()
                sent[number] = at
                request = _request(demand, number, at, replicas[0].scheduler)
                if request.prompt >= config.max_model_len:
                    raise SimulatedError(
                        "VLLMValidationError",
                        f"request {number}",
                        f"got a prompt of {request.prompt} tokens, expected fewer than {config.max_model_len}",
                    )
                heappush(read, (at + token_ps * request.prompt, number, request))
                continue
            at, number, request = heappop(read)
            chosen[number] = place = router.choose(request, replicas) if len(replicas) > 1 else 0
            replicas[place].send(request, at)
            continue
        due = min(sends, due)
        # what ends elsewhere may send a request as soon as it does
        until = min([due, *(one.next_ps for one in replicas if one is not replicas[first])]) if limited else due
        at, finished = replicas[first].act(until)
        for request in finished:
            client.ended(at)
            hits[request.number] = request.hit
            preemptions[request.number] = request.preemptions
    ranks = [rank for replica in replicas for rank in replica.ranks]
    stuck = sum(rank.scheduler.unfinished for rank in ranks)
    if stuck or client.sent < count:
        raise SimulatedError("stalled", "server", f"{stuck} requests can never be scheduled")
    logs = [rank.deliveries for rank in ranks]
    at_ps = np.concatenate([np.frombuffer(log.at_ps, np.int64) for log in logs])
    order = np.argsort(at_ps, kind="stable")
    at_ps = at_ps[order]
    request_of = np.concatenate([np.frombuffer(log.request, np.int64) for log in logs])[order]
    tokens_of = np.concatenate([np.frombuffer(log.tokens, np.int64) for log in logs])[order]
    return Served(demand, sent, chosen, hits, preemptions, request_of, at_ps, tokens_of)
