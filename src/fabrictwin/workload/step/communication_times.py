"""What communications take by themselves, for a step in closed form: durations in place of operations.

A communication's duration is what the analytic engine gives it alone, interpolated between sizes that are powers
of two, and taken to be the same for groups that lie alike on their hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fabrictwin.engines.analytic.analytic_engine import AnalyticSession
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.program.builder import ProgramBuilder
from fabrictwin.program.program import NONE, Communication
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.job_communications import CATEGORIES, Groups
from fabrictwin.workload.job.nccl_communications import Library
from fabrictwin.workload.job.rank_layout import Cells
from fabrictwin.workload.layers.pass_script import Kind, Talk

I64 = npt.NDArray[np.int64]
Make = Callable[[I64, int], tuple[Communication, ...]]


@dataclass(frozen=True)
class Passed:
    """One pass of a chunk: what it takes, what of it is compute, when its segments' gradients are there."""

    took: float
    computed: float
    marks: tuple[float, ...] = ()

    def slowed(self, factor: float) -> Passed:
        """The same where compute takes `factor` times as long."""
        took = self.took + (factor - 1) * self.computed
        stretch = took / self.took if self.took else 1.0
        return Passed(took, factor * self.computed, tuple(mark * stretch for mark in self.marks))


class Prices:
    """What communications take by themselves, on one fabric; remembered over layouts."""

    def __init__(self, fabric: Fabric, rank_node: npt.NDArray[np.int32], library: Library | None = None) -> None:
        self.library = library  # NCCL's own choices, where they are asked for
        self._session = AnalyticSession(fabric)
        self._rank_node = rank_node
        self._host = fabric.node_host[rank_node].astype(np.int64)
        self._local = rank_node - fabric.host_node_start[self._host]
        self.passes: dict[tuple[object, ...], Passed] = {}
        self._known: dict[tuple[object, ...], float] = {}
        self._spread: dict[tuple[object, ...], tuple[bool, int]] = {}
        self._scale: dict[str, float] = {}

    def apart(self) -> Prices:
        """The same, but for the passes that are remembered: for a job that other costs distinguish."""
        return self.scaled({})

    def scaled(self, scale: dict[str, float]) -> Prices:
        """The same with some communication in a share of its time.

        Keys are categories (tp, cp, ep, pp, dp), or `inside` and `between` hosts.
        """
        other = copy(self)
        other.passes, other._scale = {}, scale
        return other

    def lie(self, groups: I64) -> tuple[object, ...]:
        """How groups lie on hosts; equal where they take the same time."""
        hosts = self._host[groups]
        return (groups.shape, (hosts - hosts.min()).astype(np.int32).tobytes(), self._local[groups].tobytes())

    def _representatives(self, groups: I64) -> I64:
        """Of groups inside hosts, those of the first host."""
        hosts = self._host[groups]
        return groups[hosts[:, 0] == hosts[0, 0]] if (hosts == hosts[:, :1]).all() else groups

    def spread(self, groups: I64, count: Callable[[I64], tuple[bool, int]]) -> tuple[bool, int]:
        key = self.lie(groups)
        if key not in self._spread:
            self._spread[key] = count(groups)
        return self._spread[key]

    def of(
        self, category: str, what: tuple[object, ...], groups: I64, size_bytes: int, step: int, make: Make
    ) -> float:
        """In ps: between the powers of two times `step` bytes around the size, linearly."""
        if self._scale:
            hosts = self._host[groups]
            place = "inside" if (hosts == hosts[:, :1]).all() else "between"
            share = self._scale.get(category, 1.0) * self._scale.get(place, 1.0)
            return share * self._of(what, groups, size_bytes, step, make) if share else 0.0
        return self._of(what, groups, size_bytes, step, make)

    def _of(self, what: tuple[object, ...], groups: I64, size_bytes: int, step: int, make: Make) -> float:
        groups = self._representatives(groups)
        lie = self.lie(groups)
        units = max(size_bytes / step, 1.0)
        low = 1 << (int(units).bit_length() - 1)
        keys = {count * step: (*what, *lie, count * step) for count in (low, 2 * low)}
        missing = {size: key for size, key in keys.items() if key not in self._known}
        if missing:
            # bound to the fabric together: looking up ways costs more than the bytes
            found = [make(groups, size) for size in missing]
            taken = self._session.durations([c for made in found for c in made], self._rank_node)
            at = 0
            for key, made in zip(missing.values(), found, strict=True):
                self._known[key] = float(taken[at : at + len(made)].sum())
                at += len(made)
        ends = [self._known[key] for key in keys.values()]
        return ends[0] + (ends[1] - ends[0]) * (units - low) / low


