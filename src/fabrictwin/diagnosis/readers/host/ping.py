"""ping: how large a packet was sent, whether it may be cut, and what came back."""

from __future__ import annotations

import re

from fabrictwin.diagnosis.evidence import Subject
from fabrictwin.diagnosis.readers.line_reader import LineReader

OPENS = r"^PING \S+|^(?:\S*[$#>] ?)?ping .*\d"
_HEAD = re.compile(r"PING (\S+) .*?\b(\d+)\(\d+\) bytes of data|PING (\S+) .*?\b(\d+) data bytes")
_COMMAND = re.compile(r"(?:^|[$#>] ?)ping ((?:\S+ )*)(\S+)\s*$")
_RESULT = re.compile(r"(\d+) packets transmitted, (\d+)(?: packets)? received")
USUAL = 56  # bytes that ping sends where nothing else is asked


class Ping(LineReader):
    """Reads one ping after the other."""

    talks = True

    _peer, _size = "", USUAL

    def line(self, text: str) -> bool:
        """Take a line; False where it is none of ping's."""
        bare = text.strip()
        head, command, result = _HEAD.match(bare), _COMMAND.search(bare), _RESULT.match(bare)
        if head is not None:
            self._peer, self._size = head[1] or head[3], int((head[2] or head[4])[:9])
        elif command is not None:
            size = re.search(r"-s ?(\d{1,9})\b", command[1])
            self._peer, self._size = command[2], int(size[1]) if size else USUAL
        elif result is not None:
            value = (self._size, int(result[1][:9]), int(result[2][:9]))
            self.sink.add("ping", value, Subject(device=self._peer))
        return bool(head or command or result or not bare or re.match(r"--- |\d+ bytes from|rtt |From |\^C", bare))
