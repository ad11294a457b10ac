"""Arguments of c10d's calls in every form that `ProcessGroup` takes them.

Functions of torch.distributed give lists and an object of options; a program that calls a group itself may give
one tensor, a reduction or a root, and a time instead (torch/csrc/distributed/c10d/init.cpp).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def listed(tensors: Any) -> Any:
    """Return a list of one tensor; lists as they are."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def nested(tensors: Any) -> Any:
    """Return lists of a list of tensors; nested ones, and an empty one, as they are."""
    return [tensors] if tensors and isinstance(tensors[0], torch.Tensor) else tensors


def flat(tensors: Any) -> Any:
    """Return the one list in a list, as a call's result has it; other lists as they are."""
    return tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], torch.Tensor) else tensors


def held(tensors: Any) -> Any:
    """Return tensors that have bytes of their own: a wrapper's are those of the tensors that it holds."""
    if not any(is_traceable_wrapper_subclass(one) for one in tensors):
        return tensors
    found: list[torch.Tensor] = []
    for one in tensors:
        wraps = is_traceable_wrapper_subclass(one)
        found += held([getattr(one, name) for name in one.__tensor_flatten__()[0]]) if wraps else [one]
    return found


def options(
    kind: str, given: Any, *, op: Any = None, root: int | None = None, timeout: timedelta | None = None
) -> Any:
    """Return options of a kind of c10d: those given, or new ones; `given` may be a reduction, a root or a time."""
    made = getattr(torch._C._distributed_c10d, kind)
    if isinstance(given, made):
        return given
    found = made()
    if isinstance(given, dist.ReduceOp | dist.ReduceOp.RedOpType):
        op = given
    elif isinstance(given, timedelta):
        timeout = given
    elif given is not None:
        root = given
    for name, value in (("reduceOp", op), ("rootRank", root), ("timeout", timeout)):
        if value is not None:
            setattr(found, name, value)
    return found
