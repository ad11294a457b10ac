"""Rules of the packet kernel one by one, on state of a few lines: congestion, arbitration, buffers, events.

The functions are called as plain Python, so that plain objects do for the kernel's records: where kernels are
compiled, these tests run in a process of their own.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace as Record

import pytest
from numba import config

from fabrictwin.kernel.packet import events, loop, machine, tap
from fabrictwin.kernel.packet.congestion import dcqcn, nscc
from fabrictwin.kernel.packet.events import KIND_SHIFT, PORT_MASK, PORT_SHIFT, VALUE_MASK, VL_SHIFT, QueueEvent
from fabrictwin.kernel.packet.state import constants, packets
from fabrictwin.kernel.packet.switch import arbitration, buffer, pauses, route, transmit
from fabrictwin.kernel.packet.transport import receive, replies

plain = pytest.mark.skipif(not config.DISABLE_JIT, reason="runs as plain Python, in a process of its own")
NONE = -1
NEVER = receive.NEVER


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="runs them already")
def test_as_plain_python():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.fixture
def scheduled(monkeypatch):
    """What is put on the heap instead of there: (time, kind, port, value)."""
    seen: list[tuple[int, int, int, int]] = []

    def push(state, time, what):
        seen.append((time, what >> KIND_SHIFT, (what >> PORT_SHIFT) & PORT_MASK, what & VALUE_MASK))

    for module in (dcqcn, buffer, receive, transmit):
        if hasattr(module, "push_heap"):
            monkeypatch.setattr(module, "push_heap", push)
    return seen


# ---------------------------------------------------------------------- DCQCN (Zhu et al. 2015, section 3)

LINE, ONE, G = 100_000_000, 1 << 30, 4
ALPHA, CLIMB = 55, 300  # ps of its two timers


def rate_control(**more):
    """A queue pair at its line rate under a controller, and its state."""
    settings = Record(
        fast=3, hyper=7_000_000, additive=1_000_000, alpha_ps=ALPHA, increase_ps=CLIMB, decrease_ps=50,
        g_shift=G, minimum=1000, byte_counter=10_000,
    )  # fmt: skip
    d = Record(
        active=0, rate=LINE, target=LINE, line=LINE, alpha=ONE, alpha_due=0, increase_due=0, marked=0,
        last_decrease=-1000, time_stage=0, byte_stage=0, bytes=0,
    )  # fmt: skip
    for name, value in more.items():
        setattr(d, name, value)
    return Record(dcqcn=[d], dcqcn_settings=[settings]), Record(gap_q=0, counts=0), d


def gap(rate):
    """Picoseconds a byte at kb/s, in 2**-20: 8 bits over the rate."""
    return 8 * 10**12 // 1000 * 2**20 // rate


@plain
def test_the_first_notification_halves_the_rate_and_starts_the_clocks(scheduled):
    state, qp, d = rate_control()
    dcqcn.on_cnp(state, 6, qp, 0) if False else None
    state.dcqcn = {6: d}
    dcqcn.on_cnp(state, 6, qp, 200)
    assert (d.active, d.marked, qp.counts) == (1, 1, 1)
    decayed = ONE
    for _ in range(200 // ALPHA):
        decayed -= decayed >> G
    assert d.alpha == decayed
    assert d.rate == LINE - ((LINE * decayed) >> 31)
    assert (d.target, d.last_decrease) == (LINE, 200)
    assert qp.gap_q == gap(d.rate)
    assert (d.alpha_due, d.increase_due) == (200 + ALPHA, 200 + CLIMB)
    assert scheduled == [(200 + ALPHA, QueueEvent.CONTROL, 0, 6), (200 + CLIMB, QueueEvent.CONTROL, 1, 6)]


@plain
def test_cuts_are_some_time_apart(scheduled):
    state, qp, d = rate_control(alpha=ONE)
    dcqcn.on_cnp(state, 0, qp, 0)
    assert d.rate == LINE // 2
    d.marked, d.bytes, d.time_stage, d.byte_stage = 0, 9, 2, 3
    dcqcn.on_cnp(state, 0, qp, 49)
    assert (d.rate, d.marked, d.bytes, d.time_stage) == (LINE // 2, 1, 9, 2)
    dcqcn.on_cnp(state, 0, qp, 50)
    assert (d.rate, d.target) == (LINE // 4, LINE // 2)
    assert (d.bytes, d.time_stage, d.byte_stage, d.increase_due) == (0, 0, 0, 50 + CLIMB)
    assert len(scheduled) == 2  # the clocks run already
    d.rate = 1500
    dcqcn.on_cnp(state, 0, qp, 1000)
    assert d.rate == 1000  # no less than the least
    assert qp.gap_q == gap(1000)


@plain
def test_alpha_is_forgotten_by_and_by(scheduled):
    state, qp, d = rate_control(alpha=ONE, alpha_due=0)
    dcqcn.on_cnp(state, 0, qp, ALPHA * 10**9)  # as if it had decayed all the while
    assert d.alpha < 1 << G
    assert d.rate >= LINE - (LINE >> 20)
    assert len(scheduled) == 2


@plain
@pytest.mark.parametrize("marked", [0, 1])
def test_alpha_follows_whether_a_notification_came(scheduled, marked):
    state, qp, d = rate_control(active=1, alpha=ONE // 2, marked=marked, alpha_due=70)
    dcqcn.on_timer(state, 0, qp, 0, 69)
    dcqcn.on_timer(state, 0, qp, 0, 71)
    assert (d.alpha, scheduled) == (ONE // 2, [])
    dcqcn.on_timer(state, 0, qp, 0, 70)
    assert d.alpha == ONE // 2 - (ONE // 2 >> G) + (ONE >> G) * marked
    assert (d.marked, d.alpha_due, scheduled) == (0, 70 + ALPHA, [(70 + ALPHA, QueueEvent.CONTROL, 0, 0)])
    d.active = 0
    dcqcn.on_timer(state, 0, qp, 0, 70 + ALPHA)
    assert len(scheduled) == 1


@plain
def test_the_climbing_timer_waits_for_its_time(scheduled):
    state, qp, d = rate_control(active=1, rate=LINE // 2, target=LINE * 3 // 4, increase_due=500)
    dcqcn.on_timer(state, 0, qp, 1, 400)
    assert (scheduled, d.time_stage) == ([(500, QueueEvent.CONTROL, 1, 0)], 0)
    dcqcn.on_timer(state, 0, qp, 1, 501)
    assert (len(scheduled), d.time_stage) == (1, 0)
    dcqcn.on_timer(state, 0, qp, 1, 500)
    assert (d.time_stage, d.increase_due) == (1, 500 + CLIMB)
    assert scheduled[1:] == [(500 + CLIMB, QueueEvent.CONTROL, 1, 0)]
    assert d.rate == (LINE // 2 + LINE * 3 // 4) // 2
    assert d.target == LINE * 3 // 4
    assert qp.gap_q == gap(d.rate)


@plain
@pytest.mark.parametrize(
    ("time_stage", "byte_stage", "raised"),
    [(2, 2, 0), (3, 0, 1_000_000), (0, 3, 1_000_000), (3, 2, 1_000_000), (3, 3, 7_000_000), (4, 3, 7_000_000)],
)
def test_recovery_is_fast_then_additive_then_hyper(time_stage, byte_stage, raised):
    state, qp, d = rate_control(rate=20_000_000, target=40_000_000, time_stage=time_stage, byte_stage=byte_stage)
    dcqcn._increase(qp, d, state.dcqcn_settings[0])
    assert d.target == 40_000_000 + raised
    assert d.rate == (20_000_000 + d.target) // 2
    assert qp.gap_q == gap(d.rate)


@plain
def test_the_line_rate_ends_it():
    state, qp, d = rate_control(active=1, rate=LINE - (LINE >> 9), target=LINE - 5, time_stage=3)
    qp.counts = 1
    dcqcn._increase(qp, d, state.dcqcn_settings[0])
    assert d.target == LINE  # no more than the line's
    assert (d.rate, d.active, qp.counts, qp.gap_q) == (LINE, 0, 0, 0)
    state, qp, d = rate_control(active=1, rate=LINE // 2, target=LINE, time_stage=0)
    dcqcn._increase(qp, d, state.dcqcn_settings[0])
    assert (d.active, d.rate) == (1, LINE * 3 // 4)


@plain
def test_bytes_count_toward_a_stage():
    state, qp, d = rate_control(active=1, rate=LINE // 2, target=LINE // 2)
    dcqcn.on_sent(state, 0, qp, 9_999, 0)
    assert (d.bytes, d.byte_stage) == (9_999, 0)
    dcqcn.on_sent(state, 0, qp, 1, 0)
    assert (d.bytes, d.byte_stage) == (0, 1)
    dcqcn.on_sent(state, 0, qp, 10_500, 0)
    assert (d.bytes, d.byte_stage) == (500, 2)


# ---------------------------------------------------------------------- NSCC (UE 1.0, 3.6; uet-htsim)

TARGET, BASE, MTU = 1000, 4000, 100


def window_control(window=10_000, **more):
    settings = Record(
        target_ps=TARGET, minimum=200, gate_shift=2, fast_ps=100, fast_q=1 << 14, alpha_q=1 << 24, fair=3,
        gamma_q=int(0.8 * 2**16), adjust_bytes=800, adjust_ps=5000, eta=7,
    )  # fmt: skip
    n = Record(
        delay_ps=0, maximum=40_000, quick_end=10**9, quick_wanted=0, quick_bytes=0, ignore=0, base_ps=BASE,
        gained=0, acked=0, fast=0, growing=0, decreased_ps=0, adjusted_ps=10**6,
    )  # fmt: skip
    qp = Record(window=window, rtt_ps=BASE, inflight=5)
    for name, value in more.items():
        setattr(qp if hasattr(qp, name) else n, name, value)
    return Record(nscc=[n], nscc_settings=[settings], settings=[Record(mtu=MTU)]), qp, n


def acked(delay, echo=0, *, size=MTU, now=10**6, **more):
    state, qp, n = window_control(rtt_ps=BASE + delay, **more)
    nscc.on_ack(state, 0, qp, size, echo, now)
    return qp, n


@plain
@pytest.mark.parametrize(
    ("delay", "echo", "gained"),
    [(500, 0, 500 * MTU), (999, 0, MTU), (1000, 0, 3 * MTU), (2000, 0, 3 * MTU), (500, 1, 0), (1500, 1, 0)],
)
def test_four_cases_of_an_acknowledgement(delay, echo, gained):
    qp, n = acked(delay, echo)
    assert (n.gained, n.acked, n.quick_bytes, qp.window) == (gained, MTU, MTU, 10_000)


@plain
@pytest.mark.parametrize(
    ("delay", "echo", "sample"), [(500, 0, 500), (1000, 0, 1000), (2000, 0, 1000), (2000, 1, 2000)]
)
def test_a_long_delay_without_a_mark_counts_a_quarter_round_trip(delay, echo, sample):
    _, n = acked(delay, echo, delay_ps=640)
    assert n.delay_ps == 640 + ((sample - 640) * 819 >> 16)


@plain
def test_a_marked_late_acknowledgement_shrinks_the_window_once_a_round():
    qp, n = acked(1500, 1, delay_ps=2000, fast=5, growing=1)
    average = 2000 + ((1500 - 2000) * 819 >> 16)
    excess = (((average - TARGET) << 16) // average) * int(0.8 * 2**16) >> 16
    assert qp.window == 10_000 - (10_000 * excess >> 16)
    assert (n.decreased_ps, n.fast, n.growing) == (10**6, 0, 0)
    for more in ({"decreased_ps": 10**6 - BASE}, {"delay_ps": 990}):
        qp, _ = acked(1500, 1, **({"delay_ps": 2000} | more))
        assert qp.window == 10_000
    qp, _ = acked(1500, 1, delay_ps=2000, decreased_ps=10**6 - BASE - 1)
    assert qp.window < 10_000
    qp, _ = acked(3999, 1, delay_ps=10**9)
    assert qp.window == 5000 if excess > 2**15 else qp.window >= 10_000 - (10_000 * int(0.8 * 2**16) >> 16)


@plain
def test_the_window_grows_fast_where_there_is_hardly_a_queue():
    qp, n = acked(50, fast=9_900)
    assert (n.fast, n.growing, n.gained) == (10_000, 0, 950 * MTU)  # a window's worth is not yet through
    qp, n = acked(50, fast=9_901)
    assert (qp.window, n.growing, n.gained) == (10_000 + (MTU >> 2), 1, 0)
    qp, n = acked(50, growing=1)
    assert qp.window == 10_000 + (MTU >> 2)
    qp, n = acked(100, fast=9_901, growing=1)
    assert (n.fast, n.growing, n.gained) == (0, 0, 900 * MTU)


@plain
def test_what_was_gained_is_applied_over_the_window():
    state, qp, n = window_control(rtt_ps=BASE + 2000, acked=701, gained=50_000)
    nscc.on_ack(state, 0, qp, MTU, 0, 10**6)
    assert qp.window == 10_000 + (50_000 + 300) // 10_000
    assert (n.gained, n.acked, n.adjusted_ps) == (0, 0, 10**6)
    state, qp, n = window_control(rtt_ps=BASE + 2000, acked=700, gained=50_000)
    nscc.on_ack(state, 0, qp, MTU, 0, 10**6)
    assert (qp.window, n.acked) == (10_000, 800)
    for waited, raised in ((5000, 0), (5001, 7 + 5)):
        state, qp, n = window_control(rtt_ps=BASE + 2000, gained=50_000, adjusted_ps=10**6 - waited)
        nscc.on_ack(state, 0, qp, MTU, 0, 10**6)
        assert qp.window == 10_000 + raised
        assert n.adjusted_ps == (10**6 if raised else 10**6 - waited)


@plain
@pytest.mark.parametrize(("window", "held"), [(39_990, 40_000), (10, 200)])
def test_windows_have_bounds(window, held):
    state, qp, _ = window_control(window=window, rtt_ps=BASE + 50, growing=1)
    nscc.on_ack(state, 0, qp, MTU, 0, 10**6)
    assert qp.window == held


@plain
def test_a_round_with_far_too_little_through_becomes_the_window():
    late = 4 * TARGET + 1
    for more, expected in (
        ({"quick_bytes": 900}, 1000),
        ({"quick_bytes": 9_899}, 9_999),  # a quarter of the greatest window is the gate
        ({"quick_bytes": 9_900}, 10_000),
        ({"quick_bytes": 0}, 200),
        ({"quick_bytes": 900, "quick_end": 0}, 10_000),  # the first round has no end yet
    ):
        state, qp, n = window_control(rtt_ps=BASE + late, **({"quick_end": 10**6 - 1, "gained": 9} | more))
        nscc.on_ack(state, 0, qp, MTU, 0, 10**6)
        assert qp.window == expected
        assert (n.quick_bytes, n.quick_end) == (0, 10**6 + BASE + TARGET)
        if expected != 10_000:
            assert (n.ignore, n.gained, n.acked) == (5 * MTU, 0, 0)
    state, qp, n = window_control(rtt_ps=BASE + late - 1, quick_end=10**6 - 1, quick_bytes=900)
    nscc.on_ack(state, 0, qp, MTU, 0, 10**6)
    assert qp.window == 10_000
    state, qp, n = window_control(rtt_ps=BASE, quick_end=10**6 - 1, quick_bytes=900, quick_wanted=1)
    nscc.on_ack(state, 0, qp, MTU, 1, 10**6)
    assert (qp.window, n.quick_wanted) == (1000, 0)
    state, qp, n = window_control(rtt_ps=BASE + late, quick_end=10**6, quick_bytes=900)
    nscc.on_ack(state, 0, qp, MTU, 0, 10**6)
    assert (qp.window, n.quick_end) == (10_000, 10**6)


@plain
def test_marks_of_what_was_in_flight_are_old_news():
    qp, n = acked(1500, 1, delay_ps=2000, ignore=MTU + 1)
    assert (qp.window, n.ignore, n.acked) == (10_000, 1, 0)
    qp, n = acked(1500, 1, delay_ps=2000, ignore=MTU)
    assert (n.ignore, n.acked) == (0, MTU)
    assert qp.window < 10_000
    _, n = acked(1500, 0, ignore=MTU + 1)
    assert n.acked == MTU


@plain
def test_a_loss_gives_up_its_place():
    state, qp, n = window_control(delay_ps=100)
    nscc.on_loss(state, 0, qp, 10**6)
    assert (qp.window, n.quick_wanted) == (10_000 - MTU, 1)
    assert n.delay_ps == 100 + ((5000 - 100) * 819 >> 16)
    state, qp, n = window_control(ignore=MTU + 1)
    nscc.on_loss(state, 0, qp, 10**6)
    assert (qp.window, n.ignore) == (10_000, 1)
    state, qp, _ = window_control(window=250)
    nscc.on_loss(state, 0, qp, 10**6)
    assert qp.window == 200


# ---------------------------------------------------------------------- routes


@plain
def test_a_switch_looks_packets_up():
    node = Record(row=1, port_start=40, seed=77)
    ends = {5: Record(edge_row=1, edge_port=44, lid=9, edge=2), 6: Record(edge_row=0, edge_port=3, lid=9, edge=2)}
    state = Record(
        endpoint=ends, settings=[Record(balance=0)], lft={(1, 9): 4}, group_of={(1, 2): 0},
        group_start=[0, 3], group_ports=[40, 41, 42], queued=dict.fromkeys(range(60), 0),
    )  # fmt: skip
    packet = Record(dst=6, hop=0, hop_end=0, entropy=1, psn=0)
    assert route.look_up(state, node, packet) == 43  # port 4 of the table, counted from 1
    for held in (0, 255):
        state.lft[1, 9] = held
        assert route.look_up(state, node, packet) == NONE
    assert route.look_up(state, node, Record(dst=5, entropy=0, psn=0)) == 44  # at its own switch
    assert route.look_up(state, node, Record(dst=-1)) == NONE
    assert route.look_up(state, Record(row=-1), packet) == NONE
    for balance in (1, 2):
        state.settings[0].balance = balance
        used = {route.look_up(state, node, Record(dst=6, entropy=e, psn=0)) for e in range(60)}
        assert used == {40, 41, 42}
        state.group_of[1, 2] = NONE
        assert route.look_up(state, node, packet) == NONE
        state.group_of[1, 2] = 0
    state.queued.update({40: 5, 41: 3, 42: 9})
    assert {route.look_up(state, node, Record(dst=6, entropy=e, psn=e)) for e in range(60)} == {41}


@plain
@pytest.mark.parametrize(
    ("queued", "at", "best"),
    [([5, 5, 5], 1, 1), ([5, 5, 5], 2, 2), ([5, 4, 5], 2, 1), ([0, 0, 9], 1, 1), ([3, 9, 3], 1, 2),
     ([3, 9, 2], 0, 2), ([1, 9, 9], 1, 0)],
)  # fmt: skip
def test_the_shortest_queue_is_taken_from_a_place_on(queued, at, best):
    state = Record(group_ports=[99, 7, 8, 9], queued={7: queued[0], 8: queued[1], 9: queued[2]})
    assert route.choose_shortest(state, 1, 3, at) == 7 + best


@plain
def test_named_hops_come_first():
    state = Record(hop=[11, 12, 13])
    packet = Record(hop=1, hop_end=3, dst=-1)
    assert [route.route(state, Record(row=0), packet) for _ in range(3)] == [12, 13, NONE]
    assert packet.hop == 3


# ---------------------------------------------------------------------- arbitration


@plain
@pytest.mark.parametrize(("lanes", "found"), [(1, 0), (2, 1), (3, 1), (0b10100, 4), (0x8000, 15)])
def test_the_highest_lane(lanes, found):
    assert arbitration.highest(lanes) == found


def tables(low, high, *, limit=4096, row=0):
    """A port with two tables of (lane, weight), 64 entries each."""
    entries = {}
    for table, listed in ((0, high), (1, low)):
        for at in range(64):
            lane, weight = listed[at] if at < len(listed) else (0, 0)
            entries[(row * 2 + table) * 64 + at, 0], entries[(row * 2 + table) * 64 + at, 1] = lane, weight
    arbiter = Record(row=row, low_at=0, low_left=0, high_at=0, high_left=0, budget=limit, pick=NONE, pick_table=1)
    return Record(arbitration=entries, arbiter=[arbiter], high_limit={row: limit}), arbiter


def served(state, eligible, wires):
    lanes = []
    for wire in wires:
        lanes.append(arbitration.from_tables(state, 0, eligible))
        arbitration.charge(state, 0, wire)
    return lanes


@plain
@pytest.mark.parametrize("row", [0, 2])
def test_entries_are_served_by_weight_in_a_circle(row):
    state, _ = tables([(1, 2), (2, 1), (3, 0), (1, 1)], [], row=row)
    # weights count 64 bytes; the first turn goes to the entry behind the present one
    assert served(state, 0b110, [64] * 9) == [2, 1, 1, 1, 2, 1, 1, 1, 2]
    state, _ = tables([(1, 2), (2, 1)], [])
    assert served(state, 0b110, [65] * 5) == [2, 1, 2, 1, 2]  # two blocks each, the last may go beyond
    assert served(state, 0b010, [64] * 3) == [1, 1, 1]


@plain
def test_the_high_table_has_its_limit():
    state, arbiter = tables([(0, 1)], [(5, 255)], limit=2 * 4096)
    assert served(state, 0b100001, [4096] * 6) == [5, 5, 0, 5, 5, 0]
    assert arbiter.budget == 2 * 4096
    state, _ = tables([(0, 1)], [(5, 255)], limit=1)
    assert served(state, 0b100001, [64] * 4) == [5, 0, 5, 0]
    state, _ = tables([(0, 1)], [(5, 255)], limit=1)
    assert served(state, 0b100000, [64] * 3) == [5, 5, 5]  # nothing low waits


@plain
def test_a_turn_is_taken_when_a_packet_leaves():
    state, arbiter = tables([(1, 1), (2, 1)], [])
    assert [arbitration.from_tables(state, 0, 0b110) for _ in range(3)] == [2, 2, 2]
    port = Record(traits=arbitration.ARBITRATED)
    arbiter.budget = 0
    assert arbitration.arbitrate(state, 0, port, 0b100) == 2  # alone: no table is asked
    assert arbiter.pick == NONE
    arbitration.charge(state, 0, 64)
    assert arbiter.budget == 4096
    assert arbitration.arbitrate(state, 0, port, 0b110) == 2


def lanes_of(weights, strict=0):
    port = Record(traits=0, strict=strict, wrr=0)
    state = Record(
        settings=[Record(vl_bits=2)], outlet=[Record(deficit=0) for _ in range(12)],
        hold=[Record(quantum=0) for _ in range(8)] + [Record(quantum=w) for w in weights],
    )  # fmt: skip
    return state, port


@plain
def test_ethernet_serves_strict_lanes_first_and_the_others_by_deficit():
    state, port = lanes_of([300, 100, 100, 100], strict=0b1000)
    assert arbitration.arbitrate(state, 2, port, 0b1011) == 3
    taken = []
    for _ in range(8):
        vl = arbitration.arbitrate(state, 2, port, 0b0011)
        state.outlet[8 + vl].deficit -= 100
        taken.append(vl)
    assert taken == [1, 0, 0, 0, 1, 0, 0, 0]
    assert arbitration.arbitrate(state, 2, port, 0b0100) == 2
    state, port = lanes_of([100] * 4)
    taken = []
    for _ in range(6):
        vl = arbitration.arbitrate(state, 2, port, 0b1101)
        state.outlet[8 + vl].deficit -= 100
        taken.append(vl)
    assert taken == [2, 3, 0, 2, 3, 0]
    state, port = lanes_of([100] * 4)
    state.outlet[9].deficit = 70  # an empty lane saves nothing up
    arbitration.arbitrate(state, 2, port, 0b0011)
    assert state.outlet[9].deficit == 100
    state.outlet[9].deficit = -30
    port.wrr = 0
    arbitration.arbitrate(state, 2, port, 0b0011)
    assert state.outlet[9].deficit == 70


# ---------------------------------------------------------------------- buffers


@plain
@pytest.mark.parametrize(("wire", "count"), [(1, 1), (64, 1), (65, 2), (128, 2), (4096, 64)])
def test_credits_are_blocks_of_64_bytes(wire, count):
    assert buffer.blocks(wire) == count


@plain
def test_a_pause_holds_for_65535_quanta():
    # 512 bit times each: at 100 Gb/s a byte takes 80 ps
    assert buffer.pause_ps(Record(ps_q=80 << 20)) == 65535 * 512 // 8 * 80


class Shared:
    """A shared buffer of one inlet: 1000 bytes of its own, a pool of 10,000 at alpha 1/2, 500 of headroom."""

    def __init__(self, monkeypatch, *, lossless=1):
        self.pauses: list[tuple[int, int]] = []
        monkeypatch.setattr(buffer, "send_pause", lambda state, slot, xoff: self.pauses.append((slot, xoff)))
        self.inlet = Record(
            held=0, headroom=0, headroom_limit=500, lossless=lossless, xoff=0, refresh=0, capacity=0
        )
        self.node = Record(
            reserve=1000, shared_limit=10_000, shared_used=0, shared_peak=0, alpha_q=128, resume=300, traits=4
        )
        self.state = Record(inlet={6: self.inlet}, settings=[Record(vl_bits=1)], port={3: Record(ps_q=80 << 20)})

    def admit(self, wire):
        return buffer.admit_shared(self.state, self.node, 6, wire, 50)

    def release(self, wire):
        buffer.release_shared(self.state, self.node, 6, wire)

    @property
    def sums(self):
        return self.inlet.held, self.node.shared_used, self.inlet.headroom


@plain
def test_a_shared_buffer_fills_from_its_reserve_to_its_headroom(monkeypatch, scheduled):
    shared = Shared(monkeypatch)
    assert shared.admit(1000)
    assert shared.sums == (1000, 0, 0)
    assert shared.admit(400)
    assert shared.sums == (1400, 400, 0)
    assert buffer.threshold(shared.node) == (10_000 - 400) // 2
    assert shared.admit(4400)  # as much over the reserve as the threshold allows
    assert shared.sums == (5800, 4800, 0)
    assert (shared.node.shared_peak, shared.pauses) == (4800, [])
    assert shared.admit(300)
    assert shared.sums == (5800, 4800, 300)
    assert (shared.pauses, shared.inlet.xoff) == ([(6, 1)], 1)
    assert scheduled == [(50 + buffer.pause_ps(Record(ps_q=80 << 20)) // 2, QueueEvent.PAUSE_REFRESH, 0, 6)]
    assert shared.admit(200)
    assert not shared.admit(1)
    assert shared.sums == (5800, 4800, 500)
    assert len(shared.pauses) == 1
    shared.release(400)
    assert shared.sums == (5800, 4800, 100)
    shared.release(200)
    assert shared.sums == (5700, 4700, 0)
    assert shared.inlet.xoff == 1
    shared.release(1000)
    # over by 3,700; with the 300 to resume at it must fit below (10,000 - 3,700) / 2
    assert (shared.sums, shared.inlet.xoff) == ((4700, 3700, 0), 1)
    shared.release(566)
    assert shared.inlet.xoff == 1
    shared.release(2)
    assert (shared.inlet.xoff, shared.pauses[-1]) == (0, (6, 0))
    shared.release(4132 - 900)
    assert shared.sums == (900, 0, 0)
    assert shared.node.shared_peak == 4800


@plain
def test_a_packet_across_the_reserve_takes_its_part_of_the_pool(monkeypatch):
    shared = Shared(monkeypatch)
    assert shared.admit(900)
    assert shared.admit(300)
    assert shared.sums == (1200, 200, 0)
    shared.release(300)
    assert shared.sums == (900, 0, 0)


@plain
def test_a_lossy_lane_has_no_headroom(monkeypatch):
    shared = Shared(monkeypatch, lossless=0)
    assert not shared.admit(6001)
    assert shared.admit(6000)
    assert shared.pauses == []


@plain
def test_pauses_are_renewed_while_they_last(monkeypatch, scheduled):
    shared = Shared(monkeypatch)
    buffer.set_xoff(shared.state, 6, 10)
    assert (shared.inlet.xoff, shared.inlet.refresh, shared.pauses) == (1, 1, [(6, 1)])
    buffer.set_xoff(shared.state, 6, 20)
    assert len(scheduled) == 1
    buffer.refresh_pause(shared.state, 6, 1000)
    half = buffer.pause_ps(Record(ps_q=80 << 20)) // 2
    assert [time for time, *_ in scheduled] == [10 + half, 1000 + half]
    assert len(shared.pauses) == 3
    shared.inlet.xoff = 0
    buffer.refresh_pause(shared.state, 6, 2000)
    assert (shared.inlet.refresh, len(scheduled), len(shared.pauses)) == (0, 2, 3)


@plain
def test_credits_are_returned_in_batches(monkeypatch):
    sent: list[tuple] = []
    monkeypatch.setattr(buffer, "push", lambda state, lane, time, what: sent.append((lane, time, what)))
    inlet = Record(held=100, unreturned=0, batch=4)
    port = Record(lane_credit=8, credit_ps=30, peer=17)
    state = Record(inlet={13: inlet}, settings=[Record(vl_bits=2)], port={3: port})
    buffer.return_credits(state, 13, 129, 1000)
    assert (inlet.held, inlet.unreturned, sent) == (97, 3, [])
    buffer.return_credits(state, 13, 64, 1001)
    assert (inlet.held, inlet.unreturned) == (96, 0)
    assert sent == [(8, 1031, QueueEvent.CREDITS << KIND_SHIFT | 17 << PORT_SHIFT | 1 << VL_SHIFT | 4)]


@plain
@pytest.mark.parametrize(
    ("length", "least", "most"), [(100, 0, 0), (150, 0.4, 0.6), (125, 0.17, 0.33), (200, 1, 1)]
)
def test_marks_are_drawn_between_two_lengths(monkeypatch, length, least, most):
    drawn = random.Random(3)
    monkeypatch.setattr(buffer, "draw", lambda clock: drawn.randrange(2**32))
    outlet, pmax_q = Record(queued=length, kmin=100, kmax=200), 2**32 - 1
    share = sum(bool(buffer.mark(None, None, outlet, pmax_q)) for _ in range(400)) / 400
    assert least <= share <= most


# ---------------------------------------------------------------------- events


def schedule(lanes=1, room=64):
    heap = [Record(time=0, sequence=0, what=0) for _ in range(room)]
    lane = [Record(head=0, tail=0, mask=3, first=4 * at) for at in range(lanes)]
    event = [Record(time=0, what=0) for _ in range(4 * lanes)]
    clock = Record(heap=0, sequence=0, grow=0)
    return Record(heap=heap, clock=[clock], lane=lane, event=event, lane_time=[events.NEVER] * lanes)


@plain
@pytest.mark.parametrize("seed", range(4))
def test_the_heap_gives_what_is_earliest_and_of_equals_the_first(seed):
    drawn, state = random.Random(seed), schedule(room=400)
    waiting: list[tuple[int, int]] = []
    for what in range(300):
        time = drawn.randrange(40)
        events.push_heap(state, time, what)
        waiting.append((time, what))
        if drawn.random() < 0.4:
            root = state.heap[0]
            assert (root.time, root.what) == min(waiting)
            waiting.remove(min(waiting))
            events.pop_heap(state)
    assert state.clock[0].heap == len(waiting)
    while waiting:
        assert (state.heap[0].time, state.heap[0].what) == min(waiting)
        waiting.remove(min(waiting))
        events.pop_heap(state)
    assert (state.clock[0].sequence, state.clock[0].heap) == (300, 0)


@plain
def test_a_heap_asks_for_room_in_time(monkeypatch):
    monkeypatch.setattr(events, "HEAP_MARGIN", 2)
    state = schedule(room=4)
    for count, grow in ((1, 0), (2, 0), (3, events.GROW_HEAP), (4, events.GROW_HEAP), (5, events.OVERFLOW)):
        state.clock[0].grow = 0
        events.push_heap(state, count, count)
        assert state.clock[0].grow == grow
    assert state.clock[0].heap == 4


@plain
def test_a_lane_keeps_its_order_and_overflows_to_the_heap():
    state = schedule(lanes=2)
    for time in (10, 20, 30, 40):
        events.push(state, 1, time, time)
    assert state.lane_time == [events.NEVER, 10]
    assert (state.lane[1].tail, state.clock[0].heap, state.clock[0].grow) == (4, 0, 0)
    assert [(e.time, e.what) for e in state.event[4:]] == [(10, 10), (20, 20), (30, 30), (40, 40)]
    events.push(state, 1, 50, 50)
    assert (state.clock[0].heap, state.clock[0].grow, state.heap[0].what) == (1, events.GROW_LANES, 50)
    state.lane[1].head = 1
    events.push(state, 1, 60, 60)
    assert (state.event[4].time, state.lane_time[1]) == (60, 10)
    events.push(state, NONE, 5, 5)
    assert state.heap[0].what == 5


@plain
def test_events_are_a_kind_a_port_and_a_value():
    what = events.pack(11, 5, 9)
    assert what == 11 << 59 | 5 << 32 | 9
    assert (events.PORT_MASK, events.VALUE_MASK, events.VL_SHIFT) == (2**27 - 1, 2**32 - 1, 24)
    kinds = list(QueueEvent)
    assert [kind.value for kind in kinds] == list(range(15))
    assert max(kinds) << KIND_SHIFT < 2**63
    # what ports and packets do comes first, what only time brings last
    assert kinds[:4] == [
        QueueEvent.TX_DONE, QueueEvent.ARRIVE, QueueEvent.LATE_ARRIVE, QueueEvent.CREDITS,
    ]  # fmt: skip
    assert [kind for kind in kinds if kind >= QueueEvent.PAUSE_END] == [
        QueueEvent.PAUSE_END, QueueEvent.PAUSE_REFRESH, QueueEvent.RTO, QueueEvent.CONTROL, QueueEvent.HOQ,
        QueueEvent.WATCHDOG,
    ]  # fmt: skip


# ---------------------------------------------------------------------- acknowledgements


@plain
def test_a_rewind_begins_again_where_it_is_told():
    qp = Record(next_psn=9, una=4, sending=3, head=1, inflight=5)
    replies.rewind(qp, 9)
    assert (qp.next_psn, qp.sending, qp.inflight) == (9, 3, 5)
    replies.rewind(qp, 6)
    assert (qp.next_psn, qp.sending, qp.inflight) == (6, 1, 2)


@plain
@pytest.mark.parametrize(
    ("cumulative", "newly", "una", "following"),
    [(4, 0, 4, 9), (3, 0, 4, 9), (6, 2, 6, 9), (9, 5, 9, 9), (11, 7, 11, 11)],
)
def test_acknowledgements_are_cumulative(cumulative, newly, una, following):
    qp = Record(next_psn=9, una=4, inflight=5)
    assert replies.cumulative_ack(qp, cumulative) == newly
    assert (qp.una, qp.next_psn) == (una, following)
    assert qp.inflight == (following - una if newly else 5)


@plain
def test_a_selective_nak_marks_a_packet_lost_once(monkeypatch):
    losses: list[int] = []
    monkeypatch.setattr(replies, "on_loss", lambda state, q, qp, now: losses.append(now))
    state = Record(settings=[Record(bitmap_mask=7)], sacked=[0] * 32)
    qp = Record(mode=1, una=10, next_psn=14, inflight=4, retransmit=0)
    for psn, count in ((9, 0), (14, 0), (12, 1), (12, 1), (10, 2)):
        replies.on_nak(state, 2, qp, 2, psn, 100 + psn)
        assert (len(losses), qp.retransmit, qp.inflight) == (count, count, 4 - count)
    assert [at for at, held in enumerate(state.sacked) if held] == [2 * 8 + 2, 2 * 8 + 4]
    assert {held for held in state.sacked if held} == {2}


@plain
def test_a_receiver_that_is_not_ready_is_asked_again_so_often(monkeypatch):
    given_up: list[int] = []
    monkeypatch.setattr(replies, "give_up", lambda state, qp, now, kind: given_up.append(kind))
    qp = Record(mode=0, una=4, next_psn=9, inflight=5, sending=3, head=1, rnr_limit=2, rnr_retries=0, rnr_ps=70)
    qp.next_send = 0
    for attempt in (1, 2):
        replies.on_nak(None, 0, qp, 3, 6, 1000 * attempt)
        assert (qp.rnr_retries, qp.next_send, given_up) == (attempt, 1000 * attempt + 70, [])
    replies.on_nak(None, 0, qp, 3, 6, 3000)
    assert len(given_up) == 1
    qp.rnr_limit, qp.rnr_retries = 7, 0  # for ever
    replies.on_nak(None, 0, qp, 3, 6, 4000)
    assert (qp.rnr_retries, len(given_up)) == (0, 1)
    before = vars(qp).copy()
    replies.on_nak(None, 0, qp, 3, 3, 5000)  # of what was acknowledged
    assert vars(qp) == before


def arriving(monkeypatch, **more):
    sent: list[tuple] = []
    monkeypatch.setattr(
        receive, "reply", lambda state, q, qp, kind, psn, at, extra, flags: sent.append((kind, psn, extra, flags))
    )
    qp = Record(
        expected=10, nak_sent=0, naks=0, out_of_sequence=0, duplicates=0, receives=NONE, started=0, unacked=0,
        ack_every=3, echo=0, rnr_naks=0, last_end=NONE, reorder=NEVER, examined=0,
    )  # fmt: skip
    for name, value in more.items():
        setattr(qp, name, value)
    state = Record(packet={}, settings=[Record(bitmap_mask=15)], received=[0] * 32)

    def take(psn, marks=0, rule=receive._accept_in_order):
        state.packet[1] = Record(psn=psn, marks=marks, sent_ps=5, extra=NONE)
        return rule(state, 0, qp, 1, 100)

    return state, qp, take, sent


FIRST, LAST, REQUEST = 2, 4, 32


@plain
def test_packets_in_order_are_acknowledged_every_so_many(monkeypatch):
    state, qp, take, sent = arriving(monkeypatch)
    assert [take(psn) for psn in (10, 11, 12)] == [True] * 3
    assert sent == [(1, 13, NONE, 0)]
    assert (qp.unacked, state.packet[1].extra) == (0, 13)
    assert take(13, LAST)
    assert take(14, REQUEST)
    assert sent[1:] == [(1, 14, NONE, 0), (1, 15, NONE, 0)]
    qp.echo = 1
    assert not take(12)  # a duplicate is acknowledged, with the mark that waits
    assert (sent[-1], qp.duplicates, qp.echo) == ((1, 15, NONE, 1), 1, 0)
    assert not take(17)
    assert not take(18)
    assert (qp.out_of_sequence, qp.naks) == (2, 1)  # one NAK until what is missing comes
    assert sent[-1] == (2, 15, 15, 0)
    assert take(15)
    assert not take(17)
    assert qp.naks == 2


@plain
def test_a_message_needs_a_receive(monkeypatch):
    _, qp, take, sent = arriving(monkeypatch, receives=1)
    assert take(10, FIRST | LAST)
    assert not take(11, FIRST | LAST)
    assert (qp.rnr_naks, qp.started, sent[-1]) == (1, 1, (3, 11, 11, 0))
    qp.receives = 2
    assert take(11, FIRST)
    assert take(12, LAST)
    assert (qp.started, qp.expected) == (2, 13)


@plain
def test_packets_in_any_order_fill_their_gaps(monkeypatch):
    state, qp, take, sent = arriving(monkeypatch, ack_every=100)
    any_order = receive._accept_any_order
    assert take(12, 0, any_order)
    assert take(13, LAST, any_order)
    assert (qp.expected, qp.out_of_sequence, qp.last_end, qp.unacked, sent) == (10, 2, 13, 2, [])
    assert not take(12, 0, any_order)
    assert (qp.duplicates, sent) == (1, [(1, 10, NONE, 0)])
    assert take(10, 0, any_order)
    assert (qp.expected, state.packet[1].extra, len(sent)) == (11, 11, 1)
    assert take(11, 0, any_order)
    assert qp.expected == 14
    assert sent[1:] == [(1, 14, NONE, 0)]  # the last of a message is behind it
    assert not any(state.received)
    assert not take(13, 0, any_order)


@plain
def test_a_gap_is_a_loss_where_routes_keep_their_order(monkeypatch):
    _, qp, take, sent = arriving(monkeypatch, ack_every=100, reorder=2)
    any_order = receive._accept_any_order
    assert take(11, 0, any_order)
    assert sent == [(1, 10, 11, 0)]
    assert take(13, 0, any_order)
    assert sent[1:] == [(1, 10, 13, 0), (2, 10, 10, 0)]
    assert (qp.naks, qp.examined) == (1, 11)
    assert take(15, REQUEST, any_order)
    assert sent[3:] == [(1, 10, 15, 0), (2, 12, 10, 0)]
    assert (qp.examined, qp.unacked) == (13, 0)


@plain
def test_a_single_acknowledgement_beyond_the_cumulative_one():
    state = Record(settings=[Record(bitmap_mask=7)], sacked=[0] * 16)
    qp = Record(una=10, next_psn=15, inflight=5, retransmit=0)
    assert receive._selective_ack(state, 1, qp, 10, 13) == 1
    assert (qp.una, qp.inflight, state.sacked[8 + 5]) == (10, 4, 1)
    assert receive._selective_ack(state, 1, qp, 10, 13) == 0
    state.sacked[8 + 3] = 2  # 11 was declared lost
    qp.inflight, qp.retransmit = 3, 1
    assert receive._selective_ack(state, 1, qp, 14, NONE) == 3  # 10, 11, 12: 13 was known
    assert (qp.una, qp.inflight, qp.retransmit) == (14, 1, 0)
    assert not any(state.sacked)
    assert receive._selective_ack(state, 1, qp, 17, NONE) == 3
    assert (qp.una, qp.next_psn) == (17, 17)
    state.sacked[8 + 2] = 2
    qp.retransmit = 1
    assert receive._selective_ack(state, 1, qp, 17, 18) == 1
    assert (qp.retransmit, state.sacked[8 + 2]) == (0, 1)


def timer(monkeypatch, **more):
    seen: list[str] = []
    for name in ("give_up", "reply", "on_loss", "make_ready"):
        monkeypatch.setattr(receive, name, lambda *rest, name=name: seen.append(name))
    qp = Record(
        rto_pending=1, failed=0, head=0, inflight=3, retransmit=0, una=10, next_psn=13, progress_ps=100, rto_ps=50,
        timeouts=0, retries=0, retry_limit=2, noted=0, service=0, mode=0, sending=5, expected=9,
    )  # fmt: skip
    for name, value in more.items():
        setattr(qp, name, value)
    return Record(qp=[qp], settings=[Record(bitmap_mask=7)], sacked=[0] * 8), qp, seen


@plain
def test_a_timeout_sends_everything_again(monkeypatch, scheduled):
    state, qp, seen = timer(monkeypatch)
    receive.on_timeout(state, 0, 149)
    assert (scheduled, qp.timeouts, qp.rto_pending) == ([(150, QueueEvent.RTO, 0, 0)], 0, 1)
    receive.on_timeout(state, 0, 150)
    assert (qp.timeouts, qp.retries, qp.progress_ps, qp.rto_pending) == (1, 1, 150, 0)
    assert (qp.next_psn, qp.sending, qp.inflight, seen) == (10, 0, 0, ["on_loss", "make_ready"])
    for more in ({"failed": 1}, {"head": NONE}, {"inflight": 0, "next_psn": 10}):
        state, qp, seen = timer(monkeypatch, **more)
        receive.on_timeout(state, 0, 1000)
        assert (qp.timeouts, qp.rto_pending, seen) == (0, 0, [])
    state, qp, seen = timer(monkeypatch, retries=1)
    receive.on_timeout(state, 0, 1000)
    assert seen == ["on_loss", "make_ready"]
    state, qp, seen = timer(monkeypatch, retries=2)
    receive.on_timeout(state, 0, 1000)
    assert seen == ["give_up"]
    state, qp, seen = timer(monkeypatch, noted=1, service=receive.RESPONSES)
    receive.on_timeout(state, 0, 1000)
    assert (seen, qp.progress_ps, qp.rto_pending) == (["reply"], 1000, 1)
    assert scheduled[-1] == (1050, QueueEvent.RTO, 0, 0)


@plain
def test_a_timeout_in_any_order_loses_what_is_before_the_last_that_came(monkeypatch):
    state, qp, _ = timer(monkeypatch, mode=1, next_psn=15, inflight=4)
    state.sacked[12 & 7] = 1
    receive.on_timeout(state, 0, 1000)
    assert (qp.retransmit, qp.inflight) == (2, 2)
    assert [at for at, held in enumerate(state.sacked) if held == 2] == [10 & 7, 11 & 7]
    state, qp, _ = timer(monkeypatch, mode=1)
    receive.on_timeout(state, 0, 1000)
    assert (qp.retransmit, qp.inflight) == (3, 0)


# ---------------------------------------------------------------------- packets, pauses, ports


@plain
def test_numbers_are_drawn_by_xorshift():
    """Marsaglia 2003, section 4: from 2463534242 comes 723471715."""
    clock = Record(random=2463534242)
    assert packets.draw(clock) == clock.random == 723471715
    drawn = [packets.draw(clock) for _ in range(2000)]
    assert len(set(drawn)) == 2000
    assert all(0 < x < 2**32 for x in drawn)


@plain
@pytest.mark.parametrize("value", [0, 1, 0x12345678, 2**32 - 1, 2**40 + 5])
def test_hashes_are_two_rounds(value):
    mask = 2**32 - 1
    h = value & mask
    for _ in range(2):
        h = ((h >> 16) ^ h) * 0x45D9F3B & mask
    assert packets.mix(value) == (h >> 16) ^ h


@plain
def test_a_port_is_kicked_once():
    state = Record(port=[Record(kicked=0), Record(kicked=0)], clock=[Record(kicks=0)], kick=[9, 9])
    for at in (1, 1, 0):
        packets.kick(state, at)
    assert (state.kick, state.clock[0].kicks) == ([1, 0], 2)


@plain
def test_columns_of_a_tap():
    names = [
        "DIRECTION",
        "KIND",
        "QP",
        "PSN",
        "PAYLOAD",
        "WIRE",
        "MARKS",
        "SL",
        "VL",
        "EXTRA",
        "START",
        "SIZE",
        "MESSAGE",
        "ENTROPY",
    ]
    assert [getattr(tap, name) for name in names] == list(range(2, 16))


@plain
def test_a_reply_goes_the_receiver_s_way(monkeypatch):
    queued: list[tuple[int, int]] = []
    monkeypatch.setattr(replies, "take_packet", lambda state: 3)
    monkeypatch.setattr(replies, "enqueue", lambda state, at, p: queued.append((at, p)))
    packet = Record()
    settings = Record(cnp_wire=77, cnp_sl=NONE)
    state = Record(
        packet={3: packet}, settings=[settings], endpoint={8: Record(port=21)}, port={21: Record(sl2vl=4)},
        sl2vl={(4, 6): 5},
    )  # fmt: skip
    qp = Record(src=5, dst=8, ack_bytes=62, ack_sl=2, ack_vl=3, ack_entropy=99, ack_hop=11, ack_hop_end=13)
    replies.reply(state, 6, qp, 1, 40, 1000, 41, 1)
    assert vars(packet) == {
        "kind": 1, "qp": 6, "psn": 40, "sent_ps": 1000, "extra": 41, "marks": 1, "dst": 5, "wire": 62,
        "payload": 0,
        "sl": 2, "vl": 3, "entropy": 99, "hop": 11, "hop_end": 13,
    }  # fmt: skip
    assert queued == [(21, 3)]
    replies.reply(state, 6, qp, 4, 40, 1000, 41, 0)
    assert (packet.wire, packet.marks, packet.sl, packet.vl) == (77, 0, 2, 3)
    settings.cnp_sl = 6  # notifications have a level of their own, and the lane that the port gives it
    replies.reply(state, 6, qp, 4, 40, 1000, 41, 0)
    assert (packet.sl, packet.vl) == (6, 5)
    replies.reply(state, 6, qp, 1, 40, 1000, 41, 0)
    assert (packet.sl, packet.vl) == (2, 3)


def pausing(monkeypatch, scheduled):
    def push(state, time, what):
        scheduled.append((time, what >> KIND_SHIFT, (what >> PORT_SHIFT) & PORT_MASK, what & VALUE_MASK))

    monkeypatch.setattr(pauses, "push_heap", push)
    monkeypatch.setattr(pauses, "kick", lambda state, at: scheduled.append(("kick", at)))
    monkeypatch.setattr(pauses, "free_packet", lambda state, p: None)
    port = Record(paused=0, ps_q=80 << 20, traits=0, rx_traits=0, node=0)
    hold = Record(paused_since=NONE, paused_until=0, pause_ps=0)
    packet = Record(vl=1, psn=1, kind=6, slot=NONE, wire=84)
    state = Record(
        packet={0: packet}, port={3: port}, hold={7: hold}, settings=[Record(vl_bits=1)],
        inlet={7: Record(held=0)},
        count={3: Record(pause_rx=0, errors=0)},
    )  # fmt: skip
    return state, port, hold, packet


@plain
def test_a_pause_frame_holds_its_priority_until_it_lapses(monkeypatch):
    seen: list = []
    state, port, hold, packet = pausing(monkeypatch, seen)
    quanta = 65535 * 64 * 80
    pauses.on_pause(state, 3, 0, 100)
    assert (port.paused, hold.paused_since, hold.paused_until) == (2, 100, 100 + quanta)
    assert seen == [(100 + quanta, QueueEvent.PAUSE_END, 3, 7)]
    pauses.on_pause(state, 3, 0, 500)
    assert (hold.paused_since, hold.paused_until, state.count[3].pause_rx) == (100, 500 + quanta, 2)
    packet.psn = 0
    pauses.on_pause(state, 3, 0, 900)
    assert (port.paused, hold.pause_ps, seen[-1]) == (0, 800, ("kick", 3))
    pauses.on_pause(state, 3, 0, 950)
    assert (hold.pause_ps, len(seen)) == (800, 3)


@plain
@pytest.mark.parametrize("storm", [0, 1])
def test_a_pause_that_was_under_way_does_not_hold_what_the_watchdog_let_go(monkeypatch, storm):
    seen: list = []
    state, port, _, _ = pausing(monkeypatch, seen)
    port.traits = constants.RULED
    state.slot_qos = {7: Record(storm=storm)}
    monkeypatch.setattr(pauses, "watch", lambda state, at, slot, now: None)
    pauses.take_pause(state, 3, 7, 1, 100)
    assert (port.paused, len(seen)) == ((0, 0) if storm else (2, 1))


@plain
def test_a_pause_frame_goes_no_further(monkeypatch):
    seen: list = []
    state, port, _, packet = pausing(monkeypatch, seen)
    loop.arrive(state, 3, 0, 100, False)
    assert (port.paused, packet.slot) == (2, 7)


@plain
@pytest.mark.parametrize(("traits", "size"), [(0, 4158), (8, 4096)])
def test_the_rest_of_a_packet_takes_its_bytes_at_the_feeder_s_rate(monkeypatch, traits, size):
    seen: list = []
    monkeypatch.setattr(loop, "push_heap", lambda state, time, what: seen.append((time, what >> KIND_SHIFT)))
    ports = {3: Record(peer=4), 4: Record(traits=traits, ps_q=20 << 20)}
    state = Record(port=ports, packet={9: Record(wire=4158, payload=4096)})
    loop.wait_for_rest(state, 3, 9, 1000)
    assert seen == [(1000 + 20 * size, QueueEvent.LATE_ARRIVE)]


def sending(monkeypatch, **more):
    outlet = Record(head=5, tail=5, ready_head=NONE, credit=100, kmax=0, kmin=0, queued=4158, deficit=0, last_tx=0)
    port = Record(backlog=1, paused=0, starved=0, traits=0, queue_width=1, strict=0, wrr=0)
    packet = Record(next=NONE, wire=4158, kind=0, marks=0)
    hold = Record(hoq_pending=0, quantum=0)
    state = Record(
        settings=[Record(vl_bits=0, hoq_ps=0, pmax_q=11)], slot_qos=[Record(pmax_q=22)], outlet=[outlet],
        packet={5: packet}, clock=[Record()], hold=[hold], count=[Record(ecn_marks=0)], queued=[4158],
    )  # fmt: skip
    for name, value in more.items():
        home = next(one for one in (outlet, port, packet, state.settings[0]) if hasattr(one, name))
        setattr(home, name, value)
    return state, port, outlet, packet


@plain
@pytest.mark.parametrize(("traits", "chance"), [(0, 11), (constants.RULED, 22)])  # all ports', or its own
@pytest.mark.parametrize(("marked", "kind"), [(True, 0), (False, 0), (True, 1)])
def test_data_is_marked_as_it_leaves(monkeypatch, marked, kind, traits, chance):
    chances: list[int] = []
    monkeypatch.setattr(transmit, "mark", lambda state, clock, outlet, pmax_q: chances.append(pmax_q) or marked)
    state, port, outlet, packet = sending(monkeypatch, kmax=10, kind=kind, marks=4, traits=traits)
    assert transmit.choose(state, 0, port, 70) == 5
    assert chances == ([chance] if kind == 0 else [])
    told = marked and kind == 0
    assert (packet.marks, state.count[0].ecn_marks) == (5 if told else 4, int(told))
    assert (outlet.head, outlet.queued, outlet.deficit, outlet.last_tx) == (NONE, 0, -4158, 70)
    assert transmit.choose(state, 0, port, 80) == NONE
    assert port.backlog == 0


@plain
def test_a_lane_without_credits_starves(monkeypatch, scheduled):
    state, port, outlet, _ = sending(monkeypatch, traits=1, credit=64, hoq_ps=500)
    assert transmit.choose(state, 0, port, 70) == NONE
    assert (port.starved, port.backlog, outlet.credit, state.hold[0].hoq_pending) == (1, 1, 64, 1)
    assert scheduled == [(570, QueueEvent.HOQ, 0, 0)]
    outlet.credit, port.starved = 65, 0
    assert transmit.choose(state, 0, port, 80) == 5
    assert outlet.credit == 0
    state, port, _, _ = sending(monkeypatch, paused=1)
    assert transmit.choose(state, 0, port, 70) == NONE
    assert port.backlog == 1


@plain
@pytest.mark.parametrize("replays", [0, 1, 2])
def test_a_link_repairs_its_errors_for_a_round_trip_each(monkeypatch, replays):
    """One error in two of so many bytes: numbers below half of 2**32 ask for the packet again."""
    drawn = iter([2**31 - 1] * replays + [2**31])
    pushed: list[tuple[int, int]] = []
    monkeypatch.setattr(transmit, "draw", lambda clock: next(drawn))
    monkeypatch.setattr(transmit, "push", lambda state, lane, time, what: pushed.append((lane, time)))
    monkeypatch.setattr(transmit, "choose", lambda state, at, port, now: 5)
    packet = Record(wire=1024, payload=1000, slot=8)
    port = Record(
        busy=0, control_head=NONE, wait_since=40, wait_ps=0, traits=32, ps_q=20 << 20, full_bytes=1024,
        ack_bytes=62,
        lane_tx_full=1, lane_arrive_full=2, lane_tx_ack=3, lane_arrive_ack=4, error_q=2**47 // 1024, arrive_ps=300,
        tx_bytes=0, tx_payload=0, tx_packets=0, peer=9, tx_slot=0, tx_wire=0,
    )  # fmt: skip
    state = Record(port={0: port}, packet={5: packet}, clock=[Record(hops=0)], count=[Record(replays=0)])
    transmit.transmit(state, 0, 100)
    took = 20 * 1024 + replays * (600 + 20 * 1024)
    assert state.count[0].replays == replays
    lanes = (1, 2) if not replays else (NONE, NONE)
    assert pushed == [(lanes[0], 100 + took), (lanes[1], 400)]
    assert (port.busy, port.tx_bytes, port.tx_payload, port.tx_packets, port.tx_slot) == (1, 1024, 1000, 1, 8)
    assert (port.wait_ps, port.wait_since, state.clock[0].hops) == (60, NONE, 1)


@plain
def test_gaps_that_are_filled_count_all_that_came(monkeypatch):
    _, qp, take, sent = arriving(monkeypatch, ack_every=100)
    for psn in (12, 11, 10):
        assert take(psn, 0, receive._accept_any_order)
    assert (qp.unacked, qp.expected, sent) == (5, 13, [])  # two held, and three in order


@plain
@pytest.mark.parametrize("drains", [True, False])
def test_a_tap_is_emptied(drains):
    rows: list[int] = []
    drain = (lambda table: rows.extend(table)) if drains else None
    made = Record(state=Record(clock=[Record(tapped=2)], tap=[7, 8, 9]), drain_tap=drain)
    machine.Machine.read_tap(made)
    machine.Machine.read_tap(made)
    assert (rows, made.state.clock[0].tapped) == ([7, 8] if drains else [], 0)


def test_a_queue_pair_has_nothing_limited_unless_it_is_said():
    made = machine.Connection(port=1, src=2, dst=3)
    zero = (
        "mode sl ack_sl first_header_bytes rto_ps rnr_ps reorder entropy ack_entropy control message_ps base_ps "
        "mtu_bytes service late_ps"
    )
    assert {name: int(getattr(made, name)) for name in zero.split()} == dict.fromkeys(zero.split(), 0)
    # RoCE: Ethernet 14 and 4, IP 20, UDP 8, BTH 12, ICRC 4, and 20 of preamble and gap; an AETH more
    assert (made.header_bytes, made.ack_bytes) == (14 + 4 + 20 + 8 + 12 + 4 + 20, 86)
    assert (made.retry_limit, made.rnr_limit, made.ack_every, made.receives) == (7, 7, 1, NONE)
    assert (made.before, made.after, made.back) == ((), (), ())
    assert (made.window_bytes, made.spray, made.noted) == (NEVER, False, False)
