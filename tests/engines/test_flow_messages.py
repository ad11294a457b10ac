"""Single messages as fluid: alone as in closed form, together by max-min fairness, near what packets do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import boxes
from support.flow_options import flow_options

from fabrictwin.engines.analytic.analytic_engine import AnalyticEngine
from fabrictwin.engines.base.engine import Engine
from fabrictwin.engines.base.messages import EventKind, Message, Opcode, Posting, Service
from fabrictwin.engines.flow.flow_engine import FlowEngine
from fabrictwin.engines.flow.flow_tables import fair_rates
from fabrictwin.engines.packet.packet_engine import PacketEngine

MIB = 1 << 20


def settle(engine: Engine) -> list[tuple[int, int, EventKind]]:
    seen = []
    while events := engine.advance().events:
        assert [event.time_ps for event in events] == [engine.now_ps] * len(events)
        seen += [tuple(event) for event in events]
    assert engine.idle
    return seen


@pytest.mark.parametrize("service", list(Service))
def test_messages_of_one_flow_take_what_the_closed_form_says(service):
    twin = boxes(8)
    seen = []
    for s in (AnalyticEngine(twin.fabric, lambda: twin.routes), FlowEngine(twin.fabric, twin.routes)):
        a = s.open(0, 7, options=flow_options(service=service, source_qpn=1, target_qpn=2))
        b = s.open(7, 0, options=flow_options(service=service, source_qpn=2, target_qpn=1, rate_bps=10**10))
        for size in (0, 1, 4096, 1 << 20):
            s.send(a, Message(size, Opcode.WRITE))
        asked = s.send(a, Message(1 << 16, Opcode.READ_REQUEST))
        s.send(b, Message(5000, Opcode.READ_RESPONSE, answers=asked, posting=Posting(later_ps=10**6)))
        s.send(b, Message(5000, Opcode.WRITE, posting=Posting(later_ps=10**7)))
        seen.append(settle(s))
    closed, fluid = seen
    assert [event[1:] for event in fluid] == [event[1:] for event in closed]
    for (when, *_), (wanted, *_) in zip(fluid, closed, strict=True):
        assert abs(when - wanted) <= 4  # of picoseconds: a message's end is rounded once


@given(
    paths=st.lists(st.tuples(st.sets(st.integers(0, 5), min_size=1), st.integers(1, 30)), min_size=1, max_size=7),
    capacity=st.lists(st.integers(1, 40), min_size=6, max_size=6),
)
def test_rates_are_max_min_fair(paths, capacity):
    """Feasible, and each is at its limit or crosses a full port on which none is faster: there is one such."""
    ports, limits = [sorted(each) for each, _ in paths], [limit * 1e9 for _, limit in paths]
    capacity = np.array(capacity) * 1e9
    rates = fair_rates(ports, capacity, np.array(limits)).tolist()
    load = [sum(r for r, mine in zip(rates, ports, strict=True) if port in mine) for port in range(6)]
    assert all(used <= room * (1 + 1e-6) for used, room in zip(load, capacity, strict=True))
    for rate, mine, limit in zip(rates, ports, limits, strict=True):
        assert rate <= limit * (1 + 1e-6)
        fastest = [
            max(r for r, other in zip(rates, ports, strict=True) if port in other)
            for port in mine
            if load[port] >= capacity[port] * (1 - 1e-5)
        ]
        assert rate >= limit * (1 - 1e-5) or any(rate >= f * (1 - 1e-5) for f in fastest)


def test_messages_to_one_adapter_share_its_port_and_one_that_leaves_makes_room():
    """Two of 8 MiB and one of 2 MiB: a third each until the small one has left, then halves."""
    twin = boxes(8)
    took = {}
    for make in (FlowEngine, PacketEngine):
        s = make(twin.fabric, twin.routes)
        flows = [s.open(source, 0) for source in (1, 2, 5)]
        sent = [
            s.send(flow, Message(size, Opcode.WRITE))
            for flow, size in zip(flows, (8 * MIB, 8 * MIB, 2 * MIB), strict=True)
        ]
        arrived = {m: t for t, m, kind in settle(s) if kind == EventKind.ARRIVED}
        took[make] = [arrived[m] for m in sent]
    rate = int(twin.fabric.port_payload_bps[twin.fabric.nic_port[0]])
    alone = AnalyticEngine(twin.fabric, lambda: twin.routes)
    alone.send(alone.open(5, 0), Message(0, Opcode.WRITE))
    latency = next(t for t, _, kind in settle(alone) if kind == EventKind.ARRIVED)
    first, second, small = took[FlowEngine]
    assert small - latency == pytest.approx(3 * 2 * MIB * 8e12 / rate, rel=1e-6)
    assert first == second
    assert first - latency == pytest.approx(18 * MIB * 8e12 / rate, rel=0.002)
    for fluid, packets in zip(took[FlowEngine], took[PacketEngine], strict=True):
        assert fluid == pytest.approx(packets, rel=0.05)
