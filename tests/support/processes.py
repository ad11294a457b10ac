"""Processes that tests start and interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def _interruptible() -> None:
    """Take SIGINT again where whoever started the tests ignores it, as shells have jobs in the background do."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def answers_of(script: str, cases: object, **environment: str) -> list[str]:
    """Return what a script prints as JSON of its `cases`, in a process with those variables set.

    It can import tests/ and tests/kernel/.
    """
    tests = Path(__file__).parents[1]
    before = (
        f"import json, sys\nsys.path[:0] = {[str(tests / 'kernel'), str(tests)]}\ncases = json.load(sys.stdin)\n"
    )
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", before + script],
        input=json.dumps(cases),
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[str] = json.loads(found.stdout)
    return answers


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
