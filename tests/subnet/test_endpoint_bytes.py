"""The endpoint's replies byte by byte, what it counts and drops, and its sockets without a network."""

from __future__ import annotations

import errno
import struct
from types import SimpleNamespace as Record

import pytest
from support.sm_fabrics import Site, two_tiers

from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Frame, Network
from fabrictwin.subnet.serve import sockets
from fabrictwin.subnet.serve.endpoint import Client, Endpoint, Message, pack_frame
from fabrictwin.subnet.serve.sockets import Server
from fabrictwin.subnet.wire.header import LidSmp, Method, SaMad
from fabrictwin.subnet.wire.smp import AttributeId

NAME = "host-1/mlx5_0"


def control(kind: int, data: bytes = b"", *, client: int = 0, magic: int = 0xDEADBEEF) -> bytes:
    return struct.pack("=IIII64s", magic, client, kind, len(data), data)


def connect(name: str = NAME, *, address: int = 4711, is_sm: int = 0) -> bytes:
    return control(Message.CONNECT, struct.pack("=III32s", address, 0, is_sm, name.encode()))


@pytest.fixture
def endpoint() -> Endpoint:
    """host-0 manages; the others are free."""
    site = Site(two_tiers(2, 1, 2))
    return site.endpoint


def at(endpoint: Endpoint, name: str = NAME) -> tuple[int, int]:
    m = endpoint.state.find(name)
    return m, endpoint.state.end_slot(m)


def test_every_reply_to_a_client_byte_by_byte(endpoint):
    m, slot = at(endpoint)
    state = endpoint.state
    guid, port_guid, lid = state.guid[m], state.port_guid[m], state.lid(slot)
    greeting = struct.pack("=III32s20x", 0, 0, 0, f"H-{guid:016x}".encode())
    head = struct.pack("=II", 0xDEADBEEF, 0)
    assert endpoint.control(connect(), 7) == head + struct.pack("=II", 1, 64) + greeting
    assert endpoint.clients[0] == Client(slot, 4711, False, 7, None)
    info = state.node_info[m]
    expected = {
        Message.GET_PORT: struct.pack("=HB", lid, 4),
        Message.GET_VENDOR: struct.pack("=IIIxxxxQ40x", 0x2C9, info.device_id, info.revision, 0),
        Message.GET_GID: b"\xfe\x80" + bytes(6) + port_guid.to_bytes(8, "big"),
        Message.GET_GUID: guid.to_bytes(8, "big"),
        Message.GET_NODEINFO: endpoint.network.sma._get_node_info(m, slot, 0)[1],
        Message.GET_PORTINFO: endpoint.network.sma._get_port_info(m, slot, 1)[1],
        Message.GET_PKEYS: b"\xff\xff" + bytes(62),
    }
    for kind, body in expected.items():
        reply = endpoint.control(control(kind, b"\1" if kind == Message.GET_PORTINFO else b""), 9)
        counted = len(body) if body.rstrip(b"\0") else 0
        assert reply == head + struct.pack("=II", kind, counted) + body.ljust(64, b"\0"), kind
    assert endpoint.clients[0].last_ps == 9
    assert endpoint.control(control(Message.DISCONNECT), 9) == head + struct.pack("=II", 2, 0) + bytes(64)
    assert endpoint.clients[0] is None
    assert (endpoint.counts.connects, endpoint.counts.refused) == (1, 0)


