"""Layout of RDMA netlink: uapi linux/netlink.h and rdma/rdma_netlink.h (Linux 6.1)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from fabrictwin.base.records import record

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
ATTRIBUTE = struct.Struct("=HH")  # length, type
NLDEV = 5  # the client, in bits 10 to 15 of a type
ERROR, DONE = 2, 3
F_REQUEST, F_MULTI, F_ACK, F_DUMP = 0x1, 0x2, 0x4, 0x300
NESTED, TYPE_MASK = 0x8000, 0x3FFF


class Operation(IntEnum):
    """enum rdma_nldev_command: those that are answered, and those that want CAP_NET_ADMIN."""

    GET = 1
    SET = 2
    NEWLINK = 3
    DELLINK = 4
    PORT_GET = 5
    SYS_GET = 6
    SYS_SET = 7
    RES_GET = 9
    RES_QP_GET = 10
    RES_CQ_GET = 12
    RES_MR_GET = 13
    RES_PD_GET = 14
    GET_CHARDEV = 15
    STAT_SET = 16
    STAT_DEL = 18
    RES_CTX_GET = 22
    RES_SRQ_GET = 23


PRIVILEGED = frozenset({
    Operation.SET, Operation.NEWLINK, Operation.DELLINK, Operation.SYS_SET, Operation.STAT_SET, Operation.STAT_DEL,
})  # fmt: skip


class Name(IntEnum):
    """enum rdma_nldev_attr."""

    DEV_INDEX = 1
    DEV_NAME = 2
    PORT_INDEX = 3
    CAP_FLAGS = 4
    FW_VERSION = 5
    NODE_GUID = 6
    SYS_IMAGE_GUID = 7
    SUBNET_PREFIX = 8
    LID = 9
    SM_LID = 10
    LMC = 11
    PORT_STATE = 12
    PORT_PHYS_STATE = 13
    DEV_NODE_TYPE = 14
    RES_SUMMARY = 15
    RES_SUMMARY_ENTRY = 16
    RES_SUMMARY_ENTRY_NAME = 17
    RES_SUMMARY_ENTRY_CURR = 18
    RES_QP = 19
    RES_QP_ENTRY = 20
    RES_LQPN = 21
    RES_RQPN = 22
    RES_RQ_PSN = 23
    RES_SQ_PSN = 24
    RES_PATH_MIG_STATE = 25
    RES_TYPE = 26
    RES_STATE = 27
    RES_PID = 28
    RES_CQ = 35
    RES_CQ_ENTRY = 36
    RES_CQE = 37
    RES_USECNT = 38
    RES_MR = 40
    RES_MR_ENTRY = 41
    RES_RKEY = 42
    RES_LKEY = 43
    RES_IOVA = 44
    RES_MRLEN = 45
    RES_PD = 46
    RES_PD_ENTRY = 47
    NDEV_INDEX = 50
    NDEV_NAME = 51
    RES_PDN = 60
    RES_CQN = 61
    RES_MRN = 62
    RES_CTXN = 64
    SYS_NETNS_MODE = 66
    DEV_PROTOCOL = 67
    CHARDEV_TYPE = 69
    CHARDEV_NAME = 70
    CHARDEV_ABI = 71
    CHARDEV = 72
    UVERBS_DRIVER_ID = 73
    DEV_DIM = 84
    RES_CTX = 86
    RES_CTX_ENTRY = 87
    RES_SRQ = 88
    RES_SRQ_ENTRY = 89
    RES_SRQN = 90
    SYS_COPY_ON_FORK = 93


@record
class Request:
    """A message of a program: its operation and what it says by attribute."""

    client: int
    operation: int
    flags: int
    sequence: int
    port: int  # of the program's socket; 0 where it leaves that to the kernel
    attributes: dict[int, bytes]

    def number(self, name: Name) -> int | None:
        """Return an attribute of 32 bits; None where it is absent or short."""
        data = self.attributes.get(name, b"")
        return int.from_bytes(data[:4], "little") if len(data) >= 4 else None

    def text(self, name: Name) -> str:
        """Return an attribute that is a string; empty where it is absent."""
        return self.attributes.get(name, b"").partition(b"\0")[0].decode(errors="replace")


def _padded(length: int) -> int:
    return (length + 3) & ~3


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at + ATTRIBUTE.size <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, at)
        if length < ATTRIBUTE.size or at + length > len(data):
            raise ValueError(f"an attribute of {length} bytes at {at} of {len(data)}")
        found[kind & TYPE_MASK] = data[at + ATTRIBUTE.size : at + length]
        at += _padded(length)
    return found


def requests(data: bytes) -> Iterator[Request]:
    """Take a datagram apart into its messages. Raises ValueError where lengths do not agree."""
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, flags, sequence, port = HEADER.unpack_from(data, at)
        if length < HEADER.size or at + length > len(data):
            raise ValueError(f"a message of {length} bytes at {at} of {len(data)}")
        attributes = _attributes(data[at + HEADER.size : at + length])
        yield Request(kind >> 10 & 0x3F, kind & 0x3FF, flags, sequence, port, attributes)
        at += _padded(length)


def text(name: Name, value: str) -> bytes:
    """Return an attribute that is a string."""
    return attribute(name, value.encode() + b"\0")


def attribute(name: int, value: bytes) -> bytes:
    """Return an attribute, padded to four bytes."""
    length = ATTRIBUTE.size + len(value)
    return ATTRIBUTE.pack(length, name) + value + bytes(_padded(length) - length)


def u8(name: Name, value: int) -> bytes:
    """Return an attribute of one byte."""
    return attribute(name, bytes([value & 0xFF]))


def u32(name: Name, value: int) -> bytes:
    """Return an attribute of 32 bits."""
    return attribute(name, struct.pack("=I", value & 0xFFFFFFFF))


def u64(name: Name, value: int) -> bytes:
    """Return an attribute of 64 bits."""
    return attribute(name, struct.pack("=Q", value))


def nested(name: Name, parts: bytes) -> bytes:
    """Return an attribute that holds others."""
    length = ATTRIBUTE.size + len(parts)
    return ATTRIBUTE.pack(length, name | NESTED) + parts


def message(request: Request, port: int, body: bytes, *, multi: bool) -> bytes:
    """Return a message that answers a request."""
    kind = NLDEV << 10 | request.operation
    return HEADER.pack(HEADER.size + len(body), kind, F_MULTI if multi else 0, request.sequence, port) + body


def done(request: Request, port: int) -> bytes:
    """Return the message that ends a dump."""
    return HEADER.pack(HEADER.size + 4, DONE, F_MULTI, request.sequence, port) + bytes(4)


def error(request: Request, port: int, code: int) -> bytes:
    """Return a refusal with an errno, or with 0 the confirmation that a request asked for."""
    kind = request.client << 10 | request.operation
    asked = HEADER.pack(HEADER.size, kind, request.flags, request.sequence, request.port)
    body = struct.pack("=i", -code) + asked
    return HEADER.pack(HEADER.size + len(body), ERROR, 0, request.sequence, port) + body
