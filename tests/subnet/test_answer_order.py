"""The order in which a discovered fabric answers; the manager as a client of a simulator."""

from __future__ import annotations

import struct
from types import SimpleNamespace as Record

import pytest

from fabrictwin.base.errors import ConfigError
from fabrictwin.subnet.agents.mad_routing import Frame
from fabrictwin.subnet.manager.mad_transport import Statistics
from fabrictwin.subnet.serve import umad_client
from fabrictwin.subnet.serve.answer_order import AnswerOrder, Turns
from fabrictwin.subnet.serve.endpoint import CONTROL_BYTES, FRAME_BYTES, MAGIC, Message
from fabrictwin.subnet.serve.umad_client import UmadTransport
from fabrictwin.subnet.wire.smp import AttributeId, NodeType

NONE = -1
NODE_INFO, PORT_INFO, DESCRIPTION = AttributeId.NODE_INFO, AttributeId.PORT_INFO, AttributeId.NODE_DESCRIPTION


def fabric(*nodes):
    """Nodes by (GUID, whether a switch, place in the file or None, the node that an adapter hangs on or None)."""
    return Record(
        identities=[None if place is None else Record(place=place) for _, _, place, _ in nodes],
        guid=[guid for guid, *_ in nodes],
        is_switch=[switch for _, switch, _, _ in nodes],
        node_info=[Record(node_type=NodeType.SWITCH if switch else NodeType.CA) for _, switch, _, _ in nodes],
        cable=[NONE if far is None else 100 + far for *_, far in nodes],
        node_of={100 + m: m for m in range(len(nodes))},
        end_slot=lambda m: m,
    )


# two switches; what stands first in the file answered last
NODES = [(1, True, 1, None), (2, True, 0, None), (11, False, 5, 0), (12, False, 4, 1), (13, False, 3, 0)]


def test_turns_are_the_file_s_order_from_its_end():
    turns = Turns(fabric(*NODES, (14, False, None, 0), (15, False, -1, 0), (11, False, 2, 1)))
    assert turns.turn == {1: 0, 2: 1, 11: 0, 12: 1, 13: 2}  # a node that is there twice is met once
    assert {guid: kind == NodeType.SWITCH for guid, kind in turns.kind.items()} == {
        1: True, 2: True, 11: False, 12: False, 13: False,
    }  # fmt: skip
    assert turns.adapters == {1: [0, 2], 2: [0, 1]}


def asked(attribute, *, method=1, management=0x81, hops=0, modifier=0):
    mad = bytearray(256)
    mad[1], mad[3], mad[7] = management, method, hops
    mad[16:18], mad[20:24] = int(attribute).to_bytes(2, "big"), modifier.to_bytes(4, "big")
    return bytes(mad)


def discovery():
    order = AnswerOrder(Turns(fabric(*NODES)))
    assert order.pass_on(asked(NODE_INFO), 11, b"start") == [b"start"]
    return order


def test_a_node_that_met_after_its_turn_waits_for_those_before():
    order = discovery()
    assert order.pass_on(asked(NODE_INFO, hops=1), 2, b"second") == []
    assert order.holds
    assert order.pass_on(asked(DESCRIPTION, hops=1), 11, b"name") == [b"name"]  # nothing else is held
    assert order.pass_on(asked(NODE_INFO, hops=1), 1, b"first") == [b"first", b"second"]
    assert not order.holds
    assert order.pass_on(asked(NODE_INFO, hops=1), 13, b"13") == []
    assert order.pass_on(asked(NODE_INFO, hops=1), 12, b"12") == [b"12", b"13"]
    assert order.pass_on(asked(NODE_INFO, hops=1), 12, b"again") == [b"again"]
    assert order.pass_on(asked(NODE_INFO, hops=1), 99, b"stranger") == [b"stranger"]


