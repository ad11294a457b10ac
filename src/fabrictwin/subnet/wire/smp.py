"""Subnet management attributes (IBTA volume 1, chapter 14), each at most 64 bytes.

The second set of extended speeds (XDR) came with release 1.7; where its three fields lie is taken from what
rdma-core's decoder says of PortInfo byte 56, and the order of the first two is the order of the older fields.
Left out: RandomForwardingTable, VendorDiag, LedInfo, CableInfo.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag

from fabrictwin.subnet.wire.fields import Attribute, array, bits, raw


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


@dataclass(slots=True)
class NodeInfo(Attribute, size=40, id=AttributeId.NODE_INFO):
    base_version: int = bits(0, 8, 1)
    class_version: int = bits(8, 8, 1)
    node_type: int = bits(16, 8)
    num_ports: int = bits(24, 8)
    system_image_guid: int = bits(32, 64)
    node_guid: int = bits(96, 64)
    port_guid: int = bits(160, 64)
    partition_cap: int = bits(224, 16)
    device_id: int = bits(240, 16)
    revision: int = bits(256, 32)
    local_port_num: int = bits(288, 8)
    vendor_id: int = bits(296, 24)


@dataclass(slots=True)
class NodeDescription(Attribute, size=64, id=AttributeId.NODE_DESCRIPTION):
    text: bytes = raw(0, 64)


@dataclass(slots=True)
class SwitchInfo(Attribute, size=20, id=AttributeId.SWITCH_INFO):
    linear_fdb_cap: int = bits(0, 16)
    random_fdb_cap: int = bits(16, 16)
    multicast_fdb_cap: int = bits(32, 16)
    linear_fdb_top: int = bits(48, 16)
    default_port: int = bits(64, 8)
    default_multicast_primary_port: int = bits(72, 8)
    default_multicast_not_primary_port: int = bits(80, 8)
    life_time_value: int = bits(88, 5)
    port_state_change: int = bits(93, 1)
    optimized_sl_to_vl: int = bits(94, 2)
    lids_per_port: int = bits(96, 16)
    partition_enforcement_cap: int = bits(112, 16)
    inbound_enforcement_cap: int = bits(128, 1)
    outbound_enforcement_cap: int = bits(129, 1)
    filter_raw_inbound_cap: int = bits(130, 1)
    filter_raw_outbound_cap: int = bits(131, 1)
    enhanced_port0: int = bits(132, 1)
    multicast_fdb_top: int = bits(144, 16)


@dataclass(slots=True)
class PortInfo(Attribute, size=64, id=AttributeId.PORT_INFO):
    m_key: int = bits(0, 64)
    gid_prefix: int = bits(64, 64)
    lid: int = bits(128, 16)
    master_sm_lid: int = bits(144, 16)
    capability_mask: int = bits(160, 32)
    diag_code: int = bits(192, 16)
    m_key_lease_period: int = bits(208, 16)
    local_port_num: int = bits(224, 8)
    link_width_enabled: int = bits(232, 8)
    link_width_supported: int = bits(240, 8)
    link_width_active: int = bits(248, 8)
    link_speed_supported: int = bits(256, 4)
    port_state: int = bits(260, 4)
    port_physical_state: int = bits(264, 4)
    link_down_default_state: int = bits(268, 4)
    m_key_protect_bits: int = bits(272, 2)
    lmc: int = bits(277, 3)
    link_speed_active: int = bits(280, 4)
    link_speed_enabled: int = bits(284, 4)
    neighbor_mtu: int = bits(288, 4)
    master_sm_sl: int = bits(292, 4)
    vl_cap: int = bits(296, 4)
    init_type: int = bits(300, 4)
    vl_high_limit: int = bits(304, 8)
    vl_arb_high_cap: int = bits(312, 8)
    vl_arb_low_cap: int = bits(320, 8)
    init_type_reply: int = bits(328, 4)
    mtu_cap: int = bits(332, 4)
    vl_stall_count: int = bits(336, 3)
    hoq_life: int = bits(339, 5)
    operational_vls: int = bits(344, 4)
    partition_enforcement_inbound: int = bits(348, 1)
    partition_enforcement_outbound: int = bits(349, 1)
    filter_raw_inbound: int = bits(350, 1)
    filter_raw_outbound: int = bits(351, 1)
    m_key_violations: int = bits(352, 16)
    p_key_violations: int = bits(368, 16)
    q_key_violations: int = bits(384, 16)
    guid_cap: int = bits(400, 8)
    client_reregister: int = bits(408, 1)
    multicast_pkey_trap_suppression: int = bits(409, 2)
    subnet_timeout: int = bits(411, 5)
    resp_time_value: int = bits(419, 5)
    local_phy_errors: int = bits(424, 4)
    overrun_errors: int = bits(428, 4)
    max_credit_hint: int = bits(432, 16)
    link_speed_ext2_active: int = bits(449, 2)
    link_speed_ext2_supported: int = bits(451, 2)
    link_speed_ext2_enabled: int = bits(453, 3)
    link_round_trip_latency: int = bits(456, 24)
    capability_mask2: int = bits(480, 16)
    link_speed_ext_active: int = bits(496, 4)
    link_speed_ext_supported: int = bits(500, 4)
    link_speed_ext_enabled: int = bits(507, 5)


@dataclass(slots=True)
class GuidInfo(Attribute, size=64, id=AttributeId.GUID_INFO):
    guids: tuple[int, ...] = array(0, 64, count=8)


@dataclass(slots=True)
class PKeyTable(Attribute, size=64, id=AttributeId.PKEY_TABLE):
    pkeys: tuple[int, ...] = array(0, 16, count=32)


@dataclass(slots=True)
class SlToVl(Attribute, size=8, id=AttributeId.SL_TO_VL):
    vls: tuple[int, ...] = array(0, 4, count=16)


@dataclass(slots=True)
class VlArbitration(Attribute, size=64, id=AttributeId.VL_ARBITRATION):
    vls: tuple[int, ...] = array(4, 4, count=32, stride=16)
    weights: tuple[int, ...] = array(8, 8, count=32, stride=16)


@dataclass(slots=True)
class LinearForwarding(Attribute, size=64, id=AttributeId.LINEAR_FORWARDING):
    """Ports of 64 LIDs; 255 is none."""

    ports: bytes = raw(0, 64)


@dataclass(slots=True)
class MulticastForwarding(Attribute, size=64, id=AttributeId.MULTICAST_FORWARDING):
    """Masks of 16 ports for 32 multicast LIDs."""

    masks: tuple[int, ...] = array(0, 16, count=32)


@dataclass(slots=True)
class SmInfo(Attribute, size=24, id=AttributeId.SM_INFO):
    guid: int = bits(0, 64)
    sm_key: int = bits(64, 64)
    act_count: int = bits(128, 32)
    priority: int = bits(160, 4)
    sm_state: int = bits(164, 4)


@dataclass(slots=True)
class ExtendedPortInfo(Attribute, size=64, id=AttributeId.EXTENDED_PORT_INFO):
    """Attribute 0xFF90, a vendor's: FDR10 was its reason, and OpenSM still asks for it."""

    state_change_enable: int = bits(24, 8)
    link_speed_supported: int = bits(56, 8)
    link_speed_enabled: int = bits(88, 8)
    link_speed_active: int = bits(120, 8)
