"""Compiled loops that come back after a budget: cut anywhere, they give what they give in one piece."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.packet_wiring import digest as digest_of
from support.packet_wiring import dumbbell, infiniband, machine, roce, star

from fabrictwin.kernel import slices
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.stepping import BUDGET, UNTIL, stepper
from fabrictwin.kernel.schedule.graph_walk import CELLS, LEVELS, replay
from fabrictwin.kernel.slices import OK, SLICED, in_slices

FLOWS = [(0, 4, 60_000), (1, 5, 9000), (2, 4, 30_000), (5, 0, 20_000)]
DONE = (s.FINISHED, s.IDLE)
LONG = 1 << 45  # bytes: hours of events


def crowded(kind: str):
    """Four senders through one link, with losses and credits or pauses on the way."""
    return machine(dumbbell(4, 4, kind=kind), roce() if kind == "ethernet" else infiniband(), FLOWS)


@pytest.mark.parametrize("kind", ["ethernet", "infiniband"])
@given(budgets=st.lists(st.integers(1, 300), min_size=1, max_size=20))
def test_a_run_that_is_cut_ends_as_one_that_is_not(kind, budgets):
    whole = crowded(kind)
    status = whole.run()
    cut = crowded(kind)
    turn, slices_ = 0, 0
    while (got := cut.run(budget=budgets[turn % len(budgets)])) == s.SLICED:
        turn += 1
        slices_ += 1
    assert (got, digest_of(cut)) == (status, digest_of(whole))
    assert cut.state.clock[0].events == whole.state.clock[0].events
    assert slices_ > 0


def test_a_budget_counts_events_and_a_spent_one_does_nothing():
    m = crowded("ethernet")
    assert m.run(budget=100) == s.SLICED
    assert m.state.clock[0].events == 100
    before = digest_of(m)
    assert m.run(budget=0) == s.SLICED
    assert digest_of(m) == before
    assert m.run() in DONE
    assert m.state.clock[0].open == 0


def test_steps_go_on_after_a_slice():
    whole, cut = crowded("infiniband"), crowded("infiniband")
    whole.run()
    steps, ask = stepper(cut.state)
    ask[UNTIL], ask[BUDGET] = s.NEVER - 1, 7
    seen = []
    for status in steps:
        seen.append(status)
        if status != s.SLICED:
            break
    assert len(seen) > 10
    assert seen[-1] in DONE
    assert digest_of(cut) == digest_of(whole)


class RingError(Exception):
    """Raised by the signal's handler."""


@contextmanager
def alarm(after_s: float) -> Iterator[None]:
    """Raise RingError in this thread as Ctrl-C would raise KeyboardInterrupt."""

    def ring(_number: int, _frame: object) -> None:
        raise RingError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_a_run_that_would_take_hours():
    machine(star(2), roce(), [(0, 1, 1000)]).run()  # compiled before the alarm
    m = machine(star(2), roce(), [(0, 1, LONG)])
    with alarm(0.2), pytest.raises(RingError):
        m.run()
    assert m.state.clock[0].open == 1
    now = m.now
    assert m.run(until=now + 10**8) == s.REACHED
    assert m.now > now


def walk_of(steps: int):
    """A chain of five operations with noise, drawn anew each step."""
    n = 5
    rng = np.random.default_rng(1)
    start = np.concatenate([[0, 0], np.arange(1, n)]).astype(np.int64)
    return (
        start,
        np.arange(n - 1, dtype=np.int64),
        rng.integers(100, 1000, n),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        rng.random((1, LEVELS, CELLS)) * 1000,
        np.zeros(1, np.bool_),
        np.ones((steps, 1)),
        np.zeros((steps, 1), np.int64),
        np.zeros(n, np.bool_),
        np.uint64(7),
    )


@pytest.mark.parametrize("budget", [1, 5, 39, 41, 1000])
def test_a_graph_is_walked_alike_in_slices(budget):
    steps = 43
    walk, whole, cut = walk_of(steps), np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    assert replay(*walk, whole, np.zeros(1, np.int64), 1 << 40) == OK
    at, calls = np.zeros(1, np.int64), 1
    while replay(*walk, cut, at, budget) == SLICED:
        calls += 1
    assert cut.tolist() == whole.tolist()
    assert len(set(whole.tolist())) > 30
    assert calls == -(-steps // (8 * max(1, -(-budget // 40))))


def test_budgets_grow_while_slices_are_short_and_shrink_when_they_are_long(monkeypatch):
    clock, given, left = [0.0], [], [40_000]
    monkeypatch.setattr(slices, "perf_counter", lambda: clock[0])
    between = []

    def work(budget: int) -> int:
        given.append(budget)
        done = min(budget, left[0])
        left[0] -= done
        clock[0] += done * (1e-5 if len(given) < 6 else 1e-3)
        return OK if left[0] == 0 else SLICED

    assert in_slices(work, between=lambda: between.append(left[0])) == OK
    first = slices.FIRST_BUDGET
    assert given[:4] == [first, 2 * first, 4 * first, 8 * first]
    assert given[6] == given[5] // 2
    assert len(between) == len(given) - 1
