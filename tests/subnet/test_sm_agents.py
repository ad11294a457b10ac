"""What nodes answer: directed routes, the state machine of ports, tables, traps, counters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sm_fabrics import two_tiers
from support.wire_attributes import attributes_of

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.blueprint import Blueprint, Cables
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Fate, Frame, Network, trap_mad
from fabrictwin.subnet.agents.pma import EngineCounters
from fabrictwin.subnet.agents.port_states import NO_PORT
from fabrictwin.subnet.wire import link_encodings as speeds
from fabrictwin.subnet.wire import pm as perf
from fabrictwin.subnet.wire import smp
from fabrictwin.subnet.wire.header import DirectedSmp, LidSmp, MadClass, Method, PerfMad, Status
from fabrictwin.subnet.wire.notice import LinkStateDetails, LocalChangesDetails, Notice, PortDetails, Trap
from fabrictwin.subnet.wire.smp import AttributeId, PhysState, PortInfo, PortState
from fabrictwin.trace.trace import Counters


@pytest.fixture
def network() -> Network:
    return Network(SubnetState(two_tiers()))


def ask(
    network: Network, path: list[int], mad: DirectedSmp, *, at: str = "host-0/mlx5_0", now_ps: int = 0
) -> DirectedSmp | None:
    """Send a directed-route request from a host and return the answer."""
    mad.hop_count = len(path)
    mad.initial_path = bytes([0, *path])
    slot = network.state.end_slot(network.state.find(at))
    outcome = network.send(slot, Frame(0xFFFF, 0xFFFF, 0, 0, mad.encode()), now_ps)
    return DirectedSmp.decode(outcome.frame.mad) if outcome.fate == Fate.ANSWERED else None


def get(network: Network, path: list[int], attribute: int, modifier: int = 0, **fields: int) -> DirectedSmp | None:
    return ask(network, path, DirectedSmp(method=Method.GET, attribute=attribute, modifier=modifier, **fields))


def put(network: Network, path: list[int], attribute: int, data: bytes, modifier: int = 0, **fields: int):
    mad = DirectedSmp(method=Method.SET, attribute=attribute, modifier=modifier, data=data, **fields)
    return ask(network, path, mad)


def info_at(network: Network, path: list[int], port: int) -> PortInfo:
    return PortInfo.decode(get(network, path, AttributeId.PORT_INFO, port).data)


def set_info(network: Network, path: list[int], port: int, **fields: int) -> DirectedSmp:
    info = info_at(network, path, port)
    info.port_state = info.port_physical_state = 0
    for name, value in fields.items():
        setattr(info, name, value)
    return put(network, path, AttributeId.PORT_INFO, info.encode(), port)


def test_a_directed_route_ends_where_its_ports_lead_and_brings_the_way_back(network):
    # host-0 > leaf-0, out of port 5 to spine-0, its port 3 to leaf-2, its port 1 to host-8
    for path, name, entry in [
        ([], "host-0", 1),
        ([1], "leaf-0", 1),
        ([1, 5], "spine-0", 1),
        ([1, 5, 3, 1], "host-8", 1),
    ]:
        answer = get(network, path, AttributeId.NODE_INFO, tid=77)
        info = smp.NodeInfo.decode(answer.data)
        m = network.state.find(f"{name}/mlx5_0" if "host" in name else name)
        assert info.node_guid == network.state.guid[m]
        assert info.local_port_num == entry
        assert (answer.direction, answer.status, answer.hop_pointer, answer.tid) == (1, 0, 0, 77)
    assert list(answer.return_path[:5]) == [0, 1, 1, 5, 1]


@pytest.mark.parametrize("path", [[2], [1, 7], [1, 6, 9], [1, 2, 1], [1, 0], [255], [1, 5, 3, 1, 1]])
def test_a_directed_route_that_leads_nowhere_gets_no_answer(network, path):
    assert get(network, path, AttributeId.NODE_INFO) is None


def test_a_directed_route_may_start_with_a_part_that_goes_by_lid(network):
    state = network.state
    leaf = state.find("leaf-0")
    set_info(network, [1], 0, lid=9)
    set_info(network, [], 1, lid=3)
    for armed in (3, 4):
        set_info(network, [1], 1, port_state=armed)
        set_info(network, [], 1, port_state=armed)
    state.switch_info[leaf][6:8] = (9).to_bytes(2, "big")
    mad = DirectedSmp(method=Method.GET, attribute=AttributeId.NODE_INFO, dr_slid=3, hop_count=1)
    mad.initial_path = bytes([0, 5])
    slot = state.end_slot(state.find("host-0/mlx5_0"))
    outcome = network.send(slot, Frame(9, 3, 0, 0, mad.encode()), 0)
    assert outcome.fate == Fate.ANSWERED
    assert smp.NodeInfo.decode(outcome.frame.mad, 64).node_guid == state.guid[state.find("spine-0")]


def test_ports_go_from_down_to_active_by_their_state_machine_only(network):
    assert info_at(network, [1], 1).port_state == PortState.INIT
    assert set_info(network, [1], 1, port_state=PortState.ACTIVE).status == Status.BAD_FIELD
    assert info_at(network, [1], 1).port_state == PortState.INIT
    assert set_info(network, [1], 1, port_state=PortState.ARMED).status == 0
    assert set_info(network, [1], 1, port_state=PortState.INIT).status == Status.BAD_FIELD
    assert set_info(network, [1], 1, port_state=PortState.ACTIVE).status == 0
    assert info_at(network, [1], 1).port_state == PortState.ACTIVE
    # Down retrains: both ends start over
    assert set_info(network, [1], 1, port_state=PortState.DOWN).status == 0
    assert info_at(network, [1], 1).port_state == PortState.INIT
    assert info_at(network, [], 1).port_state == PortState.INIT


def test_a_disabled_port_takes_the_link_down_until_it_polls_again(network):
    set_info(network, [1], 2, port_physical_state=PhysState.DISABLED)
    here = info_at(network, [1], 2)
    assert (here.port_state, here.port_physical_state) == (PortState.DOWN, PhysState.DISABLED)
    assert get(network, [1, 2], AttributeId.NODE_INFO) is None
    set_info(network, [1], 2, port_physical_state=PhysState.POLLING)
    assert info_at(network, [1], 2).port_state == PortState.INIT
    assert get(network, [1, 2], AttributeId.NODE_INFO) is not None


def test_links_train_to_what_both_ends_enable(network):
    before = info_at(network, [1], 5)
    assert before.link_speed_ext_active == 4  # HDR
    set_info(network, [1], 5, link_speed_ext_enabled=2, link_width_enabled=1)
    assert info_at(network, [1], 5).link_speed_ext_active == 4  # not before it trains
    set_info(network, [1], 5, port_state=PortState.DOWN)
    for path, port in (([1], 5), ([1, 5], 1)):
        after = info_at(network, path, port)
        assert (after.link_speed_ext_active, after.link_width_active) == (2, 1)


@pytest.mark.parametrize("speed", list(speeds.Speed))
def test_every_speed_shows_in_port_info(speed):
    network = Network(SubnetState(two_tiers(1, 1, 2, rate=speeds.rate_of(4, speed))))
    info = info_at(network, [], 1)
    vendor = smp.ExtendedPortInfo.decode(get(network, [], AttributeId.EXTENDED_PORT_INFO, 1).data)
    read = speeds.read_speed(
        info.link_speed_active, info.link_speed_ext_active, info.link_speed_ext2_active, vendor.link_speed_active
    )
    assert read == speed
    assert info.link_width_active == 2


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"neighbor_mtu": 6}, Status.BAD_FIELD),
        ({"operational_vls": 5}, Status.BAD_FIELD),
        ({"link_width_enabled": 4}, Status.BAD_FIELD),
        ({"link_width_enabled": 255}, 0),
        ({"lid": 0xC000}, Status.BAD_FIELD),
        ({"lid": 5, "lmc": 1}, Status.BAD_FIELD),
        ({"lid": 4, "lmc": 1}, 0),
        ({"port_physical_state": 7}, Status.BAD_FIELD),
    ],
)
def test_port_info_refuses_what_it_cannot_be(network, fields, status):
    assert set_info(network, [], 1, **fields).status == status


def test_attributes_of_a_switch_are_no_attributes_of_an_adapter(network):
    for attribute in (AttributeId.SWITCH_INFO, AttributeId.LINEAR_FORWARDING, AttributeId.MULTICAST_FORWARDING):
        assert get(network, [], attribute).status == Status.BAD_ATTRIBUTE
        assert get(network, [1], attribute).status == 0
    assert get(network, [1], 0x1A).status == Status.BAD_ATTRIBUTE
    assert get(network, [1], AttributeId.PORT_INFO, 7).status == Status.BAD_FIELD


def test_tables_hold_what_was_set(network):
    block = bytes(range(64))
    put(network, [1], AttributeId.LINEAR_FORWARDING, block, 40)
    assert get(network, [1], AttributeId.LINEAR_FORWARDING, 40).data == block
    assert get(network, [1], AttributeId.LINEAR_FORWARDING, 767).data == bytes([NO_PORT] * 64)
    assert get(network, [1], AttributeId.LINEAR_FORWARDING, 768).status == Status.BAD_FIELD
    put(network, [1], AttributeId.MULTICAST_FORWARDING, block, 3)
    assert get(network, [1], AttributeId.MULTICAST_FORWARDING, 3).data == block
    assert get(network, [1], AttributeId.MULTICAST_FORWARDING, 3 | 1 << 28).status == Status.BAD_ATTRIBUTE
    put(network, [1], AttributeId.VL_ARBITRATION, block, 2 | 1 << 16)
    assert get(network, [1], AttributeId.VL_ARBITRATION, 2 | 1 << 16).data == block
    assert get(network, [1], AttributeId.VL_ARBITRATION, 2 | 2 << 16).status == Status.BAD_FIELD
    put(network, [1], AttributeId.PKEY_TABLE, block, 1 << 16)
    assert get(network, [1], AttributeId.PKEY_TABLE, 1 << 16).data == block
    assert get(network, [1], AttributeId.PKEY_TABLE, 0).data[:2] == b"\xff\xff"


def test_sl_to_vl_for_all_ports_replaces_that_of_single_ones(network):
    one, every = smp.SlToVl(vls=(1,) * 16).encode(), smp.SlToVl(vls=(2,) * 16).encode()
    put(network, [1], AttributeId.SL_TO_VL, one, 2 << 8 | 3)
    assert get(network, [1], AttributeId.SL_TO_VL, 2 << 8 | 3).data[:8] == one
    put(network, [1], AttributeId.SL_TO_VL, every, 0x30000)
    for into, out in ((2, 3), (1, 1), (6, 5)):
        assert get(network, [1], AttributeId.SL_TO_VL, into << 8 | out).data[:8] == every
    put(network, [1], AttributeId.SL_TO_VL, one, 2 << 8 | 3)
    assert get(network, [1], AttributeId.SL_TO_VL, 2 << 8 | 3).data[:8] == one
    assert get(network, [1], AttributeId.SL_TO_VL, 3 << 8 | 2).data[:8] == every


def test_a_wrong_m_key_is_not_answered(network):
    set_info(network, [1], 0, m_key=5, m_key_protect_bits=2)
    assert get(network, [1], AttributeId.NODE_INFO) is None
    assert get(network, [1], AttributeId.NODE_INFO, m_key=5) is not None
    assert put(network, [1], AttributeId.SWITCH_INFO, bytes(20), m_key=4) is None
    held = PortInfo.decode(get(network, [1], AttributeId.PORT_INFO, 0, m_key=5).data)
    assert held.m_key_violations == 2


def test_a_lease_lifts_a_lost_managers_protection_and_the_right_key_stops_it(network):
    """14.2.4: it runs from the first wrong key; when it is over, everybody may read the key."""
    s = 10**12
    set_info(network, [1], 0, m_key=5, m_key_protect_bits=2, m_key_lease_period=3)

    def reads(now_ps: int, m_key: int = 0) -> PortInfo | None:
        mad = DirectedSmp(method=Method.GET, attribute=AttributeId.PORT_INFO, m_key=m_key)
        answer = ask(network, [1], mad, now_ps=now_ps)
        return None if answer is None else PortInfo.decode(answer.data)

    assert reads(100 * s) is None, "the lease has only begun"
    assert reads(102 * s, 5).m_key_protect_bits == 2
    assert reads(104 * s) is None, "the right key stopped it"
    assert reads(106 * s) is None
    lifted = reads(107 * s)
    assert (lifted.m_key, lifted.m_key_protect_bits) == (5, 0)
    info = PortInfo.decode(get(network, [1], AttributeId.PORT_INFO, 0, m_key=5).data)
    assert put(network, [1], AttributeId.PORT_INFO, info.encode(), m_key=4) is None, "writing still takes the key"
    set_info(network, [1, 5], 0, m_key=5, m_key_protect_bits=2)
    mad = DirectedSmp(method=Method.GET, attribute=AttributeId.PORT_INFO)
    assert ask(network, [1, 5], mad, now_ps=0) is None
    assert ask(network, [1, 5], mad, now_ps=10**6 * s) is None, "without a period it never ends"


def test_errors_of_a_link_beyond_its_threshold_are_trap_129(network):
    """LocalPhyErrors is 8: each nine packets that a wire spoils are one link integrity error."""
    active_between_leaf_and_host(network)
    state = network.state
    slot = state.base[state.find("leaf-0")] + 1
    port = int(state.fabric_port[slot])
    assert PortInfo.decode(state.get(slot)).local_phy_errors == 8
    counters = EngineCounters(state)
    names = ("PortXmitData", "PortXmitPkts", "PortRcvData", "PortRcvPkts", "PortXmitDiscards", "PortRcvErrors")

    def load(errors: int) -> list[int]:
        exact = {name: np.zeros(state.fabric.ports, np.int64) for name in names}
        exact["PortRcvErrors"][port] = errors
        counters.load(Counters(np.zeros(state.fabric.ports, np.int64)), exact, now_ps=7)
        return [Notice.decode(o.frame.mad, 64).trap_number for o in network.traps(7)]

    assert load(8) == []
    assert load(10) == [Trap.LINK_INTEGRITY]
    network.state.notices.pending.clear()
    assert load(17) == []
    assert load(45) == [Trap.LINK_INTEGRITY]
    told = Notice.decode(trap_mad(1, network.state.notices.pending[0].notice.encode()), 64)
    assert PortDetails.decode(told.details).port == 1
    assert state.counters["local_link_integrity_errors"][slot] == 5
    assert state.counters["symbol_errors"][slot] == state.counters["rcv_errors"][slot] == 45


def test_port_state_change_is_cleared_by_writing_one(network):
    state = network.state
    leaf = state.find("leaf-0")
    state.cut_cable(state.base[leaf] + 5, 0)
    info = smp.SwitchInfo.decode(get(network, [1], AttributeId.SWITCH_INFO).data)
    assert info.port_state_change == 1
    put(network, [1], AttributeId.SWITCH_INFO, info.encode())
    assert smp.SwitchInfo.decode(get(network, [1], AttributeId.SWITCH_INFO).data).port_state_change == 0


def active_between_leaf_and_host(network: Network) -> None:
    """The smallest managed piece: host-0 is LID 1 and manager, leaf-0 is LID 2."""
    state = network.state
    set_info(network, [], 1, lid=1, master_sm_lid=1)
    set_info(network, [1], 0, lid=2, master_sm_lid=1)
    for step in (PortState.ARMED, PortState.ACTIVE):
        set_info(network, [], 1, port_state=step)
        set_info(network, [1], 1, port_state=step)
    put(network, [1], AttributeId.LINEAR_FORWARDING, bytes([NO_PORT, 1, 0, *[NO_PORT] * 61]))
    put(network, [1], AttributeId.SWITCH_INFO, smp.SwitchInfo(linear_fdb_top=63).encode())
    network.managers.add(state.end_slot(state.find("host-0/mlx5_0")))


def test_trap_128_reaches_the_manager_and_repeats_until_it_is_repressed(network):
    active_between_leaf_and_host(network)
    state = network.state
    leaf = state.find("leaf-0")
    state.cut_cable(state.base[leaf] + 5, 1000)
    (outcome,) = network.traps(1000)
    assert outcome.slot == state.end_slot(state.find("host-0/mlx5_0"))
    notice = Notice.decode(outcome.frame.mad, 64)
    assert notice.trap_number == Trap.LINK_STATE_CHANGE
    assert LinkStateDetails.decode(notice.details).lid == 2
    assert network.traps(2000) == []
    later = 1000 + (4_096_000 << 18)
    assert len(network.traps(later)) == 1
    network.send(outcome.slot, Frame(2, 1, 0, 0, trap_mad(1, notice.encode(), Method.TRAP_REPRESS)), later)
    assert network.traps(10 * later) == []


def test_traps_129_to_131_and_144_tell_where_and_what(network):
    active_between_leaf_and_host(network)
    state = network.state
    leaf, host = state.find("leaf-0"), state.find("host-0/mlx5_0")
    for trap in (Trap.LINK_INTEGRITY, Trap.BUFFER_OVERRUN, Trap.FLOW_CONTROL_WATCHDOG):
        state.notices.raise_trap(leaf, trap, 0, port=3)
    network.sma.describe(host, b"renamed mlx5_0", 0)
    network.sma.set_is_sm(host, True, 0)
    notices = [Notice.decode(o.frame.mad, 64) for o in network.traps(0)]
    assert [n.trap_number for n in notices] == [129, 130, 131, 144, 144]
    assert all(PortDetails.decode(n.details).port == 3 for n in notices[:3])
    renamed, capable = (LocalChangesDetails.decode(n.details) for n in notices[3:])
    assert (renamed.other_local_changes, renamed.node_description_change) == (1, 1)
    assert capable.other_local_changes == 0
    assert capable.capability_mask & smp.Capability.IS_SM
    assert get(network, [], AttributeId.NODE_DESCRIPTION).data.rstrip(b"\0") == b"renamed mlx5_0"


def test_without_a_manager_nobody_is_told(network):
    state = network.state
    state.cut_cable(state.base[state.find("leaf-0")] + 5, 0)
    assert network.traps(0) == []
    assert state.notices.pending == []


def test_a_power_cycle_forgets_everything_but_the_cables(network):
    active_between_leaf_and_host(network)
    state = network.state
    leaf = state.find("leaf-0")
    put(network, [1], AttributeId.VL_ARBITRATION, b"\x01" * 64, 2 | 1 << 16)
    state.power_off(leaf, 5)
    assert get(network, [1], AttributeId.NODE_INFO) is None
    assert get(network, [], AttributeId.NODE_INFO) is not None
    assert info_at(network, [], 1).port_state == PortState.DOWN
    state.power_cycle(leaf, 9)
    assert info_at(network, [1], 0).lid == 0
    assert info_at(network, [1], 5).port_state == PortState.INIT
    assert get(network, [1], AttributeId.LINEAR_FORWARDING).data == bytes([NO_PORT] * 64)
    assert get(network, [1], AttributeId.VL_ARBITRATION, 2 | 1 << 16).data == bytes(64)
    assert state.counters["link_downed"][state.end_slot(state.find("host-0/mlx5_0"))] == 1


def perf_get(network: Network, kind, *, lid: int, port: int, method: int = Method.GET, **fields: int):
    mad = PerfMad(method=method, attribute=kind.ID, data=kind(port_select=port, **fields).encode())
    slot = network.state.end_slot(network.state.find("host-0/mlx5_0"))
    outcome = network.send(slot, Frame(lid, 1, 1, 1, mad.encode()), 0)
    answer = PerfMad.decode(outcome.frame.mad)
    return answer.status, kind.decode(answer.data)


def test_counters_are_the_sessions_in_words_of_four_bytes_and_saturate(network):
    active_between_leaf_and_host(network)
    state = network.state
    carried = np.zeros(state.fabric.ports, np.int64)
    leaf_port = state.base[state.find("leaf-0")] + 1
    port = int(state.fabric_port[leaf_port])
    carried[port] = 40_000_000_000
    into = EngineCounters(state)
    into.load(Counters(tx_bytes=carried, wait_ps=carried // 1000, drops=carried // 10**10))
    into.load(Counters(tx_bytes=carried, wait_ps=carried // 1000, drops=carried // 10**10))  # nothing new
    own = state.end_slot(state.find("host-0/mlx5_0"))
    packets = -(-40_000_000_000 // 4096)
    words = (40_000_000_000 + packets * (8 + 12 + 4)) // 4
    assert state.counters["xmit_data"][leaf_port] == words
    assert state.counters["rcv_data"][own] == words
    status, wide = perf_get(network, perf.PortCountersExtended, lid=2, port=1)
    assert status == 0
    assert wide.xmit_data >= words  # and the management packets that asked
    assert wide.xmit_data - words < 10_000
    assert wide.xmit_packets - packets < 100
    assert wide.xmit_discards == 4
    assert wide.xmit_wait == round(40_000_000 / (32e12 / state.fabric.port_rate_bps[port]))
    _, narrow = perf_get(network, perf.PortCounters, lid=2, port=1)
    assert narrow.xmit_data == 0xFFFFFFFF
    assert 0 <= narrow.xmit_packets - wide.xmit_packets < 100


def test_a_set_clears_the_selected_counters_only(network):
    active_between_leaf_and_host(network)
    state = network.state
    leaf = state.base[state.find("leaf-0")]
    state.counters["symbol_errors"][leaf + 3] = 70_000
    state.counters["xmit_discards"][leaf + 3] = 5
    assert perf_get(network, perf.PortCounters, lid=2, port=3)[1].symbol_errors == 0xFFFF
    perf_get(network, perf.PortCounters, lid=2, port=3, method=Method.SET, counter_select=1)
    after = perf_get(network, perf.PortCounters, lid=2, port=3)[1]
    assert (after.symbol_errors, after.xmit_discards) == (0, 5)


def test_all_ports_of_a_switch_add_up(network):
    active_between_leaf_and_host(network)
    state = network.state
    leaf = state.base[state.find("leaf-0")]
    state.counters["rcv_errors"][leaf + 2 : leaf + 5] = 7
    assert perf_get(network, perf.PortCounters, lid=2, port=perf.ALL_PORTS)[1].rcv_errors == 21
    assert perf_get(network, perf.PortCounters, lid=2, port=7)[0] == Status.BAD_FIELD
    assert perf_get(network, perf.RcvErrorDetails, lid=2, port=2)[1].local_physical_errors == 7


@pytest.mark.parametrize("kind", attributes_of(perf), ids=lambda kind: kind.__name__)
def test_every_performance_attribute_is_answered(network, kind):
    active_between_leaf_and_host(network)
    mad = PerfMad(method=Method.GET, attribute=kind.ID, data=bytes([0, 1]))
    slot = network.state.end_slot(network.state.find("host-0/mlx5_0"))
    outcome = network.send(slot, Frame(2, 1, 1, 1, mad.encode()), 0)
    answer = PerfMad.decode(outcome.frame.mad)
    assert (answer.method, answer.status) == (Method.GET_RESP, 0)
    kind.decode(answer.data)


@settings(max_examples=200)
@given(
    st.binary(min_size=256, max_size=256), st.integers(0, 0xFFFF), st.sampled_from([0x01, 0x81, 0x03, 0x04, None])
)
def test_no_datagram_breaks_an_agent(mad, lid, kind):
    network = Network(SubnetState(two_tiers(2, 1, 2)))
    if kind is not None:  # close to one that is taken
        mad = (
            bytes([1, kind, 1, mad[3] % 3, 0, 0, 0, mad[7] % 4]) + mad[8:16] + bytes([0, mad[17] % 40]) + mad[18:]
        )
        if kind == 0x81:
            mad = (
                mad[:32]
                + b"\xff\xff\xff\xff"
                + mad[36:128]
                + bytes([0, 1, mad[130] % 5, mad[131] % 4])
                + mad[132:]
            )
    outcome = network.send(
        network.state.end_slot(network.state.find("host-0/mlx5_0")), Frame(lid, 0, 0, 0, mad), 0
    )
    if outcome.frame is not None:
        assert len(outcome.frame.mad) == 256


@pytest.mark.parametrize("size", [0, 24, 255, 257])
def test_a_malformed_datagram_is_counted_and_dropped(network, size):
    outcome = network.send(1, Frame(1, 1, 0, 0, b"\x01" * size), 0)
    assert outcome.fate == Fate.DROPPED
    assert network.state.malformed == 1


def test_lid_routed_management_follows_tables_and_link_states(network):
    active_between_leaf_and_host(network)
    state = network.state
    slot = state.end_slot(state.find("host-0/mlx5_0"))
    mad = LidSmp(mgmt_class=MadClass.SUBN_LID, method=Method.GET, attribute=AttributeId.NODE_INFO).encode()
    assert network.send(slot, Frame(2, 0, 0, 0, mad), 0).fate == Fate.ANSWERED
    assert network.send(slot, Frame(3, 0, 0, 0, mad), 0).fate == Fate.UNROUTABLE
    set_info(network, [1], 1, port_state=PortState.DOWN)
    assert network.send(slot, Frame(2, 0, 0, 0, mad), 0).fate == Fate.UNROUTABLE


def test_an_ethernet_fabric_has_no_subnet_management():
    none = np.zeros(0, np.int64)
    fabric = compile_fabric(Blueprint("ethernet", (), (), Cables(none, none, none, none, none, none)))
    with pytest.raises(ConfigError, match="got ethernet, expected infiniband"):
        SubnetState(fabric)
