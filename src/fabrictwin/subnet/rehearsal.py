"""A fabric, its management and a manager, from a cluster file; and what happens to it when something breaks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fabrictwin.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.network import Network
from fabrictwin.subnet.agents.state import SubnetState
from fabrictwin.subnet.console import find_node, obey
from fabrictwin.subnet.endpoint import Endpoint
from fabrictwin.subnet.hosting import HostedManager, one_for_each_plane, settle
from fabrictwin.subnet.manager.config import Settings
from fabrictwin.subnet.manager.lids import read_guid2lid, write_guid2lid
from fabrictwin.subnet.manager.manager import Memory, SweepReport
from fabrictwin.subnet.manager.tables import port_guid
from fabrictwin.subnet.manager.transport import MadTiming, Statistics
from fabrictwin.units import format_time

MOST_NAMES = 5


def open_endpoint(cluster: Path) -> Endpoint:
    """The management of the fabric that a cluster or spec file describes. Raises ConfigError."""
    from fabrictwin.cluster.build import build
    from fabrictwin.cluster.spec import load_cluster
    from fabrictwin.fabric.compile import compile_fabric

    spec = load_cluster(cluster)
    fabric = compile_fabric(build(spec.cluster, spec=spec))
    try:
        return Endpoint(Network(SubnetState(fabric)))
    except ConfigError as error:
        raise error.within(file=cluster) from None


def manager_nodes(endpoint: Endpoint, host: str) -> list[int]:
    """Where managers run, one a subnet; `host` names the first's node. Raises ConfigError."""
    nodes = one_for_each_plane(endpoint, find_node(endpoint.state, host) if host else NONE)
    if not nodes:
        raise ConfigError("got no adapter with a cable, expected one for the manager to run on", key="cluster")
    return nodes


@dataclass(frozen=True)
class Event:
    """Something that was done to the fabric, and the sweeps that it led to."""

    what: str
    at_ps: int
    sweeps: tuple[SweepReport, ...]

    @property
    def broken_paths(self) -> int:
        return sum(s.rerouting.broken_paths for s in self.sweeps if s.rerouting is not None)

    @property
    def entries(self) -> int:
        return sum(s.rerouting.entries for s in self.sweeps if s.rerouting is not None)

    @property
    def outage_ps(self) -> int:
        """From the event to the last entry that mends a broken path; NONE where no path broke."""
        repaired = [s.rerouting.repaired_ps for s in self.sweeps if s.rerouting is not None]
        return max(repaired) - self.at_ps if repaired and max(repaired) > self.at_ps else NONE


class Rehearsal:
    """A manager at work on each subnet of a fabric in this process, on the twin's own clock."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        host: str = "",
        settings: Settings | None = None,
        guid2lid: Path | None = None,
        timing: MadTiming | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.guid2lid = guid2lid
        kept = {} if guid2lid is None else read_guid2lid(guid2lid)
        self.managers = [
            HostedManager(endpoint, m, settings=settings, memory=Memory(dict(kept)), timing=timing)
            for m in manager_nodes(endpoint, host)
        ]
        self.now_ps = 0

    def start(self) -> list[SweepReport]:
        """The first sweep of each subnet."""
        self.now_ps = settle(self.managers, 0)
        self._remember()
        return [one.reports[0] for one in self.managers]

    def do(self, line: str) -> Event:
        """Break or mend something and let the managers deal with it. Raises ConfigError."""
        at, before = self.now_ps, [len(one.reports) for one in self.managers]
        obey(self.endpoint.state, line, at)
        self.now_ps = settle(self.managers, at)
        self._remember()
        sweeps = [r for one, n in zip(self.managers, before, strict=True) for r in one.reports[n:]]
        return Event(line, at, tuple(sweeps))

    def _remember(self) -> None:
        if self.guid2lid is not None:
            remember(self.guid2lid, self.managers)


def remember(path: Path, managers: list[HostedManager]) -> None:
    """Write what all managers know of LIDs."""
    lids: dict[int, int] = {}
    lmcs: dict[int, int] = {}
    for one in managers:
        lids |= {guid: lid for guid, lid in one.manager.memory.lid.items() if guid not in lids}
    for one in managers:
        lids |= one.manager.lid
        for node in one.manager.subnet.nodes.values():
            lmcs |= {port_guid(port): port.info.lmc for port in node.ends()}
    write_guid2lid(path, lids, lmcs)


def sweep_lines(report: SweepReport, lids: int, statistics: Statistics) -> list[str]:
    """A first sweep, for people."""
    took = format_time(report.ended_ps - report.started_ps)
    lines = [
        f"{report.state.name.lower()}: {report.nodes:,} nodes, {report.switches:,} switches, "
        f"{report.endpoints:,} adapters, {lids:,} LIDs",
        f"tables by {report.engine}" + (f" ({report.remark})" if report.remark else ""),
        f"{statistics.requests:,} datagrams in {took} of the twin's time, "
        f"{statistics.repeated:,} repeated, {statistics.unanswered:,} unanswered",
    ]
    return lines + [f"found {finding}" for finding in report.findings]


def event_lines(event: Event) -> list[str]:
    """What an event did, for people."""
    lines = [f"{event.what}:"]
    if not event.sweeps:
        return [f"{event.what}: nobody noticed"]
    if event.broken_paths:
        took = "not mended" if event.outage_ps == NONE else f"for {format_time(event.outage_ps)} at most"
        lines.append(f"  {event.broken_paths:,} paths (switch to LID) broken, {took}")
    else:
        lines.append("  no path broken")
    lines.append(f"  {event.entries:,} table entries changed")
    for word in ("gone", "arrived"):
        names = [name for sweep in event.sweeps for name in getattr(sweep, word)]
        if names:
            shown = ", ".join(names[:MOST_NAMES])
            rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            lines.append(f"  {word}: {shown}{rest}")
    lines += [f"  found {finding}" for finding in event.sweeps[-1].findings]
    return lines


def as_json(rehearsal: Rehearsal, first: list[SweepReport], events: list[Event]) -> dict[str, Any]:
    """All of it, for programs. Times in picoseconds."""
    subnets = []
    for one, report in zip(rehearsal.managers, first, strict=True):
        sent = one.transport.statistics
        counted = {"requests": sent.requests, "repeated": sent.repeated, "unanswered": sent.unanswered}
        said = {"state": report.state.name.lower(), "findings": [str(f) for f in report.findings]}
        subnets.append({"sweep": asdict(report) | said, "datagrams": counted, "lids": len(one.manager.lid)})
    return {
        "subnets": subnets,
        "events": [
            {
                "what": event.what,
                "at_ps": event.at_ps,
                "broken_paths": event.broken_paths,
                "outage_ps": event.outage_ps,
                "table_entries_changed": event.entries,
                "gone": [name for sweep in event.sweeps for name in sweep.gone],
                "arrived": [name for sweep in event.sweeps for name in sweep.arrived],
                "findings": [str(f) for sweep in event.sweeps[-1:] for f in sweep.findings],
            }
            for event in events
        ],
    }
