"""A script laid into a block: compute on every actor, communications among those that take part.

Compute of one label joins up. A communication that is started waits for what was done before it, and for those
started before it on the same group (one stream a communicator); what comes next goes on, until it is waited for.
Compute beside it takes longer by the multiprocessors that it takes, for as long as it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabrictwin.program.builder import Block, ProgramBuilder, inlet
from fabrictwin.program.program import NONE
from fabrictwin.workload.job.job_communications import CATEGORIES, I64, NAMES, Groups, slowed_ps
from fabrictwin.workload.layers.pass_script import Compute, Script, Start, Talk
from fabrictwin.workload.layers.roofline import NOTHING, Cost

_PARTS = {
    "forward": ("forward", "compute"),
    "backward": ("backward", "compute"),
    "weight": ("backward", "compute"),
    "recompute": ("recompute", "recompute"),
}


@dataclass
class _Open:
    """A communication under way: its operations by actor, how long it may still run, what it takes."""

    operations: list[int]  # [actors] NONE where an actor takes no part
    behind: list[list[int]]  # [actors] what was done when it started
    left_ps: float
    sms: int


class Chain:
    """Lays scripts one after the other into a block."""

    def __init__(
        self,
        builder: ProgramBuilder,
        groups: Groups,
        *,
        stage: int,
        units: I64,
        number: int,
        actors: list[int],
        factors: list[float],
        inlets: int,
        slow: float = 1.0,
    ) -> None:
        self.builder, self.groups, self.block = builder, groups, Block()
        self.stage, self.units, self.number = stage, units, number
        self.actors, self.factors, self.slow = actors, factors, slow
        host = groups.job.training.host
        self._launch_ps = 0 if host.graphs else host.launch
        self._sm_count = groups.sm_count
        count = len(actors)
        # inlet i * count + a: actor a of the i-th thing that the block waits for
        self.last: list[list[int]] = [[inlet(i * count + a) for i in range(inlets)] for a in range(count)]
        self._streams: dict[str, list[int]] = {}
        self._open: dict[object, _Open] = {}
        self._pending, self._label = NOTHING, NONE

    def lay(self, script: Script) -> None:
        for item in script.items:
            if isinstance(item, Compute):
                self.compute(item.cost, self.builder.label(*_PARTS[item.part]))
            elif isinstance(item, Start):
                self.start(("script", item.key), item.talk)
            else:
                self.wait(("script", item.key))

    def compute(self, cost: Cost, label: int) -> None:
        if label != self._label:
            self.flush()
        self._label = label
        self._pending = self._pending + cost

    def flush(self) -> None:
        if self._label == NONE:
            return
        took = self._pending.took_ps(self._launch_ps) * self.slow
        extra = 0.0
        for other in self._open.values():
            extra += slowed_ps(took, other.left_ps, other.sms, self._sm_count)
            other.left_ps = max(0.0, other.left_ps - took)
        for a, actor in enumerate(self.actors):
            duration = round((took + extra) * self.factors[a])
            self.last[a] = [self.block.compute(actor, duration, self._label, self.last[a])]
        self._pending, self._label = NOTHING, NONE

    def start(self, key: object, talk: Talk) -> None:
        """Begin a communication after what was done so far."""
        self.flush()
        made = self.groups.within(talk, self.stage, self.units, self.number, self.actors)
        if not made:
            return
        label = self.builder.label(NAMES[talk.group, talk.kind], CATEGORIES[talk.group])
        stream = self._streams.setdefault(talk.group, [NONE] * len(self.actors))
        operations = [NONE] * len(self.actors)
        for number, classes in made:
            before = {i for a in classes for i in self.last[a]} | {stream[a] for a in classes}
            first = self.actors[classes[0]]
            op = self.block.communicate(first, number, label, sorted(before, reverse=True))
            for a in classes:
                operations[a] = op
        for a, op in enumerate(operations):
            stream[a] = op if op != NONE else stream[a]
        left = self.groups.roughly_within_ps(talk, self.stage) if talk.sms else 0.0
        self._open[key] = _Open(operations, [list(last) for last in self.last], left, talk.sms)

    def wait(self, key: object) -> None:
        """Nothing after this before the communication is done."""
        if key not in self._open:
            return
        self.flush()  # what was computed so far ran beside it
        done = self._open.pop(key)
        for a, op in enumerate(done.operations):
            if op != NONE:
                # where nothing was computed meanwhile, what it waited for is behind it
                self.last[a] = [op] if self.last[a] == done.behind[a] else [*self.last[a], op]

    def mark(self) -> list[list[int]]:
        """[actors] what has to be done until here, as positions in the block."""
        self.flush()
        return [list(last) for last in self.last]

    def gate(self, first: int) -> None:
        """What comes next also waits for inlets `first`, `first` + 1, ...: one of each actor."""
        self.flush()
        self.last = [[*last, inlet(first + a)] for a, last in enumerate(self.last)]

    def operations(self, key: object) -> list[list[int]]:
        """[actors] the operation of a communication that is under way, as a list of one or none."""
        found = self._open.get(key)
        return [[op] if op != NONE else [] for op in found.operations] if found else [[] for _ in self.actors]

    def ends(self) -> list[int]:
        """[actors] the last operation of each; a pass that ends in several is closed by one of no duration."""
        self.flush()
        label = self.builder.label("backward", "compute")
        for a, last in enumerate(self.last):
            if len(last) != 1 or last[0] < 0:
                self.last[a] = [self.block.compute(self.actors[a], 0, label, last)]
        return [last[0] for last in self.last]
