"""`device="cuda"` and torch.cuda on a machine without: tensors on the CPU, answers of the modelled GPU.

What the CPU cannot stand for is refused by name: CUDA graphs, Triton kernels, extensions.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fabrictwin.base.errors import SimulatedError
from fabrictwin.base.records import record
from fabrictwin.torch.device.cluster_gpu import GPU
from fabrictwin.torch.device.modelled_streams import model_streams
from fabrictwin.torch.device.tensor_memory import MEMORY

ASKED: list[None] = []  # not empty once the program has named the modelled device


@record
class ModelledGpu:
    """What torch.cuda answers for: the cluster's GPU, as many as a host has."""

    name: str = "modelled GPU"
    memory_bytes: int = 80 << 30
    count: int = 8
    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132
    nccl: tuple[int, int, int] = (2, 28, 9)  # the release that the cluster runs


def modelled_gpu() -> ModelledGpu:
    """Return the GPU that who started this process named."""
    found: dict[str, Any] = json.loads(os.environ.get(GPU, "{}"))
    told: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in found.items()
    }
    return ModelledGpu(**told)


def _here(given: Any) -> Any:
    """Return a device that this machine has in place of the modelled one; all else as it is."""
    named = isinstance(given, str) and (given == "cuda" or given.startswith("cuda:"))
    if not named and not (isinstance(given, torch.device) and given.type == "cuda"):
        return given
    ASKED[:] = [None]
    return "cpu" if named else torch.device("cpu")


class CudaOnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Every function of torch that is given the modelled device, on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function with devices that are here."""
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cpu", *args[2:])  # the number of a device
        given = {key: _here(value) for key, value in (kwargs or {}).items()}
        return func(*map(_here, args), **given)


def refused(what: str) -> Callable[..., Any]:
    """Return what a program gets where it asks for something that has no model."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise SimulatedError("has no model here", what, "expected operators of PyTorch")

    return refuse


class _NoTriton:
    """Finder of modules that refuses Triton's."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise ImportError for Triton, by name."""
        if name == "triton" or name.startswith("triton."):
            raise ImportError("fabrictwin: Triton kernels have no model here, expected operators of PyTorch")


def _without(original: Callable[..., None], **changed: Any) -> Callable[..., None]:
    """Return an initialiser whose named arguments, where given, are others."""

    def initialise(self: Any, *args: Any, **rest: Any) -> None:
        given = {
            key: changed[key] if key in changed and value is not None else value for key, value in rest.items()
        }
        original(self, *map(_here, args), **{key: _here(value) for key, value in given.items()})

    return initialise


def _answers(gpu: ModelledGpu) -> dict[str, Any]:
    """Functions of torch.cuda, by name."""
    local = [int(os.environ.get("LOCAL_RANK", "0")) % gpu.count]

    def set_device(device: Any) -> None:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        local[0] = found.index or 0

    properties = SimpleNamespace(
        name=gpu.name,
        total_memory=gpu.memory_bytes,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        multi_processor_count=gpu.multiprocessors,
        warp_size=32,
        is_integrated=False,
    )
    held = {name: lambda *_: MEMORY.held for name in ("memory_allocated", "memory_reserved")}
    most = {name: lambda *_: MEMORY.most for name in ("max_memory_allocated", "max_memory_reserved")}

    def reset(*_: Any) -> None:
        MEMORY.most = MEMORY.held

    return {
        **held,
        **most,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: gpu.count,
        "current_device": lambda: local[0],
        "set_device": set_device,
        "device": lambda *_: contextlib.nullcontext(),
        "get_device_name": lambda *_: gpu.name,
        "get_device_capability": lambda *_: gpu.capability,
        "get_device_properties": lambda *_: properties,
        "is_bf16_supported": lambda *_, **__: gpu.capability >= (8, 0),
        "memory_stats": lambda *_: {
            **{f"{kind}_bytes.all.current": MEMORY.held for kind in ("allocated", "active", "reserved")},
            **{f"{kind}_bytes.all.peak": MEMORY.most for kind in ("allocated", "active", "reserved")},
            "num_alloc_retries": 0,
            "num_ooms": 0,
        },
        "mem_get_info": lambda *_: (gpu.memory_bytes - MEMORY.held, gpu.memory_bytes),
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        # Dynamo wants an object of its own for each name
        **{
            name: lambda *_: None
            for name in ("init", "empty_cache", "manual_seed", "manual_seed_all", "ipc_collect")
        },
        "CUDAGraph": refused("torch.cuda.CUDAGraph"),
        "graph": refused("torch.cuda.graph"),
        "make_graphed_callables": refused("torch.cuda.make_graphed_callables"),
    }


