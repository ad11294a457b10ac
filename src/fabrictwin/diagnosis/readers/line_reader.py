"""The base of every reader of a family of lines."""

from __future__ import annotations

from fabrictwin.diagnosis.evidence import Sink


class LineReader:
    """Reads lines of one family, one after the other, and leaves facts in a sink."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def line(self, text: str) -> bool:
        """Take a line; False where it belongs to somebody else."""
        raise NotImplementedError

    def close(self) -> None:
        """Keep what was only known at the end."""
