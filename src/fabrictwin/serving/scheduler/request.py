"""A request as vLLM's V1 scheduler holds it (`vllm/v1/request.py`): counts of tokens, never tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from enum import IntEnum

from fabrictwin.kernel.codes import NONE

BlockKeys = Callable[[int, int], list[int]]
"""Identities of a request's full blocks `start` to `stop`, non-negative. Two blocks have one identity if and
only if they hold the same tokens after the same tokens, which is what vLLM's chained hash of a block says."""


class Status(IntEnum):
    """State of a request."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED = 3


class Remote(IntEnum):
    """A prompt whose KV another engine computes."""

    NONE = 0
    WANTED = 1
    LOADING = 2
    LOADED = 3


def no_keys(start: int, stop: int) -> list[int]:
    """Return no identities: for requests on a server without prefix caching."""
    raise ValueError(f"blocks {start} to {stop} of a request have no identities, and the server caches prefixes")


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One request and its state in the scheduler.

    Attributes:
        number: Unique; breaks ties of arrival under the priority policy, smaller first.
        prompt: Tokens of the prompt.
        max_tokens: Output tokens after which it ends.
        stop_after: Output tokens after which it ends by itself (end of sequence), `NONE` if it never does.
        arrival_ps: Time of arrival, picoseconds; orders requests under the priority policy.
        priority: Smaller goes first, under the priority policy.
        key_source: Tells the identities of its full blocks.
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
        remote: KV of its prompt comes from another engine.
        keeps_blocks: Its blocks stay when it ends, until another engine has them.
        cached: Full blocks that are in the prefix cache, by group; `NONE` while none was looked at.
    """

    number: int
    prompt: int
    max_tokens: int
    _: KW_ONLY
    arrival_ps: int = 0
    priority: int = 0
    stop_after: int = NONE
    remote: Remote = Remote.NONE
    keeps_blocks: bool = False
    key_source: BlockKeys = no_keys
    status: Status = field(default=Status.WAITING, init=False)
    tokens: int = field(init=False)
    outputs: int = field(default=0, init=False)
    computed: int = field(default=0, init=False)
    placeholders: int = field(default=0, init=False)
    drafts: int = field(default=0, init=False)
    in_flight: int = field(default=0, init=False)
    stale: int = field(default=0, init=False)
    chunk: bool = field(default=False, init=False)
    eligible: int = field(default=0, init=False)
    junction: int = field(default=0, init=False)
    hit: int = field(default=NONE, init=False)
    preemptions: int = field(default=0, init=False)
    keys: list[int] = field(default_factory=list, init=False)
    blocks: list[list[int]] = field(default_factory=list, init=False)
    cached: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.tokens = self.prompt

    def __lt__(self, other: Request) -> bool:
        return (self.priority, self.arrival_ps, self.number) < (other.priority, other.arrival_ps, other.number)

    def __repr__(self) -> str:
        return f"Request({self.number}, {self.status.name}, {self.computed}/{self.tokens})"
