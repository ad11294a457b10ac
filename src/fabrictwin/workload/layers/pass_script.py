"""A rank's pass as a list: compute, start a communication, wait for it.

A script says nothing of ranks or clocks: groups are named by what they share (tp, cp, ep, ...), compute by its
cost. Lowering turns it into operations; a search over layouts can add it up instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

from fabrictwin.base.records import record
from fabrictwin.workload.layers.roofline import Cost

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
Part = Literal["forward", "backward", "recompute", "weight"]

# (name, category) of operations; compute of one label that nothing parts is one
LABELS: dict[Part, tuple[str, str]] = {
    "forward": ("forward", "compute"),
    "backward": ("backward", "compute"),
    "weight": ("backward", "compute"),
    "recompute": ("recompute", "recompute"),
}


@cache
def key_in_script(key: int) -> tuple[str, int]:
    """Return the key of a communication of a script among those of a pass, one object for all scripts."""
    return "script", key


class Compute(NamedTuple):
    cost: Cost
    part: Part


@record
class Collective:
    """A communication. `size_bytes` is as nccl-tests counts: the full buffer; of an all-to-all, one rank's."""

    group: str
    kind: Kind
    size_bytes: int
    sms: int = 0  # multiprocessors it takes while it runs


class Start(NamedTuple):
    key: int
    collective: Collective


class Wait(NamedTuple):
    key: int


Item = Compute | Start | Wait
COMPUTE, STRETCH, START, WAIT = range(4)  # items as numbers, and compute that is added up


@dataclass
class Script:
    """Items in order; methods add to it."""

    items: list[Item] = field(default_factory=list)
    keys: int = 0  # given out so far

    def compute(self, cost: Cost, part: Part) -> None:
        if cost.kernels or cost.ps:
            self.items.append(Compute(cost, part))

    def start(self, collective: Collective | None) -> int | None:
        """Begin a communication; None is none."""
        if collective is None or collective.size_bytes <= 0:
            return None
        self.items.append(Start(self.keys, collective))
        self.keys += 1
        return self.keys - 1

    def wait(self, key: int | None) -> None:
        if key is not None:
            self.items.append(Wait(key))

    def communicate(self, collective: Collective | None) -> None:
        """Communicate while nothing else happens."""
        self.wait(self.start(collective))

    def overlap(self, collective: Collective | None, cost: Cost, part: Part) -> None:
        """Communicate and compute; go on when both are done."""
        key = self.start(collective)
        self.compute(cost, part)
        self.wait(key)

    def extend(self, other: Script) -> None:
        """Another script after this one."""
        shift = self.keys
        self.keys += other.keys
        if not shift or not other.keys:  # its keys are still free, or it has none
            self.items.extend(other.items)
            return
        for item in other.items:
            if isinstance(item, Start):
                item = Start(item.key + shift, item.collective)
            elif isinstance(item, Wait):
                item = Wait(item.key + shift)
            self.items.append(item)

    def captured(self) -> Script:
        """The same where the host issues all of it at once: a CUDA graph."""
        items = [Compute(Cost(i.cost.ps), i.part) if isinstance(i, Compute) else i for i in self.items]
        return Script(items, self.keys)

    def cost(self) -> Cost:
        """All compute."""
        ps, kernels = 0.0, 0
        for item in self.items:
            if isinstance(item, Compute):
                ps += item.cost.ps
                kernels += item.cost.kernels
        return Cost(ps, kernels)

    def last_part(self) -> Part:
        """The part that its last compute belongs to."""
        return next(item.part for item in reversed(self.items) if isinstance(item, Compute))

    def collectives(self) -> list[Collective]:
        return [item.collective for item in self.items if isinstance(item, Start)]

    def apart(self, part: Part) -> tuple[Script, Script]:
        """(the script without compute of a part, that compute alone)."""
        keep = Script([i for i in self.items if not (isinstance(i, Compute) and i.part == part)], self.keys)
        rest = Script([i for i in self.items if isinstance(i, Compute) and i.part == part])
        return keep, rest


class FixedScript(Script):
    """A script that no longer changes: what follows from its items is found once."""

    @classmethod
    def of(cls, script: Script) -> FixedScript:
        return cls(script.items, script.keys)

    @cached_property
    def _sum(self) -> Cost:
        return super().cost()

    def cost(self) -> Cost:
        return self._sum

    @cached_property
    def groups(self) -> frozenset[str]:
        """The groups that it communicates in."""
        return frozenset(collective.group for collective in self.collectives())

    @cached_property
    def _weights_apart(self) -> tuple[Script, Script]:
        keep, rest = super().apart("weight")
        return FixedScript.of(keep), FixedScript.of(rest)

    def apart(self, part: Part) -> tuple[Script, Script]:
        return self._weights_apart if part == "weight" else super().apart(part)

    @cached_property
    def coded(self) -> tuple[tuple[int, Any, Any, Any], ...]:
        """Return the items for a loop: of compute (its label, ps, kernels), of communications (key, collective).

        Compute whose beginning and end lie in the script is added up to stretches, which have no label. A
        communication that starts or is waited for ends one, and so does compute of another label. What comes
        before the first of these joins what was computed before the script, and stays as it is.
        """
        found: list[tuple[int, Any, Any, Any]] = []
        ps, kernels, own, begun = 0.0, 0, False, False  # of the stretch under way, if there is one
        label: tuple[str, str] | None = None  # of what was just computed
        for item in self.items:
            if not isinstance(item, Compute) or label not in (None, LABELS[item.part]):
                begun = True
                if own:
                    found.append((STRETCH, None, ps, kernels))
                    ps, kernels, own = 0.0, 0, False
            if isinstance(item, Compute):
                label = LABELS[item.part]
                if begun:
                    ps, kernels, own = ps + item.cost.ps, kernels + item.cost.kernels, True
                else:
                    found.append((COMPUTE, label, item.cost.ps, item.cost.kernels))
                continue
            label = None
            if isinstance(item, Start):
                found.append((START, key_in_script(item.key), item.collective, None))
            else:
                found.append((WAIT, key_in_script(item.key), None, None))
        if own:
            found.append((COMPUTE, label, ps, kernels))  # what comes behind the script may join it
        return tuple(found)
