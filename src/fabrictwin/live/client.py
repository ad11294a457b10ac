"""A connection of a program to the server."""

from __future__ import annotations

import socket

from fabrictwin.live.context import Context
from fabrictwin.live.rdma_cm.identifier import CmChannel


class Client:
    """A connection: an opened device, of either sort, or one that only asks."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.context: Context | None = None
        self.connections: CmChannel | None = None
        self.watching = -1  # a descriptor of the process, readable once it has ended