def test_port_0_of_a_switch_lets_the_adapters_of_another_pass():
    order = discovery()
    for guid in (1, 2):
        order.pass_on(asked(NODE_INFO, hops=1), guid, b"")
    # behind switch 2 is the next adapter, 12; behind switch 1 only 13
    assert order.pass_on(asked(PORT_INFO, hops=1), 1, b"port 0 of 1") == []
    assert order.pass_on(asked(PORT_INFO, hops=1, modifier=3), 1, b"port 3 of 1") == [b"port 3 of 1"]
    assert order.pass_on(asked(PORT_INFO, hops=1), 11, b"of an adapter") == [b"of an adapter"]
    assert order.pass_on(asked(PORT_INFO, hops=1), 2, b"port 0 of 2") == [b"port 0 of 2", b"port 0 of 1"]
    assert order.pass_on(asked(PORT_INFO, hops=1), 1, b"once more") == [b"once more"]
    order = discovery()
    for guid in (1, 2):
        order.pass_on(asked(NODE_INFO, hops=1), guid, b"")
    for guid in (12, 13):
        order.pass_on(asked(NODE_INFO, hops=1), guid, b"")
    assert order.pass_on(asked(PORT_INFO, hops=1), 1, b"none left") == [b"none left"]


def test_a_client_that_waits_for_nothing_else_gets_the_first_that_is_held():
    order = discovery()
    assert order.stalled() == []
    order.pass_on(asked(NODE_INFO, hops=1), 1, b"")
    order.pass_on(asked(NODE_INFO, hops=1), 2, b"")
    order.pass_on(asked(NODE_INFO, hops=1), 13, b"13")
    order.pass_on(asked(PORT_INFO, hops=1), 1, b"port 0 of 1")
    assert order.stalled() == [b"port 0 of 1"]  # a port before a node
    assert order.stalled() == [b"13"]
    assert order.stalled() == []
    order = discovery()
    order.pass_on(asked(NODE_INFO, hops=1), 13, b"13")
    assert order.stop() == [b"13"]
    assert not order.holds
    assert order.pass_on(asked(NODE_INFO, hops=1), 13, b"now") == [b"now"]


@pytest.mark.parametrize(
    "mad",
    [
        asked(NODE_INFO, management=1),  # LID-routed
        asked(NODE_INFO, method=2),
        asked(AttributeId.GUID_INFO),
        asked(AttributeId.SM_INFO),
    ],
)
def test_what_no_discovery_asks_ends_the_order(mad):
    order = discovery()
    order.pass_on(asked(NODE_INFO, hops=1), 2, b"held")
    assert order.pass_on(mad, 1, b"other") == [b"held", b"other"]
    assert not order.active
    for first in (mad, asked(NODE_INFO, hops=1), asked(DESCRIPTION)):
        order = AnswerOrder(Turns(fabric(*NODES)))
        assert order.pass_on(first, 2, b"x") == [b"x"]
        assert not order.active  # a discovery begins with the node that it is at
    order = discovery()
    for attribute in (DESCRIPTION, AttributeId.SWITCH_INFO, PORT_INFO, AttributeId.EXTENDED_PORT_INFO):
        order.pass_on(asked(attribute), 11, b"x")
        assert order.active


# ---------------------------------------------------------------------- the client


class Socket:
    """A socket that notes what is sent and hands out what is put in."""

    def __init__(self):
        self.sent, self.waiting, self.timeouts = [], [], []

    def send(self, data):
        self.sent.append(data)

    def settimeout(self, seconds):
        self.timeouts.append(seconds)

    def connect(self, address):
        self.address = address

    def close(self):
        self.closed = True


def client(monkeypatch, *, window=8, retries=3, uid=None):
    """A transport whose sockets are such; each datagram comes from `uid`, its own user by default."""
    made = UmadTransport.__new__(UmadTransport)
    made.name, made.window, made.timeout_s, made.retries, made.m_key = "sim", window, 0.25, retries, 0x1234
    made.statistics, made.on_frame, made._tid, made._answered = Statistics(), None, 0, []
    made._control, made._data = Socket(), Socket()

    def receive(sock, size):
        if not sock.waiting:
            raise TimeoutError
        data = sock.waiting.pop(0)
        return data if isinstance(data, tuple) else (data, "", 7)

    monkeypatch.setattr(umad_client, "receive_with_sender", receive)
    monkeypatch.setattr(umad_client, "is_own_user", lambda who: who == 7)
    return made


def request(attribute=0x11, method=1, modifier=5, data=b"d" * 64):
    return Record(hops=2, ports=bytes(64)), method, attribute, modifier, data


