"""Decide what each step computes, as vLLM's V1 scheduler does (`vllm/v1/core/sched/scheduler.py`).

1. Requests that run are scheduled first, in their order: each gets as many tokens as it is behind, within what the
   step has left. One that decodes is behind by one token and its drafts, one in its prompt by the rest of it.
2. If there are no blocks for a request, the last one that runs (or the one of least priority) is preempted: its
   blocks are freed, and it will compute its tokens again.
3. If nobody was preempted, waiting requests are admitted from the head of the queue while tokens, places and
   blocks last. The first that does not fit ends the scan.
4. Computed tokens are counted at once, so that the next step can be scheduled before this one returns; rejected
   drafts are taken back then.

Left out, and refused where a server is described: LoRA, multimodal inputs, encoder-decoder and pooling models,
structured output, streaming input.
"""

from __future__ import annotations

from fabrictwin.kernel.codes import NONE
from fabrictwin.serving.cache.manager import KvCache
from fabrictwin.serving.scheduler.batch import Batch, Returned
from fabrictwin.serving.scheduler.config import SchedulerConfig
from fabrictwin.serving.scheduler.release import Release
from fabrictwin.serving.scheduler.request import Remote, Request, Status
from fabrictwin.serving.scheduler.step_plan import StepPlan
from fabrictwin.serving.scheduler.waiting import waiting_queue


