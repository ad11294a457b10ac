"""Chakra execution traces (mlcommons/chakra, schema/protobuf/et_def.proto 0.0.4) of one rank, read and written.

A file is a stream of delimited messages, `GlobalMetadata` first, then nodes with control and data dependencies.
`comm_size` is what a rank puts in, as ASTRA-sim plays it: a shard of an all-gather, the whole of the others. As in
ASTRA-sim a rank does one thing at a time of each kind (host, GPU compute, collectives), in the order of numbers
where dependencies leave a choice; sends do not wait for receives.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.interchange import protobuf_wire as wire
from fabrictwin.interchange.rank_traces import RankTrace
from fabrictwin.interchange.torch_calls import ranks_in
from fabrictwin.nccl.lowering.tasks import Kind
from fabrictwin.workload.captured.captured_job import Collective, Compute, Message, Operation

METADATA, LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(1, 8)
COLLECTIVES: tuple[Kind | None, ...] = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all"),
    *("reduce_scatter", "reduce_scatter", "all_reduce"),
)
BARRIER = 9
PS_PER_US = 1_000_000
MOST_NODES = 5_000_000
WORLD = "world"
_SCALARS: dict[int, Callable[[int], int]] = {
    9: wire.signed,
    7: wire.signed,
    11: int,
    13: int,
    15: wire.zigzag,
    17: wire.zigzag,
    27: bool,
}
_FIXED = {3: "d", 5: "f", 19: "I", 21: "Q", 23: "i", 25: "q"}


@dataclass
class Node:
    """A node as it stands."""

    number: int = 0
    name: str = ""
    kind: int = 0
    after: list[int] = field(default_factory=list)
    control: list[int] = field(default_factory=list)
    duration_us: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)


Make = Callable[["Node", tuple[int, ...], RankTrace], Operation | None]


def recognises_json(data: Any) -> bool:
    """Return true for Chakra's JSON."""
    return isinstance(data, Mapping) and isinstance(data.get("workload_graph"), list)


def recognises(data: bytes) -> bool:
    """Return true for the beginning of a stream of Chakra's messages: a version or attributes, then a node."""
    try:
        stream = wire.messages(data[: 1 << 20], "")
        head = next(stream, b"")
        return all(number in (1, 2) and kind == wire.BYTES for number, kind, _ in wire.fields(head)) and bool(head)
    except (ValueError, ConfigError):
        return False


def _attribute(data: bytes) -> tuple[str, Any]:
    name = ""
    value: Any = None
    for number, kind, one in wire.fields(data):
        if number == 1 and isinstance(one, bytes):
            name = one.decode("utf-8", "replace")[:200]
        elif number in _SCALARS and isinstance(one, int):
            value = _SCALARS[number](one)
        elif number in _FIXED and kind != wire.VARINT:
            value = wire.fixed(one, _FIXED[number])
        elif number in (29, 31) and isinstance(one, bytes):
            value = one[:1_000_000].decode("utf-8", "replace")
        elif number in (8, 10, 12, 14) and isinstance(one, bytes):
            listed = [whole for n, _, v in wire.fields(one) if n == 1 for whole in wire.packed_wholes(v)]
            value = [wire.signed(whole) if number in (8, 10) else whole for whole in listed]
    return name, value


def _node(data: bytes) -> Node:
    node = Node()
    for number, _, value in wire.fields(data):
        if number in (4, 5):
            (node.control if number == 4 else node.after).extend(wire.packed_wholes(value))
        elif number == 10 and isinstance(value, bytes):
            name, found = _attribute(value)
            node.attributes[name] = found
        elif number == 2 and isinstance(value, bytes):
            node.name = value.decode("utf-8", "replace")[:400]
        elif isinstance(value, int) and number in (1, 3, 7):
            setattr(node, {1: "number", 3: "kind", 7: "duration_us"}[number], value)
    return node


def nodes_of(data: bytes, file: str) -> list[Node]:
    """All nodes of a file. Raises ConfigError."""
    found: list[Node] = []
    for number, message in enumerate(wire.messages(data, file)):
        if number == 0:
            continue
        if number > MOST_NODES:
            raise ConfigError(f"has more than {MOST_NODES:,} nodes", file=file)
        try:
            found.append(_node(message))
        except ValueError as error:
            raise ConfigError(f"message {number} {error}: no node of Chakra", file=file) from None
    if len({node.number for node in found}) < len(found):
        raise ConfigError("has two nodes of one number", file=file)
    return found


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(_whole(one) is not None for one in value)


