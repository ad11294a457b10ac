"""The compiled fabric: structure against networkx, names, paths inside hosts, errors."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from support.clusters import blueprint, boxes, dgx

from fabrictwin import catalog
from fabrictwin.base.errors import ConfigError
from fabrictwin.fabric.compile import compile_fabric, packet_overhead
from fabrictwin.fabric.fabric import NETWORK, NONE, LinkKind, NodeKind
from fabrictwin.fabric.host_template import host_template
from fabrictwin.fabric.memory_paths import PathFinder


def graph_of(fabric) -> nx.MultiDiGraph:
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(fabric.nodes))
    for port in np.flatnonzero(fabric.port_peer != NONE):
        graph.add_edge(int(fabric.port_node[port]), int(fabric.port_node[fabric.port_peer[port]]), port=int(port))
    return graph


def test_every_link_has_two_ends_that_agree():
    fabric = dgx().fabric
    plugged = np.flatnonzero(fabric.port_peer != NONE)
    assert (fabric.port_peer[fabric.port_peer[plugged]] == plugged).all()
    assert (fabric.port_rate_bps[plugged] == fabric.port_rate_bps[fabric.port_peer[plugged]]).all()
    assert (fabric.port_kind[plugged] == fabric.port_kind[fabric.port_peer[plugged]]).all()


def test_ports_of_a_node_are_contiguous_and_numbered_from_one():
    fabric = dgx().fabric
    for node in range(fabric.nodes):
        first, last = fabric.node_port_start[node], fabric.node_port_start[node + 1]
        assert (fabric.port_node[first:last] == node).all()
        assert list(fabric.port_number[first:last]) == list(range(1, last - first + 1))


def test_a_dgx_a100_has_what_its_data_sheet_says():
    fabric = dgx(2).fabric
    kinds = fabric.node_kind[: fabric.host_node_start[1]]
    count = {kind: int((kinds == kind).sum()) for kind in NodeKind}
    assert count[NodeKind.GPU] == 8
    assert count[NodeKind.NVSWITCH] == 6
    assert count[NodeKind.NIC] == 8
    gpu = int(fabric.gpu_node[0])
    ports = range(fabric.node_port_start[gpu], fabric.node_port_start[gpu + 1])
    nvlink = sum(int(fabric.port_rate_bps[p]) for p in ports if fabric.port_kind[p] == LinkKind.NVLINK)
    assert nvlink == 12 * 25 * 8 * 10**9  # 12 links of 25 GB/s each way


def test_the_graph_is_connected_and_as_deep_as_two_tiers():
    fabric = boxes().fabric
    graph = graph_of(fabric)
    assert nx.is_strongly_connected(graph)
    nics = [int(n) for n in fabric.nic_node]
    # adapter, leaf, spine, leaf, adapter
    assert nx.shortest_path_length(graph, nics[0], nics[-1]) == 4


def test_payload_rate_leaves_out_exactly_the_headers():
    assert packet_overhead("infiniband") == 8 + 12 + 4 + 2  # LRH, BTH, ICRC, VCRC
    assert packet_overhead("ethernet") == 8 + 12 + 14 + 4 + 20 + 8 + 12 + 4
    fabric = boxes().fabric
    port = int(fabric.nic_port[0])
    assert fabric.port_payload_bps[port] == round(200e9 * 4096 / (4096 + 26))


def test_names_go_both_ways():
    fabric = dgx().fabric
    for node in (0, int(fabric.gpu_node[9]), int(fabric.nic_node[3]), fabric.nodes - 1):
        assert fabric.find_node(fabric.node_name(node)) == node
    assert fabric.node_name(int(fabric.gpu_node[9])) == "host-1/gpu1"
    ports = np.arange(fabric.ports)
    assert fabric.link_names(ports) == [fabric.link_name(port) for port in ports.tolist()]
    assert fabric.node_names == [fabric.node_name(node) for node in range(fabric.nodes)]


def test_gpus_of_a_host_talk_over_every_nvswitch_in_proportion_to_its_links():
    for kind in ("dgx-a100", "dgx-h100"):
        template = host_template(kind, tuple(nic.hca for nic in catalog.host(kind).nics))
        n, paths = len(template.node_kind), template.paths
        pair = template.gpus[0] * n + template.gpus[5]
        ways = range(paths.pair_start[pair], paths.pair_start[pair + 1])
        switches = int((template.node_kind == NodeKind.NVSWITCH).sum())
        assert len(ways) == switches
        assert sum(paths.share[i] for i in ways) == pytest.approx(1)
        for i in ways:
            ports = paths.ports[paths.hop_start[i] : paths.hop_start[i + 1]]
            assert len(ports) == 2
            rates = template.port_rate_bps[ports]
            total = sum(int(template.port_rate_bps[paths.ports[paths.hop_start[k]]]) for k in ways)
            assert paths.share[i] == pytest.approx(rates.min() / total)


def test_without_nvlink_gpus_go_over_pcie_and_not_through_each_other():
    fabric = boxes(2).fabric
    finder = PathFinder(fabric, boxes(2).routes)
    found = finder.find(fabric.gpu_node[:1], fabric.gpu_node[1:2])
    kinds = {LinkKind(int(fabric.port_kind[p])) for p in found.port}
    assert kinds == {LinkKind.PCIE}
    through = {NodeKind(int(fabric.node_kind[fabric.port_node[p]])) for p in found.port[1:]}
    assert through == {NodeKind.CPU}


def test_a_gpu_leaves_through_the_adapter_of_its_rail():
    twin = dgx()
    fabric = twin.fabric
    finder = PathFinder(fabric, twin.routes)
    assert [int(a) for a in finder.adapter_of(fabric.gpu_node[:16])] == list(range(16))


def test_a_gpu_whose_adapter_has_no_cable_takes_the_nearest_that_has():
    from fabrictwin.twin import Twin

    built = blueprint(2)
    node = len(built.switches)  # the first host's first adapter
    cable = int(np.flatnonzero((built.cables.a_node == node) | (built.cables.b_node == node))[0])
    twin = Twin(built, dead=(cable,))
    fabric = twin.fabric
    adapters = PathFinder(fabric, twin.routes).adapter_of(fabric.gpu_node[:16])
    assert list(adapters) == [1, *range(1, 16)]  # gpu0 shares the PCIe switch of gpu1's adapter
    assert twin.path("host-0/gpu0", "host-1/gpu0")[0]


def test_latency_is_the_sum_of_what_is_on_the_way():
    twin = dgx()
    fabric = twin.fabric
    a, b = fabric.gpu_node[2:3], fabric.gpu_node[10:11]
    found = PathFinder(fabric, twin.routes).find(a, b)
    nodes = [int(fabric.port_node[p]) for p in found.port]
    wires = sum(int(fabric.port_latency_ps[p]) for p in found.port)
    passed = sum(int(fabric.node_latency_ps[n]) for n in nodes[1:])
    head = [
        p for p in found.port if fabric.port_kind[p] not in NETWORK and fabric.node_host[fabric.port_node[p]] == 0
    ]
    again = sum(int(fabric.port_latency_ps[p]) for p in head)
    again += sum(int(fabric.node_latency_ps[fabric.port_node[p]]) for p in head[1:])
    nic = int(found.source_nic[0])
    cost = int(fabric.nic_post_ps[nic] + fabric.nic_deliver_ps[nic])
    assert int(found.latency_ps[0]) == wires + passed + again + cost


def test_shares_split_bytes_without_a_remainder():
    twin = dgx()
    fabric = twin.fabric
    found = PathFinder(fabric, twin.routes).find(fabric.gpu_node[:1], fabric.gpu_node[1:2])
    size = 1_000_003
    upper = np.rint((found.before + found.share) * size)
    carried = upper - np.rint(found.before * size)
    leaving = fabric.port_node[found.port] == fabric.gpu_node[0]
    assert carried[leaving].sum() == size


def test_a_port_that_is_not_there_or_taken_is_an_error():
    built = blueprint(2, "pcie-box", topology={"kind": "single-switch"})
    cables = built.cables
    far = replace(cables, a_port=cables.a_port + 1000)
    with pytest.raises(ConfigError, match="expected one from 1 to"):
        compile_fabric(replace(built, cables=far))
    taken = replace(cables, a_port=np.zeros_like(cables.a_port) + cables.a_port[0])
    with pytest.raises(ConfigError, match="second cable"):
        compile_fabric(replace(built, cables=taken))


def test_two_islands_are_two_planes_and_cannot_reach_each_other():
    built = blueprint(4, "pcie-box", topology={"kind": "fat-tree", "tiers": 2, "leaf_down": 2})
    trunk = np.flatnonzero(
        (built.cables.a_node < len(built.switches)) & (built.cables.b_node < len(built.switches))
    )
    keep = np.setdiff1d(np.arange(len(built.cables)), trunk)
    cut = replace(built, cables=type(built.cables)(*(column[keep] for column in vars(built.cables).values())))
    from fabrictwin.twin import Twin

    twin = Twin(cut)
    fabric = twin.fabric
    assert len(set(fabric.node_plane[fabric.nic_node])) == 2
    with pytest.raises(ConfigError, match="different subnets"):
        PathFinder(fabric, twin.routes).find(fabric.gpu_node[:1], fabric.gpu_node[-1:])


def rails(planes: int = 8):
    """Two DGX A100 whose rails are subnets of their own: leaf k and its adapters, no spine."""
    built = blueprint(2)
    trunk = np.flatnonzero(
        (built.cables.a_node < len(built.switches)) & (built.cables.b_node < len(built.switches))
    )
    keep = np.setdiff1d(np.arange(len(built.cables)), trunk)
    return replace(built, cables=type(built.cables)(*(column[keep] for column in vars(built.cables).values())))


def test_across_rails_the_nearest_adapter_of_a_shared_rail_is_taken():
    from fabrictwin.twin import Twin

    twin = Twin(rails())
    fabric = twin.fabric
    gpus = fabric.gpu_node
    out, into = PathFinder(fabric, twin.routes).adapters_between(gpus[[0, 2, 4, 6]], gpus[[9, 11, 13, 15]])
    assert list(out) == [0, 2, 4, 6]
    assert list(into) == [8, 10, 12, 14]


def test_a_dead_rail_leaves_the_others_to_both_directions():
    from fabrictwin.twin import Twin

    built = rails()
    node = len(built.switches) + 8 + 3
    cable = int(np.flatnonzero((built.cables.a_node == node) | (built.cables.b_node == node))[0])
    twin = Twin(built, dead=(cable,))
    gpus = twin.fabric.gpu_node
    finder = PathFinder(twin.fabric, twin.routes)
    out, into = finder.adapters_between(gpus[[3, 11]], gpus[[11, 3]])
    assert list(out) == [2, 10]  # gpu2's adapter is on the same PCIe switch
    assert list(into) == [10, 2]


def test_cables_have_the_catalogs_latency_and_error_correction_where_they_end():
    fabric = boxes().fabric
    nic, leaf = int(fabric.nic_port[0]), int(fabric.port_peer[fabric.nic_port[0]])
    wire = catalog.cable_latency_ps(3_000, 200_000_000_000)
    assert fabric.port_latency_ps[nic] == wire
    assert fabric.port_latency_ps[leaf] == wire + catalog.infiniband("HDR").fec_latency_ps(4)
