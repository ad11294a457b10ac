"""The report of an import: what a captured job holds, and what of the trace could not be placed."""

from __future__ import annotations

from collections import Counter

from fabrictwin.base.units import format_size, format_time
from fabrictwin.workload.captured.captured_job import CapturedJob, Collective, Compute


def report(job: CapturedJob) -> str:
    """The report as text."""
    classes = len(job.classes)
    lines = [
        job.name,
        f"  from        {job.source}",
        f"  ranks       {job.world:,} in {classes} class{'' if classes == 1 else 'es'}",
    ]
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    measured, work = 0, 0
    for one in job.classes:
        for each in one.operations:
            if isinstance(each, Compute):
                measured += each.time_ps or 0
                work += each.work is not None
                continue
            key = (
                (each.kind, each.group)
                if isinstance(each, Collective)
                else ("send" if each.sends else "receive", "")
            )
            counts[key] += 1
            sizes[key] += each.size_bytes
    lines.append(
        f"  operations  {job.operations:,}, with {format_time(measured)} of measured compute and host time"
    )
    if work:
        lines.append(f"              {work:,} of them work by shape, which the GPU that they are played on times")
    for (kind, group), count in sorted(counts.items()):
        where = f" on {group}" if group else ""
        lines.append(f"  {kind:<16}{count:>7,} × {where}, {format_size(sizes[kind, group])}".replace("× ,", "×,"))
    lines += [f"  note        {note}" for note in job.notes]
    if job.unplaced:
        lines.append("  not placed")
        lines += [f"    {one.count:>7,} × {one.what}: {one.why}" for one in job.unplaced]
    return "\n".join(lines) + "\n"
