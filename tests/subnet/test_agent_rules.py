"""Rules of agents one by one: what a Set changes and refuses, how nodes are built.

InfiniBand Architecture, volume 1, chapters 7, 13 and 14.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from support.agent_requests import Agent
from support.sm_fabrics import blueprint

from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.subnet.agents import node_as_built, port_as_built, port_settings
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.keys import KEY, PROTECT
from fabrictwin.subnet.agents.port_as_built import PortRole
from fabrictwin.subnet.agents.sma import ALL_IN, ALL_OUT
from fabrictwin.subnet.wire.header import DirectedSmp, LidSmp, MadClass, Method, Status
from fabrictwin.subnet.wire.link_encodings import Speed
from fabrictwin.subnet.wire.smp import AttributeId, NodeInfo, PKeyTable, PortInfo, SlToVl, SwitchInfo

BAD = Status.BAD_FIELD
MS = 10**9


@pytest.mark.parametrize(
    ("speed", "first", "extended", "second", "mask2"),
    [
        (Speed.SDR, 1, 0, 0, 0),
        (Speed.QDR, 7, 0, 0, 0),
        (Speed.FDR, 7, 1, 0, 0),
        (Speed.EDR, 7, 3, 0, 0),
        (Speed.HDR, 7, 7, 0, 1 << 5),
        (Speed.NDR, 7, 15, 0, 1 << 5 | 1 << 10),
        (Speed.XDR, 7, 15, 1, 1 << 5 | 1 << 10 | 1 << 12 | 1 << 11),
    ],
)
@pytest.mark.parametrize("role", PortRole)
@pytest.mark.parametrize("two", [False, True])
def test_a_port_as_built(speed, first, extended, second, mask2, role, two):
    widths = frozenset({1, 4, 2} if two else {1, 4})
    info = PortInfo.decode(port_as_built.port_as_built(speed, widths, 5, True, role))
    mask2 |= (1 << 4) if two else 0
    base = 0 if role is PortRole.EXTERNAL else sum(1 << bit for bit in (3, 5, 6, 11, 22, 25, 26))
    base |= 1 << 30 if role is PortRole.MANAGEMENT else 0
    base |= (1 << 14 if speed >= Speed.FDR else 0) | (1 << 15 if mask2 else 0)
    expected = {
        "gid_prefix": 0xFE80 << 48, "capability_mask": base, "capability_mask2": mask2,
        "link_width_enabled": 19 if two else 3, "link_width_supported": 19 if two else 3, "link_width_active": 2,
        "link_speed_supported": first, "link_speed_enabled": first, "link_speed_active": 1 if first == 1 else 4,
        "link_speed_ext_supported": extended, "link_speed_ext_enabled": extended,
        "link_speed_ext_active": 0 if second else (extended + 1) // 2,
        "link_speed_ext2_supported": second, "link_speed_ext2_enabled": second, "link_speed_ext2_active": second,
        "port_state": 2, "port_physical_state": 5, "link_down_default_state": 2, "neighbor_mtu": 5, "mtu_cap": 5,
        "vl_cap": 4, "operational_vls": 4, "vl_arb_high_cap": 8, "vl_arb_low_cap": 8, "guid_cap": 8,
        "subnet_timeout": 18, "resp_time_value": 16, "local_phy_errors": 8, "overrun_errors": 8,
    }  # fmt: skip
    assert {f.name: getattr(info, f.name) for f in fields(info) if getattr(info, f.name)} == {
        name: value for name, value in expected.items() if value
    }
    down = PortInfo.decode(port_as_built.port_as_built(speed, widths, 5, False, role))
    assert (down.port_state, down.port_physical_state) == (1, 2)


def built() -> PortInfo:
    return PortInfo.decode(port_as_built.port_as_built(Speed.XDR, frozenset({1, 4, 2}), 4, True, PortRole.ENDPORT))


@pytest.mark.parametrize(("lid", "lmc", "good"), [(1, 0, True), (0xBFFF, 0, True), (0xC000, 0, False), (8, 3,
    True),
                                                  (9, 3, False), (12, 3, False), (0, 0, True)])  # fmt: skip
def test_lids_are_unicast_and_aligned(lid, lmc, good):
    info, asked = built(), replace(built(), lid=lid, lmc=lmc)
    assert port_settings.set_identity(asked, info) == (0 if good else BAD)
    assert (info.lid, info.lmc) == ((lid, lmc) if good else (0, 0))


def test_what_an_end_is_told():
    told = {
        "m_key": 5, "m_key_protect_bits": 1, "m_key_lease_period": 9, "gid_prefix": 77, "lid": 4,
        "master_sm_lid": 3,
        "master_sm_sl": 2, "subnet_timeout": 11, "multicast_pkey_trap_suppression": 1,
    }  # fmt: skip
    info = replace(built(), m_key_violations=1, p_key_violations=2, q_key_violations=3)
    assert port_settings.set_identity(replace(info, **told, p_key_violations=0), info) == 0
    assert {name: getattr(info, name) for name in told} == told
    assert (info.m_key_violations, info.p_key_violations, info.q_key_violations) == (1, 0, 3)
    port_settings.set_identity(replace(info, gid_prefix=0, m_key_violations=0, q_key_violations=0), info)
    assert (info.gid_prefix, info.m_key_violations, info.q_key_violations) == (77, 0, 0)


# a field: (value asked, status, value held), where that is all
LINK_SETTINGS = {
    "neighbor_mtu": [(1, 0, 1), (4, 0, 4), (5, BAD, 4), (0, 0, 4)],
    "operational_vls": [(3, 0, 3), (0, 0, 4), (5, BAD, 4)],
    "link_width_enabled": [(2, 0, 2), (0xFF, 0, 19), (4, BAD, 19), (0, 0, 19)],
    "link_speed_enabled": [(1, 0, 1), (15, 0, 7), (8, BAD, 7), (0, 0, 7)],
    "link_speed_ext_enabled": [(0, 0, 15), (16, BAD, 15)],
    "link_down_default_state": [(1, 0, 1), (0, 0, 2), (3, 0, 2)],
}
TOGETHER = [
    ({"link_speed_ext_enabled": 2}, 0, {"link_speed_ext_enabled": 2, "link_speed_ext2_enabled": 1}),
    ({"link_speed_ext_enabled": 30, "link_speed_ext2_enabled": 0}, 0,
     {"link_speed_ext_enabled": 0, "link_speed_ext2_enabled": 0}),
    ({"link_speed_ext2_enabled": 6}, 0, {"link_speed_ext2_enabled": 0, "link_speed_ext_enabled": 15}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "status", "held"),
    [({f: asked}, status, {f: held}) for f, rows in LINK_SETTINGS.items() for asked, status, held in rows]
    + TOGETHER,
)
def test_what_a_link_is_told(asked, status, held):
    info = built()
    assert port_settings.set_link(replace(info, **asked), info) == status
    assert {name: getattr(info, name) for name in held} == held


def test_speeds_are_enabled_as_supported_again():
    info = built()
    port_settings.set_link(replace(info, link_speed_ext_enabled=30, link_speed_ext2_enabled=0), info)
    port_settings.set_link(replace(info, link_speed_ext_enabled=31, link_speed_ext2_enabled=0), info)
    assert (info.link_speed_ext_enabled, info.link_speed_ext2_enabled) == (15, 0)
    port_settings.set_link(replace(info, link_speed_ext_enabled=0, link_speed_ext2_enabled=7), info)
    assert (info.link_speed_ext_enabled, info.link_speed_ext2_enabled) == (15, 1)
    plain = {
        "vl_high_limit": 9, "hoq_life": 8, "vl_stall_count": 7, "local_phy_errors": 6, "overrun_errors": 5,
        "partition_enforcement_inbound": 1, "partition_enforcement_outbound": 1, "filter_raw_inbound": 1,
        "filter_raw_outbound": 1,
    }  # fmt: skip
    port_settings.set_link(replace(info, **plain), info)
    assert {name: getattr(info, name) for name in plain} == plain


# ---------------------------------------------------------------------- nodes


def test_nodes_as_built(state):
    switch = SwitchInfo.decode(state.switch_info[state.find("leaf-0")])
    assert switch == SwitchInfo(
        linear_fdb_cap=0xC000, multicast_fdb_cap=0x3FFF, life_time_value=16, optimized_sl_to_vl=1,
        partition_enforcement_cap=32, inbound_enforcement_cap=1, outbound_enforcement_cap=1, enhanced_port0=1,
        multicast_fdb_top=0xBFFF,
    )  # fmt: skip
    for name, kind, ports, keys, device in (("leaf-0", 2, 6, 32, 0xD2F0), ("host-0/mlx5_0", 1, 1, 128, 0x101B)):
        m = state.find(name)
        assert state.node_info[m] == NodeInfo(
            node_type=kind, num_ports=ports, system_image_guid=state.guid[m], node_guid=state.guid[m],
            port_guid=state.port_guid[m], partition_cap=keys, device_id=device, vendor_id=0x02C9,
            local_port_num=state.node_info[m].local_port_num,
        )  # fmt: skip
    assert node_as_built.LINEAR_CAP == 0xC000
    assert sorted(node_as_built._DEVICES.values()) == [
        0x101B,
        0x1021,
        0xD2F0,
        0xD2F2,
    ]  # mlx5 and Quantum by PCI id


def test_slots_and_cables(state):
    for m in range(len(state.guid)):
        first, ports = state.base[m], state.ports[m]
        assert [state.node_of[slot] for slot in range(first, first + ports + 1)] == [m] * (ports + 1)
        assert [state.number[slot] for slot in range(first, first + ports + 1)] == list(range(ports + 1))
        assert state.end_slot(m) == first + (0 if state.is_switch[m] else 1)
    assert state.slots == sum(ports + 1 for ports in state.ports)
    assert all(far < 0 or state.cable[far] == slot for slot, far in enumerate(state.cable))
    assert state.find(f"{state.guid[3]:x}") == 3
    with pytest.raises(KeyError):
        state.find("nobody")


def test_a_node_owns_its_path_bits(state):
    m = state.find("host-0/mlx5_0")
    slot = state.end_slot(m)
    assert not state.owns(m, 0)
    state.put(slot, replace(PortInfo.decode(state.get(slot)), lid=8, lmc=2))
    assert [lid for lid in range(16) if state.owns(m, lid)] == [8, 9, 10, 11]


def test_links_are_as_wide_and_fast_as_both_ends_allow(state):
    leaf, host = state.find("leaf-0"), state.find("host-0/mlx5_0")
    near, far = state.base[leaf] + 1, state.end_slot(host)

    def trained(**enabled):
        for slot, own in ((near, enabled), (far, {})):
            info = PortInfo.decode(state.get(slot))
            named = {"link_width_enabled": 3, "link_speed_enabled": 7, "link_speed_ext_enabled": 7} | own
            state.put(slot, replace(info, **named))
        state.take_down(near, 0)
        assert state.bring_up(near, 0)
        ends = [PortInfo.decode(state.get(slot)) for slot in (near, far)]
        found = {(i.link_width_active, i.link_speed_active, i.link_speed_ext_active) for i in ends}
        assert len(found) == 1
        return found.pop()

    assert trained() == (2, 4, 4)
    assert trained(link_width_enabled=1) == (1, 4, 4)
    assert trained(link_speed_ext_enabled=2) == (2, 4, 2)
    assert trained(link_speed_ext_enabled=0) == (2, 4, 0)
    assert trained(link_speed_ext_enabled=0, link_speed_enabled=1) == (2, 1, 0)
    assert not state.bring_up(near, 0)  # it is up


def test_a_link_comes_and_goes_at_both_ends(state):
    leaf = state.find("leaf-0")
    slot = state.base[leaf] + 1
    far = state.cable[slot]
    seen: list[tuple[int, int]] = []
    state.on_state.append(lambda slot, now: seen.append((slot, now)))
    state.cut_cable(slot, 5)
    assert (state.logical(slot), state.physical(slot), state.logical(far), state.physical(far)) == (1, 2, 1, 2)
    assert (state.counters["link_downed"][slot], state.counters["link_downed"][far]) == (1, 1)
    assert sorted(seen) == sorted([(slot, 5), (far, 5)])
    assert state.has_news(leaf)
    assert not state.bring_up(slot, 6)
    assert state.mend_cable(slot, 7)
    assert (state.logical(slot), state.physical(slot), state.logical(far), state.physical(far)) == (2, 5, 2, 5)
    assert state.link[slot] == far
    state.take_down(slot, 8, phys=3)  # disabled
    assert (state.physical(slot), state.physical(far)) == (3, 2)
    assert not state.bring_up(far, 9)
    assert state.counters["link_downed"][slot] == 1  # nobody counts what was asked for


def test_a_node_that_comes_back_has_forgotten(state):
    leaf = state.find("leaf-0")
    row, base = state.row[leaf], state.base[leaf]
    state.write_table(leaf, 3, np.array([1, 2], np.uint8), 0)
    state.switch_info[leaf][6:8] = b"\0\x09"
    for table, key in ((state.mft, (leaf, 0, 0)), (state.sl_to_vl, (leaf, 1, 2))):
        table[key] = bytes(64)
    for table in (state.pkeys, state.vl_arbitration, state.guids):
        table[base + 1, 0] = bytes(64)
        table[base + 7, 0] = b"another node's"
    state.put(base, replace(PortInfo.decode(state.get(base)), lid=5, master_sm_lid=3, lmc=1))
    state.power_off(leaf, 1)
    assert not state.alive[leaf]
    assert all(state.link[base + port] < 0 for port in range(1, 7))
    state.power_cycle(leaf, 2)
    assert (state.lft[row] == 255).all()
    assert SwitchInfo.decode(state.switch_info[leaf]).linear_fdb_top == 0
    assert not state.mft
    assert not state.sl_to_vl
    for table in (state.pkeys, state.vl_arbitration, state.guids):
        assert list(table) == [(base + 7, 0)]
    info = PortInfo.decode(state.get(base))
    assert (info.lid, info.master_sm_lid, info.lmc) == (0, 0, 0)
    assert all(state.link[base + port] >= 0 for port in range(1, 7))


def test_tables_grow_with_the_lids(state):
    leaf, before = state.find("leaf-0"), []
    state.on_table.append(lambda m, first, old, now: before.append((m, first, old.tolist(), now)))
    state.write_table(leaf, 1022, np.array([1, 2, 3, 4], np.uint8), 9)
    assert state.lft.shape[1] == 2048
    assert state.lft[state.row[leaf], 1020:1028].tolist() == [255, 255, 1, 2, 3, 4, 255, 255]
    assert before == [(leaf, 1022, [255] * 4, 9)]
    state.grow_lft(5000)
    assert state.lft.shape[1] == 5001
    state.grow_lft(0xBFFF)
    assert state.lft.shape[1] == 0xC000
    assert state.lft[state.row[leaf], 1022] == 1


def test_lane_tables_of_all_ports_and_of_one(state):
    tables = state.sl_to_vl
    assert state.lane_map(3, 1, 2) is None
    for order, key in enumerate([(3, -1, -1), (3, 1, -1), (3, -1, 2), (3, 1, 2)]):
        tables[key] = bytes([order])
        assert state.lane_map(3, 1, 2) == bytes([order])
    assert state.lane_map(3, 4, 5) == b"\0"
    assert state.lane_map(3, 1, 5) == b"\1"
    assert state.lane_map(3, 4, 2) == b"\2"
    assert state.lane_map(4, 1, 2) is None


# ---------------------------------------------------------------------- the agent


def test_directed_answers_carry_their_direction(state):
    agent = Agent(state, "leaf-0")
    mad = DirectedSmp(method=Method.GET, attribute=AttributeId.NODE_INFO, hop_pointer=1, hop_count=1, tid=3)
    answer = DirectedSmp.decode(agent.agent.answer(agent.m, agent.entry, mad.encode(), 0))
    assert (answer.direction, answer.status, answer.mgmt_class) == (1, 0, MadClass.SUBN_DIRECTED)
    assert NodeInfo.decode(answer.data).local_port_num == 1
    plain = LidSmp(method=Method.GET, attribute=AttributeId.NODE_INFO)
    assert LidSmp.decode(agent.agent.answer(agent.m, agent.entry, plain.encode(), 0)).status == 0
    assert agent.ask(Method.TRAP, AttributeId.NODE_INFO)[0] == Status.BAD_METHOD
    assert agent.get(0x99)[0] == agent.put(0x99, 0, b"")[0] == Status.BAD_ATTRIBUTE
    assert agent.put(AttributeId.NODE_INFO, 0, b"")[0] == Status.BAD_ATTRIBUTE


def test_forwarding_tables_by_block(state):
    agent = Agent(state, "leaf-0")
    last = 0xC000 // 64 - 1
    for block in (0, 3, last):
        assert agent.put(AttributeId.LINEAR_FORWARDING, block, bytes([block & 63]) * 64)[0] == 0
        assert agent.get(AttributeId.LINEAR_FORWARDING, block) == (0, bytes([block & 63]) * 64)
    assert agent.get(AttributeId.LINEAR_FORWARDING, 4) == (0, b"\xff" * 64)
    for block in (last + 1, 5000):
        assert agent.get(AttributeId.LINEAR_FORWARDING, block)[0] == BAD
        assert agent.put(AttributeId.LINEAR_FORWARDING, block, bytes(64))[0] == BAD
    table = b"\x12\x34" * 32
    assert agent.put(AttributeId.MULTICAST_FORWARDING, 0x1FF, table)[0] == 0
    assert agent.get(AttributeId.MULTICAST_FORWARDING, 0x1FF) == (0, table)
    assert agent.get(AttributeId.MULTICAST_FORWARDING, 0x1FE) == (0, bytes(64))
    assert agent.put(AttributeId.MULTICAST_FORWARDING, 1 << 28, table)[0] == BAD  # a position beyond its ports
    host = Agent(state, "host-0/mlx5_0")
    for attribute in (AttributeId.LINEAR_FORWARDING, AttributeId.MULTICAST_FORWARDING, AttributeId.SWITCH_INFO):
        assert host.get(attribute)[0] == host.put(attribute, 0, bytes(64))[0] == Status.BAD_ATTRIBUTE


def test_a_switch_is_told_its_tops_and_ports(state):
    agent = Agent(state, "leaf-0")
    state.switch_info[agent.m][:] = replace(
        SwitchInfo.decode(state.switch_info[agent.m]), port_state_change=1
    ).encode()
    told = {
        "linear_fdb_top": 0xBFFF, "multicast_fdb_top": 0xC001, "life_time_value": 9, "default_port": 3,
        "default_multicast_primary_port": 4, "default_multicast_not_primary_port": 5,
    }  # fmt: skip
    status, data = agent.put(AttributeId.SWITCH_INFO, 0, SwitchInfo(**told).encode())
    found = SwitchInfo.decode(data)
    assert (status, found.linear_fdb_cap, found.port_state_change) == (0, 0xC000, 1)
    assert {name: getattr(found, name) for name in told} == told
    assert agent.get(AttributeId.SWITCH_INFO) == (0, data)
    _, data = agent.put(AttributeId.SWITCH_INFO, 0, replace(found, port_state_change=1).encode())
    assert SwitchInfo.decode(data).port_state_change == 0
    refused, data = agent.put(
        AttributeId.SWITCH_INFO, 0, replace(found, linear_fdb_top=0xC000, default_port=9).encode()
    )
    assert (refused, SwitchInfo.decode(data).default_port) == (BAD, 3)


def test_keys_of_partitions_by_port_and_block(state):
    switch, host = Agent(state, "leaf-0"), Agent(state, "host-0/mlx5_0")
    default = PKeyTable(pkeys=(0xFFFF, *[0] * 31)).encode()
    table = PKeyTable(pkeys=tuple(range(32))).encode()
    for agent, modifier in ((switch, 0), (switch, 2 << 16), (host, 0), (host, 3)):
        before = default if modifier & 0xFFFF == 0 else bytes(64)
        assert agent.get(AttributeId.PKEY_TABLE, modifier) == (0, before)
        assert agent.put(AttributeId.PKEY_TABLE, modifier, table) == (0, table)
        assert agent.get(AttributeId.PKEY_TABLE, modifier) == (0, table)
    for agent, modifier in ((switch, 1), (switch, 2 << 16 | 1), (switch, 7 << 16), (host, 4)):
        assert agent.get(AttributeId.PKEY_TABLE, modifier)[0] == BAD
        assert agent.put(AttributeId.PKEY_TABLE, modifier, table)[0] == BAD


def test_lanes_of_service_levels(state):
    switch, host = Agent(state, "leaf-0"), Agent(state, "host-0/mlx5_0")
    identity = SlToVl(vls=(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 15)).encode().ljust(64, b"\0")
    one, two = (bytes([n]) * 8 for n in (1, 2))
    for agent in (switch, host):
        assert agent.get(AttributeId.SL_TO_VL, 0x0102) == (0, identity)
    assert switch.put(AttributeId.SL_TO_VL, 0x0102, one + b"rest") == (0, one.ljust(64, b"\0"))
    assert switch.get(AttributeId.SL_TO_VL, 0x0102)[1][:8] == one
    assert switch.get(AttributeId.SL_TO_VL, 0x0201)[1] == identity
    switch.put(AttributeId.SL_TO_VL, ALL_IN | 0x02, two)
    assert [switch.get(AttributeId.SL_TO_VL, i << 8 | 2)[1][:8] for i in (0, 1, 6)] == [two] * 3
    assert switch.get(AttributeId.SL_TO_VL, 0x0103)[1] == identity
    switch.put(AttributeId.SL_TO_VL, ALL_OUT | 0x0100, one)
    assert switch.get(AttributeId.SL_TO_VL, 0x0103)[1][:8] == one
    assert switch.get(AttributeId.SL_TO_VL, 0x0202)[1][:8] == two
    switch.put(AttributeId.SL_TO_VL, ALL_IN | ALL_OUT, one)
    assert list(state.sl_to_vl) == [(switch.m, -1, -1)]
    for modifier in (0x0701, 0x0107):
        assert (
            switch.get(AttributeId.SL_TO_VL, modifier)[0]
            == switch.put(AttributeId.SL_TO_VL, modifier, one)[0]
            == BAD
        )
    assert switch.put(AttributeId.SL_TO_VL, 0x0606, one)[0] == 0
    host.put(AttributeId.SL_TO_VL, 0x0505, two)
    assert host.get(AttributeId.SL_TO_VL, 0)[1][:8] == two


def test_arbitration_has_a_low_and_a_high_part(state):
    agent = Agent(state, "leaf-0")
    for part, table in ((1, b"low"), (3, b"high")):
        agent.put(AttributeId.VL_ARBITRATION, part << 16 | 2, table)
    assert agent.get(AttributeId.VL_ARBITRATION, 1 << 16 | 2) == (0, b"low".ljust(64, b"\0"))
    assert agent.get(AttributeId.VL_ARBITRATION, 3 << 16 | 2) == (0, b"high".ljust(64, b"\0"))
    assert agent.get(AttributeId.VL_ARBITRATION, 1 << 16 | 3) == (0, bytes(64))
    for modifier in (2, 2 << 16 | 2, 4 << 16 | 2, 1 << 16 | 7):
        assert agent.get(AttributeId.VL_ARBITRATION, modifier)[0] == BAD
        assert agent.put(AttributeId.VL_ARBITRATION, modifier, b"")[0] == BAD


def test_guids_of_an_end(state):
    agent = Agent(state, "host-0/mlx5_0")
    own = state.port_guid[agent.m].to_bytes(8, "big")
    assert agent.get(AttributeId.GUID_INFO) == (0, own + bytes(56))
    assert agent.put(AttributeId.GUID_INFO, 0, b"\x11" * 64) == (0, own + b"\x11" * 56)  # the first cannot be set
    assert agent.get(AttributeId.GUID_INFO) == (0, own + b"\x11" * 56)
    assert agent.get(AttributeId.GUID_INFO, 1)[0] == agent.put(AttributeId.GUID_INFO, 1, bytes(64))[0] == BAD


def test_ports_by_number(state):
    switch, host = Agent(state, "leaf-0", port=3), Agent(state, "host-0/mlx5_0")
    for agent, number, good in ((switch, 0, True), (switch, 6, True), (switch, 7, False), (host, 0, True),
                                (host, 1, True), (host, 2, False)):  # fmt: skip
        status, data = agent.get(AttributeId.PORT_INFO, number)
        assert status == (0 if good else BAD)
        if good:
            assert PortInfo.decode(data).local_port_num == (3 if agent is switch else 1)
        else:
            assert agent.put(AttributeId.PORT_INFO, number, bytes(64))[0] == BAD
            assert agent.get(AttributeId.EXTENDED_PORT_INFO, number)[0] == BAD
    assert host.get(AttributeId.EXTENDED_PORT_INFO, 1)[1][15] == 0


def test_a_switch_s_cables_have_no_lids(state):
    agent = Agent(state, "leaf-0")
    for number in (2, 0):
        _, data = agent.get(AttributeId.PORT_INFO, number)
        asked = replace(PortInfo.decode(data), port_state=0, port_physical_state=0, lid=7, m_key=5, hoq_life=3)
        assert agent.put(AttributeId.PORT_INFO, number, asked.encode())[0] == 0
        found = PortInfo.decode(state.get(state.base[agent.m] + number))
        assert (found.lid, found.m_key, found.hoq_life) == ((7, 5, 3) if number == 0 else (0, 0, 3))


def test_fdr10_shows_in_the_vendor_s_attribute():
    from fabrictwin.subnet.wire.link_encodings import rate_of
    from fabrictwin.subnet.wire.smp import ExtendedPortInfo

    cables = [("leaf", 1, "a", 1), ("leaf", 2, "b", 1)]
    fabric = compile_fabric(blueprint([("leaf", 2)], ["a", "b"], cables, rate_of(4, Speed.FDR10)))
    agent = Agent(SubnetState(fabric), "leaf")
    for found in (
        agent.get(AttributeId.EXTENDED_PORT_INFO, 1),
        agent.put(AttributeId.EXTENDED_PORT_INFO, 1, bytes(64)),
    ):
        info = ExtendedPortInfo.decode(found[1])
        assert (info.link_speed_supported, info.link_speed_enabled, info.link_speed_active) == (1, 1, 1)


@pytest.mark.parametrize(
    ("protect", "read", "shown"), [(0, True, 5), (1, True, 0), (2, False, None), (3, False, None)]
)
def test_keys_protect_by_their_bits(state, protect, read, shown):
    agent = Agent(state, "host-0/mlx5_0")
    at = 64 * agent.entry
    KEY.put(state.info, 5, at)
    PROTECT.put(state.info, protect, at)
    wrong = agent.ask(Method.GET, AttributeId.PORT_INFO, 1, m_key=6)
    assert (wrong is not None) == read
    if read:
        assert PortInfo.decode(wrong[1]).m_key == shown
    right = agent.ask(Method.GET, AttributeId.PORT_INFO, 1, m_key=5)
    assert PortInfo.decode(right[1]).m_key == (0 if protect == 1 else 5)
    assert agent.ask(Method.SET, AttributeId.GUID_INFO, 0, bytes(64), m_key=6) is None
    assert agent.ask(Method.SET, AttributeId.GUID_INFO, 0, bytes(64), m_key=5) is not None
    assert PortInfo.decode(state.get(agent.entry)).m_key_violations == (1 if read else 2)


def test_a_lease_runs_from_the_first_wrong_key(state):
    agent = Agent(state, "host-0/mlx5_0")
    keys, slot = agent.agent._keys, agent.entry
    state.put(slot, replace(PortInfo.decode(state.get(slot)), m_key=5, m_key_protect_bits=2, m_key_lease_period=3))
    second = 10**12
    assert not keys.may_read(agent.m, slot, 6, second)
    assert state.m_key_lease == {slot: 4 * second}
    assert not keys.may_read(agent.m, slot, 6, 2 * second)
    assert state.m_key_lease == {slot: 4 * second}
    assert keys.may_write(agent.m, slot, 5, 2 * second)  # the right one stops it
    assert state.m_key_lease == {}
    assert not keys.may_read(agent.m, slot, 6, 5 * second)
    assert not keys.may_read(agent.m, slot, 6, 8 * second - 1)
    assert keys.may_read(agent.m, slot, 6, 8 * second)
    assert PortInfo.decode(state.get(slot)).m_key_protect_bits == 0
    assert PortInfo.decode(state.get(slot)).m_key_violations == 4
