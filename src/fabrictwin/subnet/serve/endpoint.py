"""The endpoint: programs that use libumad2sim, such as OpenSM and the infiniband-diags, see the twin's fabric.

The protocol is that of ibsim 0.12 (linux-rdma/ibsim), as measured against Debian's libumad2sim0 0.10: control
messages of 80 bytes and frames of 288 bytes over datagram sockets, at most ten clients at a time. This module is
the protocol alone: bytes in, bytes out, no sockets, no clock. `serve` has the sockets.

Three things differ from ibsim on purpose. A path that starts with a part routed by LID works (so `ibportstate LID
PORT query` does); management classes keep their numbers (class 0x21 is not taken for 0x01); speeds go through XDR.

What a client cannot get: answers of several datagrams (libumad2sim passes single ones), the last 32 bytes of a
datagram, and a change of its own LID or state in the files under sysfs that it fakes (it reads them once).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property

from fabrictwin.fabric.fabric import NONE
from fabrictwin.subnet.agents.mad_routing import Fate, Frame, Network
from fabrictwin.subnet.serve.answer_order import STALL_PS, AnswerOrder, Turns
from fabrictwin.subnet.wire.header import MAD_BYTES, RESPONSE, SA_DATA, SA_DATA_BYTES, MadClass, Method
from fabrictwin.subnet.wire.rmpp import SA_HEADER_BYTES, Flag
from fabrictwin.subnet.wire.rmpp import Kind as RmppKind
from fabrictwin.subnet.wire.smp import NodeInfo

CLIENTS = 10
CONTROL_BYTES = 80
FRAME_BYTES = 288
# libumad2sim's receiver puts a header of 64 bytes and the datagram into FRAME_BYTES; the rest is dropped, and the
# program reads memory that nobody wrote in its place
READ_BYTES = FRAME_BYTES - 64
MAGIC = 0xDEADBEEF
ETIMEDOUT = 110

_CONTROL = struct.Struct("=IIII64s")
_CONNECT = struct.Struct("=III32s20x")
_VENDOR = struct.Struct("=IIIxxxxQ40x")
_FRAME = struct.Struct(">HxxHxxIII4xQ256s")
_RMPP_TYPE, _RMPP_FLAGS, _RMPP_PAYLOAD = 25, 26, slice(32, 36)
_RMPP_PAYLOAD_START, _OFFSET = 36, slice(44, 46)
_TID = slice(8, 10)  # of a datagram: the bits of the transaction id that say which client asked
OWN_TID = 0xFFFF  # in those bits: software inside the twin asked


class Message(IntEnum):
    ERROR = 0
    CONNECT = 1
    DISCONNECT = 2
    GET_PORT = 3
    GET_VENDOR = 4
    GET_GID = 5
    GET_GUID = 6
    GET_NODEINFO = 7
    GET_PORTINFO = 8
    SET_ISSM = 9
    GET_PKEYS = 10


@dataclass
class Client:
    """A program attached to a port. `address` is the process id, or the UDP port of its data socket."""

    slot: int
    address: int
    is_sm: bool = False
    last_ps: int = 0
    order: AnswerOrder | None = None  # of a program where the fabric was discovered from


@dataclass
class Counts:
    """Counts of what the endpoint saw."""

    connects: int = 0
    refused: int = 0
    frames: int = 0
    unroutable: int = 0
    malformed_control: int = 0
    malformed_frames: int = 0
    no_client: int = 0
    by_attribute: dict[tuple[int, int, int], int] = field(default_factory=dict)


Software = Callable[[Frame, int], list[Frame]]


class Endpoint:
    """All clients of one fabric. `attach` puts software of the twin itself on a port."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.state = network.state
        self.clients: list[Client | None] = [None] * CLIENTS
        self.software: dict[int, Software] = {}
        self.awaited: dict[bytes, Frame | None] = {}  # answers to the twin's own questions, by transaction id
        self.counts = Counts()

    # -- control -------------------------------------------------------------------------------------------

    def control(self, data: bytes, now_ps: int) -> bytes | None:
        """The reply to a control message; None for what is none."""
        if len(data) != CONTROL_BYTES:
            self.counts.malformed_control += 1
            return None
        magic, number, kind, _, body = _CONTROL.unpack(data)
        if magic != MAGIC:
            self.counts.malformed_control += 1
            return None
        if kind == Message.CONNECT:
            answer = self._connect(body, now_ps)
        else:
            client = self.clients[number] if number < CLIENTS else None
            answer = None if client is None else self._request(number, client, kind, body, now_ps)
        if answer is None:
            self.counts.refused += 1
            return _CONTROL.pack(MAGIC, number, Message.ERROR, 0, bytes(64))
        return _CONTROL.pack(
            MAGIC, number, kind, len(answer.rstrip(b"\0")) and len(answer), answer.ljust(64, b"\0")
        )

    def _connect(self, body: bytes, now_ps: int) -> bytes | None:
        address, _, is_sm, name = _CONNECT.unpack(body)
        m = self.resolve(name.split(b"\0", 1)[0].decode(errors="replace"))
        free = next((i for i, client in enumerate(self.clients) if client is None), NONE)
        if m == NONE or free == NONE:
            return None
        slot = self.state.end_slot(m)
        if is_sm and self._manager_at(slot):
            return None
        self.counts.connects += 1
        self.clients[free] = Client(slot, address, last_ps=now_ps, order=self._order_at(m))
        self._set_is_sm(free, bool(is_sm), now_ps)
        return _CONNECT.pack(free, 0, is_sm, node_id(self.network, m).encode())

    @cached_property
    def _turns(self) -> Turns:
        return Turns(self.state)

    def _order_at(self, m: int) -> AnswerOrder | None:
        """Return the order of answers for a program on node `m`; None where no discovery began there."""
        who = self.state.identities[m]
        return AnswerOrder(self._turns) if who is not None and who.origin else None

    def _manager_at(self, slot: int) -> bool:
        return slot in self.software or any(c is not None and c.slot == slot and c.is_sm for c in self.clients)

    def _request(self, number: int, client: Client, kind: int, body: bytes, now_ps: int) -> bytes | None:
        state, slot = self.state, client.slot
        m = state.node_of[slot]
        client.last_ps = now_ps
        if kind == Message.DISCONNECT:
            self.disconnect(number, now_ps)
            return b""
        if kind == Message.GET_PORT:
            return struct.pack("=HB", state.lid(slot), state.logical(slot))
        if kind == Message.GET_VENDOR:
            info = state.node_info[m]
            return _VENDOR.pack(info.vendor_id, info.device_id, info.revision, 0)
        if kind == Message.GET_GID:
            return state.get(slot)[8:16] + state.port_guid[m].to_bytes(8, "big")
        if kind == Message.GET_GUID:
            return state.guid[m].to_bytes(8, "big")
        if kind == Message.GET_NODEINFO:
            return self._node_info_of_client(m, slot)
        if kind == Message.GET_PORTINFO:
            status, data = self.network.sma._get_port_info(m, slot, body[0])
            return None if status else data
        if kind == Message.SET_ISSM:
            wanted = struct.unpack_from("=I", body)[0] != 0
            if wanted and not client.is_sm and self._manager_at(slot):
                return None
            self._set_is_sm(number, wanted, now_ps)
            return b""
        if kind == Message.GET_PKEYS:
            return self.network.sma._get_pkeys(m, slot, 0)[1]
        return None

    def _node_info_of_client(self, m: int, slot: int) -> bytes:
        """NodeInfo as libumad2sim has to have it: it takes the node's GUID plus the port's number for the port's.

        A manager finds itself by that GUID, so where a card's ports do not count on from the node, the node's GUID
        is given as one that leads to the port's.
        """
        data: bytes = self.network.sma._get_node_info(m, slot, 0)[1]
        info = NodeInfo.decode(data)
        derived = info.port_guid if self.state.is_switch[m] else (info.port_guid - info.local_port_num) % (1 << 64)
        return replace(info, node_guid=derived).encode() if derived != info.node_guid else data

    def _set_is_sm(self, number: int, is_sm: bool, now_ps: int) -> None:
        client = self.clients[number]
        assert client is not None
        if client.is_sm == is_sm:
            return
        client.is_sm = is_sm
        if is_sm:
            self.network.managers.add(client.slot)
        elif client.slot not in self.software:
            self.network.managers.discard(client.slot)
        self.network.sma.set_is_sm(self.state.node_of[client.slot], is_sm, now_ps)

    def disconnect(self, number: int, now_ps: int) -> None:
        """A client is gone, whether it said so or not."""
        if self.clients[number] is not None:
            self._set_is_sm(number, False, now_ps)
            self.clients[number] = None

    def resolve(self, name: str) -> int:
        """The node that SIM_HOST names; when empty where it was discovered from, or the first adapter. NONE: none.

        A node is named as the fabric does (host-0/mlx5_0), by its description, or as in ibnetdiscover (H-guid).
        """
        state = self.state
        if not name:
            return state.origin
        guid = name[2:] if name[:2] in ("H-", "S-", "R-") else name
        try:
            return state.find(guid if guid != name else name)
        except KeyError:
            return NONE

    def attach(self, slot: int, software: Software, now_ps: int) -> None:
        """Software of the twin manages the subnet from this port."""
        self.software[slot] = software
        self.network.managers.add(slot)
        self.network.sma.set_is_sm(self.state.node_of[slot], True, now_ps)

    # -- datagrams -----------------------------------------------------------------------------------------

    def frame(self, number: int, data: bytes, now_ps: int) -> list[tuple[int, bytes]]:
        """Return the frames for clients that a client's frame leads to."""
        client = self.clients[number]
        if client is None or len(data) != FRAME_BYTES:
            self.counts.malformed_frames += 1
            return []
        client.last_ps = now_ps
        dlid, slid, dqp, sqp, _, length, mad = _FRAME.unpack(data)
        if mad[0] != 1 or mad[2] > 2:
            self.counts.malformed_frames += 1
            return []
        # an answer shorter than a datagram says so, one of several is cut to the first by the client
        mad = mad[:length].ljust(MAD_BYTES, b"\0")
        self.counts.frames += 1
        key = (mad[1], mad[3], mad[16] << 8 | mad[17])
        self.counts.by_attribute[key] = self.counts.by_attribute.get(key, 0) + 1
        if not mad[3] & RESPONSE and mad[3] != Method.TRAP_REPRESS:
            # the transaction id tells apart the clients of a port
            mad = mad[:8] + number.to_bytes(2, "big") + mad[10:]
        sent = Frame(dlid, 0 if slid == 0xFFFF else slid, dqp, sqp, mad, length)
        outcome = self.network.send(client.slot, sent, now_ps)
        if outcome.fate == Fate.UNROUTABLE:
            self.counts.unroutable += 1
            return [(number, pack_frame(sent, status=ETIMEDOUT))]
        if outcome.fate == Fate.DROPPED or outcome.frame is None:
            return []
        if outcome.fate == Fate.ANSWERED:
            return [(number, one) for one in self._in_order(client, mad, pack_frame(outcome.frame))]
        out = self.forward(outcome.slot, outcome.frame, now_ps)
        if not out and not mad[3] & RESPONSE and outcome.slot not in self.software:
            return [(number, pack_frame(sent, status=ETIMEDOUT))]
        return out

    def _in_order(self, client: Client, mad: bytes, answer: bytes) -> list[bytes]:
        """Return the frames that a client gets now that a node has answered a request of it."""
        order = client.order
        if order is None or not order.active:
            return [answer]
        end, _ = self.network.walk(client.slot, mad[7], mad[128:192])
        if end == NONE or mad[1] != MadClass.SUBN_DIRECTED:
            return [*order.stop(), answer]
        return order.pass_on(mad, self.state.guid[self.state.node_of[end]], answer)

    def forward(self, slot: int, frame: Frame, now_ps: int) -> list[tuple[int, bytes]]:
        """A frame for software on a port: an answer goes to who asked, a request to who manages there."""
        mad = frame.mad
        if mad[3] & RESPONSE:
            asked = int.from_bytes(mad[_TID], "big")
            if asked == OWN_TID:
                if mad[8:16] in self.awaited:
                    self.awaited[mad[8:16]] = frame
                return []
            client = self.clients[asked] if asked < CLIENTS else None
            if client is not None and client.slot == slot:
                return [(asked, pack_frame(frame))]
            self.counts.no_client += 1
            return []
        if mad[3] == Method.REPORT:
            # who subscribed has registered the class, whoever of the port's clients that was
            return [(i, pack_frame(frame)) for i, c in enumerate(self.clients) if c is not None and c.slot == slot]
        if slot in self.software:
            return self.answer(slot, frame, now_ps)
        for number, client in enumerate(self.clients):
            if client is not None and client.slot == slot and client.is_sm:
                return [(number, pack_frame(frame))]
        self.counts.no_client += 1
        return []

    def answer(self, slot: int, frame: Frame, now_ps: int) -> list[tuple[int, bytes]]:
        """The twin's own software hears a frame, and what it sends in turn goes its way."""
        software = self.software.get(slot)
        if software is None:
            return []
        return self.send(slot, software(frame, now_ps), now_ps)

    def send(self, slot: int, frames: list[Frame], now_ps: int) -> list[tuple[int, bytes]]:
        """Frames of the twin's own software, as frames for clients where they are for those."""
        out: list[tuple[int, bytes]] = []
        for frame in frames:
            outcome = self.network.send(slot, frame, now_ps)
            if outcome.frame is None:
                continue
            if outcome.fate == Fate.FORWARDED:
                out += self.forward(outcome.slot, outcome.frame, now_ps)
            elif outcome.fate == Fate.ANSWERED:
                out += self.answer(slot, outcome.frame, now_ps)
        return out

    def poll(self, now_ps: int) -> list[tuple[int, bytes]]:
        """Traps that nodes send of themselves, and answers that a client waits for in vain."""
        out: list[tuple[int, bytes]] = []
        for number, client in enumerate(self.clients):
            if client is not None and client.order is not None and now_ps - client.last_ps >= STALL_PS:
                out += [(number, one) for one in client.order.stalled()]
        for outcome in self.network.traps(now_ps):
            if outcome.frame is not None:
                out += self.forward(outcome.slot, outcome.frame, now_ps)
        return out


