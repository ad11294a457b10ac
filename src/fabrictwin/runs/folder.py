"""A run is a folder: written beside its place and renamed into it, so that nothing is ever half-written.

Every file but environment.json is the same for the same spec and seed, byte for byte.

Runs that end at the same moment never share a place: a rename onto a folder that holds something fails, and a run
without a place of its own then takes the next. What is being written is locked (`flock`) as long as its process
lives, so what a killed one left behind is told from what another is writing, and is removed by the next run.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from fabrictwin.base.errors import ConfigError, unwritten
from fabrictwin.base.process.interrupt import unfinished
from fabrictwin.base.records import record
from fabrictwin.base.version import __version__
from fabrictwin.report.csv_tables import flows_csv, links_csv
from fabrictwin.report.report import report_html
from fabrictwin.report.resolved_config import config_yaml
from fabrictwin.report.result import RunResult
from fabrictwin.report.summary import summary_json
from fabrictwin.report.timeline.intervals import intervals
from fabrictwin.report.timeline.perfetto import perfetto_trace
from fabrictwin.report.timeline.timeline_tracks import actors_within, slices

# beyond this a browser labours; actors that would go over it are left out of the timeline
TIMELINE_SLICES = 1_000_000

PACKAGES = ("numpy", "numba", "pydantic", "click", "rich", "Jinja2", "PyYAML")


def timeline(result: RunResult) -> bytes:
    """The Perfetto timeline of as many actors as fit, from the first."""
    found = intervals(result.job.program, result.trace)
    actors = actors_within(found, len(result.job.program.actors), TIMELINE_SLICES)
    return perfetto_trace(result.job.program, slices(result.job.program, found, actors))


FILES: dict[str, Callable[[RunResult], str | bytes]] = {
    "config.resolved.yaml": config_yaml,
    "summary.json": summary_json,
    "links.csv": links_csv,
    "flows.csv": flows_csv,
    "timeline.pftrace": timeline,
    "report.html": report_html,
}
ENVIRONMENT = "environment.json"


@record
class Clock:
    """When a run started and what it took, in the world outside; it appears in environment.json alone."""

    started: datetime
    simulated_in_s: float


def environment_json(clock: Clock) -> str:
    """Versions, machine and times of a run, as JSON."""
    facts = {
        "fabrictwin": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "command": sys.argv,
        "started_at": clock.started.astimezone(UTC).isoformat(timespec="seconds"),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_time_s": round(clock.simulated_in_s, 3),
    }
    return json.dumps(facts, indent=2) + "\n"


def default_folders(name: str, under: Path = Path("runs")) -> Iterator[Path]:
    """`runs/<name>`, then `runs/<name>-2`, `-3` and so on, those that do not exist yet."""
    base = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run"
    candidates = itertools.chain([base], (f"{base}-{k}" for k in itertools.count(2)))
    return (path for path in (under / c for c in candidates) if not path.exists())


def check_target(folder: Path) -> None:
    """Raise ConfigError unless `folder` is new, empty, or a run that may be replaced."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise ConfigError(f"got {str(folder)!r}, which is a file, expected a folder to write", key="--out")
    present = {entry.name for entry in folder.iterdir()}
    strangers = sorted(present - {*FILES, ENVIRONMENT})
    if strangers:
        raise ConfigError(
            f"got {str(folder)!r}, which holds {strangers[0]!r} and is not a run, expected a new folder or a run",
            key="--out",
        )


class RunFolder:
    """A place where a run will be: `folder`, or without one the first of `runs/<name>` that is free at the end."""

    def __init__(self, name: str, folder: Path | None, partial: Path) -> None:
        self._name = name
        self._folder = folder
        self._partial = partial

    def write(self, result: RunResult, clock: Clock) -> Path:
        """Write all files of the run, replacing one that is there, and return where. Raises ConfigError."""
        with _refusal(self._folder or self._partial.parent):
            for name, write in FILES.items():
                content = write(result)
                data = content.encode() if isinstance(content, str) else content
                (self._partial / name).write_bytes(data)
            (self._partial / ENVIRONMENT).write_text(environment_json(clock), encoding="utf-8")
            if self._folder is not None:
                _replace(self._partial, self._folder)
                return self._folder
            return next(
                path for path in default_folders(self._name, self._partial.parent) if _renamed(self._partial, path)
            )


@contextmanager
def run_folder(name: str, folder: Path | None = None) -> Iterator[RunFolder]:
    """Take a place for a run named `name` before it is simulated: `folder`, or the next free `runs/<name>`.

    Nothing is left there where the block fails or is interrupted. Raises ConfigError where it cannot be written.
    """
    if folder is not None:
        check_target(folder)
    place = (folder or next(default_folders(name))).absolute()
    partial = place.with_name(f".{place.name}.partial-{os.getpid()}")
    with _refusal(folder or place):
        made = not place.parent.exists()
        place.parent.mkdir(parents=True, exist_ok=True)
        _clear(place.parent)
        partial.mkdir()
        held = os.open(partial, os.O_RDONLY)
    try:
        with unfinished(partial):
            _lock(held)
            relative = None if folder is not None else Path("runs") / partial.name
            yield RunFolder(name, folder, relative or partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(held)
        if made:
            with suppress(OSError):  # another run may be in it by now
                place.parent.rmdir()


def write_folder(result: RunResult, folder: Path | None, clock: Clock) -> Path:
    """Write all files of the run to `folder`, replacing a run there, or to the next free `runs/<name>`.

    Returns where. Raises ConfigError.
    """
    with run_folder(result.asked.name, folder) as place:
        return place.write(result, clock)


@contextmanager
def _refusal(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritten(error, message=f"cannot write {str(folder)!r}", key="--out") from error


def _renamed(partial: Path, folder: Path) -> bool:
    """Rename `partial` to `folder`; False where another run is there by now."""
    try:
        partial.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        return False
    return True


def _replace(partial: Path, folder: Path) -> None:
    """Put `partial` in the place of a run, which is put back where that fails."""
    replaced = partial.with_name(partial.name.replace(".partial-", ".replaced-"))
    try:
        while not _renamed(partial, folder.absolute()):
            check_target(folder)
            try:
                folder.rename(replaced)
            except FileNotFoundError:
                continue  # another run took it away at this moment to put its own there
    except OSError:
        if replaced.exists() and not folder.exists():
            replaced.rename(folder)
        raise
    finally:
        if folder.exists():
            shutil.rmtree(replaced, ignore_errors=True)


def _lock(descriptor: int) -> bool:
    """Lock a folder as long as this process has it open; False where another has, or a disk knows no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _clear(parent: Path) -> None:
    """Remove what killed runs left in a folder, and put a run back that one of them was replacing."""
    for left in sorted(parent.glob(".*-*")):
        found = re.fullmatch(r"\.(.+)\.(partial|replaced)-(\d{1,9})", left.name)
        if found is None or not left.is_dir() or left.is_symlink() or _alive(int(found[3])):
            continue
        held = os.open(left, os.O_RDONLY)
        try:
            if not _lock(held):
                continue  # of a process that counts its numbers apart from ours, or on a disk that has no locks
            place = parent / found[1]
            if found[2] == "replaced" and not place.exists():
                _renamed(left, place)
            else:
                shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(held)
