"""The packet kernel on fabrics small enough to reason about: every time below is worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from support.packet_wiring import (
    GBPS,
    US,
    done_us,
    dumbbell,
    goodput_gbps,
    infiniband,
    machine,
    post,
    roce,
    star,
    wire,
)

from fabrictwin.kernel.packet import invariants as checks
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state.build import build
from fabrictwin.kernel.packet.state.config import Config

PS_PER_BYTE = 20  # at 400 Gb/s
SWITCH = 300_000


def chain(switches: int, **options):
    """Two hosts with so many switches between them."""
    nodes = [2 + i for i in range(switches)]
    return wire([(0, nodes[0]), (1, nodes[-1]), *pairwise(nodes)], 2, 2 + switches, **options)


@pytest.mark.parametrize("kind", ["ethernet", "infiniband"])
@pytest.mark.parametrize("switches", [1, 2, 3])
def test_store_and_forward_latency_is_the_sum_of_its_parts(kind, switches):
    config = roce() if kind == "ethernet" else infiniband()
    m = machine(chain(switches, kind=kind, switch_latency_ps=SWITCH), config, [(0, 1, 1000)])
    m.run()
    links = switches + 1
    packet = (1000 + config.frames.header_bytes) * PS_PER_BYTE
    there = links * (US + packet) + switches * SWITCH
    back = links * (US + config.frames.ack_bytes * PS_PER_BYTE) + switches * SWITCH
    task = m.state.task[0]
    assert task.received_ps == there
    assert task.done_ps == there + back


@pytest.mark.parametrize("kind", ["ethernet", "infiniband"])
@pytest.mark.parametrize("switches", [1, 2, 3])
def test_cut_through_serializes_once(kind, switches):
    config = roce() if kind == "ethernet" else infiniband()
    wiring = chain(switches, kind=kind, switch_latency_ps=SWITCH, cut_through=True)
    m = machine(wiring, config, [(0, 1, 1000)])
    m.run()
    packet = (1000 + config.frames.header_bytes) * PS_PER_BYTE
    assert m.state.task[0].received_ps == (switches + 1) * US + packet + switches * SWITCH
    assert m.state.task[0].done_ps == 2 * ((switches + 1) * US + switches * SWITCH) + packet + (
        config.frames.ack_bytes * PS_PER_BYTE
    )


def test_cut_through_into_a_faster_link_waits_for_the_whole_packet():
    wiring = star(2, switch_latency_ps=SWITCH, cut_through=True, link_bps={(0, 2): 100 * GBPS, (2, 0): 100 * GBPS})
    m = machine(wiring, roce(), [(0, 1, 1000), (1, 0, 1000)])
    m.run()
    slow, fast = 1082 * 80, 1082 * 20
    up, down = m.state.task.received_ps[:2]
    assert up == 2 * US + slow + SWITCH + fast  # 100 Gb/s in, 400 out: stored first
    # 400 in, 100 out: cut through; the acknowledgement that starts down later does not disturb
    assert down == 2 * US + SWITCH + slow


def test_messages_are_cut_into_packets_of_the_mtu():
    m = machine(star(2), roce(), [(0, 1, 3 * 4096 + 1)])
    m.run()
    nic = m.state.port[0]
    assert nic.tx_packets == 4
    assert nic.tx_payload == 3 * 4096 + 1
    assert nic.tx_bytes == 3 * 4096 + 1 + 4 * 82


def test_an_empty_message_still_takes_a_packet():
    m = machine(star(2), roce(), [(0, 1, 0)])
    m.run()
    assert m.state.task[0].received_ps == 2 * (US + 82 * PS_PER_BYTE)


def test_acknowledgements_are_coalesced_but_never_at_the_end_of_a_message():
    counts = {}
    for every in (1, 4, 16):
        m = machine(star(2), roce(), [(0, 1, 10 * 4096)], ack_every=every)
        m.run()
        counts[every] = int(m.state.port[1].tx_packets)
    assert counts == {1: 10, 4: 3, 16: 1}


def test_a_window_bounds_what_is_under_way():
    size, window = 4_000_000, 40_960
    m = machine(star(2), roce(), [(0, 1, size)], window_bytes=window)
    m.run()
    # a window's worth every round trip: the first packet's way there and its acknowledgement's back
    round_trip = 4 * US + 2 * 4178 * PS_PER_BYTE + 2 * 86 * PS_PER_BYTE
    assert goodput_gbps(m) == pytest.approx(window * 8000 / round_trip, rel=0.01)


@pytest.mark.parametrize("kind", ["ethernet", "infiniband"])
def test_two_flows_share_a_link_in_half_each(kind):
    config = roce() if kind == "ethernet" else infiniband()
    m = machine(dumbbell(2, 2, kind=kind), config, [(0, 2, 4_000_000), (1, 3, 4_000_000)])
    m.run()
    a, b = done_us(m)
    assert a == pytest.approx(b, rel=0.01)
    both = 8_000_000 / 4096 * (4096 + config.frames.header_bytes) * PS_PER_BYTE / US
    assert max(a, b) == pytest.approx(both + 6.2, rel=0.002)


def test_an_input_queued_switch_serves_its_inputs_in_turn():
    """Three inputs, one of which brings two flows: the inputs share, not the flows."""
    m = machine(
        dumbbell(2, 3, kind="infiniband"),
        infiniband(),
        [(0, 4, 8_000_000), (1, 4, 8_000_000), (2, 4, 8_000_000), (3, 4, 8_000_000)],
    )
    m.run(300 * US)
    got = [int(qp.expected) for qp in m.state.qp]
    assert got[0] + got[1] == pytest.approx(got[2], rel=0.02)
    assert got[2] == pytest.approx(got[3], rel=0.02)


def test_strict_lanes_go_first_and_weighted_ones_in_proportion():
    config = roce(lanes=4, strict=0b1000, weights=(4096, 4096, 12288, 4096))
    m = machine(star(4), config, [])
    post(m, [(0, 3, 8_000_000)], sl=1)
    post(m, [(1, 3, 8_000_000)], sl=2)
    post(m, [(2, 3, 2_000_000)], sl=3)
    m.run()
    done = done_us(m)
    alone = 2_000_000 / 4096 * 4178 * PS_PER_BYTE / US
    assert done[2] == pytest.approx(alone + 4.2, rel=0.01)
    # by when the heavier is done the lighter has a third of it
    assert done[1] < done[0]
    m2 = machine(star(4), config, [])
    post(m2, [(0, 3, 8_000_000)], sl=1)
    post(m2, [(1, 3, 8_000_000)], sl=2)
    m2.run(200 * US)
    light, heavy = (int(qp.expected) for qp in m2.state.qp)
    assert heavy / light == pytest.approx(3, rel=0.08)


def test_service_level_chooses_the_lane():
    rows = ((0,) * 4 + (1,) * 12,)
    m = machine(star(3), roce(lanes=2, sl2vl=rows), [(0, 2, 40960)], sl=5)
    m.run()
    assert m.state.outlet.last_tx[1] > 0
    assert m.state.outlet.last_tx[0] == 0


def test_linear_forwarding_tables_decide_the_way():
    wiring = wire([(0, 2), (1, 3), (2, 3), (2, 3)], 2, 4, kind="infiniband")
    for number in (2, 3):  # port 1 of switch 2 leads to host 0, 2 and 3 to the other switch
        lft = np.full((2, 4), 255, np.uint8)
        lft[0, 2] = number
        lft[1, 1] = 2
        m = machine(replace(wiring, lft=lft), infiniband(balance=s.LFT), [(0, 1, 40960)])
        m.run()
        first = int(wiring.node_port_start[2])
        assert m.state.port.tx_packets[first + number - 1] == 10
        assert m.state.port.tx_packets[first + (5 - number) - 1] == 0


def test_a_destination_without_a_way_is_an_error():
    wiring = wire([(0, 2), (1, 3), (2, 3)], 2, 4, kind="infiniband")
    lft = np.full((2, 4), 255, np.uint8)
    m = machine(replace(wiring, lft=lft), infiniband(balance=s.LFT), [(0, 1, 4096)])
    with pytest.raises(Exception, match="no way to endpoint 1"):
        m.run()


def test_credits_bound_throughput_by_buffer_over_round_trip():
    buffer = 16 << 10
    m = machine(star(2, kind="infiniband", credit_bytes=buffer), infiniband(), [(0, 1, 4_000_000)])
    m.run(drain=True)
    # 3 packets of 65 blocks fit into 256; each is back after two flights, two wires and a credit's
    packets = (buffer >> 6) // 65
    loop = 2 * US + 2 * 4122 * PS_PER_BYTE + 8 * PS_PER_BYTE
    assert goodput_gbps(m) == pytest.approx(packets * 4096 * 8000 / loop, rel=0.01)
    assert m.state.port[0].wait_ps > 0.5 * m.state.task[0].done_ps  # PortXmitWait says why
    assert not checks.violations(m.state)


def test_batched_credits_change_nothing_where_buffers_are_deep():
    times = []
    for batch in (0, 16 << 10):
        m = machine(star(2, kind="infiniband"), infiniband(credit_batch_bytes=batch), [(0, 1, 4_000_000)])
        m.run()
        times.append(int(m.state.task[0].done_ps))
    assert times[0] == times[1]


def test_a_buffer_below_a_packet_is_refused():
    with pytest.raises(ValueError, match=r"got a buffer of 2048 bytes a lane, expected at least a packet"):
        build(star(2, kind="infiniband", credit_bytes=2048), infiniband())


def test_a_switch_buffer_below_its_headroom_is_refused():
    with pytest.raises(ValueError, match=r"expected more than the \d+ of headroom"):
        build(star(8, buffer_bytes=100_000), roce())


def test_lanes_must_be_a_power_of_two():
    with pytest.raises(ValueError, match="got 3 lanes, expected 1, 2, 4 or 8"):
        build(star(2), Config(lanes=3))


def test_messages_of_a_queue_pair_complete_in_order():
    m = machine(star(2), roce(), [(0, 1, 9000)])
    m.add_tasks([s.MESSAGE] * 3, [0] * 3, [100, 50_000, 1], [0] * 3)
    m.run()
    assert list(m.state.log[:4]) == [0, 1, 2, 3]
    assert (np.diff(m.state.task.received_ps) > 0).all()


def test_tasks_wait_for_bytes_or_for_the_acknowledgement():
    m = machine(star(3), roce(), [(0, 1, 1000), (1, 2, 1000)])
    first = m.add_tasks(
        [s.MESSAGE, s.MESSAGE, s.DELAY, s.MESSAGE],
        [0, 1, 0, 1],
        [1000, 1000, 0, 1000],
        [0, 0, 5 * US, 0],
        after=(np.array([1, 2]), np.array([0, 1])),
        after_done=(np.array([3]), np.array([0])),
    )
    m.run()
    a, b, c, d = m.state.task[first : first + 4]
    assert b.start_ps == a.received_ps
    assert c.start_ps == b.received_ps
    assert c.done_ps == c.start_ps + 5 * US
    assert d.start_ps == a.done_ps


def test_an_adapter_sends_so_many_messages_a_second():
    m = machine(star(3), roce(), [(0, 1, 8), (0, 2, 8)])
    m.state.endpoint.message_ps[0] = 5 * US
    m.add_tasks([s.MESSAGE] * 20, [0, 1] * 10, [8] * 20, [0] * 20)
    m.run()
    assert m.state.task.received_ps.max() == 21 * 5 * US + 2 * (US + 90 * PS_PER_BYTE)


def test_a_queue_pair_has_a_message_rate_of_its_own():
    m = machine(star(3), roce(), [(0, 1, 8), (0, 2, 8)], message_ps=5 * US)
    m.add_tasks([s.MESSAGE] * 20, [0, 1] * 10, [8] * 20, [0] * 20)
    m.run()
    # two queue pairs side by side: ten gaps each
    assert m.state.task.received_ps.max() == pytest.approx(10 * 5 * US + 2 * US, rel=0.01)


def test_a_changed_rate_holds_from_then_on():
    m = machine(star(2), roce(), [(0, 1, 8_000_000)])
    m.run(50 * US)
    before = int(m.state.qp[0].expected)
    m.set_rate(0, 200 * GBPS)
    m.run(100 * US)
    after = int(m.state.qp[0].expected) - before
    assert before == pytest.approx((50 - 2) * US / (4178 * PS_PER_BYTE), abs=3)
    assert after == pytest.approx(50 * US / (4178 * 2 * PS_PER_BYTE), abs=13)


def test_growing_the_pools_changes_nothing():
    results = []
    for small in (False, True):
        m = machine(star(8), roce(), [(i, (i + 1) % 8, 2_000_000) for i in range(8)])
        if small:
            from fabrictwin.kernel.packet.state import build as b

            m.state = b.grow_lanes(b.grow_heap(b.add_packets(m.state, 5000)))
        m.run(drain=True)
        results.append(m.state.task.done_ps.tolist())
        assert not checks.violations(m.state)
    assert results[0] == results[1]
