"""Check InfiniBand's congestion control (annex A10): marks, notifications, indices, delays, traffic."""

from __future__ import annotations

import numpy as np
import pytest
from support.clusters import blueprint
from support.packet_wiring import GBPS, US, infiniband, machine, post, star, wire

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.spec.congestion_section import CongestionControl
from fabrictwin.cluster.spec.spec import read_spec
from fabrictwin.engines.packet.network.congestion import TICK_PS, set_congestion
from fabrictwin.kernel.packet.congestion import Control, ibcc
from fabrictwin.kernel.packet.state import constants as s
from fabrictwin.routing.congestion_tables import (
    AdapterControl,
    CongestionTables,
    LevelControl,
    PortMarking,
    control_of,
    marking_of,
)
from fabrictwin.tools.traffic.connection_matrix import read_traffic
from fabrictwin.tools.traffic.play_traffic import play_traffic
from fabrictwin.twin import Twin

MTU, HEADER, BPS = 4096, 26, 400 * GBPS
RAMP = tuple((2, i) for i in range(128))  # a quarter of a packet's time more at every index
ROUGH = {  # marks early, one in eight packets; an index falls every 20.48 us
    "cc_sw_cong_setting_threshold": 15,
    "cc_sw_cong_setting_marking_rate": 7,
    "cc_ca_cong_setting_ccti_timer": 20,
    "cc_ca_cong_setting_ccti_increase": 1,
    "cc_cct": ",".join(f"{shift}:{multiplier}" for shift, multiplier in RAMP),
}


def tables(m, marking=None, *, level=LevelControl(), table=RAMP, by_level=False, limit=None, ports=None):
    """Tables of a star of hosts around one switch: all its ports mark, all hosts slow down alike."""
    hosts = len(m.wiring.endpoint_port)
    row = np.full(len(m.wiring.port_node), -1, np.int32)
    if marking is not None:
        of_switch = m.wiring.port_node == hosts
        row[of_switch if ports is None else np.flatnonzero(of_switch)[ports]] = 0
    control = AdapterControl((level,) * 16, table, len(table) - 1 if limit is None else limit, by_level)
    return CongestionTables(() if marking is None else (marking,), row, (control,), np.zeros(hosts, np.int32))


def send(m, flows):
    """More flows now, under the control."""
    return post(m, flows, control=int(Control.IBCC))


def played(flows, marking=None, *, hosts=9, credit_bytes=128 << 10, **more):
    """Flows over one switch, to their end."""
    m = machine(star(hosts, kind="infiniband", bps=BPS, credit_bytes=credit_bytes), infiniband(), [])
    set_congestion(m, tables(m, marking, **more))
    send(m, flows)
    m.run()
    return m


def took(m):
    return (m.state.task.done_ps - m.state.task.start_ps)[: m.tasks]


# ---------------------------------------------------------------------- delays


@pytest.mark.parametrize(("at", "entry"), [(1, (0, 1)), (3, (0, 7)), (5, (1, 3)), (9, (3, 5)), (20, (2, 16383))])
def test_a_packet_delays_the_next_by_its_time_times_multiplier_shifted(at, entry):
    """Closed form: n packets take n - 1 times (1 + multiplier / 2^shift) packet times, and what one takes."""
    shift, multiplier = entry
    table = tuple((0, 0) if i < at else entry for i in range(at + 1))
    free = played([(0, 1, 64 * MTU)])
    m = played([(0, 1, 64 * MTU)], level=LevelControl(minimum=at), table=table)
    time = (MTU + HEADER) * 8 * 10**12 // BPS
    delay = time * multiplier >> shift
    assert took(m)[0] - took(free)[0] == 63 * delay


