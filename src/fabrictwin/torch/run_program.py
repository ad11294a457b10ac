"""What `fabrictwin torchrun` starts in place of a program: the program, on the twin's backend, recorded.

Groups are of the backend `fabrictwin` whatever the program names. Compute is every operator that
PyTorch dispatches; what it took on this machine is of no account unless that was asked for. `device="cuda"`
is the CPU, and torch.cuda answers for the cluster's GPU.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from fabrictwin.torch.device.modelled_cuda import CudaOnCpu, answer, modelled_gpu
from fabrictwin.torch.device.tensor_memory import MEMORY
from fabrictwin.torch.exchanged_backend import exchange_backend
from fabrictwin.torch.operator_recorder import record_operator, tensors_of
from fabrictwin.torch.recording import NOTES, OWN, RECORDERS, eager

MEASURED = "FABRICTWIN_TORCH_MEASURED"  # not empty where compute takes what it took on this machine
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class ComputeRecorder(TorchDispatchMode):  # type: ignore[misc]
    """Every operator on plain tensors, as work by its shapes; `measured`: as the time that it took."""

    def __init__(self, *, measured: bool = False) -> None:
        super().__init__()
        self._measured = measured

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operator and run it. Tensors of other classes are left to what they are made of."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        begun = time.perf_counter_ns()
        result = func(*args, **(kwargs or {}))
        took_ps = (time.perf_counter_ns() - begun) * 1000 if self._measured else None
        plain = all(type(one) in _PLAIN for one in tensors_of(result))
        if plain and not OWN:
            MEMORY.returned(result)
        if plain and not OWN and RECORDERS:
            record_operator(RECORDERS[0], func, args, kwargs, result, took_ps)
        return result


def _join(*_: Any) -> None:
    """Let an optimizer's step wait for every call: reducers wait for theirs by futures, which say nothing here."""
    for recorder in RECORDERS:
        recorder.joined()


def main() -> None:
    """Run `script.py args` as `python` would."""
    exchange_backend()
    torch.compile = eager  # type: ignore[assignment]
    register_optimizer_step_pre_hook(_join)
    answer(modelled_gpu())
    MEMORY.watch_resizes()
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).absolute().parent)
    measured = bool(os.environ.get(MEASURED))
    if measured:
        NOTES.append("compute takes what it took on this machine's processor, as was asked for")
    # What the program holds stays until the process ends: a reducer that is taken down with its names waits
    # for threads of gloo's that wait for the interpreter, which it holds.
    kept: list[object] = []
    with CudaOnCpu(), ComputeRecorder(measured=measured):
        try:
            kept.append(runpy.run_path(script, run_name="__main__"))
        except SystemExit as left:
            if left.code:
                raise
            kept.append(left)
    _end()


def _end() -> None:
    """End the process as Python does, but for taking PyTorch down.

    Gloo's threads are taken down in no certain order, and now and then one that still runs ends it all by SIGABRT.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