@pytest.mark.parametrize(
    ("data", "refused", "malformed"),
    [
        (control(Message.GET_PORT)[:79], 0, 1), (control(Message.GET_PORT) + b"x", 0, 1), (b"", 0, 1),
        (control(Message.GET_PORT, magic=0xDEADBEEE), 0, 1), (control(Message.GET_PORT, client=1), 1, 0),
        (control(Message.GET_PORT, client=10), 1, 0), (control(Message.GET_PORT, client=2**32 - 1), 1, 0),
        (control(11), 1, 0), (control(0), 1, 0), (connect("nobody"), 1, 0),
        (control(Message.GET_PORTINFO, b"\2"), 1, 0),
        (control(Message.GET_PORTINFO, b"\1"), 0, 0), (connect("host-0/mlx5_0", is_sm=1), 1, 0),
        (connect("host-0/mlx5_0"), 0, 0), (control(Message.GET_PORT), 0, 0),
    ],
)  # fmt: skip
def test_what_is_refused_and_what_is_no_message(endpoint, data, refused, malformed):
    endpoint.control(connect(), 0)
    number = struct.unpack_from("=I", data, 4)[0] if len(data) == 80 else 0
    reply = endpoint.control(data, 0)
    assert (endpoint.counts.refused, endpoint.counts.malformed_control) == (refused, malformed)
    assert (reply is None) == bool(malformed)
    if refused:
        assert reply == struct.pack("=IIII64x", 0xDEADBEEF, number, 0, 0)


def capability(endpoint: Endpoint, slot: int) -> bool:
    """Tell IsSM, bit 1 of the capability mask (volume 1, table 146)."""
    return bool(int.from_bytes(endpoint.state.get(slot)[20:24], "big") & 2)


def test_a_port_is_managed_by_one_client_at_a_time(endpoint):
    _, slot = at(endpoint)
    others = set(endpoint.network.managers)
    endpoint.control(connect(is_sm=1), 0)
    assert (capability(endpoint, slot), slot in endpoint.network.managers) == (True, True)
    endpoint.control(connect(), 0)
    yes, no = (struct.pack("=I", value) for value in (1, 0))
    refused = struct.pack("=IIII64x", 0xDEADBEEF, 1, 0, 0)
    assert endpoint.control(control(Message.SET_ISSM, yes, client=1), 0) == refused
    assert endpoint.control(control(Message.SET_ISSM, yes), 0) != refused  # it is already
    endpoint.control(control(Message.SET_ISSM, no), 0)
    assert (capability(endpoint, slot), endpoint.network.managers) == (False, others)
    endpoint.control(control(Message.SET_ISSM, b"\0\0\1\0", client=1), 0)
    assert endpoint.clients[1].is_sm
    assert capability(endpoint, slot)
    endpoint.disconnect(1, 0)
    assert (capability(endpoint, slot), endpoint.network.managers) == (False, others)
    endpoint.disconnect(1, 0)
    # what the twin's own software manages stays its own
    endpoint.attach(slot, lambda frame, now: [], 0)
    assert endpoint.control(control(Message.SET_ISSM, yes), 0)[8:12] == bytes(4)
    assert slot in endpoint.network.managers


def frame(mad: bytes, *, dlid: int = 0xFFFF, slid: int = 0, qp: int = 0, length: int = 256) -> bytes:
    return struct.pack(">HHHHIIIIQ256s", dlid, 0, slid, 0, qp, qp + 1, 0, 0, length, mad)


def asking(attribute=AttributeId.NODE_INFO, method=Method.GET, **more) -> bytes:
    return LidSmp(method=method, attribute=attribute, tid=0x0102_0304_0506_0708, **more).encode()


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        ({}, True), ({0: 2}, False), ({0: 0}, False), ({2: 0}, True), ({2: 2}, True), ({2: 3}, False),
        ({2: 1}, True),
    ],
)  # fmt: skip
def test_datagrams_have_a_version_that_there_is(endpoint, change, taken):
    endpoint.control(connect(), 0)
    mad = bytearray(asking())
    for place, value in change.items():
        mad[place] = value
    endpoint.frame(0, frame(bytes(mad), dlid=1), 5)
    assert (endpoint.counts.frames, endpoint.counts.malformed_frames) == (taken, not taken)
    assert endpoint.counts.by_attribute == ({(1, 1, 0x11): 1} if taken else {})
    assert endpoint.clients[0].last_ps == 5
    for number, data in ((0, frame(bytes(mad))[:-1]), (0, b""), (1, frame(bytes(mad)))):
        before = endpoint.counts.malformed_frames
        assert endpoint.frame(number, data, 0) == []
        assert endpoint.counts.malformed_frames == before + 1


