"""The live server against clients that speak its protocol by hand: sound ones, and hostile ones."""

from __future__ import annotations

import errno
import os
import random
import shutil
import socket
import stat
import struct
from collections.abc import Iterator

import pytest
from support.clusters import boxes
from support.live_client import RawClient

from fabrictwin.live import wire
from fabrictwin.live.native_libraries import COMPILERS
from fabrictwin.live.server import Server
from fabrictwin.live.wire import Command, Kind

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in COMPILERS), reason="needs a C compiler (apt-get install gcc libc6-dev)"
)
PAGE = 4096
REMOTE_WRITE_AND_LOCAL = 3


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(boxes(2), engine="analytic")
    yield made
    made.close()


def objects(server: Server) -> int:
    """Queue pairs, regions and shared receive queues of all adapters."""
    return sum(len(a.queue_pairs) + len(a.memory.local) + len(a.shared_receives) for a in server.world.adapters)


def test_the_socket_is_the_users_alone(server: Server) -> None:
    assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.socket.stat().st_mode) == 0o600


def test_a_device_that_is_not_there(server: Server) -> None:
    for host, device in (("host-0", "uverbs1"), ("host-7", "uverbs0"), ("host-0", "uverbs-1"), ("host-0", "x")):
        assert not RawClient(server, host, device).opened


