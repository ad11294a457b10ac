"""Compiled: a graph of operations walked many times over, each time with other durations.

An operation starts when all before it have ended. Steps are independent; a step's draws depend on the seed, the
step and the operation alone, so that a source of noise that is left out leaves the draws of the others alone.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.jit.decorators import entry, helper
from fabrictwin.kernel.slices import OK, SLICED

TOGETHER = 8  # steps walked side by side: what an operation waits for is read once
CELLS, LEVELS = 512, 3  # of a table of quantiles
_GOLDEN = np.uint64(0xD1B54A32D192ED03)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S12 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(12)


@helper
def _uniform(seed, number):
    """In (0, 1): SplitMix64's finaliser."""
    x = np.uint64(number) * _GOLDEN + seed
    x = (x ^ (x >> _S30)) * _MIX1
    x = (x ^ (x >> _S27)) * _MIX2
    x = x ^ (x >> _S31)
    return (np.float64(x >> _S12) + 0.5) * 2.0**-52


@helper
def _draw(value, t, u):
    """Value of table t at u: cells of equal chance, the last one divided again, to one in CELLS^LEVELS."""
    level = 0
    x = u * CELLS
    cell = np.int64(x)
    while cell == CELLS - 1 and level < LEVELS - 1:
        x = (x - cell) * CELLS
        cell = np.int64(x)
        level += 1
    return value[t, level, min(cell, CELLS - 1)]


@entry
def topological(after_start, after, order):
    """Fill `order` [n] so that each operation stands behind all before it. Returns how many could be placed."""
    n = len(order)
    waits = np.zeros(n, np.int64)
    count = np.zeros(n + 1, np.int64)
    for i in range(n):
        waits[i] = after_start[i + 1] - after_start[i]
        for k in range(after_start[i], after_start[i + 1]):
            count[after[k] + 1] += 1
    for i in range(n):
        count[i + 1] += count[i]
    successor = np.empty(max(count[n], 1), np.int64)
    fill = count[:n].copy()
    for i in range(n):
        for k in range(after_start[i], after_start[i + 1]):
            successor[fill[after[k]]] = i
            fill[after[k]] += 1
    done = 0
    for i in range(n):
        if waits[i] == 0:
            order[done] = i
            done += 1
    at = 0
    while at < done:
        i = order[at]
        at += 1
        for k in range(count[i], count[i + 1]):
            j = successor[k]
            waits[j] -= 1
            if waits[j] == 0:
                order[done] = j
                done += 1
    return done


@entry
def replay(after_start, after, base, actor, table, value, relative, factor, late, first, seed, end, at, budget):
    """Fill `end` [steps] with when the last operation of each step ends, in picoseconds.

    Begins at step `at[0]` and returns SLICED after `budget` operations with `at[0]` moved on, OK at the end.

    Operations stand behind all they wait for. `base` [n] durations; `actor` [n] whose factor applies, NONE for
    communications; `table` [n] the noise of each operation, NONE for none; `value` [tables, LEVELS, CELLS] what
    is drawn and added, times the base where `relative` [tables]. `factor` and `late` are [steps, actors]: what an
    actor's compute takes longer (1.0: nothing), and how long its `first` operations [n] wait before they start.
    """
    n, steps = len(base), len(end)
    finish = np.empty((n, TOGETHER), np.int64)
    latest = np.empty(TOGETHER, np.int64)
    start = np.empty(TOGETHER, np.int64)
    walked = 0
    for s0 in range(at[0], steps, TOGETHER):
        if walked >= budget:
            at[0] = s0
            return SLICED
        walked += n * TOGETHER
        here = min(TOGETHER, steps - s0)
        latest[:] = 0
        for i in range(n):
            start[:] = 0
            for p in range(after_start[i], after_start[i + 1]):
                before = finish[after[p]]
                for b in range(TOGETHER):
                    start[b] = max(start[b], before[b])
            a, t, took = actor[i], table[i], base[i]
            mine = finish[i]
            for b in range(here):
                lasts = np.float64(took)
                begin = start[b]
                if a != NONE:
                    lasts *= factor[s0 + b, a]
                    if first[i]:
                        begin += late[s0 + b, a]
                if t != NONE:
                    u = _uniform(seed, (s0 + b) * n + i)
                    drawn = _draw(value, t, u)
                    lasts += drawn * took if relative[t] else drawn
                mine[b] = begin + np.int64(np.rint(lasts))
                latest[b] = max(latest[b], mine[b])
        for b in range(here):
            end[s0 + b] = latest[b]
    return OK
