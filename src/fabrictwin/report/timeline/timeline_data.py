"""The timelines of report.html as compact data: every stage over the whole step, and the slices of one stage.

A browser draws some twenty thousand slices with ease. Where a run has more, the overview gives each of many short
stretches one state, so that all keep their share of the time, and the stage's slices are merged: first by
category and micro-batch, then by micro-batch, then by stretches of time. The middle of the step stays there
unmerged, as a close-up. Times are nanoseconds from the start of the step, as differences to keep the file small.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fabrictwin.base.arrays import I16, I64
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_NS
from fabrictwin.program.program import NONE, Program
from fabrictwin.report.breakdown import Breakdown
from fabrictwin.report.timeline.intervals import Occupancy, intervals
from fabrictwin.report.timeline.timeline_tracks import Slices, slices
from fabrictwin.trace.trace import Trace

LIMIT = 20_000
CLOSE_UP = 3_000
ROWS = 64
PIXELS = 4096  # gaps between slices that are shorter than such a part of the step need not be seen


def overview(program: Program, parts: Breakdown) -> dict[str, Any]:
    """One row an actor: what it was doing when. At most ROWS actors, evenly chosen."""
    count = len(program.actors)
    shown = np.unique(np.linspace(0, count - 1, min(count, ROWS)).round().astype(np.int64))
    occupied = parts.occupancy
    edges = np.searchsorted(occupied.actor, np.arange(count + 1))
    budget = max(100, LIMIT // len(shown))
    total = int((edges[shown + 1] - edges[shown]).sum())
    rows = []
    for actor in shown.tolist():
        start = occupied.start_ps[edges[actor] : edges[actor + 1]]
        state = occupied.state[edges[actor] : edges[actor + 1]]
        if total > LIMIT and len(start) > budget:
            start, state = _coarse(occupied, start, state, parts.step_ps, budget)
        rows.append(
            {
                "name": program.actors[actor].name,
                "ranks": len(program.actors[actor].ranks),
                "start": _differences(start),
                "state": state.tolist(),
            }
        )
    return {
        "rows": rows,
        "actors": count,
        "aggregated": total > LIMIT,
        "stretches": budget,
        "states": [state.key for state in occupied.states],
    }


def _differences(time_ps: I64) -> list[int]:
    return [int(d) for d in np.diff(time_ps // PS_PER_NS, prepend=0)]


def _coarse(occupied: Occupancy, start: I64, state: I16, end_ps: int, bins: int) -> tuple[I64, I16]:
    """One state for each of `bins` equal stretches, equal neighbours joined.

    A stretch goes to the state that is owed most time so far. Given to whatever filled most of it, what is short
    but frequent would not be drawn at all.
    """
    edges = np.arange(bins + 1) * (end_ps / bins)
    ends = np.append(start[1:], end_ps)
    filled = np.zeros((len(occupied.states), bins))
    for k in range(len(occupied.states)):
        mine = state == k
        if mine.any():
            # time spent in the state up to t grows from each of its starts to the end that follows
            points = np.stack([start[mine], ends[mine]], axis=1).ravel()
            grown = np.repeat(np.cumsum(ends[mine] - start[mine]), 2)
            grown[::2] -= (ends - start)[mine]
            filled[k] = np.diff(np.interp(edges, points, grown))
    chosen = np.empty(bins, np.int16)
    owed = np.zeros(len(occupied.states))
    for i in range(bins):
        owed += filled[:, i]
        chosen[i] = owed.argmax()
        owed[chosen[i]] -= end_ps / bins
    new = np.append(True, np.diff(chosen) != 0)
    return edges[:-1][new].astype(np.int64), chosen[new]


@record
class _Merged:
    track: I64
    start: I64
    end: I64
    name: I64
    micro_batch: I64
    count: I64


def stage(program: Program, trace: Trace) -> dict[str, Any]:
    """The slices of the actor in the middle of the pipeline: the tracks, all slices, and a close-up if merged."""
    chosen = len(program.actors) // 2
    found = intervals(program, trace)
    lanes = slices(program, found, np.array([chosen], np.int32))
    names = [label.name for label in program.labels]
    categories = sorted({label.category for label in program.labels})
    category = np.array([categories.index(label.category) for label in program.labels], np.int64)
    everything = _Merged(
        track=lanes.track.astype(np.int64),
        start=lanes.start_ps,
        end=lanes.end_ps,
        name=lanes.label.astype(np.int64),
        micro_batch=lanes.micro_batch.astype(np.int64),
        count=np.ones(len(lanes), np.int64),
    )
    merged = _shrink(everything, category)
    data: dict[str, Any] = {
        "name": program.actors[chosen].name,
        "tracks": [track.name for track in lanes.tracks],
        "labels": names,
        "category": [label.category for label in program.labels],
        "slices": len(lanes),
        "all": _columns(merged),
    }
    if len(merged.start) < len(lanes):
        data["close_up"] = _close_up(lanes, everything, trace.end_ps)
    return data


def _columns(s: _Merged) -> dict[str, Any]:
    columns = {
        "track": s.track,
        "start": np.diff(s.start // PS_PER_NS, prepend=0),
        "width": (s.end - s.start) // PS_PER_NS,
        "label": s.name,
        "micro_batch": s.micro_batch,
        "count": s.count,
    }
    out: dict[str, Any] = {key: column.tolist() for key, column in columns.items()}
    if (s.count == 1).all():
        del out["count"]
    return out


def _shrink(s: _Merged, category: I64) -> _Merged:
    """Merge until at most LIMIT slices are left, losing as little as possible."""
    if len(s.start) <= LIMIT:
        return s
    for key in (category[s.name] * (int(s.micro_batch.max()) + 2) + s.micro_batch, s.micro_batch):
        merged = _merge(s, key, int(s.end.max()) // PIXELS)
        if len(merged.start) <= LIMIT:
            return merged
    width = max(1, int(s.end.max()) // LIMIT)
    while True:
        merged = _merge(s, s.start // width, width)
        if len(merged.start) <= LIMIT:
            return merged
        width *= 2


def _merge(s: _Merged, key: I64, gap_ps: int) -> _Merged:
    """Join neighbours of one track with equal keys and no longer gap between; the longest label gives the name."""
    new = np.ones(len(s.start), bool)
    new[1:] = (np.diff(s.track) != 0) | (np.diff(key) != 0) | (s.start[1:] - s.end[:-1] > gap_ps)
    first = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    labels = int(s.name.max()) + 1
    spent = np.zeros((len(first), labels), np.int64)
    np.add.at(spent, (group, s.name), s.end - s.start)
    same = np.minimum.reduceat(s.micro_batch, first) == np.maximum.reduceat(s.micro_batch, first)
    return _Merged(
        track=s.track[first],
        start=s.start[first],
        end=np.maximum.reduceat(s.end, first),
        name=spent.argmax(axis=1),
        micro_batch=np.where(same, s.micro_batch[first], NONE),
        count=np.add.reduceat(s.count, first),
    )


def _close_up(lanes: Slices, s: _Merged, end_ps: int) -> dict[str, Any]:
    """The slices around the middle of the step, as they are."""
    middle = end_ps // 2
    distance = np.maximum(np.abs(s.start - middle), np.abs(s.end - middle))
    reach = int(np.partition(distance, CLOSE_UP)[CLOSE_UP])
    low, high = middle - reach, middle + reach
    inside = (s.start < high) & (s.end > low)
    part = _Merged(*(getattr(s, f)[inside] for f in ("track", "start", "end", "name", "micro_batch", "count")))
    return {"from": low // PS_PER_NS, "to": high // PS_PER_NS, **_columns(part)}
