"""Messages by closed form: latency plus size over rate, one message of a flow after the other.

The oracle that other engines' messages are held to: exact in what arrives, in which order and what fails; in time
it knows no packets and no contention between flows. A message takes its size at the rate of the narrowest link, as
it is when the message is posted.
"""

from __future__ import annotations

from fabrictwin.base.errors import SimulatedError
from fabrictwin.base.units import PS_PER_S
from fabrictwin.engines.base.changes import FOREVER
from fabrictwin.engines.base.message_queues import MessageQueues, QueuedMessage, Stream


class OwnLinks:
    """Every flow has its path to itself."""

    busy = False  # what leaves is known to the end when it is posted
    next_ps = FOREVER

    def __init__(self, queues: MessageQueues) -> None:
        self._queues = queues

    def carry(self, stream: Stream, message: QueuedMessage) -> None:
        """Let a message leave after those before it. Raises SimulatedError where a link of its path is down."""
        if message.path.rate_bps <= 0:
            raise SimulatedError("link down", "a message", "it has no path but over a link that is down")
        start = max(message.earliest_ps, stream.free_ps)
        stream.free_ps = start + message.travels * 8 * PS_PER_S // message.path.rate_bps
        self._queues.leaves(message, start)
        self._queues.left(message, stream.free_ps)

    def may_leave(self, message: QueuedMessage) -> None:
        """Nothing waits here."""

    def stop(self, stream: Stream) -> None:
        """All that was posted has left."""

    def change(self, port: int, rate_bps: int) -> None:
        """Messages that are posted later find the rate on their path."""

    def drain(self) -> None:
        """Nothing drains here."""