def test_an_answer_has_ends_and_queue_pairs_turned_and_the_client_in_its_number(endpoint):
    for _ in range(3):
        endpoint.control(connect(), 0)
    _, slot = at(endpoint)
    own, leaf = (
        endpoint.state.lid(slot),
        endpoint.state.lid(endpoint.state.end_slot(endpoint.state.find("leaf-0"))),
    )
    for slid in (0, own, 0xFFFF):
        ((number, data),) = endpoint.frame(2, frame(asking(), dlid=leaf, slid=slid, qp=4), 0)
        dlid, back, dqp, sqp, status, length, mad = struct.unpack(">HxxHxxIII4xQ256s", data)
        assert (number, dlid, back, dqp, sqp, status, length) == (2, own, leaf, 5, 4, 0, 256)
        assert (mad[3], mad[8:16]) == (0x81, b"\0\2\3\4\5\6\7\x08")
    assert endpoint.counts.by_attribute == {(1, 1, 0x11): 3}
    # nobody there: the question comes back as timed out
    ((number, data),) = endpoint.frame(2, frame(asking(), dlid=0xBFF0, qp=4), 0)
    dlid, back, dqp, sqp, status, length, mad = struct.unpack(">HxxHxxIII4xQ256s", data)
    assert (number, dlid, back, dqp, sqp, status) == (2, 0xBFF0, 0, 4, 5, 110)
    assert mad[3] == 1
    assert endpoint.counts.unroutable == 1
    # a repression keeps its number, and what is shorter is filled up
    sent = []
    endpoint.network.send = lambda slot, made, now: sent.append(made) or Record(fate=3, frame=None)
    for method in (Method.TRAP_REPRESS, 0x81, Method.SET):
        assert endpoint.frame(2, frame(asking(method=method), dlid=1, length=100), 0) == []
    assert [made.mad[8:10] for made in sent] == [b"\1\2", b"\1\2", b"\0\2"]
    assert all(made.mad[100:] == bytes(156) and len(made.mad) == 256 and made.length == 100 for made in sent)


def test_a_question_to_a_port_without_software_times_out(endpoint):
    """The manager's port answers of itself; one whose client has gone does not."""
    endpoint.control(connect(), 0)
    endpoint.control(connect("host-2/mlx5_0", is_sm=1), 0)
    other = endpoint.state.lid(at(endpoint, "host-2/mlx5_0")[1])
    ask = frame(asking(AttributeId.SM_INFO), dlid=other)
    ((number, data),) = endpoint.frame(0, ask, 0)
    assert (number, struct.unpack_from(">I", data, 16)[0]) == (1, 0)
    endpoint.clients[1] = None
    ((number, data),) = endpoint.frame(0, ask, 0)
    assert (number, struct.unpack_from(">I", data, 16)[0]) == (0, 110)
    assert endpoint.frame(0, frame(asking(AttributeId.SM_INFO, 0x81), dlid=other), 0) == []
    assert endpoint.counts.no_client == 2
    manager = endpoint.state.lid(at(endpoint, "host-0/mlx5_0")[1])
    ((number, data),) = endpoint.frame(0, frame(asking(AttributeId.SM_INFO), dlid=manager), 0)
    assert (number, data[32 + 3]) == (0, 0x81)
    assert endpoint.frame(0, frame(asking(AttributeId.NOTICE, Method.TRAP_REPRESS), dlid=manager), 0) == []


@pytest.mark.parametrize("name", [NAME, "host-1 mlx5_0", "H-{:016x}", "S-{:x}", "R-{:016x}", "{:016x}", "0x{:x}"])
def test_nodes_are_found_by_name_or_by_guid(endpoint, name):
    m, _ = at(endpoint)
    assert endpoint.resolve(name.format(endpoint.state.guid[m])) == m
    assert endpoint.resolve("") == endpoint.state.origin == endpoint.state.find("host-0/mlx5_0")
    assert endpoint.resolve("X-1") == endpoint.resolve("H-") == endpoint.resolve("nobody") == -1


