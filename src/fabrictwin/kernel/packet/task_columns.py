"""Tasks before they have a place in the state: records whose successors are numbered from 0."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state.records import records
from fabrictwin.kernel.packet.state.transport_records import task_dtype


class Tasks(NamedTuple):
    """Tasks that belong together; they may be placed again and again."""

    task: Any  # [n] `task_dtype`, successors counted from this call's first
    successor: Any  # int64: a task's number among these; n: a task elsewhere, named when they are placed


class Place(NamedTuple):
    """Where tasks stand in the state: their first number, and the first of their successors."""

    task: int
    successor: int


_NOBODY = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def make_tasks(
    kind: Any,
    queue_pair: Any,
    size_bytes: Any,
    delay_ps: Any,
    *,
    after: tuple[Any, Any] | None = None,
    after_done: tuple[Any, Any] | None = None,
) -> Tasks:
    """Return tasks by columns of [n].

    `after` and `after_done` are (task, predecessor) pairs: the task waits until the predecessor's bytes are in
    memory, or until its sender knows. Task n stands for one elsewhere.
    """
    n = len(kind)
    new = records(n, task_dtype)[:n]
    new.kind, new.qp = kind, queue_pair
    new.size_bytes, new.delay_ps = size_bytes, delay_ps
    for name in ("next", "start_ps", "received_ps", "done_ps"):
        new[name] = s.NONE
    pairs = [after or _NOBODY, after_done or _NOBODY]
    new.waits = sum(np.bincount(np.asarray(p[0], np.int64), minlength=n)[:n] for p in pairs)
    # successors of a task: those of the first kind, then those of the second
    waiting = np.concatenate([p[0] for p in pairs]).astype(np.int64)
    awaited = np.concatenate([p[1] for p in pairs]).astype(np.int64)
    which = np.repeat([0, 1], [len(p[0]) for p in pairs])
    order = np.lexsort((which, awaited))
    starts = np.concatenate([[0], np.cumsum(np.bincount(2 * awaited + which, minlength=2 * n))])
    new.next_start, new.next_middle, new.next_end = starts[0:-1:2], starts[1::2], starts[2::2]
    return Tasks(new, waiting[order])
