"""Subnet administration records (IBTA volume 1, 15.2.5).

A query names the components that it wants to match by bits of its component mask. Bits count the components in
the order of the record's table, reserved ones included; `COMPONENTS` gives each field its bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fabrictwin.subnet.wire.fields import Attribute, array, bits, raw
from fabrictwin.subnet.wire.smp import NodeInfo, PortInfo, SlToVl, SmInfo, SwitchInfo


class RecordId(IntEnum):
    CLASS_PORT_INFO = 0x01
    NOTICE = 0x02
    INFORM_INFO = 0x03
    NODE = 0x11
    PORT_INFO = 0x12
    SWITCH_INFO = 0x14
    SL_TO_VL = 0x13
    LINEAR_FORWARDING = 0x15
    MULTICAST_FORWARDING = 0x17
    SM_INFO = 0x18
    LINK = 0x20
    GUID_INFO = 0x30
    SERVICE = 0x31
    PKEY_TABLE = 0x33
    PATH = 0x35
    VL_ARBITRATION = 0x36
    MC_MEMBER = 0x38
    MULTI_PATH = 0x3A
    INFORM_INFO_RECORD = 0xF3


class Selector(IntEnum):
    """Comparisons of MTU, rate and lifetime that a query asks for."""

    GREATER = 0
    LESS = 1
    EXACTLY = 2
    LARGEST = 3


@dataclass(slots=True)
class LidRecord(Attribute):
    """A record of what the node or port with a LID has."""

    lid: int = bits(0, 16)


@dataclass(slots=True)
class TableRecord(LidRecord):
    """A block of a port's or a switch's table."""

    table: bytes = raw(8, 64)


@dataclass(slots=True)
class NodeRecord(LidRecord, size=108, id=RecordId.NODE):
    info: bytes = raw(4, NodeInfo.SIZE)
    description: bytes = raw(44, 64)


@dataclass(slots=True)
class PortInfoRecord(Attribute, size=68, id=RecordId.PORT_INFO):
    endport_lid: int = bits(0, 16)
    port_num: int = bits(16, 8)
    options: int = bits(24, 8)
    info: bytes = raw(4, PortInfo.SIZE)


@dataclass(slots=True)
class SwitchInfoRecord(LidRecord, size=24, id=RecordId.SWITCH_INFO):
    info: bytes = raw(4, SwitchInfo.SIZE)


@dataclass(slots=True)
class LinearForwardingRecord(LidRecord, size=72, id=RecordId.LINEAR_FORWARDING):
    block: int = bits(16, 16)
    ports: bytes = raw(8, 64)


@dataclass(slots=True)
class SmInfoRecord(LidRecord, size=28, id=RecordId.SM_INFO):
    info: bytes = raw(4, SmInfo.SIZE)


@dataclass(slots=True)
class LinkRecord(Attribute, size=6, id=RecordId.LINK):
    from_lid: int = bits(0, 16)
    from_port: int = bits(16, 8)
    to_port: int = bits(24, 8)
    to_lid: int = bits(32, 16)


@dataclass(slots=True)
class SlToVlRecord(LidRecord, size=16, id=RecordId.SL_TO_VL):
    into: int = bits(16, 8)
    out: int = bits(24, 8)
    table: bytes = raw(8, SlToVl.SIZE)


@dataclass(slots=True)
class VlArbitrationRecord(TableRecord, size=72, id=RecordId.VL_ARBITRATION):
    port_num: int = bits(16, 8)
    block: int = bits(24, 8)


@dataclass(slots=True)
class PKeyTableRecord(TableRecord, size=72, id=RecordId.PKEY_TABLE):
    block: int = bits(16, 16)
    port_num: int = bits(32, 8)


@dataclass(slots=True)
class GuidInfoRecord(TableRecord, size=72, id=RecordId.GUID_INFO):
    block: int = bits(16, 8)


@dataclass(slots=True)
class MulticastForwardingRecord(TableRecord, size=72, id=RecordId.MULTICAST_FORWARDING):
    position: int = bits(16, 4)
    block: int = bits(23, 9)


@dataclass(slots=True)
class InformInfoRecord(Attribute, size=60, id=RecordId.INFORM_INFO_RECORD):
    subscriber_gid: int = bits(0, 128)
    enum: int = bits(128, 16)
    inform_info: bytes = raw(24, 36)


@dataclass(slots=True)
class PathRecord(Attribute, size=64, id=RecordId.PATH):
    service_id: int = bits(0, 64)
    dgid: int = bits(64, 128)
    sgid: int = bits(192, 128)
    dlid: int = bits(320, 16)
    slid: int = bits(336, 16)
    raw_traffic: int = bits(352, 1)
    flow_label: int = bits(356, 20)
    hop_limit: int = bits(376, 8)
    tclass: int = bits(384, 8)
    reversible: int = bits(392, 1)
    num_path: int = bits(393, 7)
    pkey: int = bits(400, 16)
    qos_class: int = bits(416, 12)
    sl: int = bits(428, 4)
    mtu_selector: int = bits(432, 2)
    mtu: int = bits(434, 6)
    rate_selector: int = bits(440, 2)
    rate: int = bits(442, 6)
    packet_life_time_selector: int = bits(448, 2)
    packet_life_time: int = bits(450, 6)
    preference: int = bits(456, 8)


MOST_GIDS = 11  # that a MultiPathRecord carries within a datagram


@dataclass(slots=True)
class MultiPathRecord(Attribute, size=200, id=RecordId.MULTI_PATH):
    """A question for paths between several ports; PathRecords answer it. GIDs of sources come first."""

    raw_traffic: int = bits(0, 1)
    flow_label: int = bits(4, 20)
    hop_limit: int = bits(24, 8)
    tclass: int = bits(32, 8)
    reversible: int = bits(40, 1)
    num_path: int = bits(41, 7)
    pkey: int = bits(48, 16)
    qos_class: int = bits(64, 12)
    sl: int = bits(76, 4)
    mtu_selector: int = bits(80, 2)
    mtu: int = bits(82, 6)
    rate_selector: int = bits(88, 2)
    rate: int = bits(90, 6)
    packet_life_time_selector: int = bits(96, 2)
    packet_life_time: int = bits(98, 6)
    service_id_high: int = bits(104, 8)
    independence: int = bits(112, 2)
    sgid_count: int = bits(120, 8)
    dgid_count: int = bits(128, 8)
    service_id_low: int = bits(136, 56)
    gids: tuple[int, ...] = array(192, 128, count=MOST_GIDS)


@dataclass(slots=True)
class McMemberRecord(Attribute, size=52, id=RecordId.MC_MEMBER):
    mgid: int = bits(0, 128)
    port_gid: int = bits(128, 128)
    qkey: int = bits(256, 32)
    mlid: int = bits(288, 16)
    mtu_selector: int = bits(304, 2)
    mtu: int = bits(306, 6)
    tclass: int = bits(312, 8)
    pkey: int = bits(320, 16)
    rate_selector: int = bits(336, 2)
    rate: int = bits(338, 6)
    packet_life_time_selector: int = bits(344, 2)
    packet_life_time: int = bits(346, 6)
    sl: int = bits(352, 4)
    flow_label: int = bits(356, 20)
    hop_limit: int = bits(376, 8)
    scope: int = bits(384, 4)
    join_state: int = bits(388, 4)
    proxy_join: int = bits(392, 1)


@dataclass(slots=True)
class ServiceRecord(Attribute, size=176, id=RecordId.SERVICE):
    service_id: int = bits(0, 64)
    service_gid: int = bits(64, 128)
    pkey: int = bits(192, 16)
    lease_s: int = bits(224, 32)
    key: int = bits(256, 128)
    name: bytes = raw(48, 64)
    data8: tuple[int, ...] = array(896, 8, count=16)
    data16: tuple[int, ...] = array(1024, 16, count=8)
    data32: tuple[int, ...] = array(1152, 32, count=4)
    data64: tuple[int, ...] = array(1280, 64, count=2)


# Components that are reserved in the middle of a record still take a bit; an empty name stands for them.
_PORT_INFO = list(PortInfo.names())
for _before in ("lmc", "subnet_timeout"):
    _PORT_INFO.insert(_PORT_INFO.index(_before), "")
_PORT_INFO.insert(_PORT_INFO.index("resp_time_value"), "")

COMPONENTS: dict[type[Attribute], tuple[str, ...]] = {
    NodeRecord: ("lid", "", *(f"info.{name}" for name in NodeInfo.names()), "description"),
    PortInfoRecord: ("endport_lid", "port_num", "options", *(f"info.{n}" if n else "" for n in _PORT_INFO)),
    SwitchInfoRecord: ("lid", "", *(f"info.{name}" for name in SwitchInfo.names())),
    LinearForwardingRecord: ("lid", "block"),
    SmInfoRecord: ("lid", "", *(f"info.{name}" for name in SmInfo.names())),
    LinkRecord: LinkRecord.names(),
    SlToVlRecord: ("lid", "into", "out"),
    VlArbitrationRecord: ("lid", "port_num", "block"),
    PKeyTableRecord: ("lid", "block", "port_num"),
    GuidInfoRecord: ("lid", "block"),
    MulticastForwardingRecord: ("lid", "position", "", "block"),
    InformInfoRecord: ("subscriber_gid", "enum"),
    PathRecord: (
        *("service_id", "service_id", "dgid", "sgid", "dlid", "slid", "raw_traffic", "", "flow_label"),
        *("hop_limit", "tclass", "reversible", "num_path", "pkey", "qos_class", "sl", "mtu_selector", "mtu"),
        *("rate_selector", "rate", "packet_life_time_selector", "packet_life_time"),
    ),
    MultiPathRecord: (
        *("raw_traffic", "", "flow_label", "hop_limit", "tclass", "reversible", "num_path", "pkey", "qos_class"),
        *("sl", "mtu_selector", "mtu", "rate_selector", "rate", "packet_life_time_selector", "packet_life_time"),
        *("service_id_high", "independence", "", "sgid_count", "dgid_count", "service_id_low"),
    ),
    McMemberRecord: McMemberRecord.names(),
    ServiceRecord: (
        *("service_id", "service_gid", "pkey", "", "lease_s", "key", "name"),
        *(f"data8[{i}]" for i in range(16)),
        *(f"data16[{i}]" for i in range(8)),
        *(f"data32[{i}]" for i in range(4)),
        *(f"data64[{i}]" for i in range(2)),
    ),
}


def components(record: type[Attribute], mask: int) -> list[str]:
    """The names of the components whose bits are set; bits beyond the record are not looked at."""
    return [name for bit, name in enumerate(COMPONENTS[record]) if mask >> bit & 1 and name]


def component_mask(record: type[Attribute], *names: str) -> int:
    """The mask that asks for these components. Raises ValueError for a name that the record does not have."""
    mask = 0
    for name in names:
        mask |= 1 << COMPONENTS[record].index(name)
    return mask


def record_bytes(record: Attribute) -> bytes:
    """Encoded and padded to whole multiples of 8 bytes, as tables hold them."""
    data = record.encode()
    return data + bytes(-len(data) % 8)
