"""Link width, link speed, rate and MTU as management attributes encode them (IBTA volume 1, 14.2.5.6 and 15.2.5).

A link has a width and a speed of its lanes. Speeds come in three sets of PortInfo fields, each as the next
generation ran out of bits: SDR to QDR, FDR to NDR, XDR. FDR10 counts as QDR there and shows in a vendor's
attribute only.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache

from fabrictwin import catalog
from fabrictwin.base.records import record

WIDTH_CODES = {1: 1, 4: 2, 8: 4, 12: 8, 2: 16}  # lanes to the bit of LinkWidth*
WIDTHS = {code: lanes for lanes, code in WIDTH_CODES.items()}
PREFERRED_WIDTHS = (4, 2, 1, 8, 12)  # a rate that two widths give is read as the first


class Speed(IntEnum):
    """Lane speeds, slowest first."""

    SDR = 0
    DDR = 1
    QDR = 2
    FDR10 = 3
    FDR = 4
    EDR = 5
    HDR = 6
    NDR = 7
    XDR = 8


FIRST_SET = {Speed.SDR: 1, Speed.DDR: 2, Speed.QDR: 4, Speed.FDR10: 4}
EXTENDED_SET = {Speed.FDR: 1, Speed.EDR: 2, Speed.HDR: 4, Speed.NDR: 8}
SECOND_EXTENDED_SET = {Speed.XDR: 1}


@record
class SpeedFields:
    """A speed, or the speeds up to it, in PortInfo's three sets of fields and in the vendor's attribute."""

    first: int
    extended: int
    extended2: int
    vendor: int


def active_fields(speed: Speed) -> SpeedFields:
    """Return the `*_active` fields of a link at `speed`; the older fields then show the fastest they know."""
    if speed in FIRST_SET:
        return SpeedFields(FIRST_SET[speed], 0, 0, 1 if speed == Speed.FDR10 else 0)
    return SpeedFields(4, EXTENDED_SET.get(speed, 0), SECOND_EXTENDED_SET.get(speed, 0), 0)


def supported_fields(fastest: Speed) -> SpeedFields:
    """Masks of all speeds up to `fastest`."""
    first = sum({code for speed, code in FIRST_SET.items() if speed <= fastest})
    extended = sum(code for speed, code in EXTENDED_SET.items() if speed <= fastest)
    extended2 = sum(code for speed, code in SECOND_EXTENDED_SET.items() if speed <= fastest)
    return SpeedFields(first, extended, extended2, 1 if fastest >= Speed.FDR10 else 0)


def fastest_common(first: int, extended: int, extended2: int, vendor: int, limit: Speed) -> Speed | None:
    """The fastest speed up to `limit` that all masks allow; None where there is none."""
    for speed in sorted(Speed, reverse=True):
        if speed > limit:
            continue
        if speed == Speed.FDR10:
            if vendor & 1:
                return speed
            continue
        allowed = first & FIRST_SET.get(speed, 0) | extended & EXTENDED_SET.get(speed, 0)
        if allowed | extended2 & SECOND_EXTENDED_SET.get(speed, 0):
            return speed
    return None


@cache
def lane_rate_bps(speed: Speed) -> int:
    """Data rate of one lane, after line code."""
    return catalog.infiniband(speed.name).rate_bps(1)


@cache
def rate_of(width: int, speed: Speed) -> int:
    """Data rate of a link in bits per second."""
    return catalog.infiniband(speed.name).rate_bps(width)


@cache
def link_of(rate_bps: int) -> tuple[int, Speed]:
    """(lanes, speed) of the link whose data rate is nearest: exact for every InfiniBand link."""
    best = min(
        ((abs(rate_of(width, speed) - rate_bps), order, -speed) for speed in Speed for order, width in _ORDERED)
    )
    return PREFERRED_WIDTHS[best[1]], Speed(-best[2])


_ORDERED = tuple(enumerate(PREFERRED_WIDTHS))


def mtu_code(mtu_bytes: int) -> int:
    """256 to 4096 bytes as 1 to 5."""
    return max(1, min(5, mtu_bytes.bit_length() - 8))


def mtu_of(code: int) -> int:
    """1 to 5 as bytes."""
    return 128 << code


# Rates of path and multicast records, in tenths of Gb/s as they are named (15.2.5.16)
RATE_CODES = {
    25: 2, 100: 3, 300: 4, 50: 5, 200: 6, 400: 7, 600: 8, 800: 9, 1200: 10, 140: 11, 560: 12, 1120: 13,
    1680: 14, 250: 15, 1000: 16, 2000: 17, 3000: 18, 280: 19, 500: 20, 4000: 21, 6000: 22, 8000: 23, 12000: 24,
}  # fmt: skip
RATES = {code: tenths for tenths, code in RATE_CODES.items()}
# codes from the slowest on by what is left after line code: 120 Gb/s of QDR are less than 100 Gb/s of EDR
RATES_ASCENDING = (2, 5, 3, 11, 6, 4, 15, 19, 7, 8, 20, 12, 9, 10, 16, 13, 14, 17, 18, 21, 22, 23, 24)
# speeds are named by signalling rate below FDR, and FDR by 14 Gb/s a lane
_NAMED_TENTHS = {
    Speed.SDR: 25, Speed.DDR: 50, Speed.QDR: 100, Speed.FDR10: 100, Speed.FDR: 140, Speed.EDR: 250,
    Speed.HDR: 500, Speed.NDR: 1000, Speed.XDR: 2000,
}  # fmt: skip


def rate_code(width: int, speed: Speed) -> int:
    """The code of a link's rate: the fastest named rate that is not faster."""
    tenths = _NAMED_TENTHS[speed] * width
    return RATE_CODES[max(named for named in RATE_CODES if named <= tenths)]


def read_speed(first: int, extended: int, extended2: int, vendor: int = 0) -> Speed:
    """The speed that `*_active` fields tell of; unknown codes are read as the fastest known of their set."""
    if extended2:
        return Speed.XDR
    if extended:
        return next((s for s, code in EXTENDED_SET.items() if code == extended), Speed.NDR)
    if vendor & 1:
        return Speed.FDR10
    return next((s for s, code in FIRST_SET.items() if code == first), Speed.SDR)
