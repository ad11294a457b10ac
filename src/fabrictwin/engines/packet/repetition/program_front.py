"""Operations of a program that could start soon, by its dependencies and by what computing takes at least."""

from __future__ import annotations

import heapq
from collections.abc import Collection

from fabrictwin.base.arrays import I64
from fabrictwin.program.program import Operations


class ProgramFront:
    """Operations that wait for nothing more and have not ended."""

    def __init__(self, operations: Operations, bases_ps: I64, now_ps: int) -> None:
        n, starts = len(operations), operations.after_start.tolist()
        self.ends_ps: dict[int, int] = {}  # when communications end that were not played
        self._bases_ps = bases_ps.tolist()
        self._free_ps = [now_ps] * n  # since when each waits for nothing more
        self._missing = [starts[i + 1] - starts[i] for i in range(n)]
        self._behind: list[list[int]] = [[] for _ in range(n)]
        after = operations.after.tolist()
        for i in range(n):
            for before in after[starts[i] : starts[i + 1]]:
                self._behind[before].append(i)
        self._open = {i for i in range(n) if not self._missing[i]}

    def ended(self, operations: list[tuple[int, int]]) -> None:
        """Take note of operations that ended, and when."""
        for i, time_ps in operations:
            self._open.discard(i)
            for later in self._behind[i]:
                self._free_ps[later] = max(self._free_ps[later], time_ps)
                self._missing[later] -= 1
                if not self._missing[later]:
                    self._open.add(later)

    def may_start(self, among: Collection[int], but: int, now_ps: int, until_ps: int) -> bool:
        """Return whether one `among` these, not `but` itself, could start before `until_ps`, when `but` ends.

        An operation takes at least its base; a communication under way may end at once, unless its end is known.
        """
        ready = [
            (self.ends_ps.get(i) or max(now_ps, self._free_ps[i] + self._bases_ps[i]), i)
            for i in self._open
            if i != but
        ]
        heapq.heapify(ready)
        missing: dict[int, int] = {}
        while ready:
            time_ps, i = heapq.heappop(ready)
            if time_ps >= until_ps:
                return False
            if i in among:
                return True
            for later in self._behind[i]:
                missing[later] = missing.get(later, self._missing[later]) - 1
                if not missing[later]:
                    heapq.heappush(ready, (time_ps + self._bases_ps[later], later))
        return False
