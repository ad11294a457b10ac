"""What was last made of some columns, for communications of one shape that are bound one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class LastColumns:
    """Results by name, each kept while the columns that it was made from stay the same; nothing unless `keep`.

    Sizes of one collective differ in bytes alone: what rests on their edges is the same from one to the next.
    """

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._made: dict[str, tuple[tuple[np.ndarray, ...], Any]] = {}

    def of(self, name: str, columns: tuple[np.ndarray, ...], make: Callable[[], T]) -> T:
        """Return what `make` makes of the columns."""
        if not self._keep:
            return make()
        known = self._made.get(name)
        if known is None or len(known[0]) != len(columns) or not all(map(_same, known[0], columns)):
            self._made[name] = columns, make()
        found: T = self._made[name][1]
        return found


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one is other or np.array_equal(one, other)
