"""Performance management attributes (IBTA volume 1, 16.1), each at most 192 bytes.

PortXmitData and PortRcvData count 4-byte words. The congestion control attributes are those of annex A10, under
the identifiers that infiniband-diags asks for. Left out: PortSamplesControl and its results, data and packets by
SL, SwPortVLCong.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fabrictwin.subnet.wire.fields import Attribute, array, bits

ALL_PORTS = 0xFF  # PortSelect: the sum over a switch's ports


class PerfId(IntEnum):
    CLASS_PORT_INFO = 0x01
    PORT_COUNTERS = 0x12
    RCV_ERROR_DETAILS = 0x15
    XMIT_DISCARD_DETAILS = 0x16
    OP_RCV_COUNTERS = 0x17
    FLOW_CONTROL_COUNTERS = 0x18
    VL_OP_PACKETS = 0x19
    VL_OP_DATA = 0x1A
    VL_XMIT_FLOW_CONTROL_ERRORS = 0x1B
    VL_XMIT_WAIT = 0x1C
    PORT_COUNTERS_EXTENDED = 0x1D
    RCV_CONGESTION_CONTROL = 0x31
    SL_RCV_FECN = 0x32
    SL_RCV_BECN = 0x33
    XMIT_CONGESTION_CONTROL = 0x34
    VL_XMIT_TIME_CONGESTED = 0x35


class PerfCapability(IntEnum):
    """ClassPortInfo.CapabilityMask of the class."""

    ALL_PORT_SELECT = 1 << 8
    EXTENDED_WIDTH = 1 << 9
    EXTENDED_WIDTH_NO_IETF = 1 << 10
    XMIT_WAIT = 1 << 12


@dataclass(slots=True)
class ClassPortInfo(Attribute, size=72, id=PerfId.CLASS_PORT_INFO):
    base_version: int = bits(0, 8, 1)
    class_version: int = bits(8, 8, 1)
    capability_mask: int = bits(16, 16)
    capability_mask2: int = bits(32, 27)
    resp_time_value: int = bits(59, 5)
    redirect_gid: int = bits(64, 128)
    redirect_tc: int = bits(192, 8)
    redirect_sl: int = bits(200, 4)
    redirect_fl: int = bits(204, 20)
    redirect_lid: int = bits(224, 16)
    redirect_pkey: int = bits(240, 16)
    redirect_qp: int = bits(264, 24)
    redirect_qkey: int = bits(288, 32)
    trap_gid: int = bits(320, 128)
    trap_tc: int = bits(448, 8)
    trap_sl: int = bits(456, 4)
    trap_fl: int = bits(460, 20)
    trap_lid: int = bits(480, 16)
    trap_pkey: int = bits(496, 16)
    trap_hop_limit: int = bits(512, 8)
    trap_qp: int = bits(520, 24)
    trap_qkey: int = bits(544, 32)


@dataclass(slots=True)
class SelectedCounters(Attribute):
    """The port and the counters that an attribute is about."""

    port_select: int = bits(8, 8)
    counter_select: int = bits(16, 16)


@dataclass(slots=True)
class PortCounters(SelectedCounters, size=44, id=PerfId.PORT_COUNTERS):
    symbol_errors: int = bits(32, 16)
    link_error_recovery: int = bits(48, 8)
    link_downed: int = bits(56, 8)
    rcv_errors: int = bits(64, 16)
    rcv_remote_physical_errors: int = bits(80, 16)
    rcv_switch_relay_errors: int = bits(96, 16)
    xmit_discards: int = bits(112, 16)
    xmit_constraint_errors: int = bits(128, 8)
    rcv_constraint_errors: int = bits(136, 8)
    counter_select2: int = bits(144, 8)
    local_link_integrity_errors: int = bits(152, 4)
    excessive_buffer_overrun_errors: int = bits(156, 4)
    qp1_dropped: int = bits(160, 16)
    vl15_dropped: int = bits(176, 16)
    xmit_data: int = bits(192, 32)
    rcv_data: int = bits(224, 32)
    xmit_packets: int = bits(256, 32)
    rcv_packets: int = bits(288, 32)
    xmit_wait: int = bits(320, 32)


@dataclass(slots=True)
class PortCountersExtended(SelectedCounters, size=184, id=PerfId.PORT_COUNTERS_EXTENDED):
    counter_select2: int = bits(32, 32)
    xmit_data: int = bits(64, 64)
    rcv_data: int = bits(128, 64)
    xmit_packets: int = bits(192, 64)
    rcv_packets: int = bits(256, 64)
    unicast_xmit_packets: int = bits(320, 64)
    unicast_rcv_packets: int = bits(384, 64)
    multicast_xmit_packets: int = bits(448, 64)
    multicast_rcv_packets: int = bits(512, 64)
    symbol_errors: int = bits(576, 64)
    link_error_recovery: int = bits(640, 64)
    link_downed: int = bits(704, 64)
    rcv_errors: int = bits(768, 64)
    rcv_remote_physical_errors: int = bits(832, 64)
    rcv_switch_relay_errors: int = bits(896, 64)
    xmit_discards: int = bits(960, 64)
    xmit_constraint_errors: int = bits(1024, 64)
    rcv_constraint_errors: int = bits(1088, 64)
    local_link_integrity_errors: int = bits(1152, 64)
    excessive_buffer_overrun_errors: int = bits(1216, 64)
    vl15_dropped: int = bits(1280, 64)
    xmit_wait: int = bits(1344, 64)
    qp1_dropped: int = bits(1408, 64)


@dataclass(slots=True)
class RcvErrorDetails(SelectedCounters, size=16, id=PerfId.RCV_ERROR_DETAILS):
    local_physical_errors: int = bits(32, 16)
    malformed_packet_errors: int = bits(48, 16)
    buffer_overrun_errors: int = bits(64, 16)
    dlid_mapping_errors: int = bits(80, 16)
    vl_mapping_errors: int = bits(96, 16)
    looping_errors: int = bits(112, 16)


@dataclass(slots=True)
class XmitDiscardDetails(SelectedCounters, size=12, id=PerfId.XMIT_DISCARD_DETAILS):
    inactive_discards: int = bits(32, 16)
    neighbor_mtu_discards: int = bits(48, 16)
    lifetime_limit_discards: int = bits(64, 16)
    hoq_lifetime_limit_discards: int = bits(80, 16)


@dataclass(slots=True)
class OpRcvCounters(SelectedCounters, size=12, id=PerfId.OP_RCV_COUNTERS):
    op_code: int = bits(0, 8)
    packets: int = bits(32, 32)
    data: int = bits(64, 32)


@dataclass(slots=True)
class FlowControlCounters(SelectedCounters, size=12, id=PerfId.FLOW_CONTROL_COUNTERS):
    xmit_packets: int = bits(32, 32)
    rcv_packets: int = bits(64, 32)


@dataclass(slots=True)
class VlOpPackets(SelectedCounters, size=36, id=PerfId.VL_OP_PACKETS):
    op_code: int = bits(0, 8)
    packets: tuple[int, ...] = array(32, 16, count=16)


@dataclass(slots=True)
class VlOpData(SelectedCounters, size=68, id=PerfId.VL_OP_DATA):
    op_code: int = bits(0, 8)
    data: tuple[int, ...] = array(32, 32, count=16)


@dataclass(slots=True)
class VlXmitFlowControlErrors(SelectedCounters, size=8, id=PerfId.VL_XMIT_FLOW_CONTROL_ERRORS):
    errors: tuple[int, ...] = array(32, 2, count=16)


@dataclass(slots=True)
class VlXmitWait(SelectedCounters, size=36, id=PerfId.VL_XMIT_WAIT):
    ticks: tuple[int, ...] = array(32, 16, count=16)


@dataclass(slots=True)
class RcvCongestionControl(SelectedCounters, size=12, id=PerfId.RCV_CONGESTION_CONTROL):
    """PortRcvConCtrl: packets that came with FECN and with BECN."""

    fecns: int = bits(32, 32)
    becns: int = bits(64, 32)


@dataclass(slots=True)
class SlRcvFecn(SelectedCounters, size=68, id=PerfId.SL_RCV_FECN):
    packets: tuple[int, ...] = array(32, 32, count=16)


@dataclass(slots=True)
class SlRcvBecn(SelectedCounters, size=68, id=PerfId.SL_RCV_BECN):
    packets: tuple[int, ...] = array(32, 32, count=16)


@dataclass(slots=True)
class XmitCongestionControl(SelectedCounters, size=8, id=PerfId.XMIT_CONGESTION_CONTROL):
    """PortXmitConCtrl: ticks in which a lane of the port was congested."""

    ticks: int = bits(32, 32)


@dataclass(slots=True)
class VlXmitTimeCongested(SelectedCounters, size=64, id=PerfId.VL_XMIT_TIME_CONGESTED):
    ticks: tuple[int, ...] = array(32, 32, count=15)
