"""Notices: traps carry them to the manager, reports from there to subscribers (IBTA volume 1, 13.4.8).

The 54 bytes of details depend on the trap's number. Traps 64 to 67 exist only in reports: the manager itself
tells of ports and multicast groups that came and went. Left out: trap 256 (M_Key violations).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fabrictwin.subnet.wire.fields import Attribute, bits, raw
from fabrictwin.subnet.wire.smp import AttributeId


class Trap(IntEnum):
    GID_IN_SERVICE = 64
    GID_OUT_OF_SERVICE = 65
    MULTICAST_GROUP_CREATED = 66
    MULTICAST_GROUP_DELETED = 67
    LINK_STATE_CHANGE = 128
    LINK_INTEGRITY = 129
    BUFFER_OVERRUN = 130
    FLOW_CONTROL_WATCHDOG = 131
    LOCAL_CHANGES = 144
    BAD_P_KEY = 257
    BAD_Q_KEY = 258
    BAD_P_KEY_AT_SWITCH = 259


class NoticeType(IntEnum):
    FATAL = 0
    URGENT = 1
    SECURITY = 2
    SUBNET_MANAGEMENT = 3
    INFORMATIONAL = 4


class Producer(IntEnum):
    CA = 1
    SWITCH = 2
    ROUTER = 3
    CLASS_MANAGER = 4


@dataclass(slots=True)
class Notice(Attribute, size=64, id=AttributeId.NOTICE):
    """A notice as subnet management carries it. Subnet administration appends the issuer's GID."""

    is_generic: int = bits(0, 1, 1)
    type: int = bits(1, 7)
    producer_type: int = bits(8, 24)
    trap_number: int = bits(32, 16)
    issuer_lid: int = bits(48, 16)
    toggle: int = bits(64, 1)
    count: int = bits(65, 15)
    details: bytes = raw(10, 54)


@dataclass(slots=True)
class NoticeReport(Notice, size=80):
    """A notice as subnet administration carries it."""

    issuer_gid: int = bits(512, 128)


@dataclass(slots=True)
class GidDetails(Attribute, size=54):
    """Traps 64 to 67: the GID that came or went."""

    gid: int = bits(48, 128)


@dataclass(slots=True)
class LinkStateDetails(Attribute, size=54):
    """Trap 128: a port of the switch with this LID changed its state."""

    lid: int = bits(0, 16)


@dataclass(slots=True)
class PortDetails(Attribute, size=54):
    """Traps 129 to 131: the LID and port that the trouble is at."""

    lid: int = bits(16, 16)
    port: int = bits(32, 8)


@dataclass(slots=True)
class LocalChangesDetails(Attribute, size=54):
    """Trap 144: capabilities, or the node's description or the link's width or speed, changed."""

    lid: int = bits(16, 16)
    other_local_changes: int = bits(47, 1)
    capability_mask: int = bits(48, 32)
    link_speed_enabled_change: int = bits(93, 1)
    link_width_enabled_change: int = bits(94, 1)
    node_description_change: int = bits(95, 1)


@dataclass(slots=True)
class BadKeyDetails(Attribute, size=54):
    """Traps 257 and 258: the key, and from where to where the packet was that had it."""

    source_lid: int = bits(16, 16)
    destination_lid: int = bits(32, 16)
    key: int = bits(48, 32)
    service_level: int = bits(80, 4)
    source_qp: int = bits(88, 24)
    destination_qp: int = bits(120, 24)
    source_gid: int = bits(144, 128)
    destination_gid: int = bits(272, 128)


@dataclass(slots=True)
class SwitchBadKeyDetails(Attribute, size=54):
    """Trap 259: the same, and the port of a switch that kept the packet out; `data_valid`: fields that hold."""

    data_valid: int = bits(0, 16)
    source_lid: int = bits(16, 16)
    destination_lid: int = bits(32, 16)
    key: int = bits(48, 16)
    service_level: int = bits(64, 4)
    source_qp: int = bits(72, 24)
    destination_qp: int = bits(104, 24)
    source_gid: int = bits(128, 128)
    destination_gid: int = bits(256, 128)
    switch_lid: int = bits(384, 16)
    port: int = bits(400, 8)


@dataclass(slots=True)
class InformInfo(Attribute, size=36, id=AttributeId.INFORM_INFO):
    """A subscription to reports."""

    gid: int = bits(0, 128)
    lid_range_begin: int = bits(128, 16)
    lid_range_end: int = bits(144, 16)
    is_generic: int = bits(176, 8)
    subscribe: int = bits(184, 8)
    type: int = bits(192, 16)
    trap_number: int = bits(208, 16)
    qpn: int = bits(224, 24)
    resp_time_value: int = bits(251, 5)
    producer_type: int = bits(264, 24)
