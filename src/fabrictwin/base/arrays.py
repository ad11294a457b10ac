"""Types of arrays by their elements, places of numbers in them, starts of runs, and digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

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


def distinct(numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Return the numbers in ascending order, each once, without the masked arrays that `numpy.unique` imports."""
    ordered = np.sort(numbers, axis=None)
    found: npt.NDArray[np.integer] = ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]
    return found


def starts_of(counts: npt.ArrayLike) -> I64:
    """Return where runs of so many elements start, one after the other, and where the last ends: [runs + 1]."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def within_runs(counts: npt.NDArray[np.integer]) -> I64:
    """Return each element's place in its run, of runs of so many elements: 0 .. counts[i] - 1 for every i."""
    return ranges(np.zeros(len(counts), np.int64), counts)


def ranges(start: npt.NDArray[np.integer], count: npt.NDArray[np.integer]) -> I64:
    """Return `start[i] .. start[i] + count[i]` for every i, one after the other."""
    before = starts_of(count)
    expanded: I64 = np.arange(before[-1]) + np.repeat(start - before[:-1], count)
    return expanded


def digest_of(columns: Iterable[npt.NDArray[np.generic]]) -> bytes:
    """Return a digest of the columns' lengths and elements: 16 bytes, equal where all of them are."""
    digest = hashlib.blake2b(digest_size=16)
    for column in columns:
        digest.update(len(column).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(column).data)
    return digest.digest()
