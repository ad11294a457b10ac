"""What adapters' ports send and receive while the packet engine runs, as a capture file.

The kernel records packets at the tapped ports; here each becomes the frame that it stands for. Bytes that nobody
gave are zeros, so are keys and addresses of messages that are not the verbs'. Queue pair numbers are the verbs'
own where there are some, else counted by adapter. Memory is bounded: rows are written as they come, and what is
known of a message is dropped soon after its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fabrictwin.base.closing import Closing
from fabrictwin.base.errors import ConfigError, did_you_mean
from fabrictwin.base.records import record
from fabrictwin.capture import frames
from fabrictwin.capture import transport_headers as transport
from fabrictwin.capture.frames import Address, Ends
from fabrictwin.capture.pcapng import LINK_ERF, LINK_ETHERNET, CaptureWriter
from fabrictwin.capture.transport_headers import Op
from fabrictwin.engines.base.messages import (
    NO_CONTENTS,
    RESPONSES,
    Contents,
    Event,
    EventKind,
    FlowOptions,
    GidType,
    Numbers,
    Opcode,
    Service,
)
from fabrictwin.engines.base.queue_pairs import FIRST_QPN, QueuePairNumbers, hashed_udp_port
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.routing.tables import adapter_ipv4

if TYPE_CHECKING:
    from fabrictwin.engines.base.engine import Engine
    from fabrictwin.engines.base.messages import Message
    from fabrictwin.engines.base.packet_level import FlowRecord, PacketLevel

SUBNET_PREFIX = bytes.fromhex("fe80000000000000")
KEPT = 256  # messages that a flow's late duplicates may still be of
ECT, CE = 2, 3
CE_OR_ECT = (ECT, CE)  # of IP's ECN field
CNP_CLASS = 48 << 2  # DSCP 48, the usual class of congestion notifications
PAUSE_QUANTA = 0xFFFF
_SERVICES = {
    Service.RELIABLE_CONNECTION: transport.Service.RC,
    Service.UNRELIABLE_CONNECTION: transport.Service.UC,
    Service.UNRELIABLE_DATAGRAM: transport.Service.UD,
}
# by opcode: first, middle, last and only packet of a message
_SENDS = (Op.SEND_FIRST, Op.SEND_MIDDLE)
_WRITES = (Op.WRITE_FIRST, Op.WRITE_MIDDLE)
_OPS: dict[Opcode, tuple[Op, Op, Op, Op]] = {
    Opcode.SEND: (*_SENDS, Op.SEND_LAST, Op.SEND_ONLY),
    Opcode.SEND_IMMEDIATE: (*_SENDS, Op.SEND_LAST_IMMEDIATE, Op.SEND_ONLY_IMMEDIATE),
    Opcode.SEND_INVALIDATE: (*_SENDS, Op.SEND_LAST_INVALIDATE, Op.SEND_ONLY_INVALIDATE),
    Opcode.WRITE: (*_WRITES, Op.WRITE_LAST, Op.WRITE_ONLY),
    Opcode.WRITE_IMMEDIATE: (*_WRITES, Op.WRITE_LAST_IMMEDIATE, Op.WRITE_ONLY_IMMEDIATE),
    Opcode.READ_REQUEST: (Op.READ_REQUEST,) * 4,
    Opcode.READ_RESPONSE: (
        Op.READ_RESPONSE_FIRST,
        Op.READ_RESPONSE_MIDDLE,
        Op.READ_RESPONSE_LAST,
        Op.READ_RESPONSE_ONLY,
    ),
    Opcode.COMPARE_SWAP: (Op.COMPARE_SWAP,) * 4,
    Opcode.FETCH_ADD: (Op.FETCH_ADD,) * 4,
    Opcode.ATOMIC_RESPONSE: (Op.ATOMIC_ACKNOWLEDGE,) * 4,
}


@dataclass(slots=True)
class _Message:
    """A message as a capture shows it, beside its bytes."""

    opcode: Opcode
    psn: int  # on the wire
    ordinal: int  # of its flow: message sequence numbers count them
    size: int
    shown: Contents = NO_CONTENTS
    asked: Any = None  # of a response: its request
    left: int = 2  # events that are due


@dataclass(slots=True)
class _Flow:
    """Messages of one of the verbs' flows."""

    psn: int
    count: int = 0
    messages: dict[int, _Message] = field(default_factory=dict)
    ended: deque[int] = field(default_factory=deque)