def test_answers_of_a_discovery_come_in_its_order(endpoint):
    """Directed datagrams go by the end of their route; the first of another class ends the order."""
    endpoint.control(connect(), 0)
    order = Record(
        active=True, stop=lambda: [b"held"], pass_on=lambda mad, guid, answer: [mad[3:4], guid, answer]
    )  # fmt: skip
    client = endpoint.clients[0]
    directed = bytearray(asking())
    directed[1], directed[7], directed[129] = 0x81, 1, 1
    assert endpoint._in_order(client, bytes(directed), b"a") == [b"a"]
    client.order = order
    leaf = endpoint.state.guid[endpoint.state.find("leaf-0")]
    assert endpoint._in_order(client, bytes(directed), b"a") == [b"\1", leaf, b"a"]
    assert endpoint._in_order(client, asking(), b"a") == [b"held", b"a"]
    directed[129] = 9
    assert endpoint._in_order(client, bytes(directed), b"a") == [b"held", b"a"]
    order.active = False
    directed[129] = 1
    assert endpoint._in_order(client, bytes(directed), b"a") == [b"a"]


@pytest.mark.parametrize(
    ("who", "ordered"), [(None, False), (Record(origin=False), False), (Record(origin=True), True)]
)
def test_an_order_is_of_the_node_that_a_discovery_began_at(endpoint, who, ordered):
    m, _ = at(endpoint)
    endpoint.state.identities[m] = who
    endpoint.__dict__["_turns"] = "turns"
    made = endpoint._order_at(m)
    assert (made is not None) == ordered


@pytest.mark.parametrize(
    ("length", "records", "payload", "counted", "said"),
    [
        # one datagram's data are 200 bytes behind 56 of headers; the payload counts 20 of those. Clients read 168
        # of the 200, and one record where that is longer
        (256, 0, 20 + 64, 36 + 84, 84), (256, 0, 220, 256, 220), (256, 0, 221, 256, 220),
        (256, 3, 5000, 36 + 188, 188), (256, 21, 5000, 36 + 188, 188), (256, 22, 5000, 36 + 196, 196),
        (256, 25, 5000, 256, 220), (256, 26, 5000, 256, 220), (256, 13, 221, 36 + 124, 124),
    ],
)  # fmt: skip
def test_the_first_of_several_segments_becomes_the_only_one(length, records, payload, counted, said):
    mad = SaMad(
        method=Method.GET_TABLE_RESP, attribute=0x35, attribute_offset=records, rmpp_version=1, rmpp_type=1,
        rmpp_flags=1, rmpp_data1=7, rmpp_data2=payload, data=bytes(range(200)),
    ).encode()  # fmt: skip
    packed = pack_frame(Frame(1, 2, 3, 4, mad, length))
    assert struct.unpack_from(">HxxHxxIII4xQ", packed) == (1, 2, 3, 4, 0, counted)
    assert packed[32:] == mad[:26] + b"\7" + mad[27:28] + struct.pack(">II", 1, said) + mad[36:]


def test_what_is_no_segment_is_told_by_its_length():
    mad = SaMad(method=Method.GET_TABLE_RESP, attribute=0x35, attribute_offset=3, data=bytes(range(200))).encode()
    for length, counted in ((100, 100), (224, 224), (225, 224), (9999, 224)):
        packed = pack_frame(Frame(1, 2, 3, 4, mad, length), status=9)
        assert struct.unpack_from(">HxxHxxIII4xQ", packed) == (1, 2, 3, 4, 9, counted)
        assert packed[32:] == mad
    for other in (asking(), mad[:3] + b"\1" + mad[4:]):  # another class, a question
        assert struct.unpack_from(">Q", pack_frame(Frame(1, 2, 3, 4, other, 77)), 24)[0] == 256


# ---------------------------------------------------------------------- sockets


class Pipe:
    """A socket that notes what is sent, until it is full or gone."""

    def __init__(self):
        self.sent, self.fails, self.waiting, self.peer = [], None, [], None

    def _may(self):
        if self.fails is not None:
            raise self.fails

    def send(self, data):
        self._may()
        self.sent.append(data)

    def sendto(self, data, address):
        self._may()
        self.sent.append((data, address))

    def connect(self, address):
        self._may()
        self.peer = address

    def recv(self, size):
        if not self.waiting:
            raise BlockingIOError
        return self.waiting.pop(0)

    def recvfrom(self, size):
        return self.recv(size)

    def close(self):
        self.closed = True


