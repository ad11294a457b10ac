"""Network interfaces of the twin's adapters, as a host's programs see them, and addresses that lead to hosts."""

from __future__ import annotations

import errno
import json
import shutil
import struct
import sys
from collections.abc import Iterator

import pytest
from support.clusters import boxes
from support.live_client import RawClient
from support.live_pair import NEEDS_PROGRAMS, LiveTwin, free_port

from fabrictwin.live.multicast import MOST_MEMBERS, Groups
from fabrictwin.live.native_libraries import COMPILERS
from fabrictwin.live.server import Server
from fabrictwin.live.sysfs import FIRST_IFINDEX
from fabrictwin.live.wire import Kind
from fabrictwin.twin import Twin

needs_a_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in COMPILERS), reason="needs a C compiler (apt-get install gcc libc6-dev)"
)
TECHNOLOGIES = ("infiniband", "ethernet")
TABLE, ENTRY = 5, 6  # UVERBS_METHOD_QUERY_GID_...


@pytest.fixture(params=TECHNOLOGIES)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(boxes(2, technology=request.param), engine="analytic")
    yield made
    made.close()


def ioctl(client: RawClient, method: int, *attributes: tuple[int, int, int]) -> tuple[int, dict[int, bytes]]:
    """(error, answers by attribute) of a method of the device; attributes are (id, length, value)."""
    body = b"".join(struct.pack("=HHHHQ", number, length, 1, 0, value) for number, length, value in attributes)
    head = struct.pack("=4H8xII", 24 + len(body), 0, method, len(attributes), 12, 0)
    error, payload, _ = client.ask(Kind.IOCTL, head + body)
    found: dict[int, bytes] = {}
    while payload and not error:
        place, _, length = struct.unpack_from("=HHI", payload)
        found[attributes[place][0]] = payload[8 : 8 + length]
        payload = payload[8 + length :]
    return error, found


@needs_a_compiler
def test_the_gid_table_by_ioctl_is_the_adapters(server: Server) -> None:
    client, (adapter,) = RawClient(server), server.world.host("host-0")
    client.start()
    error, found = ioctl(client, TABLE, (0, 8, 32), (1, 4, 0), (2, 32 * 64, 4096), (3, 8, 4096))
    assert error == 0
    assert struct.unpack("=Q", found[3]) == (len(adapter.gids),)
    interface = FIRST_IFINDEX if adapter.ethernet else 0
    kinds = (1, 2, 1, 2) if adapter.ethernet else (0,)  # RoCE v1, v2; InfiniBand
    expected = [
        struct.pack("=16sIIII", gid.raw, index, 1, kinds[index], interface)
        for index, gid in enumerate(adapter.gids)
    ]
    assert found[2] == b"".join(expected)
    for index, entry in enumerate(expected):
        assert ioctl(client, ENTRY, (0, 4, 1), (1, 4, index), (2, 4, 0), (3, 32, 4096)) == (0, {3: entry})


@needs_a_compiler
def test_gids_by_ioctl_that_are_not_there(server: Server) -> None:
    client, (adapter,) = RawClient(server), server.world.host("host-0")
    client.start()
    for port, index, flags, code in (
        (1, len(adapter.gids), 0, errno.ENODATA),
        (1, adapter.gid_table_length, 0, errno.EINVAL),
        (2, 0, 0, errno.EINVAL),
        (1, 0, 1, errno.EINVAL),
    ):
        assert ioctl(client, ENTRY, (0, 4, port), (1, 4, index), (2, 4, flags), (3, 32, 4096))[0] == code
    assert ioctl(client, TABLE, (0, 8, 32), (1, 4, 0), (2, 0, 4096), (3, 8, 4096))[0] == errno.EINVAL  # no room
    assert ioctl(client, TABLE, (0, 8, 32))[0] == errno.EINVAL
    assert ioctl(client, 0)[0] == errno.EPROTONOSUPPORT  # UVERBS_METHOD_INVOKE_WRITE
    assert client.ask(Kind.IOCTL, b"\1")[0] == errno.EINVAL


def test_a_group_takes_as_many_members_as_rxe_has_room_for() -> None:
    groups, pairs = Groups(), [object() for _ in range(MOST_MEMBERS + 1)]
    taken = [groups.join(b"group", pair) for pair in pairs]  # type: ignore[arg-type]
    assert taken == [True] * MOST_MEMBERS + [False]
    assert groups.join(b"group", pairs[0])  # type: ignore[arg-type]


