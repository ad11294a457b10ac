"""Which hosts a communicator's ranks are on, and what each of those hosts is to NCCL.

Hosts alike (in kind, GPUs in use, adapters up, network and what is wrong with them) share one view, searched once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import I32, place_of, starts_of
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.cluster.faults import HostCause
from fabrictwin.fabric.fabric import NONE, Fabric, NodeKind
from fabrictwin.nccl.search.host_graphs import HostView, HostViews, Wanted
from fabrictwin.nccl.settings.release_rules import Rules
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.topology.detect import described, detect, machine_of, machines_of
from fabrictwin.nccl.topology.net_devices import IB, SOCKET, HostNetwork, network_of, reducing_adapters
from fabrictwin.nccl.topology.system import System, by_itself, machine_with, restricted
from fabrictwin.nccl.topology.topology_paths import Policy

_MACHINES = 1 << 20  # more than an NVLink domain has


def rank_nodes(fabric: Fabric, ranks: int | Sequence[int] | I32 | None) -> I32:
    if ranks is None:
        ranks = fabric.gpus
    if isinstance(ranks, int | np.integer):
        if not 1 <= ranks <= fabric.gpus:
            raise ConfigError(f"got {ranks} ranks, expected 1 to {fabric.gpus}: the GPUs of the cluster")
        return fabric.gpu_node[: int(ranks)].astype(np.int32)
    nodes = np.asarray(ranks, np.int32).reshape(-1)
    if not len(nodes):
        raise ConfigError("got no ranks, expected at least one GPU")
    wrong = np.flatnonzero((nodes < 0) | (nodes >= fabric.nodes))
    if not len(wrong):
        wrong = np.flatnonzero(fabric.node_kind[nodes] != NodeKind.GPU)
    if len(wrong):
        raise ConfigError(f"got node {int(nodes[wrong[0]])} for rank {int(wrong[0])}, expected a GPU")
    seen, first = np.unique(nodes, return_index=True)
    if len(seen) < len(nodes):
        twice = int(np.setdiff1d(np.arange(len(nodes)), first)[0])
        raise ConfigError(f"got {fabric.node_name(int(nodes[twice]))} for two ranks, expected each GPU once")
    return nodes


@record
class RankPlacement:
    """Ranks on hosts. A communicator's nodes are hosts, or NVLink domains that span hosts."""

    rank_node: I32  # [ranks] fabric node of each rank's GPU
    node_of_rank: I32  # [ranks] which of the communicator's nodes
    local_rank: I32  # [ranks] its place there
    host_of_node: I32  # [nodes] host of the fabric


