"""A step of one unit, sampled: the graph of a simulated step walked again with noise on its operations.

A *unit* is what synchronises within a step: a pipeline replica or, where parameters are sharded or experts
spread, all data-parallel ranks that these bind. Ranks of a stage meet at every layer, so that each operation takes
as long as the slowest of its ranks in the unit; units meet once, at the end of the step.

Communications keep the time that the engine gave them: noise does not change who shares a link with whom.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import F64, I32, I64, place_of, starts_of
from fabrictwin.base.errors import InvariantError
from fabrictwin.base.records import record
from fabrictwin.kernel.slices import in_slices
from fabrictwin.program import patterns
from fabrictwin.program.program import NONE, OpKind
from fabrictwin.report.result import RunResult
from fabrictwin.study.jitter.distributions import Amount, tail_of_greatest
from fabrictwin.study.jitter.jitter_sources import Jitter, Network
from fabrictwin.workload.step.disturbed_program import first_operations, greatest_table, power, uniform

CELLS, LEVELS = 512, 3  # as kernel.replay has them
_GRID = 256  # places a mean in the table of an exponential
_REACH = 40  # means


@record
class Tables:
    """Noise by operation, as the kernel reads it."""

    table: I32  # [operations] NONE: none
    value: F64  # [tables, LEVELS, CELLS] quantiles
    relative: npt.NDArray[np.bool_]  # [tables] value is a share of the operation's time


class Unit:
    """One unit of a simulated step. `units` share the program's actors alike."""

    def __init__(self, result: RunResult, units: int, positions: int) -> None:
        operations, trace = result.job.program.operations, result.trace
        self.units = units
        self.program = result.job.program
        actors = len(result.job.program.actors)
        # behind the program's operations one a stage, of no time: what it begins with, computing or talking, waits
        # for it, so that a stage that is late holds up both
        took = trace.end_op_ps - trace.start_ps
        self.base: I64 = np.concatenate([took, np.zeros(actors, np.int64)]).astype(np.int64)
        self.end_ps = trace.end_ps
        self._host_of_rank = result.fabric.node_host[result.job.rank_node]
        compute = operations.kind == OpKind.COMPUTE
        own = np.where(compute, operations.actor, NONE)
        self.actor: I32 = np.concatenate([own, np.arange(actors)]).astype(np.int32)
        self.after_start, self.after = self._with_beginnings()
        # the most ranks that an actor has in any unit
        self.ranks: I64 = np.array(
            [int(np.bincount((actor.ranks // positions) % units).max()) for actor in result.job.program.actors]
        )

    @property
    def ranks_in_all(self) -> int:
        """Ranks of one unit."""
        return self.program.ranks // self.units

    @cached_property
    def crosses(self) -> npt.NDArray[np.bool_]:
        """[communications] whose bytes cross the network."""
        host = self._host_of_rank
        found = np.zeros(len(self.program.communications), bool)
        for i, communication in enumerate(self.program.communications):
            edges = patterns.edges(communication.channels)
            found[i] = bool((host[edges.source] != host[edges.target]).any())
        return found

    @cached_property
    def order(self) -> I64:
        from fabrictwin.kernel.schedule.graph_walk import topological

        order = np.empty(len(self.base), np.int64)
        if topological(self.after_start, self.after, order) != len(order):
            raise InvariantError(f"the operations of {self.program.name} wait for each other in a circle")
        return order

    @cached_property
    def waits(self) -> tuple[I64, I32]:
        """Predecessors of each operation, [operations + 1] and by place in `order`."""
        order = self.order
        place = place_of(order, len(order))
        count = np.diff(self.after_start)[order]
        start = starts_of(count)
        source = np.repeat(self.after_start[:-1][order] - start[:-1], count) + np.arange(start[-1])
        return start, place[self.after[source]]

    @cached_property
    def first(self) -> npt.NDArray[np.bool_]:
        """[operations] those that lateness holds up: each stage's beginning."""
        first = np.zeros(len(self.base), bool)
        first[len(self.program.operations) :] = True
        return first

    def _with_beginnings(self) -> tuple[I32, I32]:
        """Predecessors of each operation, its stages' beginnings included."""
        ops, actors = self.program.operations, len(self.program.actors)
        n = len(ops)
        firsts = first_operations(self.program, np.arange(actors))
        row = np.concatenate([np.repeat(np.arange(n), np.diff(ops.after_start)), *firsts])
        behind = np.repeat(n + np.arange(actors), [len(rows) for rows in firsts])
        before = np.concatenate([ops.after, behind])
        order = np.argsort(row, kind="stable")
        count = np.bincount(row.astype(np.int64), minlength=n + actors)
        start = starts_of(count).astype(ops.after_start.dtype)
        return start, before[order].astype(ops.after.dtype)

    def tables(self, jitter: Jitter) -> Tables:
        """Interruptions by (duration, ranks), network noise by the number of groups that talk at once."""
        ops = self.program.operations
        table = np.full(len(self.base), NONE, np.int32)
        parts: list[tuple[F64, F64]] = []
        relative: list[bool] = []
        if jitter.compute is not None:
            noise = jitter.compute
            rows = np.flatnonzero((self.actor != NONE) & (self.base > 0))
            pairs = np.stack([self.base[rows], self.ranks[self.actor[rows]]], axis=1)
            kinds, which = np.unique(pairs, axis=0, return_inverse=True)
            table[rows] = which.reshape(-1)
            for took, n in kinds.tolist():
                cdf, means = greatest_table(took / noise.period, n, fixed=noise.distribution == "fixed")
                parts.append((cdf, means * noise.mean))
                relative.append(False)
        network = jitter.communication()
        if network is not None:
            every = self.program.communications
            groups = np.maximum(np.array([c.groups for c in every], np.int64) // self.units, 1)
            exchange = np.array([c.kind == "all_to_all" for c in every], bool)
            kinds, which = np.unique(np.stack([groups, exchange], axis=1), axis=0, return_inverse=True)
            rows = np.flatnonzero((self.actor == NONE) & (self.base > 0))
            rows = rows[self.crosses[ops.communication[rows]]]
            table[rows] = len(parts) + which.reshape(-1)[ops.communication[rows]]
            for n, all_to_all in kinds.tolist():
                parts.append(self._network(network, n, exchange=bool(all_to_all)))
                relative.append(network.time_ps is None)
        return Tables(
            table=table,
            value=np.stack([_quantiles(cdf, value) for cdf, value in parts] or [np.zeros((LEVELS, CELLS))]),
            relative=np.array(relative or [False]),
        )

    def _network(self, network: Network, groups: int, *, exchange: bool) -> tuple[F64, F64]:
        if network.factors:
            values = (
                np.sort(np.array(network.exchange if exchange and network.exchange else network.factors)) - 1.0
            )
            return power(np.arange(1, len(values) + 1) / len(values), groups), values
        assert network.mean is not None
        if network.distribution == "fixed":
            return np.ones(1), np.array([float(network.mean)])
        x = np.arange(1, _REACH * _GRID + 1) / _GRID
        tail = np.cumprod(np.full(len(x), 0.9961013694701175))  # exp(-1/256)
        # a draw takes the middle of its place
        return power(1.0 - tail, groups), (x - 0.5 / _GRID) * network.mean

    def actors(self, jitter: Jitter, samples: int, seed: int) -> tuple[F64, I64]:
        """([samples, actors] factors of compute, [samples, actors] delays of the beginning)."""
        count = len(self.ranks)
        factor, late = np.ones((samples, count)), np.zeros((samples, count), np.int64)
        number = np.arange(samples * count).reshape(samples, count)
        for a, n in enumerate(self.ranks.tolist()):
            if jitter.clocks is not None:
                u = uniform(_salted(seed, 1), number[:, a])
                factor[:, a] += Amount("gaussian", jitter.clocks.deviation).greatest(u, n)
            if jitter.slow is not None:
                tail = tail_of_greatest(uniform(_salted(seed, 2), number[:, a]), n)
                factor[:, a] *= np.where(tail < jitter.slow.chance, jitter.slow.slowdown, 1.0)
            if jitter.late is not None:
                chance = jitter.late.chance
                tail = tail_of_greatest(uniform(_salted(seed, 3), number[:, a]), n)
                amount = Amount(jitter.late.distribution, float(jitter.late.mean))
                drawn = amount.above(np.minimum(tail / chance, 1.0))
                late[:, a] = np.where(tail < chance, np.rint(drawn), 0).astype(np.int64)
        return np.maximum(factor, 0.01), late

    def sample(self, jitter: Jitter, samples: int, seed: int) -> I64:
        """[samples] how long the unit's step took."""
        from fabrictwin.kernel.schedule.graph_walk import replay

        order, tables = self.order, self.tables(jitter)
        factor, late = self.actors(jitter, samples, seed)
        end = np.zeros(samples, np.int64)
        walk = (
            *self.waits, self.base[order], self.actor[order], tables.table[order],
            tables.value, tables.relative, factor, late, self.first[order], np.uint64(_salted(seed, 4)), end,
            np.zeros(1, np.int64),
        )  # fmt: skip
        in_slices(lambda budget: int(replay(*walk, budget)))
        return end


def _salted(seed: int, salt: int) -> int:
    return (seed * 0x9E3779B97F4A7C15 + salt * 0x632BE59BD9B4E019) & ((1 << 64) - 1)


def _quantiles(cdf: F64, value: F64) -> F64:
    """[LEVELS, CELLS] the quantile at the middle of each cell; a level divides the last cell of the one above."""
    rows = []
    low, width = 0.0, 1.0
    for _ in range(LEVELS):
        u = low + (np.arange(CELLS) + 0.5) / CELLS * width
        rows.append(value[np.minimum(np.searchsorted(cdf, u), len(cdf) - 1)])
        low, width = low + width * (CELLS - 1) / CELLS, width / CELLS
    return np.stack(rows)
