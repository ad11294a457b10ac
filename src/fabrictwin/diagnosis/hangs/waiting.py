"""Who waits for whom, and who waits for nobody: the culprit of a hang.

A rank waits in its first call that has not completed, for every member of that group which has not called it. A
rank that others wait for and which itself waits for nobody is where the hang begins. Where two ranks wait for each
other in two groups they called in different orders; where all have called and none has completed, the network or a
GPU below stands still. Rules after PyTorch's analyser of flight recorders (tools/flight_recorder) and its gaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fabrictwin.base.records import record
from fabrictwin.diagnosis.evidence import Fact
from fabrictwin.diagnosis.hangs.calls import Call, Group


@record
class Wait:
    """A rank that waits in a call for ranks that have not called it."""

    rank: int
    group: str
    sequence: int
    call: Call
    absent: frozenset[int]


@record
class Mismatch:
    """A sequence number at which ranks called different things. `odd` are those of the smaller side,
    or all where there is none."""

    group: str
    sequence: int
    how: str
    odd: tuple[int, ...]
    odd_call: Call
    other_call: Call


def mismatches(groups: dict[str, Group]) -> Iterator[Mismatch]:
    """The first mismatch of each group."""
    for group in groups.values():
        numbers = sorted({number for calls in group.calls.values() for number in calls})
        for number in numbers:
            found = _mismatch(group, number)
            if found is not None:
                yield found
                break


def _mismatch(group: Group, number: int) -> Mismatch | None:
    calls = {rank: mine[number] for rank, mine in sorted(group.calls.items()) if number in mine}
    if len(calls) < 2:
        return None
    usual_key = Counter((c.verb, c.sizes, c.kinds) for c in calls.values()).most_common(1)[0][0]
    usual = next(c for c in calls.values() if (c.verb, c.sizes, c.kinds) == usual_key)
    odd = {rank: call.differs(usual) for rank, call in calls.items() if call.differs(usual)}
    if not odd or (all(call.done for call in calls.values()) and not any(how == "type" for how in odd.values())):
        return None
    first = next(iter(odd))
    same = tuple(rank for rank, how in odd.items() if how == odd[first])
    if len(same) * 2 == len(calls):
        same = tuple(calls)  # neither side is the smaller: both are named
    return Mismatch(group.name, number, odd[first], same, calls[first], usual)


def waits(groups: dict[str, Group]) -> list[Wait]:
    """The first uncompleted call of every rank and group, with the members that have not called it."""
    found = []
    for group in groups.values():
        for rank in sorted(group.calls):
            number = group.pending(rank)
            if number < 0:
                continue
            # a ring buffer may have dropped what a rank called long ago: only ranks that are behind are absent
            absent = {other for other in group.members if group.last(other) < number}
            found.append(Wait(rank, group.name, number, group.calls[rank][number], frozenset(absent)))
    return found


@record
class Verdict:
    """The beginning of a hang. `kind` is missing, late, order or stuck."""

    kind: str
    ranks: tuple[int, ...]
    wait: Wait
    waiting: tuple[Wait, ...]

    def facts(self) -> list[Fact]:
        """Evidence: the calls that wait."""
        return [wait.call.fact for wait in (self.wait, *self.waiting[:4])]


def verdict(groups: dict[str, Group], dumped: set[int], transfers: Sequence[Wait] = ()) -> Verdict | None:
    """The beginning of the hang; None where nobody waits. `transfers` are waits for sends and receives."""
    waiting = [*waits(groups), *transfers]
    if not waiting:
        return None
    absent: Counter[int] = Counter(rank for wait in waiting for rank in wait.absent)
    by_rank: dict[int, list[Wait]] = {}
    for wait in waiting:
        by_rank.setdefault(wait.rank, []).append(wait)
    gone = tuple(sorted(rank for rank in absent if dumped and rank not in dumped))
    if gone:
        return Verdict("missing", gone, _one_for(waiting, gone), tuple(waiting))
    idle = tuple(sorted(rank for rank in absent if rank not in by_rank))
    if idle:
        return Verdict("late", idle, _one_for(waiting, idle), tuple(waiting))
    # ranks that all others of a group have joined, and that wait all the same: for the network, or a GPU
    stuck = [wait for wait in waiting if not wait.absent and not _blocked(by_rank[wait.rank])]
    if stuck:
        return _stuck(stuck, waiting)
    # all wait for somebody: who is missing from an otherwise whole group went its own way
    fewest = min(len(wait.absent) for wait in waiting if wait.absent)
    odd = tuple(sorted({rank for wait in waiting if len(wait.absent) == fewest for rank in wait.absent}))
    return Verdict("order", odd, _one_for(waiting, odd), tuple(waiting))


def _stuck(stuck: list[Wait], waiting: list[Wait]) -> Verdict:
    """The collective that all have called and none completes; ranks whose kernel has not begun are to blame."""
    first = min(stuck, key=lambda wait: (wait.sequence, wait.group))
    mine = [wait for wait in stuck if (wait.group, wait.sequence) == (first.group, first.sequence)]
    idle = tuple(wait.rank for wait in mine if not wait.call.started)
    if idle and len(idle) < len(mine):
        return Verdict("late", idle, first, tuple(waiting))
    return Verdict("stuck", tuple(wait.rank for wait in mine), first, tuple(waiting))


def _blocked(mine: tuple[Wait, ...] | list[Wait]) -> bool:
    """Return true for a rank that itself waits for somebody."""
    return any(wait.absent for wait in mine)


def _one_for(waiting: list[Wait], ranks: tuple[int, ...]) -> Wait:
    return next(wait for wait in waiting if wait.absent & set(ranks))


def spans(ranks: tuple[int, ...] | list[int] | frozenset[int], most: int = 12) -> str:
    """Ranks as people write them: `0-3, 7`."""
    parts: list[str] = []
    ordered = sorted(set(ranks))
    start = 0
    for i, rank in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != rank + 1:
            first = ordered[start]
            parts.append(str(first) if first == rank else f"{first}-{rank}")
            start = i + 1
    return ", ".join(parts[:most]) + (" ..." if len(parts) > most else "")