def test_a_short_packet_delays_the_next_by_its_own_time():
    """The delay is a share of the packet's time on the link, so messages of 64 bytes keep the ratio too."""
    table = ((0, 3),)
    m = machine(star(2, kind="infiniband", bps=BPS), infiniband(mtu_bytes=64), [])
    set_congestion(m, tables(m, table=table))
    send(m, [(0, 1, 64 * 100)])
    m.run()
    other = machine(star(2, kind="infiniband", bps=BPS), infiniband(mtu_bytes=64), [(0, 1, 64 * 100)])
    other.run()
    time = (64 + HEADER) * 8 * 10**12 // BPS
    assert took(m)[0] - took(other)[0] == 99 * 3 * time


def test_the_index_falls_by_one_a_tick_of_the_timer_and_never_below_its_minimum():
    """Sent long after the notifications a message is slowed by what is left of the index."""
    time = (MTU + HEADER) * 8 * 10**12 // BPS
    period = 30 * TICK_PS
    for ticks, expected in ((0, 9), (1, 8), (4, 5), (7, 2), (60, 2)):
        m = played([(0, 1, MTU)], level=LevelControl(timer=30, minimum=2))
        m.run(until=period * (ticks + 1) - int(m.state.ibcc_settings[0].phase_ps) + 1, drain=True)
        m.state.clock[0].now = now = period * (ticks + 1) - int(m.state.ibcc_settings[0].phase_ps)
        m.state.ibcc.ccti[:], m.state.ibcc.since[:] = 9, now - ticks * period
        free = took(played([(0, 1, 8 * MTU)]))[0]
        m.state.ibcc_settings.by_level[:] = 1  # the new queue pair's index is the level's
        m.state.ibcc_settings.ccti[:], m.state.ibcc_settings.since[:] = 9, now - ticks * period
        first = send(m, [(0, 1, 8 * MTU)])
        m.run()
        assert took(m)[first] - free == 7 * (time * expected >> 2)


def test_levels_without_settings_are_left_alone():
    """The adapters' map says which service levels the settings are of."""
    section = CongestionControl.model_validate(ROUGH | {"cc_ca_cong_setting_control_map": "0xfffe"})
    control = control_of(section)
    assert control.levels[0] is None
    assert control.levels[1] == LevelControl(20, 1, 0, 0)
    flows = [(a, 8, 1 << 20) for a in range(8)]
    marking = PortMarking(threshold=15)
    m = machine(star(9, kind="infiniband", bps=BPS), infiniband(), [])
    plain = tables(m, marking)
    set_congestion(m, CongestionTables(plain.markings, plain.marking_row, (control,), plain.control_row))
    send(m, flows)
    m.run()
    bare = machine(star(9, kind="infiniband", bps=BPS), infiniband(), flows)
    bare.run()
    assert int(m.state.count.ecn_marks.sum()) > 0
    assert took(m).tolist() == took(bare).tolist()


# ---------------------------------------------------------------------- marks

INCAST = [(a, 8, 1 << 20) for a in range(8)]


