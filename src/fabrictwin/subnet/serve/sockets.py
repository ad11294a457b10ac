"""The endpoint's sockets: datagrams over abstract unix sockets (the default) or UDP.

Addresses in the abstract namespace end in a zero byte that is part of the name. A client that was killed says
nothing; it is found out when a datagram to it is refused, or when its place is wanted.

Only this process's own user is served on unix sockets: each datagram comes with its sender's credentials, and one
of another user is dropped unread. UDP carries none, so it serves loopback alone, and whoever is on this machine.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import IO

from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.fabric import NONE
from fabrictwin.kernel.codes import PS_PER_S
from fabrictwin.subnet.serve.credentials import bind_abstract, is_own_user, receive_with_sender
from fabrictwin.subnet.serve.endpoint import CLIENTS, CONTROL_BYTES, FRAME_BYTES, Endpoint, Message

TRAP_POLL_S = 0.2
QUEUE_FRAMES = 4096  # for a client that does not read; beyond it frames are lost, as on a wire
READ_AT_ONCE = 64  # datagrams of one socket before the others' turn
UDP_IDLE_S = 60.0  # a UDP client that was killed cannot be told from a quiet one until its place is wanted
_GONE = (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.EPIPE)

Address = bytes | tuple[str, int]


def wall_ps() -> int:
    """Time as the endpoint counts it: the wall clock's, since real programs run by it."""
    return time.monotonic_ns() * 1000


def unguessable_name() -> str:
    """Return a name for sockets that nobody can have taken before."""
    return f"fabrictwin-{secrets.token_hex(8)}"


