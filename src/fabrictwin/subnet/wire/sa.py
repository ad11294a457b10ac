"""Subnet administration records (IBTA volume 1, 15.2.5).

A query names the components that it wants to match by bits of its component mask. Bits count the components in
the order of the record's table, reserved ones included; `COMPONENTS` gives each field its bit.
"""

from __future__ import annotations

from enum import IntEnum

from fabrictwin.subnet.wire.fields import Attribute, array, attribute, bits, raw, row
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


@attribute
class LidRecord(Attribute):
    """A record of what the node or port with a LID has."""

    lid = bits(0, 16)


@attribute
class TableRecord(LidRecord):
    """A block of a port's or a switch's table."""

    table = raw(8, 64)


@attribute
class NodeRecord(LidRecord, size=108, id=RecordId.NODE):
    info = raw(4, NodeInfo.SIZE)
    description = raw(44, 64)


@attribute
class PortInfoRecord(Attribute, size=68, id=RecordId.PORT_INFO):
    endport_lid, port_num, options = row(0, 16, 8, 8)
    info = raw(4, PortInfo.SIZE)


@attribute
class SwitchInfoRecord(LidRecord, size=24, id=RecordId.SWITCH_INFO):
    info = raw(4, SwitchInfo.SIZE)


@attribute
class LinearForwardingRecord(LidRecord, size=72, id=RecordId.LINEAR_FORWARDING):
    block = bits(16, 16)
    ports = raw(8, 64)


@attribute
class SmInfoRecord(LidRecord, size=28, id=RecordId.SM_INFO):
    info = raw(4, SmInfo.SIZE)


@attribute
class LinkRecord(Attribute, size=6, id=RecordId.LINK):
    from_lid, from_port, to_port = row(0, 16, 8, 8)
    to_lid = bits(32, 16)


@attribute
class SlToVlRecord(LidRecord, size=16, id=RecordId.SL_TO_VL):
    into, out = row(16, 8, 8)
    table = raw(8, SlToVl.SIZE)


@attribute
class VlArbitrationRecord(TableRecord, size=72, id=RecordId.VL_ARBITRATION):
    port_num, block = row(16, 8, 8)


@attribute
class PKeyTableRecord(TableRecord, size=72, id=RecordId.PKEY_TABLE):
    block = bits(16, 16)
    port_num = bits(32, 8)


@attribute
class GuidInfoRecord(TableRecord, size=72, id=RecordId.GUID_INFO):
    block = bits(16, 8)


@attribute
class MulticastForwardingRecord(TableRecord, size=72, id=RecordId.MULTICAST_FORWARDING):
    position = bits(16, 4)
    block = bits(23, 9)


@attribute
class InformInfoRecord(Attribute, size=60, id=RecordId.INFORM_INFO_RECORD):
    subscriber_gid = bits(0, 128)
    enum = bits(128, 16)
    inform_info = raw(24, 36)


@attribute
class PathRecord(Attribute, size=64, id=RecordId.PATH):
    service_id = bits(0, 64)
    dgid, sgid = row(64, 128, 128)
    dlid, slid = row(320, 16, 16)
    raw_traffic = bits(352, 1)
    flow_label, hop_limit = row(356, 20, 8)
    tclass, reversible, num_path, pkey = row(384, 8, 1, 7, 16)
    qos_class, sl, mtu_selector, mtu, rate_selector = row(416, 12, 4, 2, 6, 2)
    rate = bits(442, 6)
    packet_life_time_selector, packet_life_time, preference = row(448, 2, 6, 8)


MOST_GIDS = 11  # that a MultiPathRecord carries within a datagram


@attribute
class MultiPathRecord(Attribute, size=200, id=RecordId.MULTI_PATH):
    """A question for paths between several ports; PathRecords answer it. GIDs of sources come first."""

    raw_traffic = bits(0, 1)
    flow_label, hop_limit = row(4, 20, 8)
    tclass, reversible, num_path, pkey = row(32, 8, 1, 7, 16)
    qos_class, sl, mtu_selector, mtu, rate_selector = row(64, 12, 4, 2, 6, 2)
    rate = bits(90, 6)
    packet_life_time_selector, packet_life_time, service_id_high, independence = row(96, 2, 6, 8, 2)
    sgid_count = bits(120, 8)
    dgid_count, service_id_low = row(128, 8, 56)
    gids = array(192, 128, count=MOST_GIDS)


@attribute
class McMemberRecord(Attribute, size=52, id=RecordId.MC_MEMBER):
    mgid, port_gid = row(0, 128, 128)
    qkey = bits(256, 32)
    mlid, mtu_selector, mtu, tclass = row(288, 16, 2, 6, 8)
    pkey, rate_selector, rate, packet_life_time_selector, packet_life_time = row(320, 16, 2, 6, 2, 6)
    sl, flow_label, hop_limit = row(352, 4, 20, 8)
    scope, join_state, proxy_join = row(384, 4, 4, 1)


@attribute
class ServiceRecord(Attribute, size=176, id=RecordId.SERVICE):
    service_id = bits(0, 64)
    service_gid = bits(64, 128)
    pkey = bits(192, 16)
    lease_s = bits(224, 32)
    key = bits(256, 128)
    name = raw(48, 64)
    data8 = array(896, 8, count=16)
    data16 = array(1024, 16, count=8)
    data32 = array(1152, 32, count=4)
    data64 = array(1280, 64, count=2)


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
