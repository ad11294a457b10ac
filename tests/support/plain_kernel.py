"""The packet kernel's functions called as plain Python, so that plain objects do for its records.

Where kernels are compiled, such tests run in a process of their own (`test_rules_as_plain_python`).
"""

from __future__ import annotations

from types import SimpleNamespace as Record

import pytest
from numba import config

__all__ = ["NEVER", "NONE", "Record", "plain"]

plain = pytest.mark.skipif(not config.DISABLE_JIT, reason="runs as plain Python, in a process of its own")
NONE = -1
NEVER = 1 << 62
