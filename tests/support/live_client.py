"""A client of the live server that speaks its protocol by hand: what a preloaded library would send, and worse."""

from __future__ import annotations

import array
import mmap
import os
import socket
import struct

from fabrictwin.live import wire
from fabrictwin.live.server import Server
from fabrictwin.live.wire import Command, Kind


class RawClient:
    """An opened device. The server runs in the same thread: each request is followed by a turn of its loop."""

    def __init__(self, server: Server, host: str = "host-0", device: str = "uverbs0") -> None:
        self.server = server
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(server.socket))
        self.socket.settimeout(0.5)
        error, _, self.file = self.ask(Kind.OPEN, f"{host}/{device}".encode(), wire.PROTOCOL)
        self.opened = error == 0

    def turn(self, turns: int = 2) -> None:
        for _ in range(turns):
            self.server.turn(0)

    def send(self, data: bytes) -> None:
        """Send a datagram as it is."""
        try:
            self.socket.send(data)
        except OSError:
            return
        self.turn(1)

    def ask(self, kind: int, body: bytes = b"", argument: int = 0) -> tuple[int, bytes, int]:
        """(error, payload, descriptor or -1) of a request."""
        self.socket.send(wire.REQUEST.pack(kind, len(body), argument) + body)
        self.turn()
        data, ancillary, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(4))
        rights = array.array("i")
        for level, what, content in ancillary:
            if (level, what) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                rights.frombytes(content[:4])
        if len(data) < wire.REPLY.size:
            raise ConnectionError("the server has closed the connection")
        return wire.REPLY.unpack_from(data)[0], data[wire.REPLY.size :], rights[0] if rights else -1

    def command(self, number: Command, body: bytes = b"", room: int = 256) -> tuple[int, bytes]:
        """(error, response) of a command of the plain form; `body` begins behind the headers."""
        data = wire.HEADER.pack(number, (wire.HEADER.size + len(body)) // 4, room // 4) + body
        error, payload, descriptor = self.ask(Kind.COMMAND, data)
        if descriptor >= 0:
            os.close(descriptor)
        return error, payload

    def value(self, number: Command, body: bytes = b"") -> int:
        """The first word of a response, usually a handle."""
        error, payload = self.command(number, body)
        assert error == 0, os.strerror(error)
        return int(struct.unpack_from("=I", payload)[0])

    def start(self) -> int:
        """A context and a protection domain; returns the domain's handle."""
        assert self.command(Command.GET_CONTEXT, bytes(8))[0] == 0
        return self.value(Command.ALLOC_PD, bytes(8))

    def queue_pair(self, domain: int, kind: int = 2) -> tuple[int, int]:
        """A completion queue and a queue pair; returns (the pair's handle, its number)."""
        queue = self.value(Command.CREATE_CQ, bytes(8) + wire.CREATE_CQ.pack(7, 16, 0, -1))
        body = bytes(8) + wire.CREATE_QP.pack(9, domain, queue, queue, 0, 8, 8, 1, 1, 64, 1, kind, 0)
        error, payload = self.command(Command.CREATE_QP, body)
        assert error == 0
        handle, number = struct.unpack_from("=II", payload)
        return int(handle), int(number)

    def memory(self) -> mmap.mmap:
        """The file that the rings are in, mapped as a client maps it."""
        return mmap.mmap(self.file, os.fstat(self.file).st_size)

    def close(self) -> None:
        self.socket.close()
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        self.turn(3)
