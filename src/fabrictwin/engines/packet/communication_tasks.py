"""One communication as tasks of the packet kernel, each message of it one or several.

A communication is expanded once. Its tasks are placed when it starts, as often as it does, where an earlier one's
tasks of that number stood if those are done: memory goes with what is under way, not with what was posted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from fabrictwin.engines.packet.message_routes import MessageRoute
from fabrictwin.program.sends import Sends

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.machine import Machine
    from fabrictwin.kernel.packet.task_columns import Place, Tasks

# by (source, target): the route of a channel's messages, and what a step costs in ps
Routes = dict[tuple[int, int], tuple[MessageRoute, int]]


class _Columns:
    """Tasks to be added, as growing columns. `after` are (task, predecessor): until its bytes are in memory."""

    def __init__(self) -> None:
        self.kind: list[int] = []
        self.queue_pair: list[int] = []
        self.size: list[int] = []
        self.delay: list[int] = []
        self.after: list[tuple[int, int]] = []

    def add(self, kind: int, queue_pair: int, size: int, delay: int) -> int:
        self.kind.append(kind)
        self.queue_pair.append(queue_pair)
        self.size.append(size)
        self.delay.append(delay)
        return len(self.kind) - 1


def expand(channels: Iterable[tuple[Sends, Routes]], wire_bytes: int, data_bytes: int) -> Tasks:
    """Return the tasks of all messages; the task elsewhere that waits for the last of them ends the communication.

    A byte of data is `wire_bytes / data_bytes` on the wire.
    """
    from fabrictwin.kernel.packet.task_columns import make_tasks

    columns, lasts = _Columns(), []
    for sends, routes in channels:
        done: list[list[int]] = []  # tasks at the end of each send
        awaited = np.zeros(len(sends), bool)
        awaited[sends.after] = True
        sent: dict[tuple[int, int], int] = {}
        ends = zip(sends.source.tolist(), sends.target.tolist(), strict=True)
        sizes = (-(-sends.length_bytes * wire_bytes // data_bytes)).tolist()
        starts, after = sends.after_start.tolist(), sends.after.tolist()
        for k, (pair, size) in enumerate(zip(ends, sizes, strict=True)):
            route, cost = routes[pair]
            before = [t for j in after[starts[k] : starts[k + 1]] for t in done[j]]
            number = sent[pair] = sent.get(pair, -1) + 1
            done.append(_message(columns, route, size, cost, before, number))
            if not awaited[k]:
                lasts += done[k]
    n = len(columns.kind)
    pairs = np.array(columns.after + [(n, last) for last in lasts], np.int64).reshape(-1, 2)
    return make_tasks(
        np.array(columns.kind, np.int32),
        np.array(columns.queue_pair, np.int32),
        np.array(columns.size, np.int64),
        np.array(columns.delay, np.int64),
        after=(pairs[:, 0], pairs[:, 1]),
    )


def _message(
    tasks: _Columns, route: MessageRoute, size: int, cost_ps: int, before: list[int], number: int
) -> list[int]:
    """Add a route's message with that number as tasks; returns those that end with it in memory."""
    from fabrictwin.kernel.packet.state import constants as s

    if not route.legs:  # memory to itself
        same = tasks.add(s.DELAY, 0, 0, cost_ps)
        tasks.after += [(same, t) for t in before]
        return [same]
    chunk = route.chunk_bytes or max(size, 1)
    ends: list[int] = []
    for start in range(0, max(size, 1), chunk):
        here = min(chunk, size - start)
        waits = before
        for at, leg in enumerate(route.legs):
            delay = leg.delay_ps + (route.pause_ps if at else cost_ps)
            parts: list[int] = []
            amount = max(round(here * leg.amount), 1) if leg.amount != 1 else here
            carriers = leg.carriers(number)
            shares = _split(amount, [share for share, _ in carriers])
            for (_, q), part in zip(carriers, shares, strict=True):
                if part or len(carriers) == 1:
                    parts.append(tasks.add(s.MESSAGE, q, part, delay))
                    tasks.after += [(parts[-1], t) for t in waits]
            waits = parts
        ends += waits
    return ends


def _split(size: int, shares: list[float]) -> list[int]:
    """`size` in parts proportional to `shares`, without a remainder."""
    if len(shares) == 1:
        return [size]
    whole, reached, parts, before = sum(shares), 0.0, [], 0
    for share in shares:
        reached += share
        cut = round(reached / whole * size)
        parts.append(cut - before)
        before = cut
    return parts


class PlacedTasks:
    """Places of tasks in the kernel, by what they hold; one that is done serves again."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._places: dict[tuple[int, int], list[Place]] = {}
        self._under_way: dict[int, tuple[Place, int]] = {}  # by the task that waits for the last

    def place(self, tasks: Tasks, then: int) -> None:
        """Place tasks and start those that wait for nothing; task `then` waits for the last.

        Raises the kernel's OutOfMemoryError.
        """
        size = len(tasks.task), len(tasks.successor)
        places = self._places.setdefault(size, [])
        free = next((place for place in places if self.machine.is_done(place, size[0])), None)
        if free is None:
            free = self.machine.reserve(*size)
            self.machine.check_memory(0)
            places.append(free)
        self.machine.place(tasks, free, then=then)
        self._under_way[then] = free, size[0]

    def alone(self) -> tuple[int, Place, int] | None:
        """Return the only communication under way, as (the task that ends it, its place, its tasks), or None."""
        done_ps = self.machine.state.task.done_ps
        self._under_way = {end: of for end, of in self._under_way.items() if done_ps[end] < 0}
        if len(self._under_way) != 1:
            return None
        ((end, (place, count)),) = self._under_way.items()
        return end, place, count
