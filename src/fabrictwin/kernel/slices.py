"""Long compiled calls in slices: between them Python sees signals, and whoever waits may be told how far it is.

A kernel that takes a budget (of events, instants, operations) does at most so much and returns SLICED where there
is more to do; called again it goes on as if it had not returned, so results do not depend on where it was cut.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

OK = 0
SLICED = 1

SLICE_S = 0.1
FIRST_BUDGET = 1 << 10
LARGEST_BUDGET = 1 << 40


def in_slices(call: Callable[[int], int], *, between: Callable[[], None] | None = None) -> int:
    """Call `call(budget)` until it returns something else than SLICED, and return that.

    Budgets are such that a slice takes about SLICE_S of wall time. `between` is called after each slice.
    """
    budget = FIRST_BUDGET
    while True:
        begun = perf_counter()
        status = call(budget)
        if status != SLICED:
            return status
        took = perf_counter() - begun
        if took < SLICE_S / 2:
            budget = min(2 * budget, LARGEST_BUDGET)
        elif took > 2 * SLICE_S:
            budget = max(budget // 2, 1)
        if between is not None:
            between()
