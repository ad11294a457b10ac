"""The other side of the endpoint's protocol: the manager as a client of a fabric simulator (ibsim, or this twin).

A `Transport` over abstract unix sockets. The simulator takes one datagram at a time from a socket whose queue is
short, so a window of requests is in flight, and what does not come back in time is asked again.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Sequence

from fabrictwin.base.errors import ConfigError
from fabrictwin.subnet.agents.mad_routing import Frame
from fabrictwin.subnet.manager.mad_transport import Answer, Request, Statistics
from fabrictwin.subnet.serve.credentials import bind_abstract, is_own_user, receive_with_sender
from fabrictwin.subnet.serve.endpoint import (
    _CONNECT,
    _CONTROL,
    _FRAME,
    CONTROL_BYTES,
    FRAME_BYTES,
    MAGIC,
    Message,
    pack_frame,
)
from fabrictwin.subnet.wire.header import DIRECTED, PERMISSIVE_LID, RESPONSE, MadClass

_ZERO = bytes(64)
_TID_BITS = (1 << 32) - 1  # of the transaction id; the simulator writes the client's number above


class UmadTransport:
    """Requests to a simulator whose sockets are called `name`; attaches to node `host` ('' for the first)."""

    def __init__(
        self, name: str, *, host: str = "", window: int = 8, timeout_s: float = 0.5, retries: int = 3
    ) -> None:
        self.name, self.window, self.timeout_s, self.retries = name, window, timeout_s, retries
        self.m_key = 0
        self.statistics = Statistics()
        self.on_frame: Callable[[Frame, int], list[Frame]] | None = None  # for what nobody asked for
        self._tid = 0
        self._answered: list[int] = []
        number = os.getpid()
        self._control = self._bind(f"ctl{number}")
        self._data = self._bind(f"in{number}")
        try:
            self._control.connect(f"\0{name}:ctl\0".encode())
        except OSError as error:
            self.close()
            raise ConfigError(f"no simulator answers at @{name}:ctl ({error.strerror})", key="connect") from None
        body = _CONNECT.pack(number, 0, 0, host.encode()[:31])
        answer = self._request(Message.CONNECT, body)
        if answer is None:
            self.close()
            raise ConfigError(f"the simulator at @{name}:ctl has no node {host!r}, or no place left", key="host")
        self.client, _, _, node = _CONNECT.unpack(answer)
        self.node_id = node.split(b"\0", 1)[0].decode(errors="replace")
        try:
            self._data.connect(f"\0{name}:out{self.client}\0".encode())
        except OSError as error:
            self.close()
            what = f"the simulator at @{name}:ctl has no data socket {self.client} ({error.strerror})"
            raise ConfigError(what, key="connect") from None

    def _bind(self, what: str) -> socket.socket:
        sock = bind_abstract(f"{self.name}:{what}")
        sock.settimeout(5.0)
        return sock

    def _request(self, kind: int, body: bytes) -> bytes | None:
        number = getattr(self, "client", 0)
        self._control.send(_CONTROL.pack(MAGIC, number, kind, len(body), body.ljust(64, b"\0")))
        reply = self._receive_whole(self._control, CONTROL_BYTES)
        if reply is None:
            return None
        magic, _, got, _, data = _CONTROL.unpack(reply)
        return data if magic == MAGIC and got == kind else None

    def _receive_whole(self, sock: socket.socket, size: int) -> bytes | None:
        """A datagram of exactly this size; None for one of another, or for none in time."""
        try:
            data = self._receive_own(sock, 4 * size)
        except TimeoutError:
            return None
        return data if len(data) == size else None

    def _receive_own(self, sock: socket.socket, size: int) -> bytes:
        """A datagram of this process's own user; others are dropped. Raises TimeoutError, ConfigError."""
        while True:
            data, address, uid = receive_with_sender(sock, size)
            if is_own_user(uid):
                return data
            if address == f"\0{self.name}:ctl\0".encode():
                raise ConfigError(
                    f"the simulator at @{self.name}:ctl is of user {uid}, expected {os.getuid()}", key="connect"
                )

    def become_manager(self) -> None:
        """Set the port's capability IsSM, so that traps and queries come here."""
        if self._request(Message.SET_ISSM, struct.pack("=I", 1)) is None:
            raise ConfigError("the simulator has another manager on this port", key="host")

    def close(self) -> None:
        if hasattr(self, "client"):
            self._request(Message.DISCONNECT, b"")
        self._control.close()
        self._data.close()

    # -- Transport -----------------------------------------------------------------------------------------

    @property
    def now_ps(self) -> int:
        return time.monotonic_ns() * 1000

    def answered_ps(self) -> Sequence[int]:
        return self._answered

    def ask(self, dlid: int, mad: bytes) -> bytes | None:
        """Raise ConfigError: only congestion control is asked by LID, and ibsim has no agents of that class."""
        raise ConfigError(
            "got TRUE for another simulator's fabric, expected FALSE: ibsim has no agents that take it",
            key="congestion_control",
        )

    def send(self, frame: Frame) -> None:
        self._data.send(pack_frame(frame))

    def exchange(self, requests: Sequence[Request]) -> list[Answer | None]:
        answers: list[Answer | None] = [None] * len(requests)
        self._answered = [0] * len(requests)
        left = list(range(len(requests)))
        for attempt in range(1 + self.retries):
            left = self._round(requests, left, answers)
            if not left:
                break
            if attempt < self.retries:
                self.statistics.repeated += len(left)
        self.statistics.unanswered += len(left)
        return answers

    def _round(self, requests: Sequence[Request], todo: list[int], answers: list[Answer | None]) -> list[int]:
        waiting: dict[int, int] = {}
        missing: list[int] = []
        queue = iter(todo)
        more = True
        while more or waiting:
            while more and len(waiting) < self.window:
                index = next(queue, None)
                if index is None:
                    more = False
                    break
                self._tid = self._tid + 1 & _TID_BITS
                waiting[self._tid] = index
                self._send_request(requests[index], self._tid)
            if not waiting:
                break
            got = self._receive(self.timeout_s)
            if got is None:  # silence: give up on all that are out
                missing += waiting.values()
                waiting.clear()
                continue
            status, frame = got
            if not frame.mad[3] & RESPONSE and not status:  # another's request, whatever its number is
                self._unasked(frame)
                continue
            index = waiting.pop(int.from_bytes(frame.mad[8:16], "big") & _TID_BITS, None)
            if index is None:
                continue
            if status:
                missing.append(index)
                continue
            answers[index] = ((frame.mad[4] << 8 | frame.mad[5]) & 0x7FFF, frame.mad[64:128])
            self._answered[index] = self.now_ps
        return missing

    def _send_request(self, request: Request, tid: int) -> None:
        path, method, attribute, modifier, data = request
        mad = DIRECTED.pack(
            *(1, int(MadClass.SUBN_DIRECTED), 1, method, 0, 0, path.hops, tid, attribute, modifier, self.m_key),
            *(PERMISSIVE_LID, PERMISSIVE_LID, data, path.ports, _ZERO),
        )
        key = (method, attribute)
        self.statistics.by_attribute[key] = self.statistics.by_attribute.get(key, 0) + 1
        self.statistics.requests += 1
        self._data.send(pack_frame(Frame(PERMISSIVE_LID, PERMISSIVE_LID, 0, 0, mad)))

    def _receive(self, timeout_s: float) -> tuple[int, Frame] | None:
        self._data.settimeout(timeout_s)
        data = self._receive_whole(self._data, FRAME_BYTES)
        if data is None:
            return None
        dlid, slid, dqp, sqp, status, _, mad = _FRAME.unpack(data)
        return status, Frame(dlid, slid, dqp, sqp, mad)

    def _unasked(self, frame: Frame) -> None:
        if self.on_frame is not None and not frame.mad[3] & RESPONSE:
            for reply in self.on_frame(frame, self.now_ps):
                self.send(reply)

    def listen(self, seconds: float) -> None:
        """Take what comes for so long, or until something came."""
        got = self._receive(seconds)
        if got is not None and not got[0]:
            self._unasked(got[1])
