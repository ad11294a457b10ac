"""One engine under a clock: vLLM's loop around the scheduler (`vllm/v1/engine/core.py`).

The loop takes what has arrived, schedules a step while its queue of batches has room, and else waits for the
oldest batch. One batch at a time is in each stage of the pipeline. With two batches in flight the host's part
of a step runs while the device computes the one before it; with one it is added.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.serving.scheduler.batch import Batch, Returned
from fabrictwin.serving.scheduler.request import Request
from fabrictwin.serving.scheduler.scheduler import Scheduler
from fabrictwin.serving.step.shape import StepCost, StepShape, shape_of

NEVER = 2**63 - 1

Accepted = Callable[[Request, int], int]
"""Drafts of a request that are accepted, of as many."""


@record
class HostTimes:
    """Times that the host adds to a step, picoseconds.

    Attributes:
        schedule_ps: From the loop's turn to the launch of the step: scheduling and preparing inputs.
        request_ps: More of it for each request in the step.
        output_ps: From the end of the step to what the client gets: sampling's copy, detokenizing, streaming.
    """

    schedule_ps: int = 0
    request_ps: int = 0
    output_ps: int = 0


STEP_FIELDS = (
    "launched_ps",
    "done_ps",
    "tokens",
    "requests",
    "decodes",
    "preempted",
    "running",
    "waiting",
    "free_blocks",
)
"""Of each step: when it was launched and done, what was in it, and what it left running, waiting and free."""

WAITING_WEIGHT = 4
"""Of a request that waits against one that runs, in vLLM's own balancing (`vllm/v1/engine/core_client.py`)."""


class Deliveries:
    """Tokens that clients got, in order of the replica's time: request, picosecond, tokens."""

    def __init__(self) -> None:
        self.request = array("q")
        self.at_ps = array("q")
        self.tokens = array("q")


