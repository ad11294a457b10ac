"""Traffic that switches spread packet by packet, as the flow engine sees it: even parts of all shortest paths."""

from __future__ import annotations

from collections import defaultdict

import networkx as nx
import numpy as np
import pytest
from support.clusters import blueprint
from support.programs import operations

from fabrictwin.engines.base.changes import TimedChange
from fabrictwin.engines.base.play import play
from fabrictwin.engines.flow.flow_engine import FlowEngine
from fabrictwin.engines.packet.packet_engine import PacketEngine
from fabrictwin.engines.packet.packet_options import options_with
from fabrictwin.fabric.compile import compile_fabric
from fabrictwin.fabric.fabric import NETWORK, NONE
from fabrictwin.program import collectives
from fabrictwin.program.builder import ProgramBuilder
from fabrictwin.routing.engines.registry import route
from fabrictwin.routing.path_spread import spread

TREES = (
    {"kind": "fat-tree", "tiers": 2, "leaf_down": 8, "spines": 3},
    {"kind": "fat-tree", "tiers": 3, "leaf_down": 16, "leaves": 2, "pods": 2},
)


def network(topology, hosts=8):
    return compile_fabric(
        blueprint(
            hosts, "dgx-h100", technology="ethernet", switch="spectrum-4", link_rate="400 Gb/s", topology=topology
        )
    )


def divided(fabric, source, destination):
    """Bytes by port where every switch divides what it gets: node by node, over distances of networkx."""
    graph = nx.MultiDiGraph()
    for port in np.flatnonzero((fabric.port_peer != NONE) & np.isin(fabric.port_kind, NETWORK)).tolist():
        graph.add_edge(int(fabric.port_node[port]), int(fabric.port_node[fabric.port_peer[port]]), key=port)
    goal = int(fabric.nic_node[destination])
    far = nx.shortest_path_length(graph, target=goal)
    node = int(fabric.nic_node[source])
    here, carried = {node: 1.0}, defaultdict(float)
    while set(here) != {goal}:
        there = defaultdict(float)
        for node, share in here.items():
            ways = [(b, key) for _, b, key in graph.out_edges(node, keys=True) if far[b] == far[node] - 1]
            for b, key in ways:
                carried[key] += share / len(ways)
                there[b] += share / len(ways)
        here = there
    return carried


@pytest.mark.parametrize("topology", TREES)
def test_every_switch_divides_what_it_gets_evenly_over_shortest_paths(topology):
    fabric = network(topology)
    source, destination = np.array([0, 1, 0, 9], np.int32), np.array([63, 9, 1, 40], np.int32)
    found = spread(route(fabric), source, destination)
    for i in range(len(source)):
        mine = found.pair == i
        carried = dict(zip(found.port[mine].tolist(), found.share[mine].tolist(), strict=True))
        assert carried == pytest.approx(divided(fabric, int(source[i]), int(destination[i])))


def permutation(fabric):
    n = fabric.gpus
    pairs = np.stack([np.arange(n), (np.arange(n) * 9 + 8) % n], axis=1)
    builder = ProgramBuilder("permutation", n)
    every = builder.actor("all", np.arange(n))
    sent = collectives.send(pairs[pairs[:, 0] != pairs[:, 1]], 1 << 20, name="send")
    builder.communicate(builder.communication(sent, [every]), builder.label("send", "other"))
    return builder.build()


def test_spread_flows_take_what_sprayed_packets_take_and_hashed_ones_collide():
    fabric = network({"kind": "fat-tree", "tiers": 2, "leaf_down": 8})
    routes, program, nodes = route(fabric), permutation(fabric), fabric.gpu_node.astype(np.int32)
    even = play(program, nodes, FlowEngine(fabric, routes, spread=True)).end_ps
    hashed = play(program, nodes, FlowEngine(fabric, routes)).end_ps
    options = options_with(balance="adaptive", lossless=True)
    packets = play(program, nodes, PacketEngine(fabric, routes, options)).end_ps
    assert hashed > 1.5 * even
    assert packets == pytest.approx(even, rel=0.1)


@pytest.mark.parametrize("after_ps", [0, 40_000_000])
def test_a_switch_spreads_around_its_own_dead_links_and_back(after_ps):
    """Eight senders of a leaf over three spines, one of whose links is down for a while."""
    fabric = network({"kind": "fat-tree", "tiers": 2, "leaf_down": 8, "spines": 3})
    routes, nodes = route(fabric), fabric.gpu_node.astype(np.int32)
    leaf = fabric.port_node[fabric.port_peer[fabric.nic_port]]
    here, there = np.flatnonzero(leaf == leaf[0])[:8], np.flatnonzero(leaf != leaf[0])[:8]
    pairs = np.stack([here, there], axis=1)
    mine = np.flatnonzero((fabric.port_node == leaf[0]) & (fabric.port_peer != NONE))
    far = fabric.port_node[fabric.port_peer[mine]]
    up = mine[fabric.node_tier[far] > fabric.node_tier[leaf[0]]].tolist()
    dead, *others = up
    sends = [collectives.send(pairs, 8 << 20)]

    def took(engine, down: bool) -> int:
        engine.post(operations([0], [[]]), sends, nodes)
        engine.advance(after_ps)
        if down:
            engine.change(TimedChange(engine.now_ps, dead, 0))
        engine.advance()
        return int(engine.ended_ps()[-1])

    whole, cut, packets = (
        FlowEngine(fabric, routes, spread=True),
        FlowEngine(fabric, routes, spread=True),
        PacketEngine(fabric, routes, options_with(balance="adaptive", lossless=True)),
    )
    alone, without = took(whole, False), took(cut, True)
    assert without > 1.05 * alone
    if not after_ps:  # later, what is on the wire is lost, and sent again after a timeout
        assert took(packets, True) == pytest.approx(without, rel=0.1)
    carried, before = cut.counters().tx_bytes, whole.counters().tx_bytes
    assert carried[dead] < before[dead] if after_ps else carried[dead] == 0
    assert carried[others].tolist() == pytest.approx([carried[others].mean()] * len(others), rel=0.2)
    assert carried[up].sum() == pytest.approx(before[up].sum(), rel=1e-6)
    cut.change(TimedChange(cut.now_ps, dead, None))
    cut.post(operations([0], [[]]), sends, nodes)
    now = cut.now_ps
    cut.advance()
    assert int(cut.ended_ps()[-1]) - now == alone
