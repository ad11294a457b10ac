"""Streams and events as torch.cuda and torch.cpu offer them: their order is recorded, nothing runs apart.

What waits for what is CUDA's: work of a stream in order, an event stands for what its stream was given before it.
Times of events are known only once the record is played: `elapsed_time` is not a number.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import torch

from fabrictwin.torch.rank_recorder import DEFAULT_STREAM
from fabrictwin.torch.recording import RECORDERS, finish_calls

_NUMBERS = count(DEFAULT_STREAM + 1)


class Stream:
    """A stream of the modelled GPU."""

    def __init__(self, device: Any = None, priority: int = 0, **rest: Any) -> None:
        self.number: int = rest["number"] if "number" in rest else next(_NUMBERS)
        self.priority, self.device = priority, device
        self.cuda_stream = self.stream_id = self.number

    def __eq__(self, other: object) -> bool:
        """Compare numbers."""
        return isinstance(other, Stream) and self.number == other.number

    def __hash__(self) -> int:
        """Return the hash of the number."""
        return hash(self.number)

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that stands for all that the stream was given."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let what the stream is given from now on wait for an event."""
        for recorder in RECORDERS:
            recorder.stream_waited(self.number, event.mark)

    def wait_stream(self, stream: Stream) -> None:
        """Let what the stream is given from now on wait for another stream."""
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """Let the host wait."""
        self.record_event().synchronize()

    def is_capturing(self) -> bool:
        """Return false: CUDA graphs are refused."""
        return False

    def query(self) -> bool:
        """Return true: the host never finds work unfinished."""
        return True


class Event:
    """An event of the modelled GPU."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.mark: frozenset[int] = frozenset()

    def record(self, stream: Stream | None = None) -> None:
        """Stand for all that a stream was given."""
        for recorder in RECORDERS:
            self.mark = recorder.mark(None if stream is None else stream.number)

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait."""
        (stream or current_stream()).wait_event(self)

    def synchronize(self) -> None:
        """Let the host wait."""
        for recorder in RECORDERS:
            recorder.host_waited(self.mark)

    def query(self) -> bool:
        """Return true: the host never finds work unfinished."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Return no number: the record has no times yet."""
        return float("nan")


class StreamContext:
    """Puts work onto a stream."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream, self._before = stream, DEFAULT_STREAM

    def __enter__(self) -> None:
        """Take the stream."""
        if self._stream is not None:
            self._before = current_stream().number
            set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        """Take the one before it."""
        if self._stream is not None:
            set_stream(Stream(number=self._before))


def current_stream(device: Any = None) -> Stream:
    """Return the stream that work goes onto."""
    return Stream(device, number=RECORDERS[0].stream if RECORDERS else DEFAULT_STREAM)


def default_stream(device: Any = None) -> Stream:
    """Return the stream that a program begins with."""
    return Stream(device, number=DEFAULT_STREAM)


def set_stream(stream: Stream) -> None:
    """Let work go onto a stream."""
    for recorder in RECORDERS:
        recorder.stream = stream.number


def synchronize(device: Any = None) -> None:
    """Let the host wait for every stream, and for calls that the program itself does not wait for."""
    finish_calls()
    for recorder in RECORDERS:
        recorder.joined()
        recorder.host_waited()


def model_streams() -> None:
    """Let torch.cpu and torch.cuda have these streams: sharded modules take those of the device of their mesh."""
    for module in (torch.cpu, torch.cuda):
        for one in (Stream, Event, StreamContext, current_stream, default_stream, set_stream, synchronize):
            setattr(module, one.__name__, one)
        module.stream = StreamContext  # type: ignore[attr-defined]
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign, assignment]
