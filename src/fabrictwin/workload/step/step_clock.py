"""A clock that the end of a step is lowered onto in place of a program: an operation's id is that of its end."""

from __future__ import annotations

from collections.abc import Iterable

from fabrictwin.program.program import NONE


class StepClock:
    """Adds up operations as they come. A communication is its duration in ps."""

    def __init__(self) -> None:
        self.ends: list[float] = []  # [id] ps from the start of the step
        self.durations: list[float] = []  # [communication]
        self._labels: dict[tuple[str, str], int] = {}

    def label(self, name: str, category: str) -> int:
        """The number of a label."""
        return self._labels.setdefault((name, category), len(self._labels))

    def communication(self, communication: float, participants: Iterable[int]) -> int:
        """The number of a communication that takes so long, whoever takes part."""
        self.durations.append(communication)
        return len(self.durations) - 1

    def at(self, moment_ps: float) -> int:
        """The id of something that ends then."""
        self.ends.append(moment_ps)
        return len(self.ends) - 1

    def _after(self, after: Iterable[int]) -> float:
        return max((self.ends[int(i)] for i in after if i != NONE), default=0.0)

    def communicate(self, communication: int, label: int, *, after: Iterable[int] = ()) -> int:
        """The id of a communication that starts after those."""
        return self.at(self._after(after) + self.durations[communication])

    def compute(self, actor: int, duration_ps: int, label: int, *, after: Iterable[int] = ()) -> int:
        """The id of compute that starts after those."""
        return self.at(self._after(after) + duration_ps)
