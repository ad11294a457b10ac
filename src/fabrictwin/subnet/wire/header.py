"""The common header of management datagrams, and what follows it in each class (IBTA volume 1, 13.4, 14.2, 15.2).

Every datagram has 256 bytes. Subnet management by directed route carries its path and needs no tables; subnet
management by LID, performance management and subnet administration travel by LID like everything else.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from fabrictwin.subnet.wire.fields import Attribute, MadError, attribute, bits, raw, row

MAD_BYTES = 256
PERMISSIVE_LID = 0xFFFF
MAX_HOPS = 63
RESPONSE = 0x80  # of a method
DIRECTION = 0x8000  # of a directed-route status: set on the way back

SMP_DATA = slice(64, 128)
PERF_DATA = slice(64, 256)
SA_DATA = slice(56, 256)
SA_DATA_BYTES = 200


class MadClass(IntEnum):
    SUBN_LID = 0x01
    SUBN_ADM = 0x03
    PERF = 0x04
    VENDOR = 0x0A  # Mellanox's
    CONGESTION = 0x21
    SUBN_DIRECTED = 0x81


class Method(IntEnum):
    GET = 0x01
    SET = 0x02
    SEND = 0x03
    TRAP = 0x05
    REPORT = 0x06
    TRAP_REPRESS = 0x07
    GET_TABLE = 0x12
    GET_MULTI = 0x14
    DELETE = 0x15
    GET_RESP = 0x81
    REPORT_RESP = 0x86
    GET_TABLE_RESP = 0x92
    GET_MULTI_RESP = 0x94
    DELETE_RESP = 0x95


class Status(IntEnum):
    """Codes of the low byte of a header's status (13.4.7)."""

    OK = 0
    BUSY = 0x0001
    REDIRECT = 0x0002
    BAD_VERSION = 0x0004
    BAD_METHOD = 0x0008
    BAD_ATTRIBUTE = 0x000C
    BAD_FIELD = 0x001C


class SaStatus(IntEnum):
    """Class-specific status of subnet administration, in the high byte (15.2.3)."""

    NO_RESOURCES = 0x0100
    REQUEST_INVALID = 0x0200
    NO_RECORDS = 0x0300
    TOO_MANY_RECORDS = 0x0400
    INVALID_GID = 0x0500
    INSUFFICIENT_COMPONENTS = 0x0600
    DENIED = 0x0700


@attribute
class CommonHeader(Attribute):
    """The fields that every datagram begins with."""

    base_version = bits(0, 8, 1)
    mgmt_class = bits(8, 8)
    class_version = bits(16, 8, 1)
    method = bits(24, 8)
    status = bits(32, 16)
    tid = bits(64, 64)
    attribute = bits(128, 16)
    modifier = bits(160, 32)


@attribute
class DirectedSmp(CommonHeader, size=MAD_BYTES):
    """A whole directed-route datagram. Paths hold the port of hop k in byte k; byte 0 is not used."""

    mgmt_class = bits(8, 8, MadClass.SUBN_DIRECTED)
    direction, status, hop_pointer, hop_count = row(32, 1, 15, 8, 8)
    m_key = bits(192, 64)
    dr_slid = bits(256, 16, PERMISSIVE_LID)
    dr_dlid = bits(272, 16, PERMISSIVE_LID)
    data = raw(64, 64)
    initial_path = raw(128, 64)
    return_path = raw(192, 64)


@attribute
class LidSmp(CommonHeader, size=MAD_BYTES):
    """A whole LID-routed subnet management datagram."""

    mgmt_class = bits(8, 8, MadClass.SUBN_LID)
    m_key = bits(192, 64)
    data = raw(64, 64)


@attribute
class PerfMad(CommonHeader, size=MAD_BYTES):
    """A whole performance management datagram."""

    mgmt_class = bits(8, 8, MadClass.PERF)
    data = raw(64, 192)


@attribute
class SaMad(CommonHeader, size=MAD_BYTES):
    """A whole subnet administration datagram: the RMPP header, then records."""

    mgmt_class = bits(8, 8, MadClass.SUBN_ADM)
    class_version = bits(16, 8, 2)
    rmpp_version, rmpp_type, rmpp_response_time, rmpp_flags, rmpp_status = row(192, 8, 8, 5, 3, 8)
    rmpp_data1, rmpp_data2 = row(224, 32, 32)
    sm_key = bits(288, 64)
    attribute_offset = bits(352, 16)
    component_mask = bits(384, 64)
    data = raw(56, SA_DATA_BYTES)


# The hot paths of a sweep pack and unpack these by hand; a test holds them equal to the tables above.
# base, class, version, method, status, hop pointer, hop count, tid, attribute, modifier, m_key, slid, dlid,
# data, initial path, return path
DIRECTED = struct.Struct(">BBBBHBBQHxxIQHH28x64s64s64s")
# base, class, version, method, status, class specific, tid, attribute, modifier, m_key
START = struct.Struct(">BBBBHHQHxxIQ")


def check_mad(mad: bytes | bytearray | memoryview) -> None:
    """Raises MadError where a datagram is not one that any class could take (13.4.2)."""
    if len(mad) != MAD_BYTES:
        raise MadError(f"got {len(mad)} bytes, expected {MAD_BYTES}")
    if mad[0] != 1:
        raise MadError(f"got base version {mad[0]}, expected 1")
    if mad[2] > 2:
        raise MadError(f"got class version {mad[2]}, expected 1 or 2")
    if mad[1] == MadClass.SUBN_DIRECTED and mad[7] > MAX_HOPS:
        raise MadError(f"got {mad[7]} hops, expected at most {MAX_HOPS}")
