"""From a spec to engines that prefill and engines that decode, and the network between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fabrictwin import catalog
from fabrictwin.base.arrays import F64
from fabrictwin.base.units import PS_PER_S, PS_PER_US
from fabrictwin.cluster.spec.spec import Spec
from fabrictwin.fabric.fabric import LinkKind
from fabrictwin.fabric.memory_paths import PathFinder
from fabrictwin.serving.config.layout import Machine, machine
from fabrictwin.serving.config.section import Pool, Serving
from fabrictwin.serving.config.server import Server, server
from fabrictwin.serving.engine.disaggregated import Disaggregated, Handover, Side
from fabrictwin.serving.engine.replica import Replica
from fabrictwin.serving.network.kv_adapters import adapter_pairs
from fabrictwin.serving.network.kv_transfer import WAKE_PS, KvLayout, KvNetwork, rank_pairs
from fabrictwin.serving.network.link_load import ALONE, FOREVER, Neighbourhood
from fabrictwin.serving.network.port_bytes import routed_bytes

ORDERED_RELEASES = ("0.12", "0.15", "0.19")
"""Of whose time are engines that register memory without relaxed ordering: Mooncake's has it since December 2025
and by default since 31 July 2026 (its pull requests 1076 and 3205), UCX on the one processor that is known to need
it since 1.21, with which NIXL is built since spring 2026."""


def _section(serving: Serving, pool: Pool) -> Serving:
    """Return the settings of one side."""
    given: dict[str, Any] = {name: value for name, value in pool if value is not None}
    return serving.model_copy(update={**given, "disaggregated": None})


def decode_section(serving: Serving) -> Serving:
    """Return the settings of the engines that decode."""
    assert serving.disaggregated is not None
    return _section(serving, serving.disaggregated.decode)


def _sides(serving: Serving) -> list[Serving]:
    asked = serving.disaggregated
    assert asked is not None
    return [_section(serving, pool) for pool in (asked.prefill, asked.decode)]


def pools_gpus(serving: Serving) -> int:
    """Return the GPUs of both pools."""
    return sum(side.world * side.replicas for side in _sides(serving))


def disaggregated(spec: Spec, serving: Serving, neighbours: Neighbourhood = ALONE) -> Disaggregated:
    """Return both sides of a server, ready to run; prefilling engines take the first GPUs. Raises ConfigError."""
    asked = serving.disaggregated
    assert asked is not None
    key = "workload.serving.disaggregated"
    if serving.pipeline_parallel_size > 1 or serving.data_parallel_size > 1 or serving.speculative_config:
        raise spec.error(key, "got a pipeline, data parallelism or drafts beside it, which is not modelled")
    if serving.replicas > 1:
        raise spec.error("workload.serving.replicas", "got several beside pools, which have replicas of their own")
    found = machine(spec)
    sides = _sides(serving)
    second = sides[0].world * sides[0].replicas
    if asked.separate_hosts:
        second = -(-second // found.per_host) * found.per_host
    gpus, there = second + sides[1].world * sides[1].replicas, found.per_host * found.hosts
    if gpus > there:
        apart = ", the second at a host of its own" if asked.separate_hosts else ""
        raise spec.error(key, f"got pools of {gpus} GPUs{apart}, and the cluster has {there}")
    ready = [server(spec, side, neighbours) for side in sides]
    if ready[0].layout.windows != (0,):
        raise spec.error(key, "got a model with sliding windows, whose transfers are not modelled")
    prefill, decode = (
        _side(found, section, one, start) for section, one, start in zip(sides, ready, (0, second), strict=True)
    )
    if not relaxed_ordering(serving):
        found.twin.link_rate_bps.update(ordered_writes(found))
    network = KvNetwork(
        found.twin,
        asked.connector,
        _layout(ready[0], ready[1]),
        host_ps=round(asked.transfer_us * PS_PER_US),
        wake_ps=_wake_ps(found),
        neighbours=neighbours,
    )
    handover = Handover(
        proxy_ps=round(asked.proxy_us * PS_PER_US),
        lease_ps=round(asked.lease_s * PS_PER_S),
        token_ps=round(serving.host.token_us * PS_PER_US),
    )
    return Disaggregated(prefill, decode, network, handover)


def pools_bytes(spec: Spec, pools: Disaggregated) -> F64:
    """Return the bytes of KV that went over each port, as if evenly between all engines, of shape [ports]."""
    twin, nodes = machine(spec).twin, pools.nodes
    pairs, copies = pools.network.layout.pairs, pools.network.copies
    host = twin.fabric.node_host
    ends = [
        (prefill[source], decode[target])
        for prefill in nodes[0]
        for decode in nodes[1]
        for source, target in pairs
        if not copies or host[prefill[source]] != host[decode[target]]
    ]
    if not ends:
        return np.zeros(twin.fabric.ports)
    each = pools.network.moved_bytes / (len(nodes[0]) * len(nodes[1]) * len(pairs))
    source, target = np.array(ends, np.int32).T
    if copies:
        return routed_bytes(twin, source, target, each)
    finder = PathFinder(twin.fabric, twin.routes)
    ways = [adapter_pairs(finder, *end) for end in zip(source.tolist(), target.tolist(), strict=True)]
    counts = np.array([len(departing) for departing, _ in ways])
    departing, arriving = (np.concatenate(side) for side in zip(*ways, strict=True))
    source, target, part = (np.repeat(one, counts) for one in (source, target, each / counts))
    return routed_bytes(twin, source, target, part, (departing, arriving))


def _side(found: Machine, section: Serving, ready: Server, first: int) -> Side:
    engines: list[Replica] = []
    for _ in range(section.replicas):
        engines += [rank for engine in ready.make() for rank in engine.ranks]
    gpus, size = found.gpus, section.world
    nodes = tuple(gpus[first + place * size : first + (place + 1) * size] for place in range(section.replicas))
    return Side(tuple(engines), nodes)


def relaxed_ordering(serving: Serving) -> bool:
    """Return if adapters may write KV out of order."""
    asked = serving.disaggregated
    if asked is not None and asked.relaxed_ordering is not None:
        return asked.relaxed_ordering
    return serving.release not in ORDERED_RELEASES


def ordered_writes(found: Machine) -> dict[int, int]:
    """Return rates of adapters' ports into hosts where writes keep their order, b/s, of those that it slows."""
    limit = catalog.chip(catalog.host(found.host).chips["cpu"]).ordered_write
    fabric = found.twin.fabric
    inside = np.isin(fabric.port_node, fabric.nic_node) & (fabric.port_kind == LinkKind.PCIE)
    ports = np.flatnonzero(inside & (fabric.port_payload_bps > (limit.value if limit else FOREVER)))
    if limit is None or not len(ports):
        return {}
    rates = limit.value * (fabric.port_rate_bps[ports] / fabric.port_payload_bps[ports])
    return dict(zip(ports.tolist(), np.rint(rates).astype(np.int64).tolist(), strict=True))


def _wake_ps(found: Machine) -> int:
    """Return what a core of its hosts takes to wake up."""
    known = catalog.chip(catalog.host(found.host).chips["cpu"]).idle_exit
    return known.value if known else WAKE_PS


def _layout(prefill: Server, decode: Server) -> KvLayout:
    """Return what a transfer moves between two engines."""
    served = decode.served
    latent = served.model.latent is not None
    heads, sizes = served.model.kv_heads, (prefill.served.group.size, served.group.size)
    pairs = rank_pairs(*sizes, 0 if latent else heads)
    whole = latent or len({min(size, heads) for size in sizes}) == 1
    parts = 1 if latent else 2
    per_block = decode.layout.block_size * served.kv_bytes_per_token() / parts
    return KvLayout(served.model.layers * parts, per_block, pairs, whole)
