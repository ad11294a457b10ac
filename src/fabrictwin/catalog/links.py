"""A link of any kind, as the fabric needs it: what it carries and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
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
