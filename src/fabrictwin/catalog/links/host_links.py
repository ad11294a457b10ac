"""Links inside a host: NVLink, PCI Express, what joins processors; any of them as the fabric needs it."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from fabrictwin.base.records import record
from fabrictwin.base.units import Duration, Rate, Size, format_rate
from fabrictwin.catalog.figures import Entry, Figure
from fabrictwin.catalog.quantities import Count, LaneRate, Ratio


@record(kw_only=True)
class LinkType:
    """One link inside a host. Rates are bits per second in each direction, independently.

    `rate_bps` is the data rate after line code. `payload_rate_bps` is what the payload of a bulk,
    kernel-driven transfer gets of it. Where the link is packetised in a known way, `payload_bytes` is the
    largest payload of a packet and `overhead_bytes` what the packet adds; otherwise both are 0.
    `latency_ps` is the link alone, without the chips at its ends.
    """

    name: str
    kind: Literal["nvlink", "pcie", "cpu"]
    rate_bps: int
    payload_rate_bps: int
    latency_ps: int
    payload_bytes: int = 0
    overhead_bytes: int = 0


class Nvlink(Entry):
    """A generation of NVLink: one link, each direction."""

    lane_rate: Figure[LaneRate]
    lanes: Figure[Count]
    links_per_gpu: Figure[Count]
    kernel_rate: Figure[Rate]
    copy_rate_all_links: Figure[Rate]
    latency: Figure[Duration]

    @property
    def rate_bps(self) -> int:
        """Data rate of one link in each direction; NVLink figures are quoted after line code."""
        return self.lane_rate.value * self.lanes.value

    @property
    def copy_rate_bps(self) -> int:
        """Rate that one link gives a copy engine, in bit/s, from the measured rate of a pair of GPUs."""
        return self.copy_rate_all_links.value // self.links_per_gpu.value

    def computed(self) -> dict[str, str]:
        return {
            "data rate of a link": format_rate(self.rate_bps),
            "data rate of a GPU": format_rate(self.rate_bps * self.links_per_gpu.value),
            "copy engines, of a link": format_rate(self.copy_rate_bps),
        }

    def link_type(self) -> LinkType:
        return LinkType(
            name=self.name,
            kind="nvlink",
            rate_bps=self.rate_bps,
            payload_rate_bps=self.kernel_rate.value,
            latency_ps=self.latency.value,
        )


class Pcie(Entry):
    """A generation of PCI Express: one lane, and how transactions are packed.

    `reckoned_rate` is what NCCL counts a lane as when it looks for channels.
    """

    lane_rate: Figure[LaneRate]
    reckoned_rate: Figure[Rate]
    line_code: Figure[Ratio]
    link_layer_share: Figure[Ratio]
    max_payload: Figure[Size]
    packet_overhead: Figure[Size]
    latency: Figure[Duration]

    def rate_bps(self, lanes: int) -> int:
        """Data rate of a link in each direction, after line code."""
        return round(self.lane_rate.value * self.line_code.value * lanes)

    def payload_rate_bps(self, lanes: int) -> int:
        """Payload rate of full-sized writes in bit/s: less link-layer traffic, headers and framing."""
        payload = self.max_payload.value
        share = self.link_layer_share.value * Fraction(payload, payload + self.packet_overhead.value)
        return round(self.lane_rate.value * self.line_code.value * lanes * share)

    def computed(self) -> dict[str, str]:
        return {
            "data rate of x16": format_rate(self.rate_bps(16)),
            "payload rate of x16": format_rate(self.payload_rate_bps(16)),
        }

    def link_type(self, lanes: int) -> LinkType:
        return LinkType(
            name=f"pcie-{self.name}-x{lanes}",
            kind="pcie",
            rate_bps=self.rate_bps(lanes),
            payload_rate_bps=self.payload_rate_bps(lanes),
            latency_ps=self.latency.value,
            payload_bytes=self.max_payload.value,
            overhead_bytes=self.packet_overhead.value,
        )


class CpuLink(Entry):
    """What joins the processors of a host.

    `pcie_rate` is what NCCL reckons of the PCI Express link that a GPU shows beside it.
    """

    rate: Figure[Rate]
    payload_rate: Figure[Rate]
    latency: Figure[Duration]
    pcie_rate: Figure[Rate] | None = None

    def link_type(self) -> LinkType:
        return LinkType(
            name=self.name,
            kind="cpu",
            rate_bps=self.rate.value,
            payload_rate_bps=self.payload_rate.value,
            latency_ps=self.latency.value,
        )
