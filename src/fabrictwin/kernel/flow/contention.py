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


class Uses(NamedTuple):
    """U uses of links by edges."""

    start: np.ndarray  # int64 [E + 1] where the uses of each edge begin
    edge: np.ndarray  # int64 [U]
    link: np.ndarray  # int64 [U]
    burst_ps: np.ndarray  # int64 [U] a burst on the link
    last_ps: np.ndarray  # int64 [U] the last of a piece, which may be shorter


class Pieces(NamedTuple):
    """What each of E edges carries."""

    number: np.ndarray  # int64 [E]
    bursts: np.ndarray  # int64 [E] of a piece
    latency_ps: np.ndarray  # int64 [E] from its last burst to where it is passed on


class Neighbours(NamedTuple):
    """Edges beside each edge, in one direction."""

    start: np.ndarray  # int64 [E + 1]
    edge: np.ndarray


class SharedLinks(NamedTuple):
    """Edges and what they share. Of all `before` it an edge needs the same piece, `next` pass it on."""

    uses: Uses
    pieces: Pieces
    next: Neighbours
    before: Neighbours


class UseState(NamedTuple):
    """How far each use is."""

    waiting: np.ndarray  # int64 [U] bursts that may go
    sent: np.ndarray  # int64 [U] bursts of the piece under way
    behind: np.ndarray  # int64 [U] next in the link's line
    in_line: np.ndarray  # int8 [U]


class LinkState(NamedTuple):
    """The line before each link."""

    head: np.ndarray  # int64 [L]
    tail: np.ndarray  # int64 [L]
    serving: np.ndarray  # int64 [L] the use whose burst is on the link


class EdgeState(NamedTuple):
    """How far each edge is."""

    bursts: np.ndarray  # int64 [E] of the piece that is arriving
    begun: np.ndarray  # int64 [E] pieces
    delivered: np.ndarray  # int64 [E] pieces
    end_ps: np.ndarray  # int64 [E] when the last one was


class Progress(NamedTuple):
    """How far everything is."""

    use: UseState
    link: LinkState
    edge: EdgeState


def at_rest(uses: int, links: int, edges: int) -> Progress:
    """Return the state before anything moves."""
    none, no_use = np.zeros(uses, np.int64), np.full(links, NONE, np.int64)
    return Progress(
        UseState(none, none.copy(), np.full(uses, NONE, np.int64), np.zeros(uses, np.int8)),
        LinkState(no_use, no_use.copy(), no_use.copy()),
        EdgeState(*(np.zeros(edges, np.int64) for _ in EdgeState._fields)),
    )


@outlined
def _join_line(shared, progress, use):
    """Put a use at the end of its link's line, if it does not stand there."""
    if progress.use.in_line[use]:
        return
    link = shared.uses.link[use]
    progress.use.in_line[use] = 1
    progress.use.behind[use] = NONE
    if progress.link.tail[link] == NONE:
        progress.link.head[link] = use
    else:
        progress.use.behind[progress.link.tail[link]] = use
    progress.link.tail[link] = use


@outlined
def _serve(shared, progress, queue, link, now):
    """The next burst on a link that is free."""
    use = progress.link.head[link]
    progress.link.serving[link] = use
    if use == NONE:
        return
    progress.link.head[link] = progress.use.behind[use]
    if progress.link.head[link] == NONE:
        progress.link.tail[link] = NONE
    progress.use.in_line[use] = 0
    progress.use.waiting[use] -= 1
    if progress.use.waiting[use] > 0:
        _join_line(shared, progress, use)
    lasts = shared.uses.burst_ps[use]
    progress.use.sent[use] += 1
    if progress.use.sent[use] == shared.pieces.bursts[shared.uses.edge[use]]:
        progress.use.sent[use] = 0
        lasts = shared.uses.last_ps[use]
    push(queue, now + lasts, 2 * link)
    if use + 1 < shared.uses.start[shared.uses.edge[use] + 1]:
        push(queue, now, 2 * (use + 1) + 1)  # it passes through while it comes in


@outlined
def _add_bursts(shared, progress, queue, use, bursts, now):
    """More bursts for a use of a link."""
    progress.use.waiting[use] += bursts
    _join_line(shared, progress, use)
    link = shared.uses.link[use]
    if progress.link.serving[link] == NONE:
        _serve(shared, progress, queue, link, now)


@outlined
def _begin_pieces(shared, progress, queue, e, now):
    """Edge `e` gets the pieces that all before it have brought."""
    ready = shared.pieces.number[e]
    for b in range(shared.before.start[e], shared.before.start[e + 1]):
        ahead = 1 if shared.before.edge[b] == e else 0  # a piece that goes around begins somewhere
        ready = min(ready, progress.edge.delivered[shared.before.edge[b]] + ahead)
    if ready > progress.edge.begun[e]:
        more = ready - progress.edge.begun[e]
        progress.edge.begun[e] = ready
        _add_bursts(shared, progress, queue, shared.uses.start[e], more * shared.pieces.bursts[e], now)


@outlined
def _leave_link(shared, progress, queue, link, now):
    """A burst has left its link."""
    use = progress.link.serving[link]
    e = shared.uses.edge[use]
    if use + 1 == shared.uses.start[e + 1]:
        progress.edge.bursts[e] += 1
        if progress.edge.bursts[e] == shared.pieces.bursts[e]:
            progress.edge.bursts[e] = 0
            push(queue, now + shared.pieces.latency_ps[e], -1 - e)
    _serve(shared, progress, queue, link, now)


@outlined
def _deliver(shared, progress, queue, e, now):
    """A piece is where it is passed on."""
    progress.edge.delivered[e] += 1
    progress.edge.end_ps[e] = now
    for n in range(shared.next.start[e], shared.next.start[e + 1]):
        _begin_pieces(shared, progress, queue, shared.next.edge[n], now)


@hot_entry
def play(shared, progress, queue):
    """Until every edge has brought its pieces.

    The queue holds 2 l where link l becomes free, 2 u + 1 where a burst comes to use u, -1 - e for a piece of e.
    """
    for e in range(len(shared.pieces.bursts)):
        _begin_pieces(shared, progress, queue, e, 0)
    while queue.size[0] > 0:
        now = queue.time_ps[0]
        what = pop(queue)
        if what < 0:
            _deliver(shared, progress, queue, -1 - what, now)
        elif what % 2:
            _add_bursts(shared, progress, queue, what // 2, 1, now)
        else:
            _leave_link(shared, progress, queue, what // 2, now)
