"""InfiniBand's transport headers (InfiniBand Architecture, volume 1, chapter 9), written and read.

The high three bits of a BTH's opcode are the service, the low five what the packet is; that decides which extended
headers follow.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum


class Service(IntEnum):
    RC = 0x00
    UC = 0x20
    RD = 0x40
    UD = 0x60
    XRC = 0xA0


class Op(IntEnum):
    """The low five bits of an opcode."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_IMMEDIATE = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_IMMEDIATE = 0x05
    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_LAST_IMMEDIATE = 0x09
    WRITE_ONLY = 0x0A
    WRITE_ONLY_IMMEDIATE = 0x0B
    READ_REQUEST = 0x0C
    READ_RESPONSE_FIRST = 0x0D
    READ_RESPONSE_MIDDLE = 0x0E
    READ_RESPONSE_LAST = 0x0F
    READ_RESPONSE_ONLY = 0x10
    ACKNOWLEDGE = 0x11
    ATOMIC_ACKNOWLEDGE = 0x12
    COMPARE_SWAP = 0x13
    FETCH_ADD = 0x14
    SEND_LAST_INVALIDATE = 0x16
    SEND_ONLY_INVALIDATE = 0x17


CNP = 0x81  # congestion notification packet (annex 17)
CNP_RESERVED = bytes(16)
BTH_BYTES = 12
FECN, BECN = 0x80, 0x40  # of BTH's fifth byte

RETH, AETH, ATOMIC_ETH, ATOMIC_ACK, IMMEDIATE, IETH = "RETH", "AETH", "AtomicETH", "AtomicAckETH", "ImmDt", "IETH"
SIZES = {"DETH": 8, "XRCETH": 4, RETH: 16, AETH: 4, ATOMIC_ETH: 28, ATOMIC_ACK: 8, IMMEDIATE: 4, IETH: 4}
EXTENDED: dict[int, tuple[str, ...]] = {
    op: headers
    for headers, ops in {
        (IMMEDIATE,): (Op.SEND_LAST_IMMEDIATE, Op.SEND_ONLY_IMMEDIATE, Op.WRITE_LAST_IMMEDIATE),
        (RETH,): (Op.WRITE_FIRST, Op.WRITE_ONLY, Op.READ_REQUEST),
        (RETH, IMMEDIATE): (Op.WRITE_ONLY_IMMEDIATE,),
        (AETH,): (Op.READ_RESPONSE_FIRST, Op.READ_RESPONSE_LAST, Op.READ_RESPONSE_ONLY, Op.ACKNOWLEDGE),
        (AETH, ATOMIC_ACK): (Op.ATOMIC_ACKNOWLEDGE,),
        (ATOMIC_ETH,): (Op.COMPARE_SWAP, Op.FETCH_ADD),
        (IETH,): (Op.SEND_LAST_INVALIDATE, Op.SEND_ONLY_INVALIDATE),
    }.items()
    for op in ops
}
# a message's last packet
ENDS = frozenset(
    {op for op in Op if any(word in op.name for word in ("LAST", "ONLY"))}
    | {Op.READ_REQUEST, Op.ACKNOWLEDGE, Op.ATOMIC_ACKNOWLEDGE, Op.COMPARE_SWAP, Op.FETCH_ADD}
)
ANSWERS = frozenset(op for op in Op if "RESPONSE" in op.name or "ACKNOWLEDGE" in op.name)

ACKED, NOT_READY, REFUSED = 0, 1, 3  # the high bits of a syndrome, after its top bit
CREDITS_UNLIMITED = 0x1F

# timer codes of an RNR NAK, in microseconds (9.7.5.2.8)
RNR_TIMER_US = (
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920,
    2_560, 3_840, 5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880,
    163_840, 245_760, 327_680, 491_520,
)  # fmt: skip


def op_name(opcode: int) -> str:
    """`RC WRITE_ONLY`; a number in hexadecimal where there is no such opcode."""
    if opcode == CNP:
        return "CNP"
    service, op = opcode & 0xE0, opcode & 0x1F
    if service in list(Service) and op in list(Op):
        return f"{Service(service).name} {Op(op).name}"
    return f"{opcode:#04x}"


def extended(opcode: int) -> tuple[str, ...]:
    """Names of the headers after BTH, in order."""
    service = opcode & 0xE0
    before = (
        {Service.UD: ("DETH",), Service.XRC: ("XRCETH",)}.get(Service(service), ())
        if service in list(Service)
        else ()
    )
    return before + EXTENDED.get(opcode & 0x1F, ())


@dataclass(frozen=True, slots=True)
class Bth:
    """The base transport header."""

    opcode: int
    partition: int
    target_qpn: int
    psn: int
    ack_request: bool = False
    solicited: bool = False
    pad: int = 0
    notified: int = 0  # FECN, BECN

    def pack(self) -> bytes:
        flags = self.solicited << 7 | self.pad << 4
        word = self.notified << 24 | self.target_qpn & 0xFFFFFF
        return struct.pack(
            ">BBHII", self.opcode, flags, self.partition, word, self.ack_request << 31 | self.psn & 0xFFFFFF
        )

    @classmethod
    def parse(cls, data: bytes) -> Bth:
        opcode, flags, partition, word, last = struct.unpack_from(">BBHII", data)
        return cls(
            opcode,
            partition,
            word & 0xFFFFFF,
            last & 0xFFFFFF,
            bool(last >> 31),
            bool(flags >> 7),
            flags >> 4 & 3,
            word >> 24,
        )


def deth(queue_key: int, source_qpn: int) -> bytes:
    return struct.pack(">II", queue_key & 0xFFFFFFFF, source_qpn & 0xFFFFFF)


def reth(address: int, key: int, length: int) -> bytes:
    return struct.pack(">QII", address & (1 << 64) - 1, key & 0xFFFFFFFF, length & 0xFFFFFFFF)


def aeth(syndrome: int, messages: int) -> bytes:
    return struct.pack(">I", (syndrome & 0xFF) << 24 | messages & 0xFFFFFF)


def atomic_eth(address: int, key: int, operands: tuple[int, int]) -> bytes:
    """`operands`: swap (or what to add), compare."""
    mask = (1 << 64) - 1
    return struct.pack(">QIQQ", address & mask, key & 0xFFFFFFFF, operands[0] & mask, operands[1] & mask)
