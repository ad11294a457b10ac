"""Captured jobs from Python: of traces of jobs that ran elsewhere, and of programs of PyTorch run here."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fabrictwin.api.run import Result, run
from fabrictwin.api.specs import Source, load
from fabrictwin.base.errors import ConfigError, SimulatedError
from fabrictwin.base.process.inherited import inherited
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


# options of torchrun that stand alone; every other takes a value, with = or behind it
ALONE = ("--standalone", "--no-python", "--no_python", "--run-path", "--run_path", "-m", "--module")


def script_place(arguments: list[str]) -> int:
    """Place of the script among torchrun's arguments. Raises ConfigError."""
    i = 0
    while i < len(arguments):
        one = arguments[i]
        if one in ("-m", "--module", "--no-python", "--no_python"):
            raise ConfigError(f"got {one}, expected a script", key="torchrun")
        if not one.startswith("-"):
            return i
        i += 1 if "=" in one or one in ALONE else 2
    raise ConfigError("got no script among torchrun's arguments", key="torchrun")


def torchrun(
    spec: Source,
    arguments: list[str],
    *,
    save: str | Path | None = None,
    measured: bool = False,
    stage: Stage | None = None,
) -> Result:
    """Run a script under torchrun on the twin's backend, then play what it did on the spec's cluster.

    `arguments` are torchrun's: its options, the script, and the script's own. `save` keeps the captured job.
    `measured`: compute takes what it took on this machine's processor, not what the cluster's GPU would take.
    Raises ConfigError, SimulatedError where the program fails.
    """
    from fabrictwin.torch.device.cluster_gpu import cluster_gpu
    from fabrictwin.torch.rank_record import read_records
    from fabrictwin.workload.captured.captured_file import write_captured

    asked, tell = load(spec), stage or silent
    _need_torch("torchrun")
    environment = {**cluster_gpu(asked)[2], "FABRICTWIN_TORCH_MEASURED": "1" if measured else ""}
    at = script_place(arguments)
    script = Path(arguments[at])
    if not script.is_file():
        raise ConfigError("no such file", file=script)
    with tempfile.TemporaryDirectory(prefix="fabrictwin-") as folder:
        bootstrap = str(Path(__file__).parents[1] / "torch" / "run_program.py")
        command = [sys.executable, "-m", "torch.distributed.run", *arguments[:at], bootstrap, *arguments[at:]]
        tell(f"running {script.name}")
        _run_watched(command, Path(folder), script.name, environment)
        tell("reading what it did")
        job = read_records(Path(folder), script.stem)
        kept = Path(folder) / "job.json" if save is None else Path(save)
        write_captured(job, kept)
        workload = {"workload": {"captured": str(kept.absolute())}, "name": script.stem}
        return run(asked.with_(workload), stage=tell)


def capture_program(
    script: str | Path,
    spec: Source,
    *,
    world: int | None = None,
    arguments: Sequence[str] = (),
    ranks: Sequence[int] = (),
    step: int | None = None,
    stage: Stage | None = None,
) -> CapturedJob:
    """Capture what a program of PyTorch computes and calls on `world` ranks of a cluster, or on all its GPUs.

    Nothing is computed: one process for each rank that does something of its own runs the program with tensors
    that have shapes and no values. `ranks` names those ranks, otherwise found by who exchanges messages. `step`
    keeps one step of the program's first optimizer. Raises ConfigError, SimulatedError where the program fails.
    """
    from fabrictwin.torch.capture.processes import Asked, capture_ranks
    from fabrictwin.torch.device.cluster_gpu import cluster_gpu

    asked, tell, place = load(spec), stage or silent, Path(script)
    _need_torch("capture")
    if not place.is_file():
        raise ConfigError("no such file", file=place)
    gpus, local, environment = cluster_gpu(asked)
    if not 1 <= (world or gpus) <= gpus:
        raise ConfigError(f"got {world} ranks, expected 1 to the {gpus} GPUs of the cluster", key="--world")
    tell(f"running {place.name}")
    with tempfile.TemporaryDirectory(prefix="fabrictwin-") as folder:
        wanted = Asked(place, tuple(arguments), world or gpus, local, tuple(ranks), step)
        return capture_ranks(wanted, Path(folder), environment)


def _need_torch(key: str) -> None:
    found = find_spec("torch")
    if found is None or found.origin is None:  # a folder of that name is no package
        raise ConfigError("expected PyTorch: pip install fabrictwin[torch]", key=key)


LOOK_EVERY_S = 0.5
LOOKS_AT_ENDED = 20  # at a rank that waits for one that has ended
END_S = 20.0  # that torchrun gets to end its workers


def _run_watched(command: list[str], folder: Path, name: str, environment: Mapping[str, str]) -> None:
    """Run torchrun, and end it where its ranks disagree or none can go on. Raises SimulatedError."""
    from fabrictwin.torch.call_log import CallLogs

    logs = CallLogs(folder)
    variables = {**inherited(), **environment, "FABRICTWIN_TORCH_OUT": str(folder)}
    with subprocess.Popen(command, env=variables) as running:
        wrong = hung = before = None
        looks = 0
        try:
            while running.poll() is None and wrong is None and hung is None:
                with suppress(subprocess.TimeoutExpired):
                    running.wait(LOOK_EVERY_S)
                wrong = logs.disagreement()
                stuck = logs.hang()
                looks = looks + 1 if stuck == before else 1
                # Files are read one after the other: what stands in two looks stood at one time. Where a rank has
                # ended with an error of its own, torchrun sees so and says which.
                enough = LOOKS_AT_ENDED if stuck and "(ended)" in stuck else 2
                hung, before = (stuck if looks >= enough else None), stuck
        finally:
            if running.poll() is None:
                running.terminate()
                try:
                    running.wait(END_S)
                except subprocess.TimeoutExpired:
                    running.kill()
    if hung is None and running.returncode:
        wrong = wrong or logs.disagreement()  # written since the last look
    if wrong is not None:
        raise SimulatedError("ranks disagree", name, wrong)
    if hung is not None:
        raise SimulatedError("hangs", name, hung)
    if running.returncode:
        lost = logs.missing()
        detail = f"{lost}; " if lost else ""
        raise SimulatedError(f"ended with {running.returncode}", name, f"{detail}its own messages stand above")
