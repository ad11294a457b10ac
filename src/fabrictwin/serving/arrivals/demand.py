"""Requests as arrays: when each arrives, its lengths, and what it shares with others.

Tokens themselves never exist. What a prefix cache needs to know is which blocks hold the same tokens after the
same tokens, and two descriptions of that are enough: blocks that a trace has hashed, or a conversation that
goes on.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np

from fabrictwin.base.records import record
from fabrictwin.serving.scheduler.request import BlockKeys

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]

OUTPUT_BITS = 24  # of a block's identity: its place in a request
OWN = 1 << 60  # identities of blocks that no other request has


class Contents(Protocol):
    """Which blocks of which requests hold the same."""

    def keys(self, index: int, prompt: int, block_size: int, lookahead: int) -> BlockKeys:
        """Return the identities of a request's blocks; `lookahead` tokens after a block belong to it."""


def _places(base: int, start: int, stop: int) -> list[int]:
    return list(range(base + start, base + stop))


@record
class Unshared:
    """Requests that have nothing in common."""

    def keys(self, index: int, prompt: int, block_size: int, lookahead: int) -> BlockKeys:
        """Return identities that no other request has."""
        return partial(_places, OWN + (index << OUTPUT_BITS))


@record
class Conversations:
    """Requests whose first `shared` tokens are those of a prefix, and all others those of a conversation.

    Output belongs to the conversation: a later turn that begins with it finds it cached. Arrays by request.
    """

    prefix: Integers
    shared: Integers
    conversation: Integers

    def keys(self, index: int, prompt: int, block_size: int, lookahead: int) -> BlockKeys:
        """Return identities by prefix and by conversation, which are numbered apart."""
        own = OWN + (int(self.conversation[index]) << OUTPUT_BITS)
        prefix = int(self.prefix[index]) << OUTPUT_BITS
        inside = max(0, (int(self.shared[index]) - lookahead) // block_size)

        def keys(start: int, stop: int) -> list[int]:
            middle = min(max(start, inside), stop)
            return _places(prefix, start, middle) + _places(own, middle, stop)

        return keys


@record
class HashedBlocks:
    """Prompts as chains of hashed blocks of `tokens` each, larger than those of the server.

    `ids[offsets[i]:offsets[i + 1]]` are those of request i; the last of them may be partly filled. A block's hash
    stands for all tokens before it too, as in Mooncake's traces and in vLLM's own cache.
    """

    tokens: int
    offsets: Integers
    ids: Integers

    def keys(self, index: int, prompt: int, block_size: int, lookahead: int) -> BlockKeys:
        """Return identities from the trace for blocks of the prompt, and of its own for output.

        Raises:
            ValueError: The server's blocks do not divide the trace's.
        """
        if self.tokens % block_size:
            raise ValueError(
                f"block_size: got {block_size}, expected a divisor of the trace's {self.tokens} tokens"
            )
        ratio = self.tokens // block_size
        ids = self.ids[self.offsets[index] : self.offsets[index + 1]]
        hashed = min(len(ids) * ratio, max(0, (prompt - lookahead) // block_size))
        own = OWN + (index << OUTPUT_BITS)

        def keys(start: int, stop: int) -> list[int]:
            if start >= hashed:
                return _places(own, start, stop)
            middle = min(hashed, stop)
            places = np.arange(start, middle)
            known: list[int] = (ids[places // ratio] * ratio + places % ratio).tolist()
            return known + _places(own, middle, stop)

        return keys


@record
class Demand:
    """Requests in order of arrival.

    Attributes:
        arrival_ps: Time of arrival from the start, picoseconds, ascending.
        prompt: Tokens of the prompt.
        output: Output tokens, at which the request ends.
        contents: What they share.
        priority: Smaller goes first, under the priority policy.
    """

    arrival_ps: Integers
    prompt: Integers
    output: Integers
    contents: Contents
    priority: Integers | None = None

    def __post_init__(self) -> None:
        if not len(self.arrival_ps) == len(self.prompt) == len(self.output):
            raise ValueError("arrivals and lengths are not of as many requests")
        if len(self.prompt) and (self.prompt.min() < 1 or self.output.min() < 1):
            raise ValueError("prompt and output: expected at least one token of each")
        if (np.diff(self.arrival_ps) < 0).any():
            raise ValueError("arrivals: expected ascending times")

    def __len__(self) -> int:
        return len(self.arrival_ps)

    def first(self, count: int) -> Demand:
        """Return the first `count` requests."""
        cut = slice(0, count)
        priority = None if self.priority is None else self.priority[cut]
        return Demand(self.arrival_ps[cut], self.prompt[cut], self.output[cut], self.contents, priority)

    def at(self, arrival_ps: Integers) -> Demand:
        """Return the same requests at other times, in their order."""
        return Demand(arrival_ps, self.prompt, self.output, self.contents, self.priority)
