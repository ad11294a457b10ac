"""Arrays that the packet machine starts with, each worked out port by port from what was plugged together.

Expected values are divisions and sums in plain Python: picoseconds a byte in fixed point, buffers less their
reserves, thresholds in proportion to the rate of a link.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from support.packet_wiring import GBPS, US, infiniband, roce, star, wire

from fabrictwin.kernel.packet.state import build
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state.config import Arbitration
from fabrictwin.kernel.packet.switch.arbitration import LIMIT_UNIT

NONE = -1
# host 0 at 400 Gb/s, host 1 at 100, a link of 200 to a second switch with host 2, a port with nothing plugged in
RATES = {(0, 3): 400, (3, 0): 400, (1, 3): 100, (3, 1): 100, (3, 4): 200, (4, 3): 200, (2, 4): 25, (4, 2): 25}


def uneven(**options):
    made = wire(
        [(0, 3), (1, 3), (3, 4), (2, 4)], 3, 5,
        link_bps={at: rate * GBPS for at, rate in RATES.items()}, switch_latency_ps=300_000, **options,
    )  # fmt: skip
    return replace(made, port_latency_ps=np.array([10_000 * (p + 1) for p in range(len(made.port_node))]))


def unplugged(made):
    """The same with one more port, at the last node, that leads nowhere."""
    longer = {
        "port_node": len(made.node_flags) - 1, "port_peer": NONE, "port_bps": 0, "port_latency_ps": 5,
        "port_flags": int(made.port_flags[0]), "credit_bytes": 1 << 17,
    }  # fmt: skip
    start = made.node_port_start.copy()
    start[-1] += 1
    return replace(
        made, node_port_start=start, **{name: np.append(getattr(made, name), x) for name, x in longer.items()}
    )


def per_byte(bps):
    """Picoseconds a byte, in units of 2**-20, to the nearest."""
    return round(Fraction(8 * 10**12 * 2**20, bps)) if bps else 0


@pytest.mark.parametrize("bps", [1, 7, 3 * 10**9, 100 * GBPS, 400 * GBPS, 1_600 * GBPS, 0, -5])
def test_rates_are_picoseconds_a_byte(bps):
    assert int(build.rate_to_q(bps)) == (per_byte(bps) if bps > 0 else 0)


@pytest.mark.parametrize(("size", "bps"), [(1, 400 * GBPS), (4178, 400 * GBPS), (4096, 3 * GBPS), (0, GBPS)])
def test_a_packet_takes_its_bytes_at_the_rate(size, bps):
    exact = Fraction(8 * 10**12 * size, bps)
    assert abs(int(build.serialize_ps(size, build.rate_to_q(bps))) - exact) <= Fraction(1, 2) + Fraction(
        size, 2**21
    )
    assert build.serialize_ps(1, [s.RATE_HALF - 1, s.RATE_HALF, 3 << s.RATE_BITS]).tolist() == [0, 1, 3]


@pytest.mark.parametrize("cut_through", [False, True])
def test_links_have_their_rate_flight_and_flow_control(cut_through):
    made = unplugged(uneven(kind="infiniband", cut_through=cut_through))
    port = build.build(made, infiniband(lanes=2, credit_update_bytes=8)).port
    for p, one in enumerate(port):
        peer, bps = int(made.port_peer[p]), int(made.port_bps[p])
        far = max(int(made.port_node[max(peer, 0)]), 0)
        assert int(one.ps_q) == per_byte(bps)
        assert int(one.arrive_ps) == int(made.port_latency_ps[p]) + int(made.node_latency_ps[far])
        assert int(one.credit_ps) == int(made.port_latency_ps[p]) + round(Fraction(8 * per_byte(bps), 2**20))
        cuts = int(made.node_flags[far]) & s.CUT_THROUGH
        assert bool(int(one.traits) & s.STORE) == (not cuts)
        assert int(one.rx_traits) == (int(port[peer].traits) if peer >= 0 else 0)
        empty = (one.control_head, one.control_tail, one.tx_slot, one.wait_since)
        assert [int(x) for x in empty] == [NONE] * 4
        on_switch = int(made.node_flags[made.port_node[p]]) & s.INPUT_QUEUED
        ports = int((made.port_node == made.port_node[p]).sum())
        assert int(one.queue_width) == (ports if on_switch else 1)
    assert int(port[0].traits) & s.CREDIT
    given = replace(made, arrive_ps=np.arange(len(port)) + 77)
    assert build.build(given, infiniband()).port.arrive_ps.tolist() == [77 + p for p in range(len(port))]


def test_queues_of_inputs_follow_each_other():
    made = uneven(kind="infiniband")
    state = build.build(made, infiniband(lanes=4))
    at = 0
    for p, one in enumerate(state.port):
        assert int(one.queue_start) == at
        at += 4 * int(one.queue_width) if int(one.queue_width) > 1 else 0
        if p == int(made.node_port_start[made.port_node[p]]):
            assert int(state.node[made.port_node[p]].queue_start) == int(one.queue_start)
    assert len(state.queue) == at == 4 * (3 * 3 + 2 * 2)
    for column in (state.queue.head, state.queue.tail, state.queue.next, state.outlet.head, state.outlet.tail):
        assert set(column.tolist()) == {NONE}
    assert set(state.outlet.ready_head.tolist() + state.outlet.ready_tail.tolist()) == {NONE}


def test_lanes_of_events_are_the_delays_that_links_have():
    made = unplugged(uneven(kind="infiniband", cut_through=True))
    configured = infiniband(lanes=2)
    state = build.build(made, configured)
    frames, delays = configured.frames, state.lane.delay[: int(state.clock[0].lanes)].tolist()
    assert delays == sorted(set(delays))
    size = len(state.event) // len(delays)
    assert size & (size - 1) == 0
    assert size // 2 < 4 * len(state.port) + 64 <= size
    assert [(int(one.first), int(one.mask)) for one in state.lane] == [
        (size * at, size - 1) for at in range(len(delays))
    ]
    assert state.lane_time.tolist() == [build.s.NEVER] * len(delays)
    wanted, without = set(), 0
    for one in state.port:
        names = ("lane_tx_full", "lane_tx_ack", "lane_arrive_full", "lane_arrive_ack", "lane_credit")
        held = [int(one[name]) for name in names]
        if int(one.peer) < 0:
            assert held == [NONE] * 5
            continue
        full, ack = (
            round(Fraction(int(one.ps_q) * bytes_, 2**20))
            for bytes_ in (frames.mtu_bytes + frames.header_bytes, frames.ack_bytes)
        )
        stored = bool(int(one.traits) & s.STORE)
        expected = [
            full,
            ack,
            int(one.arrive_ps) + stored * full,
            int(one.arrive_ps) + stored * ack,
            one.credit_ps,
        ]
        wanted |= {int(delay) for delay in expected}
        found = [None if at == NONE else delays[at] for at in held]
        assert all(delay in (None, int(is_)) for delay, is_ in zip(found, expected, strict=True))
        without += found.count(None)
    assert set(delays) <= wanted
    assert len(delays) == min(len(wanted), build.MOST_LANES)
    assert bool(without) == (len(wanted) > build.MOST_LANES)


def test_with_more_delays_than_lanes_the_most_common_have_one():
    hosts = 24
    made = star(hosts, kind="infiniband")
    made = replace(made, port_latency_ps=np.array([10_000 + 100 * min(p, 20) for p in range(2 * hosts)]))
    state = build.build(made, infiniband())
    delays = state.lane.delay[: int(state.clock[0].lanes)].tolist()
    assert len(delays) == 16
    assert delays == sorted(delays)
    shared = {int(one.arrive_ps) for one in state.port[20:]} | {int(one.credit_ps) for one in state.port[20:]}
    served = sum(int(one.lane_credit) != NONE for one in state.port)
    assert {int(one.credit_ps) for one in state.port[20:]} <= set(delays)
    assert shared
    assert served >= 2 * hosts - 20


@pytest.mark.parametrize(("batch", "told"), [(0, 1), (256, 4), (1 << 30, 512)])
def test_credits_are_the_buffer_at_the_other_end(batch, told):
    """Room in blocks of 64 bytes; a quarter of it at most waits to be told."""
    made = unplugged(uneven(kind="infiniband"))
    sizes = np.array([(1 << 17) + 64 * 400 * (p % 3) for p in range(len(made.port_node))])
    state = build.build(replace(made, credit_bytes=sizes), infiniband(lanes=2, credit_batch_bytes=batch))
    for p in range(len(sizes)):
        peer = int(made.port_peer[p])
        for slot in (2 * p, 2 * p + 1):
            assert int(state.inlet[slot].capacity) == sizes[p] // 64
            assert int(state.inlet[slot].batch) == max(min(batch // 64, sizes[p] // 64 // 4), 1)
            assert int(state.outlet[slot].credit) == (sizes[peer] // 64 if peer >= 0 else 0)
    assert int(state.inlet[0].batch) == told
    ethernet = build.build(uneven(), roce())
    assert not ethernet.inlet.capacity.any()
    assert not ethernet.outlet.credit.any()


def test_a_buffer_holds_a_packet_beside_what_is_not_told_yet():
    """4,096 and 26 of header, 64 more for a message's first, in whole blocks: 66."""
    for blocks, fits in ((66, True), (65, False)):
        made = star(2, kind="infiniband", credit_bytes=64 * blocks)
        if fits:
            build.build(made, infiniband())
        else:
            with pytest.raises(ValueError, match=r"port 0: got a buffer of 4160 bytes a lane.* \(4224 bytes\)"):
                build.build(made, infiniband())
    batched = infiniband(credit_batch_bytes=20 * 64)
    build.build(star(2, kind="infiniband", credit_bytes=64 * 86), batched)
    with pytest.raises(ValueError, match="port 0: got a buffer of 5440 bytes"):
        build.build(star(2, kind="infiniband", credit_bytes=64 * 85), batched)