class Moments:
    """Stands in for a builder: an operation's id is the moment of its end."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.prices: list[float] = []
        self._labels: dict[tuple[str, str], int] = {}

    def label(self, name: str, category: str) -> int:
        return self._labels.setdefault((name, category), len(self._labels))

    def communication(self, price: float, _actors: object) -> int:
        self.prices.append(price)
        return len(self.prices) - 1

    def at(self, moment: float) -> int:
        self.ends.append(moment)
        return len(self.ends) - 1

    def _after(self, after: Any) -> float:
        return max((self.ends[int(i)] for i in after if i != NONE), default=0.0)

    def communicate(self, number: int, _label: int, *, after: Any = ()) -> int:
        return self.at(self._after(after) + self.prices[number])

    def compute(self, _actor: int, duration_ps: float, _label: int, *, after: Any = ()) -> int:
        return self.at(self._after(after) + duration_ps)


class Priced(Groups):
    """Communications as durations."""

    def __init__(self, job: Job, cells: Cells, builder: Moments, prices: Prices) -> None:
        super().__init__(job, cells, cast(ProgramBuilder, builder), prices.library)
        self.prices = prices

    def positions(self, group: str) -> list[tuple[I64, list[int]]]:
        if group not in self._inside:
            self._inside[group] = [(self.job.layout.inside("tp" if group == "slices" else group), [0])]
        return self._inside[group]

    def _hosts(self, groups: I64) -> tuple[bool, int]:
        return self.prices.spread(groups, super()._hosts)

    def ring(self, kind: Kind, groups: I64, size_bytes: int, name: str, element_bytes: int = 2) -> Any:
        """Of gradients and parameters, once a step."""
        return self._ring("dp", kind, groups, size_bytes, name, element_bytes)

    def _ring(
        self, category: str, kind: Kind, groups: I64, size_bytes: int, name: str, element_bytes: int
    ) -> float:
        def make(some: I64, size: int) -> tuple[Communication, ...]:
            return (super(Priced, self).ring(kind, some, size, name, element_bytes),)

        if kind == "reduce_scatter" and self.library is None:
            kind = "all_gather"  # backwards: the same bytes over the same edges in as many steps
        what = (kind, element_bytes)
        return self.prices.of(category, what, groups, size_bytes, element_bytes * groups.shape[1], make)

    def gradients(self, groups: I64, size_bytes: int, name: str) -> Any:
        chosen, element = self.job.training.gradients, self.job.gradient_bytes

        def make(some: I64, size: int) -> tuple[Communication, ...]:
            return super(Priced, self).gradients(some, size, name)

        what = ("gradients", chosen.algorithm, chosen.channels, element)
        return (self.prices.of("dp", what, groups, size_bytes, element * groups.shape[1], make),)

    def within(
        self, talk: Talk, stage: int, units: I64, number: int, actors: list[int]
    ) -> list[tuple[int, list[int]]]:
        key = (talk.group, talk.kind, talk.size_bytes, stage, number)
        if key not in self.made:
            ((positions, classes),) = self.positions(talk.group)
            n = positions.shape[1]
            made = []
            if n > 1:
                groups = self.job.layout.grid[stage][units][:, positions].reshape(-1, n)
                made = [(self.builder.communication(self._price(talk, groups), [0]), classes)]
            self.made[key] = made
        return self.made[key]

    def _price(self, talk: Talk, groups: I64) -> Any:
        n = groups.shape[1]
        if talk.kind != "all_to_all":
            element = 2 if talk.size_bytes % 2 == 0 else 1
            return self._ring(CATEGORIES[talk.group], talk.kind, groups, talk.size_bytes, "", element)

        def make(some: I64, size: int) -> tuple[Communication, ...]:
            return (super(Priced, self).exchange(some, size // n, "exchange"),)

        return self.prices.of("ep", ("all_to_all",), groups, talk.size_bytes, 2 * n, make)
