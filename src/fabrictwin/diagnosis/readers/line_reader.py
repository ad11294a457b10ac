"""The base of every reader of a family of lines."""

from __future__ import annotations

from abc import ABC, abstractmethod

from fabrictwin.diagnosis.evidence import Sink


class LineReader(ABC):
    """Reads lines of one family, one after the other, and leaves facts in a sink.

    A program that `talks` prints messages among what it is read for: lines that its reader took are looked at for
    trouble too. Tables, counters and capabilities are not.
    """

    talks = False

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    @abstractmethod
    def line(self, text: str) -> bool:
        """Take a line; False where it belongs to somebody else."""

    def close(self) -> None:  # noqa: B027 most readers have nothing left at the end
        """Keep what was only known at the end."""
