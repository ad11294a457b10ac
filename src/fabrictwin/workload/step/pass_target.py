"""The target that a pass is lowered onto: compute, communications that start and are waited for, marks.

Compute of one label joins up. A communication that is started waits for what was done before it, and for those
started before it on the same group (one stream a communicator); what comes next goes on, until it is waited for.
Compute beside it takes longer by the multiprocessors that it takes, for as long as it runs.

Two targets exist: one writes a block of operations (`program_pass`), one adds up time (`timed_pass`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fabrictwin.workload.job.job_communications import Groups, Made, slowed_ps
from fabrictwin.workload.layers.pass_script import (
    LABELS,
    Collective,
    Compute,
    Part,
    Script,
    Start,
    key_in_script,
)
from fabrictwin.workload.layers.roofline import Cost
from fabrictwin.workload.step.step_context import Stage

Mark = TypeVar("Mark")  # a point of the pass that something else can wait for


@dataclass
class Beside:
    """A communication under way: how long it may still run, how many multiprocessors it takes."""

    left_ps: float
    sms: int


class PassTarget(ABC, Generic[Mark]):
    """Takes the items of a pass one after the other."""

    def __init__(self, groups: Groups[Any], stage: Stage, slow: float) -> None:
        self.groups, self.stage, self.slow = groups, stage, slow
        self._launch_ps = groups.job.training.launch_ps
        self._beside: dict[object, Beside] = {}
        self._pending_ps, self._pending_kernels = 0.0, 0
        self._label: tuple[str, str] | None = None

    def lay(self, script: Script) -> None:
        """Take all items of a script."""
        for item in script.items:
            if isinstance(item, Compute):
                self.compute(item.cost, item.part)
            elif isinstance(item, Start):
                self.start(key_in_script(item.key), item.collective)
            else:
                self.wait(key_in_script(item.key))

    def compute(self, cost: Cost, part: Part) -> None:
        """Compute after what came before."""
        label = LABELS[part]
        if label != self._label:
            self.flush()
        self._label = label
        self._pending_ps += cost.ps
        self._pending_kernels += cost.kernels

    def flush(self) -> None:
        """End the stretch of compute of one label."""
        if self._label is None:
            return
        label, self._label = self._label, None
        took_ps = max(self._pending_ps, self._pending_kernels * self._launch_ps)
        self._pending_ps, self._pending_kernels = 0.0, 0
        self.stretch(took_ps * self.slow, label)

    def stretch(self, took_ps: float, label: tuple[str, str]) -> None:
        """Compute that takes so long by itself, and longer beside communications that take multiprocessors."""
        self._spend(took_ps + self.lost_ps(took_ps), label)

    def lost_ps(self, took_ps: float) -> float:
        """Time that such compute loses to communications beside it, which are over sooner by it."""
        lost = 0.0
        for other in self._beside.values():
            if other.sms:
                lost += slowed_ps(took_ps, other.left_ps, other.sms, self.groups.sm_count)
                other.left_ps = max(0.0, other.left_ps - took_ps)
        return lost

    def start(self, key: object, collective: Collective) -> None:
        """Begin a communication after what was done so far."""
        self.flush()
        stage = self.stage
        made = self.groups.within(collective, stage.number, stage.units, stage.cell, stage.actors)
        if not made:
            return
        self._start(key, collective, made)
        left = self.groups.roughly_within_ps(collective, stage.number) if collective.sms else 0.0
        self._beside[key] = Beside(left, collective.sms)

    def wait(self, key: object) -> None:
        """Let nothing after this start before the communication is done."""
        if key in self._beside:
            self.flush()  # what was computed so far ran beside it
            del self._beside[key]
            self._wait(key)

    @abstractmethod
    def _spend(self, took_ps: float, label: tuple[str, str]) -> None:
        """Compute for so long."""

    @abstractmethod
    def _start(self, key: object, collective: Collective, made: list[Made]) -> None:
        """Begin what the groups made of a communication."""

    @abstractmethod
    def _wait(self, key: object) -> None:
        """Wait for a communication that began."""

    @abstractmethod
    def gate(self, number: int) -> None:
        """Let what comes next also wait for the pass's gate of that number."""

    @abstractmethod
    def mark(self) -> Mark:
        """The point at which all so far is done."""

    @abstractmethod
    def end_of(self, key: object) -> Mark:
        """The point at which a communication that began is done."""
