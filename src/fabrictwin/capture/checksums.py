"""The two checksums of InfiniBand packets (InfiniBand Architecture, volume 1, 7.8).

The invariant CRC covers what no switch or router changes: fields that they may change count as ones. RoCE v2 has
it too, over IP, UDP and BTH, after eight bytes of ones in the place of the local route header (annex 17). The
variant CRC covers the packet as it is on one link; polynomial 0x100B, bits in the order of Ethernet's.
"""

from __future__ import annotations

from functools import cache
from zlib import crc32

_VCRC_REFLECTED = 0xD008  # 0x100B, lowest bit first


def invariant(masked: bytes) -> bytes:
    """The ICRC as it stands in the packet; changeable fields of `masked` are ones."""
    return crc32(masked).to_bytes(4, "little")


@cache
def _vcrc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_VCRC_REFLECTED if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def variant(packet: bytes) -> bytes:
    """The VCRC of a packet from its LRH to its ICRC."""
    table, crc = _vcrc_table(), 0xFFFF
    for byte in packet:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return (crc ^ 0xFFFF).to_bytes(2, "little")
