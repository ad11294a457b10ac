"""A decoder of Perfetto traces for tests, written from the format and not from the writer it checks.

Generic protobuf first (field number, wire type), then the few messages by their field numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, varint or bytes) of one message; raises on anything malformed."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a varint of more than ten bytes")

    while at < len(data):
        key = varint()
        number, wire = key // 8, key % 8
        if wire == 0:
            yield number, varint()
        elif wire == 2:
            size = varint()
            if at + size > len(data):
                raise ValueError("a field longer than its message")
            yield number, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {wire}")


def one(data: bytes) -> dict[int, int | bytes]:
    """A message whose fields appear once each."""
    found: dict[int, int | bytes] = {}
    for number, value in fields(data):
        assert number not in found
        found[number] = value
    return found


@dataclass
class Slice:
    process: str
    track: str
    uuid: int
    category: str
    name: str
    start_ns: int
    end_ns: int
    notes: dict[str, int | str]


@dataclass
class Decoded:
    processes: dict[int, str] = field(default_factory=dict)
    tracks: dict[int, tuple[int, str]] = field(default_factory=dict)  # uuid: (parent, name)
    slices: list[Slice] = field(default_factory=list)
    interned: dict[int, dict[int, str]] = field(default_factory=dict)


def decode(data: bytes) -> Decoded:
    """All tracks and slices; asserts that begins and ends pair up on every track."""
    out = Decoded()
    open_slices: dict[int, Slice] = {}
    for number, packet in fields(data):
        assert number == 1
        assert isinstance(packet, bytes)
        p = one(packet)
        assert p[10] == 1, "every packet names its sequence"
        if 12 in p:
            assert p[13] & 1, "interned data comes with a cleared state"
            for kind, entry in fields(p[12]):  # type: ignore[arg-type]
                e = one(entry)  # type: ignore[arg-type]
                names = out.interned.setdefault(kind, {})
                assert e[1] not in names
                names[e[1]] = e[2].decode()  # type: ignore[index,union-attr]
        elif 60 in p:
            d = one(p[60])  # type: ignore[arg-type]
            uuid = d[1]
            assert isinstance(uuid, int)
            assert uuid not in out.processes
            assert uuid not in out.tracks
            if 3 in d:
                out.processes[uuid] = one(d[3])[6].decode()  # type: ignore[arg-type,union-attr]
            else:
                out.tracks[uuid] = (d[5], d[2].decode())  # type: ignore[assignment,union-attr]
        else:
            assert p[13] == 2, "events need the interned state"
            e = one_event(p[11])  # type: ignore[arg-type]
            uuid = e["track"]
            parent, track = out.tracks[uuid]
            if e["type"] == 1:
                assert uuid not in open_slices, "slices of a track do not nest here"
                notes: dict[str, int | str] = {}
                for note in e["notes"]:
                    n = one(note)
                    value = n[4] if 4 in n else out.interned[29][n[17]]  # type: ignore[index]
                    notes[out.interned[3][n[1]]] = value  # type: ignore[index,assignment]
                open_slices[uuid] = Slice(
                    out.processes[parent],
                    track,
                    uuid,
                    out.interned[1][e["category"]],
                    out.interned[2][e["name"]],
                    p[8],  # type: ignore[arg-type]
                    -1,
                    notes,
                )
            else:
                assert e["type"] == 2
                closed = open_slices.pop(uuid)
                closed.end_ns = p[8]  # type: ignore[assignment]
                out.slices.append(closed)
    assert not open_slices
    return out


def one_event(data: bytes) -> dict:
    found: dict = {"notes": []}
    names = {9: "type", 11: "track", 3: "category", 10: "name"}
    for number, value in fields(data):
        if number == 4:
            found["notes"].append(value)
        else:
            assert names[number] not in found
            found[names[number]] = value
    return found
