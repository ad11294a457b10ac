"""The endpoint: its protocol byte by byte, its sockets, ten clients, killed clients, bad datagrams."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sm_fabrics import two_tiers

from fabrictwin.base.errors import ConfigError
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Frame, Network
from fabrictwin.subnet.serve.credentials import bind_abstract
from fabrictwin.subnet.serve.endpoint import CLIENTS, Endpoint, Message, pack_frame
from fabrictwin.subnet.serve.served_fabric import ServedFabric
from fabrictwin.subnet.serve.sockets import Server
from fabrictwin.subnet.serve.umad_client import UmadTransport
from fabrictwin.subnet.wire import rmpp, smp
from fabrictwin.subnet.wire.header import DirectedSmp, LidSmp, Method, SaMad
from fabrictwin.subnet.wire.smp import AttributeId, Capability


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint(Network(SubnetState(two_tiers())))


def control(kind: int, data: bytes = b"", *, client: int = 0, magic: int = 0xDEADBEEF) -> bytes:
    return struct.pack("=IIII64s", magic, client, kind, len(data), data)


def connect(name: str = "", *, address: int = 4711, is_sm: int = 0) -> bytes:
    return control(Message.CONNECT, struct.pack("=III32s", address, 0, is_sm, name.encode()))


def replied(reply: bytes) -> tuple[int, bytes]:
    assert len(reply) == 80
    magic, _, kind, _, data = struct.unpack("=IIII64s", reply)
    assert magic == 0xDEADBEEF
    return kind, data


def frame(mad: bytes, *, dlid: int = 0xFFFF, slid: int = 0, qp: int = 0) -> bytes:
    return struct.pack(">HHHHIIIIQ256s", dlid, 0, slid, 0, qp, qp, 0, 0xABCDEF, 256, mad)


def unframe(data: bytes) -> tuple[int, bytes]:
    """(status, datagram)"""
    assert len(data) == 288
    return struct.unpack_from(">I", data, 16)[0], data[32:]


def node_info(path: list[int], tid: int = 5) -> bytes:
    mad = DirectedSmp(method=Method.GET, attribute=AttributeId.NODE_INFO, tid=tid, hop_count=len(path))
    mad.initial_path = bytes([0, *path])
    return frame(mad.encode())


@pytest.mark.parametrize(
    "name", ["", "host-0/mlx5_0", "host-0 mlx5_0", "H-020000fffe000000", "020000fffe000000", "0x20000fffe000000"]
)
def test_a_client_is_attached_to_the_node_it_names(endpoint, name):
    state = endpoint.state
    m = state.find("host-0/mlx5_0")
    name = name.replace("020000fffe000000", f"{state.guid[m]:016x}").replace(
        "0x20000fffe000000", hex(state.guid[m])
    )
    kind, data = replied(endpoint.control(connect(name), 0))
    assert kind == Message.CONNECT
    slot, _, _, node = struct.unpack_from("=III32s", data)
    assert slot == 0
    assert node.rstrip(b"\0").decode() == f"H-{state.guid[m]:016x}"
    _, data = replied(endpoint.control(control(Message.GET_NODEINFO), 0))
    assert smp.NodeInfo.decode(data).node_guid == state.guid[m]
    assert smp.NodeInfo.decode(data).local_port_num == 1
    _, data = replied(endpoint.control(control(Message.GET_PORTINFO), 0))
    assert smp.PortInfo.decode(data).port_state == 2
    _, data = replied(endpoint.control(control(Message.GET_PKEYS), 0))
    assert data[:4] == b"\xff\xff\0\0"
    assert replied(endpoint.control(control(Message.GET_VENDOR), 0))[1][:4] == struct.pack("=I", 0x2C9)
    for kind in (Message.GET_PORT, Message.GET_GID, Message.GET_GUID):
        assert replied(endpoint.control(control(kind), 0))[0] == kind


def test_a_switch_can_be_named_too(endpoint):
    assert replied(endpoint.control(connect("spine-1"), 0))[0] == Message.CONNECT
    (out,) = endpoint.frame(0, node_info([]), 0)
    assert smp.NodeInfo.decode(unframe(out[1])[1], 64).node_type == smp.NodeType.SWITCH


def test_an_unknown_node_is_refused(endpoint):
    assert replied(endpoint.control(connect("host-99"), 0))[0] == Message.ERROR


def test_ten_clients_and_no_more(endpoint):
    for i in range(CLIENTS):
        kind, data = replied(endpoint.control(connect("host-1/mlx5_0"), 0))
        assert kind == Message.CONNECT
        assert struct.unpack_from("=I", data)[0] == i
    assert replied(endpoint.control(connect("host-1/mlx5_0"), 0))[0] == Message.ERROR
    endpoint.control(control(Message.DISCONNECT, client=4), 0)
    assert struct.unpack_from("=I", replied(endpoint.control(connect(), 0))[1])[0] == 4


def test_two_managers_on_a_port_are_one_too_many(endpoint):
    state = endpoint.state
    endpoint.control(connect("host-0/mlx5_0", is_sm=1), 0)
    at = state.end_slot(state.find("host-0/mlx5_0"))
    assert smp.PortInfo.decode(state.get(at)).capability_mask & Capability.IS_SM
    assert replied(endpoint.control(connect("host-0/mlx5_0", is_sm=1), 0))[0] == Message.ERROR
    endpoint.control(connect("host-0/mlx5_0"), 0)
    assert replied(endpoint.control(control(Message.SET_ISSM, b"\1\0\0\0", client=1), 0))[0] == Message.ERROR
    endpoint.disconnect(0, 0)
    assert not smp.PortInfo.decode(state.get(at)).capability_mask & Capability.IS_SM
    assert replied(endpoint.control(control(Message.SET_ISSM, b"\1\0\0\0", client=1), 0))[0] == Message.SET_ISSM


def test_answers_come_with_the_clients_number_in_the_transaction_id(endpoint):
    for _ in range(3):
        endpoint.control(connect("host-0/mlx5_0"), 0)
    ((client, data),) = endpoint.frame(2, node_info([1, 5], tid=0x0000_0007_0000_0009), 0)
    status, mad = unframe(data)
    assert (client, status) == (2, 0)
    assert mad[8:16] == bytes([0, 2, 0, 7, 0, 0, 0, 9])


def test_what_cannot_be_routed_comes_back_as_timed_out(endpoint):
    endpoint.control(connect("host-0/mlx5_0"), 0)
    ((_, data),) = endpoint.frame(0, node_info([1, 9]), 0)
    status, mad = unframe(data)
    assert status == 110
    assert mad[3] == Method.GET


def test_requests_for_the_manager_go_there_and_its_answer_to_who_asked(endpoint):
    endpoint.control(connect("host-0/mlx5_0", is_sm=1), 0)
    endpoint.control(connect("host-4/mlx5_0"), 0)
    mad = DirectedSmp(method=Method.GET, attribute=AttributeId.SM_INFO, hop_count=4, tid=1)
    mad.initial_path = bytes([0, 1, 5, 1, 1])
    ((client, data),) = endpoint.frame(1, frame(mad.encode()), 0)
    assert client == 0
    asked = DirectedSmp.decode(unframe(data)[1])
    assert list(asked.return_path[:5]) == [0, 1, 2, 5, 1]
    answer = DirectedSmp.decode(asked.encode())
    answer.method, answer.direction, answer.data = Method.GET_RESP, 1, smp.SmInfo(guid=42).encode()
    ((client, data),) = endpoint.frame(0, frame(answer.encode()), 0)
    assert client == 1
    assert smp.SmInfo.decode(unframe(data)[1], 64).guid == 42
    endpoint.disconnect(0, 0)
    ((client, data),) = endpoint.frame(1, frame(mad.encode()), 0)
    assert (client, unframe(data)[0]) == (1, 110)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=300)), max_size=8))
def test_no_datagram_breaks_the_endpoint(datagrams):
    endpoint = Endpoint(Network(SubnetState(two_tiers(2, 1, 2))))
    endpoint.control(connect(), 0)
    for is_control, data in datagrams:
        if is_control:
            for shaped in (data, data[:80].ljust(80, b"\0"), b"\xef\xbe\xad\xde" + data[:76].ljust(76, b"\0")):
                reply = endpoint.control(shaped, 0)
                assert reply is None or len(reply) == 80
        else:
            padded = data[:288].ljust(288, b"\0")
            for shaped in (data, padded, padded[:24] + struct.pack(">Q", 256) + b"\1\x81\1" + padded[35:]):
                for _, out in endpoint.frame(0, shaped, 0):
                    assert len(out) == 288


class Twin:
    """A server in a thread, so that a test can be its client."""

    def __init__(self, **settings: object) -> None:
        self.server = Server(Endpoint(Network(SubnetState(two_tiers()))), **settings)
        self.stop = False
        self.thread = threading.Thread(target=self.server.run, args=(lambda: self.stop,))
        self.thread.start()

    def __enter__(self) -> Twin:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop = True
        self.thread.join()
        self.server.close()


class UnixClient:
    """What libumad2sim does, in the order that it does it."""

    def __init__(self, name: str, number: int) -> None:
        self.ctl = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.data = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for sock in (self.ctl, self.data):
            sock.settimeout(5)
        self.ctl.bind(f"\0{name}:ctl{number}\0".encode())
        self.ctl.connect(f"\0{name}:ctl\0".encode())
        self.data.bind(f"\0{name}:in{number}\0".encode())
        self.ctl.send(connect("host-0/mlx5_0", address=number))
        kind, data = replied(self.ctl.recv(80))
        self.accepted = kind == Message.CONNECT
        self.slot = struct.unpack_from("=I", data)[0]
        if self.accepted:
            self.data.connect(f"\0{name}:out{self.slot}\0".encode())

    def ask(self, path: list[int]) -> int:
        self.data.send(node_info(path))
        return unframe(self.data.recv(288))[0]

    def close(self) -> None:
        self.ctl.close()
        self.data.close()


@pytest.fixture
def name() -> str:
    return f"fabrictwin-test-{os.getpid()}-{os.urandom(3).hex()}"


def test_unix_clients_talk_disconnect_and_are_killed(name):
    with Twin(name=name) as twin:
        clients = [UnixClient(name, 100 + i) for i in range(CLIENTS)]
        assert [c.slot for c in clients] == list(range(CLIENTS))
        assert all(c.ask([1, 5]) == 0 for c in clients)
        one_more = UnixClient(name, 200)
        assert not one_more.accepted
        one_more.close()
        for killed in clients[3:6]:
            killed.close()  # says nothing
        after = UnixClient(name, 201)
        assert after.accepted
        assert after.slot == 3
        assert after.ask([1, 2]) == 0
        clients[7].ctl.send(control(Message.DISCONNECT, client=7))
        assert replied(clients[7].ctl.recv(80))[0] == Message.DISCONNECT
        assert twin.server.endpoint.clients[7] is None
        assert clients[0].ask([1]) == 0
        for client in (*clients, after):
            client.close()


def test_a_client_killed_with_an_answer_on_its_way_frees_its_place(name):
    with Twin(name=name) as twin:
        client, other = UnixClient(name, 1), UnixClient(name, 2)
        client.data.send(node_info([1]))
        client.close()
        for _ in range(50):
            assert other.ask([1]) == 0
            if twin.server.endpoint.clients[0] is None:
                break
            with contextlib.suppress(OSError):
                twin.server.send_all([(0, bytes(288))])
        assert twin.server.endpoint.clients[0] is None
        other.close()


def test_bad_datagrams_leave_the_others_alone(name):
    with Twin(name=name) as twin:
        client = UnixClient(name, 1)
        for size in (1, 79, 81, 300):
            client.ctl.send(b"\xff" * size)
            client.data.send(b"\xff" * size)
        assert client.ask([1]) == 0
        assert twin.server.endpoint.counts.malformed_frames == 4
        assert twin.server.endpoint.counts.malformed_control == 4
        client.close()


NOBODY = 65534
AS_NOBODY = f"""\
import os, socket, sys
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
def bound(name):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(b"\\0" + name.encode() + b"\\0")
    return sock
