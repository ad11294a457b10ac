"""Compiled: the heaps of the fluid simulation, all by time or share, with ties broken alike on every machine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.jit.by_reference import by_reference
from fabrictwin.kernel.jit.decorators import helper, outlined


@by_reference
class Queue(NamedTuple):
    """A 4-ary heap by (time, sequence) of compute ends and deliveries."""

    time_ps: np.ndarray
    sequence: np.ndarray
    what: np.ndarray  # >= 0: operation whose compute ends; < 0: delivery for operation -1 - what
    size: np.ndarray  # int64 [2]: length, next sequence number


@by_reference
class Drains(NamedTuple):
    """An indexed 4-ary heap of the flows at work by the time at which they drain, ties in order of their start."""

    order: np.ndarray  # int32 [places]
    place: np.ndarray  # int32 [places] where in `order` each stands
    time_ps: np.ndarray  # int64 [places]
    sequence: np.ndarray  # int64 [places]
    size: np.ndarray  # int64 [2]: length, next sequence number


@helper
def _put(queue, i, time_ps, sequence, what):
    queue.time_ps[i] = time_ps
    queue.sequence[i] = sequence
    queue.what[i] = what


@outlined
def push(queue, time_ps, what):
    n = queue.size[0]
    sequence = queue.size[1]
    queue.size[0] = n + 1
    queue.size[1] = sequence + 1
    i = n
    while i > 0:
        parent = (i - 1) >> 2
        if queue.time_ps[parent] <= time_ps:
            break
        _put(queue, i, queue.time_ps[parent], queue.sequence[parent], queue.what[parent])
        i = parent
    _put(queue, i, time_ps, sequence, what)


@outlined
def pop(queue):
    """Remove the earliest and return what it is."""
    top = queue.what[0]
    n = queue.size[0] - 1
    queue.size[0] = n
    time_ps, sequence, what = queue.time_ps[n], queue.sequence[n], queue.what[n]
    i = 0
    while True:
        best = 4 * i + 1
        if best >= n:
            break
        for c in range(best + 1, min(best + 4, n)):
            if queue.time_ps[c] < queue.time_ps[best] or (
                queue.time_ps[c] == queue.time_ps[best] and queue.sequence[c] < queue.sequence[best]
            ):
                best = c
        if time_ps < queue.time_ps[best] or (time_ps == queue.time_ps[best] and sequence < queue.sequence[best]):
            break
        _put(queue, i, queue.time_ps[best], queue.sequence[best], queue.what[best])
        i = best
    _put(queue, i, time_ps, sequence, what)
    return top


@outlined
def earlier(drains, a, b):
    return drains.time_ps[a] < drains.time_ps[b] or (
        drains.time_ps[a] == drains.time_ps[b] and drains.sequence[a] < drains.sequence[b]
    )


@outlined
def settle_down(drains, who, i):
    """Let `who` sink from place `i`, which is free, to where it belongs."""
    order, place = drains.order, drains.place
    n = drains.size[0]
    while True:
        best = 4 * i + 1
        if best >= n:
            break
        for c in range(best + 1, min(best + 4, n)):
            if earlier(drains, order[c], order[best]):
                best = c
        if not earlier(drains, order[best], who):
            break
        order[i] = order[best]
        place[order[i]] = i
        i = best
    order[i] = who
    place[who] = i


@outlined
def reschedule(drains, who, time_ps):
    """Set when one drains and restore the heap."""
    drains.time_ps[who] = time_ps
    order, place = drains.order, drains.place
    i = place[who]
    while i > 0:
        parent = (i - 1) >> 2
        if not earlier(drains, who, order[parent]):
            break
        order[i] = order[parent]
        place[order[i]] = i
        i = parent
    settle_down(drains, who, i)


@outlined
def enter(drains, who, time_ps, sequence):
    """Take one in, which drains at some time."""
    drains.sequence[who] = sequence
    n = drains.size[0]
    drains.size[0] = n + 1
    drains.order[n] = who
    drains.place[who] = n
    reschedule(drains, who, time_ps)


@outlined
def leave(drains):
    """Take the first out and return it."""
    first = drains.order[0]
    n = drains.size[0] - 1
    drains.size[0] = n
    if n > 0:
        settle_down(drains, drains.order[n], 0)
    return first


@outlined
def share_push(share, what, n, value, item):
    i = n
    while i > 0:
        parent = (i - 1) >> 1
        if share[parent] < value or (share[parent] == value and what[parent] <= item):
            break
        share[i], what[i] = share[parent], what[parent]
        i = parent
    share[i], what[i] = value, item


@outlined
def share_pop(share, what, n):
    """Drop the smallest of `n`; the caller has read it."""
    value, item = share[n - 1], what[n - 1]
    n -= 1
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and (
            share[child + 1] < share[child] or (share[child + 1] == share[child] and what[child + 1] < what[child])
        ):
            child += 1
        if value < share[child] or (value == share[child] and item <= what[child]):
            break
        share[i], what[i] = share[child], what[child]
        i = child
    share[i], what[i] = value, item