class Scheduler:
    """Requests of one engine, and what runs next. It has no clock: a caller says when to schedule.

    Attributes:
        config, cache, release: Settings, KV blocks, release of vLLM.
        waiting: Requests that wait.
        running: Requests that run, in the order in which they are scheduled.
        step: Steps scheduled, empty ones too.
        executed: Steps that computed something.
        last_prefill: The last of these with a prompt in it.
        capacity_bound: The last step that could admit prompts left some waiting.
        passed: Waiting requests that a step went past.
        loads: Requests whose blocks are held for KV that is to be loaded; a caller takes them from here.
        lookahead, draft_slots: Slots and rows that drafting takes for a request.
        most_running: Requests that run at once at most.
    """

    def __init__(self, config: SchedulerConfig, cache: KvCache, release: Release) -> None:
        self.config = config
        self.cache = cache
        self.release = release
        self.waiting = waiting_queue(config.policy)
        self.running: list[Request] = []
        self.step = 0
        self._has_finished = False
        self.lookahead = config.lookahead
        self.draft_slots = config.draft_slots if release.pads_drafts_on_admission else 0
        self.most_running = config.max_num_active_seqs or config.max_num_seqs
        self.executed = 0
        self.last_prefill = -config.prefill_schedule_interval
        self.capacity_bound = False
        self.passed: set[Request] = set()
        self.loads: list[Request] = []

    @property
    def unfinished(self) -> int:
        """Requests that run or wait."""
        return len(self.running) + len(self.waiting)

    @property
    def has_work(self) -> bool:
        """Requests run or wait, or ended since the last step, which the workers are told in one more step."""
        return bool(self.running) or len(self.waiting) > 0 or self._has_finished

    def add(self, request: Request) -> None:
        """Queue a request that has arrived."""
        self.cache.enter(request)
        self.waiting.add(request)

    def schedule(self) -> Batch:
        """Return what the next step computes; counts it as computed."""
        self.step += 1
        step = StepPlan(self)
        step.schedule_running()
        if not step.batch.preempted:
            step.admit_waiting()
        batch = step.batch
        batch.total = sum(batch.tokens.values())
        if batch.total:
            self.executed += 1
        if step.prefills:
            self.last_prefill = self.executed
        self._count(batch)
        self._has_finished = False
        return batch

    def _count(self, batch: Batch) -> None:
        """Count the tokens of a step as computed, and hold places for the output that it will give."""
        asynchronous = self.config.async_scheduling
        drafts = self.config.num_speculative_tokens
        stagger = self.step + self.config.pipeline_parallel_size if self.config.v2_runner else 0
        sampling = batch.sampling
        for request, tokens in batch.tokens.items():
            request.computed += tokens
            request.in_flight += tokens
            if request.computed < request.tokens + request.placeholders:
                request.chunk = True
                continue
            request.chunk = False
            sampling.append(request)
            if asynchronous:
                request.placeholders += 1 + (batch.drafts.get(request, 0) if drafts else 0)
                request.drafts = drafts
                request.eligible = stagger

    def decode_steps(self, last: Batch | None) -> int:
        """Return for how many steps nothing can happen but that every running request decodes a token.

        No request ends or waits, no draft is verified, and blocks get full or are needed in the first step only.
        `last`: the batch in flight, under asynchronous scheduling; it has to be of the same requests.
        """
        config = self.config
        if len(self.waiting) or config.num_speculative_tokens or config.pipeline_parallel_size > 1:
            return 0
        if self._has_finished or self.cache.layout.windows != (0,):
            return 0
        ahead = 0 if last is None else 1
        if last is not None and not (last.total == len(last.sampling) == len(self.running) == len(last.tokens)):
            return 0
        size = self.cache.layout.block_size
        steps = size
        missing = 0
        for request in self.running:
            behind = request.tokens - request.computed
            if request.chunk or request.placeholders != ahead or behind != 1 - ahead:
                return 0
            last_output = request.max_tokens if request.stop_after == NONE else request.stop_after
            last_output = min(last_output, request.max_tokens, config.max_model_len - request.prompt)
            # the step after takes a block; without one in flight a block's last token is cached in a step too
            alike = size - request.computed % size - (not ahead)
            steps = min(steps, max(alike, 1), last_output - request.outputs - 3)
            missing += len(request.blocks[0]) * size <= request.computed
        return max(steps, 0) if missing <= self.cache.pool.free_blocks else 0

    def begin_decodes(self) -> None:
        """Take and cache the blocks of the steps that `decode_steps` has told."""
        for request in self.running:
            self.cache.allocate(request, 1)

    def decode(self, steps: int) -> None:
        """Count steps in which every running request decoded a token, as many as `decode_steps` told."""
        self.step += steps
        self.executed += steps
        for request in self.running:
            request.computed += steps
            request.tokens += steps
            request.outputs += steps
            if request.eligible:
                request.eligible = self.step + 1
            self.cache.extend_keys(request)

    def loaded(self, request: Request) -> None:
        """Count the prompt of a request as computed: its KV is there. One token of it is computed to sample."""
        self.cache.cache(request, request.prompt)
        request.computed = request.prompt - 1
        request.remote = Remote.LOADED

    def load_failed(self, request: Request) -> None:
        """Let a waiting request compute its prompt itself: its KV never came."""
        self.cache.free(request)
        request.remote = Remote.NONE

    def preempt(self, request: Request) -> None:
        """Take all blocks of a request that no longer runs, and queue it again."""
        self.cache.free(request)
        request.status = Status.PREEMPTED
        request.computed = 0
        request.preemptions += 1
        if self.release.clears_drafts_when_preempted:
            request.drafts = 0
        if self.release.settles_before_freeing:
            request.stale = request.in_flight
            request.placeholders = 0
        self.waiting.put_back(request)

    def set_drafts(self, drafts: dict[Request, int]) -> None:
        """Give requests the drafts made after a step; under asynchronous scheduling they stay in the workers."""
        for request, count in drafts.items():
            if request.status != Status.FINISHED:
                request.drafts = 0 if request.chunk and self.release.skips_drafts_of_chunks else count

    def update(self, batch: Batch, accepted: dict[Request, int] | None = None) -> Returned:
        """Take what a step has computed: `accepted` drafts of each request and one token more for those that
        sample.

        Steps are to be returned in the order in which they were scheduled.
        """
        returned = Returned()
        stopped_running: set[Request] = set()
        stopped_waiting: list[Request] = []
        sampling = set(batch.sampling) if len(batch.sampling) != len(batch.tokens) else None
        settles = self.release.settles_before_freeing
        for request, tokens in batch.tokens.items():
            request.in_flight -= tokens
            stale = request.stale > 0
            if stale:
                request.stale -= tokens
            if request.status == Status.FINISHED or (sampling is not None and request not in sampling):
                continue
            was_running = request.status == Status.RUNNING
            gained = 1
            drafted = batch.drafts.get(request, 0) if batch.drafts else 0
            if drafted:
                gained += accepted.get(request, 0) if accepted else 0
                if not (stale and settles):
                    self._reject(request, drafted + 1 - gained)
            held = request.placeholders > 0
            kept, stopped = self._append(request, gained)
            if settles:
                self._settle(request, gained, kept, stale=stale, held=held, was_running=was_running)
            elif self.config.async_scheduling:
                request.placeholders -= kept
                if was_running:
                    self.cache.cache(request, request.computed - request.placeholders)
            returned.tokens[request] = kept
            if stopped:
                request.status = Status.FINISHED
                if not request.keeps_blocks:
                    self.cache.free(request)
                self._has_finished = True
                returned.finished.append(request)
                if was_running:
                    stopped_running.add(request)
                else:
                    stopped_waiting.append(request)
        if stopped_running:
            self.running = [request for request in self.running if request not in stopped_running]
        if stopped_waiting:
            self.waiting.remove(stopped_waiting)
            self.passed.difference_update(stopped_waiting)
        return returned

    def _reject(self, request: Request, rejected: int) -> None:
        """Take back tokens that were computed for drafts that were not accepted."""
        if request.computed > 0:
            request.computed -= rejected
        if request.placeholders > 0:
            request.placeholders -= rejected

    def _append(self, request: Request, gained: int) -> tuple[int, bool]:
        """Append output tokens up to where the request ends; returns how many, and if it ended."""
        last = request.max_tokens
        if request.stop_after != NONE:
            last = min(last, request.stop_after)
        last = min(last, self.config.max_model_len - request.prompt)
        left = max(last - request.outputs, 1)
        kept = min(gained, left)
        request.outputs += kept
        request.tokens += kept
        self.cache.extend_keys(request)
        return kept, kept == left

    def _settle(
        self, request: Request, gained: int, kept: int, *, stale: bool, held: bool, was_running: bool
    ) -> None:
        """Settle counts after output, and cache what is now certain."""
        if stale:
            return
        request.computed -= gained - kept
        if request.placeholders > 0:
            request.placeholders -= gained
        if was_running and (held or self.config.num_speculative_tokens > 0):
            self.cache.cache(request, request.computed - request.in_flight)
