"""PyTorch execution traces (ExecutionTraceObserver, schemas 1.0.1 to 1.1) of one rank.

They have operators with shapes and no times: compute becomes work, which takes what the roofline of the GPU that
it is played on says. Operators run one after the other; a collective waits for those before it and runs beside
what follows, until the `wait` that names its number.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from fabrictwin.base.errors import ConfigError
from fabrictwin.interchange import torch_calls
from fabrictwin.interchange.rank_traces import RankTrace
from fabrictwin.workload.captured.captured_file import MOST_RANKS
from fabrictwin.workload.captured.captured_job import Collective, Compute, Message
from fabrictwin.workload.captured.operator_work import NO_KERNEL, plain_operator, work_of

_FORMATS = {"double": "fp64", "float": "fp32", "half": "fp16", "c10::half": "fp16", "c10::bfloat16": "bf16"}
_TENSOR = re.compile(r"Tensor\(([\w:]+)\)")


def recognises(data: Any) -> bool:
    """Return true for an execution trace of PyTorch."""
    return isinstance(data, Mapping) and isinstance(data.get("nodes"), list) and "schema" in data


def _tensors(part: Any) -> Iterator[tuple[tuple[int, ...], int, str]]:
    """(shape, bytes, device) of tensors among inputs or outputs."""
    if not isinstance(part, Mapping):
        return
    columns = [part.get(key) for key in ("values", "shapes", "types")]
    if not all(isinstance(column, list) for column in columns):
        return
    yield from _paired(columns[0], columns[1], 0)


def _paired(values: Any, shapes: Any, depth: int) -> Iterator[tuple[tuple[int, ...], int, str]]:
    if not isinstance(values, list) or depth > 8:
        return
    for i, value in enumerate(values):
        shape = shapes[i] if isinstance(shapes, list) and i < len(shapes) else []
        if _is_tensor(value):
            plain = (
                tuple(one for one in shape if type(one) is int and 0 <= one < 1 << 40)
                if isinstance(shape, list)
                else ()
            )
            yield plain, value[3] * value[4], value[5]
        else:
            yield from _paired(value, shape, depth + 1)


def _is_tensor(value: Any) -> bool:
    """A tensor is [id, storage, offset, elements, bytes of an element, device]."""
    return (
        isinstance(value, list)
        and len(value) == 6
        and all(type(one) is int and 0 <= one < 1 << 62 for one in value[3:5])
        and value[4] <= 64
        and value[3] < 1 << 44
        and isinstance(value[5], str)
    )


def read(data: Mapping[str, Any], file: str, *, rank: int | None = None, world: int | None = None) -> RankTrace:
    """One rank's trace. Raises ConfigError."""
    nodes = [_modern(node) for node in data["nodes"] if isinstance(node, Mapping) and type(node.get("id")) is int]
    nodes.sort(key=lambda node: int(node["id"]))
    trace = RankTrace(0 if rank is None else rank, 1, file)
    groups = _groups(nodes, trace, rank)
    if world is not None:
        trace.world = max(trace.world, world)
    if rank is None:
        trace.rank = _rank_of(nodes, trace.world)
    for key, (ranks, size, description) in groups.items():
        own = ranks or (tuple(range(size)) if size in (0, trace.world) else ())
        own = own or tuple(range(trace.world))
        if trace.rank in own:
            trace.groups[key] = own, description
    leaves = _leaves(nodes)
    last = -1  # operation that the next waits for
    calls: dict[int, int] = {}
    for node in nodes:
        if node.get("name") == "record_param_comms":
            last = _call(node, trace, calls, last)
        elif node["id"] in leaves:
            last = _compute(node, trace, last)
    if not trace.operations:
        raise ConfigError("has no operators and no collectives", file=file)
    return trace


