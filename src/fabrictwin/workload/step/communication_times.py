"""The time that communications take by themselves, for a step in closed form.

A communication's duration is what the analytic engine gives it alone, interpolated between sizes that are powers
of two, and taken to be the same for groups that lie alike on their hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I64
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


class CommunicationTimes:
    """Durations of communications alone on one fabric, kept over layouts; and of passes that layouts share."""

    def __init__(self, fabric: Fabric, rank_node: npt.NDArray[np.int32], library: Library | None = None) -> None:
        self.library = library  # NCCL's own choices, where they are asked for
        self._forms = ClosedForms(fabric)
        self._rank_node = rank_node
        self._host = fabric.node_host[rank_node].astype(np.int64)
        self._local = rank_node - fabric.host_node_start[self._host]
        self.passes: dict[tuple[object, ...], PassTime] = {}
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

    def place(self, groups: I64, *, trees: bool) -> Place:
        """Return who stands for all of the groups, and where they lie; `trees`: they may communicate on trees."""
        key = groups.shape, groups.tobytes(), trees
        if key not in self._placed:
            some = groups[self._representatives(groups, trees=trees)]
            self._placed[key] = some, self.placement_key(some)
        return self._placed[key]

    def of(
        self,
        category: str,
        what: tuple[object, ...],
        groups: I64,
        size_bytes: int,
        step: int,
        make: Make,
        at: Place,
    ) -> float:
        """The ps that one takes: between the powers of two times `step` bytes around the size, linearly.

        `at` is the place of the groups.
        """
        if self._scale:
            hosts = self._host[groups]
            where = "inside" if (hosts == hosts[:, :1]).all() else "between"
            share = self._scale.get(category, 1.0) * self._scale.get(where, 1.0)
            return share * self._of(what, at, size_bytes, step, make) if share else 0.0
        return self._of(what, at, size_bytes, step, make)

    def _of(self, what: tuple[object, ...], at: Place, size_bytes: int, step: int, make: Make) -> float:
        groups, key_of_place = at
        units = max(size_bytes / step, 1.0)
        low = 1 << (int(units).bit_length() - 1)
        counts = (low,) if units == low else (low, 2 * low)
        keys = {count * step: (*what, *key_of_place, count * step) for count in counts}
        missing = {size: key for size, key in keys.items() if key not in self._known}
        if missing:
            # bound to the fabric together: looking up ways costs more than the bytes
            found = [make(groups, size) for size in missing]
            taken = self._forms.durations([c for made in found for c in made], self._rank_node)
            first = 0
            for key, made in zip(missing.values(), found, strict=True):
                self._known[key] = float(taken[first : first + len(made)].sum())
                first += len(made)
        ends = [self._known[key] for key in keys.values()]
        return ends[0] + (ends[-1] - ends[0]) * (units - low) / low


class TimedFactory:
    """Communications of a job as durations in ps, whatever their names."""

    def __init__(self, job: Job, times: CommunicationTimes) -> None:
        self.times = times
        self._made = CommunicationFactory(job, times.library, times.hosts_known)
        self.hosts = self._made.hosts
        # by the array, which is kept so that it stays the one
        self._places: dict[tuple[int, bool], tuple[I64, Place]] = {}

    def _place(self, groups: I64, *, trees: bool = False) -> Place:
        """The place of groups that are asked about again and again."""
        key = id(groups), trees
        if key not in self._places:
            self._places[key] = groups, self.times.place(groups, trees=trees)
        return self._places[key][1]

    def collective(self, collective: Collective, groups: I64, name: str) -> float:
        """A collective of a pass."""
        size, n = collective.size_bytes, groups.shape[1]
        if collective.kind != "all_to_all":
            element = 2 if size % 2 == 0 else 1
            return self._ring(CATEGORIES[collective.group], collective.kind, groups, size, element)

        def make(some: I64, size: int) -> tuple[Communication, ...]:
            return (self._made.exchange(some, size // n, "exchange"),)

        return self.times.of("ep", ("all_to_all",), groups, size, 2 * n, make, self._place(groups))

    def ring(self, kind: Kind, groups: I64, size_bytes: int, name: str, element_bytes: int = 2) -> float:
        """A collective of gradients or parameters, once a step."""
        return self._ring("dp", kind, groups, size_bytes, element_bytes)

    def _ring(self, category: str, kind: Kind, groups: I64, size_bytes: int, element_bytes: int) -> float:
        def make(some: I64, size: int) -> tuple[Communication, ...]:
            return (self._made.ring(kind, some, size, "", element_bytes),)

        if kind == "reduce_scatter" and self.times.library is None:
            kind = "all_gather"  # backwards: the same bytes over the same edges in as many steps
        what = (kind, element_bytes)
        step = element_bytes * groups.shape[1]
        return self.times.of(
            category, what, groups, size_bytes, step, make, self._place(groups, trees=kind == "all_reduce")
        )

    def send(self, pairs: I64, size_bytes: int, name: str) -> float:
        """Messages between stages."""

        def make(some: I64, size: int) -> tuple[Communication, ...]:
            return (self._made.send(some, size, name),)

        return self.times.of("pp", ("send",), pairs, size_bytes, 1, make, self.times.place(pairs, trees=False))

    def gradients(self, groups: I64, size_bytes: int, name: str) -> tuple[float, ...]:
        """A gradient all-reduce, its phases together."""
        chosen, element = self._made.job.training.gradients, self._made.job.gradient_bytes

        def make(some: I64, size: int) -> tuple[Communication, ...]:
            return self._made.gradients(some, size, name)

        what = ("gradients", chosen.algorithm, chosen.channels, element)
        at = self.times.place(groups, trees=True)
        return (self.times.of("dp", what, groups, size_bytes, element * groups.shape[1], make, at),)
