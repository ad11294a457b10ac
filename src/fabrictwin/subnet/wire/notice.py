"""Notices: traps carry them to the manager, reports from there to subscribers (IBTA volume 1, 13.4.8).

The 54 bytes of details depend on the trap's number. Traps 64 to 67 exist only in reports: the manager itself
tells of ports and multicast groups that came and went. Left out: trap 256 (M_Key violations).
"""

from __future__ import annotations

from enum import IntEnum

from fabrictwin.subnet.wire.fields import Attribute, attribute, bits, raw, row
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


@attribute
class Notice(Attribute, size=64, id=AttributeId.NOTICE):
    """A notice as subnet management carries it. Subnet administration appends the issuer's GID."""

    is_generic = bits(0, 1, 1)
    type, producer_type = row(1, 7, 24)
    trap_number, issuer_lid = row(32, 16, 16)
    toggle, count = row(64, 1, 15)
    details = raw(10, 54)


@attribute
class NoticeReport(Notice, size=80):
    """A notice as subnet administration carries it."""

    issuer_gid = bits(512, 128)


@attribute
class GidDetails(Attribute, size=54):
    """Traps 64 to 67: the GID that came or went."""

    gid = bits(48, 128)


@attribute
class LinkStateDetails(Attribute, size=54):
    """Trap 128: a port of the switch with this LID changed its state."""

    lid = bits(0, 16)


@attribute
class PortDetails(Attribute, size=54):
    """Traps 129 to 131: the LID and port that the trouble is at."""

    lid = bits(16, 16)
    port = bits(32, 8)


@attribute
class LocalChangesDetails(Attribute, size=54):
    """Trap 144: capabilities, or the node's description or the link's width or speed, changed."""

    lid = bits(16, 16)
    other_local_changes, capability_mask = row(47, 1, 32)
    link_speed_enabled_change, link_width_enabled_change, node_description_change = row(93, 1, 1, 1)


@attribute
class BadKeyDetails(Attribute, size=54):
    """Traps 257 and 258: the key, and from where to where the packet was that had it."""

    source_lid = bits(16, 16)
    destination_lid, key = row(32, 16, 32)
    service_level = bits(80, 4)
    source_qp = bits(88, 24)
    destination_qp, source_gid = row(120, 24, 128)
    destination_gid = bits(272, 128)


@attribute
class SwitchBadKeyDetails(Attribute, size=54):
    """Trap 259: the same, and the port of a switch that kept the packet out; `data_valid`: fields that hold."""

    data_valid, source_lid = row(0, 16, 16)
    destination_lid, key = row(32, 16, 16)
    service_level = bits(64, 4)
    source_qp = bits(72, 24)
    destination_qp = bits(104, 24)
    source_gid, destination_gid = row(128, 128, 128)
    switch_lid, port = row(384, 16, 8)


@attribute
class InformInfo(Attribute, size=36, id=AttributeId.INFORM_INFO):
    """A subscription to reports."""

    gid = bits(0, 128)
    lid_range_begin, lid_range_end = row(128, 16, 16)
    is_generic, subscribe = row(176, 8, 8)
    type, trap_number = row(192, 16, 16)
    qpn = bits(224, 24)
    resp_time_value = bits(251, 5)
    producer_type = bits(264, 24)
