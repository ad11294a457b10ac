"""Records that ranks of a program leave, and the captured job that they make."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.interchange.rank_traces import RankTrace, together
from fabrictwin.workload.captured.captured_file import from_data, plain_json, to_data, unpacked
from fabrictwin.workload.captured.captured_job import CapturedJob, Group, RankClass


def write_record(trace: RankTrace, path: Path) -> None:
    """Write a rank's operations and groups, under their final name only once they are whole."""
    groups = tuple(Group(key, (ranks,)) for key, (ranks, _) in trace.groups.items())
    mine = RankClass("", (trace.rank,), tuple(trace.operations))
    rest = tuple(rank for rank in range(trace.world) if rank != trace.rank)
    classes = (mine, RankClass("", rest, ())) if rest else (mine,)
    data: dict[str, Any] = to_data(CapturedJob("rank", trace.world, classes, groups))
    described = {key: description for key, (_, description) in trace.groups.items()}
    partial = path.with_suffix(".partial")
    partial.write_text(
        json.dumps({"rank": trace.rank, "descriptions": described, "notes": trace.notes, "job": data})
    )
    os.replace(partial, path)


def read_traces(folder: Path) -> list[RankTrace]:
    """Records of all ranks that left one. Raises ConfigError."""
    traces = []
    for file in sorted(folder.glob("rank.*.json")):
        data = plain_json(unpacked(file), str(file))
        job = from_data(data["job"], str(file))
        trace = RankTrace(int(data["rank"]), job.world, str(file), list(job.classes[0].operations))
        trace.groups = {one.name: (one.members[0], data["descriptions"].get(one.name, "")) for one in job.groups}
        trace.notes += data["notes"]
        traces.append(trace)
    return traces


def read_records(folder: Path, name: str) -> CapturedJob:
    """The job of all ranks' records. Raises SimulatedError where a rank left none, ConfigError."""
    traces = read_traces(folder)
    if not traces:
        raise ConfigError("made no process group: there is nothing to model", key=name)
    missing = sorted(set(range(traces[0].world)) - {trace.rank for trace in traces})
    if missing:
        raise SimulatedError("ended without its record", f"rank {missing[0]}", "it died, or left by os._exit")
    return together(traces, name=name, source="a program of PyTorch")
