"""Capture files read: pcap of either byte order and resolution, pcapng, and bare ERF records.

A file that ends in the middle of a packet is read as far as it goes, and the reader says so. Anything that no
capture can be is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fabrictwin.base.errors import ConfigError
from fabrictwin.base.textfile import open_bytes, read_so_far
from fabrictwin.capture.pcapng import (
    ERF_BYTES,
    ERF_INFINIBAND,
    INBOUND,
    INTERFACE,
    LINK_ERF,
    OUTBOUND,
    PACKET,
    SECTION,
)
from fabrictwin.kernel.codes import PS_PER_S

_PCAP = {0xA1B2C3D4: 10**6, 0xA1B23C4D: 10**9}  # ticks a second, by magic number
_SIMPLE_PACKET = 3
_LONGEST = 1 << 26  # a block or packet of more bytes is damage
_RESOLUTION, _OFFSET, _NAME, _FLAGS = 9, 14, 2, 2
_ERF_EXTENSION = 0x80  # of the type: another header follows


@dataclass(frozen=True, slots=True)
class Packet:
    """One captured packet. `outbound`: None where the file does not say."""

    time_ps: int
    interface: int
    link: int  # of tcpdump's link types; LINK_ERF without its ERF header
    data: bytes
    wire_bytes: int
    outbound: bool | None = None


class CaptureFile:
    """Iterates over the packets of a file. Raises ConfigError for what is no capture."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.names: dict[int, str] = {}
        self.kind = ""
        self.cut = False  # the file ends in the middle of a packet
        self._open: BinaryIO | None = None

    def share_read(self) -> float:
        """Return which share of the file was read, 0 to 1, while packets are taken."""
        if self._open is None:
            return 0.0
        return 1.0 if self._open.closed else read_so_far(self._open) / max(self.path.stat().st_size, 1)

    def _error(self, message: str) -> ConfigError:
        return ConfigError(f"{message}, expected a pcap, pcapng or ERF capture", file=self.path)

    def __iter__(self) -> Iterator[Packet]:
        try:
            file = open_bytes(self.path)
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=self.path) from None
        with file:
            self._open = file
            start = file.read(24)
            if len(start) < 8:
                raise self._error(f"got {len(start)} bytes" if start else "got an empty file")
            file.seek(0)
            word = int.from_bytes(start[:4], "little")
            swapped = int.from_bytes(start[:4], "big")
            if word == SECTION:
                self.kind = "pcapng"
                yield from self._pcapng(file)
            elif word in _PCAP or swapped in _PCAP:
                self.kind = "pcap"
                yield from self._pcap(file, "<" if word in _PCAP else ">")
            elif len(start) >= ERF_BYTES and start[8] & 0x7F in range(1, 50) and self._plausible_erf(start):
                self.kind = "ERF"
                yield from self._erf(file)
            else:
                raise self._error(f"got a file that starts with {start[:4].hex()}")

    def _plausible_erf(self, start: bytes) -> bool:
        length = int(struct.unpack_from(">H", start, 10)[0])
        return ERF_BYTES <= length <= self.path.stat().st_size

    # ------------------------------------------------------------------ pcap

    def _pcap(self, file: BinaryIO, order: str) -> Iterator[Packet]:
        head = file.read(24)
        if len(head) < 24:
            raise self._error(f"got a header of {len(head)} bytes")
        magic, _, _, _, _, _, link = struct.unpack(f"{order}IHHiIII", head)
        unit = PS_PER_S // _PCAP[magic]
        link &= 0xFFFF
        while head := file.read(16):
            if len(head) < 16:
                self.cut = True
                return
            seconds, ticks, kept, whole = struct.unpack(f"{order}IIII", head)
            if kept > _LONGEST:
                raise self._error(f"got a packet of {kept} bytes")
            data = file.read(kept)
            if len(data) < kept:
                self.cut = True
                return
            packet = self._packet(seconds * PS_PER_S + ticks * unit, 0, link, data, whole, None)
            if packet is not None:
                yield packet

    # ------------------------------------------------------------------ pcapng

    def _pcapng(self, file: BinaryIO) -> Iterator[Packet]:
        order, first = "<", 0
        interfaces: list[tuple[int, int, int, int]] = []  # link, ticks a second, offset in s, snaplen
        while head := file.read(8):
            if len(head) < 8:
                self.cut = True
                return
            kind, length = struct.unpack(f"{order}II", head)
            if kind == SECTION:
                mark = file.read(4)
                if len(mark) < 4:
                    self.cut = True
                    return
                if mark == b"\x1a\x2b\x3c\x4d":
                    order = ">"
                elif mark == b"\x4d\x3c\x2b\x1a":
                    order = "<"
                else:
                    raise self._error(f"got a byte order mark of {mark.hex()}")
                length = struct.unpack(f"{order}I", head[4:])[0]
                file.seek(-4, 1)
                first += len(interfaces)
                interfaces = []
            if not 12 <= length <= _LONGEST or length & 3:
                raise self._error(f"got a block of {length} bytes")
            body = file.read(length - 8)
            if len(body) < length - 8:
                self.cut = True
                return
            body = body[:-4]
            try:
                if kind == INTERFACE:
                    link, _, snaplen = struct.unpack_from(f"{order}HHI", body)
                    options = _options(body[8:], order)
                    code = options.get(_RESOLUTION, b"\x06")[:1] or b"\x06"
                    power = min(code[0] & 0x7F, 63)
                    rate = 2**power if code[0] & 0x80 else 10 ** min(power, 18)
                    offset = options.get(_OFFSET, b"").ljust(8, b"\0")[:8]
                    seconds = struct.unpack(f"{order}q", offset)[0]
                    self.names[first + len(interfaces)] = options.get(_NAME, b"").decode("utf-8", "replace")
                    interfaces.append((link, rate, seconds, snaplen))
                elif kind == PACKET:
                    number, high, low, kept, whole = struct.unpack_from(f"{order}IIIII", body)
                    link, rate, seconds, _ = interfaces[number]
                    if 20 + kept > len(body):
                        raise ValueError
                    flags = _options(body[20 + kept + (-kept & 3) :], order).get(_FLAGS, b"")
                    way = struct.unpack(f"{order}I", flags[:4])[0] & 3 if len(flags) >= 4 else 0
                    outbound = {INBOUND: False, OUTBOUND: True}.get(way)
                    time = seconds * PS_PER_S + (high << 32 | low) * PS_PER_S // rate
                    packet = self._packet(time, first + number, link, body[20 : 20 + kept], whole, outbound)
                    if packet is not None:
                        yield packet
                elif kind == _SIMPLE_PACKET:
                    whole = struct.unpack_from(f"{order}I", body)[0]
                    link, _, _, snaplen = interfaces[0]
                    kept = min(whole, snaplen or whole, len(body) - 4)
                    packet = self._packet(0, first, link, body[4 : 4 + kept], whole, None)
                    if packet is not None:
                        yield packet
            except (struct.error, IndexError, ValueError):
                raise self._error(f"got a damaged block of type {kind}") from None

    # ------------------------------------------------------------------ ERF

    def _erf(self, file: BinaryIO) -> Iterator[Packet]:
        while head := file.read(ERF_BYTES):
            if len(head) < ERF_BYTES:
                self.cut = True
                return
            length = struct.unpack_from(">H", head, 10)[0]
            if length < ERF_BYTES:
                raise self._error(f"got an ERF record of {length} bytes")
            rest = file.read(length - ERF_BYTES)
            if len(rest) < length - ERF_BYTES:
                self.cut = True
                return
            packet = self._packet(0, 0, LINK_ERF, head + rest, length, None)
            if packet is not None:
                yield packet

    def _packet(
        self, time_ps: int, interface: int, link: int, data: bytes, whole: int, outbound: bool | None
    ) -> Packet | None:
        """A packet; an ERF record is opened, and gives its own time."""
        if link != LINK_ERF:
            return Packet(time_ps, interface, link, data, max(whole, len(data)), outbound)
        if len(data) < ERF_BYTES or data[8] & 0x7F != ERF_INFINIBAND:
            return None
        stamp = int.from_bytes(data[:8], "little")
        length, _, wire = struct.unpack_from(">HHH", data, 10)
        at, more = ERF_BYTES, data[8] & _ERF_EXTENSION
        while more and at + 8 <= len(data):
            more = data[at] & 0x80
            at += 8
        del length
        return Packet(stamp * PS_PER_S >> 32, interface, LINK_ERF, data[at:], max(wire, len(data) - at), outbound)


def _options(data: bytes, order: str) -> dict[int, bytes]:
    """Options of a block; what is damaged ends them."""
    found: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from(f"{order}HH", data, at)
        if code == 0 or at + 4 + length > len(data):
            break
        found.setdefault(code, data[at + 4 : at + 4 + length])
        at += 4 + length + (-length & 3)
    return found
