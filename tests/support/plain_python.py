"""Tests of compiled rules in a process where nothing is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def passes_as_plain_python(*files: Path) -> None:
    """Run test files without numba, and hold that they pass."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, files)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
