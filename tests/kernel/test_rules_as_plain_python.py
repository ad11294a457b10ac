"""Rules of the packet kernel (`test_rules_*`) in a process where nothing is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
from numba import config
from support.plain_python import passes_as_plain_python


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="runs them already")
@pytest.mark.second
def test_as_plain_python():
    passes_as_plain_python(*sorted(Path(__file__).parent.glob("test_rules_*.py")))