def json_nodes(data: Mapping[str, Any], file: str) -> list[Node]:
    """Nodes of Chakra's JSON (`workload_graph`). Raises ConfigError."""
    found = []
    for i, row in enumerate(data["workload_graph"]):
        key = f"workload_graph[{i}]"
        if not isinstance(row, Mapping):
            raise ConfigError("expected a node", file=file, key=key)
        given = {str(name).lower().replace("_", ""): value for name, value in row.items()}
        number, kind, took = (_whole(given.get(name, 0)) for name in ("id", "nodetype", "runtime"))
        data_deps, control = given.get("datadeps", []), given.get("ctrldeps", [])
        if None in (number, kind, took) or not all(map(_numbers, (data_deps, control))):
            message = "has an id, type, runtime or dependency that is no number"
            raise ConfigError(message, file=file, key=key)
        names = ("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "pg_name", "is_cpu_op", "root")
        attributes = {name: given[name.replace("_", "")] for name in names if name.replace("_", "") in given}
        title = str(given.get("name", ""))[:400]
        found.append(Node(number or 0, title, kind or 0, data_deps, control, took or 0, attributes))
    if len({node.number for node in found}) < len(found):
        raise ConfigError("has two nodes of one number", file=file)
    return found


def read(
    data: bytes | Mapping[str, Any],
    file: str,
    *,
    rank: int,
    world: int,
    groups: Mapping[str, tuple[int, ...]] | None = None,
) -> RankTrace:
    """One rank's trace; `groups` are the ranks of what nodes name as their group. Raises ConfigError."""
    trace = RankTrace(rank, world, file)
    trace.groups[WORLD] = tuple(range(world)), WORLD
    for key, ranks in (groups or {}).items():
        if rank in ranks:
            trace.groups[key] = ranks, ""
    order(nodes_of(data, file) if isinstance(data, bytes) else json_nodes(data, file), trace)
    return trace


def order(
    nodes: Iterable[Node],
    trace: RankTrace,
    *,
    operation: Make | None = None,
    resource: Callable[[Node], str] | None = None,
) -> None:
    """Put operations of nodes into a trace, in an order that respects dependencies. Raises ConfigError.

    `operation` makes one of a node, `resource` says what it occupies: by default Chakra's.
    """
    known = {node.number: node for node in nodes}
    if any(node.control for node in known.values()) and _sorted(known, control=True):
        for node in known.values():
            node.after += node.control
    elif any(node.control for node in known.values()):
        # in traces of PyTorch they name the caller, which ends later
        trace.notes.append("control dependencies run in a circle: only data dependencies are played")
    behind: dict[int, list[int]] = {number: [] for number in known}
    count = dict.fromkeys(known, 0)
    for node in known.values():
        inside = {before for before in node.after if before in known}
        if len(inside) < len(set(node.after)):
            trace.miss("dependency", "on a node that is not in the file")
        for before in inside:
            behind[before].append(node.number)
        count[node.number] = len(inside)
        node.after = sorted(inside)
    ready = [number for number, waits in count.items() if not waits]
    heapq.heapify(ready)
    ends: dict[int, tuple[int, ...]] = {}
    last: dict[str, int] = {}
    while ready:
        node = known[heapq.heappop(ready)]
        after = {end for before in node.after for end in ends[before]}
        ends[node.number] = _place(
            node, after, last, trace, operation or _operation, (resource or _resource)(node)
        )
        for number in behind[node.number]:
            count[number] -= 1
            if not count[number]:
                heapq.heappush(ready, number)
    if len(ends) < len(known):
        number = min(number for number, waits in count.items() if waits)
        raise ConfigError(f"node {number} ({known[number].name}) waits for itself in a circle", file=trace.file)


def _sorted(known: Mapping[int, Node], *, control: bool) -> bool:
    """Return true where no node waits for itself."""
    behind: dict[int, list[int]] = {number: [] for number in known}
    count = dict.fromkeys(known, 0)
    for node in known.values():
        for before in {*node.after, *(node.control if control else ())}:
            if before in known:
                behind[before].append(node.number)
                count[node.number] += 1
    ready = [number for number, waits in count.items() if not waits]
    done = 0
    while ready:
        done += 1
        for number in behind[ready.pop()]:
            count[number] -= 1
            if not count[number]:
                ready.append(number)
    return done == len(known)


def _resource(node: Node) -> str:
    if node.kind in (SEND, RECEIVE):
        return ""
    if node.kind == COLLECTIVE and not node.attributes.get("is_cpu_op"):
        return "calls"
    return "host" if node.attributes.get("is_cpu_op") else "gpu"


def _place(
    node: Node, after: set[int], last: dict[str, int], trace: RankTrace, make: Make, resource: str
) -> tuple[int, ...]:
    before = after | ({last[resource]} if resource in last else set())
    one = make(node, tuple(sorted(before)), trace)
    if one is None:
        return tuple(sorted(after))
    trace.operations.append(one)
    if resource:
        last[resource] = len(trace.operations) - 1
    return (len(trace.operations) - 1,)


def _operation(node: Node, after: tuple[int, ...], trace: RankTrace) -> Operation | None:
    attributes, name = node.attributes, node.name[:120] or "node"
    size = _whole(attributes.get("comm_size"))
    measured = Compute(name, after, min(node.duration_us, 10**11) * PS_PER_US)
    if node.kind == COMPUTE or (node.kind == COLLECTIVE and attributes.get("is_cpu_op")):
        if not node.duration_us and _whole(attributes.get("num_ops")):
            trace.miss(name, "it has a number of operations and no duration")
        host = bool(attributes.get("is_cpu_op"))
        return Compute(name, after, measured.time_ps, None, "other" if host else "compute")
    if node.kind in (LOAD, STORE):
        trace.miss("memory node", "remote memory is not modelled")
        return None
    if node.kind in (SEND, RECEIVE):
        sends = node.kind == SEND
        peer = _whole(attributes.get("comm_dst" if sends else "comm_src"))
        if peer is None or size is None or not 0 <= peer < trace.world:
            raise ConfigError(
                f"node {node.number} ({name}) has no peer and size among {trace.world} ranks", file=trace.file
            )
        return Message(sends, peer - trace.rank, size, after, _whole(attributes.get("comm_tag")) or 0)
    if node.kind == COLLECTIVE:
        return _collective(node, size, after, trace) or measured
    if node.kind != METADATA:
        trace.miss(f"node of type {node.kind}", "the schema does not have it")
    return None


def _whole(value: Any) -> int | None:
    return int(value) if type(value) in (int, bool) and 0 <= value < 1 << 50 else None


def _collective(node: Node, size: int | None, after: tuple[int, ...], trace: RankTrace) -> Operation | None:
    kind_number = _whole(node.attributes.get("comm_type"))
    kind = COLLECTIVES[kind_number] if kind_number is not None and kind_number < len(COLLECTIVES) else None
    key = node.attributes.get("pg_name", node.attributes.get("comm_group"))
    group = WORLD if key in (None, "") else str(key)
    if group not in trace.groups:
        listed = ranks_in(node.attributes.get("pg_ranks"))
        if trace.rank not in listed:
            trace.miss(f"group {group}", "its ranks are in no file: taken as all ranks")
            listed = trace.groups[WORLD][0]
        trace.groups[group] = listed, ""
    if kind is None or (size is None and kind_number != BARRIER):
        trace.miss(node.name[:80], "it has no comm_type and comm_size: its measured time stays")
        return None
    ranks = len(trace.groups[group][0])
    whole = (size or 0) * (ranks if kind in ("all_gather", "gather") else 1)
    root = _whole(node.attributes.get("root")) or 0
    return Collective(kind, group, whole, after, 1, root if root < ranks else 0, node.name[:120])


_RANK = re.compile(r"(\d{1,7})(?:\.[a-zA-Z]\w*)*$")


def rank_of(path: Path) -> int | None:
    """The rank in a file's name, as Chakra's tools name them: `trace.3.et`."""
    found = _RANK.search(path.name)
    return int(found[1]) if found else None


def name_of_job(path: Path) -> str:
    """Return a file's path without its rank, which the traces of one job share."""
    return str(path.with_name(_RANK.sub("", path.name)))


# ------------------------------------------------------------------ writing


def attribute(name: str, value: int | bool | str) -> bytes:
    """An attribute as a field of a node."""
    number = 27 if isinstance(value, bool) else 9 if isinstance(value, int) else 29
    return wire.field(
        10, wire.field(1, name) + wire.field(number, int(value) if isinstance(value, bool) else value)
    )


def written(nodes: Iterable[Node]) -> bytes:
    """A file of these nodes."""
    out = [wire.delimited(wire.field(1, "0.0.4"))]
    for node in nodes:
        message = wire.field(1, node.number) + wire.field(2, node.name) + wire.field(3, node.kind)
        message += b"".join(wire.field(5, before) for before in node.after)
        message += wire.field(7, node.duration_us) if node.duration_us else b""
        message += b"".join(attribute(name, value) for name, value in node.attributes.items())
        out.append(wire.delimited(message))
    return b"".join(out)
