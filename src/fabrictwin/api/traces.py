"""Traces of jobs that ran elsewhere, from Python: read into a captured job, and written for other simulators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.progress import silent

if TYPE_CHECKING:
    from fabrictwin.base.progress import Stage
    from fabrictwin.workload.captured.captured_job import CapturedJob


def import_trace(
    paths: str | Path | Sequence[str | Path],
    *,
    world: int | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    model_ranks: int | None = None,
    passes: int = 1,
    name: str | None = None,
    stage: Stage | None = None,
) -> CapturedJob:
    """Read traces of a job's ranks: Kineto, Chakra, PyTorch's own, flight recorders, GOAL, layer files.

    `world` is the number of ranks where the files do not say, `groups` the ranks of groups that Chakra's nodes
    name, `model_ranks` and `passes` belong to ASTRA-sim's layer files. Raises ConfigError.
    """
    from fabrictwin.interchange.read_traces import Given, read_traces

    chosen = [paths] if isinstance(paths, str | Path) else list(paths)
    if not chosen:
        raise ConfigError("got no files, expected traces")
    known = None if groups is None else {key: tuple(ranks) for key, ranks in groups.items()}
    given = Given(world, known, model_ranks, passes)
    return read_traces([Path(path) for path in chosen], given, name=name, stage=stage or silent)


def export_trace(
    job: CapturedJob | str | Path, to: Literal["chakra", "goal"], out: str | Path, *, gpu: str | None = None
) -> list[Path]:
    """Write a captured job as Chakra's traces (a folder) or as GOAL (a file); the files that were written.

    `gpu` times compute that is given as work. Raises ConfigError.
    """
    from fabrictwin.interchange.write_traces import write_chakra, write_goal
    from fabrictwin.workload.captured.captured_file import read_captured

    captured = read_captured(job) if isinstance(job, str | Path) else job
    return (write_chakra if to == "chakra" else write_goal)(captured, Path(out), gpu=gpu)