def test_a_client_may_go_before_it_is_answered(server: Server) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for device in ("uverbs0", "rdma_cm", "netlink"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
            gone.connect(str(server.socket))
            name = f"host-0/{device}".encode()
            gone.send(wire.REQUEST.pack(Kind.OPEN, len(name), wire.PROTOCOL) + name)
        for _ in range(4):
            server.turn(0)
    client = RawClient(server)
    client.socket.send(
        wire.REQUEST.pack(Kind.COMMAND, 16, 0) + wire.HEADER.pack(Command.GET_CONTEXT, 4, 2) + bytes(8)
    )
    client.close()
    assert not server.clients
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert RawClient(server).start() >= 0


def test_commands_before_the_context_are_refused(server: Server) -> None:
    client = RawClient(server)
    assert client.command(Command.ALLOC_PD, bytes(8))[0] == errno.EINVAL


def test_what_rxe_does_not_have_is_refused(server: Server) -> None:
    client = RawClient(server)
    client.start()
    for number in (37, 39, 40, 29, 200):  # OPEN_XRCD, CREATE_XSRQ, OPEN_QP, POST_RECV, none
        assert client.command(number, bytes(32))[0] == errno.EOPNOTSUPP  # type: ignore[arg-type]


def test_memory_must_be_there(server: Server) -> None:
    client = RawClient(server)
    domain = client.start()
    room = bytearray(PAGE)
    address = (id(room) // PAGE + 1) * PAGE  # mapped: this process is the client too
    body = wire.REG_MR.pack(0, address, 8, address, domain, REMOTE_WRITE_AND_LOCAL)
    error, payload = client.command(Command.REG_MR, body)
    assert error == 0
    _, lkey, rkey = struct.unpack_from("=III", payload)
    assert lkey == rkey
    for start, length, code in ((8, 8, errno.EFAULT), (address, 0, errno.EINVAL), (1 << 50, 8, errno.EINVAL)):
        body = wire.REG_MR.pack(0, start, length, start, domain, REMOTE_WRITE_AND_LOCAL)
        assert client.command(Command.REG_MR, body)[0] == code
    assert client.command(Command.DEALLOC_PD, struct.pack("=I", domain))[0] == errno.EBUSY


def test_sizes_are_rounded_as_rxe_rounds_them(server: Server) -> None:
    client = RawClient(server)
    domain = client.start()
    queue = client.value(Command.CREATE_CQ, bytes(8) + wire.CREATE_CQ.pack(7, 100, 0, -1))
    body = bytes(8) + wire.CREATE_QP.pack(9, domain, queue, queue, 0, 10, 16, 2, 1, 40, 1, 2, 0)
    error, payload = client.command(Command.CREATE_QP, body)
    assert error == 0
    # slots: a power of two with one free; 40 bytes of inline data are room for two segments
    assert struct.unpack_from("=5I", payload, 8) == (15, 31, 2, 1, 40)
    for size in (1 << 20, 0xFFFFFFFF):
        body = bytes(8) + wire.CREATE_QP.pack(9, domain, queue, queue, 0, size, 16, 2, 1, 40, 1, 2, 0)
        assert client.command(Command.CREATE_QP, body)[0] == errno.EINVAL


def test_a_doorbell_without_requests_does_nothing(server: Server) -> None:
    client = RawClient(server)
    handle, _ = client.queue_pair(client.start())
    for argument in (handle, handle + 1, 0, 1 << 40):
        client.send(wire.REQUEST.pack(Kind.DOORBELL, 0, argument))
    assert client.value(Command.ALLOC_PD, bytes(8)) > 0


def test_everything_goes_with_its_client(server: Server) -> None:
    before, descriptors = objects(server), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        client = RawClient(server)
        client.queue_pair(client.start())
        assert objects(server) > before
        client.close()
        assert objects(server) == before
    assert not server.clients
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_nonsense_hurts_only_its_sender(server: Server) -> None:
    """Random datagrams, commands with random bytes, and random bytes over the rings and their indices."""
    good = RawClient(server, "host-1")
    domain = good.start()
    draw = random.Random(7)
    for _ in range(60):
        bad = RawClient(server)
        handle, _ = bad.queue_pair(bad.start(), kind=draw.choice((2, 3, 4)))
        memory = bad.memory()
        for _ in range(20):
            at = draw.randrange(len(memory) - 64)
            memory[at : at + 64] = draw.randbytes(64)
            ring = wire.CONTROL_BYTES + PAGE * draw.randrange((len(memory) - wire.CONTROL_BYTES) // PAGE)
            struct.pack_into("=I", memory, ring + draw.choice((128, 256)), draw.getrandbits(32))
            bad.send(wire.REQUEST.pack(Kind.DOORBELL, 0, handle))
            number = draw.choice(list(Command))
            size = 4 * draw.randrange(40)
            body = draw.randbytes(size) if draw.random() < 0.5 else bytes(size)
            data = wire.HEADER.pack(number, (8 + size) // 4, 64) + body
            bad.send(wire.REQUEST.pack(Kind.COMMAND, len(data), 0) + data)
            kind = draw.choice((*Kind, 99))
            if draw.random() < 0.2:
                bad.send(wire.REQUEST.pack(kind, draw.randrange(50), draw.getrandbits(64)) + draw.randbytes(20))
        memory.close()
        bad.close()
    assert good.value(Command.ALLOC_PD, bytes(8)) != domain
    good.close()
    assert objects(server) == 0
    assert not server.world.records
    assert not server.world.plain


def test_the_connection_manager_withstands_nonsense(server: Server) -> None:
    draw = random.Random(11)
    bad = RawClient(server, device="rdma_cm")
    for _ in range(2000):
        data = struct.pack("=IHH", draw.randrange(25), 0, 400) + draw.randbytes(draw.choice((0, 8, 24, 40, 300)))
        bad.send(wire.REQUEST.pack(Kind.CM_COMMAND, len(data), 0) + data)
        bad.socket.setblocking(False)
        with_reply = True
        while with_reply:
            try:
                with_reply = bool(bad.socket.recv(4096))
            except BlockingIOError:
                with_reply = False
    bad.close()
    assert RawClient(server, device="rdma_cm").opened


def test_a_client_that_never_reads_is_dropped(server: Server) -> None:
    deaf = RawClient(server)
    deaf.start()
    deaf.socket.setblocking(False)
    data = wire.HEADER.pack(Command.QUERY_DEVICE, 4, 64) + bytes(8)
    for _ in range(3000):
        deaf.send(wire.REQUEST.pack(Kind.COMMAND, len(data), 0) + data)
    assert len(server.clients) == 0
    assert RawClient(server).opened


def test_the_queues_file_cannot_be_shrunk(server: Server) -> None:
    client = RawClient(server)
    client.queue_pair(client.start())
    with pytest.raises(PermissionError):
        os.ftruncate(client.file, 0)


def messages(datagrams: list[bytes]) -> list[tuple[int, int, bytes]]:
    """(type, flags, body) of netlink's messages."""
    found = []
    for data in datagrams:
        length, kind, flags, _, _ = struct.unpack_from("=IHHII", data)
        assert length == len(data)
        found.append((kind, flags, data[16:]))
    return found


def netlink(client: RawClient, operation: int, flags: int, body: bytes = b"", count: int = 1) -> list[bytes]:
    """Send a message of the nldev client by hand; returns so many datagrams of its answer."""
    client.send(struct.pack("=IHHII", 16 + len(body), 5 << 10 | operation, 1 | flags, 9, 77) + body)
    return [client.socket.recv(1 << 16) for _ in range(count)]


def test_netlink_lists_devices_and_links(server: Server) -> None:
    client = RawClient(server, "host-1", "netlink")
    adapter = server.world.host("host-1")[0]
    device, end = messages(netlink(client, 1, 0x300, count=2))
    assert device[:2] == (5 << 10 | 1, 2)
    assert b"\x0b\0\x02\0" + adapter.name.encode() + b"\0" in device[2]
    assert struct.pack("=HHQ", 12, 6, adapter.guid) in device[2]
    assert end == (3, 2, bytes(4))
    port, ack = messages(netlink(client, 5, 4, struct.pack("=HHIHHI", 8, 1, 0, 8, 3, 1), count=2))
    assert struct.pack("=HHI", 8, 9, adapter.lid) in port[2]
    assert struct.pack("=HHB", 5, 12, 4) in port[2]  # the port is active
    assert ack[0] == 2
    assert struct.unpack_from("=i", ack[2]) == (0,)


def test_netlink_counts_what_programs_hold(server: Server) -> None:
    program, client = RawClient(server), RawClient(server, "host-0", "netlink")
    domain = program.start()
    for _ in range(40):
        _, number = program.queue_pair(domain)
    index = struct.pack("=HHI", 8, 1, 0)
    (summary,) = netlink(client, 9, 0, index)
    for name, count in (("pd", 1), ("cq", 40), ("qp", 40), ("mr", 0), ("ctx", 1)):
        words = name.encode() + bytes(4 - len(name)) if len(name) < 3 else name.encode() + b"\0"
        assert words + struct.pack("=HHQ", 12, 18, count) in summary
    several = netlink(client, 10, 0x300, index, count=3)
    assert [kind for kind, _, _ in messages(several)] == [5 << 10 | 10] * 2 + [3]
    assert sum(each.count(struct.pack("=HHI", 8, 28, os.getpid())) for each in several) == 40
    assert struct.pack("=HHI", 8, 21, number) in several[1]


@pytest.mark.parametrize(
    ("operation", "body", "code"),
    [
        (1, struct.pack("=HHI", 8, 1, 9), errno.EINVAL), (5, struct.pack("=HHI", 8, 1, 0), errno.EINVAL),
        (2, b"", errno.EPERM), (3, b"", errno.EPERM), (17, struct.pack("=HHI", 8, 1, 0), errno.EINVAL),
        (15, struct.pack("=HH4s", 8, 69, b"mad"), errno.ENOENT), (99, b"", errno.EINVAL),
    ],
)  # fmt: skip
def test_netlink_refuses_as_the_kernel_does(server: Server, operation: int, body: bytes, code: int) -> None:
    client = RawClient(server, "host-0", "netlink")
    ((kind, _, said),) = messages(netlink(client, operation, 0, body))
    assert kind == 2
    assert struct.unpack_from("=i", said) == (-code,)


def test_netlink_that_is_garbled_is_dropped_and_nothing_else(server: Server) -> None:
    client = RawClient(server, "host-0", "netlink")
    for data in (
        b"x",
        bytes(16),
        struct.pack("=IHHII", 99, 1, 1, 0, 0),
        struct.pack("=IHHIIHH", 20, 1, 1, 0, 0, 1, 0),
    ):
        client.send(data)
    assert messages(netlink(client, 6, 0))[0][0] == 5 << 10 | 6


def test_what_happened_to_a_closed_descriptor_is_not_told_to_the_next_one_of_its_number(server: Server) -> None:
    """Otherwise a program that begins as another ends now and then loses its connection for the other's end."""
    (waking, far), (other, its) = os.pipe(), os.pipe()
    called: list[int] = []

    def end_one_and_begin_another(mask: int) -> None:
        server.unwatch_descriptor(other)
        os.dup2(waking, other)
        server.watch_descriptor(other, called.append)

    server.watch_descriptor(waking, end_one_and_begin_another)
    server.watch_descriptor(other, lambda mask: None)
    server.handle([(waking, 1), (other, 1)])
    assert called == []
    server.handle([(other, 1)])
    assert called == [1]
    for descriptor in (waking, other):
        server.unwatch_descriptor(descriptor)
    for descriptor in (waking, far, other, its):
        os.close(descriptor)
