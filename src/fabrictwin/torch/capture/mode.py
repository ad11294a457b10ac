"""A program's operators and calls recorded while nothing is computed and nobody else is there.

Tensors are fake: they have shapes and no values. A call of c10d is recorded and answered at once, by a handle
whose `wait` is recorded as well. What a program reads of a tensor's values are zeros where they are floating
point, as of a loss that is printed; where they are whole numbers, which programs decide by, it is refused.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from fabrictwin.base.errors import SimulatedError
from fabrictwin.torch.capture.c10d_calls import FAMILIES, WAIT, CollectiveCall, arguments_of, calls_of
from fabrictwin.torch.capture.known_outputs import KnownOutputs
from fabrictwin.torch.capture.object_exchange import Exchange
from fabrictwin.torch.device.tensor_memory import MEMORY
from fabrictwin.torch.operator_recorder import record_operator, tensors_of
from fabrictwin.torch.rank_recorder import RankRecorder
from fabrictwin.torch.recording import OWN
from fabrictwin.workload.captured.operator_work import plain_operator

_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


class CapturedWork(dist.Work):  # type: ignore[misc]
    """Handle of a call that nobody answers. It keeps no tensor alive: the mode keeps every handle."""

    def __init__(self, recorder: RankRecorder, numbers: list[int], value: Any) -> None:
        super().__init__()
        self._recorder, self._numbers = recorder, numbers
        self._value = tree_map_only(torch.Tensor, weakref.ref, value)

    def wait(self, timeout: Any = None) -> bool:
        """Let what follows on this stream wait for the modelled call."""
        for number in self._numbers:
            self._recorder.waited(number)
        return True

    def is_completed(self) -> bool:
        """Return true."""
        return True

    def is_success(self) -> bool:
        """Return true."""
        return True

    def exception(self) -> None:
        """Return nothing."""

    def result(self) -> Any:
        """Return the tensors."""
        return tree_map_only(weakref.ref, lambda one: one(), self._value)

    def get_future(self) -> Any:
        """Return a future that is done."""
        future = torch.futures.Future()
        future.set_result(self.result())
        return future


class CaptureMode(TorchDispatchMode):  # type: ignore[misc]
    """Records operators on plain tensors and calls of c10d; `exchange` carries what other ranks must know."""

    def __init__(self, recorder: RankRecorder, exchange: Exchange) -> None:
        super().__init__()
        self.recorder, self._exchange = recorder, exchange
        self._awaited: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self._numbers: dict[int, list[int]] = {}
        self._keys: dict[Any, str] = {}
        self._works: list[CapturedWork] = []  # c10d keeps their C++ part alone, which would wait for ever
        self._outputs = KnownOutputs()
        self.zeros = 0  # values that were asked for

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operator; tensors of other classes are left to what they are made of."""
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented
        name = func.name()
        if name.startswith(FAMILIES):
            return self._call(func, args, kwargs)
        if plain_operator(name) in ("item", "_local_scalar_dense"):
            return self._value(func, args, kwargs or {})
        result = self._outputs.call(func, args, kwargs or {})
        made = tensors_of(result)
        if not OWN and all(type(one) in _PLAIN and one.device.type != "meta" for one in made):
            record_operator(self.recorder, func, args, kwargs, result)
            MEMORY.returned(result)
        return result

    def _value(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.recorder.host_waited(self.recorder.mark())
        known = getattr(args[0], "constant", None)
        if known is not None:
            with _disable_current_modes():
                return known.item()
        if type(args[0]) is not FakeTensor:
            return func(*args, **kwargs)
        dtype = args[0].dtype
        if not dtype.is_floating_point and dtype is not torch.bool:
            raise SimulatedError(
                "has no value in a capture",
                f"an element of type {dtype}",
                "expected a program that does not read it",
            )
        self.zeros += 1
        return dtype is not torch.bool and 0.0

    # ------------------------------------------------------------------ calls

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = arguments_of(func, args, kwargs)
        operator = plain_operator(func.name())
        if operator == WAIT:
            for number in self._numbers.pop(id(given["tensor"]), []):
                self.recorder.waited(number)
            return given["tensor"]
        numbers = [self._record(one) for one in calls_of(func, given)]
        if func.name().startswith("c10d::"):
            return self._answer(func, given, numbers)
        result = func(*args, **(kwargs or {}))
        for one in tensors_of(result):
            self._numbers[id(one)] = numbers
            self._awaited[id(one)] = one
        MEMORY.returned(result)
        return result

    def _answer(self, func: Any, given: dict[str, Any], numbers: list[int]) -> Any:
        """Return what an operator of c10d returns: tensors as they were given, and the handle."""
        returns = func._schema.returns
        outputs = next((value for key, value in given.items() if "output" in key or key == "tensors"), None)
        work = CapturedWork(self.recorder, numbers, outputs)
        self._works.append(work)
        if not returns:
            work.wait()
            return None
        return work.boxed() if len(returns) == 1 else (outputs, work.boxed())

    def _record(self, call: Any) -> int:
        recorder, key = self.recorder, self._key(call.group)
        if isinstance(call, CollectiveCall):
            whole = max(call.size_bytes // call.element_bytes, 1) * call.element_bytes
            return recorder.collective(call.kind, key, whole, element_bytes=call.element_bytes, root=call.root)
        peer = recorder.trace.groups[key][0][call.peer]
        self._exchange.message(call.tensor, peer, sends=call.sends)
        return recorder.message(sends=call.sends, peer=peer, size_bytes=call.size_bytes, tag=call.tag)

    def _key(self, group: Any) -> str:
        name = str(group.group_name)
        if name not in self._keys:
            ranks = dist.get_process_group_ranks(group)
            self._keys[name] = name
            self.recorder.group(name, tuple(ranks), str(getattr(group, "group_desc", "")))
        return name