def pack_frame(frame: Frame, *, status: int = 0) -> bytes:
    mad, length = _as_single(frame.mad, frame.length)
    return _FRAME.pack(frame.dlid, frame.slid, frame.dqp, frame.sqp, status, length, mad)


def _as_single(mad: bytes, length: int) -> tuple[bytes, int]:
    """A table of several datagrams as one that ends with its last whole record, and how many bytes count.

    Clients cannot put segments together, but believe the length that the first one tells and read on behind it.
    Segments tell it in their header; what OpenSM hands over to be cut has none, and its length counts.
    """
    if mad[1] != MadClass.SUBN_ADM or not mad[3] & RESPONSE:
        return mad, MAD_BYTES
    if mad[_RMPP_TYPE] != RmppKind.DATA or not mad[_RMPP_FLAGS] & Flag.ACTIVE:
        most = SA_DATA.start + _whole_records(mad) if mad[3] == Method.GET_TABLE_RESP else MAD_BYTES
        return mad, min(length, most)
    payload = min(int.from_bytes(mad[_RMPP_PAYLOAD], "big"), SA_HEADER_BYTES + _whole_records(mad))
    flags = bytes([mad[_RMPP_FLAGS] | Flag.FIRST | Flag.LAST])
    cut = mad[:_RMPP_FLAGS] + flags + mad[27:28] + (1).to_bytes(4, "big") + payload.to_bytes(4, "big") + mad[36:]
    return cut, min(MAD_BYTES, _RMPP_PAYLOAD_START + payload)


def _whole_records(mad: bytes) -> int:
    """Bytes of the whole records that a client reads of one datagram; of one, where not even that fits."""
    record = 8 * int.from_bytes(mad[_OFFSET], "big")
    room = READ_BYTES - SA_DATA.start
    return max(room // record * record, min(record, SA_DATA_BYTES)) if record else SA_DATA_BYTES


def node_id(network: Network, m: int) -> str:
    """A node as ibnetdiscover names it: `H-0002c90300000001`."""
    who = network.state.identities[m]
    kind = "S" if network.state.is_switch[m] else "R" if who is not None and who.router else "H"
    return f"{kind}-{network.state.guid[m]:016x}"
