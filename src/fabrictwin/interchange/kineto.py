"""Kineto traces (torch.profiler's Chrome JSON, with `distributedInfo`) of one rank.

Kernels keep the time that was measured; an NCCL kernel becomes the collective that its arguments describe, since
what it took is the fabric's and the waiting for others. What waited for what is read off the trace:

- a stream runs in order;
- an NCCL kernel waits for the last kernel that the host launched before it, as ProcessGroupNCCL records an event
  on the current stream;
- a kernel waits for a kernel of another stream that ended while its own stream was empty and it was launched
  already, or whose end a synchronising call of the host waited for before it launched this one;
- what else a stream stood empty is the host's time, and stays.

A trace without kernels (gloo) is read by the host's own calls, one after the other.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fabrictwin.base.errors import ConfigError
from fabrictwin.interchange import torch_calls
from fabrictwin.interchange.rank_traces import RankTrace
from fabrictwin.workload.captured.captured_file import MOST_RANKS
from fabrictwin.workload.captured.captured_job import Collective, Compute, Message, Operation

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
# categories up to PyTorch 1.11, and what later releases call them
BEFORE = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
    "Operator": "cpu_op",
}
PS_PER_US = 1_000_000
_NO_SIZE = "the trace does not say its bytes: its measured time stays"


class _Kernel(NamedTuple):
    start: float  # us
    end: float
    stream: tuple[int, str]
    launched: float
    name: str
    arguments: Mapping[str, Any]
    nccl: bool


def recognises(data: Any) -> bool:
    """Return true for a trace of Kineto."""
    return isinstance(data, Mapping) and isinstance(data.get("traceEvents"), list)


def read(data: Mapping[str, Any], file: str) -> RankTrace:
    """One rank's trace. Raises ConfigError."""
    info = data.get("distributedInfo")
    info = info if isinstance(info, Mapping) else {}
    trace = RankTrace(
        torch_calls.whole_or(info.get("rank"), 0), max(torch_calls.whole_or(info.get("world_size"), 1), 1), file
    )
    if "world_size" not in info:
        trace.world = max(trace.world, trace.rank + 1)
    if not 0 <= trace.rank < trace.world <= MOST_RANKS:
        raise ConfigError(f"is of rank {trace.rank} of {trace.world}", file=file, key="distributedInfo")
    _groups(info.get("pg_config"), trace)
    events = [
        {**event, "cat": BEFORE[event["cat"]]} if str(event.get("cat")) in BEFORE else event
        for event in data["traceEvents"]
        if isinstance(event, Mapping) and event.get("ph") == "X"
    ]
    kernels = _kernels(events)
    if kernels:
        _play(kernels, events, trace)
    else:
        _host_calls(events, trace)
    if not trace.operations:
        raise ConfigError("has no kernels, no collectives and no operators", file=file)
    return trace


def _groups(config: Any, trace: RankTrace) -> None:
    for one in config if isinstance(config, list) else ():
        if isinstance(one, Mapping):
            ranks = torch_calls.ranks_in(one.get("ranks"))
            if not ranks and torch_calls.whole_or(one.get("pg_size"), 0) == trace.world:
                ranks = tuple(range(trace.world))
            if ranks:
                trace.groups[str(one.get("pg_name"))[:200]] = ranks, str(one.get("pg_desc", ""))


def _number(value: Any) -> float:
    found = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    return found if abs(found) < 1e18 else math.nan


def _span(event: Mapping[str, Any]) -> tuple[float, float]:
    start, took = _number(event.get("ts")), _number(event.get("dur", 0))
    return start, start + took if 0 <= took < 1e12 else math.nan


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("args")
    return found if isinstance(found, Mapping) else {}


def _kernels(events: list[Mapping[str, Any]]) -> list[_Kernel]:
    launched: dict[int, float] = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            start, _ = _span(event)
            correlation = torch_calls.whole_or(_arguments(event).get("correlation"), -1)
            if correlation >= 0 and not math.isnan(start):
                launched[correlation] = start
    found = []
    for event in events:
        if event.get("cat") not in ON_DEVICE:
            continue
        start, end = _span(event)
        if math.isnan(start) or math.isnan(end):
            continue
        arguments = _arguments(event)
        name = str(event.get("name", "kernel"))[:400]
        stream = (
            torch_calls.whole_or(arguments.get("device"), 0),
            str(arguments.get("stream", event.get("tid")))[:40],
        )
        at = launched.get(torch_calls.whole_or(arguments.get("correlation"), -1), start)
        is_nccl = event["cat"] == "kernel" and name.lower().startswith("nccl")
        found.append(_Kernel(start, end, stream, min(at, start), name, arguments, is_nccl))
    found.sort(key=lambda one: (one.start, one.end))
    return found


