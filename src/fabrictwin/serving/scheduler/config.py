"""Settings of the scheduler, in vLLM's names (`vllm/config/scheduler.py`, `speculative.py`, `parallel.py`)."""

from __future__ import annotations

from typing import Literal

from fabrictwin.base.records import record

Policy = Literal["fcfs", "priority"]
Drafter = Literal["ngram", "eagle", "eagle3", "mtp", "draft_model"]

HIDDEN_STATE_DRAFTERS = ("eagle", "eagle3", "mtp")


@record
class SchedulerConfig:
    """Settings that decide what runs in a step.

    Attributes:
        max_num_batched_tokens: Tokens of a step at most.
        max_num_seqs: Requests that run at once at most.
        max_model_len: Longest request, tokens.
        enable_chunked_prefill: A prompt may be computed over several steps.
        policy: `fcfs` or `priority`.
        long_prefill_token_threshold: Tokens of one request in a step at most, 0 for no limit.
        long_prefill_token_threshold_adaptive: The threshold is no less than a fair share of the step (0.33).
        async_scheduling: The next step is scheduled before the last one has returned.
        pipeline_parallel_size: Stages of the pipeline.
        num_speculative_tokens: Drafts for a request in a step.
        drafter: How drafts are made.
        v2_runner: The second model runner, which staggers decodes over the stages of a pipeline (0.33).
        max_num_scheduled_tokens: Tokens of a step at most, if not `max_num_batched_tokens`.
        max_num_active_seqs: Requests admitted at once at most, if not `max_num_seqs` (0.33).
        prefill_schedule_interval: Steps from one with prompts in it to the next while others decode (0.33).
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    policy: Policy = "fcfs"
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    async_scheduling: bool = False
    pipeline_parallel_size: int = 1
    num_speculative_tokens: int = 0
    drafter: Drafter = "ngram"
    v2_runner: bool = False
    max_num_scheduled_tokens: int | None = None
    max_num_active_seqs: int | None = None
    prefill_schedule_interval: int = 1

    @property
    def lookahead(self) -> int:
        """Slots that the drafter writes beyond the tokens of a request."""
        writes = self.drafter in HIDDEN_STATE_DRAFTERS or self.drafter == "draft_model"
        return self.num_speculative_tokens if writes else 0

    @property
    def draft_slots(self) -> int:
        """Rows of a step that one request's drafting takes beyond its tokens."""
        return int(self.num_speculative_tokens > 0 and self.drafter == "draft_model")

    @property
    def steps_in_flight(self) -> int:
        """Batches that may be in flight at once (`max_concurrent_batches`)."""
        if self.async_scheduling and self.v2_runner:
            return self.pipeline_parallel_size + 1
        if self.async_scheduling and self.pipeline_parallel_size == 1:
            return 2
        return self.pipeline_parallel_size
