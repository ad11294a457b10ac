"""Messages between adapters, one at a time: what the verbs stand on.

A *flow* is one direction of a connection: from one adapter, and memory behind it, to another. Messages of a flow
stay in order. The engine times them and says what happened to each; it knows nothing of keys or of bytes' values.
The caller's answer to an arrival (a READ's response, an atomic's) is a message on the flow back.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from fabrictwin.base.records import record
from fabrictwin.kernel.codes import EventKind as EventKind


class Service(IntEnum):
    """Transport services of the InfiniBand Architecture, chapter 9, that differ in time."""

    RELIABLE_CONNECTION = 0
    UNRELIABLE_CONNECTION = 1
    UNRELIABLE_DATAGRAM = 2


class Opcode(IntEnum):
    """Kinds of messages: they decide headers, and what a capture shows."""

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
    """Addressing of packets: InfiniBand by LID, or an Ethernet frame of either kind of RoCE."""

    INFINIBAND = 0
    ROCE_V1 = 1
    ROCE_V2 = 2


# AETH syndromes (InfiniBand Architecture 9.7.5.1.1) of NAKs that end a connection
NAK_INVALID_REQUEST = 0x61
NAK_REMOTE_ACCESS = 0x62
NAK_REMOTE_OPERATION = 0x63


@record
class Retries:
    """The requester's timers and counts of retries."""

    timeout: int = 14  # 4.096 us * 2^timeout; 0 is never
    retry_count: int = 7
    rnr_retry: int = 7  # 7: for ever
    rnr_timer_ps: int = 655_360_000_000


@record
class Numbers:
    """Numbers by which the ends know each other, as captures show them."""

    source_qpn: int = 0
    target_qpn: int = 0
    first_psn: int = 0
    partition: int = 0xFFFF
    queue_key: int = 0  # of datagrams


@record
class GlobalAddress:
    """Addresses of the network layer."""

    source_gid: bytes | None = None  # None: what the fabric gives the adapters
    target_gid: bytes | None = None
    gid_type: GidType | None = None  # None: by technology, RoCE v2 on Ethernet
    global_route: bool = False  # InfiniBand: packets carry a GRH (of datagrams the receiver always gets one)
    hop_limit: int = 64
    traffic_class: int = 0
    udp_source_port: int | None = None  # Ethernet; None: from the queue pair numbers


@record(kw_only=True)
class FlowOptions:
    """One direction of a queue pair, as its attributes say."""

    service: Service = Service.RELIABLE_CONNECTION
    mtu_bytes: int | None = None  # None: the fabric's
    service_level: int | None = None  # None: the route's
    rate_bps: int | None = None  # static rate limit
    retries: Retries = Retries()
    numbers: Numbers = Numbers()
    address: GlobalAddress = GlobalAddress()


PLAIN = FlowOptions()

Memories = tuple[int | None, int | None]  # nodes that a flow reads from and writes to
NEAR: Memories = (None, None)  # the processors nearest to its adapters


class Awaited(IntEnum):
    """Events of a message that patient software is to be told of at their instant (`Engine.advance`)."""

    ALL = 0
    END = 1  # and how it fails; not that it began or arrived
    FAILURE = 2


class Posting(NamedTuple):
    """Handing a message from software to its adapter.

    Memories are the fabric nodes that bytes are read from and written to where they are not the flow's own; where
    they change, the flow waits for what went before.
    """

    inline: bool = False  # payload comes with the work request
    chained: bool = False  # the adapter reads the work request from memory, as of several posted at once
    source_memory: int | None = None
    target_memory: int | None = None
    later_ps: int = 0  # software needs so long before it posts; what is posted after it goes after it
    awaited: Awaited = Awaited.ALL


class Contents(NamedTuple):
    """Parts of a message that only captures show."""

    remote_address: int = 0
    remote_key: int = 0
    immediate: int = 0  # of SEND_INVALIDATE the key
    operands: tuple[int, int] = (0, 0)  # of atomics: swap or add, compare; of the response what was there
    payload: memoryview | None = None


WITH_DOORBELL = Posting()
NO_CONTENTS = Contents()


class Message(NamedTuple):
    """A message to be sent on a flow.

    Of a request (READ, atomics) `size_bytes` is what is asked for: headers alone travel. It ends when the first
    packet of its response is there. A response is a message on the flow back; it `answers` a request, None the
    oldest one (flows that belong together have each other's queue pair numbers). Responses are a stream of their
    own beside the sender's requests; nobody acknowledges them, and they have no ENDED.
    """

    size_bytes: int
    opcode: Opcode
    takes_receive: bool = False
    answers: int | None = None
    posting: Posting = WITH_DOORBELL
    contents: Contents = NO_CONTENTS
    ended: bool = True  # the caller wants ENDED
    begun: bool = (
        False  # ... and BEGUN: the first packet waits at the receiving adapter for the next `advance`, so
    )
    # that `refuse` comes in time; it costs one more event, so ask for it where a refusal is likely
