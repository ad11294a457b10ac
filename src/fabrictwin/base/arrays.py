"""Types of arrays by their elements, and where numbers stand in them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fabrictwin.kernel.codes import NONE

Bool = npt.NDArray[np.bool_]
I8 = npt.NDArray[np.int8]
I16 = npt.NDArray[np.int16]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]


def place_of(numbers: npt.NDArray[np.integer], count: int) -> I32:
    """Return for each of `count` numbers its place in `numbers`, where each stands once at most; else NONE."""
    place = np.full(count, NONE, np.int32)
    place[numbers] = np.arange(len(numbers), dtype=np.int32)
    return place
