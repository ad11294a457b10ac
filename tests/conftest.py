"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

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
