"""What a run yields: everything the views (summary, tables, timeline, report) are computed from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fabrictwin.fabric.fabric import Fabric
from fabrictwin.program.program import Program
from fabrictwin.report.breakdown import Breakdown, Collective, breakdown, collectives
from fabrictwin.report.management_record import Management
from fabrictwin.trace.trace import Trace
from fabrictwin.workload.memory.gpu_memory import Memory
from fabrictwin.workload.search.gains import Gain
from fabrictwin.workload.step.step_work import Work


@dataclass(frozen=True)
class Reference:
    """Published figures to stand beside the prediction, by the key that summary.json has for each."""

    source: str
    figures: dict[str, float]


@dataclass(frozen=True)
class RunResult:
    """One run, finished."""

    name: str
    seed: int
    resolved: dict[str, Any]  # the spec with every default spelled out, as plain data
    cluster_line: str  # one line for people
    layout_line: str
    fabric: Fabric
    program: Program
    rank_node: npt.NDArray[np.int32]  # [ranks]
    trace: Trace
    work: Work | None = None  # None where a program counts no model FLOPs
    reference: Reference | None = None
    notes: tuple[str, ...] = ()  # what was assumed, one line each
    management: Management | None = None  # what subnet managers did; None where none was at work
    memory: Memory | None = None  # of the fullest GPU; None where a program says nothing of it

    gains: tuple[Gain, ...] = ()  # what changes would gain, most first; none where that was not asked for

    @cached_property
    def breakdown(self) -> Breakdown:
        return breakdown(self.program, self.trace)

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        return collectives(self.program, self.trace, self.breakdown)
