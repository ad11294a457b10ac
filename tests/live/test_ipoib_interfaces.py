"""IPoIB interfaces over the packet engine: address resolution, groups, both modes, times to the picosecond."""

from __future__ import annotations

import pytest
from support.clusters import boxes

from fabrictwin.engines.base.messages import EventKind, FlowOptions, GlobalAddress, Message, Opcode, Service
from fabrictwin.live.ipoib import encapsulation as wire
from fabrictwin.live.ipoib.encapsulation import Arp, HardwareAddress, multicast_gid
from fabrictwin.live.ipoib.interface import SEND_QUEUE, WAITING_PACKETS, Interface, Subnet
from fabrictwin.verbs.adapter.world import World

GID = bytes.fromhex("fe80000000000000020000fffe000091")


class Network:
    """Interfaces of the first hosts of a fabric, and what each hands to its kernel: (instant, packet)."""

    def __init__(self, mode: str = "datagram", hosts: int = 3) -> None:
        twin = boxes(4)
        self.world = World(twin, engine=twin.start_engine("packet"))
        self.subnet = Subnet(self.world, lambda: 7)
        self.got: list[list[tuple[int, bytes]]] = [[] for _ in range(hosts)]
        self.room = True
        self.interfaces = [self._interface(i, mode) for i in range(hosts)]

    def _interface(self, i: int, mode: str) -> Interface:
        def deliver(packet: bytes) -> bool:
            self.got[i].append((self.world.now_ps, packet))
            return self.room

        made = Interface(self.subnet, self.world.host(f"host-{i}")[0], mode, 8, deliver)  # type: ignore[arg-type]
        self.subnet.add(made)
        return made

    def packet(self, to: bytes, size: int = 84) -> bytes:
        return b"\x45" + bytes(15) + to + bytes(size - 20)

    def send(self, to: int, size: int = 84) -> bytes:
        """Send a packet from the first host to another, and let time pass until it is there or gone."""
        packet = self.packet(self.interfaces[to].ip, size)
        self.interfaces[0].send_packet(packet)
        self.world.settle()
        return packet


def engine_time(size: int, service: Service, *, group: bool = False) -> int:
    """Picoseconds that a message of `size` takes between the same adapters, alone."""
    twin = boxes(4)
    engine = twin.start_engine("packet")
    address = GlobalAddress(target_gid=bytes(16), global_route=True) if group else GlobalAddress()
    flow = engine.open(0, 1, options=FlowOptions(service=service, mtu_bytes=4096, address=address))
    engine.send(flow, Message(size, Opcode.SEND))
    while events := engine.advance().events:
        for event in events:
            if event.kind == EventKind.ARRIVED:
                return event.time_ps
    raise AssertionError("lost")


def test_a_first_packet_waits_for_the_answer_of_who_has_its_address():
    network = Network()
    packet = network.send(1)
    ((arrived, data),) = network.got[1]
    question = engine_time(4 + 56, Service.UNRELIABLE_DATAGRAM, group=True)
    answer, datagram = (engine_time(4 + size, Service.UNRELIABLE_DATAGRAM) for size in (56, 84))
    assert (arrived, data) == (question + answer + datagram, packet)
    assert network.got[2] == []
    assert not network.world.told


@pytest.mark.parametrize(
    ("mode", "service"),
    [("datagram", Service.UNRELIABLE_DATAGRAM), ("connected", Service.RELIABLE_CONNECTION)],
)
def test_a_packet_takes_what_the_engine_says_of_its_message(mode, service):
    network = Network(mode)
    network.send(1)
    began = network.world.now_ps
    packet = network.send(1, 4000)
    assert network.got[1][1] == (began + engine_time(4 + 4000, service), packet)
    counts = network.interfaces[1].counts
    assert (counts.received, counts.received_bytes, counts.late_ps) == (2, 4084, 14)
    assert network.interfaces[0].under_way == 0


def test_modes_differ_in_what_they_carry():
    datagrams, connected = Network("datagram"), Network("connected")
    assert [one.interfaces[0].mtu for one in (datagrams, connected)] == [4092, 65520]
    for network in (datagrams, connected):
        network.send(1, 60000)
    assert datagrams.got[1] == []
    assert datagrams.interfaces[0].counts.dropped == 1
    assert len(connected.got[1]) == 1


def test_broadcasts_and_multicasts_reach_all_others_by_datagrams():
    network = Network("connected")
    for to in (b"\xff\xff\xff\xff", b"\x0a\xff\xff\xff", b"\xe0\x00\x00\xfb"):
        network.interfaces[0].send_packet(network.packet(to))
        network.world.settle()
    assert [len(got) for got in network.got] == [0, 3, 3]
    network.interfaces[0].send_packet(network.packet(b"\xff\xff\xff\xff", 5000))  # longer than a datagram
    network.world.settle()
    assert len(network.got[1]) == 3


def test_nobody_answers():
    network = Network()
    for _ in range(WAITING_PACKETS + 2):
        network.interfaces[0].send_packet(network.packet(b"\x0a\x01\x02\x03"))
    network.world.settle()
    assert network.interfaces[0].counts.dropped == WAITING_PACKETS + 2
    assert network.world.now_ps == 3_000_000_000_000
    network.interfaces[0].send_packet(network.packet(b"\x0a\x01\x02\x03"))  # is asked for anew
    network.world.settle()
    assert network.world.now_ps == 6_000_000_000_000


def test_what_is_no_ipv4_and_what_a_kernel_has_no_room_for_is_dropped():
    network = Network()
    network.interfaces[0].send_packet(b"\x60" + bytes(60))
    network.interfaces[0].send_packet(b"\x45")
    assert network.interfaces[0].counts.dropped == 2
    network.room = False
    network.send(1)
    assert (network.interfaces[1].counts.dropped, network.interfaces[1].counts.received) == (1, 0)


@pytest.mark.parametrize("mode", ["datagram", "connected"])
def test_a_full_send_queue_says_when_there_is_room(mode):
    network = Network(mode)
    network.send(1)
    here = network.interfaces[0]
    freed: list[int] = []
    here.freed = lambda: freed.append(here.under_way)
    for _ in range(SEND_QUEUE):
        here.send_packet(network.packet(network.interfaces[1].ip))
    assert here.full
    network.world.settle()
    assert not here.full
    assert freed[0] == SEND_QUEUE - 1
    assert len(network.got[1]) == 1 + SEND_QUEUE


def test_packets_and_addresses_are_the_standards():
    """RFC 4391: the layouts of 9.1 and 9.1.1, the group of 4; flags of RFC 4755, 3.1."""
    address = HardwareAddress(0x48, GID, connected=True)
    assert address.pack() == bytes.fromhex("80000048") + GID
    assert HardwareAddress.unpack(address.pack()) == address
    arp = Arp(wire.REQUEST, address, b"\x0a\0\0\1", bytes(20), b"\x0a\0\0\2")
    packed = arp.pack()
    assert packed[:8] == bytes.fromhex("0020080014040001")
    assert packed[8:] == address.pack() + b"\x0a\0\0\1" + bytes(20) + b"\x0a\0\0\2"
    assert Arp.unpack(packed) == arp
    for broken in (packed[:55], b"\0\1" + packed[2:], b""):
        assert Arp.unpack(broken) is None
    assert multicast_gid(b"\xff\xff\xff\xff", 0x7FFF).hex() == "ff12401bffff000000000000ffffffff"
    assert multicast_gid(b"\xe0\x00\x00\x01", 0x8002).hex() == "ff12401b800200000000000000000001"
    assert wire.encapsulated(wire.IPV4, b"x") == b"\x08\0\0\0x"
