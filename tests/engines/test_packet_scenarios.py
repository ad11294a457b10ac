"""Phenomena of lossless and lossy fabrics, each shown on a fabric small enough to reason about."""

from __future__ import annotations

import numpy as np
import pytest
from support.packet_wiring import (
    GBPS,
    US,
    done_us,
    dumbbell,
    fat_tree,
    goodput_gbps,
    infiniband,
    machine,
    post,
    ring,
    roce,
    set_dcqcn,
    star,
    wire,
)

from fabrictwin.kernel.packet import invariants as checks
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.kernel.packet.state.config import Arbitration

MB = 1_000_000
WIRE = 4178 * 20  # picoseconds of a full RoCE packet at 400 Gb/s


def victim_goodput(kind: str, lanes: int) -> float:
    """Four senders behind one trunk fill host 5 at 100 Gb/s; a fifth flow over that trunk goes to an idle host."""
    config = roce(lanes=lanes) if kind == "ethernet" else infiniband(lanes=lanes)
    slow = {(5, 8): 100 * GBPS, (8, 5): 100 * GBPS}
    wiring = wire(
        [(h, 7) for h in range(5)] + [(5, 8), (6, 8), (7, 8)],
        7,
        9,
        kind=kind,
        link_bps=slow,
        buffer_bytes=5 * MB,
        credit_bytes=160 << 10,
    )
    m = machine(wiring, config, [(h, 5, 10 * MB) for h in range(4)])
    victim = post(m, [(4, 6, 4 * MB)], sl=lanes - 1)
    m.run()
    assert m.state.clock[0].dropped == 0
    return goodput_gbps(m, victim)


@pytest.mark.parametrize("kind", ["ethernet", "infiniband"])
def test_a_victim_suffers_behind_congestion_that_is_not_its_own(kind):
    # the trunk moves at 100 Gb/s for four, and the victim is one of five in it
    assert victim_goodput(kind, 1) < 60


@pytest.mark.parametrize("kind", ["ethernet", "infiniband"])
def test_a_lane_of_its_own_frees_the_victim(kind):
    assert victim_goodput(kind, 2) > 150


@pytest.mark.parametrize("kind", ["ethernet", "infiniband"])
def test_incast_into_one_host_takes_its_link_time_and_drops_nothing(kind):
    config = roce() if kind == "ethernet" else infiniband(credit_batch_bytes=16 << 10)
    m = machine(fat_tree(8, kind=kind), config, [(64 + i, 0, 2 * MB) for i in range(32)])
    m.run(drain=True)
    assert 1280 < done_us(m).max() < 1340
    assert m.state.clock[0].dropped == 0
    assert (m.state.count.pause_tx.sum() > 0) == (kind == "ethernet")
    assert not checks.violations(m.state)


def test_a_stuck_receiver_spreads_pauses_to_hosts_that_never_sent_to_it():
    """Host 5 stops draining (its switch's port runs at 100 Mb/s): the pause reaches every sender's own port."""
    stuck = {(5, 8): 10**8, (8, 5): 10**8}
    links = [(h, 7) for h in range(5)] + [(5, 8), (6, 8), (7, 8)]
    m = machine(
        wire(links, 7, 9, link_bps=stuck, buffer_bytes=4 * MB), roce(), [(h, 5, 20 * MB) for h in range(4)]
    )
    post(m, [(4, 6, 20 * MB)])
    m.run(2000 * US)
    bystander = int(m.wiring.endpoint_port[4])
    assert m.state.count.pause_rx[bystander] > 0
    before = int(m.state.qp[4].expected)
    m.run(4000 * US)
    alone = 2000 * US / WIRE
    assert int(m.state.qp[4].expected) - before < 0.05 * alone


def ring_of_six(kind, *, hops, size):
    """Six switches in a ring; each one's endpoint sends to that of the switch so many hops on."""
    config = roce(reserve_bytes=1024) if kind == "ethernet" else infiniband()
    wiring = ring(6, kind=kind, buffer_bytes=900 << 10, credit_bytes=16 << 10)
    return machine(wiring, config, [(i, (i + hops) % 6, size) for i in range(6)])