def answered(sent, *, method=0x81, status=0, said=0, data=b"a" * 64):
    """The frame that answers a frame that was sent."""
    mad = bytearray(sent[-256:])
    mad[3], mad[4], mad[5] = method, said >> 8, said & 255
    mad[64:128] = data
    head = bytearray(sent[:-256])
    head[12:16] = struct.pack(">I", 0) if status == 0 else head[12:16]
    return umad_client._FRAME.pack(1, 2, 3, 4, status, 256, bytes(mad))


class Simulator(Socket):
    """Answers what is sent, by a rule of (number of the request, frame) to frames."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def send(self, data):
        super().send(data)
        self.waiting += self.rule(len(self.sent) - 1, data)


def exchanging(monkeypatch, rule, count=5, **more):
    made = client(monkeypatch, **more)
    made._data = Simulator(rule)
    return made, made.exchange([request(modifier=n) for n in range(count)])


def test_requests_are_directed_datagrams_with_their_key_and_number(monkeypatch):
    made, answers = exchanging(monkeypatch, lambda n, sent: [answered(sent, data=bytes([n]) * 64)])
    assert answers == [(0, bytes([n]) * 64) for n in range(5)]
    assert len(made._data.sent) == 5
    for n, frame in enumerate(made._data.sent):
        assert len(frame) == FRAME_BYTES
        mad = frame[-256:]
        assert (mad[0], mad[1], mad[2], mad[3], mad[6], mad[7]) == (1, 0x81, 1, 1, 0, 2)
        assert struct.unpack_from(">QHxxIQ", mad, 8) == (n + 1, 0x11, n, 0x1234)
        assert mad[32:36] == b"\xff" * 4  # permissive LIDs on both ends
        assert mad[64:128] == b"d" * 64
    assert (made.statistics.requests, made.statistics.by_attribute) == (5, {(1, 0x11): 5})
    assert (made.statistics.repeated, made.statistics.unanswered) == (0, 0)
    assert all(made.answered_ps())
    assert set(made._data.timeouts) == {0.25}


@pytest.mark.parametrize("window", [1, 2, 4])
def test_no_more_than_a_window_is_under_way(monkeypatch, window):
    out, most = [], []
    made = client(monkeypatch, window=window)

    class Slow(Socket):
        def send(self, data):
            super().send(data)
            out.append(data)
            most.append(len(out))

        def settimeout(self, seconds):
            self.waiting.append(answered(out.pop(0)))  # one for each that is waited for

    made._data = Slow()
    answers = made.exchange([request(modifier=n) for n in range(8)])
    assert None not in answers
    assert max(most) == window
    made, answers = exchanging(monkeypatch, lambda n, sent: [], 5, window=window, retries=0)
    assert answers == [None] * 5
    assert made.statistics.unanswered == 5


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_what_does_not_come_back_is_asked_again_so_often(monkeypatch, retries):
    made, answers = exchanging(monkeypatch, lambda n, sent: [] if n % 2 else [answered(sent)], 2, retries=retries)
    # the first is answered at once; of the second's tries every second has an even number
    assert answers[0] is not None
    assert (answers[1] is None) == (retries == 0)
    assert made.statistics.repeated == min(retries, 1)
    assert made.statistics.unanswered == (retries == 0)
    made, answers = exchanging(monkeypatch, lambda n, sent: [], 2, retries=retries)
    assert (made.statistics.requests, made.statistics.repeated) == (2 + 2 * retries, 2 * retries)
    assert (answers, made.statistics.unanswered) == ([None, None], 2)


def test_answers_are_told_by_their_number_and_their_status(monkeypatch):
    unasked = []
    frames = []

    def rule(n, sent):
        frames.append(sent)
        if n < 2:
            return []
        trap = answered(sent, method=5)[:-248] + (99).to_bytes(8, "big") + answered(sent, method=5)[-240:]
        return [
            answered(frames[2], said=0x800C), trap, answered(frames[0], status=110), answered(frames[1],
            said=0x1C),
            answered(frames[1]), b"short",
        ] if n == 2 else [answered(sent)]  # fmt: skip

    made = client(monkeypatch)
    made.on_frame = lambda frame, now: unasked.append(frame.mad[3]) or [Frame(1, 2, 0, 0, bytes(256))]
    made._data = Simulator(rule)
    answers = made.exchange([request(modifier=n) for n in range(3)])
    assert [answer[0] for answer in answers] == [0, 0x1C, 0x0C]  # the direction bit is none of the status
    assert unasked == [5]
    # the reply to the trap is one more; of what was asked, the first alone was not delivered
    assert made.statistics.unanswered == 0


def test_another_s_request_of_the_same_number_answers_nothing(monkeypatch):
    unasked = []
    made = client(monkeypatch)
    made.on_frame = lambda frame, now: unasked.append(frame.mad[3]) or []
    made._data = Simulator(lambda n, sent: [answered(sent, method=5), answered(sent)])
    assert made.exchange([request()]) == [(0, b"a" * 64)]
    assert (unasked, made.statistics.repeated, made.statistics.requests) == ([5], 0, 1)


def test_control_messages_have_their_magic_and_their_kind(monkeypatch):
    made = client(monkeypatch)
    body = b"x" * 64

    def reply(magic=MAGIC, kind=Message.SET_ISSM):
        return umad_client._CONTROL.pack(magic, 3, kind, 64, body)

    made._control.waiting = [reply()]
    assert made._request(Message.SET_ISSM, b"ab") == body
    sent = umad_client._CONTROL.unpack(made._control.sent[0])
    assert sent == (MAGIC, 0, Message.SET_ISSM, 2, b"ab".ljust(64, b"\0"))
    assert len(made._control.sent[0]) == CONTROL_BYTES
    for wrong in (reply(magic=MAGIC + 1), reply(kind=Message.ERROR), reply() + b"x", b""):
        made._control.waiting = [wrong]
        assert made._request(Message.SET_ISSM, b"") is None
    assert made._request(Message.SET_ISSM, b"") is None  # silence
    with pytest.raises(ConfigError, match="another manager"):
        made.become_manager()
    made._control.waiting = [reply()]
    made.become_manager()
    assert umad_client._CONTROL.unpack(made._control.sent[-1])[4][:4] == struct.pack("=I", 1)
    made.client = 3
    made.close()
    assert umad_client._CONTROL.unpack(made._control.sent[-1])[1:3] == (3, Message.DISCONNECT)
    assert made._control.closed
    assert made._data.closed


def test_datagrams_of_other_users_are_dropped_unless_they_are_the_simulator_s(monkeypatch):
    made = client(monkeypatch)
    frame = umad_client._FRAME.pack(1, 2, 3, 4, 0, 256, bytes(256))
    made._data.waiting = [(frame, b"\0someone\0", 8), frame]
    status, got = made._receive(0.5)
    assert (status, got.dlid, got.slid, got.dqp, got.sqp) == (0, 1, 2, 3, 4)
    made._data.waiting = [(frame, b"\0sim:ctl\0", 8)]
    with pytest.raises(ConfigError, match="is of user 8, expected"):
        made._receive(0.5)
    assert made._receive(0.5) is None


def test_congestion_control_is_refused_before_a_datagram_of_it_is_sent(monkeypatch):
    made = client(monkeypatch)
    with pytest.raises(ConfigError, match="congestion_control: got TRUE for another simulator's fabric"):
        made.ask(5, bytes(256))
    assert made._data.sent == []


def test_what_nobody_asked_for_is_given_to_who_listens(monkeypatch):
    made, seen = client(monkeypatch), []
    trap, reply = bytearray(256), bytearray(256)
    trap[3], reply[3] = 5, 0x81
    frames = {name: umad_client._FRAME.pack(1, 2, 0, 0, status, 256, bytes(mad)) for name, status, mad in (
        ("trap", 0, trap), ("answer", 0, reply), ("lost", 110, trap)
    )}  # fmt: skip
    for name in ("trap", "answer", "lost"):
        made._data.waiting.append(frames[name])
        made.listen(2.0)
    made.on_frame = lambda frame, now: seen.append(frame.mad[3]) or []
    for name in ("trap", "answer", "lost"):
        made._data.waiting.append(frames[name])
        made.listen(2.0)
    made.listen(2.0)
    assert seen == [5]
    assert made._data.timeouts[-1] == 2.0
