"""Protocol buffers on the wire (protobuf.dev/programming-guides/encoding): fields in, fields out, no schema.

Messages of a stream are delimited by their length, as Chakra's files have them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from fabrictwin.base.errors import ConfigError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10

Field = tuple[int, int, int | bytes]  # number, wire type, value


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for i in range(at, min(at + _LONGEST_VARINT, end)):
        value |= (data[i] & 0x7F) << shift
        if data[i] < 0x80:
            return value & ((1 << 64) - 1), i + 1
        shift += 7
    raise ValueError("ends within a number")


def fields(data: bytes) -> Iterator[Field]:
    """All fields of a message, in their order. Raises ValueError where it is none."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at, end)
        number, kind = key >> 3, key & 7
        value: int | bytes
        if kind == VARINT:
            value, at = _varint(data, at, end)
        else:
            size = {FIXED64: 8, FIXED32: 4}.get(kind, -1)
            if kind == BYTES:
                size, at = _varint(data, at, end)
            if size < 0:
                raise ValueError(f"has wire type {kind}, which no field has")
            if at + size > end:
                raise ValueError("ends within a field")
            value, at = data[at : at + size], at + size
        if not number:
            raise ValueError("has a field of number 0")
        yield number, kind, value


def messages(data: bytes, file: str) -> Iterator[bytes]:
    """The messages of a stream. Raises ConfigError where it is cut off."""
    at = 0
    while at < len(data):
        try:
            size, at = _varint(data, at, len(data))
            if at + size > len(data):
                raise ValueError("ends within a message")
        except ValueError as error:
            raise ConfigError(f"is no stream of protocol buffers: it {error} at byte {at}", file=file) from None
        yield data[at : at + size]
        at += size


def signed(value: int) -> int:
    """An int32 or int64 as it stands on the wire: two's complement of 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def zigzag(value: int) -> int:
    """An sint32 or sint64."""
    return (value >> 1) ^ -(value & 1)


def packed_wholes(value: int | bytes) -> list[int]:
    """A repeated varint field's values: one, or packed many. Raises ValueError."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        one, at = _varint(value, at, len(value))
        found.append(one)
    return found


def fixed(value: int | bytes, form: str) -> float | int:
    """A fixed field by `struct`'s letter. Raises ValueError where its width differs."""
    if not isinstance(value, bytes) or len(value) != struct.calcsize("<" + form):
        raise ValueError("has a fixed field of another width")
    found: float | int = struct.unpack("<" + form, value)[0]
    return found


# ------------------------------------------------------------------ writing


def varint(value: int) -> bytes:
    """A number as it stands on the wire."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | bytes | str) -> bytes:
    """One field: a number as a varint; bytes or text with their length."""
    if isinstance(value, int):
        return varint(number << 3 | VARINT) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | BYTES) + varint(len(raw)) + raw


def delimited(message: bytes) -> bytes:
    """A message of a stream."""
    return varint(len(message)) + message