def answer(gpu: ModelledGpu) -> None:
    """Let torch.cuda answer for the modelled GPU, and what takes devices take the CPU."""
    answers = _answers(gpu)
    for name, value in answers.items():
        setattr(torch.cuda, name, value)
    model_streams()
    here = torch.device("cpu")  # what PyTorch itself asks for does not make a program one for GPUs
    # the names of any accelerator, which a build for CUDA would ask of its driver
    for name, value in (
        ("is_available", answers["is_available"]),
        ("current_accelerator", lambda *_, **__: here),
        ("device_count", answers["device_count"]),
        ("current_device_index", answers["current_device"]),
        ("set_device_index", answers["set_device"]),
        *((name, getattr(torch.cuda, name)) for name in ("current_stream", "set_stream", "synchronize")),
    ):
        setattr(torch.accelerator, name, value)
    torch.cuda.nccl.version = lambda: gpu.nccl
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, lambda *_, **__: None)
    _let_devices_be_here()
    _let_threads_begin_so()
    sys.meta_path.insert(0, _NoTriton())
    from torch.utils import cpp_extension

    for name in ("load", "load_inline", "CUDAExtension", "CppExtension"):
        setattr(cpp_extension, name, refused(f"torch.utils.cpp_extension.{name}"))


def _let_threads_begin_so() -> None:
    """Let threads of a program have their tensors on the CPU as well: modes of PyTorch are a thread's own."""
    begin = threading.Thread.start

    def start(self: threading.Thread) -> None:
        run = self.run

        def on_cpu() -> None:
            with CudaOnCpu():
                run()

        self.run = on_cpu  # type: ignore[method-assign]
        begin(self)

    threading.Thread.start = start  # type: ignore[method-assign]


def _let_devices_be_here() -> None:
    """Change what takes a device without being a function of torch."""
    from torch.distributed import device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import optimizer

    autocast, scaler = torch.autocast.__init__, torch.amp.GradScaler.__init__

    def cast(self: Any, device_type: str, dtype: Any = None, *args: Any, **rest: Any) -> None:
        if _here(device_type) != device_type and dtype is None:
            dtype = torch.float16  # CUDA's default
        autocast(self, _here(device_type), dtype, *args, **rest)

    def scale(self: Any, device: str = "cuda", *args: Any, **rest: Any) -> None:
        scaler(self, _here(device), *args, **rest)

    torch.autocast.__init__ = cast  # type: ignore[method-assign]
    torch.amp.GradScaler.__init__ = scale  # type: ignore[method-assign]
    parallel = DistributedDataParallel
    parallel.__init__ = _without(parallel.__init__, device_ids=None, output_device=None)  # type: ignore[method-assign]
    sharded = FullyShardedDataParallel
    sharded.__init__ = _without(sharded.__init__, device_id=torch.device("cpu"))  # type: ignore[method-assign]
    mesh = device_mesh.DeviceMesh
    mesh.__init__ = _without(mesh.__init__)  # type: ignore[method-assign]
    foreach = optimizer._get_foreach_kernels_supported_devices
    # optimizers take their horizontally fused kernels on GPUs
    optimizer._get_foreach_kernels_supported_devices = lambda: ["cpu", "cuda"] if ASKED else foreach()
