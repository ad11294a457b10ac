"""Compiled: pieces of channels on their way, a burst at a time, where links take turns among those that meet.

E edges pass pieces on, each as bursts over one link after the other; U uses of links, those of an edge in the
order of its way. A link sends one burst at a time and takes turns among its uses; a use that has more to send
goes to the end of the line as its burst leaves. Nothing else holds a burst up: no buffer is ever full.

Times are picoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fabrictwin.kernel.codes import NONE
from fabrictwin.kernel.flow.heaps import pop, push
from fabrictwin.kernel.jit.decorators import hot_entry, outlined


class Way(NamedTuple):
    """The edges and what they share."""

    use_start: np.ndarray  # int64 [E + 1]
    use_edge: np.ndarray  # int64 [U]
    use_link: np.ndarray  # int64 [U]
    use_ps: np.ndarray  # int64 [U] a burst on the link
    last_ps: np.ndarray  # int64 [U] the last of a piece, which may be shorter
    bursts: np.ndarray  # int64 [E] of a piece
    latency_ps: np.ndarray  # int64 [E] from its last burst to where it is passed on
    pieces: np.ndarray  # int64 [E]
    next_start: np.ndarray  # int64 [E + 1] edges that pass on what this one brings
    next_edge: np.ndarray
    before_start: np.ndarray  # int64 [E + 1] edges whose pieces it needs, of each the same one
    before_edge: np.ndarray


class Course(NamedTuple):
    """How far everything is."""

    held: np.ndarray  # int64 [U] bursts that may go
    sent: np.ndarray  # int64 [U] bursts of the piece under way
    behind: np.ndarray  # int64 [U] next in the link's line
    lined_up: np.ndarray  # int8 [U]
    head: np.ndarray  # int64 [L]
    tail: np.ndarray  # int64 [L]
    serving: np.ndarray  # int64 [L] the use whose burst is on the link
    through: np.ndarray  # int64 [E] bursts
    given: np.ndarray  # int64 [E] pieces that it could begin
    brought: np.ndarray  # int64 [E] pieces
    end_ps: np.ndarray  # int64 [E] when the last one was


@outlined
def _line_up(way, course, use):
    """Put a use at the end of its link's line, if it does not stand there."""
    if course.lined_up[use]:
        return
    link = way.use_link[use]
    course.lined_up[use] = 1
    course.behind[use] = NONE
    if course.tail[link] == NONE:
        course.head[link] = use
    else:
        course.behind[course.tail[link]] = use
    course.tail[link] = use


@outlined
def _serve(way, course, queue, link, now):
    """The next burst on a link that is free."""
    use = course.head[link]
    course.serving[link] = use
    if use == NONE:
        return
    course.head[link] = course.behind[use]
    if course.head[link] == NONE:
        course.tail[link] = NONE
    course.lined_up[use] = 0
    course.held[use] -= 1
    if course.held[use] > 0:
        _line_up(way, course, use)
    lasts = way.use_ps[use]
    course.sent[use] += 1
    if course.sent[use] == way.bursts[way.use_edge[use]]:
        course.sent[use] = 0
        lasts = way.last_ps[use]
    push(queue, now + lasts, 2 * link)
    if use + 1 < way.use_start[way.use_edge[use] + 1]:
        push(queue, now, 2 * (use + 1) + 1)  # it passes through while it comes in


@outlined
def _hand(way, course, queue, use, bursts, now):
    """More bursts for a use of a link."""
    course.held[use] += bursts
    _line_up(way, course, use)
    link = way.use_link[use]
    if course.serving[link] == NONE:
        _serve(way, course, queue, link, now)


@outlined
def _give(way, course, queue, e, now):
    """Edge `e` gets the pieces that all before it have brought."""
    ready = way.pieces[e]
    for b in range(way.before_start[e], way.before_start[e + 1]):
        ahead = 1 if way.before_edge[b] == e else 0  # a piece that goes around begins somewhere
        ready = min(ready, course.brought[way.before_edge[b]] + ahead)
    if ready > course.given[e]:
        more = ready - course.given[e]
        course.given[e] = ready
        _hand(way, course, queue, way.use_start[e], more * way.bursts[e], now)


@outlined
def _free(way, course, queue, link, now):
    """A burst has left its link."""
    use = course.serving[link]
    e = way.use_edge[use]
    if use + 1 == way.use_start[e + 1]:
        course.through[e] += 1
        if course.through[e] == way.bursts[e]:
            course.through[e] = 0
            push(queue, now + way.latency_ps[e], -1 - e)
    _serve(way, course, queue, link, now)


@outlined
def _bring(way, course, queue, e, now):
    """A piece is where it is passed on."""
    course.brought[e] += 1
    course.end_ps[e] = now
    for n in range(way.next_start[e], way.next_start[e + 1]):
        _give(way, course, queue, way.next_edge[n], now)


@hot_entry
def play(way, course, queue):
    """Until every edge has brought its pieces.

    The queue holds 2 l where link l becomes free, 2 u + 1 where a burst comes to use u, -1 - e for a piece of e.
    """
    for e in range(len(way.bursts)):
        _give(way, course, queue, e, 0)
    while queue.size[0] > 0:
        now = queue.time_ps[0]
        what = pop(queue)
        if what < 0:
            _bring(way, course, queue, -1 - what, now)
        elif what % 2:
            _hand(way, course, queue, what // 2, 1, now)
        else:
            _free(way, course, queue, what // 2, now)
