"""Messages between adapters, one at a time: what the verbs stand on.

A *flow* is one direction of a connection: from one adapter, and memory behind it, to another. Messages of a flow
stay in order. The engine times them and says what happened to each; it knows nothing of keys or of bytes' values.
The caller's answer to an arrival (a READ's response, an atomic's) is a message on the flow back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from fabrictwin.engines.base.engine import FOREVER
from fabrictwin.kernel.codes import EventKind as EventKind


class Service(IntEnum):
    """Transport services of the InfiniBand Architecture, chapter 9, that differ in time."""

    RELIABLE_CONNECTION = 0
    UNRELIABLE_CONNECTION = 1
    UNRELIABLE_DATAGRAM = 2


class Opcode(IntEnum):
    """What a message is: decides its headers, and what a capture shows."""

    SEND = 0
    SEND_IMMEDIATE = 1
    SEND_INVALIDATE = 2
    WRITE = 3
    WRITE_IMMEDIATE = 4
    READ_REQUEST = 5
    READ_RESPONSE = 6
    COMPARE_SWAP = 7
    FETCH_ADD = 8
    ATOMIC_RESPONSE = 9


REQUESTS = (Opcode.READ_REQUEST, Opcode.COMPARE_SWAP, Opcode.FETCH_ADD)
RESPONSES = (Opcode.READ_RESPONSE, Opcode.ATOMIC_RESPONSE)


class Event(NamedTuple):
    """Something that happened to a message, in order of time; ties in the order in which it happened."""

    time_ps: int
    message: int
    kind: EventKind


class GidType(IntEnum):
    """How packets are addressed: InfiniBand by LID, or an Ethernet frame of either kind of RoCE."""

    INFINIBAND = 0
    ROCE_V1 = 1
    ROCE_V2 = 2


# AETH syndromes (InfiniBand Architecture 9.7.5.1.1) of NAKs that end a connection
NAK_INVALID_REQUEST = 0x61
NAK_REMOTE_ACCESS = 0x62
NAK_REMOTE_OPERATION = 0x63


@dataclass(frozen=True, kw_only=True)
class FlowOptions:
    """One direction of a queue pair, as its attributes say."""

    service: Service = Service.RELIABLE_CONNECTION
    mtu_bytes: int | None = None  # None: the fabric's
    service_level: int | None = None  # None: the route's
    traffic_class: int = 0
    udp_source_port: int | None = None  # Ethernet; None: from the queue pair numbers
    timeout: int = 14  # 4.096 us * 2^timeout; 0 is never
    retry_count: int = 7
    rnr_retry: int = 7  # 7: for ever
    rnr_timer_ps: int = 655_360_000_000
    source_qpn: int = 0  # as captures show them
    target_qpn: int = 0
    first_psn: int = 0
    partition: int = 0xFFFF
    queue_key: int = 0  # of datagrams
    source_gid: bytes | None = None  # None: what the fabric gives the adapters
    target_gid: bytes | None = None
    gid_type: GidType | None = None  # None: by technology, RoCE v2 on Ethernet
    global_route: bool = False  # InfiniBand: packets carry a GRH (of datagrams the receiver always gets one)
    hop_limit: int = 64
    rate_bps: int | None = None  # static rate limit


class MessageSession(Protocol):
    """An engine at work on single messages. Time only advances."""

    @property
    def now_ps(self) -> int: ...

    def open(
        self,
        source_adapter: int,
        target_adapter: int,
        *,
        source_memory: int | None = None,
        target_memory: int | None = None,
        options: FlowOptions | None = None,
    ) -> int:
        """A flow between two adapters of the fabric (indices into `fabric.nic_node`, equal for loopback).

        Memories are fabric nodes (a CPU or a GPU of the adapter's host), None the CPU nearest to the adapter.
        Raises ConfigError where there is no way.
        """
        ...

    def close(self, flow: int) -> None:
        """Forget a flow: messages under way on it are lost, without an event."""
        ...

    def receives(self, flow: int, pool: int) -> None:
        """Messages on the flow that take a receive take it from this pool (several flows may share one)."""
        ...

    def add_receives(self, pool: int, count: int) -> None:
        """So many more receives are posted (or, negative, withdrawn) in a pool; pools start empty."""
        ...

    def send(
        self,
        flow: int,
        size_bytes: int,
        opcode: Opcode,
        *,
        takes_receive: bool = False,
        tell_begin: bool = False,
        tell_end: bool = True,
        inline: bool = False,
        chained: bool = False,
        remote_address: int = 0,
        remote_key: int = 0,
        immediate: int = 0,
        operands: tuple[int, int] = (0, 0),
        answers: int | None = None,
        payload: memoryview | None = None,
        memory: int | None = None,
        target_memory: int | None = None,
        later_ps: int = 0,
    ) -> int:
        """Post a message now; returns its number.

        Of a request (READ, atomics) `size_bytes` is what is asked for: headers alone travel. It ends when the
        first packet of its response is there. A response is a message on the flow back; it `answers` a request,
        None the oldest one (flows that belong together have each other's queue pair numbers). Responses are a
        stream of their own beside the sender's requests; nobody acknowledges them, and they have no ENDED.

        `memory` and `target_memory` are the fabric nodes that the bytes are read from and written to, where they
        are not the flow's own. Where they change, the flow waits for what went before. `inline`: the adapter
        gets payload with the work request. `chained`: it reads the work request from memory, as of several that
        are posted at once; one alone comes with the doorbell. `later_ps`: software needs so long before it posts;
        what is posted after it goes after it. `tell_begin`: hold the first packet at the
        receiving adapter at BEGUN until the next `advance`, so that `refuse` comes in time; it costs one more
        event, so ask for it where a refusal is likely. Without `tell_end` there is no ENDED.

        Addresses, keys, immediate data (of SEND_INVALIDATE the key), atomics' operands (swap or add, compare; of
        the response what was there) and payload only show in captures.
        """
        ...

    def refuse(self, message: int, syndrome: int = NAK_REMOTE_ACCESS) -> None:
        """The receiving side answers a begun or arrived message with a NAK: the sender sees ENDED at the time
        of that NAK, and later messages of the flow that are under way never arrive.

        Of an arrived message the acknowledgement is under way already: the NAK takes its place, and where the
        sender has it, ENDED came before.
        """
        ...

    def advance(self, until_ps: int = FOREVER) -> list[Event]:
        """Run to the next instant at which something happened, at most to `until_ps`; what happened then.

        Of a reliable message ARRIVED comes before ENDED. Empty: `until_ps` is reached, or (with FOREVER) nothing
        is in flight but what asks for ever for receives that nobody has posted, and what is behind that.
        """
        ...

    @property
    def idle(self) -> bool:
        """Nothing is in flight: without a new post, nothing will ever happen."""
        ...
