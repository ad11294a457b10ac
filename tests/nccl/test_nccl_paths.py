"""Paths as NCCL classes them, against exhaustive search and widest paths of a graph library."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictwin import catalog
from fabrictwin.fabric.fabric import NONE
from fabrictwin.nccl.settings.release_rules import Rules
from fabrictwin.nccl.topology.detect import system_of
from fabrictwin.nccl.topology.graph_types import PathType
from fabrictwin.nccl.topology.system import Device, Kind, LinkClass, NetPort, Processor, System, SystemBuilder
from fabrictwin.nccl.topology.topology_paths import PathTable, Policy

PLAIN = Policy(pxn=False, nvb=False, p2p_level=PathType.SYS, gdr_level=PathType.SYS)
NEW, OLD = Rules((2, 30)), Rules((2, 21))


@st.composite
def pci_trees(draw: st.DrawFn) -> System:
    """Processors joined in pairs, PCI switches below each other, GPUs and adapters anywhere; some NVLinks."""
    build = SystemBuilder()
    width = st.sampled_from((3.0, 6.0, 12.0, 24.0, 48.0))
    cpus = [
        build.add(Device(Kind.CPU, "cpu", index=i, cpu=Processor("x86_64")))
        for i in range(draw(st.integers(1, 3)))
    ]
    above = list(cpus)
    for i in range(draw(st.integers(0, 4))):
        switch = build.add(Device(Kind.PCI, f"pci{i}"))
        build.connect(switch, draw(st.sampled_from(above)), LinkClass.PCI, draw(width))
        above.append(switch)
    gpus = []
    for i in range(draw(st.integers(2, 4))):
        gpus.append(build.add(Device(Kind.GPU, "gpu", index=i, capability=80)))
        build.connect(gpus[-1], draw(st.sampled_from(above)), LinkClass.PCI, draw(width))
    for i in range(draw(st.integers(1, 2))):
        nic = build.add(Device(Kind.NIC, "nic"))
        build.connect(nic, draw(st.sampled_from(above)), LinkClass.PCI, draw(width))
        net = build.add(Device(Kind.NET, "net", index=i, net=NetPort(asic=i, bw=25.0)))
        build.connect(nic, net, LinkClass.NET, 25.0)
    for i, a in enumerate(gpus):
        for b in gpus[:i]:
            if draw(st.booleans()):
                build.connect(a, b, LinkClass.NVL, draw(st.sampled_from((20.0, 60.0))))
    build.connect_cpus(dict.fromkeys(cpus, draw(st.sampled_from((6.0, 16.0, 40.0)))))
    return build.build()


def graph_of(system: System) -> nx.DiGraph:
    graph = nx.DiGraph()
    for link in system.links:
        graph.add_edge(link.source, link.to, bw=link.bw, kind=link.kind)
    return graph


def kind_of(system: System, graph: nx.DiGraph, path: list[int]) -> PathType:
    """By the definition: the farthest step of a path."""
    farthest = PathType.LOC
    for a, b in pairwise(path):
        kinds = system.devices[a].kind, system.devices[b].kind
        link = graph[a][b]["kind"]
        step = PathType.LOC if link == LinkClass.NET else PathType(link)
        if kinds == (Kind.PCI, Kind.PCI):
            step = PathType.PXB
        if link == LinkClass.PCI and Kind.CPU in kinds:
            step = PathType.PHB
        farthest = max(farthest, step)
    return farthest


@given(system=pci_trees())
@settings(max_examples=80)
def test_the_nearest_kind_of_path_that_there_is(system: System) -> None:
    table, graph = PathTable(system, NEW, PLAIN), graph_of(system)
    ends = {Kind.GPU, Kind.NET}
    for a in system.of(Kind.GPU):
        for b in (*system.of(Kind.GPU), *system.of(Kind.NET)):
            if a == b:
                continue
            # nobody passes through another GPU, nor through an adapter
            inner = [n for n, d in enumerate(system.devices) if d.kind not in ends or n in (a, b)]
            paths = list(nx.all_simple_paths(graph.subgraph(inner), a, b))
            best = min(kind_of(system, graph, path) for path in paths)
            found = table(a, b)
            assert found.type == best
            # along existing links, as narrow as their narrowest
            at = a
            for number in found.links:
                assert system.links[number].source == at
                at = system.links[number].to
            assert at == b
            assert found.bw == pytest.approx(min(system.links[n].bw for n in found.links))


@given(system=pci_trees())
@settings(max_examples=60)
def test_no_path_is_wider_than_the_widest(system: System) -> None:
    graph = graph_of(system)
    for rules in (NEW, OLD):
        table = PathTable(system, rules, PLAIN)
        for a in system.of(Kind.GPU):
            for b in (*system.of(Kind.GPU), *system.of(Kind.NET)):
                if a != b:
                    # the widest path is the bottleneck of a maximum spanning tree, links being as wide both ways
                    tree = nx.maximum_spanning_tree(undirected(graph), weight="bw")
                    way = nx.shortest_path(tree, a, b)
                    widest = min(tree[x][y]["bw"] for x, y in pairwise(way))
                    assert table(a, b).bw <= widest + 1e-9


def undirected(graph: nx.DiGraph) -> nx.Graph:
    both = nx.Graph()
    for a, b, told in graph.edges(data=True):
        both.add_edge(a, b, bw=max(told["bw"], graph[b][a]["bw"]))
    return both


def dgx_h100(policy: Policy = Policy(), rules: Rules = OLD, ports: float = 50.0) -> PathTable:
    return PathTable(system_of("dgx-h100", (NetPort(bw=ports),) * 8), rules, policy)


def test_the_kinds_of_a_dgx_h100() -> None:
    table = dgx_h100()
    gpus, nets = table.gpus, table.nets
    assert (table(gpus[0], gpus[5]).type, table(gpus[0], gpus[5]).bw) == (PathType.NVL, pytest.approx(370.8))
    assert table(gpus[0], nets[0]).type == PathType.PIX
    # to another's adapter through that GPU; from it straight, over the processors
    assert table(gpus[0], nets[5]).type == PathType.PXN
    assert table.relay(gpus[0], nets[5]) == gpus[5]
    assert table(nets[5], gpus[0]).type == PathType.SYS
    off = dgx_h100(Policy(pxn=False))
    assert [off(off.gpus[0], net).type for net in off.nets][::5] == [PathType.PIX, PathType.SYS]
    assert off.relay(off.gpus[0], off.nets[5]) == off.gpus[0]


def test_each_gpu_has_the_adapter_beside_it() -> None:
    table = dgx_h100()
    assert [table.preferred_nets(gpu) for gpu in table.gpus] == [[net] for net in table.nets]
    assert [table.nearest_gpu(net) for net in table.nets] == list(table.gpus)


def test_levels_and_the_state_of_the_host_decide_on_gpudirect() -> None:
    table = dgx_h100()
    assert table.gpudirect(table.gpus[0], table.nets[0], read=True)
    none = dgx_h100(Policy(gdr_level=PathType.LOC))
    assert not none.gpudirect(none.gpus[0], none.nets[0], read=False)
    assert none(none.gpus[0], none.nets[0]).type == PathType.PHB
    writes = dgx_h100(Policy(gdr_read=False))
    assert writes.gpudirect(writes.gpus[0], writes.nets[0], read=False)
    assert not writes.gpudirect(writes.gpus[0], writes.nets[0], read=True)


def test_through_one_gpu_where_nvlink_joins_it_to_both() -> None:
    build = SystemBuilder()
    cpu = build.add(Device(Kind.CPU, "cpu0", index=0, cpu=Processor("x86_64")))
    gpus = [build.add(Device(Kind.GPU, f"gpu{i}", index=i, capability=70)) for i in range(4)]
    for gpu in gpus:
        build.connect(gpu, cpu, LinkClass.PCI, 12.0)
    for a, b in ((0, 1), (1, 2), (2, 3)):
        build.connect(gpus[a], gpus[b], LinkClass.NVL, 40.0)
    system = build.build()
    for rules in (OLD, NEW):
        table = PathTable(system, rules, Policy())
        kinds = [table(gpus[0], gpu).type for gpu in gpus]
        assert kinds == [PathType.LOC, PathType.NVL, PathType.NVB, PathType.PHB]
        off = PathTable(system, rules, Policy(nvb=False))
        assert off(gpus[0], gpus[2]).type == PathType.PHB


def test_every_host_of_the_catalog_is_a_system() -> None:
    for name in catalog.names("host"):
        host = catalog.host(name)
        if host.nodes.gpu > 8:
            continue
        table = PathTable(system_of(name, (NetPort(bw=50.0),) * len(host.nics)), NEW, Policy())
        assert len(table.gpus) == host.nodes.gpu
        for gpu in table.gpus:
            assert table.nearest_cpu(gpu) != NONE
            assert all(table(gpu, other).type <= PathType.SYS for other in (*table.gpus, *table.nets))
