"""What a switch's model is called by its operating system, which chip is in it, and its headroom.

The boxes are those of sonic-net/sonic-buildimage's `platform/mellanox` and `device/` folders.
"""

from __future__ import annotations

from fabrictwin.base.records import record
from fabrictwin.configuration.headroom import broadcom, spectrum
from fabrictwin.configuration.headroom.spectrum import Headroom, Traffic

CELL_BYTES = {**{name: chip.cell_bytes for name, chip in spectrum.CHIPS.items()}, **broadcom.CELLS}


@record
class Box:
    """A box as SONiC names it."""

    chip: str
    platform: str
    sku: str


BOXES = {
    "sn2700": Box("spectrum-1", "x86_64-mlnx_msn2700-r0", "ACS-MSN2700"),
    "spectrum-4": Box("spectrum-4", "x86_64-nvidia_sn5600-r0", "Mellanox-SN5600-V256"),
}
_OF_CHIP = {
    "spectrum-2": Box("spectrum-2", "x86_64-mlnx_msn3700-r0", "ACS-MSN3700"),
    "spectrum-3": Box("spectrum-3", "x86_64-mlnx_msn4700-r0", "ACS-MSN4700"),
    "spectrum-5": Box("spectrum-5", "x86_64-nvidia_sn5640-r0", "Mellanox-SN5640-C512S2"),
    "spectrum-6": Box("spectrum-6", "x86_64-nvidia_sn6600_simx-r0", "Mellanox-SN6600"),
    "tomahawk": Box("tomahawk", "x86_64-arista_7060x6_64pe", "Arista-7060X6-64PE"),
    "tomahawk-4": Box("tomahawk-4", "x86_64-dellemc_z9664f_c3006-r0", "DELLEMC-Z9664f-O64"),
    "tomahawk-5": Box("tomahawk-5", "x86_64-dellemc_z9864f_c3758-r0", "DELLEMC-Z9864F-O128"),
}
for box in BOXES.values():
    _OF_CHIP.setdefault(box.chip, box)

CHIPS = tuple(sorted(_OF_CHIP))
_CHIP_OF_PLATFORM = {box.platform: box.chip for box in _OF_CHIP.values()}
BUFFER_OF_BOX = {box.platform: model for model, box in BOXES.items()}


def box_of(model: str, chip: str | None) -> Box | None:
    """Return the box of a catalog switch, or the usual one of a chip; None where neither is known."""
    if chip is not None:
        return _OF_CHIP[chip]
    return BOXES.get(model) or _OF_CHIP.get(model)


def chip_of_platform(platform: str) -> str:
    """Return the chip of a SONiC platform, '' where it is not known."""
    return _CHIP_OF_PLATFORM.get(platform, "")


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
