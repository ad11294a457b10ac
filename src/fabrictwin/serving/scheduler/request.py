"""A request as vLLM's V1 scheduler holds it (`vllm/v1/request.py`): counts of tokens, never tokens."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

NONE = -1

BlockKeys = Callable[[int, int], list[int]]
"""Identities of a request's full blocks `start` to `stop`, non-negative. Two blocks have one identity if and
only if they hold the same tokens after the same tokens, which is what vLLM's chained hash of a block says."""


class Status(IntEnum):
    """State of a request."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED = 3


def no_keys(start: int, stop: int) -> list[int]:
    """Return no identities: for requests on a server without prefix caching."""
    raise ValueError(f"blocks {start} to {stop} of a request have no identities, and the server caches prefixes")


class Request:
    """One request and its state in the scheduler.

    Attributes:
        number: Unique; breaks ties of arrival under the priority policy, smaller first.
        prompt: Tokens of the prompt.
        max_tokens: Output tokens after which it ends.
        stop_after: Output tokens after which it ends by itself (end of sequence), `NONE` if it never does.
        arrival_ps: Time of arrival, picoseconds; orders requests under the priority policy.
        priority: Smaller goes first, under the priority policy.
        tokens: Tokens known: prompt and output.
        outputs: Output tokens known.
        computed: Tokens whose KV is computed or in flight; drafts count until they are rejected.
        placeholders: Output tokens that are in flight (asynchronous scheduling).
        drafts: Draft tokens to verify in the next step.
        in_flight: Tokens scheduled and not yet returned.
        stale: Tokens in flight that were scheduled before the last preemption.
        chunk: The last step left tokens of the prompt to compute.
        eligible: Step from which it may decode again (the second model runner in a pipeline).
        junction: Tokens of a shared prefix that one group of layers has cached further than another, or 0.
        hit: Tokens found in the prefix cache on first admission, `NONE` before.
        preemptions: Times it was preempted.
        keys: Identities of its full blocks so far.
        blocks: Numbers of its blocks by group of layers; 0 stands for a block that is no longer held.
        cached: Full blocks that are in the prefix cache, by group; `NONE` while none was looked at.
    """

    __slots__ = (
        "arrival_ps",
        "blocks",
        "cached",
        "chunk",
        "computed",
        "drafts",
        "eligible",
        "hit",
        "in_flight",
        "junction",
        "key_source",
        "keys",
        "max_tokens",
        "number",
        "outputs",
        "placeholders",
        "preemptions",
        "priority",
        "prompt",
        "stale",
        "status",
        "stop_after",
        "tokens",
    )

    def __init__(
        self,
        number: int,
        prompt: int,
        max_tokens: int,
        *,
        arrival_ps: int = 0,
        priority: int = 0,
        stop_after: int = NONE,
        keys: BlockKeys = no_keys,
    ) -> None:
        self.number = number
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.stop_after = stop_after
        self.arrival_ps = arrival_ps
        self.priority = priority
        self.key_source = keys
        self.status = Status.WAITING
        self.tokens = prompt
        self.outputs = 0
        self.computed = 0
        self.placeholders = 0
        self.drafts = 0
        self.in_flight = 0
        self.stale = 0
        self.chunk = False
        self.eligible = 0
        self.junction = 0
        self.hit = NONE
        self.preemptions = 0
        self.keys: list[int] = []
        self.blocks: list[list[int]] = []
        self.cached: list[int] = []

    def __lt__(self, other: Request) -> bool:
        return (self.priority, self.arrival_ps, self.number) < (other.priority, other.arrival_ps, other.number)

    def __repr__(self) -> str:
        return f"Request({self.number}, {self.status.name}, {self.computed}/{self.tokens})"
