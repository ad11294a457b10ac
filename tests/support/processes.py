"""Processes that tests start and interrupt."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path


def _interruptible() -> None:
    """Take SIGINT again where whoever started the tests ignores it, as shells have jobs in the background do."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(folder: Path, *arguments: str, **settings: object) -> subprocess.Popen[str]:
    """Return Python in `folder`, with its error output in a pipe."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_interruptible,
        **settings,  # type: ignore[call-overload]
    )
