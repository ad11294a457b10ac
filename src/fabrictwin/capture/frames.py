"""Packets as they are on a link: RoCE v1 and v2 in Ethernet frames, InfiniBand's own, pause frames.

Ethernet frames are without their frame check sequence, as adapters hand them over. RoCE v2 over IPv6 has a UDP
checksum, over IPv4 none, as drivers send it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fabrictwin.capture.checksums import invariant, variant

ETHERNET_IPV4, ETHERNET_IPV6, ETHERNET_ROCE_V1, ETHERNET_PAUSE = 0x0800, 0x86DD, 0x8915, 0x8808
ROCE_PORT = 4791
UDP = 17
IPV4_BYTES, IPV6_BYTES, UDP_BYTES, ETHERNET_BYTES, LRH_BYTES, GRH_BYTES, ICRC_BYTES = 20, 40, 8, 14, 8, 40, 4
SHORTEST = 60  # an Ethernet frame without its check sequence
IBA_NEXT_HEADER = 0x1B  # of a GRH
LNH_LOCAL, LNH_GLOBAL = 2, 3
PAUSE_ADDRESS = bytes.fromhex("0180c2000001")
PAUSE_PRIORITIES = 0x0101
ONES = b"\xff"


@dataclass(frozen=True, slots=True)
class Address:
    """Addresses of one end, in all layers."""

    mac: bytes = bytes(6)
    gid: bytes = bytes(16)
    lid: int = 0


@dataclass(frozen=True, slots=True)
class Ends:
    """Where packets of one direction come from and go to, with what stays the same of their headers."""

    source: Address = Address()
    target: Address = Address()
    roce_v1: bool = False
    global_route: bool = False
    udp_port: int = 0xC000
    traffic_class: int = 0
    hop_limit: int = 64


def is_ipv4(gid: bytes) -> bool:
    """Return True for a GID that is an IPv4 address mapped into IPv6's."""
    return gid[:12] == bytes(10) + b"\xff\xff"


def _sum16(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data[: len(data) & ~1]))
    if len(data) & 1:
        total += data[-1] << 8
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _masked_bth(packet: bytes) -> bytes:
    """BTH and what follows, its reserved and congestion bits as ones."""
    return packet[:4] + ONES + packet[5:]


def grh(ends: Ends, length: int, traffic_class: int, next_header: int = IBA_NEXT_HEADER) -> bytes:
    """A global route header, which is IPv6's; `length` of what follows it, up to and with the ICRC."""
    word = 6 << 28 | traffic_class << 20
    return struct.pack(">IHBB", word, length, next_header, ends.hop_limit) + ends.source.gid + ends.target.gid


def _masked_grh(header: bytes) -> bytes:
    return bytes([header[0] | 0x0F]) + ONES * 3 + header[4:7] + ONES + header[8:]


def ethernet(ends: Ends, packet: bytes, *, congestion: int = 0) -> bytes:
    """A RoCE frame around `packet`, BTH to the end of its padding. `congestion`: the two ECN bits of IP."""
    traffic_class = ends.traffic_class & 0xFC | congestion
    macs = ends.target.mac + ends.source.mac
    length = len(packet) + ICRC_BYTES
    if ends.roce_v1:
        header = grh(ends, length, traffic_class)
        crc = invariant(ONES * 8 + _masked_grh(header) + _masked_bth(packet))
        frame = macs + struct.pack(">H", ETHERNET_ROCE_V1) + header + packet + crc
    elif is_ipv4(ends.source.gid):
        total = IPV4_BYTES + UDP_BYTES + length
        addresses = ends.source.gid[12:] + ends.target.gid[12:]
        head = struct.pack(">BBHHHBBH", 0x45, traffic_class, total, 0, 0x4000, ends.hop_limit, UDP, 0) + addresses
        checksum = 0xFFFF - _sum16(head)
        udp = struct.pack(">HHHH", ends.udp_port, ROCE_PORT, UDP_BYTES + length, 0)
        masked = (
            ONES * 8 + head[:1] + ONES + head[2:8] + ONES + head[9:10] + ONES * 2 + head[12:] + udp[:6] + ONES * 2
        )
        crc = invariant(masked + _masked_bth(packet))
        head = head[:10] + struct.pack(">H", checksum) + head[12:]
        frame = macs + struct.pack(">H", ETHERNET_IPV4) + head + udp + packet + crc
    else:
        header = grh(ends, UDP_BYTES + length, traffic_class, UDP)
        udp = struct.pack(">HHHH", ends.udp_port, ROCE_PORT, UDP_BYTES + length, 0)
        crc = invariant(ONES * 8 + _masked_grh(header) + udp[:6] + ONES * 2 + _masked_bth(packet))
        pseudo = header[8:] + struct.pack(">II", UDP_BYTES + length, UDP)
        checksum = 0xFFFF - _sum16(pseudo + udp + packet + crc) or 0xFFFF
        udp = udp[:6] + struct.pack(">H", checksum)
        frame = macs + struct.pack(">H", ETHERNET_IPV6) + header + udp + packet + crc
    return frame.ljust(SHORTEST, b"\0")


def infiniband(ends: Ends, packet: bytes, *, service_level: int, virtual_lane: int) -> bytes:
    """An InfiniBand packet around `packet`: LRH, GRH where it has one, both checksums."""
    length = len(packet) + ICRC_BYTES
    header = grh(ends, length, ends.traffic_class) if ends.global_route else b""
    words = (LRH_BYTES + len(header) + length) // 4
    lnh = LNH_GLOBAL if ends.global_route else LNH_LOCAL
    lrh = struct.pack(
        ">BBHHH", virtual_lane << 4, service_level << 4 | lnh, ends.target.lid, words, ends.source.lid
    )
    masked = bytes([lrh[0] | 0xF0]) + lrh[1:]
    if header:
        masked += _masked_grh(header)
    whole = lrh + header + packet + invariant(masked + _masked_bth(packet))
    return whole + variant(whole)


def pause(source_mac: bytes, priority: int, quanta: int) -> bytes:
    """A priority flow control frame (IEEE 802.1Qbb): XOFF for `quanta`, XON where that is 0."""
    times = [quanta if i == priority else 0 for i in range(8)]
    body = struct.pack(">HHH8H", ETHERNET_PAUSE, PAUSE_PRIORITIES, 1 << priority, *times)
    return (PAUSE_ADDRESS + source_mac + body).ljust(SHORTEST, b"\0")
