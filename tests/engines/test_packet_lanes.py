"""Virtual lanes through the engine: tables of single ports, weights, strict priorities, service levels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.clusters import boxes

from fabrictwin.base.errors import ConfigError
from fabrictwin.cluster.spec.packet_section import Packet
from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.packet.network.packet_network import PacketNetwork
from fabrictwin.engines.packet.packet_options import PacketOptions, options_of, options_with
from fabrictwin.kernel.packet.invariants import violations
from fabrictwin.routing.lane_tables import LaneTables, PortArbitration
from fabrictwin.routing.port_settings import PortSettings

FOLD = [sl % 2 for sl in range(16)]


def switch_ports(fabric):
    """(adapters' ports, the switch's ports toward them), in the adapters' order."""
    own = fabric.nic_port
    return own, fabric.port_peer[own]


def programmed(twin, maps, arbitrations=()):
    """The routes with these tables on the switch's ports, by place of the adapter; adapters fold."""
    own, toward = switch_ports(twin.fabric)
    every = {int(port): [FOLD] for port in own} | {int(toward[i]): table for i, table in maps.items()}
    turns = {int(toward[i]): table for i, table in dict(arbitrations).items()}
    return replace(twin.routes, lane_tables=LaneTables.of(len(twin.fabric.port_node), every, turns))


def test_tables_that_are_alike_are_kept_once():
    maps = {3: [FOLD], 4: [FOLD, FOLD], 5: [FOLD, [0] * 16]}
    one = PortArbitration(low=((0, 1),))
    tables = LaneTables.of(
        8, maps, {3: one, 4: PortArbitration(low=((0, 1),)), 5: PortArbitration(high=((0, 1),))}
    )
    assert tables.sl_to_vl.tolist() == [FOLD, FOLD, [0] * 16]
    assert tables.sl_to_vl_row.tolist() == [-1, -1, -1, 0, 0, 1, -1, -1]
    assert tables.by_input.tolist() == [False] * 5 + [True, False, False]
    assert tables.arbitration_row.tolist() == [-1, -1, -1, 0, 0, 1, -1, -1]
    assert len(tables.arbitrations) == 2
    assert tables.lanes_of([0]) == {0}
    assert tables.lanes_of([0, 1]) == {0, 1}


def play(twin, routes, flows, levels, **options):
    """Flows between adapters, each at a service level; returns the network after `until` microseconds."""
    chosen = options_with(service_levels=tuple((str(i), level) for i, level in enumerate(levels)), **options)
    network = PacketNetwork(twin.fabric, routes, chosen)
    first = network.connections.connect(
        [network.connections.remote(a, b, sl=level) for (a, b, _), level in zip(flows, levels, strict=True)]
    )
    n = len(flows)
    sizes = np.array([size for *_, size in flows])
    network.machine.add_tasks(np.ones(n, int), first + np.arange(n), sizes, np.zeros(n, int))
    return network


def test_each_port_has_the_maps_and_turns_that_were_programmed_into_it():
    """Two levels meet at two outputs: one gives them lanes with weights 1 and 3, the other a single lane."""
    twin = boxes(4, "infiniband")
    weights = PortArbitration(low=((0, 65), (1, 195)))
    tables = {2: [FOLD], 3: [[0] * 16]}
    routes = programmed(twin, tables, {2: weights})
    for target, ratio in ((2, 3.0), (3, 1.0)):
        flows = [(0, target, 50_000_000), (1, target, 50_000_000)]
        network = play(twin, routes, flows, [0, 1])
        network.machine.run(400 * 10**6)
        light, heavy = (int(qp.expected) for qp in network.machine.state.qp[:2])
        assert heavy / light == pytest.approx(ratio, rel=0.05)


