"""Collectives as PyTorch names them in its traces, and their bytes as NCCL counts them.

Names are those of torch/csrc/distributed/c10d (`record_param_comms`, the flight recorder's `nccl:...`), which have
changed between releases: case and underscores are of no account here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fabrictwin.nccl.lowering.tasks import Kind
from fabrictwin.workload.captured.captured_file import MOST_RANKS

ELEMENT_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8", "unsignedchar", "signedchar"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("half", "bfloat16", "float16", "short", "int16", "uint16", "c10::half", "c10::bfloat16"), 2),
    **dict.fromkeys(("float", "float32", "int", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "float64", "long", "int64", "uint64", "complexfloat", "longint"), 8),
    "complexdouble": 16,
}
_KINDS: dict[str, Kind] = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allreducesparse": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgathersingle": "all_gather",
    "allgathercoalesced": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "allgathersinglecoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattersingle": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "reducescattersinglecoalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallsingle": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "all_reduce",
    "allreducebarrier": "all_reduce",
}
SILENT = ("wait", "init", "end", "startcoalescing", "endcoalescing", "coalesced", "", "none")


def plain_name(name: str) -> str:
    """A name without prefix, case and underscores: `nccl:_all_gather_base` is `allgatherbase`."""
    return re.sub(r"[^a-z]", "", name.lower().rpartition(":")[2].partition(" ")[0])


def kind_of(name: str) -> Kind | None:
    """The collective of a name; None where it is none."""
    return _KINDS.get(plain_name(name))


def element_bytes(dtype: str) -> int:
    """Bytes of an element of a type as PyTorch writes it; 0 for one that is not known."""
    return ELEMENT_BYTES.get(dtype.lower().removeprefix("torch."), 0)


def size_of(kind: Kind, in_elements: int, out_elements: int, ranks: int) -> int:
    """Elements of a collective as NCCL's tests count it: of all-gather and scatter the buffer of all ranks."""
    if kind == "all_gather":
        return max(out_elements, in_elements * ranks)
    if kind in ("reduce_scatter", "scatter"):
        return max(in_elements, out_elements * ranks)
    if kind == "gather":
        return max(in_elements * ranks, out_elements)
    return max(in_elements, out_elements)


def ranks_in(value: Any) -> tuple[int, ...]:
    """Ranks of a group, of a list or of its text; none where they cannot be read, as PyTorch cuts long ones."""
    if isinstance(value, str):
        if "..." in value or len(value) > 10_000_000:
            return ()
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return ()
    if not isinstance(value, list | tuple):
        return ()
    found = tuple(one for one in value if type(one) is int and 0 <= one < MOST_RANKS)
    return found if len(found) == len(value) and len(set(found)) == len(found) else ()


def whole_or(value: Any, default: int) -> int:
    """A whole number that is not absurd, or the default."""
    if isinstance(value, str) and value.isascii() and value.lstrip("-").isdigit() and len(value) < 19:
        return int(value)
    return value if type(value) is int and abs(value) < 1 << 50 else default


def numbers_in(value: Any) -> Iterator[int]:
    """All whole numbers of nested lists."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list | tuple):
            waiting.extend(reversed(one))
        elif type(one) is int:
            yield one
