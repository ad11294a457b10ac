"""A communicator once it is initialised: its graphs, its channels and how ranks connect.

The border between parts of this room: detection and search (`detect`, `search`, `connect`) make it, the tuner
reads it, lowering follows it, the log prints it. Rates are GB/s (1e9 bytes) as NCCL prints them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fabrictwin.base.arrays import I32
from fabrictwin.base.errors import ConfigError
from fabrictwin.base.records import record
from fabrictwin.cluster.faults import HostCause
from fabrictwin.fabric.fabric import Fabric
from fabrictwin.nccl.communicator import channel_count as counts
from fabrictwin.nccl.communicator.connect import connect_trees, copied, nvls_trees, ring_order
from fabrictwin.nccl.communicator.plugin_settings import with_plugin
from fabrictwin.nccl.communicator.rank_placement import (
    RankPlacement,
    networks_of,
    place_ranks,
    rank_nodes,
    views_of,
)
from fabrictwin.nccl.search.host_channels import cpu_of, cut_to, spread_graphs
from fabrictwin.nccl.search.host_graphs import HostView, HostViews
from fabrictwin.nccl.settings.release_rules import Rules
from fabrictwin.nccl.settings.settings import Settings, read_settings
from fabrictwin.nccl.settings.version import DEFAULT
from fabrictwin.nccl.settings.version import version as parse_version
from fabrictwin.nccl.topology.failures import Failure
from fabrictwin.nccl.topology.graph_types import Algorithm, Graph, PathType, Pattern, Protocol
from fabrictwin.nccl.topology.net_devices import failure
from fabrictwin.nccl.topology.topology_paths import Path


@record
class Rings:
    """[channels, ranks] ranks in ring order from rank 0 on; each sends to the next."""

    order: I32


@record
class Trees:
    """One tree a channel: [channels, ranks] the parent, and [channels, ranks, 3] the children; -1 is none.

    The first child of a rank is the next of its host's chain, where it has one.
    """

    up: I32
    down: I32


@record
class NvlsTrees:
    """Two trees between hosts for each head of NVLink SHARP: [2, ranks] parents, [2, ranks, 2] children.

    Channel c of NVLS tree takes tree c % 2. Ranks that are no head have neither parents nor children.
    """

    heads: I32  # [nodes, heads]
    up: I32
    down: I32


@record
class ConnectedChannels:
    """Channels of a communicator: of each kind their number, and the peers of ranks in them."""

    collective: int  # of rings and trees
    nvls: int
    p2p: int
    p2p_per_peer: int
    rings: Rings
    trees: Trees
    nvls_trees: NvlsTrees | None  # absent on one host and without NVLS


@record
class NetworkState:
    """The network that a communicator takes, and what is wrong with it."""

    name: str  # "IB" or "Socket"
    causes: dict[int, tuple[HostCause, ...]]  # what is wrong with hosts of the fabric, by host
    failure: Failure | None  # why the communicator would not come up; None where it does


@record
class Communicator:
    """Ranks that communicate, as NCCL sees them after `ncclCommInitRank`."""

    twin: Any  # twin.Twin, whose fabric and routes it runs on
    version: str  # of NCCL, such as "2.21.5"
    settings: Settings
    placement: RankPlacement
    hosts: HostViews  # their systems and paths
    graphs: dict[Algorithm, Graph]  # those that can run; others are absent
    channels: ConnectedChannels
    network: NetworkState

    @property
    def ranks(self) -> int:
        return len(self.placement.rank_node)

    @property
    def nodes(self) -> int:
        """Hosts, or NVLink domains that span hosts."""
        return len(self.placement.host_of_node)

    @property
    def ranks_per_node(self) -> int:
        return int(np.bincount(self.placement.node_of_rank).max())

    @cached_property
    def compute_capability(self) -> int:
        """The lowest of its GPUs, such as 90."""
        return min(view.system.capability for view in self.hosts.used)

    @cached_property
    def cpu(self) -> str:
        """The processors' vendor: intel, amd, arm or other; mixed where hosts differ."""
        return cpu_of([view.system for view in self.hosts.used])

    @cached_property
    def members(self) -> list[list[int]]:
        """[nodes] the ranks of each host, in order."""
        node_of_rank = self.placement.node_of_rank
        order = np.argsort(node_of_rank, kind="stable")
        ends = np.cumsum(np.bincount(node_of_rank, minlength=self.nodes))
        return [part.tolist() for part in np.split(order, ends[:-1])]

    def view(self, rank: int) -> HostView:
        """The host of a rank."""
        return self.hosts.kinds[int(self.hosts.kind_of_node[self._node(rank)])]

    def path(self, a: int, b: int) -> Path:
        """Between two ranks, as NCCL classes it; of type NET where they are on different hosts."""
        if self._node(a) != self._node(b):
            return Path(PathType.NET, 0.0, ())
        return self.view(a).table(int(self.hosts.device_of_rank[a]), int(self.hosts.device_of_rank[b]))

    def direct(self, a: int, b: int) -> bool:
        """Return true if two ranks reach each other's memory over NVLink or PCIe (transport P2P)."""
        if self._node(a) != self._node(b):
            return False
        return self.view(a).table.direct(int(self.hosts.device_of_rank[a]), int(self.hosts.device_of_rank[b]))

    def adapters(self, rank: int) -> list[int]:
        """The adapters (indices into fabric.nic_node) that a rank's sends use, in order of channels."""
        preferred = self.view(rank).table.preferred_nets(int(self.hosts.device_of_rank[rank]))
        return [self._adapter(rank, net) for net in preferred]

    def net_path(self, rank: int, adapter: int) -> Path:
        """From a rank's GPU to an adapter of its host."""
        return self.view(rank).table(int(self.hosts.device_of_rank[rank]), self._net(rank, adapter))

    def gpudirect(self, rank: int, adapter: int, *, send: bool) -> bool:
        """Return true if an adapter moves a rank's data straight from or to its GPU (GPUDirect RDMA)."""
        device, net = int(self.hosts.device_of_rank[rank]), self._net(rank, adapter)
        return self.view(rank).table.gpudirect(device, net, read=send)

    def proxy(self, rank: int, adapter: int) -> int:
        """The rank whose GPU and proxy thread a send to an adapter goes through: itself, or another's with PXN."""
        view, node = self.view(rank), self._node(rank)
        own = int(self.hosts.device_of_rank[rank])
        relay = view.table.relay(own, self._net(rank, adapter))
        if relay == own:
            return rank
        mine = np.flatnonzero((self.placement.node_of_rank == node) & (self.hosts.device_of_rank == relay))
        return int(mine[0])

    def _node(self, rank: int) -> int:
        return int(self.placement.node_of_rank[rank])

    def _first_adapter(self, rank: int) -> int:
        return int(self.hosts.first_adapter[self._node(rank)])

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
    """The communicator that `ncclCommInitRank` makes of ranks on a twin.

    `ranks` is how many GPUs, the fabric's GPU nodes in order of ranks, or None for all. Raises ConfigError, and
    SimulatedError where it would not come up; unless `strict`, its `failure` says so instead.
    """
    fabric: Fabric = twin.fabric
    rank_node = rank_nodes(fabric, ranks)
    release = parse_version(version)
    rules = Rules((release.major, release.minor))
    if settings is None:
        settings = read_settings({}, release=release)
    apart = not settings.mnnvl_enable or not rules.since(20)
    placement = place_ranks(fabric, rank_node, apart=apart)
    host_of_node, node_of_rank = placement.host_of_node, placement.node_of_rank
    nodes = len(host_of_node)
    causes = {host: twin.host_causes[host] for host in host_of_node.tolist() if host in twin.host_causes}
    networks = networks_of(fabric, host_of_node, causes, settings)
    first = int(host_of_node[0])
    settings = with_plugin(settings, fabric.templates[int(fabric.host_template[first])], networks[first])
    failed = failure(fabric, networks, causes, settings)
    if failed is not None and strict:
        raise failed.error(fabric.host_names[failed.host])
    hosts = views_of(twin, placement, networks, rules=rules, settings=settings)
    capability = min(view.system.capability for view in hosts.used)
    graphs = spread_graphs(hosts, node_of_rank)
    ring, tree = graphs[Algorithm.RING], graphs[Algorithm.TREE]
    searched = min(ring.channels, tree.channels)
    ring, tree = cut_to(ring, searched), cut_to(tree, searched)
    graphs |= {Algorithm.RING: ring, Algorithm.TREE: tree}
    patterns = [hosts.kinds[kind].channels[Algorithm.TREE].pattern for kind in hosts.kind_of_node]
    order = ring_order(ring.intra, _crossing(hosts, ring, rules))
    up, down = connect_trees(tree.intra, patterns, len(rank_node))
    limits = counts.limits_of(settings, rules)
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
    p2p, per_peer = counts.p2p_channels(
        hosts.used, rules, limits, collective=number, ranks=len(rank_node), nodes=nodes
    )
    rings, trees = Rings(copied(order, number)), Trees(copied(up, number), copied(down, number))
    return Communicator(
        twin=twin,
        version=version,
        settings=settings,
        placement=placement,
        hosts=hosts,
        graphs=graphs,
        channels=ConnectedChannels(number, nvls, p2p, per_peer, rings, trees, between_heads),
        network=NetworkState(next(iter(networks.values())).name, causes, failed),
    )


def _crossing(hosts: HostViews, ring: Graph, rules: Rules) -> I32:
    """[nodes] how rings may leave by another adapter than they came in by."""
    if rules.since(23):
        return np.array([view.channels[Algorithm.RING].cross_nic for view in hosts.kinds], np.int32)[
            hosts.kind_of_node
        ]
    # earlier releases knew one way of crossing only, and before 2.19 none that swapped rings
    return np.full(len(hosts.kind_of_node), 2 if ring.cross_nic and rules.since(19) else 0, np.int32)


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
