"""What subnet managers did in a run: a part of its result."""

from __future__ import annotations

from typing import Any

from fabrictwin.base.records import record
from fabrictwin.subnet.manager.sweep_report import SweepReport
from fabrictwin.subnet.operation.sweep_text import incident_data, path_data
from fabrictwin.twin.managed_run import Outage


@record
class Management:
    """What the managers did: their first sweeps, and what happened while the job ran."""

    sweeps: tuple[SweepReport, ...]
    outages: tuple[Outage, ...]
    end_ps: int  # the managers' time when the job ended
    pairs: frozenset[tuple[str, str]] = frozenset()  # (departing, arriving) adapters of the job's messages
    bad_keys: tuple[str, ...] = ()  # findings by traps 257 to 259

    def data(self) -> dict[str, Any]:
        """Plain data for summary.json; times after the job's start."""
        return {
            "engine": ", ".join(dict.fromkeys(sweep.engine for sweep in self.sweeps)),
            "subnets": len(self.sweeps),
            "first_sweep_ps": max(sweep.ended_ps - sweep.started_ps for sweep in self.sweeps),
            "findings": [*(str(f) for sweep in self.sweeps for f in sweep.findings), *self.bad_keys],
            "events": [_event(outage, self.end_ps, self.pairs) for outage in self.outages],
        }


def _event(one: Outage, end_ps: int, pairs: frozenset[tuple[str, str]]) -> dict[str, Any]:
    sweeps = [sweep for sweep in one.incident.sweeps if sweep.ended_ps <= end_ps]
    return {
        **incident_data(one, sweeps),
        "job_paths": [
            {"source": source, **path_data(path)}
            for path in one.paths
            for source in path.sources
            if (source, path.destination) in pairs
        ],
        "packets_lost": one.lost,
        "packets_retransmitted": one.retransmitted,
    }
