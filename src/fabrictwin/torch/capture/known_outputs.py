"""Outputs of operators that have been seen with tensors of the same shapes: layers and micro-batches are alike.

FakeTensorMode has such a table itself, whose keys hold all that any operator may look at, which takes most of a
capture. Here are operators of plain tensors alone, which neither alias nor change what they are given.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_UNKNOWN = object()
_NOT_ALIKE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class KnownOutputs:
    """Shape, strides, type and device of what each operator returned, by its arguments."""

    def __init__(self) -> None:
        self._pure: dict[Any, bool] = {}
        self._found: dict[Any, Any] = {}

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operator returns for fake tensors."""
        key = self._key(func, args, kwargs)
        found = None if key is None else self._found.get(key, _UNKNOWN)
        if found is None:
            return func(*args, **kwargs)
        if found is _UNKNOWN:
            result = func(*args, **kwargs)
            self._found[key] = _output(args, result)
            return result
        size, stride, dtype, device = found
        with torch._C._DisableTorchDispatch():
            empty = torch.ops.aten.empty_strided.default(size, stride, dtype=dtype, device="meta")
        return FakeTensor(next(one for one in args if type(one) is FakeTensor).fake_mode, empty, device)

    def _key(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return all that the output depends on; nothing where that is not known."""
        pure = self._pure.get(func)
        if pure is None:
            pure = self._pure[func] = _is_pure(func)
        if not pure or not any(type(one) is FakeTensor for one in args):
            return None
        given = [func, torch.get_default_dtype()]
        try:
            for one in args:
                given.append(_part(one))
            for name, one in kwargs.items():
                given += name, _part(one)
        except TypeError:
            return None
        return tuple(given)


def _part(one: Any) -> Any:
    """Return what a key has for an argument. Raises TypeError."""
    kind = type(one)
    if kind is FakeTensor:
        if one.constant is not None or one.dtype.is_complex or one.layout is not torch.strided:
            raise TypeError
        return one.shape, one.stride(), one.dtype, one.device
    if kind in (list, tuple, torch.Size):
        return kind, tuple(_part(each) for each in one)
    if kind not in _PLAIN:
        raise TypeError
    return kind, one  # 1, 1.0 and True are one key


def _is_pure(func: Any) -> bool:
    """Return true for an operator of one output that neither aliases nor changes an argument."""
    schema = func._schema
    alone = len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor"
    aliases = any(one.alias_info is not None for one in (*schema.arguments, *schema.returns))
    return func.namespace == "aten" and alone and not aliases and not any(tag in func.tags for tag in _NOT_ALIKE)


def _output(args: Any, result: Any) -> Any:
    """Return size, strides, type and device of an output that is memory of its own; nothing of another."""
    if type(result) is not FakeTensor or result.constant is not None or result.layout is not torch.strided:
        return None
    memory = result.untyped_storage()
    others = [one for arg in args for one in (arg if isinstance(arg, list | tuple) else [arg])]
    shared = any(type(one) is FakeTensor and one.untyped_storage()._cdata == memory._cdata for one in others)
    reach = sum((n - 1) * step for n, step in zip(result.shape, result.stride(), strict=True)) + 1
    whole = memory.nbytes() == (reach * result.element_size() if result.numel() else 0)
    if shared or not whole or result.storage_offset():
        return None
    return tuple(result.shape), result.stride(), result.dtype, result.device
