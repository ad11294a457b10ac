"""Events for a client: records in a pipe whose other end the client reads, as from the kernel's descriptors.

Destroying an object waits, in libibverbs, for as many events to be acknowledged as the kernel says were read of it
(struct ib_uverbs_destroy_cq_resp and its kin); those that nobody has read are taken back.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import termios
from collections import deque
from collections.abc import Hashable

_BACKLOG = 4096  # records for a client that does not read; beyond it they are lost


class EventPipe:
    """Records of one size, each a read of its own."""

    written = 0  # records, to all pipes: each may have woken somebody

    def __init__(self, record_bytes: int) -> None:
        self.record_bytes = record_bytes
        self.reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_DIRECT)
        os.set_blocking(self._writer, False)
        self._unread: deque[Hashable] = deque()  # owners of what is in the pipe, perhaps read already
        self._waiting: deque[tuple[bytes, Hashable]] = deque()  # for which it has no room
        self._read: dict[Hashable, int] = {}

    def fileno(self) -> int:
        """The end that is written: an error on it says that the client has closed the other."""
        return self._writer

    def hand_over(self) -> None:
        """The client has the reading end, or was gone before it got it and the pipe is closed."""
        if self.reader >= 0:
            os.close(self.reader)
        self.reader = -1

    def write(self, record: bytes, owner: Hashable) -> None:
        """Tell of something that belongs to `owner`."""
        if len(self._waiting) < _BACKLOG:
            self._waiting.append((record, owner))
        self.flush()

    def flush(self) -> None:
        """Write what there was no room for."""
        while self._waiting and self._writer >= 0:
            record, owner = self._waiting[0]
            EventPipe.written += 1
            try:
                os.write(self._writer, record)
            except OSError:
                return
            self._waiting.popleft()
            self._unread.append(owner)

    def _settle(self) -> None:
        """Count what the client has read."""
        there = array.array("i", [0])
        if self._writer >= 0:
            fcntl.ioctl(self._writer, termios.FIONREAD, there)
        while len(self._unread) > there[0] // self.record_bytes:
            owner = self._unread.popleft()
            self._read[owner] = self._read.get(owner, 0) + 1

    def end(self, owner: Hashable) -> int:
        """An object is destroyed: take back what nobody has read of it; returns how much was read."""
        self._settle()
        self._waiting = deque(each for each in self._waiting if each[1] != owner)
        if owner in self._unread:
            kept = self._take_all()
            self._waiting.extendleft(each for each in reversed(kept) if each[1] != owner)
            self.flush()
        return self._read.pop(owner, 0)

    def _take_all(self) -> list[tuple[bytes, Hashable]]:
        taken: list[tuple[bytes, Hashable]] = []
        reader = os.open(f"/proc/self/fd/{self._writer}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(BlockingIOError):
            while True:
                record = os.read(reader, self.record_bytes)
                if not record:
                    break
                taken.append((record, None))
        os.close(reader)
        # the client may have read some just now: what is left are the last ones
        owners = list(self._unread)[len(self._unread) - len(taken) :]
        for owner in list(self._unread)[: len(self._unread) - len(taken)]:
            self._read[owner] = self._read.get(owner, 0) + 1
        self._unread.clear()
        return [(record, owner) for (record, _), owner in zip(taken, owners, strict=True)]

    def close(self) -> None:
        for descriptor in (self._writer, self.reader):
            if descriptor >= 0:
                os.close(descriptor)
        self._writer = self.reader = -1