def test_ethernet_queues_have_thresholds_in_proportion_to_their_link():
    made = unplugged(uneven())
    configured = roce(
        lanes=2, ecn_kmin_bytes=100_000, ecn_kmax_bytes=400_000, ecn_bps=100 * GBPS, queue_limit_bytes=5_000_000,
        weights=(1000, 3000), strict=2,
    )  # fmt: skip
    state = build.build(made, configured)
    for p, bps in enumerate(made.port_bps.tolist()):
        switch = int(made.port_node[p]) >= 3
        for lane in range(2):
            outlet = state.outlet[2 * p + lane]
            assert int(outlet.kmin) == 100_000 * bps // (100 * GBPS)
            assert int(outlet.kmax) == 400_000 * bps // (100 * GBPS)
            assert int(outlet.limit) == (5_000_000 if switch else 0)
            assert int(state.hold[2 * p + lane].quantum) == (1000, 3000)[lane]
        assert int(state.port[p].strict) == 2
    plain = build.build(made, roce(lanes=2))
    assert not plain.outlet.kmax.any()
    assert set(plain.hold.quantum.tolist()) == {4096}
    capped = build.build(made, roce(ecn_kmax_bytes=2**31, ecn_bps=100 * GBPS))
    assert int(capped.outlet.kmax.max()) == 2**31 - 1
    lossless = build.build(uneven(kind="infiniband"), infiniband(ecn_kmax_bytes=400_000, queue_limit_bytes=9))
    assert not lossless.outlet.kmax.any()
    assert not lossless.outlet.limit.any()