@dataclass(slots=True)
class _Heads:
    """Headers of a queue pair's packets, and of what comes back; numbers of the queue pairs at both ends."""

    there: Ends
    back: Ends
    source_qpn: int
    target_qpn: int


@dataclass(slots=True)
class _Seen:
    """Messages that packets of a queue pair were of, (first packet, end, message), as they were first seen."""

    messages: deque[tuple[int, int, _Message]] = field(default_factory=lambda: deque(maxlen=1024))
    end: int = 0  # no packet from here on is of one
    count: int = 0

    def add(self, first: int, end: int, message: _Message) -> None:
        self.messages.append((first, end, message))
        self.end = max(self.end, end)
        self.count += 1

    def find(self, psn: int) -> tuple[int, _Message] | None:
        """Return the first packet of the message that this one is of, and the message."""
        if psn >= self.end:
            return None
        return next(
            ((first, message) for first, end, message in reversed(self.messages) if first <= psn < end), None
        )


@dataclass(slots=True)
class _Stream:
    """One queue pair of the kernel."""

    heads: _Heads
    options: FlowOptions
    mtu: int
    flow: int  # NONE: not one of the verbs'
    responses: bool
    rnr_code: int
    seen: _Seen = field(default_factory=_Seen)


class Recorder(Closing):
    """Writes what tapped ports see. Use as a context; attach before connections are made."""

    def __init__(self, packets: PacketLevel, writer: CaptureWriter, adapters: Iterable[int] | None = None) -> None:
        self.packets, self.writer, self.fabric = packets, writer, packets.fabric
        fabric = packets.fabric
        self._ethernet = fabric.technology == "ethernet"
        self._ecn = ECT if packets.marks_congestion else 0
        self._streams: dict[int, _Stream] = {}
        self._flows: dict[int, _Flow] = {}
        self._numbers = QueuePairNumbers(len(fabric.nic_node))
        self._interface: dict[int, int] = {}
        wanted = range(len(fabric.nic_node)) if adapters is None else adapters
        for adapter in wanted:
            port = int(fabric.nic_port[adapter])
            if port != NONE and port not in self._interface:
                name = fabric.node_name(int(fabric.nic_node[adapter]))
                link = LINK_ETHERNET if self._ethernet else LINK_ERF
                self._interface[port] = writer.interface(name, link)
        packets.observe(self, list(self._interface), self._drain)

    def close(self) -> None:
        """Write what is left."""
        self.packets.read_tap()
        self.writer.close()

    # ------------------------------------------------------------------ who talks to whom

    def _mac(self, adapter: int) -> bytes:
        raw = int(self.fabric.node_guid[self.fabric.nic_node[adapter]]).to_bytes(8, "big")
        return raw[:3] + raw[5:]

    def _gid(self, adapter: int) -> bytes:
        node = int(self.fabric.nic_node[adapter])
        if self._ethernet:
            address = int(adapter_ipv4(np.array([adapter], np.int32))[0])
            return bytes(10) + b"\xff\xff" + address.to_bytes(4, "big")
        return SUBNET_PREFIX + int(self.fabric.node_guid[node]).to_bytes(8, "big")

    def _ends(self, source: int, target: int, options: FlowOptions, udp_port: int, *, back: bool) -> Ends:
        gids = (options.address.source_gid, options.address.target_gid)
        ends = (source, target)
        if back:
            gids, ends = gids[::-1], ends[::-1]
        nodes = self.fabric.nic_node
        here, there = (
            Address(self._mac(end), gid or self._gid(end), self.packets.lid(int(nodes[end])))
            for end, gid in zip(ends, gids, strict=True)
        )
        return Ends(
            here,
            there,
            roce_v1=options.address.gid_type == GidType.ROCE_V1,
            global_route=options.address.global_route,
            udp_port=udp_port,
            traffic_class=options.address.traffic_class,
            hop_limit=options.address.hop_limit,
        )

    def connected(self, queue_pair: int, connection: Any) -> None:
        """Take up a queue pair of the kernel, of whatever but single messages."""
        if connection.src == NONE or connection.delivery.noted:
            return
        source, target = connection.src, connection.dst
        qpns = self._numbers.connection(source, target)
        self._add(queue_pair, connection, FlowOptions(numbers=Numbers(*qpns)), NONE)

    def opened(self, queue_pair: int, connection: Any, flow: FlowRecord) -> None:
        """Take up a queue pair of the kernel that carries one of the verbs' flows."""
        self.packets.read_tap()  # what another one of that number did
        if flow.number not in self._flows:
            self._flows[flow.number] = _Flow(flow.options.numbers.first_psn)
        self._add(queue_pair, connection, flow.options, flow.number)

    def _add(self, q: int, connection: Any, options: FlowOptions, flow: int) -> None:
        from fabrictwin.kernel.packet.state import constants as s

        source, target = connection.src, connection.dst
        udp = hashed_udp_port(connection.paths.entropy, source, target)
        rnr_us = connection.reliability.rnr_ps // 10**6
        code = min(range(32), key=lambda i: abs(transport.RNR_TIMER_US[i] - rnr_us))
        self._streams[q] = _Stream(
            _Heads(
                there=self._ends(source, target, options, udp, back=False),
                back=self._ends(source, target, options, udp, back=True),
                source_qpn=options.numbers.source_qpn or FIRST_QPN + flow,
                target_qpn=options.numbers.target_qpn or FIRST_QPN + flow,
            ),
            options=options,
            mtu=connection.framing.mtu_bytes or self.fabric.mtu_bytes,
            flow=flow,
            responses=connection.delivery.noted and connection.delivery.service == s.RESPONSES,
            rnr_code=code,
        )

    # ------------------------------------------------------------------ what messages are

    def posted(
        self, flow: FlowRecord, number: int, message: Message, answers: int | None, *, acknowledged: bool
    ) -> None:
        """Take up what a message is."""
        mine, size = self._flows[flow.number], message.size_bytes
        asked = None
        if answers is not None:
            asked = next((f.messages[answers] for f in self._flows.values() if answers in f.messages), None)
        shown = message.contents
        mine.messages[number] = known = _Message(
            message.opcode, mine.psn, mine.count, size, shown, asked, 2 if acknowledged else 1
        )
        if message.opcode in RESPONSES:
            known.psn, known.ordinal = (0, 0) if asked is None else (asked.psn, asked.ordinal)
        else:
            mine.count += 1
            mine.psn += max(-(-size // flow.mtu), 1)

    def happened(self, events: list[Event]) -> None:
        """Note messages that have ended."""
        for _, number, kind in events:
            mine = self._flows.get(number >> 40)
            message = None if mine is None else mine.messages.get(number)
            if mine is None or message is None or kind == EventKind.BEGUN:
                continue
            message.left -= 1
            if message.left <= 0 or kind in (EventKind.FAILED, EventKind.NOT_READY_FAILED):
                mine.ended.append(number)

    def _forget(self) -> None:
        """Drop what has ended and can hardly show again."""
        for mine in self._flows.values():
            while len(mine.ended) > KEPT:
                mine.messages.pop(mine.ended.popleft(), None)

    # ------------------------------------------------------------------ packets

    def _drain(self, rows: Any) -> None:
        from fabrictwin.kernel.packet import tap
        from fabrictwin.kernel.packet.state import constants as s

        for row in rows.tolist():
            port, kind = row[tap.PORT], row[tap.KIND]
            outbound = row[tap.DIRECTION] == tap.OUT
            if kind == s.PAUSE:
                frame = self._pause(port, row, outbound)
            else:
                stream = self._streams.get(row[tap.QP])
                if stream is None:
                    continue
                if kind in (s.DATA, s.TRIM):
                    frame = self._data(stream, row)
                else:
                    frame = self._answer(stream, row)
            self.writer.packet(self._interface[port], row[tap.TIME], frame, outbound=outbound)
        self._forget()

    def _pause(self, port: int, row: list[int], outbound: bool) -> bytes:
        from fabrictwin.kernel.packet import tap

        adapter = int(self.fabric.node_nic[self.fabric.port_node[port]])
        # a switch's port has an address of its own
        mac = (
            self._mac(adapter) if outbound else bytes([2, 0]) + int(self.fabric.port_peer[port]).to_bytes(4, "big")
        )
        return frames.pause(mac, row[tap.VL], PAUSE_QUANTA if row[tap.PSN] else 0)

    def _message_of(self, stream: _Stream, row: list[int]) -> tuple[int, _Message]:
        """The first packet, in the kernel's count, of the message that a row is of, and the message."""
        from fabrictwin.kernel.packet import tap

        start, psn = row[tap.START], row[tap.PSN]
        known = stream.seen.find(psn)
        if known is not None:
            return known
        if start == NONE:
            start = psn
        found = None
        if stream.flow != NONE:
            found = self._flows[stream.flow].messages.get(row[tap.MESSAGE])
        if found is None:
            found = _Message(Opcode.WRITE, start, stream.seen.count, row[tap.SIZE])
        travels = 0 if found.opcode in _HEADERS_ALONE else found.size
        stream.seen.add(start, start + max(-(-travels // stream.mtu), 1), found)
        return start, found

    def _data(self, stream: _Stream, row: list[int]) -> bytes:
        from fabrictwin.kernel.packet import tap
        from fabrictwin.kernel.packet.state import constants as s

        start, message = self._message_of(stream, row)
        marks, size = row[tap.MARKS], row[tap.PAYLOAD]
        first, last = bool(marks & s.FIRST), bool(marks & s.LAST)
        op = _OPS[message.opcode][3 if first and last else 0 if first else 2 if last else 1]
        service = _SERVICES[stream.options.service]
        at = (row[tap.PSN] - start) * stream.mtu
        body = bytes(size)
        if message.shown.payload is not None and size:
            given = bytes(memoryview(message.shown.payload).cast("B")[at : at + size])
            body = given.ljust(size, b"\0")
        pad = -size & 3
        bth = transport.Bth(
            opcode=service | op,
            partition=stream.options.numbers.partition,
            target_qpn=stream.heads.target_qpn,
            psn=message.psn + row[tap.PSN] - start,
            ack_request=service == transport.Service.RC
            and not stream.responses
            and bool(last or marks & s.REQUEST),
            pad=pad,
        )
        packet = bth.pack() + self._extended(stream, message, op) + body + bytes(pad)
        congestion = CE_OR_ECT[bool(marks & s.ECN)] if self._ecn else 0
        return self._frame(stream.heads.there, packet, row, congestion)

    def _extended(self, stream: _Stream, message: _Message, op: Op) -> bytes:
        parts = []
        if stream.options.service == Service.UNRELIABLE_DATAGRAM:
            parts.append(transport.deth(stream.options.numbers.queue_key, stream.heads.source_qpn))
        for name in transport.EXTENDED.get(op, ()):
            if name == transport.RETH:
                parts.append(transport.reth(message.shown.remote_address, message.shown.remote_key, message.size))
            elif name == transport.AETH:
                parts.append(transport.aeth(transport.CREDITS_UNLIMITED, message.ordinal + 1))
            elif name == transport.ATOMIC_ETH:
                parts.append(
                    transport.atomic_eth(
                        message.shown.remote_address, message.shown.remote_key, message.shown.operands
                    )
                )
            elif name == transport.ATOMIC_ACK:
                # the value that was there, as a number
                parts.append((message.shown.operands[0] & (1 << 64) - 1).to_bytes(8, "big"))
            else:  # ImmDt, IETH
                parts.append((message.shown.immediate & 0xFFFFFFFF).to_bytes(4, "big"))
        return b"".join(parts)

    def _answer(self, stream: _Stream, row: list[int]) -> bytes:
        """An acknowledgement, a NAK or a congestion notification, on the way back."""
        from fabrictwin.kernel.packet import tap
        from fabrictwin.kernel.packet.state import constants as s

        kind, psn = row[tap.KIND], row[tap.PSN]
        partition = stream.options.numbers.partition
        if kind == s.CNP:
            bth = transport.Bth(transport.CNP, partition, stream.heads.source_qpn, 0, notified=transport.BECN)
            return self._frame(stream.heads.back, bth.pack() + transport.CNP_RESERVED, row, 0, CNP_CLASS)
        # an acknowledgement names the last packet that has come, a NAK the one that is wanted
        at = psn - 1 if kind == s.ACK else psn
        found = stream.seen.find(at)
        if found is None and stream.seen.messages:
            first, _, message = stream.seen.messages[-1]
            found = (first, message)
        wire, ordinal = at, 0
        if found is not None:
            wire, ordinal = found[1].psn + at - found[0], found[1].ordinal
        if stream.responses and found is not None:
            # the requester asks again for what is missing
            message = found[1].asked or found[1]
            done = (at - found[0]) * stream.mtu
            bth = transport.Bth(
                transport.Service.RC | Op.READ_REQUEST, partition, stream.heads.source_qpn, wire, True
            )
            again = transport.reth(
                message.shown.remote_address + done, message.shown.remote_key, max(found[1].size - done, 0)
            )
            return self._frame(stream.heads.back, bth.pack() + again, row, 0)
        syndrome = {s.ACK: transport.CREDITS_UNLIMITED, s.NAK: 0x60, s.RNR: 0x20 | stream.rnr_code}.get(
            kind, row[tap.MARKS] & 0x7F
        )
        whole = found is not None and any(a <= at and end == psn for a, end, _ in reversed(stream.seen.messages))
        bth = transport.Bth(transport.Service.RC | Op.ACKNOWLEDGE, partition, stream.heads.source_qpn, wire)
        packet = bth.pack() + transport.aeth(syndrome, ordinal + (1 if whole else 0))
        return self._frame(stream.heads.back, packet, row, 0)

    def _frame(
        self, ends: Ends, packet: bytes, row: list[int], congestion: int, traffic_class: int | None = None
    ) -> bytes:
        from dataclasses import replace

        from fabrictwin.kernel.packet import tap

        if traffic_class is not None:
            ends = replace(ends, traffic_class=traffic_class)
        if self._ethernet:
            return frames.ethernet(ends, packet, congestion=congestion)
        return frames.infiniband(ends, packet, service_level=row[tap.SL], virtual_lane=row[tap.VL])


_HEADERS_ALONE = (Opcode.READ_REQUEST, Opcode.COMPARE_SWAP, Opcode.FETCH_ADD, Opcode.ATOMIC_RESPONSE)


@record
class CaptureRequest:
    """A capture that somebody wants: where to write, at which hosts or adapters (all), how much of each packet."""

    path: Path
    at: tuple[str, ...] = ()
    snaplen: int = 0

    def start(self, engine: Engine) -> Recorder:
        """Begin to record. Raises ConfigError without packets, for an unknown name or a file that cannot be."""
        if engine.packets is None:
            raise ConfigError("got an engine without packets, expected the packet engine", key="pcap")
        adapters = adapters_named(engine.fabric, self.at)
        return Recorder(engine.packets, CaptureWriter(self.path, snaplen=self.snaplen), adapters)


def adapters_named(fabric: Fabric, names: Iterable[str]) -> list[int] | None:
    """Adapters of hosts, or single ones (`host-0/mlx5_1`); None where nothing is named. Raises ConfigError."""
    chosen: list[int] = []
    known = [fabric.node_name(int(n)) for n in fabric.nic_node]
    for name in names:
        found = [i for i, n in enumerate(known) if n == name or n.split("/")[0] == name]
        if not found:
            hint = did_you_mean(name, [*fabric.host_names, *known])
            raise ConfigError(
                f"got {name!r}, expected a host or an adapter such as {known[0]!r}{hint}", key="pcap-at"
            )
        chosen += found
    return chosen or None
