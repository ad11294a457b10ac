"""Headroom of chips of the Tomahawk class, as SONiC's static tables have it.

Source: `pg_profile_lookup.ini` of sonic-net/sonic-buildimage. No formula is published. Every value of those tables
is a whole number of cells, one for each frame of 64 bytes, which takes 84 bytes of the wire; the cable's part fits
5 ns a metre. What remains is two of the largest frames (one in the pause's way, one that the peer has begun) and a
response of some 2.18 us. The result is within 5% of each entry for 100 to 800 Gb/s and 5 to 300 m; it is an
interpretation, the tables are the reference.
"""

from __future__ import annotations

import math

LARGEST_FRAME = 9_216
WIRE_MORE = 20  # preamble and gap
SMALL_FRAME_WIRE = 84
RESPONSE_NS = 2_180
CABLE_NS_PER_M = 5
CELLS = {"tomahawk": 420, "tomahawk-4": 254, "tomahawk-5": 254}

# (Gb/s, metres): bytes; size 4,620, alpha 1
TABLE = {
    (100, 5): 229_740,
    (100, 40): 251_580,
    (100, 300): 414_120,
    (200, 5): 369_180,
    (200, 40): 412_860,
    (200, 300): 737_940,
    (400, 5): 650_160,
    (400, 40): 737_940,
    (400, 300): 1_387_680,
    (800, 5): 1_249_080,
    (800, 40): 1_424_220,
    (800, 300): 2_724_120,
}
GROUP_BYTES = 4_620


def frames(speed_gbps: int, cable_m: int) -> int:
    """Return how many small frames may come after XOFF, with the one whose cell passes the threshold."""
    in_the_way = 2 * (LARGEST_FRAME + WIRE_MORE)
    delay_ns = RESPONSE_NS + 2 * cable_m * CABLE_NS_PER_M
    return 1 + math.ceil((in_the_way + speed_gbps * delay_ns / 8) / SMALL_FRAME_WIRE)


def headroom_bytes(speed_gbps: int, cable_m: int, *, cell_bytes: int = CELLS["tomahawk"]) -> int:
    """Return the headroom of a priority group."""
    return frames(speed_gbps, cable_m) * cell_bytes
