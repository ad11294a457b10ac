"""Dumps of NCCL's flight recorder (torch/csrc/distributed/c10d/FlightRecorder) of one rank, as a job to be played.

A dump has calls with their sizes and the time at which the host made each. Compute is not in it: between two calls
the host takes the time that it took. Collectives of a group run in order; sends do not wait for receives, since
dumps do not say which were one batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.interchange import torch_calls
from fabrictwin.interchange.plain_pickle import unpickled
from fabrictwin.interchange.rank_traces import RankTrace
from fabrictwin.workload.captured.captured_job import Collective, Compute, Message

MOST_ENTRIES = 2_000_000
_PEER = re.compile(r"(send|recv)\s+(\d{1,7})\s*(?:->|<-)\s*(\d{1,7})")


def plain_data(raw: bytes, file: str) -> Any:
    """Read what a dump holds, as pickle or JSON. Raises ConfigError."""
    if raw[:1] != b"{":
        return unpickled(raw, file)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is no JSON: {error}", file=file) from None


def recognises(data: Any) -> bool:
    """Return true for a dump."""
    return isinstance(data, Mapping) and isinstance(data.get("entries"), list)


def read(data: Mapping[str, Any], file: str, *, rank: int) -> RankTrace:
    """One rank's dump. Raises ConfigError."""
    trace = RankTrace(rank, 1, file)
    config = data.get("pg_config")
    for key, group in config.items() if isinstance(config, Mapping) else ():
        if isinstance(group, Mapping):
            ranks = torch_calls.ranks_in(group.get("ranks"))
            trace.world = max(trace.world, *(one + 1 for one in ranks), 1)
            if rank in ranks:
                trace.groups[str(group.get("name", key))[:200]] = ranks, str(group.get("desc", ""))
    entries = [entry for entry in data["entries"][:MOST_ENTRIES] if isinstance(entry, Mapping)]
    entries.sort(key=lambda entry: whole_time(entry.get("time_created_ns")))
    last: dict[str, int] = {}
    host, at = -1, None
    for entry in entries:
        created = whole_time(entry.get("time_created_ns"))
        found = _call(entry, trace)
        if found is None:
            continue
        if at is not None and created > at:
            trace.operations.append(
                Compute("host", (host,) if host >= 0 else (), (created - at) * 1000, None, "other")
            )
            host = len(trace.operations) - 1
        at = created if at is None else max(at, created)
        group, make = found
        after = tuple(sorted({host, last.get(group, -1)} - {-1}))
        trace.operations.append(make(after))
        last[group] = len(trace.operations) - 1
    if not trace.operations:
        raise ConfigError("has no calls that could be played", file=file)
    return trace


def whole_time(value: Any) -> int:
    """Nanoseconds since the epoch; 0 where there are none."""
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


def _elements(sizes: Any) -> int:
    total = 0
    for shape in sizes if isinstance(sizes, list | tuple) else ():
        if isinstance(shape, list | tuple) and all(type(one) is int and 0 <= one < 1 << 40 for one in shape):
            total += min(prod(shape), 1 << 48)
    return min(total, 1 << 48)


def _call(entry: Mapping[str, Any], trace: RankTrace) -> Any:
    """(key of what runs in order, what makes the operation of what it waits for); None where there is none."""
    what = str(entry.get("profiling_name", ""))[:200]
    plain = torch_calls.plain_name(what)
    if plain in torch_calls.SILENT:
        return None
    group = entry.get("process_group")
    key = str(group[0] if isinstance(group, list | tuple) and group else entry.get("pg_id", ""))[:200]
    types = entry.get("input_dtypes", entry.get("dtype"))
    element = torch_calls.element_bytes(str(types[0] if isinstance(types, list | tuple) and types else types))
    if key not in trace.groups or not element:
        trace.miss(what or "entry", "its group's ranks or its type are not in the dump")
        return None
    ranks = trace.groups[key][0]
    into, out = _elements(entry.get("input_sizes")), _elements(entry.get("output_sizes"))
    if entry.get("is_p2p") or plain in ("send", "recv"):
        named = _PEER.search(what)
        if named is None or int(named[3]) >= len(ranks):
            trace.miss(what, "it names no peer of its group")
            return None
        peer, size = ranks[int(named[3])] - trace.rank, max(into, out) * element
        sends = named[1] == "send"
        return f"{key} {named[1]} {named[3]}", lambda after: Message(sends, peer, size, after)
    kind = torch_calls.kind_of(what)
    if kind is None:
        trace.miss(what, "it is no collective of NCCL")
        return None
    size = max(torch_calls.size_of(kind, into, out, len(ranks)), 1) * element
    root = torch_calls.whole_or(entry.get("root"), 0)
    return key, lambda after: Collective(kind, key, size, after, element, root if 0 <= root < len(ranks) else 0)
