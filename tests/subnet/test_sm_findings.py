"""What the manager says of nodes that lie, hang or are there twice; the sweep ends whatever they do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sm_fabrics import Site, two_tiers

from fabrictwin.subnet.agents.agent_state import SubnetState
from fabrictwin.subnet.agents.mad_routing import Network
from fabrictwin.subnet.manager.mad_transport import MadTiming, TwinTransport
from fabrictwin.subnet.manager.sweep.discovery import Discovery, Kind
from fabrictwin.subnet.operation.manager_host import first_adapter, settle
from fabrictwin.subnet.wire import smp
from fabrictwin.subnet.wire.smp import AttributeId, SmState


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


@settings(max_examples=30)
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
