"""The communications of a job: groups of ranks and what they exchange, made once and posted many times.

In a pass, ranks of one stage and one class of units talk within groups of positions; once a step, across units.
Where classes divide a stage (unfolded, or one slow GPU), groups that touch the same actors are one communication.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fabrictwin import catalog
from fabrictwin.base.arrays import F64, I64, starts_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.units import PS_PER_S, PS_PER_US
from fabrictwin.nccl.constants import RING_LL128, RING_SIMPLE
from fabrictwin.program import collectives
from fabrictwin.program.collectives import Step
from fabrictwin.program.program import Channels, Communication
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.nccl_communications import Library
from fabrictwin.workload.job.rank_layout import Cells
from fabrictwin.workload.layers.pass_script import Collective, Kind

C = TypeVar("C")  # a communication, as the target takes it
C_co = TypeVar("C_co", covariant=True)
C_contra = TypeVar("C_contra", contravariant=True)
Made = tuple[int, list[int]]  # a communication's number, the classes of positions that take part
HostsKnown = dict[tuple[tuple[int, ...], bytes], tuple[bool, int]]

# that hops of NCCL's model include, and that the twin counts by itself
WIRE_IN_HOST_US, WIRE_BETWEEN_HOSTS_US = 0.6, 1.9

NAMES = {
    ("tp", "all_reduce"): "tensor-parallel all-reduce",
    ("tp", "all_gather"): "tensor-parallel all-gather",
    ("tp", "reduce_scatter"): "tensor-parallel reduce-scatter",
    ("cp", "all_gather"): "key-value exchange",
    ("cp", "reduce_scatter"): "key-value gradients",
    ("ep", "all_to_all"): "expert all-to-all",
    ("expert_tp", "all_gather"): "expert all-gather",
    ("expert_tp", "reduce_scatter"): "expert reduce-scatter",
    ("slices", "all_gather"): "gather activations",
    ("shard", "all_gather"): "parameter all-gather",
    ("shard", "reduce_scatter"): "gradient reduce-scatter",
}
CATEGORIES = {"tp": "tp", "slices": "pp", "cp": "cp", "ep": "ep", "expert_tp": "ep", "shard": "dp"}
_ACROSS = -1  # in place of a class of units: all of them
_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


def exchange(groups: npt.ArrayLike, block_bytes: int, *, step_cost_ps: int, name: str) -> Communication:
    """An all-to-all whose blocks all travel at once, as a group of sends and receives does."""
    shifts = collectives.all_to_all(
        groups, block_bytes, element_bytes=2, step=Step(cost_ps=step_cost_ps), name=name
    )
    parts = [shift.channels for shift in shifts]
    columns = {
        key: np.concatenate([getattr(part, key) for part in parts])
        for key in ("pattern", "ranks", "parent", "shift", "payload_bytes", "offset_bytes", "chunk_bytes")
    }
    sizes = np.concatenate([np.diff(part.rank_start) for part in parts])
    start = starts_of(sizes).astype(np.int32)
    return replace(shifts[0], name=name, channels=Channels(rank_start=start, element_bytes=2, **columns))


class CommunicationFactory:
    """Makes the communications of a job: rings, exchanges, messages; NCCL's own choices where there is a library.

    `hosts` keeps how groups lie on hosts, for jobs on the same ranks that share it.
    """

    def __init__(self, job: Job, library: Library | None = None, hosts: HostsKnown | None = None) -> None:
        self.job, self.library = job, library
        self._hosts_known: HostsKnown = {} if hosts is None else hosts

    def hosts(self, groups: I64) -> tuple[bool, int]:
        """(true if every group lies inside a host, most ranks of a group on one host)."""
        hosts = self.job.placement.host_of_rank[groups]
        key = hosts.shape, (hosts - hosts.min()).astype(np.int32).tobytes()
        if key not in self._hosts_known:
            hosts = np.sort(hosts, axis=1)
            runs = np.ones(hosts.shape, np.int64)
            for i in range(1, hosts.shape[1]):
                runs[:, i] = np.where(hosts[:, i] == hosts[:, i - 1], runs[:, i - 1] + 1, 1)
            self._hosts_known[key] = bool((hosts[:, :1] == hosts).all()), int(runs.max())
        return self._hosts_known[key]

    def step_cost(self, kind: str, groups: I64, size_bytes: int) -> int:
        """The ps a rank spends on a step beside the wire, mean over a ring's hops: flags, polling, the proxy.

        Of the protocols NCCL takes the one that its own model finds faster for these bytes.
        """
        n = groups.shape[1]
        steps = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "reduce_scatter": n - 1}.get(kind, 1)
        hosts = self.job.placement.host_of_rank[groups[0]]
        alone = self.hosts(groups)[0]
        between = 0 if alone else steps * max(len(np.unique(hosts)) - 1, 1) // max(n - 1, 1)
        bps = self.job.hardware.inside_bps if alone else self.job.hardware.outside_bps
        wire_us = size_bytes * steps / n * 8e6 / bps
        best: tuple[float, float] | None = None
        for once, near, far, share in (RING_LL128, RING_SIMPLE) if steps > 1 else (RING_SIMPLE,):
            latency = once + (steps - between) * near + between * far
            if best is None or latency + wire_us / share < best[0]:
                best = (latency + wire_us / share, latency)
        assert best is not None
        own: float = (steps - between) * WIRE_IN_HOST_US + between * WIRE_BETWEEN_HOSTS_US
        cost: int = round((best[1] - own) / steps * PS_PER_US)
        return cost

    def channels(self, groups: I64) -> int:
        """Number of rings: a group's ranks on one host, so that each adapter serves one; one inside a host."""
        alone, most = self.hosts(groups)
        return 1 if alone else most

    def collective(self, collective: Collective, groups: I64, name: str) -> Communication:
        """A collective of a pass, of all `groups` at once."""
        if collective.kind == "all_to_all":
            return self.exchange(groups, collective.size_bytes // groups.shape[1], name)
        element = 2 if collective.size_bytes % 2 == 0 else 1
        return self.ring(collective.kind, groups, collective.size_bytes, name, element)

    def ring(self, kind: Kind, groups: I64, size_bytes: int, name: str, element_bytes: int = 2) -> Communication:
        """A collective over a ring, or as NCCL chooses."""
        if self.library is not None:
            return self.library.collective(kind, groups, size_bytes, element_bytes=element_bytes, name=name)
        make = {
            "all_reduce": collectives.all_reduce,
            "all_gather": collectives.all_gather,
            "reduce_scatter": collectives.reduce_scatter,
        }[kind]
        return make(
            groups,
            size_bytes,
            channels=self.channels(groups),
            host_of_rank=self.job.placement.host_of_rank,
            element_bytes=element_bytes,
            step=Step(cost_ps=self.step_cost(kind, groups, size_bytes)),
            name=name,
        )

    def exchange(self, groups: I64, block_bytes: int, name: str) -> Communication:
        """An all-to-all of blocks."""
        if self.library is not None:
            whole = block_bytes * groups.shape[1]
            return self.library.collective("all_to_all", groups, whole, element_bytes=1, name=name)
        cost = self.step_cost("all_to_all", groups, block_bytes)
        return exchange(groups, block_bytes, step_cost_ps=cost, name=name)

    def send(self, pairs: I64, size_bytes: int, name: str) -> Communication:
        """A message from the first to the second of every pair."""
        if self.library is not None:
            return self.library.send(pairs, size_bytes, name=name)
        cost = self.step_cost("send", pairs, size_bytes)
        return collectives.send(pairs, size_bytes, step=Step(cost_ps=cost), name=name)

    def gradients(self, groups: I64, size_bytes: int, name: str) -> tuple[Communication, ...]:
        """The phases of a gradient all-reduce as the spec chooses it, to be chained. Raises ConfigError."""
        chosen, element = self.job.training.gradients, self.job.gradient_bytes
        if self.library is not None and chosen.algorithm is None and chosen.channels is None:
            whole = self.library.collective("all_reduce", groups, size_bytes, element_bytes=element, name=name)
            return (whole,)
        hosts, cost = self.job.placement.host_of_rank, self.step_cost("all_reduce", groups, size_bytes)
        try:
            if chosen.algorithm == "hierarchical":
                return collectives.hierarchical_all_reduce(
                    groups,
                    size_bytes,
                    host_of_rank=hosts,
                    channels=chosen.channels or 1,  # every rank of a host has a rail of its own
                    element_bytes=element,
                    step=Step(cost_ps=cost),
                    name=name,
                )
            whole = collectives.all_reduce(
                groups,
                size_bytes,
                algorithm=chosen.algorithm or "ring",
                channels=chosen.channels or self.channels(groups) * (2 if chosen.algorithm == "tree" else 1),
                host_of_rank=hosts,
                element_bytes=element,
                step=Step(cost_ps=cost),
                name=name,
            )
        except ConfigError as error:
            raise error.within(key="workload.training.gradients") from None
        return (whole,)


class Target(Protocol[C_contra]):
    """A builder of a program, or a clock: takes operations and numbers them."""

    def label(self, name: str, category: str, /) -> int: ...

    def communication(self, communication: C_contra, participants: Sequence[int], /) -> int: ...

    def communicate(self, communication: int, label: int, /, *, after: Iterable[int] = ()) -> int: ...

    def compute(self, actor: int, duration_ps: int, label: int, /, *, after: Iterable[int] = ()) -> int: ...


class Factory(Protocol[C_co]):
    """Makes communications for a target: as edges between ranks, or as times."""

    def collective(self, collective: Collective, groups: I64, name: str) -> C_co: ...

    def ring(self, kind: Kind, groups: I64, size_bytes: int, name: str, element_bytes: int = 2) -> C_co: ...

    def send(self, pairs: I64, size_bytes: int, name: str) -> C_co: ...

    def gradients(self, groups: I64, size_bytes: int, name: str) -> tuple[C_co, ...]: ...

    def hosts(self, groups: I64) -> tuple[bool, int]: ...


class Groups(Generic[C]):
    """Communications by what they carry, as numbers of the target."""

    def __init__(self, job: Job, cells: Cells, target: Target[C], factory: Factory[C]) -> None:
        self.job, self.cells, self.target, self.factory = job, cells, target, factory
        self.made: dict[tuple[object, ...], list[Made]] = {}
        self._inside: dict[str, list[tuple[I64, list[int]]]] = {}
        # by group, stage and class of units, or of all units
        self._ranks: dict[tuple[str, int, int], list[tuple[I64, list[int]]]] = {}
        self._rough_ps: dict[tuple[str, str, int, int], float] = {}
        self.sm_count = catalog.gpu(job.hardware.gpu).sm_count.value

    def positions(self, group: str) -> list[tuple[I64, list[int]]]:
        """([groups, n] positions, the classes of positions that they touch)."""
        if group not in self._inside:
            kind = "tp" if group == "slices" else group
            self._inside[group] = self.cells.gathered(self.job.layout.inside(kind))
        return self._inside[group]

    def several(self, groups: Iterable[str]) -> bool:
        """Return true if each of these groups is of several ranks."""
        return all(self.positions(group)[0][0].shape[1] > 1 for group in groups)

    def within(self, collective: Collective, stage: int, units: I64, number: int, actors: list[int]) -> list[Made]:
        """A pass's communication on one class of units: (number, positions classes that take part) of each."""
        key = (collective.group, collective.kind, collective.size_bytes, stage, number)
        if key not in self.made:
            made = []
            name = f"{NAMES[collective.group, collective.kind]}, stage {stage}"
            for groups, classes in self.ranks_within(collective.group, stage, units, number):
                communication = self.factory.collective(collective, groups, name)
                made.append((self.target.communication(communication, [actors[a] for a in classes]), classes))
            self.made[key] = made
        return self.made[key]

    def ranks_within(self, group: str, stage: int, units: I64, number: int) -> list[tuple[I64, list[int]]]:
        """([groups, n] ranks of one class of units, the classes of positions that they touch), made once."""
        key = group, stage, number
        if key not in self._ranks:
            grid = self.job.layout.grid[stage][units]
            self._ranks[key] = [
                (grid[:, positions].reshape(-1, positions.shape[1]), classes)
                for positions, classes in self.positions(group)
                if positions.shape[1] > 1
            ]
        return self._ranks[key]

    def across(self, group: str, stage: int) -> list[tuple[I64, list[int]]]:
        """([groups, n] ranks of all units that hold the same, the classes of positions that they touch)."""
        key = group, stage, _ACROSS
        if key not in self._ranks:
            grid = self.job.layout.grid[stage]
            self._ranks[key] = [
                (grid[:, positions].transpose(1, 0, 2).reshape(len(positions), -1), classes)
                for positions, classes in self.positions(group)
            ]
        return self._ranks[key]

    # --- how long, roughly: to know how much compute a communication slows by the multiprocessors that it takes

    def roughly_ps(self, kind: Kind, groups: I64, size_bytes: int) -> float:
        """Bytes over the rate of a GPU's way inside or outside of its host."""
        n = groups.shape[1]
        bps = self.job.hardware.inside_bps if self.factory.hosts(groups)[0] else self.job.hardware.outside_bps
        return float(_STEPS[kind] * size_bytes * (n - 1) / n * 8 * PS_PER_S / bps)

    def roughly_within_ps(self, collective: Collective, stage: int) -> float:
        key = collective.group, collective.kind, collective.size_bytes, stage
        if key not in self._rough_ps:
            positions = self.job.layout.inside(collective.group)
            groups = self.job.layout.grid[stage][0][positions]
            self._rough_ps[key] = self.roughly_ps(collective.kind, groups, collective.size_bytes)
        return self._rough_ps[key]


def slowed_ps(compute_ps: float, beside_ps: float, sms: int, sm_count: int) -> float:
    """Time in ps that compute loses to a communication which takes multiprocessors beside it for `beside_ps`."""
    return min(compute_ps, beside_ps) * sms / max(sm_count - sms, 1)


def all_slowed_ps(compute_ps: F64, beside_ps: F64 | float, sms: int, sm_count: int) -> F64:
    """Times in ps that computes lose, as `slowed_ps`."""
    lost: F64 = np.minimum(compute_ps, beside_ps) * (sms / max(sm_count - sms, 1))
    return lost
