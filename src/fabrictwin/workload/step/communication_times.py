"""The time that communications take by themselves, for a step in closed form.

A communication's duration is what the analytic engine gives it alone, interpolated between sizes that are powers
of two, and taken to be the same for groups that lie alike on their hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record
from fabrictwin.engines.analytic.closed_forms import ClosedForms
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.program.program import Communication
from fabrictwin.workload.job.equal_rails import EqualRails
from fabrictwin.workload.job.job import Job
from fabrictwin.workload.job.job_communications import CATEGORIES, CommunicationFactory, HostsKnown
from fabrictwin.workload.job.nccl_communications import Library
from fabrictwin.workload.layers.pass_script import Collective, Kind
from fabrictwin.workload.step.timed_pass import PassTime

Make = Callable[[I64, int], tuple[Communication, ...]]
Place = tuple[I64, tuple[object, ...]]  # groups that stand for others, a key of how they lie on hosts
_OVER_TREES = ("all_reduce", "gradients")


@record
class Asked:
    """A communication whose time is asked for."""

    category: str
    what: tuple[object, ...]  # the same for all sizes
    groups: I64
    place: Callable[[I64, bool], Place]
    size_bytes: int
    step: int  # bytes that sizes are multiples of
    make: Make

    @property
    def trees(self) -> bool:
        """True where it may go over trees."""
        return self.what[0] in _OVER_TREES

    @cached_property
    def name(self) -> tuple[object, ...]:
        """A key of its groups."""
        return self.groups.shape, self.groups.tobytes(), self.trees

    @cached_property
    def at(self) -> Place:
        """Return who stands for all of its groups, and where they lie; finding it takes a while."""
        return self.place(self.groups, self.trees)

    @cached_property
    def units(self) -> float:
        return max(self.size_bytes / self.step, 1.0)

    @cached_property
    def low(self) -> int:
        """The power of two that is the units or next below."""
        return 1 << (int(self.units).bit_length() - 1)

    @cached_property
    def keys(self) -> dict[tuple[object, ...], int]:
        """The sizes in bytes that its time lies between, by what each is known by."""
        ends = (self.low,) if self.units == self.low else (self.low, 2 * self.low)
        return {(*self.what, *self.at[1], end * self.step): end * self.step for end in ends}


class CommunicationTimes:
    """Durations of communications alone on one fabric, kept over layouts; and of passes that layouts share."""

    def __init__(self, fabric: Fabric, rank_node: npt.NDArray[np.int32], library: Library | None = None) -> None:
        self.library = library  # NCCL's own choices, where they are asked for
        self._forms = ClosedForms(fabric)
        self._rank_node = rank_node
        self._host = fabric.node_host[rank_node].astype(np.int64)
        self._local = rank_node - fabric.host_node_start[self._host]
        self.passes: dict[tuple[object, ...], PassTime] = {}
        self.numbers: dict[tuple[object, ...], int] = {}  # of layouts by what their passes depend on
        self._known: dict[tuple[object, ...], float] = {}
        self.hosts_known: HostsKnown = {}
        self._scale: dict[str, float] = {}
        network = self._forms.network
        self._rails = None if library is None else EqualRails(library, network.leaf, network.uplink_bps)
        self._placed: dict[tuple[object, ...], Place] = {}

    def without_passes(self) -> CommunicationTimes:
        """The same, but for the passes that are kept: for a job whose compute costs differ."""
        return self.scaled({})

    def scaled(self, scale: dict[str, float]) -> CommunicationTimes:
        """The same with some communication in a share of its time.

        Keys are categories (tp, cp, ep, pp, dp), or `inside` and `between` hosts.
        """
        other = copy(self)
        other.passes, other._scale = {}, scale
        return other

    def placement_key(self, groups: I64) -> tuple[object, ...]:
        """A key of how groups lie on hosts; equal where they take the same time."""
        hosts = self._host[groups]
        return (groups.shape, (hosts - hosts.min()).astype(np.int32).tobytes(), self._local[groups].tobytes())

    def _representatives(self, groups: I64, *, trees: bool) -> I64:
        """Rows of groups that stand for all: inside hosts those of the first, of equal rails those of one."""
        hosts = self._host[groups]
        if (hosts == hosts[:, :1]).all():
            return np.flatnonzero(hosts[:, 0] == hosts[0, 0])
        # chunks of trees are played for all groups together, in longer bursts the more they are
        if self._rails is None or trees:
            return np.arange(len(groups))
        return self._rails.representatives(groups)

    def place(self, groups: I64, trees: bool) -> Place:
        """Return who stands for all of the groups, and where they lie; `trees`: they may communicate on trees."""
        key = groups.shape, groups.tobytes(), trees
        if key not in self._placed:
            some = groups[self._representatives(groups, trees=trees)]
            self._placed[key] = some, self.placement_key(some)
        return self._placed[key]

    def knows(self, asked: Asked) -> bool:
        """Return true if its time was found before, and where its groups lie."""
        return asked.name in self._placed and all(key in self._known for key in asked.keys)

    def of(self, asked: Asked) -> float:
        """The ps that one takes: between the powers of two times its step around the size, linearly."""
        share = 1.0
        if self._scale:
            hosts = self._host[asked.groups]
            where = "inside" if (hosts == hosts[:, :1]).all() else "between"
            share = self._scale.get(asked.category, 1.0) * self._scale.get(where, 1.0)
        if not share:
            return 0.0
        keys, units, low = asked.keys, asked.units, asked.low
        if any(key not in self._known for key in keys):
            self.prepare([asked])
        ends = [self._known[key] for key in keys]
        return share * (ends[0] + (ends[-1] - ends[0]) * (units - low) / low)

    @property
    def found(self) -> int:
        """Number of times that are known."""
        return len(self._known)

    def prepare(self, asked: Iterable[Asked]) -> None:
        """Find what is not known of these, bound to the fabric together: that costs less than one by one."""
        missing: dict[tuple[object, ...], tuple[Asked, int]] = {}
        for one in asked:
            for key, size in one.keys.items():
                if key not in self._known:
                    missing.setdefault(key, (one, size))  # groups that lie alike are as those asked for first
        if not missing:
            return
        found = [one.make(one.at[0], size) for one, size in missing.values()]
        taken = self._forms.durations([c for made in found for c in made], self._rank_node)
        first = 0
        for key, made in zip(missing, found, strict=True):
            self._known[key] = float(taken[first : first + len(made)].sum())
            first += len(made)


class TimedFactory:
    """Communications of a job as durations in ps, whatever their names."""

    def __init__(self, job: Job, times: CommunicationTimes) -> None:
        self.times = times
        self._made = CommunicationFactory(job, times.library, times.hosts_known)
        self.hosts = self._made.hosts
        # by the array, which is kept so that it stays the one
        self._places: dict[tuple[int, bool], tuple[I64, Place]] = {}

    def _place(self, groups: I64, trees: bool) -> Place:
        """The place of groups that are asked about again and again."""
        key = id(groups), trees
        if key not in self._places:
            self._places[key] = groups, self.times.place(groups, trees)
        return self._places[key][1]

    def collective(self, collective: Collective, groups: I64, name: str) -> float:
        """A collective of a pass."""
        return self.times.of(self.asked_collective(collective, groups))

    def asked_collective(self, collective: Collective, groups: I64) -> Asked:
        size, n = collective.size_bytes, groups.shape[1]
        if collective.kind != "all_to_all":
            element = 2 if size % 2 == 0 else 1
            return self._ring(CATEGORIES[collective.group], collective.kind, groups, size, element)

        def make(some: I64, size: int) -> tuple[Communication, ...]:
            return (self._made.exchange(some, size // n, "exchange"),)

        return Asked("ep", ("all_to_all",), groups, self._place, size, 2 * n, make)

    def ring(self, kind: Kind, groups: I64, size_bytes: int, name: str, element_bytes: int = 2) -> float:
        """A collective of gradients or parameters, once a step."""
        return self.times.of(self._ring("dp", kind, groups, size_bytes, element_bytes))

    def _ring(self, category: str, kind: Kind, groups: I64, size_bytes: int, element_bytes: int) -> Asked:
        def make(some: I64, size: int) -> tuple[Communication, ...]:
            return (self._made.ring(kind, some, size, "", element_bytes),)

        if kind == "reduce_scatter" and self.times.library is None:
            kind = "all_gather"  # backwards: the same bytes over the same edges in as many steps
        what = (kind, element_bytes)
        return Asked(category, what, groups, self._place, size_bytes, element_bytes * groups.shape[1], make)

    def send(self, pairs: I64, size_bytes: int, name: str) -> float:
        """Messages between stages."""
        return self.times.of(self.asked_send(pairs, size_bytes))

    def asked_send(self, pairs: I64, size_bytes: int) -> Asked:
        def make(some: I64, size: int) -> tuple[Communication, ...]:
            return (self._made.send(some, size, "send"),)

        return Asked("pp", ("send",), pairs, self._place, size_bytes, 1, make)

    def gradients(self, groups: I64, size_bytes: int, name: str) -> tuple[float, ...]:
        """A gradient all-reduce, its phases together."""
        chosen, element = self._made.job.training.gradients, self._made.job.gradient_bytes

        def make(some: I64, size: int) -> tuple[Communication, ...]:
            return self._made.gradients(some, size, name)

        what = ("gradients", chosen.algorithm, chosen.channels, element)
        step = element * groups.shape[1]
        return (self.times.of(Asked("dp", what, groups, self._place, size_bytes, step, make)),)
