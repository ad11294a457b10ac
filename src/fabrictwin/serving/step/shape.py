"""What a step computes, in the numbers that its time depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fabrictwin.serving.scheduler.batch import Batch
from fabrictwin.serving.step.parts import Parts


@dataclass(slots=True)
class StepShape:
    """The work of one step.

    Attributes:
        tokens: Tokens in all.
        decodes: Requests that compute one token (and drafts) after all others.
        decode_context: Tokens in their KV caches, summed.
        longest_decode: The longest of them.
        decode_squares: Squares of them, summed.
        chunks: Parts of prompts: (tokens, tokens before them) of each.
        samples: Requests that a token is sampled for.
        uniform: All requests decode, by as many tokens each.
    """

    tokens: int
    decodes: int
    decode_context: int
    longest_decode: int
    decode_squares: int
    chunks: list[tuple[int, int]]
    samples: int
    uniform: bool


def shape_of(batch: Batch, decode_tokens: int = 1) -> StepShape:
    """Return the work of a batch that was just scheduled; a decode computes up to `decode_tokens`."""
    chunks: list[tuple[int, int]] = []
    decodes = context = longest = squares = 0
    uniform = True
    for request, tokens in batch.tokens.items():
        if tokens <= decode_tokens and request.computed > request.prompt:
            decodes += 1
            held = request.computed
            context += held
            if held > longest:
                longest = held
            squares += held * held
            uniform = uniform and tokens == decode_tokens
        else:
            chunks.append((tokens, request.computed - tokens))
    return StepShape(
        tokens=batch.total,
        decodes=decodes,
        decode_context=context,
        longest_decode=longest,
        decode_squares=squares,
        chunks=chunks,
        samples=len(batch.sampling),
        uniform=uniform and not chunks,
    )


class StepCost(Protocol):
    """Times of steps on one replica."""

    def at(self, now_ps: int) -> StepCost:
        """Return the cost of steps that begin at an instant, picoseconds: itself but beside neighbours."""

    def stages_ps(self, shape: StepShape) -> tuple[int, ...]:
        """Return how long each stage of the pipeline computes a step, with what it communicates, picoseconds."""

    def decode_parts(self, *, mixed: bool) -> Parts:
        """Return what decoded tokens spent in steps so far: in those with prompts (`mixed`), or in others."""
