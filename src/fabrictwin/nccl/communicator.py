"""What NCCL knows of a communicator once it is initialised: its graphs, channels and how ranks connect.

The border between parts of this room: detection and search (`detect`, `search`, `connect`) make it, the tuner
reads it, lowering follows it, the log prints it. Rates are GB/s (1e9 bytes) as NCCL prints them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fabrictwin import catalog
from fabrictwin.cluster.faults import HostCause
from fabrictwin.errors import ConfigError
from fabrictwin.fabric.fabric import NONE, Fabric, NodeKind
from fabrictwin.nccl import channels as counts
from fabrictwin.nccl.connect import connect_trees, copied, nvls_trees, ring_order
from fabrictwin.nccl.detect import described, detect, machine_of, machines_of
from fabrictwin.nccl.graph import I32, Algorithm, Graph, PathType, Pattern, Protocol
from fabrictwin.nccl.host import HostView, Wanted
from fabrictwin.nccl.network import IB, Failure, HostNetwork, failure, network_of, reducing_adapters
from fabrictwin.nccl.paths import Path, Policy
from fabrictwin.nccl.rules import Rules
from fabrictwin.nccl.search import Channels
from fabrictwin.nccl.settings import Settings, read_settings
from fabrictwin.nccl.system import Kind, System, restricted
from fabrictwin.nccl.version import DEFAULT
from fabrictwin.nccl.version import version as parse_version

_MACHINES = 1 << 20  # more than an NVLink domain has


@dataclass(frozen=True)
class Rings:
    """[channels, ranks] ranks in ring order from rank 0 on; each sends to the next."""

    order: I32


@dataclass(frozen=True)
class Trees:
    """One tree a channel: [channels, ranks] the parent, and [channels, ranks, 3] the children; -1 is none.

    The first child of a rank is the next of its host's chain, where it has one.
    """

    up: I32
    down: I32


@dataclass(frozen=True)
class NvlsTrees:
    """Two trees between hosts for each head of NVLink SHARP: [2, ranks] parents, [2, ranks, 2] children.

    Channel c of NVLS tree takes tree c % 2. Ranks that are no head have neither parents nor children.
    """

    heads: I32  # [nodes, heads]
    up: I32
    down: I32


@dataclass(frozen=True)
class Communicator:
    """Ranks that communicate, as NCCL sees them after `ncclCommInitRank`."""

    twin: Any  # twin.Twin, whose fabric and routes it runs on
    version: str  # of NCCL, such as "2.21.5"
    settings: Settings
    rank_node: I32  # [ranks] fabric node of each rank's GPU
    node_of_rank: I32  # [ranks] which of the communicator's hosts
    local_rank: I32  # [ranks]
    nodes: int  # hosts (or NVLink domains that span hosts)
    compute_capability: int  # lowest, such as 90
    cpu: str  # "intel", "amd", "arm", of the first host; "mixed" where hosts differ
    graphs: dict[Algorithm, Graph]  # those that can run; others are absent
    rings: Rings
    trees: Trees
    channels: int  # collective channels
    nvls_channels: int
    p2p_channels: int
    p2p_channels_per_peer: int
    nvls_trees: NvlsTrees | None  # absent on one host and without NVLS
    views: tuple[HostView, ...]  # kinds of hosts: their systems and paths
    view_of_node: I32  # [nodes] into views
    host_of_node: I32  # [nodes] host of the fabric
    device_of_rank: I32  # [ranks] the GPU's device number in its host's system
    network: str  # "IB" or "Socket"
    causes: dict[int, tuple[HostCause, ...]]  # what is wrong with hosts of the fabric, by host
    failure: Failure | None  # why it would not come up; None where it does

    @property
    def ranks(self) -> int:
        return len(self.rank_node)

    @property
    def ranks_per_node(self) -> int:
        return int(np.bincount(self.node_of_rank).max())

    def view(self, rank: int) -> HostView:
        """The host of a rank."""
        return self.views[int(self.view_of_node[self.node_of_rank[rank]])]

    def path(self, a: int, b: int) -> Path:
        """Between two ranks, as NCCL classes it; of type NET where they are on different hosts."""
        if self.node_of_rank[a] != self.node_of_rank[b]:
            return Path(PathType.NET, 0.0, ())
        return self.view(a).table(int(self.device_of_rank[a]), int(self.device_of_rank[b]))

    def direct(self, a: int, b: int) -> bool:
        """Whether two ranks reach each other's memory over NVLink or PCIe (transport P2P)."""
        if self.node_of_rank[a] != self.node_of_rank[b]:
            return False
        return self.view(a).table.direct(int(self.device_of_rank[a]), int(self.device_of_rank[b]))

    def adapters(self, rank: int) -> list[int]:
        """The adapters (indices into fabric.nic_node) that a rank's sends use, in order of channels."""
        preferred = self.view(rank).table.preferred_nets(int(self.device_of_rank[rank]))
        return [self._adapter(rank, net) for net in preferred]

    def net_path(self, rank: int, adapter: int) -> Path:
        """From a rank's GPU to an adapter of its host."""
        return self.view(rank).table(int(self.device_of_rank[rank]), self._net(rank, adapter))

    def gpudirect(self, rank: int, adapter: int, *, send: bool) -> bool:
        """Whether an adapter moves a rank's data straight from or to its GPU (GPUDirect RDMA)."""
        device, net = int(self.device_of_rank[rank]), self._net(rank, adapter)
        return self.view(rank).table.gpudirect(device, net, read=send)

    def proxy(self, rank: int, adapter: int) -> int:
        """The rank whose GPU and proxy thread a send to an adapter goes through: itself, or another's with PXN."""
        view, node = self.view(rank), int(self.node_of_rank[rank])
        relay = view.table.relay(int(self.device_of_rank[rank]), self._net(rank, adapter))
        mine = np.flatnonzero((self.node_of_rank == node) & (self.device_of_rank == relay))
        return int(mine[0])

    def _first_adapter(self, rank: int) -> int:
        fabric: Fabric = self.twin.fabric
        host = self.host_of_node[self.node_of_rank[rank]]
        return int(np.searchsorted(fabric.nic_node, fabric.host_node_start[host]))

    def _adapter(self, rank: int, net: int) -> int:
        return self._first_adapter(rank) + self.view(rank).system.devices[net].index

    def _net(self, rank: int, adapter: int) -> int:
        view, index = self.view(rank), adapter - self._first_adapter(rank)
        for net in view.table.nets:
            if view.system.devices[net].index == index:
                return net
        raise ConfigError(f"adapter {adapter} is none that rank {rank} sees")


