"""What a manager has set for congestion control at a switch or at an adapter's port, and what was logged there."""

from __future__ import annotations

from dataclasses import dataclass, field

from fabrictwin.base.records import record
from fabrictwin.subnet.wire import congestion as cc
from fabrictwin.subnet.wire.fields import Attribute

MOST_LOGGED = 15  # events that a switch's log holds; an adapter's holds 13


@record
class CongestionEvent:
    """A switch's lane that became congested by a packet, or an adapter's index that reached its threshold."""

    time_ps: int
    source_lid: int
    destination_lid: int
    level: int
    port: int = 0  # of the switch
    queue_pair: int = 0
    service: int = 0  # 0 RC, 1 UC, 3 UD


@dataclass
class CongestionPort:
    """State of one agent of the congestion control class."""

    key: cc.CongestionKeyInfo = field(default_factory=cc.CongestionKeyInfo)
    lease_ends_ps: int | None = None
    settings: dict[tuple[int, int], Attribute] = field(default_factory=dict)  # by attribute and block
    in_force: cc.SwitchCongestionSetting = field(default_factory=cc.SwitchCongestionSetting)  # parts set so far
    events: list[CongestionEvent] = field(default_factory=list)  # the latest
    counted: int = 0  # since the log was last cleared

    def log(self, event: CongestionEvent) -> None:
        """Note an event; the oldest gives way."""
        self.events = [*self.events[1 - MOST_LOGGED :], event]
        self.counted = min(self.counted + 1, 0xFFFF)
