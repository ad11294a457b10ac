"""An IPoIB interface: neighbours, address resolution over the broadcast group, datagram and connected mode.

RFC 4391 and RFC 4755, with the limits of Linux's driver (drivers/infiniband/ulp/ipoib). Packets are messages of
the twin's engine: datagrams of an unreliable service, in connected mode one reliable connection a neighbour and
direction. The handshake that sets a connection up, and path records, take no modelled time. A multicast packet is
sent once for each member by the sender's adapter, and every interface is a member of every group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base.messages import (
    Contents,
    EventKind,
    FlowOptions,
    GlobalAddress,
    Message,
    Numbers,
    Opcode,
    Service,
)
from fabrictwin.live.ipoib import encapsulation as wire
from fabrictwin.live.ipoib.encapsulation import Arp, HardwareAddress

if TYPE_CHECKING:
    from fabrictwin.verbs.adapter.adapter import Adapter
    from fabrictwin.verbs.adapter.world import World

Mode = Literal["datagram", "connected"]
SEND_QUEUE = 512  # packets under way before the kernel has to wait (ipoib_sendq_size)
WAITING_PACKETS = 3  # of a neighbour that is looked for (IPOIB_MAX_PATH_REC_QUEUE)
ASK_AGAIN_PS = 1_000_000_000_000
QUESTIONS = 3
NEIGHBOUR_PS = 60_000_000_000_000  # a neighbour is asked for anew after so long


@dataclass
class Counts:
    """Packets and bytes of IP that an interface sent, and got; how long those that it got took."""

    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    dropped: int = 0
    taken_ps: int = 0
    late_ps: int = 0  # behind the wall clock


@dataclass
class Neighbour:
    """What is known of an address of the subnet."""

    address: HardwareAddress | None = None
    since_ps: int = 0
    waiting: list[bytes] = field(default_factory=list)
    questions: int = 0
    datagrams: int | None = None  # flows
    connection: int | None = None


def largest_packet(adapter: Adapter, mode: Mode) -> int:
    """Return the MTU of an interface: a datagram of its link without the header, or what connected mode has."""
    return wire.CONNECTED_MTU if mode == "connected" else adapter.mtu_bytes - wire.HEADER_BYTES


class Interface:
    """An interface of one adapter; `deliver` takes an IP packet to its kernel, False: it has no room."""

    def __init__(
        self, subnet: Subnet, adapter: Adapter, mode: Mode, prefix: int, deliver: Callable[[bytes], bool]
    ) -> None:
        self.subnet, self.adapter, self.mode, self.prefix, self.deliver = subnet, adapter, mode, prefix, deliver
        self.ip = adapter.ipv4
        self.address = HardwareAddress(adapter.new_number(), adapter.gids[0].raw, mode == "connected")
        self.counts = Counts()
        self.under_way = 0  # packets that have not left, or of a connection are not acknowledged
        self.freed: Callable[[], None] | None = None  # called when there is room again
        self._neighbours: dict[bytes, Neighbour] = {}
        self._groups: dict[tuple[bytes, int], int] = {}  # flows by group and member

    @property
    def datagram_mtu(self) -> int:
        return largest_packet(self.adapter, "datagram")

    @property
    def mtu(self) -> int:
        return largest_packet(self.adapter, self.mode)

    @property
    def broadcast_ip(self) -> bytes:
        host_bits = (1 << 32 - self.prefix) - 1
        return (int.from_bytes(self.ip, "big") | host_bits).to_bytes(4, "big")

    @property
    def full(self) -> bool:
        return self.under_way >= SEND_QUEUE

    # ------------------------------------------------------------------ from the kernel

    def send_packet(self, packet: bytes) -> None:
        """Send an IPv4 packet that the kernel routed here."""
        if len(packet) < 20 or packet[0] >> 4 != 4:
            self.counts.dropped += 1
            return
        to = packet[16:20]
        if to in (wire.BROADCAST_IP, self.broadcast_ip):
            self._broadcast(wire.BROADCAST_IP, wire.IPV4, packet)
        elif to[0] & 0xF0 == 0xE0:
            self._broadcast(to, wire.IPV4, packet)
        else:
            self._send_to(to, packet)

    def _send_to(self, ip: bytes, packet: bytes) -> None:
        now = self.subnet.world.now_ps
        neighbour = self._neighbours.setdefault(ip, Neighbour())
        if neighbour.address is None:
            if len(neighbour.waiting) >= WAITING_PACKETS:
                neighbour.waiting.pop(0)
                self.counts.dropped += 1
            neighbour.waiting.append(packet)
            if not neighbour.questions:
                self._ask(ip, neighbour)
            return
        if now - neighbour.since_ps > NEIGHBOUR_PS:
            neighbour.since_ps = now
            self._question(ip)
        self._unicast(neighbour, wire.IPV4, packet, connected=self.mode == "connected")

    # ------------------------------------------------------------------ address resolution

    def _ask(self, ip: bytes, neighbour: Neighbour) -> None:
        """Ask who has an address, and again until somebody answers or it has been asked often enough."""
        if neighbour.address is not None:
            return
        if neighbour.questions >= QUESTIONS:
            self.counts.dropped += len(neighbour.waiting)
            neighbour.waiting.clear()
            neighbour.questions = 0
            return
        neighbour.questions += 1
        self._question(ip)
        self.subnet.world.after(ASK_AGAIN_PS, lambda: self._ask(ip, neighbour))

    def _question(self, ip: bytes) -> None:
        asked = Arp(wire.REQUEST, self.address, self.ip, bytes(20), ip)
        self._broadcast(wire.BROADCAST_IP, wire.ARP, asked.pack())

    def _take_arp(self, packet: bytes) -> None:
        arp = Arp.unpack(packet)
        if arp is None or arp.target_ip != self.ip:
            return
        neighbour = self._neighbours.setdefault(arp.sender_ip, Neighbour())
        if neighbour.address != arp.sender:
            neighbour.datagrams = neighbour.connection = None
        neighbour.address, neighbour.since_ps = arp.sender, self.subnet.world.now_ps
        neighbour.questions = 0
        if arp.operation == wire.REQUEST:
            answer = Arp(wire.REPLY, self.address, self.ip, arp.sender.pack(), arp.sender_ip)
            self._unicast(neighbour, wire.ARP, answer.pack(), connected=False)
        waiting, neighbour.waiting = neighbour.waiting, []
        for one in waiting:
            self._unicast(neighbour, wire.IPV4, one, connected=self.mode == "connected")

    # ------------------------------------------------------------------ onto the wire

    def _unicast(self, neighbour: Neighbour, ethertype: int, packet: bytes, *, connected: bool) -> None:
        assert neighbour.address is not None
        target = self.subnet.by_gid(neighbour.address.gid)
        connected = connected and neighbour.address.connected
        if target is None or (not connected and len(packet) > self.datagram_mtu):
            self.counts.dropped += 1
            return
        flow = neighbour.connection if connected else neighbour.datagrams
        if flow is None:
            flow = self._open(target, connected, neighbour.address.qpn, None)
            if flow is None:
                self.counts.dropped += 1
                return
            if connected:
                neighbour.connection = flow
            else:
                neighbour.datagrams = flow

        def failed() -> None:
            neighbour.connection = None  # the next packet sets one up

        self._put(flow, target, ethertype, packet, failed if connected else None)

    def _broadcast(self, ip: bytes, ethertype: int, packet: bytes) -> None:
        if len(packet) > self.datagram_mtu:
            self.counts.dropped += 1
            return
        group = wire.multicast_gid(ip, self.adapter.pkeys[0])
        for member in self.subnet.others(self):
            key = group, member.adapter.index
            flow = self._groups.get(key)
            if flow is None:
                flow = self._open(member, False, wire.MULTICAST_QPN, group)
                if flow is None:
                    self.counts.dropped += 1
                    continue
                self._groups[key] = flow
            self._put(flow, member, ethertype, packet, None)

    def _open(self, target: Interface, connected: bool, qpn: int, group: bytes | None) -> int | None:
        adapter, to = self.adapter, target.adapter
        if not adapter.active or not to.active:
            return None
        # a connection has queue pairs of its own at both ends
        here, there = (adapter.new_number(), to.new_number()) if connected else (self.address.qpn, qpn)
        options = FlowOptions(
            service=Service.RELIABLE_CONNECTION if connected else Service.UNRELIABLE_DATAGRAM,
            mtu_bytes=adapter.mtu_bytes,
            numbers=Numbers(here, there, 0, adapter.pkeys[0], 0 if connected else wire.QKEY),
            address=GlobalAddress(target_gid=group, global_route=group is not None),
        )
        try:
            return self.subnet.world.engine.open(adapter.index, to.index, options=options)
        except ConfigError:
            return None

    def _put(
        self, flow: int, target: Interface, ethertype: int, packet: bytes, failed: Callable[[], None] | None
    ) -> None:
        world = self.subnet.world
        data = wire.encapsulated(ethertype, packet)
        contents = Contents(payload=memoryview(data) if world.captures else None)
        number = world.engine.send(flow, Message(len(data), Opcode.SEND, contents=contents))
        self.under_way += 1
        if ethertype == wire.IPV4:
            self.counts.sent += 1
            self.counts.sent_bytes += len(packet)
        world.told[number] = _Sent(self, target, ethertype, packet, number, failed)

    def left(self) -> None:
        """A packet is the adapter's no more."""
        self.under_way -= 1
        if self.freed is not None and not self.full:
            self.freed()

    def take(self, ethertype: int, packet: bytes, took_ps: int) -> None:
        """Take a packet that has arrived."""
        if ethertype == wire.ARP:
            self._take_arp(packet)
            return
        counts = self.counts
        if not self.deliver(packet):
            counts.dropped += 1
            return
        counts.received += 1
        counts.received_bytes += len(packet)
        counts.taken_ps += took_ps
        counts.late_ps += self.subnet.late_ps()


