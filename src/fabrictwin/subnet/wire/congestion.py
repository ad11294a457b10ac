"""Congestion control attributes (IBTA volume 1, annex A10) as the sources of OpenSM and infiniband-diags
have them.

Data begins at byte 64 of a datagram, that of the log at byte 32. A rate of the control table is a multiplier of 14
bits and a shift of 2. Timestamps count 1.024 us.
"""

from __future__ import annotations

from enum import IntEnum

from fabrictwin.subnet.wire.fields import Attribute, array, attribute, bits, raw, row

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


@attribute
class CongestionInfo(Attribute, size=4, id=CongestionId.CONGESTION_INFO):
    congestion_info = bits(0, 16)
    control_table_cap = bits(16, 8)  # blocks of the control table


@attribute
class CongestionKeyInfo(Attribute, size=16, id=CongestionId.CONGESTION_KEY_INFO):
    cc_key = bits(0, 64)
    protect_bit = bits(64, 1)
    lease_period_s = bits(80, 16)
    violations = bits(96, 16)


@attribute
class CongestionLogSwitch(Attribute, size=224, id=CongestionId.CONGESTION_LOG):
    log_type = bits(0, 8, LogType.SWITCH)
    congestion_flags, log_events_counter = row(8, 8, 16)
    current_timestamp = bits(32, 32)
    port_map = raw(8, 32)
    entries = raw(40, 180)


@attribute
class CongestionLogCa(Attribute, size=224, id=CongestionId.CONGESTION_LOG):
    log_type = bits(0, 8, LogType.CA)
    congestion_flags, threshold_event_counter = row(8, 8, 16)
    threshold_congestion_event_map = bits(32, 16)
    current_timestamp = bits(64, 32)
    entries = raw(12, 208)


@attribute
class SwitchEvent(Attribute, size=12):
    """An entry of a switch's log."""

    slid, dlid = row(0, 16, 16)
    sl = bits(32, 4)
    timestamp = bits(64, 32)


@attribute
class AdapterEvent(Attribute, size=16):
    """An entry of an adapter's log."""

    local_qp = bits(0, 24)
    remote_qp, sl, service_type = row(32, 24, 4, 4)
    remote_lid = bits(64, 16)
    timestamp = bits(96, 32)


@attribute
class SwitchCongestionSetting(Attribute, size=76, id=CongestionId.SWITCH_CONGESTION_SETTING):
    control_map = bits(0, 32)
    victim_mask = raw(4, 32)
    credit_mask = raw(36, 32)
    threshold = bits(544, 4)
    packet_size, cs_threshold = row(552, 8, 4)
    cs_return_delay, marking_rate = row(576, 16, 16)


@attribute
class SwitchPortCongestionSetting(Attribute, size=192, id=CongestionId.SWITCH_PORT_CONGESTION_SETTING):
    valid = array(0, 1, count=PORTS_A_BLOCK, stride=32)
    control_type = array(1, 1, count=PORTS_A_BLOCK, stride=32)
    threshold = array(4, 4, count=PORTS_A_BLOCK, stride=32)
    packet_size = array(8, 8, count=PORTS_A_BLOCK, stride=32)
    cong_parm_marking_rate = array(16, 16, count=PORTS_A_BLOCK, stride=32)


@attribute
class CaCongestionSetting(Attribute, size=132, id=CongestionId.CA_CONGESTION_SETTING):
    """Entries are by service level."""

    port_control, control_map = row(0, 16, 16)
    ccti_timer = array(32, 16, count=16, stride=64)
    ccti_increase = array(48, 8, count=16, stride=64)
    trigger_threshold = array(56, 8, count=16, stride=64)
    ccti_min = array(64, 8, count=16, stride=64)


@attribute
class CongestionControlTable(Attribute, size=132, id=CongestionId.CONGESTION_CONTROL_TABLE):
    ccti_limit = bits(0, 16)
    shift = array(32, 2, count=ENTRIES_A_BLOCK, stride=16)
    multiplier = array(34, 14, count=ENTRIES_A_BLOCK, stride=16)


@attribute
class Timestamp(Attribute, size=4, id=CongestionId.TIMESTAMP):
    timestamp = bits(0, 32)
