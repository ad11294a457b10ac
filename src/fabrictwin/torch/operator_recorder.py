"""Operators that PyTorch dispatches, recorded as work by their shapes; what they took here is of no account."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from fabrictwin.torch.rank_recorder import RankRecorder
from fabrictwin.workload.captured.operator_work import NO_KERNEL, plain_operator, work_of

DTYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
}


def size_of(tensors: Any) -> int:
    """Bytes of a tensor, or of all in nested lists."""
    if isinstance(tensors, torch.Tensor):
        return int(tensors.numel() * tensors.element_size())
    return sum(size_of(one) for one in tensors)


def first_of(tensors: Any) -> torch.Tensor:
    """Return the first tensor of nested lists."""
    while not isinstance(tensors, torch.Tensor):
        tensors = tensors[0]
    return tensors


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Tensors anywhere in arguments or results."""
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]


def _written(func: Any, args: Sequence[Any], results: Iterable[torch.Tensor]) -> int:
    """Bytes that an operator writes: its results, or what it changes in place."""
    changed = [
        given
        for declared, given in zip(func._schema.arguments, args, strict=False)
        if declared.alias_info is not None and declared.alias_info.is_write
    ]
    return size_of(tensors_of(changed)) if changed else sum(map(size_of, results))


def record_operator(
    recorder: RankRecorder, func: Any, args: Any, kwargs: Any, result: Any, took_ps: int | None = None
) -> None:
    """Record an operator of ATen, or a copy of sharded modules, on plain tensors, where it is a kernel.

    It is recorded by its work, or by the time that it took where that is given.
    """
    name = func.name()
    if not name.startswith(("aten::", "fsdp::")) or plain_operator(name) in NO_KERNEL:
        return
    inputs, outputs = tensors_of((args, kwargs)), tensors_of(result)
    moved = sum(map(size_of, inputs)) + _written(func, args, outputs)
    dtype = DTYPES.get(inputs[0].dtype if inputs else torch.float32, "fp32")
    shapes = [tuple(one.shape) for one in inputs], [tuple(one.shape) for one in outputs]
    work = work_of(name, *shapes, dtype, moved)
    if work is not None:
        recorder.compute(name, work, took_ps)
