"""Congestion control from a manager's datagrams to what packets do, and back into the agents' logs."""

from __future__ import annotations

import numpy as np
import pytest
from support.clusters import blueprint
from support.congestion_options import MARKING
from support.sm_fabrics import Site, two_tiers

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.spec.congestion_section import CongestionControl
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.congestion_tables import CongestionLog, PortMarking, tables_of
from fabrictwin.subnet.agents.congestion_agent import adapter_log, switch_log
from fabrictwin.subnet.agents.congestion_port import CongestionPort
from fabrictwin.subnet.manager.settings.manager_settings import Settings
from fabrictwin.subnet.manager.settings.qos import read_qos
from fabrictwin.subnet.operation.congestion_in_force import congestion_tables, tell_agents
from fabrictwin.subnet.wire import congestion as cc
from fabrictwin.subnet.wire.congestion import CongestionId
from fabrictwin.twin import Twin

FILE = f"""congestion_control TRUE
cc_key 0x0000000000000000
cc_max_outstanding_mads 500
cc_sw_cong_setting_control_map 0x1f
cc_sw_cong_setting_victim_mask 0x6
cc_sw_cong_setting_credit_mask 0x8
{MARKING}cc_ca_cong_setting_control_map 0x3
cc_ca_cong_setting_ccti_timer 0 64
cc_ca_cong_setting_ccti_timer 1 65
cc_ca_cong_setting_ccti_increase 0 2
cc_ca_cong_setting_trigger_threshold 0 3
cc_ca_cong_setting_ccti_min 0 1
"""
TABLE = ",".join(f"{i % 4}:{100 + i}" for i in range(100))


def section(tmp_path, text=FILE) -> CongestionControl | None:
    path = tmp_path / "opensm.conf"
    path.write_text(f"{text}cc_cct {TABLE}\n")
    return read_qos(path).get("congestion")


def test_a_managers_datagrams_set_what_the_file_says(tmp_path):
    """Two blocks of the table, masks by port, levels by map: read back they are those of the file."""
    asked = section(tmp_path)
    assert asked is not None
    site = Site(settings=Settings(congestion=asked))
    assert not site.hosted.reports[0].findings
    assert congestion_tables(site.state) == tables_of(site.state.fabric, asked)
    sent = site.hosted.transport.statistics.requests
    site.hosted.manager.wants_sweep = site.hosted.manager.wants_heavy = True
    site.settle()
    before = Site()
    plain = before.hosted.transport.statistics.requests
    before.hosted.manager.wants_sweep = before.hosted.manager.wants_heavy = True
    before.settle()
    again = site.hosted.transport.statistics.requests - sent
    assert again == before.hosted.transport.statistics.requests - plain  # nothing of it is sent twice


def test_a_file_that_does_not_turn_it_on_leaves_it_off(tmp_path):
    assert section(tmp_path, FILE.replace("congestion_control TRUE", "congestion_control FALSE")) is None
    assert section(tmp_path, "congestion_control TRUE\n") == CongestionControl.model_validate(
        {"cc_sw_cong_setting_control_map": 0, "cc_ca_cong_setting_control_map": 0, "cc_cct": TABLE}
    )
    assert congestion_tables(Site().state) is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("cc_sw_cong_setting_threshold 16", "15"),
        ("cc_ca_cong_setting_ccti_timer 16 1", "0 to 15"),
        ("cc_sw_cong_setting_marking_rat 1", "did you mean"),
        ("congestion_control maybe", "TRUE or FALSE"),
    ],
)
def test_lines_that_cannot_be_are_refused(tmp_path, line, says):
    with pytest.raises(ConfigError, match=says):
        section(tmp_path, f"{FILE}{line}\n")


def held(site, name):
    return site.state.congestion_ports.setdefault(site.state.end_slot(site.state.find(name)), CongestionPort())


def set_switch(site, name, record, block=0):
    from fabrictwin.subnet.wire.header import START, MadClass, Method

    m = site.state.find(name)
    mad = START.pack(1, MadClass.CONGESTION, 2, Method.SET, 0, 0, 7, record.ID, block, 0).ljust(64, b"\0")
    answer = site.endpoint.network.congestion.answer(
        m, site.state.end_slot(m), mad + record.encode().ljust(192), 0
    )
    assert answer[4:6] == b"\0\0"


