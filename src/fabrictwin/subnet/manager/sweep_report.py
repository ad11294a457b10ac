"""Reports of sweeps, and plans of tables to be programmed."""

from __future__ import annotations

from fabrictwin.base.arrays import U8
from fabrictwin.base.records import record
from fabrictwin.routing.engines.filling import Tables
from fabrictwin.subnet.manager.sweep.discovery import Finding
from fabrictwin.subnet.manager.sweep.table_computation import Broken, Graph
from fabrictwin.subnet.wire.smp import SmState


@record
class Rerouting:
    """Effects of a change of the fabric on the tables."""

    broken_paths: int  # (switch with adapters, LID) whose packets went nowhere
    entries: int  # table entries that changed
    switches: int  # that hold them
    lids: tuple[int, ...]  # destinations that were cut off from somebody
    repaired_ps: int  # when the last entry on their new ways was answered; NONE where nothing was broken


@record
class SweepReport:
    """One sweep."""

    kind: str  # heavy or light
    state: SmState
    started_ps: int
    ended_ps: int
    nodes: int
    switches: int
    endpoints: int
    engine: str
    remark: str
    findings: tuple[Finding, ...]
    arrived: tuple[str, ...]  # names of ports that came since the last sweep
    gone: tuple[str, ...]
    rerouting: Rerouting | None


@record
class RoutePlan:
    """Tables to be programmed, and what they are instead of."""

    graph: Graph
    tables: Tables
    old: U8  # [S, LIDs] as the switches hold them, 255 for what is unknown
    broken: Broken | None  # None at the first sweep
    fresh: frozenset[int]  # switches about which nothing is known, by GUID
    stages: tuple[U8, ...] = ()  # tables to be programmed before, one after the other

    def report(self, broken: Broken, repaired_ps: int) -> Rerouting:
        """Return what changed; `repaired_ps` is when the last entry that a broken path needed was answered."""
        differs = self.old[:, : self.tables.lft.shape[1]] != self.tables.lft
        return Rerouting(
            broken_paths=broken.paths,
            entries=int(differs.sum()),
            switches=int(differs.any(axis=1).sum()),
            lids=tuple(int(lid) for lid in broken.lids),
            repaired_ps=repaired_ps,
        )