def path(name):
    return b"\\0" + name.encode() + b"\\0"
name = sys.argv[1]
"""
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")


def as_nobody(script: str, name: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", AS_NOBODY + script, name, *arguments], stdout=subprocess.PIPE, text=True
    )


@needs_root
def test_another_user_is_neither_answered_nor_obeyed(name):
    with Twin(name=name) as twin:
        client = UnixClient(name, 100)
        # a connection, an end to somebody else's, and a frame to a socket that is free
        script = """\
sock = bound(f"{name}:ctl666")
sock.settimeout(1)
for message in sys.argv[2:4]:
    sock.sendto(bytes.fromhex(message), path(f"{name}:ctl"))
sock.sendto(bytes.fromhex(sys.argv[4]), path(f"{name}:out5"))
try:
    print(len(sock.recv(288)))
except TimeoutError:
    print("nothing")
"""
        messages = (connect("host-0/mlx5_0", address=666), control(Message.DISCONNECT), node_info([1]))
        child = as_nobody(script, name, *(message.hex() for message in messages))
        assert child.communicate(timeout=60)[0] == "nothing\n"
        assert twin.server.refused == {NOBODY: 3}
        assert twin.server.endpoint.counts.connects == 1
        assert twin.server.endpoint.counts.frames == 0
        assert client.ask([1, 5]) == 0
        client.close()


@needs_root
def test_a_simulator_of_another_user_is_not_believed(name):
    script = """\
