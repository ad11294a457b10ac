"""The timeline as tracks: who does what, one thing at a time on each track.

An actor has a track for compute and one for each category of communication. Where slices of one track overlap
(two messages at once), the later one moves to a second track of the same name, so that nothing is drawn over.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.records import record
from fabrictwin.program.program import Program
from fabrictwin.report.timeline.intervals import Intervals


@record
class Track:
    """One track of one actor; `lane` counts from 0 among tracks of the same name."""

    actor: int
    kind: str
    category: str
    lane: int

    @property
    def name(self) -> str:
        base = "compute" if self.kind == "compute" else f"{self.category} communication"
        return base if self.lane == 0 else f"{base} {self.lane + 1}"


@record
class Slices:
    """Slices as columns, by track and then time. They never overlap on a track."""

    tracks: tuple[Track, ...]
    track: I32
    start_ps: I64
    end_ps: I64
    label: I32  # into Program.labels
    micro_batch: I32
    communication: I32  # into Program.communications; NONE for compute

    def __len__(self) -> int:
        return len(self.track)


def _lanes(start: I64, end: I64) -> I32:
    """The lane of each slice, given in order of start: the first lane that is free by then."""
    lane = np.zeros(len(start), np.int32)
    if not len(start) or (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
        return lane
    free: list[int] = []
    for i, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        k = next((k for k, free_at in enumerate(free) if free_at <= begins), len(free))
        if k == len(free):
            free.append(0)
        free[k] = ends
        lane[i] = k
    return lane


def slices(program: Program, found: Intervals, actors: I32) -> Slices:
    """The tracks of `actors`, in that order."""
    position = np.full(len(program.actors), -1, np.int64)
    position[actors] = np.arange(len(actors))
    rows = np.flatnonzero(position[found.actor] >= 0)
    # all compute categories share one track: an actor does one thing at a time
    computes = np.array([state.kind == "compute" for state in found.states])
    group = np.where(computes, 0, np.arange(len(found.states)))[found.state[rows]]
    order = np.lexsort((found.end_ps[rows], found.start_ps[rows], group, position[found.actor[rows]]))
    rows, group = rows[order], group[order]
    start, end = found.start_ps[rows], found.end_ps[rows]
    actor = found.actor[rows]

    tracks: list[Track] = []
    track = np.empty(len(rows), np.int32)
    edges = np.flatnonzero((np.diff(actor) != 0) | (np.diff(group) != 0)) + 1
    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(rows)], strict=True):
        if low == high:
            continue
        state = found.states[int(found.state[rows[low]])]
        lane = _lanes(start[low:high], end[low:high])
        track[low:high] = len(tracks) + lane
        category = "compute" if state.kind == "compute" else state.category
        tracks += [Track(int(actor[low]), state.kind, category, k) for k in range(int(lane.max()) + 1)]

    by_track = np.argsort(track, kind="stable")
    operation = found.operation[rows[by_track]]
    return Slices(
        tracks=tuple(tracks),
        track=track[by_track],
        start_ps=start[by_track],
        end_ps=end[by_track],
        label=program.operations.label[operation].astype(np.int32),
        micro_batch=program.operations.micro_batch[operation],
        communication=program.operations.communication[operation],
    )


def actors_within(found: Intervals, actors: int, limit: int) -> I32:
    """The first actors whose slices together stay within `limit`; at least one."""
    counts = np.cumsum(np.bincount(found.actor, minlength=actors))
    return np.arange(max(1, int(np.searchsorted(counts, limit, side="right"))), dtype=np.int32)[:actors]