def test_shared_buffers_lose_their_reserves_and_headroom_first():
    made = unplugged(uneven())
    configured = roce(lanes=4, lossless=0b0110, reserve_bytes=5000, resume_bytes=700, alpha_q=99)
    state = build.build(made, configured)
    frames, total = configured.frames, {3: 0, 4: 0}
    for p, bps in enumerate(made.port_bps.tolist()):
        node, peer = int(made.port_node[p]), int(made.port_peer[p])
        there = max(peer, 0)
        flight = int(made.port_latency_ps[p] + made.port_latency_ps[there] + made.node_latency_ps[node])
        flight += int(made.node_latency_ps[made.port_node[there]])
        # IEEE 802.1Q, annex O: what is in flight both ways, frames that were begun, pause frames
        room = (flight << 20) // max(per_byte(bps), 1) + 3 * (frames.mtu_bytes + frames.header_bytes + 64)
        room += 2 * frames.pause_wire_bytes
        for lane in range(4):
            inlet, lossless = state.inlet[4 * p + lane], lane in (1, 2) and peer >= 0
            assert int(inlet.lossless) == lossless
            assert int(inlet.headroom_limit) == (room if lossless else 0)
            if node in total and peer >= 0:
                total[node] += 5000 + room * lossless
    for n, taken in total.items():
        node = state.node[n]
        assert int(node.shared_limit) == (32 << 20) - taken
        assert (int(node.reserve), int(node.alpha_q), int(node.resume)) == (5000, 99, 700)
    assert state.node.shared_limit[:3].tolist() == [0, 0, 0]
    small = replace(made, node_buffer_bytes=np.where(np.arange(5) >= 3, max(total.values()), 0))
    with pytest.raises(ValueError, match=r"node [34]: got a buffer of \d+ bytes, expected more than"):
        build.build(small, configured)
    build.build(replace(small, node_buffer_bytes=small.node_buffer_bytes + 1), configured)
    assert not build.build(uneven(kind="infiniband"), infiniband()).node.shared_limit.any()


