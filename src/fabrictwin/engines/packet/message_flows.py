"""Flows of single messages on the packet engine: which queue pairs of the kernel carry them, and what delays them.

A flow is a queue pair of the kernel for each pair of memories that its messages go between, and one more for the
responses that it carries. Before a message's first byte lie the doorbell, with which a work request that is posted
alone comes to the adapter, processing, and the read of payload that does not come with it; one of several requests
is read from memory first. A response takes the read alone. The sender's completion is written over PCIe. What a
memory takes at the end of a path is `host_memory`'s.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.engines.base import host_memory
from fabrictwin.engines.base.messages import REQUESTS, RESPONSES, FlowOptions, GidType, Message, Opcode, Service
from fabrictwin.engines.base.packet_level import FlowRecord, Observer
from fabrictwin.engines.base.queue_pairs import udp_port
from fabrictwin.engines.packet.network.model import AETH_BYTES, SHORTEST_FRAME
from fabrictwin.engines.packet.network.packet_network import PacketNetwork
from fabrictwin.engines.packet.packet_options import LOCAL_ACK_TIMEOUT_PS
from fabrictwin.fabric.fabric import NONE, Fabric, NodeKind
from fabrictwin.fabric.memory_paths import nearest_processor

if TYPE_CHECKING:
    from fabrictwin.kernel.packet.connection import Connection

MTUS = (256, 512, 1024, 2048, 4096)

# bytes of extended headers on a message's first and last packet
_FIRST: dict[Opcode, tuple[str, ...]] = {
    Opcode.WRITE: ("RETH",),
    Opcode.WRITE_IMMEDIATE: ("RETH",),
    Opcode.READ_REQUEST: ("RETH",),
}
_FIRST |= {Opcode.COMPARE_SWAP: ("AtomicETH",), Opcode.FETCH_ADD: ("AtomicETH",), Opcode.READ_RESPONSE: ("AETH",)}
_FIRST |= {Opcode.ATOMIC_RESPONSE: ("AETH", "AtomicAckETH")}
_LAST: dict[Opcode, tuple[str, ...]] = {
    Opcode.SEND_IMMEDIATE: ("ImmDt",),
    Opcode.WRITE_IMMEDIATE: ("ImmDt",),
    Opcode.SEND_INVALIDATE: ("IETH",),
}


@dataclass(slots=True)
class PostDelays:
    """Delays of messages between two memories before their first packet."""

    fetch_ps: int  # from the post to the first packet's start in memory: payload is read
    inline_ps: int  # ... payload came with the doorbell, or there is none
    request_ps: int  # more where the work request is read too, as one above `room_bytes` is
    room_bytes: int
    store_ps: int  # more for each 64 bytes of the work request after the first
    answer_ps: int  # ... of a response


@dataclass(slots=True)
class MemoryPair:
    """Queue pairs between one pair of memories of a flow."""

    q: int
    delays: PostDelays
    connection: Any
    responses: int = NONE  # queue pair of its responses, once there are some


@dataclass(slots=True)
class FlowFraming:
    """Bytes that go with a flow's payload."""

    extras: list[tuple[int, int, int]]  # by opcode: bytes on the first packet, on the last, traits
    shortest: int  # a packet with fewer bytes beside its headers is padded
    header_bytes: int  # around each packet's payload


@dataclass(slots=True)
class FlowPairs:
    """Queue pairs of a flow by memories, and what waits for them."""

    own: Any = None  # between the flow's own memories
    current: Any = None  # that the last message took
    by_memories: dict[tuple[int, int], MemoryPair] = field(default_factory=dict)
    requests: dict[int, int] = field(default_factory=dict)  # queue pair of each request not yet answered
    waiting: deque[tuple[MemoryPair, tuple[int, ...]]] = field(default_factory=deque)
    rows: dict[Message, bytes] = field(default_factory=dict)  # what was posted before, as the kernel reads it


@dataclass(slots=True)
class Flow(FlowRecord):
    """One direction of a connection."""

    source: int
    target: int
    memories: tuple[int, int]
    framing: FlowFraming
    base: int  # of message numbers
    count: int = 0
    pool: int = NONE
    pairs: FlowPairs = field(default_factory=FlowPairs)


def is_ipv4(gid: bytes) -> bool:
    """Tell whether a GID is an IPv4 address mapped into IPv6's."""
    return gid[:12] == bytes(10) + b"\xff\xff"


