"""Processes of a capture: one for each rank that does something of its own, found as they run.

Rank 0 is started; whoever it exchanges messages with (the other stages of its pipeline) is started as soon as it
is known, and so on. All ranks of the world are then of the class of one of them: groups of ranks that exchange
messages are those of a regular layout, and their i-th ranks do the same.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.base.process.inherited import inherited
from fabrictwin.base.records import record
from fabrictwin.interchange.rank_traces import tiled, together
from fabrictwin.torch.capture.record import OUT, STEP, figures, met
from fabrictwin.torch.rank_record import read_traces
from fabrictwin.workload.captured.captured_file import ranks_text
from fabrictwin.workload.captured.captured_job import CapturedJob

MOST_PROCESSES = 64
LOOK_EVERY_S = 0.1
END_S = 5.0  # that a process gets to end
PRINTED = 60  # last lines of a rank that failed


@record
class Asked:
    """A program and the ranks that it is captured as."""

    script: Path
    arguments: tuple[str, ...]
    world: int
    local_world: int
    ranks: tuple[int, ...] = ()  # those to run; none: found
    step: int | None = None  # of the optimizer, alone


def capture_ranks(asked: Asked, folder: Path, environment: Mapping[str, str]) -> CapturedJob:
    """Run a program as every rank that does something of its own; their job.

    Raises ConfigError, SimulatedError.
    """
    for rank in asked.ranks:
        if not 0 <= rank < asked.world:
            raise ConfigError(f"got rank {rank}, expected 0 to {asked.world - 1}", key="--ranks")
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        ended: set[int] = set()
        while not running or len(ended) < len(running):
            for rank in _wanted(asked, folder) - running.keys():
                running[rank] = _start(asked, rank, folder, environment)
            time.sleep(LOOK_EVERY_S)
            for rank in running.keys() - ended:
                code = running[rank].poll()
                if code is None:
                    continue
                if code:
                    raise _failed(asked, rank, folder, code)
                ended.add(rank)
            if len(ended) == len(running) and not _wanted(asked, folder) - running.keys():
                break
    finally:
        _end(running.values())
    return _job(asked, folder, tuple(sorted(running)))


def _wanted(asked: Asked, folder: Path) -> set[int]:
    """Ranks that are to run, as far as is known."""
    if asked.ranks:
        return set(asked.ranks)
    peers = met(folder)
    found, new = {0}, {0}
    while new:
        new = {peer for rank in new for peer in peers.get(rank, ())} - found
        found |= new
    if len(found) > MOST_PROCESSES:
        raise ConfigError(
            f"got more than {MOST_PROCESSES} ranks that exchange messages, expected --ranks with one of each kind",
            file=asked.script,
        )
    return found


def _start(asked: Asked, rank: int, folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    local = rank % asked.local_world
    variables = {
        "RANK": rank,
        "WORLD_SIZE": asked.world,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": asked.local_world,
        "GROUP_RANK": rank // asked.local_world,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
        "OMP_NUM_THREADS": 1,
        OUT: folder,
        STEP: asked.step or 0,
    }
    program = Path(__file__).with_name("program.py")
    command = [sys.executable, "-P", str(program), str(asked.script), *asked.arguments]
    with (folder / f"printed.{rank}").open("wb") as printed:
        return subprocess.Popen(
            command,
            env={**inherited(), **environment, **{key: str(value) for key, value in variables.items()}},
            stdout=None if rank == min(asked.ranks, default=0) else subprocess.DEVNULL,
            stderr=printed,
        )


def _failed(asked: Asked, rank: int, folder: Path, code: int) -> SimulatedError:
    lines = (folder / f"printed.{rank}").read_text(errors="replace").splitlines()
    sys.stderr.write("\n".join(lines[-PRINTED:]) + "\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    reason = last.removeprefix(f"[rank{rank}]: ")
    return SimulatedError(f"ended with {code}", f"{asked.script.name} as rank {rank}", reason)


def _end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    left = [one for one in processes if one.poll() is None]
    for one in left:
        one.terminate()
    for one in left:
        try:
            one.wait(END_S)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()


def _spans(asked: Asked, ranks: tuple[int, ...]) -> dict[int, tuple[int, ...]] | None:
    """Ranks of the world that do as each of those that ran; none where ranks were named."""
    if asked.ranks:
        return None
    if len(ranks) == 1:
        return {ranks[0]: tuple(range(asked.world))}
    every = tiled(ranks, asked.world)
    if not every:
        raise ConfigError(
            f"ranks {ranks_text(ranks)[:80]} exchange messages, which divide {asked.world} ranks in no regular "
            "way: expected --ranks with one of each kind",
            file=asked.script,
        )
    return {rank: tuple(sorted(members[i] for members in every)) for i, rank in enumerate(ranks)}


def _job(asked: Asked, folder: Path, ranks: tuple[int, ...]) -> CapturedJob:
    found = together(
        read_traces(folder),
        name=asked.script.stem,
        source="a program of PyTorch, captured",
        world=asked.world,
        spans=_spans(asked, ranks),
    )
    notes = []
    left = figures(folder)
    for rank in ranks:
        notes.append(f"rank {rank}: {left[rank]['memory'] / 2**30:.2f} GiB of tensors at most")
    zeros = sum(one["zeros"] for one in left.values())
    if zeros:
        notes.append(f"{zeros:,} values of tensors were read, which were taken for 0")
    return replace(found, notes=(*found.notes, *notes))