def place_ranks(fabric: Fabric, rank_node: I32, *, apart: bool) -> RankPlacement:
    """Place ranks on hosts, which are in the order in which ranks name them.

    `apart` takes the machines of an NVLink domain for hosts by themselves.
    """
    host = fabric.node_host[rank_node].astype(np.int64)
    if apart and any(len(set(machines_of(t.type).values())) > 1 for t in fabric.templates if t.type):
        host = host * _MACHINES + np.array([machine_of(fabric, int(node)) for node in rank_node])
    else:
        host = host * _MACHINES
    distinct, first, inverse = np.unique(host, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    number = place_of(order, len(order))
    node_of_rank = number[inverse.reshape(-1)]
    by_node = np.argsort(node_of_rank, kind="stable")
    start = starts_of(np.bincount(node_of_rank))
    local = np.empty(len(rank_node), np.int32)
    local[by_node] = np.arange(len(rank_node)) - start[node_of_rank[by_node]]
    return RankPlacement(
        rank_node, node_of_rank.astype(np.int32), local, (distinct[order] // _MACHINES).astype(np.int32)
    )


def networks_of(
    fabric: Fabric, hosts: I32, causes: dict[int, tuple[HostCause, ...]], settings: Settings
) -> dict[int, HostNetwork]:
    """The network of each host; hosts alike are asked once."""
    known: dict[Any, HostNetwork] = {}
    first = np.searchsorted(fabric.nic_node, fabric.host_node_start)
    up = fabric.nic_port != NONE
    found = {}
    for host in hosts.tolist():
        key = (int(fabric.host_template[host]), causes.get(host), up[first[host] : first[host + 1]].tobytes())
        if key not in known:
            known[key] = network_of(fabric, host, causes.get(host, ()), settings)
        found[host] = known[key]
    return found


def _policy(settings: Settings) -> Policy:
    read = settings.net_gdr_read
    return Policy(
        p2p_level=settings.p2p_limit,
        gdr_level=settings.net_gdr_level,
        gdr_read=None if read is None or read < 0 else bool(read),
        gdr_c2c=bool(settings.net_gdr_c2c),
        pxn=settings.pxn_disable != 1,
        pxn_c2c=bool(settings.pxn_c2c),
        nvb=not settings.nvb_disable,
    )


@lru_cache(maxsize=256)  # a rack of 72 GPUs has a kind of host for every group of a job, about 1 MB each
def _searched(
    system: System, rules: Rules, policy: Policy, wanted: Wanted, gpus: frozenset[int], gdr: bool, link_gbps: float
) -> HostView:
    """One kind of host, searched once."""
    return HostView(restricted(system, gpus=gpus, gdr=gdr), rules, policy, wanted, link_gbps=link_gbps)


def views_of(
    twin: Any,
    placement: RankPlacement,
    networks: dict[int, HostNetwork],
    *,
    rules: Rules,
    settings: Settings,
) -> HostViews:
    """The hosts of ranks by kind; hosts alike are searched once."""
    fabric: Fabric = twin.fabric
    rank_node, node_of_rank = placement.rank_node, placement.node_of_rank
    host_of_node = placement.host_of_node
    policy = _policy(settings)
    reducing: frozenset[int] = frozenset()
    threshold = max(2, settings.collnet_node_threshold)
    if settings.collnet_enable and len(host_of_node) >= threshold:
        reducing = reducing_adapters(fabric)
    local = fabric.gpu_local[fabric.node_gpu[rank_node]]
    by_node = np.split(local[np.argsort(node_of_rank, kind="stable")], np.cumsum(np.bincount(node_of_rank))[:-1])
    views: list[HostView] = []
    number: dict[int, int] = {}
    view_of_node = np.empty(len(host_of_node), np.int32)
    ports = fabric.nic_port
    down = np.where(ports == NONE, 0, fabric.port_rate_bps[np.where(ports == NONE, 0, ports)])
    first = np.searchsorted(fabric.nic_node, fabric.host_node_start)
    known: dict[Any, tuple[HostView, int, int]] = {}
    first_gpu = np.zeros(len(host_of_node), np.int32)
    first_adapter = first[host_of_node].astype(np.int32)
    for node, host in enumerate(host_of_node.tolist()):
        gpus = frozenset(by_node[node].tolist())
        # hosts alike are told by what makes them so, before anything is built
        network = networks[host]  # one object for hosts alike
        key = (int(fabric.host_template[host]), gpus, id(network), down[first[host] : first[host + 1]].tobytes())
        if key not in known:
            sharp = network.name == IB and bool(reducing)
            wanted = _wanted(gpus, len(rank_node), collnet=sharp, rules=rules, settings=settings)
            found = _Host(host, gpus, network, reducing, settings.topo_file)
            known[key] = _view(fabric, found, rules, policy, wanted)
        view, first_gpu[node], before = known[key]
        first_adapter[node] += before
        if id(view) not in number:
            number[id(view)] = len(views)
            views.append(view)
        view_of_node[node] = number[id(view)]
    tables = []
    for view in views:
        table = np.full(int(max(fabric.gpu_local.max(), 0)) + 1, NONE, np.int32)
        for gpu in view.table.gpus:
            table[view.system.devices[gpu].index] = gpu
        tables.append(table)
    device = np.stack(tables)[view_of_node[node_of_rank], local - first_gpu[node_of_rank]]
    return HostViews(tuple(views), view_of_node, first_adapter, device.astype(np.int32))


def _wanted(gpus: frozenset[int], ranks: int, *, collnet: bool, rules: Rules, settings: Settings) -> Wanted:
    return Wanted(
        inter=len(gpus) < ranks,
        cross_nic=settings.cross_nic,
        machines_apart=not settings.mnnvl_enable or not rules.since(20),
        nvls=bool(settings.nvls_enable) and len(gpus) >= rules.nvls_needs,
        collnet=collnet,
    )


@record
class _Host:
    """A host of the fabric: its GPUs that take part, what it has of networks, a file that describes it instead."""

    number: int
    gpus: frozenset[int]
    network: HostNetwork
    reducing: frozenset[int]
    file: str | None


def _view(fabric: Fabric, host: _Host, rules: Rules, policy: Policy, wanted: Wanted) -> tuple[HostView, int, int]:
    """A host, and the numbers of the first GPU and adapter of the machine of it that is meant."""
    entry = catalog.gpu(fabric.templates[fabric.host_template[host.number]].gpu_type)
    link = catalog.nvlink(entry.nvlink).kernel_rate.value / 8e9 if entry.nvlink else 0.0
    kind = described(fabric, host.number, host.file) if host.file else ""
    adapters, gpus = host.network.adapters, host.gpus
    sockets = host.network.name == SOCKET
    system = detect(fabric, host.number, adapters=adapters, sharp=host.reducing, sockets=sockets, host_type=kind)
    first_gpu = first_net = 0
    if wanted.machines_apart and system.parts > 1:
        system, first_gpu, first_net = by_itself(machine_with(system, gpus))
        gpus = frozenset(gpu - first_gpu for gpu in gpus)
    return _searched(system, rules, policy, wanted, gpus, host.network.gpudirect, link), first_gpu, first_net