@pytest.mark.parametrize("kind", ["ethernet", "infiniband"])
def test_a_ring_of_six_switches_locks_and_the_detector_names_the_cycle(kind):
    m = ring_of_six(kind, hops=3, size=20 * MB)
    wiring = m.wiring
    assert m.run() == s.STALLED
    around = {p for p in range(len(wiring.port_node)) if wiring.port_node[p] >= 6 and p in set(wiring.group_ports)}
    assert m.deadlock is not None
    assert {port for port, _ in m.deadlock.cycle} == around
    following = m.deadlock.cycle[1:] + m.deadlock.cycle[:1]
    for (port, _), (after, _) in zip(m.deadlock.cycle, following, strict=True):
        assert wiring.port_node[wiring.port_peer[port]] == wiring.port_node[after]
    assert m.state.clock[0].dropped == 0


@pytest.mark.parametrize("kind", ["ethernet", "infiniband"])
def test_the_same_ring_without_a_turn_does_not_lock(kind):
    m = ring_of_six(kind, hops=1, size=2 * MB)
    assert m.run() == s.FINISHED
    assert m.deadlock is None


def test_head_of_queue_lifetime_breaks_a_locked_ring_and_is_counted():
    wiring = ring(6, kind="infiniband", credit_bytes=16 << 10)
    m = machine(wiring, infiniband(hoq_ps=100 * US), [(i, (i + 3) % 6, MB) for i in range(6)], rto_ps=500 * US)
    assert m.run() == s.FINISHED
    assert m.state.count.hoq_drops.sum() > 0
    assert m.state.count.discards.sum() == m.state.count.hoq_drops.sum()
    assert m.state.qp.retransmitted.sum() > 0


RTO = 50 * US


def lossy(rate: float, mode: int, size: int = 300 * MB) -> float:
    """Goodput in Gb/s of one flow over a wire that spoils packets with this chance."""
    m = machine(star(2), roce(window_packets=4096), [(0, 1, size)], mode=mode, rto_ps=RTO)
    m.set_errors(0, round(rate / 4178 * 2**48))
    m.run()
    assert m.state.clock[0].dropped > 0
    return goodput_gbps(m)


def test_go_back_n_falls_with_loss_as_its_closed_form_says():
    """A loss costs what is sent until its NAK is back; where what is sent again is lost too, a timeout.

    Time a packet: wire (1 + p (W - 1)) / (1 - p) + p^2 RTO, W the packets of a round trip.
    """
    again = (4 * US + 2 * WIRE + 2 * 86 * 20) / WIRE
    for rate in (0.001, 0.005, 0.02):
        packet_ps = WIRE * (1 + rate * (again - 1)) / (1 - rate) + rate**2 * RTO
        assert lossy(rate, s.GO_BACK_N) == pytest.approx(4096 * 8000 / packet_ps, rel=0.06)


def test_selective_repeat_pays_only_for_what_was_lost():
    full = 400 * 4096 / 4178
    for rate in (0.001, 0.005, 0.02):
        assert lossy(rate, s.SELECTIVE) == pytest.approx(full * (1 - rate), rel=0.04)


def test_tail_drop_with_go_back_n_collapses():
    flows = [(i, 32, MB) for i in range(32)]
    m = machine(star(33, buffer_bytes=2 * MB), roce(lossless=0, alpha_q=32), flows, rto_ps=4000 * US)
    m.run()
    floor = 32 * MB / 4096 * WIRE / US
    assert m.state.clock[0].dropped > 0
    assert m.state.qp.retransmitted.sum() > 0
    assert done_us(m).max() > 1.5 * floor
    lossless = machine(star(33, buffer_bytes=8 * MB), roce(), flows)
    lossless.run()
    assert lossless.state.clock[0].dropped == 0
    assert done_us(lossless).max() < 1.05 * floor


