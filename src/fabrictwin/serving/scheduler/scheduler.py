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
structured output, streaming input, KV connectors.
"""

from __future__ import annotations

from fabrictwin.serving.cache.hits import Hit
from fabrictwin.serving.cache.manager import KvCache
from fabrictwin.serving.scheduler.batch import Batch, Returned
from fabrictwin.serving.scheduler.config import SchedulerConfig
from fabrictwin.serving.scheduler.release import Release
from fabrictwin.serving.scheduler.request import NONE, Request, Status
from fabrictwin.serving.scheduler.waiting import waiting_queue


class Scheduler:
    """Requests of one engine, and what runs next. It has no clock: a caller says when to schedule."""

    def __init__(self, config: SchedulerConfig, cache: KvCache, release: Release) -> None:
        self.config = config
        self.cache = cache
        self.release = release
        self.waiting = waiting_queue(config.policy)
        self.running: list[Request] = []
        self._step = 0
        self._has_finished = False
        self._lookahead = config.lookahead
        self._draft_slots = config.draft_slots if release.pads_drafts_on_admission else 0
        self._most_running = config.max_num_active_seqs or config.max_num_seqs
        self._executed = 0
        self._last_prefill = -config.prefill_schedule_interval
        self._capacity_bound = False
        self._passed: set[Request] = set()

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
        self._step += 1
        step = _Step(self)
        step.schedule_running()
        if not step.batch.preempted:
            step.admit_waiting()
        batch = step.batch
        batch.total = sum(batch.tokens.values())
        if batch.total:
            self._executed += 1
        if step.prefills:
            self._last_prefill = self._executed
        self._count(batch)
        self._has_finished = False
        return batch

    def _count(self, batch: Batch) -> None:
        """Count the tokens of a step as computed, and hold places for the output that it will give."""
        asynchronous = self.config.async_scheduling
        drafts = self.config.num_speculative_tokens
        stagger = self._step + self.config.pipeline_parallel_size if self.config.v2_runner else 0
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

        No block gets full or is needed, no request ends or waits, no draft is verified. `last`: the batch in
        flight, under asynchronous scheduling; it has to be of the same requests.
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
        for request in self.running:
            if request.placeholders != ahead or request.tokens - request.computed != 1 - ahead:
                return 0
            last_output = request.max_tokens if request.stop_after == NONE else request.stop_after
            last_output = min(last_output, request.max_tokens, config.max_model_len - request.prompt)
            held = len(request.blocks[0]) * size - request.computed
            steps = min(steps, held, size - 2 - request.computed % size, last_output - request.outputs - 3)
        return max(steps, 0)

    def decode(self, steps: int) -> None:
        """Count steps in which every running request decoded a token, as many as `decode_steps` allows."""
        self._step += steps
        self._executed += steps
        for request in self.running:
            request.computed += steps
            request.tokens += steps
            request.outputs += steps
            if request.eligible:
                request.eligible = self._step + 1

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
            self._passed.difference_update(stopped_waiting)
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


class _Step:
    """One pass over the requests: the step's batch, and what it has left."""

    __slots__ = (
        "_budget",
        "_cap",
        "_config",
        "_holds",
        "_rows",
        "_scheduler",
        "batch",
        "prefills",
        "running_prefill",
    )

    def __init__(self, scheduler: Scheduler) -> None:
        config = scheduler.config
        self._scheduler = scheduler
        self._config = config
        self._budget = config.max_num_scheduled_tokens or config.max_num_batched_tokens
        self._rows = config.max_num_batched_tokens
        self.batch = Batch()
        self.running_prefill = False
        self.prefills = False
        self._cap = self._prefill_cap()
        self._holds = self._holds_prefills()

    def _prefill_cap(self) -> int:
        """Most tokens of one request in this step, 0 for no limit."""
        cap = self._config.long_prefill_token_threshold
        if cap == 0 or not self._scheduler.release.frees_long_prefill_alone:
            return cap
        requests = self._scheduler.unfinished
        if requests <= 1:
            return 0
        return max(cap, self._rows // requests) if self._config.long_prefill_token_threshold_adaptive else cap

    def _holds_prefills(self) -> bool:
        """Return if this step is one of decodes alone, by the interval between prompts."""
        scheduler, interval = self._scheduler, self._config.prefill_schedule_interval
        return (
            interval > 1
            and not scheduler._capacity_bound
            and scheduler._executed + 1 - scheduler._last_prefill < interval
            and any(not request.chunk for request in scheduler.running)
        )

    def _passes_over(self, request: Request) -> bool:
        """Return if a running request gets nothing in this step, whatever is left."""
        scheduler, config = self._scheduler, self._config
        if request.placeholders > 0:
            certain = request.computed + 2 - request.placeholders
            if certain >= request.prompt + request.max_tokens:
                return True
            if scheduler.release.waits_for_token_in_pipeline and config.pipeline_parallel_size > 1:
                return True
        return scheduler._step < request.eligible or (self._holds and request.chunk)

    def _wanted(self, request: Request) -> int:
        """Tokens that a running request is behind, within what the step and the model's length leave."""
        behind = request.tokens + request.drafts + request.placeholders - request.computed
        if 0 < self._cap < behind:
            behind = self._cap
        rows = self._rows - self._scheduler._draft_slots
        return min(behind, self._budget, rows, self._config.max_model_len - 1 - request.computed)

    def schedule_running(self) -> None:
        """Schedule the requests that run, preempting from the end of the list when blocks run out."""
        scheduler = self._scheduler
        running = scheduler.running
        cache = scheduler.cache
        place = 0
        while place < len(running) and self._budget > 0:
            request = running[place]
            if self._rows <= scheduler._draft_slots:
                break
            if self._passes_over(request):
                place += 1
                continue
            wanted = self._wanted(request)
            if wanted <= 0:
                place += 1
                continue
            fits = True
            while not cache.allocate(request, wanted, lookahead=scheduler._lookahead):
                victim, place = self._preempt_one(place)
                if victim is request:
                    fits = False
                    break
            if fits:
                self._take(request, wanted)
                place += 1
            elif not (scheduler.release.shifts_after_any_victim and self._config.policy == "priority"):
                break

    def _preempt_one(self, place: int) -> tuple[Request, int]:
        """Preempt the running request that is to go; returns it and where the scan stands after it."""
        scheduler = self._scheduler
        running = scheduler.running
        if self._config.policy == "priority":
            victim = max(running, key=lambda request: (request.priority, request.arrival_ps))
            index = running.index(victim)
            del running[index]
            scheduled = self._give_back(victim)
            shifts = index < place if scheduler.release.shifts_after_any_victim else scheduled
            place -= shifts
        else:
            victim = running.pop()
        scheduler.preempt(victim)
        self.batch.preempted.append(victim)
        return victim, place

    def _give_back(self, victim: Request) -> bool:
        """Take a request out of this step; returns if it was in it."""
        tokens = self.batch.tokens.pop(victim, 0)
        if not tokens:
            return False
        self.batch.drafts.pop(victim, None)
        self._budget += tokens
        self._rows += tokens + self._scheduler._draft_slots
        return True

    def _take(self, request: Request, tokens: int) -> None:
        """Put a running request into the step, with the drafts that fit."""
        self.running_prefill |= request.chunk
        self.prefills |= request.chunk
        self.batch.tokens[request] = tokens
        self._budget -= tokens
        self._rows -= tokens + self._scheduler._draft_slots
        if request.drafts:
            drafts = tokens + request.computed - request.tokens - request.placeholders
            if drafts > 0:
                self.batch.drafts[request] = min(drafts, request.drafts)
            request.drafts = 0

    def admit_waiting(self) -> None:
        """Admit waiting requests from the head of the queue until one does not fit."""
        scheduler = self._scheduler
        passed: list[Request] = []
        while self._budget > 0 and len(scheduler.waiting) and self._rows > scheduler._draft_slots:
            if len(scheduler.running) >= scheduler._most_running:
                break
            request = scheduler.waiting.peek()
            if request.stale:
                passed.append(scheduler.waiting.pop())
                scheduler._passed.add(request)
                continue
            hit = scheduler.cache.lookup(request)
            tokens, padded = self._first_tokens(request, hit.tokens if hit else 0)
            if not tokens or not self._allocate_first(request, hit, tokens):
                break
            scheduler.waiting.pop()
            self._admit(request, hit, tokens, padded)
        for request in passed:
            scheduler.waiting.put_back(request)
        if not self._holds:
            scheduler._capacity_bound = len(scheduler.waiting) > len(scheduler._passed)

    def _first_tokens(self, request: Request, computed: int) -> tuple[int, bool]:
        """Tokens that a waiting request would begin with, 0 for none; and if it is padded with drafts."""
        scheduler, config = self._scheduler, self._config
        if self._holds and computed < request.tokens - 1:
            return 0, False
        left = min(self._budget, self._rows - scheduler._draft_slots)
        tokens = request.tokens - computed
        padded = False
        drafts = config.num_speculative_tokens
        if (
            drafts
            and scheduler.release.pads_drafts_on_admission
            and tokens == 1
            and not self.running_prefill
            and (self.batch.tokens or computed > 0)
            and computed + drafts + 2 <= config.max_model_len
        ):
            if drafts + 1 > left:
                return 0, False
            tokens, padded = drafts + 1, True
        if 0 < self._cap < tokens:
            tokens = self._cap
        if not config.enable_chunked_prefill and tokens > left:
            return 0, False
        return min(tokens, left), padded

    def _allocate_first(self, request: Request, hit: Hit | None, tokens: int) -> bool:
        scheduler = self._scheduler
        release, cache = scheduler.release, scheduler.cache
        beside_others = bool(scheduler.running)
        if release.reserves_whole_prompt and not cache.fits_whole(request, hit, beside_others=beside_others):
            return False
        lookahead = scheduler._lookahead if release.reserves_lookahead_on_admission else 0
        return cache.allocate(request, tokens, hit=hit, lookahead=lookahead, margin=beside_others)

    def _admit(self, request: Request, hit: Hit | None, tokens: int, padded: bool) -> None:
        scheduler = self._scheduler
        computed = hit.tokens if hit else 0
        if request.hit == NONE:
            request.hit = computed
        scheduler.running.append(request)
        scheduler._passed.discard(request)
        request.status = Status.RUNNING
        request.computed = computed
        self.batch.admitted.append(request)
        self.batch.tokens[request] = tokens
        self._budget -= tokens
        self._rows -= tokens + scheduler._draft_slots
        if padded:
            self.batch.drafts[request] = self._config.num_speculative_tokens
        self.prefills |= computed < request.tokens - 1