def _play(kernels: list[_Kernel], events: list[Mapping[str, Any]], trace: RankTrace) -> None:
    """Operations of the kernels, with what they waited for."""
    syncs = sorted(
        span
        for event in events
        if event.get("cat") == "cuda_runtime" and "Synchronize" in str(event.get("name"))
        for span in [_span(event)]
        if not math.isnan(span[1])
    )
    sync_starts = [start for start, _ in syncs]
    last: dict[tuple[int, str], int] = {}  # kernel by stream
    places: list[int] = []  # operation of each kernel
    by_launch: list[tuple[float, int]] = []  # of kernels that are no collectives, those before this one
    measured = 0.0
    for number, one in enumerate(kernels):
        deps = {last[one.stream]} if one.stream in last else set()
        if one.nccl:
            at = bisect.bisect_left(by_launch, (one.launched, -1))
            if at:
                deps.add(by_launch[at - 1][1])
        else:
            free = kernels[last[one.stream]].end if one.stream in last else -math.inf
            for stream, other in last.items():
                end = kernels[other].end
                if stream == one.stream or end > one.start or end < free:
                    continue
                s = bisect.bisect_right(sync_starts, end) - 1
                waited = s >= 0 and end <= syncs[s][1] <= one.launched
                if one.launched <= end or waited:
                    deps.add(other)
            bisect.insort(by_launch, (one.launched, number))
        begun = max((kernels[i].end for i in deps), default=kernels[0].start)
        after = tuple(sorted(places[i] for i in deps))
        if one.start > begun:
            trace.operations.append(Compute("host", after, round((one.start - begun) * PS_PER_US), None, "other"))
            after = (len(trace.operations) - 1,)
        trace.operations.append(_operation(one, after, trace))
        measured += one.end - one.start if one.nccl else 0.0
        places.append(len(trace.operations) - 1)
        last[one.stream] = number
    count = sum(one.nccl for one in kernels)
    if count:
        trace.notes.append(
            f"rank {trace.rank}: {count:,} NCCL kernels took {measured / 1000:,.3f} ms where the trace was taken"
        )


def _operation(one: _Kernel, after: tuple[int, ...], trace: RankTrace) -> Operation:
    took = round((one.end - one.start) * PS_PER_US)
    if not one.nccl:
        return Compute(one.name[:120], after, took)
    found = call_of(one.arguments, after, trace)
    if found is None:
        trace.miss(one.name.partition("(")[0], _NO_SIZE)
        return Compute(one.name.partition("(")[0], after, took, None, "other")
    return found


def call_of(arguments: Mapping[str, Any], after: tuple[int, ...], trace: RankTrace) -> Operation | None:
    """The collective or message that the arguments of an event describe; None where they do not."""
    name = str(arguments.get("Collective name", ""))
    element = torch_calls.element_bytes(str(arguments.get("dtype", "")))
    into, out = (torch_calls.whole_or(arguments.get(f"{side} msg nelems"), -1) for side in ("In", "Out"))
    group = _group_of(arguments, trace)
    if group is None or into < 0 or not element:
        return None
    ranks = trace.groups[group][0]
    plain = torch_calls.plain_name(name)
    if plain in ("send", "recv"):
        peer = torch_calls.whole_or(arguments.get("Dst Rank" if plain == "send" else "Src Rank"), -1)
        if not 0 <= peer < len(ranks):
            return None
        return Message(plain == "send", ranks[peer] - trace.rank, max(into, out) * element, after)
    kind = torch_calls.kind_of(name)
    if kind is None:
        return None
    count = max(torch_calls.size_of(kind, into, max(out, 0), len(ranks)), 1)
    root = torch_calls.whole_or(arguments.get("Root Rank", arguments.get("Src Rank")), 0)
    rooted = kind in ("broadcast", "reduce", "gather", "scatter") and 0 <= root < len(ranks)
    return Collective(kind, group, count * element, after, element, root if rooted else 0)


def _group_of(arguments: Mapping[str, Any], trace: RankTrace) -> str | None:
    """The group's key, known from now on; None where its ranks cannot be told."""
    key = str(arguments.get("Process Group Name", ""))[:200]
    if key in trace.groups:
        return key
    ranks = torch_calls.ranks_in(arguments.get("Process Group Ranks"))
    size = torch_calls.whole_or(arguments.get("Group size"), 0)
    if not ranks and size == trace.world:
        ranks = tuple(range(trace.world))
    start, stride = (
        torch_calls.whole_or(arguments.get(f"Global rank {what}"), -1) for what in ("start", "stride")
    )
    if not ranks and 0 < size <= MOST_RANKS and start >= 0 and stride > 0:
        ranks = tuple(range(start, start + size * stride, stride))
    if not ranks or trace.rank not in ranks:
        return None
    trace.groups[key] = ranks, str(arguments.get("Process Group Description", ""))
    return key


def _host_calls(events: list[Mapping[str, Any]], trace: RankTrace) -> None:
    """Calls of the host in a trace without kernels, and its time between them."""
    calls = []
    for event in events:
        if event.get("cat") == "cpu_op":
            start, end = _span(event)
            if not math.isnan(end):
                calls.append((start, end, event))
    calls.sort(key=lambda one: (one[0], -one[1]))
    at = calls[0][0] if calls else 0.0
    for start, end, event in calls:
        if event.get("name") != "record_param_comms":
            continue
        arguments = _arguments(event)
        found = call_of(arguments, (len(trace.operations),), trace)
        if found is None:
            if torch_calls.plain_name(str(arguments.get("Collective name", ""))) not in torch_calls.SILENT:
                trace.miss(
                    str(arguments.get("Collective name", "collective")), "its group or bytes are not in the trace"
                )
            continue
        _host(trace, at, start)
        trace.operations.append(found)
        at = max(at, end)
    if calls:
        _host(trace, at, max(end for _, end, _ in calls))


def _host(trace: RankTrace, begin: float, end: float) -> None:
    after = (len(trace.operations) - 1,) if trace.operations else ()
    took = round(max(end - begin, 0.0) * PS_PER_US)
    trace.operations.append(Compute("host", after, took, None, "other"))
