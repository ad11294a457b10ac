"""Records of the state: laid out for compiled code, read as attributes from Python."""

from __future__ import annotations

from typing import Any

import numpy as np

CACHE_LINE = 64


def layout(*fields: tuple[Any, ...]) -> np.dtype[Any]:
    """A record of these fields, each aligned to its own size."""
    return np.dtype(list(fields), align=True)


def records(count: int, dtype: np.dtype) -> Any:
    """Zeroed records that read as attributes, compiled or not, on cache lines that nothing else has a share of."""
    size = max(count, 1) * dtype.itemsize
    room = np.zeros(size + 2 * CACHE_LINE, np.uint8)
    skip = -room.ctypes.data % CACHE_LINE
    return room[skip : skip + size].view(dtype).view(np.recarray)


def plain_columns(count: int, dtype: Any) -> Any:
    """A zeroed array of plain values, on cache lines that nothing else has a share of."""
    return records(count, np.dtype(dtype)).view(np.ndarray)
