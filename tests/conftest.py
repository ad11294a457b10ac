"""What all tests share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Where Python is to write no bytecode beside sources, every worker and every command that a test starts compiles
# them anew, and pytest rewrites all assertions. Somebody who names a place of their own keeps it.
if sys.dont_write_bytecode and sys.pycache_prefix is None:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# a loaded machine is slow, which is no failure
settings.register_profile("fabrictwin", deadline=None)
settings.load_profile("fabrictwin")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Published measurements and discovered fabrics that are not the project's to ship."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the data folder {SHARED.name}/ beside the checkout")
    return SHARED
