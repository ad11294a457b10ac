"""The twin's scheduler as a player of `vllm_workloads`."""

from __future__ import annotations

from support.vllm_workloads import Log, Query, Settings, accepted, play, scheduling

from fabrictwin.serving.cache.manager import CacheLayout, KvCache
from fabrictwin.serving.scheduler.batch import Batch
from fabrictwin.serving.scheduler.config import HIDDEN_STATE_DRAFTERS, SchedulerConfig
from fabrictwin.serving.scheduler.release import release
from fabrictwin.serving.scheduler.request import Request
from fabrictwin.serving.scheduler.scheduler import Scheduler


class TwinPlayer:
    """The twin's scheduler under the settings of a workload."""

    def __init__(self, settings: Settings, name: str) -> None:
        chosen = release(name)
        config = SchedulerConfig(
            **scheduling(settings, "async_scheduling", "pipeline_parallel_size", "v2_runner"),
            num_speculative_tokens=settings.num_speculative_tokens,
            drafter=settings.drafter or "ngram",
        )
        hidden = settings.drafter in HIDDEN_STATE_DRAFTERS
        layout = CacheLayout(
            blocks=settings.blocks,
            max_model_len=settings.max_model_len,
            block_size=settings.block_size,
            windows=settings.windows,
            caching=settings.enable_prefix_caching,
            in_flight_tokens=config.steps_in_flight * settings.max_num_batched_tokens,
            drops_last=hidden and not chosen.hashes_lookahead,
            hash_lookahead=int(hidden and chosen.hashes_lookahead and settings.enable_prefix_caching),
            watermark=settings.watermark,
        )
        self._settings = settings
        self._lookahead = layout.hash_lookahead
        self.scheduler = Scheduler(config, KvCache(layout, chosen), chosen)

    @property
    def free_blocks(self) -> int:
        return self.scheduler.cache.pool.free_blocks

    def add(self, query: Query) -> None:
        size = self._settings.block_size

        def keys(start: int, stop: int) -> list[int]:
            inside = [(place + 1) * size + self._lookahead <= query.shared for place in range(start, stop)]
            return [
                (query.prefix if shared else query.stream) * 10_000 + place
                for place, shared in zip(range(start, stop), inside, strict=True)
            ]

        self.scheduler.add(
            Request(
                query.number,
                query.prompt,
                query.max_tokens,
                arrival_ps=round(query.arrival * 1e12),
                priority=query.priority,
                stop_after=query.stop_after,
                key_source=keys,
            )
        )

    def has_work(self) -> bool:
        return self.scheduler.has_work

    def schedule(self) -> tuple[list[tuple[int, int]], list[int], Batch]:
        batch = self.scheduler.schedule()
        scheduled = [(request.number, tokens) for request, tokens in batch.tokens.items()]
        return scheduled, [request.number for request in batch.preempted], batch

    def update(self, step: Batch) -> None:
        known = {
            request: accepted(request.number, request.tokens, count) for request, count in step.drafts.items()
        }
        self.scheduler.update(step, known)
        count = self._settings.num_speculative_tokens
        if count and not self._settings.async_scheduling:
            every = self._settings.drafter != "ngram"
            sampling = set(step.sampling)
            self.scheduler.set_drafts(
                {request: count if every or request in sampling else 0 for request in step.tokens}
            )


def twin_log(settings: Settings, queries: list[Query], name: str) -> Log:
    """Play requests on the twin's scheduler of a release."""
    return play(
        TwinPlayer(settings, name), settings, queries, fills_past_done=release(name).stays_ahead_of_done_steps
    )
