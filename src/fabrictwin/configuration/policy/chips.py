"""What a switch's model is called by its operating system, which chip is in it, and its headroom.

The boxes, their cages and the names of their port layouts are those of sonic-net/sonic-buildimage's `device/`
folders (`port_config.ini`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fabrictwin.base.records import record
from fabrictwin.configuration.headroom import broadcom, spectrum
from fabrictwin.configuration.headroom.spectrum import Headroom, Traffic

CELL_BYTES = {**{name: chip.cell_bytes for name, chip in spectrum.CHIPS.items()}, **broadcom.CELLS}


@record
class Box:
    """A box as SONiC names it: `layouts` are names of its port layouts by how many lanes a port has."""

    chip: str
    platform: str
    layouts: Mapping[int, str]
    lane_gbps: int = 100
    cage_lanes: int = 8
    cages: int = 64

    def sku(self, lanes: int) -> str:
        """Return the layout whose ports have so many lanes, the usual one where none has."""
        return self.layouts.get(lanes) or next(iter(self.layouts.values()))

    def lanes(self, speed_bps: int) -> int:
        """Return how many lanes a port of this rate has."""
        return max(1, speed_bps // (self.lane_gbps * 10**9))

    def cage(self, number: int, lanes: int) -> int:
        """Return the cage, from 1, of a port's number, from 1, where all ports have so many lanes."""
        return (number - 1) // max(1, self.cage_lanes // max(lanes, 1)) + 1


_SN5600 = {
    4: "Mellanox-SN5600-O128",
    8: "ACS-SN5600",
    2: "Mellanox-SN5600-V256",
    1: "Mellanox-SN5600-C256S1",
}
_SN4700 = {8: "ACS-MSN4700", 4: "Mellanox-SN4700-V64", 2: "Mellanox-SN4700-C128"}
_SN5640 = {4: "Mellanox-SN5640-O128X2", 1: "Mellanox-SN5640-C512S2"}
_7060X6 = {8: "Arista-7060X6-64PE", 4: "Arista-7060X6-64PE-O128", 2: "Arista-7060X6-64PE-256x200G"}
BOXES = {
    "sn2700": Box(
        "spectrum-1", "x86_64-mlnx_msn2700-r0", {4: "ACS-MSN2700"}, lane_gbps=25, cage_lanes=4, cages=32
    ),
    "spectrum-4": Box("spectrum-4", "x86_64-nvidia_sn5600-r0", _SN5600),
}
_OF_CHIP = {
    "spectrum-2": Box(
        "spectrum-2", "x86_64-mlnx_msn3700-r0", {4: "ACS-MSN3700"}, lane_gbps=50, cage_lanes=4, cages=32
    ),
    "spectrum-3": Box("spectrum-3", "x86_64-mlnx_msn4700-r0", _SN4700, lane_gbps=50, cages=32),
    "spectrum-5": Box("spectrum-5", "x86_64-nvidia_sn5640-r0", _SN5640),
    "spectrum-6": Box("spectrum-6", "x86_64-nvidia_sn6600_simx-r0", {4: "ACS-SN6600"}),
    "tomahawk": Box("tomahawk", "x86_64-arista_7060x6_64pe", _7060X6),
    "tomahawk-4": Box("tomahawk-4", "x86_64-dell_z9664f-r0", {4: "DellEMC-Z9664f-O64"}, cage_lanes=4),
    "tomahawk-5": Box("tomahawk-5", "x86_64-dell_z9864f-r0", {8: "Dell-Z9864f-O64"}),
}
for box in BOXES.values():
    _OF_CHIP.setdefault(box.chip, box)

CHIPS = tuple(sorted(_OF_CHIP))
BOX_OF_PLATFORM = {box.platform: box for box in _OF_CHIP.values()}
_NVIDIA = re.compile(r"x86_64-(?:mlnx|nvidia)_(?:ms|lss|s)n(\d)(\d)(\d)")  # of sn5600: thousands name the chip
BUFFER_OF_BOX = {box.platform: model for model, box in BOXES.items()}


def box_of(model: str, chip: str | None) -> Box | None:
    """Return the box of a catalog switch, or the usual one of a chip; None where neither is known."""
    if chip is not None:
        return _OF_CHIP[chip]
    return BOXES.get(model) or _OF_CHIP.get(model)


def chip_of_platform(platform: str) -> str:
    """Return the chip of a SONiC platform, '' where it is not known."""
    box = BOX_OF_PLATFORM.get(platform)
    if box is not None:
        return box.chip
    model = _NVIDIA.match(platform)
    if model is None:
        return ""
    number = int(model[1]) - (0 if model[0].endswith("564") or model[1] == "6" else 1)
    found = f"spectrum-{number}"
    return found if found in spectrum.CHIPS else ""


def headroom_of(
    chip: str, speed_bps: int, cable_m: int, traffic: Traffic, *, lanes: int, shared_pool: bool = False
) -> Headroom | None:
    """Return a priority group's headroom on a chip; None for one without a formula here."""
    if chip in spectrum.CHIPS:
        return spectrum.headroom(
            spectrum.CHIPS[chip],
            speed_bps // 10**6,
            cable_m,
            traffic,
            eight_lanes=lanes == 8,
            shared_pool=shared_pool,
        )
    if chip in broadcom.CELLS:
        xoff = broadcom.headroom_bytes(speed_bps // 10**9, cable_m, cell_bytes=broadcom.CELLS[chip])
        return Headroom(xoff, 0, broadcom.GROUP_BYTES)
    return None