def test_nodes_and_endpoints_know_their_place():
    made = uneven()
    state = build.build(made, roce())
    assert [(int(n.port_start), int(n.ports), int(n.row)) for n in state.node] == [
        (0, 1, NONE), (1, 1, NONE), (2, 1, NONE), (3, 3, 0), (6, 2, 1),
    ]  # fmt: skip
    assert state.node.traits.tolist() == made.node_flags.tolist()
    assert state.node.seed.tolist() == [0, 0, 0, *made.seeds.tolist()]
    assert build.build(replace(made, seeds=np.zeros(0, np.int64)), roce()).node.seed.tolist() == [0] * 5
    for e, end in enumerate(state.endpoint):
        down = int(made.port_peer[made.endpoint_port[e]])
        row = (0, 0, 1)[e]
        assert (int(end.node), int(end.port), int(end.lid)) == (e, e, e + 1)
        assert (int(end.edge_row), int(end.edge_port), int(end.edge)) == (row, down, int(made.edge_column[row]))
    lost = replace(made, port_peer=np.array([NONE, *made.port_peer[1:]]), edge_column=np.zeros(0, np.int32))
    ends = build.build(replace(lost, endpoint_lid=np.zeros(0, np.int32)), roce()).endpoint
    assert (int(ends[0].edge_row), int(ends[0].edge_port), int(ends[0].edge), int(ends[1].lid)) == (-1, -1, -1, 0)


def test_settings_are_those_of_the_configuration():
    given = {
        "mtu_bytes": 2048, "balance": s.ADAPTIVE, "window_packets": 64, "pause_wire_bytes": 91, "ecn_pmax_q": 77,
        "hoq_ps": 13, "trim_wire_bytes": 150, "trim_lane": 3, "cnp_wire_bytes": 96, "cnp_ps": 4,
    }  # fmt: skip
    one = build.build(star(2), roce(lanes=8, **given)).settings[0]
    names = [
        "mtu",
        "balance",
        "bitmap_mask",
        "pause_wire",
        "pmax_q",
        "hoq_ps",
        "trim_wire",
        "trim_vl",
        "cnp_wire",
        "cnp_ps",
        "vl_bits",
        "cnp_sl",
    ]
    assert [int(one[name]) for name in names] == [2048, s.ADAPTIVE, 63, 91, 77, 13, 150, 3, 96, 4, 3, NONE]
    plain = build.build(star(2), roce())
    assert int(plain.settings[0].cnp_wire) == roce().frames.ack_bytes
    assert int(plain.settings[0].look_ahead) == 0
    assert plain.sl2vl.tolist() == [[0] * 16]
    assert build.build(star(2), roce(lanes=4)).sl2vl.tolist() == [[i % 4 for i in range(16)]]
    clock = plain.clock[0]
    assert (int(clock.random), int(clock.unroutable), int(clock.tasks_head)) == (0x9E3779B1, NONE, NONE)
    assert int(build.build(star(2), roce(seed=0)).clock[0].random) == 1  # zero would give nothing else
    assert int(build.build(star(2), roce(seed=5)).clock[0].random) == 5 * 0x9E3779B1 % 2**32
    free = []
    at = int(clock.free_head)
    while at != NONE:
        free.append(at)
        at = int(plain.packet[at].next)
    assert free == list(range(1024))
    assert (int(clock.free), len(plain.packet)) == (1024, 1024)
    assert len(build.build(star(200), roce()).packet) == 4 * 400
    for lanes in (0, 3, 5, 6, 16):
        with pytest.raises(ValueError, match=f"got {lanes} lanes, expected 1, 2, 4 or 8"):
            build.build(star(2), roce(lanes=lanes))


def test_maps_of_ports_and_of_inputs():
    made = star(2)
    rows = tuple(tuple((i + row) % 4 for i in range(16)) for row in range(3))
    state = build.build(
        made, roce(lanes=4, sl2vl=rows, port_sl2vl=(0, 1, 2, 1), sl2vl_by_input=(False, True, False, True))
    )
    assert state.sl2vl.tolist() == [list(row) for row in rows]
    assert state.port.sl2vl.tolist() == [0, 1, 2, 1]
    assert [bool(int(one.traits) & s.BY_INPUT) for one in state.port] == [False, True, False, True]