def _modern(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """A node with inputs and outputs as schema 1.0.2 has them; before, each was three lists."""
    if not isinstance(node.get("inputs"), list):
        return node
    sides = {
        f"{side}s": {
            "values": node.get(f"{side}s"),
            "shapes": node.get(f"{side}_shapes"),
            "types": node.get(f"{side}_types"),
        }
        for side in ("input", "output")
    }
    return {**node, **sides}


def _groups(
    nodes: list[Mapping[str, Any]], trace: RankTrace, rank: int | None
) -> dict[str, tuple[tuple[int, ...], int, str]]:
    """(ranks, size, description) by the names and numbers that nodes call a group; the world's size."""
    found: dict[str, tuple[tuple[int, ...], int, str]] = {}
    for node in nodes:
        if not str(node.get("name")).startswith("## process_group:init ##"):
            continue
        inputs = node.get("inputs")
        values = inputs.get("values") if isinstance(inputs, Mapping) else None
        text = values[0] if isinstance(values, list) and values else None
        try:
            listed = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            raise ConfigError(f"node {node['id']} holds groups that are no JSON", file=trace.file) from None
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, Mapping):
                ranks, size = (
                    torch_calls.ranks_in(one.get("ranks")),
                    torch_calls.whole_or(one.get("group_size"), 0),
                )
                entry = ranks, size, str(one.get("pg_desc", ""))
                for key in ("pg_name", "backend_id"):
                    if key in one:
                        found[str(one[key])] = entry
                trace.world = max(trace.world, min(size, MOST_RANKS), *(r + 1 for r in ranks), 1)
    return found


def _rank_of(nodes: list[Mapping[str, Any]], world: int) -> int:
    """The rank by the device of its tensors, where a host has them all."""
    for node in nodes:
        if node.get("name") == "record_param_comms":
            for _, _, device in _tensors(node.get("inputs")):
                found = re.fullmatch(r"cuda:(\d{1,4})", device)
                if found and int(found[1]) < world:
                    return int(found[1])
    return 0


def _attributes(node: Mapping[str, Any]) -> dict[str, Any]:
    listed = node.get("attrs")
    found = (
        {str(a.get("name")): a.get("value") for a in listed if isinstance(a, Mapping)}
        if isinstance(listed, list)
        else {}
    )
    if "op_schema" in node:  # before schema 1.0.2
        found.setdefault("op_schema", node["op_schema"])
    return found


def _parent(node: Mapping[str, Any]) -> int:
    return torch_calls.whole_or(node.get("ctrl_deps", node.get("parent")), -1)


def _leaves(nodes: list[Mapping[str, Any]]) -> set[int]:
    """Operators that call no other operator with tensors."""
    operators: set[int] = set()
    parents: dict[int, int] = {}
    for node in nodes:
        parents[node["id"]] = _parent(node)
        name = str(node.get("name"))
        if _attributes(node).get("op_schema") and "::" in name and not name.startswith("c10d"):
            operators.add(node["id"])
    inner = set()
    for number in operators:
        above, steps = parents.get(number, -1), 0
        while above in parents and above not in inner and steps < 1000:
            if above in operators:
                inner.add(above)
            above, steps = parents[above], steps + 1
    return operators - inner


def _compute(node: Mapping[str, Any], trace: RankTrace, last: int) -> int:
    name = str(node.get("name"))[:120]
    if plain_operator(name) in NO_KERNEL:
        return last
    tensors = [list(_tensors(node.get(side))) for side in ("inputs", "outputs")]
    if not any(device.startswith(("cuda", "hip", "xpu", "mtia")) for side in tensors for _, _, device in side):
        return last
    moved = min(sum(size for side in tensors for _, size, _ in side), 1 << 50)
    types = node["inputs"].get("types") if isinstance(node.get("inputs"), Mapping) else None
    found = _TENSOR.search(str(types))
    dtype = _FORMATS.get(found[1].lower(), "bf16") if found else "bf16"
    shapes = [[shape for shape, _, _ in side] for side in tensors]
    work = work_of(name, shapes[0], shapes[1], dtype, moved)
    if work is None:
        return last
    trace.operations.append(Compute(name, (last,) if last >= 0 else (), None, work))
    return len(trace.operations) - 1