@pytest.fixture
def server(monkeypatch):
    """A server over UDP whose sockets are such, and what its selector waits for by socket."""
    made = Server.__new__(Server)
    monkeypatch.setattr(sockets, "_bind_udp", lambda host, port: Record(setblocking=lambda on: None, port=port))
    monkeypatch.setattr(sockets.selectors, "PollSelector", lambda: selector)
    events = {}
    selector = Record(
        register=lambda sock, wanted, data: events.setdefault(data, wanted),
        modify=lambda sock, wanted, data: events.__setitem__(data, wanted),
        close=lambda: events.clear(),
    )
    endpoint = Endpoint(Network(SubnetState(two_tiers(2, 1, 2))))
    made.__init__(endpoint, udp_port=7000)
    ports = [made._control.port, *(sock.port for sock in made._data)]
    assert ports == list(range(7000, 7011))
    made._control, made._data = Pipe(), [Pipe() for _ in range(10)]
    made.events = events
    return made


READ, BOTH = 1, 3


def test_frames_wait_for_a_client_that_does_not_read(server, monkeypatch):
    monkeypatch.setattr(sockets, "QUEUE_FRAMES", 3)
    pipe = server._data[4]
    server.send_all([(4, b"a"), (4, b"b")])
    assert (pipe.sent, server.events[4]) == ([b"a", b"b"], READ)
    for fails in (BlockingIOError(), OSError(errno.EAGAIN, "full")):
        pipe.fails = fails
        server.lost = 0
        server._queues[4].clear()
        server.send_all([(4, b"c"), (4, b"d"), (4, b"e"), (4, b"f"), (4, b"g")])
        assert (list(server._queues[4]), server.lost, server.events[4]) == ([b"c", b"d", b"e"], 2, BOTH)
    pipe.fails = None
    server._flush(4)
    assert (pipe.sent[2:], server.events[4], len(server._queues[4])) == ([b"c", b"d", b"e"], READ, 0)
    # one that has gone is forgotten with what waits for it
    server.endpoint.clients[4] = Client(1, 1)
    pipe.fails, pipe.waiting = OSError(errno.ECONNREFUSED, "gone"), [b"late", b"later"]
    server.send_all([(4, b"h")])
    assert (server.endpoint.clients[4], len(server._queues[4]), pipe.waiting) == (None, 0, [])


def test_a_client_is_connected_to_before_its_reply_goes(server):
    where = ("10.0.0.1", 999)
    server._control_message(connect(address=0x1_0005), where)
    assert server._data[0].peer == ("10.0.0.1", 5)
    assert [address for _, address in server._control.sent] == [where]
    server._control_message(connect(address=6), where)
    assert (server._data[1].peer, server._data[0].peer) == (("10.0.0.1", 6), ("10.0.0.1", 5))
    # another message of a client connects nobody, one that goes is cleared
    server._data[0].peer = None
    server._data[1].waiting = [b"late"]
    server._control_message(control(Message.GET_PORT), where)
    server._control_message(control(Message.DISCONNECT, client=1), where)
    assert (server._data[0].peer, server._data[1].waiting) == (None, [])
    assert len(server._control.sent) == 4
    # one that cannot be reached gets no place and no reply
    server._data[1].fails = OSError(errno.EPERM, "no")
    server._control_message(connect(address=7), where)
    assert (server.endpoint.clients[1], len(server._control.sent)) == (None, 4)
    server._control_message(b"short", where)
    assert len(server._control.sent) == 4
    server._control.fails = OSError(errno.ECONNREFUSED, "gone")
    server._control_message(control(Message.GET_PORT), where)  # it did not wait


