"""The two checksums of InfiniBand packets (InfiniBand Architecture, volume 1, 7.8).

The invariant CRC covers what no switch or router changes: fields that they may change count as ones. RoCE v2 has
it too, over IP, UDP and BTH, after eight bytes of ones in the place of the local route header (annex 17). The
variant CRC covers the packet as it is on one link; polynomial 0x100B, bits in the order of Ethernet's.
"""

from __future__ import annotations

from functools import cache
from zlib import crc32

import numpy as np
import numpy.typing as npt

_VCRC_REFLECTED = 0xD008  # 0x100B, lowest bit first
_LONGEST = 1024  # bytes, in powers of two, that the table begins with


def invariant(masked: bytes) -> bytes:
    """Return the ICRC as it stands in the packet; changeable fields of `masked` are ones."""
    return crc32(masked).to_bytes(4, "little")


@cache
def _vcrc_table(longest: int) -> npt.NDArray[np.uint16]:
    """Return what a byte adds, [bytes that follow it, byte]: the checksum is linear in its bits."""
    table = np.zeros((longest, 256), np.uint16)
    table[0] = np.arange(256)
    for _ in range(8):
        table[0] = table[0] >> 1 ^ np.where(table[0] & 1, _VCRC_REFLECTED, 0)
    for i in range(1, longest):
        table[i] = table[i - 1] >> 8 ^ table[0][table[i - 1] & 0xFF]
    return table


def variant(packet: bytes) -> bytes:
    """Return the VCRC of a packet (of two bytes or more) from its LRH to its ICRC."""
    values = np.frombuffer(packet, np.uint8).copy()
    values[:2] ^= 0xFF  # it begins with ones
    table = _vcrc_table(max(_LONGEST, 1 << len(values).bit_length()))
    following = np.arange(len(values) - 1, -1, -1)
    crc = int(np.bitwise_xor.reduce(table[following, values]))
    return (crc ^ 0xFFFF).to_bytes(2, "little")
