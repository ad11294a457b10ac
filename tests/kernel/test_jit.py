"""How compiled functions are put together: state by reference, parts within entries, one form for all widths."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba import config

from fabrictwin.kernel.jit.by_reference import by_reference
from fabrictwin.kernel.jit.decorators import helper, hot_entry, outlined

pytestmark = pytest.mark.skipif(bool(config.DISABLE_JIT), reason="nothing is compiled")


@by_reference
class Shelf(NamedTuple):
    """Two arrays."""

    line: Any
    plane: Any


@helper
def doubled(shelf, at, factor):
    """Refuses one index, so that an error has a part to come out of."""
    if at == 7:
        raise ValueError("seven")
    return shelf.line[at] * factor


@outlined
def across(shelf, at):
    """Calls its part with constants and with another width."""
    return doubled(shelf, at, 2) + doubled(shelf, np.int32(at), 3) + len(shelf.line) + shelf.plane[1, 2]


@hot_entry
def look(shelf, at):
    """Compiled code writes into the caller's arrays."""
    shelf.plane[0, 0] = shelf.plane.size
    return across(shelf, at)


def test_arrays_behind_a_reference_are_the_callers_own():
    shelf = Shelf(np.arange(5), np.arange(6).reshape(2, 3))
    assert look(shelf, 3) == 2 * 3 + 3 * 3 + 5 + 5
    assert shelf.plane[0, 0] == 6
    longer = shelf._replace(line=np.arange(9))
    assert look(longer, 8) == 5 * 8 + 9 + 5
    with pytest.raises(ValueError, match="seven"):
        look(shelf, 7)


def test_a_part_is_compiled_once_for_all_widths_and_constants():
    @helper
    def shifted(value, by):
        return value << by

    @numba.njit
    def several(value):
        return shifted(value, 1) + shifted(np.int32(value), 2) + shifted(3, np.int8(value))

    assert several(2) == (2 << 1) + (2 << 2) + (3 << 2)
    assert len(shifted.overloads) == 1


def test_only_whole_arrays_go_by_reference():
    with pytest.raises(TypeError, match=r"Shelf\.line: expected an array in C order"):
        look(Shelf(np.arange(10)[::2], np.arange(6).reshape(2, 3)), 3)
