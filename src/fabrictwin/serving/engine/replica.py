"""One engine under a clock: vLLM's loop around the scheduler (`vllm/v1/engine/core.py`).

The loop takes what has arrived, schedules a step while its queue of batches has room, and else waits for the
oldest batch. One batch at a time is in each stage of the pipeline. With two batches in flight the host's part
of a step runs while the device computes the one before it; with one it is added.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fabrictwin.serving.scheduler.batch import Batch, Returned
from fabrictwin.serving.scheduler.request import Request
from fabrictwin.serving.scheduler.scheduler import Scheduler
from fabrictwin.serving.step.shape import StepCost, shape_of

NEVER = 2**63 - 1

Accepted = Callable[[Request, int], int]
"""Drafts of a request that are accepted, of as many."""


@dataclass(frozen=True)
class HostTimes:
    """What the host adds to a step, picoseconds.

    Attributes:
        schedule_ps: From the loop's turn to the launch of the step: scheduling and preparing inputs.
        request_ps: More of it for each request in the step.
        output_ps: From the end of the step to what the client gets: sampling's copy, detokenizing, streaming.
    """

    schedule_ps: int = 0
    request_ps: int = 0
    output_ps: int = 0


@dataclass(frozen=True)
class StepRecord:
    """One step as it ran: when it was launched and done, what was in it, what waited."""

    launched_ps: int
    done_ps: int
    tokens: int
    requests: int
    preempted: int
    running: int
    waiting: int
    free_blocks: int


class Replica:
    """A scheduler with a clock. `act` runs one turn of its loop; `next_ps` says when that is due."""

    def __init__(
        self, scheduler: Scheduler, cost: StepCost, host: HostTimes, accepted: Accepted | None = None
    ) -> None:
        self.scheduler = scheduler
        self.next_ps = NEVER
        self.steps: list[StepRecord] = []
        self.in_flight = 0
        self._cost = cost
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

    def send(self, request: Request, at_ps: int) -> None:
        """Send a request, which the loop takes at its next turn from `at_ps` on."""
        self._arrived.append((at_ps, request))
        self.in_flight += 1
        if self.next_ps == NEVER:
            self.next_ps = at_ps

    def act(self) -> tuple[int, Returned | None]:
        """Run one turn; returns when clients get what came of it, and what."""
        now = self.next_ps
        scheduler = self.scheduler
        while self._arrived and self._arrived[0][0] <= now:
            scheduler.add(self._arrived.popleft()[1])
        if scheduler.has_work:
            batch = scheduler.schedule()
            done = now
            if batch.total:
                now += self._host.schedule_ps + self._host.request_ps * len(batch.tokens)
                done = self._run(batch, now)
            self._queue.append((done, batch))
            if self._fills(batch, now):
                self.next_ps = now
                return now, None
        elif not self._queue:
            self.next_ps = self._arrived[0][0] if self._arrived else NEVER
            return now, None
        done, batch = self._queue.popleft()
        self.next_ps = max(now, done)
        self._empty_steps = 0 if batch.total or self._queue else self._empty_steps + 1
        if self._empty_steps > self._patience:  # what waits does not fit, and nothing will end: vLLM spins
            self.next_ps = max(now, self._arrived[0][0]) if self._arrived else NEVER
            return now, None
        returned = self._return(batch)
        self.in_flight -= len(returned.finished)
        return self.next_ps + self._host.output_ps, returned

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
        times = self._cost.stages_ps(shape_of(batch, self._decode_tokens))
        if len(self._stages) != len(times):
            self._stages = [0] * len(times)
        done = now
        for stage, time in enumerate(times):
            done = self._stages[stage] = max(done, self._stages[stage]) + time
        scheduler = self.scheduler
        self.steps.append(
            StepRecord(
                launched_ps=now,
                done_ps=done,
                tokens=batch.total,
                requests=len(batch.tokens),
                preempted=len(batch.preempted),
                running=len(scheduler.running),
                waiting=len(scheduler.waiting),
                free_blocks=scheduler.cache.pool.free_blocks,
            )
        )
        return done

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