class Server:
    """Sockets around an endpoint: abstract unix sockets called `name`, by default one that cannot be guessed.

    `udp_port` serves UDP on `host` instead.
    """

    def __init__(
        self, endpoint: Endpoint, *, name: str = "", udp_port: int | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.endpoint = endpoint
        self.name = name or unguessable_name()
        self.udp_port, self.host = udp_port, host
        self._selector = selectors.PollSelector()  # epoll takes no regular file, which a console may be fed from
        self._queues: list[deque[bytes]] = [deque() for _ in range(CLIENTS)]
        self._control = self._bind("ctl", 0)
        self._selector.register(self._control, selectors.EVENT_READ, NONE)
        self._data: list[socket.socket] = []
        for i in range(CLIENTS):
            self._data.append(self._open(i))
        self._next_poll = 0.0
        self.lost = 0
        self.refused: dict[int, int] = {}  # datagrams of other users, by user
        self.idle: Callable[[], None] | None = None  # called now and then, between datagrams

    # -- sockets -------------------------------------------------------------------------------------------

    def _bind(self, what: str, offset: int) -> socket.socket:
        try:
            if self.udp_port is None:
                sock = bind_abstract(f"{self.name}:{what}")
            else:
                sock = _bind_udp(self.host, self.udp_port + offset)
        except OSError as error:
            where = f"@{self.name}:{what}" if self.udp_port is None else f"UDP port {self.udp_port + offset}"
            raise ConfigError(f"{where} cannot be had: {error.strerror}; is another endpoint up?") from None
        sock.setblocking(False)
        return sock

    def _open(self, number: int) -> socket.socket:
        sock = self._bind(f"out{number}", 1 + number)
        self._selector.register(sock, selectors.EVENT_READ, number)
        return sock

    def _clear(self, number: int) -> None:
        """Forget a client. Its socket is connected anew for the next one: closing it would give up its name."""
        self._queues[number].clear()
        sock = self._data[number]
        self._selector.modify(sock, selectors.EVENT_READ, number)
        with contextlib.suppress(OSError):
            while True:
                sock.recv(2 * FRAME_BYTES)

    def watch(self, file: IO[str], act: Callable[[], None]) -> None:
        """Call `act` whenever there is something to read."""
        self._selector.register(file, selectors.EVENT_READ, act)

    def close(self) -> None:
        self._selector.close()
        for sock in (self._control, *self._data):
            sock.close()

    # -- the loop ------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool]) -> None:
        """Serve until `until` says so."""
        while not until():
            self.step(TRAP_POLL_S)
            if self.idle is not None:
                self.idle()

    def step(self, timeout_s: float) -> int:
        """Handle what has arrived, waiting at most so long for something. Returns how many datagrams that was."""
        handled = 0
        for key, events in self._selector.select(timeout_s):
            number = key.data
            if callable(number):
                number()
                continue
            if events & selectors.EVENT_WRITE:
                self._flush(number)
            if events & selectors.EVENT_READ:
                handled += self._read_control() if number == NONE else self._read_data(number)
        now = time.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + TRAP_POLL_S
            self.send_all(self.endpoint.poll(wall_ps()))
        return handled

    def _read_control(self) -> int:
        handled = 0
        while True:
            try:
                data, address = self._receive(self._control, 4 * CONTROL_BYTES)
            except BlockingIOError:
                return handled
            except OSError:
                return handled  # the refusal of an earlier reply
            handled += 1
            if data is not None:
                self._control_message(data, address)
            if handled >= READ_AT_ONCE:
                return handled

    def _receive(self, sock: socket.socket, size: int) -> tuple[bytes | None, Address]:
        """Return a datagram, None for one of another user, and where it came from. Raises OSError as `recv`."""
        if self.udp_port is not None:
            data, udp_address = sock.recvfrom(size)
            return data, udp_address
        data, address, uid = receive_with_sender(sock, size)
        if is_own_user(uid):
            return data, address
        self.refused[uid] = self.refused.get(uid, 0) + 1
        return None, address

    def _control_message(self, data: bytes, address: Address) -> None:
        endpoint, now = self.endpoint, wall_ps()
        kind = struct.unpack_from("=I", data, 8)[0] if len(data) == CONTROL_BYTES else NONE
        if kind == Message.CONNECT and all(endpoint.clients):
            self._reap(now)
        before = list(endpoint.clients)
        reply = endpoint.control(data, now)
        for number, (old, new) in enumerate(zip(before, endpoint.clients, strict=True)):
            if old is not None and new is None:
                self._clear(number)
            elif new is not None and new is not old:
                # the client connects to us once it has the reply, so we connect to it before
                try:
                    self._data[number].connect(self._peer(new.address, address))
                except OSError:
                    endpoint.disconnect(number, now)
                    self._clear(number)
                    return
        if reply is not None and address:
            with contextlib.suppress(OSError):  # a client that did not wait
                self._control.sendto(reply, address)

    def _peer(self, client: int, source: Address) -> Address:
        if self.udp_port is None:
            return f"\0{self.name}:in{client}\0".encode()
        assert isinstance(source, tuple)
        return source[0], client & 0xFFFF

    def _read_data(self, number: int) -> int:
        handled = 0
        while True:
            try:
                data, _ = self._receive(self._data[number], 2 * FRAME_BYTES)
            except BlockingIOError:
                return handled
            except OSError as error:
                if error.errno in _GONE:
                    self._gone(number)
                return handled
            handled += 1
            if data is not None:
                self.send_all(self.endpoint.frame(number, data, wall_ps()))
            if handled >= READ_AT_ONCE:
                return handled

    def send_all(self, frames: list[tuple[int, bytes]]) -> None:
        for number, data in frames:
            queue = self._queues[number]
            if len(queue) >= QUEUE_FRAMES:
                self.lost += 1
                continue
            queue.append(data)
            if len(queue) == 1:
                self._flush(number)

    def _flush(self, number: int) -> None:
        queue, sock = self._queues[number], self._data[number]
        while queue:
            try:
                sock.send(queue[0])
            except BlockingIOError:
                self._selector.modify(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, number)
                return
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    self._selector.modify(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, number)
                else:
                    self._gone(number)
                return
            queue.popleft()
        self._selector.modify(sock, selectors.EVENT_READ, number)

    def _gone(self, number: int) -> None:
        self.endpoint.disconnect(number, wall_ps())
        self._clear(number)

    def _reap(self, now_ps: int) -> None:
        """Free the places of clients that are no more."""
        for number, client in enumerate(self.endpoint.clients):
            if client is None:
                continue
            if self.udp_port is None:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                    try:
                        probe.connect(f"\0{self.name}:in{client.address}\0".encode())
                    except OSError as error:
                        # one that lives is connected to us, and refuses others by EPERM
                        if error.errno in _GONE:
                            self._gone(number)
            elif now_ps - client.last_ps > UDP_IDLE_S * PS_PER_S:
                self._gone(number)


def _bind_udp(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
