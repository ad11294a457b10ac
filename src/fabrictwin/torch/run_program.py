"""What `fabrictwin torchrun` starts in place of a program: the program, on the twin's backend, recorded.

`init_process_group` takes the backend `fabrictwin` whatever the program names. Compute is every operator that
PyTorch dispatches; what it took on this machine's processor is of no account. `device="cuda"` is the CPU, and
torch.cuda answers for the cluster's GPU.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from fabrictwin.torch import NAME, autoload
from fabrictwin.torch.c10d_backend import backend_of
from fabrictwin.torch.call_log import CallLog
from fabrictwin.torch.device.modelled_cuda import CudaOnCpu, answer, modelled_gpu
from fabrictwin.torch.device.tensor_memory import MEMORY
from fabrictwin.torch.operator_recorder import record_operator, tensors_of
from fabrictwin.torch.rank_recorder import RankRecorder
from fabrictwin.torch.recording import LOGS, OWN, RECORDERS, eager

OUT = "FABRICTWIN_TORCH_OUT"  # the folder that ranks leave their records in
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class ComputeRecorder(TorchDispatchMode):  # type: ignore[misc]
    """Every operator on plain tensors, as work by its shapes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operator and run it. Tensors of other classes are left to what they are made of."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        plain = all(type(one) in _PLAIN for one in tensors_of(result))
        if plain and not OWN:
            MEMORY.returned(result)
        if plain and not OWN and RECORDERS:
            record_operator(RECORDERS[0], func, args, kwargs, result)
        return result


def _patched(original: Any) -> Any:
    def init_process_group(backend: Any = None, *args: Any, **rest: Any) -> Any:
        rest.pop("device_id", None)
        made = original(NAME, *args, **rest)
        recorder = RankRecorder(dist.get_rank(), dist.get_world_size())
        RECORDERS[:] = [recorder]
        if os.environ.get(OUT):
            LOGS[:] = [CallLog(Path(os.environ[OUT]) / f"calls.{dist.get_rank()}")]
        atexit.register(_leave, recorder)
        return made

    return init_process_group


def _patched_group(original: Any) -> Any:
    def new_group(*args: Any, **rest: Any) -> Any:
        if "backend" in rest:
            rest["backend"] = NAME
        return original(*args, **rest)

    return new_group


def _patched_recv(original: Any) -> Any:
    def recv(tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> Any:
        asked = group or dist.group.WORLD
        if src is not None or group_src is not None or dist.distributed_c10d._rank_not_in_group(asked):
            return original(tensor, src, group, tag, group_src)
        work = backend_of(asked).recv_anysource([tensor], tag)  # c10d's wrapper of it does not know the sender
        work.wait()
        return dist.get_global_rank(asked, work._source_rank())

    return recv


def _monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """Meet on a group, as torch.distributed offers it on gloo alone."""
    asked = group or dist.group.WORLD
    if not dist.distributed_c10d._rank_not_in_group(asked):
        found = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        backend_of(asked).monitored_barrier(found, wait_all_ranks)


def _join(*_: Any) -> None:
    """Let an optimizer's step wait for every call: reducers wait for theirs by futures, which say nothing here."""
    for recorder in RECORDERS:
        recorder.joined()


def _leave(recorder: RankRecorder) -> None:
    """Write the rank's record, whole or not at all."""
    from fabrictwin.torch.rank_record import write_record

    for log in LOGS:
        log.end()
    folder = os.environ.get(OUT)
    if folder:
        write_record(recorder.trace, Path(folder) / f"rank.{recorder.trace.rank}.json")


def main() -> None:
    """Run `script.py args` as `python` would."""
    autoload.register()
    dist.init_process_group = dist.distributed_c10d.init_process_group = _patched(dist.init_process_group)
    dist.new_group = dist.distributed_c10d.new_group = _patched_group(dist.new_group)
    dist.recv = dist.distributed_c10d.recv = _patched_recv(dist.recv)
    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = _monitored_barrier
    torch.compile = eager  # type: ignore[assignment]
    register_optimizer_step_pre_hook(_join)
    answer(modelled_gpu())
    MEMORY.watch_resizes()
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).absolute().parent)
    with CudaOnCpu(), ComputeRecorder():
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
