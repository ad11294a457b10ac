"""Less than parameters and gradients are on their way, once a step: their bytes over all ways out of a host.

The same holds of what a pass communicates, where its time is not known yet.

A group of n ranks of which at most k lie on one host brings n - k of n parts of the buffer into every host that it
touches, and takes as many out, whatever its algorithm; all groups of a host share its adapters. A group inside a
host has one GPU's ways to the others. An all-reduce moves twice as much, but where switches add up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fabrictwin.base.arrays import F64, I64, starts_of
from fabrictwin.base.records import record
from fabrictwin.base.units import PS_PER_S
from fabrictwin.workload.job.job import Hardware, Job
from fabrictwin.workload.step.communication_times import Asked

_FROM_ENDS = ("none", "zero-1")  # strategies that reduce all gradients at the end of the step


@record
class StepExchanges:
    """Least times of a job's exchanges outside of its passes, in ps.

    `gathered` and `reduced` are [2, chunks, stages], of dense parameters and of experts, which are two streams:
    what is gathered ahead of a chunk's first forward, and the gradients of a chunk, reduced beside the last
    backward. `between` and `behind` are [stages]: between the last backward and the optimizer, and after it.
    """

    gathered: F64
    reduced: F64
    between: F64
    behind: F64
    beside: bool  # something is gathered or reduced beside passes


class ExchangeBounds:
    """Least times of exchanges for layouts of one job, each found once for layouts that share it."""

    def __init__(self, *, in_switch: bool) -> None:
        self.in_switch = in_switch
        self._known: dict[tuple[object, ...], StepExchanges] = {}
        self._held: dict[tuple[object, ...], F64] = {}
        self._byte_ps: dict[tuple[object, ...], float] = {}
        self._kinds: tuple[list[int], I64] | None = None
        self._of_kinds: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}

    def of(self, job: Job) -> StepExchanges:
        """Least times of a job's exchanges; those of its first and its last stage."""
        key = job.layout, job.layer_counts
        if key not in self._known:
            self._known[key] = self._made(job)
        return self._known[key]

    def _made(self, job: Job) -> StepExchanges:
        layout, overlap, strategy = job.layout, job.training.overlap, job.training.sharding.strategy
        pp, chunks = layout.pp, job.chunks
        nothing = np.zeros((2, chunks, pp))
        if strategy not in _FROM_ENDS:
            return StepExchanges(nothing, nothing, np.zeros(pp), np.zeros(pp), False)
        moved = self.parameters(job)
        if layout.ep * layout.expert_tp == layout.tp:  # experts that lie as dense parameters do go with them
            moved = np.stack([moved.sum(axis=0), 0 * moved[1]])
        moved = moved * self._byte_times(job)
        steps = 2 if strategy == "none" and not self.in_switch else 1
        reduced = steps * job.gradient_bytes * moved
        gathered = job.parameter_bytes * moved if strategy == "zero-1" else nothing
        beside, ahead = overlap.gradients, overlap.parameters
        return StepExchanges(
            gathered=gathered if ahead else nothing,
            reduced=reduced if beside else nothing,
            between=np.zeros(pp) if beside else reduced.sum(axis=(0, 1)),
            behind=np.zeros(pp) if ahead else gathered.sum(axis=(0, 1)),
            beside=beside or ahead,
        )

    def parameters(self, job: Job) -> F64:
        """[2, chunks, stages] trained parameters of one rank, dense and of experts."""
        layout = job.layout
        key = layout.tp, layout.ep, layout.expert_tp, layout.pp, job.layer_counts
        if key not in self._held:
            self._held[key] = self._parameters(job)
        return self._held[key]

    def _parameters(self, job: Job) -> F64:
        layout = job.layout
        if self._kinds is None:
            kinds: dict[object, int] = {}
            which = [
                kinds.setdefault((job.model.kind(n), job.model.is_sparse(n)), len(kinds))
                for n in range(job.model.layers)
            ]
            before = np.array([starts_of(np.array(which) == kind) for kind in range(len(kinds))])
            self._kinds = [which.index(kind) for kind in range(len(kinds))], before
        layers, before = self._kinds
        key = layout.tp, layout.ep, layout.expert_tp
        if key not in self._of_kinds:
            self._of_kinds[key] = [job.layer_parameters(layer) for layer in layers]
        each = np.array(self._of_kinds[key], np.float64)[:, :2]
        counts = np.diff(before[:, starts_of(job.layer_counts)], axis=1)
        found: F64 = (each.T @ counts).reshape(2, job.chunks, layout.pp)
        found[0, 0, 0] += job.trained(job.first_parameters())
        found[0, -1, -1] += job.trained(job.last_parameters())
        found[1, -1, -1] += job.last_experts()
        return found

    def _byte_times(self, job: Job) -> F64:
        """[2, 1, stages] ps that a byte of a buffer takes at least; nothing where it is not looked at."""
        layout = job.layout
        found = np.zeros((2, 1, layout.pp))
        for i, between in enumerate((layout.tp, layout.ep * layout.expert_tp)):
            for s in {0, layout.pp - 1}:
                found[i, 0, s] = self._byte_time(job, s, between)
        return found

    def _byte_time(self, job: Job, stage: int, apart: int) -> float:
        """Return it for groups of all ranks of a stage that lie so many apart, in ps."""
        layout = job.layout
        of_unit = 0 if layout.order == "tp-cp-dp-pp" else layout.positions  # stages are blocks of ranks otherwise
        key = layout.pp, of_unit, stage, apart
        if key not in self._byte_ps:
            hosts = job.placement.host_of_rank[layout.grid[stage].reshape(-1, apart).T]
            hosts = np.unique(hosts, return_inverse=True)[1].reshape(hosts.shape)
            most = int(np.bincount((hosts * apart + np.arange(apart)[:, None]).reshape(-1)).max())
            self._byte_ps[key] = byte_ps(hosts, most, job.hardware)
        return self._byte_ps[key]


def byte_ps(hosts: I64, most: int, hardware: Hardware, *, each: bool = False) -> float:
    """The ps that a byte of the buffer takes at least of groups that act together, each rank's own with `each`.

    `hosts` is [groups, n] of every rank, `most` the ranks of a group that lie on one host at most.
    """
    n = int(hosts.shape[1])
    if most == n:
        return (n - 1) / n * 8 * PS_PER_S / hardware.inside_bps
    ranks = int(np.bincount(hosts.reshape(-1)).max())
    return (ranks if each else ranks / most) * (n - most) / n * 8 * PS_PER_S / hardware.host_bps


def sent_byte_ps(hosts: I64, hardware: Hardware) -> float:
    """The ps that a byte takes at least of messages between pairs [pairs, 2] of ranks on these hosts."""
    source, target = hosts.T
    leaving = source[source != target]
    at_once, bps = (np.bincount(leaving).max(), hardware.host_bps) if len(leaving) else (1, hardware.inside_bps)
    return float(at_once * 8 * PS_PER_S / bps)


def asked_byte_ps(
    asked: Asked, job: Job, hosts_of: Callable[[I64], tuple[bool, int]], *, in_switch: bool
) -> float:
    """The ps that a byte of a pass's communication takes at least, over all ways out of a host, or of a GPU."""
    hosts, kind = job.placement.host_of_rank[asked.groups], asked.what[0]
    if kind == "send":
        return sent_byte_ps(hosts, job.hardware)
    once = byte_ps(hosts, hosts_of(asked.groups)[1], job.hardware, each=kind == "all_to_all")
    return once if kind != "all_reduce" or in_switch else 2 * once
