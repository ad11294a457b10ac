"""What subnet management sets of ports, beside forwarding tables."""

from __future__ import annotations

from fabrictwin.base.arrays import I64
from fabrictwin.base.records import record
from fabrictwin.routing.congestion_tables import CongestionTables
from fabrictwin.routing.lane_tables import LaneTables


@record
class PortSettings:
    """Settings of all ports in place of those they had, for packets on InfiniBand; None leaves a kind as it is."""

    lanes: LaneTables | None = None  # SL to VL maps and arbitration
    congestion: CongestionTables | None = None
    keys: I64 | None = None  # [E] partition keys of adapters, at index 0
