"""A pass added up: the time from its start, in ps, at which each of its items is done."""

from __future__ import annotations

from collections.abc import Sequence

from fabrictwin.base.records import record
from fabrictwin.workload.job.job_communications import Groups, Made
from fabrictwin.workload.layers.pass_script import (
    LABELS,
    Collective,
    Compute,
    FixedScript,
    Script,
    Start,
    Stretch,
)
from fabrictwin.workload.step.pass_target import PassTarget
from fabrictwin.workload.step.step_clock import StepClock
from fabrictwin.workload.step.step_context import Stage


@record
class PassTime:
    """One pass of a chunk: what it takes, what of it is compute, when its segments' gradients are there; in ps."""

    took: float
    computed: float
    marks: tuple[float, ...] = ()

    def slowed(self, factor: float) -> PassTime:
        """The same where compute takes `factor` times as long."""
        took = self.took + (factor - 1) * self.computed
        stretch = took / self.took if self.took else 1.0
        return PassTime(took, factor * self.computed, tuple(mark * stretch for mark in self.marks))

    def with_layers(self, fewer: PassTime, times: int, lead: int) -> PassTime:
        """The same with `times` more layers; `fewer` has one layer less, and `lead` segments come before them."""
        each = self.took - fewer.took
        marks = _stretched(self.marks, times, each, lead) if self.marks else ()
        return PassTime(self.took + times * each, self.computed + times * (self.computed - fewer.computed), marks)


class TimedPass(PassTarget[float]):
    """Adds up a pass. A mark is a time from the start of the pass."""

    def __init__(
        self,
        clock: StepClock,
        groups: Groups[float],
        stage: Stage,
        slow: float = 1.0,
        gates: Sequence[float] = (),
    ) -> None:
        super().__init__(groups, stage, slow)
        self.now = self.computed = 0.0
        self._durations, self._gates = clock.durations, gates
        self._streams: dict[str, float] = {}
        self._until: dict[object, float] = {}

    def lay(self, script: Script) -> None:
        """Take all items of a script; of one that is fixed, stretches of compute as they were added up."""
        if not isinstance(script, FixedScript) or not self.groups.several(script.groups):
            super().lay(script)
            return
        for item in script.joined:
            if isinstance(item, Compute):
                self.compute(item.cost, item.part)
            elif isinstance(item, Stretch):
                self.flush()
                self.stretch(item.cost.took_ps(self._launch_ps) * self.slow, LABELS[item.part])
            elif isinstance(item, Start):
                self.start(("script", item.key), item.collective)
            else:
                self.wait(("script", item.key))

    def _spend(self, took_ps: float, label: tuple[str, str]) -> None:
        self.now += took_ps
        self.computed += took_ps

    def _start(self, key: object, collective: Collective, made: list[Made]) -> None:
        end = max(self.now, self._streams.get(collective.group, 0.0)) + self._durations[made[0][0]]
        self._streams[collective.group] = self._until[key] = end

    def _wait(self, key: object) -> None:
        self.now = max(self.now, self._until[key])

    def gate(self, number: int) -> None:
        """Wait until the gate opens."""
        self.flush()
        self.now = max(self.now, self._gates[number])

    def mark(self) -> float:
        """The time at which all so far is done."""
        self.flush()
        return self.now

    def end_of(self, key: object) -> float:
        """The time at which a communication is done."""
        return self._until.get(key, self.now)


def _stretched(marks: tuple[float, ...], times: int, each: float, lead: int) -> tuple[float, ...]:
    """Marks of a backward pass with `times` more layers put in among its equal ones.

    The backward runs from the last segment to the first, so what lies before the new layers is later by them.
    """
    at = lead + 1  # segments below this one come after the new layers
    upper = marks[at:]
    new = tuple(upper[0] + each * (i + 1) for i in range(times))
    return (*(mark + each * times for mark in marks[:at]), *new[::-1], *upper)
