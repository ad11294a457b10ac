"""The connection manager, asked directly: requests toward a place where somebody has just stopped listening."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from support.clusters import boxes

from fabrictwin.live.rdma_cm import cm_abi, manager
from fabrictwin.live.rdma_cm.cm_abi import Address, Event, Parameters, PortSpace
from fabrictwin.live.rdma_cm.identifier import CmChannel, Identifier, State
from fabrictwin.live.server import Server

RC = 2
PORT = 18515


class Clock:
    """A clock that tests set."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(server: Server) -> Clock:
    made = Clock()
    server.connections.seconds = made.monotonic
    return made


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(boxes(2), engine="analytic")
    yield made
    made.close()


def channel(server: Server, host: str) -> CmChannel:
    return CmChannel(server.connections, host, 1)


def listening(server: Server) -> Identifier:
    identifier = server.connections.create(channel(server, "host-0"), 7, space=PortSpace.TCP, qp_type=RC)
    server.connections.bind(identifier, Address(bytes(4), PORT))
    server.connections.listen(identifier, 1)
    return identifier


def asking(server: Server) -> Identifier:
    """Return an identifier of host-1 that has asked host-0 for a connection."""
    identifier = server.connections.create(channel(server, "host-1"), 8, space=PortSpace.TCP, qp_type=RC)
    server.connections.resolve(identifier, None, Address(server.world.host("host-0")[0].ipv4, PORT))
    server.connections.resolve_route(identifier)
    server.connections.connect(identifier, Parameters(qp_num=5, valid=1))
    return identifier


def events(identifier: Identifier) -> list[tuple[Event, int]]:
    """Return kind and status of what the program would read."""
    heads = [cm_abi.EVENT_HEAD.unpack_from(record) for _, _, record in identifier.channel.events]
    return [(Event(kind), status) for _, _, kind, status in heads]


REFUSED = (Event.REJECTED, cm_abi.REJECT_NO_SERVICE)


def test_a_place_where_nobody_listened_refuses_at_once(server: Server) -> None:
    asks = asking(server)
    assert events(asks)[-1] == REFUSED
    assert asks.state is State.ROUTE_RESOLVED


def test_a_request_waits_for_who_listens_again(server: Server, clock: Clock) -> None:
    """Between the two connections of perftest's -R the server does not listen."""
    server.connections.destroy(listening(server))
    asks = asking(server)
    clock.now += 0.9
    server.connections.refuse_overdue()
    assert REFUSED not in events(asks)
    listens = listening(server)
    assert [kind for kind, _ in events(listens)] == [Event.CONNECT_REQUEST]
    assert listens.pending == 1
    clock.now += 10
    server.connections.refuse_overdue()
    assert REFUSED not in events(asks)
    asked = listens.channel.events[0][0]
    assert struct.unpack_from("=I", listens.channel.events[0][2], cm_abi.EVENT_HEAD.size) == (5,)
    server.connections.accept(asked, Parameters(qp_num=6, valid=1), 9)
    assert events(asks)[-1] == (Event.CONNECT_RESPONSE, 0)


def test_nobody_who_listens_again_refuses_in_the_end(server: Server, clock: Clock) -> None:
    server.connections.destroy(listening(server))
    asks = asking(server)
    clock.now += manager._LISTENS_AGAIN_S + 0.1
    server.connections.refuse_overdue()
    assert events(asks)[-1] == REFUSED
    late = asking(server)  # and the next one does not wait
    assert events(late)[-1] == REFUSED


@pytest.mark.parametrize("end", ["destroy", "disconnect"])
def test_who_gives_up_is_not_connected_later(server: Server, clock: Clock, end: str) -> None:
    server.connections.destroy(listening(server))
    getattr(server.connections, end)(asking(server))
    assert events(listening(server)) == []


@pytest.mark.parametrize("accepted", [False, True])
def test_only_who_has_accepted_is_told_that_the_other_is_gone(server: Server, accepted: bool) -> None:
    listener = listening(server)
    asks = asking(server)
    assert events(listener) == [(Event.CONNECT_REQUEST, 0)]
    asked = asks.peer
    assert asked is not None
    if accepted:
        server.connections.accept(asked, Parameters(qp_num=6, valid=1), 9)
    server.connections.destroy(asks)
    assert asked.state is State.DISCONNECTED
    assert events(listener)[1:] == ([(Event.DISCONNECTED, 0)] if accepted else [])
