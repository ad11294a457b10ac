"""What runs between boxes: InfiniBand and Ethernet speeds, error correction, headers, cables."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fabrictwin.base.units import PS_PER_S, Duration, Length, Rate, Size, format_rate, format_time
from fabrictwin.catalog.figures import Entry, Figure, Model
from fabrictwin.catalog.quantities import Bits, Count, LaneRate, Ratio, Year

_LIGHT_MM_PER_S = 299_792_458_000


class Fec(Model):
    """Forward error correction: a code word is collected, then decoded."""

    codeword: Figure[Bits]
    decode: Figure[Duration]

    def latency_ps(self, line_rate_bps: int) -> int:
        """Time a receiver adds at a line rate, in picoseconds."""
        return self.decode.value + -(-self.codeword.value * PS_PER_S // line_rate_bps)


class Infiniband(Entry):
    """An InfiniBand speed: one lane.

    `year` is that of the first products where a source has it, `adapters` published latencies of adapters of that
    speed by their names: what makers and users said, not what the twin reckons with.
    """

    lane_rate: Figure[LaneRate]
    line_code: Figure[Ratio]
    widths: tuple[Literal[1, 2, 4, 8, 12], ...] = (1, 2, 4, 8, 12)
    year: Figure[Year] | None = None
    adapters: dict[str, Figure[Duration]] = Field(default_factory=dict)
    fec: Fec | None = None

    def rate_bps(self, width: int = 4) -> int:
        """Data rate of `width` lanes in each direction, in bits per second."""
        return round(self.lane_rate.value * self.line_code.value * width)

    def fec_latency_ps(self, width: int = 4) -> int:
        return 0 if self.fec is None else self.fec.latency_ps(self.lane_rate.value * width)

    def computed(self) -> dict[str, str]:
        rates = {f"data rate of {w}x": format_rate(self.rate_bps(w)) for w in self.widths}
        return rates if self.fec is None else rates | {"FEC at 4x": format_time(self.fec_latency_ps(4))}


class Ethernet(Entry):
    """An Ethernet speed."""

    lanes: Figure[Count]
    lane_rate: Figure[LaneRate]
    line_code: Figure[Ratio]
    fec: Fec

    @property
    def rate_bps(self) -> int:
        """Data rate in each direction, in bits per second."""
        return round(self.lane_rate.value * self.line_code.value * self.lanes.value)

    @property
    def fec_latency_ps(self) -> int:
        return self.fec.latency_ps(self.lane_rate.value * self.lanes.value)

    def computed(self) -> dict[str, str]:
        return {"data rate": format_rate(self.rate_bps), "FEC": format_time(self.fec_latency_ps)}


class Headers(Entry):
    """Bytes that a technology puts around a packet's payload, by field."""

    fields: dict[str, Figure[Size]]

    def bytes_of(self, *fields: str) -> int:
        """The sum of the named fields. Raises KeyError."""
        return sum(self.fields[field].value for field in fields)


class Reach(Model):
    """The longest run of a medium at rates up to one."""

    rate: Figure[Rate]
    length: Figure[Length]


class Medium(Entry):
    """A cable. Reaches go from the slowest to the fastest rate; the last is the fastest that there is."""

    velocity_factor: Figure[Ratio]
    end_latency: Figure[Duration]
    reaches: tuple[Reach, ...]

    def reach_mm(self, rate_bps: int) -> int:
        """The longest run at a rate, in millimetres; 0 where the medium cannot carry it."""
        return next((r.length.value for r in self.reaches if rate_bps <= r.rate.value), 0)

    def latency_ps(self, length_mm: int) -> int:
        """Propagation and both ends, in picoseconds."""
        flight = length_mm * PS_PER_S / (_LIGHT_MM_PER_S * self.velocity_factor.value)
        return round(flight) + 2 * self.end_latency.value