class Replica:
    """A scheduler with a clock. `act` runs one turn of its loop; `next_ps` says when that is due.

    `admitted_ps` says when each request first ran. `merges_decodes`: steps in which nothing happens but that
    requests decode are run in one turn. What comes out is the same.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cost: StepCost,
        host: HostTimes,
        accepted: Accepted | None = None,
        *,
        merges_decodes: bool = True,
    ) -> None:
        self.scheduler = scheduler
        self.next_ps = NEVER
        self.in_flight = 0
        self.deliveries = Deliveries()
        self.admitted_ps: dict[int, int] = {}
        self._steps = array("q")
        self.cost = cost
        self._host = host
        self._accepted = accepted
        self._arrived: deque[tuple[int, Request]] = deque()
        self._queue: deque[tuple[int, Batch]] = deque()
        self._depth = scheduler.config.steps_in_flight
        self._stages: list[int] = []
        self._decode_tokens = 1 + scheduler.config.num_speculative_tokens
        self._empty_steps = 0
        # a request waits at most a round of the pipeline or of the interval between prompts while nothing runs
        self._patience = scheduler.config.pipeline_parallel_size + scheduler.config.prefill_schedule_interval + 2
        self._merges = merges_decodes and scheduler.config.pipeline_parallel_size == 1

    @property
    def steps(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """Steps that ran, a row each, in the columns of `STEP_FIELDS`."""
        return np.frombuffer(self._steps, np.int64).reshape(-1, len(STEP_FIELDS))

    def send(self, request: Request, at_ps: int) -> None:
        """Send a request, which the loop takes at its next turn from `at_ps` on."""
        self._arrived.append((at_ps, request))
        self.in_flight += 1
        if self.next_ps == NEVER:
            self.next_ps = at_ps

    @property
    def ranks(self) -> tuple[Replica, ...]:
        """The engines of data parallel ranks that it is made of: itself."""
        return (self,)

    @property
    def workers(self) -> tuple[Replica, ...]:
        """All engines that run steps for it: itself."""
        return (self,)

    def wake(self, at_ps: int) -> None:
        """Let the loop turn again where it waits for nothing: something outside has changed."""
        if self.next_ps == NEVER:
            self.next_ps = at_ps

    @property
    def load(self) -> int:
        """Requests that wait × 4 and those that run, as vLLM's own balancing weighs them."""
        running = len(self.scheduler.running)
        return (self.in_flight - running) * WAITING_WEIGHT + running

    def cached_blocks(self, keys: list[int]) -> int:
        """Return how many blocks of a chain the prefix cache holds.

        A chain of cached blocks is taken to have no gaps, as the order of eviction leaves it, so that its end is
        found by halving.
        """
        cache = self.scheduler.cache
        groups = len(cache.layout.windows)
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            if cache.pool.find(keys[middle - 1] * groups):
                low = middle
            else:
                high = middle - 1
        return low

    def take(self, now: int) -> None:
        """Give the scheduler what has arrived."""
        while self._arrived and self._arrived[0][0] <= now:
            self.scheduler.add(self._arrived.popleft()[1])

    @property
    def arrives_ps(self) -> int:
        """Arrival of the next request that was sent, picoseconds; `NEVER` if none is under way."""
        return self._arrived[0][0] if self._arrived else NEVER

    def act(self, until_ps: int = 0) -> tuple[int, list[Request]]:
        """Run one turn, or several up to `until_ps`; returns when clients get what came of it, and who ended.

        Nothing may be sent to the replica before `until_ps` that is not sent yet.
        """
        now = self.next_ps
        scheduler = self.scheduler
        self.take(now)
        if self._merges and until_ps > now and scheduler.running:
            until_ps = min(until_ps, self._arrived[0][0]) if self._arrived else until_ps
            if self._decode_on(now, until_ps):
                return self.next_ps, []
        if scheduler.has_work:
            batch = scheduler.schedule()
            done = now
            if batch.total:
                now += self._host.schedule_ps + self._host.request_ps * len(batch.tokens)
                done = self._run(batch, now)
            self._queue.append((done, batch))
            if self._fills(batch, now):
                self.next_ps = now
                return now, []
        elif not self._queue:
            self.next_ps = self.arrives_ps
            return now, []
        done, batch = self._queue.popleft()
        self.next_ps = max(now, done)
        works = batch.total or any(later.total for _, later in self._queue)
        self._empty_steps = 0 if works else self._empty_steps + 1
        if self._empty_steps > self._patience:  # what waits does not fit, and nothing will end: vLLM spins
            self.next_ps = max(now, self.arrives_ps)
            return now, []
        at_ps = self.next_ps + self._host.output_ps
        return at_ps, self.deliver(batch, at_ps)

    def deliver(self, batch: Batch, at_ps: int) -> list[Request]:
        """Hand out what came of a batch; returns the requests that ended."""
        returned = self._return(batch)
        self.in_flight -= len(returned.finished)
        deliveries = self.deliveries
        for request, tokens in returned.tokens.items():
            deliveries.request.append(request.number)
            deliveries.at_ps.append(at_ps)
            deliveries.tokens.append(tokens)
        return returned.finished

    def _decode_on(self, now: int, until_ps: int) -> bool:
        """Run steps of decodes alone while each begins before `until_ps`; returns if there was one."""
        scheduler = self.scheduler
        ahead = self._depth > 1
        if len(self._queue) != ahead or (ahead and self._queue[0][0] <= now):
            return False
        done_before, last = self._queue[0] if ahead else (0, None)
        most = scheduler.decode_steps(last)
        if not most:
            return False
        count = len(scheduler.running)
        # in a step, a request's new token is computed after those that were: one more than before it
        contexts = [request.computed for request in scheduler.running]
        squares = sum(held * held for held in contexts)
        shape = StepShape(count, count, sum(contexts), max(contexts), squares, [], count, uniform=True)
        host_ps = self._host.schedule_ps + self._host.request_ps * count
        steps, delivered = self._steps, []
        stage = self._stages[0] if self._stages else 0
        launched = now + host_ps
        while most and now < until_ps and not (ahead and done_before <= launched):
            scheduler.begin_decodes()
            free = scheduler.cache.pool.free_blocks
            ran = 0
            while ran < most and now < until_ps and not (ahead and done_before <= launched):
                shape.decode_squares += 2 * shape.decode_context + count
                shape.decode_context += count
                shape.longest_decode += 1
                done = stage = max(launched, stage) + self.cost.at(launched).stages_ps(shape)[0]
                steps.extend((launched, done, count, count, count, 0, count, 0, free))
                now, done_before = (done_before, done) if ahead else (done, done)
                delivered.append(now)
                launched = now + host_ps
                ran += 1
            scheduler.decode(ran)
            most = scheduler.decode_steps(last)
        if not delivered:
            return False
        self._deliver_decodes(delivered)
        self._stages = [stage]
        self.next_ps = now
        if last is not None:
            self._queue[0] = (done_before, last)
        return True

    def _deliver_decodes(self, at_ps: list[int]) -> None:
        """Hand out a token of every running request at the end of each step."""
        running, deliveries, output_ps = self.scheduler.running, self.deliveries, self._host.output_ps
        count = len(running)
        deliveries.request.extend(array("q", [request.number for request in running]) * len(at_ps))
        deliveries.at_ps.extend([at + output_ps for at in at_ps for _ in range(count)])
        deliveries.tokens.extend(array("q", [1]) * (count * len(at_ps)))

    def _fills(self, batch: Batch, now: int) -> bool:
        """Return if the loop schedules once more before it waits for a batch."""
        if len(self._queue) >= self._depth:
            return False
        release = self.scheduler.release
        if not batch.total and not (release.refills_past_empty_steps and self.scheduler.has_work):
            return False
        return release.stays_ahead_of_done_steps or self._queue[0][0] > now

    def _run(self, batch: Batch, now: int) -> int:
        """Launch a batch; returns when its last stage is done."""
        shape = shape_of(batch, self._decode_tokens)
        times = self.cost.at(now).stages_ps(shape)
        if len(self._stages) != len(times):
            self._stages = [0] * len(times)
        done = now
        for stage, time in enumerate(times):
            done = self._stages[stage] = max(done, self._stages[stage]) + time
        self.record(batch, now, done, shape.decodes)
        return done

    def record(self, batch: Batch, now: int, done: int, decodes: int) -> None:
        """Keep a step that was launched and is done then, and when requests first ran."""
        scheduler = self.scheduler
        for request in batch.admitted:
            self.admitted_ps.setdefault(request.number, now)
        self._steps.extend(
            (
                now,
                done,
                batch.total,
                len(batch.tokens),
                decodes,
                len(batch.preempted),
                len(scheduler.running),
                len(scheduler.waiting),
                scheduler.cache.pool.free_blocks,
            )
        )

    def _return(self, batch: Batch) -> Returned:
        scheduler, accepted = self.scheduler, self._accepted
        known = (
            {request: accepted(request, count) for request, count in batch.drafts.items()} if accepted else None
        )
        returned = scheduler.update(batch, known)
        drafts = scheduler.config.num_speculative_tokens
        if drafts and not scheduler.config.async_scheduling:
            scheduler.set_drafts(dict.fromkeys(batch.sampling, drafts))
        return returned
