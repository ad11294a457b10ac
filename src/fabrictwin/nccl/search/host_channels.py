"""Graphs of kinds of hosts, spread over a communicator's hosts and their ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fabrictwin.base.arrays import I32
from fabrictwin.fabric.fabric import NONE
from fabrictwin.nccl.search.graph_search import Channels
from fabrictwin.nccl.search.host_graphs import HostViews
from fabrictwin.nccl.topology.graph_types import Algorithm, Graph
from fabrictwin.nccl.topology.system import Kind, System


def spread_graphs(hosts: HostViews, node_of_rank: I32) -> dict[Algorithm, Graph]:
    """Graphs of each kind of host, spread over the hosts. What one kind lacks nobody has."""
    views = hosts.kinds
    common = set.intersection(*(set(view.channels) for view in views))
    members = _members(hosts, node_of_rank)
    graphs = {
        algorithm: _spread(algorithm, [view.channels[algorithm] for view in views], hosts, members)
        for algorithm in sorted(common)
    }
    several = len(hosts.kind_of_node) > 1
    if Algorithm.NVLS in graphs and several:
        graphs[Algorithm.NVLS_TREE] = replace(graphs[Algorithm.NVLS], algorithm=Algorithm.NVLS_TREE)
    if all(len(view.table.gpus) == 1 for view in views) and several:
        graphs[Algorithm.PAT] = replace(graphs[Algorithm.TREE], algorithm=Algorithm.PAT)
    return graphs


def _members(hosts: HostViews, node_of_rank: I32) -> I32:
    """[nodes, devices] the rank of each GPU device of each node's system; -1 where there is none."""
    most = max(len(view.system.devices) for view in hosts.kinds)
    members = np.full((len(hosts.kind_of_node), most), NONE, np.int32)
    members[node_of_rank, hosts.device_of_rank] = np.arange(len(node_of_rank))
    return members


def _spread(algorithm: Algorithm, found: list[Channels], hosts: HostViews, members: I32) -> Graph:
    views = hosts.kinds
    channels = min(each.count for each in found)
    width = max(len(view.table.gpus) for view in views)
    nodes = len(hosts.kind_of_node)
    intra = np.full((nodes, channels, width), NONE, np.int32)
    inter = np.full((nodes, channels, 2), NONE, np.int32)
    for v, (each, view) in enumerate(zip(found, views, strict=True)):
        mine = np.flatnonzero(hosts.kind_of_node == v)
        devices = np.array([list(c) + [NONE] * (width - len(c)) for c in each.intra[:channels]], np.int64)
        spread = np.where(devices == NONE, NONE, members[mine][:, np.where(devices == NONE, 0, devices)])
        intra[mine] = spread
        nets = [
            [NONE if n == NONE else view.system.devices[n].index for n in ends] for ends in each.inter[:channels]
        ]
        index = np.array(nets, np.int64)
        inter[mine] = np.where(index == NONE, NONE, index + hosts.first_adapter[mine][:, None, None])
    return Graph(
        algorithm=algorithm,
        pattern=max(each.pattern for each in found),
        channels=channels,
        bw_intra=min(each.bw_intra for each in found),
        bw_inter=min(each.bw_inter for each in found),
        latency_inter=max(each.latency for each in found),
        type_intra=max(each.type_intra for each in found),
        type_inter=max(each.type_inter for each in found),
        same_channels=all(each.same for each in found),
        cross_nic=max(each.cross_nic for each in found),
        intra=intra,
        inter=inter,
    )


def cut_to(graph: Graph, channels: int) -> Graph:
    """The first channels of a graph."""
    if graph.channels == channels:
        return graph
    intra, inter = graph.intra[:, :channels], graph.inter[:, :channels]
    return replace(graph, channels=channels, intra=intra, inter=inter)


def cpu_of(systems: list[System]) -> str:
    """The vendor of the processors, which NCCL's cost model goes by."""
    vendors = set()
    for system in systems:
        cpu = system.devices[system.of(Kind.CPU)[0]].cpu
        known = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
        vendors.add("arm" if cpu.arch == "arm64" else known.get(cpu.vendor, "other"))
    return vendors.pop() if len(vendors) == 1 else "mixed"
