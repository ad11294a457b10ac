"""Steps of one communication that are skipped within an error that was allowed.

A ring's queue pairs send message after message, a step each, and every step waits for another queue pair's before.
Their packets need not come in the same order twice, so there is no exact period; but the time that a step takes on
average stands still. Then the communication is set forward by whole steps: every queue pair is as far into a
message as it was, of the message so many steps later, and all times lie as much later as so many steps took.

`Steps` says which steps are alike: the same sizes and delays, and the same waits from one to the next. `jump` sets
forward within them. Counters of ports are those of the steps that were seen, in proportion; bytes and packets of
messages are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record
from fabrictwin.engines.packet.repetition.kernel_snapshots import heap_of, lanes_of, packets_of

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.state.state import State
    from fabrictwin.kernel.packet.task_columns import Place

_PSNS = ("next_psn", "una", "posted_psn", "highest_psn", "expected", "in_memory")
_TASKS = ("head", "sending", "tail")
_TIMES = {
    "port": ("wait_since",),
    "outlet": ("last_tx",),
    "endpoint": ("next_message",),
    "qp": ("next_send", "next_message", "progress_ps"),
}


@record
class Steps:
    """A communication that is under way, by queue pair and step."""

    task: I64  # [queue pairs, steps]
    pair: I64  # [queue pairs] their numbers
    row: I64  # [tasks] of each task of the communication: its queue pair among these
    step: I64  # [tasks]
    packets: I64  # [queue pairs] of a message
    size_bytes: I64  # [queue pairs]
    first: int  # task
    alike: tuple[int, int]  # the first and the last of the steps that are alike

    def later(self, tasks: Any, steps: int) -> Any:
        """Tasks so many steps later; those of others, and none, as they are."""
        at = np.asarray(tasks, np.int64) - self.first
        own = (at >= 0) & (at < len(self.row))
        at = np.where(own, at, 0)
        to = np.minimum(self.step[at] + steps, self.task.shape[1] - 1)
        return np.where(own, self.task[self.row[at], to], tasks)


def steps_of(state: State, place: Place, count: int) -> Steps | None:
    """Return the steps of tasks that stand there, None where not every queue pair sends as many messages."""
    from fabrictwin.kernel.packet.state.constants import MESSAGE

    task = state.task[place.task : place.task + count]
    pair, row, messages = np.unique(task.qp, return_inverse=True, return_counts=True)
    if (task.kind != MESSAGE).any() or messages.min() != messages.max() or messages[0] < 3:
        return None
    order = np.argsort(row, kind="stable").reshape(len(pair), -1)
    step = np.empty(count, np.int64)
    step[order] = np.arange(order.shape[1])
    alike = _alike(state, place.task, order, row, step)
    if alike is None:
        return None
    size = task.size_bytes[order[:, alike[0]]].astype(np.int64)
    packets = np.maximum(-(-size // state.qp.mtu[pair]), 1).astype(np.int64)
    return Steps(order + place.task, pair.astype(np.int64), row, step, packets, size, place.task, alike)


def _alike(state: State, first: int, order: I64, row: I64, step: I64) -> tuple[int, int] | None:
    """Return the first and last of the most steps in a row that are alike."""
    task = state.task[first : first + len(row)]
    n, steps = len(row), order.shape[1]
    counts = task.next_end - task.next_start
    waiting = np.arange(int(counts.sum()))
    ahead = np.repeat(np.arange(n), counts)
    at = np.repeat(task.next_start - (np.cumsum(counts) - counts), counts) + waiting
    behind = state.successor[at].astype(np.int64) - first
    own = (behind >= 0) & (behind < n)
    behind = np.where(own, behind, 0)
    # who waits for each, and how many steps later, in one number each task
    which = np.where(own, row[behind] * 128 + step[behind] - step[ahead] + 64, -1)
    place = waiting - np.repeat(np.cumsum(counts) - counts, counts)
    mixed = np.zeros(n, np.int64)
    np.add.at(mixed, ahead, (which * 2 + 3) * (2 * place + 1) * 0x9E3779B1)
    key = np.stack([task.size_bytes, task.delay_ps, counts, task.next_middle - task.next_start, mixed])[:, order]
    same = (key[:, :, 1:] == key[:, :, :-1]).all(axis=(0, 1))  # [steps - 1]
    ends = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    if not len(ends):
        return None
    runs = ends.reshape(-1, 2)
    begin, end = runs[(runs[:, 1] - runs[:, 0]).argmax()]
    return (int(begin), int(end)) if steps > 2 else None


def progress(state: State, steps: Steps) -> float:
    """Return the steps that were acknowledged on average."""
    una = state.qp.una[steps.pair] - state.task.psn_start[steps.task[:, 0]]
    return float((una / steps.packets).mean())


def reach(state: State, steps: Steps) -> tuple[int, int, float]:
    """Return (steps that every queue pair is done with, those that one has posted, when the last done was, ps).

    The time is the mean of when messages of that step were in memory.
    """
    from fabrictwin.kernel.packet.state.constants import DONE, NONE

    received = state.task.received_ps[steps.task]
    open_ = (state.task.status[steps.task] != DONE) | (received == NONE)
    done = np.where(open_.any(axis=1), open_.argmax(axis=1), open_.shape[1])
    posted = (state.task.start_ps[steps.task] != NONE).sum(axis=1)
    complete = int(done.min())
    return complete, int(posted.max()), float(received[:, complete - 1].mean())


def lead_ps(state: State, steps: Steps, first: int, last: int) -> float:
    """Return by how much more the last queue pair was behind the mean in some of these steps than in others."""
    received = state.task.received_ps[steps.task[:, first:last]]
    behind = received.max(axis=0) - received.mean(axis=0)
    return float(behind.max() - behind.min())


@record
class Seen:
    """What a step brings."""

    step_ps: float
    began_ps: int
    port: dict[str, Any]  # by counter

    def of(self, steps: int) -> tuple[int, dict[str, I64]]:
        """Return time and counters of so many steps."""
        port = {name: np.rint(more * steps).astype(np.int64) for name, more in self.port.items()}
        return round(self.step_ps * steps), port


def jump(state: State, steps: Steps, seen: Seen, by: int) -> int:
    """Set a communication forward by some steps; returns the packet-hops that were not played."""
    later_ps, counts = seen.of(by)
    moved = np.zeros(len(state.qp), np.int64)
    moved[steps.pair] = by * steps.packets
    _move_events(state, steps, by, later_ps)
    _move_packets(state, steps, by, moved, later_ps)
    _move_tasks(state, steps, by, later_ps)
    for name in _PSNS:
        state.qp[name] += moved
    for name in _TASKS:
        state.qp[name][steps.pair] = steps.later(state.qp[name][steps.pair], by)
    for array, names in _TIMES.items():
        for name in names:
            column = getattr(state, array)[name]
            column[column >= seen.began_ps] += later_ps
    for name, more in counts.items():
        state.port[name] += more
    hops = int(counts["tx_packets"].sum())
    clock = state.clock[0]
    clock.now += later_ps
    clock.hops += hops
    clock.created += by * int(steps.packets.sum())
    clock.delivered += by * int(steps.packets.sum())
    clock.payload_delivered += by * int(steps.size_bytes.sum())
    return hops


def _move_events(state: State, steps: Steps, by: int, later_ps: int) -> None:
    """Let all that is scheduled lie later, and tasks among it be those of later steps."""
    from fabrictwin.kernel.packet.events import KIND_SHIFT, VALUE_MASK, QueueEvent

    state.event.time[lanes_of(state).at] += later_ps
    lanes = state.lane_time[: int(state.clock[0].lanes)]
    lanes[lanes < 1 << 61] += later_ps
    heap = state.heap[: int(state.clock[0].heap)]
    own = ~_of_others(heap.what, steps)
    heap.time[own] += later_ps
    starts = own & (heap.what >> KIND_SHIFT == QueueEvent.TASK)
    task = heap.what[starts] & VALUE_MASK
    heap.what[starts] += steps.later(task, by) - task
    heap[:] = heap[np.lexsort((heap.sequence, heap.time))]


def _move_packets(state: State, steps: Steps, by: int, moved: I64, later_ps: int) -> None:
    """Let packets on their way belong to messages of later steps."""
    from fabrictwin.kernel.packet.state.constants import ACK, ARRIVED, DATA, NONE

    found = packets_of(state, lanes_of(state), heap_of(state))
    packet = found.record[found.record.qp >= 0]
    at = found.at[found.record.qp >= 0]
    further = moved[packet.qp]
    arrived = (packet.marks & ARRIVED) != 0
    numbered = arrived | ((packet.kind == ACK) & (packet.extra != NONE))
    state.packet.psn[at] += further
    state.packet.sent_ps[at] = np.where(arrived, steps.later(packet.sent_ps, by), packet.sent_ps + later_ps)
    named = (packet.kind == DATA) & ~arrived
    state.packet.extra[at] += np.where(numbered, further, 0)
    state.packet.extra[at] = np.where(named, steps.later(packet.extra, by), state.packet.extra[at])


def _move_tasks(state: State, steps: Steps, by: int, later_ps: int) -> None:
    """Let each message of a later step be as far as that of its queue pair so many steps before it is."""
    from fabrictwin.kernel.packet.state.constants import DONE, NONE, WAITING

    last = steps.alike[1]
    at = steps.task[:, by : last + 1]
    task, was = state.task[at], state.task[steps.task[:, : last + 1 - by]]
    open_ = (task.status != DONE) | (task.received_ps == NONE)
    ended = (was.status == DONE) & (task.status != DONE)
    for name in ("status", "waits", "place"):
        task[name] = np.where(open_, was[name], task[name])
    for name in ("start_ps", "received_ps", "done_ps"):
        task[name] = np.where(open_, np.where(was[name] == NONE, NONE, was[name] + later_ps), task[name])
    posted = open_ & (was.status != WAITING)
    for name in ("psn_start", "psn_end"):
        task[name] = np.where(posted, was[name] + (by * steps.packets)[:, None], task[name])
    task.next = np.where(open_, steps.later(was.next, by), task.next)
    state.task[at] = task
    state.clock[0].open -= int(ended.sum())


def _of_others(what: I64, steps: Steps) -> Any:
    """Tell which events are tasks of others than a communication, or timers that its packets do not set."""
    from fabrictwin.kernel.packet.events import KIND_SHIFT, VALUE_MASK, QueueEvent

    kind, at = what >> KIND_SHIFT, (what & VALUE_MASK) - steps.first
    others = (kind == QueueEvent.TASK) & ((at < 0) | (at >= len(steps.row)))
    return others | ((kind >= QueueEvent.PAUSE_END) & (kind != QueueEvent.RTO))


def other_tasks_ps(state: State, steps: Steps) -> int:
    """Return when the first task begins or ends that is none of a communication's; far off where there is none."""
    heap = state.heap[: int(state.clock[0].heap)]
    return int(heap.time[_of_others(heap.what, steps)].min(initial=1 << 61))