@pytest.mark.parametrize(("weight", "share"), [(15, 1), (8, 8), (1, 15)])
def test_a_threshold_is_a_share_of_a_lanes_buffer(weight, share):
    """More than (16 - weight)/16 of the buffer has to wait: with as much as that posted, nothing is marked."""
    limit = (128 << 10) * share // 16
    fitting = [(i % 8, 8, MTU) for i in range(limit // (MTU + HEADER))]
    assert played(fitting, PortMarking(threshold=weight, victim=True)).state.count.ecn_marks.sum() == 0
    m = played(INCAST, PortMarking(threshold=weight, victim=True))
    assert m.state.count.ecn_marks.sum() > 0
    assert m.state.outlet.peak.max() > limit


def test_no_threshold_marks_nothing_and_changes_nothing():
    bare = machine(star(9, kind="infiniband", bps=BPS), infiniband(), INCAST)
    bare.run()
    m = played(INCAST, PortMarking(threshold=0, victim=True), level=LevelControl(increase=1))
    assert m.state.count.ecn_marks.sum() == 0
    assert took(m).tolist() == took(bare).tolist()


def test_one_packet_in_the_rate_and_one_is_marked():
    """With indices that never rise the queue is the same, so marks are in proportion."""
    marks = {}
    for rate in (0, 1, 3, 15):
        m = played(INCAST, PortMarking(threshold=15, marking_rate=rate))
        marks[rate] = int(m.state.count.ecn_marks.sum())
    assert marks[0] > 1000
    for rate in (1, 3, 15):
        assert marks[rate] == pytest.approx(marks[0] / (rate + 1), abs=2)


def test_small_packets_are_not_marked():
    """The least size counts blocks of 64 bytes: a packet of 4,122 bytes is below 65 of them."""
    assert played(INCAST, PortMarking(threshold=15, packet_size=64)).state.count.ecn_marks.sum() > 0
    assert played(INCAST, PortMarking(threshold=15, packet_size=65)).state.count.ecn_marks.sum() == 0


def test_a_lane_without_credits_is_a_victim_and_marks_only_by_the_mask():
    """Two switches: what is stuck in the first waits for the second, whose port to the host is the root."""
    links = [(0, 3), (1, 3), (2, 4), (3, 4)]  # 0, 1 at switch 3; 2 at switch 4
    slow = {(4, 2): BPS // 8, (2, 4): BPS // 8}
    found = {}
    for victim in (False, True):
        w = wire(links, 3, 5, kind="infiniband", bps=BPS, link_bps=slow)
        m = machine(w, infiniband(), [])
        row = np.where(w.port_node >= 3, 0, -1).astype(np.int32)
        control = AdapterControl((LevelControl(),) * 16, RAMP, 127)
        marking = PortMarking(threshold=15, victim=victim)
        set_congestion(m, CongestionTables((marking,), row, (control,), np.zeros(3, np.int32)))
        send(m, [(0, 2, 4 << 20), (1, 2, 4 << 20)])
        m.run()
        marks = m.state.count.ecn_marks
        trunk = int(np.flatnonzero((w.port_node == 3) & (w.port_node[w.port_peer] == 4))[0])
        root = int(w.port_peer[w.endpoint_port[2]])
        found[victim] = int(marks[trunk]), int(marks[root])
    assert found[False][0] < 0.05 * found[True][0]
    assert found[False][1] > 1000
    assert found[True][1] > 1000


# ---------------------------------------------------------------------- notifications


def test_every_mark_that_an_acknowledgement_echoes_raises_the_index_up_to_the_limit():
    m = played(INCAST, PortMarking(threshold=15), level=LevelControl(increase=3, trigger=10), limit=13)
    assert m.state.ibcc.ccti[:8].tolist() == [13] * 8  # no timer: the index never falls
    assert (m.state.ibcc_settings.becns.reshape(-1, 16)[:8, 0] >= 5).all()
    assert m.state.ibcc_settings.fecns.reshape(-1, 16)[8, 0] == m.state.count.ecn_marks.sum()
    events = m.state.congestion_log[: int(m.state.clock[0].congestion_events)]
    mine = events[events[:, 1] == ibcc.ADAPTER_EVENT]
    assert sorted(mine[:, 2].tolist()) == list(range(8))  # each reached the trigger once
    assert set(mine[:, 5].tolist()) == {8}


def test_a_lane_that_becomes_congested_is_logged_once():
    m = played(INCAST, PortMarking(threshold=15))
    events = m.state.congestion_log[: int(m.state.clock[0].congestion_events)]
    assert len(events) == 1
    _, what, node, port, source, destination, level, _ = events[0].tolist()
    assert (what, node, destination, level) == (ibcc.SWITCH_EVENT, 9, 8, 0)
    assert port == m.wiring.port_peer[m.wiring.endpoint_port[8]]
    assert source in range(8)
    lanes = m.state.fecn
    assert lanes.congested_ps.sum() + np.where(lanes.congested, m.now - lanes.since, 0).sum() > 0


def test_an_index_of_a_service_level_slows_all_queue_pairs_of_the_port():
    """A second queue pair of a notified adapter is delayed only where the index is the level's."""
    # 0 sends into the incast and, when that is over, to 7, which nobody else sends to
    ends = {}
    for by_level in (False, True):
        m = machine(star(9, kind="infiniband", bps=BPS), infiniband(), [])
        level = LevelControl(increase=1)
        set_congestion(m, tables(m, PortMarking(threshold=15), level=level, by_level=by_level))
        send(m, [(a, 8, 1 << 20) for a in range(7)])
        m.run()
        first = send(m, [(0, 7, 1 << 20)])
        m.run()
        ends[by_level] = int(took(m)[first])
    assert ends[False] == took(played([(0, 7, 1 << 20)]))[0]
    assert ends[True] > 2 * ends[False]


# ---------------------------------------------------------------------- credit starvation


def test_credits_go_back_late_while_the_buffer_is_too_full():
    """An adapter that knows nothing of notifications is slowed by its switch port, and another gains."""
    hosts, size = 3, 4 << 20
    ends = {}
    for starvation in (0, 15):
        m = machine(star(hosts, kind="infiniband", bps=BPS), infiniband(), [])
        marking = PortMarking(starvation=starvation, return_delay=(0, 7))
        set_congestion(m, tables(m, marking, ports=[0]))  # the port that adapter 0 is plugged into
        first = send(m, [(0, 2, size), (1, 2, size)])
        m.run()
        ends[starvation] = took(m)[first : first + 2].tolist()
    assert abs(ends[0][0] - ends[0][1]) < 0.01 * ends[0][0]  # halves
    assert ends[15][1] < 0.85 * ends[0][1]
    assert ends[15][0] > 1.2 * ends[15][1]
    assert m.state.clock[0].dropped == 0


# ---------------------------------------------------------------------- traffic


def fabric(hosts, topology, section=None):
    twin = Twin(blueprint(hosts, "pcie-box", technology="infiniband", switch="qm8700", topology=topology))
    if section is not None:
        twin.congestion = CongestionControl.model_validate(section)
    return twin


def completions(twin, flows, tmp_path):
    lines = [f"Nodes {len(twin.fabric.nic_node)}", f"Connections {len(flows)}"]
    lines += [f"{a}->{b} id {i + 1} start 0 size {size}" for i, (a, b, size) in enumerate(flows)]
    path = tmp_path / "traffic.cm"
    path.write_text("\n".join(lines) + "\n")
    result = play_traffic(read_traffic(path), twin.fabric, twin.routes, slowdown=False)
    return result.completion_ps / US, result


def test_flows_that_pass_more_switches_get_their_share(tmp_path):
    """The parking lot: round robin at each switch favours who joins late; notifications even that out.

    Gran et al. (IPDPS 2010) measured both on hardware: unfair without, fair with InfiniBand's congestion control.
    """
    shape = {"kind": "fat-tree", "tiers": 2, "radix": 8}
    flows = [(a, 0, 8_000_000) for a in (4, 5, 6, 8, 9, 12)]  # three, two and one of a leaf
    without, _ = completions(fabric(16, shape), flows, tmp_path)
    under, result = completions(fabric(16, shape, ROUGH), flows, tmp_path)
    assert without.max() > 1.9 * without.min()
    assert under.max() < 1.3 * under.min()
    assert under.max() < 1.15 * without.max()  # the port that all wait for stays busy
    # next to nothing waits for credits any more
    assert result.engine.counters().wait_ps.sum() > 0


def test_a_victim_flow_is_freed(tmp_path):
    """It shares a trunk with flows into a crowded port, and goes elsewhere (head-of-line blocking)."""
    shape = {"kind": "fat-tree", "tiers": 2, "leaf_down": 4, "oversubscription": 4}
    flows = [(a, 0, 16_000_000) for a in (4, 5, 1, 2, 3)] + [(6, 3, 16_000_000)]
    without, before = completions(fabric(8, shape), flows, tmp_path)
    under, after = completions(fabric(8, shape, ROUGH), flows, tmp_path)
    assert without[5] == pytest.approx(without[0], rel=0.01)  # as slow as those that crowd
    assert under[5] < 0.6 * without[5]
    assert under[:5].max() < 1.1 * without[:5].max()
    waits = [each.engine.counters().wait_ps.sum() for each in (before, after)]
    assert waits[1] < 0.5 * waits[0]


def test_a_congested_run_is_the_same_every_time(tmp_path):
    shape = {"kind": "fat-tree", "tiers": 2, "radix": 8}
    flows = [(a, 0, 1_000_000) for a in range(1, 16)]
    one, two = (completions(fabric(16, shape, ROUGH), flows, tmp_path)[0] for _ in range(2))
    assert one.tolist() == two.tolist()


def test_a_twin_keeps_its_congestion_control(tmp_path):
    twin = fabric(4, {"kind": "single-switch"}, ROUGH)
    twin.save(tmp_path / "twin.npz")
    again = Twin.load(tmp_path / "twin.npz")
    assert again.congestion == twin.congestion
    assert again.routes.congestion == twin.routes.congestion


# ---------------------------------------------------------------------- keys


def test_maps_say_which_settings_count():
    section = CongestionControl.model_validate(
        ROUGH
        | {
            "cc_sw_cong_setting_victim_mask": 0b100,
            "cc_sw_cong_setting_credit_mask": "0x8",
            "cc_sw_cong_setting_credit_starvation_threshold": 9,
            "cc_sw_cong_setting_credit_starvation_return_delay": "1:5",
        }
    )
    assert marking_of(section, 1) == PortMarking(15, 0, 7)
    assert marking_of(section, 2) == PortMarking(15, 0, 7, victim=True)
    assert marking_of(section, 3) == PortMarking(15, 0, 7, starvation=9, return_delay=(1, 5))
    off = section.model_copy(update={"cc_sw_cong_setting_control_map": 0b10})
    assert marking_of(off, 2) == marking_of(off, 3) == PortMarking()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("cc_sw_cong_setting_threshold", 16, "15"),
        ("cc_cct", "4:1", "SHIFT:MULTIPLIER"),
        ("cc_cct", "0:16384", "3:16383"),
        ("cc_cct", ",".join(["0:1"] * 129), "129 entries"),
        ("cc_ca_cong_setting_ccti_timer", {16: 1}, "service level"),
        ("cc_ca_cong_setting_ccti_min", 128, "beyond the table's 127"),
        ("cc_sw_cong_setting_victim_mask", "0x" + "f" * 65, "256 bits"),
    ],
)
def test_what_cannot_be_is_refused(key, value, says):
    network = {
        "technology": "infiniband",
        "topology": {"kind": "single-switch"},
        "switch": "qm8700",
        "congestion_control": ROUGH | {key: value},
    }
    with pytest.raises(ConfigError, match=says):
        read_spec({"schema": 1, "cluster": {"hosts": {"type": "pcie-box", "count": 2}, "network": network}})


def test_ethernet_has_none():
    network = {
        "technology": "ethernet",
        "topology": {"kind": "single-switch"},
        "switch": "spectrum-4",
        "congestion_control": {},
    }
    with pytest.raises(ConfigError, match="got congestion_control on Ethernet"):
        read_spec({"schema": 1, "cluster": {"hosts": {"type": "pcie-box", "count": 2}, "network": network}})


def test_records_of_a_run_without_take_no_room():
    m = machine(star(3, kind="infiniband", bps=BPS), infiniband(), [(0, 1, MTU)])
    m.run()
    assert len(m.state.ibcc_settings) == len(m.state.fecn) == len(m.state.congestion_log) == 1
    assert not (m.state.qp.control == s.NONE).any()