def initialise(
    twin: Any,
    ranks: int | Sequence[int] | I32 | None = None,
    *,
    settings: Settings | None = None,
    version: str = DEFAULT,
    strict: bool = True,
) -> Communicator:
    """What `ncclCommInitRank` comes to for ranks on a twin.

    `ranks` is how many GPUs, the fabric's GPU nodes in order of ranks, or None for all. Raises ConfigError, and
    SimulatedError where it would not come up; unless `strict`, its `failure` says so instead.
    """
    fabric: Fabric = twin.fabric
    rank_node = _rank_nodes(fabric, ranks)
    release = parse_version(version)
    rules = Rules((release.major, release.minor))
    if settings is None:
        settings = read_settings({}, release=release)
    apart = not settings.mnnvl_enable or not rules.since(20)
    host_of_node, node_of_rank, local_rank = _hosts_of(fabric, rank_node, apart=apart)
    nodes = len(host_of_node)
    causes = {host: twin.host_causes[host] for host in host_of_node.tolist() if host in twin.host_causes}
    networks = _networks(fabric, host_of_node, causes, settings)
    failed = failure(fabric, networks, causes, settings)
    if failed is not None and strict:
        raise failed.error(fabric.host_names[failed.host])
    views, view_of_node, device_of_rank = _views(
        twin, rank_node, node_of_rank, host_of_node, networks, rules=rules, settings=settings
    )
    used = [views[v] for v in sorted(set(view_of_node.tolist()))]
    capability = min(view.system.capability for view in used)
    members = _members(node_of_rank, device_of_rank, view_of_node, views)
    first_adapter = np.searchsorted(fabric.nic_node, fabric.host_node_start[host_of_node]).astype(np.int64)
    graphs = _graphs(views, view_of_node, members, first_adapter)
    ring, tree = graphs[Algorithm.RING], graphs[Algorithm.TREE]
    searched = min(ring.channels, tree.channels)
    ring, tree = _cut(ring, searched), _cut(tree, searched)
    graphs |= {Algorithm.RING: ring, Algorithm.TREE: tree}
    crossing = np.array([view.channels[Algorithm.RING].cross_nic for view in views], np.int32)[view_of_node]
    if not rules.since(23):
        # earlier releases knew one way of crossing only, and before 2.19 none that swapped rings
        crossing = np.full(nodes, 2 if ring.cross_nic and rules.since(19) else 0, np.int32)
    patterns = [views[v].channels[Algorithm.TREE].pattern for v in view_of_node]
    order = ring_order(ring.intra, crossing)
    up, down = connect_trees(tree.intra, patterns, len(rank_node))
    limits = _limits(settings, rules)
    number = counts.collective_channels(
        graphs, rules, limits, ranks=len(rank_node), nodes=nodes, capability=capability
    )
    nvls = 0
    between_heads = None
    if Algorithm.NVLS in graphs:
        nvls = counts.nvls_channels(rules, limits, nodes=nodes, capability=capability)
        if nodes > 1:
            heads = graphs[Algorithm.NVLS].intra[:, :, 0]
            between_heads = NvlsTrees(heads, *nvls_trees(heads, len(rank_node)))
    p2p, per_peer = counts.p2p_channels(used, rules, limits, collective=number, ranks=len(rank_node), nodes=nodes)
    return Communicator(
        twin=twin,
        version=version,
        settings=settings,
        rank_node=rank_node,
        node_of_rank=node_of_rank,
        local_rank=local_rank,
        nodes=nodes,
        compute_capability=capability,
        cpu=_cpu([view.system for view in used]),
        graphs=graphs,
        rings=Rings(copied(order, number)),
        trees=Trees(copied(up, number), copied(down, number)),
        channels=number,
        nvls_channels=nvls,
        p2p_channels=p2p,
        p2p_channels_per_peer=per_peer,
        nvls_trees=between_heads,
        views=tuple(views),
        view_of_node=view_of_node,
        host_of_node=host_of_node,
        device_of_rank=device_of_rank,
        network=next(iter(networks.values())).name,
        causes=causes,
        failure=failed,
    )


