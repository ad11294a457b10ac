"""What one step computes, and what comes back from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fabrictwin.serving.scheduler.request import Request


@dataclass(slots=True)
class Batch:
    """One scheduled step, in vLLM's order: requests that ran already, then those admitted.

    Attributes:
        tokens: Tokens that each request computes.
        drafts: Draft tokens among them.
        preempted: Requests that lost their blocks in making room.
        admitted: Requests that began to run or run again.
        sampling: Requests of which this step computes the last known token, so that a token comes out.
        total: Sum of `tokens`.
    """

    tokens: dict[Request, int] = field(default_factory=dict)
    drafts: dict[Request, int] = field(default_factory=dict)
    preempted: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    sampling: list[Request] = field(default_factory=list)
    total: int = 0


@dataclass(slots=True)
class Returned:
    """Output tokens that came of a step.

    Attributes:
        tokens: Output tokens that each request gained.
        finished: Requests that ended.
    """

    tokens: dict[Request, int] = field(default_factory=dict)
    finished: list[Request] = field(default_factory=list)
