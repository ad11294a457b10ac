"""Steps of a table's transfer, the time of a batch of datagrams, and datagrams that lead nowhere.

IBTA volume 1, 13.6 (RMPP), 14.2.2 (directed routes); round trips are added up by hand.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from support.sm_fabrics import Site, two_tiers

from fabrictwin.subnet.agents.mad_routing import LONGEST_ROUTE, Fate, Frame, Outcome
from fabrictwin.subnet.manager.mad_transport import HERE, MadTiming, Path, TwinTransport, get, put
from fabrictwin.subnet.wire import rmpp
from fabrictwin.subnet.wire.header import DirectedSmp, LidSmp, MadClass, Method, SaMad
from fabrictwin.subnet.wire.smp import AttributeId, PortState

PARTS = rmpp.segments(SaMad(method=Method.GET_TABLE_RESP, tid=7, attribute=0x11), bytes(200 * 40 + 9))


def ack(got: int, upto: int, kind: int = rmpp.Kind.ACK, **more: int) -> SaMad:
    return SaMad(
        method=Method.GET_TABLE, tid=7, rmpp_flags=1, rmpp_type=kind, rmpp_data1=got, rmpp_data2=upto, **more
    )


def numbers(mads: list[SaMad]) -> list[int]:
    return [mad.rmpp_data1 for mad in mads]


def test_a_sender_goes_as_far_as_it_was_asked_to():
    sender = rmpp.Sender(PARTS, retries=2, timeout_ps=100)
    assert numbers(sender.start(10)) == [1]
    assert sender.receive(ack(2, 9), 20) == []  # of more than was sent
    assert sender.receive(ack(1, 0), 20) == []  # a window that ends before it begins
    assert sender.receive(ack(0, 3, kind=rmpp.Kind.DATA), 20) == []
    assert numbers(sender.receive(ack(1, 4), 20)) == [2, 3, 4]
    assert numbers(sender.receive(ack(1, 4), 25)) == []  # the same again
    assert numbers(sender.receive(ack(3, 3), 30)) == []
    assert numbers(sender.receive(ack(3, 6), 40)) == [5, 6]
    assert numbers(sender.receive(ack(2, 5), 50)) == []  # an old one, late: neither end goes back
    assert numbers(sender.poll(149)) == []
    assert numbers(sender.poll(150)) == [4, 5, 6]
    assert numbers(sender.poll(249)) == []
    assert numbers(sender.poll(250)) == [4, 5, 6]
    assert numbers(sender.receive(ack(6, 99), 260)) == list(range(7, 42))  # tries begin anew
    assert numbers(sender.poll(360)) == list(range(7, 42))
    assert numbers(sender.poll(460)) == list(range(7, 42))
    assert (sender.done, sender.failed) == (False, None)
    assert sender.poll(560) == []
    assert (sender.done, sender.failed) == (True, rmpp.Reason.TOO_MANY_RETRIES)
    assert sender.receive(ack(41, 99), 570) == []
    assert sender.poll(9999) == []
    other = rmpp.Sender(PARTS[:2])
    other.start(0)
    other.receive(ack(1, 2), 0)
    assert other.receive(ack(2, 2), 0) == []
    assert (other.done, other.failed) == (True, None)
    for kind in (rmpp.Kind.STOP, rmpp.Kind.ABORT):
        other = rmpp.Sender(PARTS[:2])
        other.start(0)
        assert other.receive(ack(0, 0, kind), 0) == []
        assert (other.done, other.failed) == (True, rmpp.Reason.RESOURCES)


@pytest.mark.parametrize("window", [1, 2, 6, 16])
def test_a_receiver_acknowledges_the_first_each_half_window_and_the_last(window):
    receiver = rmpp.Receiver(window=window)
    acked = []
    for part in PARTS:
        for answer in receiver.receive(SaMad.decode(part.encode())):
            acked.append(answer.rmpp_data1)
            assert (answer.rmpp_type, answer.rmpp_flags, answer.rmpp_status) == (rmpp.Kind.ACK, 1, 0)
            assert (answer.rmpp_data2, answer.method) == (answer.rmpp_data1 + window, Method.GET_TABLE)
            assert (answer.rmpp_version, answer.data) == (1, bytes(200))
    half = max(window // 2, 1)
    assert acked == sorted({1, 41, *range(half, 42, half)})
    assert (receiver.done, receiver.failed, receiver.table) == (True, None, bytes(8009))
    assert receiver.head.rmpp_data1 == 1
    again = receiver.receive(SaMad.decode(PARTS[40].encode()))
    assert numbers(again) == [41]  # the last acknowledgement was lost
    assert receiver.receive(ack(1, 2)) == []


def part(number: int, flags: int, length: int = 0, **more: int) -> SaMad:
    kind = more.pop("kind", rmpp.Kind.DATA)
    return SaMad(
        method=Method.GET_TABLE_RESP, rmpp_flags=flags, rmpp_type=kind, rmpp_data1=number, rmpp_data2=length,
        data=bytes([number]) * 200, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mads", "answer", "failed"),
    [
        ([part(1, 1)], (rmpp.Kind.ABORT, 0, 120), 120), ([part(2, 3)], (rmpp.Kind.ABORT, 0, 120), 120),
        ([part(1, 3), part(3, 1)], (rmpp.Kind.ACK, 1, 0), None),
        ([part(1, 3), part(1, 3)], (rmpp.Kind.ACK, 1, 0), None),
        ([part(1, 7, 19)], (rmpp.Kind.ABORT, 0, 119), 119), ([part(1, 7, 221)], (rmpp.Kind.ABORT, 0, 119), 119),
        ([part(1, 7, 20)], (rmpp.Kind.ACK, 1, 0), None), ([part(1, 7, 220)], (rmpp.Kind.ACK, 1, 0), None),
        ([part(1, 3), part(2, 5, 23)], (rmpp.Kind.ACK, 2, 0), None),
        ([part(1, 3, kind=rmpp.Kind.ACK)], (rmpp.Kind.ABORT, 0, 121), 121),
        ([part(1, 3, kind=9)], (rmpp.Kind.ABORT, 0, 121), 121),
        ([part(1, 3, kind=rmpp.Kind.STOP, rmpp_status=118)], None, 118),
        ([part(1, 3, kind=rmpp.Kind.ABORT, rmpp_status=119)], None, 1),
        ([part(1, 2)], None, None), ([part(1, 3, kind=rmpp.Kind.NONE)], None, None),
    ],
)  # fmt: skip
def test_a_receiver_takes_segments_in_order_and_lengths_that_fit(mads, answer, failed):
    receiver = rmpp.Receiver()
    for mad in mads[:-1]:
        receiver.receive(mad)
    said = receiver.receive(mads[-1])
    assert [(mad.rmpp_type, mad.rmpp_data1, mad.rmpp_status) for mad in said] == ([answer] if answer else [])
    assert receiver.failed == failed
    if failed is not None:
        assert receiver.done
        assert receiver.receive(part(1, 3)) == []


def test_a_table_larger_than_any_is_given_up(monkeypatch):
    monkeypatch.setattr(rmpp, "LARGEST_TABLE_BYTES", 400)
    receiver = rmpp.Receiver()
    assert numbers(receiver.receive(part(1, 3))) == [1]
    assert receiver.receive(part(2, 1)) == []
    (abort,) = receiver.receive(part(3, 1))
    assert (abort.rmpp_type, abort.rmpp_status, receiver.failed) == (rmpp.Kind.ABORT, 123, 123)


# ---------------------------------------------------------------------- batches of datagrams


@pytest.fixture
def site():
    """host-0 and host-1 on leaf-0, host-2 and host-3 on leaf-1, a spine; host-0 manages."""
    return Site(two_tiers(2, 1, 2))


def way(*ports: int) -> Path:
    path = HERE
    for port in ports:
        path = path.beyond(port)
    return path


# of one switch, another, a spine and a host; from the port of host-0
WAYS = [HERE, way(1), way(1, 3), way(1, 3, 2), way(1, 3, 2, 1)]
AGENT, HOP, TIMEOUT = 1009, 103, 1_000_003


@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_batch_takes_its_round_trips_over_the_window(site, window):
    timing = MadTiming(AGENT, HOP, window, TIMEOUT, 3)
    transport = TwinTransport(site.endpoint.network, site.hosted.transport.slot, timing=timing, now_ps=50)
    seen = []
    transport.passing = seen.append
    answers = transport.exchange([get(path, AttributeId.NODE_INFO) for path in WAYS])
    assert [status for status, _ in answers] == [0] * 5
    took = [AGENT + 2 * HOP * hops for hops in range(5)]
    shared = list(itertools.accumulate(took))
    back = [50 + shared[i] // window + took[i] - took[i] // window for i in range(5)]
    assert list(transport.answered_ps()) == back
    assert seen == [at - HOP * hops for hops, at in enumerate(back)]
    assert transport.now_ps == 50 + sum(took) // window + max(took) - max(took) // window
    assert (transport.statistics.requests, transport.statistics.repeated) == (5, 0)
    assert transport.statistics.by_attribute == {(1, 0x11): 5}
    transport.exchange([put(way(1), AttributeId.PORT_INFO, b"", 99)])
    assert transport.statistics.by_attribute == {(1, 0x11): 5, (2, 0x15): 1}


@pytest.mark.parametrize(
    ("status", "told"), [(0, 0), (0x1C, 0x1C), (0x0304, 0x0304), (0xFFFF, 0x7FFF), (0x8000, 0)]
)
def test_a_status_is_fifteen_bits_behind_the_direction(site, status, told):
    transport = site.hosted.transport
    mad = bytes(4) + status.to_bytes(2, "big") + bytes(58) + bytes(range(64)) + bytes(128)
    site.endpoint.network.send = lambda slot, frame, now: Outcome(Fate.ANSWERED, slot, replace(frame, mad=mad))
    assert transport.exchange([get(way(1), AttributeId.NODE_INFO)]) == [(told, bytes(range(64)))]


@pytest.mark.parametrize("retries", [0, 2])
def test_what_stays_unanswered_costs_a_timeout_each_time(site, retries):
    timing = MadTiming(AGENT, HOP, 1, TIMEOUT, retries)
    transport = TwinTransport(site.endpoint.network, site.hosted.transport.slot, timing=timing)
    site.state.silent.add(site.state.find("spine-0"))
    answers = transport.exchange([get(path, AttributeId.NODE_INFO) for path in (way(1), way(1, 3), way(1, 4))])
    assert answers[0] is not None
    assert answers[1:] == [None, None]
    one, two = AGENT + 2 * HOP, AGENT + 4 * HOP
    rounds = one + 2 * two + TIMEOUT + retries * (2 * two + TIMEOUT)
    assert transport.now_ps == rounds
    counted = transport.statistics
    assert (counted.requests, counted.repeated, counted.unanswered) == (3 + 2 * retries, 2 * retries, 2)
    assert transport.answered_ps()[1:] == [0, 0]


@pytest.mark.parametrize(("loss", "answered"), [(0.0, 40), (1.0, 0), (0.5, 40)])
def test_losses_are_drawn_and_repeated(site, loss, answered):
    timing = MadTiming(AGENT, HOP, 1, TIMEOUT, 20)
    slot = site.hosted.transport.slot
    transport = TwinTransport(site.endpoint.network, slot, timing=timing, loss=loss, seed=3)
    before = site.endpoint.network.datagrams
    answers = transport.exchange([get(way(1), AttributeId.NODE_INFO)] * 40)
    assert sum(answer is not None for answer in answers) == answered
    assert site.endpoint.network.datagrams - before == answered
    assert transport.statistics.requests == 40 + transport.statistics.repeated
    if loss == 0.5:
        assert 20 <= transport.statistics.repeated <= 70  # a geometric mean of one more each
    else:
        assert transport.statistics.repeated == (0 if loss == 0 else 800)


def asking(kind: int, method: int = Method.GET, attribute: int = AttributeId.NODE_INFO, tid: int = 5) -> bytes:
    mad = bytearray(LidSmp(method=method, attribute=attribute, tid=tid).encode())
    mad[1] = kind
    return bytes(mad)


def test_general_services_are_asked_until_they_answer(site):
    slot, m = site.hosted.transport.slot, site.state.find("host-3/mlx5_0")
    transport = TwinTransport(site.endpoint.network, slot, timing=MadTiming(AGENT, HOP, 1, TIMEOUT, 2))
    passed = []
    transport.passing = passed.append
    lid = site.state.lid(site.state.end_slot(m))
    answer = transport.ask(lid, asking(MadClass.PERF, attribute=1))
    assert (answer[3], int.from_bytes(answer[8:16], "big")) == (0x81, 1)
    assert transport.now_ps == AGENT + 8 * HOP
    assert passed == [transport.now_ps]
    assert transport.ask(0xBFFF, asking(MadClass.PERF, attribute=1)) is None
    assert transport.now_ps == AGENT + 8 * HOP + 3 * (AGENT + TIMEOUT)
    counted = transport.statistics
    assert (counted.requests, counted.repeated, counted.unanswered) == (4, 2, 1)


# ---------------------------------------------------------------------- datagrams by LID


def test_what_becomes_of_a_datagram_by_lid(site):
    state, network = site.state, site.endpoint.network
    ends = {
        name: state.end_slot(state.find(f"{name}/mlx5_0")) for name in ("host-0", "host-1", "host-2", "host-3")
    }
    leaf, spine = state.find("leaf-1"), state.find("spine-0")
    manager, own, other = ends["host-0"], state.lid(ends["host-1"]), state.lid(ends["host-3"])

    def fate(mad: bytes, lid: int = other, source: int = ends["host-1"], slid: int = 0):
        outcome = network.send(source, Frame(lid, slid, 1, 1, mad), 0)
        return outcome.fate, outcome.hops

    perf = asking(MadClass.PERF, attribute=1)
    assert fate(perf) == (Fate.ANSWERED, 8)
    assert fate(perf, own) == (Fate.ANSWERED, 0)
    assert fate(perf, state.lid(state.end_slot(spine))) == (Fate.ANSWERED, 4)
    assert fate(asking(MadClass.SUBN_LID)) == (Fate.ANSWERED, 8)
    assert fate(asking(MadClass.VENDOR, attribute=0x17)) == (Fate.ANSWERED, 8)
    assert fate(asking(MadClass.CONGESTION, attribute=1))[0] == Fate.ANSWERED
    assert fate(asking(0x06)) == (Fate.UNROUTABLE, 0)  # no such agent
    for lid in (0, 0xC000, 0xFFFF, 0xBFFF, 77):
        assert fate(perf, lid) == (Fate.UNROUTABLE, 0)
    # what is for software goes to who listens there; answers and reports go to any end
    info = asking(MadClass.SUBN_LID, attribute=AttributeId.SM_INFO)
    assert fate(info, state.lid(manager)) == (Fate.FORWARDED, 2)
    assert fate(info) == (Fate.UNROUTABLE, 0)
    assert fate(asking(MadClass.SUBN_ADM), state.lid(manager)) == (Fate.FORWARDED, 2)
    assert fate(asking(MadClass.SUBN_ADM)) == (Fate.UNROUTABLE, 0)
    assert fate(asking(MadClass.SUBN_LID, Method.TRAP), state.lid(manager)) == (Fate.FORWARDED, 2)
    assert fate(asking(MadClass.SUBN_LID, Method.TRAP)) == (Fate.UNROUTABLE, 0)
    assert fate(asking(MadClass.SUBN_ADM, Method.REPORT)) == (Fate.FORWARDED, 4)
    assert fate(asking(MadClass.PERF, 0x81)) == (Fate.FORWARDED, 4)
    # the way back is as much needed as the way there
    assert fate(perf, slid=other) == (Fate.UNROUTABLE, 0)
    back = state.lft[state.row[leaf], own]
    state.lft[state.row[leaf], own] = 255
    assert fate(perf) == (Fate.UNROUTABLE, 0)
    state.lft[state.row[leaf], own] = back
    state.silent.add(state.find("host-3/mlx5_0"))
    assert fate(perf) == (Fate.UNROUTABLE, 0)
    state.silent.clear()
    state.alive[state.find("host-3/mlx5_0")] = False
    assert fate(perf) == (Fate.UNROUTABLE, 0)
    state.alive[state.find("host-3/mlx5_0")] = True
    assert fate(perf) == (Fate.ANSWERED, 8)
    # neither an adapter nor a circle of tables leads on, nor a switch that is off, nor a link that is not active
    there = state.lft[state.row[leaf], other]
    state.lft[state.row[leaf], other] = 1
    assert network.route(ends["host-1"], other) == (-1, 4)
    state.lft[state.row[leaf], other] = 3
    assert network.route(ends["host-1"], other) == (-1, LONGEST_ROUTE)
    state.lft[state.row[leaf], other] = there
    state.alive[leaf] = False
    assert network.route(ends["host-1"], other) == (-1, 3)
    state.alive[leaf] = True
    assert network.route(ends["host-1"], other) == (ends["host-3"], 4)
    for slot in (state.base[leaf] + 2, ends["host-3"]):
        held = state.get(slot)
        state.put(slot, replace(_port(held), port_state=PortState.ARMED))
        assert network.route(ends["host-1"], other) == (-1, 3)
        state.put(slot, _port(held))


def _port(data: bytes):
    from fabrictwin.subnet.wire.smp import PortInfo

    return PortInfo.decode(data)


def test_packets_by_lid_count_at_both_ends_of_each_link(site):
    state, network = site.state, site.endpoint.network
    a, b = (state.end_slot(state.find(f"host-{n}/mlx5_0")) for n in (1, 3))
    before = {name: state.counters[name].copy() for name in state.counters}
    assert network.route(a, state.lid(b)) == (b, 4)
    changed = {name: np.flatnonzero(state.counters[name] != before[name]).tolist() for name in state.counters}
    out = [a, site.slot("leaf-0", 3), site.slot("spine-0", 2), site.slot("leaf-1", 2)]
    into = sorted(state.link[slot] for slot in out)
    words = (8 + 12 + 8 + 256 + 4) // 4
    for way, slots in (("xmit", sorted(out)), ("rcv", into)):
        assert changed[f"{way}_packets"] == changed[f"{way}_data"] == slots
        for slot in slots:
            assert state.counters[f"{way}_packets"][slot] - before[f"{way}_packets"][slot] == 1
            assert state.counters[f"{way}_data"][slot] - before[f"{way}_data"][slot] == words
    assert sum(bool(slots) for slots in changed.values()) == 4


# ---------------------------------------------------------------------- datagrams by directed route


def directed(*ports: int, **more: int) -> DirectedSmp:
    path = bytes([0, *ports]).ljust(64, b"\0")
    return DirectedSmp(
        **{"method": Method.GET, "attribute": AttributeId.NODE_INFO, "hop_count": len(ports), "initial_path": path,
           "dr_slid": 0xFFFF, "dr_dlid": 0xFFFF, **more}
    )  # fmt: skip


def test_what_becomes_of_a_datagram_by_directed_route(site):
    state, network = site.state, site.endpoint.network
    source, manager = (state.end_slot(state.find(f"host-{n}/mlx5_0")) for n in (1, 0))
    spine = state.lid(state.end_slot(state.find("spine-0")))

    def sent(mad: DirectedSmp, dlid: int = 0xFFFF):
        outcome = network.send(source, Frame(dlid, 0xFFFF, 0, 0, mad.encode()), 0)
        return outcome.fate, outcome.hops

    assert sent(directed(1)) == (Fate.ANSWERED, 2)
    assert sent(directed(1, 3, 2, 1)) == (Fate.ANSWERED, 8)
    assert sent(directed(1, 1, 1)) == (Fate.UNROUTABLE, 0)  # an adapter passes nothing on
    assert sent(directed(2)) == sent(directed(0)) == sent(directed(1, 9)) == (Fate.UNROUTABLE, 0)
    # parts by LID before and behind the directed one
    assert sent(directed(2, dr_slid=7), spine) == (Fate.ANSWERED, 2 * (2 + 1))
    assert sent(directed(2, dr_slid=7), 0xBFF0) == (Fate.UNROUTABLE, 0)
    assert sent(directed(1, dr_dlid=spine)) == (Fate.ANSWERED, 2 * (1 + 1))
    assert sent(directed(1, dr_dlid=0xBFF0)) == (Fate.UNROUTABLE, 0)
    assert sent(directed(1, hop_pointer=1))[0] == Fate.DROPPED
    assert sent(directed(1, direction=1))[0] == Fate.DROPPED
    # the manager alone hears what is for software, with the pointer beyond the last hop
    ask = directed(1, 1, attribute=AttributeId.SM_INFO)
    outcome = network.send(source, Frame(0xFFFF, 0xFFFF, 0, 0, ask.encode()), 0)
    assert (outcome.fate, outcome.slot, outcome.hops, outcome.frame.mad[6]) == (Fate.FORWARDED, manager, 2, 3)
    assert sent(directed(1, 3, 2, 1, attribute=AttributeId.SM_INFO)) == (Fate.UNROUTABLE, 0)
    # its answer takes the way back
    answer = bytearray(outcome.frame.mad)
    answer[3], answer[4] = 0x81, 0x80
    back = network.send(manager, Frame(0xFFFF, 0xFFFF, 0, 0, bytes(answer)), 0)
    assert (back.fate, back.slot, back.hops, back.frame.mad[6]) == (Fate.FORWARDED, source, 2, 0)
    for at, port in ((193, 9), (193, 0), (194, 2), (194, 0)):  # return paths that lead nowhere
        wrong = bytearray(answer)
        wrong[at] = port
        assert network.send(manager, Frame(0xFFFF, 0xFFFF, 0, 0, bytes(wrong)), 0).fate == Fate.UNROUTABLE
    state.silent.add(state.find("leaf-0"))
    assert sent(directed(1)) == sent(directed(1, 3)) == (Fate.UNROUTABLE, 0)
    state.silent.clear()
    state.cut_cable(site.slot("leaf-0", 3), 0)
    assert sent(directed(1, 3)) == (Fate.UNROUTABLE, 0)
