"""Single messages as fluid: alone as in closed form, together by max-min fairness, near what packets do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters import boxes

from fabrictwin.engines.analytic.analytic_messages import AnalyticMessages
from fabrictwin.engines.base.message_path import Way
from fabrictwin.engines.base.messages import EventKind, FlowOptions, MessageSession, Opcode, Service
from fabrictwin.engines.flow.flow_messages import FlowMessages, fair_rates
from fabrictwin.engines.packet.packet_messages import PacketMessages

MIB = 1 << 20


def settle(session: MessageSession) -> list[tuple[int, int, EventKind]]:
    seen = []
    while events := session.advance():
        assert [event.time_ps for event in events] == [session.now_ps] * len(events)
        seen += [tuple(event) for event in events]
    assert session.idle
    return seen


@pytest.mark.parametrize("service", list(Service))
def test_messages_of_one_flow_take_what_the_closed_form_says(service):
    twin = boxes(8)
    seen = []
    for make in (AnalyticMessages, FlowMessages):
        s = make(twin.fabric, twin.routes)
        a = s.open(0, 7, options=FlowOptions(service=service, source_qpn=1, target_qpn=2))
        b = s.open(7, 0, options=FlowOptions(service=service, source_qpn=2, target_qpn=1, rate_bps=10**10))
        for size in (0, 1, 4096, 1 << 20):
            s.send(a, size, Opcode.WRITE)
        asked = s.send(a, 1 << 16, Opcode.READ_REQUEST)
        s.send(b, 5000, Opcode.READ_RESPONSE, answers=asked, later_ps=10**6)
        s.send(b, 5000, Opcode.WRITE, later_ps=10**7)
        seen.append(settle(s))
    closed, fluid = seen
    assert [event[1:] for event in fluid] == [event[1:] for event in closed]
    for (when, *_), (wanted, *_) in zip(fluid, closed, strict=True):
        assert abs(when - wanted) <= 4  # of picoseconds: a message's end is rounded once


@settings(deadline=None)
@given(
    ways=st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), st.integers(1, 30)), min_size=1, max_size=7),
    capacity=st.lists(st.integers(1, 40), min_size=6, max_size=6),
)
def test_rates_are_max_min_fair(ways, capacity):
    """Feasible, and each is at its limit or crosses a full port on which none is faster: there is one such."""
    given_ways = [Way(0, limit * 10**9, tuple(sorted(ports))) for ports, limit in ways]
    capacity = [c * 10**9 for c in capacity]
    rates = fair_rates(given_ways, capacity)
    load = [sum(r for r, way in zip(rates, given_ways, strict=True) if port in way.ports) for port in range(6)]
    assert all(used <= room * (1 + 1e-6) for used, room in zip(load, capacity, strict=True))
    for rate, way in zip(rates, given_ways, strict=True):
        assert rate <= way.rate_bps * (1 + 1e-6)
        fastest = [
            max(r for r, other in zip(rates, given_ways, strict=True) if port in other.ports)
            for port in way.ports
            if load[port] >= capacity[port] * (1 - 1e-5)
        ]
        assert rate >= way.rate_bps * (1 - 1e-5) or any(rate >= f * (1 - 1e-5) for f in fastest)


def test_messages_to_one_adapter_share_its_port_and_one_that_leaves_makes_room():
    """Two of 8 MiB and one of 2 MiB: a third each until the small one has left, then halves."""
    twin = boxes(8)
    took = {}
    for make in (FlowMessages, PacketMessages):
        s = make(twin.fabric, twin.routes)
        flows = [s.open(source, 0) for source in (1, 2, 5)]
        sent = [
            s.send(flow, size, Opcode.WRITE) for flow, size in zip(flows, (8 * MIB, 8 * MIB, 2 * MIB), strict=True)
        ]
        arrived = {m: t for t, m, kind in settle(s) if kind == EventKind.ARRIVED}
        took[make] = [arrived[m] for m in sent]
    rate = int(twin.fabric.port_payload_bps[twin.fabric.nic_port[0]])
    alone = AnalyticMessages(twin.fabric, twin.routes)
    alone.send(alone.open(5, 0), 0, Opcode.WRITE)
    latency = next(t for t, _, kind in settle(alone) if kind == EventKind.ARRIVED)
    first, second, small = took[FlowMessages]
    assert small - latency == pytest.approx(3 * 2 * MIB * 8e12 / rate, rel=1e-6)
    assert first == second
    assert first - latency == pytest.approx(18 * MIB * 8e12 / rate, rel=0.002)
    for fluid, packets in zip(took[FlowMessages], took[PacketMessages], strict=True):
        assert fluid == pytest.approx(packets, rel=0.05)
