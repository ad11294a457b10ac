"""The manager over a fabric: what it finds, sets up, keeps up. Judged by what nodes hold and by walking tables."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sm_fabrics import blueprint, two_tiers

from fabrictwin.errors import ConfigError
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import NONE, Fabric
from fabrictwin.routing.options import Options
from fabrictwin.subnet.agents.network import Fate, Frame, Network
from fabrictwin.subnet.agents.state import SubnetState
from fabrictwin.subnet.endpoint import Endpoint
from fabrictwin.subnet.hosting import HostedManager, first_adapter, settle
from fabrictwin.subnet.manager import lids
from fabrictwin.subnet.manager.config import Partition, Settings
from fabrictwin.subnet.manager.discovery import Discovery, Kind
from fabrictwin.subnet.manager.reports import Memory
from fabrictwin.subnet.manager.transport import MadTiming, TwinTransport
from fabrictwin.subnet.wire import smp
from fabrictwin.subnet.wire.header import LidSmp, Method
from fabrictwin.subnet.wire.smp import AttributeId, PortInfo, PortState, SmState


class Site:
    """A fabric with a manager on its first host."""

    def __init__(self, fabric: Fabric | None = None, *, manage: bool = True, **keys: object) -> None:
        self.state = SubnetState(fabric or two_tiers())
        self.endpoint = Endpoint(Network(self.state))
        self.managers: list[HostedManager] = []
        if manage:
            self.manage(first_adapter(self.endpoint), **keys)
            self.now = settle(self.managers, 0)

    def manage(self, m: int, **keys: object) -> HostedManager:
        self.managers.append(HostedManager(self.endpoint, m, **keys))
        return self.managers[-1]

    @property
    def hosted(self) -> HostedManager:
        return self.managers[0]

    def settle(self) -> None:
        self.now = settle(self.managers, self.now)

    def slot(self, name: str, port: int) -> int:
        return self.state.base[self.state.find(name)] + port

    def arrives(self, a: int, b: int, offset: int = 0) -> bool:
        """Whether a packet of node a reaches node b by what switches and links hold now."""
        state, network = self.state, self.endpoint.network
        lid = state.lid(state.end_slot(b)) + offset
        return network.route(state.end_slot(a), lid)[0] == state.end_slot(b)

    def all_arrive(self) -> bool:
        alive = [m for m, ok in enumerate(self.state.alive) if ok]
        ends = [m for m in alive if not self.state.is_switch[m]]
        return all(self.arrives(a, b) for a in ends for b in alive)


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


def test_a_sweep_of_a_subnet_that_is_up_changes_nothing():
    site = Site()
    before = dict(site.hosted.transport.statistics.by_attribute)
    report = site.hosted.manager.sweep()
    after = site.hosted.transport.statistics.by_attribute
    assert {k for k in after if k[0] == Method.SET and after[k] != before.get(k)} == set()
    assert report.rerouting.entries == report.rerouting.broken_paths == 0
    assert site.hosted.manager.light_sweep().kind == "light"


@settings(max_examples=25, deadline=None)
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
    subnet = site.hosted.manager.subnet
    names = {node.name.removeprefix("MF0;").split(":")[0].split(" ")[0] for node in subnet.nodes.values()}
    assert names == reachable
    found = sum(port.peer is not None for node in subnet.nodes.values() for port in node.ports.values())
    assert found == 2 * sum(a in reachable for a, _, _, _ in cables)
    assert site.hosted.reports[0].findings == ()
    ends = [site.state.find(f"{n}/mlx5_0") for n in reachable if n.startswith("h")]
    assert all(site.arrives(a, b) for a in ends for b in ends)


@pytest.mark.parametrize("engine", ["minhop", "updn", "ftree", "dfsssp", "dmodk", "auto"])
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
    memory = site.hosted.manager.memory
    lids.write_guid2lid(tmp_path / "guid2lid", memory.lid, {})
    assert lids.read_guid2lid(tmp_path / "guid2lid") == memory.lid
    before = dict(site.hosted.manager.lid)
    # without a memory: the ports themselves remember
    site.managers.clear()
    site.endpoint.software.clear()
    site.manage(first_adapter(site.endpoint))
    site.settle()
    assert site.hosted.manager.lid == before
    # the fabric forgot, the file did not
    fresh = Site(memory=Memory(lids.read_guid2lid(tmp_path / "guid2lid")))
    assert fresh.hosted.manager.lid == before


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


# -- failures --------------------------------------------------------------------------------------------------


def entries(site: Site) -> dict[str, np.ndarray]:
    names = {row: site.state.description[m].decode() for m, row in site.state.row.items()}
    return {names[row]: site.state.lft[row].copy() for row in names}


def test_a_cut_cable_moves_only_what_went_over_it_and_the_outage_is_told():
    site = Site()
    before = entries(site)
    cut = site.slot("leaf-0", 5)
    lost_here = int((site.state.lft[site.state.row[site.state.find("leaf-0")]] == 5).sum())
    at = site.now
    site.state.cut_cable(cut, at)
    site.settle()
    after = entries(site)
    report = site.hosted.reports[-1]
    assert report.kind == "light"
    assert site.all_arrive()
    leaf = before["MF0;leaf-0:MQM8700/U1"], after["MF0;leaf-0:MQM8700/U1"]
    assert set(np.flatnonzero(leaf[0] != leaf[1])) == set(np.flatnonzero(leaf[0] == 5))
    # others change only what they sent to leaf-0's hosts, or to the spine, over the dead link
    concerned = {site.state.lid(site.state.end_slot(site.state.find(f"host-{i}/mlx5_0"))) for i in range(4)}
    concerned |= {site.state.lid(site.state.end_slot(site.state.find(n))) for n in ("leaf-0", "spine-0")}
    for name, old in before.items():
        if "leaf-0" not in name:
            assert set(np.flatnonzero(old != after[name])) <= concerned
    assert report.rerouting.broken_paths >= lost_here
    changed = sum(int((before[name] != after[name]).sum()) for name in before)
    assert report.rerouting.entries == changed
    assert at < report.rerouting.repaired_ps <= report.ended_ps
    assert site.hosted.reports[-1].gone == ()


def test_the_broken_paths_are_those_that_walking_the_old_tables_finds():
    site = Site()
    state = site.state
    state.cut_cable(site.slot("spine-1", 3), site.now)
    hosts = [state.find(f"host-{i}/mlx5_0") for i in range(16)]
    leaves = [state.find(f"leaf-{i}") for i in range(4)]
    everybody = hosts + leaves + [state.find(f"spine-{i}") for i in range(2)]
    broken = sum(
        site.endpoint.network.route(state.base[leaf], state.lid(state.end_slot(to)))[0] == NONE
        for leaf in leaves
        for to in everybody
    )
    site.settle()
    assert site.hosted.reports[-1].rerouting.broken_paths == broken > 0


def test_a_cable_that_comes_back_brings_the_tables_back():
    site = Site()
    before = entries(site)
    cut = site.slot("leaf-0", 5)
    site.state.cut_cable(cut, site.now)
    site.settle()
    assert any((before[n] != t).any() for n, t in entries(site).items())
    site.state.mend_cable(cut, site.now)
    site.settle()
    assert site.hosted.reports[-1].kind == "heavy"
    assert all((before[n] == t).all() for n, t in entries(site).items())
    assert site.all_arrive()


def test_a_dead_switch_is_gone_and_its_reboot_gives_it_its_lid_and_tables_again():
    site = Site()
    before = entries(site)
    spine = site.state.find("spine-1")
    lid = site.state.lid(site.state.end_slot(spine))
    site.state.power_off(spine, site.now)
    site.settle()
    report = site.hosted.reports[-1]
    assert report.gone == ("MF0;spine-1:MQM8700/U1/0",)
    assert site.all_arrive()
    site.state.power_cycle(spine, site.now)
    site.settle()
    assert site.state.lid(site.state.end_slot(spine)) == lid
    assert all((before[n] == t).all() for n, t in entries(site).items())
    assert site.hosted.reports[-1].arrived == ("MF0;spine-1:MQM8700/U1/0",)
    assert site.all_arrive()


def test_a_switch_whose_agent_hangs_is_lost_and_what_lies_behind_it_is_not():
    site = Site(two_tiers(4, 3, 4))
    site.state.silent.add(site.state.find("spine-0"))
    site.hosted.manager.light_sweep()
    assert [str(f) for f in site.hosted.manager.subnet.findings] == [
        "lost node: MF0;spine-0:MQM8700/U1: its links are up, and it does not answer any more"
    ]
    assert len(site.hosted.manager.subnet.switches) == 6
    hosts = [m for m, switch in enumerate(site.state.is_switch) if not switch]
    assert all(site.arrives(a, b) for a in hosts for b in hosts)
    dead = site.state.base[site.state.find("spine-0")]
    used = {site.state.link[dead + port] for port in range(1, 5)}
    for slot in used:
        row = site.state.row[site.state.node_of[slot]]
        assert not (site.state.lft[row] == site.state.number[slot]).any()


def test_the_outage_of_a_cut_is_that_of_a_few_datagrams():
    """The trap says where to look, so no time is lost with waiting for what cannot answer."""
    site = Site()
    at = site.now
    site.state.cut_cable(site.slot("leaf-0", 5), at)
    site.settle()
    timing = site.hosted.transport.timing
    assert site.hosted.reports[-1].rerouting.repaired_ps - at < timing.timeout_ps


def test_a_dead_leaf_takes_its_hosts_along_and_nobody_else():
    site = Site()
    site.state.power_off(site.state.find("leaf-2"), site.now)
    for i in range(8, 12):
        site.state.alive[site.state.find(f"host-{i}/mlx5_0")] = False
    site.settle()
    assert {name.split(" ")[0] for name in site.hosted.reports[-1].gone if "host" in name} == {
        f"host-{i}" for i in range(8, 12)
    }
    site.state.alive[site.state.find("leaf-2")] = False
    assert site.all_arrive()


def test_a_switch_that_reboots_between_sweeps_is_set_up_again():
    """Down and up before anybody looked: the tables are gone though the links are there."""
    site = Site()
    before = entries(site)
    spine = site.state.find("spine-0")
    site.state.power_off(spine, site.now)
    site.state.power_cycle(spine, site.now)
    site.settle()
    assert all((before[n] == t).all() for n, t in entries(site).items())
    assert site.all_arrive()


@pytest.mark.parametrize("engine", ["minhop", "updn", "ftree", "dfsssp", "auto"])
def test_every_engine_survives_a_cut(engine):
    site = Site(two_tiers(4, 3, 4), settings=Settings(engine=engine))
    site.state.cut_cable(site.slot("leaf-1", 6), site.now)
    site.settle()
    assert site.all_arrive()


def test_losses_on_the_way_are_repeated():
    site = Site(manage=False)
    site.manage(first_adapter(site.endpoint), loss=0.1, timing=MadTiming(retries=8))
    site.now = settle(site.managers, 0)
    assert site.hosted.reports[0].findings == ()
    assert site.hosted.transport.statistics.repeated > 0
    assert site.all_arrive()


# -- findings --------------------------------------------------------------------------------------------------


def findings(site: Site) -> dict[Kind, str]:
    return {finding.kind: str(finding) for finding in site.hosted.reports[-1].findings}


def test_a_duplicate_guid_of_adapters_is_named_with_both_places():
    site = Site(manage=False)
    state = site.state
    for node in ("host-5/mlx5_0", "host-9/mlx5_0"):
        state.node_info[state.find(node)] = replace(
            state.node_info[state.find(node)], node_guid=0xABC, port_guid=0xABD
        )
    site.manage(first_adapter(site.endpoint))
    site.now = settle(site.managers, 0)
    text = findings(site)[Kind.DUPLICATE_GUID]
    assert "GUID 0x0000000000000abc" in text
    assert "leaf-1:MQM8700/U1/2" in text
    assert "leaf-2:MQM8700/U1/2" in text
    rest = [m for m, switch in enumerate(state.is_switch) if not switch and m != state.find("host-9/mlx5_0")]
    assert all(site.arrives(a, b) for a in rest for b in rest)


def test_a_duplicate_guid_of_switches_is_named():
    site = Site(manage=False)
    state = site.state
    a, b = state.find("spine-0"), state.find("spine-1")
    state.node_info[b] = replace(state.node_info[b], node_guid=state.guid[a], port_guid=state.guid[a])
    site.manage(first_adapter(site.endpoint))
    site.now = settle(site.managers, 0)
    assert Kind.DUPLICATE_GUID in findings(site)
    hosts = [m for m, switch in enumerate(state.is_switch) if not switch]
    assert all(site.arrives(x, y) for x in hosts for y in hosts)


def test_a_silent_node_is_named_and_the_sweep_ends():
    site = Site(manage=False)
    state = site.state
    state.silent |= {state.find("host-5/mlx5_0"), state.find("spine-1")}
    site.manage(first_adapter(site.endpoint))
    site.now = settle(site.managers, 0)
    texts = [str(f) for f in site.hosted.reports[-1].findings]
    assert any("silent node: behind MF0;leaf-1:MQM8700/U1/2" in text for text in texts)
    assert any("silent node: behind MF0;leaf-0:MQM8700/U1/6" in text for text in texts)
    rest = [state.find(f"host-{i}/mlx5_0") for i in range(16) if i != 5]
    assert all(site.arrives(x, y) for x in rest for y in rest)


@pytest.mark.parametrize(
    ("name", "after"),
    [
        *((name, n) for name in ("spine-1", "leaf-3") for n in (1, 2, 3, 5, 9, 14)),
        *(("host-9/mlx5_0", n) for n in (1, 2, 3, 5)),
    ],
)
def test_a_node_that_stops_answering_in_mid_sweep_is_named_and_the_sweep_ends(name, after):
    site = Site(manage=False)
    state, network = site.state, site.endpoint.network
    victim, count = state.find(name), [0]
    answer = network.sma.answer

    def dying(m, *rest):
        if m == victim:
            count[0] += 1
            if count[0] > after:
                state.silent.add(m)
                return None
        return answer(m, *rest)

    network.sma.answer = dying
    site.manage(first_adapter(site.endpoint), timing=MadTiming(retries=1))
    site.now = settle(site.managers, 0, rounds=1)
    assert any(f.kind == Kind.SILENT for f in site.hosted.reports[0].findings)


LIES = {
    "fewer ports than it has": lambda info: replace(info, num_ports=2),
    "more ports than it has": lambda info: replace(info, num_ports=30),
    "a switch that is an adapter": lambda info: replace(info, node_type=smp.NodeType.CA),
    "no such type": lambda info: replace(info, node_type=9),
    "GUID 0": lambda info: replace(info, node_guid=0),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", ["spine-1", "leaf-3"])
def test_a_lying_node_is_a_finding_and_the_rest_works(name, lie):
    site = Site(manage=False)
    state = site.state
    m = state.find(name)
    state.node_info[m] = LIES[lie](state.node_info[m])
    site.manage(first_adapter(site.endpoint))
    site.now = settle(site.managers, 0)
    report = site.hosted.reports[-1]
    # one that calls itself an adapter of so many ports cannot be told from one, but nothing goes through it
    if lie != "a switch that is an adapter":
        assert {f.kind for f in report.findings} & {Kind.LIES, Kind.DUPLICATE_GUID}
    others = [state.find(f"host-{i}/mlx5_0") for i in range(12)]
    assert all(site.arrives(x, y) for x in others for y in others)


def test_an_adapter_that_says_it_is_a_switch_is_a_liar():
    site = Site(manage=False)
    m = site.state.find("host-9/mlx5_0")
    site.state.node_info[m] = replace(site.state.node_info[m], node_type=smp.NodeType.SWITCH)
    site.manage(first_adapter(site.endpoint))
    site.now = settle(site.managers, 0)
    assert "has no SwitchInfo" in findings(site)[Kind.LIES]


def test_a_port_that_says_it_is_down_though_a_link_ends_there_is_a_lie():
    site = Site(manage=False)
    state = site.state
    liar = state.find("spine-1")
    answer = site.endpoint.network.sma._get[AttributeId.PORT_INFO]

    def lying(m, entry, modifier):
        status, data = answer(m, entry, modifier)
        if m == liar and modifier == 3:
            data = data[:32] + bytes([data[32] & 0xF0 | 1, data[33] & 0x0F | 0x20]) + data[34:]
        return status, data

    site.endpoint.network.sma._get[AttributeId.PORT_INFO] = lying
    site.manage(first_adapter(site.endpoint))
    site.now = settle(site.managers, 0)
    assert "which it says is not up" in findings(site)[Kind.LIES]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 255), min_size=40, max_size=40), st.integers(0, 5))
def test_whatever_a_node_says_of_itself_the_sweep_ends(noise, which):
    """A switch whose NodeInfo is noise, another at every question."""
    state = SubnetState(two_tiers(3, 2, 2))
    network = Network(state)
    victims = [m for m, switch in enumerate(state.is_switch) if switch]
    victim = victims[which % len(victims)]
    calls = [0]
    answer = network.sma._get[AttributeId.NODE_INFO]

    def babbling(m, entry, modifier):
        status, data = answer(m, entry, modifier)
        if m == victim:
            calls[0] += 1
            data = bytes((b + calls[0] * n) & 0xFF for b, n in zip(data[:40], noise, strict=True)).ljust(64, b"\0")
        return status, data

    network.sma._get[AttributeId.NODE_INFO] = babbling
    start = state.end_slot(state.find("host-0/mlx5_0"))
    subnet = Discovery(TwinTransport(network, start, timing=MadTiming(retries=0))).run()
    assert subnet.own is not None
    assert calls[0] < 200


def test_a_manager_without_a_cable_says_so():
    site = Site(manage=False)
    site.state.silent.add(site.state.find("host-0/mlx5_0"))
    site.manage(site.state.find("host-0/mlx5_0"))
    report = site.hosted.manager.sweep()
    assert report.state == SmState.NOT_ACTIVE
    assert report.findings[0].kind == Kind.SILENT


# -- several managers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second", "master"), [(1, 5, 1), (5, 1, 0), (3, 3, 0)])
def test_two_managers_started_at_once_agree_on_one_master(first, second, master):
    site = Site(manage=False)
    site.manage(site.state.find("host-0/mlx5_0"), settings=Settings(priority=first))
    site.manage(site.state.find("host-9/mlx5_0"), settings=Settings(priority=second))
    site.now = settle(site.managers, 0)
    states = [one.manager.state for one in site.managers]
    assert states[master] == SmState.MASTER
    assert states[1 - master] == SmState.STANDBY
    assert site.all_arrive()
    sm_lid = site.state.lid(site.managers[master].slot)
    assert all(
        PortInfo.decode(site.state.get(site.state.end_slot(m))).master_sm_lid == sm_lid
        for m in range(len(site.state.guid))
    )


def test_a_standby_takes_over_when_the_master_is_gone_and_keeps_the_lids():
    site = Site(manage=False)
    site.manage(site.state.find("host-0/mlx5_0"), settings=Settings(priority=9))
    site.manage(site.state.find("host-9/mlx5_0"), settings=Settings(priority=1))
    site.now = settle(site.managers, 0)
    before = dict(site.managers[0].manager.lid)
    site.state.power_off(site.state.find("host-0/mlx5_0"), site.now)
    heir = site.managers[1]
    for _ in range(5):
        site.now += 2 * 10**12
        site.now = settle([heir], site.now)
    assert heir.manager.state == SmState.MASTER
    assert {guid: lid for guid, lid in before.items() if guid in heir.manager.lid} == heir.manager.lid
    assert len(heir.manager.lid) == len(before) - 1


def test_a_master_hands_over_to_a_manager_of_higher_rank_that_comes_later():
    site = Site(settings=Settings(priority=1))
    late = site.manage(site.state.find("host-9/mlx5_0"), settings=Settings(priority=2))
    site.settle()
    site.hosted.manager.wants_sweep = True
    site.hosted.manager.sweep()
    site.settle()
    assert site.hosted.manager.state == SmState.STANDBY
    assert late.manager.state == SmState.MASTER


# -- partitions, lanes -----------------------------------------------------------------------------------------


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
    common = site.hosted.manager.common_pkey
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
    ports = range(1, 7)
    keys = {key for key in site.state.sl_to_vl if key[0] == leaf}
    assert keys == {(leaf, into, out) for out in ports for into in (0, *ports) if into != out}


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
