"""Addresses that the two ends of a test exchange for each queue pair: its number and PSN, and its buffer's key.

As perftest draws them: a random PSN for each queue pair; one region on each host, of which each queue pair has a
piece. Random numbers are those of a seed, so that a run prints the same ones each time.
"""

from __future__ import annotations

import random

from fabrictwin.base.records import record
from fabrictwin.tools.perftest.perftest_hosts import End

FIRST_QPN = 0x88
_PSN_BITS = 24
_KEY_TAG_BITS = 8
_PAGE = 4096
_MAPPED = 0x7F0000000000  # buffers lie where a Linux process maps memory
_MAPPED_PAGES = 1 << 26


@record
class Address:
    """One end of a queue pair."""

    qpn: int
    psn: int
    rkey: int
    vaddr: int


def addresses(ends: tuple[End, End], pairs: int, *, size: int, seed: int) -> list[tuple[Address, Address]]:
    """Return the addresses of each queue pair's two ends, whose buffers hold `size` bytes each."""
    columns: list[list[Address]] = []
    for side, end in enumerate(ends):
        drawn = random.Random(f"{seed} {side} {end.host}/{end.device}")
        rkey = drawn.randrange(1 << 4, 1 << 16) << _KEY_TAG_BITS | drawn.randrange(1 << _KEY_TAG_BITS)
        buffer = _MAPPED + _PAGE * drawn.randrange(_MAPPED_PAGES)
        piece = -(-size // _PAGE) * _PAGE
        columns.append(
            [
                Address(FIRST_QPN + 2 * i + side, drawn.getrandbits(_PSN_BITS), rkey, buffer + i * piece)
                for i in range(pairs)
            ]
        )
    return list(zip(*columns, strict=True))