def header_bytes(fabric: Fabric, options: FlowOptions, plain: int) -> int:
    """Return bytes around each packet's payload; `plain` is what they are without a GRH, over IPv4 on Ethernet."""
    fields, framing = catalog.headers("infiniband"), catalog.headers("ethernet")
    ethernet, kind = fabric.technology == "ethernet", options.address.gid_type
    if kind is not None and ethernet == (kind == GidType.INFINIBAND):
        raise ConfigError(f"got GID type {kind.name} on {fabric.technology}", key="gid_type")
    header, grh = plain, fields.bytes_of("GRH")
    if not ethernet:
        header += grh if options.address.global_route else 0
    elif kind == GidType.ROCE_V1:
        header += grh - framing.bytes_of("IPv4", "UDP")
    elif options.address.source_gid is not None and not is_ipv4(options.address.source_gid):
        header += grh - framing.bytes_of("IPv4")  # IPv6's header is as long
    if options.service == Service.UNRELIABLE_DATAGRAM:
        header += fields.bytes_of("DETH")
    return header


def extras() -> list[tuple[int, int, int]]:
    """Return by opcode bytes of extended headers on the first packet and the last, and the kernel's traits."""
    from fabrictwin.kernel.packet.state import constants as s

    fields, table = catalog.headers("infiniband"), []
    for opcode in Opcode:
        traits = s.REPORT_ARRIVED | s.REPORT_ENDED
        if opcode in REQUESTS:
            traits |= s.AT_ADAPTER | s.QUIET
        elif opcode in RESPONSES:
            traits = s.REPORT_ARRIVED  # nobody acknowledges it
        table.append((fields.bytes_of(*_FIRST.get(opcode, ())), fields.bytes_of(*_LAST.get(opcode, ())), traits))
    return table


