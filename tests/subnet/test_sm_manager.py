"""The manager over a fabric: what it finds and sets up. Judged by what nodes hold and by walking tables."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sm_fabrics import Site, blueprint, two_tiers

from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import NONE
from fabrictwin.routing.engines.routing_options import Options
from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Fate, Frame
from fabrictwin.subnet.manager.database import Memory
from fabrictwin.subnet.manager.settings.manager_settings import Partition, Settings
from fabrictwin.subnet.manager.sweep import lids
from fabrictwin.subnet.operation.manager_host import first_adapter, settle
from fabrictwin.subnet.wire import smp
from fabrictwin.subnet.wire.header import LidSmp, Method
from fabrictwin.subnet.wire.smp import AttributeId, PortInfo, PortState, SmState


def test_a_sweep_brings_every_linked_port_to_active_and_everybody_reaches_everybody():
    site = Site()
    report = site.hosted.reports[0]
    assert (report.state, report.nodes, report.switches, report.endpoints) == (SmState.MASTER, 22, 6, 16)
    assert report.findings == ()
    for slot, far in enumerate(site.state.link):
        if far != NONE:
            info = PortInfo.decode(site.state.get(slot))
            assert info.port_state == PortState.ACTIVE
            assert info.neighbor_mtu == 5
            assert info.operational_vls == 4
    assert site.all_arrive()
    assert site.hosted.reports[1:] == []


def test_the_sweep_speaks_datagrams_only_for_what_it_needs():
    """NodeInfo once for each end of a link between switches, each table block once: nothing is asked twice."""
    site = Site()
    sent = site.hosted.transport.statistics
    assert sent.repeated == sent.unanswered == 0
    links, switches, nodes = 8 + 16, 6, 22
    # behind every linked port of a switch, behind the manager's own port, and the manager itself
    assert sent.by_attribute[Method.GET, AttributeId.NODE_INFO] == 2 * 8 + 16 + 1 + 1
    assert sent.by_attribute[Method.GET, AttributeId.NODE_DESCRIPTION] == nodes
    assert sent.by_attribute[Method.SET, AttributeId.LINEAR_FORWARDING] == switches
    assert sent.by_attribute[Method.SET, AttributeId.SL_TO_VL] == nodes
    assert sent.by_attribute[Method.SET, AttributeId.PORT_INFO] == switches + 2 * 2 * links


@pytest.mark.second
def test_a_sweep_of_a_subnet_that_is_up_changes_nothing():
    site = Site()
    before = dict(site.hosted.transport.statistics.by_attribute)
    report = site.hosted.manager.sweep()
    after = site.hosted.transport.statistics.by_attribute
    assert {k for k in after if k[0] == Method.SET and after[k] != before.get(k)} == set()
    assert report.rerouting.entries == report.rerouting.broken_paths == 0
    assert site.hosted.manager.light_sweep().kind == "light"


@settings(max_examples=25)
@given(st.data())
def test_any_graph_is_found_as_it_is(data):
    """Random switches, cables and hosts against the graph that they were drawn from."""
    count = data.draw(st.integers(1, 6))
    ports = 8
    used = [0] * count
    cables = []
    for b in range(1, count):
        joined = [(data.draw(st.integers(0, b - 1)), b)]
        joined += data.draw(st.lists(st.tuples(st.integers(0, b - 1), st.just(b)), max_size=2))
        for a, c in joined:
            if used[a] < ports - 1 and used[c] < ports - 1:
                used[a], used[c] = used[a] + 1, used[c] + 1
                cables.append((f"s{a}", used[a], f"s{c}", used[c]))
    hosts = []
    for s in range(count):
        for _ in range(data.draw(st.integers(0, ports - used[s]))):
            used[s] += 1
            hosts.append(f"h{len(hosts)}")
            cables.append((f"s{s}", used[s], hosts[-1], 1))
    graph = nx.Graph((a, b) for a, _, b, _ in cables)
    if "h0" not in graph:
        return
    site = Site(compile_fabric(blueprint([(f"s{i}", ports) for i in range(count)], hosts, cables)))
    reachable = nx.node_connected_component(graph, "h0")
    subnet = site.hosted.manager.database.subnet
    names = {node.name.removeprefix("MF0;").split(":")[0].split(" ")[0] for node in subnet.nodes.values()}
    assert names == reachable
    found = sum(port.peer is not None for node in subnet.nodes.values() for port in node.ports.values())
    assert found == 2 * sum(a in reachable for a, _, _, _ in cables)
    assert site.hosted.reports[0].findings == ()
    ends = [site.state.find(f"{n}/mlx5_0") for n in reachable if n.startswith("h")]
    assert all(site.arrives(a, b) for a in ends for b in ends)


@pytest.mark.parametrize("engine", ["minhop", "updown", "fattree", "dfsssp", "dmodk", "auto"])
def test_every_engine_routes_what_was_discovered(engine):
    site = Site(settings=Settings(engine=engine))
    assert site.hosted.reports[0].findings == ()
    assert site.all_arrive()


@pytest.mark.parametrize("lmc", [0, 1, 3, 7])
def test_lmc_gives_each_end_aligned_ranges_that_all_arrive(lmc):
    site = Site(settings=Settings(routing=Options(lmc=lmc)))
    state = site.state
    ranges = []
    for m, switch in enumerate(state.is_switch):
        info = PortInfo.decode(state.get(state.end_slot(m)))
        assert info.lmc == (0 if switch else lmc)
        assert info.lid % (1 << info.lmc) == 0
        ranges += range(info.lid, info.lid + (1 << info.lmc))
    assert len(ranges) == len(set(ranges))
    a, b = (state.find(f"host-{i}/mlx5_0") for i in (0, 15))
    assert all(site.arrives(a, b, k) for k in range(1 << lmc))


def test_lids_are_kept_when_the_manager_starts_again_with_and_without_its_file(tmp_path):
    site = Site(memory=Memory({0x5: 900}))
    memory = site.hosted.manager.database.memory
    lids.write_guid2lid(tmp_path / "guid2lid", memory.lid, {})
    assert lids.read_guid2lid(tmp_path / "guid2lid") == memory.lid
    before = dict(site.hosted.manager.database.lid)
    # without a memory: the ports themselves remember
    site.managers.clear()
    site.endpoint.software.clear()
    site.manage(first_adapter(site.endpoint))
    site.settle()
    assert site.hosted.manager.database.lid == before
    # the fabric forgot, the file did not
    fresh = Site(memory=Memory(lids.read_guid2lid(tmp_path / "guid2lid")))
    assert fresh.hosted.manager.database.lid == before


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), min_size=1, max_size=30),
    st.dictionaries(st.integers(0, 40), st.integers(0, 300)),
)
def test_lids_are_unique_aligned_and_kept_where_they_can_be(ports, remembered):
    wishes = [lids.Wish(guid, current, lmc) for guid, (current, lmc) in enumerate(ports)]
    given_lids = lids.assign(wishes, remembered)
    taken: set[int] = set()
    for wish in wishes:
        mine = set(range(given_lids[wish.guid], given_lids[wish.guid] + (1 << wish.lmc)))
        assert not mine & taken
        assert min(mine) >= 1
        assert given_lids[wish.guid] % (1 << wish.lmc) == 0
        taken |= mine
    first = wishes[0]
    wanted = remembered.get(first.guid, 0)
    if wanted and wanted % (1 << first.lmc) == 0:
        assert given_lids[first.guid] == wanted


def test_too_many_lids_are_one_clear_error():
    with pytest.raises(ConfigError, match="expected at most 49151"):
        lids.assign([lids.Wish(i, 0, 7) for i in range(400)], {})


@pytest.mark.parametrize("text", ["0x1 0x1", "0x1 0xc000 0xc000", "0x1 zwei 3", "0 1 1"])
def test_a_broken_guid2lid_file_is_named_with_its_line(tmp_path, text):
    path = tmp_path / "guid2lid"
    path.write_text("# kept\n0x2 0x2 0x2\n" + text + "\n")
    with pytest.raises(ConfigError, match=r"guid2lid:3"):
        lids.read_guid2lid(path)


def pkeys(site: Site, name: str, port: int = 0) -> tuple[int, ...]:
    m = site.state.find(name)
    _, data = site.endpoint.network.sma._get_pkeys(m, site.state.end_slot(m), port << 16)
    return tuple(key for key in smp.PKeyTable.decode(data).pkeys if key)


def test_partitions_are_programmed_and_limited_members_do_not_meet():
    state = SubnetState(two_tiers())
    guid = [state.port_guid[state.find(f"host-{i}/mlx5_0")] for i in range(16)]
    partitions = (
        Partition(0x7FFF, full=frozenset({guid[0]}), limited=None),
        Partition(0x10, full=frozenset(guid[1:3]), limited=frozenset(guid[3:5])),
    )
    site = Site(settings=Settings(partitions=partitions, enforce_partitions=True))
    assert pkeys(site, "host-0/mlx5_0") == (0xFFFF,)
    assert pkeys(site, "host-1/mlx5_0") == (0x7FFF, 0x8010)
    assert pkeys(site, "host-3/mlx5_0") == (0x7FFF, 0x0010)
    assert pkeys(site, "leaf-0", 2) == (0x7FFF, 0x8010)
    assert PortInfo.decode(site.state.get(site.slot("leaf-0", 2))).partition_enforcement_inbound == 1
    common = site.hosted.manager.database.common_pkey
    assert common(guid[0], guid[9]) == 0xFFFF
    assert common(guid[1], guid[3]) == 0x8010
    assert common(guid[3], guid[4]) == 0
    assert common(guid[8], guid[9]) == 0


def test_lanes_and_arbitration_are_those_of_the_settings():
    low = ((0, 10), (1, 20), (2, 30), (3, 40), (4, 0), (5, 0), (6, 0), (7, 0))
    site = Site(settings=Settings(max_vls=3, sl_to_vl=tuple(range(16)), vl_low=low, vl_high_limit=4))
    sma, state = site.endpoint.network.sma, site.state
    leaf = state.find("leaf-0")
    for into, out in ((1, 5), (6, 2)):
        table = smp.SlToVl.decode(sma._get_sl_to_vl(leaf, state.base[leaf], into << 8 | out)[1])
        assert table.vls == (*(sl % 4 for sl in range(15)), 15), "lane 15 means: discard"
    table = smp.VlArbitration.decode(sma._get_arbitration(leaf, state.base[leaf], 5 | 1 << 16)[1])
    assert table.vls[:8] == (0, 1, 2, 3, 0, 1, 2, 3)
    assert table.weights[:8] == (10, 20, 30, 40, 0, 0, 0, 0)
    info = PortInfo.decode(state.get(state.base[leaf] + 5))
    assert (info.operational_vls, info.vl_high_limit) == (3, 4)


def test_a_switch_without_one_table_for_all_ports_gets_one_for_each_pair():
    site = Site(manage=False)
    leaf = site.state.find("leaf-0")
    info = smp.SwitchInfo.decode(site.state.switch_info[leaf])
    site.state.switch_info[leaf][:] = replace(info, optimized_sl_to_vl=0).encode()
    site.manage(first_adapter(site.endpoint))
    site.now = settle(site.managers, 0)
    ports = range(7)  # an enhanced port 0 has lanes too
    keys = {key for key in site.state.sl_to_vl if key[0] == leaf}
    assert keys == {(leaf, into, out) for out in ports for into in ports if into != out or not out}


def test_the_slowest_end_decides_the_mtu():
    site = Site(manage=False)
    at = site.slot("host-5/mlx5_0", 1)
    site.state.put(at, replace(PortInfo.decode(site.state.get(at)), mtu_cap=4, neighbor_mtu=4))
    site.manage(first_adapter(site.endpoint))
    site.now = settle(site.managers, 0)
    assert PortInfo.decode(site.state.get(at)).neighbor_mtu == 4
    assert PortInfo.decode(site.state.get(site.slot("leaf-1", 2))).neighbor_mtu == 4
    assert PortInfo.decode(site.state.get(site.slot("leaf-1", 1))).neighbor_mtu == 5


def test_an_m_key_locks_out_others():
    site = Site(settings=Settings(m_key=77, m_key_protect=3))
    assert site.all_arrive()
    slot = site.state.end_slot(site.state.find("host-3/mlx5_0"))
    lid = site.state.lid(site.state.end_slot(site.state.find("leaf-0")))
    mad = LidSmp(method=Method.GET, attribute=AttributeId.NODE_INFO)
    assert site.endpoint.network.send(slot, Frame(lid, 0, 0, 0, mad.encode()), 0).fate == Fate.DROPPED
    mad.m_key = 77
    assert site.endpoint.network.send(slot, Frame(lid, 0, 0, 0, mad.encode()), 0).fate == Fate.ANSWERED


def test_two_hosts_back_to_back_are_a_subnet_too():
    site = Site(compile_fabric(blueprint([], ["a", "b"], [("a", 1, "b", 1)])))
    assert site.hosted.reports[0].endpoints == 2
    assert site.all_arrive()


def read_table(site: Site, m: int) -> list[int]:
    """A switch's forwarding table, block by block as its agent answers a Get."""
    network, state = site.endpoint.network, site.state
    table: list[int] = []
    asker, lid = state.end_slot(first_adapter(site.endpoint)), state.lid(state.base[m])
    for block in range(state.lft.shape[1] // 64):
        mad = LidSmp(method=Method.GET, attribute=AttributeId.LINEAR_FORWARDING, modifier=block)
        outcome = network.send(asker, Frame(lid, 0, 0, 0, mad.encode()), site.now)
        assert outcome.fate == Fate.ANSWERED
        table += LidSmp.decode(outcome.frame.mad).data
    return table


@pytest.mark.parametrize("engine", ["minhop", "updown", "dfsssp"])
def test_tables_of_several_blocks_lead_every_lid_to_its_owner(engine):
    """More than 128 LIDs: the tables that switches answer with, walked link by link, blocks' ends too."""
    site = Site(two_tiers(leaves=9, spines=3, down=16), settings=Settings(engine=engine))
    state = site.state
    owner = {state.lid(state.end_slot(m)): m for m in range(len(state.guid))}
    assert len(owner) == 9 * 16 + 9 + 3
    assert {63, 127} <= set(owner)
    tables = {m: read_table(site, m) for m in state.row}
    for lid, there in owner.items():
        for at in state.row:
            hops = 0
            while at != there and state.is_switch[at]:
                port = tables[at][lid]
                assert 1 <= port <= state.ports[at], f"LID {lid} at {state.description[at]}"
                at = state.node_of[state.link[state.base[at] + port]]
                hops += 1
                assert hops <= 5
            assert at == there
    for m, table in tables.items():  # and nothing else is routed; a switch's own LID leads to itself
        assert {lid for lid, port in enumerate(table) if port != 255} == set(owner)
        assert [lid for lid, port in enumerate(table) if port == 0] == [state.lid(state.base[m])]


def test_a_trap_144_makes_the_manager_look_and_its_records_follow():
    site = Site()
    manager, state = site.hosted.manager, site.state
    host = state.find("host-9/mlx5_0")
    lid = state.lid(state.end_slot(host))
    known = len(site.hosted.reports)
    site.endpoint.network.sma.describe(host, b"renamed mlx5_0", site.now)
    assert manager.database.by_lid(lid).node.name == "host-9 mlx5_0"
    site.settle()
    assert len(site.hosted.reports) == known + 1
    assert manager.database.by_lid(lid).node.name == "renamed mlx5_0"
    assert not state.notices.pending, "the manager has repressed it"
    # another manager opens its port: the capability is in the trap itself
    site.endpoint.network.sma.set_is_sm(host, True, site.now)
    assert not manager.database.by_lid(lid).info.capability_mask & smp.Capability.IS_SM
    site.settle()
    assert manager.database.by_lid(lid).info.capability_mask & smp.Capability.IS_SM
    assert len(site.hosted.reports) == known + 2
    assert not state.notices.pending


# service levels to lanes as they are unless somebody says otherwise: the same number, folded back to the lanes
# there are; level 15 is management's, whose lane 15 means "discard" in a table of data lanes
IDENTITY = (0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("code", "lanes"),
    [(1, (0,) * 16), (2, (0, 1) * 8), (3, (0, 1, 2, 3) * 4), (4, IDENTITY), (5, IDENTITY)],
)
def test_the_default_map_of_service_levels_is_the_identity(code, lanes):
    assert Settings().sl_to_vl == IDENTITY
    assert smp.SlToVl.decode(Settings().sl_to_vl_bytes(code)).vls == lanes


def test_every_agent_maps_service_levels_by_the_identity_before_and_after_the_manager():
    site = Site(manage=False)
    state, sma = site.state, site.endpoint.network.sma

    def held() -> set[tuple[int, ...]]:
        return {
            smp.SlToVl.decode(sma._get_sl_to_vl(m, state.end_slot(m), into << 8 | out)[1]).vls
            for m in range(len(state.guid))
            for into in range(state.ports[m] + 1 if state.is_switch[m] else 1)
            for out in range(1, state.ports[m] + 1)
            if into != out
        }

    assert held() == {(*IDENTITY[:15], 15)}
    site.manage(first_adapter(site.endpoint))
    site.now = settle(site.managers, 0)
    assert held() == {IDENTITY}
