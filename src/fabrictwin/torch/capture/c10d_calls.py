"""Calls of c10d as PyTorch's dispatcher names them: kind, group, bytes as NCCL counts them, root.

Both families: `c10d` (torch/csrc/distributed/c10d/Ops.cpp), what the functions of torch.distributed dispatch, and
`_c10d_functional`, what DTensor and compiled programs dispatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from fabrictwin.base.errors import SimulatedError
from fabrictwin.base.records import record
from fabrictwin.nccl.lowering.tasks import Kind
from fabrictwin.torch.operator_recorder import first_of, size_of
from fabrictwin.workload.captured.operator_work import plain_operator

FAMILIES = ("c10d::", "_c10d_functional::", "_dtensor::")
WAIT = "wait_tensor"
# operators whose call holds a tensor of this argument once
_WHOLE: dict[str, tuple[Kind, str]] = {
    "allreduce_": ("all_reduce", "tensors"),
    "allreduce_coalesced_": ("all_reduce", "tensors"),
    "broadcast_": ("broadcast", "tensors"),
    "reduce_": ("reduce", "tensors"),
    "_allgather_base_": ("all_gather", "output_tensor"),
    "allgather_into_tensor_coalesced_": ("all_gather", "outputs"),
    "reduce_scatter_": ("reduce_scatter", "input_tensors"),
    "_reduce_scatter_base_": ("reduce_scatter", "input_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "inputs"),
    "alltoall_": ("all_to_all", "input_tensors"),
    "alltoall_base_": ("all_to_all", "input"),
    "all_reduce": ("all_reduce", "input"),
    "all_reduce_": ("all_reduce", "input"),
    "all_reduce_coalesced": ("all_reduce", "inputs"),
    "all_reduce_coalesced_": ("all_reduce", "inputs"),
    "reduce_scatter_tensor": ("reduce_scatter", "input"),
    "reduce_scatter_tensor_out": ("reduce_scatter", "input"),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", "inputs"),
    "all_to_all_single": ("all_to_all", "input"),
    "broadcast": ("broadcast", "input"),
    "shard_dim_alltoall": ("all_to_all", "input"),
}
# operators whose call holds this argument once for each rank
_EACH: dict[str, tuple[Kind, str]] = {
    "allgather_": ("all_gather", "input_tensors"),
    "allgather_coalesced_": ("all_gather", "input_list"),
    "gather_": ("gather", "input_tensors"),
    "scatter_": ("scatter", "output_tensors"),
    "all_gather_into_tensor": ("all_gather", "input"),
    "all_gather_into_tensor_out": ("all_gather", "input"),
    "all_gather_into_tensor_coalesced": ("all_gather", "inputs"),
}
_MESSAGES = {"send": True, "recv_": False, "isend": True, "irecv": False}


@record
class CollectiveCall:
    """A collective on a group of c10d; bytes as `nccl.lowering.tasks` counts them."""

    kind: Kind
    group: Any
    size_bytes: int
    element_bytes: int
    root: int = 0  # place in the group


@record
class MessageCall:
    """A send or receive; `peer` is a place in the group."""

    sends: bool
    group: Any
    size_bytes: int
    peer: int
    tag: int
    tensor: Any


def arguments_of(func: Any, args: Any, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments by the names that the operator declares."""
    names = [one.name for one in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **(kwargs or {})}


def group_of(given: Mapping[str, Any]) -> Any:
    """Return the group of a call: an object of TorchScript, or its name."""
    found = given.get("process_group", given.get("group_name"))
    if isinstance(found, str):
        return c10d._resolve_process_group(found)
    return dist.ProcessGroup.unbox(found) if isinstance(found, torch.ScriptObject) else found


def calls_of(func: Any, given: Mapping[str, Any]) -> list[CollectiveCall | MessageCall]:
    """Calls that an operator of c10d makes. Raises SimulatedError for one that a capture cannot follow."""
    name, group = plain_operator(func.name()), group_of(given)
    if name in _MESSAGES:
        tensors = given.get("tensors", given.get("tensor"))
        peer = given.get("dst", given.get("src"))
        return [
            MessageCall(
                _MESSAGES[name], group, size_of(tensors), int(peer or 0), int(given["tag"]), first_of(tensors)
            )
        ]
    if name == "batch_p2p_ops":
        rows = zip(given["op_list"], given["tensors"], given["peer_list"], given["tag_list"], strict=True)
        return [MessageCall("send" in op, group, size_of(one), peer, tag, one) for op, one, peer, tag in rows]
    if name in ("barrier", "monitored_barrier_"):
        return [CollectiveCall("all_reduce", group, 4, 4)]  # one element, as in ProcessGroupNCCL
    times, (kind, key) = (1, _WHOLE[name]) if name in _WHOLE else (group.size(), _EACH.get(name, (None, "")))
    if kind is None:
        raise SimulatedError(
            "cannot be captured", name, "expected collectives, sends, and receives from a named rank"
        )
    tensors = given[key][0] if name == "reduce_scatter_" else given[key]
    element = first_of(tensors).element_size()
    root = int(given.get("root_rank", given.get("src", 0)))
    return [CollectiveCall(kind, group, max(size_of(tensors) * times, element), element, root)]