def _call(node: Mapping[str, Any], trace: RankTrace, calls: dict[int, int], last: int) -> int:
    """Place a collective, or what waits for one; the operation that the next waits for."""
    inputs = node.get("inputs")
    values = inputs.get("values") if isinstance(inputs, Mapping) else None
    if not isinstance(values, list):
        return last
    attributes = _attributes(node)
    texts = [value for value in values if isinstance(value, str)]
    name = str(attributes.get("collective_name") or (texts[0] if texts else ""))
    plain = torch_calls.plain_name(name)
    numbers = [value for value in values if type(value) is int]
    if plain == "wait":
        # the call that is waited for, by the number that PyTorch gave it
        waited = calls.pop(numbers[0], -1) if numbers else -1
        if waited < 0:
            return last
        after = tuple(sorted({waited, last} - {-1}))
        trace.operations.append(Compute("wait", after, 0, None, "other"))
        return len(trace.operations) - 1
    if plain in torch_calls.SILENT:
        return last
    after = (last,) if last >= 0 else ()
    found = _placed_call(name, node, attributes, after, trace)
    if found is None:
        trace.miss(name or "collective", "its group or bytes are not in the trace")
        return last
    trace.operations.append(found)
    here = len(trace.operations) - 1
    if numbers:
        calls[numbers[0]] = here
    return last


def _placed_call(
    name: str, node: Mapping[str, Any], attributes: Mapping[str, Any], after: tuple[int, ...], trace: RankTrace
) -> Collective | Message | None:
    inputs = node["inputs"]
    sizes: dict[str, int] = defaultdict(int)
    for side in ("inputs", "outputs"):
        for _, size, _ in _tensors(node.get(side)):
            sizes[side] += size
    found = _TENSOR.search(str(inputs.get("types"))) or re.search(r"Tensor\(([\w:]+)", str(inputs.get("types")))
    element = torch_calls.element_bytes(str(attributes.get("dtype") or (found[1] if found else ""))) or 1
    group = _group_key(inputs["values"], attributes, trace)
    if group is None or not any(sizes.values()):
        return None
    ranks = trace.groups[group][0]
    plain = torch_calls.plain_name(name)
    if plain in ("send", "recv"):
        peer = torch_calls.whole_or(attributes.get("dst_rank" if plain == "send" else "src_rank"), -1)
        listed = [one for one in torch_calls.numbers_in(inputs["values"][2:]) if 0 <= one < len(ranks)]
        peer = peer if peer >= 0 else (listed[0] if listed else -1)
        if not 0 <= peer < len(ranks):
            return None
        return Message(plain == "send", ranks[peer] - trace.rank, max(sizes.values()), after)
    kind = torch_calls.kind_of(name)
    if kind is None:
        return None
    whole = torch_calls.size_of(kind, sizes["inputs"], sizes["outputs"], len(ranks))
    whole = max(whole // element, 1) * element
    return Collective(kind, group, whole, after, element)


def _group_key(values: list[Any], attributes: Mapping[str, Any], trace: RankTrace) -> str | None:
    """The group that a call names; where the trace lists none of its ranks, by size or as all ranks."""
    named = attributes.get("pg_name")
    for value in [named, *values]:
        if isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value):
            value = value[0]
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value) in trace.groups:
            return str(value)
    size = torch_calls.whole_or(attributes.get("pg_size"), torch_calls.whole_or(values[-1], 0) if values else 0)
    size = 0 if values and isinstance(values[-1], list) else size
    if 0 < size <= MOST_RANKS:
        start = torch_calls.whole_or(attributes.get("global_rank_start"), 0)
        stride = max(torch_calls.whole_or(attributes.get("global_rank_stride"), 1), 1)
        ranks = tuple(range(start, start + size * stride, stride))
        trace.world = max(trace.world, ranks[-1] + 1 if ranks[-1] < MOST_RANKS else 1)
        if trace.rank in ranks and ranks[-1] < MOST_RANKS:
            key = f"{size}:{start}:{stride}"
            trace.groups[key] = ranks, str(attributes.get("pg_desc", ""))
            return key
    if size == 0 and not trace.groups:
        # schema 1.0.1 names groups by address and says nowhere who is in them
        trace.groups["all"] = tuple(range(trace.world)), ""
    return "all" if "all" in trace.groups else None
