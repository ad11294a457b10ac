"""Rules of the packet kernel (`test_rules_*`) in a process where nothing is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config

HERE = Path(__file__).parent


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="runs them already")
def test_as_plain_python():
    files = sorted(str(path) for path in HERE.glob("test_rules_*.py"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files],
        cwd=HERE.parents[1],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
