"""What an engine offers. A program is played through a session; verbs programs, faults and the subnet manager
use the very same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fabrictwin.kernel.codes import NEVER
from fabrictwin.program.program import Communication, Operations
from fabrictwin.trace.trace import Counters

FOREVER = NEVER


@dataclass(frozen=True)
class Completions:
    """Operations that ended, in order of time; ties in order of id. Both of shape [completed]."""

    operation: npt.NDArray[np.int64]  # ids as `post` gave them
    time_ps: npt.NDArray[np.int64]


@dataclass(frozen=True)
class LinkChange:
    """A port's directed link changes now: `rate_bps` 0 takes it down, None restores what was built."""

    port: int
    rate_bps: int | None


@dataclass(frozen=True)
class TableChange:
    """Entries of forwarding tables change now: row of `Routes.switches`, LID, port (255 none). All of shape [n].

    InfiniBand alone: Ethernet's switches hold groups, which nothing withdraws while a job runs.
    """

    row: npt.NDArray[np.int64]
    lid: npt.NDArray[np.int64]
    port: npt.NDArray[np.uint8]


Change = LinkChange | TableChange


@dataclass(frozen=True)
class TimedChange:
    """A port's directed link changes at a time: as `LinkChange`, or with `error_rate` its bit errors."""

    time_ps: int
    port: int
    rate_bps: int | None = None
    error_rate: float | None = None  # chance that a bit is hit, after correction


class Session(Protocol):
    """One engine at work over one fabric. Time only advances."""

    @property
    def fidelity(self) -> str: ...

    @property
    def now_ps(self) -> int: ...

    def post(
        self,
        operations: Operations,
        communications: Sequence[Communication],
        rank_node: npt.NDArray[np.int32],
    ) -> int:
        """Add operations; those without predecessors start now. Returns the id of the first.

        `rank_node[r]` is the fabric node (a GPU or a CPU) that holds rank r's memory.
        """
        ...

    def advance(self, until_ps: int = FOREVER) -> Completions:
        """Run until `until_ps` or until nothing is left to do, and say what ended since the last call."""
        ...

    def change(self, change: Change) -> None:
        """Change a link or tables now."""
        ...

    def counters(self) -> Counters:
        """What the ports counted so far."""
        ...

    def started_ps(self) -> npt.NDArray[np.int64]:
        """[operations posted so far] when each started; -1 where it has not."""
        ...

    def ended_ps(self) -> npt.NDArray[np.int64]:
        """[operations posted so far] when each ended; -1 where it has not."""
        ...
