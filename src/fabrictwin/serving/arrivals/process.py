"""When requests are sent, and how long they are, as `vllm bench serve` draws them (`vllm/benchmarks/serve.py`).

Intervals are gamma distributed with the shape `burstiness` (1: a Poisson process; infinite: constant) and
scaled so that the last request is sent after requests / rate. At an infinite rate all are sent at once. A
closed loop is that with a limit on concurrency, which the client holds.
"""

from __future__ import annotations

import math

import numpy as np

from fabrictwin.base.units import PS_PER_S
from fabrictwin.serving.arrivals.demand import Conversations, Integers


def arrival_times(count: int, rate: float, *, burstiness: float = 1.0, seed: int = 0) -> Integers:
    """Return when `count` requests are sent, picoseconds, at `rate` requests a second.

    Raises:
        ValueError: The rate or the burstiness is not positive.
    """
    if not (rate > 0 and burstiness > 0):
        raise ValueError(f"rate and burstiness: got {rate:g} and {burstiness:g}, expected more than 0")
    if math.isinf(rate) or count == 0:
        return np.zeros(count, np.int64)
    if math.isinf(burstiness):
        intervals = np.full(count, 1 / rate)
    else:
        intervals = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), count)
    times = np.cumsum(intervals)
    scaled: Integers = np.rint(times * (count / rate / times[-1]) * PS_PER_S).astype(np.int64)
    return scaled


def lengths(count: int, mean: int, *, ratio: float = 0.0, seed: int = 0) -> Integers:
    """Return `count` lengths, uniform from mean × (1 - ratio) to mean × (1 + ratio), at least 1 token.

    Raises:
        ValueError: The ratio is not in [0, 1).
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"range ratio: got {ratio:g}, expected 0 or more and less than 1")
    low, high = max(1, math.floor(mean * (1 - ratio))), math.ceil(mean * (1 + ratio))
    return np.random.default_rng(seed).integers(low, high + 1, count).astype(np.int64)


def conversations(
    prompt: Integers, output: Integers, *, turns: int, prefixes: int, prefix_tokens: int
) -> tuple[Integers, Conversations]:
    """Return prompts and contents where every `turns` requests in a row are one conversation that grows.

    A turn's prompt is the one before it with its output, and the tokens that `prompt` gives it. Each conversation
    begins with one of `prefixes` prefixes of `prefix_tokens`, in turn.
    """
    count = len(prompt)
    index = np.arange(count)
    conversation = index // turns
    grown = prompt.copy()
    grown[::turns] += prefix_tokens
    for place in range(count):
        if place % turns:
            grown[place] += grown[place - 1] + output[place - 1]
    shared = np.full(count, prefix_tokens if prefixes else 0, np.int64)
    prefix = conversation % max(prefixes, 1)
    return grown, Conversations(prefix.astype(np.int64), shared, conversation.astype(np.int64))
