"""One pass of the scheduler over its requests: who runs on, who loses blocks, who is admitted."""

from __future__ import annotations

from typing import Protocol

from fabrictwin.kernel.codes import NONE
from fabrictwin.serving.cache.hits import Hit
from fabrictwin.serving.cache.manager import KvCache
from fabrictwin.serving.scheduler.batch import Batch
from fabrictwin.serving.scheduler.config import SchedulerConfig
from fabrictwin.serving.scheduler.release import Release
from fabrictwin.serving.scheduler.request import Remote, Request, Status
from fabrictwin.serving.scheduler.waiting import WaitingQueue


class SchedulerState(Protocol):
    """The scheduler's requests and settings, as one pass over them sees and changes them."""

    config: SchedulerConfig
    cache: KvCache
    release: Release
    waiting: WaitingQueue
    running: list[Request]
    step: int
    lookahead: int
    draft_slots: int
    most_running: int
    executed: int
    last_prefill: int
    capacity_bound: bool
    passed: set[Request]
    loads: list[Request]

    @property
    def unfinished(self) -> int: ...

    def preempt(self, request: Request) -> None: ...


class StepPlan:
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

    def __init__(self, scheduler: SchedulerState) -> None:
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
            and not scheduler.capacity_bound
            and scheduler.executed + 1 - scheduler.last_prefill < interval
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
        return scheduler.step < request.eligible or (self._holds and request.chunk)

    def _wanted(self, request: Request) -> int:
        """Tokens that a running request is behind, within what the step and the model's length leave."""
        behind = request.tokens + request.drafts + request.placeholders - request.computed
        if 0 < self._cap < behind:
            behind = self._cap
        rows = self._rows - self._scheduler.draft_slots
        return min(behind, self._budget, rows, self._config.max_model_len - 1 - request.computed)

    def schedule_running(self) -> None:
        """Schedule the requests that run, preempting from the end of the list when blocks run out."""
        scheduler = self._scheduler
        running = scheduler.running
        cache = scheduler.cache
        place = 0
        while place < len(running) and self._budget > 0:
            request = running[place]
            if self._rows <= scheduler.draft_slots:
                break
            if self._passes_over(request):
                place += 1
                continue
            wanted = self._wanted(request)
            if wanted <= 0:
                place += 1
                continue
            fits = True
            while not cache.allocate(request, wanted, lookahead=scheduler.lookahead):
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
        self._rows += tokens + self._scheduler.draft_slots
        return True

    def _take(self, request: Request, tokens: int) -> None:
        """Put a running request into the step, with the drafts that fit."""
        self.running_prefill |= request.chunk
        self.prefills |= request.chunk
        self.batch.tokens[request] = tokens
        self._budget -= tokens
        self._rows -= tokens + self._scheduler.draft_slots
        if request.drafts:
            drafts = tokens + request.computed - request.tokens - request.placeholders
            if drafts > 0:
                self.batch.drafts[request] = min(drafts, request.drafts)
            request.drafts = 0

    def admit_waiting(self) -> None:
        """Admit waiting requests from the head of the queue until one does not fit."""
        scheduler = self._scheduler
        passed: list[Request] = []
        while self._budget > 0 and len(scheduler.waiting) and self._rows > scheduler.draft_slots:
            if len(scheduler.running) >= scheduler.most_running:
                break
            request = scheduler.waiting.peek()
            if request.stale or request.remote == Remote.LOADING:
                passed.append(scheduler.waiting.pop())
                scheduler.passed.add(request)
                continue
            here = request.remote == Remote.LOADED
            hit = None if here else scheduler.cache.lookup(request)
            if request.remote == Remote.WANTED:
                if not self._hold_for_load(request, hit):
                    break
                continue
            computed = request.computed if here else hit.tokens if hit else 0
            tokens, padded = self._first_tokens(request, computed)
            if not tokens or not self._allocate_first(request, hit, tokens):
                break
            scheduler.waiting.pop()
            self._admit(request, computed, tokens, padded)
        for request in reversed(passed):  # they keep their order at the head of the queue
            scheduler.waiting.put_back(request)
        if not self._holds:
            scheduler.capacity_bound = len(scheduler.waiting) > len(scheduler.passed)

    def _first_tokens(self, request: Request, computed: int) -> tuple[int, bool]:
        """Tokens that a waiting request would begin with, 0 for none; and if it is padded with drafts."""
        scheduler, config = self._scheduler, self._config
        if self._holds and computed < request.tokens - 1:
            return 0, False
        left = min(self._budget, self._rows - scheduler.draft_slots)
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
        lookahead = scheduler.lookahead if release.reserves_lookahead_on_admission else 0
        return cache.allocate(request, tokens, hit=hit, lookahead=lookahead, margin=beside_others)

    def _hold_for_load(self, request: Request, hit: Hit | None) -> bool:
        """Hold blocks for the whole prompt of a request, and ask for the KV that is not cached here."""
        scheduler = self._scheduler
        found = hit.tokens if hit else 0
        if not scheduler.cache.allocate(request, request.prompt - found, hit=hit, computed_later=True):
            return False
        request.hit = found
        request.remote = Remote.LOADING
        scheduler.loads.append(request)
        return True

    def _admit(self, request: Request, computed: int, tokens: int, padded: bool) -> None:
        scheduler = self._scheduler
        if request.hit == NONE:
            request.hit = computed
        scheduler.running.append(request)
        scheduler.passed.discard(request)
        request.status = Status.RUNNING
        request.remote = Remote.NONE
        request.computed = computed
        self.batch.admitted.append(request)
        self.batch.tokens[request] = tokens
        self._budget -= tokens
        self._rows -= tokens + scheduler.draft_slots
        if padded:
            self.batch.drafts[request] = self._config.num_speculative_tokens
        self.prefills |= computed < request.tokens - 1