sock = bound(f"{name}:ctl")
print("up", flush=True)
data, sender = sock.recvfrom(80)
sock.sendto(data, sender)
"""
    child = as_nobody(script, name)
    assert child.stdout.readline() == "up\n"
    with pytest.raises(ConfigError, match=f"is of user {NOBODY}, expected 0"):
        UmadTransport(name)
    child.communicate(timeout=60)


@needs_root
def test_a_served_fabric_says_whom_it_refused_once(name):
    said = []
    served = ServedFabric(Endpoint(Network(SubnetState(two_tiers()))), name=name, manager=None, say=said.append)
    as_nobody("bound(f'{name}:a').sendto(bytes(80), path(f'{name}:ctl'))", name).communicate(timeout=60)
    rounds = iter([False, False, True])
    served.serve(lambda: next(rounds))
    assert [line for line in said if "refused" in line] == [
        f"refused: datagrams of user {NOBODY}; only user 0 is served"
    ]


def test_sockets_have_a_name_that_cannot_be_guessed_unless_they_are_given_one():
    state = SubnetState(two_tiers())
    said = []
    served = [ServedFabric(Endpoint(Network(state)), manager=None, say=said.append) for _ in range(2)]
    names = [one.server.name for one in served]
    assert names[0] != names[1]
    for one in served:
        one.serve(lambda: True)
        assert re.fullmatch(r"fabrictwin-[0-9a-f]{16}", one.server.name)
        assert f"  IBSIM_SOCKNAME={one.server.name} SIM_HOST=" in said[-1]


def test_udp_clients_talk_too():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    port = 40000 + port % 10000
    with Twin(udp_port=port):
        ctl = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with ctl, data:
            for sock in (ctl, data):
                sock.settimeout(5)
                sock.bind(("127.0.0.1", 0))
            ctl.connect(("127.0.0.1", port))
            ctl.send(connect("host-2/mlx5_0", address=data.getsockname()[1]))
            kind, reply = replied(ctl.recv(80))
            assert kind == Message.CONNECT
            data.connect(("127.0.0.1", port + 1 + struct.unpack_from("=I", reply)[0]))
            data.send(node_info([1]))
            assert unframe(data.recv(288))[0] == 0


def test_a_second_endpoint_of_the_same_name_is_refused(name):
    with Twin(name=name), pytest.raises(ConfigError, match="another endpoint"):
        Server(Endpoint(Network(SubnetState(two_tiers()))), name=name)


@pytest.mark.parametrize(
    ("records", "kept", "length"), [(50, 2, 184), (3, 2, 184), (2, 2, 184), (1, 1, 120), (0, 0, 56)]
)
def test_a_table_that_a_client_cannot_put_together_ends_with_its_last_whole_record(records, kept, length):
    head = SaMad(method=Method.GET_TABLE_RESP, attribute=0x35, attribute_offset=8)
    first = rmpp.segments(head, bytes(range(64)) * records)[0]
    packed = pack_frame(Frame(1, 2, 1, 1, first.encode()))
    seen = SaMad.decode(packed, 32)
    assert struct.unpack_from(">Q", packed, 24)[0] == length
    assert seen.rmpp_data2 == 20 + 64 * kept
    assert seen.rmpp_flags == 7
    assert seen.data[: 64 * kept] == bytes(range(64)) * kept


def test_performance_management_goes_by_lid(endpoint):
    """A class that no agent has, and a LID that nobody has, time out."""
    endpoint.control(connect("host-0/mlx5_0"), 0)
    for mgmt_class in (0x01, 0x04, 0x21, 0x32):
        mad = LidSmp(mgmt_class=mgmt_class, method=Method.GET, attribute=1).encode()
        ((_, data),) = endpoint.frame(0, frame(mad, dlid=77), 0)
        assert unframe(data)[0] == 110


def test_a_simulator_whose_data_socket_is_not_there_is_one_line(name):
    listening = bind_abstract(f"{name}:ctl")

    def answer():
        for kind in (Message.CONNECT, Message.DISCONNECT):
            _, sender = listening.recvfrom(80)
            listening.sendto(control(kind, struct.pack("=III32s", 7, 0, 0, b"host-0")), sender)

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ConfigError, match="has no data socket 7"):
        UmadTransport(name)
    thread.join()
    listening.close()


def test_the_first_sweep_prepares_rerouting(name, monkeypatch):
    said = []
    served = ServedFabric(Endpoint(Network(SubnetState(two_tiers()))), name=name, say=said.append)
    (manager,) = (one.manager for one in served.managers)
    prepared = []
    monkeypatch.setattr(manager, "rehearse_rerouting", lambda: prepared.append(len(said)))
    served.serve(lambda: True)
    assert prepared == [0]
