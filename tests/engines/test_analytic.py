"""The closed form's distances and trees, beside graphs and loops that know nothing of it."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from support.clusters import blueprint

from fabrictwin.engines.analytic.closed_forms import ClosedForms, IdealNetwork
from fabrictwin.engines.channels.pipeline_latency import beyond_drain
from fabrictwin.fabric.fabric import NETWORK, NONE, Fabric, NodeKind
from fabrictwin.program import collectives, patterns
from fabrictwin.program.program import Pattern
from fabrictwin.twin import Twin


def switches(fabric: Fabric) -> nx.Graph:
    """Switches and the trunks between them."""
    graph = nx.Graph()
    network = np.isin(fabric.port_kind, NETWORK) & (fabric.port_peer != NONE)
    for port in np.flatnonzero(network):
        a, b = int(fabric.port_node[port]), int(fabric.port_node[fabric.port_peer[port]])
        if fabric.node_kind[a] == fabric.node_kind[b] == NodeKind.SWITCH:
            graph.add_edge(a, b)
    return graph


@pytest.mark.parametrize(
    ("hosts", "topology", "climbs"),
    [
        (8, {"kind": "fat-tree", "tiers": 2, "leaf_down": 4}, {0, 1}),
        (64, {"kind": "fat-tree", "tiers": 3, "radix": 8}, {0, 1, 2}),
    ],
)
def test_distances_between_leaves_are_the_shortest_ways_of_the_graph(hosts, topology, climbs):
    """Two hops for each tier that a way climbs: none on one leaf, one in a pod, two beyond it."""
    fabric = Twin(blueprint(hosts, "pcie-box", topology=topology)).fabric
    network, graph = IdealNetwork(fabric), switches(fabric)
    port = next(
        p
        for p in range(fabric.ports)
        if network.is_trunk[p]
    )  # fmt: skip
    hop = int(fabric.port_latency_ps[port] + fabric.node_latency_ps[fabric.port_node[port]])
    pairs = [(a, b) for a in range(0, hosts, 3) for b in range(hosts) if a != b]
    source, destination = (np.array(side, np.int32) for side in zip(*pairs, strict=True))
    seen = set()
    for (a, b), beyond in zip(pairs, network.beyond_ps(source, destination), strict=True):
        steps = nx.shortest_path_length(graph, int(network.leaf[a]), int(network.leaf[b]))
        assert beyond == steps * hop
        seen.add(steps // 2)
    assert seen == climbs


def slowest_way(parent: list[int], up: np.ndarray, down: np.ndarray) -> int:
    """By following every seat to its root and back."""
    worst = 0
    for seat in range(len(parent)):
        total, at = 0, seat
        while parent[at] != NONE:
            total += int(up[at]) + int(down[at])
            at = parent[at]
        worst = max(worst, total)
    return worst


@pytest.mark.parametrize("seed", range(5))
def test_a_trees_latency_is_that_of_its_slowest_way_where_edges_differ(seed):
    """Not its depth times the mean: a slow cable counts where it lies on the longest way, and only there."""
    rng = np.random.default_rng(seed)
    fabric = Twin(blueprint(8)).fabric
    nodes = fabric.gpu_node[::8].astype(np.int32)
    host_of_rank = fabric.node_host[nodes].astype(np.int64)
    tree = collectives.all_reduce(
        np.arange(8)[None], 1 << 20, algorithm="tree", channels=2, host_of_rank=host_of_rank
    )
    channels = tree.channels
    assert (channels.pattern == Pattern.TREE_ALL_REDUCE).all()
    found = patterns.edges(channels)
    edge_ps = rng.integers(1, 1_000_000, len(found)).astype(np.int64)
    hops, _ = patterns.fill(channels)
    # wires that take no time: what is left is latency
    fill_ps = beyond_drain(channels, found, edge_ps, np.full(len(found), np.inf)).fill_ps
    above = patterns.parent_rows(channels)
    for c in range(len(channels)):
        rows = range(int(channels.rank_start[c]), int(channels.rank_start[c + 1]))
        first = rows[0]
        up, down = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        for source, target, took in zip(found.source_row, found.target_row, edge_ps, strict=True):
            if source in rows:
                if above[source] == target:
                    up[source - first] = took
                else:
                    down[target - first] = took
        parent = [NONE if above[row] == NONE else int(above[row]) - first for row in rows]
        assert fill_ps[c] == slowest_way(parent, up, down)
        assert fill_ps[c] != round(int(hops[c]) * edge_ps[found.channel == c].mean())


def test_bytes_and_latency_of_a_send_come_apart():
    fabric = Twin(blueprint(4)).fabric
    nodes = fabric.gpu_node[::8].astype(np.int32)
    engine = ClosedForms(fabric)
    small, large = (collectives.send([[0, 1]], size) for size in (1 << 20, 1 << 24))
    less, more = engine.terms(small, nodes), engine.terms(large, nodes)
    assert more.drain_ps == pytest.approx(16 * less.drain_ps, rel=1e-6)
    assert more.critical.edge_ps.tolist() == less.critical.edge_ps.tolist()  # both are whole packets
