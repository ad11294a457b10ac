"""The headroom that SONiC reckons on Spectrum switches.

Source: sonic-net/sonic-swss, cfgmgr/buffer_headroom_mellanox.lua (commit e6b0c5b5d), and the chips' figures of
sonic-net/sonic-buildimage, platform/mellanox/asic_table.j2. Numbers are floating point as there, in the same
order, so that results agree to the byte.
"""

from __future__ import annotations

import math

from fabrictwin.base.records import record

PAUSE_QUANTA = {  # by Mb/s: what a peer may take to obey (IEEE 802.3 31B.3.7), in quanta of 512 bit times
    800_000: 905,
    400_000: 905,
    200_000: 453,
    100_000: 394,
    50_000: 147,
    40_000: 118,
    25_000: 80,
    10_000: 67,
    1_000: 2,
    100: 1,
}
LIGHT_M_PER_S = 198_000_000
SMALLEST_PACKET = 64
KB = 1024
SPECTRUM6_MORE = 18 * KB
LESS_THAN_WORST = 2 * KB


@record
class Chip:
    """A generation of Spectrum: cells, and delays as the script counts them (in kilobytes)."""

    generation: int
    cell_bytes: int
    pipeline_kb: float
    mac_phy_kb: float = 0.8
    peer_response_kb: float = 3.8  # for a speed that has no quanta


CHIPS = {
    "spectrum-1": Chip(1, 96, 19),
    "spectrum-2": Chip(2, 144, 19),
    "spectrum-3": Chip(3, 144, 19),
    "spectrum-4": Chip(4, 192, 19),
    "spectrum-5": Chip(5, 192, 19),
    "spectrum-6": Chip(6, 256, 42),
}


@record
class Traffic:
    """The traffic that a link is reckoned with, and what stands in its way."""

    lossless_mtu_bytes: int = 1024  # LOSSLESS_TRAFFIC_PATTERN of SONiC's template
    small_packet_percent: int = 100
    port_mtu_bytes: int = 9100
    gearbox_ns: int = 0


@record
class Headroom:
    """Bytes: what may come after XOFF, XON's part, and what a priority group reserves."""

    xoff_bytes: int
    xon_bytes: int
    size_bytes: int


def worst_case_factor(cell_bytes: int) -> int:
    """Return how many times its bytes a packet may take of the buffer, since it takes whole cells."""
    if cell_bytes > 2 * SMALLEST_PACKET:
        return math.ceil(cell_bytes / SMALLEST_PACKET)
    return math.ceil((2 * cell_bytes) / (1 + cell_bytes))


def _rounded(value: float) -> int:
    return math.ceil(value / KB) * KB


def delay_bytes(chip: Chip, speed_mbps: int, cable_m: int, traffic: Traffic = Traffic()) -> float:
    """Return what arrives while the pause finds its way and is obeyed, in bytes of the line."""
    gearbox = speed_mbps * traffic.gearbox_ns / (8 * KB)
    quanta = PAUSE_QUANTA.get(speed_mbps)
    response = chip.peer_response_kb * KB if quanta is None else quanta * 512 / 8
    cable = 2 * cable_m * speed_mbps * 1_000_000_000 / LIGHT_M_PER_S / (8 * 1000)
    tile = speed_mbps / 1000 * 120 / 8 if chip.generation in (4, 5) else 0
    return traffic.port_mtu_bytes + cable + 2 * gearbox + chip.mac_phy_kb * KB + response + tile


def headroom(
    chip: Chip,
    speed_mbps: int,
    cable_m: int,
    traffic: Traffic = Traffic(),
    *,
    eight_lanes: bool = False,
    shared_pool: bool = False,
) -> Headroom:
    """Return the headroom of a priority group; with a `shared_pool` its own size is XON's part alone."""
    delay = delay_bytes(chip, speed_mbps, cable_m, traffic)
    worst, percent, mtu = (
        worst_case_factor(chip.cell_bytes),
        traffic.small_packet_percent,
        traffic.lossless_mtu_bytes,
    )
    by_byte = 100 * SMALLEST_PACKET / ((percent * SMALLEST_PACKET + (100 - percent) * mtu) / 100)
    occupancy = (100 - by_byte + by_byte * worst) / 100
    xoff = _rounded(mtu + delay * occupancy)
    if chip.generation == 6:
        xoff += SPECTRUM6_MORE
    if not shared_pool and percent != 100 and xoff + LESS_THAN_WORST < _rounded(mtu + delay * worst):
        xoff += LESS_THAN_WORST
    pipeline = chip.pipeline_kb * KB * (2 if eight_lanes else 1)
    xon = _rounded(pipeline)
    size = xon if shared_pool else xoff + xon + (traffic.port_mtu_bytes if eight_lanes else 0)
    return Headroom(xoff, xon, _rounded(size))
