"""The reliable multi-packet transaction protocol (IBTA volume 1, 13.6), which carries tables of records.

A sender cuts a table into segments and keeps a window of them in flight; a receiver acknowledges and asks for
more. Neither does I/O or reads a clock: both are handed datagrams and the time, and hand back datagrams.

Left out: two-sided transfers (a request that is itself longer than a datagram).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag

from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.subnet.wire.fields import MadError
from fabrictwin.subnet.wire.header import SA_DATA_BYTES, SaMad

# The payload length of RMPP counts the SM_Key, attribute offset and component mask of every segment too.
SA_HEADER_BYTES = 20
PAYLOAD_BYTES = SA_DATA_BYTES + SA_HEADER_BYTES

FIRST_WINDOW = 1  # until the receiver has said how much it takes
WINDOW = 16  # what this receiver takes
RESPONSE_TIMEOUT_PS = 2 * PS_PER_S
RETRIES = 3
LARGEST_TABLE_BYTES = 64 * 1024 * 1024


class Kind(IntEnum):
    NONE = 0
    DATA = 1
    ACK = 2
    STOP = 3
    ABORT = 4


class Flag(IntFlag):
    ACTIVE = 1
    FIRST = 2
    LAST = 4


class Reason(IntEnum):
    """Reasons for which a transfer was stopped or aborted."""

    NORMAL = 0
    RESOURCES = 1
    TIMEOUT = 118
    INCONSISTENT_LAST = 119
    INCONSISTENT_FIRST = 120
    BAD_TYPE = 121
    WINDOW_TOO_SMALL = 122
    SEGMENT_TOO_BIG = 123
    TOO_MANY_RETRIES = 127


def segments(head: SaMad, table: bytes) -> list[SaMad]:
    """A table as datagrams like `head`; one at least."""
    cuts = [table[i : i + SA_DATA_BYTES] for i in range(0, len(table), SA_DATA_BYTES)] or [b""]
    result = []
    for number, cut in enumerate(cuts, 1):
        flags = Flag.ACTIVE | (Flag.FIRST if number == 1 else 0) | (Flag.LAST if number == len(cuts) else 0)
        if number == len(cuts):
            length = len(cut) + SA_HEADER_BYTES
        else:
            # the first segment tells the length of the whole, the others need not
            length = len(table) + SA_HEADER_BYTES * len(cuts) if number == 1 else 0
        result.append(
            replace(
                head,
                rmpp_version=1,
                rmpp_type=Kind.DATA,
                rmpp_flags=int(flags),
                rmpp_data1=number,
                rmpp_data2=length,
                data=cut,
            )
        )
    return result


@dataclass
class Window:
    """How far a sender is: segments acknowledged, handed out, and that the receiver takes."""

    acknowledged: int = 0
    last: int = FIRST_WINDOW
    sent: int = 0
    deadline_ps: int = 0  # when what is not acknowledged goes out again
    tries: int = 0


@dataclass
class Sender:
    """One table on its way. `retries` 0 gives up on a peer that never acknowledges without repeating anything."""

    parts: list[SaMad]
    retries: int = RETRIES
    timeout_ps: int = RESPONSE_TIMEOUT_PS
    done: bool = False
    failed: Reason | None = None
    window: Window = field(default_factory=Window)

    def start(self, now_ps: int) -> list[SaMad]:
        """The first segments."""
        self.window.deadline_ps = now_ps + self.timeout_ps
        return self._fill()

    def _fill(self) -> list[SaMad]:
        last = min(self.window.last, len(self.parts))
        out = self.parts[self.window.sent : last]
        self.window.sent = max(self.window.sent, last)
        return out

    def receive(self, mad: SaMad, now_ps: int) -> list[SaMad]:
        """An ACK, STOP or ABORT from the receiver."""
        if self.done:
            return []
        if mad.rmpp_type in (Kind.STOP, Kind.ABORT):
            self.done, self.failed = True, Reason.RESOURCES
            return []
        if mad.rmpp_type != Kind.ACK or mad.rmpp_data1 > self.window.sent or mad.rmpp_data2 < mad.rmpp_data1:
            return []  # not of this transfer
        self.window.acknowledged = max(self.window.acknowledged, mad.rmpp_data1)
        self.window.last = max(self.window.last, mad.rmpp_data2)
        self.window.deadline_ps, self.window.tries = now_ps + self.timeout_ps, 0
        if self.window.acknowledged == len(self.parts):
            self.done = True
            return []
        return self._fill()

    def poll(self, now_ps: int) -> list[SaMad]:
        """Return what has to be sent again by now."""
        if self.done or now_ps < self.window.deadline_ps:
            return []
        if self.window.tries == self.retries:
            self.done, self.failed = True, Reason.TOO_MANY_RETRIES
            return []
        self.window.tries += 1
        self.window.deadline_ps = now_ps + self.timeout_ps
        self.window.sent = self.window.acknowledged
        return self._fill()


@dataclass
class Receiver:
    """One table on its way in."""

    window: int = WINDOW
    done: bool = False
    failed: Reason | None = None
    table: bytes = b""
    head: SaMad | None = None
    _parts: list[bytes] = field(default_factory=list)
    _bytes: int = 0

    def receive(self, mad: SaMad) -> list[SaMad]:
        """A datagram of the transfer; what to answer. A response without RMPP is a table in itself."""
        if self.done:
            # the sender repeats what it has no acknowledgement of: the last one was lost
            again = self.failed is None and bool(self._parts) and mad.rmpp_type == Kind.DATA
            return [self._ack(mad)] if again else []
        if not mad.rmpp_flags & Flag.ACTIVE or mad.rmpp_type == Kind.NONE:
            self.head, self.table, self.done = mad, mad.data, True
            return []
        if mad.rmpp_type in (Kind.STOP, Kind.ABORT):
            self.done, self.failed = True, Reason(118) if mad.rmpp_status == 118 else Reason.RESOURCES
            return []
        if mad.rmpp_type != Kind.DATA:
            return [self._abort(mad, Reason.BAD_TYPE)]
        number = mad.rmpp_data1
        if (number == 1) != bool(mad.rmpp_flags & Flag.FIRST):
            return [self._abort(mad, Reason.INCONSISTENT_FIRST)]
        if number != len(self._parts) + 1:
            return [self._ack(mad)]  # a repetition or a gap: say how far it got
        if number == 1:
            self.head = mad
        if mad.rmpp_flags & Flag.LAST:
            length = mad.rmpp_data2 - SA_HEADER_BYTES
            if not 0 <= length <= SA_DATA_BYTES:
                return [self._abort(mad, Reason.INCONSISTENT_LAST)]
            self._parts.append(mad.data[:length])
            self.table, self.done = b"".join(self._parts), True
        else:
            self._parts.append(mad.data)
            self._bytes += len(mad.data)
            if self._bytes > LARGEST_TABLE_BYTES:
                return [self._abort(mad, Reason.SEGMENT_TOO_BIG)]
        # acknowledge at the end of each window, and at the end
        if self.done or number == 1 or number % max(self.window // 2, 1) == 0:
            return [self._ack(mad)]
        return []

    def _ack(self, mad: SaMad) -> SaMad:
        got = len(self._parts)
        return _control(mad, Kind.ACK, data1=got, data2=got + self.window)

    def _abort(self, mad: SaMad, reason: Reason) -> SaMad:
        self.done, self.failed = True, reason
        return _control(mad, Kind.ABORT, status=reason)


def _control(mad: SaMad, kind: Kind, *, data1: int = 0, data2: int = 0, status: int = 0) -> SaMad:
    # acknowledgements run against the data, so their method carries the other direction's response bit
    return replace(
        mad,
        method=mad.method ^ 0x80,
        rmpp_version=1,
        rmpp_type=kind,
        rmpp_flags=int(Flag.ACTIVE),
        rmpp_status=status,
        rmpp_data1=data1,
        rmpp_data2=data2,
        data=bytes(SA_DATA_BYTES),
    )


def records(table: bytes, offset_words: int) -> list[bytes]:
    """A table's records, `offset_words` times 8 bytes each. Raises MadError where it does not come out even."""
    if not table:
        return []
    if offset_words <= 0:
        raise MadError(f"got attribute offset {offset_words} for a table of {len(table)} bytes")
    size = 8 * offset_words
    if len(table) % size:
        raise MadError(f"got {len(table)} bytes, expected a multiple of {size}")
    return [table[i : i + size] for i in range(0, len(table), size)]
