"""Partition keys as adapters hold them, and who may talk to whom by them (InfiniBand Architecture 10.9)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fabrictwin.base.arrays import I32, I64
from fabrictwin.base.records import record

FULL = 0x8000  # the membership bit
KEY = 0x7FFF


@record
class KeyViolations:
    """Queue pairs [n] whose packets partition keys kept out."""

    queue_pair: I64
    source: I64  # adapters
    destination: I64
    level: I64  # service level
    packets: I64  # so far
    first_ps: I64  # when the first one came since their keys do not match


def may_talk(keys: I64, source: I32, destination: I32) -> npt.NDArray[np.bool_]:
    """[n] whether adapters with these keys [E] reach each other: one partition, and not both limited members.

    A key of 0 is none. `keys` are those at index 0 of each adapter's table, which queue pairs use.
    """
    a, b = keys[source], keys[destination]
    found: npt.NDArray[np.bool_] = ((a & KEY) == (b & KEY)) & ((a & KEY) != 0) & (((a | b) & FULL) != 0)
    return found
