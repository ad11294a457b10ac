"""Write a timeline that ui.perfetto.dev opens.

The format is Perfetto's protobuf trace: a sequence of `TracePacket`, with one process per actor, one track per
lane, names interned once. Field numbers are those of Perfetto's `protos/perfetto/trace/trace_packet.proto`,
`track_event/track_event.proto`, `track_event/track_descriptor.proto` and `interned_data.proto`.

Perfetto counts nanoseconds; times are rounded down, so a slice may be drawn up to 1 ns off.
"""

from __future__ import annotations

import numpy as np

from fabrictwin.base.arrays import I32, I64, ranges
from fabrictwin.base.units import PS_PER_NS
from fabrictwin.interchange.protobuf_wire import field
from fabrictwin.program.program import NONE, Program
from fabrictwin.report.timeline.timeline_tracks import Slices

# TracePacket
PACKET = 1  # of Trace
TIMESTAMP = 8
SEQUENCE_ID = 10
TRACK_EVENT = 11
INTERNED_DATA = 12
SEQUENCE_FLAGS = 13
TRACK_DESCRIPTOR = 60
STATE_CLEARED = 1
NEEDS_STATE = 2
# TrackDescriptor
UUID = 1
TRACK_NAME = 2
PROCESS = 3
PARENT_UUID = 5
PROCESS_PID = 1
PROCESS_NAME = 6
# TrackEvent
CATEGORY_IID = 3
DEBUG_ANNOTATION = 4
EVENT_TYPE = 9
NAME_IID = 10
EVENT_TRACK = 11
SLICE_BEGIN = 1
SLICE_END = 2
# InternedData, and the entries in it
CATEGORIES = 1
EVENT_NAMES = 2
ANNOTATION_NAMES = 3
ENTRY_IID = 1
ENTRY_NAME = 2
# DebugAnnotation
ANNOTATION_NAME_IID = 1
ANNOTATION_INT = 4
ANNOTATION_STRING_IID = 17
ANNOTATION_STRINGS = 29  # InternedData.debug_annotation_string_values

_SEQUENCE = 1


def _entries(kind: int, names: list[str]) -> bytes:
    return b"".join(field(kind, field(ENTRY_IID, i + 1) + field(ENTRY_NAME, name)) for i, name in enumerate(names))


def perfetto_trace(program: Program, found: Slices) -> bytes:
    """The whole file. Track 0 of Perfetto is reserved, so actor `a` is uuid `a + 1` and tracks follow."""
    out = bytearray()
    sequence = field(SEQUENCE_ID, _SEQUENCE)
    labels = [label.name for label in program.labels]
    categories = sorted({label.category for label in program.labels})
    interned = (
        _entries(CATEGORIES, categories)
        + _entries(EVENT_NAMES, labels)
        + _entries(ANNOTATION_NAMES, ["micro_batch", "communication"])
        + _entries(ANNOTATION_STRINGS, [communication.name for communication in program.communications])
    )
    out += field(
        PACKET,
        sequence + field(SEQUENCE_FLAGS, STATE_CLEARED | NEEDS_STATE) + field(INTERNED_DATA, interned),
    )

    for actor in sorted({track.actor for track in found.tracks}):
        name = program.actors[actor].name
        process = field(PROCESS_PID, actor + 1) + field(PROCESS_NAME, name)
        descriptor = field(UUID, actor + 1) + field(TRACK_NAME, name) + field(PROCESS, process)
        out += field(PACKET, sequence + field(TRACK_DESCRIPTOR, descriptor))
    first = len(program.actors) + 1
    for i, track in enumerate(found.tracks):
        descriptor = field(UUID, first + i) + field(TRACK_NAME, track.name) + field(PARENT_UUID, track.actor + 1)
        out += field(PACKET, sequence + field(TRACK_DESCRIPTOR, descriptor))

    return bytes(out) + _events(program, found, first)


def _events(program: Program, found: Slices, first_track: int) -> bytes:
    """Begin and end packets of all slices. Packets that differ only in time share their bytes after it."""
    flags = field(SEQUENCE_ID, _SEQUENCE) + field(SEQUENCE_FLAGS, NEEDS_STATE)
    categories = sorted({label.category for label in program.labels})
    rests = [
        flags + field(TRACK_EVENT, field(EVENT_TYPE, SLICE_END) + field(EVENT_TRACK, first_track + i))
        for i in range(len(found.tracks))
    ]
    columns = (found.track, found.label, found.micro_batch, found.communication)
    which, one = _groups(columns)
    for track, label, micro_batch, communication in zip(*(c[one].tolist() for c in columns), strict=True):
        event = (
            field(EVENT_TYPE, SLICE_BEGIN)
            + field(EVENT_TRACK, first_track + track)
            + field(CATEGORY_IID, categories.index(program.labels[label].category) + 1)
            + field(NAME_IID, label + 1)
        )
        if micro_batch != NONE:
            note = field(ANNOTATION_NAME_IID, 1) + field(ANNOTATION_INT, micro_batch)
            event += field(DEBUG_ANNOTATION, note)
        if communication != NONE:
            note = field(ANNOTATION_NAME_IID, 2) + field(ANNOTATION_STRING_IID, communication + 1)
            event += field(DEBUG_ANNOTATION, note)
        rests.append(flags + field(TRACK_EVENT, event))

    time = np.stack([found.start_ps, found.end_ps], axis=1).ravel() // PS_PER_NS
    rest = np.stack([len(found.tracks) + which, found.track], axis=1).ravel()
    return _stamped(time, rest, rests)


def _groups(columns: tuple[I32, ...]) -> tuple[I64, I64]:
    """For rows that are equal in every column: the group of each row, and one row of each group."""
    order = np.lexsort(columns)
    new = np.ones(len(order), bool)
    new[1:] = np.any([c[order[1:]] != c[order[:-1]] for c in columns], axis=0)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(new) - 1
    return group, order[new]


def _stamped(time_ns: I64, rest: I64, rests: list[bytes]) -> bytes:
    """One packet per row: its time, then `rests[rest]`."""
    length = np.array([len(r) for r in rests], np.int64)
    if not len(rest):
        return b""
    # fields of an event packet: a time of at most 10 bytes and under a dozen small numbers
    assert int(length.max()) + 11 < 128, "the length of a packet takes one byte"
    table = np.frombuffer(b"".join(rests), np.uint8)
    table_start = np.cumsum(length) - length
    digits = np.ones(len(time_ns), np.int64)
    for k in range(1, 9):
        digits += time_ns >> (7 * k) > 0

    packet = 3 + digits + length[rest]  # key, length, key of the time, the time, the rest
    at = np.cumsum(packet) - packet
    out = np.empty(int(packet.sum()), np.uint8)
    out[at] = PACKET << 3 | 2
    out[at + 1] = packet - 2
    out[at + 2] = TIMESTAMP << 3
    for k in range(int(digits.max())):
        has = digits > k
        more = np.where(digits[has] > k + 1, 0x80, 0)
        out[at[has] + 3 + k] = time_ns[has] >> (7 * k) & 0x7F | more
    size = length[rest]
    out[ranges(at + 3 + digits, size)] = table[ranges(table_start[rest], size)]
    return out.tobytes()