LOOKED_UP = """
import fcntl, socket, struct, sys
name = sys.argv[1]
index = socket.if_nametoindex(name)
print(index, socket.if_indextoname(index))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    for request in (0x8915, 0x891B, 0x8921):  # SIOCGIFADDR, SIOCGIFNETMASK, SIOCGIFMTU
        print(fcntl.ioctl(any_socket, request, name.encode().ljust(40, b"\\0"))[16:24].hex())
    try:
        fcntl.ioctl(any_socket, 0x8915, b"nobody0".ljust(40, b"\\0"))
    except OSError as error:
        print(error.errno)
"""
LISTED = """
import ctypes, socket, struct
class Entry(ctypes.Structure): pass
Entry._fields_ = [("next", ctypes.POINTER(Entry)), ("name", ctypes.c_char_p), ("flags", ctypes.c_uint),
                  ("address", ctypes.c_void_p), ("mask", ctypes.c_void_p)]
libc = ctypes.CDLL(None)
for _ in range(3):
    head = ctypes.POINTER(Entry)()
    assert libc.getifaddrs(ctypes.byref(head)) == 0
    each, found = head, []
    while each:
        where = each.contents.address
        family = ctypes.cast(where, ctypes.POINTER(ctypes.c_ushort))[0] if where else 0
        ip = ctypes.string_at(each.contents.address + 4, 4) if family == socket.AF_INET else b""
        found.append((each.contents.name.decode(), family, ip.hex()))
        each = each.contents.next
    libc.freeifaddrs(head)
print([entry for entry in found if entry[0] == "NAME"], ("lo", 2, "7f000001") in found)
"""
ADDRESSED = """
import socket
with socket.create_server(("10.0.0.1", 0)) as listener:
    port = listener.getsockname()[1]
    print(listener.getsockname()[0])
    with socket.create_connection(("10.0.0.1", port)) as there:
        here, _ = listener.accept()
        there.sendall(b"hello")
        print(here.recv(5), there.getpeername() == ("10.0.0.1", port))
    try:
        with socket.create_server(("10.0.0.2", port)):
            print("the other address has a port of that number too")
    except OSError as error:
        print(error)
"""


class TestPrograms:
    pytestmark = NEEDS_PROGRAMS

    @pytest.fixture(params=TECHNOLOGIES)
    def live(self, request: pytest.FixtureRequest) -> Iterator[LiveTwin]:
        with LiveTwin(Twin(boxes(2, technology=request.param).blueprint)) as made:
            yield made

    @staticmethod
    def name(live: LiveTwin) -> str:
        return "eth1" if live.server.world.host("host-1")[0].ethernet else "ib0"

    @pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip (apt-get install iproute2)")
    def test_ip_shows_an_adapters_interface_among_the_machines(self, live: LiveTwin) -> None:
        name, (adapter,) = self.name(live), live.server.world.host("host-1")
        (shown,) = json.loads(live.run("host-1", ["ip", "-j", "addr", "show", name]).output)
        assert (shown["ifindex"], shown["ifname"], shown["operstate"]) == (FIRST_IFINDEX, name, "UP")
        gid = bytes(4) + adapter.gids[0].raw
        assert shown["address"] == (adapter.mac if adapter.ethernet else gid).hex(":")
        (address,) = shown["addr_info"]
        assert (address["local"], address["prefixlen"], address["broadcast"]) == ("10.0.0.2", 8, "10.255.255.255")
        every = json.loads(live.run("host-1", ["ip", "-j", "link"]).output)
        assert {"lo", name} <= {each["ifname"] for each in every}
        by_family = json.loads(live.run("host-1", ["ip", "-j", "-6", "addr"]).output)
        assert all(each.get("ifname") != name for each in by_family)
        nobody = live.run("host-1", ["ip", "addr", "show", "nobody0"])
        assert nobody.code == 1
        assert "does not exist" in nobody.output

    @pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip (apt-get install iproute2)")
    def test_a_cut_link_shows_in_its_interface(self, live: LiveTwin) -> None:
        (adapter,) = live.server.world.host("host-1")
        live.environment("host-1")
        live.submit(lambda: live.server.change_links({adapter.port: 0}))
        shown = live.run("host-1", ["ip", "link", "show", self.name(live)]).output
        assert "NO-CARRIER" in shown
        assert "state DOWN" in shown

    def test_libc_looks_interfaces_up(self, live: LiveTwin) -> None:
        name = self.name(live)
        ended = live.run("host-1", [sys.executable, "-c", LOOKED_UP, name])
        mtu = 4200 if name == "eth1" else 4092
        assert ended.output.split("\n") == [
            f"{FIRST_IFINDEX} {name}",
            "020000000a000002",
            "02000000ff000000",
            struct.pack("=I", mtu).hex() + "00000000",
            str(errno.ENODEV),
            "",
        ]

    def test_getifaddrs_lists_interfaces_behind_the_machines(self, live: LiveTwin) -> None:
        name = self.name(live)
        ended = live.run("host-1", [sys.executable, "-c", LISTED.replace("NAME", name)])
        assert ended.output == f"[('{name}', 17, ''), ('{name}', 2, '0a000002')] True\n"

    def test_sockets_reach_hosts_by_their_addresses(self, live: LiveTwin) -> None:
        ended = live.run("host-0", [sys.executable, "-c", ADDRESSED])
        assert ended.output.split("\n") == [
            "10.0.0.1",
            "b'hello' True",
            "the other address has a port of that number too",
            "",
        ]

    def test_programs_exchange_addresses_over_a_hosts_own(self, live: LiveTwin) -> None:
        port = free_port()
        command = [
            "ibv_rc_pingpong",
            "-n",
            "20",
            "-p",
            str(port),
            *(["-g", "1"] if self.name(live) == "eth1" else []),
        ]
        _, client = live.pair(command, [*command, "10.0.0.1"], port=port)
        assert client.code == 0, client.output
