"""Rules of TCP's congestion controls one by one, on state of a few lines: CUBIC and DCTCP."""

from __future__ import annotations

import pytest
from support.plain_kernel import Record, plain

from fabrictwin.base.congestion_controls import CONTROLS, Scale
from fabrictwin.kernel.packet.congestion import cubic, dctcp

MTU = 1000
SECOND = 10**12
SCALE = Scale(mtu_bytes=MTU, header_bytes=78, nic_bps=10**11, bdp_bytes=100_000, round_trip_ps=8_000_000)


def sender(name: str, window: int, rtt: int = SECOND // 10, **more):
    """Return state, queue pair and the control's record of one sender with RFC's parameters."""
    algorithm = {"cubic": cubic, "dctcp": dctcp}[name]
    fields = algorithm.dtype.names
    w = Record(**dict.fromkeys(fields, 0))
    algorithm.start(w, 0, None)
    for key, value in more.items():
        setattr(w, key, value)
    settings = Record(**CONTROLS[name][""].settings(SCALE))
    state = Record(**{name: [w], f"{name}_settings": [settings]}, settings=[Record(mtu=MTU)])
    return state, Record(window=window, rtt_ps=rtt), w


@plain
@pytest.mark.parametrize(("name", "algorithm"), [("cubic", cubic), ("dctcp", dctcp)])
def test_slow_start_doubles_a_window_a_round_trip(name, algorithm):
    state, qp, _ = sender(name, 10 * MTU)
    for i in range(10):
        algorithm.on_ack(state, 0, qp, MTU, *([0] if name == "dctcp" else []), i)
    assert qp.window == 20 * MTU


@plain
def test_a_loss_leaves_cubic_seven_tenths_once_a_round_trip():
    state, qp, w = sender("cubic", 100 * MTU, rtt=500)
    cubic.on_loss(state, 0, qp, 1000)
    assert qp.window == pytest.approx(70 * MTU, abs=2)
    assert w.threshold == qp.window
    cubic.on_loss(state, 0, qp, 1499)
    assert qp.window == pytest.approx(70 * MTU, abs=2)
    cubic.on_loss(state, 0, qp, 1500)
    assert qp.window == pytest.approx(49 * MTU, abs=2)
    assert w.plateau == pytest.approx(0.85 * 70 * MTU, abs=2)  # it shrank: fast convergence


@plain
def test_cubic_is_back_where_it_was_after_its_time_and_flat_there():
    """K = cube root of (what is missing / C): 30 packets and C = 0.4 make 4.2 s."""
    state, qp, w = sender("cubic", 100 * MTU)
    cubic.on_loss(state, 0, qp, 0)
    state.cubic_settings[0].friendly_q, w.before = 0, 1 << 40  # no Reno beside it
    seen = {}
    for tenth in range(1, 80):
        for _ in range(qp.window // MTU):
            cubic.on_ack(state, 0, qp, MTU, tenth * SECOND // 10)
        seen[tenth] = qp.window / MTU
    k = (30 / 0.4) ** (1 / 3)
    assert w.until_flat / 1024 == pytest.approx(k, abs=0.01)
    for tenth in (20, 30, 42, 60, 75):
        t = (
            tenth / 10 + 0.1
        )  # aimed at a round trip ahead; the epoch begins with the first acknowledgement, at 0.1 s
        assert seen[tenth] == pytest.approx(100 + 0.4 * (t - 0.1 - k) ** 3, rel=0.06)


@plain
def test_with_short_round_trips_cubic_follows_reno():
    """In data centres: 0.53 packets a round trip until the window of before, then one."""
    rtt = 10_000_000  # 10 us
    state, qp, _ = sender("cubic", 100 * MTU, rtt=rtt)
    cubic.on_loss(state, 0, qp, 0)
    begin = qp.window
    for trip in range(1, 21):
        for _ in range(qp.window // MTU):
            cubic.on_ack(state, 0, qp, MTU, trip * rtt)
    assert (qp.window - begin) / MTU == pytest.approx(20 * 3 * 0.3 / 1.7, rel=0.05)


@plain
@pytest.mark.parametrize(("name", "algorithm", "left"), [("cubic", cubic, 0.7), ("dctcp", dctcp, 0.5)])
def test_a_time_out_leaves_one_packet_and_slow_start_to_the_threshold(name, algorithm, left):
    state, qp, w = sender(name, 100 * MTU)
    algorithm.on_silence(state, 0, qp, 5)
    assert qp.window == MTU
    assert w.threshold == pytest.approx(left * 100 * MTU, abs=2)


@plain
@pytest.mark.parametrize("x", [0, 1, 7, 8, 26, 27, 10**9 - 1, 10**9, (1 << 62) - 1])
def test_cube_roots_are_whole(x):
    root = cubic.cube_root(x)
    assert root**3 <= x < (root + 1) ** 3


@plain
@pytest.mark.parametrize("share", [1, 4, 20])
def test_dctcp_takes_half_of_the_marked_share(share):
    """With every n-th packet marked for long, alpha is 1/n, and a window with a mark takes alpha / 2."""
    state, qp, w = sender("dctcp", 40 * MTU, threshold=1)
    count = 0
    for _ in range(400):
        qp.window, w.observed, w.acked, w.marked = 40 * MTU, 40 * MTU, 0, 0
        for _ in range(40):
            count += 1
            dctcp.on_ack(state, 0, qp, MTU, int(count % share == 0), count)
    assert w.alpha_q / 2**16 == pytest.approx(1 / share, abs=0.02)
    assert qp.window == pytest.approx(41 * MTU * (1 - 0.5 / share), rel=0.02)


@plain
def test_unmarked_dctcp_gains_a_packet_a_round_trip_and_forgets():
    state, qp, w = sender("dctcp", 40 * MTU, threshold=1, observed=40 * MTU)
    for i in range(40):
        dctcp.on_ack(state, 0, qp, MTU, 0, i)
    assert qp.window == pytest.approx(41 * MTU, abs=30)
    assert w.alpha_q == pytest.approx(2**16 * 15 / 16, abs=1)
    for i in range(10_000):
        dctcp.on_ack(state, 0, qp, 50 * MTU, 0, i)
    assert w.alpha_q == 0  # not stuck where the shift ends
    qp.window = state.dctcp_settings[0].maximum
    dctcp.on_ack(state, 0, qp, 100 * qp.window, 0, 10**6)
    assert qp.window == state.dctcp_settings[0].maximum


@plain
def test_dctcp_loses_half_to_a_lost_packet_once_a_round_trip():
    state, qp, _ = sender("dctcp", 40 * MTU, rtt=100)
    dctcp.on_loss(state, 0, qp, 1000)
    dctcp.on_loss(state, 0, qp, 1099)
    assert qp.window == 20 * MTU
    dctcp.on_loss(state, 0, qp, 1100)
    assert qp.window == 10 * MTU
