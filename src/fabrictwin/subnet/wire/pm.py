"""Performance management attributes (IBTA volume 1, 16.1), each at most 192 bytes.

PortXmitData and PortRcvData count 4-byte words. The congestion control attributes are those of annex A10, under
the identifiers that infiniband-diags asks for. Left out: PortSamplesControl and its results, data and packets by
SL, SwPortVLCong.
"""

from __future__ import annotations

from enum import IntEnum

from fabrictwin.subnet.wire.fields import Attribute, array, attribute, bits, row

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


@attribute
class ClassPortInfo(Attribute, size=72, id=PerfId.CLASS_PORT_INFO):
    base_version = bits(0, 8, 1)
    class_version = bits(8, 8, 1)
    capability_mask = bits(16, 16)
    capability_mask2, resp_time_value = row(32, 27, 5)
    redirect_gid = bits(64, 128)
    redirect_tc, redirect_sl, redirect_fl = row(192, 8, 4, 20)
    redirect_lid, redirect_pkey = row(224, 16, 16)
    redirect_qp = bits(264, 24)
    redirect_qkey = bits(288, 32)
    trap_gid = bits(320, 128)
    trap_tc, trap_sl, trap_fl = row(448, 8, 4, 20)
    trap_lid, trap_pkey = row(480, 16, 16)
    trap_hop_limit, trap_qp = row(512, 8, 24)
    trap_qkey = bits(544, 32)


@attribute
class SelectedCounters(Attribute):
    """The port and the counters that an attribute is about."""

    port_select, counter_select = row(8, 8, 16)


@attribute
class PortCounters(SelectedCounters, size=44, id=PerfId.PORT_COUNTERS):
    symbol_errors, link_error_recovery, link_downed = row(32, 16, 8, 8)
    rcv_errors, rcv_remote_physical_errors = row(64, 16, 16)
    rcv_switch_relay_errors, xmit_discards = row(96, 16, 16)
    xmit_constraint_errors, rcv_constraint_errors, counter_select2 = row(128, 8, 8, 8)
    local_link_integrity_errors, excessive_buffer_overrun_errors = row(152, 4, 4)
    qp1_dropped, vl15_dropped = row(160, 16, 16)
    xmit_data, rcv_data, xmit_packets, rcv_packets = row(192, 32, 32, 32, 32)
    xmit_wait = bits(320, 32)


@attribute
class PortCountersExtended(SelectedCounters, size=184, id=PerfId.PORT_COUNTERS_EXTENDED):
    counter_select2 = bits(32, 32)
    xmit_data, rcv_data, xmit_packets, rcv_packets = row(64, 64, 64, 64, 64)
    unicast_xmit_packets, unicast_rcv_packets, multicast_xmit_packets = row(320, 64, 64, 64)
    multicast_rcv_packets, symbol_errors, link_error_recovery, link_downed = row(512, 64, 64, 64, 64)
    rcv_errors, rcv_remote_physical_errors, rcv_switch_relay_errors = row(768, 64, 64, 64)
    xmit_discards, xmit_constraint_errors, rcv_constraint_errors = row(960, 64, 64, 64)
    local_link_integrity_errors, excessive_buffer_overrun_errors, vl15_dropped = row(1152, 64, 64, 64)
    xmit_wait, qp1_dropped = row(1344, 64, 64)


@attribute
class RcvErrorDetails(SelectedCounters, size=16, id=PerfId.RCV_ERROR_DETAILS):
    local_physical_errors, malformed_packet_errors = row(32, 16, 16)
    buffer_overrun_errors, dlid_mapping_errors = row(64, 16, 16)
    vl_mapping_errors, looping_errors = row(96, 16, 16)


@attribute
class XmitDiscardDetails(SelectedCounters, size=12, id=PerfId.XMIT_DISCARD_DETAILS):
    inactive_discards, neighbor_mtu_discards = row(32, 16, 16)
    lifetime_limit_discards, hoq_lifetime_limit_discards = row(64, 16, 16)


@attribute
class OpRcvCounters(SelectedCounters, size=12, id=PerfId.OP_RCV_COUNTERS):
    op_code = bits(0, 8)
    packets, data = row(32, 32, 32)


@attribute
class FlowControlCounters(SelectedCounters, size=12, id=PerfId.FLOW_CONTROL_COUNTERS):
    xmit_packets, rcv_packets = row(32, 32, 32)


@attribute
class VlOpPackets(SelectedCounters, size=36, id=PerfId.VL_OP_PACKETS):
    op_code = bits(0, 8)
    packets = array(32, 16, count=16)


@attribute
class VlOpData(SelectedCounters, size=68, id=PerfId.VL_OP_DATA):
    op_code = bits(0, 8)
    data = array(32, 32, count=16)


@attribute
class VlXmitFlowControlErrors(SelectedCounters, size=8, id=PerfId.VL_XMIT_FLOW_CONTROL_ERRORS):
    errors = array(32, 2, count=16)


@attribute
class VlXmitWait(SelectedCounters, size=36, id=PerfId.VL_XMIT_WAIT):
    ticks = array(32, 16, count=16)


@attribute
class RcvCongestionControl(SelectedCounters, size=12, id=PerfId.RCV_CONGESTION_CONTROL):
    """PortRcvConCtrl: packets that came with FECN and with BECN."""

    fecns, becns = row(32, 32, 32)


@attribute
class SlRcvFecn(SelectedCounters, size=68, id=PerfId.SL_RCV_FECN):
    packets = array(32, 32, count=16)


@attribute
class SlRcvBecn(SelectedCounters, size=68, id=PerfId.SL_RCV_BECN):
    packets = array(32, 32, count=16)


@attribute
class XmitCongestionControl(SelectedCounters, size=8, id=PerfId.XMIT_CONGESTION_CONTROL):
    """PortXmitConCtrl: ticks in which a lane of the port was congested."""

    ticks = bits(32, 32)


@attribute
class VlXmitTimeCongested(SelectedCounters, size=64, id=PerfId.VL_XMIT_TIME_CONGESTED):
    ticks = array(32, 32, count=15)