def test_weights_that_change_on_the_way_hold_from_then_on():
    """Two levels take equal turns, then one and three, then one lane; what waits is not lost or doubled."""
    twin = boxes(4, "infiniband")
    even, uneven = PortArbitration(low=((0, 65), (1, 65))), PortArbitration(low=((0, 65), (1, 195)))
    first, second, third = (
        programmed(twin, maps, turns).lane_tables
        for maps, turns in (({2: [FOLD]}, {2: even}), ({2: [FOLD]}, {2: uneven}), ({2: [[0] * 16]}, {}))
    )
    routes = replace(twin.routes, lane_tables=first)
    network = play(twin, routes, [(0, 2, 60_000_000), (1, 2, 60_000_000)], [0, 1])
    for at, tables in ((400, second), (800, third)):
        network.at(TimedChange(at * 10**6, settings=PortSettings(lanes=tables)))
    seen = [np.zeros(2)]
    for until in (400, 800, 1200):
        network.run(until * 10**6)
        seen.append(network.machine.state.qp.expected[:2].astype(float))
        assert not violations(network.machine.state)
    ratios = [moved[1] / moved[0] for moved in np.diff(seen, axis=0)]
    assert ratios == pytest.approx([1.0, 3.0, 1.0], rel=0.05)
    network.run(drain=True)
    assert (network.machine.state.task.done_ps[:2] > 0).all()
    assert not violations(network.machine.state)


def test_maps_that_change_on_the_way_move_a_flow_to_another_lane():
    twin = boxes(4, "infiniband")
    one, other = (
        programmed(twin, {2: [table]}, {2: PortArbitration(low=((0, 1), (1, 1)))}).lane_tables
        for table in (FOLD, [1 - vl for vl in FOLD])
    )
    network = play(
        twin, replace(twin.routes, lane_tables=one), [(0, 2, 20_000_000), (1, 2, 20_000_000)], [0, 0], lanes=2
    )
    network.at(TimedChange(200 * 10**6, settings=PortSettings(lanes=other)))
    out = 2 * int(switch_ports(twin.fabric)[1][2])
    network.run(190 * 10**6)
    assert network.machine.state.outlet.last_tx[out + 1] == 0
    network.run(400 * 10**6)
    lanes = network.machine.state.outlet.last_tx[out : out + 2]
    assert lanes[1] > 390 * 10**6 > 300 * 10**6 > lanes[0]
    network.run(drain=True)
    assert not violations(network.machine.state)


def test_lanes_that_a_run_does_not_have_cannot_come_later():
    twin = boxes(4, "infiniband")
    network = play(twin, programmed(twin, {2: [FOLD]}), [(0, 2, 1000)], [0], lanes=2)
    wide = programmed(twin, {2: [[5] * 16]}).lane_tables
    network.at(TimedChange(0, settings=PortSettings(lanes=wide)))
    with pytest.raises(ConfigError, match="lead to lane 5, expected lanes below 2, which the run began with"):
        network.run()


def test_a_map_by_input_port_is_the_switchs():
    """The same service level from two hosts leaves on two lanes."""
    twin = boxes(3, "infiniband")
    _, toward = switch_ports(twin.fabric)
    node = int(twin.fabric.port_node[toward[0]])
    first = int(twin.fabric.node_port_start[node])
    ports = int(twin.fabric.node_port_start[node + 1]) - first
    by_input = [[0] * 16] * ports
    by_input[int(toward[1]) - first] = [1] * 16
    routes = programmed(twin, {2: by_input})
    network = play(twin, routes, [(0, 2, 400_000), (1, 2, 800_000)], [0, 0])
    network.machine.run()
    out = int(toward[2])
    last = network.machine.state.outlet.last_tx[2 * out : 2 * out + 2]
    assert last[0] > 0
    assert last[1] > last[0]


def test_tables_of_a_subnet_manager_and_of_the_run_exclude_each_other():
    twin = boxes(3, "infiniband")
    options = options_with(lanes=2, sl_to_vl=tuple(FOLD))
    with pytest.raises(ConfigError, match="beside a subnet manager"):
        PacketNetwork(twin.fabric, programmed(twin, {}), options)