class _Sent:
    """A packet on its way, called with what happens to it."""

    __slots__ = ("ethertype", "failed", "here", "message", "packet", "sender", "since_ps", "target", "went")

    def __init__(
        self,
        sender: Interface,
        target: Interface,
        ethertype: int,
        packet: bytes,
        message: int,
        failed: Callable[[], None] | None,
    ) -> None:
        self.sender, self.target, self.ethertype, self.packet = sender, target, ethertype, packet
        self.message, self.failed = message, failed
        self.since_ps = sender.subnet.world.now_ps
        self.went = self.here = False  # has left its adapter; is there, or lost

    def __call__(self, kind: int) -> None:
        if kind == EventKind.ARRIVED:
            self.here = True
            took_ps = self.sender.subnet.world.now_ps - self.since_ps
            self.target.take(self.ethertype, self.packet, took_ps)
        elif kind == EventKind.ENDED:
            self._leave()
        else:  # lost, or given up
            self.here = True
            self.sender.counts.dropped += 1
            if self.failed is not None:
                self.failed()
                self._leave()
        if self.here and self.went:
            self.sender.subnet.world.told.pop(self.message, None)

    def _leave(self) -> None:
        if not self.went:
            self.went = True
            self.sender.left()


class Subnet:
    """All IPoIB interfaces of one twin's partition."""

    def __init__(self, world: World, late_ps: Callable[[], int]) -> None:
        self.world = world
        self.late_ps = late_ps  # how far modelled time is behind the wall clock
        self.interfaces: dict[bytes, Interface] = {}

    def add(self, interface: Interface) -> None:
        self.interfaces[interface.address.gid] = interface

    def by_gid(self, gid: bytes) -> Interface | None:
        return self.interfaces.get(gid)

    def others(self, sender: Interface) -> list[Interface]:
        """Members of the sender's groups: every other interface of its network."""
        plane = sender.adapter.plane
        return [one for one in self.interfaces.values() if one is not sender and one.adapter.plane == plane]
