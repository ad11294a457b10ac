"""Nested sections of data: one laid over another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def laid_over(under: Any, over: Any) -> Any:
    """Return `over` on top of `under`: what is a mapping in both is joined, all else, lists too, is replaced."""
    if not isinstance(over, Mapping):
        return over
    result = dict(under) if isinstance(under, dict) else {}
    for key, value in over.items():
        result[key] = laid_over(result.get(key), value)
    return result
