"""Who listens where, and how two identifiers come to be connected, and apart."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator

from fabrictwin.live.context import refuse
from fabrictwin.live.rdma_cm import cm_abi
from fabrictwin.live.rdma_cm.cm_abi import Address, Event, Parameters
from fabrictwin.live.rdma_cm.identifier import CmChannel, Identifier, State
from fabrictwin.live.uverbs.queue_pairs import pack_address
from fabrictwin.verbs.adapter.adapter import Adapter
from fabrictwin.verbs.adapter.work_requests import AddressVector
from fabrictwin.verbs.adapter.world import World

_EPHEMERAL = range(32768, 61000)  # net.ipv4.ip_local_port_range
_MOST_IDENTIFIERS = 65536
_HOPS = 64  # ip_ttl that RoCE's connections get
_LISTENS_AGAIN_S = 3.0

_Place = tuple[str, int, int]  # host, port space, port


class ConnectionManager:
    """Identifiers of all hosts of a twin."""

    def __init__(self, world: World, seconds: Callable[[], float] = time.monotonic) -> None:
        self.world = world
        self.seconds = seconds  # by the clock that programs see
        self.channels: set[CmChannel] = set()
        self._numbers = 0
        self._taken: dict[_Place, list[Identifier]] = {}
        self._listened: dict[_Place, float] = {}  # until when somebody who has stopped listening may do so again
        self._held: dict[Identifier, Parameters] = {}  # requests that wait for that

    # ------------------------------------------------------------------ identifiers

    def create(self, channel: CmChannel, uid: int, *, space: int, qp_type: int) -> Identifier:
        if len(channel.identifiers) >= _MOST_IDENTIFIERS:
            raise refuse(errno.ENOMEM)
        self._numbers += 1
        made = Identifier(self._numbers, uid, channel, space=space, qp_type=qp_type)
        channel.identifiers[made.number] = made
        return made

    def destroy(self, identifier: Identifier) -> None:
        """Forget an identifier; one that is connected is disconnected first."""
        channel = identifier.channel
        self._held.pop(identifier, None)
        if identifier.listener is not None and identifier.state is State.CONNECTING:
            self.reject(identifier, b"")
        elif identifier.state in (State.CONNECTED, State.CONNECTING):
            self._part(identifier)
        channel.identifiers.pop(identifier.number, None)
        channel.drop_events(identifier)
        self._unbind(identifier)
        for number in [n for n, each in channel.identifiers.items() if each.listener is identifier]:
            waiting = channel.identifiers[number]
            if waiting.state is State.CONNECTING and not waiting.seen:
                self.destroy(waiting)  # a request that the program never saw

    # ------------------------------------------------------------------ addresses

    def by_ip(self, ip: bytes) -> Adapter | None:
        return next((adapter for adapter in self.world.adapters if adapter.ipv4 == ip), None)

    def bind(self, identifier: Identifier, address: Address) -> None:
        """Give an identifier its address. Raises Refused."""
        host = identifier.channel.host
        adapter = None
        if address.loopback:
            adapter = self.world.host(host)[0]
            address = Address(adapter.ipv4, address.port)
        elif not address.is_any:
            adapter = self.by_ip(address.ip)
            if adapter is None or adapter.host_name != host:
                raise refuse(errno.EADDRNOTAVAIL)
        port = address.port or self._free_port(host, identifier.space)
        for other in self._taken.get((host, identifier.space, port), ()):
            apart = not (other.source.is_any or address.is_any) and other.source.ip != address.ip
            listening = State.LISTENING in (other.state, identifier.state)
            if not apart and not (other.reuse and identifier.reuse and not listening):
                raise refuse(errno.EADDRINUSE)
        identifier.source = Address(address.ip, port)
        identifier.adapter = adapter
        identifier.state = State.BOUND
        self._taken.setdefault((host, identifier.space, port), []).append(identifier)

    def _free_port(self, host: str, space: int) -> int:
        for port in _EPHEMERAL:
            if (host, space, port) not in self._taken:
                return port
        raise refuse(errno.EADDRNOTAVAIL)

    def _unbind(self, identifier: Identifier) -> None:
        key = (identifier.channel.host, identifier.space, identifier.source.port)
        holders = self._taken.get(key, [])
        if identifier in holders:
            holders.remove(identifier)
            if identifier.state is State.LISTENING:
                self._listened[key] = self.seconds() + _LISTENS_AGAIN_S
            if not holders:
                del self._taken[key]

    def resolve(self, identifier: Identifier, source: Address | None, target: Address) -> None:
        """Find the adapter toward an address; ADDR_RESOLVED or ADDR_ERROR says how it went. Raises Refused."""
        if identifier.state is State.IDLE:
            self.bind(identifier, source or Address())
        if identifier.state is not State.BOUND:
            raise refuse(errno.EINVAL)
        host, channel = identifier.channel.host, identifier.channel
        own = self.world.host(host)
        if target.loopback:
            target = Address(own[0].ipv4, target.port)
        far = None if target.multicast else self.by_ip(target.ip)
        near = identifier.adapter
        if near is None and target.multicast:
            near = next((adapter for adapter in own if adapter.active), None)
        elif near is None and far is not None:
            near = next((a for a in own if a.plane == far.plane and a.active), None) if far not in own else far
        if near is None or (far is None and not target.multicast) or (far is not None and far.plane != near.plane):
            channel.tell(identifier, Event.ADDR_ERROR, status=-errno.EHOSTUNREACH)
            return
        identifier.adapter, identifier.far, identifier.target = near, far, target
        identifier.source = Address(near.ipv4, identifier.source.port)
        identifier.state = State.ADDRESS_RESOLVED
        channel.tell(identifier, Event.ADDR_RESOLVED)

    def resolve_route(self, identifier: Identifier) -> None:
        if identifier.state is not State.ADDRESS_RESOLVED:
            raise refuse(errno.EINVAL)
        far = identifier.far
        if far is not None and not far.active:
            identifier.channel.tell(identifier, Event.ROUTE_ERROR, status=-errno.EHOSTUNREACH)
            return
        identifier.state = State.ROUTE_RESOLVED
        identifier.channel.tell(identifier, Event.ROUTE_RESOLVED)

    def vector(self, identifier: Identifier) -> AddressVector:
        """The address vector toward the other side. Raises Refused where there is none."""
        near, far = identifier.adapter, identifier.far
        if near is None or far is None:
            raise refuse(errno.EINVAL)
        index = near.gid_index(near.roce_mode)
        return AddressVector(
            dlid=far.lid,
            is_global=near.ethernet,
            dgid=far.gids[far.gid_index(near.roce_mode)].raw,
            sgid_index=index,
            hop_limit=_HOPS if near.ethernet else 1,
            traffic_class=identifier.traffic_class if near.ethernet else 0,
        )

    # ------------------------------------------------------------------ connections

    def listen(self, identifier: Identifier, backlog: int) -> None:
        if identifier.state is State.IDLE:
            self.bind(identifier, Address())
        if identifier.state is not State.BOUND:
            raise refuse(errno.EINVAL)
        identifier.state = State.LISTENING
        identifier.backlog = backlog if backlog > 0 else 1024
        for asks in [asks for asks in self._held if self._listener(asks) is identifier]:
            self._request(asks, identifier, self._held.pop(asks))

    @staticmethod
    def _asked_place(asks: Identifier) -> _Place:
        assert asks.far is not None
        return asks.far.host_name, asks.space, asks.target.port

    def _listener(self, asks: Identifier) -> Identifier | None:
        taken = self._taken.get(self._asked_place(asks), ())
        listening = [each for each in taken if each.state is State.LISTENING]
        exact = [each for each in listening if each.source.ip == asks.target.ip]
        return next(iter(exact + [each for each in listening if each.source.is_any]), None)

    def connect(self, identifier: Identifier, parameters: Parameters) -> None:
        """Ask for a connection; of datagrams, for the other side's queue pair. Raises Refused."""
        if identifier.state is not State.ROUTE_RESOLVED or identifier.far is None:
            raise refuse(errno.EINVAL)
        identifier.own, identifier.active, identifier.state = parameters, True, State.CONNECTING
        identifier.retries, identifier.rnr_retries = parameters.retry_count & 7, parameters.rnr_retry_count & 7
        listener = self._listener(identifier)
        if listener is not None:
            self._request(identifier, listener, parameters)
        elif self._listened.get(self._asked_place(identifier), 0.0) > self.seconds():
            self._held[identifier] = parameters
        else:
            self._refused(identifier, cm_abi.REJECT_NO_SERVICE, b"")

    def overdue_from_s(self) -> float | None:
        """Return when the first of the requests that are held is refused; None: none is held."""
        return min((self._listened.get(self._asked_place(asks), 0.0) for asks in self._held), default=None)

    def refuse_overdue(self) -> None:
        """Refuse the requests that were held for somebody who listens again, where nobody did in time.

        Programs that connect twice (perftest's -R) stop listening in between. On hardware the other side then
        resolves the address and asks the subnet manager for the path, for which the server is ready in time; here
        both are answered at once, and a server that waits for a core would be late.
        """
        if not self._listened:
            return
        now = self.seconds()
        for asks in [asks for asks in self._held if self._listened.get(self._asked_place(asks), 0.0) <= now]:
            del self._held[asks]
            self._refused(asks, cm_abi.REJECT_NO_SERVICE, b"")
        if not self._held:
            self._listened = {place: until for place, until in self._listened.items() if until > now}

    def _request(self, identifier: Identifier, listener: Identifier, parameters: Parameters) -> None:
        """Bring a request to who listens."""
        if listener.pending >= listener.backlog:
            identifier.state = State.ROUTE_RESOLVED
            identifier.channel.tell(identifier, Event.UNREACHABLE, status=-errno.ETIMEDOUT)
            return
        asked = self.create(listener.channel, listener.uid, space=identifier.space, qp_type=identifier.qp_type)
        asked.listener, asked.peer, identifier.peer = listener, identifier, asked
        asked.adapter, asked.far = identifier.far, identifier.adapter
        asked.source, asked.target = identifier.target, identifier.source
        asked.state, asked.fresh = State.CONNECTING, True
        seen = parameters.seen_from_peer()
        asked.responder_resources, asked.initiator_depth = seen.responder_resources, seen.initiator_depth
        asked.retries, asked.rnr_retries = identifier.retries, identifier.rnr_retries
        listener.pending += 1
        parameter = seen.pack()
        if identifier.datagrams:
            parameter = self._datagram(asked, 0, 0, parameters.private_data)
        told = listener.channel.tell(
            asked, Event.CONNECT_REQUEST, uid=listener.uid, parameter=parameter, counted_on=listener
        )
        if not told:
            self.destroy(asked)

    def _datagram(self, identifier: Identifier, number: int, qkey: int, private: bytes) -> bytes:
        record = pack_address(self.vector(identifier))
        return cm_abi.DATAGRAM.pack(number, qkey, record, private[: cm_abi.PRIVATE_BYTES], min(len(private), 255))

    def accept(self, identifier: Identifier, parameters: Parameters, uid: int) -> None:
        """The passive side agrees; or the active side has its queue pair ready. Raises Refused."""
        peer = identifier.peer
        if identifier.state is not State.CONNECTING or peer is None:
            raise refuse(errno.EINVAL)
        if identifier.active:
            identifier.state = peer.state = State.CONNECTED
            peer.channel.tell(peer, Event.ESTABLISHED, parameter=Parameters().pack())
            return
        if parameters.valid:
            identifier.uid, identifier.fresh = uid, False
            identifier.own = parameters
        self._taken_up(identifier)
        if identifier.datagrams:
            identifier.state = peer.state = State.CONNECTED
            parameter = self._datagram(
                peer, parameters.qp_num, parameters.qkey or cm_abi.UDP_QKEY, parameters.private_data
            )
            peer.channel.tell(peer, Event.ESTABLISHED, parameter=parameter)
            return
        if parameters.valid:
            identifier.responder_resources = parameters.responder_resources
            identifier.initiator_depth = parameters.initiator_depth
        seen = parameters.seen_from_peer()
        peer.responder_resources, peer.initiator_depth = seen.responder_resources, seen.initiator_depth
        peer.rnr_retries = peer.own.rnr_retry_count & 7
        identifier.rnr_retries = parameters.rnr_retry_count & 7 if parameters.valid else identifier.rnr_retries
        peer.channel.tell(peer, Event.CONNECT_RESPONSE, parameter=seen.pack())

    @staticmethod
    def _taken_up(identifier: Identifier) -> None:
        if identifier.listener is not None:
            identifier.listener.pending -= 1
            identifier.listener = None

    def reject(self, identifier: Identifier, private: bytes) -> None:
        peer = identifier.peer
        self._taken_up(identifier)
        identifier.state, identifier.peer = State.DISCONNECTED, None
        if peer is not None and peer.peer is identifier:
            self._refused(peer, cm_abi.REJECT_CONSUMER, private)

    @staticmethod
    def _refused(identifier: Identifier, reason: int, private: bytes) -> None:
        identifier.state, identifier.peer = State.ROUTE_RESOLVED, None
        parameter = Parameters(private_data=private).pack()
        identifier.channel.tell(identifier, Event.REJECTED, status=reason, parameter=parameter)

    def disconnect(self, identifier: Identifier) -> None:
        """Both sides are told. Raises Refused where there is no connection."""
        if identifier.state is State.DISCONNECTED:
            return
        if identifier.state is not State.CONNECTED and identifier.state is not State.CONNECTING:
            raise refuse(errno.EINVAL)
        self._held.pop(identifier, None)
        self._part(identifier)
        identifier.channel.tell(identifier, Event.DISCONNECTED)

    @staticmethod
    def _part(identifier: Identifier) -> None:
        peer, identifier.peer = identifier.peer, None
        identifier.state = State.DISCONNECTED
        if peer is not None and peer.peer is identifier and not identifier.datagrams:
            peer.peer, peer.state = None, State.DISCONNECTED
            peer.channel.tell(peer, Event.DISCONNECTED)

    def listening(self) -> Iterator[str]:
        """Places where identifiers listen: host and port."""
        for (host, _, port), holders in self._taken.items():
            if any(each.state is State.LISTENING for each in holders):
                yield f"{host}:{port}"
