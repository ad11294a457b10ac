"""Arrivals and lengths as `vllm bench serve` draws them, and conversations that share prefixes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictwin.serving.arrivals.demand import Demand, Unshared
from fabrictwin.serving.arrivals.process import arrival_times, conversations, lengths


@given(
    count=st.integers(1, 200), rate=st.floats(0.1, 1e4), burstiness=st.floats(0.05, 50), seed=st.integers(0, 99)
)
def test_the_last_request_is_sent_after_requests_by_rate(
    count: int, rate: float, burstiness: float, seed: int
) -> None:
    times = arrival_times(count, rate, burstiness=burstiness, seed=seed)
    assert (np.diff(times) >= 0).all()
    assert times[-1] == round(count / rate * 1e12) or abs(times[-1] - count / rate * 1e12) <= 1e-9 * times[-1]


def test_burstiness_is_that_of_intervals() -> None:
    """The variance of a gamma distribution's intervals over their squared mean is one over its shape."""
    for burstiness in (0.5, 1.0, 4.0):
        gaps = np.diff(arrival_times(40_000, 10, burstiness=burstiness, seed=3)).astype(float)
        assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / burstiness, rel=0.05)


def test_constant_and_all_at_once() -> None:
    assert set(np.diff(arrival_times(9, 4, burstiness=math.inf))) == {250_000_000_000}
    assert not arrival_times(5, math.inf).any()


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (1, 0), (math.nan, 1)])
def test_rates_that_are_none(rate: float, burstiness: float) -> None:
    with pytest.raises(ValueError, match="expected more than 0"):
        arrival_times(3, rate, burstiness=burstiness)


def test_lengths_fill_their_range() -> None:
    drawn = lengths(5000, 100, ratio=0.3, seed=2)
    assert (drawn.min(), drawn.max()) == (70, 130)
    assert set(lengths(10, 100)) == {100}
    with pytest.raises(ValueError, match="range ratio"):
        lengths(3, 10, ratio=1.0)


@given(turns=st.integers(1, 4), prefixes=st.integers(0, 3), prefix_tokens=st.integers(0, 64))
def test_a_turn_begins_with_the_one_before_it(turns: int, prefixes: int, prefix_tokens: int) -> None:
    prompt, output = np.full(12, 40, np.int64), np.full(12, 20, np.int64)
    grown, contents = conversations(
        prompt, output, turns=turns, prefixes=prefixes, prefix_tokens=prefix_tokens if prefixes else 0
    )
    for index in range(12):
        keys = contents.keys(index, int(grown[index]), 16, 0)
        assert keys(0, 9) == keys(0, 4) + keys(4, 9)
        if index % turns:
            before = (int(grown[index - 1]) + 20) // 16
            assert keys(0, before) == contents.keys(index - 1, int(grown[index - 1]), 16, 0)(0, before)
            assert grown[index] == grown[index - 1] + 60
        elif index >= turns and not prefixes:
            assert not {*keys(0, 3)} & {*contents.keys(index - 1, int(grown[index - 1]), 16, 0)(0, 3)}


def test_prefixes_are_shared_up_to_their_last_full_block() -> None:
    prompt, output = np.full(4, 100, np.int64), np.full(4, 8, np.int64)
    grown, contents = conversations(prompt, output, turns=1, prefixes=2, prefix_tokens=40)
    one, two, three = (contents.keys(place, int(grown[place]), 16, 0)(0, 8) for place in (0, 1, 2))
    assert one[:2] == three[:2]
    assert one[2:] != three[2:]
    assert not {*one} & {*two}


def test_demand_refuses_what_is_none() -> None:
    one, two = np.array([1], np.int64), np.array([1, 2], np.int64)
    with pytest.raises(ValueError, match="as many"):
        Demand(one, two, two, Unshared())
    with pytest.raises(ValueError, match="at least one token"):
        Demand(one, np.array([0]), one, Unshared())
    with pytest.raises(ValueError, match="ascending"):
        Demand(np.array([2, 1]), two, two, Unshared())
