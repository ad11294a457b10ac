"""Targets of `fuzz.py`: the socket that live programs speak to, what `exec` reads, a saved twin."""

from __future__ import annotations

import io
import os
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from fuzzing.target import FRESH, Target, folder, of_file

ANEW = 100  # inputs on a connection, since some destroy what others name

_CLUSTER = b"""schema: 1
cluster:
  hosts: {type: dgx-h100, count: 2}
  network: {technology: infiniband, topology: {kind: fat-tree}, switch: qm9700}
"""


@cache
def _blueprint() -> Any:
    from fabrictwin.cluster.build_blueprint import build
    from fabrictwin.cluster.spec.spec import load_spec

    path = folder() / "cluster.yaml"
    path.write_bytes(_CLUSTER)
    spec = load_spec(path)
    return build(spec.cluster, spec=spec)


class _Programs:
    """A live server in this process and the connections of another one, a device and a connection manager.

    The other process is whose memory the server reads and writes: no input can make it write into ours.
    """

    def __init__(self) -> None:
        self.inputs = 0
        self.server: Any = None
        self.child = 0
        self.connections: dict[bytes, socket.socket] = {}
        self.held: list[int] = []

    def ready(self) -> None:
        """Make what is not there or what the server has dropped."""
        if self.inputs % FRESH == 0:
            self.close()
            self.open()
        elif self.inputs % ANEW == 0 or len(self.server.clients) < len(self.connections):
            self.connect()
        self.inputs += 1

    def open(self) -> None:
        from fabrictwin.live.server import Server
        from fabrictwin.twin.twin import Twin

        self.server = Server(Twin(_blueprint()), engine="analytic")
        self.server._debug = True  # tracebacks of what it survives
        self.connect()

    def connect(self) -> None:
        """Have another process connect twice, and hand over its connections."""
        from fabrictwin.live import wire
        from fabrictwin.live.wire import Kind

        self.disconnect()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.child = os.fork()
        if not self.child:
            ours.close()
            made = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
            for one in made:
                one.connect(str(self.server.socket))
            socket.send_fds(theirs, [b"x"], [one.fileno() for one in made])
            theirs.recv(1)  # until we are gone, or are done with it
            os._exit(0)
        theirs.close()
        self.alive = ours
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 2)
        device, manager = (socket.socket(fileno=one) for one in descriptors)
        self.connections = {b"d": device, b"m": manager}
        for one in self.connections.values():
            one.setblocking(False)
        for key, name in ((b"d", b"host-0/uverbs0"), (b"m", b"host-0/rdma_cm")):
            self.send(key, wire.REQUEST.pack(Kind.OPEN, len(name), wire.PROTOCOL) + name)
        for sample in _live_start():
            self.send(sample[:1], sample[1:])

    def send(self, key: bytes, data: bytes) -> None:
        """Send a datagram, and let the server answer it."""
        connection = self.connections[key]
        with suppress(OSError):  # the server has dropped us, or the datagram is larger than a socket takes
            connection.send(data)
        for _ in range(2):
            self.server.turn(0)
        with suppress(OSError):
            data = b"."
            while data:  # none: the server has dropped us
                data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 4)
                self.held += descriptors  # a pipe whose end we close is a client that has left

    def disconnect(self) -> None:
        if self.child:
            for one in (*self.connections.values(), self.alive):
                one.close()
            for descriptor in self.held:
                os.close(descriptor)
            self.held.clear()
            os.waitpid(self.child, 0)
            self.child = 0
            for _ in range(4):
                self.server.turn(0)

    def close(self) -> None:
        if self.server is not None:
            self.disconnect()
            self.server.close()


def _ask(key: bytes, kind: int, body: bytes = b"", argument: int = 0) -> bytes:
    from fabrictwin.live import wire

    return key + wire.REQUEST.pack(kind, len(body), argument) + body