def test_places_of_quiet_clients_are_given_away_when_all_are_taken(server, monkeypatch):
    now = [10**15]
    monkeypatch.setattr(sockets, "wall_ps", lambda: now[0])
    where = ("127.0.0.1", 1)
    for n in range(10):
        server._control_message(connect(address=n), where)
        now[0] += 10**12
    assert all(server.endpoint.clients)
    now[0] = 10**15 + 60 * 10**12  # the first has been quiet for a minute, and no more
    server._control_message(connect(address=50), where)
    assert [one.address for one in server.endpoint.clients] == list(range(10))
    now[0] += 1 + 2 * 10**12
    server._control_message(control(Message.GET_PORT), where)
    server._control_message(connect(address=51), where)
    # the first has just asked; the second and third are older than a minute
    left = [None if one is None else one.address for one in server.endpoint.clients]
    assert left == [0, 51, None, *range(3, 10)]


def test_datagrams_are_read_until_there_are_none_or_others_have_their_turn(server, monkeypatch):
    monkeypatch.setattr(sockets, "READ_AT_ONCE", 3)
    seen = []
    server.endpoint = Record(
        frame=lambda number, data, now: seen.append((number, data)) or [], clients=[None] * 10,
        disconnect=lambda number, now: seen.append(("gone", number)),
    )  # fmt: skip
    server._data[2].waiting = [(bytes([n]), ("h", 1)) for n in range(5)]
    assert server._read_data(2) == 3
    assert server._read_data(2) == 2
    assert server._read_data(2) == 0
    assert seen == [(2, bytes([n])) for n in range(5)]
    for number, left in ((errno.ECONNREFUSED, True), (errno.ENOENT, True), (errno.ENOMEM, False)):
        seen.clear()

        def fails(size, number=number):
            raise OSError(number, "x")

        server._data[2].recvfrom = fails
        server._data[2].recv = Record  # nothing to clear
        monkeypatch.setattr(Server, "_clear", lambda self, number: None)
        assert server._read_data(2) == 0
        assert seen == ([("gone", 2)] if left else [])
    server._control.waiting = [(b"x", ("h", 1))] * 4
    heard = []
    monkeypatch.setattr(Server, "_control_message", lambda self, data, address: heard.append((data, address)))
    assert (server._read_control(), server._read_control(), server._read_control()) == (3, 1, 0)
    assert heard == [(b"x", ("h", 1))] * 4


def test_a_step_polls_for_traps_five_times_a_second(server, monkeypatch):
    now, polled, sent = [5.0], [], []
    monkeypatch.setattr(sockets.time, "monotonic", lambda: now[0])
    server.endpoint = Record(poll=lambda at: polled.append(now[0]) or [(1, b"trap")])
    monkeypatch.setattr(Server, "send_all", lambda self, frames: sent.extend(frames))
    called, flushed = [], []
    waiting = [[], [(Record(data=lambda: called.append(1)), READ)], [(Record(data=3), 2)], [], []]
    server._selector.select = lambda timeout: waiting.pop(0)
    monkeypatch.setattr(Server, "_flush", lambda self, number: flushed.append(number))
    for at, count in ((5.0, 1), (5.1, 1), (5.19, 1), (5.2, 2), (5.41, 3)):
        now[0] = at
        assert server.step(0.5) == 0
        assert len(polled) == count
    assert (called, flushed, sent) == ([1], [3], [(1, b"trap")] * 3)
    monkeypatch.setattr(Server, "_read_control", lambda self: 7)
    monkeypatch.setattr(Server, "_read_data", lambda self, number: number)
    waiting.append([(Record(data=-1), READ), (Record(data=3), BOTH)])
    assert server.step(0.5) == 10
    assert flushed == [3, 3]


def test_a_server_runs_until_it_is_told(server, monkeypatch):
    steps, idle = [], []
    monkeypatch.setattr(Server, "step", lambda self, timeout: steps.append(timeout))
    server.run(lambda: len(steps) >= 2)
    assert (steps, idle) == ([0.2, 0.2], [])
    server.idle = lambda: idle.append(len(steps))
    server.run(lambda: len(steps) >= 4)
    assert idle == [3, 4]
    server.close()
    assert server.events == {}
    assert all(pipe.closed for pipe in (server._control, *server._data))
