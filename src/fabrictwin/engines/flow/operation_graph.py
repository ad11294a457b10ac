"""A graph of operations in time: the compiled fluid kernel (`kernel.flow.fluid`) over what was posted.

Compute takes its duration. A communication takes its flows, which share resources at max-min fair rates; without
flows it is compute as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import F64, I32, I64
from fabrictwin.base.errors import ConfigError, InvariantError
from fabrictwin.engines.base.engine import NO_COMPLETIONS, Completions
from fabrictwin.engines.flow.flow_tables import Columns, empty_columns, flow_table, new_state
from fabrictwin.fabric.fabric import NONE
from fabrictwin.kernel.slices import SLICED, in_slices
from fabrictwin.program.program import Communication, Operations, Seat

_KEY_SEED = 0x5EED


def check_operations(operations: Operations, communications: Sequence[Communication], rank_node: I32) -> None:
    """Refuse what a kernel would take for indices into something else. Raises ConfigError."""
    n = len(operations)
    if n and int(operations.duration_ps.min()) < 0:
        raise ConfigError("got a negative duration, expected picoseconds from 0 upwards")
    after, which = operations.after, operations.communication
    if len(after) and not 0 <= int(after.min()) <= int(after.max()) < n:
        raise ConfigError(f"got a predecessor outside of the {n} operations that are posted together")
    if n and not -1 <= int(which.min()) <= int(which.max()) < len(communications):
        raise ConfigError(f"got a communication outside of the {len(communications)} that are posted")
    for communication in communications:
        ranks = communication.channels.ranks[communication.channels.seats != Seat.SWITCH]
        if len(ranks) and not 0 <= int(ranks.min()) <= int(ranks.max()) < len(rank_node):
            raise ConfigError(f"{communication.name}: got a rank outside of the {len(rank_node)} that are placed")


class OperationGraph:
    """Operations and flows at work over resources of some `capacity`."""

    def __init__(self, capacity: F64) -> None:
        from fabrictwin.kernel.flow import fluid

        self._fluid = fluid
        self.capacity = capacity
        self.columns: dict[str, npt.NDArray[Any]] = {}
        self._keys = np.random.Generator(np.random.PCG64(_KEY_SEED))
        self._reported = 0
        self.state = self._build(empty_columns())

    def __len__(self) -> int:
        return len(self.columns["kind"])

    @property
    def now_ps(self) -> int:
        return int(self.state.clock[0])

    @property
    def ended(self) -> int:
        """Operations that have ended."""
        return int(self.state.clock[2])

    @property
    def idle(self) -> bool:
        """All operations have ended."""
        return self.ended == len(self)

    @property
    def solves(self) -> int:
        """Sets of flows whose rates were solved rather than remembered."""
        return int(self.state.memo.used[2])

    def post(self, operations: Operations, first_flow: I64, flows: Columns) -> int:
        """Add operations and flows; those without predecessors start now. Returns the id of the first.

        Communication i takes the flows `first_flow[i] .. first_flow[i + 1]` of those that come with it.
        """
        old, n = self.columns, len(operations)
        base_op, base_flow = len(self), len(old["size_bytes"])
        takes_part = (operations.communication != NONE) & (len(first_flow) > 1)
        which = np.where(takes_part, operations.communication, 0)
        count = np.append(np.diff(first_flow), 0)
        waiting = np.repeat(np.arange(n, dtype=np.int32), np.diff(operations.after_start))
        order = np.argsort(operations.after, kind="stable")
        new: dict[str, npt.NDArray[Any]] = {
            "kind": operations.kind.astype(np.int8),
            "duration_ps": operations.duration_ps.astype(np.int64),
            "first_flow": (np.where(takes_part, first_flow[which], 0) + base_flow).astype(np.int32),
            "flow_count": np.where(takes_part, count[which], 0).astype(np.int32),
            "waits": np.diff(operations.after_start).astype(np.int32),
            "open_flows": np.zeros(n, np.int32),
            "start_ps": np.full(n, -1, np.int64),
            "end_ps": np.full(n, -1, np.int64),
            "next_op": (waiting[order] + base_op).astype(np.int32),
            "next_count": np.bincount(operations.after, minlength=n).astype(np.int64),
            **flows,
        }
        size = len(flows["size_bytes"]) if flows else 0
        new["key"] = self._keys.integers(1, 2**64, size, dtype=np.uint64)
        new["active"] = np.zeros(size, np.int32)
        new["drained"] = np.zeros(size, np.int64)
        columns = {name: _behind(column, new[name]) if name in new else column for name, column in old.items()}
        self.state = self._build(columns)
        self._fluid.start_ready(self.state, base_op, base_op + n)
        return base_op

    def replace_flows(self, flows: Columns) -> None:
        """Let all flows so far use other resources; those at work go on where they are."""
        self.state = self._build(self.columns | dict(flows))

    def _build(self, columns: dict[str, npt.NDArray[Any]]) -> Any:
        """The kernel's state over the present columns; what is at work carries over."""
        before = getattr(self, "state", None)
        self.columns = columns
        flows, self._constraints = flow_table(columns, self.capacity)
        state = new_state(columns, flows)
        if before is not None and len(before.operations.kind):
            self._fluid.carry_over(before, state)
        elif before is not None:
            state.clock[0] = before.clock[0]
        return state

    def capacity_changed(self) -> None:
        """Solve rates again: `capacity` was written."""
        self.state.flows.capacity[:] = self._constraints.capacities(self.capacity)
        self._fluid.forget(self.state)

    def run(self, until_ps: int, budget: int | None = None) -> bool:
        """Run to a time, or until nothing is left to do; tells whether the budget was spent before."""
        state = self.state
        if budget is not None:
            return int(self._fluid.run(state, until_ps, budget)) == SLICED
        in_slices(lambda budget: int(self._fluid.run(state, until_ps, budget)))
        return False

    def waiting(self) -> int:
        """Return an operation that started and will never end; NONE where there is none.

        Raises InvariantError where operations are left that can never start (their predecessors form a cycle).
        """
        operations = self.state.operations
        left = np.flatnonzero(operations.end_ps < 0)
        started = left[operations.start_ps[left] >= 0]
        if len(started):
            return int(started[0])
        if len(left):
            raise InvariantError(
                f"{len(left)} operations never start: the first, {int(left[0])}, waits for some that wait for it"
            )
        return NONE

    def completions(self) -> Completions:
        """Operations that ended since the last call."""
        done = self.ended
        if done == self._reported:
            return NO_COMPLETIONS
        ended = self.state.ended[self._reported : done].astype(np.int64)
        self._reported = done
        return Completions(ended, self.state.operations.end_ps[ended])

    def flow_progress(self) -> F64:
        """[flows] parts of executions at work that have drained."""
        progress: F64 = self._fluid.progress(self.state)
        return progress

    def started_ps(self) -> I64:
        """[operations] when each started; -1 where it has not."""
        started: I64 = self.state.operations.start_ps.copy()
        return started

    def ended_ps(self) -> I64:
        """[operations] when each ended; -1 where it has not."""
        ended: I64 = self.state.operations.end_ps.copy()
        return ended


def _behind(column: npt.NDArray[Any], more: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return both as one; what comes first as it is."""
    return np.concatenate([column, more]) if len(column) else more.astype(column.dtype, copy=False)
