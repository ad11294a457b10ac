"""A pass written as a block of operations: compute on every actor, communications among those that take part."""

from __future__ import annotations

from fabrictwin.program.builder import Block, ProgramBuilder, inlet
from fabrictwin.program.program import NONE, Communication
from fabrictwin.workload.job.job_communications import CATEGORIES, NAMES, Groups, Made
from fabrictwin.workload.layers.pass_script import Collective
from fabrictwin.workload.step.pass_target import PassTarget
from fabrictwin.workload.step.step_context import Stage


class ProgramPass(PassTarget[list[list[int]]]):
    """Writes a pass into `block`. A mark is [actors] positions in the block."""

    def __init__(
        self, builder: ProgramBuilder, groups: Groups[Communication], stage: Stage, slow: float, *, inlets: int
    ) -> None:
        super().__init__(groups, stage, slow)
        self.builder, self.block = builder, Block()
        self.actors, self._inlets = stage.actors, inlets
        count = len(self.actors)
        # inlet i * count + a: actor a of the i-th thing that the block waits for
        self.last: list[list[int]] = [[inlet(i * count + a) for i in range(inlets)] for a in range(count)]
        self._streams: dict[str, list[int]] = {}
        self._operations: dict[object, list[int]] = {}  # [actors] NONE where an actor takes no part
        self._behind: dict[object, list[list[int]]] = {}  # [actors] what was done when it started

    def _spend(self, took_ps: float, label: tuple[str, str]) -> None:
        number = self.builder.label(*label)
        for a, actor in enumerate(self.actors):
            duration = round(took_ps * self.stage.factors[a])
            self.last[a] = [self.block.compute(actor, duration, number, self.last[a])]

    def _start(self, key: object, collective: Collective, made: list[Made]) -> None:
        label = self.builder.label(NAMES[collective.group, collective.kind], CATEGORIES[collective.group])
        stream = self._streams.setdefault(collective.group, [NONE] * len(self.actors))
        operations = [NONE] * len(self.actors)
        for number, classes in made:
            before = {i for a in classes for i in self.last[a]} | {stream[a] for a in classes}
            first = self.actors[classes[0]]
            op = self.block.communicate(first, number, label, sorted(before, reverse=True))
            for a in classes:
                operations[a] = op
        for a, op in enumerate(operations):
            stream[a] = op if op != NONE else stream[a]
        self._operations[key] = operations
        self._behind[key] = [list(last) for last in self.last]

    def _wait(self, key: object) -> None:
        behind = self._behind[key]
        for a, op in enumerate(self._operations[key]):
            if op != NONE:
                # where nothing was computed meanwhile, what it waited for is behind it
                self.last[a] = [op] if self.last[a] == behind[a] else [*self.last[a], op]

    def gate(self, number: int) -> None:
        """Let what comes next also wait for the gate's inlets: one of each actor, behind the pass's own."""
        self.flush()
        first = (self._inlets + number) * len(self.actors)
        self.last = [[*last, inlet(first + a)] for a, last in enumerate(self.last)]

    def mark(self) -> list[list[int]]:
        """[actors] what has to be done until here."""
        self.flush()
        return [list(last) for last in self.last]

    def end_of(self, key: object) -> list[list[int]]:
        """[actors] the operation of a communication, as a list of one or none."""
        operations = self._operations.get(key, [NONE] * len(self.actors))
        return [[op] if op != NONE else [] for op in operations]

    def close(self) -> list[int]:
        """[actors] the last operation of each; a pass that ends in several is closed by one of no duration."""
        self.flush()
        label = self.builder.label("backward", "compute")
        for a, last in enumerate(self.last):
            if len(last) != 1 or last[0] < 0:
                self.last[a] = [self.block.compute(self.actors[a], 0, label, last)]
        return [last[0] for last in self.last]
