"""A rank's pass as a list: compute, start a communication, wait for it.

A script says nothing of ranks or clocks: groups are named by what they share (tp, cp, ep, ...), compute by its
cost. Lowering turns it into operations; a search over layouts can add it up instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fabrictwin.workload.layers.roofline import NOTHING, Cost

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
Part = Literal["forward", "backward", "recompute", "weight"]


class Compute(NamedTuple):
    cost: Cost
    part: Part


@dataclass(frozen=True)
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
        return sum((item.cost for item in self.items if isinstance(item, Compute)), NOTHING)

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
