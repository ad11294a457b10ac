"""What `fabrictwin capture` starts in place of a program: the program as one rank of many, nothing computed.

The process group is PyTorch's fake one, tensors are fake, the GPU is modelled. A rank that is sent to or received
from is written down as soon as it is known, so that its own process can begin.
"""

from __future__ import annotations

import os
import resource
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed import device_mesh
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from fabrictwin.torch.capture.mode import CaptureMode
from fabrictwin.torch.capture.object_exchange import Exchange, exchange_objects
from fabrictwin.torch.capture.record import OUT, STEP, leave
from fabrictwin.torch.device.modelled_cuda import CudaOnCpu, answer, modelled_gpu
from fabrictwin.torch.device.tensor_memory import MEMORY
from fabrictwin.torch.exchanged_backend import program_name
from fabrictwin.torch.rank_recorder import RankRecorder
from fabrictwin.torch.recording import RECORDERS, eager


class _StepsDone(BaseException):
    """Ends a program whose asked step is over."""


def _real(original: Any) -> Any:
    """Return a function that works on tensors with values: a mesh's own table of ranks."""

    def run(*args: Any, **rest: Any) -> Any:
        with unset_fake_temporarily(), _disable_current_modes():
            return original(*args, **rest)

    return run


def _fake_groups() -> None:
    """Let a program's groups be PyTorch's fake ones, which answer with the name that the program gave."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    original, new_group = dist.init_process_group, dist.new_group
    named: list[str] = []

    def init_process_group(backend: str | None = None, *_: Any, **__: Any) -> None:
        named[:] = [program_name(backend)]
        original("fake", store=FakeStore(), rank=rank, world_size=world)

    def other_group(*args: Any, **rest: Any) -> Any:
        rest.pop("backend", None)
        rest.pop("pg_options", None)
        return new_group(*args, **rest)

    def get_backend(group: Any = None) -> str:
        return named[0]

    for module in (dist, dist.distributed_c10d, device_mesh):
        for name, made in (
            ("init_process_group", init_process_group),
            ("new_group", other_group),
            ("get_backend", get_backend),
        ):
            if hasattr(module, name):
                setattr(module, name, made)


def _real_meshes() -> None:
    device_mesh.init_device_mesh = dist.init_device_mesh = _real(device_mesh.init_device_mesh)
    mesh = device_mesh.DeviceMesh
    for name in ("__init__", "__getitem__", "_flatten", "_unflatten", "from_group", "_concatenate"):
        if name in mesh.__dict__ and not isinstance(mesh.__dict__[name], staticmethod):
            setattr(mesh, name, _real(mesh.__dict__[name]))


def _count_steps(recorder: RankRecorder, step: int | None) -> None:
    """Let an optimizer's step wait for every call, and keep one step's operations where one is asked for."""
    first: list[Any] = []
    done = [0]

    def before(optimizer: Any, *_: Any) -> None:
        if not first:
            first.append(optimizer)
        recorder.joined()

    def after(optimizer: Any, *_: Any) -> None:
        if optimizer is not first[0]:
            return
        done[0] += 1
        if step is not None and done[0] == step - 1:
            recorder.begin()
        if step is not None and done[0] == step:
            raise _StepsDone

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def main() -> None:
    """Run `script.py args` as one rank."""
    folder, step = Path(os.environ[OUT]), int(os.environ.get(STEP, "0")) or None
    recorder = RankRecorder(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    RECORDERS[:] = [recorder]
    answer(modelled_gpu())
    _fake_groups()
    _real_meshes()
    exchange = Exchange(folder, recorder.trace.rank)
    exchange_objects(exchange)
    MEMORY.watch_resizes()
    torch.compile = eager  # type: ignore[assignment]
    _count_steps(recorder, step)
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).absolute().parent)
    mode = CaptureMode(recorder, exchange)
    with CudaOnCpu(), FakeTensorMode(allow_non_fake_inputs=True), mode:
        try:
            runpy.run_path(script, run_name="__main__")
        except _StepsDone:
            step = None
    if step is not None:
        sys.exit(f"fabrictwin: the program ended before step {step} of its optimizer")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    leave(folder, recorder.trace, memory=MEMORY.most, zeros=mode.zeros, peak_kib=peak)


if __name__ == "__main__":
    main()
