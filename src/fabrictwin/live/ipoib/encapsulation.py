"""IPoIB's own bytes: header, hardware addresses, ARP packets, multicast groups (RFC 4391, RFC 4755)."""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER = struct.Struct(">HH")  # EtherType, reserved
HEADER_BYTES = HEADER.size
IPV4, ARP = 0x0800, 0x0806
QKEY = 0x0B1B  # of the broadcast group, as OpenSM and the twin's manager make it
MULTICAST_QPN = 0xFFFFFF
CONNECTED_MTU = 65520
BROADCAST_IP = b"\xff\xff\xff\xff"
_ARP = struct.Struct(">HHBBH20s4s20s4s")
_HARDWARE_INFINIBAND = 32
REQUEST, REPLY = 1, 2
_CONNECTED_FLAG = 0x80  # of a hardware address: its owner takes reliable connections (RFC 4755, 3.1)


class HardwareAddress(NamedTuple):
    """A link-layer address of 20 bytes: flags, queue pair number, GID (RFC 4391, 9.1.1)."""

    qpn: int
    gid: bytes
    connected: bool = False

    def pack(self) -> bytes:
        return bytes([_CONNECTED_FLAG * self.connected]) + self.qpn.to_bytes(3, "big") + self.gid

    @classmethod
    def unpack(cls, raw: bytes) -> HardwareAddress:
        return cls(int.from_bytes(raw[1:4], "big"), raw[4:20], bool(raw[0] & _CONNECTED_FLAG))


class Arp(NamedTuple):
    """An ARP packet between hardware addresses of InfiniBand (RFC 4391, 9.1)."""

    operation: int
    sender: HardwareAddress
    sender_ip: bytes
    target: bytes  # hardware address as it is packed; zeros in a request
    target_ip: bytes

    def pack(self) -> bytes:
        return _ARP.pack(
            _HARDWARE_INFINIBAND, IPV4, 20, 4, self.operation,
            self.sender.pack(), self.sender_ip, self.target, self.target_ip,
        )  # fmt: skip

    @classmethod
    def unpack(cls, raw: bytes) -> Arp | None:
        """Return the packet; None for what is none between IPv4 addresses over InfiniBand."""
        if len(raw) < _ARP.size:
            return None
        kind, protocol, hardware, address, operation, sender, sender_ip, target, target_ip = _ARP.unpack_from(raw)
        if (kind, protocol, hardware, address) != (_HARDWARE_INFINIBAND, IPV4, 20, 4):
            return None
        return cls(operation, HardwareAddress.unpack(sender), sender_ip, target, target_ip)


def encapsulated(ethertype: int, packet: bytes) -> bytes:
    return HEADER.pack(ethertype, 0) + packet


def multicast_gid(ip: bytes, partition: int) -> bytes:
    """Return the group of an IPv4 multicast address, or of the broadcast address (RFC 4391, 4)."""
    low = ip if ip == BROADCAST_IP else bytes((ip[0] & 0x0F, *ip[1:]))
    return b"\xff\x12\x40\x1b" + (partition | 0x8000).to_bytes(2, "big") + bytes(6) + low
