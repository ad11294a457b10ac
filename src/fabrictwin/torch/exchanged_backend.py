"""The backend `fabrictwin` in place of those that a program names, which go on to bear the names that it gave.

A group of `gloo`, `nccl`, a map of devices to these, or of none becomes one of `fabrictwin`; other backends
(`fake`, `mpi`, a program's own) are left alone. `get_backend` answers with the program's name: programs choose by
it.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d

from fabrictwin.torch import NAME, autoload
from fabrictwin.torch.c10d_backend import backend_of
from fabrictwin.torch.call_log import CallLog
from fabrictwin.torch.rank_recorder import RankRecorder
from fabrictwin.torch.recording import LOGS, NOTES, PENDING, RECORDERS, WORLDS

OUT = "FABRICTWIN_TORCH_OUT"  # the folder that ranks leave their records in
EXCHANGED = ("gloo", "nccl", NAME)
_NAMED: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # what the program called each group


def is_exchanged(backend: Any) -> bool:
    """Return true for a backend, or a map of devices to backends, that the twin's takes the place of."""
    if backend is None:
        return True
    return all(one.rpartition(":")[2].lower() in EXCHANGED for one in str(backend).split(","))


def _default_name() -> str:
    return "nccl" if torch.cuda.is_available() else "gloo"  # as c10d chooses among several


def _initialised(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(backend: Any = None, *args: Any, **rest: Any) -> Any:
        if not is_exchanged(backend):
            return original(backend, *args, **rest)
        for option in ("device_id", "pg_options"):  # of NCCL
            rest.pop(option, None)
        WORLDS[0] += 1
        made = original(NAME, *args, **rest)
        _call(dist.group.WORLD, program_name(backend))
        _record()
        return made

    return init_process_group


def program_name(backend: Any) -> str:
    """Return the name by which a program asked for a group: of a map of devices, or of none, its default."""
    one = _default_name() if backend is None or "," in str(backend) else str(backend)
    found: str = dist.Backend(one.rpartition(":")[2])
    return found  # c10d's own object, which some compare by identity


def _call(group: Any, name: str) -> None:
    _NAMED[group] = backend_of(group).called = name


def _record() -> None:
    """Record this process's calls from now on, into its record so far where there is one. Raises RuntimeError."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if RECORDERS:
        before = RECORDERS[0].trace
        if (before.rank, before.world) == (rank, world):
            RECORDERS[0].regrouped()
            return
        if os.environ.get(OUT):
            raise RuntimeError(
                f"fabrictwin: rank {before.rank} of {before.world} became rank {rank} of {world}, "
                "expected one world from beginning to end"
            )
    recorder = RankRecorder(rank, world)
    recorder.trace.notes += NOTES
    RECORDERS[:] = [recorder]
    if os.environ.get(OUT):
        LOGS[:] = [CallLog(Path(os.environ[OUT]) / f"calls.{rank}")]
    atexit.register(_leave, recorder)


def _new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    def new_group(
        ranks: Any = None,
        timeout: Any = None,
        backend: Any = None,
        pg_options: Any = None,
        *args: Any,
        **rest: Any,
    ) -> Any:
        world = _NAMED.get(dist.group.WORLD) if dist.is_initialized() else None
        if not is_exchanged(backend) or world is None:
            return original(ranks, timeout, backend, pg_options, *args, **rest)
        rest.pop("device_id", None)
        made = original(ranks, timeout, NAME, None, *args, **rest)
        if isinstance(made, dist.ProcessGroup):
            _call(made, world if backend is None else program_name(backend))
        return made

    return new_group


def _get_backend(original: Callable[..., str]) -> Callable[..., str]:
    def get_backend(group: Any = None) -> str:
        found = original(group)
        return _NAMED.get(group or dist.group.WORLD, found) if found == NAME else found

    return get_backend


def _recv(original: Callable[..., Any]) -> Callable[..., Any]:
    def recv(tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> Any:
        asked = group or dist.group.WORLD
        named = src is not None or group_src is not None
        if named or asked not in _NAMED or c10d._rank_not_in_group(asked):
            return original(tensor, src, group, tag, group_src)
        work = backend_of(asked).recv_anysource([tensor], tag)  # c10d's wrapper of it does not know the sender
        work.wait()
        return dist.get_global_rank(asked, work._source_rank())

    return recv


def _monitored_barrier(original: Callable[..., None]) -> Callable[..., None]:
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        asked = group or dist.group.WORLD
        if asked not in _NAMED or c10d._rank_not_in_group(asked):
            original(group, timeout, wait_all_ranks)
            return
        found = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        backend_of(asked).monitored_barrier(found, wait_all_ranks)

    return monitored_barrier


def _leave(recorder: RankRecorder) -> None:
    """Write the rank's record, whole or not at all."""
    from fabrictwin.torch.rank_record import write_record

    for log in LOGS:
        log.end()
    folder = os.environ.get(OUT)
    if folder:
        write_record(recorder.trace, Path(folder) / f"rank.{recorder.trace.rank}.json")


def exchange_backend() -> None:
    """Let every group that a program makes from now on be the twin's, whatever backend it names."""
    autoload.register()
    for kept in (RECORDERS, LOGS, PENDING):  # processes that a rank forks are not the rank
        os.register_at_fork(after_in_child=kept.clear)
    for module in (dist, c10d):
        module.is_nccl_available = lambda: True  # the twin's stands in for it, also in builds for CPUs
    for name, changed in (
        ("init_process_group", _initialised),
        ("new_group", _new_group),
        ("get_backend", _get_backend),
        ("recv", _recv),
        ("monitored_barrier", _monitored_barrier),
    ):
        made = changed(getattr(c10d, name))
        for module in (dist, c10d, device_mesh):  # which has names of its own
            if hasattr(module, name):
                setattr(module, name, made)
