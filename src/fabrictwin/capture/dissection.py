"""A frame taken apart: who sent it to which queue pair, what it is, and whether its ICRC holds."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from fabrictwin.capture import frames
from fabrictwin.capture import transport_headers as transport
from fabrictwin.capture.checksums import invariant
from fabrictwin.capture.pcapng import LINK_ERF, LINK_ETHERNET
from fabrictwin.capture.reader import Packet
from fabrictwin.capture.transport_headers import Bth

VLANS = (0x8100, 0x88A8)
LINK_RAW_IP = 101
LINK_SLL, LINK_SLL2 = 113, 276


@dataclass(frozen=True, slots=True)
class Seen:
    """An RDMA packet. `icrc_good`: None where the capture has not all of it."""

    source: str
    target: str
    bth: Bth
    payload_bytes: int
    ecn: int
    icrc_good: bool | None
    syndrome: int | None = None  # of an acknowledgement
    length: int | None = None  # that a RETH names
    datagram_from: int | None = None  # queue pair of a DETH


@dataclass(frozen=True, slots=True)
class Pause:
    """A priority flow control frame."""

    source: str
    quanta: tuple[int, ...]  # by priority; 0: go on
    enabled: int  # priorities it is for, a bit each


def dissect(packet: Packet) -> Seen | Pause | None:
    """Dissect a captured packet; None for what is not RDMA, or cut before its headers end."""
    try:
        if packet.link == LINK_ERF:
            return _infiniband(packet)
        if packet.link == LINK_ETHERNET:
            return _ethernet(packet)
        if packet.link == LINK_RAW_IP:
            return _ip(packet, 0, packet.data[0] >> 4)
        if packet.link in (LINK_SLL, LINK_SLL2):
            size = 16 if packet.link == LINK_SLL else 20
            kind = struct.unpack_from(">H", packet.data, 14 if packet.link == LINK_SLL else 0)[0]
            return _by_type(packet, size, kind)
    except (struct.error, IndexError, ValueError):
        return None
    return None


def _mac(raw: bytes) -> str:
    return raw.hex(":")


def _ethernet(packet: Packet) -> Seen | Pause | None:
    data = packet.data
    at = 12
    kind = struct.unpack_from(">H", data, at)[0]
    while kind in VLANS:
        at += 4
        kind = struct.unpack_from(">H", data, at)[0]
    at += 2
    if kind == frames.ETHERNET_PAUSE:
        code, enabled, *quanta = struct.unpack_from(">HH8H", data, at)
        return Pause(_mac(data[6:12]), tuple(quanta), enabled) if code == frames.PAUSE_PRIORITIES else None
    return _by_type(packet, at, kind)


def _by_type(packet: Packet, at: int, kind: int) -> Seen | None:
    if kind == frames.ETHERNET_IPV4:
        return _ip(packet, at, 4)
    if kind == frames.ETHERNET_IPV6:
        return _ip(packet, at, 6)
    if kind == frames.ETHERNET_ROCE_V1:
        header = packet.data[at : at + frames.GRH_BYTES]
        length = struct.unpack_from(">H", header, 4)[0]
        end = at + frames.GRH_BYTES + length
        masked = frames.ONES * 8 + _masked_grh(header)
        return _transport(packet, at + frames.GRH_BYTES, end, _gids(header), _traffic_class(header) & 3, masked)
    return None


def _traffic_class(header: bytes) -> int:
    return int(struct.unpack_from(">I", header)[0]) >> 20 & 0xFF


def _gids(header: bytes) -> tuple[str, str]:
    return str(IPv6Address(header[8:24])), str(IPv6Address(header[24:40]))


def _masked_grh(header: bytes) -> bytes:
    ones = frames.ONES
    return bytes([header[0] | 0x0F]) + ones * 3 + header[4:7] + ones + header[8:]


def _ip(packet: Packet, at: int, version: int) -> Seen | None:
    data, ones = packet.data, frames.ONES
    if version == 4:
        size = (data[at] & 0x0F) * 4
        total, fragment = struct.unpack_from(">HxxH", data, at + 2)
        if data[at + 9] != frames.UDP or fragment & 0x3FFF or size < frames.IPV4_BYTES:
            return None
        head = data[at : at + size]
        ends = str(IPv4Address(head[12:16])), str(IPv4Address(head[16:20]))
        masked = head[:1] + ones + head[2:8] + ones + head[9:10] + ones * 2 + head[12:]
        ecn, end = head[1] & 3, at + total
    elif version == 6:
        size = frames.IPV6_BYTES
        head = data[at : at + size]
        if head[6] != frames.UDP:
            return None
        ends, masked = _gids(head), _masked_grh(head)
        ecn, end = _traffic_class(head) & 3, at + size + struct.unpack_from(">H", head, 4)[0]
    else:
        return None
    udp = data[at + size : at + size + frames.UDP_BYTES]
    if struct.unpack_from(">H", udp, 2)[0] != frames.ROCE_PORT:
        return None
    masked = ones * 8 + masked + udp[:6] + ones * 2
    return _transport(packet, at + size + frames.UDP_BYTES, end, ends, ecn, masked)


def _infiniband(packet: Packet) -> Seen | None:
    data = packet.data
    lanes, level, target, words, source = struct.unpack_from(">BBHHH", data)
    del lanes
    at, end = frames.LRH_BYTES, (words & 0x7FF) * 4
    masked = bytes([data[0] | 0xF0]) + data[1:8]
    ends = f"LID {source}", f"LID {target}"
    if level & 3 == frames.LNH_GLOBAL:
        header = data[at : at + frames.GRH_BYTES]
        ends, masked = _gids(header), masked + _masked_grh(header)
        at += frames.GRH_BYTES
    elif level & 3 != frames.LNH_LOCAL:
        return None
    return _transport(packet, at, end, ends, 0, masked)


def _transport(packet: Packet, at: int, end: int, ends: tuple[str, str], ecn: int, masked: bytes) -> Seen | None:
    """From BTH at `at` to the ICRC that ends at `end`."""
    data = packet.data
    bth = Bth.parse(data[at : at + transport.BTH_BYTES])
    if end < at + transport.BTH_BYTES + frames.ICRC_BYTES:
        return None
    good = None
    if end <= len(data):
        body = data[at : end - frames.ICRC_BYTES]
        wanted = invariant(masked + body[:4] + frames.ONES + body[5:])
        good = data[end - frames.ICRC_BYTES : end] == wanted
    after = at + transport.BTH_BYTES
    syndrome = length = source_qpn = None
    if bth.opcode == transport.CNP:
        payload = 0
    else:
        for name in transport.extended(bth.opcode):
            if name == transport.AETH:
                syndrome = data[after]
            elif name == transport.RETH:
                length = struct.unpack_from(">I", data, after + 12)[0]
            elif name == "DETH":
                source_qpn = struct.unpack_from(">I", data, after + 4)[0] & 0xFFFFFF
            after += transport.SIZES[name]
        payload = max(end - frames.ICRC_BYTES - bth.pad - after, 0)
    return Seen(ends[0], ends[1], bth, payload, ecn, good, syndrome, length, source_qpn)
