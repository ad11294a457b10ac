"""Identifiers of the connection manager (`rdma_cm_id`), and the opened devices that they belong to."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from fabrictwin.live.event_pipe import EventPipe
from fabrictwin.live.rdma_cm import cm_abi
from fabrictwin.live.rdma_cm.cm_abi import Address, Event, Parameters

if TYPE_CHECKING:
    from fabrictwin.verbs.adapter.adapter import Adapter
    from fabrictwin.verbs.adapter.work_requests import AddressVector

QUEUED_EVENTS = 4096  # of a program that does not read them; a request beyond is lost


class State(Enum):
    """Of an identifier (enum rdma_cm_state)."""

    IDLE = auto()
    BOUND = auto()
    ADDRESS_RESOLVED = auto()
    ROUTE_RESOLVED = auto()
    LISTENING = auto()
    CONNECTING = auto()
    CONNECTED = auto()
    DISCONNECTED = auto()


class Identifier:
    """One `rdma_cm_id`."""

    def __init__(self, number: int, uid: int, channel: CmChannel, *, space: int, qp_type: int) -> None:
        self.number = number
        self.uid = uid
        self.channel = channel
        self.space = space
        self.qp_type = qp_type
        self.state = State.IDLE
        self.source = Address()
        self.target = Address()
        self.adapter: Adapter | None = None
        self.far: Adapter | None = None  # the adapter of the other side
        self.peer: Identifier | None = None
        self.active = False  # this side has asked for the connection
        self.backlog = 0
        self.pending = 0  # requests that nobody has accepted or rejected
        self.listener: Identifier | None = None
        self.fresh = False  # a request that the program has not accepted: it has no number of the program's yet
        self.reuse = False
        self.traffic_class = 0
        self.ack_timeout = 0
        self.own = Parameters()  # as this side gave them
        self.responder_resources = self.initiator_depth = 0  # as agreed
        self.retries = self.rnr_retries = 7
        self.first_psn = (number * 0x9E3779B1) & 0xFFFFFF
        self.groups: dict[int, bytes] = {}  # multicast GIDs that were joined, by the join's number
        self.events_read = 0
        self.seen = False  # the program has read an event about it

    @property
    def datagrams(self) -> bool:
        return self.space in (cm_abi.PortSpace.UDP, cm_abi.PortSpace.IPOIB)


class Manager(Protocol):
    """The connection manager, as channels and the commands on them need it."""

    channels: set[CmChannel]

    def create(self, channel: CmChannel, uid: int, *, space: int, qp_type: int) -> Identifier: ...

    def destroy(self, identifier: Identifier) -> None: ...

    def bind(self, identifier: Identifier, address: Address) -> None: ...

    def resolve(self, identifier: Identifier, source: Address | None, target: Address) -> None: ...

    def resolve_route(self, identifier: Identifier) -> None: ...

    def vector(self, identifier: Identifier) -> AddressVector: ...

    def listen(self, identifier: Identifier, backlog: int) -> None: ...

    def connect(self, identifier: Identifier, parameters: Parameters) -> None: ...

    def accept(self, identifier: Identifier, parameters: Parameters, uid: int) -> None: ...

    def reject(self, identifier: Identifier, private: bytes) -> None: ...

    def disconnect(self, identifier: Identifier) -> None: ...


class CmChannel:
    """An opened /dev/infiniband/rdma_cm: identifiers, and events in the order in which they came."""

    def __init__(self, manager: Manager, host: str, pid: int) -> None:
        self.manager = manager
        self.host = host
        self.pid = pid
        self.pipe = EventPipe(1)
        self.descriptor = -1  # its number in the client
        self.identifiers: dict[int, Identifier] = {}
        self.events: deque[tuple[Identifier, Identifier, bytes]] = deque()  # (about, counted on, record)

    def name_descriptor(self, number: int) -> None:
        self.descriptor = number

    def tell(
        self,
        about: Identifier,
        event: Event,
        *,
        status: int = 0,
        parameter: bytes = b"",
        uid: int | None = None,
        counted_on: Identifier | None = None,
    ) -> bool:
        """Queue an event. False: there are too many already, and it is lost.

        Events are counted on the identifier that they are about, requests on the one that listens. As in Linux
        nothing is told of a new connection before it is accepted (ucma_event_handler() in its ucma.c).
        """
        if about.fresh and event is not Event.CONNECT_REQUEST:
            return True
        if len(self.events) >= QUEUED_EVENTS:
            return False
        uid = about.uid if uid is None else uid
        head = cm_abi.EVENT_HEAD.pack(uid, about.number, event, status & 0xFFFFFFFF)
        body = parameter.ljust(cm_abi.EVENT_PARAMETER_BYTES, b"\0")
        self.events.append((about, counted_on or about, head + body + cm_abi.EVENT_TAIL))
        self.pipe.write(b"e", None)
        return True

    def drop_events(self, about: Identifier) -> None:
        """An identifier is destroyed: what was not read of it is taken back."""
        kept = [each for each in self.events if each[0] is not about]
        surplus = len(self.events) - len(kept)
        self.events = deque(kept)
        if surplus:
            self.pipe.end(None)
            for _ in kept:
                self.pipe.write(b"e", None)

    def close(self) -> None:
        """The client is gone, or has closed the device."""
        for identifier in list(self.identifiers.values()):
            self.manager.destroy(identifier)
        self.pipe.close()
