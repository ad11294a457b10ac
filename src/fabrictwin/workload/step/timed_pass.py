"""A pass added up: the time from its start, in ps, at which each of its items is done."""

from __future__ import annotations

from collections.abc import Sequence

from fabrictwin.base.records import record
from fabrictwin.workload.job.job_communications import Groups, Made
from fabrictwin.workload.layers.pass_script import (
    COMPUTE,
    START,
    STRETCH,
    WAIT,
    Collective,
    FixedScript,
    Script,
)
from fabrictwin.workload.step.pass_target import Beside, PassTarget
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
        """Take all items of a script; of one that is fixed, stretches of compute as they were added up.

        A search does this ten thousand times, so that one loop stands for the methods by which other targets take
        items: the same sums in the same order.
        """
        if not isinstance(script, FixedScript) or not self.groups.several(script.groups):
            super().lay(script)
            return
        now, computed, label, launch_ps, slow = self.now, self.computed, self._label, self._launch_ps, self.slow
        ps, kernels, beside = self._pending_ps, self._pending_kernels, self._beside
        streams, until = self._streams, self._until
        for op, what, cost, count in script.coded:
            if op == COMPUTE and what == label:
                ps += cost
                kernels += count
                continue
            if op == WAIT and what not in beside:
                continue
            if label is not None:  # what was computed so far ends
                took_ps = max(ps, kernels * launch_ps) * slow
                if beside:
                    took_ps += self.lost_ps(took_ps)
                now += took_ps
                computed += took_ps
                ps, kernels, label = 0.0, 0, None
            if op == COMPUTE:
                ps, kernels, label = cost, count, what
            elif op == STRETCH:
                took_ps = max(cost, count * launch_ps) * slow
                if beside:
                    took_ps += self.lost_ps(took_ps)
                now += took_ps
                computed += took_ps
            elif op == START:
                duration_ps, left_ps = self._takes_ps(cost)
                free_ps = streams.get(cost.group, 0.0)
                streams[cost.group] = until[what] = max(now, free_ps) + duration_ps
                beside[what] = Beside(left_ps, cost.sms)
            else:
                del beside[what]
                now = max(now, until[what])
        self.now, self.computed, self._label = now, computed, label
        self._pending_ps, self._pending_kernels = ps, kernels

    def _takes_ps(self, collective: Collective) -> tuple[float, float]:
        """(what a communication of a script takes, what it takes roughly if it takes multiprocessors), in ps."""
        stage = self.stage
        ((number, _), *_) = self.groups.within(collective, stage.number, stage.units, stage.cell, stage.actors)
        roughly = self.groups.roughly_within_ps(collective, stage.number) if collective.sms else 0.0
        return self._durations[number], roughly

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