def test_a_lane_beyond_the_kernels_is_refused():
    twin = boxes(3, "infiniband")
    with pytest.raises(ConfigError, match="lead to lane 9, expected lanes below 8"):
        PacketNetwork(twin.fabric, programmed(twin, {2: [[9] * 16]}), PacketOptions())


def section(technology, **keys):
    """The engine's options as this `run.packet` gives them."""
    return options_of(Packet.model_validate(keys), technology, 1)


def meet(technology, levels, **keys):
    """Packets taken of two endless flows that meet at a third host's link, under this `run.packet`."""
    twin = boxes(3, technology)
    network = PacketNetwork(twin.fabric, twin.routes, section(technology, **keys))
    to = network.connections
    first = to.connect([to.remote(i, 2, sl=level) for i, level in enumerate(levels)])
    sizes = np.full(2, 50_000_000)
    network.machine.add_tasks(np.ones(2, int), first + np.arange(2), sizes, np.zeros(2, int))
    network.machine.run(400 * 10**6)
    assert not violations(network.machine.state)
    return [int(qp.expected) for qp in network.machine.state.qp[:2]]


@pytest.mark.parametrize("weights", [[1, 3], [2, 1]])
def test_priorities_share_a_link_by_their_weights(weights):
    light, heavy = meet("ethernet", [0, 1], virtual_lanes=2, ets_weights=weights)
    assert heavy / light == pytest.approx(weights[1] / weights[0], rel=0.05)


def test_a_priority_that_sent_alone_owes_the_others_nothing():
    """A flow has the link for half a millisecond; from when another comes, it has three quarters of it."""
    twin = boxes(4, "ethernet")
    options = options_of(Packet(virtual_lanes=2, ets_weights=[3, 1], control="none"), "ethernet", 1)
    network = PacketNetwork(twin.fabric, twin.routes, options)
    ends = [network.connections.remote(source, 2, sl=source) for source in (0, 1)]
    first = network.connections.connect(ends)
    network.machine.add_tasks(np.ones(1, int), np.array([first]), np.array([1 << 30]), np.zeros(1, int))
    network.machine.run(500 * 10**6)
    network.machine.add_tasks(np.ones(1, int), np.array([first + 1]), np.array([1 << 30]), np.zeros(1, int))
    network.machine.run(600 * 10**6)
    before = [int(qp.expected) for qp in network.machine.state.qp[:2]]
    network.machine.run(900 * 10**6)
    alone, late = (int(qp.expected) - had for qp, had in zip(network.machine.state.qp[:2], before, strict=True))
    assert alone / late == pytest.approx(3.0, rel=0.05)


def test_a_strict_priority_takes_the_link():
    low, high = meet("ethernet", [0, 1], virtual_lanes=2, strict_priorities=[1])
    assert low < 0.01 * high


def test_lanes_share_an_infiniband_link_as_the_run_says():
    maps = [0, 1] * 8
    light, heavy = meet("infiniband", [4, 7], virtual_lanes=2, sl_to_vl=maps, vl_low="0:65,1:195")
    assert heavy / light == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("technology", ["ethernet", "infiniband"])
def test_a_victim_is_spared_on_a_priority_or_lane_of_its_own(technology):
    """Four hosts send to one; one of them also sends to an idle host, whose link is free."""

    shallow = {"buffer": "3 MiB"} if technology == "ethernet" else {"credit_buffer": "64 KiB"}

    def victim(level):
        twin = boxes(8, technology)
        network = PacketNetwork(twin.fabric, twin.routes, section(technology, virtual_lanes=2, **shallow))
        flows = [(0, 4), (1, 4), (2, 4), (3, 4), (0, 5)]
        to = network.connections
        first = to.connect([to.remote(a, b, sl=level if b == 5 else 0) for a, b in flows])
        sizes = np.array([4_000_000] * 5)
        network.machine.add_tasks(np.ones(5, int), first + np.arange(5), sizes, np.zeros(5, int))
        network.machine.run()
        return int(network.machine.state.task.done_ps[4])

    assert victim(1) < 0.75 * victim(0)
