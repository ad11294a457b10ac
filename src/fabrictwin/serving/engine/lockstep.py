"""Data parallel ranks of one server that hold parts of the same experts (`DPEngineCoreProc` of vLLM).

Each rank has a scheduler and KV blocks of its own, and requests go to the least loaded. Steps are taken together:
a rank without work runs a step of one token while any other has work, since its experts are needed. Counts of
tokens are exchanged before each step, so that all launch when the last is ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from fabrictwin.serving.engine.replica import NEVER, HostTimes, Replica
from fabrictwin.serving.scheduler.batch import Batch
from fabrictwin.serving.scheduler.request import Request
from fabrictwin.serving.scheduler.scheduler import Scheduler
from fabrictwin.serving.step.shape import StepShape, shape_of


class Loaded(Protocol):
    """What a router sees of a server."""

    @property
    def load(self) -> int: ...

    @property
    def scheduler(self) -> Scheduler: ...

    def cached_blocks(self, keys: list[int]) -> int: ...


class Engine(Loaded, Protocol):
    """What serves under a clock: `next_ps` says when its next turn is due."""

    @property
    def next_ps(self) -> int: ...

    @property
    def workers(self) -> tuple[Replica, ...]: ...

    @property
    def ranks(self) -> tuple[Replica, ...]: ...

    def send(self, request: Request, at_ps: int) -> None: ...

    def act(self, until_ps: int = 0) -> tuple[int, list[Request]]: ...


class Together(Protocol):
    """Times of steps that ranks take together."""

    def together_ps(self, shapes: Sequence[StepShape | None]) -> tuple[int, ...]:
        """Return how long each stage computes, picoseconds; None stands for a rank without work."""


class TogetherCost(Protocol):
    """Times of steps that ranks take together, at any time."""

    def at(self, now_ps: int) -> Together:
        """Return the times of steps that begin at an instant, picoseconds."""


class Ranks:
    """Ranks of one server as a router sees them."""

    def __init__(self, ranks: Sequence[Loaded]) -> None:
        self._ranks = ranks

    @property
    def scheduler(self) -> Scheduler:
        """The first rank's."""
        return self._ranks[0].scheduler

    @property
    def load(self) -> int:
        """Return the load of all ranks."""
        return sum(rank.load for rank in self._ranks)

    def cached_blocks(self, keys: list[int]) -> int:
        """Return the most that a rank has cached of a chain."""
        return max(rank.cached_blocks(keys) for rank in self._ranks)


class Lockstep(Ranks):
    """Ranks that step together."""

    def __init__(self, ranks: Sequence[Replica], cost: TogetherCost, host: HostTimes) -> None:
        super().__init__(ranks)
        self.ranks = tuple(ranks)
        self.workers = self.ranks
        self.next_ps = NEVER
        self._cost = cost
        self._host = host
        self._queue: deque[tuple[int, list[Batch]]] = deque()
        self._stages: list[int] = []
        config = ranks[0].scheduler.config
        self._depth = config.steps_in_flight
        self._decode_tokens = 1 + config.num_speculative_tokens
        self._empty_steps = 0
        self._patience = config.pipeline_parallel_size + config.prefill_schedule_interval + 2

    def send(self, request: Request, at_ps: int) -> None:
        """Send a request to the least loaded rank, the first of equals."""
        min(self.ranks, key=lambda rank: rank.load).send(request, at_ps)
        if self.next_ps == NEVER:
            self.next_ps = at_ps

    def act(self, until_ps: int = 0) -> tuple[int, list[Request]]:
        """Run one turn of all ranks; returns when clients get what came of it, and who ended."""
        now = self.next_ps
        for rank in self.ranks:
            rank.take(now)
        if any(rank.scheduler.has_work for rank in self.ranks):
            batches = [rank.scheduler.schedule() for rank in self.ranks]
            done = now
            if any(batch.total for batch in batches):
                most = max(len(batch.tokens) for batch in batches)
                now += self._host.schedule_ps + self._host.request_ps * most
                done = self._run(batches, now)
            self._queue.append((done, batches))
            if self._fills(batches, now):
                self.next_ps = now
                return now, []
        elif not self._queue:
            self.next_ps = min(rank.arrives_ps for rank in self.ranks)
            return now, []
        done, batches = self._queue.popleft()
        self.next_ps = max(now, done)
        under_way = [batches, *(later for _, later in self._queue)]
        works = any(batch.total for step in under_way for batch in step)
        self._empty_steps = 0 if works else self._empty_steps + 1
        if self._empty_steps > self._patience:
            self.next_ps = max(now, min(rank.arrives_ps for rank in self.ranks))
            return now, []
        at_ps = self.next_ps + self._host.output_ps
        finished = []
        for rank, batch in zip(self.ranks, batches, strict=True):
            finished += rank.deliver(batch, at_ps)
        return at_ps, finished

    def _fills(self, batches: list[Batch], now: int) -> bool:
        """Return if the ranks schedule once more before they wait for a step."""
        if len(self._queue) >= self._depth:
            return False
        release = self.scheduler.release
        if not any(batch.total for batch in batches):
            works = any(rank.scheduler.has_work for rank in self.ranks)
            if not (release.refills_past_empty_steps and works):
                return False
        return release.stays_ahead_of_done_steps or self._queue[0][0] > now

    def _run(self, batches: list[Batch], now: int) -> int:
        """Launch a step of all ranks; returns when the last stage is done."""
        shapes = [shape_of(batch, self._decode_tokens) if batch.total else None for batch in batches]
        times = self._cost.at(now).together_ps(shapes)
        if len(self._stages) != len(times):
            self._stages = [0] * len(times)
        done = now
        for stage, time in enumerate(times):
            done = self._stages[stage] = max(done, self._stages[stage]) + time
        for rank, batch, shape in zip(self.ranks, batches, shapes, strict=True):
            if shape is not None:
                rank.record(batch, now, done, shape.decodes)
        return done
