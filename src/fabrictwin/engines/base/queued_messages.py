"""Flows and messages of engines without packets, and the links that they leave over."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from fabrictwin.engines.base.messages import FlowOptions, Opcode, Service
from fabrictwin.engines.base.path import Path


class Stream:
    """Messages that a flow sends one after the other: its requests, or its answers."""

    __slots__ = ("free_ps", "queue", "remaining")

    def __init__(self) -> None:
        self.free_ps = 0  # in closed form: when the last message has left
        self.queue: deque[QueuedMessage] = deque()  # where rates change: what has not left; the first leaves
        self.remaining = 0.0  # bytes of the first


class QueuedFlow:
    """A flow, with what it has sent and what waits at its receiver."""

    __slots__ = (
        "answers",
        "broken",
        "ends",
        "memories",
        "options",
        "path",
        "pool",
        "queue",
        "reaches_ps",
        "reliable",
        "requests",
        "sends",
    )

    def __init__(
        self,
        path: Path,
        options: FlowOptions,
        ends: tuple[int, int, int, int],
        memories: tuple[int | None, int | None],
    ) -> None:
        self.path = path
        self.options = options
        self.ends = ends  # adapters, queue pair numbers
        self.memories = memories
        self.requests: dict[int, QueuedMessage] = {}  # that nobody has answered yet, oldest first
        self.reliable = options.service == Service.RELIABLE_CONNECTION
        self.pool: int | None = None
        self.sends, self.answers = Stream(), Stream()
        self.reaches_ps = 0  # when the last message posted is at the receiver
        self.queue: deque[QueuedMessage] = deque()  # arrived at the receiver, the first waits for a receive
        self.broken = False


class QueuedMessage:
    """One message, as long as anything may happen to it."""

    __slots__ = (
        "answers",
        "arrive_ps",
        "begun",
        "earliest_ps",
        "ended",
        "flow",
        "number",
        "opcode",
        "path",
        "retries",
        "takes_receive",
        "travels",
    )

    def __init__(self, number: int, flow: QueuedFlow, opcode: Opcode, path: Path) -> None:
        self.number = number
        self.flow = flow
        self.opcode = opcode
        self.path = path
        self.takes_receive = self.begun = self.ended = False
        self.answers: int | None = None
        self.travels = 0  # bytes
        self.earliest_ps = 0
        self.arrive_ps = 0
        self.retries = 0


class Links(Protocol):
    """Links that messages leave over. Calls back `leaves` and `left` of the queues."""

    def carry(self, stream: Stream, message: QueuedMessage) -> None:
        """Let a message leave after those before it."""
        ...

    def may_leave(self, message: QueuedMessage) -> None:
        """The time has come at which a message may leave (`MessageQueues.leave_at`)."""
        ...

    def stop(self, stream: Stream) -> None:
        """Drop what a stream holds; it never leaves."""
        ...

    def change(self, port: int, rate_bps: int) -> None:
        """A port's payload rate is another from now on."""
        ...

    @property
    def busy(self) -> bool:
        """Something is leaving."""
        ...

    @property
    def next_ps(self) -> int:
        """Return the time in ps at which the next message has left; FOREVER where that is not known here."""
        ...

    def drain(self) -> None:
        """The message that `next_ps` speaks of has left."""
        ...
