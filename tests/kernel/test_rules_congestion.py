"""Rules of congestion control one by one, on state of a few lines: DCQCN, NSCC and Swift."""

from __future__ import annotations

import pytest
from support.plain_kernel import Record, plain

from fabrictwin.kernel.packet.congestion import dcqcn, ibcc, nscc, swift
from fabrictwin.kernel.packet.events import QueueEvent

# ---------------------------------------------------------------------- DCQCN (Zhu et al. 2015, section 3)

LINE, ONE, G = 100_000_000, 1 << 30, 4
ALPHA, CLIMB = 55, 300  # ps of its two timers


def rate_control(**more):
    """A queue pair at its line rate under a controller, and its state."""
    settings = Record(
        fast=3, hyper=7_000_000, additive=1_000_000, alpha_ps=ALPHA, increase_ps=CLIMB, decrease_ps=50,
        g=1024 >> G, clamp=1, minimum=1000, byte_counter=10_000,
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
@pytest.mark.parametrize(("clamp", "stage", "target"), [(1, 0, LINE // 2), (0, 0, LINE), (0, 1, LINE // 2)])
def test_a_cut_lowers_the_target_always_or_after_the_timer_raised_the_rate(scheduled, clamp, stage, target):
    state, qp, d = rate_control(active=1, rate=LINE // 2, time_stage=stage)
    state.dcqcn_settings[0].clamp = clamp
    dcqcn.on_cnp(state, 0, qp, 0)
    assert (d.rate, d.target, d.time_stage) == (LINE // 4, target, 0)


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


# ---------------------------------------------------------------------- Swift (Kumar et al. 2020, section 3)

ROUND = 10_000  # ps of target without the part that depends on the window


def delay_control(window=10_000, rtt=9_000, **more):
    settings = Record(
        target_ps=ROUND, increase=MTU, beta_q=int(0.8 * 2**16), most_q=1 << 15, scaling_ps=0, offset_ps=0,
        range_ps=5_000, minimum=MTU, maximum=40_000,
    )  # fmt: skip
    for name, value in more.items():
        setattr(settings, name, value)
    w = Record(decreased_ps=-(1 << 62), gained=0)
    state = Record(swift=[w], swift_settings=[settings], settings=[Record(mtu=MTU)])
    return state, Record(window=window, rtt_ps=rtt), w


@plain
def test_early_acknowledgements_of_a_window_add_one_increase():
    state, qp, _ = delay_control()
    for _ in range(100):
        swift.on_ack(state, 0, qp, MTU, 0)
    assert qp.window == pytest.approx(10_000 + MTU, abs=10)
    state, qp, _ = delay_control(window=39_999)
    swift.on_ack(state, 0, qp, 40_000, 0)
    assert qp.window == 40_000


@plain
@pytest.mark.parametrize(("rtt", "share"), [(10_000, 0.0), (12_500, 0.8 * 0.2), (20_000, 0.8 * 0.5), (10**6, 0.5)])
def test_a_late_acknowledgement_takes_its_excess_at_most_half_and_once_a_round_trip(rtt, share):
    state, qp, w = delay_control(window=20_000, rtt=rtt)
    swift.on_ack(state, 0, qp, MTU, 50_000)
    assert qp.window == pytest.approx(20_000 * (1 - share), abs=2)
    assert w.decreased_ps == 50_000
    once = qp.window
    swift.on_ack(state, 0, qp, MTU, 50_000 + rtt - 1)
    assert qp.window == once
    swift.on_loss(state, 0, qp, 50_000 + rtt - 1)
    assert qp.window == once
    swift.on_loss(state, 0, qp, 50_000 + rtt)
    assert qp.window == once - (once >> 1)


@plain
def test_small_windows_may_queue_more():
    """The part beyond the fixed target is scaling over the root of the window in packets, less the offset."""
    state, _, _ = delay_control(scaling_ps=30_000, offset_ps=3_000)
    settings = state.swift_settings[0]
    for packets, more in ((4, 5_000), (16, 4_500), (25, 3_000), (100, 0), (400, 0)):
        assert swift.target_ps(packets * MTU, MTU, settings) == pytest.approx(ROUND + more, abs=20)


@plain
def test_the_window_never_falls_below_a_packet():
    state, qp, _ = delay_control(window=120, rtt=10**6)
    swift.on_ack(state, 0, qp, MTU, 10**7)
    assert qp.window == MTU
    swift.on_loss(state, 0, qp, 10**9)
    assert qp.window == MTU


@plain
@pytest.mark.parametrize("x", [0, 1, 2, 3, 4, 8, 9, 10, 65_535, 65_536, (1 << 40) - 1])
def test_roots_are_whole(x):
    root = swift._root(x)
    assert root * root <= x < (root + 1) ** 2


# ---------------------------------------------------------------------- InfiniBand (annex A10)


def under_tables(**more):
    """Adapter 2 under a table of delays at service level 3, its queue pair, and the records of a switch's lane."""
    setting = Record(
        active=1, by_level=0, timer_ps=100, phase_ps=30, increase=4, trigger=10, minimum=1, limit=12, table=0,
        ccti=0, since=0, next=0, fecns=0, becns=0,
    )  # fmt: skip
    for name, value in more.items():
        setattr(setting, name, value)
    d = Record(ccti=0, since=0)
    port = Record(ps_q=20 << 20, node=40)  # 20 ps a byte
    state = Record(
        ibcc={5: d}, ibcc_settings={2 * 16 + 3: setting}, delays={(0, i): 4 * i for i in range(13)},
        endpoint={2: Record(port=7)}, port={7: port}, clock=[Record(congestion_events=0)], congestion_log=Log(),
    )  # fmt: skip
    return state, Record(src=2, dst=9, sl=3, next_send=0), d, setting


class Log(dict):
    """A ring of two rows."""

    def __len__(self):
        return 2


@plain
def test_an_index_rises_by_the_increase_to_the_limit_and_is_logged_at_the_trigger():
    state, qp, d, setting = under_tables(timer_ps=0)
    seen = []
    for _ in range(4):
        ibcc.on_becn(state, 5, qp, 1000)
        seen.append(d.ccti)
    assert seen == [5, 9, 12, 12]  # from its minimum
    assert (setting.becns, state.clock[0].congestion_events) == (4, 1)
    row = [state.congestion_log[0, column] for column in range(7)]
    assert row == [1000, ibcc.ADAPTER_EVENT, 2, 5, 2, 9, 3]
    setting.active = 0
    ibcc.on_becn(state, 5, qp, 1000)
    assert (d.ccti, setting.becns) == (12, 5)


@plain
def test_an_index_falls_with_the_ticks_of_its_adapters_timer():
    state, qp, d, setting = under_tables()
    d.ccti, d.since = 9, 69  # ticks at 70, 170, 270 ...
    assert [ibcc.index(state, 5, qp, now) for now in (69, 70, 169, 170, 371, 2000)] == [9, 8, 8, 7, 5, 1]
    setting.by_level, setting.ccti, setting.since = 1, 6, 170
    assert [ibcc.index(state, 5, qp, now) for now in (269, 270)] == [6, 5]


@plain
def test_the_next_packet_waits_for_the_last_and_its_delay():
    state, qp, d, setting = under_tables(timer_ps=0)
    d.ccti = 3  # 12 eighths
    ibcc.on_sent(state, 5, qp, 100, 50)
    assert qp.next_send == 50 + 2000 + 2000 * 12 // 8
    setting.by_level, setting.ccti = 1, 2
    ibcc.on_sent(state, 5, qp, 100, 9000)
    assert (setting.next, qp.next_send) == (9000 + 2000 + 2000, 5050)
    assert ibcc.not_before(state, qp) == 13000
    setting.active = 0
    ibcc.on_sent(state, 5, qp, 100, 20_000)
    assert setting.next == 13000


def lane(**more):
    """An output lane of a switch with 1,000 bytes of buffer behind it that marks beyond 500."""
    rule = Record(
        smallest=64, rate=1, victim=0, congested=0, passed=0, unblocked=2000, buffer=1000, since=0, congested_ps=0,
    )  # fmt: skip
    for name, value in more.items():
        setattr(rule, name, value)
    state, *_ = under_tables()
    state.fecn, state.qp = {30: rule}, {5: Record(src=2)}
    return state, rule


@plain
def test_a_root_of_congestion_marks_in_turn_and_a_victim_does_not():
    state, rule = lane()
    packet, outlet = Record(wire=100, qp=5, dst=9, sl=3), Record(queued=501, kmin=500)
    assert [ibcc.marks(state, 7, 30, outlet, packet, now) for now in (10, 20, 30)] == [True, False, True]
    assert (rule.congested, rule.since, state.clock[0].congestion_events) == (1, 10, 1)
    assert [state.congestion_log[0, column] for column in range(1, 7)] == [ibcc.SWITCH_EVENT, 40, 7, 2, 9, 3]
    packet.wire = 63
    assert not ibcc.marks(state, 7, 30, outlet, packet, 40)
    outlet.queued = 500
    assert not ibcc.marks(state, 7, 30, outlet, packet, 50)
    assert (rule.congested, rule.congested_ps) == (0, 40)
    outlet.queued, packet.wire = 501, 500
    ibcc.ran_dry(state, 30)
    assert [ibcc.marks(state, 7, 30, outlet, packet, now) for now in (60, 70)] == [False, False]
    assert ibcc.marks(state, 7, 30, outlet, packet, 80)  # a buffer's worth has left since
    rule.victim = 1
    ibcc.ran_dry(state, 30)
    rule.passed = rule.rate
    assert ibcc.marks(state, 7, 30, outlet, packet, 90)


@plain
def test_credit_starvation_spaces_credits_while_the_buffer_is_filled():
    rule = Record(fills=10, delay_q=24, next_return=0)  # three packet times
    state = Record(
        fecn={12: rule}, inlet={12: Record(held=11)}, settings=[Record(vl_bits=1)],
        port={6: Record(peer=8), 8: Record(ps_q=10 << 20)},
    )  # fmt: skip
    time = 2 * 64 * 10
    assert ibcc.return_time(state, 12, 2, 100) == 100
    assert ibcc.return_time(state, 12, 2, 100) == 100 + 4 * time
    assert ibcc.return_time(state, 12, 2, 100) == 100 + 8 * time
    state.inlet[12].held = 10
    assert ibcc.return_time(state, 12, 2, 100) == 100
