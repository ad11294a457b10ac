"""A connection of a program to the server."""

from __future__ import annotations

import socket

from fabrictwin.live.context import Context
from fabrictwin.live.netlink.nldev import Devices
from fabrictwin.live.rdma_cm.identifier import CmChannel


class Client:
    """A connection: an opened device, of any sort, or one that only asks."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.context: Context | None = None
        self.connections: CmChannel | None = None
        self.netlink: Devices | None = None  # a netlink socket: its datagrams have no header of ours
        self.watching = -1  # a descriptor of the process, readable once it has ended