def _verb(number: int, body: bytes, extended: bool = False) -> bytes:
    from fabrictwin.live import wire
    from fabrictwin.live.wire import Kind

    if extended:
        head = wire.HEADER.pack(number | wire.EXTENDED, len(body) // 8, 32)
        return _ask(b"d", Kind.COMMAND, head + wire.EXTENDED_HEADER.pack(0, 0, 0, 0) + body)
    return _ask(b"d", Kind.COMMAND, wire.HEADER.pack(number, (8 + len(body)) // 4, 64) + body)


# handles of a context count from 1, identifiers of a server likewise
_DOMAIN, _QUEUE, _PAIR, _SHARED, _DATAGRAMS, _WINDOW = 1, 2, 3, 4, 5, 6
_IDENTIFIERS = (1, 2, 3)


@cache
def _live_start() -> list[bytes]:
    """Make a domain, a completion queue, queue pairs and identifiers: later commands name them."""
    from fabrictwin.live import wire
    from fabrictwin.live.rdma_cm.cm_abi import CREATE_ID, PortSpace
    from fabrictwin.live.rdma_cm.cm_abi import Command as Cm
    from fabrictwin.live.wire import Command

    pair = (9, _DOMAIN, _QUEUE, _QUEUE, 0, 8, 8, 1, 1, 64, 1)
    return [
        _verb(Command.GET_CONTEXT, bytes(8)),
        _verb(Command.ALLOC_PD, bytes(8)),
        _verb(Command.CREATE_CQ, bytes(8) + wire.CREATE_CQ.pack(7, 16, 0, -1)),
        _verb(Command.CREATE_QP, bytes(8) + wire.CREATE_QP.pack(*pair, 2, 0)),
        _verb(Command.CREATE_SRQ, bytes(8) + wire.CREATE_SRQ.pack(5, _DOMAIN, 8, 1, 0)),
        _verb(Command.CREATE_QP, bytes(8) + wire.CREATE_QP.pack(*pair, 4, 0)),
        _verb(Command.ALLOC_MW, bytes(8) + struct.pack("=IBxxx", _DOMAIN, 1)),
        *(
            _cm(Cm.CREATE_ID, CREATE_ID.pack(0, 0, space, 2))
            for space in (PortSpace.TCP, PortSpace.TCP, PortSpace.UDP)
        ),
    ]


def _cm(number: int, body: bytes) -> bytes:
    from fabrictwin.live.rdma_cm import cm_abi
    from fabrictwin.live.wire import Kind

    return _ask(b"m", Kind.CM_COMMAND, cm_abi.HEADER.pack(number, len(body), 320) + body)


def _verbs_samples() -> list[bytes]:
    from fabrictwin.live import wire
    from fabrictwin.live.wire import Command, Kind

    samples = [
        _verb(Command.QUERY_DEVICE, bytes(8)),
        _verb(Command.QUERY_PORT, bytes(8) + b"\1" + bytes(7)),
        _verb(Command.REG_MR, wire.REG_MR.pack(0, 4096, 64, 4096, _DOMAIN, 3)),
        _verb(Command.REREG_MR, wire.REREG_MR.pack(0, 7, 1, 4096, 64, 4096, _DOMAIN, 3)),
        _verb(Command.CREATE_COMP_CHANNEL, bytes(8)),
        _verb(Command.RESIZE_CQ, struct.pack("=QIII", 0, _QUEUE, 64, 0)),
        _verb(Command.REQ_NOTIFY_CQ, struct.pack("=II", _QUEUE, 0)),
        _verb(Command.CREATE_AH, struct.pack("=QQII", 0, 1, _DOMAIN, 0) + bytes(32)),
        _verb(Command.MODIFY_SRQ, struct.pack("=IIIIQ", _SHARED, 2, 8, 4, 0)),
        _verb(Command.QUERY_SRQ, struct.pack("=QII", 0, _SHARED, 0)),
        _verb(Command.ATTACH_MCAST, wire.MULTICAST.pack(b"\xff\x12" + bytes(14), _DATAGRAMS, 0xC001, 0)),
        _verb(Command.DETACH_MCAST, wire.MULTICAST.pack(b"\xff\x12" + bytes(14), _DATAGRAMS, 0xC001, 0)),
        _verb(Command.DEALLOC_MW, struct.pack("=I", _WINDOW)),
        _verb(Command.DESTROY_SRQ, struct.pack("=QII", 0, _SHARED, 0)),
        _verb(Command.DEALLOC_PD, struct.pack("=I", _DOMAIN)),
    ]
    there = wire.QP_DESTINATION.pack(bytes(16), 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    masks = {1: 0x39, 2: 0x121181, 3: 0x12E01}  # to INIT, RTR and RTS, as libraries set them
    for pair in (_PAIR, _DATAGRAMS):
        for state, mask in masks.items():
            changed = wire.MODIFY_QP.pack(
                pair, mask, 0x1234, 1, 1, 7, 7, 0, 0, state, state, 3, 0, 0, 1, 1, 12, 1, 14, 7, 7, 1, 14
            )
            samples.append(_verb(Command.MODIFY_QP, there + there + changed))
        samples.append(_verb(Command.QUERY_QP, struct.pack("=QII", 0, pair, 0)))
        samples.append(_ask(b"d", Kind.DOORBELL, argument=pair))
        samples.append(_verb(Command.DESTROY_QP, struct.pack("=QII", 0, pair, 0)))
    for extended in (Command.QUERY_DEVICE, Command.CREATE_CQ, Command.CREATE_QP, Command.MODIFY_QP):
        samples.append(_verb(extended, bytes(64), extended=True))
    samples += [_ask(b"d", Kind.TREE, b"host-1"), _ask(b"d", Kind.HOSTS), _ask(b"d", Kind.ADDRESS, bytes(16))]
    samples.append(_ask(b"d", Kind.OPEN, b"host-1/uverbs0", wire.PROTOCOL))
    return samples


def _cm_samples() -> list[bytes]:
    from fabrictwin.live.rdma_cm.cm_abi import AF_INET, CONNECTION
    from fabrictwin.live.rdma_cm.cm_abi import Command as Cm

    address = struct.pack("=HH4s20x", AF_INET, 0x1234, bytes([127, 0, 0, 1]))
    stored = address.ljust(128, b"\0")  # struct sockaddr_storage
    offered = CONNECTION.pack(3, 1, b"hello".ljust(256, b"\0"), 5, 0, 1, 1, 0, 7, 7, 1)
    samples = [_cm(Cm.GET_EVENT, bytes(8))] * 4
    for number in _IDENTIFIERS:
        own, answer = struct.pack("=II", number, 0), struct.pack("=QII", 0, number, 1)
        samples += [
            _cm(Cm.BIND_IP, bytes(8) + address + own),
            _cm(Cm.BIND, struct.pack("=IHH", number, 28, 0) + stored),
            _cm(Cm.RESOLVE_IP, address + address + struct.pack("=II", number, 2000)),
            _cm(Cm.RESOLVE_ADDR, struct.pack("=IIHHI", number, 2000, 28, 28, 0) + stored + stored),
            _cm(Cm.RESOLVE_ROUTE, struct.pack("=II", number, 2000)),
            _cm(Cm.LISTEN, struct.pack("=II", number, 4)),
            _cm(Cm.CONNECT, offered + own),
            _cm(Cm.ACCEPT, bytes(8) + offered + own),
            _cm(Cm.REJECT, struct.pack("=IBxxx", number, 5) + b"never"),
            _cm(Cm.SET_OPTION, struct.pack("=QIIIII", 0, number, 0, 1, 4, 0) + b"\1\0\0\0"),
            _cm(Cm.JOIN_IP_MCAST, struct.pack("=QQ", 0, 1) + address + own),
            _cm(Cm.JOIN_MCAST, struct.pack("=QQIHH", 0, 1, number, 28, 0) + stored),
        ]
        samples += [_cm(each, own) for each in (Cm.DISCONNECT, Cm.NOTIFY)]
        every = (Cm.QUERY_ROUTE, Cm.QUERY, Cm.INIT_QP_ATTR, Cm.LEAVE_MCAST, Cm.MIGRATE_ID, Cm.DESTROY_ID)
        samples += [_cm(each, answer) for each in every]
    return samples


def _live_socket() -> Target:
    """Datagrams of programs: the key of a connection, then a request as it is."""
    programs = _Programs()

    def read(data: bytes) -> None:
        programs.ready()
        said, sys.stderr = sys.stderr, io.StringIO()
        try:
            programs.send(b"m" if data[:1] == b"m" else b"d", data[1:])
            printed = sys.stderr.getvalue()
        finally:
            sys.stderr = said
        if "Traceback" in printed:
            raise RuntimeError(printed)

    return Target([*_live_start(), *_verbs_samples(), *_cm_samples()], read)


def _netlink() -> Target:
    """Ask as `rdma` does about a host whose adapters nobody has opened."""
    from fabrictwin.live.netlink import nldev_abi as abi
    from fabrictwin.live.netlink.nldev import Devices
    from fabrictwin.twin.twin import Twin
    from fabrictwin.verbs.adapter.world import World

    twin = Twin(_blueprint())
    world = World(twin, engine=twin.start_engine("analytic"))
    devices = Devices(world.host("host-0"), lambda _: (), 1)
    body = abi.u32(abi.Name.DEV_INDEX, 0) + abi.u32(abi.Name.PORT_INDEX, 1)
    body += abi.text(abi.Name.CHARDEV_TYPE, "uverbs")
    samples = [
        abi.HEADER.pack(abi.HEADER.size + len(body), abi.NLDEV << 10 | each, abi.F_REQUEST | flags, 7, 0) + body
        for each in abi.Operation
        for flags in (0, abi.F_ACK, abi.F_DUMP)
    ]
    return Target([*samples, samples[0] + samples[3]], devices.answer, (ValueError,))


def _programs_file() -> Target:
    from fabrictwin.live.exec.program_list import from_file

    samples = [b"host-0: ib_write_bw -d mlx5_0\n# then\nhost-1: ib_write_bw 'host-0' --report_gbits\n"]
    return Target(samples, of_file("programs", lambda path: from_file(path, ["host-0", "host-1"])))


def _twin() -> Target:
    """A saved twin's state with its arrays as they were, or all of its file."""
    import numpy as np

    from fabrictwin.catalog import answers
    from fabrictwin.twin.twin import Twin

    path = folder() / f"{os.getpid()}-twin.npz"
    Twin(_blueprint()).save(path)
    whole = path.read_bytes()
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in ("cables", "lft", "links")}
        state = stored["state"].tobytes()

    def read(data: bytes) -> None:
        if data[:2] == b"PK":
            path.write_bytes(data)
        else:
            with path.open("wb") as file:
                np.savez(file, state=np.frombuffer(data, np.uint8), **arrays)
        try:
            Twin.load(path)
        finally:
            answers._defined.clear()

    return Target([state, state, state, whole], read)


LIVE: dict[str, Callable[[], Target]] = {
    "live-socket": _live_socket,
    "netlink": _netlink,
    "programs": _programs_file,
    "twin": _twin,
}