def test_arbitration_tables_are_laid_side_by_side():
    first = Arbitration(high=((1, 3), (0, 255)), low=((0, 1),), high_limit=2)
    second = Arbitration(high=((0, 4),), low=((1, 9), (0, 0)), high_limit=255)
    third = Arbitration(low=((0, 1), (1, 1)), high_limit=0)
    made = unplugged(star(2, kind="infiniband"))
    state = build.build(
        made, infiniband(lanes=2, arbitrations=(first, second, third), port_arbitration=(0, 1, NONE, 2, 0))
    )
    assert len(state.arbitration) == 3 * 2 * 64
    told = {at: pair for at, pair in enumerate(state.arbitration.tolist()) if pair != [0, 0]}
    assert told == {0: [1, 3], 1: [0, 255], 64: [0, 1], 128: [0, 4], 192: [1, 9], 320: [0, 1], 321: [1, 1]}
    assert state.high_limit.tolist() == [2 * LIMIT_UNIT, s.NEVER, 1]
    assert LIMIT_UNIT == 4096
    assert [bool(int(one.traits) & s.ARBITRATED) for one in state.port] == [True, True, False, True, True]
    assert state.arbiter.row.tolist() == [0, 1, 0, 2, 0]
    assert state.arbiter.budget.tolist() == [state.high_limit[row] for row in (0, 1, 0, 2, 0)]
    assert set(state.arbiter.pick.tolist()) == {NONE}
    assert set(state.arbiter.high_at.tolist() + state.arbiter.low_at.tolist()) == {63}
    everywhere = build.build(made, infiniband(lanes=2, arbitrations=(first,)))
    assert [int(one.traits) & s.ARBITRATED for one in everywhere.port] == [s.ARBITRATED] * 5
    for without in (infiniband(lanes=2), infiniband(lanes=1, arbitrations=(first,))):
        assert not any(int(one.traits) & s.ARBITRATED for one in build.build(made, without).port)
    ethernet = build.build(star(2), roce(lanes=2, arbitrations=(first,)))
    assert not any(int(one.traits) & s.ARBITRATED for one in ethernet.port)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"high": ((2, 1),)}, "got 2:1 in VL arbitration, expected a lane below 2"),
        ({"high": ((-1, 1),)}, "got -1:1"),
        ({"low": ((1, 256),)}, "got 1:256 .* a weight up to 255"),
        ({"low": ((1, -1),)}, "got 1:-1"),
        ({"low": ((0, 1),) * 65}, "got 65 entries of VL arbitration, expected at most 64"),
        ({"high": ((0, 1),), "low": ((1, 0),)}, "without lane 1, which would never be served"),
        ({"low": ((1, 5),)}, "without lane 0"),
    ],
)
def test_arbitration_that_no_port_could_serve(given, message):
    with pytest.raises(ValueError, match=message):
        build.build(star(2, kind="infiniband"), infiniband(lanes=2, arbitrations=(Arbitration(**given),)))


def test_arbitration_may_fill_its_tables():
    full = Arbitration(high=((1, 255),) * 64, low=((0, 0), (0, 255)) * 32)
    state = build.build(star(2, kind="infiniband"), infiniband(lanes=2, arbitrations=(full,)))
    assert state.arbitration.tolist() == [[1, 255]] * 64 + [[0, 0], [0, 255]] * 32


def test_a_pool_that_grows_keeps_its_packets():
    state = build.build(star(2), roce())
    clock = state.clock[0]
    clock.free_head, clock.free = 1022, 2  # the others are on their way
    state.packet[3].psn = 99
    grown = build.add_packets(state, 5)
    free, at = [], int(clock.free_head)
    while at != NONE:
        free.append(at)
        at = int(grown.packet[at].next)
    assert free == [*range(1024, 1029), 1022, 1023]
    assert (int(clock.free), int(grown.packet[3].psn), len(grown.packet)) == (7, 99, 1029)
    assert US == 10**6


# ---------------------------------------------------------------------- ports configured one by one


PORT_TIMES = ("response_ps", "detection_ps", "restoration_ps")