class PacketFlows:
    """Opens flows on a network. Queue pairs of flows that are closed serve again once nothing is left of them."""

    def __init__(self, network: PacketNetwork) -> None:
        self.network, self.fabric = network, network.fabric
        self.closed: list[int] = []
        self.observer: Observer | None = None
        self._extras = extras()

    def open(
        self,
        number: int,
        base: int,
        ends: tuple[int, int],
        memories: tuple[int | None, int | None],
        given: FlowOptions,
    ) -> Flow:
        """Make a flow between two adapters. Raises ConfigError."""
        fabric = self.fabric
        for adapter in ends:
            if not 0 <= adapter < len(fabric.nic_node):
                raise ConfigError(f"got adapter {adapter}, expected one of the fabric's {len(fabric.nic_node)}")
        mtu = fabric.mtu_bytes if given.mtu_bytes is None else given.mtu_bytes
        if mtu not in MTUS or mtu > fabric.mtu_bytes:
            known = ", ".join(str(m) for m in MTUS if m <= fabric.mtu_bytes)
            raise ConfigError(f"got a path MTU of {mtu} bytes, expected one of {known}", key="mtu_bytes")
        header = header_bytes(fabric, given, self.network.model.headers.data)
        ethernet = fabric.technology == "ethernet"
        both = tuple(self._nearest(a) if m is None else m for a, m in zip(ends, memories, strict=True))
        flow = Flow(
            number=number,
            source=ends[0],
            target=ends[1],
            options=given,
            memories=(both[0], both[1]),
            mtu=mtu,
            framing=FlowFraming(self._extras, SHORTEST_FRAME - header if ethernet else 0, header),
            base=base,
        )
        flow.pairs.own = flow.pairs.current = self.add_pair(flow, flow.memories)
        return flow

    def _nearest(self, adapter: int) -> int:
        """The host memory nearest to an adapter. Raises ConfigError where its host has none."""
        nic = int(self.fabric.nic_node[adapter])
        cpu = nearest_processor(self.fabric, nic)
        if cpu is None:
            raise ConfigError(
                f"{self.fabric.node_name(nic)} has no memory: its host has no processor", key="cluster"
            )
        return cpu

    def _check_memory(self, memory: int, nic: int) -> None:
        fabric = self.fabric
        if not 0 <= memory < fabric.nodes or fabric.node_kind[memory] not in (NodeKind.CPU, NodeKind.GPU):
            raise ConfigError(f"got node {memory} as memory, expected a processor or a GPU", key="memory")
        if fabric.node_kind[memory] == NodeKind.GPU and not self.network.options.hosts.gpudirect:
            # as registering it fails on hardware: software that stages posts from host memory
            name = fabric.node_name(memory)
            raise ConfigError(f"got memory of {name} without GPUDirect, expected host memory", key="memory")
        if fabric.node_host[memory] != fabric.node_host[nic]:
            names = fabric.node_name(memory), fabric.node_name(nic)
            raise ConfigError(f"got memory {names[0]}, expected one of the host of {names[1]}", key="memory")

    def add_pair(self, flow: Flow, memories: tuple[int, int]) -> MemoryPair:
        """Add the queue pair between two memories by the flow's adapters."""
        fabric, network, options = self.fabric, self.network.connections, flow.options
        nics = int(fabric.nic_node[flow.source]), int(fabric.nic_node[flow.target])
        for memory, nic in zip(memories, nics, strict=True):
            self._check_memory(memory, nic)
        prefix = network.inside(memories[0], nics[0])[0][1]
        suffix = network.inside(nics[1], memories[1])[0][1]
        if flow.source == flow.target:
            base = network.loopback(flow.source, prefix=prefix, suffix=suffix)
        else:
            udp = options.address.udp_source_port
            if udp is None and options.numbers.source_qpn and options.numbers.target_qpn:
                udp = udp_port(options.numbers.source_qpn, options.numbers.target_qpn)
            base = network.remote(
                flow.source, flow.target, prefix=prefix, suffix=suffix, sl=options.service_level, udp_port=udp
            )
        asks = self._walk_ps(prefix)
        back = network.inside(nics[0], memories[0])[0][1]
        late = self._walk_ps(back)
        if fabric.node_kind[memories[0]] == NodeKind.CPU:
            late += int(fabric.node_latency_ps[memories[0]])
        if options.service != Service.RELIABLE_CONNECTION:
            late += asks  # sent is what has left the adapter
        reads = asks + host_memory.read_ps(fabric, flow.source)
        connection = self._channel(flow, base, late)
        nic_type = catalog.nic(fabric.type_names[int(fabric.node_type[nics[0]])])
        begins = nic_type.doorbell.value + nic_type.processing.value
        near = self._walk_ps(network.inside(self._nearest(flow.source), nics[0])[0][1])
        pair = MemoryPair(
            q=self._connect(flow, connection),
            delays=PostDelays(
                fetch_ps=begins + reads,
                inline_ps=max(begins - asks, 0),
                request_ps=2 * near + host_memory.read_ps(fabric, flow.source),
                room_bytes=nic_type.doorbell_room.value,
                store_ps=nic_type.store.value,
                # the request that it answers came late by what a write takes at its end
                answer_ps=max(reads - host_memory.late_ps(fabric, flow.source), 0),
            ),
            connection=connection,
        )
        flow.pairs.by_memories[memories] = pair
        flow.pairs.rows.clear()  # where bytes lie decides now
        return pair

    def _channel(self, flow: Flow, base: Connection, late_ps: int) -> Connection:
        """Return a connection as the channel of a flow's single messages."""
        from fabrictwin.kernel.packet.connection import Delivery
        from fabrictwin.kernel.packet.state import constants as s

        given, ack = flow.options, flow.framing.header_bytes + AETH_BYTES
        timed = given.retries.timeout > 0 and given.service == Service.RELIABLE_CONNECTION
        framing = replace(
            base.framing,
            header_bytes=flow.framing.header_bytes,
            first_header_bytes=0,
            ack_bytes=max(ack, SHORTEST_FRAME) if self.fabric.technology == "ethernet" else ack,
            mtu_bytes=flow.mtu,
        )
        reliability = replace(
            base.reliability,
            mode=s.CHANNEL,
            rto_ps=LOCAL_ACK_TIMEOUT_PS << given.retries.timeout if timed else 0,
            retry_limit=given.retries.retry_count,
            rnr_limit=given.retries.rnr_retry,
            rnr_ps=given.retries.rnr_timer_ps,
        )
        delivery = Delivery(service=int(given.service), noted=True, late_ps=late_ps)
        return replace(base, framing=framing, reliability=reliability, delivery=delivery)

    def add_responses(self, flow: Flow, pair: MemoryPair) -> int:
        """Add the queue pair that carries responses between these memories."""
        from fabrictwin.kernel.packet.state import constants as s

        made = pair.connection
        delivery, pacing = replace(made.delivery, service=s.RESPONSES), replace(made.pacing, message_ps=0)
        pair.responses = self._connect(flow, replace(made, delivery=delivery, pacing=pacing))
        return pair.responses

    def _walk_ps(self, ports: tuple[int, ...]) -> int:
        """Time in ps that a first bit takes over ports inside a host."""
        fabric = self.fabric
        passed = fabric.port_node[list(ports[1:])]
        return int(fabric.port_latency_ps[list(ports)].sum() + fabric.node_latency_ps[passed].sum())

    def _connect(self, flow: Flow, connection: Any) -> int:
        from fabrictwin.kernel.packet.state.build import rate_to_q

        machine, q = self.network.machine, NONE
        if self.closed and int(machine.state.clock[0].free) == len(machine.state.packet):
            # no packet is anywhere, so none of theirs
            spent = [c for c in self.closed if machine.state.qp[c].live == 0 and machine.state.qp[c].closed]
            if spent:
                q = spent[0]
                self.closed.remove(q)
                machine.reuse_queue_pair(q, connection)
        if q == NONE:
            q = self.network.connections.connect([connection])
        record = machine.state.qp[q]
        record.pool = flow.pool
        if self.observer is not None:
            self.observer.opened(q, connection, flow)
        if flow.options.rate_bps:
            record.gap_q = int(rate_to_q(flow.options.rate_bps))
        return q
