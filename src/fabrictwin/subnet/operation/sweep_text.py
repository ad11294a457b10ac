"""Texts and data of what managers did: first sweeps, and what happened to a subnet afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fabrictwin.base.units import format_time
from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.manager.mad_transport import Statistics
from fabrictwin.subnet.manager.sweep_report import SweepReport
from fabrictwin.subnet.operation.changed_paths import ChangedPath, path_text
from fabrictwin.subnet.operation.managed_fabric import Course, Entry, Incident, port_text

if TYPE_CHECKING:
    from fabrictwin.subnet.operation.scenario import Scenario

MOST_NAMES = 5


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
    """Return lines about what an incident did."""
    lines = [f"{event.what}:"]
    if not event.sweeps:
        return (
            [*lines, *(f"  {said}" for said in event.answers)]
            if event.answers
            else [f"{event.what}: nobody noticed"]
        )
    if event.broken_paths:
        took = "not mended" if event.outage_ps == NONE else f"for {format_time(event.outage_ps)} at most"
        lines.append(f"  {event.broken_paths:,} paths (switch to LID) broken, {took}")
    elif any(path.broken_ps != NONE for path in event.paths):
        lines.append(
            "  no path between what the manager still reaches was broken; what follows was cut off from it"
        )
    else:
        lines.append("  no path was broken")
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
    lines += [f"  {said}" for said in event.answers]
    lines += [f"  found {finding}" for finding in event.sweeps[-1].findings]
    return lines


def path_lines(paths: Sequence[ChangedPath]) -> list[str]:
    """Return lines about what changed between pairs of adapters."""
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


def as_json(scenario: Scenario, first: list[SweepReport], events: list[Incident]) -> dict[str, Any]:
    """All of it, for programs. Times in picoseconds."""
    subnets = []
    for one, report in zip(scenario.managers, first, strict=True):
        sent = one.transport.statistics
        counted = {
            "requests": sent.requests,
            "repeated": sent.repeated,
            "unanswered": sent.unanswered,
            "malformed": one.manager.malformed + one.endpoint.state.malformed,
        }
        said = {"state": report.state.name.lower(), "findings": [str(f) for f in report.findings]}
        subnets.append(
            {"sweep": asdict(report) | said, "datagrams": counted, "lids": len(one.manager.database.lid)}
        )
    return {
        "subnets": subnets,
        "events": [incident_data(event.course, event.sweeps) for event in events],
    }


def incident_data(one: Course, sweeps: Sequence[SweepReport]) -> dict[str, Any]:
    """An incident and its sweeps as plain data. Times in picoseconds; null for what did not happen."""

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
        "gone": [name for sweep in sweeps for name in sweep.gone],
        "arrived": [name for sweep in sweeps for name in sweep.arrived],
        "findings": [str(finding) for sweep in sweeps[-1:] for finding in sweep.findings],
    }