def configured(lanes, ruled, **given):
    """A configuration of the ports `ruled` of a star of two hosts; nothing is said but what is given."""
    from fabrictwin.kernel.packet.state.port_qos import PortQos

    plain = dict.fromkeys((*PORT_TIMES, "sends", "obeys", "frame", "cell", "forwards", "strict"), 0)
    rows = {name: np.full(4, value) for name, value in plain.items()}
    rows |= {name: np.full(4, NONE) for name in ("group_row", "queue_row")}
    slots = ["headroom", "alpha_q", "threshold", "reserve", "resume", "kmin", "kmax", "pmax_q", "weight"]
    rows |= {name: np.full((4, lanes), NONE) for name in slots}
    scalars = {name: given.pop(name) for name in ("cnp_sl", "gap") if name in given}
    for name, (at, value) in given.items():
        rows[name][at] = value
    return PortQos(ruled=np.isin(np.arange(4), ruled), **rows, **scalars)


def test_what_is_said_of_a_port_holds_there_and_what_all_have_elsewhere():
    """Ports 0 and 1 are the hosts', 2 and 3 the switch's; port 2 and host 0 are configured."""
    rows = tuple(tuple((i + row) % 2 for i in range(16)) for row in range(3))
    qos = configured(
        2, [0, 2], response_ps=(2, 11), detection_ps=(2, 12), restoration_ps=(2, 13), group_row=(2, 1), frame=(2,
        1514),
        cell=(2, 256), obeys=(2, 3), forwards=(2, 1), sends=(2, 2), strict=(2, 1), queue_row=([0, 2], 2),
        headroom=((2, 1), 7000), alpha_q=((2, 0), 64), threshold=((2, 1), 9000), reserve=((2, 0), 1234),
        resume=((2, 1), 55), kmin=((2, 1), 100), kmax=((2, 1), 200), pmax_q=((2, 1), 300), weight=((2, [0, 1]),
        [3, 1]),
        cnp_sl=6, gap=24,
    )  # fmt: skip
    made = star(2)
    given = roce(
        lanes=2, sl2vl=rows, qos=qos, alpha_q=40, resume_bytes=70, reserve_bytes=500, lossless=0b10,
        ecn_kmax_bytes=10**6,
        ecn_kmin_bytes=10**5, ecn_pmax_q=9,
    )  # fmt: skip
    state = build.build(made, given)
    port, slot = state.port_qos[2], state.slot_qos
    names = (*PORT_TIMES, "group_row", "queue_row", "frame", "cell", "obeys", "forwards")
    assert [int(port[name]) for name in names] == [11, 12, 13, 1, 2, 1514, 256, 3, 1]
    assert slot.alpha_q.tolist() == [40] * 4 + [64, 40, 40, 40]
    assert slot.threshold.tolist() == [NONE] * 5 + [9000, NONE, NONE]
    assert slot.resume.tolist() == [70] * 5 + [55, 70, 70]
    assert slot.reserve.tolist() == [500] * 4 + [1234, 500, 500, 500]
    assert slot.sends.tolist() == [0] * 5 + [1, 0, 0]
    assert slot.pmax_q.tolist() == [0] * 5 + [300, 0, 0]
    assert [bool(int(one.traits) & s.RULED) for one in state.port] == [True, False, True, False]
    traits = state.port.traits.tolist()
    assert state.port.rx_traits.tolist() == [traits[peer] for peer in state.port.peer.tolist()]
    assert state.port.strict.tolist() == [0, 0, 1, 0]
    assert state.port.sl2vl.tolist() == [2, 0, 0, 0]  # what leaves an adapter goes by its own map
    assert [bool(int(n.traits) & s.CONFIGURED) for n in state.node] == [False, False, True]
    assert state.outlet.kmin.tolist()[4:6] == [100000 * 4, 100]
    assert state.outlet.kmax.tolist() == [0, 0, 4 * 10**6, 4 * 10**6, 0, 200, 4 * 10**6, 4 * 10**6]
    full = 4096 + 82
    assert state.hold.quantum.tolist() == [4096] * 4 + [3 * full, full, 4096, 4096]
    assert (int(state.settings[0].cnp_sl), int(state.settings[0].gap)) == (6, 24)
    assert state.inlet.headroom_limit.tolist()[4:6] == [0, 7000]
    kept = (1234 + 500 + 500 + 500) + 7000 + int(state.inlet[7].headroom_limit)
    assert int(state.node[2].shared_limit) == (32 << 20) - kept
    plain = build.build(made, roce(lanes=2, qos=configured(2, [])))
    assert set(plain.hold.quantum.tolist()) == {4096}
    assert not any(int(one.traits) & s.RULED for one in plain.port)
