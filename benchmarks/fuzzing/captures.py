"""Targets of `fuzz.py`: captures of packets."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from fuzzing.target import Target, of_file


def _captured() -> list[bytes]:
    ip = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 2, 20 + 8 + 12 + 16 + 4, 1, 0, 64, 17, 0, bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
    )
    bth = struct.pack(">BBHII", 0x0A, 0x40, 0xFFFF, 0x101, 0x80000005)
    reth = struct.pack(">QII", 0x7F0000000000, 0xABCD, 4)
    udp = struct.pack(">HHHH", 49152, 4791, 8 + 12 + 16 + 4, 0)
    frame = bytes(6) + bytes([2] * 6) + b"\x08\x00" + ip + udp + bth + reth + bytes(8)
    lrh = struct.pack(">BBHHH", 0x00, 0x02, 2, 9, 1)
    ack = struct.pack(">BBHII", 0x11, 0, 0xFFFF, 0x102, 5) + struct.pack(">I", 0x1F000001)
    link = lrh + ack + bytes(6)
    pause = (
        bytes([1, 0x80, 0xC2, 0, 0, 1]) + bytes(6) + b"\x88\x08\x01\x01" + b"\0\x08" + b"\xff\xff" * 8 + bytes(26)
    )
    samples = []
    for order in "<>":
        head = struct.pack(f"{order}IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
        rows = b"".join(
            struct.pack(f"{order}IIII", 1, i, len(p), len(p)) + p for i, p in enumerate((frame, pause))
        )
        samples.append(head + rows)
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 247)
    samples.append(head + struct.pack("<IIII", 1, 2, len(link), len(link)) + link)

    def block(kind: int, body: bytes) -> bytes:
        body = body.ljust(-(-len(body) // 4) * 4, b"\0")
        return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)

    section = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    interface = block(1, struct.pack("<HHI", 1, 0, 0) + struct.pack("<HHB3xHH", 9, 1, 9, 0, 0))
    packet = block(6, struct.pack("<IIIII", 0, 0, 1000, len(frame), len(frame)) + frame)
    samples.append(section + interface + packet + packet)
    samples.append(struct.pack("<Q", 1 << 32) + struct.pack(">BBHHH", 21, 4, 16 + len(link), 0, len(link)) + link)
    return samples


def _pcap() -> Target:
    from fabrictwin.capture.flow_summary import summarise, text
    from fabrictwin.capture.reader import CaptureFile

    def read(path: Path) -> None:
        summary = summarise(CaptureFile(path))
        summary.as_json()
        text(summary)

    return Target(_captured(), of_file("capture.pcap", read))


CAPTURES: dict[str, Callable[[], Target]] = {
    "pcap": _pcap,
}
