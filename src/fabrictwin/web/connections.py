"""Connections whose request does not come: they are closed after a while, so that others find a place.

uvicorn limits how many connections there are and how long one stays open between requests, not how long a request
may take to arrive. Its class for a connection is derived from here; `Config(http=...)` takes one. Of it are used
`loop`, `transport`, `cycle` (the request that is being answered) and `send_400_response`. Without this, leave
`http` at "h11".
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 20.0  # for a request's first line and headers, counted from the last answer


class BoundedProtocol(H11Protocol):
    """A connection that is closed where no whole head of a request comes within `HEAD_S`."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take in what came, and wait on where it was no whole head."""
        super().data_received(data)
        self._wait()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._wait()

    def send_400_response(self, msg: str) -> None:
        """Say that this is no HTTP, or close where an answer is under way, of which no more is sent."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Have a timer run while nothing is being answered; what comes in pieces does not wind it up again."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self.transport.close()
