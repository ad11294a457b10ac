"""What broke while the job ran and what the subnet manager made of it: for the terminal, for the report."""

from __future__ import annotations

from typing import Any

from fabrictwin.base.units import format_time

MOST_ENTRIES = 5


def _when(time_ps: int | None) -> str:
    return "0 s" if time_ps == 0 else format_time(time_ps or 0)


def _course(event: dict[str, Any]) -> str:
    """Times at which the manager heard of an event and was done with it, in words."""
    noticed, settled = event["noticed_ps"], event["settled_ps"]
    if noticed is None:
        return "nobody had noticed when the job ended"
    if settled is None:
        return f"noticed at {_when(noticed)}, not settled when the job ended"
    return f"noticed at {_when(noticed)}, settled at {_when(settled)}"


def _packets(event: dict[str, Any]) -> str:
    if event["packets_lost"] is None:
        return "packets not modelled at this fidelity"
    return f"{event['packets_lost']:,} packets lost, {event['packets_retransmitted']:,} sent again"


def _broken(event: dict[str, Any]) -> str:
    if not event["broken_paths"]:
        cut_off = any(path["broken"] for path in event["paths"])
        return "no path broken that the manager still reaches" if cut_off else "no path broken"
    outage = "not mended" if event["outage_ps"] is None else f"outage {format_time(event['outage_ps'])}"
    return f"{event['broken_paths']:,} paths broken, {outage}"


def _pairs(event: dict[str, Any]) -> str:
    """Pairs of adapters that go another way, and those of the job, in words."""
    adapters = [path for path in event["paths"] if path["adapter"]]
    pairs = sum(len(path["sources"]) for path in adapters)
    broken = sum(len(path["sources"]) for path in adapters if path["broken"])
    job = event["job_paths"]
    text = f"paths of {pairs:,} pairs of adapters changed, {broken:,} were broken"
    return f"{text}; {len(job):,} of them the job's" if job else f"{text}; none of them the job's"


def _job_path(path: dict[str, Any]) -> str:
    before, after = (" > ".join(path[key]) or "nowhere" for key in ("before", "after"))
    state = ""
    if path["broken"]:
        state = ", not mended" if path["outage_ps"] is None else f", broken for {_when(path['outage_ps'])}"
    return f"{path['source']} to {path['destination']}: {before} -> {after}{state}"


def _entry(entry: dict[str, Any]) -> str:
    # heavy to import, and few runs are managed
    from fabrictwin.subnet.operation.managed_fabric import Entry
    from fabrictwin.subnet.operation.sweep_text import entry_text

    return entry_text(Entry(**entry))


def outage_lines(managed: dict[str, Any]) -> list[str]:
    """Lines of the terminal's block."""
    lines = [
        f"  subnet manager: tables by {managed['engine']}; its first sweep took {_when(managed['first_sweep_ps'])}"
    ]
    lines += [f"    found {finding}" for finding in managed["findings"]]
    for event in managed["events"]:
        lines += [
            f"    {event['what']} at {_when(event['at_ps'])}: {_course(event)}",
            f"      {_broken(event)}; {_packets(event)}",
            f"      {_pairs(event)}",
        ]
        lines += [f"        {_job_path(path)}" for path in event["job_paths"][:MOST_ENTRIES]]
        if len(event["job_paths"]) > MOST_ENTRIES:
            lines.append(f"        and {len(event['job_paths']) - MOST_ENTRIES:,} more")
        lines.append(f"      {event['table_entries_changed']:,} table entries changed")
        lines += [f"        {_entry(entry)}" for entry in event["entries"][:MOST_ENTRIES]]
        if event["table_entries_changed"] > MOST_ENTRIES:
            lines.append(f"        and {event['table_entries_changed'] - MOST_ENTRIES:,} more")
        lines += [f"      found {finding}" for finding in event["findings"]]
    return lines


def outage_table(managed: dict[str, Any] | None) -> dict[str, Any] | None:
    """Cells of the report's section; None where no manager was at work or nothing broke."""
    if managed is None or not managed["events"]:
        return None
    events = managed["events"]
    return {
        "rows": [{"what": event["what"], "cells": _cells(event)} for event in events],
        "pairs": [f"{event['what']}: {_pairs(event)}" for event in events],
        "job_paths": [
            f"{event['what']}: {_job_path(path)}"
            for event in events
            for path in event["job_paths"][: 4 * MOST_ENTRIES]
        ],
        "entries": [
            f"{event['what']}: {_entry(entry)}"
            for event in events
            for entry in event["entries"][: 4 * MOST_ENTRIES]
        ],
    }


def _cells(event: dict[str, Any]) -> list[str]:
    times = [event[key] for key in ("at_ps", "noticed_ps", "settled_ps")]
    packets = [event[key] for key in ("packets_lost", "packets_retransmitted")]
    return [
        *("–" if time_ps is None else _when(time_ps) for time_ps in times),
        f"{event['broken_paths']:,}",
        "none" if event["outage_ps"] is None else format_time(event["outage_ps"]),
        *("not modelled" if count is None else f"{count:,}" for count in packets),
        f"{event['table_entries_changed']:,}",
    ]