def test_a_lost_tail_waits_for_the_timeout():
    m = machine(star(2), roce(), [(0, 1, 4096)], rto_ps=500 * US)
    m.set_errors(0, 2**48 // 4000)  # every packet is hit
    m.run(2 * US)
    m.set_errors(0, 0)
    m.run()
    assert m.state.qp.timeouts[0] == 1
    assert m.state.task.done_ps[0] == 500 * US + 4 * US + 2 * WIRE + 2 * 86 * 20


def test_retries_run_out_into_an_error():
    m = machine(star(2), roce(), [(0, 1, 4096)], rto_ps=100 * US, retry_limit=7)
    m.set_errors(0, 2**48 // 4000)
    m.run()
    assert m.state.task.status[0] == s.FAILED
    assert m.state.qp.timeouts[0] == 8
    assert m.state.task.done_ps[0] == pytest.approx(800 * US, rel=0.01)


def test_a_receiver_that_is_not_ready_delays_by_its_timer():
    m = machine(star(2), roce(), [(0, 1, 100), (0, 1, 100)], receives=0, rnr_ps=10 * US, rnr_limit=7)
    m.run(100 * US)
    assert m.state.qp.rnr_naks[0] >= 6
    assert m.state.task.received_ps[0] == s.NONE
    m.state.qp.receives[0] = 1
    m.run(200 * US)
    assert m.state.task.received_ps[0] > 100 * US
    assert m.state.task.received_ps[1] == s.NONE


def test_rnr_retries_run_out_into_an_error():
    m = machine(star(2), roce(), [(0, 1, 100)], receives=0, rnr_ps=10 * US, rnr_limit=3)
    m.run()
    assert m.state.task.status[0] == s.FAILED
    assert m.state.qp.rnr_naks[0] == 4


def dcqcn_pair(n: int, **config):
    ecn = {
        "ecn_kmin_bytes": 100_000,
        "ecn_kmax_bytes": 400_000,
        "ecn_bps": 100 * GBPS,
        "ecn_pmax_q": int(0.01 * 2**32),
        "cnp_ps": 50 * US,
    }
    wiring = dumbbell(n, n, bps=100 * GBPS)
    m = machine(wiring, roce(**ecn | config), [(i, n + i, 400 * MB) for i in range(n)], control=1)
    set_dcqcn(m, additive=400_000, hyper=4_000_000)
    return m


def test_dcqcn_shares_a_bottleneck_fairly_and_settles_near_its_fixed_point():
    """Rates gather around capacity / n, and the queue stays between the marking thresholds."""
    n = 4
    m = dcqcn_pair(n)
    m.run(30_000 * US)
    start = m.state.qp.expected.astype(float)
    rates = []
    for i in range(10):
        m.run((32 + 2 * i) * 1000 * US)
        rates.append(m.state.dcqcn.rate.astype(float) / 1e6)
    got = m.state.qp.expected - start
    assert got.sum() ** 2 / (n * (got**2).sum()) >= 0.95  # Jain's index
    capacity = 100 * 4096 / 4178
    sent = got.sum() * 4096 * 8 / (20_000 * US) * 1000
    assert sent > 0.9 * capacity
    assert np.mean(rates) == pytest.approx(100 / n, rel=0.15)
    assert m.state.count.pause_tx.sum() == 0


def test_dcqcn_halves_the_pauses_of_an_incast_at_least():
    flows = [(i, 16, 10 * MB) for i in range(16)]
    pfc = machine(star(17, buffer_bytes=8 * MB), roce(), flows)
    pfc.run()
    ecn = roce(
        ecn_kmin_bytes=100_000,
        ecn_kmax_bytes=400_000,
        ecn_bps=400 * GBPS,
        ecn_pmax_q=int(0.2 * 2**32),
        cnp_ps=50 * US,
    )
    both = machine(star(17, buffer_bytes=8 * MB), ecn, flows, control=1)
    set_dcqcn(both)
    both.run()
    assert pfc.state.clock[0].dropped == both.state.clock[0].dropped == 0
    assert pfc.state.hold.pause_ps.sum() > 2 * both.state.hold.pause_ps.sum()
    assert both.state.qp.cnps_handled.sum() > 0


def test_adaptive_routing_beats_colliding_ecmp_by_the_number_of_collisions():
    """A permutation between pods of a fat-tree: the slowest ECMP flow is one of c on its busiest link."""
    flows = [(i, (i + 32) % 128, 2 * MB) for i in range(128)]
    wiring = fat_tree(8)
    fixed = machine(wiring, roce(), flows)
    fixed.run()
    carried = np.zeros(len(wiring.port_node))
    carried += fixed.state.port.tx_payload
    collisions = round(carried.max() / (2 * MB))
    assert collisions >= 3
    adaptive = machine(wiring, roce(balance=s.ADAPTIVE), flows, mode=s.SELECTIVE, reorder=s.NEVER)
    adaptive.run()
    latency = 12.4
    factor = (done_us(fixed).max() - latency) / (done_us(adaptive).max() - latency)
    assert factor == pytest.approx(collisions, rel=0.3)
    assert adaptive.state.qp.retransmitted.sum() == 0


def test_spraying_spreads_one_flow_over_all_paths_in_order_of_completion():
    wiring = fat_tree(4)
    m = machine(wiring, roce(), [(0, 15, 4 * MB)], mode=s.SELECTIVE, reorder=s.NEVER, spray=True)
    m.add_tasks([s.MESSAGE] * 3, [0] * 3, [MB] * 3, [0] * 3)
    m.run()
    cores = [
        p for p in range(len(wiring.port_node)) if wiring.port_node[p] >= 32 and m.state.port.tx_payload[p] > 0
    ]
    assert len(cores) == 4
    assert m.state.log[:4].tolist() == [0, 1, 2, 3]


def test_a_link_at_half_rate_shows_where_an_operator_would_look():
    wiring = star(4, kind="infiniband")
    m = machine(wiring, infiniband(), [(0, 3, 8 * MB)])
    m.run(10 * US)
    down = int(wiring.port_peer[3])  # the switch's port to host 3
    m.set_rate(down, 200 * GBPS)
    m.run()
    port = m.state.port
    assert m.state.outlet.peak.argmax() == down  # packets pile up before the slow link ...
    assert port.wait_ps.argmax() == 0  # ... and its feeder waits for credits (PortXmitWait)
    assert port.wait_ps[0] > 0.3 * m.now
    assert port.wait_ps[[p for p in range(len(port)) if p != 0]].max() == 0
    assert m.state.count.discards.sum() == 0


def test_a_link_that_goes_down_loses_what_is_under_way_and_recovers():
    m = machine(star(2), roce(), [(0, 1, 4 * MB)], rto_ps=200 * US)
    m.run(20 * US)
    down = int(m.wiring.port_peer[1])
    m.set_rate(down, 0)
    m.run(60 * US)
    assert m.state.count.discards[down] > 0
    m.set_rate(down, 400 * GBPS)
    m.run(drain=True)
    assert m.state.task.status[0] == s.DONE
    assert m.state.qp.retransmitted[0] > 0
    assert not checks.violations(m.state)


def test_a_pause_that_nobody_renews_lapses():
    """The switch stops two hosts, then the way back to host 0 breaks: XON is lost, the quanta run out."""
    m = machine(star(3, buffer_bytes=MB), roce(), [(0, 2, 8 * MB), (1, 2, 8 * MB)])
    while not m.state.port.paused[0]:
        m.run(m.now + US)
    m.set_errors(int(m.wiring.port_peer[0]), 2**48 // 80)
    until = int(m.state.hold.paused_until[0])
    m.run(until - 1)
    stopped = int(m.state.port.tx_packets[0])
    assert m.state.port.paused[0] == 1
    m.run(until + US)
    assert m.state.port.paused[0] == 0
    assert m.state.port.tx_packets[0] > stopped
    # 65535 quanta of 512 bit times at 400 Gb/s
    assert m.state.hold.pause_ps[0] == pytest.approx(65535 * 512 / 400e9 * 1e12, rel=0.5)


def test_trimming_tells_the_sender_at_once():
    """Two senders into one host with shallow queues: cut packets return as NAKs, no timeout is needed."""
    config = roce(
        lossless=0,
        lanes=2,
        strict=2,
        trim_wire_bytes=84,
        trim_lane=1,
        queue_limit_bytes=40_000,
        window_packets=512,
    )
    flows = [(i, 4, MB) for i in range(4)]
    m = machine(
        star(5),
        config,
        flows,
        mode=s.SELECTIVE,
        reorder=s.NEVER,
        control=2,
        window_bytes=300_000,
        base_ps=5 * US,
        ack_sl=1,
        rto_ps=10_000 * US,
    )
    set_nscc(m, rtt_ps=5 * US, bdp_bytes=250_000)
    m.run()
    assert m.state.count.trims.sum() > 0
    assert m.state.qp.timeouts.sum() == 0
    assert m.state.qp.retransmitted.sum() == m.state.count.trims.sum()
    floor = 4 * MB / 4096 * WIRE / US
    assert done_us(m).max() < 2 * floor


def set_nscc(m, *, rtt_ps: int, bdp_bytes: int) -> None:
    """NSCC's parameters scaled from its reference network (100 Gb/s, 12 us)."""
    n, mtu = m.state.nscc_settings, 4096
    target = rtt_ps * 3 // 4
    a, b = bdp_bytes / 150_000, target / 12e6
    n.target_ps, n.adjust_bytes, n.adjust_ps = target, 8 * mtu, rtt_ps
    n.gamma_q, n.fair, n.eta = int(0.8 * 65536), int(5 * mtu * a), int(0.15 * mtu * a)
    n.alpha_q, n.fast_q = int(4 * mtu * a * b / target * 2**24), int(0.25 * a * 65536)
    n.fast_ps, n.gate_shift, n.minimum = US, 3, mtu


def shares(arbitration: Arbitration, flows: list[int], **changes) -> list[int]:
    """Packets delivered of endless flows, one a lane, that meet at one InfiniBand link; by lane."""
    n = len(flows)
    config = infiniband(lanes=n, arbitrations=(arbitration,), **changes)
    m = machine(dumbbell(n, n, kind="infiniband", credit_bytes=512 << 10), config, [])
    for lane in flows:
        post(m, [(lane, n + lane, 200_000_000)], sl=lane, ack_sl=lane)
    m.run(600 * US)
    assert not checks.violations(m.state)
    return [int(qp.expected) for qp in m.state.qp]


def test_low_priority_lanes_share_a_link_by_their_weights():
    """Weights are in 64 bytes, and a packet of 4,122 takes 65: three a turn against one."""
    light, heavy = shares(Arbitration(low=((0, 64), (1, 192))), [0, 1])
    assert heavy / light == pytest.approx(3, rel=0.02)
    one, two, three, four = shares(Arbitration(low=((0, 65), (1, 130), (2, 65), (3, 0), (3, 65))), [0, 1, 2, 3])
    assert two / one == pytest.approx(2, rel=0.02)
    assert three / one == pytest.approx(1, rel=0.02)
    assert four / one == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(("limit", "high_packets"), [(0, 1), (1, 1), (4, 4), (16, 16)])
def test_the_high_limit_lets_a_low_priority_packet_through(limit, high_packets):
    """Limit of High-Priority counts 4,096 bytes, 0 is one packet; then one packet of the low table goes."""
    low, high = shares(Arbitration(high=((1, 255),), low=((0, 1),), high_limit=limit), [0, 1])
    assert high / low == pytest.approx(high_packets, rel=0.02)


def test_without_a_high_limit_low_priority_waits_for_ever():
    low, high = shares(Arbitration(high=((1, 1),), low=((0, 255),), high_limit=255), [0, 1])
    assert high > 7_000
    assert low <= 2  # what was on the wire before the other came


def test_a_lane_in_no_arbitration_table_is_refused():
    with pytest.raises(ValueError, match="without lane 1, which would never be served"):
        shares(Arbitration(low=((0, 64),)), [0, 1])


def test_the_lane_depends_on_the_input_port_where_the_tables_say_so():
    """One service level, two hosts: the switch puts each input on a lane of its own toward the third host."""
    wiring = star(3, kind="infiniband")
    first = int(wiring.node_port_start[3])
    rows = ((0,) * 16, (0,) * 16, (1,) * 16, (0,) * 16)  # row 0 for hosts; then inputs 1, 2, 3 of the switch
    of = np.where(np.arange(len(wiring.port_node)) >= first, 1, 0)
    config = infiniband(lanes=2, sl2vl=rows, port_sl2vl=of, sl2vl_by_input=of > 0)
    m = machine(wiring, config, [(0, 2, 400_000), (1, 2, 800_000)])
    m.run()
    out = first + 2
    assert m.state.outlet.last_tx[2 * out] > 0
    assert m.state.outlet.last_tx[2 * out + 1] > m.state.outlet.last_tx[2 * out]
    assert not checks.violations(m.state)
