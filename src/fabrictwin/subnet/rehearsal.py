"""A fabric, its management and a manager, from a cluster file; and what happens to it when something breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fabrictwin.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.network import Network
from fabrictwin.subnet.agents.state import SubnetState
from fabrictwin.subnet.changed_paths import ChangedPath, path_text
from fabrictwin.subnet.console import find_node, find_target
from fabrictwin.subnet.endpoint import Endpoint
from fabrictwin.subnet.hosting import HostedManager, one_for_each_plane
from fabrictwin.subnet.managed import Entry, Incident, ManagedFabric, port_text
from fabrictwin.subnet.manager.config import Settings
from fabrictwin.subnet.manager.lids import read_guid2lid, write_guid2lid
from fabrictwin.subnet.manager.partitions import Everybody, read_partitions
from fabrictwin.subnet.manager.reports import Memory, SweepReport
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


def has_job(cluster: Path) -> bool:
    """Whether a file is a spec with a workload. Raises ConfigError."""
    from fabrictwin.cluster.spec import load_cluster

    return bool(load_cluster(cluster).workload)


def manager_nodes(endpoint: Endpoint, host: str) -> list[int]:
    """Where managers run, one a subnet; `host` names the first's node. Raises ConfigError."""
    nodes = one_for_each_plane(endpoint, find_node(endpoint.state, host) if host else NONE)
    if not nodes:
        raise ConfigError("got no adapter with a cable, expected one for the manager to run on", key="cluster")
    return nodes


def partitioned(settings: Settings, path: Path | None, endpoint: Endpoint, host: str) -> Settings:
    """Settings with the partitions of a file; without one as they are. Raises ConfigError."""
    if path is None:
        return settings
    state = endpoint.state
    guids = list(zip(state.port_guid, state.is_switch, strict=True))
    everybody = Everybody(
        adapters=frozenset(guid for guid, switch in guids if not switch),
        switches=frozenset(guid for guid, switch in guids if switch),
        manager=frozenset(state.port_guid[m] for m in manager_nodes(endpoint, host)),
    )
    return replace(settings, partitions=read_partitions(path, everybody))


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
        self.fabric = ManagedFabric(endpoint, self.managers)

    def start(self) -> list[SweepReport]:
        """The first sweep of each subnet."""
        reports = self.fabric.start()
        self._remember()
        return reports

    def target(self, line: str) -> int:
        """The managed node that an event is about. Raises ConfigError."""
        return find_target(self.endpoint.state, line)

    def do(self, line: str) -> Incident:
        """Break or mend something and let the managers deal with it. Raises ConfigError."""
        known = len(self.fabric.incidents)
        at = self.fabric.now_ps
        self.fabric.plan(at, line, self.target(line))
        self.fabric.settle()
        self._remember()
        return self.fabric.incidents[known]

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


def event_lines(event: Incident) -> list[str]:
    """What an incident did, for people."""
    lines = [f"{event.what}:"]
    if not event.sweeps:
        return [f"{event.what}: nobody noticed"]
    if event.broken_paths:
        took = "not mended" if event.outage_ps == NONE else f"for {format_time(event.outage_ps)} at most"
        lines.append(f"  {event.broken_paths:,} paths (switch to LID) broken, {took}")
    else:
        lines.append("  no path between what is left was broken")
    lines.append(f"  {len(event.entries):,} table entries changed")
    lines += [f"    {entry_text(entry)}" for entry in event.entries[:MOST_NAMES]]
    if len(event.entries) > MOST_NAMES:
        lines.append(f"    and {len(event.entries) - MOST_NAMES:,} more")
    lines += path_lines(event.paths)
    for word in ("gone", "arrived"):
        names = [name for sweep in event.sweeps for name in getattr(sweep, word)]
        if names:
            shown = ", ".join(names[:MOST_NAMES])
            rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            lines.append(f"  {word}: {shown}{rest}")
    lines += [f"  found {finding}" for finding in event.sweeps[-1].findings]
    return lines


def path_lines(paths: Sequence[ChangedPath]) -> list[str]:
    """What changed between pairs of adapters, for people."""
    between = [path for path in paths if path.adapter]
    pairs = sum(path.pairs for path in between)
    if not pairs:
        return []
    broken = [path for path in between if path.broken_ps != NONE]
    mended = [path.outage_ps for path in broken if path.outage_ps != NONE]
    line = f"  paths of {pairs:,} pairs of adapters changed"
    if broken:
        line += f"; {sum(path.pairs for path in broken):,} were broken"
    if mended:
        line += f", for {span_text(min(mended), max(mended))}"
    lost = sum(path.pairs for path in between if path.whole_ps == NONE)
    if lost:
        line += f"; {lost:,} lead nowhere now"
    lines = [line] + [f"    {path_text(path)}" for path in between[:MOST_NAMES]]
    if len(between) > MOST_NAMES:
        lines.append(f"    and {len(between) - MOST_NAMES:,} more of a switch and an adapter")
    return lines


def span_text(least_ps: int, most_ps: int) -> str:
    """A range of times, for people."""
    few, many = (format_time(one) if one else "0 s" for one in (least_ps, most_ps))
    return few if few == many else f"{few} to {many}"


def path_data(path: ChangedPath) -> dict[str, Any]:
    """A changed path as plain data."""
    return {
        "switch": path.switch,
        "sources": list(path.sources),
        "destination": path.destination,
        "adapter": path.adapter,
        "lid": path.lid,
        "before": list(path.before),
        "after": list(path.after),
        "arrives": path.whole_ps != NONE,
        "broken": path.broken_ps != NONE,
        "outage_ps": None if path.outage_ps == NONE else path.outage_ps,
    }


def entry_text(entry: Entry) -> str:
    """A changed table entry, for people."""
    return f"{entry.switch} to {entry.destination}: port {port_text(entry.before)} -> {port_text(entry.after)}"


def as_json(rehearsal: Rehearsal, first: list[SweepReport], events: list[Incident]) -> dict[str, Any]:
    """All of it, for programs. Times in picoseconds."""
    subnets = []
    for one, report in zip(rehearsal.managers, first, strict=True):
        sent = one.transport.statistics
        counted = {
            "requests": sent.requests,
            "repeated": sent.repeated,
            "unanswered": sent.unanswered,
            "malformed": one.manager.malformed + one.endpoint.state.malformed,
        }
        said = {"state": report.state.name.lower(), "findings": [str(f) for f in report.findings]}
        subnets.append({"sweep": asdict(report) | said, "datagrams": counted, "lids": len(one.manager.lid)})
    return {
        "subnets": subnets,
        "events": [incident_data(event) for event in events],
    }


def incident_data(one: Incident) -> dict[str, Any]:
    """An incident as plain data. Times in picoseconds; null for what did not happen."""

    def known(time_ps: int) -> int | None:
        return None if time_ps == NONE else time_ps

    return {
        "what": one.what,
        "at_ps": known(one.at_ps),
        "noticed_ps": known(one.noticed_ps),
        "settled_ps": known(one.settled_ps),
        "broken_paths": one.broken_paths,
        "outage_ps": known(one.outage_ps),
        "table_entries_changed": len(one.entries),
        "entries": [asdict(entry) for entry in one.entries],
        "paths": [path_data(path) for path in one.paths],
        "gone": [name for sweep in one.sweeps for name in sweep.gone],
        "arrived": [name for sweep in one.sweeps for name in sweep.arrived],
        "findings": [str(f) for sweep in one.sweeps[-1:] for f in sweep.findings],
    }
