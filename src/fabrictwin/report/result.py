"""What a run yields: everything the views (summary, tables, timeline, report) are computed from."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.report.breakdown import Breakdown, Collective, breakdown, collectives
from fabrictwin.trace.trace import Trace
from fabrictwin.workload.step.step_work import Lowered

if TYPE_CHECKING:  # heavy to import, and few runs have either
    from fabrictwin.report.management_record import Management
    from fabrictwin.workload.search.gains import Gain


@record
class Reference:
    """Published figures to stand beside the prediction, by the key that summary.json has for each."""

    source: str
    figures: dict[str, float]


@record
class Asked:
    """What a run was asked: the spec, and its cluster in a line."""

    name: str
    seed: int
    resolved: dict[str, Any]  # the spec with every default spelled out, as plain data
    cluster_line: str


@record
class RunResult:
    """One run, finished."""

    asked: Asked
    fabric: Fabric
    job: Lowered  # as it ran
    trace: Trace
    reference: Reference | None = None
    management: Management | None = None  # what subnet managers did; None where none was at work
    gains: tuple[Gain, ...] = ()  # what changes would gain, most first; none where that was not asked for

    @cached_property
    def breakdown(self) -> Breakdown:
        return breakdown(self.job.program, self.trace)

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        return collectives(self.job.program, self.trace, self.breakdown)
