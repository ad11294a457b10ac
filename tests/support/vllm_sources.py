"""Real vLLMs that slow tests ask: unpacked wheels, and an interpreter with their dependencies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest


class RealVllm(NamedTuple):
    """One unpacked wheel."""

    python: str
    source: str
    release: str  # such as 0.19


def real_vllms() -> list[RealVllm]:
    """Return those of `VLLM_SOURCES` (folders by `:`), run by `VLLM_PYTHON`; skips a test that has none."""
    python, sources = os.environ.get("VLLM_PYTHON"), os.environ.get("VLLM_SOURCES")
    if not python or not sources:
        pytest.skip("needs VLLM_PYTHON and VLLM_SOURCES")
    found = []
    for source in sources.split(os.pathsep):
        version = next(Path(source).glob("vllm-*.dist-info")).name.split("-")[1]
        found.append(RealVllm(python, source, ".".join(version.split(".")[:2])))
    return found
