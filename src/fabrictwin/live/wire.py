"""Commands and records of the kernel's interface: uapi rdma/ib_user_verbs.h, rdma_user_rxe.h (Linux 6.1).

Only their layout: numbers of commands, and structs by name. Responses begin where the command's `response` points.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from fabrictwin.base.records import record

VERBS_ABI, RXE_ABI, CM_ABI = 6, 2, 4


class Kind(IntEnum):
    """Requests of the preloaded library (preload/protocol.h)."""

    OPEN = 1
    COMMAND = 2
    DOORBELL = 3
    DESCRIPTOR = 4
    CM_COMMAND = 5
    ADDRESS = 6
    TREE = 7
    HOSTS = 8
    JOIN = 9
    WAIT = 10
    WITHDRAW = 11
    TIMER = 12
    IOCTL = 13


PROTOCOL = 4
HANDLES = 65536
CONTROL_BYTES = 6 * HANDLES
PAYLOAD_BYTES = 16384
REQUEST = struct.Struct("=IIQ")  # kind, length, argument
REPLY = struct.Struct("=iIiI")  # error, length, descriptor_at, number

WAIT = struct.Struct("=IIQ")  # kind, number, news
JOINED = struct.Struct("=I")  # slot
CLOCK_HEAD = struct.Struct("=QQQQ")  # now_ps, epoch_ns, boot_ns, tick_ps
CLOCK_NEWS, CLOCK_SLOTS = 512, 4096  # where the counts of news begin, and how many there are


class WaitKind(IntEnum):
    """enum live_wait_kind."""

    SLEEP = 1
    NEWS = 2
    LOOK = 3
    LOCK = 4


class Command(IntEnum):
    """ib_uverbs_write_cmds."""

    GET_CONTEXT = 0
    QUERY_DEVICE = 1
    QUERY_PORT = 2
    ALLOC_PD = 3
    DEALLOC_PD = 4
    CREATE_AH = 5
    DESTROY_AH = 8
    REG_MR = 9
    REREG_MR = 11
    DEREG_MR = 13
    ALLOC_MW = 14
    DEALLOC_MW = 16
    CREATE_COMP_CHANNEL = 17
    CREATE_CQ = 18
    RESIZE_CQ = 19
    DESTROY_CQ = 20
    REQ_NOTIFY_CQ = 23
    CREATE_QP = 24
    QUERY_QP = 25
    MODIFY_QP = 26
    DESTROY_QP = 27
    POST_SEND = 28
    ATTACH_MCAST = 30
    DETACH_MCAST = 31
    CREATE_SRQ = 32
    MODIFY_SRQ = 33
    QUERY_SRQ = 34
    DESTROY_SRQ = 35


COMMAND_MASK, EXTENDED = 0xFF, 0x80000000
HEADER = struct.Struct("=IHH")  # command, in_words, out_words
EXTENDED_HEADER = struct.Struct("=QHHI")  # response, provider_in_words, provider_out_words, reserved

QUERY_DEVICE_RESPONSE = struct.Struct("=Q8s8sQQ32IHBB4x")
EXTENDED_QUERY_DEVICE_TAIL = struct.Struct("=II Q3I4x QQQ 3I4x II 5I4x HHI Q I4x")
QUERY_PORT_RESPONSE = struct.Struct("=5I3H14B")
REG_MR = struct.Struct("=QQQQII")  # response, start, length, hca_va, pd, access
REREG_MR = struct.Struct("=QIIQQQII")  # response, mr, flags, start, length, hca_va, pd, access
CREATE_CQ = struct.Struct("=QIIi")  # user_handle, cqe, vector, channel
AH_ATTRIBUTES = struct.Struct("=16sIBBBxHBBBBBx")
CREATE_QP = struct.Struct("=Q9I3Bx")
QP_DESTINATION = struct.Struct("=16sIHHBBBBBBBB")
MODIFY_QP = struct.Struct("=7I2H14B2x")  # behind two destinations: handle, mask ...
QUERY_QP_TAIL = struct.Struct("=10I2H15B5x")  # behind two destinations
CREATE_SRQ = struct.Struct("=QIIII")  # user_handle, pd, max_wr, max_sge, limit
MEMORY_INFO = struct.Struct("=QII")  # struct mminfo: offset, size, pad
ASYNC_EVENT = struct.Struct("=QII")
COMPLETION = struct.Struct("=QIIIIIIIIHHBBBB")  # struct ib_uverbs_wc
MULTICAST = struct.Struct("=16sIHH")

# struct rxe_send_wqe: wr_id, opcode, send_flags, imm_data; behind it the union, then status ... and the segments
SEND_HEAD = struct.Struct("=Q4xIII")
SEND_RDMA = struct.Struct("=QI")  # at SEND_UNION
SEND_ATOMIC = struct.Struct("=QQQI")
SEND_DATAGRAM = struct.Struct("=IIHHI")  # remote_qpn, remote_qkey, pkey_index, reserved, ah_num
SEND_WINDOW = struct.Struct("=QQIIII")  # addr, length, mr_lkey, mw_rkey, rkey, access
SEND_FLUSH = struct.Struct("=QIIBB")  # address, length, rkey, type, level (Linux 6.2)
SEND_UNION, SEND_DMA, SEND_BYTES = 24, 184, 208
DMA = struct.Struct("=IIII")  # length, resid, cur_sge, num_sge
SEGMENT = struct.Struct("=QII")  # address, length, lkey
RECEIVE_HEAD = struct.Struct("=Q8xI8xI")  # wr_id, dma.length, dma.num_sge
RECEIVE_BYTES = 40
COMPLETION_LOG2 = 6  # a completion takes 64 bytes of the ring, as in the kernel
RING_PRODUCER, RING_HEADER_BYTES = 128, 384  # struct rxe_queue_buf


@record
class Call:
    """A command as it came: its number, its bytes behind the headers, and the room for the response."""

    number: int
    extended: bool
    body: bytes
    room: int


def parse(data: bytes) -> Call:
    """Take a command apart. Raises struct.error where it is too short, ValueError where its sizes do not agree."""
    command, in_words, out_words = HEADER.unpack_from(data)
    if not command & EXTENDED:
        if in_words * 4 != len(data):
            raise ValueError("in_words is not the command's length")
        return Call(command & COMMAND_MASK, False, data[HEADER.size :], out_words * 4)
    _, provider_in, provider_out, _ = EXTENDED_HEADER.unpack_from(data, HEADER.size)
    front = HEADER.size + EXTENDED_HEADER.size
    if (in_words + provider_in) * 8 + front != len(data):
        raise ValueError("in_words is not the command's length")
    return Call(command & COMMAND_MASK, True, data[front:], 8 * (out_words + provider_out))
