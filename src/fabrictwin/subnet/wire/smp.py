"""Subnet management attributes (IBTA volume 1, chapter 14), each at most 64 bytes.

The second set of extended speeds (XDR) came with release 1.7; where its three fields lie is taken from what
rdma-core's decoder says of PortInfo byte 56, and the order of the first two is the order of the older fields.
Left out: RandomForwardingTable, VendorDiag, LedInfo, CableInfo.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from fabrictwin.subnet.wire.fields import Attribute, array, attribute, bits, raw, row


class AttributeId(IntEnum):
    CLASS_PORT_INFO = 0x01
    NOTICE = 0x02
    INFORM_INFO = 0x03
    NODE_DESCRIPTION = 0x10
    NODE_INFO = 0x11
    SWITCH_INFO = 0x12
    GUID_INFO = 0x14
    PORT_INFO = 0x15
    PKEY_TABLE = 0x16
    SL_TO_VL = 0x17
    VL_ARBITRATION = 0x18
    LINEAR_FORWARDING = 0x19
    MULTICAST_FORWARDING = 0x1B
    SM_INFO = 0x20
    EXTENDED_PORT_INFO = 0xFF90


class NodeType(IntEnum):
    CA = 1
    SWITCH = 2
    ROUTER = 3


class PortState(IntEnum):
    NO_CHANGE = 0
    DOWN = 1
    INIT = 2
    ARMED = 3
    ACTIVE = 4


class PhysState(IntEnum):
    NO_CHANGE = 0
    SLEEP = 1
    POLLING = 2
    DISABLED = 3
    TRAINING = 4
    LINK_UP = 5
    RECOVERY = 6


class Capability(IntFlag):
    """PortInfo.CapabilityMask."""

    IS_SM = 1 << 1
    NOTICE = 1 << 2
    TRAP = 1 << 3
    AUTOMATIC_MIGRATION = 1 << 5
    SL_MAPPING = 1 << 6
    SYSTEM_IMAGE_GUID = 1 << 11
    EXTENDED_SPEEDS = 1 << 14
    CAPABILITY_MASK2 = 1 << 15
    COMMUNICATION_MANAGEMENT = 1 << 16
    CAPABILITY_NOTICE = 1 << 22
    CLIENT_REREGISTRATION = 1 << 25
    OTHER_LOCAL_CHANGES = 1 << 26
    MULTICAST_FDB_TOP = 1 << 30


class Capability2(IntFlag):
    """PortInfo.CapabilityMask2."""

    SET_NODE_DESCRIPTION = 1 << 0
    WIDTH_2X = 1 << 4
    SPEED_HDR = 1 << 5
    SPEED_NDR = 1 << 10
    EXTENDED_SPEEDS2 = 1 << 11
    SPEED_XDR = 1 << 12


class SmState(IntEnum):
    NOT_ACTIVE = 0
    DISCOVERING = 1
    STANDBY = 2
    MASTER = 3


@attribute
class NodeInfo(Attribute, size=40, id=AttributeId.NODE_INFO):
    base_version = bits(0, 8, 1)
    class_version = bits(8, 8, 1)
    node_type, num_ports = row(16, 8, 8)
    system_image_guid, node_guid, port_guid = row(32, 64, 64, 64)
    partition_cap, device_id = row(224, 16, 16)
    revision = bits(256, 32)
    local_port_num, vendor_id = row(288, 8, 24)


@attribute
class NodeDescription(Attribute, size=64, id=AttributeId.NODE_DESCRIPTION):
    text = raw(0, 64)


@attribute
class SwitchInfo(Attribute, size=20, id=AttributeId.SWITCH_INFO):
    linear_fdb_cap, random_fdb_cap = row(0, 16, 16)
    multicast_fdb_cap, linear_fdb_top = row(32, 16, 16)
    default_port, default_multicast_primary_port, default_multicast_not_primary_port = row(64, 8, 8, 8)
    life_time_value, port_state_change, optimized_sl_to_vl = row(88, 5, 1, 2)
    lids_per_port, partition_enforcement_cap = row(96, 16, 16)
    inbound_enforcement_cap, outbound_enforcement_cap, filter_raw_inbound_cap = row(128, 1, 1, 1)
    filter_raw_outbound_cap, enhanced_port0 = row(131, 1, 1)
    multicast_fdb_top = bits(144, 16)


@attribute
class PortInfo(Attribute, size=64, id=AttributeId.PORT_INFO):
    m_key, gid_prefix = row(0, 64, 64)
    lid, master_sm_lid = row(128, 16, 16)
    capability_mask = bits(160, 32)
    diag_code, m_key_lease_period = row(192, 16, 16)
    local_port_num, link_width_enabled, link_width_supported, link_width_active = row(224, 8, 8, 8, 8)
    link_speed_supported, port_state, port_physical_state, link_down_default_state = row(256, 4, 4, 4, 4)
    m_key_protect_bits = bits(272, 2)
    lmc, link_speed_active, link_speed_enabled = row(277, 3, 4, 4)
    neighbor_mtu, master_sm_sl, vl_cap, init_type, vl_high_limit = row(288, 4, 4, 4, 4, 8)
    vl_arb_high_cap = bits(312, 8)
    vl_arb_low_cap, init_type_reply, mtu_cap, vl_stall_count, hoq_life = row(320, 8, 4, 4, 3, 5)
    operational_vls, partition_enforcement_inbound, partition_enforcement_outbound = row(344, 4, 1, 1)
    filter_raw_inbound, filter_raw_outbound = row(350, 1, 1)
    m_key_violations, p_key_violations = row(352, 16, 16)
    q_key_violations, guid_cap, client_reregister = row(384, 16, 8, 1)
    multicast_pkey_trap_suppression, subnet_timeout = row(409, 2, 5)
    resp_time_value, local_phy_errors, overrun_errors, max_credit_hint = row(419, 5, 4, 4, 16)
    link_speed_ext2_active, link_speed_ext2_supported, link_speed_ext2_enabled = row(449, 2, 2, 3)
    link_round_trip_latency = bits(456, 24)
    capability_mask2, link_speed_ext_active, link_speed_ext_supported = row(480, 16, 4, 4)
    link_speed_ext_enabled = bits(507, 5)


@attribute
class GuidInfo(Attribute, size=64, id=AttributeId.GUID_INFO):
    guids = array(0, 64, count=8)


@attribute
class PKeyTable(Attribute, size=64, id=AttributeId.PKEY_TABLE):
    pkeys = array(0, 16, count=32)


@attribute
class SlToVl(Attribute, size=8, id=AttributeId.SL_TO_VL):
    vls = array(0, 4, count=16)


@attribute
class VlArbitration(Attribute, size=64, id=AttributeId.VL_ARBITRATION):
    vls = array(4, 4, count=32, stride=16)
    weights = array(8, 8, count=32, stride=16)


@attribute
class LinearForwarding(Attribute, size=64, id=AttributeId.LINEAR_FORWARDING):
    """Ports of 64 LIDs; 255 is none."""

    ports = raw(0, 64)


@attribute
class MulticastForwarding(Attribute, size=64, id=AttributeId.MULTICAST_FORWARDING):
    """Masks of 16 ports for 32 multicast LIDs."""

    masks = array(0, 16, count=32)


@attribute
class SmInfo(Attribute, size=24, id=AttributeId.SM_INFO):
    guid, sm_key = row(0, 64, 64)
    act_count = bits(128, 32)
    priority, sm_state = row(160, 4, 4)


@attribute
class ExtendedPortInfo(Attribute, size=64, id=AttributeId.EXTENDED_PORT_INFO):
    """Attribute 0xFF90, a vendor's: FDR10 was its reason, and OpenSM still asks for it."""

    state_change_enable = bits(24, 8)
    link_speed_supported = bits(56, 8)
    link_speed_enabled = bits(88, 8)
    link_speed_active = bits(120, 8)
