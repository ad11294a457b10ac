"""Congestion control attributes (IBTA volume 1, annex A10) as the sources of OpenSM and infiniband-diags
have them.

Data begins at byte 64 of a datagram, that of the log at byte 32. A rate of the control table is a multiplier of 14
bits and a shift of 2. Timestamps count 1.024 us.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fabrictwin.subnet.wire.fields import Attribute, array, bits, raw

DATA = slice(64, 256)
LOG_DATA = slice(32, 256)
PORTS_A_BLOCK = 48  # of SwitchPortCongestionSetting, one element each
ENTRIES_A_BLOCK = 64  # of CongestionControlTable
TICK_PS = 1_024_000  # of a timestamp


class CongestionId(IntEnum):
    CLASS_PORT_INFO = 0x01
    CONGESTION_INFO = 0x11
    CONGESTION_KEY_INFO = 0x12
    CONGESTION_LOG = 0x13
    SWITCH_CONGESTION_SETTING = 0x14
    SWITCH_PORT_CONGESTION_SETTING = 0x15
    CA_CONGESTION_SETTING = 0x16
    CONGESTION_CONTROL_TABLE = 0x17
    TIMESTAMP = 0x18


class LogType(IntEnum):
    SWITCH = 1
    CA = 2


@dataclass(slots=True)
class CongestionInfo(Attribute, size=4, id=CongestionId.CONGESTION_INFO):
    congestion_info: int = bits(0, 16)
    control_table_cap: int = bits(16, 8)  # blocks of the control table


@dataclass(slots=True)
class CongestionKeyInfo(Attribute, size=16, id=CongestionId.CONGESTION_KEY_INFO):
    cc_key: int = bits(0, 64)
    protect_bit: int = bits(64, 1)
    lease_period_s: int = bits(80, 16)
    violations: int = bits(96, 16)


@dataclass(slots=True)
class CongestionLogSwitch(Attribute, size=224, id=CongestionId.CONGESTION_LOG):
    log_type: int = bits(0, 8, LogType.SWITCH)
    congestion_flags: int = bits(8, 8)
    log_events_counter: int = bits(16, 16)
    current_timestamp: int = bits(32, 32)
    port_map: bytes = raw(8, 32)
    entries: bytes = raw(40, 180)


@dataclass(slots=True)
class CongestionLogCa(Attribute, size=224, id=CongestionId.CONGESTION_LOG):
    log_type: int = bits(0, 8, LogType.CA)
    congestion_flags: int = bits(8, 8)
    threshold_event_counter: int = bits(16, 16)
    threshold_congestion_event_map: int = bits(32, 16)
    current_timestamp: int = bits(64, 32)
    entries: bytes = raw(12, 208)


@dataclass(slots=True)
class SwitchEvent(Attribute, size=12):
    """An entry of a switch's log."""

    slid: int = bits(0, 16)
    dlid: int = bits(16, 16)
    sl: int = bits(32, 4)
    timestamp: int = bits(64, 32)


@dataclass(slots=True)
class AdapterEvent(Attribute, size=16):
    """An entry of an adapter's log."""

    local_qp: int = bits(0, 24)
    remote_qp: int = bits(32, 24)
    sl: int = bits(56, 4)
    service_type: int = bits(60, 4)
    remote_lid: int = bits(64, 16)
    timestamp: int = bits(96, 32)


@dataclass(slots=True)
class SwitchCongestionSetting(Attribute, size=76, id=CongestionId.SWITCH_CONGESTION_SETTING):
    control_map: int = bits(0, 32)
    victim_mask: bytes = raw(4, 32)
    credit_mask: bytes = raw(36, 32)
    threshold: int = bits(544, 4)
    packet_size: int = bits(552, 8)
    cs_threshold: int = bits(560, 4)
    cs_return_delay: int = bits(576, 16)
    marking_rate: int = bits(592, 16)


@dataclass(slots=True)
class SwitchPortCongestionSetting(Attribute, size=192, id=CongestionId.SWITCH_PORT_CONGESTION_SETTING):
    valid: tuple[int, ...] = array(0, 1, count=PORTS_A_BLOCK, stride=32)
    control_type: tuple[int, ...] = array(1, 1, count=PORTS_A_BLOCK, stride=32)
    threshold: tuple[int, ...] = array(4, 4, count=PORTS_A_BLOCK, stride=32)
    packet_size: tuple[int, ...] = array(8, 8, count=PORTS_A_BLOCK, stride=32)
    cong_parm_marking_rate: tuple[int, ...] = array(16, 16, count=PORTS_A_BLOCK, stride=32)


@dataclass(slots=True)
class CaCongestionSetting(Attribute, size=132, id=CongestionId.CA_CONGESTION_SETTING):
    """Entries are by service level."""

    port_control: int = bits(0, 16)
    control_map: int = bits(16, 16)
    ccti_timer: tuple[int, ...] = array(32, 16, count=16, stride=64)
    ccti_increase: tuple[int, ...] = array(48, 8, count=16, stride=64)
    trigger_threshold: tuple[int, ...] = array(56, 8, count=16, stride=64)
    ccti_min: tuple[int, ...] = array(64, 8, count=16, stride=64)


@dataclass(slots=True)
class CongestionControlTable(Attribute, size=132, id=CongestionId.CONGESTION_CONTROL_TABLE):
    ccti_limit: int = bits(0, 16)
    shift: tuple[int, ...] = array(32, 2, count=ENTRIES_A_BLOCK, stride=16)
    multiplier: tuple[int, ...] = array(34, 14, count=ENTRIES_A_BLOCK, stride=16)


@dataclass(slots=True)
class Timestamp(Attribute, size=4, id=CongestionId.TIMESTAMP):
    timestamp: int = bits(0, 32)
