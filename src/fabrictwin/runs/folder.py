"""A run is a folder: written beside its place and renamed into it, so that nothing is ever half-written.

Every file but environment.json is the same for the same spec and seed, byte for byte.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from fabrictwin.base.version import __version__
from fabrictwin.base.errors import ConfigError
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

PACKAGES = ("numpy", "numba", "pydantic", "typer", "PyYAML")


def timeline(result: RunResult) -> bytes:
    """The Perfetto timeline of as many actors as fit, from the first."""
    found = intervals(result.program, result.trace)
    actors = actors_within(found, len(result.program.actors), TIMELINE_SLICES)
    return perfetto_trace(result.program, slices(result.program, found, actors))


FILES: dict[str, Callable[[RunResult], str | bytes]] = {
    "config.resolved.yaml": config_yaml,
    "summary.json": summary_json,
    "links.csv": links_csv,
    "flows.csv": flows_csv,
    "timeline.pftrace": timeline,
    "report.html": report_html,
}
ENVIRONMENT = "environment.json"


@dataclass(frozen=True)
class Clock:
    """When a run started and what it took, in the world outside; it appears in environment.json alone."""

    started: datetime
    simulated_in_s: float


def environment_json(clock: Clock) -> str:
    """What the run ran on, and when."""
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


def default_folder(name: str, under: Path = Path("runs")) -> Path:
    """`runs/<name>`, or the first of `runs/<name>-2`, `-3`, ... that does not exist yet."""
    base = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run"
    candidates = itertools.chain([base], (f"{base}-{k}" for k in itertools.count(2)))
    return next(path for path in (under / c for c in candidates) if not path.exists())


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


def write_folder(result: RunResult, folder: Path, clock: Clock) -> None:
    """Write all files of the run to `folder`, replacing a run that is there. Raises ConfigError."""
    check_target(folder)
    folder = folder.absolute()
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    replaced = folder.with_name(f".{folder.name}.replaced-{os.getpid()}")
    try:
        try:
            partial.mkdir(parents=True)
            for name, write in FILES.items():
                content = write(result)
                data = content.encode() if isinstance(content, str) else content
                (partial / name).write_bytes(data)
            (partial / ENVIRONMENT).write_text(environment_json(clock), encoding="utf-8")
            if folder.exists():
                folder.rename(replaced)
            partial.rename(folder)
        except OSError as error:
            if replaced.exists() and not folder.exists():
                replaced.rename(folder)
            raise ConfigError(f"cannot write {str(folder)!r}: {error.strerror or error}", key="--out") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(replaced, ignore_errors=True)
