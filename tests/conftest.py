"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Published measurements and discovered fabrics that are not the project's to ship."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the data folder {SHARED.name}/ beside the checkout")
    return SHARED
