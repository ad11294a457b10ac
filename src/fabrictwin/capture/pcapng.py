"""Captures as pcapng files (draft-ietf-opsawg-pcapng), written as they come.

One interface a port, time stamps in nanoseconds of simulated time. Ethernet frames stand as they are; InfiniBand's
as ERF records (Endace's extensible record format, type 21), which is what analysers take them in.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from fabrictwin.base.closing import Closing
from fabrictwin.base.errors import ConfigError, unwritten
from fabrictwin.base.process.interrupt import begin, finish
from fabrictwin.base.textfile import open_to_write
from fabrictwin.kernel.codes import PS_PER_S

LINK_ETHERNET, LINK_ERF = 1, 197
SECTION, INTERFACE, PACKET = 0x0A0D0D0A, 1, 6
BYTE_ORDER = 0x1A2B3C4D
ERF_INFINIBAND = 21
ERF_VARYING_LENGTH = 0x04
ERF_BYTES = 16
INBOUND, OUTBOUND = 1, 2
PS_PER_NS = 1000
_END, _COMMENT, _NAME, _RESOLUTION, _FLAGS, _APPLICATION = 0, 1, 2, 9, 2, 4


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) & 3)


def _block(kind: int, body: bytes) -> bytes:
    length = len(body) + 12
    return struct.pack("<II", kind, length) + body + struct.pack("<I", length)


def erf(time_ps: int, packet: bytes, wire_bytes: int) -> bytes:
    """An ERF record: seconds in 32.32 fixed point, little-endian; the rest is big-endian."""
    stamp = (time_ps << 32) // PS_PER_S
    return (
        struct.pack("<Q", stamp)
        + struct.pack(">BBHHH", ERF_INFINIBAND, ERF_VARYING_LENGTH, ERF_BYTES + len(packet), 0, wire_bytes)
        + packet
    )


class CaptureWriter(Closing):
    """A capture file. Raises ConfigError where it cannot be written."""

    def __init__(self, path: str | Path, *, snaplen: int = 0, comment: str = "") -> None:
        if snaplen < 0:
            raise ConfigError(f"got {snaplen}, expected 0 (whole packets) or a number of bytes", key="snaplen")
        self.path, self.snaplen, self.packets = Path(path), snaplen, 0
        try:
            self._file: BinaryIO = open_to_write(self.path)
        except OSError as error:
            raise self._refusal(error) from None
        if self.path.is_file():  # and no pipe, which holds nothing
            begin(self.path)
        self._links: list[int] = []
        options = _option(_APPLICATION, b"fabrictwin")
        if comment:
            options = _option(_COMMENT, comment.encode()) + options
        self._write(_block(SECTION, struct.pack("<IHHq", BYTE_ORDER, 1, 0, -1) + options + bytes(4)))

    def _refusal(self, error: OSError) -> ConfigError:
        return unwritten(error, message=f"got {str(self.path)!r}, which cannot be written", key="pcap")

    def _write(self, block: bytes) -> None:
        try:
            self._file.write(block)
        except OSError as error:
            raise self._refusal(error) from None

    def interface(self, name: str, link: int) -> int:
        """A port to capture at; returns its number."""
        options = _option(_NAME, name.encode()) + _option(_RESOLUTION, b"\x09") + bytes(4)
        self._write(_block(INTERFACE, struct.pack("<HHI", link, 0, self.snaplen) + options))
        self._links.append(link)
        return len(self._links) - 1

    def packet(self, interface: int, time_ps: int, frame: bytes, *, outbound: bool) -> None:
        """One frame as it is on the wire."""
        whole = len(frame)
        kept = frame[: self.snaplen] if self.snaplen else frame
        if self._links[interface] == LINK_ERF:
            whole += ERF_BYTES
            kept = erf(time_ps, kept, len(frame))
        stamp = time_ps // PS_PER_NS
        head = struct.pack("<IIIII", interface, stamp >> 32, stamp & 0xFFFFFFFF, len(kept), whole)
        options = _option(_FLAGS, struct.pack("<I", OUTBOUND if outbound else INBOUND)) + bytes(4)
        self._write(_block(PACKET, head + kept + bytes(-len(kept) & 3) + options))
        self.packets += 1

    def close(self) -> None:
        """Write what is left; a capture that an interrupt ends is removed."""
        try:
            self._file.close()
        except OSError as error:
            raise self._refusal(error) from None
        finally:
            finish(self.path)
