"""Commands, events and records of uapi rdma/rdma_user_cm.h, and socket addresses as they stand in them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from fabrictwin.base.records import record

AF_INET, AF_INET6 = 2, 10


class Command(IntEnum):
    """RDMA_USER_CM_CMD_*."""

    CREATE_ID = 0
    DESTROY_ID = 1
    BIND_IP = 2
    RESOLVE_IP = 3
    RESOLVE_ROUTE = 4
    QUERY_ROUTE = 5
    CONNECT = 6
    LISTEN = 7
    ACCEPT = 8
    REJECT = 9
    DISCONNECT = 10
    INIT_QP_ATTR = 11
    GET_EVENT = 12
    SET_OPTION = 14
    NOTIFY = 15
    JOIN_IP_MCAST = 16
    LEAVE_MCAST = 17
    MIGRATE_ID = 18
    QUERY = 19
    BIND = 20
    RESOLVE_ADDR = 21
    JOIN_MCAST = 22


class Event(IntEnum):
    """rdma_cm_event_type."""

    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    DEVICE_REMOVAL = 11
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13


class PortSpace(IntEnum):
    """rdma_ucm_port_space."""

    IPOIB = 0x0002
    TCP = 0x0106
    UDP = 0x0111
    IB = 0x013F


HEADER = struct.Struct("=IHH")  # cmd, in, out
CREATE_ID = struct.Struct("=QQHB")  # uid, response, port space, QP type
PRIVATE_BYTES = 256
CONNECTION = struct.Struct("=II256s8B")  # qp_num, qkey, private data, its length, srq ... valid
DATAGRAM = struct.Struct("=II32s256sB7x")  # qp_num, qkey, address handle, private data, its length
EVENT_HEAD = struct.Struct("=QIII")  # uid, id, event, status
EVENT_PARAMETER_BYTES, EVENT_TAIL = 304, bytes(12)
PATH_RECORD = struct.Struct("=16s16s2s2sI4sII2s10B")
ROUTE_TAIL = struct.Struct("=IB3xII")
QP_ATTRIBUTES = struct.Struct("=10I32s32s5I2H11B5x")  # struct ib_uverbs_qp_attr

REJECT_NO_SERVICE, REJECT_CONSUMER = 8, 28  # ib_cm_rej_reason
UDP_QKEY = 0x01234567  # RDMA_UDP_QKEY (include/rdma/rdma_cm.h)
MULTICAST_QPN = 0xFFFFFF
NO_INDEX = 0xFFFFFFFF


@record
class Address:
    """An IPv4 address and a port: `any` where it is 0.0.0.0."""

    ip: bytes = bytes(4)
    port: int = 0

    @property
    def is_any(self) -> bool:
        return not any(self.ip)

    @property
    def loopback(self) -> bool:
        return self.ip[0] == 127

    @property
    def multicast(self) -> bool:
        return self.ip[0] >> 4 == 0xE

    def pack(self) -> bytes:
        """`struct sockaddr_in`, in the room of a `struct sockaddr_in6`."""
        return struct.pack("=H", AF_INET) + self.port.to_bytes(2, "big") + self.ip + bytes(20)


def parse_address(data: bytes) -> Address | None:
    """A `struct sockaddr`; None where it is of a family, or an IPv6 address, that the twin does not have."""
    (family,) = struct.unpack_from("=H", data)
    port = int.from_bytes(data[2:4], "big")
    if family == AF_INET:
        return Address(data[4:8], port)
    if family == AF_INET6:
        ip = data[8:24]
        if not any(ip):
            return Address(bytes(4), port)
        if ip.startswith(bytes(10) + b"\xff\xff"):
            return Address(ip[12:], port)
    return None


@dataclass
class Parameters:
    """`struct rdma_ucm_conn_param`."""

    qp_num: int = 0
    qkey: int = 0
    private_data: bytes = b""
    srq: int = 0
    responder_resources: int = 0
    initiator_depth: int = 0
    flow_control: int = 0
    retry_count: int = 0
    rnr_retry_count: int = 0
    valid: int = 0

    @classmethod
    def parse(cls, data: bytes, at: int) -> Parameters:
        number, key, private, length, *rest = CONNECTION.unpack_from(data, at)
        return cls(number, key, private[:length], *rest)

    def pack(self) -> bytes:
        return CONNECTION.pack(
            self.qp_num, self.qkey, self.private_data[:PRIVATE_BYTES], min(len(self.private_data), 255), self.srq,
            self.responder_resources, self.initiator_depth, self.flow_control, self.retry_count,
            self.rnr_retry_count, self.valid,
        )  # fmt: skip

    def seen_from_peer(self) -> Parameters:
        """Parameters that the other side is told: its resources are this side's depth, and the other way round."""
        return Parameters(
            self.qp_num, self.qkey, self.private_data, self.srq, self.initiator_depth, self.responder_resources,
            self.flow_control, self.retry_count, self.rnr_retry_count,
        )  # fmt: skip
