"""The timeline as Perfetto's own protobuf classes read it."""

from __future__ import annotations

import pytest
from support.run_sample import pipeline

from fabrictwin.report.timeline.intervals import intervals
from fabrictwin.report.timeline.perfetto import perfetto_trace
from fabrictwin.report.timeline.timeline_tracks import actors_within, slices

trace_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


def test_perfettos_own_classes_read_every_slice_and_track():
    made = pipeline(4, 8)
    program, trace = made.program(), made.trace()
    found = intervals(program, trace)
    drawn = slices(program, found, actors_within(found, len(program.actors), 10**6))
    read = trace_pb2.Trace()
    read.ParseFromString(perfetto_trace(program, drawn))
    whole = read.ByteSize()
    read.DiscardUnknownFields()
    assert read.ByteSize() == whole, "every field is one of Perfetto's"

    tracks = [packet.track_descriptor for packet in read.packet if packet.HasField("track_descriptor")]
    processes = {track.uuid: track.process.process_name for track in tracks if track.HasField("process")}
    assert list(processes.values()) == [actor.name for actor in program.actors]
    lanes = {track.uuid: track.name for track in tracks if not track.HasField("process")}
    assert {track.parent_uuid for track in tracks if track.uuid in lanes} == set(processes)
    assert len(lanes) == len(drawn.tracks)

    open_at: dict[int, list[int]] = {}
    closed = []
    for packet in read.packet:
        if not packet.HasField("track_event"):
            continue
        event, uuid = packet.track_event, packet.track_event.track_uuid or packet.trusted_packet_sequence_id
        if event.type == event.TYPE_SLICE_BEGIN:
            open_at.setdefault(uuid, []).append(packet.timestamp)
        elif event.type == event.TYPE_SLICE_END:
            closed.append((open_at[uuid].pop(), packet.timestamp))
    assert not any(open_at.values()), "every slice ends"
    expected = zip((drawn.start_ps // 1000).tolist(), (drawn.end_ps // 1000).tolist(), strict=True)
    assert sorted(closed) == sorted(expected)
