"""The number of channels of a communicator, for collectives and for sends.

Source: NCCL 2.30.7, 2.27.7, 2.21.5 and 2.18.3: src/graph/connect.cc (`ncclTopoPostset`), src/graph/paths.cc
(`ncclTopoComputeP2pChannels`), src/transport/nvls.cc.
"""

from __future__ import annotations

from fabrictwin.base.records import record
from fabrictwin.fabric.fabric import NONE
from fabrictwin.nccl.constants import NET_GBPS_PER_CHANNEL, SENDS_PER_BATCH
from fabrictwin.nccl.search.host_graphs import HostView
from fabrictwin.nccl.settings.release_rules import Rules
from fabrictwin.nccl.settings.settings import Settings
from fabrictwin.nccl.topology.graph_types import Algorithm, Graph, PathType
from fabrictwin.nccl.topology.system import LinkClass

_NVLS_HOPPER, _NVLS_BLACKWELL, _NVLS_BLACKWELL_ONE_DOMAIN = 16, 32, 24


@record
class Limits:
    """Limits that settings put on numbers of channels."""

    least: int = 0
    most: int = 64
    least_p2p: int = 1
    most_p2p: int = 64
    nvls: int | None = None
    per_net_peer: int | None = None


def collective_channels(
    graphs: dict[Algorithm, Graph], rules: Rules, limits: Limits, *, ranks: int, nodes: int, capability: int
) -> int:
    """Channels of rings and trees, from those that were searched."""
    ring = graphs[Algorithm.RING]
    count = min(rules.max_channels, 2 * ring.channels)
    chain = graphs.get(Algorithm.COLLNET_CHAIN if rules.since(22) else Algorithm.COLLNET_DIRECT)
    if chain is not None and chain.bw_intra > chain.bw_inter and ranks > nodes:
        count = min(rules.max_channels, count + count // 2)
    hopper = capability >= 90 if rules.since(25) else capability == 90
    fits = count < 16 if rules.since(20) else 2 * count <= rules.max_channels
    if hopper and nodes > 1 and ring.bw_intra > 45.0 and fits:
        count *= 2
    count = min(count, limits.most)
    return max(count, min(limits.least, rules.max_channels))


def nvls_channels(rules: Rules, limits: Limits, *, nodes: int, capability: int) -> int:
    """Channels that drive NVLink SHARP."""
    count = _NVLS_HOPPER
    if capability >= 100 and rules.since(25):
        count = _NVLS_BLACKWELL if nodes > 1 else _NVLS_BLACKWELL_ONE_DOMAIN
    if limits.nvls is not None:
        count = limits.nvls
    return max(limits.least, min(limits.most, count))


def p2p_channels(
    views: list[HostView], rules: Rules, limits: Limits, *, collective: int, ranks: int, nodes: int
) -> tuple[int, int]:
    """(channels of sends, of those to one peer)."""
    count = max(min(collective, limits.most_p2p), limits.least_p2p)
    per_peer = rules.max_channels if rules.since(29) else count
    for view in views:
        for gpu in view.table.gpus:
            per_peer = min(
                [per_peer, *(_local(view, gpu, peer, rules) for peer in view.table.gpus if peer != gpu)]
            )
            if nodes > 1:
                per_peer = min(per_peer, _remote(view, gpu, rules, limits, count=count, ranks=ranks))
    per_peer, count = _power_up(per_peer), _power_up(count)
    if rules.since(29) and nodes > 1 and limits.per_net_peer is None:
        while per_peer * -(-ranks // SENDS_PER_BATCH) > count and per_peer > 1:
            per_peer //= 2
    elif rules.since(25):
        per_peer = min(per_peer, count)
    return count, per_peer


def _local(view: HostView, gpu: int, peer: int, rules: Rules) -> int:
    path = view.table(peer, gpu)
    if path.type == PathType.NVL or (rules.since(29) and path.type == PathType.NVB):
        return 2 * max(1, int(path.bw / _one_link(view, gpu)))
    return 2


def _one_link(view: HostView, gpu: int) -> float:
    """GB/s of one NVLink of a GPU."""
    return view.link_gbps or next(
        view.system.links[n].bw for n in view.system.out[gpu] if view.system.links[n].kind == LinkClass.NVL
    )


def _remote(view: HostView, gpu: int, rules: Rules, limits: Limits, *, count: int, ranks: int) -> int:
    if limits.per_net_peer is not None:
        return limits.per_net_peer
    if not rules.since(19):
        return 2
    table = view.table
    nets = table.preferred_nets(gpu)
    cpu = table.nearest_cpu(gpu)
    room = table(gpu, cpu).bw if cpu != NONE else 0.0
    used, total = 0, 0.0
    for net in nets:
        total += table(gpu, net).bw
        used += 1
        if total >= room:
            break
    if rules.since(29):
        return max(used, -(-int(total) // NET_GBPS_PER_CHANNEL)) if used else 2
    most = 2
    while most * ranks > count * 4 and most > 1:
        most //= 2
    return max(used, most)


def _power_up(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _first_set(*values: int | None, default: int) -> int:
    return next((value for value in values if value is not None), default)


def limits_of(settings: Settings, rules: Rules) -> Limits:
    most = rules.max_channels
    least_set = _first_set(settings.min_nchannels, settings.min_nrings, default=0)
    most_set = _first_set(settings.max_nchannels, settings.max_nrings, default=most)
    return Limits(
        least=max(0, least_set, settings.min_ctas or 0),
        most=max(1, min(most, most_set, settings.max_ctas or most)),
        least_p2p=settings.min_p2p_nchannels,
        most_p2p=min(most, settings.max_p2p_nchannels),
        nvls=settings.nvls_nchannels,
        per_net_peer=settings.nchannels_per_net_peer,
    )