def test_a_ports_own_settings_go_before_the_switchs():
    site = Site(manage=False)
    general = cc.SwitchCongestionSetting(
        control_map=0x1F, credit_mask=(0b1110).to_bytes(32, "big"), threshold=3, cs_threshold=4, marking_rate=9
    )
    set_switch(site, "leaf-0", general)
    own = cc.SwitchPortCongestionSetting(
        valid=(0, 1, 1, *[0] * 45),
        control_type=(0, 0, 1, *[0] * 45),
        threshold=(0, 12, 13, *[0] * 45),
        packet_size=(0, 6, 0, *[0] * 45),
        cong_parm_marking_rate=(0, 5, 1 << 14 | 7, *[0] * 45),
    )
    set_switch(site, "leaf-0", own)
    tables = congestion_tables(site.state)
    ports = site.state.fabric_port[site.slot("leaf-0", 1) : site.slot("leaf-0", 5)]
    found = [tables.markings[tables.marking_row[port]] for port in ports]
    assert found == [
        PortMarking(12, 6, 5, starvation=4),
        PortMarking(3, 0, 9, starvation=13, return_delay=(1, 7)),
        PortMarking(3, 0, 9, starvation=4),
        PortMarking(3, 0, 9),
    ]
    assert (tables.control_row == NONE).all()
    # a Set changes the parts that its map names, and no others
    set_switch(site, "leaf-0", cc.SwitchCongestionSetting(control_map=0b10000, threshold=15, marking_rate=1))
    tables = congestion_tables(site.state)
    assert tables.markings[tables.marking_row[ports[3]]] == PortMarking(3, 0, 1)


def test_a_switch_that_comes_back_holds_nothing():
    site = Site(manage=False)
    set_switch(site, "leaf-0", cc.SwitchCongestionSetting(control_map=0x1F, threshold=3))
    site.state.power_off(site.state.find("leaf-0"), 1)
    site.state.power_cycle(site.state.find("leaf-0"), 2)
    assert congestion_tables(site.state) is None


def test_events_are_in_the_logs_of_the_nodes_that_they_happened_at():
    site = Site()
    fabric = site.state.fabric
    leaf = int(site.state.fabric_node[site.state.find("leaf-0")])
    adapter = int(fabric.nic_node[5])
    port = int(site.state.fabric_port[site.slot("leaf-0", 2)])
    events = 20
    log = CongestionLog(
        time_ps=np.arange(2 * events) * cc.TICK_PS,
        node=np.array([leaf, adapter] * events),
        port=np.array([port, NONE] * events),
        queue_pair=np.array([NONE, 77] * events),
        source=np.array([3, 5] * events),
        destination=np.full(2 * events, 1),
        level=np.full(2 * events, 2),
    )
    tell_agents(site.state, log)
    lids = [site.state.lid(site.state.end_slot(int(site.state.managed[fabric.nic_node[i]]))) for i in (3, 1, 5)]
    switch = switch_log(held(site, "leaf-0"))
    assert (switch.log_events_counter, int.from_bytes(switch.port_map, "big")) == (20, 0b100)
    latest, oldest = (cc.SwitchEvent.decode(switch.entries, 12 * i) for i in (0, 14))
    assert (latest.slid, latest.dlid, latest.sl, latest.timestamp) == (lids[0], lids[1], 2, 38)
    assert oldest.timestamp == 38 - 2 * 14
    host = adapter_log(held(site, fabric.node_name(adapter)))
    assert (host.threshold_event_counter, host.threshold_congestion_event_map) == (20, 0b100)
    event = cc.AdapterEvent.decode(host.entries)
    assert (event.local_qp, event.remote_lid, event.sl, event.timestamp) == (77, lids[1], 2, 39)


def test_a_twin_under_management_marks_as_its_switches_hold_it(tmp_path):
    shape = {"kind": "fat-tree", "tiers": 2, "leaf_down": 4, "oversubscription": 4}
    twin = Twin(blueprint(8, "pcie-box", technology="infiniband", switch="qm8700", topology=shape))
    asked = section(tmp_path)
    twin.manage(settings=Settings(congestion=asked))
    assert twin.routes.congestion == tables_of(twin.fabric, asked)
    engine = PacketEngine(twin.fabric, twin.routes)
    state = engine.network.machine.state
    assert engine.network.machine.has_congestion_tables
    assert set(state.ibcc_settings.limit.reshape(-1, 16)[:8, :2].ravel().tolist()) == {99}
    assert state.ibcc_settings.active.reshape(-1, 16)[:8].sum(axis=1).tolist() == [2] * 8


def test_the_log_is_cleared_by_a_set():
    site = Site(two_tiers(), manage=False)
    held(site, "leaf-0").counted = 3
    set_switch(site, "leaf-0", _Log())
    assert held(site, "leaf-0").counted == 0


class _Log:
    """A Set of the log: nothing but its number."""

    ID = CongestionId.CONGESTION_LOG

    @staticmethod
    def encode() -> bytes:
        return b""