def _networks(
    fabric: Fabric, hosts: I32, causes: dict[int, tuple[HostCause, ...]], settings: Settings
) -> dict[int, HostNetwork]:
    """What each host has; hosts alike are asked once."""
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


def _first_set(*values: int | None, default: int) -> int:
    return next((value for value in values if value is not None), default)


def _limits(settings: Settings, rules: Rules) -> counts.Limits:
    most = rules.max_channels
    least_set = _first_set(settings.min_nchannels, settings.min_nrings, default=0)
    most_set = _first_set(settings.max_nchannels, settings.max_nrings, default=most)
    return counts.Limits(
        least=max(0, least_set, settings.min_ctas or 0),
        most=max(1, min(most, most_set, settings.max_ctas or most)),
        least_p2p=settings.min_p2p_nchannels,
        most_p2p=min(most, settings.max_p2p_nchannels),
        nvls=settings.nvls_nchannels,
        per_net_peer=settings.nchannels_per_net_peer,
    )


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


def _rank_nodes(fabric: Fabric, ranks: int | Sequence[int] | I32 | None) -> I32:
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


def _hosts_of(fabric: Fabric, rank_node: I32, *, apart: bool) -> tuple[I32, I32, I32]:
    """(host of each node, node of each rank, its place there): hosts in the order in which ranks name them.

    `apart` takes the machines of an NVLink domain for hosts by themselves.
    """
    host = fabric.node_host[rank_node].astype(np.int64)
    if apart and any(len(set(machines_of(t.type).values())) > 1 for t in fabric.templates if t.type):
        host = host * _MACHINES + np.array([machine_of(fabric, int(node)) for node in rank_node])
    else:
        host = host * _MACHINES
    distinct, first, inverse = np.unique(host, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order))
    node_of_rank = number[inverse.reshape(-1)]
    by_node = np.argsort(node_of_rank, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(node_of_rank))])
    local = np.empty(len(rank_node), np.int32)
    local[by_node] = np.arange(len(rank_node)) - start[node_of_rank[by_node]]
    return (distinct[order] // _MACHINES).astype(np.int32), node_of_rank.astype(np.int32), local


@lru_cache(maxsize=64)
def _searched(
    system: System, rules: Rules, policy: Policy, wanted: Wanted, gpus: frozenset[int], gdr: bool, link_gbps: float
) -> HostView:
    """One kind of host, searched once."""
    alone = wanted.machines_apart
    return HostView(
        restricted(system, gpus=gpus, gdr=gdr, alone=alone), rules, policy, wanted, link_gbps=link_gbps
    )


def _views(
    twin: Any,
    rank_node: I32,
    node_of_rank: I32,
    host_of_node: I32,
    networks: dict[int, HostNetwork],
    *,
    rules: Rules,
    settings: Settings,
) -> tuple[list[HostView], I32, I32]:
    """Kinds of hosts, which of them each node is, and the device number of each rank."""
    fabric: Fabric = twin.fabric
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
    known: dict[Any, HostView] = {}
    for node, host in enumerate(host_of_node.tolist()):
        gpus = frozenset(by_node[node].tolist())
        # hosts alike are told by what makes them so, before anything is built
        network = networks[host]
        key = (int(fabric.host_template[host]), gpus, network, down[first[host] : first[host + 1]].tobytes())
        view = known.get(key)
        if view is None:
            sharp = network.name == IB and bool(reducing)
            wanted = _wanted(gpus, len(rank_node), collnet=sharp, rules=rules, settings=settings)
            view = known[key] = _view(
                fabric,
                host,
                gpus,
                network,
                reducing,
                rules=rules,
                policy=policy,
                wanted=wanted,
                file=settings.topo_file,
            )
        if id(view) not in number:
            number[id(view)] = len(views)
            views.append(view)
        view_of_node[node] = number[id(view)]
    device = np.empty(len(rank_node), np.int32)
    tables = []
    for view in views:
        table = np.full(int(max(fabric.gpu_local.max(), 0)) + 1, NONE, np.int32)
        for gpu in view.table.gpus:
            table[view.system.devices[gpu].index] = gpu
        tables.append(table)
    device = np.stack(tables)[view_of_node[node_of_rank], local]
    return views, view_of_node, device.astype(np.int32)


def _wanted(gpus: frozenset[int], ranks: int, *, collnet: bool, rules: Rules, settings: Settings) -> Wanted:
    return Wanted(
        inter=len(gpus) < ranks,
        cross_nic=settings.cross_nic,
        machines_apart=not settings.mnnvl_enable or not rules.since(20),
        nvls=bool(settings.nvls_enable) and len(gpus) >= rules.nvls_needs,
        collnet=collnet,
    )


def _view(
    fabric: Fabric,
    host: int,
    gpus: frozenset[int],
    network: HostNetwork,
    reducing: frozenset[int],
    file: str | None,
    *,
    rules: Rules,
    policy: Policy,
    wanted: Wanted,
) -> HostView:
    entry = catalog.gpu(fabric.templates[fabric.host_template[host]].gpu_type)
    link = catalog.nvlink(entry.nvlink).kernel_rate.value / 8e9 if entry.nvlink else 0.0
    kind = described(fabric, host, file) if file else ""
    system = detect(fabric, host, adapters=network.adapters, sharp=reducing, host_type=kind)
    return _searched(system, rules, policy, wanted, gpus, network.gpudirect, link)


def _members(node_of_rank: I32, device_of_rank: I32, view_of_node: I32, views: list[HostView]) -> I32:
    """[nodes, devices] the rank of each GPU device of each node's system; -1 where there is none."""
    most = max(len(view.system.devices) for view in views)
    members = np.full((len(view_of_node), most), NONE, np.int32)
    members[node_of_rank, device_of_rank] = np.arange(len(node_of_rank))
    return members


def _graphs(
    views: list[HostView], view_of_node: I32, members: I32, first_adapter: np.ndarray
) -> dict[Algorithm, Graph]:
    """What was searched for each kind of host, spread over the hosts. What one kind lacks nobody has."""
    common = set.intersection(*(set(view.channels) for view in views))
    graphs = {}
    for algorithm in sorted(common):
        found = [view.channels[algorithm] for view in views]
        graphs[algorithm] = _spread(algorithm, found, views, view_of_node, members, first_adapter)
    if Algorithm.NVLS in graphs and len(view_of_node) > 1:
        nvls = graphs[Algorithm.NVLS]
        graphs[Algorithm.NVLS_TREE] = Graph(**{**vars(nvls), "algorithm": Algorithm.NVLS_TREE})
    tree = graphs[Algorithm.TREE]
    if all(len(view.table.gpus) == 1 for view in views) and len(view_of_node) > 1:
        graphs[Algorithm.PAT] = Graph(**{**vars(tree), "algorithm": Algorithm.PAT})
    return graphs


def _spread(
    algorithm: Algorithm,
    found: list[Channels],
    views: list[HostView],
    view_of_node: I32,
    members: I32,
    first_adapter: np.ndarray,
) -> Graph:
    channels = min(each.count for each in found)
    width = max(len(view.table.gpus) for view in views)
    nodes = len(view_of_node)
    intra = np.full((nodes, channels, width), NONE, np.int32)
    inter = np.full((nodes, channels, 2), NONE, np.int32)
    for v, (each, view) in enumerate(zip(found, views, strict=True)):
        mine = np.flatnonzero(view_of_node == v)
        devices = np.array([list(c) + [NONE] * (width - len(c)) for c in each.intra[:channels]], np.int64)
        spread = np.where(devices == NONE, NONE, members[mine][:, np.where(devices == NONE, 0, devices)])
        intra[mine] = spread
        nets = [
            [NONE if n == NONE else view.system.devices[n].index for n in ends] for ends in each.inter[:channels]
        ]
        index = np.array(nets, np.int64)
        inter[mine] = np.where(index == NONE, NONE, index + first_adapter[mine][:, None, None])
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


def _cut(graph: Graph, channels: int) -> Graph:
    """The first channels of a graph."""
    if graph.channels == channels:
        return graph
    kept = {"channels": channels, "intra": graph.intra[:, :channels], "inter": graph.inter[:, :channels]}
    return Graph(**{**vars(graph), **kept})


def _cpu(systems: list[System]) -> str:
    """What NCCL's cost model goes by: the vendor of the processors."""
    vendors = set()
    for system in systems:
        cpu = system.devices[system.of(Kind.CPU)[0]]
        known = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
        vendors.add("arm" if cpu.arch == "arm64" else known.get(cpu.vendor, "other"))
    return vendors.pop() if len(vendors) == 1 else "mixed"


__all__ = [
    "I32",
    "Algorithm",
    "Communicator",
    "Graph",
    "NvlsTrees",
    "PathType",
    "Pattern",
    "Protocol",
    "Rings",
    "Trees",
    "initialise",
]
