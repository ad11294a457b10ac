"""The receive buffer of a ConnectX port, as Linux reckons it: `calculate_xoff` and `update_xoff_threshold`.

Source: torvalds/linux, drivers/net/ethernet/mellanox/mlx5/core/en/port_buffer.c. Integer arithmetic as there: the
cable's part and the speed are cut to whole numbers before they are multiplied.
"""

from __future__ import annotations

from fabrictwin.base.records import record

SLOWEST_MBPS = 40_000
LARGEST_MTU = 9_216  # the least that XON stands below XOFF
CELL_BYTES = 128  # of most adapters; the firmware tells (SBCAM.cap_cell_size)


@record
class ReceiveBuffer:
    """Bytes of a lossless buffer: its size, and the fill at which it pauses and at which it goes on."""

    headroom_bytes: int
    size_bytes: int
    xoff_bytes: int
    xon_bytes: int


def headroom_bytes(speed_mbps: int, cable_m: int, mtu_bytes: int) -> int:
    """Return the bytes that may still come once a pause is due; `mtu_bytes` is the frame's, headers included."""
    return (301 + 216 * cable_m // 100) * max(speed_mbps, SLOWEST_MBPS) // 1000 + 272 * mtu_bytes // 100


def least_buffer(
    speed_mbps: int,
    cable_m: int,
    mtu_bytes: int,
    *,
    max_mtu_bytes: int = LARGEST_MTU,
    cell_bytes: int = CELL_BYTES,
) -> int:
    """Return the size below which the driver refuses a lossless buffer."""
    return headroom_bytes(speed_mbps, cable_m, mtu_bytes) + max(max_mtu_bytes, LARGEST_MTU) + cell_bytes


def receive_buffer(size_bytes: int, speed_mbps: int, cable_m: int, mtu_bytes: int) -> ReceiveBuffer:
    """Return the thresholds of a buffer of this size. Raises ValueError where it is too small."""
    least = least_buffer(speed_mbps, cable_m, mtu_bytes)
    if size_bytes < least:
        raise ValueError(f"got a buffer of {size_bytes} bytes, expected at least {least}")
    headroom = headroom_bytes(speed_mbps, cable_m, mtu_bytes)
    xoff = size_bytes - headroom
    return ReceiveBuffer(headroom, size_bytes, xoff, xoff - LARGEST_MTU)
