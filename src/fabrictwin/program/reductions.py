"""Reduction of numbers by the functional executor: NCCL's operations on numpy's types and on bfloat16.

numpy has no bfloat16: it is held as uint16, the upper half of a float32. A result is rounded to the nearest, ties
to even, after every step, as hardware does that adds in float32 and stores 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fabrictwin.base.errors import ConfigError, did_you_mean

Array = npt.NDArray[Any]
Reduction = Callable[[Array, Array], Array]

BFLOAT16 = "bf16"
OPERATIONS: dict[str, Callable[..., Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,  # and divided at the end
}


def from_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """bfloat16 in uint16, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """float32 rounded to bfloat16, in uint16. What is not a number stays so."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def reduction(operation: str, number: str) -> Reduction:
    """Return the function that combines two arrays of a kind of number. Raises ConfigError for unknown ones."""
    if operation not in OPERATIONS:
        hint = did_you_mean(operation, OPERATIONS)
        raise ConfigError(f"got operation {operation!r}, expected one of {', '.join(OPERATIONS)}{hint}")
    combine = OPERATIONS[operation]
    if number != BFLOAT16:
        return combine

    def combine_bfloat16(a: Array, b: Array) -> Array:
        wide = combine(from_bfloat16(a.astype(np.uint16)), from_bfloat16(b.astype(np.uint16)))
        return to_bfloat16(wide.astype(np.float32))

    return combine_bfloat16


def divide(values: Array, count: int, number: str) -> Array:
    """A sum made an average: whole numbers are cut towards zero, as in C."""
    if number == BFLOAT16:
        return to_bfloat16(from_bfloat16(values.astype(np.uint16)) / np.float32(count))
    if np.issubdtype(values.dtype, np.integer):
        cut: Array = np.where(values < 0, -(-values // count), values // count).astype(values.dtype)
        return cut
    part: Array = (values / values.dtype.type(count)).astype(values.dtype)
    return part
